"""The uniform replay buffer whose size follows the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hpcdi.config.fields import setting
from hpcdi.errors import BufferContractError
from hpcdi.utils.registry import BUFFER_REGISTRY
from hpcdi.worker.replay_buffer.naive_buffer import NaiveBufferConfig, NaiveReplayBuffer


@dataclass(frozen=True)
class ElasticBufferConfig(NaiveBufferConfig):
    """Settings of the buffer whose size follows the run."""

    type: str = "elastic"
    set_buffer_size: Any = setting(
        None, "environment steps -> items that it holds then; a function, not for YAML"
    )


@BUFFER_REGISTRY.register("elastic")
class ElasticReplayBuffer(NaiveReplayBuffer):
    """Draws among the newest ``set_buffer_size(env steps)`` items, at most `replay_buffer_size`.

    See `RingBuffer` for the arguments. As the size grows again, older items come back.
    """

    Config = ElasticBufferConfig
    kind: ClassVar[str] = "elastic_buffer"

    def __init__(
        self,
        cfg: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(cfg, tb_logger, exp_name, instance_name, rng=rng)
        if not callable(self._cfg.set_buffer_size):
            raise BufferContractError(
                f"{exp_name}/{instance_name}: set_buffer_size must be a function of the "
                "environment steps that returns a number of items"
            )
        self.update(0)

    def update(self, envstep: int) -> None:  # type: ignore[override]
        """Take the size for this number of environment steps.

        Raises:
            BufferContractError: `set_buffer_size` returns no number.
        """
        with self._lock:
            size = self._cfg.set_buffer_size(envstep)
            try:
                self._window = max(1, int(min(size, self.replay_buffer_size)))
            except (TypeError, ValueError) as error:
                raise BufferContractError(
                    f"set_buffer_size({envstep}) returns {size!r}, not a number of items"
                ) from error

    def count(self) -> int:
        """Items that can be drawn."""
        return min(len(self._ring), self._window)

    def _state(self, shared: bool = False) -> dict[str, Any]:
        return super()._state(shared) | {"window": self._window}

    def _restore(self, state: Mapping[str, Any], shared: bool = False) -> None:
        super()._restore(state, shared)
        self._window = int(state["window"])
