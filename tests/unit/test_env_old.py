"""Environments of old gym and of DI-engine, by their shape: no such library is imported."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch

from hpcdi.env.create import create_env_manager, get_env_cls, make_env_manager
from hpcdi.env.old_gym import OldEnv, as_gymnasium, space_of
from hpcdi.env.probe import look_at
from hpcdi.env.toy import CountEnv
from hpcdi.errors import ConfigError, EnvError, EnvValueError
from hpcdi.worker.dict_envs import DictManager


class Box:
    low, high, shape, dtype = np.zeros(2), np.ones(2) * 9, (2,), np.float32


class Discrete:
    n, shape, dtype = 2, (), np.int64


class MultiDiscrete:
    nvec, shape, dtype = (2, 3), (2,), np.int64


class MultiBinary:
    n, shape, dtype = 3, (3,), np.int8


class Nested:
    """A Dict or Tuple, by what is in it."""

    def __init__(self, spaces: Any) -> None:
        self.spaces = spaces


class Timestep(NamedTuple):
    obs: Any
    reward: Any
    done: bool
    info: dict[str, Any]


class DingEnv:
    """Of DI-engine's shape: ``reset()`` alone, timesteps, rewards [1], its own return."""

    observation_space, action_space = Box(), Discrete()

    def __init__(self, length: int = 3, *, cut: bool = False) -> None:
        self._length, self._cut = length, cut
        self.seeds: list[tuple[int, bool]] = []

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self.seeds.append((seed, dynamic_seed))

    def reset(self) -> Any:
        self._step = 0
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Timestep:
        assert np.shape(action) == ()
        self._step += 1
        done = self._step == self._length
        info: dict[str, Any] = {"eval_episode_return": np.array([70.0])} if done else {}
        if done and self._cut:
            info["TimeLimit.truncated"] = True
        return Timestep(np.full(2, self._step, np.float32), np.array([1.5]), done, info)

    def close(self) -> None:
        pass


class GymEnv(DingEnv):
    """Of gym 0.25: a seed, an info, four or five values; spaces of its own."""

    def reset(self, *, seed: int | None = None, return_info: bool = True) -> Any:  # type: ignore[override]
        self.seeds.append((seed or 0, False))
        return super().reset(), {"begun": True}

    def step(self, action: Any) -> Any:
        obs, reward, done, info = super().step(action)
        return obs, reward, done and not self._cut, done and self._cut, info


class AskedEnv(GymEnv):
    """Of gym 0.22's API: a seed, options, and an info where it is asked for; four values."""

    metadata = None  # as crafter has it
    observation_space = gymnasium.spaces.Box(0, 9, (2,))  # type: ignore[assignment]
    action_space = gymnasium.spaces.Discrete(2)  # type: ignore[assignment]

    def reset(
        self, *, seed: int | None = None, return_info: bool = False, options: Any = None
    ) -> Any:
        seen, info = super().reset(seed=seed)
        return (seen, info) if return_info else seen

    def step(self, action: Any) -> Any:
        return DingEnv.step(self, action)


class AskedWrapper:
    """One of its wrappers, which passes on what its reset is given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.env = AskedEnv(*args, **kwargs)
        self.observation_space, self.action_space = (
            AskedEnv.observation_space,
            self.env.action_space,
        )
        self.step, self.close = self.env.step, self.env.close

    def reset(self, **given: Any) -> Any:
        return self.env.reset(**given)


@pytest.mark.parametrize("kind", [DingEnv, GymEnv, AskedEnv, AskedWrapper])
@pytest.mark.parametrize("cut", [False, True])
def test_an_old_environment_is_stepped_like_a_new_one(kind: type, cut: bool) -> None:
    manager = DictManager(make_env_manager({"type": "base"}, [partial(kind, cut=cut)] * 2, seed=3))
    manager.launch()
    assert isinstance(manager.action_space, gymnasium.spaces.Discrete)
    for step in range(1, 8):
        got = manager.step({0: torch.tensor([1]).numpy(), 1: np.int64(0)})
        for timestep in got.values():
            at = (step - 1) % 3 + 1
            assert timestep.obs.tolist() == [at, at]
            assert (timestep.reward, timestep.done) == (1.5, at == 3)
            if timestep.done:
                assert timestep.info["eval_episode_return"].item() == 70.0, "its own"
                assert timestep.info["truncated"] is cut
                assert timestep.info["terminated"] is not cut
    manager.close()


class TimeStep(NamedTuple):
    """What dm_env's environments return."""

    step_type: int = 0
    reward: float = 0.0
    discount: bool = True
    observation: Any = 1


