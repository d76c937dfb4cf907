"""A message as bytes: a small head, and the bytes of its large arrays as they lie in memory.

The head is a pickle (protocol 5) without the arrays' bytes; small arrays follow in the same buffer,
large ones are frames of their own that are sent from and received into their memory (an array with
strides is copied into the pickle first). Messages travel only between the ranks of one job; nothing
pickled is ever read from a file.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcdi.comm.messages import Message
from hpcdi.errors import CommError
from hpcdi.types import Array

INLINE_BYTES = 32 << 10
"""Arrays up to this size ride in the head's buffer: one MPI message instead of two."""

_ALIGNMENT = 16
_PREFIX = struct.Struct("<IQ")  # number of arrays, bytes of the pickle
_ENTRY = struct.Struct("<QB")  # bytes of an array, 1 where it is a frame of its own


@dataclass(frozen=True)
class Encoded:
    """A message ready to be sent: `head`, then each of `frames`."""

    head: Array
    frames: tuple[memoryview, ...]


def encode(message: Message) -> Encoded:
    """Bytes of a message; frames are views of the message's own arrays.

    Raises:
        CommError: the message holds something that has no bytes.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CommError(
            f"a {type(message).__name__} cannot be sent: {error}. Messages hold numbers, texts, "
            "arrays, and containers of these"
        ) from error
    views = [buffer.raw() for buffer in buffers]
    inline = [len(view) <= INLINE_BYTES for view in views]
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


def decode(head: Array, frames: Sequence[Array]) -> Message:
    """The message of a head and its frames; its arrays are views of them."""
    view = head.data
    count, body_size = _PREFIX.unpack_from(view)
    at = _PREFIX.size
    entries = list(_ENTRY.iter_unpack(view[at : at + count * _ENTRY.size]))
    at += count * _ENTRY.size
    body = view[at : at + body_size]
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
    message: Message = pickle.loads(body, buffers=buffers)  # noqa: S301 (ranks of one job)
    return message


def _padding(at: int) -> int:
    """Bytes from a place in the head to the next at which an array may begin."""
    return -at % _ALIGNMENT
