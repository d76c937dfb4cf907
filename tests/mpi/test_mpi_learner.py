"""A group of learners: logs that are shared, checkpoints that one writes and all take up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fakes.link_contract import RANKS
from fakes.worker_world import experiment

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the ranks share few cores

import torch

from hpcdi.comm import group
from hpcdi.comm.group import dist_finalize, dist_init, gather_objects
from hpcdi.comm.messages import Regroup
from hpcdi.config.roles import LearnerConfig
from hpcdi.config.schema import communicator_of
from hpcdi.policy.create import create_policy
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.learner.callbacks import LogShow
from hpcdi.roles.learner.group import Membership
from hpcdi.roles.learner.training import Training
from hpcdi.store.checkpoints import checkpoint_names, open_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.types import MAIN
from hpcdi.worker.learner import BaseLearner

if TYPE_CHECKING:
    from mpi4py import MPI

pytestmark = pytest.mark.mpi(RANKS)

QUIET = {"log_show_after_iter": 0, "save_ckpt_after_iter": 0, "save_ckpt_after_run": False}


@pytest.fixture
def place(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Rank and size of a group of all ranks."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "to be restored")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    yield dist_init(group=comm)
    dist_finalize()


class Policy:
    """Says who it is of, and counts; `odd` only of odd ranks."""

    def __init__(self, rank: int) -> None:
        self.rank, self.calls = rank, 0

    def forward(self, _data: Any) -> dict[str, Any]:
        self.calls += 1
        told = {
            "total_loss": self.rank + 10.0 * self.calls, "noreduce_rank": self.rank,
            "[scalars]part": {"a": 1.0 * self.rank, "noreduce_b": self.rank},
        }  # fmt: skip
        return told | ({"odd": self.rank} if self.rank % 2 else {})


def test_a_learner_that_is_not_told_its_place_has_that_in_the_group(
    place: tuple[int, int], shared_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, size = place
    monkeypatch.chdir(shared_path)  # where rank 0 writes curves
    cfg = {"log_policy": False, "hook": {"log_show_after_iter": 1, "save_ckpt_after_iter": 0}}
    learner = BaseLearner(cfg, Policy(rank), ckpt_dir=shared_path)
    assert (learner.rank, learner.world_size) == place
    assert learner.tb_logger is None or rank == 0
    for update in (1, 2):
        learner.train([])
        if rank == 0:
            assert learner.scalars["total_loss"] == pytest.approx((size - 1) / 2 + 10 * update)
    alone = BaseLearner({**cfg, "hook": {**cfg["hook"], "log_reduce_after_iter": 0}}, Policy(rank))
    assert not any("reduce" in hook.name for hook in alone._hooks["after_iter"])


def test_logs_are_the_means_over_the_group(
    place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, size = place
    monkeypatch.setattr(LogShow, "every_s", float("inf"))  # however slow this host is
    hook = {**QUIET, "log_reduce_after_iter": 3, "log_show_after_iter": 4}
    learner = BaseLearner({"hook": hook}, Policy(rank), dist_info=place)
    for _ in range(6):
        learner.train([])
    assert learner.monitor is not None
    rest = learner.monitor.take_means()
    odd = [other for other in range(size) if other % 2]
    assert learner.scalars == {
        "total_loss": pytest.approx(25 + (3 * np.mean(range(size)) + rank) / 4),
        "noreduce_rank": rank,
        "part/a": pytest.approx((3 * np.mean(range(size)) + rank) / 4), "part/noreduce_b": rank,
        "odd": pytest.approx((3 * np.mean(odd) + rank) / 4 if rank % 2 else np.mean(odd)),
    }, "the fourth iteration is not shared yet"  # fmt: skip
    assert rest["total_loss"] == pytest.approx(55 + np.mean(range(size))), "then it is taken"


def policy_of(seed: int) -> Any:
    model = {"obs_shape": 3, "action_shape": 2, "encoder_hidden_size_list": [8]}
    seeds = np.random.SeedSequence(seed)
    return create_policy({"type": "dqn", "model": model}, ["learn"], seed=seeds).learn_mode


def weights_of(learner: BaseLearner) -> bytes:
    model = learner.policy.state_dict()["model"]
    return b"".join(model[name].numpy().tobytes() for name in sorted(model))


def batch_of(seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    floats = {"observation": (8, 3), "next_observation": (8, 3), "n_step_return": (8,)}
    made = {name: torch.from_numpy(rng.random(shape, np.float32)) for name, shape in floats.items()}
    action = torch.from_numpy(rng.integers(0, 2, 8))
    return {**made, "action": action, "bootstrap_discount": torch.full((8,), 0.9)}


def test_a_group_that_is_formed_anew_waits_as_long_for_a_member(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that may make no progress for 900 s broke the second group after 300."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "to be restored")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    ranks = tuple(range(comm.size))
    link: Any = SimpleNamespace(rank=comm.rank, size=comm.size, ranks_may_die=True)
    seed, learners = np.random.SeedSequence(0), {communicator_of(MAIN): comm}
    layout = RunLayout(tmp_path)
    context = WorkerContext(experiment(), layout, link, seed, {MAIN: ranks}, learners)

    def take() -> bool:
        """Hear where the group meets, while it waits for that."""
        if comm.iprobe():
            member.meet_at(comm.recv())
        return False

    member = Membership(context, lambda rank, message: comm.send(message, rank), take)
    limit = group._limit
    assert limit.total_seconds() == 900.0 + 60.0
    member.order(Regroup(1, ranks, ("host",) * comm.size))
    policy = create_policy({"type": "dqn", "model": {"obs_shape": 3, "action_shape": 2}}, ["learn"])
    training = Training(LearnerConfig(), policy.learn_mode, ckpt_dir=tmp_path)
    assert member.regroup(training)
    assert (training.rank, training.world_size) == (comm.rank, comm.size)
    assert group._limit == limit
    member.leave()


def test_one_writes_and_all_take_up(place: tuple[int, int], shared_path: Path) -> None:
    """Each has other random numbers; what one of them wrote makes all of them equal."""
    rank, _ = place
    folder = shared_path / "checkpoints"
    writer = BaseLearner({"hook": QUIET}, policy_of(50), dist_info=(0, 1), ckpt_dir=folder)
    for number in range(3):
        writer.train(batch_of(10 * rank + number))
    if rank == 1:  # as a learner that is alone would
        writer.save_checkpoint("given")
    assert len(set(gather_objects("written"))) == 1
    hook = {**QUIET, "load_ckpt_before_run": str(folder / "given"), "save_ckpt_after_run": True}
    learner = BaseLearner({"hook": hook}, policy_of(rank), dist_info=place, ckpt_dir=folder)
    assert weights_of(learner) != weights_of(writer)
    learner.call_hook("before_run")
    assert weights_of(learner) == weights_of(writer)
    learner.train(batch_of(3 + rank))
    assert learner.train_iter == 4
    assert len(set(gather_objects(weights_of(learner)))) == 1, "the optimizers are equal, too"
    learner.call_hook("after_run")
    assert len(set(gather_objects("saved"))) == 1
    assert checkpoint_names(folder) == ["ckpt_final", "given"]
    assert open_checkpoint(folder / "ckpt_final").facts["train_iter"] == 4
