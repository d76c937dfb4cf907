"""Several learners: blocks are dealt out, batches come to all at once, a task is everybody's."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.replay import (
    OF_RANK_3,
    admitted,
    ask_all,
    block,
    demand,
    make_replay,
    on_policy_replay,
    rollout,
)
from fakes.scheduler import COLLECTORS, LEARNERS, TIMEOUTS, Group
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    CloseTask,
    CollectTask,
    DataDemand,
    LearnInfo,
    LearnResult,
    LearnTask,
)
from hpcdi.errors import WorkerSilentError


def served(batches: list[tuple[int, Batches]]) -> dict[int, int]:
    return {rank: len(batch.rows) for rank, batch in batches}


# ------------------------------------------------------------------------------------- the manager


def test_blocks_go_where_the_fewest_rows_went() -> None:
    replay = make_replay()
    replay.open(1, 2)
    lengths = [10, 2, 2, 2, 9, 1]
    given_to = [replay.assign(block(k, [n]))[0][0] for k, n in enumerate(lengths)]
    assert given_to == [1, 2, 2, 2, 2, 1]


def test_nobody_is_served_until_all_can_be() -> None:
    replay = make_replay()
    replay.open(1, 2)
    replay.partitions[1].demand(demand(8, 4))
    for k in range(4):
        replay.assign(block(OF_RANK_3 + k, [8]))
    for k in (0, 2):
        replay.admit(1, admitted(OF_RANK_3 + k))
    assert replay.serve(0, ()) == []  # 2 has not asked
    replay.partitions[2].demand(demand(2, 4))
    assert replay.serve(0, ()) == []  # 2 holds nothing
    replay.admit(2, admitted(OF_RANK_3 + 1))
    assert served(replay.serve(0, ())) == {1: 2, 2: 2}
    assert replay.serve(0, ()) == []
    assert replay.partitions[1].waits  # for six more
    replay.partitions[2].demand(demand(1, 4))
    assert served(replay.serve(0, ())) == {1: 1, 2: 1}


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["ask", "block", "read", "fail"]), st.integers(0, 2)),
        max_size=120,
    )
)
def test_all_have_been_given_the_same_number_of_batches_at_any_time(
    events: list[tuple[str, int]],
) -> None:
    """Whatever comes in whatever order: this is what lets them end together without a word."""
    replay = make_replay(replay_buffer_size=40)
    replay.open(*LEARNERS)
    unread: dict[int, deque[AdmitBlock]] = {rank: deque() for rank in LEARNERS}
    total: Counter[int] = Counter(dict.fromkeys(LEARNERS, 0))
    asked: Counter[int] = Counter()
    for number, (event, index) in enumerate(events):
        rank = LEARNERS[index]
        if event == "ask":
            asked[rank] += 1 + number % 3
            replay.partitions[rank].demand(demand(1 + number % 3, 4))
        elif event == "block":
            for to, order in replay.assign(block(number, [3, 4])):
                unread[to].append(order)
        elif unread[rank]:
            error = "torn" if event == "fail" else ""
            read = unread[rank].popleft()
            unread[rank] += replay.admit(rank, admitted(read.block_id, error))
        total.update(served(replay.serve(0, ())))
        assert len(set(total.values())) == 1
        assert all(total[r] <= asked[r] for r in LEARNERS)


# ---------------------------------------------------------------------------------------- on-policy


def test_every_learner_gets_a_piece_however_unequal_they_are() -> None:
    replay = on_policy_replay(1, 2)
    for version in range(5):
        ask_all(replay, version)
        ((first, _),) = replay.assign(rollout(4, version, version, [2]))
        ((second, _),) = replay.assign(rollout(5, version, version, [9, 9]))
        assert {first, second} == {1, 2}
        replay.admit(first, admitted(rollout(4, version, version).block_id))
        assert replay.serve(0, COLLECTORS) == []  # rank 5's is not read yet
        replay.admit(second, admitted(rollout(5, version, version).block_id))
        sizes = {rank: batch.rows.shape for rank, batch in replay.serve(0, COLLECTORS)}
        assert sizes == {first: (1, 2), second: (1, 18)}


def test_with_fewer_pieces_than_learners_they_wait_for_the_next() -> None:
    """Rank 5 evaluates meanwhile; what it collects afterwards goes to whoever has nothing."""
    replay = on_policy_replay(1, 2)
    ask_all(replay, 0)
    ((first, _),) = replay.assign(rollout(4, 1, 0))
    replay.admit(first, admitted(rollout(4, 1, 0).block_id))
    assert replay.serve(0, [4]) == []
    assert replay.blocked == "learner waits for the collectors' rollouts"
    ((second, _),) = replay.assign(rollout(5, 1, 0))
    assert second != first
    replay.admit(second, admitted(rollout(5, 1, 0).block_id))
    assert {rank for rank, _ in replay.serve(0, COLLECTORS)} == {1, 2}


def test_a_lost_piece_is_made_up_for_where_it_was_lost() -> None:
    replay = on_policy_replay(1, 2)
    ask_all(replay, 0)
    ((first, _),) = replay.assign(rollout(4, 1, 0))
    ((second, _),) = replay.assign(rollout(5, 1, 0))
    replay.admit(first, admitted(rollout(4, 1, 0).block_id))
    replay.admit(second, admitted(rollout(5, 1, 0).block_id, "torn"))
    ((again, _),) = replay.assign(rollout(5, 2, 0))
    assert again == second
    replay.admit(second, admitted(rollout(5, 2, 0).block_id))
    assert len(replay.serve(0, COLLECTORS)) == 2


# ------------------------------------------------------------------------------------ the scheduler


def test_a_learner_task_is_everybodys() -> None:
    group = Group()
    assert group.ready(4, 1, 3) == []
    orders = group.ready(2)
    learn = [order for order in orders if isinstance(order.message, LearnTask)]
    assert [order.rank for order in learn] == [1, 2, 3]
    assert len({order.message for order in learn}) == 1
    assert [order.rank for order in orders if isinstance(order.message, CollectTask)] == [4]


def test_iterations_are_those_that_all_have_done() -> None:
    group = Group()
    task, none = group.task(), np.zeros(0)
    for rank, train_iter in ((1, 30), (3, 20), (2, 25)):
        group.hear(rank, DataDemand(task.task_id, 1, 4, train_iter, none.astype(np.int64), none, 1))
    assert group.main.train_iter == 20
    group.hear(1, LearnInfo(task.task_id, 40, {"loss": 1.0}, {}))
    group.hear(2, LearnInfo(task.task_id, 40, {}, {}))
    assert group.main.train_iter == 20
    group.hear(3, LearnInfo(task.task_id, 41, {"loss": 2.0}, {}))
    assert group.main.train_iter == 40
    shown = [message for _, message in group.seen if isinstance(message, LearnInfo)]
    assert [m.scalars["loss"] for m in shown] == [1.0, 1.0, 1.5]


def test_the_run_ends_when_all_have_done_their_iterations() -> None:
    group = Group()
    task = group.task()
    group.ready(4)
    assert group.hear(1, LearnResult(task.task_id, 50)) == []
    assert group.hear(3, LearnResult(task.task_id, 50)) == []
    (order,) = group.hear(2, LearnResult(task.task_id, 50))
    assert (order.rank, type(order.message)) == (4, CloseTask), "it evaluates before the end"


def test_the_one_that_never_begins_is_named() -> None:
    group = Group()
    task, none = group.task(), np.zeros(0)
    group.ready(*COLLECTORS)
    for rank in (1, 3):
        group.hear(rank, DataDemand(task.task_id, 1, 4, 0, none.astype(np.int64), none, 1))
    group.scheduler.tick(TIMEOUTS.learner_task_s)
    with pytest.raises(WorkerSilentError, match="rank 2 has been silent for 601 s"):
        group.scheduler.tick(TIMEOUTS.learner_task_s + 1)
