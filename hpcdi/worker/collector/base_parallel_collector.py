"""The loop of a collector in a parallel run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hpcdi.comm.messages import CollectResult, Message
from hpcdi.config.compat import Configurable, component_class
from hpcdi.config.fields import ComponentConfig, setting
from hpcdi.errors import Problem
from hpcdi.store.builder import Segment
from hpcdi.types import Array, Lockstep, Settings
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.registry import PARALLEL_COLLECTOR_REGISTRY
from hpcdi.utils.timer import RoleMeter


class CollectorPort(Protocol):
    """What a collector may ask of the message side."""

    @property
    def meter(self) -> RoleMeter:
        """Where the rank's time goes."""
        ...

    def get_policy_update_info(
        self, path: str, have_version: int = -1, *, newest: bool = False
    ) -> dict[str, Any] | None:
        """``{"model": state dict, "iter": version}`` of a policy newer than `have_version`.

        None where there is none; it never waits, unless `newest` asks for the learner's present
        policy.
        """
        ...

    def send_stepdata(self, path: str, stepdata: Segment) -> None:
        """Take a segment on its way to a learner."""
        ...

    def send_metadata(self, metadata: Message) -> None:
        """Tell the coordinator."""
        ...


@dataclass
class CollectorTask:
    """What a collector has been told to do, and what it has done of it.

    Attributes:
        task_id: name of the task.
        setting: keyword arguments of the policy.
        started: when the task began.
        env_steps: transitions made.
        episodes: that ended.
        returns: of the last ones that ended, in order; `lengths` are theirs.
        lockstep: it ends with its first piece, which the policy of this version makes.
    """

    task_id: str = ""
    setting: Settings = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    env_steps: int = 0
    episodes: int = 0
    returns: Array = field(default_factory=lambda: np.zeros(0))
    lengths: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lockstep: Lockstep | None = None

    def add_episodes(self, returns: Array, lengths: Array, keep: int | None) -> None:
        """Count episodes that have ended; keep the last `keep` of all, or all of them."""
        self.episodes += len(returns)
        if len(returns):
            first = 0 if keep is None else -keep
            self.returns = np.concatenate([self.returns, returns])[first:]
            self.lengths = np.concatenate([self.lengths, lengths])[first:]


class BaseParallelCollector(Configurable, Closing, ABC):
    """Steps environments until they are done, or until it is closed.

    Args:
        cfg: settings; besides those of `Config` it may hold ``env``, ``policy``,
            ``collect_setting``, ``eval_flag``, ``exp_name`` and ``policy_update_path``, as the
            seeds' callers give them, and a ``seed`` (`numpy.random.SeedSequence`).
        port: to the message side.
    """

    @dataclass(frozen=True)
    class Config(ComponentConfig):
        """Settings that every parallel collector has."""

        collector_num: int = setting(2, "collectors that `hpcdi train` starts", minimum=1)
        collector_max: int | None = setting(
            None,
            "collector ranks it starts, where collector_num is how many of them work at first: "
            "the others wait until one is lost, or until `hpcdi scale` wants more; empty: none",
            minimum=1,
        )
        update_policy_second: float = setting(
            3.0, "seconds between updates of the acting policy", minimum=0
        )

        def problems(self) -> Iterator[Problem]:
            """Whether so many can wait."""
            if self.collector_max is not None and self.collector_max < self.collector_num:
                said = f"must be at least collector_num, {self.collector_num}, or empty"
                yield Problem("collector_max", f"{said}, not {self.collector_max}")

    TASK_KEYS = (
        "env", "policy", "collect_setting", "eval_flag", "exp_name", "policy_update_path", "seed",
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
        """Step until the environments are done or `stop` is called; takes as long as that does."""
        self._update_policy()
        while not self._end_flag and not self._env_manager.done:
            observation = self._observe()
            outputs = self._policy_inference(observation)
            timestep = self._env_step(outputs)
            self._process_timestep(timestep)
            self._iter_after_hook()
        self._finish_task()

    def begin(self, task: CollectorTask) -> None:
        """Take a task; `start` does it, unless `stop` comes first."""
        self.task = task
        self._end_flag = False

    def stop(self) -> None:
        """Let `start` return after its present step; may be called from any thread."""
        self._end_flag = True

    def close(self) -> None:
        """Stop, and close the environments; again: nothing."""
        self.stop()
        if self._env_manager is not None:
            self._env_manager.close()
            self._env_manager = None

    @property
    def evaluates(self) -> bool:
        """Whether it acts greedily and keeps nothing."""
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
        """See `EnvManager.health`; empty where the environments do not tell or are closed."""
        told: dict[str, int] = getattr(self._env_manager, "health", {})
        return told

    def result(self) -> CollectResult:
        """The task's result, as a message."""
        task = self.task
        return CollectResult(
            task.task_id, self.evaluates, self.policy_version, task.env_steps,
            time.monotonic() - task.started, task.returns, task.lengths,
            self._env_manager is None or self._env_manager.done or not self.evaluates,
        )  # fmt: skip

    @abstractmethod
    def get_finish_info(self) -> dict[str, Any]:
        """The task's result under the seeds' keys."""

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """Train iteration of the acting policy; -1 before there is one."""

    @abstractmethod
    def _observe(self) -> Any:
        """What the policy acts on."""

    @abstractmethod
    def _policy_inference(self, observation: Any) -> Any:
        """The policy's outputs."""

    @abstractmethod
    def _env_step(self, outputs: Any) -> Any:
        """Step the environments."""

    @abstractmethod
    def _process_timestep(self, timestep: Any) -> None:
        """Keep what came of it."""

    @abstractmethod
    def _update_policy(self) -> None:
        """Take a newer policy, if one has come; before the first one: wait for it."""

    def _iter_after_hook(self) -> None:
        """After each step."""

    def _finish_task(self) -> None:
        """After the last step of a task."""

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


def create_parallel_collector(
    cfg: Mapping[str, Any], port: CollectorPort | None = None
) -> BaseParallelCollector:
    """The collector that ``cfg.type`` names.

    Raises:
        UnknownTypeError: no parallel collector has that type.
    """
    collector: BaseParallelCollector = get_parallel_collector_cls(cfg)(cfg, port)
    return collector


def get_parallel_collector_cls(cfg: Mapping[str, Any]) -> Any:
    """The class that ``cfg.type`` names."""
    return component_class(PARALLEL_COLLECTOR_REGISTRY, cfg)
