"""Policies of several learners: equal to the bit on all, and what one learner of all data would be.

The process group is real (gloo) and so are the policies; the one learner that they are compared
with is computed when the group has been left.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import math
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.link_contract import RANKS
from fakes.policies import data_of, first, gradient, policy_of, returns_of, with_scale

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the ranks share few cores

import torch
from torch import Tensor, nn

from hpcdi.comm import group
from hpcdi.comm.group import dist_finalize, dist_init, gather_objects, get_world_size
from hpcdi.comm.world import World, open_world
from hpcdi.config.compat import parse
from hpcdi.config.policy import NormalizeConfig
from hpcdi.config.team import TeamConfig
from hpcdi.policy import minibatches
from hpcdi.policy.create import create_policy
from hpcdi.policy.minibatches import Joint
from hpcdi.policy.players import with_players
from hpcdi.policy.ppo import PPOPolicy, ppo_losses
from hpcdi.roles.learner.checkpointing import copied
from hpcdi.types import Leaf, Spaces
from hpcdi.utils.registry import POLICY_REGISTRY

pytestmark = [pytest.mark.mpi(RANKS), pytest.mark.usefixtures("one_torch_thread")]

GUIDE = Path(minibatches.__file__).with_name("README.md").read_text()
LIMIT_S = 50.0
GROUPS = [(1, 2), (0, 1, 3), tuple(range(RANKS))]
STEPS = 10


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "to be restored")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    yield
    dist_finalize()


@pytest.fixture
def world() -> World:
    return open_world()


@contextlib.contextmanager
def learners(world: World, members: tuple[int, ...], backend: str = "gloo") -> Iterator[int | None]:
    """Inside, `members` are in a process group; gives this one's rank in it, None to the others."""
    group = world.split({"some": members}).get("some")
    if group is None:
        yield None
        return
    rank, _size = dist_init(backend, timeout=LIMIT_S, group=group)
    try:
        yield rank
    finally:
        dist_finalize()
        group.Free()


def small(kind: str, rank: int, **learn: Any) -> Any:
    """A learner's policy; seeds differ as in a run."""
    return policy_of(kind, rank, **{"batch_size": 16, **learn})


