"""What flows through a collector's message side: blocks out, policies in."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.clock import Clock
from fakes.collector_channels import (
    FOREVER_S,
    LEARNER,
    OTHER_LEARNER,
    Counter,
    Learner,
    policy_update,
    values_of,
)
from fakes.worker_world import experiment
from hpcdi.comm.messages import BlockReady, BlockStored, PolicyRequest
from hpcdi.config.compiled import compile_config
from hpcdi.config.schema import StorageConfig
from hpcdi.errors import BufferContractError, CommError, ShardError
from hpcdi.roles.collector import channels
from hpcdi.roles.collector.channels import DataPublisher
from hpcdi.store.layout import RunLayout
from hpcdi.store.segment import Segment
from hpcdi.store.shards import read_block
from hpcdi.transport.mpi import MpiTransport
from hpcdi.transport.shared import SharedMemoryTransport
from hpcdi.types import ITEM_DTYPE, RowView

AT_ONCE_S = 1e-9


# ----------------------------------------------------------------------------------- DataPublisher


def publisher(
    root: Path, announced: list[BlockReady], seal_seconds: float = FOREVER_S, rank: int = 3
) -> DataPublisher:
    """Blocks hold 100 rows (a quarter of the buffer): 25 items of `Counter`."""
    storage = {"seal_seconds": seal_seconds, "fsync": False}
    made = DataPublisher(
        experiment(system={"storage": storage}), RunLayout(root), rank, announced.append
    )
    made.begin("task")
    return made


def test_blocks_in_memory_can_be_read_before_they_are_stored(tmp_path: Path) -> None:
    announced: list[BlockReady | BlockStored] = []
    transport = SharedMemoryTransport(RunLayout(tmp_path))
    config = experiment(system={"storage": {"fsync": False}})
    counter = Counter()
    with DataPublisher(
        config, RunLayout(tmp_path), 3, announced.append, transport=transport
    ) as made:
        made.begin("task")
        made.put(counter.segment(7))
        made.seal()
        assert isinstance(announced[0], BlockReady)
        rows = transport.fetch(announced[0].shard)
        made.store()
    ready, stored = announced
    assert isinstance(ready, BlockReady)
    assert isinstance(stored, BlockStored)
    assert (ready.block_id, ready.shard.rows) == (stored.block_id, stored.shard.rows)
    assert (ready.is_open, ready.shard.is_shared, stored.shard.is_shared) == (True, True, False)
    again = transport.fetch(stored.shard)
    assert {name: rows[name].tolist() for name in rows} == {n: again[n].tolist() for n in again}


@pytest.mark.parametrize("kind", [SharedMemoryTransport, MpiTransport])
def test_what_is_lent_stays_until_it_is_stored_however_many_blocks_come_at_once(
    tmp_path: Path, kind: type[SharedMemoryTransport | MpiTransport]
) -> None:
    transport = kind(RunLayout(tmp_path), StorageConfig(fsync=False))
    transport._before = lambda: time.sleep(0.005)  # a slow disk
    unstored: dict[int, BlockReady] = {}
    seen: list[int] = []

    def announce(message: BlockReady | BlockStored) -> None:
        if isinstance(message, BlockStored):
            del unstored[message.block_id]
            return
        unstored[message.block_id] = message
        seen.append(message.block_id)
        for ready in list(unstored.values()):
            request = transport.request(ready.shard)
            assert transport.fetch(ready.shard, request and transport.answer(request))

    config = experiment(system={"storage": {"fsync": False}})
    with DataPublisher(config, RunLayout(tmp_path), 3, announce, transport=transport) as made:
        made.begin("task")
        made.put(Counter().segment(500))
        made.store()
    assert len(seen) == 20
    assert not unstored


def test_what_is_learnt_from_once_and_not_kept_is_lent_and_never_written(tmp_path: Path) -> None:
    announced: list[BlockReady | BlockStored] = []
    storage = StorageConfig(keep_data=False)
    transport = SharedMemoryTransport(RunLayout(tmp_path), storage)
    config = dataclasses.replace(
        experiment(system={"storage": {"keep_data": False}}),
        policy=compile_config({"env": {"env_id": "x"}, "policy": {"type": "ppo"}}).config.policy,
    )
    counter = Counter()
    with DataPublisher(
        config, RunLayout(tmp_path), 3, announced.append, transport=transport
    ) as made:
        made.begin("task")
        for _ in range(12):  # more than stay lent where they follow in shards
            made.put(counter.segment(7))
            made.seal()
    assert len(announced) == 12
    assert all(isinstance(ready, BlockReady) and ready.shard.is_shared for ready in announced)
    assert all(transport.fetch(ready.shard) for ready in announced)
    assert not list(tmp_path.rglob("*.h5"))


def test_a_rollout_that_is_longer_than_planned_is_one_block(tmp_path: Path) -> None:
    """Its learner would draw a batch of the first block, and drop the second as too old."""
    policy = {"type": "ppo", "collect": {"n_sample": 5}, "learn": {"batch_size": 5}}
    config = dataclasses.replace(
        experiment(),
        policy=compile_config({"env": {"env_id": "x"}, "policy": policy}).config.policy,
    )
    announced: list[BlockReady] = []
    counter = Counter()
    with DataPublisher(config, RunLayout(tmp_path), 3, announced.append) as made:
        made.begin("task")
        for items in (5, 7, 6, 40):  # the last one as of many seats
            made.put(counter.segment(items))
    assert [ready.shard.rows for ready in announced] == [20, 28, 24, 160]
    assert values_of(tmp_path, announced) == list(range(counter.made))


def test_blocks_are_sealed_when_full_and_the_rest_at_the_end(tmp_path: Path) -> None:
    announced: list[BlockReady] = []
    counter = Counter()
    with publisher(tmp_path, announced) as made:
        for _ in range(9):
            made.put(counter.segment(7))
        assert made.report()["blocks"] == 2
    assert [len(ready.items) for ready in announced] == [25, 25, 13]
    assert [ready.shard.rows for ready in announced] == [100, 100, 52]
    assert values_of(tmp_path, announced) == list(range(counter.made))
    waited_s = made._writer.waited_s
    assert made.report() == {"blocks": 3, "blocks_lost": 0, "waited_for_disk_s": waited_s}


def test_what_is_announced_of_a_block_stands_in_its_shard(tmp_path: Path) -> None:
    announced: list[BlockReady] = []
    with publisher(tmp_path, announced) as made:
        made.put(Counter().segment(2))
    (ready,) = announced
    assert (ready.task_id, ready.tail_rows) == ("task", 1)
    block = read_block(tmp_path / ready.shard.path)
    facts = {"collector_rank": 3, "seed": 0, "task_id": "task"}
    assert {name: block.facts[name] for name in facts} == facts
    assert (block.facts["block_id"], block.facts["sealed_at"]) == (ready.block_id, ready.sealed_at)
    assert block.items.tolist() == ready.items.tolist()
    assert block.views == ready.shard.views == (RowView("next", "value", "offset"),)
    assert ready.shard.path.startswith("data/rank00003/")


def test_ids_are_unique_over_blocks_and_collectors(tmp_path: Path) -> None:
    blocks: list[int] = []
    items: list[int] = []
    for rank in (2, 3):
        announced: list[BlockReady] = []
        with publisher(tmp_path, announced, rank=rank) as made:
            for _ in range(3):
                made.put(Counter().segment(20))
        blocks += [ready.block_id for ready in announced]
        items += [item for ready in announced for item in ready.items["item_id"].tolist()]
    assert len(set(blocks)) == len(blocks) == 6
    assert len(set(items)) == len(items) == 120


def test_blocks_that_one_segment_fills_have_ids_and_files_of_their_own(tmp_path: Path) -> None:
    announced: list[BlockReady] = []
    counter = Counter()
    with publisher(tmp_path, announced) as made:
        made.put(counter.segment(80))  # three full blocks and a rest
        assert made.report()["blocks"] == 3
        made.put(counter.segment(80))
    ids = [ready.block_id for ready in announced]
    assert len(ids) == len(set(ids)) == len({ready.shard.path for ready in announced}) == 7
    assert values_of(tmp_path, announced) == list(range(counter.made))


def test_blocks_are_sealed_by_age(tmp_path: Path) -> None:
    """The first row of a block is younger than any age; with the next segment it is old enough."""
    announced: list[BlockReady] = []
    with publisher(tmp_path, announced, AT_ONCE_S) as made:
        counter = Counter()
        for _ in range(4):
            made.put(counter.segment(2))
    assert [len(ready.items) for ready in announced] == [4, 4]


def test_the_rest_of_a_segment_that_filled_a_block_is_as_young_as_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(channels, "time", clock)
    announced: list[BlockReady] = []
    with publisher(tmp_path, announced, seal_seconds=40.0) as made:  # the second block's age: 10
        counter = Counter()
        for now, items in ((0.0, 20), (4.0, 7), (13.0, 1), (14.0, 1)):
            clock.now = now
            made.put(counter.segment(items))
    assert [len(ready.items) for ready in announced] == [25, 4]
    assert [ready.sealed_at for ready in announced] == [4.0, 14.0]


def test_the_first_blocks_are_sealed_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that learning begins; later ones are as old as they may be, also after thousands."""
    clock = Clock()
    monkeypatch.setattr(channels, "time", clock)
    announced: list[BlockReady] = []
    with publisher(tmp_path, announced, seal_seconds=8.0) as made:
        counter = Counter()
        for second in range(33):
            clock.now = float(second)
            made._blocks *= 1000 if second == 20 else 1
            made.put(counter.segment(0 if second == 32 else 1))
    ages = np.diff([0.0, *(ready.sealed_at for ready in announced)])
    assert ages.tolist()[:3] == [1.0, 3.0, 5.0], "1, 2 and 4 s, from the next segment on"
    assert set(ages.tolist()[3:-1]) == {9.0}


