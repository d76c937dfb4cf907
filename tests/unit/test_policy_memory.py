"""Memories: states while acting, sequences while learning, against plain unrolling step by step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hpcdi.worker  # noqa: F401 (it gives policies their methods by dicts)
from hpcdi.env.create import make_env_manager
from hpcdi.errors import ConfigError, PolicyError
from hpcdi.policy import memories
from hpcdi.policy.create import create_policy
from hpcdi.policy.memories import Recurrent, chosen, of_sequences
from hpcdi.policy.minibatches import minibatches
from hpcdi.roles.collector.loop import PolicyAgent, policy_loop
from hpcdi.store.block import Block
from hpcdi.store.rows import SEQUENCE_LEN, transitions

pytestmark = pytest.mark.usefixtures("one_torch_thread")

KINDS = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
STEPS = 40
MODEL = {
    "obs_shape": 4, "action_shape": 2, "action_space": "discrete", "memory": "lstm",
    "memory_size": 6, "encoder_hidden_size_list": [8],
}  # fmt: skip


def policy(*modes: str, learn: Any = None, **model: Any) -> Any:
    cfg = {
        "type": "ppo", "model": {**MODEL, **model},
        "learn": {"batch_size": 10_000, "epoch_per_collect": 1, **(learn or {})},
        "collect": {"n_sample": STEPS, "unroll_len": 16},
    }  # fmt: skip
    return create_policy(cfg, modes or ["learn", "collect", "eval"])


def collected(built: Any, envs: int = 3) -> dict[str, np.ndarray]:
    """Transitions of CartPole, whose episodes end on the way."""
    manager = make_env_manager(
        {"type": "base"}, [lambda: gymnasium.make("CartPole-v1")] * envs, seed=0
    )
    manager.launch()
    actor = built.collect_mode.get_attribute("columnar")
    loop = policy_loop(manager, actor, STEPS)
    while not loop.must_cut:
        loop.once({})
    segment = loop.cut(0)
    manager.close()
    assert segment is not None
    assert len(segment.items) > envs
    return transitions(
        Block(dict(segment.columns), segment.items, {}, segment.views, segment.tail_rows)
    )


def tensors(columns: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def by_steps(memory: Any, features: Tensor, lengths: list[int], state: Any) -> tuple[Tensor, Any]:
    """What the memory makes of sequences, a step after the other."""
    made, after = [], []
    for number, sequence in enumerate(features.split(lengths)):
        own = {name: held[number : number + 1] for name, held in state.items()}
        for row in sequence:
            out, own = memory(row.unsqueeze(0), own)
            made.append(out)
        after.append(own)
    return torch.cat(made), {name: torch.cat([own[name] for own in after]) for name in state}


@KINDS
def test_sequences_and_their_gradient_are_those_of_single_steps(kind: Any) -> None:
    torch.manual_seed(0)
    memory, lengths = Recurrent(3, 5, kind), [3, 1, 4, 1]
    features = torch.randn(9, 3)
    state = {name: torch.randn(4, 5) for name in memory.initial_state(4)}
    weights = torch.randn(9, 5)
    found = []
    for whole in (True, False):
        memory.zero_grad()
        if whole:
            made, after = memory(features, {**state, SEQUENCE_LEN: torch.tensor(lengths)})
        else:
            made, after = by_steps(memory, features, lengths, state)
        (made * weights).sum().backward()
        found.append((made.detach(), after, [p.grad.clone() for p in memory.parameters()]))
    (made, after, gradients), (plain, plain_after, plain_gradients) = found
    torch.testing.assert_close(made, plain)
    for name in state:
        torch.testing.assert_close(after[name], plain_after[name])
    torch.testing.assert_close(gradients, plain_gradients)


@KINDS
def test_no_sequence_at_all_has_gradients_of_zero(kind: Any) -> None:
    memory = Recurrent(3, 5, kind)
    state = {**memory.initial_state(0), SEQUENCE_LEN: torch.zeros(0, dtype=torch.int64)}
    made, _ = memory(torch.zeros(0, 3), state)
    assert made.shape == (0, 5)
    made.sum().backward()
    assert all((parameter.grad == 0).all() for parameter in memory.parameters())


@pytest.mark.parametrize("memory", ["lstm", "gru"])
@pytest.mark.parametrize("share_encoder", [False, True])
def test_a_learner_finds_the_very_probabilities_that_were_acted_by(
    memory: str, share_encoder: bool
) -> None:
    """Unrolled from stored states, a policy that has not moved yet is the one that acted."""
    built = policy(memory=memory, share_encoder=share_encoder)
    columns = collected(built)
    batch = tensors(columns)
    part = {"observation": batch["observation"], **of_sequences(batch)}
    (logits, value), _ = built._model(part["observation"], memories.state_of(part))
    log_prob = logits.log_softmax(dim=1).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(log_prob, batch["log_prob"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(value, batch["value"], rtol=1e-4, atol=1e-5)
    (log,) = [built.learn_mode.forward(batch)]
    assert log["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert log["grad_norm"] > 0
    for name, column in columns.items():
        if name.startswith("state/"):
            assert (column[0] == 0).all()
            assert np.abs(column).max() > 0


def test_sequences_end_with_their_item_and_are_no_longer_than_asked() -> None:
    built = policy("collect")
    lengths = built.sequence_columns(np.array([40, 5, 16, 17], np.int32))[SEQUENCE_LEN]
    assert lengths[lengths > 0].tolist() == [16, 16, 8, 5, 16, 16, 1]
    assert np.flatnonzero(lengths).tolist() == [0, 16, 32, 40, 45, 61, 77]


def test_the_value_after_an_item_is_of_the_state_there() -> None:
    built = policy("collect")
    rng = np.random.default_rng(0)
    observation = rng.standard_normal((7, 4)).astype(np.float32)
    columns = {
        f"state/{name}": rng.standard_normal((6, 6)).astype(np.float32)
        for name in built._model.initial_state(0)
    }
    item_len = np.array([4, 2], np.int32)
    last = observation[[6, 0]]
    seen = {"observation": observation[:6], **columns}
    found = built.infer_last(seen, item_len, {"observation": last})[-1]
    for item, row in enumerate([3, 5]):
        state = {n[6:]: torch.from_numpy(c[[row]]) for n, c in columns.items()}
        _, state = built._model(torch.from_numpy(observation[[row]]), state)
        (*_, value), _ = built._model(torch.from_numpy(last[[item]]), state)
        assert found[item] == pytest.approx(value.item(), rel=1e-5)


def test_states_follow_what_environments_did() -> None:
    built = policy("collect")
    agent = PolicyAgent(built.collect_mode.get_attribute("columnar"))
    observation = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    agent.act({"observation": observation}, {})
    first = agent.act({"observation": observation}, {})["state/hidden"]
    assert (np.abs(first).sum(axis=1) > 0).all()
    rows = np.array([0, 1, 3])  # the others are still in their step
    agent.act({"observation": observation[rows]}, {}, rows)
    agent.forget(np.array([1, 3]))
    third = agent.act({"observation": observation}, {})["state/hidden"]
    assert not np.array_equal(third[0], first[0]), "it has gone on"
    assert (third[[1, 3]] == 0).all(), "episodes that ended, or failed"
    second = agent.act({"observation": observation[:1]}, {}, np.array([2]))["state/hidden"]
    assert not np.array_equal(third[2], second[0]), "its own, by its number"


def test_a_state_that_is_learnt_keeps_no_history_of_acting() -> None:
    """In a process that learns, too, each step's was kept for gradients, for ever."""
    built = policy("learn", "collect")
    start = torch.nn.Parameter(torch.ones(1))
    made = built._model.memory.initial_state
    built._model.memory.initial_state = lambda n: {k: v + start for k, v in made(n).items()}
    actor = built.collect_mode.get_attribute("columnar")
    for _ in range(2):
        actor.act({"observation": np.zeros((2, 4), np.float32)}, {})
    actor.reset([1])
    held = actor.states.read([0, 1])
    assert (held["hidden"][1] == 1).all()
    assert not any(state.requires_grad for state in held.values())


