"""A run's curves, read from its event files without TensorBoard."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpcdi.store.files import open_file

_LARGEST_BYTES = 4 << 30
_HEAD = struct.Struct("<QI")  # length of an event, and that number's checksum
_TAIL_BYTES = 4  # checksum of the event


class CurvePoint(NamedTuple):
    """A point: environment step, seconds since the epoch, value."""

    step: int
    time: float
    value: float


def read_curves(folder: Path) -> dict[str, list[CurvePoint]]:
    """The curves in the event files of a folder and of those below it.

    Where a file is torn, its points before that are read: a run that writes it may still live.

    Returns:
        Tag -> points, by step and time.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event  # takes a tenth of a second to import

    curves: dict[str, list[CurvePoint]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for record in _records(path):
            try:
                event = Event.FromString(record)
            except DecodeError:
                break
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    point = CurvePoint(event.step, event.wall_time, value.simple_value)
                    curves.setdefault(value.tag, []).append(point)
    for points in curves.values():
        points.sort()
    return curves


def _records(path: Path) -> Iterator[bytes]:
    """Yields the events of a file, as they lie there, as far as they are whole."""
    try:
        with open_file(path, _LARGEST_BYTES) as file:
            data = memoryview(file.read())
    except OSError:  # not a file of ours, or gone by now
        return
    place = 0
    while place + _HEAD.size <= len(data):
        length, _ = _HEAD.unpack_from(data, place)
        first, place = place + _HEAD.size, place + _HEAD.size + length + _TAIL_BYTES
        if place > len(data):
            return
        yield bytes(data[first : first + length])