def test_one_that_waits_for_learners_hands_over_what_it_has_and_soon_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(channels, "time", clock)
    announced: list[BlockReady] = []
    with publisher(tmp_path, announced, seal_seconds=64.0) as made:
        made._blocks = 1000  # no early ones any more
        counter = Counter()
        for second in range(101, 112):
            clock.now = float(second)
            made.put(counter.segment(1))
            if second == 105:
                made.rest()
                made.rest()  # again and again, while it waits
    ages = [(len(ready.items), ready.sealed_at) for ready in announced]
    assert ages[:3] == [(5, 105.0), (2, 107.0), (3, 110.0)], "1 and 2 s, from the next segment on"


def test_rows_are_published_under_the_task_that_made_them(tmp_path: Path) -> None:
    announced: list[BlockReady] = []
    with publisher(tmp_path, announced) as made:
        counter = Counter()
        made.put(counter.segment(2))
        made.begin("evaluation")
        made.begin("task 2")
        made.put(counter.segment(1))
    assert [(ready.task_id, len(ready.items)) for ready in announced] == [
        ("task", 2),
        ("task 2", 1),
    ]
    assert values_of(tmp_path, announced) == list(range(9))


def test_nothing_put_is_nothing_published(tmp_path: Path) -> None:
    announced: list[BlockReady] = []
    made = publisher(tmp_path, announced)
    made.seal()
    made.close()
    made.close()
    assert announced == []
    assert made.report()["blocks"] == 0


