"""Commanders under DI-engine's names: each is the run's `Commander`, or derives from it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hpcdi.comm.messages import CollectResult, CollectTask, LearnTask
from hpcdi.config.compat import Configurable
from hpcdi.config.compiled import compile_config
from hpcdi.config.fields import ComponentConfig
from hpcdi.config.league import OneVsOneCommanderConfig
from hpcdi.config.roles import CommanderConfig, NaiveCommanderConfig, SoloCommanderConfig
from hpcdi.config.schema import ExperimentConfig
from hpcdi.dataclass import dataclass
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.groups import Group, Groups, create_groups
from hpcdi.types import Settings
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY
from hpcdi.worker.dict_envs import as_number
from hpcdi.worker.ding.convert import compiled, has_defaults
from hpcdi.worker.errors import ReturnError
from hpcdi.worker.registered import class_of


class BaseCommander(Configurable, Commander):
    """Base of commanders: what DI-engine's callers ask one beside what a run does.

    A commander of your own overrides `get_collector_task`, `get_learner_task` and
    `finish_collector_task`, or parts of them. Rank 0 calls it with messages; these methods take
    DI-engine's dicts as well.

    Args:
        cfg: see `create_parallel_commander`.
        groups: that learn; None: new records.
    """

    Config: ClassVar[type] = CommanderConfig

    def __init__(self, cfg: Any, groups: Groups | None = None) -> None:
        config = main_experiment(cfg)
        super().__init__(config, groups if groups is not None else create_groups(config))

    def get_collector_task(self, now: float | None = None) -> CollectTask | None:
        """See `Commander.get_collector_task`; without a time it is the present one."""
        return super().get_collector_task(time.monotonic() if now is None else now)

    def get_learner_task(self, now: float | None = None) -> LearnTask | None:
        """See `Commander.get_learner_task`; without a time it is the present one."""
        return super().get_learner_task(time.monotonic() if now is None else now)

    def judge_collector_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Returns whether a collector's message means that its task has ended."""
        return bool(info.get("collector_done", False))

    def judge_learner_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Returns whether a learner's message means that its task has ended."""
        return bool(info.get("learner_done", False))

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Take a learner's info, as a callback was handed it."""

    def finish_collector_task(
        self, task_id: str, finished_task: CollectResult | Mapping[str, Any]
    ) -> bool:
        """See `Commander.finish_collector_task`; a dict is one for `as_collect_result`."""
        if isinstance(finished_task, Mapping):
            finished_task = as_collect_result(task_id, finished_task)
        return super().finish_collector_task(task_id, finished_task)

    def notify_fail_collector_task(self, task: CollectTask | Mapping[str, Any]) -> None:
        """See `Commander.notify_fail_collector_task`; a dict names its task by ``task_id``."""
        of = self._tasks.get(str(task.get("task_id"))) if isinstance(task, Mapping) else task
        if of is not None:
            super().notify_fail_collector_task(of)

    def notify_fail_learner_task(self, task: LearnTask | Mapping[str, Any]) -> None:
        """A learner task has failed."""

    def increase_collector_task_space(self) -> None:
        """One more task at a time; no effect where the space is unlimited."""
        if self.collector_task_space is not None:
            self.collector_task_space += 1

    def decrease_collector_task_space(self) -> None:
        """One task less at a time; see `increase_collector_task_space`."""
        if self.collector_task_space is not None:
            self.collector_task_space = max(self.collector_task_space - 1, 0)


class NaiveCommander(BaseCommander):
    """Hands out numbered tasks and counts results; for tests of everything else."""

    Config: ClassVar[type] = NaiveCommanderConfig

    def __init__(self, cfg: Any, groups: Groups | None = None) -> None:
        config = main_experiment(cfg)
        super().__init__(config, groups)
        settings = config.policy.other.commander
        if not isinstance(settings, NaiveCommanderConfig):
            raise TypeError(f"a naive commander has settings of its own, not {settings}")
        self._goal = settings.collector_task_count
        self._collector_tasks = self._collector_tasks_ended = 0
        self._learner_tasks = self._learner_tasks_ended = 0
        self.learner_info: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)

    def get_collector_task(self, now: float | None = None) -> CollectTask | None:  # noqa: ARG002
        """A collect task, while there is room."""
        under_way = self._collector_tasks - self._collector_tasks_ended
        space = self.collector_task_space
        if space is not None and under_way >= space:
            return None
        self._collector_tasks += 1
        return CollectTask(f"collector_task_id{self._collector_tasks}", eval_flag=False, setting={})

    def get_learner_task(self, now: float | None = None) -> LearnTask | None:  # noqa: ARG002
        """A learner task, while none is under way."""
        if self._learner_tasks > self._learner_tasks_ended:
            return None
        self._learner_tasks += 1
        return LearnTask(f"learner_task_id{self._learner_tasks}")

    def get_setting_collect(self, group: Group) -> Settings:  # noqa: ARG002
        """It has no settings for collectors."""
        return {}

    def evaluation_is_due(self, now: float) -> bool:  # noqa: ARG002
        """It never evaluates."""
        return False

    def begin_last_evaluation(self) -> bool:
        """It never evaluates."""
        return False

    def finish_collector_task(
        self,
        task_id: str,  # noqa: ARG002
        finished_task: CollectResult | Mapping[str, Any],  # noqa: ARG002
    ) -> bool:
        """Count it; the goal is a number of them."""
        self._collector_tasks_ended += 1
        return self._collector_tasks_ended >= self._goal

    def describe_goal(self, finished_task: CollectResult) -> str:  # noqa: ARG002
        """Number of tasks done."""
        return f"{self._collector_tasks_ended} collect tasks are done"

    def finish_learner_task(self, task_id: str, finished_task: Any) -> None:  # noqa: ARG002
        """Count it."""
        self._learner_tasks_ended += 1

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Keep it."""
        self.learner_info[task_id].append(info)

    def notify_fail_collector_task(self, task: CollectTask | Mapping[str, Any]) -> None:  # noqa: ARG002
        """Free its place."""
        self._collector_tasks -= 1

    def notify_fail_learner_task(self, task: LearnTask | Mapping[str, Any]) -> None:  # noqa: ARG002
        """Free its place."""
        self._learner_tasks -= 1


class SoloCommander(BaseCommander):
    """The run's `Commander`, for groups that play alone."""

    Config: ClassVar[type] = SoloCommanderConfig


