"""The contract of a collector's message side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from hpcdi.comm.messages import Message
from hpcdi.config.compat import component_class
from hpcdi.config.fields import to_mapping
from hpcdi.store.builder import Segment
from hpcdi.utils.registry import COMM_COLLECTOR_REGISTRY
from hpcdi.worker.collector.base_parallel_collector import (
    BaseParallelCollector,
    create_parallel_collector,
)
from hpcdi.worker.context import WorkerContext
from hpcdi.worker.message_side import MessageSide


class BaseCommCollector(MessageSide):
    """Stands between a parallel collector and the other ranks.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        context: this rank's place in a run.
    """

    role = "collector"

    @abstractmethod
    def get_policy_update_info(
        self, path: str, have_version: int = -1, *, newest: bool = False
    ) -> dict[str, Any] | None:
        """Returns ``{"model", "iter"}`` of a policy newer than `have_version`, else None."""

    @property
    def is_paused(self) -> bool:
        """True while collectors are to wait for learners."""
        return False

    @abstractmethod
    def send_metadata(self, metadata: Message) -> None:
        """Send a message to the coordinator."""

    @abstractmethod
    def send_stepdata(self, path: str, stepdata: Segment) -> None:
        """Queue a segment for the learners."""

    @property
    def collector_uid(self) -> str:
        """Name of this collector, unique on its host."""
        return self._uid

    def _create_collector(self, task_info: Mapping[str, Any]) -> BaseParallelCollector:
        """A parallel collector of ``task_info["collector_cfg"]``; this object is its port."""
        cfg = task_info["collector_cfg"]
        settings = to_mapping(cfg["collector"]) if "collector" in cfg else {}
        rest = {key: value for key, value in cfg.items() if key != "collector"}
        return create_parallel_collector({**settings, **rest}, port=self)


def create_comm_collector(cfg: Any, context: WorkerContext | None = None) -> BaseCommCollector:
    """Make the message side that ``cfg.type`` names.

    Raises:
        UnknownTypeError: no comm collector has that type.
    """
    collector: BaseCommCollector = component_class(COMM_COLLECTOR_REGISTRY, cfg)(cfg, context)
    return collector
