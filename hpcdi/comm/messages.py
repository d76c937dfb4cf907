"""All messages of a run: frozen dataclasses, matched by class.

Who sends which::

    collector ──► coordinator   WorkerReady BlockReady BlockStored CollectProgress CollectResult
                                TaskReturned
    learner   ──► coordinator   WorkerReady BlockAdmitted DataDemand LearnInfo LearnResult
                                SnapshotPart
    any       ──► coordinator   StopRequest WorkerFailed Heartbeat Goodbye
    coordinator ──► any         Heartbeat KillFrozen
    people    ──► coordinator   ScaleCollectors
    coordinator ──► collector   CollectTask CollectSetting CollectPause CloseTask
    coordinator ──► learner     LearnTask AdmitBlock Batches TakeSnapshot BeginAnew Regroup
                                PolicyFiles
    coordinator ──► any         Stop Leave
    collector ◄──► learner      PolicyRequest PolicyUpdate RowsRequest Rows
    collector ◄──► collector    PolicyRequest PolicyUpdate (one of a host, and the others)
    learner   ──► learner       GroupAddress
    link, of a dead rank ──► any   RankLost

Anything per item is sent as an array, a block at a time. `player` names the player, of those that
learn in a league, that a message is about; without a league there is one, "main".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any, Self

import numpy as np

from hpcdi.comm.codec import recorded, sendable
from hpcdi.config.schedule import Value
from hpcdi.dataclass import dataclass
from hpcdi.types import MAIN, Array, GameCounts, Lockstep, ShardRef


@dataclass(frozen=True)
class Message:
    """Base of all messages."""

    def __init_subclass__(cls) -> None:
        sendable(cls)


# ---------------------------------------------------------------------------- worker -> coordinator


@dataclass(frozen=True)
class WorkerReady(Message):
    """A worker has started and asks for tasks."""

    role: str
    host: str
    pid: int
    gpus: int = 0
    cpus: int = 1
    pid_space: str = ""  # see `hpcdi.utils.processes`
    player: str = MAIN  # of a learner


@dataclass(frozen=True)
class BlockReady(Message):
    """A block is published; or, while it is open, a piece was appended to it.

    Where the transport lends open blocks, a block is announced piece by piece, and at last
    `BlockStored` says where it is stored.
    """

    task_id: str
    block_id: int
    shard: ShardRef
    items: Array  # [items] of `ITEM_DTYPE`
    tail_rows: int
    sealed_at: float  # seconds since the epoch
    episodes: int = 0  # number of episodes that ended in it
    made_of: int = -1  # environment steps; -1: as many as `transitions`
    games: tuple[GameCounts, ...] = ()  # results of games that ended in it, in a league
    player: str = MAIN  # the player that learns from it
    first_row: int = 0  # row of the block at which the piece begins
    capacity: int = 0  # rows to which the block may grow; 0: it is complete

    @property
    def is_open(self) -> bool:
        """True if it is a piece of a block that is not stored yet."""
        return self.capacity > 0

    @property
    def transitions(self) -> int:
        """Rows that batches are drawn of: transitions, or a policy's samples."""
        return int(np.add.reduce(self.items["item_len"]))  # `sum` takes twice as long for few

    @property
    def env_steps(self) -> int:
        """Environment steps that it was made of: what the run's counters count."""
        return self.transitions if self.made_of < 0 else self.made_of


@dataclass(frozen=True)
class BlockStored(Message):
    """A block that was announced piece by piece is complete, and stored in a shard."""

    block_id: int
    shard: ShardRef
    player: str = MAIN


@dataclass(frozen=True)
class CollectProgress(Message):
    """A collector's work since its last report; its steps count when they are published."""

    task_id: str
    episode_returns: Array  # of the episodes that ended, float64 [episodes]
    episode_lengths: Array  # in steps, int64 [episodes]
    policy_version: int
    shares: dict[str, float]  # activity -> share of the time, see `TimeLedger.shares`
    player: str = MAIN
    episode_figures: dict[str, Array] = field(default_factory=dict)  # see `Episodes.figures`
    env_bytes: int = 0  # that the processes of its environments hold; 0: unknown
    env_growth: float = 0.0  # bytes by which they grow with each transition
    cpu: float = float("nan")  # cores that it has kept busy, on average
    slowest_env: dict[str, float] = field(default_factory=dict)  # see `EnvManager.slowest`

    def episodes(self) -> Iterator[dict[str, float]]:
        """Yields of each episode ``return``, ``length``, and its figures."""
        of_all = {"return": self.episode_returns, "length": self.episode_lengths}
        of_all |= self.episode_figures
        for number in range(len(self.episode_returns)):
            yield {name: float(of_each[number]) for name, of_each in of_all.items()}


