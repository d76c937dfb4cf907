"""The message side of a learner as DI-engine's callers know it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.store import write_shard
from fakes.worker_world import LEARNER, Script, end, experiment
from hpcdi.comm.messages import LearnInfo, LearnTask, Stop
from hpcdi.errors import CommError, UnknownTypeError
from hpcdi.policy.base import attribute_of
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import checkpoint_names
from hpcdi.types import ITEM_DTYPE, RowView
from hpcdi.worker.learner import BaseLearner
from hpcdi.worker.learner.comm import MPIFileSystemLearner, create_comm_learner

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ROWS = 12


@pytest.fixture
def script(tmp_path: Path) -> Script:
    config = experiment(policy={"learn": {"batch_size": 4}})
    return Script(tmp_path, config, LEARNER)


def test_what_the_seeds_callers_call(script: Script) -> None:
    worker = MPIFileSystemLearner({}, script.context)
    assert worker.deal_with_resource().keys() == {"gpu", "cpu"}
    assert worker.deal_with_get_data() == {
        "task_id": "", "batch_size": 4, "cur_learner_iter": 0
    }  # fmt: skip
    with pytest.raises(CommError, match="no learner task"):
        worker.deal_with_learner_learn([])
    assert [(type(hook).__name__, hook.position) for hook in worker.hooks4call] == [
        ("SendPolicyHook", "before_run"), ("SendPolicyHook", "after_iter"),
        ("SendPolicyHook", "after_run"), ("SendLearnInfoHook", "after_iter"),
        ("SendLearnInfoHook", "after_run"),
    ]  # fmt: skip
    worker.deal_with_learner_close()
    assert worker.get_data(4) is None, "the run ends"
    end(worker)


def test_a_learner_of_its_own_with_it_as_its_port(script: Script) -> None:
    """As a program has it that makes the learner itself."""
    worker = MPIFileSystemLearner({}, script.context)
    policy = script.context.config.policy
    info = {"learner_cfg": {"type": "base", "log_policy": False}, "policy": policy}
    learner = worker._create_learner(info)
    for hook in worker.hooks4call:
        learner.register_hook(hook)
    script.tell(Stop("enough"))
    learner.start()
    worker.pump.flush(10.0)
    script.look()
    assert [info.train_iter for info in script.all_of(LearnInfo)] == [0]
    assert checkpoint_names(script.layout.checkpoints_dir) == ["ckpt_final"]
    end(worker)


@pytest.mark.parametrize("task", [LearnTask("task"), {"task_id": "task", "buffer_id": "b"}])
def test_a_task_that_is_started_by_hand_ends_with_the_run(script: Script, task: Any) -> None:
    worker = MPIFileSystemLearner({}, script.context)
    script.tell(Stop("enough"))
    worker.deal_with_learner_start(task)
    assert isinstance(worker._training, BaseLearner)
    end(worker)


@pytest.mark.parametrize("takes_columns", [True, False])
def test_learning_from_shards_by_name(script: Script, takes_columns: bool) -> None:
    rng = np.random.default_rng(0)
    items = np.zeros(1, dtype=ITEM_DTYPE)
    items["item_len"] = ROWS - 1
    columns = {
        "observation": rng.standard_normal((ROWS, 2), dtype=np.float32),
        "ahead": np.ones(ROWS, dtype=np.uint16),
    }
    view = RowView("next_observation", "observation", "ahead")
    block = Block(columns, items, views=(view,), tail_rows=1)
    write_shard(script.layout, "data/1.h5", block, fsync=False)
    worker = MPIFileSystemLearner({}, script.context)
    mode = Mode(columnar=takes_columns, batch_size=4)
    worker._training = BaseLearner({"log_policy": False}, mode)
    metas = [{"data_id": "data/1.h5", "IS": 0.5}, {"data_id": "data/1.h5", "policy_iter": 7}]
    assert worker.deal_with_learner_learn(metas)["learner_step"] == 1
    end(worker)
    (batch,) = mode.given
    count = 2 * (ROWS - 1)
    if takes_columns:
        assert {name: len(column) for name, column in batch.items()}.keys() >= {"next_observation"}
        assert all(len(column) == count for column in batch.values())
        assert batch["weight"].tolist() == [0.5] * (ROWS - 1) + [1.0] * (ROWS - 1)
        assert torch.equal(batch["observation"][1], batch["next_observation"][0])
        return
    assert len(batch) == count
    assert [item["IS"] for item in batch] == [0.5] * (ROWS - 1) + [1.0] * (ROWS - 1)
    assert [item.get("policy_iter") for item in batch] == [None] * (ROWS - 1) + [7] * (ROWS - 1)
    assert torch.equal(batch[1]["observation"], batch[0]["next_observation"])


def test_names_are_unique_and_what_cannot_be_built_says_so(script: Script) -> None:
    workers = [create_comm_learner({"type": "flask_fs"}, script.context) for _ in range(2)]
    assert workers[0].learner_uid != workers[1].learner_uid
    for worker in workers:
        end(worker)
    with pytest.raises(CommError, match=r"needs its place in a run \(context=\)"):
        create_comm_learner({"type": "mpi_fs"})
    with pytest.raises(CommError, match=r"needs its place in a run \(context=\)"):
        MPIFileSystemLearner({})
    with pytest.raises(UnknownTypeError, match=r"no comm learner of type 'mpifs'.*did you mean"):
        create_comm_learner({"type": "mpifs"})


# ---------------------------------------------------------------------- policies of lists of dicts


class Mode:
    """A learn mode that knows the attributes that it is given, and keeps what it learns from."""

    def __init__(self, **attributes: Any) -> None:
        self._attributes = attributes
        self.given: list[Any] = []

    def forward(self, data: Any) -> dict[str, float]:
        self.given.append(data)
        return {"total_loss": 0.0}

    def get_attribute(self, name: str) -> Any:
        if name not in self._attributes:
            raise NotImplementedError(name)
        return self._attributes[name]


@pytest.mark.parametrize(
    ("mode", "columns"),
    [
        (Mode(columnar=True), True),
        (Mode(columnar=False), False),
        (Mode(), False),  # a policy of the seeds: a list of dicts
        (object(), False),
    ],
)
def test_who_takes_columns(mode: Any, columns: bool) -> None:
    assert attribute_of(mode, "columnar", False) is columns
