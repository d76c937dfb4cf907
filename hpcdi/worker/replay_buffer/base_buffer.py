"""The contract of all replay buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdi.config.compat import Configurable, component_class
from hpcdi.utils.registry import BUFFER_REGISTRY


class IBuffer(Configurable, ABC):
    """Holds data items, and gives some of them back."""

    @abstractmethod
    def push(self, data: Any, cur_collector_envstep: int) -> None:
        """Add one item, or a list of items; the oldest give way when the buffer is full.

        Args:
            data: an item, or a list of items.
            cur_collector_envstep: environment steps of the run so far.
        """

    @abstractmethod
    def update(self, info: Mapping[str, Any]) -> None:
        """Take in what is known anew of items, e.g. their priorities."""

    @abstractmethod
    def sample(self, batch_size: int, cur_learner_iter: int) -> list[Any] | None:
        """Draw `batch_size` items; None where there are not enough.

        Args:
            batch_size: number of items.
            cur_learner_iter: the learner's current train iteration.
        """

    @abstractmethod
    def clear(self) -> None:
        """Drop all items; counters begin anew."""

    @abstractmethod
    def count(self) -> int:
        """Items that can be drawn."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on as if nothing had happened; copies, not references."""

    @abstractmethod
    def load_state_dict(self, _state_dict: Mapping[str, Any]) -> None:
        """Become the buffer whose `state_dict` this is."""

    @abstractmethod
    def save_data(self, file_name: str | Path) -> None:
        """Write the state to a file that appears whole."""

    @abstractmethod
    def load_data(self, file_name: str | Path) -> None:
        """Become the buffer that a file holds."""


def create_buffer(cfg: Any, *args: Any, **kwargs: Any) -> IBuffer:
    """The buffer that ``cfg.type`` names; other arguments go to its constructor.

    Raises:
        UnknownTypeError: no buffer has that type.
    """
    buffer: IBuffer = get_buffer_cls(cfg)(cfg, *args, **kwargs)
    return buffer


def get_buffer_cls(cfg: Any) -> Any:
    """The class that ``cfg.type`` names."""
    return component_class(BUFFER_REGISTRY, cfg)
