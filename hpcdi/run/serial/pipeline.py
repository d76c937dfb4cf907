"""The loop of a serial run: evaluate, collect, learn, in one process; below it, how data flow.

It is made of the parts of a parallel run: the same policy, environments, replay buffer and learner.
In a battle each player is an agent of its own; otherwise there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from hpcdi.config.schema import ExperimentConfig
from hpcdi.replay.ratio import replay_ratio_of
from hpcdi.roles.coordinator.commander import RunLimits
from hpcdi.roles.coordinator.groups import EvaluationClock
from hpcdi.run.serial.replay import LocalReplay
from hpcdi.store.builder import Segment
from hpcdi.store.rows import sequences
from hpcdi.types import Columns, Interval, Settings, Transition
from hpcdi.utils.metrics import human_return
from hpcdi.utils.nested import column_rows, share_tensors
from hpcdi.utils.progress import Evaluation
from hpcdi.worker.coordinator.commanders import BaseSerialCommander
from hpcdi.worker.learner.base_learner import BaseLearner

Players = Sequence[Settings] | None
"""How each player acts, as keyword arguments of its policy; None: at random."""


@dataclass(frozen=True)
class LearningAgent:
    """A policy that learns, and what it learns from.

    Attributes:
        policy: its learn mode.
        learner: updates it.
        buffer: its replay buffer; empty where it learns on-policy.
        commander: returns how it is to act while data are collected.
    """

    policy: Any
    learner: BaseLearner
    buffer: Any
    commander: BaseSerialCommander


@dataclass(frozen=True)
class Parts:
    """The parts of a serial run."""

    collector: Any
    evaluator: Any
    agents: tuple[LearningAgent, ...]
    data: DataPath
    replay: LocalReplay


class SerialPipeline:
    """Trains until the stop value or a limit is reached, or a stop is requested.

    Args:
        config: the experiment.
        parts: what it is composed of.
        keep_best: called by the evaluator with a name, for the best policy so far.
        evaluations: where results go.
        mark: called after each kind of work with its name, to measure their shares of the time.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        parts: Parts,
        keep_best: Callable[[str], None],
        evaluations: list[Evaluation] | None = None,
        mark: Callable[[str], None] = lambda _work: None,
    ) -> None:
        self.parts = parts
        self.evaluations = evaluations if evaluations is not None else []
        self.evaluated_at = -1
        """Train iteration of the last evaluation."""
        self.evaluated_steps = 0
        """Environment steps at the last evaluation; 0: at the start."""
        self._config, self._keep_best, self._mark = config, keep_best, mark
        every = Interval.of(config.policy.eval.every)
        self._clock = EvaluationClock(every) if every is not None else None
        self._limits, self._ratio = RunLimits.of(config), replay_ratio_of(config, in_turns=True)

    def run(self, stop: Callable[[], str | None]) -> str:
        """Train; returns the reason why it ended.

        Args:
            stop: asked between two turns of the loop; a reason ends the run.
        """
        collector, agents, data = self.parts.collector, self.parts.agents, self.parts.data
        if self._clock is not None:
            last = (self.evaluated_steps, max(self.evaluated_at, 0))
            self._clock.start(*last, time.monotonic())
        size = self._config.policy.learn.batch_size
        reason = self._warm_up(stop)
        while (reason := reason or self._evaluate() or self._limit() or stop()) is None:
            self._mark("show")
            settings = [agent.commander.step() for agent in agents]
            count = data.collect(self.train_iter, settings)
            self._mark("collect")
            self._ratio.begin_round(count)
            due = self._ratio.batches(self.env_steps, size * self.train_iter, size)
            for agent, batches in zip(agents, data.batches(max(0, int(due))), strict=True):
                for batch in batches:
                    agent.learner.train(batch, collector.envstep)
            self._mark("train")
        return reason

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return int(self.parts.collector.envstep)

    @property
    def train_iter(self) -> int:
        """Train iterations so far, of the first agent."""
        return self.parts.agents[0].learner.train_iter

    def _warm_up(self, stop: Callable[[], str | None]) -> str | None:
        """Fill the buffer by random actions; returns the reason to end, if there is one."""
        wanted, reason = self._config.policy.random_collect_size, None
        while self.train_iter == 0 and self.env_steps < wanted and reason is None:
            self.parts.data.collect(0, None)
            reason = self._limit() or stop()
        return reason

    def _is_due(self) -> bool:
        """Returns whether it is time for an evaluation."""
        if self._clock is None:
            return bool(self.parts.evaluator.should_eval(self.train_iter))
        counts = (self.env_steps, self.train_iter, time.monotonic())
        return self.train_iter > max(self.evaluated_at, 0) and self._clock.take(*counts)

    def _evaluate(self, *, at_once: bool = False) -> str | None:
        """Evaluate, if it is time or `at_once`; returns the reason to end: a good enough policy."""
        if not (at_once or self._is_due()):
            return None
        evaluator = self.parts.evaluator
        self.evaluated_at, self.evaluated_steps = self.train_iter, self.env_steps
        is_enough, _ = evaluator.eval(self._keep_best, self.train_iter, self.env_steps)
        self._mark("evaluate")
        scalars = evaluator.scalars
        evaluation = Evaluation(
            scalars["reward_mean"], scalars["reward_std"], scalars["reward_min"],
            scalars["reward_max"], int(scalars["episode_count"]), self.train_iter, self.env_steps,
        )  # fmt: skip
        self.evaluations.append(evaluation)
        if not is_enough:
            return None
        goal = evaluator.stop_value
        return f"stop value reached: mean return {human_return(evaluation.mean)} of {goal:g}"

    def evaluate_at_end(self) -> str | None:
        """Evaluate what has been learnt since the last time, whether it is time or not.

        Returns:
            Reason of the end, where the policy is good enough.
        """
        has_learnt = self.train_iter > max(self.evaluated_at, 0)
        return self._evaluate(at_once=True) if has_learnt else None

    def _limit(self) -> str | None:
        return self._limits.reached(self.env_steps, self.train_iter) or None


# ------------------------------------------------------------------- from environments to updates


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
        random: act at random, a mode for each player; empty: none ever does.
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
    """Returns all that was collected: on-policy, that is a batch."""
    return fresh
