"""The replay buffers of a serial run, and the shards that hold the same data.

What one policy collects in columns is published as over ranks: it stays on disk, a snapshot names
the shards instead of copying the buffer, and `hpcdi train` reads the same snapshot. Items of a
policy of dicts, or of a battle, are in the snapshot itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.comm.codec import to_bytes
from hpcdi.comm.messages import BlockReady
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import BufferContractError, StoreError
from hpcdi.replay.manager import ReplayFigures
from hpcdi.replay.partition import HeldBlock, item_count, item_rows, make_placer
from hpcdi.replay.placer import RowPlacer
from hpcdi.roles.collector.channels import DataPublisher
from hpcdi.store.block import Block
from hpcdi.store.builder import Segment
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.layout import RunLayout
from hpcdi.store.rows import sequences, transitions
from hpcdi.transport import open_transport
from hpcdi.types import Columns
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER

_PARTITION = "rank1"
"""Name of the buffer in a snapshot: that of a first learner's partition."""


class LocalReplay(Closing):
    """The replay buffers of a run in one process, in the place of a `ReplayManager`.

    Args:
        config: the experiment.
        layout: the run folder.
        buffers: of each agent; none where data are used once, as they come.
        columnar: whether what is collected are columns, of one agent.
        restarts: how often the run was resumed.
        patience: with a full disk.

    Attributes:
        items_admitted: items that were ever pushed.
        drawn: items that were ever drawn.
        unpublished: transitions that are in no shard: not yet, or the disk had no room.
        published: announcements of blocks since they were last taken from here.
    """

    blocks_lost = 0

    def __init__(
        self,
        config: ExperimentConfig,
        layout: RunLayout,
        buffers: Sequence[Any],
        *,
        columnar: bool,
        restarts: int,
        patience: DiskPatience,
    ) -> None:
        self.items_admitted = self.drawn = self.unpublished = 0
        self.published: deque[BlockReady] = deque()
        self._config, self._buffers = config, list(buffers)
        self._fetch = open_transport(config.system, layout).fetch
        self._blocks: deque[HeldBlock] = deque()  # those of the buffer's items, oldest first
        self._end_id = 0  # of the last item in `_blocks`
        self._freed: list[str] = []
        self._data: DataPublisher | None = None
        if columnar and buffers and hasattr(buffers[0], "index_state"):
            self._data = DataPublisher(
                config, layout, 0, self.published.append, restarts=restarts, patience=patience
            )
            self._data.begin("serial")

    # ------------------------------------------------------------------------------------ data

    def publish(self, segment: Segment) -> None:
        """Write collected rows to disk, sooner or later, in the order in which they are pushed.

        Raises:
            ShardError: an earlier block could not be written.
        """
        if self._data is not None:
            self.unpublished += int(segment.items["item_len"].sum())
            self._data.put(segment)

    def flush(self) -> None:
        """Wait until all rows are on disk.

        Raises:
            StoreError: they cannot be written.
        """
        if self._data is not None:
            self._data.flush()

    def take_published(self) -> list[BlockReady]:
        """Returns the blocks that were written since the last call."""
        taken = []
        while self.published:
            ready = self.published.popleft()
            self.unpublished -= ready.transitions
            self._hold(ready)
            taken.append(ready)
        return taken

    def _hold(self, ready: BlockReady) -> None:
        """Note that the next items are those of a block."""
        items = item_count(ready, self._config.policy.sequence)
        first, self._end_id = self._end_id, self._end_id + items
        self._blocks.append(HeldBlock(ready, -1, first, self._end_id))

    def take_freed(self) -> list[str]:
        """Returns the names of blocks that have left the buffer since the last call."""
        freed, self._freed = self._freed, []
        if self._data is not None:
            first = self._buffers[0].first_id
            while self._blocks and self._blocks[0].end_id <= first:
                freed.append(self._blocks.popleft().ready.shard.path)
        return freed

    def close(self) -> None:
        """Write what is not written yet, and close the buffers. Idempotent."""
        for buffer in self._buffers:
            buffer.close()  # its last report goes to the curves, which are closed later
        if self._data is not None:
            self._data.close()

    # --------------------------------------------------------------------------------- figures

    @property
    def blocked(self) -> str:
        """The reason why nothing can be drawn; empty: something can."""
        return str(getattr(self._buffers[0], "blocked", "")) if self._buffers else ""

    def figures(self) -> ReplayFigures:
        """Returns figures, of items those of the first agent."""
        items = int(self._buffers[0].count()) if self._buffers else 0
        return ReplayFigures(
            items, self.capacity(), self.drawn, self.items_admitted, self.blocks_lost
        )

    def capacity(self) -> int:
        """Returns the number of items that a buffer can hold; 0: there is none."""
        return int(self._buffers[0].replay_buffer_size) if self._buffers else 0

    # ----------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as a `ReplayManager` does; call `flush` and `take_published` before."""
        state: dict[str, Any] = {"partitions": {}, "waiting": [], "agents": {}}
        if self._data is not None:
            state["partitions"] = {_PARTITION: self._partition()}
        else:
            state["agents"] = {
                str(agent): _for_file(buffer.state_dict())
                for agent, buffer in enumerate(self._buffers)
            }
        return {**state, "drawn": self.drawn}

    def _partition(self) -> dict[str, Any]:
        """Returns the buffer as a learner's partition: its blocks follow each other in a ring."""
        buffer, blocks = self._buffers[0], list(self._blocks)
        if self._end_id < buffer.push_count:  # the disk had no room for the last ones
            buffer.evict(buffer.push_count, self._end_id)
        rule = self._config.policy.sequence
        placer, rows = None, np.full(buffer.push_count - buffer.first_id, -1, np.int32)
        if blocks:
            size, block_bytes = self.capacity(), self._config.system.storage.block_bytes
            placer = make_placer(size, block_bytes, blocks[0].ready, rule)
            placer = RowPlacer(max(placer.capacity, sum(b.ready.shard.rows for b in blocks)))
            for block in blocks:
                ready = block.ready
                block.first_row = placer.place(ready.block_id, ready.shard.rows).first_row
                own, _ = item_rows(ready, block.first_row, rule)
                at = block.first_id - buffer.first_id
                rows[max(at, 0) : at + len(own)] = own[max(-at, 0) :]
        return {
            "buffer": buffer.index_state(),
            "rows": rows,
            "ring": {} if placer is None else placer.state_dict(),
            "blocks": [block.state_dict() for block in blocks],
            "samples_drawn": self.drawn,
            "waiting": [],
            "offered": self.items_admitted,
        }

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady]
    ) -> None:
        """Load the `state_dict` of a serial run or of one over ranks.

        Where the buffer has another size, or there were several learners, the blocks are pushed as
        if they were new, and so are those that were published after the state was saved.

        Args:
            state: the state.
            published: the blocks that exist, by name, oldest first.
        """
        for agent, saved in state.get("agents", {}).items():
            self._buffers[int(agent)].load_state_dict(saved)
        if self._data is None:
            self._freed += published
            return
        fresh, parts = dict(published), list(state["partitions"].values())
        self.drawn = sum(int(part["samples_drawn"]) for part in parts)
        self.items_admitted = sum(int(part["offered"]) for part in parts)
        if [part["buffer"]["capacity"] for part in parts] == [self.capacity()]:
            self._restore(parts[0], fresh)
        for ready in fresh.values():
            columns = self._columns(ready)
            if columns is not None:
                _, versions = item_rows(ready, 0, self._config.policy.sequence)
                self._buffers[0].push_columns(columns, versions)
                self._hold(ready)

    def _restore(self, part: Mapping[str, Any], fresh: dict[str, BlockReady]) -> None:
        """Restore the buffer from its blocks, which are taken out of `fresh`."""
        ids = part["buffer"]["ring"]["ids"]
        first_id = self._end_id = int(ids["first"])
        gone: list[range] = []

        def zeros(end_id: int, like: Columns) -> Iterator[Columns]:
            """Yields zeros in place of items whose block is gone."""
            if end_id > self._end_id:
                gone.append(range(self._end_id, end_id))
                yield {n: np.zeros((len(gone[-1]), *c.shape[1:]), c.dtype) for n, c in like.items()}

        def pieces() -> Iterator[Columns]:
            columns: Columns | None = None
            for saved in sorted(part["blocks"], key=lambda block: int(block["first_id"])):
                begin, end = int(saved["first_id"]), int(saved["end_id"])
                if end < 0 or saved["path"] not in fresh:  # unread, so as good as new; or gone
                    continue
                ready = fresh.pop(saved["path"])
                is_needed = ready.shard.crc32 == saved["crc32"] and end > first_id
                found = self._columns(ready, is_needed=is_needed)
                if found is None:
                    continue
                columns = {
                    name: column[max(first_id - begin, 0) :] for name, column in found.items()
                }
                yield from zeros(max(begin, first_id), columns)
                yield columns
                self._blocks.append(HeldBlock(ready, -1, begin, end))
                self._end_id = end
            if columns is not None:
                yield from zeros(int(ids["pushed"]), columns)

        try:
            self._buffers[0].load_state_with(part["buffer"], pieces())
        except BufferContractError as error:
            LOGGER.warning("the buffer begins empty: its shards do not hold its items (%s)", error)
            self._freed += [block.ready.shard.path for block in self._blocks]
            self._blocks.clear()
            self._end_id = self._buffers[0].push_count
            return
        self._end_id = int(ids["pushed"])
        for ids_gone in gone:
            self._buffers[0].evict(ids_gone.stop, ids_gone.start)

    def _columns(self, ready: BlockReady, *, is_needed: bool = True) -> Columns | None:
        """Returns a block's transitions; frees it where it is not needed or cannot be read."""
        try:
            rows = self._fetch(ready.shard) if is_needed else {}
        except StoreError as error:
            LOGGER.warning("%s; it is left out", error)
            self.blocks_lost += 1
            rows = {}
        if not rows:
            self._freed.append(ready.shard.path)
            return None
        columns = transitions(Block(rows, ready.items, {}, ready.shard.views, ready.tail_rows))
        return sequences(columns, self._config.policy.sequence.length)


def _for_file(state: dict[str, Any]) -> dict[str, Any]:
    """Returns a buffer's state with its items as bytes, where they are objects, such as lists."""
    items = state["ring"]["items"]
    if "objects" in items:
        state["ring"]["items"] = {"encoded": to_bytes(items["objects"])}
    return state
