"""Rank 0: who does what, and when the run is over.

Owns: tasks and who sets them (`task`, `*_parallel_commander`), who is free (`resource_manager`),
what is learnt from (`replay_desk`, each learner's `partition` and `backlog`, `on_policy`; those of
callers, `named_buffers`), how a run begins and ends (`lifecycle`), without whom it goes on
(`survival`, `losses`) and how many collectors work (`crew`), when snapshots are taken (`snapshots`,
`snapshot_keeper`) and gone on from (`resume`, `restored`), the decisions about all that
(`scheduler`: messages and time in, orders out, nothing else; the same each time, `lockstep`), the
loop that carries them out (`coordinator`, its parts put together in `assembly`), what people see
(`view`, `records`, `progress`, with its `counters`); for a run in one process, its commander
(`base_serial_commander`). May import: `worker.replay_buffer`, `policy`, `store`, `comm`, `config`,
`utils`, `types`, `errors`. Why so: a decision that needs no clock, no MPI and no file can be tested
with ``==``.

Life of a run::

    starting ──all workers ready──► running ──stop value, limit, signal, failure──► stopping
                                                                                       │
                        finished ◄──Leave to all── everybody has said goodbye ◄────────┘
"""

from hpcdi.worker.coordinator.base_parallel_commander import (
    create_parallel_commander,
    get_parallel_commander_cls,
)
from hpcdi.worker.coordinator.base_serial_commander import BaseSerialCommander
from hpcdi.worker.coordinator.coordinator import Coordinator, TaskState
from hpcdi.worker.coordinator.solo_parallel_commander import SoloCommander

__all__ = [
    "BaseSerialCommander",
    "Coordinator",
    "SoloCommander",
    "TaskState",
    "create_parallel_commander",
    "get_parallel_commander_cls",
]