@dataclass(frozen=True)
class CollectResult(Message):
    """A task has ended: an evaluation with all its episodes, a collect task with its last ones.

    An evaluation that was cut short is not `is_complete`: its longest episodes are missing.
    """

    task_id: str
    eval_flag: bool
    policy_version: int
    env_steps: int
    duration_s: float
    episode_returns: Array
    episode_lengths: Array
    is_complete: bool = True
    player: str = MAIN
    episode_figures: dict[str, Array] = field(default_factory=dict)  # of an evaluation

    @property
    def is_evaluation(self) -> bool:
        """True if it is an evaluation whose returns count: complete, and with episodes."""
        return self.eval_flag and self.is_complete and bool(self.episode_returns.size)


@dataclass(frozen=True)
class BlockAdmitted(Message):
    """A learner holds a block's rows, or could not read them (`error` is the reason)."""

    block_id: int
    latency_s: float  # from sealed to held
    error: str = ""


@dataclass(frozen=True)
class DataDemand(Message):
    """A learner asks for batches, and returns the priorities of earlier ones."""

    task_id: str
    batches: int
    batch_size: int
    train_iter: int
    unique_ids: Array  # items with new priorities, int64 [m]; never -1
    priorities: Array  # their priorities, float64 [m]
    under_way: int  # batches that it has asked for, now too, and not learnt from


@dataclass(frozen=True)
class LearnInfo(Message):
    """Scalars of the last iterations, averaged."""

    task_id: str
    train_iter: int
    scalars: dict[str, float]
    shares: dict[str, float]
    player: str = MAIN
    cpu: float = float("nan")  # cores that it has kept busy, on average


@dataclass(frozen=True)
class SnapshotPart(Message):
    """A learner's part of a snapshot is on disk, or was not written (`error` is the reason)."""

    name: str
    files: dict[str, dict[str, int]]  # file -> ``bytes, crc32``
    train_iter: int
    stall_s: float  # seconds that the learner was held up
    error: str = ""
    player: str = MAIN


@dataclass(frozen=True)
class LearnResult(Message):
    """A learner task has ended."""

    task_id: str
    train_iter: int


@dataclass(frozen=True)
class StopRequest(Message):
    """Something outside the run (a signal, a time limit) asks for its end."""

    reason: str
    exit_code: int


@dataclass(frozen=True)
class WorkerFailed(Message):
    """A rank raised an exception and is about to exit; without a traceback, the error says all."""

    role: str
    host: str
    error: str
    traceback: str
    exit_code: int = 1


@dataclass(frozen=True)
class Goodbye(Message):
    """A worker has finished; its last message."""

    report: dict[str, Any] = field(default_factory=dict)
    """For the closing summary: counters, shares of time, CPU seconds, memory."""


@dataclass(frozen=True)
class Heartbeat(Message):
    """The sender's work has moved on since its last heartbeat; of rank 0: its loop turns."""

    activity: str = ""  # the latest one


@dataclass(frozen=True)
class TaskReturned(Message):
    """A collector has no environments left (`reason`) and cannot do its task for a while.

    `with_ranks`: the last one was lost with its ranks, not by a fault of its own.
    """

    task_id: str
    reason: str
    with_ranks: bool = False


@dataclass(frozen=True)
class ScaleCollectors(Message):
    """Have `count` collectors work; the others wait until they are needed."""

    count: int


@dataclass(frozen=True)
class RankLost(Message):
    """The sender has died. Its link puts this after everything that the rank had sent."""


# ---------------------------------------------------------------------------- coordinator -> worker


@dataclass(frozen=True)
class CollectTask(Message):
    """Collect (or evaluate) until the environments are done or the task is closed."""

    task_id: str
    eval_flag: bool
    setting: dict[str, Any]  # keyword arguments of the policy's forward, e.g. ``{"eps": 0.5}``
    publish_above: float = float("inf")  # a better evaluation publishes its policy as the best
    lockstep: Lockstep | None = None  # where collecting and learning take turns
    freeze: str = ""  # an evaluation writes its policy there, relative to the run folder
    player: str = MAIN  # that acts
    scheduled: dict[str, tuple[Value, float]] = field(default_factory=dict)  # see `env.schedule`


