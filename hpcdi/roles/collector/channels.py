"""Data and policies of a collector rank: blocks are published, policies subscribed to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcdi.comm.messages import BlockReady, PolicyRequest, PolicyUpdate
from hpcdi.config.schema import ExperimentConfig, learners_of
from hpcdi.errors import CommError
from hpcdi.store.block import Block, block_rows
from hpcdi.store.builder import BlockBuilder, Segment
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage
from hpcdi.transport import open_transport
from hpcdi.transport.base import announcement
from hpcdi.types import BLOCK_ID_BITS, MAIN, RESTART_NUMBERS, ShardRef, number_of
from hpcdi.utils.lifetime import Closing

_NEWEST_PATIENCE_S = 60.0
_DOUBLINGS = 3
"""The first block is sealed at an eighth of the usual age, each next one at twice the age of the
one before, so that learning begins early."""


class DataPublisher(Closing):
    """Packs segments into blocks, writes these to shards and announces them.

    Args:
        config: the experiment.
        layout: the run folder.
        rank: of this collector.
        announce: called with each published block's announcement, on the writer's thread.
        restarts: how often the run was resumed.
        patience: with a full disk; None: a full disk is an error.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        layout: RunLayout,
        rank: int,
        announce: Callable[[BlockReady], None],
        *,
        restarts: int = 0,
        patience: DiskPatience | None = None,
    ) -> None:
        storage, policy = config.system.storage, config.policy
        learners = max(learners_of(config).values())
        partition_size = policy.other.replay_buffer.replay_buffer_size // learners
        self._layout, self._announce = layout, announce
        # on-policy a rollout is one block, sent at once: the learner waits for it
        self._seal_s = 0.0 if policy.on_policy else storage.seal_seconds
        first_id = (rank << BLOCK_ID_BITS) + restarts * RESTART_NUMBERS
        self._about: dict[str, Any] = {
            "collector_rank": rank, "seed": config.seed, "block_id": first_id,
        }  # fmt: skip
        self._blocks, self._opened = 0, 0.0
        rollout_rows = 2 * policy.collect.n_sample * config.env.collector_env_num
        self._builder = BlockBuilder(
            lambda row_bytes: (
                rollout_rows
                if policy.on_policy
                else block_rows(storage.block_bytes, row_bytes, partition_size)
            ),
            first_id,
            self._facts,
            # on-policy rows are learnt from once: sharing their frames would not pay
            () if policy.on_policy else policy.other.replay_buffer.frames,
        )
        self._writer = open_transport(config.system, layout).publisher(self._published, patience)

    def begin(self, task_id: str, player: str = MAIN) -> None:
        """Begin another task, of a player; rows of the one before are published."""
        self.seal()
        self._about["task_id"] = task_id
        self._about.pop("player", None)
        if player != MAIN:
            self._about["player"] = player

    def put(self, segment: Segment) -> None:
        """Queue a segment; waits only while too many blocks are on their way to disk.

        Raises:
            BufferContractError: the segment does not fit. ShardError: an earlier block could not be
                written.
        """
        now = time.monotonic()
        if self._builder.is_empty:
            self._opened = now
        for block in self._builder.append(segment):
            self._submit(block)
            self._opened = now
        patience_s = self._seal_s * 2.0 ** min(self._blocks - _DOUBLINGS, 0)
        if now - self._opened >= patience_s:
            self.seal()

    def seal(self) -> None:
        """Publish the open block as it is."""
        block = self._builder.seal()
        if block is not None:
            self._submit(block)

    def flush(self) -> None:
        """Publish everything, and wait until it is announced."""
        self.seal()
        self._writer.flush()

    def close(self) -> None:
        """Publish everything. Idempotent."""
        self.seal()
        self._writer.close()

    def report(self) -> dict[str, Any]:
        """Counts of published and lost blocks, for the goodbye."""
        writer = self._writer
        return {
            "blocks": self._blocks,
            "blocks_lost": writer.lost,
            "waited_for_disk_s": writer.waited_s,
        }

    def _submit(self, block: Block) -> None:
        number = number_of(block.facts["block_id"])
        self._writer.submit(self._layout.shard_path(block.facts["collector_rank"], number), block)

    def _facts(self) -> dict[str, Any]:
        """Attributes of a block that is being sealed; takes the next block number."""
        self._blocks += 1
        block_id = self._about["block_id"] + self._blocks
        return {**self._about, "block_id": block_id, "sealed_at": time.time()}

    def _published(self, shard: ShardRef, block: Block) -> None:
        self._announce(announcement(shard, block))


class PolicySubscriber:
    """Requests policies from a learner, one at a time, and keeps the newest.

    Args:
        ask: sends a request to a rank.
        learners: ranks of the learners; the first that lives is asked.
        every_s: seconds between an answer and the next request.

    Attributes:
        image: the newest policy received.
        evaluated: the policy that `newest` returned last.
    """

    def __init__(
        self, ask: Callable[[int, PolicyRequest], None], learners: Sequence[int], every_s: float
    ) -> None:
        self.image: PolicyImage | None = None
        self.evaluated: PolicyImage | None = None
        self._ask, self._every_s = ask, every_s
        self._learners = list(learners)
        self._asked: PolicyRequest | None = None
        self._answered_at = float("-inf")
        self._answer = threading.Event()

    def take(self, update: PolicyUpdate) -> None:
        """Handle an answer (on the communication thread)."""
        if update.data.size:
            self.image = PolicyImage(update.version, update.data.tobytes())
        self._answered_at, self._asked = time.monotonic(), None
        self._answer.set()

    def newer_than(self, version: int) -> PolicyImage | None:
        """Returns the newest policy if newer than `version`; requests the next one when due."""
        if self._asked is None and time.monotonic() - self._answered_at >= self._every_s:
            self._request(at_once=False)
        image = self.image
        return image if image is not None and image.version > version else None

    def newest(self, give_up: Callable[[], bool]) -> PolicyImage | None:
        """Returns the learner's current policy; waits for the answer.

        Args:
            give_up: whether to stop waiting.

        Raises:
            CommError: the learner does not answer.
        """
        deadline = time.monotonic() + _NEWEST_PATIENCE_S
        self._request(at_once=True)  # replaces a pending request
        while self._asked is not None and not give_up():
            if time.monotonic() > deadline:
                raise CommError(
                    f"the learner has not sent its policy within {_NEWEST_PATIENCE_S:.0f} s"
                )
            self._answer.wait(0.05)
        self.evaluated = image = self.image  # once: the next may come at any moment
        return image

    def _request(self, *, at_once: bool) -> None:
        self._answer.clear()
        have = self.image.version if self.image is not None else -1
        self._asked = request = PolicyRequest(have, at_once)
        self._ask(self._learners[0], request)

    def lose(self, rank: int) -> None:
        """A rank died: ask another learner in its place (on the communication thread)."""
        is_own = rank == self._learners[0]
        self._learners = [learner for learner in self._learners if learner != rank] or [rank]
        asked = self._asked
        if is_own and asked is not None:
            self._ask(self._learners[0], asked)
