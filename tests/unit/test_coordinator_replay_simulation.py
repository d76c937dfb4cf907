"""Rank 0 decides which rows a block gets, learners do it later: no batch may name other rows.

The simulation keeps each learner's ring of rows, its inbox and what it has said and rank 0 has not
heard yet, and lets hypothesis choose what happens next. Every row holds a token that says which
transition it is.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.replay import BLOCK_BYTES, block, demand, make_buffer, serve
from hpcdi.comm.messages import AdmitBlock, Batches, BlockAdmitted, BlockReady, Message
from hpcdi.replay.manager import ReplayManager
from hpcdi.replay.partition import item_rows
from hpcdi.types import Array

CAPACITY = 40  # so a full block has 10 rows, and a ring 70
RANKS = (1, 2)
NO_TRANSITION = -1


class SimulatedLearner:
    """A ring that does as it is told, in the order in which it is told."""

    def __init__(self) -> None:
        self.inbox: deque[Message] = deque()
        self.said: deque[Message] = deque()
        self.ring: Array = np.full(0, NO_TRANSITION)
        self.tokens: dict[int, int] = {}  # unique id -> the transition that it names
        self.batches_asked = self.batches_got = 0


class Simulation:
    """A replay manager, two learners, and what is under way between them."""

    def __init__(self) -> None:
        self.replay = ReplayManager(
            lambda name: make_buffer(name, replay_buffer_size=CAPACITY), BLOCK_BYTES
        )
        self.learners = {rank: SimulatedLearner() for rank in RANKS}
        self.blocks: dict[int, tuple[BlockReady, bool]] = {}
        for rank in RANKS:
            assert self.replay.open(rank) == []

    def publish(self, lengths: list[int], *, torn: bool) -> None:
        """A collector announces a block; rank 0 orders a learner to read it."""
        ready = block(len(self.blocks) + 1, lengths)
        self.blocks[ready.block_id] = (ready, torn)
        for rank, order in self.replay.assign(ready):
            self.learners[rank].inbox.append(order)

    def ask(self, rank: int, batches: int, size: int, ids: list[int]) -> None:
        """A learner asks for batches, and gives priorities of items that may be gone by then."""
        learner = self.learners[rank]
        learner.batches_asked += batches
        learner.said.append(demand(batches, size, ids))

    def learn(self, rank: int) -> None:
        """A learner carries out its next order."""
        learner = self.learners[rank]
        if not learner.inbox:
            return
        match learner.inbox.popleft():
            case AdmitBlock() as order:
                learner.said.append(self.read(learner, order))
            case Batches() as order:
                named = [learner.tokens[n] for n in order.unique_ids.reshape(-1).tolist()]
                assert learner.ring[order.rows.reshape(-1)].tolist() == named
                learner.batches_got += len(order.rows)

    def read(self, learner: SimulatedLearner, order: AdmitBlock) -> BlockAdmitted:
        ready, torn = self.blocks[order.block_id]
        more = np.full(order.ring_rows - learner.ring.size, NO_TRANSITION)
        learner.ring = np.concatenate([learner.ring, more])
        assert order.first_row + ready.shard.rows <= learner.ring.size == order.ring_rows
        if torn:
            return BlockAdmitted(order.block_id, 0.0, "torn")
        written = np.full(ready.shard.rows, NO_TRANSITION)
        rows, _ = item_rows(ready, 0)
        written[rows] = tokens_of(ready)
        learner.ring[order.first_row : order.first_row + len(written)] = written
        return BlockAdmitted(order.block_id, 0.0)

    def listen(self, rank: int) -> None:
        """Rank 0 hears a learner's next word, and serves it."""
        learner, partition = self.learners[rank], self.replay.partitions[rank]
        if not learner.said:
            return
        message: Any = learner.said.popleft()
        if isinstance(message, BlockAdmitted):
            first = partition.buffer.places.pushed
            self.replay.admit(rank, message)
            new = range(first, partition.buffer.places.pushed)
            last = tokens_of(self.blocks[message.block_id][0])[-len(new) :] if new else []
            learner.tokens.update(zip(new, last, strict=True))
        else:
            partition.demand(message)
        batches = serve(partition)
        if batches is not None:
            self.check_rows(rank, batches)
            learner.inbox.append(batches)

    def check_rows(self, rank: int, batches: Batches) -> None:
        """Every row is of a block that its learner holds, at the moment of the order."""
        held = [b for b in self.replay.partitions[rank]._placed.values() if b.end_id > 0]
        alive = set[int]()
        for b in held:
            alive.update(item_rows(b.ready, b.first_row)[0].tolist())
        assert set(batches.rows.reshape(-1).tolist()) <= alive

    def drain(self) -> None:
        """Everything that was said is heard, everything that was ordered is done."""
        while any(learner.inbox or learner.said for learner in self.learners.values()):
            for rank in RANKS:
                self.learn(rank)
                self.listen(rank)


def tokens_of(ready: BlockReady) -> list[int]:
    count = int(ready.items["item_len"].sum())
    return [1000 * ready.block_id + k for k in range(count)]


# short items: with their tail rows they fill the ring long before they fill the buffer
lengths = st.lists(st.integers(1, 3), min_size=1, max_size=12)
publishing = st.tuples(st.just("publish"), lengths, st.booleans())
asking = st.tuples(
    st.just("ask"), st.sampled_from(RANKS), st.integers(1, 6), st.integers(1, 8),
    st.lists(st.integers(0, 60), max_size=5),
)  # fmt: skip
going_on = st.tuples(st.sampled_from(["learn", "listen"]), st.sampled_from(RANKS))


def run(events: list[tuple[Any, ...]]) -> Simulation:
    simulation = Simulation()
    for kind, *details in events:
        if kind == "publish":
            simulation.publish(details[0], torn=details[1])
        else:
            getattr(simulation, kind)(*details)
    simulation.drain()
    return simulation


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(publishing, asking, going_on, going_on), min_size=40, max_size=120))
def test_every_row_of_every_batch_is_what_rank_0_thinks(events: list[tuple[Any, ...]]) -> None:
    simulation = run(events)
    for rank, learner in simulation.learners.items():
        waiting = simulation.replay.partitions[rank]._demand
        left = waiting.batches if waiting is not None else 0
        assert learner.batches_got + left == learner.batches_asked  # no request is forgotten


def test_the_simulation_goes_round_the_ring() -> None:
    """A run by hand in which blocks of many sizes give way while others are under way."""
    rng = np.random.default_rng(0)
    events: list[tuple[Any, ...]] = []
    for k in range(400):
        lengths = rng.integers(1, 3, rng.integers(1, 14)).tolist()
        events += [("publish", lengths, k % 7 == 0), ("ask", 1, 2, 4, [k]), ("ask", 2, 2, 4, [])]
        events += [("learn", 1), ("listen", 1)] * 2 + [("learn", 2), ("listen", 2)] * (k % 4)
    simulation = run(events)
    assert all(learner.batches_got > 300 for learner in simulation.learners.values())
    assert len(simulation.replay.partitions[1].take_freed()) > 150
    assert simulation.replay.blocks_lost == 58
