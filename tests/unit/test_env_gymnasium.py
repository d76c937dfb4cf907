"""Gymnasium's environments by their id: spaces, settings, and what cannot be made."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from fakes.spaces import simple_spaces
from hpcdi.env.contract import read_spaces
from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.gymnasium import GymnasiumEnv, cannot_make
from hpcdi.env.probe import look_at
from hpcdi.env.toy import CountEnv
from hpcdi.errors import ConfigError, EnvError
from hpcdi.types import Array


def config(**settings: Any) -> Any:
    return GymnasiumEnv.parse_config(settings)


class SpacesEnv(gymnasium.Env[Any, Any]):
    """An environment of given spaces that is never stepped."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """Registers an environment for the length of a test."""
    names: list[str] = []

    def add(name: str, observation_space: Any, action_space: Any, **kwargs: Any) -> None:
        gymnasium.register(
            name, entry_point=lambda: SpacesEnv(observation_space, action_space), **kwargs
        )
        names.append(name)

    yield add
    for name in names:
        gymnasium.registry.pop(name)


BOX = spaces.Box(-1, 1, (2,), np.float32)


def test_spaces_of_known_environments() -> None:
    assert look_at(config(env_id="CartPole-v1")).spaces == simple_spaces((4,), "float32", 2, ())
    assert look_at(config(env_id="Pendulum-v1")).spaces == simple_spaces(
        (3,), "float32", None, (1,), (-2.0,), (2.0,)
    )
    counts = config(env_id="hpcdi/Count-v0", import_names=["hpcdi.env.toy"])
    assert look_at(counts).spaces == simple_spaces((2,), "float32", 2, ())


def test_bytes_of_a_stored_observation() -> None:
    assert simple_spaces((4, 84, 84), "uint8", 6, ()).observation_bytes == 4 * 84 * 84
    assert simple_spaces((), "float32", 2, ()).observation_bytes == 4


@pytest.mark.parametrize(
    ("observation", "action", "reason"),
    [
        (
            spaces.Dict({"a": BOX, "b": spaces.Text(5)}),
            spaces.Discrete(2),
            r"observations have a part b Text.*hpcdi takes Box.*FilterObservation",
        ),
        (BOX, spaces.Sequence(BOX), r"actions are Sequence.*hpcdi takes Box"),
        (BOX, spaces.Dict({"a": spaces.Text(5)}), r"actions have a part a .*the environment$"),
        (spaces.Dict({"a/": BOX}), spaces.Discrete(2), r"a part of a key .* is empty: 'a/'"),
        (
            BOX,
            spaces.Dict({"a/b": BOX, "a": spaces.Dict(b=BOX)}),
            r"a Dict space has the parts 'a/b' and 'a/b', and hpcdi joins keys by '/'",
        ),
        (spaces.Dict({"a/b": BOX, "a": BOX}), BOX, r"a Dict space has the parts 'a' and 'a/b'"),
        (spaces.Dict({".": BOX}), spaces.Discrete(2), r"a key of a Dict space is a dot: '\.'"),
        (BOX, spaces.Dict(a=spaces.Dict({"": BOX})), r"a key of a Dict space is empty: ''"),
        (
            spaces.Dict({"observation": BOX, "action_mask": spaces.MultiBinary(3)}),
            spaces.Discrete(2),
            r"its masks of actions have 3 entries.*Discrete\(2\), need 2",
        ),
    ],
)
def test_other_kinds_of_spaces_are_refused(
    register: Callable[..., None], observation: Any, action: Any, reason: str
) -> None:
    register("test/Odd-v0", observation, action)
    with pytest.raises(ConfigError, match=rf"env.env_id: test/Odd-v0: {reason}") as caught:
        look_at(config(env_id="test/Odd-v0"))
    assert caught.value.exit_code == 2


def test_box_actions_and_a_time_limit(register: Callable[..., None]) -> None:
    register("test/Box-v0", BOX, spaces.Box(-1, 1, (2, 3)), max_episode_steps=7)
    assert look_at(config(env_id="test/Box-v0")).spaces == simple_spaces(
        (2,), "float32", None, (2, 3), (-1.0,) * 6, (1.0,) * 6
    )


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [
        ("CartPole-v9", "version `v9` .* doesn't exist"),
        ("Whale-v0", r"`Whale` doesn't exist\. Did you mean: `Walker2d`\?$"),  # without a hint
        ("no_such_module:Env-v0", "there is no module 'no_such_module'; install it"),
    ],
)
def test_what_cannot_be_made_says_why_and_what_to_do(env_id: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"env.env_id: '{env_id}' cannot be made: .*{reason}"):
        look_at(config(env_id=env_id))


@pytest.mark.parametrize(
    ("env_id", "package", "module"),
    [
        ("ALE/Pong-v5", "'hpcdi[atari]'", "ale_py"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
    ],
)
def test_a_package_that_registers_an_id_is_named(
    env_id: str, package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_installed in (False, True):
        spec = object() if is_installed else None
        monkeypatch.setattr("importlib.util.find_spec", lambda _name, spec=spec: spec)
        monkeypatch.delitem(sys.modules, module, raising=False)
        advice = "" if is_installed else f"pip install {package}, and "
        said = str(cannot_make(env_id, "Environment doesn't exist."))
        assert said.endswith(f"doesn't exist; {advice}set env.import_names: [{module}]")


@pytest.mark.parametrize("version", [21, 26])
def test_an_id_of_gym_s_is_made_by_its_class(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "kwargs" if version == 26 else "_kwargs"
    spec = SimpleNamespace(entry_point="planes:Plane", max_episode_steps=9, **{name: {"wind": 2.0}})
    own = SimpleNamespace(entry_point=CountEnv, max_episode_steps=None)
    specs = {"Plane-v1": spec, "Own-v0": own}
    registry = specs if version == 26 else SimpleNamespace(env_specs=specs)
    module = SimpleNamespace(registry=registry)
    monkeypatch.setitem(sys.modules, "gym.envs.registration", module)
    for env_id, settings in (
        ("Plane-v1", {"env_id": "planes:Plane", "kwargs": {"wind": 2.0, "max_episode_steps": 9}}),
        ("Own-v0", {"env_id": "hpcdi.env.toy:CountEnv"}),
    ):
        with pytest.raises(ConfigError) as caught:
            look_at(config(env_id=env_id))
        assert str(caught.value).endswith(
            f"{env_id!r} cannot be made: gym has registered it, and gymnasium has not: set env: "
            f"{settings}"
        )


def test_what_no_name_leads_to_is_no_class_of_gym_s(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(registry={})
    monkeypatch.setitem(sys.modules, "gym.envs.registration", module)
    for entry in (partial(CountEnv), lambda: CountEnv()):
        module.registry["Own-v0"] = SimpleNamespace(entry_point=entry)
        assert str(cannot_make("Own-v0", "it is unknown")).endswith("cannot be made: it is unknown")


@pytest.mark.parametrize(("name", "extra"), [("Box2D", "box2d"), ("MuJoCo", "mujoco")])
def test_a_library_that_gymnasium_needs_is_named(name: str, extra: str) -> None:
    said = str(cannot_make("Any-v0", f"{name} is not installed, run `something`"))
    assert f"{name} is not installed here; pip install" in said
    assert said.endswith(f"'gymnasium[{extra}]'")


def test_a_module_that_the_environment_needs_is_named(register: Callable[..., None]) -> None:
    gymnasium.register("test/Needs-v0", entry_point="no_such_package.envs:Env")
    try:
        with pytest.raises(ConfigError, match=r"'no_such_package' \(needed by 'test/Needs-v0'\)"):
            look_at(config(env_id="test/Needs-v0"))
    finally:
        gymnasium.registry.pop("test/Needs-v0")


def test_a_module_of_import_names_that_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"import_names: there is no module 'no_such_module'"):
        get_env_cls(config(env_id="CartPole-v1", import_names=["no_such_module"]))


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_wrong_keyword_arguments_are_named(vectorization: str) -> None:
    with pytest.raises(ConfigError, match=r"env.kwargs: .*'colour'"):
        look_at(config(env_id="CartPole-v1", vectorization=vectorization, kwargs={"colour": 1}))


def test_keyword_arguments_reach_the_environment() -> None:
    cfg = config(env_id="CartPole-v1", kwargs={"max_episode_steps": 5}, evaluator_env_num=2)
    with create_env_manager(cfg, evaluate=True, seed=np.random.SeedSequence(0)) as made:
        made.launch()
        while not made.done:
            made.step({"action": np.zeros(2, dtype=np.int64)})
        assert made.take_episodes().lengths.tolist() == [5, 5]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "env_id: is required"),
        ({"env_id": "a", "autoreset": "disabled"}, "autoreset: can be chosen only with"),
        (
            {"env_id": "a", "vectorization": "sync", "autoreset": "never"},
            "autoreset: must be one of None, 'next_step', 'same_step', 'disabled', not 'never'",
        ),
        ({"env_id": "a", "vectorization": "async"}, "vectorization: must be one of"),
        ({"env_id": "a", "evaluator_env_num": 0}, "evaluator_env_num: must be at least 1"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(**settings)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        config(autoreset="same_step", stop_value="high", collector_env_num=0)
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"env_id", "autoreset", "stop_value", "collector_env_num"}


def test_default_config_is_the_seeds_mapping() -> None:
    cfg = GymnasiumEnv.default_config()
    assert cfg.cfg_type == "GymnasiumEnvDict"
    assert cfg.manager.type == "base"
    assert cfg.evaluator_episode_num == 1
    assert GymnasiumEnv.parse_config({**cfg, "env_id": "CartPole-v1"}) == config(
        env_id="CartPole-v1"
    )


class TestCountEnv:
    """The toy whose data other tests foretell."""

    def walk(self, steps: int, **kwargs: Any) -> list[tuple[list[float], float, bool, bool]]:
        import hpcdi.env.toy

        env = hpcdi.env.toy.CountEnv(**kwargs)
        env.reset(seed=0)
        taken = []
        for _ in range(steps):
            observation, reward, terminated, truncated, _ = env.step(np.int64(0))
            taken.append((self.plain(observation), reward, terminated, truncated))
            if terminated or truncated:
                env.reset()
        return taken

    @staticmethod
    def plain(observation: Array) -> list[float]:
        values: list[float] = observation.tolist()
        return values

    def test_even_episodes_terminate_and_odd_ones_are_cut(self) -> None:
        assert self.walk(4, length=2) == [
            ([1, 0], 1.0, False, False),
            ([2, 0], 2.0, True, False),
            ([1, 1], 1.0, False, False),
            ([2, 1], 2.0, False, True),
        ]

    def test_it_fails_where_it_was_told_to(self) -> None:
        assert len(self.walk(2, fail_at=3)) == 2
        with pytest.raises(RuntimeError, match="planted failure at step 3"):
            self.walk(3, fail_at=3)


class Named(CountEnv):
    """Has arguments that gymnasium.make has, too."""

    def __init__(self, id: str, wrappers: int = 0, length: int = 3) -> None:
        super().__init__(length)
        self.named = (id, wrappers)


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_arguments_may_be_called_as_those_of_gymnasium_s_make(vectorization: str) -> None:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:Named", "vectorization": vectorization,
        "kwargs": {"id": "line 1", "wrappers": 2, "max_episode_steps": 2}, "collector_env_num": 2,
    }  # fmt: skip
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
        envs.launch()
        backend: Any = envs._backend
        env = backend.workers[0]._env if vectorization == "auto" else backend._env.envs[0]
        assert env.unwrapped.named == ("line 1", 2)


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        (
            "hpcdi.env.toy:CountEnw",
            r"no 'CountEnw'; did you mean 'hpcdi.env.toy:CountEnv'\? It has",
        ),
        ("./my/envs.py:Walk", r"no name of a module; did you mean 'my.envs:Walk'\?"),
        (".envs:Walk", r"did you mean 'envs:Walk'\?"),
        ("no_such_module:Walk", "there is no module 'no_such_module'"),
    ],
)
def test_a_class_that_is_not_there_is_said_with_those_that_are(env_id: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        look_at(config(env_id=env_id))


def test_masks_that_a_wrapper_stacks_are_said() -> None:
    stack = {"observation": spaces.Box(0, 1, (4, 2)), "action_mask": spaces.MultiBinary((4, 3))}
    with pytest.raises(EnvError, match=r"12 entries.* stacks masks, too: env.action_mask: info"):
        read_spaces(spaces.Dict(stack), spaces.Discrete(3))


def test_masks_of_combinations_are_said() -> None:
    seen = {"observation": BOX, "action_mask": spaces.MultiBinary((10, 10))}
    with pytest.raises(EnvError, match=r"100 entries.* go with one Discrete\(100\)$"):
        read_spaces(spaces.Dict(seen), spaces.MultiDiscrete([10, 10]))


class Functional:
    """Of another API, as gymnax's, whose spaces are those of parameters."""

    action_space = spaces.Discrete(2)

    def observation_space(self, params: Any = None) -> Any:
        return BOX

    def reset(self, key: Any, params: Any = None) -> Any: ...

    def step(self, key: Any, state: Any, action: Any) -> Any: ...


