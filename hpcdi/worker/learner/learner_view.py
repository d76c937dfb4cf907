"""What is known of a learner: who it is, how far, what it said last."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import CountVar, ScalarMonitor


@dataclass(frozen=True)
class LearnerIdentity:
    """Who a learner is.

    Attributes:
        exp_name: name of the experiment.
        instance_name: prefix of TensorBoard tags.
        rank: in the learners' group.
        world_size: of that group.
        ckpt_dir: folder of its checkpoints.
    """

    exp_name: str
    instance_name: str
    rank: int
    world_size: int
    ckpt_dir: Path


@dataclass
class LearnerState:
    """What a learner knows of its own progress."""

    last_iter: CountVar = field(default_factory=CountVar)
    monitor: ScalarMonitor | None = None
    log_buffer: dict[str, Any] = field(default_factory=dict)
    priority_info: dict[str, Any] = field(default_factory=dict)
    collector_envstep: int = 0
    ckpt_name: str | None = None


class LearnerView:
    """The properties of a learner."""

    _identity: LearnerIdentity
    _state: LearnerState
    _policy: Any
    _tb_logger: Any

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
        return self._identity.rank

    @property
    def world_size(self) -> int:
        """Size of the learners' group."""
        return self._identity.world_size

    @property
    def policy(self) -> Any:
        """The policy's learn mode."""
        return self._policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        self._policy = policy

    @property
    def priority_info(self) -> dict[str, Any]:
        """Ids and priorities of the last batch: what a replay buffer's `update` takes.

        Empty where the policy gave none; with several tasks, such a mapping for each.
        """
        return self._state.priority_info

    @priority_info.setter
    def priority_info(self, value: dict[str, Any]) -> None:
        self._state.priority_info = value

    @property
    def monitor(self) -> ScalarMonitor | None:
        """Scalars since the last look; None on a learner that keeps no log."""
        return self._state.monitor

    @property
    def log_buffer(self) -> dict[str, Any]:
        """Latest averaged scalars; a chart's are called chart/curve."""
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
    def ckpt_dir(self) -> Path:
        """Folder of its checkpoints."""
        return self._identity.ckpt_dir

    @property
    def ckpt_name(self) -> str | None:
        """Name of checkpoints that are given none; None: by the iteration."""
        return self._state.ckpt_name

    @ckpt_name.setter
    def ckpt_name(self, value: str | None) -> None:
        self._state.ckpt_name = value

    @property
    def exp_name(self) -> str:
        """Name of the experiment."""
        return self._identity.exp_name

    @property
    def instance_name(self) -> str:
        """Prefix of TensorBoard tags."""
        return self._identity.instance_name

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
