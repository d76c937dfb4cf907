"""Commanders: who sets the tasks of a run, and when it has reached its goal.

A commander decides and does nothing: it makes tasks when asked, takes results, and says when the
run is over. Time comes as an argument. `BaseSerialCommander` is that of a run in one process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdi.comm.messages import BlockReady, CollectResult, CollectTask, LearnTask
from hpcdi.config.compat import ConfigDict, Configurable, component_class
from hpcdi.config.fields import ComponentConfig
from hpcdi.config.roles import CommanderConfig, NaiveCommanderConfig, SoloCommanderConfig
from hpcdi.league.league import League
from hpcdi.policy.create import create_policy
from hpcdi.roles.context import get_task_uid
from hpcdi.types import MAIN, Interval, Settings
from hpcdi.utils.metrics import human_return
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY


class BaseCommander(Configurable, ABC):
    """Base of commanders: the scheduler's questions to one.

    Args:
        cfg: the whole experiment: an `ExperimentConfig`, or a mapping with ``policy`` and ``env``.
    """

    Config = CommanderConfig
    _cfg: CommanderConfig

    def __init__(self, cfg: Any) -> None:
        self._main = ConfigDict(cfg) if isinstance(cfg, Mapping) else cfg
        config: CommanderConfig = self.parse_config(self._main.policy.other.commander)
        self._cfg = config
        self._collector_space = config.collector_task_space
        self._learner_space = config.learner_task_space

    league: League | None = None
    """Players and results, of a commander that has a league."""

    @property
    def collector_task_space(self) -> int | None:
        """Collect and evaluation tasks that may be under way; None: one for each collector."""
        return self._collector_space

    @collector_task_space.setter
    def collector_task_space(self, space: int) -> None:
        self._collector_space = space

    @abstractmethod
    def get_collector_task(self, now: float = 0.0) -> CollectTask | None:
        """Returns the next collect or evaluation task; None where nothing is to be done now."""

    @abstractmethod
    def get_learner_task(self, now: float = 0.0) -> LearnTask | None:
        """Returns the next learner task; None where nothing is to be done now."""

    @abstractmethod
    def finish_collector_task(self, task_id: str, finished_task: CollectResult) -> bool:
        """Take a result; returns whether the run has reached its goal."""

    @abstractmethod
    def describe_goal(self, finished_task: CollectResult) -> str:
        """Reason of the end, for the result that reached the goal."""

    @abstractmethod
    def finish_learner_task(self, task_id: str, finished_task: Any) -> None:
        """Take a learner's result."""

    def evaluation_is_due(self, now: float) -> bool:  # noqa: ARG002
        """Decides whether an evaluation should start now, even if every collector is busy."""
        return False

    def begin_last_evaluation(self) -> bool:
        """The run is about to end: returns whether one evaluation more is due now, before it does.

        True at most once, and where something was learnt; if it fails, it is due again.
        """
        return False

    def get_setting_collect(self, player: str = MAIN) -> Settings:  # noqa: ARG002
        """The present settings for collectors of a player's policy."""
        return {}

    def update_progress(
        self,
        env_steps: int,  # noqa: ARG002
        train_iter: int,  # noqa: ARG002
        player: str = MAIN,  # noqa: ARG002
    ) -> str | None:
        """Take a player's counters; returns the reason to end the run, or None."""
        return None

    def take_resets(self) -> list[str]:
        """Returns the players that are to begin anew, since the last call."""
        return []

    def lose_player(self, player: str) -> None:
        """The last learner of a player, not the main one, has died, and the run goes on."""

    def count_block(self, ready: BlockReady) -> None:
        """Take a block that counts from now on: published, or found when the run was resumed."""

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Take a learner's scalars of its last iterations."""

    def notify_fail_collector_task(self, task: CollectTask) -> None:
        """A task failed: its place is free again."""

    def notify_fail_learner_task(self, task: LearnTask) -> None:
        """See `notify_fail_collector_task`."""

    def judge_collector_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Returns whether a collector's message means that its task has ended."""
        return bool(info.get("collector_done", False))

    def judge_learner_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Returns whether a learner's message means that its task has ended."""
        return bool(info.get("learner_done", False))

    def increase_collector_task_space(self) -> None:
        """One more task at a time; no effect where the space is unlimited."""
        if self._collector_space is not None:
            self._collector_space += 1

    def decrease_collector_task_space(self) -> None:
        """One task less at a time; see `increase_collector_task_space`."""
        if self._collector_space is not None:
            self._collector_space = max(self._collector_space - 1, 0)

    def state_dict(self) -> dict[str, Any]:
        """State for a restart: plain data."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""


class NaiveCommander(BaseCommander):
    """Hands out numbered tasks and counts results; for tests of everything else."""

    Config = NaiveCommanderConfig
    _cfg: NaiveCommanderConfig

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._collector_task_count = 0
        self._learner_task_count = 0
        self._collector_task_finish_count = 0
        self._learner_task_finish_count = 0
        self._learner_info: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)

    def get_collector_task(self, now: float = 0.0) -> CollectTask | None:  # noqa: ARG002
        """A collect task, while there is room."""
        running = self._collector_task_count - self._collector_task_finish_count
        if self._collector_space is not None and running >= self._collector_space:
            return None
        self._collector_task_count += 1
        return CollectTask(
            f"collector_task_id{self._collector_task_count}", eval_flag=False, setting={}
        )

    def get_learner_task(self, now: float = 0.0) -> LearnTask | None:  # noqa: ARG002
        """A learner task, while there is room."""
        running = self._learner_task_count - self._learner_task_finish_count
        if running >= self._learner_space:
            return None
        self._learner_task_count += 1
        return LearnTask(f"learner_task_id{self._learner_task_count}")

    def finish_collector_task(self, task_id: str, finished_task: CollectResult) -> bool:  # noqa: ARG002
        """Count it; the goal is a number of them."""
        self._collector_task_finish_count += 1
        goal = int(self._cfg.collector_task_count)
        return self._collector_task_finish_count >= goal

    def describe_goal(self, finished_task: CollectResult) -> str:  # noqa: ARG002
        """Number of tasks done."""
        return f"{self._collector_task_finish_count} collect tasks are done"

    def finish_learner_task(self, task_id: str, finished_task: Any) -> None:  # noqa: ARG002
        """Count it."""
        self._learner_task_finish_count += 1

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Keep it."""
        self._learner_info[task_id].append(info)

    def notify_fail_collector_task(self, task: CollectTask) -> None:  # noqa: ARG002
        """Free its place."""
        self._collector_task_count -= 1

    def notify_fail_learner_task(self, task: LearnTask) -> None:  # noqa: ARG002
        """Free its place."""
        self._learner_task_count -= 1


