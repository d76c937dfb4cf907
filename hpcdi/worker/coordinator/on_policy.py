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
from collections.abc import Mapping
from typing import Any

from hpcdi.comm.messages import AdmitBlock, Batches, BlockAdmitted, BlockReady
from hpcdi.types import collector_of
from hpcdi.worker.coordinator.partition import Partition, Pieces


class OnPolicyPartition(Partition):
    """One learner's part: each item is drawn once, and together with all others.

    Args:
        buffer: index of its items; see `on_policy_buffer` for its settings.
        block_bytes: size at which collectors seal a block.
    """

    is_replay = False

    def __init__(self, buffer: Any, block_bytes: int) -> None:
        super().__init__(buffer, block_bytes)
        self._given: dict[int, int] = {}
        self._pieces: dict[int, bool] = {}  # block id -> whether the learner holds it; undrawn ones
        self._end_id = 0

    def offer(self, ready: BlockReady) -> list[AdmitBlock]:
        """Take a published piece."""
        self._pieces[ready.block_id] = False
        return super().offer(ready)

    def admit(self, admitted: BlockAdmitted) -> int:
        """Put a block's items into the index, and remember whose they are."""
        count = super().admit(admitted)
        held = self._held.get(admitted.block_id)
        self._pieces.pop(admitted.block_id, None)
        if count and held is not None:
            self._pieces[admitted.block_id] = True
            version = int(held.ready.items["policy_version"].max())
            rank = collector_of(admitted.block_id)
            self._given[rank] = max(version, self._given.get(rank, -1))
            self._end_id = held.end_id
        return count

    def ready(self, pieces: Pieces) -> int:
        """One batch of everything, when all ranks that collect have given their piece."""
        demand = self._waiting
        if demand is None or not pieces.collecting:
            return 0
        oldest = demand.train_iter - self.buffer.max_staleness
        if any(pieces.given.get(rank, -1) < oldest for rank in pieces.collecting):
            return 0
        # drops what is too old, too
        return 0 if self.buffer.why_not_sample(1, demand.train_iter) else 1

    def serve(self, batches: int, env_steps: int) -> Batches:
        """See `Partition.serve`; an item is drawn once."""
        if self._waiting is not None:
            self._waiting = dataclasses.replace(
                self._waiting, batches=batches, batch_size=self.buffer.count()
            )
        batch = self._batches(batches, env_steps, among=slice(None))
        self.buffer.evict(self._end_id)
        self._given.clear()
        self._pieces = {
            block_id: False for block_id, is_held in self._pieces.items() if not is_held
        }
        return batch

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        published: Mapping[str, BlockReady],  # noqa: ARG002
    ) -> list[AdmitBlock]:
        """Go on drawing as what gave `state_dict`; pieces are made anew, by the policy of then."""
        self.buffer.load_state_dict(state["buffer"])
        self.buffer.evict(self.buffer.push_count)
        self.samples_drawn = int(state["samples_drawn"])
        return []

    def _is_of_use(self, ready: BlockReady) -> bool:
        return ready.block_id in self._pieces

    @property
    def load(self) -> int:
        """Pieces that are not drawn: in a group of learners each must have one for a batch."""
        return len(self._pieces)

    @property
    def given(self) -> Mapping[int, int]:
        """Part of `Pieces.given` that lies here."""
        return self._given

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