def test_environments_by_number_are_those_of_columns_and_evaluations_have_their_own() -> None:
    built = policy("collect", "eval")
    observation = np.random.default_rng(0).standard_normal((5, 3, 4)).astype(np.float32)
    actor = built.eval_mode.get_attribute("columnar")
    by_columns = []
    for step in observation:
        by_columns.append(actor.act({"observation": step}, {})["action"].tolist())
        actor.reset([1])
    built.eval_mode.reset()
    by_number = []
    for step in observation:
        built.collect_mode.forward(dict(enumerate(-step)))  # another mode, other states
        outputs = built.eval_mode.forward({env: step[env] for env in (2, 0, 1)})
        by_number.append([int(outputs[env]["action"]) for env in range(3)])
        built.eval_mode.reset([1])
    assert by_number == by_columns


def test_minibatches_are_of_whole_sequences_and_each_transition_once() -> None:
    lengths = torch.tensor([3, 1, 4, 2, 2])
    rows = torch.arange(12)
    columns = {
        "advantage": rows.float(), "row": rows, SEQUENCE_LEN: lengths,
        "state/hidden": torch.tensor([0, 3, 4, 8, 10]),
    }  # fmt: skip
    seen: list[int] = []
    for part, joint in minibatches(columns, 5, 1, np.random.default_rng(0)):
        firsts = part[SEQUENCE_LEN].cumsum(0) - part[SEQUENCE_LEN]
        assert part["row"][firsts].tolist() == part["state/hidden"].tolist()
        assert all(
            (own.diff() == 1).all() for own in part["row"].split(part[SEQUENCE_LEN].tolist())
        )
        assert joint.per_learner == len(part["row"])
        seen += part["row"].tolist()
    assert sorted(seen) == rows.tolist()
    assert seen != rows.tolist()


