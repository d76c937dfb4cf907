"""TensorBoard's event files, written by a thread of its own."""

from __future__ import annotations

import io
import itertools
import os
import platform
import time
from functools import partial
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from hpcdi.utils.append import AppendFile
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.threads import JobThread

_NUMBERS = itertools.count()
_HELD_EVENTS = 1000


class EventFile(Closing):
    """Takes events; they are written when they are many, and by `flush`.

    TensorBoard's own writer ends with the first event that finds the disk full; here events wait
    for room, see `AppendFile`.

    Args:
        folder: where the file goes.
    """

    def __init__(self, folder: Path) -> None:
        # TensorBoard knows event files by this name
        name = f"events.out.tfevents.{int(time.time()):010d}.{platform.node()}.{os.getpid()}"
        self._file = AppendFile(folder / f"{name}.{next(_NUMBERS)}", "the event file")
        self._jobs = JobThread("event-file")
        self._held: list[Event] = []
        self._is_open = True
        self.add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._hand_over()

    def add(self, event: Event) -> None:
        """Take an event; after `close`: nothing."""
        if self._is_open:
            self._held.append(event)
            if len(self._held) >= _HELD_EVENTS:
                self._hand_over()

    def flush(self) -> None:
        """Write out what was added, or have it wait for room; returns when that is done."""
        if self._is_open:
            self._hand_over()
            self._jobs.wait()

    def close(self) -> None:
        """Write out and close; again: nothing."""
        if self._is_open:
            self._hand_over()
            self._is_open = False
            self._jobs.close()
            self._file.close()

    def _hand_over(self) -> None:
        held, self._held = self._held, []
        if held:
            self._jobs.submit(partial(self._write, held))

    def _write(self, events: list[Event]) -> None:
        data = io.BytesIO()
        records = RecordWriter(data)
        for event in events:
            records.write(event.SerializeToString())
        self._file.add(data.getvalue())
