"""From environments to updates in one process: the part that differs by what policies take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from hpcdi.launch.serial.replay import LocalReplay
from hpcdi.store.builder import Segment
from hpcdi.store.rows import sequences
from hpcdi.types import Columns, Settings, Transition
from hpcdi.utils.nested import column_rows, share_tensors

Players = Sequence[Settings] | None
"""How each player acts, as keyword arguments of its policy; None: at random."""


@dataclass(frozen=True)
class Feed:
    """Where one agent's data go, and come from.

    Attributes:
        buffer: a replay buffer; None where data are used once, as they come.
        batch_size: items of one draw.
        learner: has ``train_iter`` and ``priority_info``.
        replay: counts the items.
    """

    buffer: Any
    batch_size: int
    learner: Any
    replay: LocalReplay

    def pushed(self, count: int) -> int:
        """Count new items; returns how many."""
        self.replay.items_admitted += count
        return count

    def batches(self, count: int, draw: Callable[[int, int], Any], size: int = 0) -> Iterator[Any]:
        """Yield batches, until there is too little to draw from.

        Args:
            count: of batches.
            draw: draws items, given how many and the train iteration; None: too few are there.
            size: items that `draw` returns, if it is not the batch size.
        """
        for _ in range(count):
            batch = draw(self.batch_size, self.learner.train_iter)
            if batch is None:
                return
            self.replay.drawn += size or self.batch_size
            yield batch
            if self.buffer is not None and self.learner.priority_info:
                self.buffer.update(self.learner.priority_info)


class DataPath(Protocol):
    """Collects data and returns batches, for the loop of a serial run."""

    def collect(self, train_iter: int, settings: Players) -> int:
        """Collect once and keep what came; returns the transitions or samples of one player."""
        ...

    def batches(self, updates: int) -> list[Iterator[Any]]:
        """Returns batches for each agent; none where there is too little to draw from."""
        ...


class ColumnPath:
    """Whole batches as arrays, for one policy that takes them.

    Args:
        collector: has `collect_columns`.
        size: transitions of one collecting.
        feed: of the agent.
        random: acts at random, as a `ColumnarActor`; None: never.
        keep: takes each segment of rows that was collected.
        sequence: transitions of an item of the replay buffer.
    """

    def __init__(
        self,
        collector: Any,
        size: int,
        feed: Feed,
        random: Any = None,
        keep: Callable[[Segment], None] | None = None,
        sequence: int = 1,
    ) -> None:
        self._sequence = sequence
        self._collector, self._size, self._feed = collector, size, feed
        self._random, self._keep = random, keep
        self._fresh: Columns = {}

    def collect(self, train_iter: int, settings: Players) -> int:
        """See `DataPath.collect`."""
        act = self._random.act if settings is None else None
        setting = settings[0] if settings is not None else {}
        self._fresh = self._collector.collect_columns(
            self._size, train_iter, setting, act=act, keep=self._keep
        )
        items = sequences(self._fresh, self._sequence)
        if self._feed.buffer is not None:
            self._feed.buffer.push_columns(items, made_at=train_iter)
        self._feed.pushed(column_rows(items))
        return column_rows(self._fresh)

    def batches(self, updates: int) -> list[Iterator[Any]]:
        """See `DataPath.batches`."""
        feed = self._feed
        if feed.buffer is None:
            fresh, rows = share_tensors(self._fresh), column_rows(self._fresh)
            return [feed.batches(updates, partial(_all_of, fresh), rows)]
        return [feed.batches(updates, partial(feed.buffer.sample_batch, tensors=True))]


class SamplePath:
    """Lists of dicts, for policies that know no columns, and for battles.

    Args:
        collector: has `collect`.
        size: samples of one collecting, of each player.
        feeds: of each agent.
        random: acts at random, a mode for each player; empty: nobody ever does.
    """

    def __init__(
        self, collector: Any, size: int, feeds: Sequence[Feed], *, random: Sequence[Any] = ()
    ) -> None:
        self._collector, self._size, self._feeds = collector, size, feeds
        self._is_battle = isinstance(collector.policy, list)
        self._players = collector.policy
        self._random = list(random) if self._is_battle or not random else random[0]
        self._is_random = False
        self._fresh: list[list[Transition]] = []

    def collect(self, train_iter: int, settings: Players) -> int:
        """See `DataPath.collect`."""
        if self._is_random is not (settings is None):
            self._is_random = settings is None
            self._collector.reset_policy(self._random if self._is_random else self._players)
        if self._is_battle:
            given = list(settings) if settings is not None else None
            self._fresh, _ = self._collector.collect(
                self._size, train_iter, drop_extra=False, policy_kwargs=given
            )
        else:
            setting = settings[0] if settings is not None else {}
            self._fresh = [
                self._collector.collect(
                    self._size, train_iter, drop_extra=False, policy_kwargs=setting
                )
            ]
        for feed, samples in zip(self._feeds, self._fresh, strict=True):
            feed.pushed(len(samples))
            if feed.buffer is not None:
                feed.buffer.push(samples, self._collector.envstep)
        return max(map(len, self._fresh))

    def batches(self, updates: int) -> list[Iterator[Any]]:
        """See `DataPath.batches`."""
        return [
            feed.batches(updates, feed.buffer.sample)
            if feed.buffer is not None
            else feed.batches(updates, partial(_all_of, fresh), len(fresh))
            for feed, fresh in zip(self._feeds, self._fresh, strict=True)
        ]


def _all_of(fresh: Any, _size: int, _train_iter: int) -> Any:
    """On-policy, each batch is all that was collected."""
    return fresh
