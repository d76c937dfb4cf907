"""Exploration rates, acting at random by them, and a policy that always does."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.spaces import simple_spaces
from hpcdi.config.policy import EpsConfig
from hpcdi.env.contract import read_spaces
from hpcdi.errors import PolicyError
from hpcdi.policy.acting.sampling import ActionSampler
from hpcdi.policy.base import CollectMode
from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import (
    LastingActions,
    RandomActor,
    epsilon_greedy,
)
from hpcdi.policy.spaces import with_bounds
from hpcdi.types import Leaf, Spaces
from hpcdi.worker.dict_envs import BaseEnvTimestep
from hpcdi.worker.dict_form import RandomPolicy


def test_schedule_at_the_start_after_one_decay_and_at_the_end() -> None:
    rate = EpsConfig("exp", 0.9, 0.1, 1000).rate
    expected = [0.9, 0.1 + 0.8 * math.exp(-1), 0.1]
    assert [rate(steps) for steps in (0, 1000, 10**12)] == pytest.approx(expected, abs=1e-15)


def test_linear_is_half_way_at_half_the_decay() -> None:
    rate = EpsConfig("linear", 1.0, 0.0, 10).rate
    assert [rate(step) for step in (-1, 5, 10, 11)] == [1.0, 0.5, 0.0, 0.0]


@given(
    st.floats(0, 1), st.floats(0, 1), st.integers(1, 10**6), st.sampled_from(["exp", "linear"]),
    st.lists(st.integers(0, 10**7), min_size=2),
)  # fmt: skip
def test_schedule_goes_from_start_to_end_and_never_back(
    start: float, end: float, decay: int, type_: str, steps: list[int]
) -> None:
    rate = EpsConfig(type_, start, end, decay).rate
    rates = [rate(step) for step in sorted(steps)]
    assert all(min(start, end) - 1e-12 <= value <= max(start, end) + 1e-12 for value in rates)
    assert rates == sorted(rates, reverse=start > end) or max(rates) - min(rates) < 1e-12


def draw(eps: float, count: int = 20_000) -> np.ndarray:
    greedy = np.full(count, 2, dtype=np.int64)
    return epsilon_greedy(greedy, eps, 4, np.random.default_rng(0))


@pytest.mark.parametrize("eps", [0.0, 0.2, 1.0])
def test_share_of_random_actions(eps: float) -> None:
    """The greedy action is also drawn at random: each of 4 gets eps/4, the greedy one the rest."""
    actions = draw(eps)
    assert actions.dtype == np.int64
    shares = np.bincount(actions, minlength=4) / len(actions)
    np.testing.assert_allclose(shares, [eps / 4, eps / 4, 1 - 0.75 * eps, eps / 4], atol=0.015)
    assert set(np.unique(actions)) <= {0, 1, 2, 3}


def test_environments_explore_each_for_itself() -> None:
    actions = draw(0.5).reshape(-1, 2)
    is_random = actions != 2
    both = (is_random[:, 0] & is_random[:, 1]).mean()
    assert both == pytest.approx(is_random[:, 0].mean() * is_random[:, 1].mean(), abs=0.015)


def test_same_generator_same_actions_and_the_greedy_ones_stay() -> None:
    greedy = np.arange(5)
    first = epsilon_greedy(greedy, 0.5, 5, np.random.default_rng(7))
    again = epsilon_greedy(greedy, 0.5, 5, np.random.default_rng(7))
    assert first.tolist() == again.tolist()
    assert greedy.tolist() == [0, 1, 2, 3, 4]
    assert epsilon_greedy(np.zeros(0, dtype=np.int64), 0.5, 5, np.random.default_rng(7)).size == 0


# ---------------------------------------------------------------------- RandomPolicy

DISCRETE = simple_spaces((4,), "float32", 3, ())
BOX = simple_spaces((4,), "float32", None, (2, 2), (-1.0, 0.0, 5.0, -2.0), (1.0, 0.5, 6.0, -1.0))
COUNT = 20_000


def dqn() -> Any:
    model = {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [8]}
    return create_policy({"type": "dqn", "model": model}, ["collect"]).collect_mode


def random_policy(spaces: Spaces = DISCRETE, mode: Any = None, seed: int = 0) -> RandomPolicy:
    return RandomPolicy(spaces, mode, np.random.SeedSequence(seed))


def test_every_discrete_action_is_as_likely() -> None:
    actions = random_policy().act({"observation": np.zeros((COUNT, 4), np.float32)}, {})["action"]
    assert actions.dtype == np.int64
    np.testing.assert_allclose(np.bincount(actions) / COUNT, [1 / 3] * 3, atol=0.015)


def test_every_continuous_action_between_the_bounds_is_as_likely() -> None:
    actions = random_policy(BOX).act({"observation": np.zeros((COUNT, 4), np.float32)}, {})[
        "action"
    ]
    assert (actions.dtype, actions.shape) == (np.float32, (COUNT, 2, 2))
    low, high = (np.reshape(limit, (2, 2)) for limit in (BOX.action[0].low, BOX.action[0].high))
    assert (actions >= low).all()
    assert (actions <= high).all()
    share = (actions - low) / (high - low)
    np.testing.assert_allclose(share.mean(axis=0), 0.5, atol=0.015)
    np.testing.assert_allclose(share.std(axis=0), 12**-0.5, atol=0.015)


LIMITS = {"low": (-0.1, 2.0), "high": (0.1, 9.0)}


@pytest.mark.parametrize(
    ("leaf", "stored"),
    [
        (Leaf("", (), "int32", counts=(3,)), "int64"),
        (Leaf("", (3,), "int8", counts=(2, 2, 2)), "int64"),
        *((Leaf("", (2,), dtype, **LIMITS), "float32") for dtype in ("float64", "float16")),
        (Leaf("", (2,), "int64", low=(0.0, 2.0), high=(3.0, 9.0)), "float32"),
    ],
    ids=str,
)
def test_random_actions_are_stored_as_a_policys_are(leaf: Leaf, stored: str) -> None:
    """A block of a policy's alone, after a resume say, differed from the first and was lost."""
    spaces = Spaces((Leaf("", (4,)),), (leaf,))
    actions = RandomActor(spaces, np.random.SeedSequence(0)).draw(500)["action"]
    assert (actions.dtype, actions.shape) == (np.dtype(stored), (500, *leaf.shape))
    if not leaf.counts:
        assert (np.float64(actions) >= leaf.low).all()
        assert (np.float64(actions) <= leaf.high).all()
        acted = sac_in(leaf).act({"observation": np.ones((500, 4), np.float32)}, {})["action"]
        assert acted.dtype == actions.dtype
        if leaf.dtype != "float64":
            assert (actions == actions.astype(leaf.dtype)).all()


