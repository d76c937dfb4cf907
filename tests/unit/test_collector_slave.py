"""The seeds' task dicts, and the collector that stands in for one in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcdi.errors import CommError
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import read_block
from hpcdi.types import ITEM_DTYPE
from hpcdi.worker.collector.comm import CollectorSlave, NaiveCollector
from hpcdi.worker.slave import TaskFail

TASK_INFO = {
    "task_id": "task",
    "buffer_id": "buffer",
    "policy_id": "policy",
    "collector_cfg": {"eval_flag": True, "collect_setting": {"eps": 0.1}},
}


class Callbacks:
    """What a message side offers to its slave; keeps what it was called with."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []

    def table(self) -> dict[str, Any]:
        return {
            "deal_with_resource": lambda: {"gpu": 1, "cpu": 2},
            "deal_with_collector_start": self.started.append,
            "deal_with_collector_data": lambda: {"data_id": "a"},
            "deal_with_collector_close": lambda: {"collector_done": True},
        }


def test_each_task_calls_its_callback() -> None:
    callbacks = Callbacks()
    slave = CollectorSlave("host", 1, callback_fn=callbacks.table())
    do = slave._process_task
    assert do({"name": "resource"}) == {"gpu": 1, "cpu": 2}
    started = do({"name": "collector_start_task", "task_info": TASK_INFO})
    assert started == {"message": "collector task has started"}
    assert callbacks.started == [TASK_INFO]
    data = do({"name": "collector_data_task"})
    assert data == {"task_id": "task", "buffer_id": "buffer", "data_id": "a"}
    closed = do({"name": "collector_close_task"})
    assert closed == {"collector_done": True, "task_id": "task"}


@pytest.mark.parametrize("task", [{"name": "learner_start_task"}, {"name": None}, {}])
def test_an_unknown_task(task: dict[str, Any]) -> None:
    slave = CollectorSlave(callback_fn=Callbacks().table())
    with pytest.raises(TaskFail, match=f"a collector knows no task {task.get('name')!r}"):
        slave._process_task(task)


# ---------------------------------------------------------------------------------- NaiveCollector


def naive(root: Path, **kwargs: Any) -> NaiveCollector:
    return NaiveCollector(RunLayout(root), **kwargs)


def test_twenty_shards_then_done(tmp_path: Path) -> None:
    collector = naive(tmp_path, prefix="x")
    collector._process_task({"name": "collector_start_task", "task_info": TASK_INFO})
    told = [collector._process_task({"name": "collector_data_task"}) for _ in range(22)]
    assert [info["collector_done"] for info in told] == [False] * 20 + [True] * 2
    assert all((info["task_id"], info["buffer_id"]) == ("task", "buffer") for info in told)
    paths = [info["data_id"] for info in told[:20]]
    assert len(set(paths)) == 20
    assert told[20]["cur_step"] == sum(info["unroll_len"] for info in told[:20])
    closed = collector._process_task({"name": "collector_close_task"})
    assert closed == {"collector_done": True, "step_count": told[20]["cur_step"]}
    for path in paths:
        block = read_block(tmp_path / path)
        assert block.items.dtype == ITEM_DTYPE
        assert block.transitions == block.rows == told[0]["unroll_len"]
        assert {name: column.shape for name, column in block.columns.items()} == {
            "obs": (16, 4), "action": (16,), "reward": (16,), "done": (16,)
        }  # fmt: skip


def test_the_seed_decides_the_data(tmp_path: Path) -> None:
    def rewards(seed: int) -> list[float]:
        collector = naive(tmp_path / str(seed), seed=seed)
        collector._process_task({"name": "collector_start_task", "task_info": TASK_INFO})
        path = collector._process_task({"name": "collector_data_task"})["data_id"]
        values: list[float] = read_block(tmp_path / str(seed) / path).columns["reward"].tolist()
        return values

    first = rewards(0)
    assert rewards(0) == first != rewards(1)
    assert np.all((np.array(first) >= 0) & (np.array(first) < 1))


def test_data_before_the_start_and_after_the_end_are_refused(tmp_path: Path) -> None:
    collector = naive(tmp_path)
    with pytest.raises(CommError, match="cannot do 'collector_data_task' now"):
        collector._process_task({"name": "collector_data_task"})
    collector._process_task({"name": "collector_start_task", "task_info": TASK_INFO})
    collector._process_task({"name": "collector_close_task"})
    with pytest.raises(CommError, match="cannot do 'collector_data_task' now"):
        collector._process_task({"name": "collector_data_task"})
    with pytest.raises(CommError, match="cannot do 'league' now"):
        collector._process_task({"name": "league"})
    assert collector._process_task({"name": "resource"}) == {"gpu": 0, "cpu": 1}
