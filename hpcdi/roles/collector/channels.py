"""Data and policies of a collector rank: blocks are published, policies requested and relayed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from hpcdi.comm.messages import BlockReady, BlockStored, PolicyRequest, PolicyUpdate
from hpcdi.config.schema import ExperimentConfig, blocks_are_stored, learners_of
from hpcdi.errors import CommError
from hpcdi.store.block import Block, block_rows
from hpcdi.store.builder import BlockBuilder
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage
from hpcdi.store.segment import Segment
from hpcdi.transport import open_transport
from hpcdi.transport.base import Transport, announcement, announcement_of_piece
from hpcdi.types import BLOCK_ID_BITS, MAIN, RESTART_NUMBERS, ShardRef, block_number
from hpcdi.utils.lifetime import Closing

_RELAY_PATIENCE_S = 5.0
"""Seconds after which a learner is asked in the place of a relay that has not answered: it may have
died unnoticed."""
_DOUBLINGS = 3
"""The first block is sealed at an eighth of the usual age, each next one at twice the age of the
one before, so that learning begins early."""
_DOUBLINGS_AFTER_REST = 6
"""The same after a wait for learners, so that rank 0 hears early that they are behind again."""


class DataPublisher(Closing):
    """Packs segments into blocks, writes these to shards and announces them.

    Where the transport lends blocks, they are announced as they are sealed, open ones piece by
    piece, see `flush`, and again when they are stored, see `blocks_are_stored`.

    Args:
        config: the experiment.
        layout: the run folder.
        rank: of this collector.
        announce: called with each announcement; of what is written, on the writer's thread.
        transport: takes the blocks; None: files.
        restarts: how often the run was resumed.
        patience: with a full disk; None: a full disk is an error.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        layout: RunLayout,
        rank: int,
        announce: Callable[[BlockReady | BlockStored], None],
        *,
        transport: Transport | None = None,
        restarts: int = 0,
        patience: DiskPatience | None = None,
    ) -> None:
        storage, policy = config.system.storage, config.policy
        learners = max(learners_of(config).values())
        partition_size = policy.other.replay_buffer.replay_buffer_size // learners
        transport = transport or open_transport(config.system, layout, lends=False)
        self._layout, self._announce, self._lend = layout, announce, transport.lend
        self._lends_open = transport.lends_open
        self._lent = dict[int, list[BlockReady]]()  # announced, but not stored yet; by block
        self._are_stored = blocks_are_stored(config)
        # on-policy a rollout is one block, sent at once: the learner waits for it
        self._seal_s = 0.0 if policy.on_policy else storage.seal_seconds
        first_id = (rank << BLOCK_ID_BITS) + restarts * RESTART_NUMBERS
        self._about = dict[str, Any](collector_rank=rank, seed=config.seed, block_id=first_id)
        self._blocks, self._opened = 0, 0.0
        self._slow_from = _DOUBLINGS  # block from which the age is the usual one
        rollout_rows = 2 * policy.collect.n_sample * config.env.collector_env_num
        rollout_rows += 2 * policy.stack_len * config.env.collector_env_num  # before its steps
        item_ids = itertools.count(first_id)

        def new_builder() -> BlockBuilder:
            return BlockBuilder(
                lambda row_bytes: (
                    rollout_rows
                    if policy.on_policy
                    else block_rows(storage.block_bytes, row_bytes, partition_size)
                ),
                item_ids,
                self._facts,
                # on-policy rows are learnt from once: sharing their frames would not pay
                () if policy.on_policy else policy.other.replay_buffer.frames,
                None if self._lend is None else self._announce_piece,
                # a rollout may be longer than planned: its last step counts in all rows, which are
                # many where there are many seats; rank 0's ring has room for so many
                whole=max(3 * rollout_rows, partition_size) if policy.on_policy else 0,
            )

        self._builders = defaultdict[str, BlockBuilder](new_builder)  # by player
        self._builder = self._builders[MAIN]
        self._writer = transport.publisher(self._published, patience)

    def begin(self, task_id: str, player: str = MAIN) -> None:
        """Begin a task for a player; publish the rows of the one before.

        If open blocks are lent, they stay open, one for each player.
        """
        if not self._lends_open:
            self.seal()
        self._builder = self._builders[player]
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
        for block in self._builder.fill(segment):
            self._submit(block)  # before the next is lent: memory stays until a block is stored
            self._opened = now
        patience_s = self._seal_s * 2.0 ** min(self._blocks - self._slow_from, 0)
        if now - self._opened >= patience_s:
            self.seal()

    def seal(self) -> None:
        """Publish the present player's open block as it is."""
        self._seal(self._builder)

    def rest(self) -> None:
        """The collector waits for learners: they get its open block, and soon hear of the next."""
        self.seal()
        self._slow_from = self._blocks + _DOUBLINGS_AFTER_REST

    def flush(self) -> None:
        """Announce everything; waits for the disk if open blocks cannot be lent."""
        if self._lends_open:
            self._builder.lend()
        else:
            self.store()

    def store(self) -> None:
        """Publish everything, and wait until it is on disk."""
        self._seal(*self._builders.values())
        self._writer.flush()

    def close(self) -> None:
        """Publish everything. Idempotent."""
        self._seal(*self._builders.values())
        self._writer.close()

    def _seal(self, *builders: BlockBuilder) -> None:
        for builder in builders:
            if (block := builder.seal()) is not None:
                self._submit(block)

    @property
    def waited_s(self) -> float:
        """Seconds that `put` has waited for the disk."""
        return self._writer.waited_s

    def report(self) -> dict[str, Any]:
        """Counts of published and lost blocks, for the goodbye."""
        writer = self._writer
        return {
            "blocks": self._blocks,
            "blocks_lost": writer.lost,
            "waited_for_disk_s": self.waited_s,
        }

    def take_lost(self) -> list[BlockReady]:
        """Returns, once, what was announced of blocks that were lost and are in no shard.

        They are known after `store` or `close`, where the run had to end on a full disk; or after
        these have failed.
        """
        if not self._writer.lost:
            return []
        lost, self._lent = self._lent, {}
        return [ready for pieces in lost.values() for ready in pieces]

    def _submit(self, block: Block) -> None:
        if not self._are_stored and block.facts["block_id"] in self._lent:
            del self._lent[block.facts["block_id"]]
            return
        number = block_number(block.facts["block_id"])
        self._writer.submit(self._layout.shard_path(block.facts["collector_rank"], number), block)

    def _facts(self) -> dict[str, Any]:
        """Returns the facts of a new block, with the next block number."""
        self._blocks += 1
        block_id = self._about["block_id"] + self._blocks
        return {**self._about, "block_id": block_id, "sealed_at": time.time()}

    def _published(self, shard: ShardRef, block: Block) -> None:
        ready = announcement(shard, block)
        is_known = self._lent.pop(ready.block_id, None) is not None
        self._announce(BlockStored(ready.block_id, shard, ready.player) if is_known else ready)

    def _announce_piece(self, piece: Block, first_row: int, capacity: int) -> None:
        if self._lend is None:
            return
        block_id = int(piece.facts["block_id"])
        name = self._lend(f"block {block_id} from row {first_row}", piece.columns)
        if name is None:
            return
        ready = announcement_of_piece(name, piece, first_row, capacity)
        self._lent.setdefault(block_id, []).append(ready)
        self._announce(dataclasses.replace(ready, sealed_at=time.time()))


