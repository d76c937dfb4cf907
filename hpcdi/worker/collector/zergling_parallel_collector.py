"""One policy, many environments."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdi.comm.messages import CollectProgress
from hpcdi.env.create import create_env_manager
from hpcdi.errors import CommError
from hpcdi.policy.create import create_policy
from hpcdi.types import Array
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.registry import PARALLEL_COLLECTOR_REGISTRY
from hpcdi.worker.collector.base_parallel_collector import (
    BaseParallelCollector,
    CollectorPort,
    CollectorTask,
)
from hpcdi.worker.collector.rollout import RolloutForm, rollout_form
from hpcdi.worker.fault import FAULTS, hang_environment

PROGRESS_S = 0.25
"""How often a collector tells what it has done."""
ROLLOUT_S = 10.0
"""Slow environments: data that have waited so long go, though their piece is not full. An n-step
return ends with its piece, so pieces must not be cut short often."""
KEPT_EPISODES = 1000
"""Of a collect task, which may last for days: rank 0 hears of each episode as it ends."""
LOST_ROLLOUT_S = 10.0
"""On-policy: after so long without a newer policy, the last piece is taken for lost."""
_POLICY_PATIENCE_S = 300.0


@PARALLEL_COLLECTOR_REGISTRY.register("zergling")
class ZerglingParallelCollector(BaseParallelCollector):
    """Steps many environments by one policy, which it renews as it goes.

    Episodes may be of different lengths; inference is one batch for all environments. The
    environments live as long as the collector, so that an episode goes on in the next task.

    Args:
        cfg: settings, with ``env`` and ``policy`` (mappings or frozen settings).
        port: to the message side.
    """

    @dataclass(frozen=True)
    class Config(BaseParallelCollector.Config):
        """Settings of the zergling collector."""

        type: str = "zergling"

    def __init__(self, cfg: Mapping[str, Any], port: CollectorPort | None = None) -> None:
        super().__init__(cfg, port)
        seed: np.random.SeedSequence = self._given.get("seed") or np.random.SeedSequence()
        env_seed, policy_seed = seed.spawn(2)
        mode = "eval" if self.evaluates else "collect"
        policy = create_policy(self._given["policy"], [mode], seed=policy_seed)
        self._policy = getattr(policy, f"{mode}_mode")
        piece = None if self.evaluates else policy.get_attribute("cfg").collect.n_sample
        self._env_manager = create_env_manager(
            self._given["env"], evaluate=self.evaluates, seed=env_seed
        )
        self._env_manager.retires = True
        self._env_manager.launch()
        self._env_num = self._env_manager.env_num
        self._form: RolloutForm = rollout_form(self._env_manager, self._policy, piece)
        self._version = -1
        self._turn: tuple[Any, Any] = (None, None)  # observation and outputs of the present step
        self._told = _Told(time.monotonic())
        self._gate = StalenessGate(policy.get_attribute("cfg"), time.monotonic())

    def begin(self, task: CollectorTask) -> None:
        """Take a task; `start` does it.

        An evaluation begins with fresh episodes; collecting goes on where the last task ended.
        """
        super().begin(task)
        self._told = _Told(time.monotonic())
        if self.evaluates:
            self._env_manager.reset()
            self._policy.reset()
        self._env_manager.restart_count()

    @property
    def policy_version(self) -> int:
        """Train iteration of the acting policy; -1 before there is one."""
        return self._version

    def get_finish_info(self) -> dict[str, Any]:
        """The task's result under the seeds' keys."""
        result = self.result()
        returns, lengths = result.episode_returns, result.episode_lengths
        episodes, steps = self.task.episodes, result.env_steps
        return {
            "eval_flag": result.eval_flag,
            "env_num": self._env_num,
            "duration": result.duration_s,
            "train_iter": result.policy_version,
            "collector_done": self._env_manager is None or self._env_manager.done,
            "real_episode_count": episodes,
            "step_count": steps,
            "sample_count": 0 if result.eval_flag else steps,
            "avg_time_per_episode": result.duration_s / max(episodes, 1),
            "avg_time_per_step": result.duration_s / max(steps, 1),
            "avg_step_per_episode": float(np.mean(lengths)) if episodes else 0.0,
            "reward_mean": float(np.mean(returns)) if episodes else 0.0,
            "reward_std": float(np.std(returns)) if episodes else 0.0,
            "reward_raw": returns.tolist(),
            "finish_time": time.time(),
        }

    def _observe(self) -> Any:
        return self._form.observe()

    def _policy_inference(self, observation: Any) -> Any:
        outputs = self._form.act(observation, self.task.setting)
        self._turn = (observation, outputs)
        self._mark("policy")
        return outputs

    def _env_step(self, outputs: Any) -> Any:
        step = self._form.step(outputs)
        self._mark("env")
        return step

    def _process_timestep(self, timestep: Any) -> None:
        transitions = self._form.record(*self._turn, timestep)
        self.task.env_steps += transitions
        FAULTS.advance(transitions)
        if FAULTS.takes("env_hang"):
            hang_environment(self._env_manager.child_pids)
        if self._form.must_cut:
            self._cut()
            if self.task.lockstep is not None:
                self.stop()
        self._mark("record")

    def _iter_after_hook(self) -> None:
        now = time.monotonic()
        if now - self._told.at >= PROGRESS_S:
            self._tell(now)
        if self.task.lockstep is None and self._gate.rollout_is_old(now):
            self._cut()

    def _finish_task(self) -> None:
        self._cut()
        self._tell(time.monotonic())

    def _cut(self) -> None:
        """Send what was recorded; between pieces is the time to change the policy."""
        self._gate.cut_at = time.monotonic()
        segment = self._form.cut(self._version)
        if segment is not None and self.port is not None:
            self.port.send_stepdata(self.task.task_id, segment)
            self._gate.sent_rollout(self._version)
        if not self.evaluates and self.task.lockstep is None:
            self._update_policy()

    def _tell(self, now: float) -> None:
        """Count the episodes that ended; tell the coordinator what a collect task has done."""
        returns, lengths = self._env_manager.take_episodes()
        self.task.add_episodes(returns, lengths, None if self.evaluates else KEPT_EPISODES)
        if self.port is not None and not self.evaluates:
            steps = self.task.env_steps - self._told.env_steps
            self.port.send_metadata(self._progress(steps, returns, lengths))
        self._told = _Told(now, self.task.env_steps)

    def _progress(self, steps: int, returns: Array, lengths: Array) -> CollectProgress:
        shares = self.port.meter.shares() if self.port is not None else {}
        return CollectProgress(self.task.task_id, steps, returns, lengths, self._version, shares)

    def _update_policy(self) -> None:
        if self.port is not None:
            self._take_policy(self.port)
        self._gate.began_at = time.monotonic()

    def _take_policy(self, port: CollectorPort) -> None:
        deadline, lockstep = time.monotonic() + _POLICY_PATIENCE_S, self.task.lockstep
        newest = self.evaluates or lockstep is not None
        while True:
            info = port.get_policy_update_info(
                self._given.get("policy_update_path", ""), self._version, newest=newest
            )
            if info is not None:
                self._version = int(info["iter"])
                self._policy.load_state_dict({"model": info["model"]})
            may_act = self._version >= 0 and self._gate.may_act(self._version, time.monotonic())
            may_act &= lockstep is None or self._version == lockstep.policy_version
            if may_act or self._end_flag:
                return
            if time.monotonic() > deadline:
                raise CommError(
                    f"no policy has come from the learner within {_POLICY_PATIENCE_S:.0f} s"
                )
            wait_s(0.002)
            self._mark("wait")

    def _mark(self, activity: str) -> None:
        if self.port is not None:
            self.port.meter.mark(activity)


class StalenessGate:
    """When a collector may go on by the same policy: on-policy not before a newer one has come.

    With a staleness bound of S it gives S + 1 pieces by each policy. Where none comes for long, it
    gives one more: a piece may have been lost.

    Args:
        policy: the policy's settings.
        now: when it begins.
    """

    def __init__(self, policy: Any, now: float) -> None:
        self.cut_at = now
        """When a piece was cut at last."""
        self.began_at = now
        """When the next one was begun: later, where a newer policy was waited for."""
        bound = policy.other.replay_buffer.max_staleness
        self._pieces = math.inf
        if policy.on_policy:
            self._pieces = 1 + (bound if math.isfinite(bound) else 0)
        self._given = (-1, 0)  # a version, and how many pieces were made by it

    def rollout_is_old(self, now: float) -> bool:
        """Whether what is recorded should go as it is; on-policy, a batch is of whole pieces."""
        return math.isinf(self._pieces) and now - self.began_at >= ROLLOUT_S

    def sent_rollout(self, version: int) -> None:
        """A piece of a policy has gone."""
        self._given = (version, self._given[1] + 1 if version == self._given[0] else 1)

    def may_act(self, version: int, now: float) -> bool:
        """Whether a policy may act now."""
        given, count = self._given
        return version != given or count < self._pieces or now - self.cut_at >= LOST_ROLLOUT_S


@dataclass(frozen=True)
class _Told:
    """When the coordinator last heard, and how many steps it knows of."""

    at: float
    env_steps: int = 0
