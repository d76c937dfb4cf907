"""Collectors of a parallel run: environments stepped until a task ends.

`BaseParallelCollector` has the template of DI-engine's collectors, `ZerglingParallelCollector`
fills it with the stepping loop: one policy, many environments.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hpcdi.comm.messages import CollectProgress, CollectResult, Message
from hpcdi.config.compat import Configurable, component_class
from hpcdi.config.policy import PolicyConfig
from hpcdi.config.roles import ParallelCollectorConfig, ZerglingCollectorConfig
from hpcdi.env.create import create_env_manager
from hpcdi.errors import CommError
from hpcdi.policy.base import Policy
from hpcdi.policy.create import create_policy
from hpcdi.roles.collector.loop import collect_loop
from hpcdi.roles.fault import FAULTS, hang_environment
from hpcdi.store.builder import Segment
from hpcdi.types import MAIN, Array, Lockstep, Settings
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.registry import PARALLEL_COLLECTOR_REGISTRY
from hpcdi.utils.timer import RoleMeter

PROGRESS_S = 0.25
"""Seconds between two progress reports to the coordinator."""
ROLLOUT_S = 10.0
"""Seconds after which a rollout is sent though it is not full (slow environments). An n-step
return ends with its rollout, so rollouts must not be cut short often."""
KEPT_EPISODES = 1000
"""Episodes that a collect task, which may last for days, keeps: rank 0 is sent each as it ends."""
LOST_ROLLOUT_S = 10.0
"""On-policy: after so long without a newer policy, the last rollout counts as lost."""
_POLICY_PATIENCE_S = 300.0


class CollectorPort(Protocol):
    """The part of the message side that a collector calls."""

    meter: RoleMeter
    """Where the rank's time goes."""

    @property
    def is_paused(self) -> bool:
        """True while collectors are to wait for learners."""
        return False

    @abstractmethod
    def get_policy_update_info(
        self, path: str, have_version: int = -1, *, newest: bool = False
    ) -> dict[str, Any] | None:
        """Returns ``{"model": state dict, "iter": version}`` newer than `have_version`, else None.

        Args:
            path: name of the player whose policy it is.
            have_version: -1: none.
            newest: wait for the learner's current policy; else it never waits.
        """
        ...

    @abstractmethod
    def send_stepdata(self, path: str, stepdata: Segment) -> None:
        """Queue a segment for the learners."""
        ...

    @abstractmethod
    def send_metadata(self, metadata: Message) -> None:
        """Send a message to the coordinator."""
        ...


@dataclass
class CollectorTask:
    """A task, and what was done of it.

    Attributes:
        task_id: name of the task.
        setting: keyword arguments of the policy.
        started: when the task began.
        env_steps: transitions made.
        episodes: episodes that ended.
        returns: of the last episodes that ended, in order; `lengths` are theirs.
        lockstep: the task ends with its first rollout, made by the policy of this version.
        player: the player that acts, and that learns from the data.
    """

    task_id: str = ""
    setting: Settings = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    env_steps: int = 0
    episodes: int = 0
    returns: Array = field(default_factory=lambda: np.zeros(0))
    lengths: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lockstep: Lockstep | None = None
    player: str = MAIN

    def add_episodes(self, returns: Array, lengths: Array, keep: int | None) -> None:
        """Count ended episodes; keep the last `keep` of all (None: all of them)."""
        self.episodes += len(returns)
        if len(returns):
            first = 0 if keep is None else -keep
            self.returns = np.concatenate([self.returns, returns])[first:]
            self.lengths = np.concatenate([self.lengths, lengths])[first:]


