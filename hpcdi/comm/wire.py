"""A message as bytes: a small head, and the bytes of its large arrays as they lie in memory.

The head is JSON without the arrays' bytes (see `plain`); small arrays follow in the same buffer,
large ones are frames of their own that are sent from and received into their memory.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdi.comm.plain import flatten, restore
from hpcdi.errors import CommError
from hpcdi.types import Array

INLINE_BYTES = 32 << 10
"""Arrays up to this size ride in the head's buffer: one MPI message instead of two."""

_ALIGNMENT = 16
_PREFIX = struct.Struct("<IQ")  # number of arrays, bytes of the JSON
_ENTRY = struct.Struct("<QB")  # bytes of an array, 1 where it is a frame of its own


@dataclass(frozen=True)
class Encoded:
    """A message ready to be sent: `head`, then each of `frames`."""

    head: Array
    frames: tuple[memoryview, ...]


def encode(message: Any, inline_bytes: int = INLINE_BYTES) -> Encoded:
    """Bytes of a message; frames are views of the message's own arrays.

    Args:
        message: of type `Message`, or any value that `plain.flatten` takes.
        inline_bytes: arrays up to this size have no frame of their own.

    Raises:
        CommError: the message holds something that has no bytes.
    """
    try:
        body, views = flatten(message)
    except CommError as error:
        raise CommError(
            f"a {type(message).__name__} cannot be sent: {error}. Messages hold numbers, texts, "
            "arrays, and containers of these"
        ) from error
    inline = [len(view) <= inline_bytes for view in views]
    head = bytearray(_PREFIX.pack(len(views), len(body)))
    for view, is_inline in zip(views, inline, strict=True):
        head += _ENTRY.pack(len(view), not is_inline)
    head += body
    for view, is_inline in zip(views, inline, strict=True):
        if is_inline:
            head += bytes(_padding(len(head)))
            head += view
    frames = tuple(v for v, is_inline in zip(views, inline, strict=True) if not is_inline)
    return Encoded(np.frombuffer(head, dtype=np.uint8), frames)


def frame_sizes(head: Array) -> list[int]:
    """Bytes of each frame that follows a head."""
    count, _ = _PREFIX.unpack_from(head.data)
    entries = _ENTRY.iter_unpack(head.data[_PREFIX.size :][: count * _ENTRY.size])
    return [size for size, is_frame in entries if is_frame]


def decode(head: Array, frames: Sequence[Array]) -> Any:
    """The message of a head and its frames; its arrays are views of them.

    Raises:
        CommError: it is of a class that may not be sent.
    """
    view = head.data
    count, body_size = _PREFIX.unpack_from(view)
    at = _PREFIX.size
    entries = list(_ENTRY.iter_unpack(view[at : at + count * _ENTRY.size]))
    at += count * _ENTRY.size
    body = bytes(view[at : at + body_size])
    at += body_size
    separate = iter(frames)
    buffers: list[memoryview] = []
    for size, is_frame in entries:
        if is_frame:
            buffers.append(next(separate).data)
        else:
            at += _padding(at)
            buffers.append(view[at : at + size])
            at += size
    return restore(body, buffers)


def pack(value: Any) -> Array:
    """A value as one piece of bytes, uint8 [n]; see `encode`."""
    return encode(value, sys.maxsize).head


def unpack(packed: Array) -> Any:
    """The value that `pack` took; its arrays are views of the bytes."""
    return decode(packed, ())


def _padding(at: int) -> int:
    """Bytes from a place in the head to the next at which an array may begin."""
    return -at % _ALIGNMENT
