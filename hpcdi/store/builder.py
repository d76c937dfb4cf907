"""Collecting segments of rows until they fill a block."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.errors import BufferContractError
from hpcdi.store.block import Block, row_bytes
from hpcdi.store.frames import share_frames
from hpcdi.store.games import GameTally
from hpcdi.store.segment import Segment
from hpcdi.types import ITEM_DTYPE, Array, Columns, GameCounts
from hpcdi.utils.nested import column_objection


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
        whole: a segment of up to so many rows that comes to an empty block is not cut, though it is
            larger than a full one: what is learnt from at once must be in one block.
    """

    def __init__(
        self,
        capacity_of: Callable[[int], int],
        item_ids: Iterator[int],
        facts: Callable[[], dict[str, Any]],
        frames: Sequence[str] = (),
        lend: Callable[[Block, int, int], None] | None = None,
        *,
        whole: int = 0,
    ) -> None:
        self._capacity_of = capacity_of
        self._frames = frames
        self._item_ids = item_ids
        self._facts = facts
        self._lend = lend
        self._whole = whole
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

    def fill(self, segment: Segment) -> Iterator[Block]:
        """Add a segment; yields each block that it fills before the next one is begun.

        So blocks that are lent can be submitted one by one: there are never more of them that are
        not under way to a shard yet.

        Raises:
            BufferContractError: the segment has other columns, views or tail rows than the first
                one, or an item is larger than a block; nothing of it is taken then.
        """
        if self._frames:
            segment = share_frames(segment, self._frames)
        for name in segment.stacks:
            segment = share_frames(segment, (name,))
        self._check(segment)
        if not self._used:
            self._capacity = max(self._capacity, min(segment.rows, self._whole))
        items = segment.items.copy()
        stops = np.append(items["item_start"][1:], segment.rows)
        items["item_id"] = list(itertools.islice(self._item_ids, len(items)))
        first = 0
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
                yield block

    def seal(self) -> Block | None:
        """The block as it is; None where it is empty."""
        if not self._used:
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


def _views_and_tails(segment: Segment) -> str:
    """Says which views a segment has, and how many rows follow each of its items."""
    views = ", ".join(str(view.name) for view in segment.views) or "none"
    return f"views {views}, tail rows {segment.tail_rows}"
