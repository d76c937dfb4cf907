"""What rank 0 counts, and how long it waits."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Counters:
    """What the whole run has done so far."""

    env_steps: int = 0
    train_iter: int = 0
    episodes: int = 0
    priorities_stale: int = 0
    """New priorities that came when their items had gone."""
    rounds: int = 0
    """That are done, in a deterministic run; the next two are of such a run, too."""
    evaluated_at: int = 0
    """Train iteration of the last evaluation."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    start_s: float = 300.0
    stop_s: float = 20.0
    collector_task_s: float = 30.0
    learner_task_s: float = 600.0
    silence_s: float = math.inf
    """A worker with a task that says nothing for longer ends the run."""
    rest_s: float = 300.0
    """A collector whose environments have all failed makes them anew after so long."""
