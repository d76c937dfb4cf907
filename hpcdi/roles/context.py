"""A rank's place in a run, its seeds, and names of tasks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from hpcdi.comm.link import Link
from hpcdi.comm.messages import CollectTask, StopRequest
from hpcdi.comm.pump import LinkPump, Pump
from hpcdi.config.schema import ExperimentConfig, communicator_of
from hpcdi.dataclass import dataclass
from hpcdi.policy.create import create_policy
from hpcdi.store.layout import RunLayout
from hpcdi.transport import open_transport
from hpcdi.transport.base import Transport
from hpcdi.types import FIRST_GUEST, MAIN, is_guest

COORDINATOR_RANK = 0
HEARTBEAT_S = 5.0
"""From one heartbeat to the next, of all ranks."""
OWN_END_S = 15.0
"""A rank that hangs ends itself; others act only so much later, where that fails."""
POLICY_S = 60.0
"""Seconds for a learner that has just made progress to send its policy."""
POLICY_PATIENCE_S = 300.0
"""Seconds in which a policy must come to a collector; more where an update may take longer."""
MakePolicy = Callable[..., Any]
"""Makes a policy; its arguments are those of `hpcdi.policy.create.create_policy`."""
_uids = itertools.count()
ROLES = ("coordinator", "learner", "collector")


@dataclass(frozen=True)
class WorkerContext:
    """One rank's place in a run.

    Attributes:
        config: the experiment.
        layout: the run folder.
        link: to the other ranks.
        seed: of this rank's random numbers.
        groups: ranks of each group of learners, the main one first; of each group first the one
            that this rank gets its policies from.
        communicators: MPI communicators that this rank is a member of, by name.
        stop_request: returns what a signal asked for, once.
        restarts: how often the run has been resumed.
        make_policy: makes policies that act by columns and learn from them.
        transport: of this rank, or of all ranks of a process; None: files.
        make_pump: makes what carries the rank's messages, see `LinkPump`.
        in_turns: collecting and learning take turns, in one process.
        relay: the collector that this one gets its policies from; None: it asks the learners.
    """

    config: ExperimentConfig
    layout: RunLayout
    link: Link
    seed: np.random.SeedSequence
    groups: Mapping[str, tuple[int, ...]]
    communicators: Mapping[str, Any] = field(default_factory=dict)
    stop_request: Callable[[], StopRequest | None] = lambda: None
    restarts: int = 0
    make_policy: MakePolicy = create_policy
    transport: Transport | None = None
    make_pump: Callable[..., Pump] = LinkPump
    in_turns: bool = False
    relay: int | None = None

    def open_transport(self) -> Transport:
        """Returns this rank's end of the transport of blocks."""
        return self.transport or open_transport(self.config.system, self.layout, lends=False)

    @property
    def learners(self) -> tuple[int, ...]:
        """Ranks of all learners."""
        return tuple(rank for ranks in self.groups.values() for rank in ranks)

    @property
    def collector_number(self) -> tuple[int, int]:
        """Number of this collector, from 0, and how many ranks collect; a guest has one of theirs.

        It decides which environments it has, and how much it explores.
        """
        others = {COORDINATOR_RANK, *self.learners}
        ranks = [rank for rank in range(self.link.size) if rank not in others]
        rank = self.link.rank
        number = (rank - FIRST_GUEST) % len(ranks) if is_guest(rank) else ranks.index(rank)
        return number, len(ranks)

    @property
    def group(self) -> str:
        """Name of the group that a learner is a member of."""
        return next((name for name, r in self.groups.items() if self.link.rank in r), MAIN)

    @property
    def agent(self) -> int:
        """Number of that group, from 0; it names files."""
        return list(self.groups).index(self.group)

    @property
    def policy_patience_s(self) -> float:
        """Seconds that a collector waits for a policy: a learner that hangs was killed before.

        Policies also come late where other collectors are slow, so a short time-out does not count.
        """
        limit_s = self.config.system.survival.worker_timeout_s
        return max(limit_s + POLICY_S, POLICY_PATIENCE_S)

    @property
    def learner_name(self) -> str:
        """What tags and files of a group's learner begin with: ``learner``, ``bot_learner``."""
        return "learner" if self.group == MAIN else f"{self.group}_learner"

    @property
    def learners_comm(self) -> Any:
        """Communicator of a group's learners; None where it has one, or on other roles."""
        return self.communicators.get(communicator_of(self.group))


def role_seed(seed: int, role: str, rank: int, restart: int = 0) -> np.random.SeedSequence:
    """Seeds of one rank, independent of all other ranks' seeds.

    Args:
        seed: of the experiment.
        role: one of `ROLES`.
        rank: in the world.
        restart: how often the run has been resumed.
    """
    return np.random.SeedSequence(seed, spawn_key=(ROLES.index(role), rank, restart))


def seed_at_start(rank_seed: np.random.SeedSequence) -> np.random.SeedSequence:
    """Returns the seeds that a rank had before the run was ever resumed.

    Args:
        rank_seed: of the rank, see `role_seed`.
    """
    return np.random.SeedSequence(rank_seed.entropy, spawn_key=(*rank_seed.spawn_key[:2], 0))


def task_seed(rank_seed: np.random.SeedSequence, task: CollectTask) -> np.random.SeedSequence:
    """Seeds of a collector that is made for a task.

    Where collecting and learning take turns, they depend on the round; those of an evaluation are
    the same on every rank.

    Args:
        rank_seed: of the rank; in a deterministic run that which it had at the first start.
        task: its first one.
    """
    if task.lockstep is None:
        return rank_seed.spawn(1)[0]
    spawn_key, start = rank_seed.spawn_key, task.lockstep.start
    place = spawn_key[:1] if task.eval_flag else spawn_key
    key = (*place, *[start] * (start > 0), task.lockstep.round, int(task.eval_flag))
    return np.random.SeedSequence(rank_seed.entropy, spawn_key=key)


def get_task_uid() -> str:
    """Returns a name that is unique in this process: process id and a counter.

    Ranks on different hosts may share a process id: names for the whole run come from rank 0 only.
    """
    return f"{os.getpid():d}_{next(_uids):d}"
