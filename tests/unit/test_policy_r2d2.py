"""R2D2: sequences out of blocks, and the loss against a plain loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import hpcdi.worker  # noqa: F401 (it gives policies their methods by dicts)
from fakes.policies import check_dicts_are_refused
from fakes.replay import admitted, block, demand
from hpcdi.config.compiled import compile_config
from hpcdi.errors import ConfigError
from hpcdi.policy.create import create_policy
from hpcdi.policy.memories import initial_state
from hpcdi.policy.r2d2 import scaled, unscaled
from hpcdi.policy.sequences import Sequences
from hpcdi.replay.manager import create_replay
from hpcdi.replay.partition import item_count, item_rows
from hpcdi.roles.collector.recorder import segment_of
from hpcdi.store.rows import SEQUENCE_LEN, STATES, RowStore, sequence_rows
from hpcdi.types import Columns, SequenceRule

pytestmark = pytest.mark.usefixtures("one_torch_thread")

STEPS, STRIDE, NSTEP = 6, 3, 2
ITEMS = [8, 2, 5]


def policy(*modes: str, collect: Any = None, normalize: Any = None, **learn: Any) -> Any:
    cfg = {
        "type": "r2d2", "nstep": NSTEP, "discount_factor": 0.9,
        "model": {
            "obs_shape": 3, "action_shape": 2, "memory_size": 5, "encoder_hidden_size_list": [8],
        },
        "learn": {"batch_size": 5, "burn_in": 2, **learn},
        "collect": {"n_sample": 8, "unroll_len": STEPS, "stride": STRIDE, **(collect or {})},
        "normalize": normalize or {},
    }  # fmt: skip
    return create_policy(cfg, modes or ["learn", "collect"])


def columns_of(built: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of `ITEMS` as a collector makes them; the second item terminates."""
    rng, rows = np.random.default_rng(seed), sum(ITEMS)
    actor = built.collect_mode.get_attribute("columnar")
    observation = rng.standard_normal((rows, 1, 3)).astype(np.float32)
    ends = np.cumsum(ITEMS) - 1
    parts = []
    for row in range(rows):
        seen = {"observation": observation[row]}
        parts.append({**seen, **actor.act(seen, {"eps": 0.5})})
        if row in ends[:1]:
            actor.reset([0])
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns["reward"] = rng.standard_normal(rows).astype(np.float32)
    columns["terminated"] = np.arange(rows) == ends[1]
    last = {"observation": observation[[0, 1, 2], 0]}
    lengths = np.array(ITEMS, np.int32)
    segment = segment_of(columns, np.arange(rows), lengths, last, actor)
    assert not segment.views, "what follows a step is read in its own sequence"
    return dict(segment.columns)


def sequences(columns: Columns) -> Columns:
    """The sequences among rows of items, as columns [sequences, rows of a sequence, ...].

    States are [sequences, 1, ...].
    """
    starts, _ = item_rows(block(7, ITEMS), 0, SequenceRule(STEPS, STRIDE, NSTEP))
    rows = sequence_rows(starts, columns[SEQUENCE_LEN][starts], STEPS + NSTEP)
    return {
        name: column[rows[:, :1] if name.startswith(STATES) else rows]
        for name, column in columns.items()
    }


def test_a_ring_gathers_the_sequences_that_rank_0_counts() -> None:
    """Each item has one row more, which its last transitions bootstrap from."""
    built, rule = policy("collect"), SequenceRule(STEPS, STRIDE, NSTEP)
    assert built._cfg.sequence == rule
    columns = columns_of(built)
    ready = block(7, ITEMS)
    rows, _ = item_rows(ready, 0, rule)
    assert rows.tolist() == [0, 3, 6, 9, 12, 15]
    assert item_count(ready, rule) == len(rows)
    assert item_rows(ready, 0)[0].tolist() == [*range(8), 9, 10, *range(12, 17)]
    ring = RowStore(40)
    ring.write(20, columns)
    drawn, plain = ring.gather(20 + rows, rule.rows), sequences(columns)
    assert drawn.keys() == plain.keys()
    for name, column in plain.items():
        assert column.shape[:2] == (6, 1 if name.startswith(STATES) else STEPS + NSTEP)
        np.testing.assert_array_equal(drawn[name], column)
    assert plain[SEQUENCE_LEN][:, 0].tolist() == [9, 6, 3, 3, 6, 3]  # with the row behind each item


