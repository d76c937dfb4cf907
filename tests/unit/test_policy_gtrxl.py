"""Attention as a memory: unrolled as it acts, within an episode, and stored once."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from hpcdi.env.create import make_env_manager
from hpcdi.errors import ConfigError
from hpcdi.policy import memories
from hpcdi.policy.create import create_policy
from hpcdi.policy.gtrxl import GTrXL
from hpcdi.policy.memories import of_sequences
from hpcdi.roles.collector.loop import policy_loop
from hpcdi.store.block import Block, row_bytes
from hpcdi.store.builder import BlockBuilder
from hpcdi.store.rows import SEQUENCE_LEN, transitions

pytestmark = pytest.mark.usefixtures("one_torch_thread")

KEPT = 4
LENGTHS = [9, 1, 4, 6]
"""Of sequences: shorter and longer than what is remembered."""
MODEL = {
    "obs_shape": 4, "action_shape": 2, "action_space": "discrete", "memory": "gtrxl",
    "memory_size": 8, "memory_heads": 2, "memory_layers": 2, "memory_len": KEPT,
    "encoder_hidden_size_list": [8],
}  # fmt: skip


def memory(layers: int = 2) -> GTrXL:
    torch.manual_seed(0)
    return GTrXL(3, 8, layers, heads=2, length=KEPT)


def begun(made: GTrXL) -> memories.State:
    """States of episodes that are 3, 2, 1 and 0 steps old."""
    state = made.initial_state(len(LENGTHS))
    for old in range(3):
        with torch.no_grad():
            _, after = made(torch.randn(len(LENGTHS), 3), state)
        for name, held in state.items():
            held[: 3 - old] = after[name][: 3 - old]
    return state


def by_steps(made: GTrXL, features: Tensor, state: memories.State) -> tuple[Tensor, Any]:
    """What it makes of sequences, a step after the other."""
    found, after = [], []
    for number, sequence in enumerate(features.split(LENGTHS)):
        own = {name: held[number : number + 1] for name, held in state.items()}
        for row in sequence:
            out, own = made(row.unsqueeze(0), own)
            found.append(out)
        after.append(own)
    return torch.cat(found), {name: torch.cat([own[name] for own in after]) for name in state}


@pytest.mark.parametrize("layers", [1, 2])
def test_sequences_and_their_gradient_are_those_of_single_steps(layers: int) -> None:
    made = memory(layers)
    state, features = begun(made), torch.randn(sum(LENGTHS), 3)
    weights, found = torch.randn(len(features), 8), []
    for whole in (True, False):
        made.zero_grad()
        if whole:
            out, after = made(features, {**state, SEQUENCE_LEN: torch.tensor(LENGTHS)})
        else:
            out, after = by_steps(made, features, state)
        (out * weights).sum().backward()
        gradients = [parameter.grad.clone() for parameter in made.parameters()]
        assert all(gradient.abs().max() > 0 for gradient in gradients)
        found.append((out.detach(), after, gradients))
    (out, after, gradients), (plain, plain_after, plain_gradients) = found
    torch.testing.assert_close(out, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close({name: after[name] for name in state}, plain_after)
    torch.testing.assert_close(gradients, plain_gradients, rtol=1e-4, atol=1e-5)


def test_a_step_attends_to_itself_and_to_the_last_ones_of_its_sequence_alone() -> None:
    """Of one layer; where n lie above each other, a step sees n times as many."""
    made = memory(layers=1)
    state = {**made.initial_state(2), SEQUENCE_LEN: torch.tensor([9, 3])}
    features = torch.randn(12, 3).requires_grad_()
    out, _ = made(features, state)
    for row in range(12):
        (gradient,) = torch.autograd.grad(out[row].sum(), features, retain_graph=True)
        seen = gradient.abs().sum(dim=1).nonzero().flatten().tolist()
        assert seen == list(range(max(0 if row < 9 else 9, row - KEPT), row + 1))


def test_what_is_held_of_no_step_is_not_attended_to() -> None:
    made, features = memory(), torch.randn(len(LENGTHS), 3)
    state = begun(made)
    expected, after = made(features, state)
    rubbish = torch.arange(KEPT) < KEPT - state["steps"]  # of the places before the episode
    state["held"][rubbish] = 1e3
    found, _ = made(features, state)
    torch.testing.assert_close(found, expected)
    assert after["steps"].flatten().tolist() == [4, 3, 2, 1]
    for _ in range(2):
        _, after = made(features, after)
    assert after["steps"].flatten().tolist() == [KEPT, KEPT, KEPT, 3]


def test_no_sequence_at_all_has_gradients_of_zero() -> None:
    made = memory()
    state = {**made.initial_state(0), SEQUENCE_LEN: torch.zeros(0, dtype=torch.int64)}
    out, _ = made(torch.zeros(0, 3), state)
    assert out.shape == (0, 8)
    out.sum().backward()
    assert all((parameter.grad == 0).all() for parameter in made.parameters())
    out, _ = made(torch.zeros(0, 3), made.initial_state(0))  # nor any step
    assert out.shape == (0, 8)


@pytest.mark.parametrize("share_encoder", [False, True])
def test_a_learner_finds_the_very_probabilities_that_were_acted_by(share_encoder: bool) -> None:
    """From blocks, in which each step is stored once, over ends of episodes and of rollouts."""
    cfg = {
        "type": "ppo", "model": {**MODEL, "share_encoder": share_encoder},
        "learn": {"batch_size": 10_000, "epoch_per_collect": 1},
        "collect": {"n_sample": 24, "unroll_len": 10},
    }  # fmt: skip
    built: Any = create_policy(cfg, ["learn", "collect"])
    manager = make_env_manager(
        {"type": "base"}, [lambda: gymnasium.make("CartPole-v1")] * 3, seed=0
    )
    manager.launch()
    loop = policy_loop(manager, built.collect_mode.get_attribute("columnar"), 24)
    for _ in range(2):
        while not loop.must_cut:
            loop.once({})
        segment = loop.cut(0)
        assert segment is not None
        builder = BlockBuilder(lambda _bytes: 1000, itertools.count(), dict)
        whole = transitions(Block(dict(segment.columns), segment.items, {}, segment.views, 1))
        assert list(builder.fill(segment)) == []
        block = builder.seal()
    manager.close()
    assert block is not None
    columns = transitions(block)
    assert columns.keys() == whole.keys()
    for name, column in whole.items():
        np.testing.assert_array_equal(columns[name], column)
    assert (columns["state/steps"][0] == KEPT).all(), "the rollout began within an episode"
    assert (columns["state/steps"] == 0).any(), "and another one began in it"
    kinds = 1 if share_encoder else 2
    saved = row_bytes(whole) - row_bytes(block.columns)
    assert saved == kinds * (4 * (KEPT - 1) * 2 * 8 - 4 * KEPT), "of each step once, and offsets"
    batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    part = {"observation": batch["observation"], **of_sequences(batch)}
    (logits, value), _ = built._model(part["observation"], memories.state_of(part))
    log_prob = logits.log_softmax(dim=1).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(log_prob, batch["log_prob"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(value, batch["value"], rtol=1e-5, atol=1e-5)
    log = built.learn_mode.forward(batch)
    assert log["approx_kl"] == pytest.approx(0, abs=1e-6)


def test_settings_that_do_not_fit_are_refused() -> None:
    wrong = {
        r"memory_size: is 12, no multiple of twice memory_heads \(4\)": {"memory_heads": 4},
        r"memory_span: is for lstm and gru; gtrxl has memory_len": {"memory_span": 9},
        r"memory_layers: must be at least 1": {"memory_layers": 0},
        r"memory_len: must be at least 1": {"memory_len": 0},
    }
    for said, settings in wrong.items():
        model = {**MODEL, "memory_size": 12, **settings}
        with pytest.raises(ConfigError, match=said):
            create_policy({"type": "ppo", "model": model, "collect": {"unroll_len": 8}}, ["learn"])
    with pytest.raises(ConfigError, match="dqn learns from single transitions"):
        create_policy({"type": "dqn", "model": MODEL}, ["learn"])