class SoloCommander(BaseCommander):
    """Collects with every free collector, evaluates now and then, ends at the goal.

    It evaluates as ``policy.eval.every`` says, else every `eval_interval`. The run ends when an
    evaluation's mean return reaches ``env.stop_value``, or at `max_env_step` or `max_train_iter`.
    """

    Config = SoloCommanderConfig
    _cfg: SoloCommanderConfig

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._policy = create_policy(self._main.policy, ["command"]).command_mode
        self._stop_value = float(getattr(self._main.env, "stop_value", float("inf")))
        self._tasks: dict[str, CollectTask] = {}
        every = Interval.of(getattr(getattr(self._main.policy, "eval", None), "every", None))
        self._every = every or Interval("seconds", self._cfg.eval_interval)
        self._learners = {MAIN: PlayerProgress(EvaluationClock(self._every))}
        self._is_last_begun = False

    def get_learner_task(self, now: float = 0.0) -> LearnTask | None:
        """A task for the learners of the next player that has none yet."""
        for player, learner in self._learners.items():
            if not (learner.is_learning or learner.is_lost):
                learner.is_learning = True
                learner.evaluation.began(self._count(learner, now))
                learner.task_id = f"learner_task_{get_task_uid()}"
                return LearnTask(learner.task_id, player=player)
        return None

    def get_collector_task(self, now: float = 0.0) -> CollectTask | None:
        """An evaluation if one is due, else collecting: for whom the fewest collect."""
        space = self._collector_space
        if space is not None and len(self._tasks) >= space:
            return None
        due = self._due(now)
        if due is not None:
            learner = self._learners[due]
            learner.evaluation.began(self._count(learner, now))
            learner.evaluations += 1
            return self.make_task(evaluate=True, player=due)
        learning = [player for player, learner in self._learners.items() if learner.is_learning]
        if not learning:
            return None
        collecting = Counter(task.player for task in self._tasks.values() if not task.eval_flag)
        return self.make_task(evaluate=False, player=min(learning, key=lambda p: collecting[p]))

    def _count(self, learner: PlayerProgress, now: float) -> float:
        return self._every.count(learner.env_steps, learner.train_iter, now)

    def make_task(self, *, evaluate: bool, player: str = MAIN) -> CollectTask:
        """Make an evaluation, or a collect task with the present settings, of a player."""
        kind = "evaluator" if evaluate else "collector"
        keeps_best = evaluate and player == MAIN
        task = CollectTask(
            f"{kind}_task_{get_task_uid()}",
            eval_flag=evaluate,
            setting={} if evaluate else dict(self.get_setting_collect(player)),
            publish_above=self._learners[MAIN].evaluation.best if keeps_best else float("inf"),
            player=player,
        )
        self._tasks[task.task_id] = task
        return task

    def evaluation_is_due(self, now: float) -> bool:
        """Returns whether the interval is over, something was learnt, and no evaluation runs."""
        return self._due(now) is not None

    def _due(self, now: float) -> str | None:
        """Returns the player that is to be evaluated now; None: nobody is."""
        if any(task.eval_flag for task in self._tasks.values()):
            return None
        due = [p for p, learner in self._learners.items() if self._is_due(p, learner, now)]
        return min(due, key=lambda player: self._learners[player].evaluations, default=None)

    def _is_due(self, player: str, learner: PlayerProgress, now: float) -> bool:
        if self._is_last_begun and player != MAIN:
            return False
        has_learnt = learner.train_iter > 0 and (learner.is_learning or self._is_last_begun)
        return has_learnt and learner.evaluation.is_due(self._count(learner, now))

    def begin_last_evaluation(self) -> bool:
        """See `BaseCommander.begin_last_evaluation`; not where the newest policy is evaluated."""
        main = self._learners[MAIN]
        if self._is_last_begun or not main.train_iter > main.evaluated_iter:
            return False
        self._is_last_begun = True
        main.evaluation.failed()  # the one under way, if there is one, is of an older policy
        return True

    def get_setting_collect(self, player: str = MAIN) -> Settings:
        """The policy's settings at the present number of environment steps."""
        learner = self._learners[player]
        setting: Settings = self._policy.get_setting_collect(
            {
                "envstep": learner.env_steps - learner.began_at,
                "learner_step": learner.train_iter,
            }
        )
        return setting

    def finish_collector_task(self, task_id: str, finished_task: CollectResult) -> bool:
        """Free its place; returns whether the main player has reached the stop value."""
        task = self._tasks.pop(task_id, None)
        player = task.player if task is not None else MAIN
        learner = self._learners[player]
        if task is not None and task.eval_flag:
            learner.evaluation.took_s = finished_task.duration_s
        if not finished_task.is_evaluation:
            return False
        learner.evaluated_iter = finished_task.policy_version
        mean = float(np.mean(finished_task.episode_returns))
        learner.evaluation.best = max(learner.evaluation.best, mean)  # which a NaN never is
        return player == MAIN and mean >= self._stop_value

    def describe_goal(self, finished_task: CollectResult) -> str:
        """The mean return, and the stop value."""
        mean = float(np.mean(finished_task.episode_returns))
        return f"stop value reached: mean return {human_return(mean)} of {self._stop_value:g}"

    def finish_learner_task(self, task_id: str, finished_task: Any) -> None:  # noqa: ARG002
        """Free its place."""
        found = (one for one in self._learners.values() if one.task_id == task_id)
        next(found, self._learners[MAIN]).is_learning = False

    def update_progress(self, env_steps: int, train_iter: int, player: str = MAIN) -> str | None:
        """Take a player's counters; returns the reason to end once a limit is reached, else None.

        The limits are of the environment steps of all players, and of the main one's iterations.
        """
        learner = self._learners[player]
        learner.env_steps, learner.train_iter = env_steps, train_iter
        env_steps = sum(learner.env_steps for learner in self._learners.values())
        train_iter = self._learners[MAIN].train_iter
        if env_steps >= self._cfg.max_env_step:
            return f"max_env_step reached: {env_steps} of {self._cfg.max_env_step:.0f}"
        if train_iter >= self._cfg.max_train_iter:
            return f"max_train_iter reached: {train_iter} of {self._cfg.max_train_iter:.0f}"
        return None

    def notify_fail_collector_task(self, task: CollectTask) -> None:
        """Free its place; an evaluation is due again at once."""
        self._tasks.pop(task.task_id, None)
        if task.eval_flag:
            self._learners[task.player].evaluation.failed()

    def notify_fail_learner_task(self, task: LearnTask) -> None:
        """Free its place."""
        self._learners[task.player].is_learning = False

    def lose_player(self, player: str) -> None:
        """See `BaseCommander`."""
        self._learners[player].is_learning = False
        self._learners[player].is_lost = True

    def state_dict(self) -> dict[str, Any]:
        """Counters and the best evaluation."""
        main = self._learners[MAIN]
        best = main.evaluation.best
        return {
            "env_steps": main.env_steps,
            "train_iter": main.train_iter,
            "best_evaluation": best if np.isfinite(best) else None,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        main = self._learners[MAIN]
        main.env_steps, main.train_iter = state_dict["env_steps"], state_dict["train_iter"]
        if state_dict["best_evaluation"] is not None:
            main.evaluation.best = state_dict["best_evaluation"]


@dataclass
class PlayerProgress:
    """What a commander knows of a player that learns.

    Attributes:
        evaluation: when it is due.
        is_learning: its learners have a task.
        is_lost: it has no learners any more.
        task_id: of that task, or of the last one.
        env_steps: made for it.
        began_at: `env_steps` when it began anew: exploration does, too.
        train_iter: that its learners have done.
        evaluated_iter: train iterations of the last whole evaluation's policy.
        evaluations: that were begun.
    """

    evaluation: EvaluationClock
    is_learning: bool = False
    is_lost: bool = False
    task_id: str = ""
    env_steps: int = 0
    began_at: int = 0
    train_iter: int = 0
    evaluated_iter: int = 0
    evaluations: int = 0


class EvaluationClock:
    """When the next evaluation is due, and the best mean return so far.

    By seconds, a long evaluation is followed by as long a pause: evaluations never take more than
    half of a collector's time.
    """

    def __init__(self, every: Interval) -> None:
        self.best = float("-inf")
        self.took_s = 0.0
        self.every = every
        self._began = 0.0

    def began(self, count: float) -> None:
        """An evaluation has begun; `count` is of the interval's unit."""
        self._began = count

    def failed(self) -> None:
        """It has failed: another one is due at once."""
        self._began = float("-inf")

    def is_due(self, count: float) -> bool:
        """Returns whether one is due; `count` is of the interval's unit."""
        pause_s = 2 * self.took_s if self.every.unit == "seconds" else 0.0
        return count - self._began >= max(self.every.length, pause_s)


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
        known = {**self._learner.learn_info, "envstep": self._collector.envstep}
        setting: Settings = self._policy.get_setting_collect(known)
        return setting

    @property
    def policy(self) -> Any:
        """The policy's command mode."""
        return self._policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        self._policy = policy


def create_parallel_commander(cfg: Any) -> BaseCommander:
    """Make the commander of ``cfg.policy.other.commander.type``; `cfg` is the whole experiment.

    Raises:
        UnknownTypeError: no commander has that type.
    """
    main = ConfigDict(cfg) if isinstance(cfg, Mapping) else cfg
    commander: BaseCommander = get_parallel_commander_cls(main.policy.other.commander)(main)
    return commander


def get_parallel_commander_cls(cfg: Any) -> Any:
    """The class that ``cfg.type`` names; `cfg` is the commander's own settings."""
    return component_class(PARALLEL_COMMANDER_REGISTRY, cfg)
