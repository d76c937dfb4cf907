"""Collectors: environments stepped by a policy, and evaluators, which step them the same way.

Owns: the stepping loop (`loop`), the recorder of its columns (`recorder`), the collectors of a
parallel run (`base_parallel_collector`, of battles `marine_parallel_collector` with its loop
`battle_loop`) with their message side (`comm`), the serial collectors
(`base_serial_collector`, `serial_collectors`), evaluation (`evaluation`, `episode_videos`). May
import: `policy`, `env`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: nothing here
knows a buffer or a learner; what leaves a rank is a shard and a message about it.

One step of the environments, collecting or evaluating::

    observe ──► act ──► step ──► record                       (`Loop.once`)

Life of a collector rank::

    start ──WorkerReady──► waiting ──CollectTask──► stepping ──done or CloseTask──► waiting
                              │                                                        │
                        Stop ─┴──► open block published ──Goodbye──► Leave ◄── Stop ───┘
"""

from hpcdi.worker.collector.base_parallel_collector import (
    BaseParallelCollector,
    ZerglingParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
)
from hpcdi.worker.collector.base_serial_collector import (
    ISerialCollector,
    create_serial_collector,
    get_serial_collector_cls,
)
from hpcdi.worker.collector.caches import to_tensor_transitions
from hpcdi.worker.collector.comm import (
    BaseCommCollector,
    FlaskFileSystemCollector,
    MPIFileSystemCollector,
    create_comm_collector,
)
from hpcdi.worker.collector.evaluation import (
    BattleInteractionSerialEvaluator,
    InteractionSerialEvaluator,
    ISerialEvaluator,
    VectorEvalMonitor,
    create_serial_evaluator,
)
from hpcdi.worker.collector.marine_parallel_collector import MarineParallelCollector
from hpcdi.worker.collector.metric_serial_evaluator import IMetric, MetricSerialEvaluator
from hpcdi.worker.collector.serial_collectors import (
    BattleEpisodeSerialCollector,
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    SampleSerialCollector,
)

__all__ = [
    "BaseCommCollector",
    "BaseParallelCollector",
    "BattleEpisodeSerialCollector",
    "BattleInteractionSerialEvaluator",
    "BattleSampleSerialCollector",
    "EpisodeSerialCollector",
    "FlaskFileSystemCollector",
    "IMetric",
    "ISerialCollector",
    "ISerialEvaluator",
    "InteractionSerialEvaluator",
    "MPIFileSystemCollector",
    "MarineParallelCollector",
    "MetricSerialEvaluator",
    "SampleSerialCollector",
    "VectorEvalMonitor",
    "ZerglingParallelCollector",
    "create_comm_collector",
    "create_parallel_collector",
    "create_serial_collector",
    "create_serial_evaluator",
    "get_parallel_collector_cls",
    "get_serial_collector_cls",
    "to_tensor_transitions",
]
