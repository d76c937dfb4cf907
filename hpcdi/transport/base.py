"""The interface between a collector that seals blocks and a learner that holds their rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol, TypeAlias

from hpcdi.comm.messages import BlockReady, Rows, RowsRequest
from hpcdi.errors import ShardError
from hpcdi.store.block import Block
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.games import parse_games
from hpcdi.types import MAIN, Columns, ColumnSpec, ShardRef

Announce: TypeAlias = Callable[[ShardRef, Block], None]
"""Called with each block that can be fetched from now on, on a thread of the publisher's."""


def announcement(shard: ShardRef, block: Block) -> BlockReady:
    """Returns the message that announces a block: now, or again when a run is resumed.

    Args:
        shard: its reference.
        block: its facts and items; its rows are not looked at.

    Raises:
        ShardError: the facts do not say which task and collector it is of.
    """
    facts = block.facts
    env_steps = facts.get("env_steps")
    if env_steps is None:  # summed here: rank 0 gets the blocks of all
        env_steps = block.items["item_len"].sum()
    try:
        return BlockReady(
            str(facts["task_id"]),
            int(facts["block_id"]),
            shard,
            block.items,
            block.tail_rows,
            float(facts["sealed_at"]),
            int(facts.get("episodes", 0)),
            int(env_steps),
            parse_games(str(facts.get("games", ""))),
            str(facts.get("player", MAIN)),
        )
    except (KeyError, ValueError) as error:
        raise ShardError(shard.path, f"does not say whose it is: {error}") from error


Lend: TypeAlias = Callable[[str, Columns], str | None]
"""Takes a name for a piece of a block, and its rows, which stay as they are; returns the name under
which it can be fetched, or None: it cannot be lent."""


def announcement_of_piece(name: str, piece: Block, first_row: int, capacity: int) -> BlockReady:
    """Returns the message that announces a piece: rows that were appended to an open block.

    Args:
        name: under which its rows are lent.
        piece: its rows and items.
        first_row: row of the block at which it begins.
        capacity: rows to which the block may grow.
    """
    specs = tuple(
        ColumnSpec(column, array.dtype.str, array.shape, 0)
        for column, array in piece.columns.items()
    )
    n_bytes = sum(array.nbytes for array in piece.columns.values())
    ref = ShardRef.of(name, n_bytes, piece.rows, 0, specs, piece.views)
    return dataclasses.replace(announcement(ref, piece), first_row=first_row, capacity=capacity)


class BlockPublisher(Protocol):
    """A collector's side; blocks are published in the order in which they are submitted.

    Attributes:
        waited_s: seconds that `submit` has waited for earlier blocks.
        lost: blocks that could not be published before the run had to end.
    """

    waited_s: float
    lost: int

    def submit(self, path: str, block: Block) -> None:
        """Takes a block; its arrays must not be changed any more.

        Waits only while several blocks are under way (bounded memory).

        Args:
            path: a shard for it, and perhaps for later blocks, relative to the run folder; the
                announced reference says where it is.
            block: sealed.

        Raises:
            StoreError: an earlier block could not be published.
        """
        ...

    def flush(self) -> None:
        """Wait until all that was submitted is announced.

        Raises:
            StoreError: a block could not be published.
        """
        ...

    def close(self) -> None:
        """Publish what was submitted, then stop. Idempotent.

        Raises:
            StoreError: a block could not be published.
        """
        ...


class Transport(Protocol):
    """One rank's end: a collector publishes, a learner fetches."""

    @property
    def lend(self) -> Lend | None:
        """Lends a piece of a block, to be fetched once by its name.

        None: a block can be fetched when it is published, not before.
        """
        ...

    @property
    def lends_open(self) -> bool:
        """True if blocks are lent while they are open; else when they are sealed, as one piece."""
        ...

    def publisher(self, announce: Announce, patience: DiskPatience | None = None) -> BlockPublisher:
        """Returns a new publisher.

        Args:
            announce: called with each published block.
            patience: with a full disk; None: that is an error.
        """
        ...

    def request(self, shard: ShardRef) -> RowsRequest | None:
        """Returns what to ask the block's collector before `fetch`; None: nothing."""
        ...

    def answer(self, request: RowsRequest) -> Rows:
        """Returns rows that this collector lends; called on its communication thread."""
        ...

    def fetch(self, shard: ShardRef, rows: Rows | None = None) -> Columns:
        """Returns row columns of an announced block, its checksum verified.

        The arrays may be read-only views. Called on the learner's communication thread: it must
        return soon.

        Args:
            shard: its reference.
            rows: the answer, where `request` says that one is needed.

        Raises:
            StoreError: the block is missing or damaged; that costs its rows and nothing else.
        """
        ...

    def fetch_named(self, path: str) -> Block:
        """Returns a published block of which only the name is known, its checksum verified.

        For DI-engine's callers, whose tasks name blocks; it may be slower than `fetch`.

        Args:
            path: of its reference; or as it was submitted, if it is the only one there.

        Raises:
            StoreError: the block is missing or damaged.
        """
        ...