def test_a_method_in_place_of_a_space_is_said() -> None:
    """It was said to have several players."""
    with pytest.raises(ConfigError, match=r"Functional: observation_space is a method"):
        look_at(config(env_id=f"{__name__}:Functional"))


class Silent(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Does not say how it resets; or it has one environment more than it was asked for."""

    def __init__(self, num_envs: int, more: int = 0, **_given: Any) -> None:
        self.num_envs = num_envs + more
        self.single_observation_space, self.single_action_space = BOX, spaces.Discrete(2)
        if more:
            self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def close(self, **_given: Any) -> None:
        raise RuntimeError("there is nothing to close")


class OfNoNumber(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Does not say how many it has."""

    metadata: dict[str, Any] = {  # noqa: RUF012
        "autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP
    }
    single_observation_space, single_action_space = BOX, spaces.Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self._own = num_envs


def test_a_vector_form_need_not_say_how_many_it_has() -> None:
    gymnasium.register("test/OfNoNumber-v0", vector_entry_point=OfNoNumber)
    try:
        assert look_at(config(env_id="test/OfNoNumber-v0")).spaces.observation[0].shape == (2,)
    finally:
        gymnasium.registry.pop("test/OfNoNumber-v0")


@pytest.mark.filterwarnings("ignore:.*missing AutoresetMode metadata")
@pytest.mark.parametrize(
    ("kwargs", "said"),
    [({}, "does not say how it resets"), ({"more": 1}, "has 2 environments .*was made for 1")],
)
def test_a_vector_form_that_cannot_be_stepped_is_left_for_single_ones(
    kwargs: dict[str, Any], said: str
) -> None:
    settings = {"env_id": "test/Silent-v0", "collector_env_num": 2, "kwargs": kwargs}
    for single, advice in ((lambda **_given: CountEnv(), "; set it to sync"), (None, "$")):
        gymnasium.register("test/Silent-v0", entry_point=single, vector_entry_point=Silent)
        try:
            with pytest.raises(ConfigError, match=f"env.vectorization: .*{said}.*{advice}"):
                look_at(config(**settings, vectorization="vector_entry_point"))
            if single is None:
                with pytest.raises(ConfigError, match=f"env.vectorization: .*{said}"):
                    look_at(config(**settings))
                continue
            assert look_at(config(**settings)).spaces.observation[0].shape == (2,)
            seed = np.random.SeedSequence(0)
            with create_env_manager(config(**settings), evaluate=False, seed=seed) as envs:
                envs.launch()
                assert envs.step({"action": np.zeros(2, np.int64)}).reward.tolist() == [1.0, 1.0]
        finally:
            gymnasium.registry.pop("test/Silent-v0")


class Raw(gymnasium.Env[Any, Any]):
    """Pictures as they are."""

    observation_space, action_space = spaces.Box(0, 255, (4,), np.uint8), spaces.Discrete(2)

    def __init__(self, pictures: str = "rgb") -> None:
        self.pictures = pictures

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4, np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.uint8), 10.0, False, False, {}


