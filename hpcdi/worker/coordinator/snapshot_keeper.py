"""Rank 0's part of snapshots, and their names: written while the loop goes on."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hpcdi.comm.messages import TakeSnapshot
from hpcdi.errors import SnapshotError, StoreError
from hpcdi.store.atomic import temporary_beside
from hpcdi.store.checkpoints import finish, names, remove_others, write_files
from hpcdi.store.layout import RunLayout
from hpcdi.store.snapshots import load_state, save_state
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.metrics import human_bytes, human_count
from hpcdi.utils.threads import JobThread
from hpcdi.worker.coordinator.snapshots import Snapshot

STATE_FILE, STATE_KIND, STATE_VERSION = "coordinator.h5", "coordinator", 3
_PREFIX = "snapshot_"


@dataclass(frozen=True)
class Kept:
    """How the taking of a snapshot ended."""

    snapshot: Snapshot
    n_bytes: int
    took_s: float
    error: str
    released: tuple[str, ...]
    """Shards that one snapshot less needs."""

    @property
    def figures(self) -> dict[str, float]:
        """Seconds that a learner stood still for it, seconds until it was whole, bytes."""
        return {"stall_s": self.snapshot.stall_s, "took_s": self.took_s, "bytes": self.n_bytes}

    @property
    def is_worth_a_line(self) -> bool:
        """It is whole, and more than the run's beginning."""
        return not self.error and bool(self.snapshot.files)

    @property
    def told(self) -> str:
        """A line for people."""
        return (
            f"{self.snapshot.name}: iteration {human_count(self.snapshot.train_iter)}, "
            f"{human_bytes(self.n_bytes)} in {self.took_s:.2f} s; the learner stood still for "
            f"{1e3 * self.snapshot.stall_s:.0f} ms"
        )


class SnapshotKeeper(Closing):
    """Writes on a thread of its own, in the order of the calls.

    Args:
        layout: the run folder.
        keep: snapshots that stay.
    """

    def __init__(self, layout: RunLayout, keep: int) -> None:
        self._layout, self._keep = layout, keep
        self._shards: dict[str, tuple[str, ...]] = {}  # snapshot -> what it needs
        self._begun: dict[str, _Begun] = {}
        self._ended: deque[Kept] = deque()
        self._jobs = JobThread("snapshots")
        self._number = max(map(_number_of, names(layout.snapshots_dir)), default=0)

    @property
    def has_any(self) -> bool:
        """Whether the run has come to a snapshot, now or before it was taken up again."""
        return self._number > 0

    def new(self) -> tuple[str, str]:
        """Name and folder of the next one; see `SnapshotClock`."""
        self._number += 1
        target = self._layout.snapshots_dir / f"{_PREFIX}{self._number:06d}"
        return target.name, str(temporary_beside(target).relative_to(self._layout.root))

    def begin(
        self, order: TakeSnapshot, state: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Take rank 0's part, which must not change any more; gives the shards that it names.

        Args:
            order: what the learners are told.
            state: of the coordinator.
            facts: for the manifest.
        """
        self._shards[order.name] = shards = tuple(shards_of(state))
        self._begun[order.name] = begun = _Begun(self._layout.inside(order.folder), dict(facts))
        self._jobs.submit(partial(self._write, begun, state))
        return shards

    def has_begun(self, name: str) -> bool:
        """Whether rank 0's part of a snapshot is taken, and not all others are there yet."""
        return name in self._begun

    def commit(self, snapshot: Snapshot) -> None:
        """All parts of the learners are there: give it its name, or drop it where one failed."""
        self._jobs.submit(partial(self._commit, snapshot, self._begun.pop(snapshot.name)))

    def take_ended(self) -> list[Kept]:
        """Those that have ended since the last call."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def adopt_all(self) -> list[str]:
        """Shards that the snapshots need that are there already."""
        for name in names(self._layout.snapshots_dir):
            path = self._layout.snapshots_dir / name / STATE_FILE
            with contextlib.suppress(SnapshotError):  # a torn one needs nothing
                state = load_state(path, STATE_KIND, STATE_VERSION)
                self._shards[name] = tuple(shards_of(state))
        return [path for shards in self._shards.values() for path in shards]

    def close(self) -> None:
        """Finish what can be finished, drop the rest; again: nothing."""
        for name, begun in self._begun.items():
            lost = Snapshot(name, "", set(), error="a learner's part was missing at the end")
            self._jobs.submit(partial(self._commit, lost, begun))
        self._begun.clear()
        self._jobs.close()

    def _write(self, begun: _Begun, state: Mapping[str, Any]) -> None:
        def write(path: Path) -> None:
            save_state(path, STATE_KIND, STATE_VERSION, state)

        try:
            begun.files = write_files(begun.aside, {STATE_FILE: write})
        except (OSError, StoreError) as error:
            begun.error = str(error)

    def _commit(self, snapshot: Snapshot, begun: _Begun) -> None:
        files = {**begun.files, **snapshot.files}
        target = self._layout.snapshots_dir / snapshot.name
        gone, error = [snapshot.name], snapshot.error or begun.error
        try:
            if not error:
                facts = {**begun.facts, "train_iter": snapshot.train_iter}
                finish(begun.aside, target, files, facts)
                gone = remove_others(target, self._keep, _PREFIX)
        except (OSError, StoreError) as problem:
            error = str(problem)
        shutil.rmtree(begun.aside, ignore_errors=True)
        n_bytes = sum(file["bytes"] for file in files.values())
        released = [path for name in gone for path in self._shards.pop(name, ())]
        took_s = time.monotonic() - begun.began
        self._ended.append(Kept(snapshot, n_bytes, took_s, error, tuple(released)))


@dataclass
class _Begun:
    """Rank 0's part of a snapshot."""

    aside: Path
    facts: dict[str, Any]
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    error: str = ""
    began: float = field(default_factory=time.monotonic)


def shards_of(state: Mapping[str, Any]) -> list[str]:
    """Paths of the shards that rank 0's state names."""
    replay = state["replay"]
    parts = replay["partitions"].values()
    held = [block["path"] for part in parts for block in part["blocks"]]
    waiting = [path for part in parts for path in part["waiting"]]
    return [*held, *waiting, *replay["waiting"]]


def _number_of(name: str) -> int:
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits.isdigit() else 0
