"""Wrappers that a configuration names, and modules of the user that lie beside it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from fakes.env_managers import seen
from hpcdi.config.load import load
from hpcdi.env.create import create_env_manager, make_env_manager
from hpcdi.env.gymnasium import GymnasiumEnv
from hpcdi.env.probe import look_at
from hpcdi.env.toy import CountEnv
from hpcdi.env.wrappers import wrap
from hpcdi.errors import ConfigError

pytestmark = pytest.mark.usefixtures("env_helpers")

COUNT = {"env_id": "hpcdi/Count-v0", "import_names": ["hpcdi.env.toy"], "collector_env_num": 2}
STACK = {"type": "FrameStackObservation", "stack_size": 3}


def config(*wrappers: Any, **changed: Any) -> Any:
    return GymnasiumEnv.parse_config({**COUNT, "wrappers": list(wrappers), **changed})


def seeds() -> np.random.SeedSequence:
    return np.random.SeedSequence(0)


class Images(gymnasium.Env[Any, Any]):
    """Channel-last images; pixel [y, x, c] is 100 y + 10 x + c, the reward -5."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, channels: int = 4) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (2, 3, channels), np.uint8)

    def reset(self, **_given: Any) -> tuple[Any, dict[str, Any]]:
        shape: Any = self.observation_space.shape
        return np.fromfunction(lambda y, x, c: 100 * y + 10 * x + c, shape, dtype=np.uint8), {}

    def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], -5.0, False, False, {}


def test_the_first_wrapper_is_the_innermost() -> None:
    env = wrap(Images(), ["ChannelsFirst", {"type": "FlattenObservation"}])
    assert env.observation_space.shape == (24,)
    observation, _ = env.reset()
    assert observation[:3].tolist() == [0, 10, 20], "channel 0 of row 0"
    rewards = [
        wrap(Images(), wrappers).step(0)[1]
        for wrappers in (["SignReward"], [{"type": "ScaleReward", "scale": 0.5}, "SignReward"],
                         ["SignReward", {"type": "ScaleReward", "scale": 0.5}])
    ]  # fmt: skip
    assert rewards == [-1.0, -1.0, -0.5]


WANTED = {
    "FlattenObservation": ((24,), -5),
    "GrayscaleObservation": ((2, 3), -5),
    "{type: GrayscaleObservation, keep_dim: true}": ((2, 3, 1), -5),
    "{type: ReshapeObservation, shape: [6, 4]}": ((6, 4), -5),
    "{type: FrameStackObservation, stack_size: 2}": ((2, 2, 3, 4), -5),
    "{type: StickyAction, repeat_action_probability: 0.25}": ((2, 3, 4), -5),
    "{type: ClipReward, min_reward: -1, max_reward: 1}": ((2, 3, 4), -1),
    "{type: ScaleReward, scale: 0.5}": ((2, 3, 4), -2.5),
    "{type: RepeatAction, times: 3}": ((2, 3, 4), -15),
    "{type: TimeLimit, max_episode_steps: 1}": ((2, 3, 4), -5),
    "{type: DtypeObservation, dtype: float32}": ((2, 3, 4), -5),
    "{type: MaxAndSkipObservation, skip: 2}": ((2, 3, 4), -10),
}


@pytest.mark.parametrize("text", WANTED)
def test_wrappers_as_yaml_names_them(text: str) -> None:
    pictures = partial(Images, 3) if "Grayscale" in text else Images
    make = partial(wrapped, pictures, [yaml.safe_load(text)])
    with make_env_manager({"type": "base", "max_retry": 0}, [make] * 2) as envs:
        envs.launch()
        step = envs.step({"action": np.zeros(2, np.int64)})
        assert (seen(envs).shape, float(step.reward[1])) == (
            (2, *WANTED[text][0]),
            WANTED[text][1],
        )
        assert bool(step.truncated[0]) == ("TimeLimit" in text)
        assert seen(envs).dtype == ("float32" if "Dtype" in text else "uint8")


def wrapped(make: Any, wrappers: Any) -> Any:
    return wrap(make(), wrappers)


def test_channels_come_first_in_the_space_too() -> None:
    env = wrap(Images(), ["ChannelsFirst"])
    observation, _ = env.reset()
    assert env.observation_space.shape == observation.shape == (4, 2, 3)
    assert observation[3, 1, 2] == 123
    assert env.observation_space.dtype == np.uint8


