"""A learner's part of a run's snapshot: copied where it stands, written while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hpcdi.comm.messages import SnapshotPart, TakeSnapshot
from hpcdi.errors import StoreError
from hpcdi.store.checkpoints import write_files
from hpcdi.store.layout import RunLayout
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.threads import JobThread
from hpcdi.worker.learner.checkpointing import learner_files


class SnapshotPartWriter(Closing):
    """Writes on a thread of its own, which starts with the first snapshot.

    Args:
        layout: the run folder.
        tell: sends a part's announcement to rank 0.
    """

    def __init__(self, layout: RunLayout, tell: Callable[[SnapshotPart], None]) -> None:
        self._layout, self._tell = layout, tell
        self._jobs = JobThread("snapshot-part")

    def keep(self, learner: Any, order: TakeSnapshot) -> None:
        """Copy what the learner is now; the files are written later."""
        began = time.perf_counter()
        files = learner_files(learner)
        stall_s = time.perf_counter() - began
        self._jobs.submit(partial(self._write, order, files, learner.train_iter, stall_s))

    def close(self) -> None:
        """Write what is to be written still."""
        self._jobs.close()

    def _write(
        self,
        order: TakeSnapshot,
        files: dict[str, Callable[[Path], None]],
        train_iter: int,
        stall_s: float,
    ) -> None:
        try:
            written = write_files(self._layout.inside(order.folder), files)
        except (OSError, StoreError) as error:
            self._tell(SnapshotPart(order.name, {}, train_iter, stall_s, str(error)))
        else:
            self._tell(SnapshotPart(order.name, written, train_iter, stall_s))