class BaseParallelCollector(Configurable, Closing, ABC):
    """Steps environments until they are done or it is stopped.

    A subclass says how, by the methods that `start` calls in turn.

    Args:
        cfg: settings; besides those of `Config` it may hold ``env``, ``policy``,
            ``collect_setting``, ``eval_flag``, ``exp_name`` and ``policy_update_path``, as the
            callers of DI-engine pass them, a ``seed`` (`numpy.random.SeedSequence`), and its
            ``number`` among the collectors, and how many there are.
        port: to the message side.
    """

    Config = ParallelCollectorConfig
    _cfg: ParallelCollectorConfig

    TASK_KEYS = (
        "env", "policy", "collect_setting", "eval_flag", "exp_name", "policy_update_path", "seed",
        "number",
    )  # fmt: skip

    def __init__(self, cfg: Mapping[str, Any], port: CollectorPort | None = None) -> None:
        self._given = {key: cfg[key] for key in self.TASK_KEYS if key in cfg}
        self._cfg = self.parse_config({k: v for k, v in cfg.items() if k not in self.TASK_KEYS})
        self.task = CollectorTask(setting=self._given.get("collect_setting", {}))
        self.port = port
        self._policy: Any = None
        self._env_manager: Any = None
        self._end_flag = False

    def start(self) -> None:
        """Step until the environments are done or `stop` is called."""
        self._update_policy()
        while not self._end_flag and not self._env_manager.done:
            observation = self._observe()
            outputs = self._policy_inference(observation)
            timestep = self._env_step(outputs)
            self._process_timestep(timestep)
            self._iter_after_hook()
        self._finish_task()

    def begin(self, task: CollectorTask) -> None:
        """Set the task that `start` runs, unless `stop` comes first."""
        self.task = task
        self._end_flag = False

    def stop(self) -> None:
        """Let `start` return after its current step; may be called from any thread."""
        self._end_flag = True

    def close(self) -> None:
        """Stop, and close the environments. Idempotent."""
        self.stop()
        if self._env_manager is not None:
            self._env_manager.close()
            self._env_manager = None

    @property
    def evaluates(self) -> bool:
        """True if it acts greedily and keeps nothing."""
        return bool(self._given.get("eval_flag", False))

    @property
    def policy(self) -> Any:
        """The policy's collect or eval mode."""
        return self._policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        self._policy = policy

    @property
    def env_manager(self) -> Any:
        """The environments."""
        return self._env_manager

    @env_manager.setter
    def env_manager(self, manager: Any) -> None:
        self._env_manager = manager

    @property
    def health(self) -> dict[str, int]:
        """See `EnvManager.health`; empty where the environments have none or are closed."""
        counts: dict[str, int] = getattr(self._env_manager, "health", {})
        return counts

    def result(self) -> CollectResult:
        """The task's result, as a message."""
        task = self.task
        return CollectResult(
            task.task_id, self.evaluates, self.policy_version, task.env_steps,
            time.monotonic() - task.started, task.returns, task.lengths,
            self._env_manager is None or self._env_manager.done or not self.evaluates,
            task.player,
        )  # fmt: skip

    @abstractmethod
    def get_finish_info(self) -> dict[str, Any]:
        """The task's result under DI-engine's keys."""

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """Train iteration of the acting policy; -1 before there is one."""

    @abstractmethod
    def _observe(self) -> Any:
        """Observations that the policy acts on."""

    @abstractmethod
    def _policy_inference(self, observation: Any) -> Any:
        """The policy's outputs."""

    @abstractmethod
    def _env_step(self, outputs: Any) -> Any:
        """Step the environments."""

    @abstractmethod
    def _process_timestep(self, timestep: Any) -> None:
        """Record the step."""

    @abstractmethod
    def _update_policy(self) -> None:
        """Load a newer policy if there is one; wait for the first."""

    def _iter_after_hook(self) -> None:
        """Called after each step."""

    def _finish_task(self) -> None:
        """Called after the last step of a task."""

    def info(self, s: str) -> None:
        """Log a line."""
        LOGGER.info(s)

    def debug(self, s: str) -> None:
        """Log a line for developers."""
        LOGGER.debug(s)

    def error(self, s: str) -> None:
        """Log an error."""
        LOGGER.error(s)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(task={self.task.task_id!r}, evaluates={self.evaluates})"