def test_no_sequence_is_drawn_that_teaches_nothing() -> None:
    """The first two items begin episodes; the third goes on, and has 3 steps behind its burn-in."""
    built, rule = policy("collect"), SequenceRule(STEPS, STRIDE, NSTEP)
    columns = columns_of(built)
    batch = {name: torch.from_numpy(column) for name, column in sequences(columns).items()}
    begin = initial_state(built._model, 1)
    teaches = Sequences(batch, 2, rule, begin).learnt.any(dim=1).numpy()
    assert teaches.tolist() == [True, True, False, True, True, False]
    settings = {
        "type": "r2d2", "nstep": NSTEP, "learn": {"burn_in": 2, "batch_size": 4},
        "collect": {"n_sample": 8, "unroll_len": STEPS, "stride": STRIDE},
        "other": {"replay_buffer": {"min_fill": 1}},
    }  # fmt: skip
    replay = create_replay(
        compile_config({"env": {"env_id": "CartPole-v1"}, "policy": settings}).config
    )
    replay.open(1)
    replay.assign(block(7, ITEMS))
    replay.admit(1, admitted(7))
    replay.partitions[1].demand(demand(1, 4))
    assert replay.count() == 4
    [(_, drawn)] = replay.serve(0, ())
    assert {*drawn.rows.ravel().tolist()} == {0, 3, 9, 12}
    assert {*item_rows(block(7, ITEMS), 0, rule)[0][teaches].tolist()} == {0, 3, 9, 12}


def test_an_episode_s_start_needs_no_burn_in_whatever_its_state_is() -> None:
    """Of a memory of one's own that does not begin with zeros nothing was learnt there."""
    plain, own, losses = policy(), policy(), []
    own._model.memory.initial_state = lambda batch: {
        name: state + 0.5 for name, state in plain._model.memory.initial_state(batch).items()
    }
    for built in (plain, own):
        flat = {name: torch.from_numpy(c) for name, c in sequences(columns_of(built)).items()}
        losses.append(built.losses(flat)[0])
    assert [(each != 0).tolist() for each in losses] == [[True, True, False, True, True, False]] * 2


@pytest.mark.parametrize("burn_in", [0, 1, 4, 50])
@pytest.mark.parametrize("stride", [1, 3])
def test_rank_0_counts_the_sequences_whose_rows_it_draws(stride: int, burn_in: int) -> None:
    lengths = list(range(1, 12))
    ready, rule = block(7, lengths), SequenceRule(6, stride, 0, burn_in)
    rows = item_rows(ready, 0, rule)[0].tolist()
    begins = ready.items["item_start"].tolist()
    assert rows == [
        begin + step
        for begin, length in zip(begins, lengths, strict=True)
        for step in range(0, length, stride)
        if not step or length - step > burn_in
    ]
    assert item_count(ready, rule) == len(rows)


def test_sequences_may_begin_anywhere() -> None:
    """A run that is resumed with another stride learns from what it has."""
    lengths = columns_of(policy("collect"))[SEQUENCE_LEN].tolist()
    assert lengths == [9, 8, 7, 6, 5, 4, 3, 2, 0, 3, 2, 0, 6, 5, 4, 3, 2, 0]


def test_values_are_rescaled_there_and_back() -> None:
    values = torch.linspace(-300, 300, 101, dtype=torch.float64)
    for slope in (1e-3, 1e-2, 1.0):
        torch.testing.assert_close(unscaled(scaled(values, slope), slope), values)
    assert scaled(torch.tensor(3.0), 1e-3).item() == pytest.approx(1.003)


def by_hand(built: Any, batch: dict[str, torch.Tensor]) -> Any:
    """Losses and priorities, sequence by sequence and step by step."""
    learn, found = built._cfg.learn, []
    for number in range(len(batch["action"])):
        length = min(int(batch[SEQUENCE_LEN][number, 0]), STEPS + NSTEP)
        unrolled = []
        for network in (built._model, built._target):
            state = {n[6:]: c[[number], 0] for n, c in batch.items() if n.startswith("state/")}
            rows = []
            for step in range(length):
                value, state = network(batch["observation"][number, [step]], state)
                rows.append(value[0].tolist())
            unrolled.append(rows)
        online, target = unrolled
        is_begin = all((c[number, 0] == 0).all() for n, c in batch.items() if n[:6] == "state/")
        errors = []
        held = min(STEPS, length - 1)  # behind the transitions is at least one row
        for step in range(0 if is_begin else min(learn.burn_in, held), held):
            ahead = step + int(batch["bootstrap_offset"][number, step])
            discount = batch["bootstrap_discount"][number, step].item()
            goal = batch["n_step_return"][number, step].item()
            if discount:
                best = int(np.argmax(online[ahead]))
                x, e = target[ahead][best], learn.rescale
                root = math.sqrt(1 + 4 * e * (abs(x) + 1 + e))
                goal += discount * math.copysign(((root - 1) / (2 * e)) ** 2 - 1, x)
            grown = math.sqrt(abs(goal) + 1) - 1
            goal = math.copysign(grown, goal) + learn.rescale * goal
            errors.append(goal - online[step][int(batch["action"][number, step])])
        sizes = np.abs(errors) if errors else np.zeros(1)
        found.append((0.5 * np.square(sizes).mean(), 0.9 * sizes.max() + 0.1 * sizes.mean()))
    losses, priorities = zip(*found, strict=True)
    return np.array(losses), np.array(priorities)


