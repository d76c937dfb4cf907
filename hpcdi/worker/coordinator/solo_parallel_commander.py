"""One policy, learnt by one learner task from what all collectors collect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdi.comm.messages import CollectResult, CollectTask, LearnTask
from hpcdi.config.fields import setting
from hpcdi.policy.create import create_policy
from hpcdi.types import Settings
from hpcdi.utils.metrics import human_return
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY
from hpcdi.utils.uid import get_task_uid
from hpcdi.worker.coordinator.base_parallel_commander import BaseCommander


@PARALLEL_COMMANDER_REGISTRY.register("solo")
class SoloCommander(BaseCommander):
    """Collects with every free collector, evaluates every `eval_interval`, ends at the goal.

    The run ends when an evaluation's mean return reaches ``env.stop_value``, or at `max_env_step`
    or `max_train_iter`.
    """

    @dataclass(frozen=True)
    class Config(BaseCommander.Config):
        """Settings of the solo commander."""

        type: str = "solo"
        eval_interval: float = setting(60.0, "seconds between evaluations", above=0)
        max_env_step: float = setting(
            float("inf"), "environment steps after which the run ends", minimum=1
        )
        max_train_iter: float = setting(
            float("inf"), "train iterations after which the run ends", minimum=1
        )

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._policy = create_policy(self._main.policy, ["command"]).command_mode
        self._stop_value = float(self._main.env.stop_value)
        self._env_steps, self._train_iter = 0, 0
        self._ids: dict[str, str] = {}  # of the learner's policy and buffer; empty: no learner task
        self._tasks: dict[str, CollectTask] = {}
        self._evaluation = _EvaluationClock(self._cfg.eval_interval)

    def get_learner_task(self, now: float) -> LearnTask | None:
        """The one learner task."""
        if self._ids:
            return None
        uid = get_task_uid()
        self._ids = {
            "task_id": f"learner_task_{uid}",
            "policy_id": f"policy_{uid}",
            "buffer_id": f"buffer_{uid}",
        }
        self._evaluation.began(now)
        return LearnTask(**self._ids)

    def get_collector_task(self, now: float) -> CollectTask | None:
        """An evaluation if one is due, else collecting."""
        space = self._collector_space
        if not self._ids or (space is not None and len(self._tasks) >= space):
            return None
        evaluate = self.evaluation_is_due(now)
        if evaluate:
            self._evaluation.began(now)
        return self.make_task(evaluate=evaluate)

    def make_task(self, *, evaluate: bool) -> CollectTask:
        """An evaluation, or collecting by the present settings; there must be a learner task."""
        kind = "evaluator" if evaluate else "collector"
        task = CollectTask(
            f"{kind}_task_{get_task_uid()}", self._ids["buffer_id"], self._ids["policy_id"],
            eval_flag=evaluate,
            setting={} if evaluate else dict(self.get_setting_collect()),
            publish_above=self._evaluation.best if evaluate else float("inf"),
        )  # fmt: skip
        self._tasks[task.task_id] = task
        return task

    def evaluation_is_due(self, now: float) -> bool:
        """Whether there is something learnt to evaluate, the interval has passed, and none runs."""
        under_way = any(task.eval_flag for task in self._tasks.values())
        has_learnt = bool(self._ids) and self._train_iter > 0
        return has_learnt and not under_way and self._evaluation.is_due(now)

    def get_setting_collect(self) -> Settings:
        """The policy's settings for collectors at the present number of environment steps."""
        setting: Settings = self._policy.get_setting_collect(
            {"envstep": self._env_steps, "learner_step": self._train_iter}
        )
        return setting

    def finish_collector_task(self, task_id: str, finished_task: CollectResult) -> bool:
        """Free its place; whether an evaluation reached the stop value."""
        task = self._tasks.pop(task_id, None)
        if task is not None and task.eval_flag:
            self._evaluation.took_s = finished_task.duration_s
        if not finished_task.is_evaluation:
            return False
        mean = float(np.mean(finished_task.episode_returns))
        self._evaluation.best = max(self._evaluation.best, mean)
        return mean >= self._stop_value

    def describe_goal(self, finished_task: CollectResult) -> str:
        """The return that was enough."""
        mean = float(np.mean(finished_task.episode_returns))
        return f"stop value reached: mean return {human_return(mean)} of {self._stop_value:g}"

    def finish_learner_task(self, task_id: str, finished_task: Any) -> str:  # noqa: ARG002
        """Free its place; the buffer goes with it."""
        buffer_id = self._ids.get("buffer_id", "")
        self._ids = {}
        return buffer_id

    def update_progress(self, env_steps: int, train_iter: int) -> str | None:
        """Take the counters; the reason to end, once a limit is reached."""
        self._env_steps, self._train_iter = env_steps, train_iter
        if env_steps >= self._cfg.max_env_step:
            return f"max_env_step reached: {env_steps} of {self._cfg.max_env_step:.0f}"
        if train_iter >= self._cfg.max_train_iter:
            return f"max_train_iter reached: {train_iter} of {self._cfg.max_train_iter:.0f}"
        return None

    def notify_fail_collector_task(self, collector_task: CollectTask) -> None:
        """Free its place; an evaluation is due again at once."""
        self._tasks.pop(collector_task.task_id, None)
        if collector_task.eval_flag:
            self._evaluation.failed()

    def notify_fail_learner_task(self, learner_task: LearnTask) -> None:  # noqa: ARG002
        """Free its place."""
        self._ids = {}

    def state_dict(self) -> dict[str, Any]:
        """Counters and the best evaluation."""
        best = self._evaluation.best
        return {
            "env_steps": self._env_steps,
            "train_iter": self._train_iter,
            "best_evaluation": best if np.isfinite(best) else None,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self._env_steps = state_dict["env_steps"]
        self._train_iter = state_dict["train_iter"]
        if state_dict["best_evaluation"] is not None:
            self._evaluation.best = state_dict["best_evaluation"]


class _EvaluationClock:
    """When to evaluate, and how good it has been.

    One that took long is followed by as long a rest: evaluations never take more than half of a
    collector's time.
    """

    def __init__(self, interval_s: float) -> None:
        self.best = float("-inf")
        self.took_s = 0.0
        self._interval_s = interval_s
        self._began = 0.0

    def began(self, now: float) -> None:
        self._began = now

    def failed(self) -> None:
        self._began = float("-inf")

    def is_due(self, now: float) -> bool:
        return now - self._began >= max(self._interval_s, 2 * self.took_s)