def joined(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def fingerprint(value: Any) -> str:
    """Of all bits of a nested state, but those of random generators."""
    digest = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            digest.update(part.contiguous().numpy().tobytes())
        elif isinstance(part, Mapping):
            for key in sorted(set(part) - {"rng"}, key=str):
                digest.update(str(key).encode())
                add(part[key])
        elif isinstance(part, list | tuple):
            for item in part:
                add(item)
        else:
            digest.update(repr(part).encode())

    add(value)
    return digest.hexdigest()


def demand_equal(value: Any) -> None:
    """All learners have the same, bit for bit."""
    prints = gather_objects(fingerprint(value))
    assert len(prints) == get_world_size() > 1
    assert len(set(prints)) == 1


def demand_close(found: Mapping[str, Tensor] | Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------- equal on all learners

SWITCHES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    *((members, {}) for members in GROUPS),
    (GROUPS[0], {"grad_clip_norm": 0.1, "accumulate": 3}),
    (GROUPS[1], {"precision": "bf16"}),
    (GROUPS[2], {"precision": "fp16"}),
]
FEW = [SWITCHES[2], SWITCHES[3]]
"""For what differs from another algorithm in its losses alone: all learners; parts of batches."""


def every(kind: str, *others: str) -> list[Any]:
    """All switches with one kind, and few with the others."""
    return [(kind, *switch) for switch in SWITCHES] + [
        (other, *switch) for other in others for switch in FEW
    ]


@pytest.mark.parametrize(("members", "learn"), SWITCHES, ids=str)
def test_dqn_is_equal_after_every_step(
    world: World, members: tuple[int, ...], learn: dict[str, Any]
) -> None:
    with learners(world, members) as rank:
        if rank is None:
            return
        mode = small("dqn", rank, target_update_freq=4, **learn).learn_mode
        demand_equal(mode.state_dict())
        states = {fingerprint(mode.state_dict())}
        for step in range(STEPS):
            told = mode.forward(data_of("dqn", 100 * step + rank, 16))
            assert math.isfinite(told["total_loss"])
            assert len(set(gather_objects(told["total_loss"]))) == len(members), "data of its own"
            demand_equal(mode.state_dict())
            states.add(fingerprint(mode.state_dict()))
        assert len(states) == STEPS + 1


@pytest.mark.parametrize(("kind", "members", "learn"), every("sac", "tqc", "td3"), ids=str)
def test_actors_critics_and_targets_are_equal_after_every_step(
    world: World, members: tuple[int, ...], learn: dict[str, Any], kind: str
) -> None:
    with learners(world, members) as rank:
        if rank is None:
            return
        model = {
            "obs_shape": 4, "action_shape": [2], "action_low": [-1, 0], "action_high": [1, 3],
            "encoder_hidden_size_list": [32],
        }  # fmt: skip
        cfg = {"type": kind, "model": model, "learn": {"tau": 0.1, **learn}}
        mode = create_policy(cfg, ("learn",), seed=np.random.SeedSequence(rank)).learn_mode
        states = {fingerprint(mode.state_dict())}
        demand_equal(mode.state_dict())
        for step in range(STEPS):
            batch = data_of("dqn", 100 * step + rank, 16)
            batch["action"] = batch["observation"][:, :2].tanh()
            told = mode.forward(batch)
            assert math.isfinite(told["total_loss"])
            assert len(set(gather_objects(told["total_loss"]))) == len(members), "data of its own"
            demand_equal(mode.state_dict())
            states.add(fingerprint(mode.state_dict()))
        assert len(states) == STEPS + 1


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
def test_layers_of_an_extra_loss_are_equal_after_every_step(world: World, kind: str) -> None:
    """They learn from the data of all, and are those of learner 0 at the start."""
    loss = {"type": "fakes.extra_losses:Reward", "column": returns_of(kind)}
    with learners(world, GROUPS[1]) as rank:
        if rank is None:
            return
        policy = small(kind, rank, extra_loss=loss, accumulate=2)
        layers, mode = policy._extra_layers, policy.learn_mode
        demand_equal(layers.state_dict())
        for step in range(STEPS):
            told = mode.forward(data_of(kind, 100 * step + rank, 16))
            assert math.isfinite(told["reward_error"])
            demand_equal(mode.state_dict())
            if kind == "discrete":
                demand_equal(told)  # of the joint minibatch
        assert gradient(layers).abs().max() > 0


@pytest.mark.parametrize(("kind", "members", "learn"), every("discrete", "continuous"), ids=str)
def test_ppo_is_equal_after_every_step(
    world: World, members: tuple[int, ...], kind: str, learn: dict[str, Any]
) -> None:
    with learners(world, members) as rank:
        if rank is None:
            return
        policy = small(kind, rank, schedule={"iterations": STEPS}, **learn)
        mode, updates = policy.learn_mode, 0
        demand_equal(mode.state_dict())
        for step in range(STEPS):
            counts = [30 + 20 * member + step for member in range(len(members))]
            told = mode.forward(data_of(kind, 100 * step + rank, counts[rank]))
            assert all(math.isfinite(value) for value in told.values())
            updates += math.ceil(max(counts) / 16)
            demand_equal([told, mode.state_dict()])
        assert mode.state_dict()["updates"] == updates


@pytest.mark.parametrize("on_policy", [True, False])
def test_statistics_are_those_of_all_learners_data(world: World, on_policy: bool) -> None:
    kind = "discrete" if on_policy else "dqn"
    cfg = small(kind, 0)._cfg
    cfg = dataclasses.replace(cfg, normalize=NormalizeConfig(observation=True, reward=True))
    batches = [data_of(kind, rank, count=5 + rank * on_policy) for rank in range(RANKS)]
    for rank, batch in enumerate(batches):
        batch["observation"] = batch["observation"] * 10**rank + 1e4
        batch["discounted_return"] = batch["observation"][:, 0]
    with learners(world, (0, 1, 3)) as rank:
        if rank is None:
            return
        policy = create_policy(cfg, ("learn",), seed=np.random.SeedSequence(rank))
        policy.learn_mode.forward(dict(batches[rank]))
        demand_equal(policy.learn_mode.state_dict())
    rows = joined(batches[:3])["observation"].double()
    (of_observation,) = policy._model.normalizer.observation  # type: ignore[attr-defined]
    torch.testing.assert_close(of_observation.mean, rows.mean(dim=0))
    torch.testing.assert_close(of_observation.deviation, rows.std(dim=0, correction=0))


def test_the_weights_of_learner_0_are_everybodys(world: World) -> None:
    """Seeds differ, and so would the first weights; the target is copied after."""
    first, own = small("dqn", 0), small("dqn", world.rank)  # alone, before there is a group
    weights = [policy._model.advantage.weight for policy in (first, own)]
    assert torch.equal(*weights) == (world.rank == 0)
    with learners(world, tuple(range(RANKS))) as rank:
        assert rank is not None
        shared = small("dqn", rank).learn_mode.state_dict()
    for part in ("model", "target_model"):
        assert fingerprint(shared[part]) == fingerprint(first.learn_mode.state_dict()[part])


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
def test_a_player_in_one_learners_batch_is_learnt_by_all(world: World, kind: str) -> None:
    """Learners without it learnt from a row that nobody had played; where all lack it, all skip."""
    own = {
        "type": "dqn" if kind == "dqn" else "ppo",
        "model": {"encoder_hidden_size_list": [8]},
        "normalize": {"observation": True},
    }
    spaces = Spaces(
        (*(Leaf(f"players/{name}", (4,)) for name in "ab"), Leaf("acts", (2,), "int8")),
        tuple(Leaf(name, (), "int64", (3,)) for name in "ab"),
    )
    cfg, problems = with_players(
        parse(TeamConfig, {"policies": {"a": own, "b": own}}, "a team"), spaces
    )
    assert not problems
    with learners(world, (0, 1, 3)) as rank:
        if rank is None:
            return
        policy: Any = create_policy(cfg, ("learn",), seed=np.random.SeedSequence(rank))
        of_a = policy._policies["a"]
        for step in range(4):
            before, is_there = fingerprint(of_a._model.state_dict()), step % 2 == 0
            acts = torch.tensor([[is_there and rank == 1, True]]).expand(16, 2)
            batch = {"observation/acts": acts, "reward": torch.zeros(16)}
            for name in "ab":
                batch |= of_player(name, data_of(kind, 100 * step + rank, 16))
            told = policy.learn_mode.forward(batch)
            assert all(math.isfinite(value) for value in told.values())
            assert ("a/total_loss" in told) == (is_there and (kind != "dqn" or rank == 1))
            assert (fingerprint(of_a._model.state_dict()) != before) == is_there
            demand_equal(policy.learn_mode.state_dict())
        assert of_a._normalizer.observation[0].count == 2 * 16


def of_player(name: str, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A policy's columns as those of a team's player."""
    roots = {
        "observation": f"observation/players/{name}",
        "next_observation": f"next/{name}/observation/players/{name}",
    }
    return {roots.get(column, f"{column}/{name}"): values for column, values in columns.items()}


# ------------------------------------------------------------------- what one learner would compute


@pytest.mark.parametrize("learn", [{}, {"accumulate": 3}, {"grad_clip_norm": 0.05}], ids=str)
@pytest.mark.parametrize("members", GROUPS, ids=len)
def test_dqn_gradients_are_those_of_the_joint_batch(
    world: World, members: tuple[int, ...], learn: dict[str, Any]
) -> None:
    batches = [data_of("dqn", rank, 16) for rank in range(len(members))]
    with learners(world, members) as rank:
        if rank is None:
            return
        policy = small("dqn", rank, **learn)
        start = copy.deepcopy(policy.learn_mode.state_dict())
        policy.learn_mode.forward(batches[rank])
        found = gradient(policy._model)
    alone = small("dqn", 77, **{**learn, "accumulate": 1})
    alone.learn_mode.load_state_dict(start)
    alone.learn_mode.forward(joined(batches))
    demand_close(found, gradient(alone._model))


JOINT: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    *((members, {}) for members in GROUPS),
    (GROUPS[1], {"accumulate": 3}),
    (GROUPS[0], {"adv_norm": False}),
]
COUNTS = {"alike": [32, 32, 32, 32], "unequal": [50, 17, 34, 40], "hardly any": [50, 2, 1, 33]}


@pytest.mark.parametrize(("members", "learn"), JOINT, ids=str)
@pytest.mark.parametrize(
    ("kind", "counts"), [*(("discrete", name) for name in COUNTS), ("continuous", "unequal")]
)
def test_ppo_learns_from_joint_minibatches(
    world: World, members: tuple[int, ...], kind: str, counts: str, learn: dict[str, Any]
) -> None:
    """Two passes by plain gradient descent, against one learner that is given all minibatches.

    With hardly any data a learner's minibatches are empty but for one or two.
    """
    given = COUNTS[counts][: len(members)]
    settings = {"epoch_per_collect": 2, "entropy_weight": 0.01, "value_clip": True, **learn}
    batches = [data_of(kind, rank, count) for rank, count in enumerate(given)]
    with learners(world, members) as rank:
        if rank is None:
            return
        learner = descending(small(kind, rank, **settings))
        start = copy.deepcopy(learner._model.state_dict())
        orders = gather_objects(copy.deepcopy(learner._shuffles).bit_generator.state)
        logs = learner.update(batches[rank])
        demand_equal([logs, learner._model.state_dict()])
    alone = descending(small(kind, 77, **{**settings, "accumulate": 1}))
    alone._model.load_state_dict(start)
    expected = [
        by_one(alone, minibatch)
        for minibatch in joint_minibatches(batches, orders, math.ceil(max(given) / 16), 2)
    ]
    demand_close(learner._model.state_dict(), alone._model.state_dict())
    demand_close(gradient(learner._model), gradient(alone._model))
    assert [sorted(log) for log in logs] == [sorted([*told, "cur_lr"]) for told in expected]
    for log, told in zip(logs, expected, strict=True):
        assert {name: log[name] for name in told} == pytest.approx(told, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["ppo", "a2c"])
@pytest.mark.parametrize("counts", [(24, 8), (32, 0)], ids=str)
def test_learners_with_unequal_rows_learn_like_one(
    world: World, kind: str, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PPO with a bonus, and by the A2C that the guide shows; two updates."""
    if kind == "a2c":
        (code,) = re.findall(r"```python\n(# my_a2c.py\n.*?)```", GUIDE, flags=re.DOTALL)
        monkeypatch.setitem(sys.modules, "my_a2c", types.ModuleType("my_a2c"))
        POLICY_REGISTRY._classes.pop("a2c", None)
        exec(code, vars(sys.modules["my_a2c"]))
    model = {"obs_shape": 4, "action_shape": 3, "action_space": "discrete"}
    cfg: dict[str, Any] = {"type": kind, "model": model, "learn": {"learning_rate": 0.01}}
    if kind == "ppo":
        cfg["learn"] |= {"batch_size": 64, "epoch_per_collect": 1}
        cfg["exploration_bonus"] = {"type": "rnd", "weight": 0.1, "learning_rate": 0.01}
    whole = data_of("discrete", 3, 32)
    whole["next_observation"] = whole["observation"].roll(1, 0)

    def learnt(rows: slice) -> Any:
        policy = create_policy(cfg, ("learn",), seed=np.random.SeedSequence(0))
        for _ in range(2):
            policy.learn_mode.forward({name: column[rows] for name, column in whole.items()})
        return policy.learn_mode.state_dict()["model"]

    with learners(world, (0, 1)) as rank:
        if rank is None:
            return
        found = copied(learnt(slice(counts[0]) if rank == 0 else slice(counts[0], None)))
        demand_equal(found)
    torch.testing.assert_close(found, copied(learnt(slice(None))), rtol=0, atol=1e-5)


def descending(policy: PPOPolicy) -> PPOPolicy:
    """With plain gradient descent: Adam would make much of small differences."""
    policy._step.optimizer = torch.optim.SGD(
        policy._model.parameters(), lr=policy._cfg.learn.learning_rate
    )
    return policy


def joint_minibatches(
    batches: list[dict[str, Tensor]], orders: list[Any], parts: int, passes: int
) -> Iterator[dict[str, Tensor]]:
    """What the learners' minibatches are together, drawn as each of them draws its own."""
    streams = [np.random.default_rng() for _ in batches]
    for stream, state in zip(streams, orders, strict=True):
        stream.bit_generator.state = state
    for _ in range(passes):
        drawn = [
            torch.tensor_split(torch.from_numpy(stream.permutation(len(batch["value"]))), parts)
            for stream, batch in zip(streams, batches, strict=True)
        ]
        for part in range(parts):
            rows = [rows[part] for rows in drawn]
            picked = joined([
                {name: column[chosen] for name, column in batch.items()}
                for batch, chosen in zip(batches, rows, strict=True)
            ])  # fmt: skip
            action = picked.get("raw_action", picked["action"])
            yield {**picked, "action": action}


def by_one(learner: PPOPolicy, minibatch: dict[str, Tensor]) -> dict[str, float]:
    """A plain step, and the scalars that it gives."""
    learn, joint = learner._cfg.learn, Joint.of(minibatch["advantage"])
    output, _ = learner._model(minibatch["observation"], {})
    losses = ppo_losses(learner.distribution, output, minibatch, learn, joint)
    learner._model.zero_grad()
    losses.total.backward()
    norm = nn.utils.clip_grad_norm_(learner._model.parameters(), learn.grad_clip_norm)
    with torch.no_grad():
        for parameter in learner._model.parameters():
            parameter -= learn.learning_rate * parameter.grad
    told = {f"{name}_loss": getattr(losses, name).item() for name in ("total", "policy", "value")}
    told |= {name: getattr(losses, name).item() for name in ("entropy", "approx_kl", "clipfrac")}
    told["adv_max"], told["value_mean"] = minibatch["advantage"].max(), minibatch["value"].mean()
    return {**{name: float(value) for name, value in told.items()}, "grad_norm": norm.item()}


# ------------------------------------------------------------------------------ what they agree on


@pytest.mark.parametrize(("limit", "learnt"), [(0.05, 0), (10.0, 1)])
def test_ppo_stops_on_all_learners_at_once(world: World, limit: float, learnt: int) -> None:
    """Only one learner's data are of a strange policy: what counts is the joint minibatch."""
    with learners(world, (0, 1, 2)) as rank:
        if rank is None:
            return
        policy = small("discrete", rank, target_kl=limit)
        spread = 1.5 if rank == 0 else 0.001
        logs = policy.update(data_of("discrete", rank, 48, spread))
        assert (len(logs), policy._updates) == ((1, 0), (3, 3))[learnt]
        assert (logs[0]["approx_kl"] > limit) == (not learnt)
        demand_equal([logs, policy.learn_mode.state_dict()])


@pytest.mark.parametrize("limit", [0.002, 0.005])
def test_ppo_stops_on_all_learners_when_it_has_moved(world: World, limit: float) -> None:
    """In the middle of an update, at a minibatch at which they would not all have stopped."""
    with learners(world, (0, 1, 2)) as rank:
        if rank is None:
            return
        batch = data_of("discrete", rank, (90, 40, 3)[rank], 0.0)
        policy = small("discrete", rank, target_kl=limit, learning_rate=0.01, epoch_per_collect=10)
        logs = policy.update(batch)
        assert 1 < len(logs) < 60
        assert policy._updates == len(logs) - 1
        demand_equal([logs, policy.learn_mode.state_dict()])


def test_ppo_exchanges_little(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the gradients: how data are cut, once a pass the moments, and the logs."""
    calls = []
    real = group.allreduce_data

    def counting(x: Any, op: str) -> Any:
        calls.append(op)
        return real(x, op)

    monkeypatch.setattr(minibatches, "allreduce_data", counting)
    monkeypatch.setattr("hpcdi.policy.actor_critic.group.allreduce_data", counting)
    with learners(world, tuple(range(RANKS))) as rank:
        assert rank is not None
        policy = small("discrete", rank, epoch_per_collect=3)
        assert len(policy.update(data_of("discrete", rank, 64))) == 12
    assert calls == ["sum", *["sum"] * 3, "avg"]


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
def test_an_overflow_of_one_learner_is_skipped_by_all(world: World, kind: str) -> None:
    with learners(world, (0, 2, 3)) as rank:
        if rank is None:
            return
        settings = {"precision": "fp16", "grad_clip_norm": 0.5}
        settings |= {"loss": "mse"} if kind == "dqn" else {}
        policy = small(kind, rank, **settings)
        with_scale(policy, 1024.0)  # so that nothing else overflows
        mode = policy.learn_mode
        before, batch = fingerprint(mode.state_dict()["model"]), data_of(kind, rank, 16)
        steep = {**batch, returns_of(kind): 1e9 * batch[returns_of(kind)]}
        for given, is_skipped in ((steep if rank == 1 else batch, True), (batch, False)):
            told = mode.forward(given)
            state = mode.state_dict()
            demand_equal(state)
            assert first(told)["skipped_steps"] == 1
            assert state["scaler"]["scale"] == 512.0
            assert (fingerprint(state["model"]) == before) == is_skipped


def test_a_loss_that_is_not_a_number_is_seen_by_all(world: World) -> None:
    """DQN: by the others in their next loss; PPO: by all at once, since its logs are joint."""
    with learners(world, (0, 1, 2)) as rank:
        if rank is None:
            return
        for kind in ("dqn", "discrete"):
            mode = small(kind, rank).learn_mode
            batch = data_of(kind, rank, 16)
            spoilt = {**batch, returns_of(kind): torch.full((16,), torch.nan)}
            told = mode.forward(spoilt if rank == 1 else batch)
            assert math.isnan(first(told)["total_loss"]) == (rank == 1 or kind != "dqn")
            assert all(tensor.isnan().all() for tensor in mode.state_dict()["model"].values())
            told = mode.forward(batch)
            assert math.isnan(first(told)["total_loss"])


def test_a_policy_that_was_built_alone_goes_on_alone(world: World) -> None:
    """And in a group: the same object in turn, as learners come and go."""
    policy = small("dqn", 5)
    twin = small("dqn", 5)
    batch = data_of("dqn", 1, 16)
    with learners(world, (0, 1)) as rank:
        policy.learn_mode.forward(batch)  # the group's members give the same batch
        if rank is not None:
            demand_equal(policy.learn_mode.state_dict())
    policy.learn_mode.forward(batch)
    for _ in range(2):
        twin.learn_mode.forward(batch)
    demand_close(policy.learn_mode.state_dict()["model"], twin.learn_mode.state_dict()["model"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["dqn", "discrete", "continuous"])
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_learners_that_share_a_gpu(world: World, kind: str, precision: str) -> None:
    """By gloo, since NCCL refuses two members on one device; the others see none of it."""
    members = tuple(range(torch.cuda.device_count() + 1))[:RANKS]
    with learners(world, members, "nccl") as rank:
        if rank is None:
            return
        assert torch.distributed.get_backend() == "gloo"
        policy = policy_of(kind, rank, cuda=True, precision=precision, batch_size=16)
        before = fingerprint(copied(policy._model.state_dict()))
        for step in range(STEPS):
            policy.learn_mode.forward(data_of(kind, 100 * step + rank, 64))
            demand_equal(copied(policy.learn_mode.state_dict()["model"]))
        assert fingerprint(copied(policy._model.state_dict())) != before


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_learners_of_one_node_on_a_gpu_each(world: World, precision: str) -> None:
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    with learners(world, (0, 1), "nccl") as rank:
        if rank is None:
            return
        policy = policy_of("dqn", rank, cuda=True, precision=precision)
        assert policy._device.index == rank
        for step in range(STEPS):
            policy.learn_mode.forward(data_of("dqn", 100 * step + rank, 64))
            demand_equal(copied(policy.learn_mode.state_dict()["model"]))
