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
        self._files: dict[str, set[str]] = {}  # of each buffer: data ids that its items have
        self._needed: list[str] = []

    def push(self, ready: ItemReady) -> None:
        """Put one item's metadata into the buffer of its name, which is made by the first one."""
        buffer = self._buffers.get(ready.buffer_id)
        if buffer is None:
            buffer = self._buffers[ready.buffer_id] = self._make_buffer(ready.buffer_id)
            self._files[ready.buffer_id] = set()
        buffer.push({**ready.metadata, "data_id": ready.data_id}, -1)
        if ready.data_id not in self._files[ready.buffer_id]:
            self._files[ready.buffer_id].add(ready.data_id)
            self._needed.append(ready.data_id)

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
        """Data ids that a buffer's items have now and had not, since the last call."""
        needed, self._needed = self._needed, []
        return needed

    def take_freed(self) -> list[str]:
        """Data ids that a buffer's items have no more, since the last call.

        Only buffers with `enable_track_used_data` say so.
        """
        freed = []
        for name, buffer in self._buffers.items():
            gone = buffer.take_used()
            self._files[name].difference_update(gone)
            freed += gone
        return freed

    def close(self, buffer_id: str) -> None:
        """Drop a buffer; its files stay."""
        self._buffers.pop(buffer_id, None)
        self._files.pop(buffer_id, None)

    def state_dict(self) -> dict[str, Any]:
        """State of each buffer, by name."""
        return {name: buffer.state_dict() for name, buffer in self._buffers.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the buffers of a `state_dict` instead of those that are there."""
        self._buffers.clear()
        for name, state in state_dict.items():
            self._buffers[name] = self._make_buffer(name)
            self._buffers[name].load_state_dict(state)
            items = state["ring"]["items"].get("objects", [])
            self._files[name] = {item["data_id"] for item in items if item is not None}
            self._needed += sorted(self._files[name])
