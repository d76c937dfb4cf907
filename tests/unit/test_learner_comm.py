"""A learner rank in a world of threads: blocks and batches in, policies and words out."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.store import write_shard
from fakes.worker_world import COLLECTOR, LEARNER, Script, end, experiment
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BeginAnew,
    BlockAdmitted,
    DataDemand,
    Goodbye,
    LearnInfo,
    LearnResult,
    LearnTask,
    Leave,
    PolicyRequest,
    PolicyUpdate,
    SnapshotPart,
    Stop,
    TakeSnapshot,
    WorkerReady,
)
from hpcdi.errors import CommError, UnknownTypeError
from hpcdi.roles.learner.base_learner import BaseLearner
from hpcdi.roles.learner.data_feed import takes_columns
from hpcdi.roles.learner.learner_hook import LogShowHook, SendLearnInfoHook, SendPolicyHook
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import names, open_checkpoint
from hpcdi.store.policies import PolicyImage, read_policy
from hpcdi.types import ITEM_DTYPE, RowView
from hpcdi.utils.threads import BackgroundThread
from hpcdi.worker.learner.comm import MPIFileSystemLearner, create_comm_learner

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ROWS = 12


class LearnerScript(Script):
    """The coordinator serves every demand from one block; a collector may ask for policies."""

    def __init__(self, root: Path, *, learner: dict[str, Any] | None = None, **policy: Any) -> None:
        learn = {"batch_size": 4, "learner": learner or {}}
        config = experiment(policy={"learn": learn, **policy}, system={"prefetch": 2})
        super().__init__(root, config, LEARNER)
        self.served = 0
        self.batches_left = 10**6
        self.policies: list[PolicyUpdate] = []
        self.answer = self._serve

    def begin(self) -> None:
        """Give the task and the block that all batches are of."""
        self.tell(LearnTask("task"))
        self.tell(self.block())

    def block(self) -> AdmitBlock:
        rng = np.random.default_rng(0)
        items = np.zeros(1, dtype=ITEM_DTYPE)
        items["item_len"] = ROWS - 1
        columns = {
            "observation": rng.standard_normal((ROWS, 2), dtype=np.float32),
            "action": rng.integers(0, 2, ROWS),
            "n_step_return": np.ones(ROWS, dtype=np.float32),
            "bootstrap_discount": np.full(ROWS, 0.5, dtype=np.float32),
            "bootstrap_offset": np.ones(ROWS, dtype=np.uint16),
        }
        view = RowView("next_observation", "observation", "bootstrap_offset")
        block = Block(columns, items, views=(view,), tail_rows=1)
        ref = write_shard(self.layout, "data/1.h5", block, fsync=False)
        return AdmitBlock(1, 0, 2 * ROWS, ref, time.time())

    def _serve(self) -> None:
        for _, message in self.world.link(COLLECTOR).receive(0.0):
            assert isinstance(message, PolicyUpdate)
            self.policies.append(message)
        asked = sum(demand.batches for demand in self.all_of(DataDemand))
        count = min(asked - self.served, self.batches_left)
        if count > 0 and self.all_of(BlockAdmitted):
            self.served += count
            self.batches_left -= count
            rows = np.arange(count * 4).reshape(-1, 4) % (ROWS - 1)
            weights = np.ones(rows.shape, dtype=np.float32)
            self.tell(Batches(rows, 100 + rows, weights, env_steps=900))

    def ask(self, have: int, *, at_once: bool = False) -> None:
        """The collector asks for a policy."""
        self.tell(PolicyRequest(have, at_once), sender=COLLECTOR)


def test_a_run_from_the_first_word_to_the_last(tmp_path: Path) -> None:
    hook = {"log_show_after_iter": 5}
    script = LearnerScript(tmp_path, learner={"train_iterations": 22, "hook": hook}, priority=True)
    worker = MPIFileSystemLearner({}, script.context)
    with script.running(worker) as thread:
        ready = script.hear(WorkerReady, thread)
        assert (ready.role, ready.gpus) == ("learner", 0)
        script.begin()
        admitted = script.hear(BlockAdmitted, thread)
        assert (admitted.block_id, admitted.error) == (1, "")
        result = script.hear(LearnResult, thread)
        script.tell(Stop("enough"))
        goodbye = script.hear(Goodbye, thread)
        script.tell(Leave(7))
        thread.join()
    assert (result.task_id, result.train_iter, worker.exit_code) == ("task", 22, 7)
    told = script.all_of(LearnInfo)
    assert [info.train_iter for info in told] == [5, 10, 15, 20, 22]
    assert all({"total_loss", "q_value", "cur_lr"} <= info.scalars.keys() for info in told)
    assert (goodbye.report["role"], goodbye.report["train_iter"]) == ("learner", 22)
    assert {"start", "train", "wait"} <= goodbye.report["shares"].keys()
    assert read_policy(script.layout.latest_policy).version == 22, "the last one is kept"
    assert names(script.layout.checkpoints_dir) == ["ckpt_final"]
    assert open_checkpoint(script.layout.checkpoints_dir / "ckpt_final").facts["train_iter"] == 22
    assert worker._learner is not None
    assert worker._learner.collector_envstep == 900


def test_the_learner_of_another_player_has_its_own_files_and_may_begin_anew(
    tmp_path: Path,
) -> None:
    script = LearnerScript(tmp_path)
    script.batches_left = 6
    groups = {"main": (COLLECTOR,), "exploiter": (LEARNER,)}
    worker = MPIFileSystemLearner({}, dataclasses.replace(script.context, groups=groups))

    def weights() -> dict[str, torch.Tensor]:
        assert worker._learner is not None
        return {k: v.clone() for k, v in worker._learner.policy.state_dict()["model"].items()}

    with script.running(worker) as thread:
        assert script.hear(WorkerReady, thread).player == "exploiter"
        script.ask(-1)
        script.begin()
        script.until(lambda: worker._train_iter() == 6 and bool(script.policies), thread)
        assert script.policies[0].version == 0
        image = PolicyImage(0, script.policies[0].data.tobytes()).state_dict()
        learnt = weights()
        assert any((learnt[name] != image[name]).any() for name in image)
        script.tell(BeginAnew("exploiter"))
        script.tell(TakeSnapshot("snapshot_000001", "snapshots/x"))
        part = script.hear(SnapshotPart, thread)
        again = weights()
        assert all((again[name] == image[name]).all() for name in image)
        assert (part.player, part.train_iter, part.error) == ("exploiter", 6, "")
        assert part.files.keys() == {"agent1_learner.pt", "agent1_policy.safetensors"}
    assert names(script.layout.checkpoints_of(1)) == ["ckpt_final"]
    assert not script.layout.latest_policy.exists()
    assert read_policy(script.layout.latest_policy_of("exploiter")).version >= 0


def test_priorities_go_back_with_the_names_of_their_items(tmp_path: Path) -> None:
    script = LearnerScript(tmp_path, learner={"train_iterations": 8}, priority=True)
    with script.running(MPIFileSystemLearner({}, script.context)) as thread:
        script.begin()
        script.hear(LearnResult, thread)
    first, *later = script.all_of(DataDemand)
    assert (first.batches, first.batch_size, first.unique_ids.size) == (2, 4, 0)
    assert later
    for demand in later:
        assert len(demand.unique_ids) == len(demand.priorities) > 0
        assert set(demand.unique_ids) <= set(range(100, 100 + ROWS))
        assert (demand.priorities > 0).all()


def test_policies_go_to_those_who_ask_also_while_no_data_come(tmp_path: Path) -> None:
    script = LearnerScript(tmp_path)
    script.batches_left = 0
    with script.running(MPIFileSystemLearner({}, script.context)) as thread:
        script.begin()
        script.ask(-1)
        script.until(lambda: bool(script.policies), thread)
        script.ask(0, at_once=True)
        script.until(lambda: len(script.policies) == 2, thread)
        script.batches_left = 3
        script.until(lambda: 3 in [d.train_iter for d in script.all_of(DataDemand)], thread)
        script.ask(0)  # no iteration will end, and so no hook offers the policy
        script.until(lambda: len(script.policies) == 3, thread)
    first, empty, later = script.policies
    assert (first.version, empty.version, empty.data.size) == (0, 0, 0)
    assert later.version == 3
    tensors = PolicyImage(later.version, later.data.tobytes()).state_dict()
    worker_names = {"encoder.1.weight", "encoder.1.bias", "advantage.weight", "advantage.bias"}
    assert tensors.keys() == worker_names


def test_stop_ends_it_without_a_result(tmp_path: Path) -> None:
    script = LearnerScript(tmp_path)
    with script.running(MPIFileSystemLearner({}, script.context)) as thread:
        script.begin()
        script.until(lambda: script.served > 3, thread)
        script.tell(Stop("enough"))
        goodbye = script.hear(Goodbye, thread)
    assert script.all_of(LearnResult) == []
    assert goodbye.report["train_iter"] > 0
    assert read_policy(script.layout.latest_policy).version == goodbye.report["train_iter"]


def test_stop_before_any_task(tmp_path: Path) -> None:
    script = LearnerScript(tmp_path)
    with script.running(MPIFileSystemLearner({}, script.context)) as thread:
        script.hear(WorkerReady, thread)
        script.tell(Stop("enough"))
        assert script.hear(Goodbye, thread).report["train_iter"] == 0
    assert not script.layout.latest_policy.exists()


def test_data_before_a_task_end_the_role_with_an_error(tmp_path: Path) -> None:
    script = LearnerScript(tmp_path)
    worker = MPIFileSystemLearner({}, script.context)
    thread = BackgroundThread(worker.run, "worker")
    script.tell(script.block())
    thread.join()
    with pytest.raises(CommError, match="rank 0 sent data before a learner task"):
        thread.check()
    end(worker)


# ------------------------------------------------------------------------- parts that it is made of


@pytest.mark.parametrize(
    ("hook", "every"),
    [
        ({"log_show_after_iter": 7}, 7),
        ({}, 100),
        ({"log_show_after_iter": 0}, 100),  # no log, and no flood of empty words either
        ({"show": {"type": "log_show", "position": "after_iter", "ext_args": {"freq": 3}}}, 100),
    ],
)
def test_how_often_the_coordinator_is_told(
    tmp_path: Path, hook: dict[str, Any], every: int
) -> None:
    script = LearnerScript(tmp_path, learner={"hook": hook, "send_policy_freq": 4})
    worker = MPIFileSystemLearner({}, script.context)
    hooks = worker.hooks4call
    end(worker)
    assert [(type(made), made.position) for made in hooks] == [
        (SendPolicyHook, "before_run"), (SendPolicyHook, "after_iter"),
        (SendPolicyHook, "after_run"), (SendLearnInfoHook, "after_iter"),
        (LogShowHook, "after_run"), (SendLearnInfoHook, "after_run"),
    ]  # fmt: skip
    assert [made._freq for made in hooks[:4]] == [4, 4, 4, every]


def test_what_the_seeds_callers_call(tmp_path: Path) -> None:
    script = LearnerScript(tmp_path)
    worker = MPIFileSystemLearner({}, script.context)
    assert worker.deal_with_resource().keys() == {"gpu", "cpu"}
    assert worker.deal_with_get_data() == {
        "task_id": "", "batch_size": 4, "cur_learner_iter": 0
    }  # fmt: skip
    with pytest.raises(CommError, match="no learner task"):
        worker.deal_with_learner_learn([])
    worker.deal_with_learner_close()
    assert worker.get_data(4) is None, "the run ends"
    end(worker)


@pytest.mark.parametrize("takes_columns", [True, False])
def test_learning_from_shards_by_name(tmp_path: Path, takes_columns: bool) -> None:
    script = LearnerScript(tmp_path)
    script.block()
    worker = MPIFileSystemLearner({}, script.context)
    mode = Mode(columnar=takes_columns, batch_size=4)
    worker._learner = BaseLearner({"log_policy": False}, mode)
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


def test_names_are_unique_and_what_cannot_be_built_says_so(tmp_path: Path) -> None:
    workers = [
        create_comm_learner({"type": "flask_fs"}, LearnerScript(tmp_path).context) for _ in range(2)
    ]
    assert workers[0].learner_uid != workers[1].learner_uid
    for worker in workers:
        end(worker)
    alone = create_comm_learner({"type": "flask_fs", "host": "localhost", "multi_gpu": True})
    for work in (alone.start, alone.deal_with_resource):
        with pytest.raises(CommError, match=r"needs its place in a run \(context=\)"):
            work()
    alone.close()
    with pytest.raises(UnknownTypeError, match=r"no comm learner of type 'mpifs'.*did you mean"):
        create_comm_learner({"type": "mpifs"})


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
    assert takes_columns(mode) is columns
