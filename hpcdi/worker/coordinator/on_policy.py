"""Learning on-policy: a batch is all that the collectors made by policies that are new enough.

One round, with a staleness bound of 0::

    learner: policy v ──► each collector: a piece by v ──► learner: a batch of all pieces ──► v + 1
                                               (a collector waits for a newer policy meanwhile)

Rank 0 gates: the batch goes when every rank that is collecting has given its piece. What an older
policy made is dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

from hpcdi.comm.messages import Batches, BlockAdmitted
from hpcdi.worker.coordinator.partition import Partition, collector_of


class OnPolicyPartition(Partition):
    """One learner's part: each item is drawn once, and together with all others.

    Args:
        buffer: index of its items; see `on_policy_buffer` for its settings.
        block_bytes: size at which collectors seal a block.
    """

    def __init__(self, buffer: Any, block_bytes: int) -> None:
        super().__init__(buffer, block_bytes)
        self._given: dict[int, int] = {}
        """Collector rank -> policy version of its newest piece, of those not drawn yet."""
        self._end_id = 0

    def admit(self, admitted: BlockAdmitted) -> int:
        """Put a block's items into the index, and remember whose they are."""
        count = super().admit(admitted)
        held = self._held.get(admitted.block_id)
        if count and held is not None:
            version = int(held.ready.items["policy_version"].max())
            rank = collector_of(admitted.block_id)
            self._given[rank] = max(version, self._given.get(rank, -1))
            self._end_id = held.end_id
        return count

    def serve(self, env_steps: int, collecting: Collection[int] = ()) -> Batches | None:
        """One batch of everything, when all ranks in `collecting` have given their piece."""
        demand = self._waiting
        if demand is None or not collecting:
            return None
        oldest = demand.train_iter - self.buffer.max_staleness
        missing = [rank for rank in collecting if self._given.get(rank, -1) < oldest]
        # drops what is too old, too
        if missing or self.buffer.why_not_sample(1, demand.train_iter):
            return None
        demand = dataclasses.replace(demand, batches=1, batch_size=self.buffer.count())
        self._waiting = demand
        batch = self._batches(demand, 1, env_steps, among=slice(None))
        self.buffer.evict(self._end_id)
        self._given.clear()
        return batch

    @property
    def blocked(self) -> str:
        """Why its learner waits."""
        return "learner waits for the collectors' pieces" if self.waits else ""


def on_policy_buffer(cfg: Any, pieces: int, piece_rows: int) -> Any:
    """Settings of the index: how old items may be, and room for all pieces under way.

    Args:
        cfg: the replay buffer's settings; without a bound of staleness the bound is 0.
        pieces: collectors.
        piece_rows: the most transitions that one piece can have.
    """
    bound = staleness_bound(cfg)
    size = (bound + 3) * pieces * piece_rows
    return dataclasses.replace(
        cfg, max_staleness=bound, replay_buffer_size=max(size, cfg.replay_buffer_size), min_fill=1,
        thruput_controller=type(cfg.thruput_controller)(),  # a batch is all that there is
    )  # fmt: skip


def staleness_bound(cfg: Any) -> int:
    """Train iterations by which on-policy data may be older than the learner's policy."""
    return int(cfg.max_staleness) if math.isfinite(cfg.max_staleness) else 0
