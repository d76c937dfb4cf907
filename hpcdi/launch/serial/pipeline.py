"""The loop of a serial run: evaluate, collect, learn, in one process.

It is made of the parts of a parallel run: the same policy, environments, replay buffer and learner.
In a battle each player is an agent of its own; otherwise there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcdi.config.schema import ExperimentConfig
from hpcdi.launch.serial.data_path import DataPath
from hpcdi.launch.serial.replay import LocalReplay
from hpcdi.types import Interval
from hpcdi.utils.metrics import human_return
from hpcdi.utils.progress import Evaluation
from hpcdi.worker.coordinator.commanders import BaseSerialCommander
from hpcdi.worker.learner.base_learner import BaseLearner


@dataclass(frozen=True)
class Agent:
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
    agents: tuple[Agent, ...]
    data: DataPath
    replay: LocalReplay


class SerialPipeline:
    """Trains until a goal is reached, a limit is, or somebody says stop.

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
        self._every = Interval.of(config.policy.eval.every)
        self._counted_from: float | None = None

    def run(self, stop: Callable[[], str | None]) -> str:
        """Train; returns the reason why it ended.

        Args:
            stop: asked between two turns of the loop; a reason ends the run.
        """
        collector, agents, data = self.parts.collector, self.parts.agents, self.parts.data
        reason = self._warm_up(stop)
        while (reason := reason or self._evaluate() or self._limit() or stop()) is None:
            self._mark("show")
            settings = [agent.commander.step() for agent in agents]
            count = data.collect(self.train_iter, settings)
            self._mark("collect")
            updates = self._config.policy.updates_after(count, self.env_steps, self.train_iter)
            for agent, batches in zip(agents, data.batches(updates), strict=True):
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
        """Fill the buffer at random; returns the reason to end, if there is one meanwhile."""
        wanted, reason = self._config.policy.random_collect_size, None
        while self.train_iter == 0 and self.env_steps < wanted and reason is None:
            self.parts.data.collect(0, None)
            reason = self._limit() or stop()
        return reason

    def _evaluate(self) -> str | None:
        """Evaluate if it is time; returns the reason to end, if the policy is good enough."""
        if self._every is None:
            is_due = self.parts.evaluator.should_eval(self.train_iter)
            return self._conclude() if is_due else None
        seconds = time.monotonic()
        count = self._every.count(self.env_steps, self.train_iter, seconds)
        if self._counted_from is None:
            last = (self.evaluated_steps, max(self.evaluated_at, 0), seconds)
            self._counted_from = self._every.count(*last)
        is_due = count - self._counted_from >= self._every.length
        if not is_due or self.train_iter <= max(self.evaluated_at, 0):
            return None
        self._counted_from = count
        return self._conclude()

    def _conclude(self) -> str | None:
        """Evaluate; returns the reason to end, if the policy is good enough."""
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
        return self._conclude() if self.train_iter > max(self.evaluated_at, 0) else None

    def _limit(self) -> str | None:
        limits = self._config.policy.other.commander
        if self.env_steps >= limits.max_env_step:
            return f"max_env_step reached: {self.env_steps} of {limits.max_env_step:.0f}"
        if self.train_iter >= limits.max_train_iter:
            return f"max_train_iter reached: {self.train_iter} of {limits.max_train_iter:.0f}"
        return None
