"""Parts of a buffer, at the predecessor's path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdi.config.fields import Parser
from hpcdi.worker.replay_buffer.limits import Limits, ThruputControllerConfig
from hpcdi.worker.replay_buffer.monitor import PeriodicThruput as PeriodicThruputMonitor
from hpcdi.worker.replay_buffer.monitor import SampledData as SampledDataAttrMonitor

__all__ = [
    "PeriodicThruputMonitor",
    "SampledDataAttrMonitor",
    "ThruputController",
    "UsedDataRemover",
    "generate_id",
]


def generate_id(name: str, data_id: int) -> str:
    """The ``replay_unique_id`` of a buffer's item."""
    return f"{name}_{data_id}"


class UsedDataRemover:
    """Removes data files that are named to it: at once after `start`, else at `close`."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._is_on = False

    def start(self) -> None:
        """Remove files at once from now on."""
        self._is_on = True
        self._remove()

    def close(self) -> None:
        """Remove what still waits."""
        self._remove()
        self._is_on = False

    def add_used_data(self, data: Mapping[str, Any]) -> None:
        """Remove the file of an item, its ``data_id``."""
        self._waiting.append(str(data["data_id"]))
        if self._is_on:
            self._remove()

    def _remove(self) -> None:
        while self._waiting:
            Path(self._waiting.pop()).unlink(missing_ok=True)


class ThruputController:
    """Says whether items may be pushed or drawn, by their rate over the last seconds.

    Args:
        cfg: ``push_sample_rate_limit`` with ``min`` and ``max``, and ``window_seconds``.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        config = Parser().parse(ThruputControllerConfig, cfg)
        self._limits = Limits(config, 0)

    def can_push(self, push_size: int) -> tuple[bool, str]:
        """Whether so many items may be pushed, and the reason."""
        reason = self._limits.why_not_push(push_size)
        return not reason, reason or "Can push."

    def can_sample(self, sample_size: int) -> tuple[bool, str]:
        """Whether so many items may be drawn, and the reason."""
        reason = self._limits.why_not_draw(sample_size, 1 << 62)
        return not reason, reason or "Can sample."

    def note(self, pushed: int = 0, drawn: int = 0) -> None:
        """Items were pushed, or drawn."""
        self._limits.note(pushed, drawn)

    def close(self) -> None:
        """Nothing runs in the background."""
