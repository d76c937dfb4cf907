"""What a run leaves to read: one JSONL log a rank, TensorBoard events, lines on the terminal."""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

from hpcdi.utils.append import AppendFile
from hpcdi.utils.disk import show
from hpcdi.utils.event_file import EventFile
from hpcdi.utils.jsonable import jsonable

LOGGER = logging.getLogger("hpcdi")

_BINS = 30
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, rank, role, level, message, and the record's extra fields."""

    def __init__(self, rank: int, role: str, restart: int) -> None:
        super().__init__()
        where = {"host": platform.node(), "pid": os.getpid(), "restart": restart}
        self._who = {"rank": rank, "role": role, **where}

    def format(self, record: logging.LogRecord) -> str:
        """Text of a record."""
        extra = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        entry: dict[str, Any] = {
            **extra,  # a record's own fields never hide who speaks
            "time": round(record.created, 3),
            "level": record.levelname,
            **self._who,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(jsonable(entry))


class Console(logging.Formatter):
    """A line for people; ranks other than 0 say who they are."""

    def __init__(self, rank: int, role: str) -> None:
        super().__init__()
        self._prefix = f"[rank {rank} {role}] " if rank else ""

    def format(self, record: logging.LogRecord) -> str:
        """Text of a record."""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{self._prefix}{level}{record.getMessage()}"


class LogFile(logging.Handler):
    """A line for each record; a disk that is full costs lines, not the run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = AppendFile(path, "the log")
        self._file.add(b"")  # it is there, though nothing is said yet

    def emit(self, record: logging.LogRecord) -> None:
        """Add a record's line."""
        self._file.add(self.format(record).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def open_log(path: Path, rank: int, role: str, restart: int = 0) -> None:
    """Send this rank's log records to a JSONL file, and warnings to the terminal too.

    Args:
        path: of the file; what it holds already stays.
        rank: of this process.
        role: of this process.
        restart: how often the run has been taken up again; every line says it.
    """
    close_log()
    file = LogFile(path)
    file.setFormatter(JsonLines(rank, role, restart))
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(Console(rank, role))
    console.setLevel(logging.WARNING)
    LOGGER.addHandler(file)
    LOGGER.addHandler(console)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def close_log() -> None:
    """Close what `open_log` opened."""
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)  # first: a record in between would open the file again
        handler.close()
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.propagate = True


def say(text: str = "") -> None:
    """Print a line for the person who started the run."""
    show(text + "\n")


class TensorBoardWriter:
    """Scalars, charts of several, histograms and videos as TensorBoard events.

    It writes what `torch.utils.tensorboard.SummaryWriter` writes, without importing torch: rank 0
    needs no torch.

    Args:
        folder: where the event file goes.
        flush_s: seconds between flushes.
    """

    def __init__(self, folder: str | Path, flush_s: float = 5.0) -> None:
        self._writer = EventFile(Path(folder))
        self._flush_s, self._flushed = flush_s, time.monotonic()
        self._is_open = True
        self._folder, self._curves = Path(folder), dict[str, TensorBoardWriter]()

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Add a point to a curve."""
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=float(value))])
        self._write(Event(step=int(global_step), summary=summary))

    def add_scalars(self, tag: str, values: Mapping[str, float], global_step: int) -> None:
        """Add a point to each of several curves in one chart.

        TensorBoard draws into one chart what has the same name in several folders: each curve's
        events go to a folder of its own below this one.
        """
        for curve, value in values.items():
            name = f"{tag}_{curve}".replace("/", "_")
            if name not in self._curves:
                self._curves[name] = TensorBoardWriter(self._folder / name, self._flush_s)
            self._curves[name].add_scalar(tag, value, global_step)

    def add_histogram(self, tag: str, values: Any, global_step: int) -> None:
        """Add the distribution of an array's finite values; where there are none, nothing.

        Args:
            tag: name in TensorBoard.
            values: array of any shape.
            global_step: place on the axis.
        """
        array = np.asarray(values, dtype=np.float64).reshape(-1)
        array = array[np.isfinite(array)]
        if not array.size:
            return
        counts, limits = np.histogram(array, bins=_BINS)
        histogram = HistogramProto(
            min=array.min(), max=array.max(), num=array.size, sum=array.sum(),
            sum_squares=np.square(array).sum(), bucket_limit=limits[1:].tolist(),
            bucket=counts.tolist(),
        )  # fmt: skip
        summary = Summary(value=[Summary.Value(tag=tag, histo=histogram)])
        self._write(Event(step=int(global_step), summary=summary))

    def add_video(self, tag: str, frames: Any, global_step: int, fps: float = 20.0) -> None:
        """Add videos, which TensorBoard's image tab plays side by side (as one GIF).

        Args:
            tag: name in TensorBoard.
            frames: uint8 [N, T, C, H, W]: N videos of T frames, C being 1 (grey) or 3.
            global_step: place on the axis.
            fps: frames a second, at most 50.

        Raises:
            ValueError: `frames` are something else, or none.
        """
        from hpcdi.utils.video import encode_gif, side_by_side

        row = side_by_side(frames)
        image = Summary.Image(
            height=row.shape[1], width=row.shape[2], colorspace=3,
            encoded_image_string=encode_gif(row, fps),
        )  # fmt: skip
        summary = Summary(value=[Summary.Value(tag=tag, image=image)])
        self._write(Event(step=int(global_step), summary=summary))

    def flush(self) -> None:
        """Write out what is buffered; after `close`: nothing."""
        if self._is_open:
            self._writer.flush()
            for curve in self._curves.values():
                curve.flush()

    def close(self) -> None:
        """Flush and close; again: nothing."""
        self._is_open = False
        self._writer.close()
        for curve in self._curves.values():
            curve.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.add(event)
        if time.monotonic() - self._flushed > self._flush_s:
            self.flush()
            self._flushed = time.monotonic()


def forget_events_after(folder: str | Path, saved_at: float) -> None:
    """Drop points of curves that were drawn after a checkpoint: the run is about to draw them anew.

    TensorBoard's own purge goes by steps of one axis; the curves here have two.

    Args:
        folder: of the event files.
        saved_at: when the checkpoint was taken, seconds since the epoch.
    """
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.summary.writer.record_writer import RecordWriter

    for path in sorted(Path(folder).rglob("events.out.tfevents.*")):
        events = [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]
        kept = [e for e in events if e.wall_time <= saved_at or not e.summary.value]
        if len(kept) == len(events):
            continue
        aside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
        with aside.open("wb") as file:
            records = RecordWriter(file)
            for event in kept:
                records.write(event.SerializeToString())
            records.flush()
        aside.replace(path)
