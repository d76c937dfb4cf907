"""The parallel commanders, at the path that the seeds' callers import."""

from hpcdi.worker.coordinator.commanders import (
    BaseCommander,
    NaiveCommander,
    create_parallel_commander,
    get_parallel_commander_cls,
)

__all__ = [
    "BaseCommander",
    "NaiveCommander",
    "create_parallel_commander",
    "get_parallel_commander_cls",
]
