"""What the scheduler does with data and counters; rank 1 learns, the others collect."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fakes.replay import admitted, block, demand
from fakes.scheduler import Run, evaluating
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockAdmitted,
    CloseTask,
    CollectSetting,
    CollectTask,
    Goodbye,
    LearnTask,
    Leave,
    Message,
    Stop,
    WorkerReady,
)
from hpcdi.errors import CommError
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.roles.coordinator.workers import Order, instructions_of

END = Outcome("stopped", "over", 0)

# --------------------------------------------------------------------------------------- progress


def test_progress_is_counted_and_answered_with_the_new_setting() -> None:
    run = Run()
    orders = run.progress(2, 250, version=3)
    assert orders == [Order(2, CollectSetting(run.tasks[2].task_id, {"eps": 0.75}))]
    orders = run.progress(3, 500, version=2)
    assert orders == [Order(3, CollectSetting(run.tasks[3].task_id, {"eps": 0.25}))]
    assert (run.main.env_steps, run.main.episodes) == (750, 2)
    assert run.scheduler.workers.policy_versions == {2: 3, 3: 2}


def test_settings_are_sent_where_they_are_news() -> None:
    run = Run()
    assert run.progress(2, 250) != []
    assert run.progress(2, 0) == []
    assert run.progress(3, 0) == [Order(3, CollectSetting(run.tasks[3].task_id, {"eps": 0.75}))]
    worker = run.scheduler.workers[2]
    array = instructions_of({"mask": np.zeros(3)}, {})
    news = [worker.take_instructions(array), worker.take_instructions(array)]
    assert news == [True, True], "nobody compares arrays"


def test_progress_of_a_task_that_has_ended_is_counted_all_the_same() -> None:
    run = Run()
    old = run.tasks[2]
    run.result(2)
    run.tasks[2] = old
    assert run.progress(2, 40) == []
    assert run.groups.env_steps == 40


def test_an_evaluation_gets_no_setting() -> None:
    assert evaluating().progress(2, 40) == []


def test_iterations_never_go_back() -> None:
    run = Run()
    run.learn_info(10)
    run.ask(1, train_iter=7)
    assert run.main.train_iter == 10


# ------------------------------------------------------------------------------------------- data


def test_the_way_of_a_block() -> None:
    run = Run()
    orders = run.hear(2, block(1, [8]))
    assert [(order.rank, type(order.message)) for order in orders] == [(1, AdmitBlock)]
    assert run.ask(2) == []
    run.progress(2, 33)
    orders = run.hear(1, admitted(1))
    assert [order.rank for order in orders] == [1]
    batches: Any = orders[0].message
    assert isinstance(batches, Batches)
    assert (batches.rows.shape, batches.env_steps) == ((2, 4), 8 + 33)
    assert [type(order.message) for order in run.ask(1)] == [Batches]


def test_a_block_that_came_before_the_learner() -> None:
    run = Run(ready=False)
    run.ready(2)
    assert run.hear(2, block(1, [8])) == []
    orders = run.ready(1)
    assert [type(order.message) for order in orders] == [LearnTask, AdmitBlock, CollectTask]


@pytest.mark.parametrize("message", [demand(1, 4), BlockAdmitted(1, 0.0)])
def test_words_of_a_learner_without_a_partition_are_passed_over(message: Message) -> None:
    assert Run().hear(3, message) == []


def test_a_message_of_a_rank_that_does_not_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(CommError, match="rank 9 is no worker of this run; its workers are 1, 2, 3"):
        Run().hear(9, demand(1, 4))


def test_a_message_about_a_player_that_does_not_learn_is_an_error_that_names_it() -> None:
    message = dataclasses.replace(block(1, [8]), player="exploiter")
    with pytest.raises(CommError, match="no learners of 'exploiter' in this run, but of main"):
        Run().hear(2, message)


def test_rank_0_is_asked_for_some_things_only() -> None:
    with pytest.raises(TypeError, match="rank 0 was asked by a DataDemand"):
        Run().hear(0, demand(1, 4))


def test_stale_priorities_are_counted() -> None:
    run = Run()
    run.hear(1, demand(1, 4, ids=[3, 4]))
    assert run.main.priorities_stale == 2


def test_a_message_that_rank_0_does_not_know_is_an_error() -> None:
    with pytest.raises(TypeError, match="rank 2 sent rank 0 a CloseTask"):
        Run().hear(2, CloseTask("task"))


def test_everything_is_shown_before_it_is_decided() -> None:
    run = Run(ready=False)
    run.ready(1)
    assert run.scheduler.stop(END, 0.0) == [Order(rank, Stop("over")) for rank in (1, 2, 3)]
    assert [run.hear(rank, Goodbye()) for rank in (1, 2, 3)][-1] == [
        Order(rank, Leave(0)) for rank in (1, 2, 3)
    ]
    assert [(rank, type(message)) for rank, message in run.seen] == [
        (1, WorkerReady), (1, Goodbye), (2, Goodbye), (3, Goodbye),
    ]  # fmt: skip