@pytest.mark.parametrize("burn_in", [0, 2, 5])
def test_losses_and_priorities_are_those_by_hand(burn_in: int) -> None:
    built = policy(burn_in=burn_in)
    with torch.no_grad():
        for parameter in built._target.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    flat = sequences(columns_of(built))
    batch = {name: torch.from_numpy(column) for name, column in flat.items()}
    losses, priorities = by_hand(built, batch)
    assert (losses[:4] > 0).any()
    log = built.learn_mode.forward({**batch, "weight": torch.ones(6)})
    np.testing.assert_allclose(log["priority"], priorities, rtol=1e-3, atol=1e-5)
    assert log["total_loss"] == pytest.approx(losses.mean(), rel=1e-3)


def test_the_loss_is_the_one_that_is_set() -> None:
    """It was half the square whatever `learn.loss` said; that is still so where it says nothing."""
    gradients = []
    choices: list[tuple[dict[str, str], float]]
    choices = [({}, 50.0), ({"loss": "mse"}, 50.0), ({"loss": "huber"}, 9.5)]
    for learn, expected in choices:
        built = policy(burn_in=0, rescale=1.0, **learn)
        with torch.no_grad():
            for parameter in built._model.parameters():
                parameter.zero_()
        batch = {name: torch.from_numpy(c) for name, c in sequences(columns_of(built)).items()}
        batch["bootstrap_discount"] = torch.zeros_like(batch["bootstrap_discount"])
        batch["n_step_return"] = torch.full_like(batch["n_step_return"], 10.0)
        losses, _, priorities = built.losses(batch)
        assert losses.tolist() == pytest.approx([expected] * 6)
        assert priorities.tolist() == pytest.approx([10.0] * 6)
        losses.sum().backward()
        known = (p.grad for p in built._model.parameters() if p.grad is not None)
        gradients.append(sum(each.abs().sum().item() for each in known))
    assert gradients == pytest.approx([10 * gradients[2], 10 * gradients[2], gradients[2]])
    assert gradients[2] > 0


def test_a_target_is_not_of_an_action_that_is_not_legal() -> None:
    built, batches = policy(burn_in=0), []
    flat = {name: torch.from_numpy(c) for name, c in sequences(columns_of(built)).items()}
    for legal in ([True, False], [False, True]):
        mask = torch.tensor(legal).expand(6, STEPS + NSTEP, 2)
        batches.append({**flat, "action_mask": mask})
    one, other = (built.losses(batch)[0] for batch in batches)
    assert not torch.isclose(one[:2], other[:2]).any()  # those with steps that bootstrap
    with torch.no_grad():
        each = Sequences(batches[0], 0, built._cfg.sequence, initial_state(built._model, 1))
        values = each.unrolled(built._forward)
        found = built.following_each(each, values, batches[0])
    torch.testing.assert_close(found, values[:, :, 0])  # the target network is still the same


def test_observations_are_normalised_by_those_that_are_no_filler() -> None:
    built = policy(normalize={"observation": True})
    flat = sequences(columns_of(built))  # as a ring has it: lengths are uint16
    batch = {name: torch.from_numpy(column) for name, column in flat.items()}
    log = built.learn_mode.forward({**batch, "weight": torch.ones(6)})
    assert log["total_loss"] > 0
    held = np.arange(STEPS + NSTEP) < np.array([[6], [5], [2], [2], [5], [2]])
    (moments,) = built._model.normalizer.observation
    assert moments.count == held.sum()
    np.testing.assert_allclose(moments.mean, flat["observation"][held].mean(axis=0), rtol=1e-6)


def test_parts_of_a_batch_have_its_gradient() -> None:
    whole, parts = policy(), policy(accumulate=3)
    flat = sequences(columns_of(whole))
    for built in (whole, parts):
        batch = {name: torch.from_numpy(column) for name, column in flat.items()}
        built.learn_mode.forward({**batch, "weight": torch.ones(6)})
    for one, other in zip(whole._model.parameters(), parts._model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="above unroll_len"):
        policy(collect={"stride": 7})
    with pytest.raises(ConfigError, match=r"leaves nothing of collect\.unroll_len"):
        policy(burn_in=6)


def test_samples_as_dicts_are_refused() -> None:
    check_dicts_are_refused(policy(), "r2d2")
