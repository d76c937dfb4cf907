"""A rank's place in a run, and how a worker announces itself and shuts down."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
_FIRST_WORD_S = 1.0
_LEAVE_TIMEOUT_S = 30.0
"""The workers wait for rank 0 so much longer than it waits for them."""


@dataclass(frozen=True)
class WorkerContext:
    """One rank's place in a run.

    Attributes:
        config: the experiment.
        layout: the run folder.
        link: to the other ranks.
        seed: of this rank's random numbers.
        learners: ranks of all learners; first the one that this rank gets its policies from.
        groups: MPI communicators of the groups of ranks that this one is a member of, by name.
        stop_request: returns what a signal asked for, once.
        restarts: how often the run has been resumed.
    """

    config: ExperimentConfig
    layout: RunLayout
    link: Link
    seed: np.random.SeedSequence
    learners: tuple[int, ...]
    groups: Mapping[str, Any] = field(default_factory=dict)
    stop_request: Callable[[], StopRequest | None] = lambda: None
    restarts: int = 0

    @property
    def learners_comm(self) -> Any:
        """Communicator of the learners; None where there is one learner, or on other roles."""
        return self.groups.get("learners")


class Worker(Protocol):
    """A rank that is not the coordinator."""

    pump: LinkPump
    exit_code: int
    """Of the process, after `run`."""

    def run(self) -> None:
        """Do the role's work until the run ends and rank 0 lets everybody exit."""
        ...


def role_seed(seed: int, role: str, rank: int, restart: int = 0) -> np.random.SeedSequence:
    """Seeds of one rank, independent of all other ranks' seeds.

    Args:
        seed: of the experiment.
        role: one of `ROLES`.
        rank: in the world.
        restart: how often the run has been resumed.
    """
    return np.random.SeedSequence(seed, spawn_key=(ROLES.index(role), rank, restart))


def task_seed(own: np.random.SeedSequence, task: CollectTask) -> np.random.SeedSequence:
    """Seeds of a collector that is made for a task.

    In a deterministic run they depend on the round; those of an evaluation are the same on every
    rank.

    Args:
        own: of the rank.
        task: its first one.
    """
    if task.lockstep is None:
        return own.spawn(1)[0]
    of_rank = own.spawn_key[:1] if task.eval_flag else own.spawn_key
    key = (*of_rank, task.lockstep.round, int(task.eval_flag))
    return np.random.SeedSequence(own.entropy, spawn_key=key)


def announce(pump: LinkPump, role: str, resource: Mapping[str, int]) -> None:
    """Tell rank 0 that this rank is ready for tasks.

    Args:
        pump: to the other ranks.
        role: one of `ROLES`.
        resource: number of its devices, ``gpu`` and ``cpu``.
    """
    ready = WorkerReady(role, platform.node(), os.getpid(), resource["gpu"], resource["cpu"])
    pump.send(COORDINATOR_RANK, ready)


def abort_orphaned(context: WorkerContext) -> None:
    """End the job because rank 0 has died; does not return."""
    if context.link.rank > 1:  # rank 1 says so, for all
        wait_s(_FIRST_WORD_S)
    sys.stderr.write("hpcdi: rank 0 (coordinator) has died: killed, or out of memory\n")
    abort_job(EXIT_FAILED)


def shutdown(context: WorkerContext, pump: LinkPump, report: Mapping[str, Any]) -> int:
    """Send `Goodbye` and wait until rank 0 lets everybody exit; returns the exit code.

    Args:
        context: this rank's place in the run.
        pump: to the other ranks; closed afterwards.
        report: counters and shares of time, see `Goodbye`.
    """
    timeout_s = context.config.system.coordinator.stop_timeout_s + _LEAVE_TIMEOUT_S
    pump.send(COORDINATOR_RANK, Goodbye(dict(report)))
    pump.flush(timeout_s)
    leave = pump.wait_for(Leave, timeout_s)
    pump.close()
    return leave.exit_code if leave is not None else EXIT_FAILED