@pytest.mark.parametrize("dtype", ["float64", "float16", "uint8"])
def test_random_actions_of_several_parts_are_stored_as_a_policys_are(dtype: str) -> None:
    arm = Leaf("arm", (2,), dtype, low=(0.0, 0.0), high=(9.0, 9.0))
    leaves = (arm, Leaf("go", (), "int32", (3,)))
    drawn = RandomActor(Spaces((Leaf("", (4,)),), leaves), np.random.SeedSequence(0)).draw(5)
    policy = [np.zeros((5, 5), np.float32), np.zeros(2, np.float32)]
    sampler = ActionSampler(leaves)
    acted, best = sampler.sample(policy, np.random.default_rng(0)), sampler.best(policy)
    for columns in (drawn, acted, best):
        dtypes = {name: columns[name].dtype for name in drawn}
        assert dtypes == {"action/arm": np.float32, "action/go": np.int64}


def sac_in(leaf: Leaf) -> Any:
    bounds = {"action_low": leaf.low, "action_high": leaf.high, "action_dtype": leaf.dtype}
    model = {"obs_shape": 4, "action_shape": leaf.shape, "encoder_hidden_size_list": [8], **bounds}
    made = create_policy({"type": "sac", "model": model}, ["collect"])
    return made.collect_mode.get_attribute("columnar")