class Preprocessed(OfNoNumber):
    """As ALE's vectors: other pictures, clipped rewards, other arguments."""

    single_observation_space = spaces.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize("kwargs", [{}, {"pictures": "grey"}, {"max_episode_steps": 9}])
def test_a_vector_form_that_is_another_environment_is_left_for_single_ones(
    kwargs: dict[str, Any],
) -> None:
    """Runs of Atari learnt from other rewards than those of the id, or could not be made."""
    gymnasium.register("test/Raw-v0", entry_point=Raw, vector_entry_point=Preprocessed)
    try:
        cfg = config(env_id="test/Raw-v0", kwargs=kwargs, collector_env_num=2)
        assert look_at(cfg).observation_space == Raw.observation_space
        seed = np.random.SeedSequence(0)
        with create_env_manager(cfg, evaluate=False, seed=seed) as envs:
            envs.launch()
            assert envs.step({"action": np.zeros(2, np.int64)}).reward.tolist() == [10.0, 10.0]
        asked = GymnasiumEnv.make_vector(
            config(env_id="test/Raw-v0", vectorization="vector_entry_point"), 2
        )
        assert asked.single_observation_space == Preprocessed.single_observation_space
    finally:
        gymnasium.registry.pop("test/Raw-v0")


class OfEight(OfNoNumber):
    """Has always eight, as Meta-World's MT10 has ten; or takes multiples of four alone."""

    def __init__(self, num_envs: int, multiples: bool = False) -> None:
        if multiples and num_envs % 4:
            raise ValueError(f"num_envs must be a multiple of 4, not {num_envs}")
        self.num_envs = num_envs if multiples else 8


