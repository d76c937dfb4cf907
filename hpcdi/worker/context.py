"""What every worker rank is given by whoever composes the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpcdi.comm.link import Link
from hpcdi.comm.messages import StopRequest
from hpcdi.comm.pump import LinkPump
from hpcdi.config.schema import ExperimentConfig
from hpcdi.store.layout import RunLayout

ROLES = ("coordinator", "learner", "collector")


@dataclass(frozen=True)
class WorkerContext:
    """One rank's place in a run.

    Attributes:
        config: the experiment.
        layout: the run folder.
        link: to the other ranks.
        seed: of this rank's random numbers.
        learner_rank: the learner that a collector gets its policies from; a learner's own rank.
        group: MPI communicator of the learners; None where there is one learner, or on other roles.
        stop_request: gives, once, what a signal asked for.
    """

    config: ExperimentConfig
    layout: RunLayout
    link: Link
    seed: np.random.SeedSequence
    learner_rank: int
    group: Any = None
    stop_request: Callable[[], StopRequest | None] = lambda: None


class Worker(Protocol):
    """A rank that is not the coordinator."""

    pump: LinkPump
    exit_code: int
    """What the process returns when it has left."""

    def run(self) -> None:
        """Play the role until the run ends and everybody may leave."""
        ...


def role_seed(seed: int, role: str, rank: int, restart: int = 0) -> np.random.SeedSequence:
    """Seeds of one rank, independent of all others' by construction.

    Args:
        seed: of the experiment.
        role: one of `ROLES`.
        rank: in the world.
        restart: how often the run has been resumed.
    """
    return np.random.SeedSequence(seed, spawn_key=(ROLES.index(role), rank, restart))
