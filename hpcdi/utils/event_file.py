"""TensorBoard's event files: curves, histograms and videos."""

from __future__ import annotations

import io
import itertools
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MultilineChartContent,
)
from tensorboard.summary.writer.record_writer import RecordWriter

from hpcdi.utils.curves import UpToCheckpoint
from hpcdi.utils.disk import FLUSH_S, RecordFile, rewrite
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.video import encode_gif, side_by_side

_BINS = 30
_FILE_NUMBERS = itertools.count()
_OF_ITERATIONS = re.compile(r"(?:(?P<player>.+?)_)?(?:buffer_rank\d+|[a-z]+)_iter/")
"""Tags of curves over train iterations; they begin with the player, if that is not the main one."""
RANK_FOLDER = "callbacks_rank"
"""With its rank, the folder of what a rank's callbacks draw: their curves over iterations."""
_OWN_CURVES = "detail/"


class TensorBoardWriter(Closing):
    """Writes an event file on a separate thread; after `close`, events are ignored.

    The files are those of `torch.utils.tensorboard.SummaryWriter`, without importing torch, which
    rank 0 does not need. TensorBoard's own writer stops at the first event that finds the disk
    full; here events are buffered, see `AppendFile`.

    Args:
        folder: where the event file goes.
        flush_s: seconds between flushes.
    """

    def __init__(self, folder: str | Path, flush_s: float = FLUSH_S) -> None:
        self._folder, self._flush_s = Path(folder), flush_s
        # TensorBoard recognises event files by this name
        name = f"events.out.tfevents.{int(time.time()):010d}.{platform.node()}.{os.getpid()}"
        path = self._folder / f"{name}.{next(_FILE_NUMBERS)}"
        self._file = RecordFile[Event](path, "the event file", _encoded, flush_s)
        self._curves: dict[str, TensorBoardWriter] = {}
        self._file.add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._file.submit()

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Add a point to a curve."""
        self._add(Summary.Value(tag=tag, simple_value=float(value)), global_step)

    def add_scalars(self, tag: str, values: Mapping[str, float], global_step: int) -> None:
        """Add a point to each of several curves in one chart.

        TensorBoard draws curves of the same name from several folders into one chart: each curve
        has an event file in a folder of its own below this one.
        """
        for curve, value in values.items() if self._file.is_open else ():
            name = f"{tag}_{curve}".replace("/", "_")
            if name not in self._curves:
                self._curves[name] = TensorBoardWriter(self._folder / name, self._flush_s)
            self._curves[name].add_scalar(tag, value, global_step)

    def add_histogram(self, tag: str, values: object, global_step: int) -> None:
        """Add the distribution of an array's finite values; nothing if there are none.

        Args:
            tag: name in TensorBoard.
            values: array of any shape.
            global_step: place on the axis.
        """
        array = np.asarray(values, dtype=np.float64).reshape(-1)
        array = array[np.isfinite(array)]
        if not array.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):  # of squares, or of their range
            try:
                counts, limits = np.histogram(array, bins=_BINS)
            except ValueError:  # they lie too close together for so many bins, or too far apart
                counts, limits = np.array([array.size]), np.array([array.min(), array.max()])
            histogram = HistogramProto(
                min=array.min(),
                max=array.max(),
                num=array.size,
                sum=array.sum(),
                sum_squares=np.square(array).sum(),
                bucket_limit=limits[1:].tolist(),
                bucket=counts.tolist(),
            )
        self._add(Summary.Value(tag=tag, histo=histogram), global_step)

    def add_video(self, tag: str, frames: Any, global_step: int, fps: float = 20.0) -> None:
        """Add videos, which TensorBoard's image tab plays side by side (as one GIF).

        Args:
            tag: name in TensorBoard.
            frames: uint8 [N, T, C, H, W]: N videos of T frames, C being 1 (grey) or 3.
            global_step: place on the axis.
            fps: frames per second, at most 50.

        Raises:
            ValueError: `frames` have another shape or dtype, or are empty.
        """
        row = side_by_side(frames)
        image = Summary.Image(
            height=row.shape[1],
            width=row.shape[2],
            colorspace=3,
            encoded_image_string=encode_gif(row, fps),
        )
        self._add(Summary.Value(tag=tag, image=image), global_step)

    def add_page(self, title: str, charts: Mapping[str, Sequence[str]]) -> None:
        """Add a page to TensorBoard, under "Custom scalars".

        Args:
            title: of the page.
            charts: title -> the tags of its curves, as regular expressions.
        """
        multiline = [
            Chart(title=name, multiline=MultilineChartContent(tag=tags))
            for name, tags in charts.items()
        ]
        layout = Layout(category=[Category(title=title, chart=multiline)])
        text = TensorProto(
            dtype="DT_STRING",
            string_val=[layout.SerializeToString()],
            tensor_shape=TensorShapeProto(),
        )
        plugin = SummaryMetadata.PluginData(plugin_name="custom_scalars")
        metadata = SummaryMetadata(plugin_data=plugin)
        self._add(Summary.Value(tag="custom_scalars__config__", tensor=text, metadata=metadata), 0)

    def flush(self) -> None:
        """Write all events, or buffer them if the disk is full; returns when that is done."""
        self._file.flush()
        for curve in self._curves.values():
            curve.flush()

    def close(self) -> None:
        """Write all events and close the files. Idempotent."""
        self._file.close()
        for curve in self._curves.values():
            curve.close()

    def _add(self, value: Summary.Value, global_step: int) -> None:
        summary = Summary(value=[value])
        self._file.add(Event(wall_time=time.time(), step=int(global_step), summary=summary))


def _encoded(events: Sequence[Event]) -> bytes:
    data = io.BytesIO()
    records = RecordWriter(data)
    for event in events:
        records.write(event.SerializeToString())
    return data.getvalue()


def drop_events_after(
    folder: str | Path,
    env_steps: int | Callable[[str], int],
    train_iter: int,
    iterations: Mapping[str, int] | None = None,
) -> None:
    """Remove points of curves after a checkpoint, see `UpToCheckpoint`.

    The axis of a curve is environment steps, or train iterations if its tag has ``_iter/`` or it is
    a rank's own (`RANK_FOLDER`); TensorBoard's purge has one axis only.

    Args:
        folder: folder of the event files.
        env_steps: environment steps at the checkpoint; or what returns them, of a tag.
        train_iter: train iterations at the checkpoint, of the main player.
        iterations: player -> the same, for curves whose tags begin with its name.
    """
    up_to = UpToCheckpoint()

    def is_before(event: Event, place: Path) -> bool:
        for value in event.summary.value:
            of_player = _OF_ITERATIONS.match(value.tag)
            if place.name.startswith(RANK_FOLDER) and value.tag.startswith(_OWN_CURVES):
                limit = train_iter
            elif of_player is None:
                limit = env_steps(value.tag) if callable(env_steps) else env_steps
            else:
                limit = (iterations or {}).get(of_player["player"] or "", train_iter)
            # curves of one chart have one tag, and a folder each
            if not up_to.keeps((place, value.tag), event.step, limit):
                return False
        return True

    for path, events in _files_of(Path(folder)):
        events_before = [event for event in events if is_before(event, path.parent)]
        if len(events_before) == len(events):
            continue
        rewrite(path, _encoded(events_before))


def _files_of(folder: Path) -> Iterator[tuple[Path, list[Event]]]:
    """Yields the event files of a folder and of those below it, each with its whole events."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    for path in sorted(folder.rglob("events.out.tfevents.*")):
        if not path.is_symlink() and path.is_file():  # others were not written by a run
            yield path, [Event.FromString(data) for data in RawEventFileLoader(str(path)).Load()]