class PolicySubscriber:
    """Requests policies from a learner, one at a time, and keeps the newest.

    Args:
        ask: sends a request to a rank.
        learners: ranks of the learners; the first that lives is asked.
        every_s: seconds between an answer and the next request.
        patience_s: seconds that `newest` may take.
        relay: the collector that is asked in their place, see `PolicyRelay`, unless it is silent;
            None: nobody.
        player: name of the group whose policies they are.

    Attributes:
        image: the newest policy received.
        evaluated: the policy that `newest` returned last.
        awaits_newest: whether `newest` was called, and the answer has not been taken.
    """

    def __init__(
        self,
        ask: Callable[[int, PolicyRequest], None],
        learners: Sequence[int],
        every_s: float,
        patience_s: float = math.inf,
        *,
        relay: int | None = None,
        player: str = MAIN,
    ) -> None:
        self.image: PolicyImage | None = None
        self.evaluated: PolicyImage | None = None
        self.awaits_newest = False
        self._ask, self._every_s, self._patience_s = ask, every_s, patience_s
        self._learners, self._relay, self._player = list(learners), relay, player
        self._asked: PolicyRequest | None = None
        self._asked_rank, self._asked_at = -1, 0.0
        self._is_relay_silent = False
        self._answered_at, self._patient_until = float("-inf"), 0.0

    def take(self, rank: int, update: PolicyUpdate) -> None:
        """Handle an answer (on the communication thread)."""
        is_late = rank != self._asked_rank  # of the relay, and the learner was asked meanwhile
        if rank == self._relay:
            self._is_relay_silent = False
        image = self.image
        if update.data.size and not (is_late and image and image.version >= update.version):
            self.image = PolicyImage(update.version, update.data.tobytes())
        if not is_late:
            self._answered_at, self._asked = time.monotonic(), None

    def newer_than(self, version: int) -> PolicyImage | None:
        """Returns the newest policy if newer than `version`; requests the next one when due."""
        self.ask_when_due()
        image = self.image
        return image if image is not None and image.version > version else None

    def ask_when_due(self) -> None:
        """Request the next policy, if none is requested and it is time.

        Not before `newest` has its answer: it would wait for that of this request.
        """
        now, asked = time.monotonic(), self._asked
        is_due = now - self._answered_at >= self._every_s
        if asked is None and is_due and not self.awaits_newest:
            self._request(at_once=False)
        is_of_relay = asked is not None and self._asked_rank == self._relay
        if asked is not None and is_of_relay and now - self._asked_at > _RELAY_PATIENCE_S:
            self._is_relay_silent = True
            self._send(asked)

    def newest(self) -> PolicyImage | None:
        """Returns the learner's current policy; None while the answer has not come: call again.

        Raises:
            CommError: the learner does not answer.
        """
        if not self.awaits_newest:
            self.awaits_newest = True
            self._patient_until = time.monotonic() + self._patience_s
            self._request(at_once=True)  # replaces a pending request
        if self._asked is not None:
            if time.monotonic() > self._patient_until:
                raise CommError(
                    f"the learner has not sent its policy within {self._patience_s:.0f} s"
                )
            return None
        self.awaits_newest = False
        self.evaluated = image = self.image  # read once: a newer one may come at any moment
        return image

    def give_up(self) -> None:
        """Wait for the answer to `newest` no longer."""
        self.awaits_newest = False

    def _request(self, *, at_once: bool) -> None:
        have = self.image.version if self.image is not None else -1
        self._send(PolicyRequest(have, at_once, self._player))

    def _send(self, request: PolicyRequest) -> None:
        relay = None if request.at_once or self._is_relay_silent else self._relay
        self._asked_rank = relay if relay is not None else self._learners[0]
        self._asked, self._asked_at = request, time.monotonic()
        self._ask(self._asked_rank, request)

    def lose(self, rank: int) -> None:
        """A rank died: ask another in its place (on the communication thread)."""
        self._learners = [learner for learner in self._learners if learner != rank] or [rank]
        if rank == self._relay:
            self._relay = None
        asked = self._asked
        if rank == self._asked_rank and asked is not None:
            self._send(asked)


