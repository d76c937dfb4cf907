"""Blocks on their way to a learner: a few are being read, the others wait; none wait for ever."""

from __future__ import annotations

from collections import deque

from hpcdi.comm.messages import BlockReady

MAX_UNREAD = 4
"""Blocks that a learner has been told to read and has not: enough to keep it reading."""


class Backlog:
    """Published blocks, oldest first.

    Where blocks come faster than they are read, the oldest are dropped: they would be overwritten
    before anything was drawn from them.

    Args:
        limit_rows: rows that may wait.

    Attributes:
        dropped: blocks that nobody will read.
        offered: rows that ever came.
        rereading: blocks that a learner must read again, after a restart, before anything is drawn.
    """

    def __init__(self, limit_rows: int) -> None:
        self.dropped = 0
        self.offered = 0
        self.rereading: set[int] = set()
        self._limit_rows = limit_rows
        self._waiting: deque[BlockReady] = deque()
        self._unread: set[int] = set()
        self._freed: list[str] = []

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(block.shard.rows for block in self._waiting)

    @property
    def paths(self) -> list[str]:
        """Shards of the blocks that wait."""
        return [block.shard.path for block in self._waiting]

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing is being read."""
        return not (self._waiting or self._unread or self.rereading)

    def add(self, ready: BlockReady) -> None:
        """Let a block wait, if need be in place of the oldest."""
        self._waiting.append(ready)
        self.offered += ready.shard.rows
        rows = self.rows
        while rows > self._limit_rows and len(self._waiting) > 1:
            oldest = self._waiting.popleft()
            rows -= oldest.shard.rows
            self._freed.append(oldest.shard.path)
            self.dropped += 1

    def take(self) -> list[BlockReady]:
        """Blocks that the learner should read now."""
        taken = []
        while self._waiting and len(self._unread) < MAX_UNREAD:
            taken.append(self._waiting.popleft())
            self._unread.add(taken[-1].block_id)
        return taken

    def take_all(self) -> list[BlockReady]:
        """All blocks that wait, for another backlog."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def read(self, block_id: int) -> None:
        """The learner has read a block, or failed to."""
        self._unread.discard(block_id)
        self.rereading.discard(block_id)

    def take_freed(self) -> list[str]:
        """Paths of the shards that were dropped since the last call."""
        freed, self._freed = self._freed, []
        return freed