@pytest.mark.parametrize(
    "changed", [{}, {"vectorization": "sync"}, {"manager": {"type": "subprocess"}}]
)
def test_what_is_collected_is_what_the_wrappers_return(changed: dict[str, Any]) -> None:
    """The counting environment's observation is (step, episode), an episode has five steps."""
    cfg = config(STACK, {"type": "ScaleReward", "scale": 10.0}, **changed)
    assert look_at(cfg).spaces.observation[0].shape == (3, 2)
    with create_env_manager(cfg, evaluate=False, seed=seeds()) as envs:
        envs.launch()
        rewards, successors = [], []
        while len(rewards) < 5:
            step = envs.step({"action": np.zeros(2, np.int64)})
            if step.live[0]:
                rewards.append(float(step.reward[0]))
                successors.append(step.successor["observation"][0, :, 0].tolist())
                ended = bool(step.terminated[0] | step.truncated[0])
    assert rewards == [10, 20, 30, 40, 50]
    assert successors == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert ended


def test_an_evaluation_counts_the_environment_s_own_rewards() -> None:
    cfg = config(STACK, {"type": "ScaleReward", "scale": 10.0}, "SignReward", evaluator_env_num=1)
    with create_env_manager(cfg, evaluate=True, seed=seeds()) as envs:
        envs.launch()
        while not envs.done:
            envs.step({"action": np.zeros(1, np.int64)})
        _, returns, lengths, _ = envs.take_episodes()
        assert seen(envs).shape == (1, 3, 2), "what the policy sees is wrapped all the same"
    assert (list(returns), list(lengths)) == ([15.0], [5])


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("FlattenObservations", "there is no wrapper 'FlattenObservations'; did you mean 'Flatten"),
        ({"type": "FrameStackObservation", "size": 2}, "TypeError: .*unexpected keyword .*'size'"),
        ("NormalizeObservation", "is of no use here: each environment would scale by statistics"),
        ("nowhere:Wrapper", "there is no module 'nowhere'"),
        pytest.param(
            "JaxToNumpy",
            r"there is no module 'array_api_compat' \(needed by 'JaxToNumpy'\)",
            marks=pytest.mark.skipif(find_spec("array_api_compat") is not None, reason="is there"),
        ),
        ("hpcdi.env.wrappers:Wrong", "has no 'Wrong'.* It has ChannelsFirst, Components,"),
        ({"stack_size": 2}, "there is no wrapper ''"),
        ("ChannelsFirst", "ChannelsFirst: AttributeError|ChannelsFirst: AxisError"),
    ],
)
def test_a_wrapper_that_cannot_be_made_is_named(wrapper: Any, said: str) -> None:
    cfg = config(
        STACK, wrapper, env_id="FrozenLake-v1" if wrapper == "ChannelsFirst" else "CartPole-v1"
    )
    with pytest.raises(ConfigError, match=rf"env\.wrappers\[1\]: .*({said})"):
        look_at(cfg)


def test_a_vector_environment_cannot_be_wrapped() -> None:
    with pytest.raises(ConfigError, match="wrappers: need single environments: set vectorization"):
        config(STACK, env_id="CartPole-v1", vectorization="vector_entry_point")


MODULE = """
    import gymnasium, numpy as np

    class Coin(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {}
        def step(self, action):
            return np.zeros(1, np.float32), 1.0, True, False, {}

    class Twice(gymnasium.RewardWrapper):
        def reward(self, reward):
            return 2 * reward
"""
YAML = """
    exp_name: coin
    env: {type: gymnasium, env_id: "coins_of_a_test:Coin", wrappers: ["coins_of_a_test:Twice"],
          import_names: [coins_of_a_test], manager: {type: subprocess}, collector_env_num: 2}
    policy: {type: dqn}
"""
PROGRAM = """
    import sys
    import numpy as np
    from hpcdi.config.load import load
    from hpcdi.env.create import create_env_manager

    if __name__ == "__main__":
        config = load(sys.argv[1]).config
        with create_env_manager(config.env, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
            envs.launch()
            print(envs.step({"action": np.zeros(2, np.int64)}).reward.tolist())
            print(config.system.import_path)
"""