class DmEnv:
    """One of dm_env; its TimeStep has as many parts as a step of old gym."""

    def reset(self) -> Any:
        return TimeStep()

    def step(self, action: Any) -> Any:
        return TimeStep()

    def observation_spec(self) -> None: ...


class DmEnvWithSpaces(DmEnv):
    observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(2)


class Drawing(DingEnv):
    """Draws as before gym 0.26: on a screen, unless it is asked for a picture."""

    def render(self, mode: str = "human") -> Any:
        return np.full((4, 4, 3), 7, np.uint8) if mode == "rgb_array" else None


class DrawingByItself(Drawing):
    """Has its mode, and draws by it."""

    render_mode = "rgb_array"

    def render(self, mode: str = "") -> Any:
        return super().render(mode or self.render_mode)


@pytest.mark.parametrize("kind", [Drawing, DrawingByItself])
def test_an_old_environment_draws_a_picture(kind: type) -> None:
    with make_env_manager({"type": "base"}, [kind]) as manager:
        manager.launch()
        (picture,) = manager.pictures()
    assert picture.tolist() == np.full((4, 4, 3), 7).tolist()
    assert OldEnv(kind()).render(mode="human") is None


def test_an_environment_of_dm_env_is_named() -> None:
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:DmEnv"}
    with pytest.raises(ConfigError, match=r"is of dm_env's API.*shimmy"):
        look_at(get_env_cls(cfg).parse_config(cfg))
    env = as_gymnasium(DmEnvWithSpaces())
    for call in (env.reset, partial(env.step, 0)):
        with pytest.raises(EnvValueError, match=r"a TimeStep, is of dm_env's API"):
            call()


def test_it_is_asked_for_infos_and_has_metadata() -> None:
    env = as_gymnasium(AskedEnv())
    assert env.reset(seed=1)[1] == {"begun": True}
    assert env.metadata == {}


def test_it_is_seeded_by_its_own_method() -> None:
    """It would begin every episode from its last seed: later seeds follow from it."""
    later = []
    for _ in range(2):
        env = DingEnv()
        adapted = as_gymnasium(env)
        adapted.reset(seed=5)
        adapted.reset()
        adapted.reset()
        assert env.seeds[0] == (5, False)
        assert len(set(env.seeds)) == 3
        later.append(env.seeds[1:])
    assert later[0] == later[1]
    assert adapted.reset(seed=6)[1] == {}
    assert as_gymnasium(GymEnv()).reset(seed=1)[1] == {"begun": True}


def test_what_seeds_it_may_be_written_in_c() -> None:
    env = SimpleNamespace(seed=type, reset=lambda: 7.0)  # that function has no signature
    assert OldEnv(env).reset(seed=3) == (7.0, {})


def test_new_environments_stay_as_they_are() -> None:
    env = CountEnv(length=3)
    assert as_gymnasium(env) is env
    assert space_of(env.action_space) is env.action_space
    assert isinstance(as_gymnasium(DingEnv()), OldEnv)


def test_spaces() -> None:
    box = space_of(Box())
    assert box == gymnasium.spaces.Box(0, np.full(2, 9.0, np.float32), dtype=np.float32)
    assert space_of(Discrete()) == gymnasium.spaces.Discrete(2)
    assert space_of(MultiDiscrete()) == gymnasium.spaces.MultiDiscrete([2, 3])
    assert space_of(MultiBinary()) == gymnasium.spaces.MultiBinary(3)
    both = gymnasium.spaces.Tuple((box, gymnasium.spaces.Discrete(2)))
    nested = Nested({"seen": Nested([Box(), Discrete()])})
    assert space_of(nested) == gymnasium.spaces.Dict({"seen": both})


def test_an_old_environment_of_nested_spaces() -> None:
    class Pairs(DingEnv):
        observation_space = Nested({"at": Box(), "half": Discrete()})  # type: ignore[assignment]

        def reset(self) -> Any:
            return {"at": super().reset(), "half": 0}

        def step(self, action: Any) -> Timestep:
            made = super().step(action)
            return made._replace(obs={"at": made.obs, "half": 1})

    manager = DictManager(make_env_manager({"type": "base"}, [Pairs], seed=3))
    manager.launch()
    assert manager.step({0: 1})[0].obs["half"] == 1
    assert manager.step({0: 1})[0].obs["at"].tolist() == [2, 2]
    manager.close()


