"""Collecting segments of rows until they fill a block."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Self

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.errors import BufferContractError
from hpcdi.store.block import Block, row_bytes
from hpcdi.store.frames import check_stacks, sliding
from hpcdi.store.games import GameTally
from hpcdi.types import ITEM_DTYPE, Array, Columns, GameCounts, RowView
from hpcdi.utils.nested import column_objection, column_rows


class Gather(Mapping[str, Array]):
    """Columns that are gathered only when they are read, straight into the array of the reader.

    Their sources must not change before.

    Args:
        tails: int64 [tails], ascending: rows behind an item's last transition; None: there are
            none.
        after: name -> [tails, ...]: values of these rows; other columns have 0 there.
    """

    def __init__(self, tails: Array | None = None, after: Columns | None = None) -> None:
        self._tails = np.zeros(0, np.int64) if tails is None else tails
        self._after = after or {}
        self._sources: dict[str, tuple[Array, Array]] = {}

    def add(self, columns: Columns, rows: Array) -> Self:
        """Add columns of which these rows are gathered, int64 [rows]; returns itself."""
        self._sources |= {name: (column, rows) for name, column in columns.items()}
        return self

    def write(self, name: str, out: Array, start: int = 0) -> None:
        """Write a column's rows from `start` on, as many as there is place for in `out`."""
        column, rows = self._sources[name]
        stop = start + len(out)
        column.take(rows[start:stop], axis=0, out=out, mode="clip")  # other modes copy twice
        first, last = np.searchsorted(self._tails, (start, stop))
        tails = self._tails[first:last] - start
        out[tails] = self._after[name][first:last] if name in self._after else 0

    def like(self) -> Columns:
        """Returns columns without rows of the same names, dtypes and row shapes."""
        return {name: column[:0] for name, (column, _) in self._sources.items()}

    @property
    def rows(self) -> int:
        """Rows of every column."""
        return len(next(iter(self._sources.values()))[1]) if self._sources else 0

    def __getitem__(self, name: str) -> Array:
        column, rows = self._sources[name]
        out = np.empty((len(rows), *column.shape[1:]), column.dtype)
        self.write(name, out)
        return out

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


@dataclass(frozen=True)
class Segment:
    """Rows of one or more items that are appended together: item after item, without gaps.

    Attributes:
        columns: name -> [rows, ...]; a `Gather` is read before more is recorded.
        items: [items] of `ITEM_DTYPE`; ``item_start`` counts from the segment's first row,
            ``item_id`` is set by the builder.
        views: columns that readers derive.
        tail_rows: rows after each item's transitions that are not transitions; others, which only
            views refer to, may follow.
        ended: bool [items]; which items end with their episode; None: none does.
        env_steps: int64 [items]; environment steps that each was made of, where its rows are no
            transitions but samples of a policy of dicts; None: as many as it has transitions.
        games: of each item the results of the game that ended with it, and of games without an
            item; None: there are no games.
        stacks: columns that are stacks, of which each part is to be stored once, as `share_frames`
            does.
    """

    columns: Mapping[str, Array]
    items: Array
    views: tuple[RowView, ...] = ()
    tail_rows: int = 0
    ended: Array | None = None
    env_steps: Array | None = None
    games: Sequence[Sequence[GameCounts]] | None = None
    stacks: tuple[str, ...] = ()

    @property
    def all_env_steps(self) -> int:
        """Environment steps of all items."""
        return int((self.items["item_len"] if self.env_steps is None else self.env_steps).sum())

    @property
    def rows(self) -> int:
        """Rows of every column."""
        columns = self.columns
        return columns.rows if isinstance(columns, Gather) else column_rows(dict(columns))

    def like(self) -> Columns:
        """Returns columns without rows of the same names, dtypes and row shapes."""
        columns = self.columns
        if isinstance(columns, Gather):
            return columns.like()
        return {name: column[:0] for name, column in columns.items()}

    def write(self, name: str, out: Array, start: int) -> None:
        """Write a column's rows from `start` on, as many as there is place for in `out`."""
        if isinstance(self.columns, Gather):
            self.columns.write(name, out, start)
        else:
            out[...] = self.columns[name][start : start + len(out)]

    def copy(self) -> Segment:
        """Returns a copy of the segment and its arrays."""
        if isinstance(self.columns, Gather):
            columns = dict(self.columns)
        else:
            columns = {name: column.copy() for name, column in self.columns.items()}
        return dataclasses.replace(self, columns=columns)


