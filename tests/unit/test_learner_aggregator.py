"""Several learners, seen as one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fakes.replay import demand
from hpcdi.comm.messages import LearnInfo, LearnResult, LearnTask, WorkerReady
from hpcdi.errors import CommError
from hpcdi.worker import LearnerAggregator
from hpcdi.worker.adapter.learner_aggregator import LearnerAggregatorSlave

TASK = LearnTask("task")


def group(size: int = 2, come: int | None = None) -> LearnerAggregator:
    aggregator = LearnerAggregator({"learner": range(1, size + 1)})
    aggregator.start()
    for rank in range(1, (size if come is None else come) + 1):
        aggregator.join(rank, WorkerReady("learner", "host", 100 + rank, gpus=1, cpus=8))
    return aggregator


def info(train_iter: int, **scalars: float) -> LearnInfo:
    return LearnInfo("task", train_iter, scalars, {"wait": train_iter / 100})


def test_older_configurations_have_addresses_there() -> None:
    learner = {"0": ["0", "host", 22271], "1": ["1", "host", 22272]}
    assert LearnerAggregator({"learner": learner, "master": {}, "slave": {}}).size == 2


def test_a_task_waits_for_all_members() -> None:
    aggregator = group(3, come=2)
    assert not aggregator.is_complete
    with pytest.raises(CommError, match="2 of 3 learners have reported"):
        aggregator.deal_with_learner_start(TASK)
    aggregator.join(7, WorkerReady("learner", "host", 1, gpus=0, cpus=4))
    assert aggregator.deal_with_get_resource() == {"gpu": 2, "cpu": 20}
    assert aggregator.deal_with_learner_start(TASK) == {1: TASK, 2: TASK, 7: TASK}
    with pytest.raises(CommError, match="are still doing task task"):
        aggregator.deal_with_learner_start(TASK)


def test_demands_are_summed_when_all_have_asked() -> None:
    aggregator = group()
    assert aggregator.deal_with_get_data(demand(4, 32, ids=[1], train_iter=9), 2) is None
    assert aggregator.deal_with_get_data(demand(2, 32, train_iter=10), 2) is None  # asks again
    whole = aggregator.deal_with_get_data(demand(3, 16, ids=[5, 6], train_iter=9), 1)
    assert whole is not None
    assert (whole.batches, whole.batch_size, whole.train_iter) == (2, 48, 9)
    assert (whole.unique_ids.size, whole.priorities.size) == (0, 0)
    assert aggregator.deal_with_get_data(demand(1, 16), 1) is None


def test_one_learner_is_a_group_too() -> None:
    aggregator = group(1)
    mine = demand(3, 16, train_iter=4)
    whole = aggregator.deal_with_get_data(mine, 1)
    assert whole is not None
    assert (whole.batches, whole.batch_size, whole.train_iter) == (3, 16, 4)
    said = info(4, loss=0.5)
    assert aggregator.deal_with_learn(said, 1) == said


def test_scalars_are_means_of_what_all_have_said_last() -> None:
    aggregator = group()
    assert aggregator.deal_with_learn(info(10, loss=1.0), 1).train_iter == 0  # of one only
    merged = aggregator.deal_with_learn(info(12, loss=3.0, norm=7.0), 2)
    assert merged.scalars == {"loss": 2.0, "norm": 7.0}
    assert (merged.train_iter, merged.shares) == (10, {"wait": 0.12})
    assert aggregator.deal_with_learn(info(20, loss=5.0), 1).scalars == {"loss": 4.0, "norm": 7.0}


def test_the_task_ends_when_all_have_ended_it() -> None:
    aggregator = group()
    aggregator.deal_with_learner_start(TASK)
    assert aggregator.deal_with_learner_close(LearnResult("task", 100), 1) is None
    assert aggregator.deal_with_learner_close(LearnResult("task", 100), 1) is None
    result = aggregator.deal_with_learner_close(LearnResult("task", 99), 2)
    assert result == LearnResult("task", 99)
    again = dataclasses.replace(TASK, task_id="next")
    assert set(aggregator.deal_with_learner_start(again)) == {1, 2}


def test_what_was_asked_for_an_old_task_counts_no_more() -> None:
    aggregator = group()
    aggregator.deal_with_learner_start(TASK)
    aggregator.deal_with_get_data(demand(1, 4), 1)
    aggregator.close()
    assert aggregator.deal_with_get_data(demand(1, 4), 2) is None


def test_infos_are_merged_by_kind() -> None:
    merged = LearnerAggregator.merge_info(
        [
            {"learner_step": 5, "learner_done": False, "loss": 0.5, "name": "a",
             "priority_info": {"priority": [1.0, 2.0], "replay_unique_id": ("x", "y")}},
            {"learner_step": 5, "learner_done": False, "loss": 1.5, "name": None,
             "priority_info": {"priority": [3.0], "replay_unique_id": ("z",)}, "more": 1},
        ]
    )  # fmt: skip
    assert merged == {
        "learner_step": 5, "learner_done": False, "loss": [0.5, 1.5], "name": ["a", None],
        "priority_info": {"priority": [1.0, 2.0, 3.0], "replay_unique_id": ["x", "y", "z"]},
        "more": [1],
    }  # fmt: skip
    assert LearnerAggregator.merge_info([]) == []
    assert LearnerAggregator.merge_info([3.0, 4.0]) == [3.0, 4.0]
    assert LearnerAggregator.merge_info([{}, {}]) == {}


def test_means_of_arrays_elements() -> None:
    assert LearnerAggregator.merge_info([np.float32(1.0), 2]) == [1.0, 2]


def test_task_dicts_go_to_the_aggregator() -> None:
    called: list[Any] = []
    names = ("deal_with_get_resource", "deal_with_learner_start", "deal_with_get_data",
             "deal_with_learn")  # fmt: skip
    slave = LearnerAggregatorSlave(
        "localhost", 8000,
        callback_fn={name: lambda *task, name=name: called.append((name, *task)) for name in names},
    )  # fmt: skip
    tasks = [{"name": f"learner_{kind}_task"} for kind in ("start", "get_data", "learn")]
    for task in ({"name": "resource"}, *tasks):
        slave._process_task(task)
    assert called == [(names[0],), *zip(names[1:], tasks, strict=True)]
    with pytest.raises(CommError, match="knows no task 'learner_close_task'"):
        slave._process_task({"name": "learner_close_task"})
