"""The buffer that DI-engine's ``ding.data`` calls "deque": settings by other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hpcdi.config.fields import setting
from hpcdi.utils.registry import BUFFER_REGISTRY
from hpcdi.worker.replay_buffer.advanced_buffer import AdvancedBufferConfig, AdvancedReplayBuffer
from hpcdi.worker.replay_buffer.base_buffer import Drawn


@dataclass(frozen=True)
class DequeBufferConfig(AdvancedBufferConfig):
    """Settings of the buffer "deque"; `alpha`, `beta` and `anneal_step` follow from them."""

    type: str = "deque"
    replay_buffer_size: int = setting(10_000, "items that it holds", minimum=1)
    train_iter_per_log: int = setting(100, "train iterations between two reports", minimum=1)
    priority: bool = setting(False, "draw by priority; else uniformly, no item twice")
    priority_IS_weight: bool = setting(False, "learn with importance weights")
    priority_power_factor: float = setting(0.6, "0 draws uniformly, 1 by priority", minimum=0)
    IS_weight_power_factor: float = setting(0.4, "importance weights' exponent at the start")
    IS_weight_anneal_train_iter: int = setting(100_000, "draws after which it is 1", minimum=1)
    priority_max_limit: float = setting(1000, "larger priorities count as this one", above=0)

    def __post_init__(self) -> None:
        """Sets what a prioritized buffer calls by other names."""
        object.__setattr__(self, "alpha", self.priority_power_factor)
        object.__setattr__(self, "beta", self.IS_weight_power_factor)
        object.__setattr__(self, "anneal_step", self.IS_weight_anneal_train_iter)


@BUFFER_REGISTRY.register("deque")
class DequeReplayBuffer(AdvancedReplayBuffer):
    """An `AdvancedReplayBuffer`; without `priority` it draws uniformly, no item twice.

    Then items come back as they were pushed, without the keys that a learner of priorities needs.
    """

    Config = DequeBufferConfig
    kind: ClassVar[str] = "deque_buffer"

    def __init__(
        self,
        cfg: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        config = self.parse_config(cfg)
        super().__init__(
            config, tb_logger, exp_name, instance_name, rng=rng, prioritized=config.priority
        )

    def sample(
        self, size: int, cur_learner_iter: int = 0, sample_range: slice | None = None
    ) -> list[dict[str, Any]] | None:
        """See `AdvancedReplayBuffer.sample`."""
        uniformly = None if self._prioritized else slice(None)
        return super().sample(size, cur_learner_iter, sample_range or uniformly)

    def _mark(self, items: list[dict[str, Any]], drawn: Drawn) -> None:
        if self._prioritized:
            super()._mark(items, drawn)

    def update(self, info: Mapping[str, Any]) -> None:
        """Take new priorities; see `AdvancedReplayBuffer.update`."""
        if info:
            limit = self._cfg.priority_max_limit
            super().update({**info, "priority": np.minimum(info["priority"], limit)})