class ZerglingParallelCollector(BaseParallelCollector):
    """Steps many environments by one policy, which it updates between rollouts.

    Episodes may be of different lengths; inference is one batch for all environments. The
    environments live as long as the collector, so that episodes continue in the next task.

    Args:
        cfg: settings, with ``env`` and ``policy`` (mappings or frozen settings).
        port: to the message side.
    """

    Config = ZerglingCollectorConfig
    _cfg: ZerglingCollectorConfig

    def __init__(self, cfg: Mapping[str, Any], port: CollectorPort | None = None) -> None:
        super().__init__(cfg, port)
        seed: np.random.SeedSequence = self._given.get("seed") or np.random.SeedSequence()
        env_seed, policy_seed = seed.spawn(2)
        mode = "eval" if self.evaluates else "collect"
        policy = create_policy(self._given["policy"], [mode], seed=policy_seed)
        if "number" in self._given and isinstance(policy, Policy):  # others do not ask for it
            policy.set_attribute("collector", self._given["number"])
        self._policy = getattr(policy, f"{mode}_mode")
        length = None if self.evaluates else policy.get_attribute("cfg").collect.n_sample
        self._length, self._seed = length, seed
        self._env_manager = create_env_manager(
            self._given["env"], evaluate=self.evaluates, seed=env_seed
        )
        self._env_manager.retires = True
        self._env_manager.launch()
        self._env_num = self._env_manager.env_num
        self._loop: Any = self._make_loop(length, seed)
        self._version = -1
        self._acted: tuple[Any, Any] = (None, None)  # observation and outputs of the current step
        self._reported_at = time.monotonic()
        self._gate = StalenessGate(policy.get_attribute("cfg"), time.monotonic())

    def begin(self, task: CollectorTask) -> None:
        """Set the task that `start` runs.

        An evaluation begins with new episodes; collecting continues where the last task ended.
        """
        super().begin(task)
        self._reported_at = time.monotonic()
        if self.evaluates:
            self._env_manager.reset()
            self._policy.reset()
        self._env_manager.restart_count()

    def _make_loop(self, length: int | None, seed: np.random.SeedSequence) -> Any:  # noqa: ARG002
        """The stepping loop of the policy in the environments; see `collect_loop`."""
        return collect_loop(self._env_manager, self._policy, length)

    def _take_episodes(self) -> tuple[Array, Array]:
        """Returns and lengths of the episodes that ended since the last call."""
        episodes: tuple[Array, Array] = self._env_manager.take_episodes()
        return episodes

    @property
    def policy_version(self) -> int:
        """Train iteration of the acting policy; -1 before there is one."""
        return self._version

    def get_finish_info(self) -> dict[str, Any]:
        """The task's result under DI-engine's keys."""
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
        return self._loop.observe()

    def _policy_inference(self, observation: Any) -> Any:
        outputs = self._loop.act(observation, self.task.setting)
        self._acted = (observation, outputs)
        self._mark("policy")
        return outputs

    def _env_step(self, outputs: Any) -> Any:
        step = self._loop.step(outputs)
        self._mark("env")
        return step

    def _process_timestep(self, timestep: Any) -> None:
        transitions = self._loop.record(*self._acted, timestep)
        self.task.env_steps += transitions
        FAULTS.advance(transitions)
        if FAULTS.requests("env_hang"):
            hang_environment(self._env_manager.child_pids)
        if self._loop.must_cut:
            self._cut()
            if self.task.lockstep is not None:
                self.stop()
        self._mark("record")

    def _iter_after_hook(self) -> None:
        now = time.monotonic()
        if now - self._reported_at >= PROGRESS_S:
            self._report(now)
        if self.task.lockstep is None and self._gate.rollout_is_old(now):
            self._cut()
        if self.port is not None and not self.evaluates and self.port.is_paused:
            self._wait_for_learners(self.port)

    def _wait_for_learners(self, port: CollectorPort) -> None:
        while port.is_paused and not self._end_flag:
            wait_s(0.002)
            self._mark("wait")
            now = time.monotonic()
            if now - self._reported_at >= PROGRESS_S:
                self._report(now)

    def _finish_task(self) -> None:
        self._cut()
        self._report(time.monotonic())

    def _cut(self) -> None:
        """Send the rollout; the policy changes between rollouts only."""
        self._gate.cut_at = time.monotonic()
        segment = self._loop.cut(self._version)
        if segment is not None and self.port is not None:
            self.port.send_stepdata(self.task.task_id, segment)
            self._gate.sent_rollout(self._version)
        if not self.evaluates and self.task.lockstep is None:
            self._update_policy()

    def _report(self, now: float) -> None:
        """Count ended episodes, and report the progress of a collect task to the coordinator."""
        returns, lengths = self._take_episodes()
        self.task.add_episodes(returns, lengths, None if self.evaluates else KEPT_EPISODES)
        if self.port is not None and not self.evaluates:
            shares = self.port.meter.shares()
            task = self.task
            self.port.send_metadata(
                CollectProgress(task.task_id, returns, lengths, self._version, shares, task.player)
            )
        self._reported_at = now

    def _update_policy(self) -> None:
        if self.port is not None:
            self._take_policy(self.port)
        self._gate.began_at = time.monotonic()

    def _take_policy(self, port: CollectorPort) -> None:
        deadline, lockstep = time.monotonic() + _POLICY_PATIENCE_S, self.task.lockstep
        newest = self.evaluates or lockstep is not None
        while True:
            info = port.get_policy_update_info(self.task.player, self._version, newest=newest)
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
    """Decides how often a collector may act by the same policy; on-policy it waits for a newer one.

    With a staleness bound of S each policy makes S + 1 rollouts. Where no newer policy comes for
    long, it makes one more: a rollout may have been lost. An algorithm that corrects for staleness
    never waits.

    Args:
        policy: the policy's settings.
        now: time of the start, seconds.
    """

    def __init__(self, policy: PolicyConfig, now: float) -> None:
        self.cut_at = now
        """When the last rollout was cut."""
        self.began_at = now
        """When the next one began: later, where it waited for a newer policy."""
        self._rollouts = math.inf
        if policy.on_policy and not policy.CORRECTS_STALENESS:
            self._rollouts = 1 + policy.buffer.staleness_bound
        self._sent = (-1, 0)  # a version, and the number of its rollouts

    def rollout_is_old(self, now: float) -> bool:
        """Returns whether to send a rollout that is not full; on-policy, batches are whole."""
        return math.isinf(self._rollouts) and now - self.began_at >= ROLLOUT_S

    def sent_rollout(self, version: int) -> None:
        """Count a rollout of a policy."""
        self._sent = (version, self._sent[1] + 1 if version == self._sent[0] else 1)

    def change_over(self) -> None:
        """Policies are another player's from now on, and so are their versions."""
        self._sent = (-1, 0)

    def may_act(self, version: int, now: float) -> bool:
        """Returns whether a policy may act now."""
        last, count = self._sent
        return version != last or count < self._rollouts or now - self.cut_at >= LOST_ROLLOUT_S


def create_parallel_collector(
    cfg: Mapping[str, Any], port: CollectorPort | None = None
) -> BaseParallelCollector:
    """Make the collector that ``cfg.type`` names.

    Raises:
        UnknownTypeError: no parallel collector has that type.
    """
    collector: BaseParallelCollector = get_parallel_collector_cls(cfg)(cfg, port)
    return collector


def get_parallel_collector_cls(cfg: Mapping[str, Any]) -> Any:
    """The class that ``cfg.type`` names."""
    return component_class(PARALLEL_COLLECTOR_REGISTRY, cfg)
