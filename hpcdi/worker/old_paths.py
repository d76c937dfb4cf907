"""Import paths of the seeds whose content lives elsewhere here, and names that have no place here.

`hpcdi.worker` registers all of them when it is imported, so that for instance
``from hpcdi.worker.collector.sample_serial_collector import SampleSerialCollector`` works; the
module that it imports is `hpcdi.worker.collector.serial_collectors`.
"""

from __future__ import annotations

import sys
from importlib import import_module

from hpcdi.utils.absent import Absent

OLD_PATHS = {
    "collector.base_serial_evaluator": "collector.evaluation",
    "collector.battle_episode_serial_collector": "collector.serial_collectors",
    "collector.battle_interaction_serial_evaluator": "collector.evaluation",
    "collector.battle_sample_serial_collector": "collector.serial_collectors",
    "collector.comm.base_comm_collector": "collector.comm.mpi_fs_collector",
    "collector.comm.flask_fs_collector": "collector.comm.mpi_fs_collector",
    "collector.comm.slave": "collector.comm.mpi_fs_collector",
    "collector.episode_serial_collector": "collector.serial_collectors",
    "collector.interaction_serial_evaluator": "collector.evaluation",
    "collector.sample_serial_collector": "collector.serial_collectors",
    "collector.zergling_parallel_collector": "collector.base_parallel_collector",
    "coordinator.base_parallel_commander": "coordinator.commanders",
    "coordinator.base_serial_commander": "coordinator.commanders",
    "coordinator.comm_coordinator": "old_paths",
    "coordinator.operator_server": "old_paths",
    "coordinator.solo_parallel_commander": "coordinator.commanders",
    "learner.comm.base_comm_learner": "learner.comm.mpi_fs_learner",
    "learner.comm.flask_fs_learner": "learner.comm.mpi_fs_learner",
}
"""Path below `hpcdi.worker` -> the module that is imported instead."""


class CommCoordinator(Absent):
    """It connected the coordinator to its workers."""

    instead = "ranks of an MPI program are connected from the start; use hpcdi.worker.Coordinator"


class OperatorServer(Absent):
    """It asked a Kubernetes operator for more workers."""

    instead = "MPI starts all ranks; `hpcdi scale <run> <collectors>` lets more or fewer work"


def register(package: str) -> None:
    """Makes all `OLD_PATHS` importable.

    Args:
        package: name of `hpcdi.worker`.
    """
    for old, new in OLD_PATHS.items():
        module = import_module(f"{package}.{new}")
        parent, _, name = f"{package}.{old}".rpartition(".")
        sys.modules[f"{parent}.{name}"] = module
        setattr(sys.modules[parent], name, module)
