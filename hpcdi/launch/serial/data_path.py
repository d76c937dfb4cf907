"""From environments to updates in one process: the part that differs by what policies take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hpcdi.types import Columns, Settings, Transition
from hpcdi.utils.nested import column_rows, share_tensors

Players = Sequence[Settings] | None
"""How each player acts, as keyword arguments of its policy; None: at random."""


@dataclass(frozen=True)
class Feed:
    """Where one student's data go, and come from.

    Attributes:
        buffer: a replay buffer; None where data are used once, as they come.
        batch_size: items of one draw.
        learner: has ``train_iter`` and ``priority_info``.
    """

    buffer: Any
    batch_size: int
    learner: Any


class DataPath(Protocol):
    """What the loop of a serial run asks for."""

    def collect(self, train_iter: int, settings: Players) -> int:
        """Collect once and keep what came; gives the transitions or samples of one player."""
        ...

    def batches(self, updates: int) -> list[Iterator[Any]]:
        """Batches for each student; none where there is too little to draw from."""
        ...


class ColumnPath:
    """Whole batches as arrays, for one policy that takes them.

    Args:
        collector: has `collect_columns`.
        size: transitions of one collecting.
        feed: of the student.
        random: acts at random, as a `ColumnarActor`; None: never.
    """

    def __init__(self, collector: Any, size: int, feed: Feed, random: Any = None) -> None:
        self._collector, self._size, self._feed, self._random = collector, size, feed, random
        self._fresh: Columns = {}

    def collect(self, train_iter: int, settings: Players) -> int:
        """See `DataPath.collect`."""
        act = self._random.act if settings is None else None
        setting = settings[0] if settings is not None else {}
        self._fresh = self._collector.collect_columns(self._size, train_iter, setting, act=act)
        if self._feed.buffer is not None:
            self._feed.buffer.push_columns(self._fresh, made_at=train_iter)
        return column_rows(self._fresh)

    def batches(self, updates: int) -> list[Iterator[Any]]:
        """See `DataPath.batches`."""
        return [self._batches(updates)]

    def _batches(self, updates: int) -> Iterator[Any]:
        buffer, learner = self._feed.buffer, self._feed.learner
        for _ in range(updates):
            if buffer is None:
                yield share_tensors(self._fresh)
                continue
            sample = buffer.sample_batch(self._feed.batch_size, learner.train_iter, tensors=True)
            if sample is None:
                return
            yield sample
            if learner.priority_info:
                buffer.update(learner.priority_info)


class SamplePath:
    """Lists of dicts, for policies that know no columns, and for battles.

    Args:
        collector: has `collect`.
        size: samples of one collecting, of each player.
        feeds: of each student.
        random: of a battle, whose collector gives a list for each player: acts at random for each.
    """

    def __init__(
        self, collector: Any, size: int, feeds: Sequence[Feed], *, random: Sequence[Any] = ()
    ) -> None:
        self._collector, self._size, self._feeds = collector, size, feeds
        self._players, self._random = collector.policy, list(random)
        self._is_random = False
        self._fresh: list[list[Transition]] = []

    def collect(self, train_iter: int, settings: Players) -> int:
        """See `DataPath.collect`."""
        at_random: Mapping[str, Any] = {"random_collect": True} if settings is None else {}
        if self._random:
            given = list(settings) if settings is not None else None
            if self._is_random is not (settings is None):
                self._is_random = settings is None
                self._collector.reset_policy(self._random if self._is_random else self._players)
            self._fresh, _ = self._collector.collect(
                self._size, train_iter, drop_extra=False, policy_kwargs=given
            )
        else:
            setting = settings[0] if settings is not None else {}
            self._fresh = [
                self._collector.collect(
                    self._size, train_iter, drop_extra=False, policy_kwargs=setting, **at_random
                )
            ]
        for feed, samples in zip(self._feeds, self._fresh, strict=True):
            if feed.buffer is not None:
                feed.buffer.push(samples, self._collector.envstep)
        return max(map(len, self._fresh))

    def batches(self, updates: int) -> list[Iterator[Any]]:
        """See `DataPath.batches`."""
        return [
            self._batches(feed, fresh, updates)
            for feed, fresh in zip(self._feeds, self._fresh, strict=True)
        ]

    def _batches(self, feed: Feed, fresh: list[Transition], updates: int) -> Iterator[Any]:
        for _ in range(updates):
            if feed.buffer is None:
                yield fresh
                continue
            items = feed.buffer.sample(feed.batch_size, feed.learner.train_iter)
            if items is None:
                return
            yield items
            if feed.learner.priority_info:
                feed.buffer.update(feed.learner.priority_info)
