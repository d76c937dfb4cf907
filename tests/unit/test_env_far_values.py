"""Values at the edges of their spaces and dtypes: large whole numbers, masks in parts, bounds."""

from __future__ import annotations

import io
import logging
import math
import re
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes.env_managers import CountEnv, running
from hpcdi.config.env import GymnasiumConfig
from hpcdi.env.contract import (
    Space,
    as_dtype,
    number_of,
    numbers_in,
    origin_of,
    read_spaces,
    rewards_of_all,
    truth_of,
    truths_of_all,
)
from hpcdi.env.gymnasium import GymnasiumEnv
from hpcdi.env.seeds import ScenarioSeeds
from hpcdi.env.wrappers import ActionMasks
from hpcdi.errors import EnvError, EnvValueError
from hpcdi.policy.acting.boxes import DenseSAC
from hpcdi.policy.acting.network import Normalizer as NumpyNormalizer
from hpcdi.policy.acting.sampling import ActionSampler
from hpcdi.policy.create import get_policy_cls
from hpcdi.policy.distributions import ActionDistribution
from hpcdi.policy.exploration import RandomActor
from hpcdi.policy.normalization import Normalizer
from hpcdi.policy.spaces import bounds_of, image_axes, with_bounds, with_spaces
from hpcdi.types import ACTION_MASK, Leaf
from hpcdi.utils.registry import POLICY_REGISTRY

FAR = 1_700_000_000
ENTRIES = [1, 0, 1, 0, 1, 1]


def config(kind: str, seen: Any, action: Any, **settings: Any) -> Any:
    """A policy's settings, filled with spaces."""
    cfg = POLICY_REGISTRY.settings(kind)()
    cfg = replace(cfg, normalize=replace(cfg.normalize, **settings))
    filled, problems = with_spaces(cfg, read_spaces(seen, action))
    assert not problems
    return filled


# ------------------------------------------------------------------------------------ observations


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_numbers_far_from_zero_get_an_origin(dtype: Any) -> None:
    box = spaces.Box(0, 2**31 - 1, (2,), dtype)
    value = np.array([FAR + 20, 7], dtype)
    origin = origin_of(box, value)
    assert origin == {"observation": (FAR, 0.0)}
    space = Space.of_observations(box, origin=origin)
    columns = space.zeros(1)
    space.put(columns, 0, value)
    assert columns["observation"].tolist() == [[20, 7]]
    assert columns["observation"].dtype == (np.float32 if dtype is np.float64 else dtype)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_so_does_one_number_without_axes(dtype: Any) -> None:
    box = spaces.Box(0, 2**40, (), dtype)
    origin = origin_of(box, np.array(FAR + 20, dtype))
    assert origin == {"observation": (FAR,)}
    space = Space.of_observations(box, origin=origin)
    columns = space.zeros(3)
    for row, kind in enumerate((dtype, np.array, int)):
        space.put(columns, row, kind(FAR + 20))
    assert columns["observation"].tolist() == [20, 20, 20]


@pytest.mark.parametrize(("dtype", "far"), [(np.int32, 2**31 - 10_000), (np.int64, 2**61)])
def test_differences_that_their_dtype_has_not_are_refused(dtype: Any, far: int) -> None:
    limits = np.iinfo(dtype)
    box, value = spaces.Box(limits.min, limits.max, (2,), dtype), np.array([far, 7], dtype)
    space = Space.of_observations(box, origin=origin_of(box, value))
    columns = space.zeros(2)
    space.put(columns, 0, value)
    assert abs(columns["observation"][0]).max() < 1000
    with pytest.raises(EnvValueError, match=rf"observation\[0\]: {limits.min} minus env.origin"):
        space.put(columns, ..., np.array([value, [limits.min, 7]], dtype))
    assert origin_of(spaces.Box(-far - 1, far + 1, (2,), dtype), value) == (
        {} if dtype is np.int32 else {"observation": (2.0**61, 0.0)}
    )


