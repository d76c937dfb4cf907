"""The fixed part of an experiment: what stands in every YAML, whatever the components are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcdi.config.fields import component, section, setting
from hpcdi.utils.registry import (
    COMM_COLLECTOR_REGISTRY,
    COMM_LEARNER_REGISTRY,
    ENV_REGISTRY,
    POLICY_REGISTRY,
)


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
    policy_file_s: float = setting(
        30.0, "seconds between policy files (late joiners, evaluation, resume)", above=0
    )


@dataclass(frozen=True)
class SystemConfig:
    """Everything about the machine and nothing about learning."""

    coordinator: CoordinatorConfig = section(CoordinatorConfig, "rank 0")
    storage: StorageConfig = section(StorageConfig, "shards and policy files")
    transport: str = setting(
        "files",
        "how blocks reach the learners: shards on the shared file system",
        choices=("files",),
    )
    snapshot_s: float = setting(
        60.0, "seconds between snapshots of the run, which --resume goes on from", above=0
    )
    keep_snapshots: int = setting(2, "snapshots that are kept, the newest ones", minimum=1)
    prefetch: int = setting(16, "batches that wait ready at a learner", minimum=1, maximum=1024)
    comm_learner: Any = component(COMM_LEARNER_REGISTRY, "mpi_fs", "the learner's message side")
    comm_collector: Any = component(
        COMM_COLLECTOR_REGISTRY, "mpi_fs", "the collector's message side"
    )


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment; the compiled form of its YAML file."""

    exp_name: str = setting("default_experiment", "names the folder runs/<exp_name>")
    seed: int = setting(0, "seed of every random number in the run", minimum=0, maximum=2**63 - 1)
    env: Any = component(ENV_REGISTRY, "gymnasium", "what is stepped")
    policy: Any = component(POLICY_REGISTRY, "dqn", "what is learnt, and from what")
    system: SystemConfig = section(SystemConfig, "the machine")
