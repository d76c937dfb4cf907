"""Where in a learner's ring of rows each block lies: rank 0 decides, and the oldest go."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hpcdi.dataclass import dataclass
from hpcdi.errors import BufferContractError

RING_SLACK = 1.25
"""Ring rows per item: covers rows that are no transitions, and the gap where the ring wraps."""


def ring_rows(
    partition_size: int,
    full_block: int,
    rows_per_item: float = 1.0,
    min_fill: int = 0,
    most_rows: int = 2,
) -> int:
    """Rows of the ring for `partition_size` items, in blocks of up to `full_block` rows.

    `rows_per_item` is measured on the first block, and on all where the ring is full before it
    holds as many items, which became shorter: up to 2, where items are single transitions; of
    sequences it is at least `SequenceRule.apart`. There is room for `min_fill` items however long
    those of later blocks are: up to `SequenceRule.most_rows` rows for each.
    """
    slack = max(RING_SLACK, rows_per_item + 0.05)
    worst = max(most_rows, rows_per_item)
    return int(max(partition_size * slack, min_fill * worst)) + 2 * full_block


@dataclass(frozen=True)
class Placement:
    """Rows assigned to a block, and the blocks evicted for it, oldest first."""

    first_row: int
    evicted: tuple[int, ...]


class RowPlacer:
    """Assigns blocks consecutive rows of a ring of `capacity` rows; the oldest are evicted.

    Attributes:
        capacity: see above; where the ring `is_full`, it may have more.
        head: the row after those of the block that was placed last.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.head = 0
        self._blocks: deque[tuple[int, int, int]] = deque()  # block id, first row, end row

    def state_dict(self) -> dict[str, int]:
        """``capacity`` and ``head``."""
        return {"capacity": self.capacity, "head": self.head}

    def restore(self, head: int, blocks: Iterable[tuple[int, int, int]]) -> None:
        """Continue where another placer was.

        Args:
            head: its `head`.
            blocks: id, first row and end row of each block that has rows, the oldest first.
        """
        self.head, self._blocks = head, deque(blocks)

    def is_full(self, rows: int) -> bool:
        """Returns whether a block of so many rows would be the first after the ring's end."""
        return self.head + rows > self.capacity

    def place(self, block_id: int, rows: int) -> Placement:
        """Place a block; a block never wraps around the end.

        Raises:
            BufferContractError: the block is larger than the ring, or has no rows.
        """
        if rows < 1:
            raise BufferContractError(f"block {block_id} has no rows to place")
        if rows > self.capacity:
            raise BufferContractError(
                f"a block of {rows} rows does not fit into a ring of {self.capacity}; raise "
                "replay_buffer_size or lower system.storage.block_bytes"
            )
        evicted: list[int] = []
        if self.is_full(rows):
            evicted += self._evict(self.head, self.capacity)
            self.head = 0
        first = self.head
        self.head += rows
        evicted += self._evict(first, self.head)
        self._blocks.append((block_id, first, self.head))
        return Placement(first, tuple(evicted))

    def trim(self, block_id: int, rows: int) -> None:
        """Shorten a block that will grow no more; if it is the newest, the rows behind are free."""
        if self._blocks and self._blocks[-1][0] == block_id:
            _, first, _ = self._blocks.pop()
            self.head = first + rows
            self._blocks.append((block_id, first, self.head))

    def _evict(self, start: int, end: int) -> list[int]:
        """Drop the blocks that reach into rows [start, end); they are the oldest ones."""
        evicted = []
        while self._blocks and self._blocks[0][1] < end and self._blocks[0][2] > start:
            evicted.append(self._blocks.popleft()[0])
        return evicted
