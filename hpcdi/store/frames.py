"""Stacks of frames: an observation of four frames shares three with the one before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.types import Array


def check_stacks(columns: Mapping[str, Array], names: Sequence[str]) -> None:
    """Check that columns are stacks of frames, [m, stack, *frame], of one shape and dtype.

    Raises:
        BufferContractError: a column is missing or is no stack, or they differ.
    """
    for name in names:
        if name not in columns or columns[name].ndim < 3:
            what = f"of shape {columns[name].shape[1:]}" if name in columns else "missing"
            raise BufferContractError(f"{name!r} should be a stack of frames, it is {what}")
    if len({(columns[name].dtype, columns[name].shape[1:]) for name in names}) > 1:
        raise BufferContractError(f"{' and '.join(names)} differ in shape or dtype")


def sliding(stacks: Array, starts: Array) -> Array:
    """True for rows of stacks [m, stack, ...] that slide: only the last frame is new.

    False at `starts`, the first rows of items.
    """
    words, slides = frames_as_words(stacks, 2), np.zeros(len(stacks), bool)
    slides[1:] = (words[1:, :-1] == words[:-1, 1:]).all(axis=(1, 2))
    slides[starts] = False
    return slides


def frames_as_words(stacks: Array, axes: int) -> Array:
    """Frames, along the first axes, as rows of words: to be compared bit by bit, and fast."""
    shape = stacks.shape[:axes]
    frames = stacks.reshape(*shape, math.prod(stacks.shape[axes:]))
    return frames.view(np.uint64 if frames.shape[-1] * frames.itemsize % 8 == 0 else np.uint8)
