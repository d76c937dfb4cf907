"""Settings of replay buffers: `policy.other.replay_buffer` in an experiment."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpcdi.config.fields import ComponentConfig, section, setting
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem


@dataclass(frozen=True)
class RateLimitConfig:
    """Limits to the items pushed for one that is drawn."""

    max: float = setting(float("inf"), "above it, pushing waits", above=0)
    min: float = setting(0.0, "below it, drawing waits", minimum=0)

    @property
    def is_set(self) -> bool:
        """True if anything has to wait."""
        return self.max < math.inf or self.min > 0


@dataclass(frozen=True)
class ThruputControllerConfig:
    """Settings of waits: drawing or pushing waits until the rates fit."""

    push_sample_rate_limit: RateLimitConfig = section(
        RateLimitConfig, "items pushed for one that is drawn, over the window"
    )
    window_seconds: float = setting(30.0, "seconds that the rate looks back", above=0)
    sample_min_limit_ratio: float = setting(
        1.0, "items held for one that is drawn at once", minimum=0
    )


@dataclass(frozen=True)
class SampledDataConfig:
    """Settings of the reports of drawn items."""

    average_range: int = setting(5, "draws that a report is the mean of", minimum=1)
    print_freq: int = setting(200, "draws between two reports", minimum=1)


@dataclass(frozen=True)
class PeriodicThruputConfig:
    """Settings of the reports of traffic."""

    seconds: float = setting(60.0, "seconds between two reports", above=0)


@dataclass(frozen=True)
class MonitorConfig:
    """Settings of the reports."""

    sampled_data_attr: SampledDataConfig = section(SampledDataConfig, "of drawn items")
    periodic_thruput: PeriodicThruputConfig = section(PeriodicThruputConfig, "of the traffic")


@dataclass(frozen=True)
class BufferConfig(ComponentConfig):
    """Settings that all buffers share."""

    replay_buffer_size: int = setting(10_000, "items that it holds", minimum=1)
    deepcopy: bool = setting(False, "copy objects deeply as they come and go (columns always are)")
    enable_track_used_data: bool = setting(
        False, "track which data files (data_id) no item refers to any more"
    )
    frames: tuple[str, ...] = setting(
        (), "columns that stack frames, e.g. [observation]: each frame is stored once"
    )

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        if len(self.frames) > 2 or len(set(self.frames)) < len(self.frames):
            yield Problem("frames", "one or two columns, an observation and the next one")


@dataclass(frozen=True)
class AdvancedBufferConfig(BufferConfig):
    """Settings of the prioritized replay buffer."""

    type: str = "advanced"
    replay_buffer_size: int = setting(4096, "items that it holds", minimum=1)
    min_fill: int = setting(1, "items that it must hold before anything is drawn", minimum=1)
    max_use: float = setting(
        float("inf"), "draws after which an item is dropped, checked once a request", minimum=1
    )
    max_staleness: float = setting(
        float("inf"),
        "train iterations by which what is learnt from may be older; then it is dropped",
        minimum=0,
    )
    alpha: float = setting(0.6, "0 draws uniformly, 1 by priority", minimum=0, maximum=1)
    beta: float = setting(0.4, "importance weights' exponent at the start", minimum=0, maximum=1)
    anneal_step: int = setting(100_000, "draws after which beta is 1; 0: it stays", minimum=0)
    thruput_controller: ThruputControllerConfig = section(
        ThruputControllerConfig, "when drawing, or pushing, has to wait"
    )
    monitor: MonitorConfig = section(MonitorConfig, "what is reported")

    @property
    def staleness_bound(self) -> int:
        """Train iterations by which on-policy data may be older than the learner's policy."""
        return int(self.max_staleness) if math.isfinite(self.max_staleness) else 0

    def exponents(self) -> tuple[float, float, int]:
        """Of priorities, of importance weights at the start, and after how many draws that is 1."""
        return self.alpha, self.beta, self.anneal_step

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from BufferConfig.problems(self)
        if self.min_fill > self.replay_buffer_size:
            yield Problem("min_fill", f"is above replay_buffer_size ({self.replay_buffer_size})")
        limit = self.thruput_controller.push_sample_rate_limit
        if limit.min > limit.max:
            yield Problem(
                "thruput_controller.push_sample_rate_limit.min", f"is above max ({limit.max:g})"
            )


@dataclass(frozen=True)
class DequeBufferConfig(AdvancedBufferConfig):
    """Settings of the buffer "deque", which has other names for `alpha, beta, anneal_step`."""

    type: str = "deque"
    replay_buffer_size: int = setting(10_000, "items that it holds", minimum=1)
    train_iter_per_log: int = setting(100, "without effect: see monitor", minimum=1)
    priority: bool = setting(False, "draw by priority; else uniformly, no item twice")
    priority_IS_weight: bool = setting(False, "learn with importance weights")
    priority_power_factor: float = setting(0.6, "0 draws uniformly, 1 by priority", minimum=0)
    IS_weight_power_factor: float = setting(0.4, "importance weights' exponent at the start")
    IS_weight_anneal_train_iter: int = setting(
        100_000, "draws after which it is 1; 0: it stays", minimum=0
    )
    priority_max_limit: float = setting(1000.0, "larger priorities count as this one", above=0)

    def exponents(self) -> tuple[float, float, int]:
        """See `AdvancedBufferConfig.exponents`."""
        return (
            self.priority_power_factor,
            self.IS_weight_power_factor,
            self.IS_weight_anneal_train_iter,
        )
