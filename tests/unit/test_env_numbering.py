"""Numbers of environments: unique in a run, in arguments and in a variable while one is made."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from hpcdi.env.arguments import ENV_INDEX, is_numbered, make_numbered, numbered
from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.probe import look_at
from hpcdi.errors import ConfigError

pytestmark = pytest.mark.usefixtures("env_helpers")


class Port(gymnasium.Env[Any, Any]):
    """Observes its port, the variable when it was made, and the number in its folder's name."""

    observation_space = spaces.Box(0, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, port: int, options: dict[str, Any]) -> None:
        folder = options["folders"][0]
        assert isinstance(port, int)
        numbers = [port, int(os.environ.get(ENV_INDEX, "0")), int(folder.removeprefix("run-"))]
        self._seen = np.array(numbers, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._seen, {}

    def step(self, action: Any) -> Any:
        return self._seen, 0.0, False, False, {}


CFG = {
    "type": "gymnasium", "env_id": f"{__name__}:Port", "collector_env_num": 2,
    "evaluator_env_num": 3,
    "kwargs": {"port": "{index + 5005}", "options": {"folders": ["run-{index}"]}},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["base", "subprocess"])
def test_each_environment_of_a_run_has_a_number_of_its_own(kind: str) -> None:
    seen = []
    for number, evaluate in ((0, False), (0, True), (1, False), (1, True)):
        if kind == "subprocess" and evaluate:
            continue
        cfg = {**CFG, "manager": {"type": kind}}
        seed = np.random.SeedSequence(0)
        with create_env_manager(cfg, evaluate=evaluate, number=number, seed=seed) as envs:
            envs.launch()
            seen += envs.observation["observation"].tolist()
    numbers = [0, 1, 5, 6] if kind == "subprocess" else list(range(10))
    assert seen == [[5005 + index, index, index] for index in numbers]
    assert ENV_INDEX not in os.environ


def test_an_environment_may_clear_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"OTHER": "1"}
    monkeypatch.setattr("hpcdi.env.arguments.os.environ", variables)
    make_numbered(variables.clear, 3)
    assert variables == {}


def test_spaces_are_those_of_the_first() -> None:
    assert look_at(get_env_cls(CFG).parse_config(CFG)).spaces.observation[0].shape == (3,)


def test_one_of_dings_form_has_its_number_before_a_run_as_well(tmp_path: Path) -> None:
    ding = {"type": "fakes.ding_form:Numbered", "length": 3}
    cfg = {"type": "ding", "ding": ding, "manager": {"folder": str(tmp_path)}}
    assert look_at(get_env_cls(cfg).parse_config(cfg)).spaces.observation[0].shape == (3,)


def test_what_gymnasium_makes_together_cannot_be_numbered() -> None:
    cfg = {**CFG, "vectorization": "sync"}
    with pytest.raises(ConfigError, match=r"env.vectorization.*must be 'auto'"):
        create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0))


def test_other_texts_stay_as_they_are() -> None:
    kwargs = {"a": "index", "b": ["{x}", 1, None], "c": {"d": True}}
    assert numbered(kwargs) == kwargs
    assert not is_numbered(kwargs)
    assert numbered("x{index}-{ index+1 }") == "x0-1"


class Indexed(gymnasium.Env[Any, Any]):
    """Observes the variable when it was made, and the number that a wrapper gives it."""

    observation_space, action_space = spaces.Box(-1, 99, (2,), np.float32), spaces.Discrete(2)

    def __init__(self) -> None:
        self._seen = np.full(2, int(os.environ.get(ENV_INDEX, "-1")), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seen[1] = options["number"]
        return self._seen, {}

    def step(self, action: Any) -> Any:
        return self._seen, 0.0, False, False, {}


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_those_that_gymnasium_steps_together_have_the_variable_too(vectorization: str) -> None:
    wrapper = {"type": "ResetOptions", "options": {"number": "{index}"}}
    cfg = {
        **CFG, "env_id": f"{__name__}:Indexed", "kwargs": {}, "vectorization": vectorization,
        "wrappers": [wrapper],
    }  # fmt: skip
    for evaluate, numbers in ((False, [5, 6]), (True, [7, 8, 9])):
        with create_env_manager(
            cfg, evaluate=evaluate, number=1, seed=np.random.SeedSequence(0)
        ) as envs:
            envs.launch()
            assert envs.observation["observation"].tolist() == [[n, n] for n in numbers]
    assert ENV_INDEX not in os.environ


def _folder_after_making(folder: str) -> None:
    """Exits with 1 where making an environment in this process leaves another present folder."""
    os.chdir(folder)
    make_numbered(dict, 3, "envs")
    sys.exit(Path.cwd() != Path(folder) or ENV_INDEX in os.environ)


def test_a_process_that_makes_environments_and_is_not_theirs_keeps_its_folder(
    tmp_path: Path,
) -> None:
    """As one of multiprocessing, of several runs side by side."""
    process = multiprocessing.get_context("fork").Process(
        target=_folder_after_making, args=(str(tmp_path),)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert (tmp_path / "envs" / "000003").is_dir()