def test_a_batch_in_parts_has_the_same_gradient() -> None:
    whole, parts = policy(), policy(learn={"accumulate": 3})
    batch = tensors(collected(whole))
    for built in (whole, parts):
        built.learn_mode.forward(batch)
    for one, other in zip(whole._model.parameters(), parts._model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_batch_out_of_order_is_refused() -> None:
    columns = {SEQUENCE_LEN: torch.tensor([0, 3, 0]), "state/hidden": torch.zeros(3, 2)}
    with pytest.raises(PolicyError, match="whole sequences"):
        of_sequences(columns)
    with pytest.raises(PolicyError, match="whole sequences"):
        of_sequences({**columns, SEQUENCE_LEN: torch.tensor([3, 0])})
    right = of_sequences({**columns, SEQUENCE_LEN: torch.tensor([2, 0, 1])})
    assert chosen(right, torch.tensor([1]))[SEQUENCE_LEN].tolist() == [1]


def test_errors_name_what_has_no_memory() -> None:
    dqn = {"type": "dqn", "model": {"obs_shape": 4, "action_shape": 2, "memory": "gru"}}
    with pytest.raises(ConfigError, match=r"model\.memory: dqn learns from single transitions"):
        create_policy(dqn, ["learn"])
    with pytest.raises(ConfigError, match="must be above 1: gru learns"):
        create_policy({"type": "ppo", "model": {"memory": "gru"}}, ["command"])
    with pytest.raises(ConfigError, match=r"model\.memory is none"):
        create_policy({"type": "ppo", "collect": {"unroll_len": 8}}, ["command"])
    with pytest.raises(ConfigError, match=r"none of none, lstm, gru"):
        create_policy({"type": "ppo", "model": {"memory": "lstmm"}}, ["command"])


class Whole(nn.Module):
    """A network of one's own, with a memory."""

    def __init__(self, _model: Any) -> None:
        super().__init__()
        self.memory = Recurrent(4, 8, nn.GRU)
        self.outputs = nn.Linear(8, 3)

    def forward(self, observation: Tensor, state: Any) -> Any:
        """Returns logits [batch, 2] and values [batch]."""
        features, state = self.memory(observation, state)
        outputs = self.outputs(features)
        return (outputs[:, :2], outputs[:, 2]), state


@pytest.mark.parametrize("kind", ["ppo", "impala"])
def test_a_whole_network_that_remembers_learns_from_sequences_or_is_refused(kind: str) -> None:
    """PPO learnt it from single steps, and said nothing."""
    collect = {"n_sample": 8, "unroll_len": 4}
    model = {**MODEL, "type": f"{__name__}:Whole", "memory": "none"}
    if kind == "ppo":
        with pytest.raises(PolicyError, match="ppo learns it from sequences: say its kind"):
            create_policy({"type": kind, "model": model})
    else:
        assert create_policy({"type": kind, "model": model, "collect": collect})._remembers
    built = create_policy({"type": kind, "model": {**model, "memory": "gru"}, "collect": collect})
    assert type(built._model).__name__ == "Whole"
    assert built.sequence_columns(np.array([6, 2]))[SEQUENCE_LEN].tolist() == [
        4, 0, 0, 0, 2, 0, 2, 0
    ]  # fmt: skip


@KINDS
def test_a_memory_can_begin_by_keeping_for_long(kind: Any) -> None:
    """Over 30 steps the gradient of most cells is lost, unless their gates begin open."""
    kept = {}
    for span in (None, 31):
        torch.manual_seed(0)
        memory = Recurrent(3, 64, kind, span)
        state = {name: torch.zeros(1, 64) for name in memory.initial_state(1)}
        features = torch.randn(31, 3).requires_grad_()
        made, _ = memory(features, {**state, SEQUENCE_LEN: torch.tensor([31])})
        made[-1].sum().backward()
        assert features.grad is not None
        kept[span] = float(features.grad[0].norm() / features.grad[-1].norm())
    assert kept[31] > 10 * kept[None], kept
