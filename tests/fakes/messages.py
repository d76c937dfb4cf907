"""Values that a control message may hold, by hypothesis, and their comparison bit by bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hpcdi.comm.codec import INLINE_BYTES
from hpcdi.types import ITEM_DTYPE, Array

DTYPES = (
    "?", "u1", "<i4", "<i8", ">f4", "<f8", "<c16", "S3", "<U2", "M8[s]",
    ITEM_DTYPE, np.dtype([("a", "u1"), ("b", "<f8", (2,))]),
)  # fmt: skip
SHAPES = ((), (0,), (1,), (3,), (2, 3), (0, 4), (2, 0, 2), (700, 5))
EDGES = (INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 5 * INLINE_BYTES)


def fill(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Array:
    """An array that is nowhere the same."""
    count = int(np.prod(shape))
    if dtype.kind == "U":  # most bytes are no characters
        return np.resize(np.array(["a", "bc", "", "é"], dtype), count).reshape(shape)
    size = count * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 256 if dtype.kind != "b" else 2, size, np.uint8)
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape).copy()


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Arrays of many dtypes, sizes and layouts in memory."""
    if draw(st.booleans()):
        array = fill(np.dtype("u1"), (draw(st.sampled_from(EDGES)),), draw(st.integers(0, 9)))
    else:
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        array = fill(dtype, draw(st.sampled_from(SHAPES)), draw(st.integers(0, 9)))
    layout = draw(st.sampled_from(["plain", "transposed", "every second", "backwards", "fixed"]))
    if layout == "transposed":
        return array.T
    if layout == "every second" and array.ndim:
        return np.repeat(array, 2, axis=0)[::2]
    if layout == "backwards" and array.ndim:
        return array[::-1]
    array.flags.writeable = layout != "fixed"
    return array


INTEGERS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_nan=False)
TEXTS = st.text(max_size=8)
ANYTHING = st.one_of(
    st.none(), st.booleans(), INTEGERS, NUMBERS, TEXTS, arrays(),
    st.lists(INTEGERS, max_size=3), st.lists(NUMBERS, max_size=3).map(tuple),
)  # fmt: skip


def in_native_order(array: Array) -> Array:
    """numpy pickles a strided array of the other byte order in the machine's order."""
    return array.astype(array.dtype.newbyteorder("="))


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are alike in type, shape and every bit."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        one, other = in_native_order(one), in_native_order(other)
        alike: bool = one.dtype == other.dtype and one.shape == other.shape
        return alike and one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        names = [f.name for f in dataclasses.fields(one)]
        return all(is_same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(is_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)