@pytest.mark.parametrize("spaces", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_the_form_by_environments(spaces: Spaces) -> None:
    data = {5: np.zeros(4), 2: np.zeros(4)}
    outputs = random_policy(spaces).forward(data, eps=0.1)
    assert list(outputs) == [5, 2]
    columns = random_policy(spaces).act({"observation": np.zeros((2, 4))}, {})["action"]
    for row, output in enumerate(outputs.values()):
        assert output.keys() == {"action"}
        assert np.array_equal(output["action"], columns[row])


def test_only_legal_actions_where_observations_have_masks() -> None:
    masks = [[1, 0, 1], [0, 0, 1], [1, 1, 1]]
    data = {
        env: {"observation": np.zeros(4), "action_mask": np.array(masks[env % 3], np.int8)}
        for env in range(9000)
    }
    outputs = random_policy().forward(data)
    for first, mask in enumerate(masks):
        drawn = [int(outputs[env]["action"]) for env in range(first, 9000, 3)]
        shares = np.bincount(drawn, minlength=3) / 3000
        np.testing.assert_allclose(shares, np.array(mask) / sum(mask), atol=0.04)
        assert ((shares > 0) == np.array(mask, bool)).all()


def test_observations_of_several_parts_need_no_mask() -> None:
    data = {0: {"image": np.zeros(4)}, 1: {"image": np.zeros(4)}}
    assert random_policy().forward(data).keys() == {0, 1}
    assert random_policy().forward({}) == {}


def test_seeds() -> None:
    seen = {"observation": np.zeros((50, 4))}
    first, again, other = (
        random_policy(seed=seed).act(seen, {})["action"].tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


def test_all_else_is_the_other_modes() -> None:
    mode = dqn()
    built = random_policy(mode=mode)
    assert all(callable(getattr(built, name)) for name in CollectMode._fields)
    assert built.get_attribute("columnar") is built
    assert built.get_attribute("n_sample") == mode.get_attribute("n_sample")
    timestep = BaseEnvTimestep(np.ones(4), 1.0, False, {})
    given = (np.zeros(4), {"action": np.int64(1)}, timestep)
    made, expected = built.process_transition(*given), mode.process_transition(*given)
    assert made.keys() == expected.keys()
    assert built.get_train_sample([made])[0].keys() == mode.get_train_sample([made])[0].keys()
    transitions = {"reward": np.ones(2, np.float32), "terminated": np.zeros(2, bool)}
    last = {"observation": np.zeros((1, 4), np.float32)}
    args = (transitions, np.array([2], np.int32), last)
    own, others = built.train_columns(*args), mode.get_attribute("columnar").train_columns(*args)
    assert own.views == others.views
    assert all(np.array_equal(own.columns[name], others.columns[name]) for name in others.columns)
    assert own.columns.keys() == others.columns.keys()
    built.set_attribute("temperature", 3)
    assert mode.get_attribute("temperature") == 3
    built.reset([0])
    built.load_state_dict({"model": {}})
    assert built.state_dict() == {}


class ByTransition:
    """A collect mode that knows no columns."""

    def get_attribute(self, name: str) -> Any:
        raise NotImplementedError(name)


def test_it_is_columnar_only_where_the_other_mode_is() -> None:
    with pytest.raises(NotImplementedError):
        random_policy(mode=ByTransition()).get_attribute("columnar")


@pytest.mark.parametrize(
    ("low", "high", "drawn"),
    [
        ([0, -np.inf], [1, np.inf], ([0, -1], [1, 1])),
        ([0, -9], [np.inf, np.inf], ([0, -1], [2, 1])),
        ([100, -np.inf], [200, np.inf], ([100, -1], [200, 1])),
        ([-np.inf, -np.inf], [-5, 50], ([-7, -1], [-5, 1])),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_random_actions_are_within_the_bounds_that_there_are(
    low: Any, high: Any, drawn: Any, dtype: Any
) -> None:
    """Of a Box with an unbounded component all were from -1 to 1."""
    box = gymnasium.spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
    known = with_bounds(read_spaces(gymnasium.spaces.Discrete(2), box))
    assert (known.action[0].low, known.action[0].high) == tuple(map(tuple, drawn))
    actions = RandomActor(known, np.random.SeedSequence(0)).draw(100)["action"]
    assert all(box.contains(action.astype(dtype)) for action in actions)


@pytest.mark.parametrize("high", [(np.inf,), ()])
def test_actions_without_bounds_have_no_uniform_choice(high: tuple[float, ...]) -> None:
    low = (-1.0,) if high else ()
    with pytest.raises(PolicyError, match="no uniform choice of actions"):
        random_policy(simple_spaces((4,), "float32", None, (1,), low, high))


def test_random_actions_last_and_are_as_many_as_asked_for() -> None:
    lasting = LastingActions(2.5, np.random.default_rng(0))
    envs, greedy = np.arange(80), np.full(80, 3)
    # the greedy action is never drawn
    taken = np.stack([lasting.act(greedy, 0.1, 3, envs) for _ in range(2000)])
    explored, begun = taken != 3, np.ones_like(taken, dtype=bool)
    begun[1:] = taken[1:] != taken[:-1]
    # zeta(1.5) / zeta(2.5) steps on average; a few runs of the same action touch
    assert explored.sum() / (explored & begun).sum() == pytest.approx(1.947, rel=0.15)
    assert np.bincount(taken[explored], minlength=3) / explored.sum() == pytest.approx(
        1 / 3, rel=0.1
    )
    assert (lasting.act(greedy[:1], 0.0, 3, np.array([80])) == 3).all(), "an environment of its own"


def test_a_lasting_action_ends_where_it_is_not_legal_any_more() -> None:
    lasting = LastingActions(1.01, np.random.default_rng(0))
    first = lasting.act(np.zeros(4, np.int64), 1.0, 3, np.arange(4))
    legal = np.ones((4, 3), dtype=bool)
    legal[np.arange(4), first] = False
    then = lasting.act(np.zeros(4, np.int64), 1.0, 3, np.arange(4), legal)
    assert legal[np.arange(4), then].all()