def test_an_item_that_is_larger_than_a_block_is_refused(tmp_path: Path) -> None:
    table = np.zeros(1, dtype=ITEM_DTYPE)
    table["item_len"] = 101
    with (
        publisher(tmp_path, []) as made,
        pytest.raises(BufferContractError, match="an item of 101 rows does not fit"),
    ):
        made.put(Segment({"value": np.zeros(101)}, table))


def test_a_file_system_that_refuses_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    announced: list[BlockReady] = []
    made = publisher(tmp_path, announced)
    made.put(Counter().segment(1))
    with pytest.raises(ShardError, match=r"data/rank00003/.*h5: cannot be written"):
        made.close()
    assert announced == []
    made.close()


# -------------------------------------------------------------------------------- PolicySubscriber


def test_in_a_dead_learners_place_another_is_asked_what_it_did_not_answer() -> None:
    learner = Learner()
    learner.policies.newer_than(-1)
    learner.policies.lose(7)  # a collector
    learner.policies.lose(LEARNER)
    assert learner.asked == [LEARNER, OTHER_LEARNER]
    assert learner.requests == [PolicyRequest(-1), PolicyRequest(-1)]
    learner.policies.take(learner.asked[-1], policy_update(4))
    learner.policies.newer_than(4)
    assert learner.asked[2:] == [OTHER_LEARNER]


