"""Commanders: who sets the tasks of a parallel run, and when it has reached its goal.

A commander decides and does nothing: it makes tasks when asked, takes results, and says when the
run is over. Time comes as an argument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcdi.comm.messages import CollectResult, CollectTask, LearnTask
from hpcdi.config.compat import ConfigDict, Configurable, component_class
from hpcdi.config.fields import ComponentConfig, setting
from hpcdi.types import Settings
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY


class BaseCommander(Configurable, ABC):
    """What the scheduler asks of a commander.

    Args:
        cfg: the whole experiment: an `ExperimentConfig`, or a mapping with ``policy`` and ``env``.
    """

    def __init__(self, cfg: Any) -> None:
        self._main = ConfigDict(cfg) if isinstance(cfg, Mapping) else cfg
        self._cfg: Any = self.parse_config(self._main.policy.other.commander)
        self._collector_space: int | None = self._cfg.collector_task_space
        self._learner_space = self._cfg.learner_task_space

    @dataclass(frozen=True)
    class Config(ComponentConfig):
        """Settings that every commander has."""

        collector_task_space: int | None = setting(
            None, "collect and evaluation tasks at a time; empty: one for each collector", minimum=1
        )
        learner_task_space: int = setting(1, "learner tasks at a time", minimum=1, maximum=1)

    @property
    def collector_task_space(self) -> int | None:
        """Collect and evaluation tasks that may be under way; None: one for each collector."""
        return self._collector_space

    @collector_task_space.setter
    def collector_task_space(self, space: int) -> None:
        self._collector_space = space

    @abstractmethod
    def get_collector_task(self, now: float) -> CollectTask | None:
        """The next collect or evaluation task; None where nothing is to be done now."""

    @abstractmethod
    def get_learner_task(self, now: float) -> LearnTask | None:
        """The next learner task; None where nothing is to be done now."""

    @abstractmethod
    def finish_collector_task(self, task_id: str, finished_task: CollectResult) -> bool:
        """Take a result; whether the run has reached its goal by it."""

    @abstractmethod
    def describe_goal(self, finished_task: CollectResult) -> str:
        """Why the run is over, of the result by which it has reached its goal."""

    @abstractmethod
    def finish_learner_task(self, task_id: str, finished_task: Any) -> str:
        """Take a learner's end; gives the id of the buffer that is not needed any more."""

    def evaluation_is_due(self, now: float) -> bool:  # noqa: ARG002
        """Whether an evaluation should start now, even if every collector is busy."""
        return False

    def get_setting_collect(self) -> Settings:
        """The policy's settings for collectors, as of now."""
        return {}

    def update_progress(self, env_steps: int, train_iter: int) -> str | None:  # noqa: ARG002
        """Take the run's counters; gives the reason to end the run, if there is one."""
        return None

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Take what a learner says of its iterations."""

    def notify_fail_collector_task(self, collector_task: CollectTask) -> None:
        """A task could not be done: its place is free again."""

    def notify_fail_learner_task(self, learner_task: LearnTask) -> None:
        """See `notify_fail_collector_task`."""

    def judge_collector_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether a collector's words mean that its task has ended."""
        return bool(info.get("collector_done", False))

    def judge_learner_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether a learner's words mean that its task has ended."""
        return bool(info.get("learner_done", False))

    def increase_collector_task_space(self) -> None:
        """One more collector is there; nothing to count where each collector has its place."""
        if self._collector_space is not None:
            self._collector_space += 1

    def decrease_collector_task_space(self) -> None:
        """One collector has gone; see `increase_collector_task_space`."""
        if self._collector_space is not None:
            self._collector_space = max(self._collector_space - 1, 0)

    def state_dict(self) -> dict[str, Any]:
        """What a restart must know: plain data."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave."""


@PARALLEL_COMMANDER_REGISTRY.register("naive")
class NaiveCommander(BaseCommander):
    """Hands out numbered tasks and counts what comes back; for tests of everything else."""

    @dataclass(frozen=True)
    class Config(BaseCommander.Config):
        """Settings of the naive commander."""

        type: str = "naive"
        collector_task_space: int | None = setting(2, "collect tasks at a time", minimum=1)
        collector_task_count: int = setting(
            2, "collect tasks until the run has reached its goal", minimum=1
        )

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._collector_task_count = 0
        self._learner_task_count = 0
        self._collector_task_finish_count = 0
        self._learner_task_finish_count = 0
        self._learner_info: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)

    def get_collector_task(self, now: float) -> CollectTask | None:  # noqa: ARG002
        """A collect task, while there is room."""
        running = self._collector_task_count - self._collector_task_finish_count
        if self._collector_space is not None and running >= self._collector_space:
            return None
        self._collector_task_count += 1
        return CollectTask(
            f"collector_task_id{self._collector_task_count}", "test", "test.pth",
            eval_flag=False, setting={},
        )  # fmt: skip

    def get_learner_task(self, now: float) -> LearnTask | None:  # noqa: ARG002
        """A learner task, while there is room."""
        running = self._learner_task_count - self._learner_task_finish_count
        if running >= self._learner_space:
            return None
        self._learner_task_count += 1
        return LearnTask(f"learner_task_id{self._learner_task_count}", "test.pth", "test")

    def finish_collector_task(self, task_id: str, finished_task: CollectResult) -> bool:  # noqa: ARG002
        """Count it; the goal is a number of them."""
        self._collector_task_finish_count += 1
        goal = int(self._cfg.collector_task_count)
        return self._collector_task_finish_count >= goal

    def describe_goal(self, finished_task: CollectResult) -> str:  # noqa: ARG002
        """How many it was."""
        return f"{self._collector_task_finish_count} collect tasks are done"

    def finish_learner_task(self, task_id: str, finished_task: Any) -> str:  # noqa: ARG002
        """Count it."""
        self._learner_task_finish_count += 1
        return "test"

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Keep it."""
        self._learner_info[task_id].append(info)

    def notify_fail_collector_task(self, collector_task: CollectTask) -> None:  # noqa: ARG002
        """Free its place."""
        self._collector_task_count -= 1

    def notify_fail_learner_task(self, learner_task: LearnTask) -> None:  # noqa: ARG002
        """Free its place."""
        self._learner_task_count -= 1


def create_parallel_commander(cfg: Any) -> BaseCommander:
    """The commander that ``cfg.policy.other.commander.type`` names; `cfg` is the whole experiment.

    Raises:
        UnknownTypeError: no commander has that type.
    """
    main = ConfigDict(cfg) if isinstance(cfg, Mapping) else cfg
    commander: BaseCommander = get_parallel_commander_cls(main.policy.other.commander)(main)
    return commander


def get_parallel_commander_cls(cfg: Any) -> Any:
    """The class that ``cfg.type`` names; `cfg` is the commander's own settings."""
    return component_class(PARALLEL_COMMANDER_REGISTRY, cfg)