def test_modules_beside_the_yaml_are_found_from_any_folder_also_by_child_processes(
    tmp_path: Path,
) -> None:
    experiment, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    experiment.mkdir()
    elsewhere.mkdir()
    (experiment / "coins_of_a_test.py").write_text(textwrap.dedent(MODULE))
    (experiment / "coin.yaml").write_text(textwrap.dedent(YAML))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, str(program), str(experiment / "coin.yaml")],
        cwd=elsewhere, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str([2.0] * 2), str((str(experiment),))], done.stderr


def test_a_folder_without_modules_is_not_searched(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "exp_name: x\nenv: {env_id: CartPole-v1}\npolicy: {type: dqn}\n"
    )
    assert load(tmp_path / "x.yaml").config.system.import_path == ()


def test_numbers_as_floats() -> None:
    """Codes that are bytes are not divided by 255."""
    codes = gymnasium.wrappers.TransformObservation(
        CountEnv(3),
        lambda _: np.array([0, 10], np.uint8),
        gymnasium.spaces.Box(0, 255, (2,), np.uint8),
    )
    floats = wrap(codes, [{"type": "AsFloats", "scale": 0.1}])
    assert floats.observation_space == gymnasium.spaces.Box(0.0, np.float32(25.5), (2,))
    np.testing.assert_allclose(floats.reset(seed=0)[0], [0, 1])


def test_numbers_in_a_dict_as_floats() -> None:
    """MiniGrid's codes could not be changed beside the direction."""
    space = gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (2,), np.uint8),
        direction=gymnasium.spaces.Discrete(4),
        action_mask=gymnasium.spaces.Box(0, 1, (2,), np.int8),
    )
    given = {
        "image": np.array([0, 8], np.uint8),
        "direction": 3,
        "action_mask": np.ones(2, np.int8),
    }
    env = wrap(
        gymnasium.wrappers.TransformObservation(CountEnv(3), lambda _: given, space), ["AsFloats"]
    )
    changed = gymnasium.spaces.Box(0.0, 255.0, (2,))
    assert env.observation_space == gymnasium.spaces.Dict({**space.spaces, "image": changed})
    seen = env.reset(seed=0)[0]
    assert seen["image"].dtype == np.float32
    assert seen["image"].tolist() == [0.0, 8.0]
    assert seen["direction"] == 3
    assert seen["action_mask"] is given["action_mask"]


def test_numbers_that_lie_deep_as_floats() -> None:
    """They stayed bytes, and nothing was said."""
    codes, floats = gymnasium.spaces.Box(0, 255, (2,), np.uint8), gymnasium.spaces.Box(0, 1, (1,))
    given = np.array([0, 8], np.uint8)
    one = np.ones(1, np.float32)

    def env_of(space: Any, value: Any = None) -> Any:
        same = gymnasium.wrappers.TransformObservation(CountEnv(3), lambda _: value, space)
        return wrap(same, ["AsFloats"])

    deep = gymnasium.spaces.Dict(a=gymnasium.spaces.Dict(img=codes, action_mask=codes, x=floats))
    env = env_of(deep, {"a": {"img": given, "action_mask": given, "x": one}})
    assert env.observation_space["a"]["img"].dtype == np.float32
    seen = env.reset(seed=0)[0]
    assert env.observation_space.contains(seen)
    assert (seen["a"]["img"].dtype, seen["a"]["img"].tolist()) == (np.float32, [0.0, 8.0])
    assert seen["a"]["action_mask"] is given
    assert seen["a"]["x"] is one
    pair = gymnasium.spaces.Tuple([floats, gymnasium.spaces.Dict(img=codes)])
    env = env_of(pair, (one, {"img": given}))
    seen = env.reset(seed=0)[0]
    assert env.observation_space.contains(seen)
    assert (seen[1]["img"].dtype, seen[1]["img"].tolist()) == (np.float32, [0.0, 8.0])
    for none in (gymnasium.spaces.Dict(a=floats, action_mask=codes), gymnasium.spaces.Discrete(4)):
        with pytest.raises(ConfigError, match="there is no Box of whole numbers in Di"):
            env_of(none)