def test_a_policy_that_was_answered_is_not_asked_for_again_when_the_learner_dies() -> None:
    learner = Learner()
    learner.policies.newer_than(-1)
    learner.policies.take(learner.asked[-1], policy_update(4))
    learner.policies.lose(LEARNER)
    assert learner.asked == [LEARNER]


def test_one_request_at_a_time() -> None:
    learner = Learner()
    for _ in range(3):
        assert learner.policies.newer_than(-1) is None
    assert learner.requests == [PolicyRequest(-1)]
    learner.policies.take(learner.asked[-1], policy_update(4))
    image = learner.policies.newer_than(-1)
    assert image is not None
    assert (image.version, image.data) == (4, b"\4\4\4")
    assert learner.policies.newer_than(4) is None
    assert learner.requests == [PolicyRequest(-1), PolicyRequest(4)]


def test_the_next_request_waits_for_its_time() -> None:
    learner = Learner(every_s=FOREVER_S)
    learner.policies.newer_than(-1)
    learner.policies.take(learner.asked[-1], policy_update(4))
    assert learner.policies.newer_than(-1) is not None
    assert learner.policies.newer_than(4) is None
    assert len(learner.requests) == 1


def test_newest_asks_at_once_even_while_another_request_waits() -> None:
    learner = Learner(every_s=FOREVER_S)
    learner.policies.newer_than(-1)
    learner.on_request = lambda _request: learner.policies.take(learner.asked[-1], policy_update(7))
    image = learner.policies.newest()
    assert image is not None
    assert image.version == 7
    assert learner.requests == [PolicyRequest(-1), PolicyRequest(-1, at_once=True)]
    assert learner.policies.evaluated is image


def test_newest_where_the_learner_has_nothing_newer() -> None:
    """The answer is empty then, and the policy that is here is the newest."""
    learner = Learner()
    learner.on_request = lambda request: learner.policies.take(
        learner.asked[-1], policy_update(7, size=0 if request.have_version == 7 else 3)
    )
    first, again = learner.policies.newest(), learner.policies.newest()
    assert first is not None
    assert again is first
    assert learner.requests[-1] == PolicyRequest(7, at_once=True)


def test_newest_never_waits() -> None:
    learner = Learner()
    assert learner.policies.newest() is None
    assert learner.policies.awaits_newest
    assert learner.policies.newest() is None
    assert learner.requests == [PolicyRequest(-1, at_once=True)]
    assert learner.policies.evaluated is None
    learner.policies.take(learner.asked[-1], policy_update(7))
    image = learner.policies.newest()
    assert image is not None
    assert image.version == 7
    assert not learner.policies.awaits_newest


def test_newest_can_be_given_up() -> None:
    """Whoever asks again later does not get the answer to an old question."""
    learner = Learner()
    assert learner.policies.newest() is None
    learner.policies.give_up()
    learner.policies.take(learner.asked[-1], policy_update(7))
    assert learner.policies.newest() is None
    assert len(learner.requests) == 2


def test_a_learner_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(CommError, match="the learner has not sent its policy within 0 s"):
        Learner(patience_s=0.0).policies.newest()


def test_what_was_evaluated_stays_while_newer_policies_come() -> None:
    learner = Learner()
    answers: list[Any] = [policy_update(7)]
    learner.on_request = lambda _request: learner.policies.take(LEARNER, answers.pop(0))
    learner.policies.newest()
    answers.append(policy_update(8))
    learner.policies.newer_than(7)
    assert learner.policies.evaluated is not None
    assert learner.policies.evaluated.version == 7
    assert learner.policies.image is not None
    assert learner.policies.image.version == 8
