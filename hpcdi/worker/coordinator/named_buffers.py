"""Buffers by name, for callers that push and draw items one by one (the seeds' `deal_with_*`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcdi.comm.messages import ItemReady
from hpcdi.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer


class NamedBuffers:
    """Items' metadata; the data themselves lie in files that ``data_id`` names.

    Args:
        make_buffer: makes the buffer of a name.
    """

    def __init__(self, make_buffer: Callable[[str], AdvancedReplayBuffer]) -> None:
        self._make_buffer = make_buffer
        self._buffers: dict[str, AdvancedReplayBuffer] = {}

    def push(self, ready: ItemReady) -> None:
        """Put one item's metadata into the buffer of its name, which is made by the first one."""
        buffer = self._buffers.get(ready.buffer_id)
        if buffer is None:
            buffer = self._buffers[ready.buffer_id] = self._make_buffer(ready.buffer_id)
        buffer.push({**ready.metadata, "data_id": ready.data_id}, -1)

    def sample(
        self, buffer_id: str, batch_size: int, train_iter: int
    ) -> list[dict[str, Any]] | None:
        """Draw items' metadata; None where there are not enough, or there is no such buffer."""
        buffer = self._buffers.get(buffer_id)
        return None if buffer is None else buffer.sample(batch_size, train_iter)

    def update(self, buffer_id: str, priority_info: Mapping[str, Any]) -> None:
        """Take new priorities of items."""
        if buffer_id in self._buffers:
            self._buffers[buffer_id].update(priority_info)

    def take_needed(self) -> list[str]:
        """Data ids that a buffer's items have now and had not, since the last call.

        Only buffers with `enable_track_used_data` say so, here and in `take_freed`.
        """
        return [data_id for buffer in self._buffers.values() for data_id in buffer.take_new()]

    def take_freed(self) -> list[str]:
        """Data ids that a buffer's items have no more, since the last call."""
        return [data_id for buffer in self._buffers.values() for data_id in buffer.take_used()]

    def close(self, buffer_id: str) -> None:
        """Drop a buffer; its files stay."""
        self._buffers.pop(buffer_id, None)

    def state_dict(self) -> dict[str, Any]:
        """State of each buffer, by name."""
        return {name: buffer.state_dict() for name, buffer in self._buffers.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the buffers of a `state_dict` instead of those that are there."""
        self._buffers.clear()
        for name, state in state_dict.items():
            self._buffers[name] = self._make_buffer(name)
            self._buffers[name].load_state_dict(state)
