"""Collectors: environments stepped by a policy, transitions on their way to a learner.

Owns: the forms in which one steps and records (`rollout`, `trajectory`), the parallel collectors (a
loop over one or the other), their message side (`comm`). May import: `policy`, `env`, `store`,
`comm`, `config`, `utils`, `types`, `errors`. Why so: nothing here knows a buffer or a learner; what
leaves is a shard and a message about it.

Life of a collector rank::

    start ──WorkerReady──► waiting ──CollectTask──► stepping ──done or CloseTask──► waiting
                              │                                                        │
                        Stop ─┴──► open block published ──Goodbye──► Leave ◄── Stop ───┘
"""

from hpcdi.worker.collector.base_parallel_collector import (
    BaseParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
)
from hpcdi.worker.collector.comm import (
    BaseCommCollector,
    FlaskFileSystemCollector,
    MPIFileSystemCollector,
    NaiveCollector,
    create_comm_collector,
)
from hpcdi.worker.collector.zergling_parallel_collector import ZerglingParallelCollector

__all__ = [
    "BaseCommCollector",
    "BaseParallelCollector",
    "FlaskFileSystemCollector",
    "MPIFileSystemCollector",
    "NaiveCollector",
    "ZerglingParallelCollector",
    "create_comm_collector",
    "create_parallel_collector",
    "get_parallel_collector_cls",
]