def test_a_vector_of_a_number_of_its_own_is_looked_at_with_that_number() -> None:
    """It was made for one, whatever the run makes, and refused."""
    gymnasium.register("test/OfEight-v0", vector_entry_point=OfEight)
    try:
        cfg = {"env_id": "test/OfEight-v0", "collector_env_num": 8, "evaluator_env_num": 8}
        multiples = {"kwargs": {"multiples": True}}
        for more in ({}, multiples, {**multiples, "evaluator_env_num": 4}):
            assert look_at(config(**{**cfg, **more})).spaces.observation[0].shape == (2,)
        for name in ("collector_env_num", "evaluator_env_num"):
            with pytest.raises(ConfigError, match=r"has 8 .*env.evaluator_env_num to 8"):
                look_at(config(**{**cfg, name: 6}))
            with pytest.raises(EnvError, match="multiple of 4, not 6"):
                look_at(config(**{**cfg, **multiples, name: 6}))
    finally:
        gymnasium.registry.pop("test/OfEight-v0")


class Refuses(OfNoNumber):
    """Cannot be made for one; what was made is closed with an error."""

    made: ClassVar[list[int]] = []

    def __init__(self, num_envs: int) -> None:
        self.made.append(num_envs)
        if num_envs == 1:
            raise ValueError("one is too few")
        self.num_envs = num_envs

    def close(self, **_given: Any) -> None:
        raise RuntimeError("it does not close")


