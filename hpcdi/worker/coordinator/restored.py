"""What a snapshot held of the replay buffer, on its way into partitions that start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.comm.messages import AdmitBlock, BlockReady
from hpcdi.worker.coordinator.partition import Partition


class Restored:
    """A desk's state, and the blocks that are there.

    As many learners as there were, with buffers as large, get the very same partitions. Others
    share the blocks as if they were new: their items have the largest priority again.

    Args:
        state: of a desk; empty: there is nothing to restore.
        published: the blocks that are there, by path, the oldest first.
    """

    def __init__(
        self,
        state: Mapping[str, Any] | None = None,
        published: Mapping[str, BlockReady] | None = None,
    ) -> None:
        self._states: Mapping[str, Any] = (state or {}).get("partitions", {})
        self._published = dict(published or {})

    def into(self, partitions: Mapping[int, Partition]) -> list[tuple[int, AdmitBlock]]:
        """Let partitions be what they were, if they can; gives what learners must read again."""
        states, self._states = self._states, {}
        if len(partitions) != len(states):
            return []
        # in their order: after a death the learners' ranks are others than after a restart
        names = sorted(states, key=lambda name: int(name.removeprefix("rank")))
        pairs = [(rank, states[name]) for rank, name in zip(sorted(partitions), names, strict=True)]
        sizes = {rank: part.buffer.replay_buffer_size for rank, part in partitions.items()}
        if any(state["buffer"]["capacity"] != sizes[rank] for rank, state in pairs):
            return []
        orders = []
        for rank, state in pairs:
            again = partitions[rank].load_state_dict(state, self._published)
            orders += [(rank, order) for order in again]
            for block in state["blocks"]:
                if block["end_id"] >= 0:
                    self._published.pop(block["path"], None)
        return orders

    def rest(self) -> list[BlockReady]:
        """Blocks that are in no partition, the oldest first; once."""
        rest, self._published = self._published, {}
        return list(rest.values())
