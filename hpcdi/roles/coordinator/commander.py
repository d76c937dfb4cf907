"""The commander: which tasks a run has, and when it has reached its goal.

It decides and does nothing: it makes tasks when asked, takes results, and says when the run is
over. Time comes as an argument. Where there is a league, that says who plays whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdi.comm.messages import BlockReady, CollectResult, CollectTask, LearnTask
from hpcdi.config.league import OneVsOneCommanderConfig
from hpcdi.config.roles import SoloCommanderConfig
from hpcdi.config.schedule import Value
from hpcdi.config.schema import ExperimentConfig
from hpcdi.dataclass import dataclass
from hpcdi.league.league import League
from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import RANDOM
from hpcdi.roles.context import get_task_uid
from hpcdi.roles.coordinator.curriculum import Curriculum
from hpcdi.roles.coordinator.groups import Group, Groups
from hpcdi.types import Settings
from hpcdi.utils.metrics import human_return


@dataclass(frozen=True)
class RunLimits:
    """Where a run ends, whatever it has reached."""

    max_env_step: float = float("inf")
    max_train_iter: float = float("inf")

    @classmethod
    def of(cls, config: ExperimentConfig) -> RunLimits:
        """Returns those of an experiment."""
        commander = config.policy.other.commander
        if not isinstance(commander, SoloCommanderConfig):
            return cls()
        return cls(commander.max_env_step, commander.max_train_iter)

    def reached(self, env_steps: int, train_iter: int) -> str:
        """Returns the reason to end the run; empty: there is none yet."""
        if env_steps >= self.max_env_step:
            return f"max_env_step reached: {env_steps} of {self.max_env_step:.0f}"
        if train_iter >= self.max_train_iter:
            return f"max_train_iter reached: {train_iter} of {self.max_train_iter:.0f}"
        return ""


class Commander:
    """Collects with every free collector, evaluates now and then, ends at the goal.

    It evaluates as ``policy.eval.every`` says, else every `eval_interval`. The run ends when an
    evaluation's mean return reaches ``env.stop_value``, or at `max_env_step` of all groups, or at
    `max_train_iter` of the main one.

    Args:
        config: the experiment.
        groups: records of the groups that learn.

    Attributes:
        groups: see above.
        league: who plays whom; None: they play alone.
        curriculum: what the environments are played with.
        collector_task_space: collect and evaluation tasks that may be under way; None: one a
            collector.
    """

    def __init__(self, config: ExperimentConfig, groups: Groups) -> None:
        settings = config.policy.other.commander
        self.groups = groups
        self.league: League | None = None
        if isinstance(settings, OneVsOneCommanderConfig):
            self.league = League(settings.league, settings.evaluate_against, config.seed)
        self.curriculum = Curriculum(config.env.courses)
        self._limits = RunLimits.of(config)
        self._stop_value = float(config.env.stop_value)
        self._random_steps = config.policy.random_collect_size
        self._policy = create_policy(config.policy, ["command"]).command_mode
        self._tasks: dict[str, CollectTask] = {}
        self._under_way = Counter[str]()  # collect tasks of these by player
        self._evaluating = 0  # evaluations of these
        self.collector_task_space: int | None = settings.collector_task_space
        self._is_last_begun = False

    # -------------------------------------------------------------------------------------- tasks

    def get_learner_task(self, now: float) -> LearnTask | None:
        """Makes a task for the learners of the next group without one; None: all have one."""
        for group in self.groups:
            if group.learners.size and not group.is_learning:
                group.evaluation.begin_learning(group.env_steps, group.train_iter, now)
                return LearnTask(f"learner_task_{get_task_uid()}", player=group.name)
        return None

    def get_collector_task(self, now: float) -> CollectTask | None:
        """Makes an evaluation if one is due, else a collect task for the group that has fewest.

        None: no more tasks may be under way, or nobody learns, or a limit is reached already, as
        where a run that has ended is resumed: it ends as soon as its learners report.
        """
        space = self.collector_task_space
        if space is not None and len(self._tasks) >= space:
            return None
        evaluation = self.evaluation_task(now)
        learning = [g for g in self.groups if g.is_learning and not g.replay.is_offline]
        if evaluation is not None or not learning or self.limit_reached():
            return evaluation
        return self.collect_task(min(learning, key=lambda group: self._under_way[group.name]))

    def collect_task(self, group: Group) -> CollectTask:
        """Makes a task to collect for a group, with its present settings."""
        task = CollectTask(
            f"collector_task_{get_task_uid()}",
            eval_flag=False,
            setting=dict(self.get_setting_collect(group)),
            player=group.name,
            scheduled=self.scheduled(),
        )
        self._add(task)
        return task

    def evaluation_task(self, now: float) -> CollectTask | None:
        """Makes the evaluation that is due; None if none is due."""
        group = self._due(now)
        if group is None:
            return None
        group.begin_evaluation(now)
        task = CollectTask(
            f"evaluator_task_{get_task_uid()}",
            eval_flag=True,
            setting=self.league.evaluation(group.name) if self.league is not None else {},
            publish_above=group.best if group.is_main else float("inf"),
            freeze=self.league.copy_due(group.name) if self.league is not None else "",
            player=group.name,
        )
        self._add(task)
        return task

    def _add(self, task: CollectTask) -> None:
        self._tasks[task.task_id] = task
        self._count(task, 1)

    def _remove(self, task_id: str) -> CollectTask | None:
        task = self._tasks.pop(task_id, None)
        if task is not None:
            self._count(task, -1)
        return task

    def _count(self, task: CollectTask, change: int) -> None:
        if task.eval_flag:
            self._evaluating += change
        else:
            self._under_way[task.player] += change

    def evaluation_is_due(self, now: float) -> bool:
        """Decides whether an evaluation should start now, even if every collector is busy."""
        return self._due(now) is not None

    def _due(self, now: float) -> Group | None:
        """Returns the group to evaluate now; None: none is due, or an evaluation is under way."""
        if self._evaluating:
            return None
        due = [group for group in self.groups if self._is_due(group, now)]
        return min(due, key=lambda group: group.evaluations_begun, default=None)

    def _is_due(self, group: Group, now: float) -> bool:
        if self._is_last_begun:
            return group.is_main and group.evaluation_is_due(now)
        if not (group.is_learning and group.has_learnt):
            return False
        may_freeze = self.league is not None and self.league.may_freeze(group.name)
        return may_freeze or group.evaluation_is_due(now)

    def begin_last_evaluation(self) -> bool:
        """Returns whether one more evaluation is needed before the run ends, and makes it due.

        That is so, at most once, if the main group has learnt since its last one, or still learns.
        If the evaluation fails, it is due again.
        """
        main = self.groups.main
        if self._is_last_begun or not (main.has_learnt or main.is_busy):
            return False
        self._is_last_begun = True
        main.evaluation.make_due()  # one that is under way evaluates an older policy
        return True

    def get_setting_collect(self, group: Group) -> Settings:
        """Returns the policy's settings by a group's counters; in a league also its opponents."""
        counters = {
            "envstep": group.env_steps - group.began_at,
            "learner_step": group.train_iter,
        }
        setting: Settings = self._policy.get_setting_collect(counters)
        if counters["envstep"] < self._random_steps and not group.train_iter:
            setting = {**setting, RANDOM: True}
        if self.league is None:
            return setting
        return {**setting, **self.league.matchmaking(group.name)}

    def scheduled(self) -> dict[str, tuple[Value, float]]:
        """Returns what collectors' environments are played with now; see ``env.schedule``."""
        return self.curriculum.values(self.groups.env_steps)

    def notify_fail_collector_task(self, task: CollectTask) -> None:
        """Remove a task that has failed; an evaluation is due again at once."""
        self._remove(task.task_id)
        if task.eval_flag:
            self.groups.of(task).lose_evaluation()

    # ---------------------------------------------------------------------------- results, limits

    def finish_collector_task(self, task_id: str, finished_task: CollectResult) -> bool:
        """Take a result; returns whether the main group has reached the stop value."""
        task = self._remove(task_id)
        group = self.groups.of(task) if task is not None else self.groups.main
        if task is not None and task.eval_flag:
            group.evaluation.took_s = finished_task.duration_s
            if not finished_task.is_evaluation:  # it has ended no episode
                group.evaluates_at = None
        if not finished_task.is_evaluation:
            return False
        if task is not None and task.freeze and self.league is not None:
            version = finished_task.policy_version
            if self.league.freeze(group.name, task.freeze, version):
                group.begin_anew()
        mean = group.end_evaluation(finished_task)
        if group.is_main:
            self.curriculum.evaluated(mean)
        return group.is_main and mean >= self._stop_value

    def describe_goal(self, finished_task: CollectResult) -> str:
        """Returns why the run ends, for the result that has reached the goal."""
        mean = float(np.mean(finished_task.episode_returns))
        return f"stop value reached: mean return {human_return(mean)} of {self._stop_value:g}"

    def finish_learner_task(self, task_id: str, finished_task: object) -> None:
        """Take the result of a learner task; for commanders of the user."""

    def limit_reached(self) -> str:
        """Returns the reason to end the run at a limit; empty: there is none."""
        return self._limits.reached(self.groups.env_steps, self.groups.main.train_iter)

    def owes_updates(self, more: bool) -> bool:
        """Returns whether updates are to be made yet for what was collected (`replay_ratio`).

        Args:
            more: collectors still have some transitions.
        """
        if self._limits.reached(0, self.groups.main.train_iter):
            return False
        return any(g.is_learning and g.replay.owes(g.env_steps, more=more) for g in self.groups)

    def count_block(self, ready: BlockReady) -> None:
        """Count a block that was published now, or before the run was resumed."""
        if self.league is not None:
            self.league.count_games(ready.games)

    def update_progress(self, group: Group) -> None:
        """Take the changed counters of a group."""
        if self.league is not None:
            self.league.count_steps(group.name, group.env_steps, group.train_iter)

    # -------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a snapshot, without that of the groups: plain data."""
        league = {} if self.league is None else {"league": self.league.state_dict()}
        stages = self.curriculum.state_dict()
        return {**league, "curriculum": stages} if stages else league

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; if it is of a run without a league, the league stays new."""
        self.curriculum.load_state_dict(state_dict.get("curriculum", {}))
        if self.league is not None and "league" in state_dict:
            self.league.load_state_dict(state_dict["league"])
