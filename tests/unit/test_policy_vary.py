"""A loss of one's own beside an algorithm's; and the guide hpcdi/policy/VARY.md."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import hpcdi.policy
from fakes.policies import data_of, policy_of
from fakes.serial_runs import DQN, LIMIT, SMALL, serial_run, train
from hpcdi.errors import ConfigError, GroupBrokenError, PolicyError
from hpcdi.policy import graphs
from hpcdi.policy.create import create_policy
from hpcdi.policy.ppo import PPOPolicy
from hpcdi.utils.curves import read_curves

pytestmark = pytest.mark.usefixtures("one_torch_thread")

GUIDE = Path(hpcdi.policy.__file__).with_name("VARY.md").read_text()
REWARD = {"type": "fakes.extra_losses:Reward", "weight": 0.5}
KINDS = ("dqn", "discrete", "continuous")
LATER = (
    "policy.random_collect_size=32",
    "policy.other.replay_buffer.min_fill=32",
    "policy.learn.batch_size=16",
)


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each python block is the file that its first line names."""
    blocks = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE, flags=re.DOTALL)
    for name, block in blocks:
        (tmp_path / f"{name}.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name, _ in blocks:
        sys.modules.pop(name, None)


def batch_of(kind: str, count: int = 24) -> dict[str, torch.Tensor]:
    batch = data_of(kind, 1, count)
    return {**batch, "reward": batch["observation"][:, 0] * 2}


def test_it_is_added_in_parts_as_in_one() -> None:
    """Layers, network and scalars are the same, to rounding; so they are with bf16, coarsely."""
    for kind in KINDS:
        states, told = [], []
        for learn in ({}, {"accumulate": 3}, {"precision": "bf16"}):
            policy = policy_of(kind, batch_size=24, extra_loss=REWARD, **learn)
            info = [policy.learn_mode.forward(batch_of(kind)) for _ in range(5)]
            told.append({name: [each[name] for each in info] for name in info[0]})
            states.append(policy.learn_mode.state_dict())
            assert info[-1]["reward_error"] < info[0]["reward_error"]
            assert info[0]["extra_loss"] == pytest.approx(0.5 * info[0]["reward_error"], rel=1e-5)
            assert info[0]["parts"] == pytest.approx(1)
        for part in ("model", "extra"):
            torch.testing.assert_close(states[0][part], states[1][part], rtol=1e-4, atol=1e-5)
        assert told[1]["total_loss"] == pytest.approx(told[0]["total_loss"], rel=1e-4)
        assert told[2]["extra_loss"] == pytest.approx(told[0]["extra_loss"], rel=0.05)


def test_a_batch_of_no_rows_adds_nothing_to_it() -> None:
    """A learner's, none of whose rows have a player of the policy."""
    policy, batch = policy_of("dqn", batch_size=24, extra_loss=REWARD), batch_of("dqn")
    none = {name: column[:0] for name, column in batch.items()}
    info = policy.learn_mode.forward(none)
    assert (info["extra_loss"], info["parts"]) == (0, 0)
    info = policy.learn_mode.forward(batch)
    assert info["parts"] == pytest.approx(1)
    assert info["extra_loss"] == pytest.approx(0.5 * info["reward_error"], rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_broken_attempt_has_told_is_not_added_to_the_next(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner's death: the batch is repeated, and its extra loss was logged twice over."""
    policy, batch = policy_of(kind, batch_size=24, extra_loss=REWARD), batch_of(kind)

    def breaks() -> None:
        raise GroupBrokenError("a learner has died")

    with monkeypatch.context() as patch:
        patch.setattr(policy._step._sync, "finish", breaks)
        with pytest.raises(GroupBrokenError):
            policy.learn_mode.forward(batch)
    info = policy.learn_mode.forward(batch)
    assert info["parts"] == pytest.approx(1)
    assert info["extra_loss"] == pytest.approx(0.5 * info["reward_error"], rel=1e-5)


def test_the_network_learns_by_it_and_the_algorithm_is_left_alone() -> None:
    """With weight 0 the network learns what it learns without; else its features learn, too."""
    plain, zero, some = (
        policy_of("dqn", extra_loss=setting)
        for setting in ({}, {**REWARD, "weight": 0.0}, {**REWARD, "weight": 5.0})
    )
    for policy in (plain, zero, some):
        policy.learn_mode.forward(batch_of("dqn"))
    torch.testing.assert_close(plain._model.state_dict(), zero._model.state_dict())
    moved = some._model.encoder[1].weight - plain._model.encoder[1].weight
    assert moved.abs().max() > 1e-4


def test_its_layers_are_in_checkpoints_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    first, second, bare = (policy_of("discrete", extra_loss=each) for each in (REWARD, REWARD, {}))
    first.learn_mode.forward(batch_of("discrete"))
    state = first.learn_mode.state_dict()
    assert state["model"].keys() == bare.learn_mode.state_dict()["model"].keys()
    second.learn_mode.load_state_dict(state)
    for policy in (first, second):
        policy.learn_mode.forward(batch_of("discrete"))
    torch.testing.assert_close(
        second.learn_mode.state_dict()["extra"], first.learn_mode.state_dict()["extra"]
    )
    assert not caplog.records
    bare.learn_mode.load_state_dict(state)  # of a run with it, fine-tuned without
    assert "extra loss" in caplog.text
    bare.learn_mode.forward(batch_of("discrete"))


@pytest.mark.parametrize("kind", KINDS)
def test_it_sees_the_actions_that_are_stored(kind: str) -> None:
    """Of Boxes, too, of which what was sampled is learnt from, not what was clipped."""
    policy, batch, seen = policy_of(kind, batch_size=24, extra_loss=REWARD), batch_of(kind), {}

    def extra_loss(part: Any, outputs: Any) -> Any:
        seen.update(part)
        return outputs.mean(0 * outputs.value), {}

    policy._extra._compute = extra_loss
    policy.learn_mode.forward(batch)
    order = seen["reward"].argsort()  # minibatches are shuffled
    expected = batch["action"][batch["reward"].argsort()]
    torch.testing.assert_close(seen["action"][order], expected)


def test_what_is_no_scalar_is_refused() -> None:
    policy = policy_of("dqn", extra_loss={"type": "fakes.extra_losses:unreduced"})
    with pytest.raises(PolicyError, match=r"returned a tensor \[24\].*outputs.mean"):
        policy.learn_mode.forward(batch_of("dqn"))
    policy = policy_of("dqn", extra_loss={**REWARD, "column": "gone"})
    with pytest.raises(
        PolicyError, match=r"asked for 'gone'; the batch .* has action, bootstrap_dis"
    ):
        policy.learn_mode.forward(batch_of("dqn"))
    with pytest.raises(ConfigError, match=r"extra_losses' has no 'Gone'"):
        policy_of("dqn", extra_loss={"type": "fakes.extra_losses:Gone"})


def test_updates_with_it_are_no_cuda_graphs_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(graphs, "Replayed", lambda *_: made.append(1) or made)
    for learn, count in (({}, 1), ({"extra_loss": REWARD}, 0)):
        for wanted, more in ((None, 0), (True, 1 - count)):
            made.clear()
            policy = policy_of("dqn", cuda_graphs=wanted, **learn)
            policy._device = torch.device("cuda")
            monkeypatch.setattr(type(policy._step), "is_recordable", True)
            policy.replayed(policy._learn_from)
            assert len(made) == count + more


RUNS = {
    "dqn": ("cartpole_dqn", DQN),
    "qrdqn": ("cartpole_dqn", (*DQN, "policy.type=qrdqn")),
    "r2d2": (
        "memory_len_r2d2",
        (*DQN, "env.kwargs.length=10", "policy.learn.batch_size=4", "policy.learn.accumulate=2",
         "policy.collect.unroll_len=8", "policy.collect.stride=4", "policy.learn.burn_in=2",
         "policy.model.memory_size=8"),
    ),
    "ppo": ("cartpole_novel_ppo_lstm", (*SMALL, "policy.learn.epoch_per_collect=1")),
    "impala": ("cartpole_impala", (*SMALL, "policy.learn.accumulate=2")),
    "ppo of several arrays": ("meet_mappo", SMALL),
    "qmix": ("recall_qmix_gru", (*DQN, "policy.learn.batch_size=4", "policy.collect.n_sample=8")),
    "sac": ("pendulum_sac", (*SMALL, *LATER)),
    "td3": ("pendulum_td3", (*SMALL, *LATER)),
}  # fmt: skip
COLUMNS = {"ppo of several arrays": "return", "qmix": "n_step_return"}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_learns_by_it(kind: str, tmp_path: Path) -> None:
    """`fakes.extra_losses` checks what it is given."""
    name, settings = RUNS[kind]
    column = COLUMNS.get(kind, "reward")
    extra = f"policy.learn.extra_loss={{type: 'fakes.extra_losses:Reward', column: {column}}}"
    shown = "policy.learn.learner.hook.log_show_after_iter=1"
    with serial_run(tmp_path, name, *settings, extra, shown, f"{LIMIT}.max_train_iter=4") as run:
        train(run)
    told = read_curves(tmp_path.rglob("curves.csv"))
    assert any(each.endswith("reward_error") for each in told), sorted(told)


def policy_in_guide(kind: str, model: dict[str, Any]) -> Any:
    given = [
        yaml.safe_load(b)["policy"] for b in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    ]
    (cfg,) = [policy for policy in given if policy["type"] == kind]
    cfg["model"] = {**model, "encoder_hidden_size_list": [32]}
    return create_policy(cfg, seed=np.random.SeedSequence(0))


def test_the_guides_reward_prediction() -> None:
    box = {"obs_shape": 4, "action_shape": [2], "action_low": [-1, 0], "action_high": [1, 3]}
    policy = policy_in_guide("sac", box)
    batch = {**batch_of("dqn", 64), "action": torch.rand(64, 2)}
    errors = [policy.learn_mode.forward(batch)["reward_error"] for _ in range(100)]
    assert errors[-1] < 0.8 * errors[0]


def test_the_guides_self_imitation() -> None:
    """Without any advantage, the one action with a high return becomes likely."""
    model = {"obs_shape": 4, "action_shape": 3, "action_space": "discrete"}
    policy = policy_in_guide("my_sil:SelfImitatingPPO", model)
    assert isinstance(policy, PPOPolicy)
    assert type(policy).__name__ == "SelfImitatingPPO"
    batch = data_of("discrete", 0, 256)
    batch["return"] = torch.where(batch["action"] == 1, 5.0, -5.0)
    batch["advantage"] = torch.zeros(256)
    info: Any = {}
    for _ in range(10):
        info = policy.learn_mode.forward(batch)
    assert 0 < info["imitated"] <= 1
    acted = policy.eval_mode.get_attribute("columnar").act(
        {"observation": np.zeros((8, 4), "f4")}, {}
    )
    assert math.isclose(acted["action"].mean(), 1)
