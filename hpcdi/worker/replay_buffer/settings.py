"""Settings of the replay buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcdi.config.fields import ComponentConfig, section, setting
from hpcdi.errors import Problem


@dataclass(frozen=True)
class BufferConfig(ComponentConfig):
    """Settings that all buffers share."""

    replay_buffer_size: int = setting(10_000, "items that it holds", minimum=1)
    deepcopy: bool = setting(False, "copy objects deeply as they come and go (columns always are)")
    enable_track_used_data: bool = setting(
        False, "say which data files (data_id) no item refers to any more"
    )
    frames: tuple[str, ...] = setting(
        (), "columns that stack frames, e.g. [obs, next_obs]: each frame is stored once"
    )

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        if len(self.frames) > 2 or len(set(self.frames)) < len(self.frames):
            yield Problem("frames", "one or two columns, an observation and the next one")


@dataclass(frozen=True)
class NaiveBufferConfig(BufferConfig):
    """Settings of the uniform replay buffer."""

    type: str = "naive"
    periodic_thruput_seconds: float = setting(
        60, "seconds between two reports of its traffic", above=0
    )


@dataclass(frozen=True)
class SequenceBufferConfig(NaiveBufferConfig):
    """Settings of the buffer of sequences."""

    type: str = "sequence"


@dataclass(frozen=True)
class EpisodeBufferConfig(NaiveBufferConfig):
    """Settings of the buffer of episodes; an item is an episode."""

    type: str = "episode"


@dataclass(frozen=True)
class ElasticBufferConfig(NaiveBufferConfig):
    """Settings of the buffer whose size follows the run."""

    type: str = "elastic"
    set_buffer_size: Any = setting(
        None, "environment steps -> items that it holds then; a function, not for YAML"
    )


@dataclass(frozen=True)
class RateLimitConfig:
    """Items pushed for one that is drawn."""

    max: float = setting(float("inf"), "above it, pushing waits", above=0)
    min: float = setting(0.0, "below it, drawing waits", minimum=0)


@dataclass(frozen=True)
class ThruputControllerConfig:
    """When drawing, or pushing, has to wait."""

    push_sample_rate_limit: RateLimitConfig = section(
        RateLimitConfig, "items pushed for one that is drawn, over the window"
    )
    window_seconds: float = setting(30, "seconds that the rate looks back", above=0)
    sample_min_limit_ratio: float = setting(
        1.0, "items held for one that is drawn at once", minimum=0
    )


@dataclass(frozen=True)
class SampledDataConfig:
    """What is reported of drawn items."""

    average_range: int = setting(5, "draws that a report is the mean of", minimum=1)
    print_freq: int = setting(200, "draws between two reports", minimum=1)


@dataclass(frozen=True)
class PeriodicThruputConfig:
    """What is reported of the buffer's traffic."""

    seconds: float = setting(60, "seconds between two reports", above=0)


@dataclass(frozen=True)
class MonitorConfig:
    """What is reported."""

    sampled_data_attr: SampledDataConfig = section(SampledDataConfig, "of drawn items")
    periodic_thruput: PeriodicThruputConfig = section(PeriodicThruputConfig, "of the traffic")


@dataclass(frozen=True)
class AdvancedBufferConfig(BufferConfig):
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
    thruput_controller: ThruputControllerConfig = section(
        ThruputControllerConfig, "when drawing, or pushing, has to wait"
    )
    monitor: MonitorConfig = section(MonitorConfig, "what is reported")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from super().problems()
        if self.min_fill > self.replay_buffer_size:
            yield Problem("min_fill", f"is above replay_buffer_size ({self.replay_buffer_size})")
        limit = self.thruput_controller.push_sample_rate_limit
        if limit.min > limit.max:
            yield Problem(
                "thruput_controller.push_sample_rate_limit.min", f"is above max ({limit.max:g})"
            )
