"""Collectors of parallel runs by the predecessor's names: they take policies of dicts, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.config.roles import MarineCollectorConfig
from hpcdi.roles.collector import base_parallel_collector as core
from hpcdi.roles.collector.base_parallel_collector import BaseParallelCollector, CollectorPort
from hpcdi.utils.registry import PARALLEL_COLLECTOR_REGISTRY
from hpcdi.worker.collector.base_serial_collector import INF as INF
from hpcdi.worker.dict_policy import columnar_policy
from hpcdi.worker.registered import class_of


class ZerglingParallelCollector(core.ZerglingParallelCollector):
    """See `hpcdi.roles.collector.base_parallel_collector.ZerglingParallelCollector`."""

    def __init__(self, cfg: Mapping[str, Any], port: CollectorPort | None = None) -> None:
        super().__init__({"make_policy": columnar_policy, **cfg}, port)


class MarineParallelCollector(ZerglingParallelCollector):
    """The same, for environments of several players."""

    Config = MarineCollectorConfig


def create_parallel_collector(
    cfg: Mapping[str, Any], port: CollectorPort | None = None
) -> BaseParallelCollector:
    """Make the collector that ``cfg.type`` names, of `cfg` alone; its port is set once it is made.

    Raises:
        UnknownTypeError: no parallel collector has that type.
    """
    return core.of_class(get_parallel_collector_cls(cfg), cfg, port)


def get_parallel_collector_cls(cfg: Mapping[str, Any]) -> Any:
    """The class that ``cfg.type`` names."""
    cls = class_of(PARALLEL_COLLECTOR_REGISTRY, cfg)
    if cls is not core.ZerglingParallelCollector:
        return cls
    is_marine = cfg.get("type", cfg.get("parallel_collector_type")) == "marine"
    return MarineParallelCollector if is_marine else ZerglingParallelCollector
