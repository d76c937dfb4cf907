"""Coordinator and commanders of `ding.worker`."""

from hpcdi.roles.coordinator.commanders import (
    BaseSerialCommander,
    SoloCommander,
    create_parallel_commander,
    get_parallel_commander_cls,
)
from hpcdi.roles.coordinator.coordinator import Coordinator, TaskState
from hpcdi.roles.coordinator.one_vs_one_parallel_commander import OneVsOneCommander

__all__ = [
    "BaseSerialCommander",
    "Coordinator",
    "OneVsOneCommander",
    "SoloCommander",
    "TaskState",
    "create_parallel_commander",
    "get_parallel_commander_cls",
]
