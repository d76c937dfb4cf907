#!/usr/bin/env python3
"""Kill a process that saves its replay buffer, again and again: what is left must be whole.

A child fills a buffer with items that all hold the snapshot's number, saves it to one file, and
goes on with the next number, until SIGKILL ends it at a random moment, mostly while a save is under
way. After each kill the file is loaded: all of its items must be of one snapshot, which is not
older than the last one whose save had ended. Then another child loads the file and goes on.

    python tools/kill_snapshots.py --kills 50
    python tools/kill_snapshots.py --in-place    a control: files written in place do not survive

What a killed save leaves of its unfinished file is removed by hpcdi.store.atomic.sweep_temporary.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from hpcdi.errors import BufferContractError, SnapshotError
from hpcdi.store.atomic import sweep_temporary
from hpcdi.types import Columns
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer
from hpcdi.worker.replay_buffer.items import columns_of_records

FILE = "buffer.h5"
BEGIN, END = "begin", "end"
WARM_SAVES = 4
PIECES, PIECE_S = 25, 1e-3


def main() -> int:
    """Kill, look, and say; 0 if every file was whole."""
    given = command_line().parse_args()
    with contextlib.ExitStack() as stack:
        parent = given.folder or stack.enter_context(tempfile.TemporaryDirectory())
        folder = Path(parent) / "kill_snapshots"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).unlink(missing_ok=True)
        filled(0, given.items)  # what has to be compiled is, before the first child
        rng = random.Random(given.seed)
        whole = saving = 0
        last, save_s = -1, 0.0
        for number in range(1, given.kills + 1):
            with Saver(folder, given.items, last + 1, given.in_place) as saver:
                save_s = save_s or saver.save_seconds()
                saver.kill(rng, save_s)
            saving += saver.is_saving
            try:
                last = judge(folder / FILE, given.items, max(last, saver.ended), saver.begun)
                whole, verdict = whole + 1, f"holds snapshot {last}, whole"
            except (SnapshotError, BufferContractError, ValueError) as error:
                last, verdict = saver.begun, f"IS DAMAGED: {error}"
            moment = "while saving" if saver.is_saving else "between saves, after"
            say(f"kill {number:3d} {moment} snapshot {saver.begun}: the file {verdict}")
        left = len(sweep_temporary(folder))
    say(
        f"{whole} of {given.kills} files whole and of one snapshot; {saving} kills while saving "
        f"({1e3 * save_s:.1f} ms a save of {given.items} items)\n"
        f"{left} temporary files of killed saves, swept by hpcdi.store.atomic.sweep_temporary"
    )
    return 0 if whole == given.kills else 1


def command_line() -> argparse.ArgumentParser:
    """What may be asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="how many (default: 50)")
    parser.add_argument("--items", type=int, default=50_000, help="of the buffer (default: 50000)")
    parser.add_argument("--folder", help="where the file lies (default: a temporary folder)")
    parser.add_argument("--seed", type=int, help="of the random moments")
    parser.add_argument("--in-place", action="store_true", help="a control: write in place")
    return parser


def say(text: str) -> None:
    """Print to people, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def snapshot(number: int, items: int) -> Columns:
    """Items that all tell the snapshot's number, and their own place in it."""
    position = np.arange(items)
    return {
        "snapshot": np.full(items, number),
        "position": position,
        "both": position + 0.5 * number,
    }


def priority(number: int, items: int) -> np.ndarray:
    """Priorities that tell the snapshot's number."""
    return np.full(items, 1.0 + number % 100)


def new_buffer(items: int) -> AdvancedReplayBuffer:
    """An empty buffer."""
    return AdvancedReplayBuffer({"replay_buffer_size": items})


def filled(number: int, items: int) -> AdvancedReplayBuffer:
    """A buffer that holds one snapshot."""
    buffer = new_buffer(items)
    buffer.push_columns(snapshot(number, items), -1, priority(number, items))
    return buffer


