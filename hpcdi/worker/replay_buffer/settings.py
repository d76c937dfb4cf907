"""Settings of the replay buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcdi.config.fields import ComponentConfig, setting
from hpcdi.errors import Problem


@dataclass(frozen=True)
class AdvancedBufferConfig(ComponentConfig):
    """Settings of the prioritized replay buffer."""

    type: str = "advanced"
    replay_buffer_size: int = setting(4096, "items that it holds", minimum=1)
    min_fill: int = setting(1, "items that it must hold before anything is drawn", minimum=1)
    max_use: float = setting(
        float("inf"), "draws after which an item goes, seen once a request", minimum=1
    )
    max_staleness: float = setting(
        float("inf"), "train iterations after which an item goes", minimum=0
    )
    alpha: float = setting(0.6, "0 draws uniformly, 1 by priority", minimum=0, maximum=1)
    beta: float = setting(0.4, "importance weights' exponent at the start", minimum=0, maximum=1)
    anneal_step: int = setting(100_000, "draws after which beta is 1", minimum=1)

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        if self.min_fill > self.replay_buffer_size:
            yield Problem("min_fill", f"is above replay_buffer_size ({self.replay_buffer_size})")
