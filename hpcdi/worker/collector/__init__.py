"""Collectors and evaluators of `ding.worker`."""

from hpcdi.roles.collector.base_parallel_collector import BaseParallelCollector
from hpcdi.worker.collector.base_serial_collector import (
    ISerialCollector,
    create_serial_collector,
    get_serial_collector_cls,
    to_tensor_transitions,
)
from hpcdi.worker.collector.comm import (
    BaseCommCollector,
    FlaskFileSystemCollector,
    MPIFileSystemCollector,
    create_comm_collector,
)
from hpcdi.worker.collector.eval_monitor import VectorEvalMonitor
from hpcdi.worker.collector.evaluation import (
    BattleInteractionSerialEvaluator,
    InteractionSerialEvaluator,
    ISerialEvaluator,
    create_serial_evaluator,
)
from hpcdi.worker.collector.metric_serial_evaluator import IMetric, MetricSerialEvaluator
from hpcdi.worker.collector.parallel_collectors import (
    MarineParallelCollector,
    ZerglingParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
)
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
