"""The fixed part of an experiment: what stands in every YAML, whatever the components are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcdi.config.fields import component, section, sections, setting
from hpcdi.config.slurm import SlurmConfig
from hpcdi.errors import Problem
from hpcdi.utils.registry import (
    COMM_COLLECTOR_REGISTRY,
    COMM_LEARNER_REGISTRY,
    ENV_REGISTRY,
    POLICY_REGISTRY,
)

_ON_FAULT = ("continue", "abort")
FAULT_KINDS = ("kill", "hang", "raise", "env_hang", "torn_shard", "enospc")
FAULT_ROLES = ("coordinator", "learner", "collector", "serial")


@dataclass(frozen=True)
class CoordinatorConfig:
    """How rank 0 treats tasks and workers."""

    collector_task_timeout: float = setting(
        30.0,
        "seconds a collector may take to end a task when told to; then another is asked",
        above=0,
    )
    learner_task_timeout: float = setting(
        600.0, "seconds a learner may take from its task to its first demand for data", above=0
    )
    start_timeout_s: float = setting(
        300.0, "seconds that ranks may take from MPI's start to their first word", above=0
    )
    stop_timeout_s: float = setting(
        20.0, "seconds that ranks may take to end in order before the job is aborted", above=0
    )
    progress_interval: float = setting(
        10.0, "seconds between progress lines in a log (a terminal's line moves on)", above=0
    )


@dataclass(frozen=True)
class SurvivalConfig:
    """What a run goes on without, where the MPI library lets it (Open MPI 5: `hpcdi doctor`)."""

    on_collector_death: str = setting(
        "continue", "when a collector is killed: go on with the others", choices=_ON_FAULT
    )
    on_learner_death: str = setting(
        "continue",
        "when a learner is killed: go on with the others, not on GPUs",
        choices=_ON_FAULT,
    )
    worker_timeout_s: float = setting(
        900.0,
        "seconds that a rank's work may stand still (one environment step, one update): then its "
        "stacks are shown and it is killed",
        minimum=5.0,
    )
    on_worker_error: str = setting(
        "abort", "when one of them raises: end the run, or as if it was killed", choices=_ON_FAULT
    )


@dataclass(frozen=True)
class StorageConfig:
    """How collected data reach the shared file system."""

    block_bytes: int = setting(
        1 << 22, "a block is sealed when its rows reach this size", minimum=4096
    )
    seal_seconds: float = setting(
        0.75, "a block is sealed at this age, even if it is not full", above=0
    )
    fsync: bool = setting(True, "force shards to disk before they are announced")
    keep_data: bool = setting(
        True, "keep every shard; false removes those that the replay buffer has dropped"
    )
    disk_patience_s: float = setting(
        300.0,
        "seconds that collectors wait for room on a full disk before the run ends",
        minimum=0,
    )
    policy_file_s: float = setting(
        30.0, "seconds between policy files (late joiners, evaluation, resume)", above=0
    )


@dataclass(frozen=True)
class SystemConfig:
    """Everything about the machine and nothing about learning."""

    coordinator: CoordinatorConfig = section(CoordinatorConfig, "rank 0")
    storage: StorageConfig = section(StorageConfig, "shards and policy files")
    survival: SurvivalConfig = section(SurvivalConfig, "ranks that die")
    transport: str = setting(
        "files",
        "how blocks reach the learners: shards on the shared file system",
        choices=("files",),
    )
    snapshot_s: float = setting(
        60.0, "seconds between snapshots of the run, which --resume goes on from", above=0
    )
    auto_resume: bool | None = setting(
        None,
        "go on with the run that --run-dir holds, instead of refusing it; null: inside Slurm",
    )
    max_restarts_without_progress: int = setting(
        3, "restarts in a row that may come to no newer snapshot", minimum=0
    )
    keep_snapshots: int = setting(2, "snapshots that are kept, the newest ones", minimum=1)
    deterministic: bool = setting(
        False, "give the same numbers each time: in rounds, each step waits for the one before it"
    )
    snapshot_rounds: int = setting(
        100,
        "deterministic runs: rounds from one snapshot, at which episodes begin anew, to the next",
        minimum=1,
    )
    prefetch: int = setting(16, "batches that wait ready at a learner", minimum=1, maximum=1024)
    comm_learner: Any = component(COMM_LEARNER_REGISTRY, "mpi_fs", "the learner's message side")
    comm_collector: Any = component(
        COMM_COLLECTOR_REGISTRY, "mpi_fs", "the collector's message side"
    )


@dataclass(frozen=True)
class FaultConfig:
    """An injected fault, to test what a run survives; see `hpcdi/worker/fault.py`."""

    kind: str = setting(
        "kill",
        "kill: SIGKILL to the rank; raise: an error; hang: its computing thread stands still; "
        "env_hang: one of its environments does; torn_shard: the next shard loses its second half; "
        "enospc: what it writes finds no room",
        choices=FAULT_KINDS,
    )
    rank: int | None = setting(None, "who has it: a rank, or", minimum=0)
    role: str | None = setting(None, "every rank of a role", choices=(None, *FAULT_ROLES))
    at_step: int | None = setting(
        None,
        "when: at this number of a collector's env steps, a learner's train iterations, the "
        "coordinator's seconds, a serial run's env steps; or",
        minimum=0,
    )
    after_s: float | None = setting(None, "so many seconds after the rank has begun", minimum=0)
    every: float | None = setting(None, "and again after so many more of these", above=0)
    seconds: float | None = setting(
        None, "how long a hang or the lack of room lasts; empty: for ever", above=0
    )
    restart: int = setting(
        0, "in which part of the run: 0 the first, 1 after the first --resume, ...", minimum=0
    )

    def problems(self) -> Iterator[Problem]:
        """Who, when, and whether that rank can have it."""
        if (self.rank is None) == (self.role is None):
            yield Problem("rank", "name either a rank or a role")
        if (self.at_step is None) == (self.after_s is None):
            yield Problem("at_step", "name either at_step or after_s")
        of_collectors = self.kind in ("env_hang", "torn_shard")
        if of_collectors and self.role not in (None, "collector"):
            yield Problem("role", f"only a collector can have {self.kind!r}, not a {self.role}")


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment; the compiled form of its YAML file."""

    exp_name: str = setting("default_experiment", "names the folder runs/<exp_name>")
    seed: int = setting(0, "seed of every random number in the run", minimum=0, maximum=2**63 - 1)
    env: Any = component(ENV_REGISTRY, "gymnasium", "what is stepped")
    policy: Any = component(POLICY_REGISTRY, "dqn", "what is learnt, and from what")
    system: SystemConfig = section(SystemConfig, "the machine")
    slurm: SlurmConfig = section(SlurmConfig, "the batch job of `hpcdi submit`")
    fault: Any = sections(FaultConfig, "injected faults; refused unless CI or HPCDI_ALLOW_FAULTS")
