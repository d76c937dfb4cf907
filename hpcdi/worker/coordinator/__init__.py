"""Coordinator and commanders of `ding.worker`."""

from hpcdi.worker.coordinator.commanders import (
    BaseSerialCommander,
    OneVsOneCommander,
    SoloCommander,
    create_parallel_commander,
    get_parallel_commander_cls,
)
from hpcdi.worker.coordinator.coordinator import Coordinator, TaskState

__all__ = [
    "BaseSerialCommander",
    "Coordinator",
    "OneVsOneCommander",
    "SoloCommander",
    "TaskState",
    "create_parallel_commander",
    "get_parallel_commander_cls",
]