class SeesPairs(DingEnv):
    """Its observations look as ones with an info do."""

    observation_space = Nested([Box(), Nested({"half": Discrete()})])  # type: ignore[assignment]

    def reset(self) -> Any:
        return super().reset(), {"half": 1}


class SeesPairsAndTells(SeesPairs):
    def reset(self) -> Any:
        return super().reset(), {"begun": True}


@pytest.mark.parametrize(("kind", "told"), [(SeesPairs, {}), (SeesPairsAndTells, {"begun": True})])
def test_a_part_of_an_observation_is_no_info(kind: type, told: dict[str, Any]) -> None:
    observation, info = as_gymnasium(kind()).reset()
    assert (observation[0].tolist(), observation[1], info) == ([0, 0], {"half": 1}, told)


def test_a_space_of_no_known_shape_is_named() -> None:
    class Odd(DingEnv):
        observation_space = object()  # type: ignore[assignment]

    with pytest.raises(EnvError, match="observations are <object object"):
        make_env_manager(None, [Odd]).launch()


class OldByName:
    """Without gymnasium's base and a seed, by four results; named as module:Class."""

    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)
    render_mode = None

    def reset(self) -> Any:
        self._at = 0
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        self._at += 1
        return np.full(1, self._at, np.float32), 1.0, False, {}


class OfTheBaseWithoutASeed(OldByName, gymnasium.Env):  # type: ignore[type-arg]
    """The same, of the base."""


class OldWrapper:
    """Of gym 0.21: passes on what it does not know, and all arguments of a reset."""

    def __init__(self, **kwargs: Any) -> None:
        self.env = OldByName(**kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)


class Simulator:
    """Begins anew, and knows no seed."""

    action_space = gymnasium.spaces.Discrete(2)

    def reset(self) -> None: ...


@pytest.mark.parametrize("base", [gymnasium.Env, object])
def test_an_environment_that_holds_another_takes_its_seed_itself(base: Any) -> None:
    """It was taken for a wrapper of an old one, and began each episode by any seed."""

    class Holds(base):  # type: ignore[misc]
        observation_space = gymnasium.spaces.Box(0, 1, (1,))
        action_space = Simulator.action_space

        def __init__(self) -> None:
            self.env = Simulator() if base is gymnasium.Env else SimpleNamespace(reset=list)

        def reset(self, **given: Any) -> Any:
            self.env.reset()
            return np.random.default_rng(given["seed"]).random(1, np.float32), {}

    env = as_gymnasium(Holds())
    assert env.reset(seed=3)[0] == np.random.default_rng(3).random(1, np.float32)


SCALED = {"wrappers": [{"type": "ScaleReward", "scale": 2.0}]}


@pytest.mark.parametrize("settings", [{}, {"vectorization": "sync"}, SCALED])
@pytest.mark.parametrize("name", ["OldByName", "OfTheBaseWithoutASeed", "OldWrapper"])
def test_old_classes_by_their_name(name: str, settings: dict[str, Any]) -> None:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:{name}", "collector_env_num": 2,
        "kwargs": {"max_episode_steps": 3}, **settings,
    }  # fmt: skip
    assert look_at(get_env_cls(cfg).parse_config(cfg)).spaces.action[0].counts == (2,)
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
        envs.launch()
        steps = [envs.step({"action": np.zeros(2, np.int64)}) for _ in range(3)]
        assert steps[2].truncated.all()
        assert steps[2].successor["observation"].tolist() == [[3.0], [3.0]]
        assert not envs.failures


