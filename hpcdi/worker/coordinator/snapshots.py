"""When a snapshot of the run is taken, and which of its parts are there: decisions only.

A snapshot is a consistent cut, without a collective and without a pause: rank 0 puts `TakeSnapshot`
between the batches that it sends, at the same place for every learner, and keeps its own state as
it is at that moment. Learners keep theirs when they come to that place. So all have done the same
iterations, and the index names what they hold::

    rank 0     Batches Batches TakeSnapshot Batches ...      index, counters ──► coordinator.h5
    learner 1  train   train   keep ─────── train ...        weights, optimizer ──► learner.pt
    learner 2  train   train   keep ─────── train ...        its random numbers ──► learner_2.pt

Files are written beside, by a thread of each rank; rank 0 gives the whole its name when all parts
have been announced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hpcdi.comm.messages import SnapshotPart, TakeSnapshot


@dataclass
class Snapshot:
    """One that is being taken."""

    name: str
    folder: str
    """Where its files are written, relative to the run folder."""
    missing: set[int]
    """Learner ranks whose part is not there yet."""
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    """File -> ``bytes, crc32``."""
    train_iter: int = 0
    stall_s: float = 0.0
    """The longest that a learner stood still for it."""
    error: str = ""


class SnapshotClock:
    """Begins snapshots and collects their parts.

    Args:
        every_s: seconds from one to the next; infinite: only on request.
        new: gives name and folder of the next one; None: there are none.

    Attributes:
        resume: folder of the one that learners are to go on from, relative to the run folder.
    """

    def __init__(self, every_s: float, new: Callable[[], tuple[str, str]] | None = None) -> None:
        self.resume = ""
        self._every_s, self._new = every_s, new
        self._began = 0.0
        self._taken: dict[str, Snapshot] = {}

    def start(self, now: float) -> None:
        """The run begins to learn: the first snapshot is due in `every_s`."""
        self._began = now

    def is_due(self, now: float) -> bool:
        """Whether it is time for one, and none is being taken."""
        return not self._taken and now - self._began >= self._every_s

    def take(self, learners: Iterable[int], now: float) -> TakeSnapshot | None:
        """Begin one: what each of the learners must be told; None where there are none."""
        if self._new is None:
            return None
        name, folder = self._new()
        self._began = now
        self._taken[name] = Snapshot(name, folder, set(learners))
        return TakeSnapshot(name, folder)

    def part(self, rank: int, part: SnapshotPart) -> None:
        """A learner's part is on disk, or could not be written."""
        snapshot = self._taken.get(part.name)
        if snapshot is None:
            return
        snapshot.missing.discard(rank)
        snapshot.files.update(part.files)
        snapshot.train_iter = max(snapshot.train_iter, part.train_iter)
        snapshot.stall_s = max(snapshot.stall_s, part.stall_s)
        snapshot.error = snapshot.error or part.error

    def lose(self, rank: int) -> None:
        """A learner has died: what lacks its part will never be whole."""
        for snapshot in self._taken.values():
            if rank in snapshot.missing:
                snapshot.missing.clear()
                snapshot.error = f"rank {rank} died before its part was written"

    def take_complete(self) -> list[Snapshot]:
        """Those whose parts are all there, once."""
        complete = [snapshot for snapshot in self._taken.values() if not snapshot.missing]
        for snapshot in complete:
            del self._taken[snapshot.name]
        return complete
