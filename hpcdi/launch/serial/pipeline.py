"""The loop of a serial run: evaluate, collect, learn, in one process.

It is made of the parts of a parallel run: the same policy, environments, replay buffer and learner.
In a battle each player is a student of its own; otherwise there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcdi.config.schema import ExperimentConfig
from hpcdi.launch.serial.data_path import DataPath
from hpcdi.utils.metrics import human_return
from hpcdi.utils.progress import Evaluation
from hpcdi.worker.coordinator.commanders import BaseSerialCommander
from hpcdi.worker.learner.base_learner import BaseLearner


@dataclass(frozen=True)
class Student:
    """A policy that learns, and what it learns from.

    Attributes:
        policy: its learn mode.
        learner: updates it.
        buffer: its replay buffer; empty where it learns on-policy.
        commander: says how it is to act while data are collected.
    """

    policy: Any
    learner: BaseLearner
    buffer: Any
    commander: BaseSerialCommander


@dataclass(frozen=True)
class Parts:
    """What a serial run is composed of."""

    collector: Any
    evaluator: Any
    students: tuple[Student, ...]
    data: DataPath


class SerialPipeline:
    """Trains until a goal is reached, a limit is, or somebody says stop.

    Args:
        config: the experiment.
        parts: what it is composed of.
        keep_best: called by the evaluator with a name, for the best policy so far.
    """

    def __init__(
        self, config: ExperimentConfig, parts: Parts, keep_best: Callable[[str], None]
    ) -> None:
        self.parts = parts
        self.evaluations: list[Evaluation] = []
        self.evaluated_at = -1
        """Train iteration of the last evaluation."""
        self._config, self._keep_best = config, keep_best

    def run(self, stop: Callable[[], str | None]) -> str:
        """Train; gives the reason why it ended.

        Args:
            stop: asked between two turns of the loop; a reason ends the run.
        """
        collector, students, data = self.parts.collector, self.parts.students, self.parts.data
        reason = self._warm_up(stop)
        while (reason := reason or self._evaluate() or self._limit() or stop()) is None:
            settings = [student.commander.step() for student in students]
            count = data.collect(self.train_iter, settings)
            updates = self._config.policy.updates_after(count)
            for student, batches in zip(students, data.batches(updates), strict=True):
                for batch in batches:
                    student.learner.train(batch, collector.envstep)
        return reason

    @property
    def is_on_policy(self) -> bool:
        """Whether data are used once, by the policy that made them."""
        return bool(self._config.policy.on_policy)

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return int(self.parts.collector.envstep)

    @property
    def train_iter(self) -> int:
        """Train iterations so far, of the first student."""
        return self.parts.students[0].learner.train_iter

    def _warm_up(self, stop: Callable[[], str | None]) -> str | None:
        """Fill the buffer at random; the reason to end, if somebody says stop meanwhile."""
        wanted, reason = self._config.policy.random_collect_size, None
        while self.train_iter == 0 and self.env_steps < wanted and reason is None:
            self.parts.data.collect(0, None)
            reason = self._limit() or stop()
        return reason

    def _evaluate(self) -> str | None:
        """Evaluate if it is time; the reason to end, if the policy is good enough."""
        evaluator = self.parts.evaluator
        if not evaluator.should_eval(self.train_iter):
            return None
        return self._conclude()

    def _conclude(self) -> str | None:
        """Evaluate; the reason to end, if the policy is good enough."""
        evaluator = self.parts.evaluator
        self.evaluated_at = self.train_iter
        is_enough, _ = evaluator.eval(self._keep_best, self.train_iter, self.env_steps)
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

    def evaluate_at_end(self) -> None:
        """Evaluate what has been learnt since the last time, whether it is time or not."""
        if self.train_iter > max(self.evaluated_at, 0):
            self._conclude()

    def _limit(self) -> str | None:
        limits = self._config.policy.other.commander
        if self.env_steps >= limits.max_env_step:
            return f"max_env_step reached: {self.env_steps} of {limits.max_env_step:.0f}"
        if self.train_iter >= limits.max_train_iter:
            return f"max_train_iter reached: {self.train_iter} of {limits.max_train_iter:.0f}"
        return None