def test_a_vector_is_made_once_for_each_number_that_a_run_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that cannot be made for one, as collectors have it, was made so again."""
    gymnasium.register("test/Refuses-v0", vector_entry_point=Refuses)
    try:
        cfg = {"env_id": "test/Refuses-v0", "collector_env_num": 2, "evaluator_env_num": 3}
        alone = {"eval_seeds": [7], "evaluator_env_num": 1}  # evaluates in single ones
        for changed, made in (
            ({}, [1, 3, 2]),
            ({"evaluator_env_num": 2}, [1, 2]),
            ({"collector_env_num": 1}, [1]),
            ({"evaluator_env_num": 1}, [1]),
            (alone, [1, 2]),
        ):
            Refuses.made.clear()
            with contextlib.ExitStack() as stack:
                if made == [1]:
                    stack.enter_context(pytest.raises(ValueError, match="one is too few"))
                GymnasiumEnv.probe(config(**{**cfg, **changed}))
            assert Refuses.made == made
        assert "it does not close" in caplog.text
    finally:
        gymnasium.registry.pop("test/Refuses-v0")


def test_single_ones_that_cannot_be_made_either_are_not_said_to_be_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.INFO, "hpcdi"),
        pytest.raises(ConfigError, match=r"env.kwargs: .*'foo'"),
    ):
        look_at(config(env_id="CartPole-v1", kwargs={"foo": 1}))
    assert "single ones are taken" not in caplog.text


def test_wrappers_of_an_id_are_around_single_ones() -> None:
    """A vector form has none of them: the id could not be made."""
    scaled = gymnasium.wrappers.RescaleObservation.wrapper_spec(min_obs=-1.0, max_obs=1.0)
    gymnasium.register(
        "test/Both-v0", lambda **_given: CountEnv(), vector_entry_point=Silent,
        additional_wrappers=(scaled,),
    )  # fmt: skip
    try:
        assert not GymnasiumEnv.has_vector(config(env_id="test/Both-v0"))
    finally:
        gymnasium.registry.pop("test/Both-v0")
