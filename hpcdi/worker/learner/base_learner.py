"""The training loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcdi.config.compat import Configurable, component_class
from hpcdi.config.fields import ComponentConfig, setting
from hpcdi.errors import PolicyError, Problem
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import CountVar, ScalarMonitor
from hpcdi.utils.registry import LEARNER_REGISTRY
from hpcdi.worker.learner import hooks as _builtin  # noqa: F401  (registers the built-in hooks)
from hpcdi.worker.learner.learner_hook import (
    POSITIONS,
    LearnerHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
    hook_problems,
)
from hpcdi.worker.learner.port import LearnerPort


@dataclass
class _LearnerState:
    """What a learner knows of its own progress."""

    last_iter: CountVar = field(default_factory=CountVar)
    monitor: ScalarMonitor = field(default_factory=ScalarMonitor)
    log_buffer: dict[str, Any] = field(default_factory=dict)
    priority_info: dict[str, Any] = field(default_factory=dict)
    collector_envstep: int = 0


@LEARNER_REGISTRY.register("base")
class BaseLearner(Configurable):
    """Lets a policy update from batches, with hooks around.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        policy: a learn mode; may be set later.
        tb_logger: TensorBoard writer; in a parallel run rank 0 has it, not the learner.
        dist_info: rank in the learners' group, and its size.
        exp_name: name of the experiment.
        instance_name: prefix of TensorBoard tags.
        port: to the message side; needed by `start`.
    """

    @dataclass(frozen=True)
    class Config(ComponentConfig):
        """Settings of the training loop."""

        type: str = "base"
        learner_num: int = setting(1, "learner ranks", minimum=1)
        train_iterations: int = setting(int(1e9), "iterations until the run ends", minimum=1)
        send_policy_freq: int = setting(
            1, "iterations between offers of the policy to collectors", minimum=1
        )
        hook: dict[str, Any] = setting({"log_show_after_iter": 100}, "hooks, see learner_hook.py")

        def problems(self) -> Iterator[Problem]:
            """What is wrong with the hooks."""
            return iter(hook_problems(self.hook))

    _cfg: Any

    def __init__(
        self,
        cfg: Any = None,
        policy: Any = None,
        tb_logger: Any = None,
        dist_info: Sequence[int] | None = None,
        exp_name: str = "default_experiment",
        instance_name: str = "learner",
        *,
        port: LearnerPort | None = None,
    ) -> None:
        self._cfg = self.parse_config(cfg)
        rank, world_size = dist_info if dist_info is not None else (0, 1)
        self._identity = (exp_name, instance_name, rank, world_size)
        self._port, self._policy = port, policy
        self._tb_logger = tb_logger
        self._hooks = build_learner_hook_by_cfg(self._cfg.hook)
        self._state = _LearnerState()
        self._dataloader: Iterator[Any] | None = None

    def start(self) -> None:
        """Iterate until all iterations are done or no more data come."""
        if self._dataloader is None:
            self.setup_dataloader()
        self.call_hook("before_run")
        left = max(0, self._cfg.train_iterations - self.train_iter)
        for data in itertools.islice(self._dataloader or (), left):
            self.train(data, getattr(data, "env_steps", -1))
        self.call_hook("after_run")

    def train(
        self, data: Any, envstep: int = -1, policy_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """One iteration.

        Args:
            data: a batch as the policy takes it; its attribute ``unique_ids``, if it has one, names
                the samples for their priorities.
            envstep: environment steps of the run so far; -1: not known.
            policy_kwargs: for the policy's forward.

        Raises:
            PolicyError: there is no policy; or the loss is not finite any more.
        """
        policy = self._the_policy()
        if envstep >= 0:
            self._state.collector_envstep = envstep
        self.call_hook("before_iter")
        outputs = policy.forward(getattr(data, "columns", data), **(policy_kwargs or {}))
        for log_vars in outputs if isinstance(outputs, list) else [outputs]:
            self._take(log_vars, data)
        self._state.last_iter.add(1)
        self.call_hook("after_iter")

    def setup_dataloader(self) -> None:
        """Batches from the message side, one after the other."""
        if self._port is None:
            raise PolicyError("a learner without a port has no data to start with; use train()")
        port, size = self._port, int(self._the_policy().get_attribute("batch_size"))
        self._dataloader = iter(lambda: port.get_data(size), None)

    def close(self) -> None:
        """Nothing is left open; kept for the seeds' callers."""

    def call_hook(self, name: str) -> None:
        """Call the hooks of a position."""
        for hook in self._hooks[name]:
            hook(self)

    def register_hook(self, hook: LearnerHook) -> None:
        """Add a hook."""
        add_learner_hook(self._hooks, hook)

    def offer_policy(self, *, force: bool) -> None:
        """Publish the policy if somebody waits for it, or in any case."""
        if self._port is not None and (force or self._port.wants_policy(self.train_iter)):
            self._port.send_policy(self._policy.state_dict())

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Tell the coordinator."""
        if self._port is not None:
            self._port.send_learn_info(learn_info)

    def _the_policy(self) -> Any:
        if self._policy is None:
            raise PolicyError("the learner has no policy; set `learner.policy` before training")
        return self._policy

    def _take(self, log_vars: Mapping[str, Any], data: Any) -> None:
        loss = log_vars.get("total_loss", 0.0)
        if not math.isfinite(loss):
            raise PolicyError(
                f"total_loss is {loss} in train iteration {self.train_iter + 1}: the network has "
                "diverged and would not recover. Lower policy.learn.learning_rate, or look for "
                "observations or rewards that are not finite"
            )
        priority = log_vars.get("priority")
        unique_ids = getattr(data, "unique_ids", None)
        if priority is not None and unique_ids is not None:
            priority = np.asarray(priority, dtype=np.float64)
            self._state.priority_info = {"unique_ids": unique_ids, "priority": priority}
            data.feedback(priority)
        elif priority is not None and _are_marked(data):
            names = ("replay_unique_id", "replay_buffer_idx")
            info = {name: [item[name] for item in data] for name in names}
            self._state.priority_info = {**info, "priority": list(priority)}
        self._state.monitor.add(log_vars)

    @property
    def learn_info(self) -> dict[str, Any]:
        """``learner_step, priority_info, learner_done`` and the latest averaged scalars."""
        return {
            "learner_step": self.train_iter,
            "priority_info": self.priority_info,
            "learner_done": self.train_iter >= self._cfg.train_iterations,
            "scalars": dict(self.log_buffer),
        }

    @property
    def last_iter(self) -> CountVar:
        """Iterations that are done, as a shared counter."""
        return self._state.last_iter

    @property
    def train_iter(self) -> int:
        """Iterations that are done."""
        return self._state.last_iter.val

    @property
    def rank(self) -> int:
        """Rank in the learners' group."""
        return self._identity[2]

    @property
    def world_size(self) -> int:
        """Size of the learners' group."""
        return self._identity[3]

    @property
    def policy(self) -> Any:
        """The policy's learn mode."""
        return self._policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        self._policy = policy

    @property
    def priority_info(self) -> dict[str, Any]:
        """Ids and priorities of the last batch: what a replay buffer's `update` takes."""
        return self._state.priority_info

    @priority_info.setter
    def priority_info(self, value: dict[str, Any]) -> None:
        self._state.priority_info = value

    @property
    def monitor(self) -> ScalarMonitor:
        """Scalars since the last look."""
        return self._state.monitor

    @property
    def log_buffer(self) -> dict[str, Any]:
        """Latest averaged scalars."""
        return self._state.log_buffer

    @log_buffer.setter
    def log_buffer(self, value: dict[str, Any]) -> None:
        self._state.log_buffer = value

    @property
    def logger(self) -> Any:
        """The rank's log."""
        return LOGGER

    @property
    def tb_logger(self) -> Any:
        """TensorBoard writer, if there is one."""
        return self._tb_logger

    @property
    def exp_name(self) -> str:
        """Name of the experiment."""
        return self._identity[0]

    @property
    def instance_name(self) -> str:
        """Prefix of TensorBoard tags."""
        return self._identity[1]

    @property
    def collector_envstep(self) -> int:
        """Environment steps of the run, as far as this learner knows."""
        return self._state.collector_envstep

    @collector_envstep.setter
    def collector_envstep(self, value: int) -> None:
        self._state.collector_envstep = value

    def info(self, s: str) -> None:
        """Log a line."""
        LOGGER.info(s)

    def debug(self, s: str) -> None:
        """Log a line for developers."""
        LOGGER.debug(s)

    def __repr__(self) -> str:
        counts = {position: len(self._hooks[position]) for position in POSITIONS}
        return f"{type(self).__name__}(iterations={self.train_iter}, hooks={counts})"


def _are_marked(data: Any) -> bool:
    """Whether a batch is a list of items that a replay buffer has drawn."""
    return isinstance(data, list) and bool(data) and "replay_unique_id" in data[0]


def create_learner(cfg: Any, **kwargs: Any) -> BaseLearner:
    """The learner that ``cfg.type`` names; other arguments go to its constructor.

    Raises:
        UnknownTypeError: no learner has that type (it is a KeyError).
    """
    learner: BaseLearner = component_class(LEARNER_REGISTRY, cfg)(cfg, **kwargs)
    return learner
