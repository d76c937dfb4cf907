"""A heap of times: whom to look at now, without looking at all others."""

from __future__ import annotations

import heapq
import math


class Watch:
    """Says of whom something may be due.

    Each rank has one time, before which nothing is due of it. It may be too early, since a message
    moves what is due and leaves the heap alone: a rank that is looked at too early is put off, see
    `put_off`.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._at: dict[int, float] = {}  # rank -> its time; other entries of the heap are void
        self._due: set[int] = set()

    def add(self, rank: int, at: float) -> None:
        """Look at a rank at a time, or earlier if that was said before."""
        if rank not in self._due and at < self._at.get(rank, math.inf):
            self._at[rank] = at
            heapq.heappush(self._heap, (at, rank))

    def due(self, now: float) -> list[int]:
        """Returns the ranks whose time has come, by rank; again until each is put off."""
        while self._heap and self._heap[0][0] <= now:
            at, rank = heapq.heappop(self._heap)
            if self._at.get(rank) == at:
                del self._at[rank]
                self._due.add(rank)
        return sorted(self._due)

    def put_off(self, rank: int, at: float) -> None:
        """Look at a rank whose time had come at a later one."""
        self._due.discard(rank)
        self.add(rank, at)

    def remove(self, rank: int) -> None:
        """Do not look at a rank any more whose time had come."""
        self._due.discard(rank)
