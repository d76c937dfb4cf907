"""Collectors: environments stepped by a policy, transitions on their way to a learner.

Owns: the forms in which one steps and records (`rollout`, `battle`, `trajectory`), the parallel
collectors (a loop over one form) with their message side (`comm`), the serial collectors (a form
and a rule to stop), the serial evaluators (`evaluation`, its loop, films of episodes). May import:
`policy`, `env`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: nothing here knows a
buffer or a learner; what leaves a rank is a shard and a message about it.

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
from hpcdi.worker.collector.base_serial_collector import (
    ISerialCollector,
    create_serial_collector,
    get_serial_collector_cls,
)
from hpcdi.worker.collector.battle_episode_serial_collector import BattleEpisodeSerialCollector
from hpcdi.worker.collector.battle_sample_serial_collector import BattleSampleSerialCollector
from hpcdi.worker.collector.caches import to_tensor_transitions
from hpcdi.worker.collector.comm import (
    BaseCommCollector,
    FlaskFileSystemCollector,
    MPIFileSystemCollector,
    NaiveCollector,
    create_comm_collector,
)
from hpcdi.worker.collector.episode_serial_collector import EpisodeSerialCollector
from hpcdi.worker.collector.evaluation import (
    BattleInteractionSerialEvaluator,
    InteractionSerialEvaluator,
    ISerialEvaluator,
    VectorEvalMonitor,
    create_serial_evaluator,
)
from hpcdi.worker.collector.metric_serial_evaluator import IMetric, MetricSerialEvaluator
from hpcdi.worker.collector.sample_serial_collector import SampleSerialCollector
from hpcdi.worker.collector.zergling_parallel_collector import ZerglingParallelCollector

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
    "MetricSerialEvaluator",
    "NaiveCollector",
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