@dataclass(frozen=True)
class CollectSetting(Message):
    """New keyword arguments of the policy for a running task."""

    task_id: str
    setting: dict[str, Any]
    scheduled: dict[str, tuple[Value, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CollectPause(Message):
    """Wait before the next step of any collect task, or go on: learners are behind, or no more."""

    waits: bool
    after: int = 0  # environment steps that are made before the wait


@dataclass(frozen=True)
class CloseTask(Message):
    """End a collect task now; the collector sends its result as usual."""

    task_id: str


@dataclass(frozen=True)
class LearnTask(Message):
    """Learn from the replay buffer until `train_iterations` or the stop of the run."""

    task_id: str
    resume: str = ""  # folder of the snapshot to resume from, relative to the run folder
    player: str = MAIN  # that learns


@dataclass(frozen=True)
class AdmitBlock(Message):
    """Read a block into the ring's rows from `first_row` on; old rows there may be overwritten."""

    block_id: int
    first_row: int
    ring_rows: int  # rows of the whole ring, which may grow, and never shrinks
    shard: ShardRef
    sealed_at: float


@dataclass(frozen=True)
class Batches(Message):
    """Rows of one or more batches; all arrays have shape [batches, batch_size].

    `rows` and `unique_ids` are int64; the ids identify the items when their priorities come back.
    """

    rows: Array
    unique_ids: Array
    weights: Array  # importance weights, float32, at most 1
    env_steps: int  # environment steps of the whole run so far
    began_at: int = 0  # those when its player began anew


@dataclass(frozen=True)
class TakeSnapshot(Message):
    """Write your part of a snapshot, after the batches sent before this and before later ones."""

    name: str
    folder: str  # where to write the files, relative to the run folder


@dataclass(frozen=True)
class BeginAnew(Message):
    """Learn on from the parameters of your start, after the batches sent before this."""

    player: str


@dataclass(frozen=True)
class PolicyFiles(Message):
    """Write policies to disk every so many seconds: guests act by them, or do no more."""

    every_s: float


@dataclass(frozen=True)
class Stop(Message):
    """The run ends: publish open blocks, then send `Goodbye`."""

    reason: str


@dataclass(frozen=True)
class KillFrozen(Message):
    """Kill a rank of your host, which sends nothing any more; it is then lost to all."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Leave(Message):
    """Exit with this code; `alone`: die by a signal, the other ranks continue without you."""

    exit_code: int = 0
    alone: bool = False


@dataclass(frozen=True)
class Regroup(Message):
    """The learners that are left form their process group again."""

    number: int  # rises; a later order voids earlier ones
    ranks: tuple[int, ...]  # members, in order; the first one opens the store where they meet
    hosts: tuple[str, ...]  # of each member


# ---------------------------------------------------------------------------- collector <-> learner


@dataclass(frozen=True)
class PolicyRequest(Message):
    """Send the next policy that is newer than `have_version`: one answer for each request.

    With `at_once` the answer comes immediately; without a newer policy its `data` are empty.
    """

    have_version: int
    at_once: bool = False
    player: str = MAIN  # whose policy


@dataclass(frozen=True)
class PolicyUpdate(Message):
    """A policy: safetensors bytes, uint8 [n]; `version` is the train iteration that made it."""

    version: int
    data: Array
    player: str = MAIN  # whose it is

    @classmethod
    def of(cls, version: int, data: bytes, player: str) -> Self:
        """Returns the message with these bytes, which it does not copy."""
        return cls(version, np.frombuffer(data, dtype=np.uint8), player)


@dataclass(frozen=True)
class RowsRequest(Message):
    """Send the rows of a piece that you lend, see `BlockReady`: one answer for each request."""

    path: str  # of the piece's reference


@dataclass(frozen=True)
class Rows(Message):
    """The rows that were asked for; or, without them, why they cannot be sent."""

    path: str
    columns: dict[str, Array]  # row columns by name, each [rows, ...]
    error: str = ""


# ------------------------------------------------------------------------------ learner <-> learner


@dataclass(frozen=True)
class GroupAddress(Message):
    """Where the members of a regrouped process group meet (see `Regroup.number`)."""

    number: int
    host: str
    port: int
    key: str  # prefix of the group's keys


recorded(
    BlockReady,
    BlockStored,
    AdmitBlock,
    BlockAdmitted,
    CollectProgress,
    CollectSetting,
    DataDemand,
    Batches,
    LearnInfo,
    Heartbeat,
    PolicyRequest,
    RowsRequest,
)