class OfASeedAlone(gymnasium.Env[Any, Any]):
    """Of gymnasium's API but for options."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        super().reset(seed=seed)
        return self.np_random.random(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return self.np_random.random(1, np.float32), 1.0, True, False, {}


class WrapperOfASeedAlone(gymnasium.Wrapper[Any, Any, Any, Any]):
    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return self.env.reset(seed=seed)


class PassesOn(gymnasium.Wrapper[Any, Any, Any, Any]):
    def reset(self, **given: Any) -> Any:
        return self.env.reset(**given)


WRAPPED = {"wrappers": [f"{__name__}:WrapperOfASeedAlone", "FlattenObservation"]}


@pytest.mark.parametrize(
    "settings",
    [{}, {"vectorization": "sync"}, {"kwargs": {"max_episode_steps": 3}}, SCALED, WRAPPED],
)
def test_a_reset_by_a_seed_alone_is_an_old_one(settings: dict[str, Any]) -> None:
    """Each of its resets failed: it has no argument `options`."""
    gymnasium.register("test/OfASeedAlone-v0", OfASeedAlone, max_episode_steps=9)
    try:
        by_id, by_class = (
            _first_of({"env_id": env_id, **settings})
            for env_id in ("test/OfASeedAlone-v0", f"{__name__}:OfASeedAlone")
        )
    finally:
        gymnasium.registry.pop("test/OfASeedAlone-v0")
    assert by_id == by_class
    for make in (OfASeedAlone, lambda: PassesOn(OfASeedAlone())):
        with make_env_manager(None, [make] * 8, seed=np.random.SeedSequence(0)) as envs:
            envs.launch()
            assert envs.observation["observation"].tolist() == by_class


def _first_of(settings: dict[str, Any]) -> Any:
    """First observations of environments that are stepped then."""
    cfg = {"type": "gymnasium", **settings}
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
        envs.launch()
        first = envs.observation["observation"].copy()
        envs.step({"action": np.zeros(8, np.int64)})
        assert not envs.failures
    return first.tolist()


class OfAnotherBase(gymnasium.Env[Any, Any]):
    """Its `unwrapped` is another library's environment, as that of Jumanji's and vmas's wrappers.

    Gymnasium writes to it, and reads that of what it wraps.
    """

    observation_space, action_space = (
        gymnasium.spaces.Box(-9, 9, (2,)),
        gymnasium.spaces.Discrete(2),
    )

    @property
    def unwrapped(self) -> Any:
        return SimpleNamespace()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.full(2, seed, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 10.0, True, False, {}


def test_an_environment_whose_base_is_of_another_library_is_made() -> None:
    env_cls = get_env_cls({"type": "gymnasium"})
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:OfAnotherBase"}
    env = env_cls.make_single(env_cls.parse_config(cfg))
    assert env.reset(seed=7)[0].tolist() == [7, 7]
    assert env.step(0)[1] == 10.0


class Several:
    """Of Stable-Baselines3's shape: a vector environment of one."""

    observation_space, action_space, num_envs = gymnasium.spaces.Box(0, 9, (2,)), Discrete(), 1

    def reset(self) -> Any:
        return np.zeros((1, 2))

    def step(self, action: Any) -> Any:
        return np.zeros((1, 2)), np.zeros(1), np.zeros(1, bool), [{}]

    def env_is_wrapped(self, _wrapper: Any, _indices: Any = None) -> list[bool]:
        return [False]


def several(kind: str = "same_step", number: int = 1) -> Any:
    if kind == "stable_baselines3":
        return Several()
    mode = gymnasium.vector.AutoresetMode[kind.upper()]
    return gymnasium.vector.SyncVectorEnv([CountEnv] * number, autoreset_mode=mode)


class Inside(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that leads to a vector environment."""

    def __new__(cls, env: Any) -> Any:
        del env
        return several()


VECTOR = "is a vector environment .num_envs: .*give what makes one"


@pytest.mark.parametrize(
    "kwargs",
    [{"kind": "same_step"}, {"kind": "next_step", "number": 3}, {"kind": "stable_baselines3"}],
)
def test_a_vector_environment_is_no_single_one(kwargs: dict[str, Any]) -> None:
    """Of one copy, it looked like one: its last observations and ends were wrong."""
    settings = {"type": "gymnasium", "env_id": f"{__name__}:several", "kwargs": kwargs}
    for others in ({}, {"manager": {"type": "subprocess"}}):
        with pytest.raises(EnvError, match=VECTOR):
            look_at(get_env_cls(settings).parse_config({**settings, **others}))
    with (
        make_env_manager({"type": "base", "max_retry": 1}, [partial(several, **kwargs)]) as envs,
        pytest.raises(EnvError, match=VECTOR),
    ):
        envs.launch()


def test_nor_is_one_that_a_wrapper_leads_to() -> None:
    inside = {
        "type": "gymnasium",
        "env_id": f"{__name__}:CountEnv",
        "wrappers": [f"{__name__}:Inside"],
    }
    with pytest.raises(ConfigError, match=f"env.wrappers.0.: .*{VECTOR}"):
        look_at(get_env_cls(inside).parse_config(inside))


def test_a_single_one_may_say_how_many_there_are() -> None:
    class Counted(CountEnv):
        num_envs = 7

    env = Counted()
    assert as_gymnasium(env) is env
