"""A world within this process whose ranks can die."""

from __future__ import annotations

from hpcdi.comm.link import LocalWorld
from hpcdi.comm.messages import Message, RankLost


class MortalWorld(LocalWorld):
    """See `LocalWorld`."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._lost: set[int] = set()

    def kill(self, rank: int) -> None:
        """The others receive `RankLost`; messages from and to the rank are dropped."""
        for other in set(range(self.size)) - {rank}:
            self.deliver(rank, other, RankLost())
        self._lost.add(rank)

    def deliver(self, sender: int, receiver: int, message: Message) -> None:
        if sender not in self._lost and receiver not in self._lost:
            super().deliver(sender, receiver, message)
