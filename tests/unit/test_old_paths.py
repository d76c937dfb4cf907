"""What callers of the predecessor import from deep paths: it is there, or says what to use."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from hpcdi.errors import CommError
from hpcdi.worker.collector import base_parallel_collector as parallel
from hpcdi.worker.collector import create_parallel_collector, get_parallel_collector_cls
from hpcdi.worker.collector.comm.utils import NaiveCollector
from hpcdi.worker.dist import broadcast_object_list
from hpcdi.worker.learner.base_learner import get_simple_monitor_type
from hpcdi.worker.learner.comm.utils import NaiveLearner
from hpcdi.worker.learner.learner_hook import find_char
from hpcdi.worker.replay_buffer.advanced_buffer import to_positive_index
from hpcdi.worker.replay_buffer.utils import ThruputController, UsedDataRemover, generate_id


@pytest.mark.parametrize(
    ("path", "name", "use"),
    [
        ("coordinator.comm_coordinator", "CommCoordinator", "hpcdi.worker.Coordinator"),
        ("coordinator.operator_server", "OperatorServer", "hpcdi scale"),
    ],
)
def test_what_has_no_place_here_says_what_to_use(path: str, name: str, use: str) -> None:
    cls = getattr(importlib.import_module(f"hpcdi.worker.{path}"), name)
    with pytest.raises(CommError, match=f"{name}: .*{use}"):
        cls({}, host="localhost")


def test_parallel_collectors_are_made_alike_by_their_old_path() -> None:
    """That one knew neither the key of DI-engine's documents nor policies of dicts."""
    assert parallel.create_parallel_collector is create_parallel_collector
    assert parallel.get_parallel_collector_cls is get_parallel_collector_cls


def test_a_naive_learner_ends_after_six_batches() -> None:
    learner = NaiveLearner("localhost", 8000)
    do = learner._process_task
    with pytest.raises(CommError, match="before it is started"):
        do({"name": "learner_get_data_task"})
    do({"name": "learner_start_task", "task_info": {"task_id": "t", "buffer_id": "b"}})
    names = {"task_id": "t", "buffer_id": "b"}
    assert do({"name": "learner_get_data_task"}) == {
        **names, "batch_size": 2, "cur_learner_iter": 1
    }  # fmt: skip
    item = {"replay_unique_id": "b_0", "replay_buffer_idx": 0, "priority": 0.5, "data_id": "x"}
    done: list[Any] = [do({"name": "learner_learn_task", "data": [item] * 2}) for _ in range(6)]
    assert [one["info"]["learner_done"] for one in done] == [False] * 5 + [True]
    assert done[0]["info"]["priority_info"]["replay_buffer_idx"] == [0, 0]
    with pytest.raises(CommError):
        do({"name": "learner_learn_task", "data": None})
    assert do({"name": "learner_close_task"}) == names


def test_a_naive_collector_takes_an_address(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert NaiveCollector("localhost", 8000)._process_task({"name": "resource"})["cpu"] == 1


def test_a_monitor_averages_what_it_is_told() -> None:
    monitor = get_simple_monitor_type(["total_loss"])(None, expire=2)
    for loss in (9.0, 1.0, 2.0):
        monitor.total_loss = loss
    assert monitor.avg["total_loss"]() == 1.5
    assert monitor.val["total_loss"]() == 2.0
    assert monitor.avg["other"]() == 0


@pytest.mark.parametrize(
    ("num", "reverse", "place"), [(1, False, 1), (2, False, 3), (3, False, -1), (2, True, 1)]
)
def test_find_char(num: int, reverse: bool, place: int) -> None:
    assert find_char("a_b_c", "_", num, reverse) == place


def test_small_functions() -> None:
    assert [to_positive_index(index, 5) for index in (None, 2, -1)] == [None, 2, 4]
    assert generate_id("buffer", 7) == "buffer_7"
    objects = [1, "a"]
    broadcast_object_list(objects)
    assert objects == [1, "a"]


def test_files_are_removed_once_it_is_started(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text("x")
    remover = UsedDataRemover()
    remover.add_used_data({"data_id": str(files[0])})
    assert files[0].exists()
    remover.start()
    remover.add_used_data({"data_id": str(files[1])})
    remover.close()
    assert not any(file.exists() for file in files)


def test_rates() -> None:
    control = ThruputController(
        {"push_sample_rate_limit": {"min": 0.5, "max": 2}, "window_seconds": 30}
    )
    control.note(pushed=30)
    assert control.can_push(90) == (True, "Can push.")
    assert control.can_sample(60) == (True, "Can sample.")
    assert control.can_sample(61)[0] is False
    control.note(drawn=45)
    assert control.can_push(60)[0] is True
    assert control.can_push(61)[0] is False
