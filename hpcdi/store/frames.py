"""Stacks of frames: an observation of four frames shares three with the one before."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.store.block import rows_from
from hpcdi.store.segment import Segment
from hpcdi.types import Array, RowView


def share_frames(segment: Segment, names: Sequence[str]) -> Segment:
    """The same items with each frame of an item stored once.

    Stacks of k frames [rows, k, *frame] become one column of frames, and k offsets a row that say
    where they are; a view of each name stacks them again. An item's frames are in its own rows,
    from the first one on; where there are more frames than rows, filler rows follow the item.

    Args:
        segment: what was collected.
        names: stacked columns, e.g. an observation and the next one; those that are views of
            others already are left alone.

    Raises:
        BufferContractError: a column is missing or is no stack, or they differ in shape or dtype.
    """
    derived = {view.name for view in segment.views}
    stored = [name for name in names if name not in derived]
    if not stored:
        return segment
    held = dict(segment.columns)  # gathered now, where they were not yet
    check_stacks(held, stored)
    starts = segment.items["item_start"].astype(np.int64)
    lengths = np.diff(starts, append=segment.rows)
    stacks = [held[name] for name in stored]
    places = [np.zeros(column.shape[:2], np.int32) for column in stacks]
    slides = [sliding(column, starts) for column in stacks]
    frames_of = [
        _frames_of_item(stacks, slides, places, range(start, start + length))
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    # rows that each item takes from now on, and where it begins
    extents = np.maximum(lengths, [len(frames) for frames in frames_of])
    firsts = np.cumsum(extents) - extents
    new = rows_from(firsts, lengths)
    within = np.arange(segment.rows) - np.repeat(starts, lengths)
    columns = {n: column for n, column in held.items() if n not in stored}
    views = list(segment.views)
    for name, at in zip(stored, places, strict=True):
        columns[f"{name}_offsets"] = at - within[:, None].astype(np.int32)
        views.append(RowView(name, f"{stored[0]}_frames", f"{name}_offsets"))
    placed = {n: np.zeros((extents.sum(), *c.shape[1:]), c.dtype) for n, c in columns.items()}
    for name, column in columns.items():
        placed[name][new] = column
    frames = np.zeros((extents.sum(), *stacks[0].shape[2:]), stacks[0].dtype)
    for first, of_item in zip(firsts.tolist(), frames_of, strict=True):
        frames[first : first + len(of_item)] = of_item
    items = segment.items.copy()
    items["item_start"] = firsts
    placed[f"{stored[0]}_frames"] = frames
    return dataclasses.replace(segment, columns=placed, items=items, views=tuple(views))


def _frames_of_item(
    stacks: list[Array], slides: list[Array], places: list[Array], rows: range
) -> list[Array]:
    """Returns the different frames of an item; sets in `places` where those of each row are.

    Args:
        stacks: columns [rows, k, *frame].
        slides: bool [rows] for each: the stack is that of the row before, moved on by one frame.
        places: int32 [rows, k] for each, to be set: indices of frames.
        rows: rows of the item.
    """
    index_of: dict[bytes, int] = {}
    frames: list[Array] = []
    for column, slid, at in zip(stacks, slides, places, strict=True):
        depth = column.shape[1]
        for row in rows:
            if slid[row]:
                at[row, :-1] = at[row - 1, 1:]
            for k in range(depth - 1 if slid[row] else 0, depth):
                frame = column[row, k]
                at[row, k] = place = index_of.setdefault(frame.tobytes(), len(frames))
                if place == len(frames):
                    frames.append(frame)
    return frames


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
