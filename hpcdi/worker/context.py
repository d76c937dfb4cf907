"""What every worker rank is given by whoever composes the program; how it comes and goes."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpcdi.comm.failure import abort_job
from hpcdi.comm.link import Link
from hpcdi.comm.messages import CollectTask, Goodbye, Leave, StopRequest, WorkerReady
from hpcdi.comm.pump import LinkPump
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import EXIT_FAILED
from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s

COORDINATOR_RANK = 0
ROLES = ("coordinator", "learner", "collector")
_HEADLESS_S = 1.0
_LEAVE_PATIENCE_S = 30.0
"""How much longer than rank 0 waits for the others they wait for it."""


@dataclass(frozen=True)
class WorkerContext:
    """One rank's place in a run.

    Attributes:
        config: the experiment.
        layout: the run folder.
        link: to the other ranks.
        seed: of this rank's random numbers.
        learners: ranks of all learners; first the one that this rank has its policies from.
        group: MPI communicator of the learners; None where there is one learner, or on other roles.
        stop_request: gives, once, what a signal asked for.
        restarts: how often the run has been taken up again.
    """

    config: ExperimentConfig
    layout: RunLayout
    link: Link
    seed: np.random.SeedSequence
    learners: tuple[int, ...]
    group: Any = None
    stop_request: Callable[[], StopRequest | None] = lambda: None
    restarts: int = 0


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


def task_seed(own: np.random.SeedSequence, task: CollectTask) -> np.random.SeedSequence:
    """Seeds of a collector that is made for a task.

    In lock-step they follow from the round; those of an evaluation are the same on every rank.

    Args:
        own: of the rank.
        task: the first one that it does.
    """
    if task.lockstep is None:
        return own.spawn(1)[0]
    of_rank = own.spawn_key[:1] if task.eval_flag else own.spawn_key
    key = (*of_rank, task.lockstep.round, int(task.eval_flag))
    return np.random.SeedSequence(own.entropy, spawn_key=key)


def arrive(pump: LinkPump, role: str, resource: Mapping[str, int]) -> None:
    """Tell rank 0 that this rank is ready for tasks.

    Args:
        pump: to the other ranks.
        role: one of `ROLES`.
        resource: number of ``gpu`` and ``cpu`` that it has.
    """
    ready = WorkerReady(role, platform.node(), os.getpid(), resource["gpu"], resource["cpu"])
    pump.send(COORDINATOR_RANK, ready)


def leave_headless(place: WorkerContext) -> None:
    """Rank 0 has died, and nobody can go on without it: end the job; does not return."""
    if place.link.rank > 1:  # one word is enough
        wait_s(_HEADLESS_S)
    sys.stderr.write("hpcdi: rank 0 (coordinator) has died: killed, or out of memory\n")
    abort_job(EXIT_FAILED)


def depart(place: WorkerContext, pump: LinkPump, report: Mapping[str, Any]) -> int:
    """Say goodbye to rank 0 and wait until everybody may leave; gives the exit code.

    Args:
        place: this rank's place in the run.
        pump: to the other ranks; closed afterwards.
        report: what this rank has done, and where its time went.
    """
    patience_s = place.config.system.coordinator.stop_timeout_s + _LEAVE_PATIENCE_S
    pump.send(COORDINATOR_RANK, Goodbye(dict(report)))
    pump.flush(patience_s)
    leave = pump.wait_for(Leave, patience_s)
    pump.close()
    return leave.exit_code if leave is not None else EXIT_FAILED
