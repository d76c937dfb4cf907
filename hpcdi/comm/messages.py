"""All messages of a run: frozen dataclasses, told apart by their class.

Who says what::

    collector ──► coordinator   WorkerReady BlockReady CollectProgress CollectResult
    learner   ──► coordinator   WorkerReady BlockAdmitted DataDemand LearnInfo LearnResult
                                SnapshotPart
    any       ──► coordinator   StopRequest WorkerFailed Goodbye
    coordinator ──► collector   CollectTask CollectSetting CloseTask
    coordinator ──► learner     LearnTask AdmitBlock Batches TakeSnapshot
    coordinator ──► any         Stop Leave
    collector ◄──► learner      PolicyRequest PolicyUpdate

What exists per item travels as an array. About ranks that die: `fault_messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hpcdi.comm.plain import sendable
from hpcdi.types import Array, Lockstep, ShardRef


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


@dataclass(frozen=True)
class BlockReady(Message):
    """A shard is published."""

    task_id: str
    buffer_id: str
    block_id: int
    shard: ShardRef
    items: Array  # [items] of `ITEM_DTYPE`
    tail_rows: int
    sealed_at: float  # seconds since the epoch


@dataclass(frozen=True)
class CollectProgress(Message):
    """What a collector has done since it last said so."""

    task_id: str
    env_steps: int
    episode_returns: Array  # of the episodes that ended, float64 [episodes]
    episode_lengths: Array  # in steps, int64 [episodes]
    policy_version: int
    shares: dict[str, float]  # activity -> share of the time, see `TimeLedger.shares`


@dataclass(frozen=True)
class CollectResult(Message):
    """A task has ended: an evaluation with all its episodes, a collect task with its last ones.

    An evaluation that was cut short is not `is_complete`: it lacks the long ones.
    """

    task_id: str
    eval_flag: bool
    policy_version: int
    env_steps: int
    duration_s: float
    episode_returns: Array
    episode_lengths: Array
    is_complete: bool = True

    @property
    def is_evaluation(self) -> bool:
        """Whether it is of an evaluation whose returns count: whole, and with episodes."""
        return self.eval_flag and self.is_complete and bool(self.episode_returns.size)


@dataclass(frozen=True)
class BlockAdmitted(Message):
    """A learner holds a block's rows, or could not read them (`error` says why)."""

    buffer_id: str
    block_id: int
    latency_s: float  # from sealed to held
    error: str = ""


@dataclass(frozen=True)
class DataDemand(Message):
    """A learner asks for batches, and says what it made of earlier ones."""

    task_id: str
    buffer_id: str
    batches: int
    batch_size: int
    train_iter: int
    unique_ids: Array  # items whose priority is known anew, int64 [m]; -1 never occurs
    priorities: Array  # their priorities, float64 [m]


@dataclass(frozen=True)
class LearnInfo(Message):
    """Scalars of the last iterations, averaged."""

    task_id: str
    train_iter: int
    scalars: dict[str, float]
    shares: dict[str, float]


@dataclass(frozen=True)
class SnapshotPart(Message):
    """A learner's part of a snapshot is on disk, or could not be written (`error` says why)."""

    name: str
    files: dict[str, dict[str, int]]  # file -> ``bytes, crc32``
    train_iter: int
    stall_s: float  # that the learner stood still for it
    error: str = ""


@dataclass(frozen=True)
class LearnResult(Message):
    """A learner task has ended."""

    task_id: str
    train_iter: int


@dataclass(frozen=True)
class StopRequest(Message):
    """A rank was told from outside (a signal) that the run shall end."""

    reason: str
    exit_code: int


@dataclass(frozen=True)
class WorkerFailed(Message):
    """A rank raised; it says why and goes."""

    role: str
    host: str
    error: str
    traceback: str
    exit_code: int = 1


@dataclass(frozen=True)
class Goodbye(Message):
    """A worker has done everything it had to do; the last thing it says."""

    report: dict[str, Any] = field(default_factory=dict)
    """What it did, for the closing summary: counters, shares of time, CPU seconds, memory."""


# ---------------------------------------------------------------------------- coordinator -> worker


@dataclass(frozen=True)
class CollectTask(Message):
    """Collect (or evaluate) until the environments are done or the task is closed."""

    task_id: str
    buffer_id: str
    policy_id: str
    eval_flag: bool
    setting: dict[str, Any]  # keyword arguments of the policy's forward, e.g. ``{"eps": 0.5}``
    publish_above: float = float("inf")  # a better evaluation publishes its policy as the best
    lockstep: Lockstep | None = None  # of a deterministic run


@dataclass(frozen=True)
class CollectSetting(Message):
    """New keyword arguments of the policy for a running task."""

    task_id: str
    setting: dict[str, Any]


@dataclass(frozen=True)
class CloseTask(Message):
    """End a collect task now; its result is sent as if it had ended by itself."""

    task_id: str


@dataclass(frozen=True)
class LearnTask(Message):
    """Learn from a buffer until `train_iterations` or the stop of the run."""

    task_id: str
    policy_id: str
    buffer_id: str
    resume: str = ""  # folder of the snapshot to go on from, relative to the run folder


@dataclass(frozen=True)
class AdmitBlock(Message):
    """Read a shard into rows `first_row`... of the ring; what lay there may be overwritten."""

    buffer_id: str
    block_id: int
    first_row: int
    ring_rows: int  # rows of the whole ring; the same in every order
    shard: ShardRef
    sealed_at: float


@dataclass(frozen=True)
class Batches(Message):
    """Rows of one or more batches; all arrays are of shape [batches, batch_size].

    `rows` and `unique_ids` are int64: the ids name the items when their priorities come back.
    """

    buffer_id: str
    rows: Array
    unique_ids: Array
    weights: Array  # importance weights, float32, at most 1
    env_steps: int  # environment steps of the whole run so far


@dataclass(frozen=True)
class TakeSnapshot(Message):
    """Keep what you are, between the batches that came before this and those that come after."""

    name: str
    folder: str  # where to write the files, relative to the run folder


@dataclass(frozen=True)
class Stop(Message):
    """The run ends: publish what is open, say goodbye."""

    reason: str


@dataclass(frozen=True)
class Leave(Message):
    """Nothing more will come: exit with this code; `alone`: die, the others go on without you."""

    exit_code: int = 0
    alone: bool = False


# ---------------------------------------------------------------------------- collector <-> learner


@dataclass(frozen=True)
class PolicyRequest(Message):
    """Send the next policy that is newer than `have_version`; one request, one answer.

    With `at_once`, the answer does not wait for a newer one: if there is none, its data are empty.
    """

    have_version: int
    at_once: bool = False


@dataclass(frozen=True)
class PolicyUpdate(Message):
    """A policy: safetensors bytes as uint8 [n]; its version is the train iteration it is of."""

    version: int
    data: Array
