"""What becomes of a policy's logs: several passes, several tasks, charts, histograms, a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpcdi.config.roles import LearnerConfig
from hpcdi.errors import BufferContractError, PolicyError
from hpcdi.roles.learner.training import Batch
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.worker.learner import BaseLearner
from hpcdi.worker.learner.learner_hook import LogReduceHook
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer

QUIET = {"log_show_after_iter": 0, "save_ckpt_after_iter": 0, "save_ckpt_after_run": False}


class Policy:
    """Gives planned outputs; keeps what it was given."""

    def __init__(self, *outputs: Any) -> None:
        self.outputs, self.given = list(outputs), []

    def forward(self, data: Any) -> Any:
        self.given.append(data)
        return self.outputs.pop(0)

    def info(self) -> str:
        return "Policy(of a test)"


def learner_of(*outputs: Any, hook: Any = None, **cfg: Any) -> BaseLearner:
    extra = {name: cfg.pop(name) for name in ("tb_logger", "dist_info") if name in cfg}
    return BaseLearner({"hook": {**QUIET, **(hook or {})}, **cfg}, Policy(*outputs), **extra)


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(point.step, point.value) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


# ---------------------------------------------------------------------------------- several passes


def test_priorities_of_all_passes_count_and_the_last_one_stays() -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 4})
    buffer.push([{"n": n} for n in range(4)])
    drawn = buffer.sample(2, 0) or []
    passes = [{"total_loss": 1.0, "priority": [9.0, 8.0]}, {"priority": [0.5, 0.25]}, {"lr": 1.0}]
    learner = learner_of(passes, {"total_loss": 0.0})
    learner.train(drawn)
    info = learner.priority_info
    assert info["priority"] == [9.0, 8.0, 0.5, 0.25]
    assert info["replay_unique_id"] == [item["replay_unique_id"] for item in [*drawn, *drawn]]
    buffer.update(info)
    after = {
        d["replay_unique_id"]: d["priority"] for _ in range(50) for d in buffer.sample(2, 0) or []
    }
    names = [item["replay_unique_id"] for item in drawn]
    assert [after[name] for name in names] == [pytest.approx(0.5), pytest.approx(0.25)]
    learner.train(drawn)
    assert learner.priority_info == {}, "of the last batch"


@pytest.mark.parametrize("form", [list, tuple])
def test_priorities_of_a_batch_of_dicts_have_its_ids(form: type) -> None:
    learner = learner_of({"total_loss": 0.0, "priority": [1.0, 2.0]})
    learner.train(form({"replay_unique_id": f"a_{k}", "replay_buffer_idx": k} for k in range(2)))
    assert learner.priority_info == {
        "replay_unique_id": ["a_0", "a_1"], "replay_buffer_idx": [0, 1], "priority": [1.0, 2.0],
    }  # fmt: skip


def test_a_batch_is_told_of_each_pass() -> None:
    told: list[Any] = []
    batch = Batch({}, np.array([4, 2]), 0, lambda priority: told.append(priority.tolist()))
    learner = learner_of([{"priority": [1.0, 2.0]}, {"priority": np.array([3.0, 4.0])}])
    learner.train(batch)
    assert told == [[1.0, 2.0], [3.0, 4.0]]
    assert learner.priority_info["unique_ids"].tolist() == [4, 2, 4, 2]
    assert learner.priority_info["priority"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_priorities_of_something_else_are_refused() -> None:
    batch = Batch({}, np.array([4, 2]), 0, lambda _priority: None)
    with pytest.raises(PolicyError, match=r"priorities of shape \(3,\) for a batch of 2"):
        learner_of({"priority": [1.0, 2.0, 3.0]}).train(batch)
    learner = learner_of({"priority": [1.0, 2.0, 3.0]})
    learner.train(items(0, 1))  # the buffer that they came from refuses them
    with pytest.raises(BufferContractError, match=r"priorities of shape \(3,\) for 2 items"):
        AdvancedReplayBuffer({}).update(learner.priority_info)


def test_every_pass_must_have_a_finite_loss_in_a_run(caplog: pytest.LogCaptureFixture) -> None:
    passes = [{"total_loss": 1.0}, {"total_loss": float("nan")}]
    of_a_run = BaseLearner(LearnerConfig(log_policy=False), Policy(passes))
    said = "total_loss is nan in train iteration 2: the network has diverged"
    with pytest.raises(PolicyError, match=said):
        of_a_run.train([])
    learner = learner_of(passes, passes)
    learner.train([])
    learner.train([])
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "total_loss is nan in train iteration 2" in warning.message


# ----------------------------------------------------------------------------------- several tasks


def items(*numbers: int) -> list[dict[str, int]]:
    return [{"replay_unique_id": n, "replay_buffer_idx": n} for n in numbers]


def test_logs_of_tasks_are_kept_apart() -> None:
    logs = [
        {"total_loss": 1.0, "[scalars]grad": {"norm": 2.0}, "priority": [0.5]},
        {"total_loss": 3.0, "task_id": 7, "noreduce_rank": 1},
    ]
    learner = learner_of(logs, is_multitask_pipeline=True)
    batches = [items(1), Batch({"x": 2}, np.array([5]), 0, lambda _priority: None)]
    learner.train(batches)
    assert learner.policy.given == [[batches[0], {"x": 2}]], "one batch a task, as columns"
    assert learner.monitor is not None
    assert learner.monitor.take_means() == {
        "task0/total_loss": 1.0, "[scalars]task0/grad/norm": 2.0, "task7/total_loss": 3.0,
        "task7/task_id": 7.0, "task7/noreduce_rank": 1.0,
    }  # fmt: skip
    assert learner.priority_info == {
        "task0": {"replay_unique_id": [1], "replay_buffer_idx": [1], "priority": [0.5]}
    }


def test_a_task_that_diverges_is_named(caplog: pytest.LogCaptureFixture) -> None:
    logs = [{"total_loss": 1.0}, {"total_loss": float("inf")}]
    learner = learner_of(logs, is_multitask_pipeline=True)
    learner.train([items(1), items(2)])
    assert "total_loss of task1 is inf in train iteration 1" in caplog.text


@pytest.mark.parametrize("outputs", [{"total_loss": 1.0}, [{}, {}, {}]])
def test_a_log_for_each_task(outputs: Any) -> None:
    learner = learner_of(outputs, is_multitask_pipeline=True)
    count = len(outputs) if isinstance(outputs, list) else 1
    with pytest.raises(PolicyError, match=f"returned {count} logs of 2 batches"):
        learner.train([items(1), items(2)])


# -------------------------------------------------------------------------- charts and histograms


def test_charts_and_histograms_reach_tensorboard(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    logs = [
        {"lr": n, "[scalars]loss": {"actor": 1.0 + n, "critic": 10.0}, "[histogram]q": values}
        for n, values in enumerate((np.zeros(9), torch.arange(6.0).requires_grad_()))
    ]
    learner = learner_of(*logs, hook={"log_show_after_iter": 2}, tb_logger=writer)
    learner.train([], envstep=50)
    learner.train([], envstep=60)
    writer.close()
    assert learner.scalars == {"lr": 0.5, "loss/actor": 1.5, "loss/critic": 10.0}
    assert learner.learn_info["scalars"] == learner.scalars
    own = {"learner_iter/lr_avg": [(2, 0.5)], "learner_step/lr_avg": [(60, 0.5)]}
    assert scalars_of(tmp_path) == own
    for curve, value in (("actor", 1.5), ("critic", 10.0)):
        assert scalars_of(tmp_path / f"learner_iter_loss_{curve}") == {
            "learner_iter/loss": [(2, value)]
        }
        assert scalars_of(tmp_path / f"learner_step_loss_{curve}") == {
            "learner_step/loss": [(60, value)]
        }
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["histograms"]) == ["learner/q"]
    (event,) = events.Histograms("learner/q")
    found = event.histogram_value
    assert (event.step, found.num, found.min, found.max, found.sum) == (2, 6, 0, 5, 15)


def test_a_histogram_of_what_numpy_has_no_type_for(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    log = {"[histogram]q": torch.ones(3, dtype=torch.bfloat16)}
    learner_of(log, hook={"log_show_after_iter": 1}, tb_logger=writer).train([])
    writer.close()
    (event,) = EventAccumulator(str(tmp_path)).Reload().Histograms("learner/q")
    assert (event.histogram_value.num, event.histogram_value.sum) == (3, 3)


def test_a_histogram_of_nothing_is_passed_over(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    log = {"[histogram]q": np.array([np.nan]), "[histogram]r": []}
    learner_of(log, hook={"log_show_after_iter": 1}, tb_logger=writer).train([])
    writer.close()
    assert EventAccumulator(str(tmp_path)).Reload().Tags()["histograms"] == []


# ------------------------------------------------------------------------------------------ a group


def test_only_the_first_learner_of_a_group_keeps_a_log(caplog: pytest.LogCaptureFixture) -> None:
    kept = []
    with caplog.at_level("INFO", logger="hpcdi"):
        for rank in (0, 1):
            learner = learner_of(
                {"total_loss": 1.0}, dist_info=(rank, 2), hook={"log_show_after_iter": 1}
            )
            learner.call_hook("before_run")
            learner.train([])
            kept.append((learner.monitor is not None, learner.scalars))
    assert kept == [(True, {"total_loss": 1.0}), (False, {})]
    assert [record.getMessage() for record in caplog.records] == [
        "policy: Policy(of a test)", "train"
    ]  # fmt: skip


def test_each_learner_keeps_one_if_told_to(caplog: pytest.LogCaptureFixture) -> None:
    learner = learner_of(
        {"total_loss": 1.0}, dist_info=(1, 2), hook={"log_show_after_iter": 1},
        only_monitor_rank0=False,
    )  # fmt: skip
    with caplog.at_level("INFO", logger="hpcdi"):
        learner.call_hook("before_run")
        learner.train([])
    assert learner.scalars == {"total_loss": 1.0}
    assert len(caplog.records) == 2


@pytest.mark.parametrize("registered", [True, False])
def test_a_log_that_is_to_be_shared_is_kept_and_not_shown(
    caplog: pytest.LogCaptureFixture, registered: bool
) -> None:
    hook = {"log_show_after_iter": 1} | ({} if registered else {"log_reduce_after_iter": 2})
    learner = learner_of({"total_loss": 1.0}, dist_info=(1, 2), hook=hook)
    if registered:
        learner.register_hook(LogReduceHook(ext_args={"freq": 2}))
    with caplog.at_level("INFO", logger="hpcdi"):
        learner.train([])
    assert learner.scalars == {"total_loss": 1.0}
    assert caplog.records == []


def test_one_learner_has_nobody_to_share_with() -> None:
    learner = learner_of({"total_loss": 2.0}, hook={"log_reduce_after_iter": 1})
    learner.train([])
    assert learner.monitor is not None
    assert learner.monitor.take_means() == {"total_loss": 2.0}


def test_the_log_of_the_policy_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="hpcdi"):
        learner_of(log_policy=False).call_hook("before_run")
        BaseLearner({"hook": QUIET}, object()).call_hook("before_run")
    (record,) = caplog.records
    assert record.getMessage().startswith("policy: <object object at")