def test_codes_have_no_origin() -> None:
    with pytest.raises(EnvError, match="has 1 numbers, and that is"):
        Space.of_observations(spaces.Discrete(9), origin={"observation": (5.0,)})


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, np.int64])
def test_a_normalizer_tells_large_whole_numbers_apart(dtype: Any) -> None:
    cfg = config("dqn", spaces.Box(0, 2**32 - 1, (1,), dtype), spaces.Discrete(2), observation=True)
    rows = np.array([[FAR], [FAR + 20]], dtype)
    learnt = Normalizer(cfg)
    learnt.learn({"observation": torch.from_numpy(rows)})
    made = learnt({"observation": torch.from_numpy(rows)})["observation"].numpy()
    assert made.ravel().tolist() == pytest.approx([-1, 1])
    acting = NumpyNormalizer(cfg)
    acting.load({f"normalizer.{n}": v.numpy() for n, v in learnt.state_dict().items()})
    np.testing.assert_allclose(acting({"observation": rows})["observation"], made, atol=1e-6)


def test_large_whole_numbers_are_said_to_lose_digits(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hpcdi"), running("pool", [partial(Whole, 2**24)]):
        pass
    assert "1.67772e+07, uint32, and networks see it as float32" in caplog.text
    assert "have it as int64, and set env.origin" in caplog.text


class Whole(gymnasium.Env[Any, Any]):
    """Always sees the same number."""

    observation_space, action_space = spaces.Box(0, 2**31, (1,), np.uint32), spaces.Discrete(2)

    def __init__(self, number: int) -> None:
        self._seen = np.array([number], np.uint32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin."""
        super().reset(seed=seed, options=options)
        return self._seen, {}


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_board_is_normalised(dtype: Any) -> None:
    board = spaces.Box(0, 9, (3, 4, 5), dtype)
    cfg = config("ppo", board, spaces.Discrete(2), observation=True)
    rows = np.arange(120).reshape(2, 3, 4, 5).astype(dtype)
    learnt = Normalizer(cfg)
    learnt.learn({"observation": torch.from_numpy(rows)})
    made = learnt({"observation": torch.from_numpy(rows)})["observation"]
    assert made.shape == (2, 3, 4, 5)
    assert made[0].numpy() == pytest.approx(-1)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Discrete(5, start=2**25 + 1), "counts from 33,554,433: .*have it count from 0"),
        (spaces.Discrete(2**24 + 1), "counts from 0: .*make it several components, as digits"),
        (spaces.Discrete(2**24), None),
    ],
)
def test_a_discrete_number_that_float32_does_not_have_is_refused(
    space: spaces.Discrete, said: str | None
) -> None:
    model = {"type": "dqn", "model": {"embedding_size": 4}}
    cfg = get_policy_cls(model).parse_config(model)
    _, problems = with_spaces(cfg, read_spaces(space, spaces.Discrete(2)))
    assert len(problems) == (said is not None)
    assert re.search(said or "", str(problems))


def test_longdouble_is_stored_as_float32_and_an_empty_key_is_refused() -> None:
    box = spaces.Box(-1, 1, (1,), np.longdouble)
    assert Space.of_observations(box).zeros(1)["observation"].dtype == np.float32
    with pytest.raises(EnvError, match="is empty: ''; rename it"):
        Space.of_observations(spaces.Dict({"": box}))


@pytest.mark.parametrize(
    ("value", "number"),
    [(np.timedelta64(3, "s"), None), (10**400, math.inf), (-(10**400), -math.inf), (True, 1.0),
     (np.float16(0.5), 0.5), (np.array([2]), 2.0), (np.datetime64("2020-01-01"), None),
     (torch.tensor(2.5, requires_grad=True), 2.5), (torch.tensor([2], dtype=torch.bfloat16), 2.0),
     (torch.ones(2), None), (torch.tensor(1j), None), (io.TextIOWrapper(io.BytesIO()), None),
     (torch.nn.Parameter(torch.ones(1)), 1.0)],
)  # fmt: skip
def test_numbers_in_infos(value: Any, number: float | None) -> None:
    assert numbers_in({"it": value}) == ({} if number is None else {"it": number})


@pytest.mark.parametrize("library", ["torch", "ml_dtypes"])
def test_bfloat16_is_a_number(library: str) -> None:
    """numpy has none; jax's arrays are of ml_dtypes'."""
    if library == "torch":
        of = partial(torch.tensor, dtype=torch.bfloat16)
    else:
        of = partial(np.asarray, dtype=pytest.importorskip("ml_dtypes").bfloat16)
    assert number_of(of(1.5)) == number_of(of([1.5])) == 1.5
    assert truth_of(of(1.0), "terminated")
    assert rewards_of_all(of([1.5, -2.0]), 2).tolist() == [1.5, -2.0]
    assert truths_of_all(of([0.0, 1.0]), 2, "terminated").tolist() == [False, True]
    assert numbers_in({"it": of(1.5)}) == {"it": 1.5}
    seen = Space.of_observations(spaces.Box(-1, 1, (2,)))
    columns = seen.zeros(1)
    seen.put(columns, 0, of([0.5, -1.0]))
    assert columns["observation"].tolist() == [[0.5, -1.0]]


@pytest.mark.parametrize("value", [np.zeros(1, "V2"), np.zeros((), [("it", float)])])
def test_bytes_and_records_are_no_numbers(value: Any) -> None:
    with pytest.raises(EnvValueError, match=r"reward: .*must be one number"):
        number_of(value)
    assert numbers_in({"it": value}) == {}


def test_numbers_in_an_info_that_holds_itself() -> None:
    info: dict[str, Any] = {"it": 1, "within": {"it": 2}}
    info["within"]["above"] = info["self"] = info
    assert numbers_in(info) == {"it": 1.0, "within/it": 2.0}


# ------------------------------------------------------------------------------------------- masks

MASKS = {
    "flat": (spaces.MultiBinary(6), ENTRIES),
    "rows": (spaces.MultiBinary((2, 3)), [ENTRIES[:3], ENTRIES[3:]]),
    "box": (spaces.Box(0, 1, (2, 3), np.int8), np.reshape(ENTRIES, (2, 3)).astype(np.int8)),
    "tuple": (spaces.Tuple([spaces.MultiBinary(3)] * 2), (ENTRIES[:3], ENTRIES[3:])),
    "dict": (
        spaces.Dict(a=spaces.MultiBinary(3), b=spaces.MultiBinary(3)),
        {"b": np.array(ENTRIES[3:]), "a": np.array(ENTRIES[:3])},
    ),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_may_have_parts(kind: str) -> None:
    mask, value = MASKS[kind]
    box = spaces.Box(-1, 1, (1,), np.float32)
    seen = spaces.Dict({"observation": box, ACTION_MASK: mask})
    assert read_spaces(seen, spaces.MultiDiscrete([3, 3])).is_masked
    space = Space.of_observations(seen)
    columns = space.zeros(2)
    space.put(columns, 1, {"observation": np.zeros(1, np.float32), ACTION_MASK: value})
    assert columns[ACTION_MASK][1].tolist() == [bool(entry) for entry in ENTRIES]

    def twice(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: twice(child) for key, child in part.items()}
        return tuple(map(twice, part)) if isinstance(part, tuple) else np.stack([part, part])

    both = {"observation": np.zeros((2, 1), np.float32), ACTION_MASK: twice(value)}
    space.put(columns, ..., both)  # of a vector environment
    assert columns[ACTION_MASK].tolist() == [[bool(entry) for entry in ENTRIES]] * 2


def test_a_mask_of_another_kind_is_refused() -> None:
    seen = spaces.Dict({"observation": spaces.MultiBinary(1), ACTION_MASK: spaces.Discrete(2)})
    with pytest.raises(EnvError, match="its masks of actions are Discrete"):
        read_spaces(seen, spaces.Discrete(2))


class Masked(CountEnv):
    """Its infos have masks, but not where an episode is over."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.action_space = spaces.Discrete(3)

    def reset(self, **kwargs: Any) -> Any:
        """Begin."""
        return super().reset(**kwargs)[0], {ACTION_MASK: [1, 0, 1]}

    def step(self, action: Any) -> Any:
        """Step."""
        seen, reward, terminated, truncated, _ = super().step(action)
        info = {} if terminated or truncated else {ACTION_MASK: [1, 0, 1]}
        return seen, reward, terminated, truncated, info


def test_nobody_needs_a_mask_where_an_episode_is_over() -> None:
    env = ActionMasks(Masked(2), "info")
    env.reset(seed=0)
    masks, is_over = [], False
    while not is_over:
        seen, _, terminated, truncated, _ = env.step(0)
        masks.append(seen[ACTION_MASK].tolist())
        is_over = terminated or truncated
    assert masks[-1] == [1, 1, 1]
    assert all(mask == [1, 0, 1] for mask in masks[:-1])


class Cut(gymnasium.Env[Any, Any]):
    """Is cut after a step, where its mask allows nothing."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(
        {"observation": spaces.Box(0, 1, (1,), np.float32), ACTION_MASK: spaces.MultiBinary(2)}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin."""
        super().reset(seed=seed, options=options)
        return {"observation": np.zeros(1, np.float32), ACTION_MASK: np.array([1, 0])}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Step."""
        assert action == 0
        seen = {"observation": np.zeros(1, np.float32), ACTION_MASK: np.array([0, 0])}
        return seen, 0.0, False, True, {}


def test_of_a_cut_episode_all_actions_are_bootstrapped() -> None:
    with running("pool", [Cut]) as envs:
        step = envs.step({"action": np.zeros(1, np.int64)})
        assert step.successor[ACTION_MASK].tolist() == [[True, True]]
        assert envs.observation[ACTION_MASK].tolist() == [[True, False]]


class CutInPart(Cut):
    """The second part of its actions alone has nothing that is legal any more."""

    action_space = spaces.MultiDiscrete([2, 3])
    observation_space = spaces.Dict(
        {"observation": spaces.Box(0, 1, (1,), np.float32), ACTION_MASK: spaces.MultiBinary(5)}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin."""
        seen, info = super().reset(seed=seed, options=options)
        return {**seen, ACTION_MASK: np.array([1, 0, 1, 0, 0])}, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Step."""
        seen, *others = super().step(action[0])
        return {**seen, ACTION_MASK: np.array([1, 0, 0, 0, 0])}, *others


def test_so_they_are_where_only_a_part_of_an_action_has_none() -> None:
    with running("pool", [CutInPart]) as envs:
        step = envs.step({"action": np.zeros((1, 2), np.int64)})
        assert step.successor[ACTION_MASK].astype(int).tolist() == [[1, 0, 1, 1, 1]]


# ----------------------------------------------------------------------------------------- actions


def test_bounds_are_not_left_by_an_ulp() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64, np.float16):
        low, high = np.cumsum(rng.uniform(0.02, 9, (2, 500)).round(2), axis=0).astype(dtype)
        box = spaces.Box(low, high, dtype=dtype)
        acts = Space.of_actions(box)
        leaf = read_spaces(spaces.Discrete(2), box).action[0]
        cfg = config("sac", spaces.Box(-1, 1, (1,), np.float32), box)
        actor = DenseSAC(cfg, ["collect"])
        for squashed in (-1.0, 1.0):
            column = actor.within_bounds(np.full((1, 500), squashed, np.float32))
            assert box.contains(acts.value(column, 0))
        sampler = ActionSampler([leaf])
        for extreme in (-50.0, 50.0):
            outputs = np.full((1, 500), extreme, np.float32)
            assert box.contains(acts.value(sampler.best([outputs]), 0))


def test_whole_numbers_are_rounded_to_alike() -> None:
    box = spaces.Box(0, 10, (1,), np.int64)
    leaf = read_spaces(spaces.Discrete(2), box).action[0]
    outputs = np.array([[0.396]], np.float32)  # 6.98 in the environment
    best = ActionSampler([leaf]).best([outputs])["action"]
    greedy = ActionDistribution([leaf]).greedy([torch.from_numpy(outputs)])
    assert best.tolist() == greedy.tolist() == [[7]]
    taken = Space.of_actions(box).value({"action": np.array([[6.98]], np.float32)}, 0)
    assert (taken.tolist(), taken.dtype) == ([7], np.int64)
    assert as_dtype(np.array([0.7]), np.dtype(bool)).tolist() == [True]


def test_random_whole_numbers_are_drawn_to_the_last_one() -> None:
    leaf = Leaf("", (1,), "int8", low=(-2.0,), high=(2.0,))
    seen = read_spaces(spaces.Discrete(2), spaces.Discrete(2))
    spaces_ = replace(seen, action=(leaf,))
    drawn = RandomActor(spaces_, np.random.SeedSequence(0)).draw(5000)["action"]
    counts = np.unique(drawn, return_counts=True)
    assert counts[0].tolist() == [-2, -1, 0, 1, 2]
    assert counts[1].min() > 800


def test_an_action_keeps_its_dtype_whatever_its_start() -> None:
    space = spaces.MultiDiscrete([3, 4], dtype=np.uint8, start=[1, 2])
    acts = Space.of_actions(space)
    assert space.contains(acts.value({"action": np.array([[1, 3]])}, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unbounded_actions_are_drawn_between_minus_one_and_one(dtype: Any) -> None:
    most = np.finfo(dtype).max
    seen = read_spaces(spaces.Discrete(2), spaces.Box(-most, most, (2,), dtype))
    drawn = RandomActor(with_bounds(seen), np.random.SeedSequence(0)).draw(9)["action"]
    assert np.abs(drawn).max() <= 1


def test_bounds_in_float32_lie_within() -> None:
    low, high = bounds_of([-0.1], [0.1], "float64")
    assert -0.1 <= low[0] < high[0] <= 0.1
    assert bounds_of([-0.1], [0.1])[1].tolist() == [np.float32(0.1)]


# ------------------------------------------------------------------------------- making, and seeds


class Limited(CountEnv):
    """Has an argument that gymnasium's `make` has, too."""

    def __init__(self, max_episode_steps: int) -> None:
        super().__init__(max_episode_steps)
        self.most = max_episode_steps


def test_an_argument_that_gymnasium_has_too_reaches_the_environment() -> None:
    cfg = GymnasiumConfig(env_id=f"{Limited.__module__}:Limited", kwargs={"max_episode_steps": 7})
    env = GymnasiumEnv.make_single(cfg)
    assert env.unwrapped.most == 7
    assert env.spec.max_episode_steps == 7


class Raises(CountEnv):
    """Raises in the second step, and notes by which seeds it is reset."""

    seeds: list[Any]

    def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
        """Begin."""
        self.seeds.append(seed)
        self._now = 0
        return super().reset(seed=seed, **kwargs)

    def step(self, action: Any) -> Any:
        """Step."""
        self._now += 1
        if self._now == 2 and len(self.seeds) % 2:
            raise RuntimeError("diverged")
        return super().step(action)


class Picky(CountEnv):
    """By some seeds it cannot be reset."""

    seeds: ClassVar[list[int | None]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin."""
        self.seeds.append(seed)
        if seed is not None and seed % 2:
            raise RuntimeError("no such world")
        return super().reset(seed=seed, options=options)


def test_a_reset_that_fails_by_its_seed_is_tried_by_another() -> None:
    """It was tried by the same one until that ended the run, or the environment was retired."""
    settings = {"max_retry": 15, "retry_waiting_time": 0.0, "retry_window_s": 1e-9}
    with running("pool", [Picky], **settings) as envs:
        for _ in range(10):
            envs.reset()
            envs.step({"action": np.zeros(1, np.int64)})
        assert envs.failures > 3
        Picky.seeds.clear()
        with pytest.raises(EnvError, match="no such world"):
            envs.reset({0: {"seed": 7}})
    assert Picky.seeds == [7] * 16, "one that is given is kept"


def test_seeds_that_are_said_are_kept_to_after_a_failure() -> None:
    Raises.seeds = []
    with running("pool", [partial(Raises, 3)], max_retry=50) as envs:
        envs.seeds = ScenarioSeeds([7, 8, 9], np.random.SeedSequence(0), 1, in_order=True)
        envs.reset()
        Raises.seeds.clear()
        envs.reset()
        for _ in range(30):
            envs.step({"action": np.zeros(1, np.int64)})
    assert Raises.seeds == ([7, 8, 9] * len(Raises.seeds))[: len(Raises.seeds)]
    assert len(Raises.seeds) > 8


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((128, 40, 40), (0, 1, 2)), ((40, 40, 128), (2, 0, 1)), ((3, 40, 60), (0, 1, 2)),
     ((60, 40, 3), (2, 0, 1)), ((2, 128, 40, 40), (0, 1, 2, 3)), ((40, 60, 3), (2, 0, 1))],
)  # fmt: skip
def test_which_axis_has_the_channels(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert image_axes(Leaf("", shape, "uint8")) == axes