class PolicyRelay:
    """Hands policies on to the other collectors of a host; called on the communication thread.

    A learner that answers each of thousands of collectors ten times a second would do nothing else.
    So where more collect than ``system.relay_policies_above``, the first collector of a host is the
    relay of the others there: a learner answers as many as there are hosts, and a policy crosses
    the network once for each. A relay asks for what it is asked for, no more often than for itself.
    Evaluations, which need the learner's policy of that moment, ask the learner; so do all of a
    host whose relay has died, or is silent.

    Args:
        subscriber: of this rank, to the policies of one group.
        send: sends an answer to a rank.
        player: the group's name.
    """

    def __init__(
        self,
        subscriber: PolicySubscriber,
        send: Callable[[int, PolicyUpdate], None],
        player: str,
    ) -> None:
        self._subscriber, self._send, self._player = subscriber, send, player
        self._waiting: dict[int, int] = {}  # rank -> version that it has

    def request(self, rank: int, request: PolicyRequest) -> None:
        """Take a collector's request; it is answered as soon as there is a newer policy here."""
        self._waiting[rank] = request.have_version
        self.look()

    def look(self) -> None:
        """Answer who can be answered, and ask the learner for the others when that is due."""
        image = self._subscriber.image
        if image is not None:
            for rank in [rank for rank, have in self._waiting.items() if have < image.version]:
                del self._waiting[rank]
                self._send(rank, PolicyUpdate.of(image.version, image.data, self._player))
        if self._waiting:
            self._subscriber.ask_when_due()

    def forget(self, rank: int) -> None:
        """A collector has died."""
        self._waiting.pop(rank, None)