class NeedsALevel(CountEnv):
    """Begins at a level of its options alone."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.level = options["level"]
        observation, info = super().reset(seed=seed)
        return observation + np.float32(self.level), info


@pytest.mark.parametrize("evaluate", [False, True])
def test_options_of_resets_are_a_setting(evaluate: bool) -> None:
    wrapper = {"type": "ResetOptions", "options": {"level": 3}}
    cfg = config(wrapper, env_id=f"{__name__}:NeedsALevel", kwargs={"length": 1})
    with create_env_manager(cfg, evaluate=evaluate, seed=seeds()) as envs:
        envs.launch()
        assert seen(envs)[:, 0].tolist() == [3.0] * envs.env_num
        envs.step({"action": np.zeros(envs.env_num, np.int64)})
    env = wrap(NeedsALevel(), [wrapper])
    env.reset(options={"level": 4})
    assert env.unwrapped.level == 4


class Fleet(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One player, who directs a number of cars, and has attributes that others have, too."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.agents = 3
        self.single_observation_space = env.observation_space


def test_a_number_called_agents_makes_no_battle() -> None:
    """What an environment is is its type's to say, whatever attributes it has."""
    found = look_at(config(f"{__name__}:Fleet"), seed=0)
    assert (found.players, found.teams) == (1, 1)
    assert found.spaces == look_at(config()).spaces


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_lists_are_arrays_for_wrappers_that_want_arrays() -> None:
    """They were tuples, which these refuse."""
    scaled = {"type": "RescaleObservation", "min_obs": [0, -1, -2], "max_obs": [1, 1, 2]}
    actions = {"type": "RescaleAction", "min_action": [-3.0], "max_action": [3.0]}
    env = wrap(gymnasium.make("Pendulum-v1"), [scaled, actions])
    assert env.observation_space.low.tolist() == [0, -1, -2]
    assert env.action_space.high.tolist() == [3.0]


class Weighted(gymnasium.RewardWrapper[Any, Any]):
    """One's own, with an array of weights and a list of names."""

    def __init__(self, env: Any, weights: np.ndarray[Any, Any], names: list[str]) -> None:
        super().__init__(env)
        self.weights, self.names = weights, names

    def reward(self, reward: Any) -> float:
        return float(reward * self.weights.sum())


def test_lists_are_arrays_for_one_s_own_that_says_so() -> None:
    """It was given the list."""
    wrapper = {"type": f"{__name__}:Weighted", "weights": [0.5, 0.25], "names": ["a"]}
    env = wrap(CountEnv(3), [wrapper])
    env.reset(seed=0)
    assert env.step(0)[1] == 0.75
    assert env.names == ["a"]


def test_components_of_what_is_a_list() -> None:
    class Listed(CountEnv):
        def reset(self, **given: Any) -> Any:
            return [3.0, 4.0], {}

    assert wrap(Listed(), [{"type": "Components", "keep": [1]}]).reset()[0].tolist() == [4.0]


class Shaped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Judges goals by the share of bits that are right, and ends no episode by them."""

    def compute_reward(self, achieved: Any, desired: Any, _info: Any) -> Any:
        return (achieved == desired).mean(axis=-1)

    def compute_terminated(self, achieved: Any, _desired: Any, _info: Any) -> Any:
        return np.zeros(len(achieved), bool)


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_the_outermost_that_judges_goals_does(vectorization: str) -> None:
    """That of what it wraps was asked, through other wrappers around it."""
    before, after = ({"type": "ScaleReward", "scale": scale} for scale in (7.0, 2.0))
    cfg = config(
        before, f"{__name__}:Shaped", after, env_id="hpcdi/BitFlip-v0", kwargs={"bits": 4},
        vectorization=vectorization,
    )  # fmt: skip
    goals = np.array([[1, 1, 1, 1], [0, 0, 0, 1]], np.int8), np.ones((2, 4), np.int8)
    with create_env_manager(cfg, evaluate=False, seed=seeds()) as envs:
        envs.launch()
        has_it, rewards = envs.call(0, "compute_reward", *goals, {})
        assert has_it
        assert rewards.tolist() == [2.0, 0.5]
        assert envs.call(0, "compute_terminated", *goals, {})[1].tolist() == [False, False]
        assert envs.call(0, "no_such_method") == (False, None)
