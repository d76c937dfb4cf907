"""How many collectors work: as many as are wanted, as far as there are so many."""

from __future__ import annotations

from collections import Counter

from hpcdi.worker.coordinator.commanders import BaseCommander
from hpcdi.worker.coordinator.survival import Survival


class Crew:
    """Fits the commander's space for collect and evaluation tasks to who is there.

    Args:
        commander: hands out that many tasks.
        survival: knows who is there.
        rest_s: seconds after which a collector without environments may make them anew; each
            further time it waits twice as long.

    Attributes:
        wanted: collectors that should work; None: all there are.
        acting: policy version that each collecting rank acts by.
    """

    def __init__(self, commander: BaseCommander, survival: Survival, rest_s: float) -> None:
        self.wanted = commander.collector_task_space
        self.acting: dict[int, int] = {}
        self._commander, self._survival, self._rest_s = commander, survival, rest_s
        self._resting: dict[int, float] = {}  # rank -> until when
        self._rests = Counter[int]()

    @property
    def there(self) -> int:
        """Collectors that are alive and have environments, or can make them."""
        return len(self._survival.left("collector"))

    @property
    def working(self) -> int:
        """Of those, how many may have a task at a time."""
        space = self._commander.collector_task_space
        return self.there if space is None else min(space, self.there)

    def want(self, count: int) -> None:
        """So many collectors should work from now on, if there are; at least those needed."""
        self.wanted = max(count, self._survival.collectors_needed)
        self.fit()

    def more(self, change: int) -> None:
        """So many more should work than now are wanted; where all there are work, no more can."""
        if self.wanted is not None:
            self.want(self.wanted + change)
        elif change < 0:
            self.want(self.there + change)

    def fit(self) -> None:
        """Somebody has come or gone, or another number is wanted."""
        if self.wanted is None:
            return  # each has its place
        commander, space = self._commander, self._commander.collector_task_space
        if space is None:
            commander.collector_task_space = space = self.there
        goal = min(self.wanted, self.there)
        for _ in range(space, goal):
            commander.increase_collector_task_space()
        for _ in range(goal, space):
            commander.decrease_collector_task_space()

    def rest(self, rank: int, now: float) -> None:
        """A collector has no environments left: it pauses."""
        self._survival.dismiss(rank)
        self._resting[rank] = now + self._rest_s * 2 ** self._rests[rank]
        self._rests[rank] += 1
        self.acting.pop(rank, None)
        self.fit()

    def lose(self, rank: int) -> None:
        """A collector has died."""
        self._resting.pop(rank, None)
        self.acting.pop(rank, None)
        self.fit()

    def take_rested(self, now: float) -> list[int]:
        """Collectors that have paused for long enough: they count again."""
        rested = [rank for rank, until in self._resting.items() if until <= now]
        for rank in rested:
            del self._resting[rank]
            self._survival.recall(rank)
        if rested:
            self.fit()
        return rested