def judge(path: Path, items: int, ended: int, begun: int) -> int:
    """Number of the one snapshot that a file holds.

    Args:
        path: of the file.
        items: of a snapshot.
        ended: the last snapshot whose save has ended.
        begun: the last one whose save has begun.

    Raises:
        SnapshotError: it is torn.
        ValueError: it holds less than a snapshot, or more than one, or one of another time.
    """
    buffer = new_buffer(items)
    buffer.load_data(path)
    state = buffer.state_dict().own
    if buffer.count() != items:
        raise ValueError(f"{buffer.count()} items instead of {items}")
    held = state["ring"]["items"]
    columns = {**held["columns"], **columns_of_records(held)}
    number = int(columns["snapshot"][0])
    same = filled(number, items).state_dict().own
    for name, column in snapshot(number, items).items():
        if not np.array_equal(columns[name], column):
            raise ValueError(f"{name!r} is of several snapshots")
    if not np.array_equal(state["index"]["mass"], same["index"]["mass"]):
        raise ValueError("priorities are of several snapshots")
    if not ended <= number <= begun:
        raise ValueError(f"snapshot {number} is not one of {ended} to {begun}")
    return number


def keep_saving(
    folder: Path, items: int, number: int, in_place: bool, told: Connection, other_end: Connection
) -> None:
    """The child: fill the buffer, save it, and so on; it tells which save it begins and ends."""
    other_end.close()  # so that the parent's death, too, ends the pipe
    path, buffer = folder / FILE, new_buffer(items)
    if path.exists() and not in_place:
        buffer.load_data(path)
    while True:
        buffer.push_columns(snapshot(number, items), -1, priority(number, items))
        data = image(buffer, path) if in_place else b""
        told.send((BEGIN, number, time.monotonic()))
        if in_place:
            write_in_place(data, path)
        else:
            buffer.save_data(path)
        told.send((END, number, time.monotonic()))
        number += 1


def image(buffer: AdvancedReplayBuffer, path: Path) -> bytes:
    """The file of a buffer."""
    aside = path.with_suffix(".aside")
    buffer.save_data(aside)
    data = aside.read_bytes()
    aside.unlink()
    return data


def write_in_place(data: bytes, path: Path) -> None:
    """What one must not do: the old file is gone before the new one is here, by and by."""
    step = len(data) // PIECES + 1
    with path.open("r+b" if path.exists() else "wb") as file:
        for start in range(0, len(data), step):
            file.write(data[start : start + step])
            file.flush()
            time.sleep(PIECE_S)


@dataclass
class Saver:
    """A child that saves, and what it told; leaving the block kills it.

    Attributes:
        folder: where its file lies.
        items: of its buffer.
        first: number of its first snapshot.
        in_place: whether it writes the file in place.
        begun: the last snapshot whose save it began.
        ended: the last one whose save it ended.
        saves: seconds of each save.
    """

    folder: Path
    items: int
    first: int
    in_place: bool
    begun: int = -1
    ended: int = -1
    saves: list[float] = field(default_factory=list)

    def __enter__(self) -> Saver:
        context = multiprocessing.get_context("fork")  # nothing to import, nothing to compile
        self._told, tells = context.Pipe(duplex=False)
        arguments = (self.folder, self.items, self.first, self.in_place, tells, self._told)
        self._child = context.Process(target=keep_saving, args=arguments, daemon=True)
        self._child.start()
        tells.close()  # so that the child's death ends the pipe
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.join()
        with contextlib.suppress(EOFError):
            while True:
                self._take()
        self._told.close()

    @property
    def is_saving(self) -> bool:
        """Whether it had begun a save that it had not ended."""
        return self.begun > self.ended

    def save_seconds(self) -> float:
        """How long a save takes, the median of the first ones."""
        while len(self.saves) < WARM_SAVES:
            self._take()
        return statistics.median(self.saves)

    def kill(self, rng: random.Random, save_s: float) -> None:
        """Kill it within a save, or shortly after."""
        seen = [self._take() for _ in range(rng.randint(1, 3))]
        while seen[-1] != BEGIN or self._told.poll():
            seen.append(self._take())
        time.sleep(rng.uniform(0.0, 1.1 * save_s))
        self._child.kill()

    def _take(self) -> str:
        """Wait for what it tells next."""
        word, number, moment = self._told.recv()
        if word == BEGIN:
            self.begun, self._began_at = number, moment
        else:
            self.ended = number
            self.saves.append(moment - self._began_at)
        return str(word)


if __name__ == "__main__":
    sys.exit(main())