@dataclass
class _Contents:
    """What was appended to a block, or to a piece of it.

    Attributes:
        items: tables of items, whose rows count from the block's first one.
        episodes: episodes that ended.
        env_steps: environment steps, where segments state them.
        games: results of games that ended.
    """

    items: list[Array] = field(default_factory=list)
    episodes: int = 0
    env_steps: int = 0
    games: GameTally = field(default_factory=GameTally)

    def add(self, segment: Segment, items: Array, which: slice) -> None:
        """Add `which` items of a segment, at their rows in the block; games are added before."""
        self.items.append(items)
        if segment.ended is not None:
            self.episodes += int(np.count_nonzero(segment.ended[which]))
        if segment.env_steps is not None:
            self.env_steps += int(segment.env_steps[which].sum())


class BlockBuilder:
    """Fills blocks from segments; an item never crosses a block.

    Args:
        capacity_of: rows of a full block, given the bytes of a row; see `block_rows`.
        item_ids: ids of items, in order; unique in the run by the caller's choice.
        facts: returns a block's facts as it is sealed; the builder adds the number of ``episodes``
            that ended, and ``env_steps`` and ``games`` where segments state them.
        frames: columns that stack frames; each frame of an item is stored once, see `share_frames`.
        lend: takes pieces of the open block, see `lend`; None: nobody reads open blocks.
    """

    def __init__(
        self,
        capacity_of: Callable[[int], int],
        item_ids: Iterator[int],
        facts: Callable[[], dict[str, Any]],
        frames: Sequence[str] = (),
        lend: Callable[[Block, int, int], None] | None = None,
    ) -> None:
        self._capacity_of = capacity_of
        self._frames = frames
        self._item_ids = item_ids
        self._facts = facts
        self._lend = lend
        self._columns: Columns = {}
        self._used = 0
        self._contents, self._piece = _Contents(), _Contents()  # of the open block; not lent yet
        self._block_facts: dict[str, Any] = {}  # of the open block, once a piece of it was lent
        self._like: Segment | None = None
        self._capacity = 0  # rows of a full block; follows from the first segment

    @property
    def is_empty(self) -> bool:
        """True if no row is waiting to be sealed."""
        return self._used == 0

    @property
    def rows(self) -> int:
        """Rows that wait to be sealed."""
        return self._used

    def append(self, segment: Segment) -> list[Block]:
        """Add a segment; returns the blocks that it fills.

        Raises:
            BufferContractError: the segment has other columns, views or tail rows than the first
                one, or an item is larger than a block; nothing of it is taken then.
        """
        if self._frames:
            segment = share_frames(segment, self._frames)
        for name in segment.stacks:
            segment = share_frames(segment, (name,))
        self._check(segment)
        items = segment.items.copy()
        stops = np.append(items["item_start"][1:], segment.rows)
        items["item_id"] = list(itertools.islice(self._item_ids, len(items)))
        first, full = 0, []
        while first < len(items):
            start = int(items["item_start"][first])
            room = start + self._capacity - self._used
            count = int(np.searchsorted(stops[first:], room, side="right"))
            if segment.games is not None:
                count = self._games_that_fit(segment.games[first : first + count])
            if count:
                stop = int(stops[first + count - 1])
                placed = self._take(segment, items[first : first + count], start, stop)
                for contents in (self._contents, self._piece):
                    contents.add(segment, placed, slice(first, first + count))
                first += count
            elif (block := self.seal()) is not None:
                full.append(block)
        return full

    def seal(self) -> Block | None:
        """The block as it is; None where it is empty."""
        if self._used == 0 or self._like is None:
            return None
        self.lend(is_last=True)
        block = self._block(self._contents, 0)
        self._columns, self._used, self._block_facts = {}, 0, {}
        self._contents, self._piece = _Contents(), _Contents()
        return block

    def lend(self, *, is_last: bool = False) -> None:
        """Lend the rows that were appended since the last time; they do not change any more.

        The taker gets the piece as a block with the open block's facts; its first row there; and
        the rows to which the open block may grow.

        Args:
            is_last: nothing more will be appended to this block.
        """
        if self._lend is None or not self._piece.items:
            return
        first_row = int(self._piece.items[0]["item_start"][0])
        piece = self._block(self._piece, first_row)
        self._piece = _Contents()
        self._lend(piece, first_row, self._used if is_last else self._capacity)

    def _block(self, contents: _Contents, first_row: int) -> Block:
        """Returns the rows from `first_row` on as a block."""
        like = self._like
        if like is None:
            raise BufferContractError("nothing was appended yet")
        if not self._block_facts:
            self._block_facts = self._facts()
        columns = {name: column[first_row : self._used] for name, column in self._columns.items()}
        items = np.concatenate(contents.items)
        items["item_start"] -= first_row
        facts = {**self._block_facts, "episodes": contents.episodes}
        if like.env_steps is not None:
            facts["env_steps"] = contents.env_steps
        if like.games is not None:
            facts["games"] = str(contents.games)
        return Block(columns, items, facts, like.views, like.tail_rows)

    def _games_that_fit(self, games: Sequence[Sequence[GameCounts]]) -> int:
        """Add games of items while they fit into the open block; returns of how many items."""
        for count, ended in enumerate(games):
            if not self._contents.games.takes(ended):
                return count
            for contents in (self._contents, self._piece):
                contents.games.add(ended)
        return len(games)

    def _take(self, segment: Segment, items: Array, start: int, end: int) -> Array:
        """Write rows [start, end) of a segment to the block; returns their items, moved there."""
        if not self._columns:
            self._columns = {
                name: np.empty((self._capacity, *column.shape[1:]), dtype=column.dtype)
                for name, column in segment.like().items()
            }
        for name, column in self._columns.items():
            segment.write(name, column[self._used : self._used + end - start], start)
        placed = items.copy()
        placed["item_start"] += self._used - start
        self._used += end - start
        return placed

    def _check(self, segment: Segment) -> None:
        if segment.items.dtype != ITEM_DTYPE:
            raise BufferContractError(f"the item table has dtype {segment.items.dtype}")
        if self._like is None:
            self._like = dataclasses.replace(segment, columns=segment.like())
            self._capacity = self._capacity_of(row_bytes(segment.like()))
        starts = segment.items["item_start"]
        largest = int(np.diff(starts, append=segment.rows).max(initial=0))
        if largest > self._capacity:
            raise BufferContractError(
                f"an item of {largest} rows does not fit into a block of {self._capacity}; raise "
                "system.storage.block_bytes or the replay buffer's size, or lower "
                "policy.collect.n_sample"
            )
        if (segment.views, segment.tail_rows) != (self._like.views, self._like.tail_rows):
            raise BufferContractError(
                "a segment has other views or tail rows than the first one: "
                f"{_views_and_tails(segment)}, not {_views_and_tails(self._like)}"
            )
        objection = column_objection(segment.like(), self._like.like())
        if objection:
            raise BufferContractError(f"a segment differs from the first one: {objection}")


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
    segment = segment.copy()
    check_stacks(dict(segment.columns), stored)
    starts = segment.items["item_start"].astype(np.int64)
    lengths = np.diff(starts, append=segment.rows)
    stacks = [segment.columns[name] for name in stored]
    places = [np.zeros(column.shape[:2], np.int32) for column in stacks]
    slides = [sliding(column, starts) for column in stacks]
    frames_of = [
        _frames_of_item(stacks, slides, places, range(start, start + length))
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    # rows that each item takes from now on, and where it begins
    extents = np.maximum(lengths, [len(frames) for frames in frames_of])
    firsts = np.cumsum(extents) - extents
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    old, new = np.repeat(starts, lengths) + within, np.repeat(firsts, lengths) + within
    columns = {n: column[old] for n, column in segment.columns.items() if n not in stored}
    views = list(segment.views)
    for name, at in zip(stored, places, strict=True):
        columns[f"{name}_offsets"] = at[old] - within[:, None].astype(np.int32)
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


def _views_and_tails(segment: Segment) -> str:
    """Says which views a segment has, and how many rows follow each of its items."""
    views = ", ".join(str(view.name) for view in segment.views) or "none"
    return f"views {views}, tail rows {segment.tail_rows}"