class OneVsOneCommander(BaseCommander):
    """The run's `Commander`, for the groups of a league; see `League`."""

    Config: ClassVar[type] = OneVsOneCommanderConfig


class BaseSerialCommander(Configurable):
    """Commander of a serial run: asks the policy's command mode for the collector's settings.

    Args:
        cfg: settings, a mapping or an instance of `Config`; it has none of its own.
        learner: has ``learn_info``.
        collector: has ``envstep``.
        evaluator: for commanders that derive from this one.
        replay_buffer: for commanders that derive from this one.
        policy: a command mode; may be set later. Without one, collectors get no settings.
    """

    @dataclass(frozen=True)
    class Config(ComponentConfig):
        """No settings of its own."""

        type: str = "serial"

    def __init__(
        self,
        cfg: Any,
        learner: Any,
        collector: Any,
        evaluator: Any,
        replay_buffer: Any,
        policy: Any = None,
    ) -> None:
        self._cfg = self.parse_config(cfg)
        self._learner, self._collector = learner, collector
        self._evaluator, self._replay_buffer = evaluator, replay_buffer
        self._policy = policy

    def step(self) -> Settings:
        """Keyword arguments of the collect mode's forward, e.g. ``{"eps": 0.3}``.

        They follow from the learner's ``learn_info`` and the collector's ``envstep``.
        """
        if self._policy is None:
            return {}
        counters = {**self._learner.learn_info, "envstep": self._collector.envstep}
        setting: Settings = self._policy.get_setting_collect(counters)
        return setting

    @property
    def policy(self) -> Any:
        """The policy's command mode."""
        return self._policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        self._policy = policy


def create_parallel_commander(cfg: Any, groups: Groups | None = None) -> Commander:
    """Make the commander of ``cfg.policy.other.commander.type``, of the experiment alone.

    Args:
        cfg: the whole experiment: an `ExperimentConfig`, a mapping of its settings, or the ``main``
            of what DI-engine's ``compile_config_parallel`` returns.
        groups: that learn, handed to its constructor, too; None: new records.

    Raises:
        UnknownTypeError: no commander has that type. ConfigError: a setting is wrong.
    """
    config = main_experiment(cfg)
    cls = get_parallel_commander_cls(config.policy.other.commander)
    commander: Commander = cls(config) if groups is None else cls(config, groups)
    return commander


def main_experiment(cfg: Any) -> ExperimentConfig:
    """Returns the experiment that a commander is for; see `create_parallel_commander`."""
    if isinstance(cfg, ExperimentConfig):
        return cfg
    main = dict(cfg)
    if has_defaults(main):
        main = compiled(main, {})
    return compile_config(main).config


def get_parallel_commander_cls(cfg: Any) -> Any:
    """The class that ``cfg.type`` names; `cfg` is the commander's own settings."""
    return class_of(PARALLEL_COMMANDER_REGISTRY, cfg)


def as_collect_result(task_id: str, finished_task: Mapping[str, Any]) -> CollectResult:
    """The result of a collect or evaluation task that a caller has as DI-engine's dict.

    Args:
        task_id: its task.
        finished_task: see `BaseParallelCollector.get_finish_info`; None is as if it were not there.
            Without ``reward_raw`` each of its episodes had ``reward_mean``.

    Raises:
        ReturnError: one of ``reward_raw`` is not one number, or an evaluation says no return.
    """
    said = {key: value for key, value in finished_task.items() if value is not None}
    is_evaluation = bool(said.get("eval_flag", False))
    if "reward_mean" in said:
        episodes = max(1, int(said.get("real_episode_count", 1)))
        said.setdefault("reward_raw", [said["reward_mean"]] * episodes)
    if is_evaluation and "reward_raw" not in said:
        raise ReturnError(
            f"the evaluation {task_id!r} is judged by its reward_raw or reward_mean, and has "
            f"neither; its keys are {sorted(map(str, said))}"
        )
    returns = [as_number(one) for one in said.get("reward_raw", ())]
    return CollectResult(
        task_id,
        is_evaluation,
        int(said.get("train_iter", 0)),
        int(said.get("step_count", 0)),
        float(said.get("duration", 0.0)),
        np.asarray(returns, dtype=np.float64),
        np.full(len(returns), said.get("avg_step_per_episode", 0), dtype=np.int64),
    )
