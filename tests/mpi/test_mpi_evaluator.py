"""Evaluations of several learners: one plays, all know, all end together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.evaluator_parts import Accuracy, BattleManager, DuckPolicy, Manager, ParityPolicy
from fakes.link_contract import RANKS

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the ranks share few cores

import torch
from torch.utils.data import DataLoader, TensorDataset

from hpcdi.comm.group import broadcast_object, dist_finalize, dist_init, gather_objects
from hpcdi.comm.world import World, open_world
from hpcdi.errors import CommError, EnvError
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.worker import (
    BattleInteractionSerialEvaluator,
    InteractionSerialEvaluator,
    MetricSerialEvaluator,
)

pytestmark = pytest.mark.mpi(RANKS)

LIMIT_S = 50.0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """All ranks as learners of one process group."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "to be restored")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    world = open_world()
    group = world.split({"all": range(world.size)})["all"]
    assert group is not None
    dist_init("gloo", timeout=LIMIT_S, group=group)
    yield world
    dist_finalize()
    group.Free()


class NeverAsked(DuckPolicy):
    def forward(self, data: Any, **kwargs: Any) -> Any:
        raise AssertionError("only rank 0 evaluates")


def test_objects_go_round(world: World) -> None:
    for source in range(world.size):
        mine = {"rank": world.rank, "list": [1.5, None]}
        assert broadcast_object(mine, source) == mine | {"rank": source}
    assert gather_objects(str(world.rank)) == [str(rank) for rank in range(world.size)]


def test_rank_0_plays_and_all_end_together(world: World, shared_path: Path) -> None:
    first = world.rank == 0
    writer = TensorBoardWriter(shared_path / f"rank{world.rank}")
    saved: list[str] = []
    env = Manager([[(2, 1.0), (3, 9.0)], [(4, 2.0)]]) if first else None
    policy = DuckPolicy() if first else NeverAsked()
    cfg = {"stop_value": 4, "n_episode": 2}
    with InteractionSerialEvaluator(cfg, env, policy, writer) as evaluator:
        assert evaluator.should_eval(0)
        stop, info = evaluator.eval(saved.append, train_iter=5, n_episode=3)
        assert stop is True
        assert info["eval_episode_return"] == [1.0, 9.0, 2.0]
        assert evaluator.best == 4.0
        assert gather_objects(info) == [info] * world.size, "the time that it took, too"
        stop, _ = evaluator.eval(saved.append, train_iter=6)
        assert stop is False
    assert saved == (["ckpt_best.pth.tar"] if first else [])
    sizes = [f.stat().st_size for f in (shared_path / f"rank{world.rank}").iterdir()]
    assert (sum(sizes) > 200) is first, "one rank writes curves"


def test_rank_0_alone_says_that_it_makes_no_video(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    env = Manager([[(2, 1.0)]]) if world.rank == 0 else None
    with InteractionSerialEvaluator({"n_episode": 1}, env, DuckPolicy()) as evaluator:
        evaluator.eval(force_render=True)
    warned = [r.message for r in caplog.records if "makes no video" in r.message]
    assert len(warned) == (world.rank == 0)


def test_rank_0_lets_policies_battle(world: World) -> None:
    first = world.rank == 0
    env = BattleManager([[(2, 3.0)]]) if first else None
    policies = [DuckPolicy(10), DuckPolicy(11)] if first else [NeverAsked(), NeverAsked()]
    cfg = {"stop_value": 3, "n_episode": 1}
    with BattleInteractionSerialEvaluator(cfg, env, policies) as evaluator:
        stop, infos = evaluator.eval(train_iter=1)
    assert stop is True
    assert [[info["eval_episode_return"] for info in each] for each in infos] == [[3.0], [-3.0]]


@pytest.mark.parametrize("kind", ["interaction", "battle"])
def test_all_hear_of_it_where_rank_0_fails(world: World, kind: str) -> None:
    evaluator: Any
    if kind == "battle":
        evaluator = BattleInteractionSerialEvaluator({}, None, [DuckPolicy()] * 2)
    else:
        evaluator = InteractionSerialEvaluator({}, None, DuckPolicy())
    error, text = (EnvError, "has no environment") if world.rank == 0 else (CommError, "on rank 0")
    with pytest.raises(error, match=text) as caught:
        evaluator.eval()
    if world.rank:
        assert "EnvError" in str(caught.value)
        assert "has no environment" in str(caught.value)
    assert gather_objects(world.rank) == list(range(world.size)), "nobody is a message behind"


def numbers_of(rank: int) -> Any:
    """Rank r has 2 (r + 1) numbers in batches of two; the first 2 r are labelled rightly."""
    numbers = torch.arange(2 * (rank + 1))
    labels = torch.where(numbers < 2 * rank, numbers % 2, 1 - numbers % 2)
    return DataLoader(TensorDataset(numbers, labels), 2)


def test_metrics_of_all_ranks_are_reduced_once(world: World) -> None:
    metric = Accuracy()
    cfg = {"stop_value": 0.6, "multi_gpu": True}
    saved: list[str] = []
    env = (numbers_of(world.rank), metric)
    with MetricSerialEvaluator(cfg, env, ParityPolicy()) as evaluator:
        stop, result = evaluator.eval(saved.append, train_iter=1)
    batches = sum(rank + 1 for rank in range(world.size))
    assert metric.reduced == [batches]
    assert result["acc"] == pytest.approx(sum(range(world.size)) / batches)
    assert stop is True, "for ranks 0 and 1 alone it were not enough"
    assert len(saved) == (world.rank == 0)
    assert gather_objects(result) == [result] * world.size


def test_all_hear_of_it_where_one_ranks_data_are_bad(world: World) -> None:
    bad = world.rank == world.size - 1
    env: Any = ([torch.zeros(1)] if bad else numbers_of(world.rank), Accuracy())
    error, text = (EnvError, "pairs") if bad else (CommError, f"on rank {world.size - 1}.*EnvError")
    with (
        MetricSerialEvaluator({}, env, ParityPolicy()) as evaluator,
        pytest.raises(error, match=text),
    ):
        evaluator.eval()
