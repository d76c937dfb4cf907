r"""A run on two virtual hosts with a random fault every so many seconds: does it reach its goal?

Six ranks of a real mpirun: rank 0 and a learner on node1, a learner and three collectors on node2,
each host with a network of its own (`playground`). A run that ends with exit code 85 is started
again by the same command, as a batch script does; nothing else is done for it. The faults:

    kill    a random rank is killed, whatever it does: in the start, too
    all     everything is killed at once, mpirun and the command, too
    stop    a random rank is frozen
    cut     no packet passes between the hosts for 2 to 60 s: a firewall rule
    disk    the file system of the run is full for 2 to 20 s
    flip    a random published block has a bit of its rows changed, on disk

It fails if the run hangs, ends with another code, loses a published block (but those that were
damaged), or has counted other env steps than its shards hold; a league (`--config`) also if its
payoff has other games than they. Needs root, and `cut` needs nft (Debian's package nftables). On a
busy machine a start takes minutes: then `--every` has to be longer, too, or it is always a start
that is struck; and `--iterations` less, so that the goal comes after the faults.

    python tools/bench_chaos.py --minutes 30
    python tools/bench_chaos.py --kinds cut --minutes 5 --every 60
    python tools/bench_chaos.py --kinds kill all --minutes 10 --every 30 \
        --config configs/tictactoe_exploiter.yaml \
        --settings "policy.eval.every=1000 env_steps" \
        policy.other.commander.league.freeze_steps=2000
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from bench_faults import CONFIG, Trial, lost_blocks
from figures import Row, at_least, at_most, parsed, parser, show
from playground import Hosts, SmallDisk, enter_playground

from hpcdi.store.block import ITEM_NAMES
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import survey

SLOTS = (2, 4)
AGAIN = 85
KINDS = ("kill", "all", "stop", "cut", "disk", "flip")
DISK = "1g"
"""More than the run leaves: it is never full by itself."""


class Chaos:
    """A run that bears faults until it has reached its goal.

    Args:
        folder: an empty one.
        settings: of the run.
        seed: of the faults.
        patience_s: without progress, after which it hangs.
        config: the experiment.
    """

    def __init__(
        self,
        folder: Path,
        settings: list[str],
        seed: int,
        patience_s: float,
        config: Path = CONFIG,
    ) -> None:
        self.dice, self.struck = random.Random(seed), Counter[str]()
        self.codes, self.left, self.minutes = Counter[int](), 0, 0.0
        self.flipped: set[str] = set()
        self._is_killed = False
        self._disk = SmallDisk(folder / "disk")
        self._disk.mount(DISK)  # before the hosts take the mounts over
        self._hosts = Hosts(folder, SLOTS)
        self._published: set[str] = set()
        self._ends: list[tuple[float, Callable[[], None]]] = []  # of faults that last a while
        self.trial = Trial(
            self._disk.root, settings, self.dice, "", patience_s,
            self._hosts.prefix(), self._hosts.variables(), config.resolve(),
        )  # fmt: skip

    @property
    def lost(self) -> int:
        """Published blocks that cannot be read any more, without those that were damaged."""
        return lost_blocks(self.trial.run, self._published - self.flipped, 0)

    def go(self, kinds: list[str], minutes: float, every_s: float) -> None:
        """Until the goal is reached, or it never will be."""
        began = time.monotonic()
        due = began + every_s
        while True:
            self.trial.wait(lambda until=due: time.monotonic() >= until or self._must_end())  # type: ignore[misc]
            now = time.monotonic()
            for end in [end for end in self._ends if end[0] <= now]:
                self._ends.remove(end)
                end[1]()
            if self.trial.process.poll() is not None and self._has_ended():
                self.minutes = min(minutes, (now - began) / 60)
                break
            if now >= due:
                due += every_s
                if now < began + 60 * minutes:
                    self._strike(self.dice.choice(kinds))
        for _, end in self._ends:
            end()

    def close(self) -> None:
        """Leave nothing behind; only then can the folder be removed."""
        self._hosts.reboot(0.0)
        self.trial.process.wait()
        self._disk.unmount()

    def _must_end(self) -> bool:
        return any(when <= time.monotonic() for when, _ in self._ends)

    def _has_ended(self) -> bool:
        """Start the run again, if that is to be done; returns whether it is over."""
        code = self.trial.process.returncode
        is_killed = self._is_killed and code < 0
        self._is_killed = False
        if not is_killed:
            self.codes[code] += 1
        self.left += len(self._hosts.reboot())
        self._say(f"exit code {code}")
        if self.trial.hung or not (is_killed or code == AGAIN):
            return True
        self.trial.start()
        return False

    def _strike(self, kind: str) -> None:
        self.struck[kind] += 1
        self._published |= self.trial.blocks().keys()
        told = {
            "kill": partial(self._signal, signal.SIGKILL),
            "all": self._kill_all,
            "stop": partial(self._signal, signal.SIGSTOP),
            "cut": self._cut,
            "disk": self._fill,
            "flip": self._flip,
        }[kind]()
        self._say(f"{kind}: {told}")

    def _say(self, text: str) -> None:
        status = self.trial.status()
        sys.stderr.write(
            f"{time.strftime('%H:%M:%S')} iteration {status.get('train_iter', 0)}, env step "
            f"{status.get('env_steps', 0)}: {text}\n"
        )

    def _signal(self, number: int) -> str:
        ranks = self._hosts.ranks()
        if not ranks:
            return "no rank has begun"
        rank = self.dice.choice(sorted(ranks))
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks[rank], number)
        return f"rank {rank}"

    def _kill_all(self) -> str:
        self._is_killed = True
        return f"{len(self._hosts.reboot(0.0))} processes"

    def _cut(self) -> str:
        seconds = self.dice.uniform(2.0, 60.0)
        self._hosts.cut()
        self._ends.append((time.monotonic() + seconds, self._hosts.heal))
        return f"for {seconds:.0f} s"

    def _fill(self) -> str:
        seconds = self.dice.uniform(2.0, 20.0)
        self._disk.fill()
        self._ends.append((time.monotonic() + seconds, self._disk.free))
        return f"full for {seconds:.0f} s"

    def _flip(self) -> str:
        layout = RunLayout(self.trial.run)
        shards = sorted(layout.shard_numbers())
        path = self.dice.choice(shards) if shards else ""
        blocks = survey(layout.root / path, path).blocks if path else []
        if not blocks:
            return "nothing is published"
        ref, _ = self.dice.choice(blocks)
        column = self.dice.choice([c for c in ref.columns if c.name not in ITEM_NAMES])
        size = math.prod(column.shape) * np.dtype(column.dtype).itemsize
        where = column.offset + self.dice.randrange(size)
        with (layout.root / path).open("r+b") as file:
            file.seek(where)
            byte = file.read(1)[0]
            file.seek(where)
            file.write(bytes([byte ^ 1 << self.dice.randrange(8)]))
        self.flipped.add(ref.path)
        return f"a bit of {ref.path}, column {column.name}"


def rows_of(chaos: Chaos, minutes: float) -> list[Row]:
    """What came of it."""
    codes = ", ".join(f"{code} x {count}" for code, count in sorted(chaos.codes.items()))
    faults = ", ".join(f"{kind} x {count}" for kind, count in sorted(chaos.struck.items()))
    is_done = chaos.trial.process.returncode == 0
    status = chaos.trial.status()
    is_league = (chaos.trial.run / "league.json").exists()
    goal = f"iteration {status.get('train_iter')}, env step {status.get('env_steps')}"
    return [
        at_most("runs that did not reach their goal unattended", int(not is_done), "runs", 0,
                peer=f"exit codes {codes}; {goal}"),
        at_least("minutes with faults", chaos.minutes, "min", 0.9 * minutes, peer=faults),
        at_most("hangs", int(chaos.trial.hung), "runs", 0),
        at_most("exit codes against the contract",
                sum(n for code, n in chaos.codes.items() if code not in (0, AGAIN)), "codes", 0),
        at_most("published blocks lost", chaos.lost, "blocks", 0,
                peer=f"{len(chaos.flipped)} were damaged"),
        at_most("env steps counted more or less than are stored",
                chaos.trial.steps_off() if is_done else math.nan, "steps", 0),
        *(at_most("games in the payoff more or less than are stored",
                  chaos.trial.games_off() if is_done else math.nan, "games", 0)
          for _ in range(is_league)),
        Row("processes that a job has left on its hosts", chaos.left, "processes"),
    ]  # fmt: skip


def main() -> int:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--minutes", type=float, default=30.0, help="with faults")
    made.add_argument("--every", type=float, default=20.0, metavar="S", help="from fault to fault")
    made.add_argument("--iterations", type=int, default=100_000, help="the goal")
    made.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    made.add_argument("--config", type=Path, default=CONFIG, metavar="FILE", help="the experiment")
    made.add_argument("--keep", metavar="FOLDER", help="copy the run to a new folder")
    made.add_argument("--settings", nargs="+", default=[], metavar="KEY=VALUE")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--patience", type=float, default=300.0, metavar="S",
                      help="without progress, after which the run hangs")  # fmt: skip
    given = parsed(made, minutes=1.0, iterations=3000)
    enter_playground()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves nothing behind
    settings = [
        "-n", str(sum(SLOTS)), "policy.collect.collector.collector_num=3",
        f"policy.other.commander.max_train_iter={given.iterations}", f"seed={given.seed}",
        *given.settings,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="hpcdi-chaos-") as folder:
        chaos = Chaos(Path(folder), settings, given.seed, given.patience, given.config)
        try:
            chaos.go(given.kinds, given.minutes, given.every)
            rows = rows_of(chaos, given.minutes)
        finally:
            if given.keep:
                shutil.copytree(Path(folder), given.keep, symlinks=True)
            chaos.close()
    show(rows, given.json)
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
