"""Numbers of float64 far from 0 (coordinates of a map) are centred before they are rounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes.compiled_source import check
from fakes.far_map import BOX, FAR, Map
from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.manager import EnvManager
from hpcdi.env.probe import look_at
from hpcdi.errors import ConfigError, EnvError
from hpcdi.policy.networks import Greedy
from hpcdi.policy.programs import TorchProgram
from hpcdi.policy.source_code import as_source
from hpcdi.run import resume
from hpcdi.run.experiment import load_experiment
from hpcdi.run.request import RunRequest

pytestmark = pytest.mark.usefixtures("env_helpers")
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "bare": ("observation", {}),
    "list": ("observation", {"kwargs": {"form": "list"}}),
    "float32": ("observation", {"kwargs": {"form": "float32"}}),
    "nested": ("observation/arm/at", {"kwargs": {"form": "nested"}}),
    "tuple": ("observation/1", {"kwargs": {"form": "tuple"}}),
    "masked": ("observation", {"kwargs": {"form": "masked"}}),
    "child": ("observation", {"manager": {"type": "subprocess"}}),
    "sync": ("observation", {"vectorization": "sync"}),
    "vector": ("observation", {"env_id": "test/Map-v0", "vectorization": "vector_entry_point"}),
    "players": ("observation", {"type": "pettingzoo", "env_id": "fakes.far_map:MapPair"}),
}


def config(**settings: Any) -> Any:
    cfg = {"type": "gymnasium", "env_id": "fakes.far_map:Map", "collector_env_num": 2, **settings}
    return get_env_cls(cfg).parse_config(cfg)


def manager(**settings: Any) -> EnvManager:
    seed = np.random.SeedSequence(0)
    return create_env_manager(config(**settings), evaluate=False, seed=seed)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[tuple[str, EnvManager]]:
    column, settings = FORMS[request.param]
    origin = look_at(config(**settings), seed=0).origin
    assert origin == {column: (5_400_000.0, 0.0)}
    with manager(**settings, origin=dict(origin)) as envs:
        envs.launch()
        yield column, envs


def test_digits_are_kept_in_every_form(form: tuple[str, EnvManager]) -> None:
    column, envs = form
    near = pytest.approx([0.3, 0.5], abs=1e-6)
    assert envs.observation[column].tolist() == [near] * envs.rows
    step = envs.step({"action": np.zeros(envs.rows, np.int64)})
    near = pytest.approx([0.4, 0.5], abs=1e-6)
    assert step.successor[column].tolist() == [near] * envs.rows
    assert envs.observation[column].dtype == np.float32


class Flaky(Map):
    """Its first reset fails; it returns whole numbers, beside a tensor with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(at=BOX, near=spaces.Box(-1, 1, (1,), np.float32))
        self._resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._resets += 1
        if self._resets == 1:
            raise RuntimeError("not connected yet")
        near = torch.zeros(1, requires_grad=True)
        return {"at": [5_400_000, 7_000_000], "near": near}, {}


def test_it_is_found_whatever_else_there_is() -> None:
    found = look_at(config(env_id=f"{__name__}:Flaky"), seed=0).origin
    assert found == {"observation/at": (5_400_000.0, 7_000_000.0)}


@pytest.mark.parametrize("kwargs", [{"low": -100.0, "scale": 1e-6}, {"scale": 1e-3}])
def test_near_numbers_have_no_origin(kwargs: dict[str, Any]) -> None:
    assert look_at(config(kwargs=kwargs), seed=0).origin == {}


def test_one_number_stands_for_all_components() -> None:
    with manager(origin={"observation": FAR}) as envs:
        envs.launch()
        assert envs.observation["observation"][0] == pytest.approx([0.0, 0.5 - FAR])


def test_an_origin_of_others_is_refused() -> None:
    with manager(origin={"observation": [1, 2, 3]}) as envs, pytest.raises(EnvError, match="has 3"):
        envs.launch()
    with manager(origin={"at": 1.0}) as envs, pytest.raises(EnvError, match="observations are obs"):
        envs.launch()
    for no_number in ("far", [float("nan"), 0.0], [10**400]):
        with pytest.raises(ConfigError, match="one for each component"):
            config(origin={"observation": no_number})
    for env_id, kind in (
        ("fakes.far_map:Map", "gymnasium"),
        ("fakes.far_map:MapPair", "pettingzoo"),
    ):
        cfg = config(env_id=env_id, type=kind, origin={"at": 1.0})
        with pytest.raises(ConfigError, match=r"env\.origin has at, and its observations are obs"):
            look_at(cfg)  # before anything starts


def test_an_experiment_takes_it_by_itself_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text("env: {env_id: 'fakes.far_map:Map'}\npolicy: {type: dqn}\n")
    compiled, _ = load_experiment(str(file), [])
    assert compiled.config.env.origins == {"observation": (5_400_000.0, 0.0)}
    assert "observation minus (5,400,000, 0)" in "\n".join(compiled.notes)
    compiled, _ = load_experiment(str(file), ["env.origin={}"])
    assert compiled.config.env.origins == {}


def test_frames_of_a_stack_have_one_origin(tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    stack = "{type: FrameStackObservation, stack_size: 2, padding_type: zero}"
    file.write_text(
        f"env: {{env_id: 'fakes.far_map:Map', wrappers: [{stack}]}}\n"
        "policy: {type: dqn, other: {replay_buffer: {frames: [observation]}}}\n"
    )
    compiled, _ = load_experiment(str(file), [])
    assert compiled.config.env.origins == {"observation": (5_400_000.0, 0.0) * 2}


def test_a_run_that_goes_on_keeps_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("env: {env_id: CartPole-v1, origin: {observation: [7.0]}}\n")
    another = tmp_path / "another.yaml"
    another.write_text("env: {env_id: CartPole-v1}\n")
    request = RunRequest(str(another), ("seed=1",), resume=str(tmp_path))
    assert resume.overrides_of(request) == ["seed=1", 'env.origin={"observation": [7.0]}']
    for said in ("env.origin={}", "env={origin: {observation: 8.0}}"):
        request = RunRequest(str(another), (said,), resume=str(tmp_path))
        assert resume.overrides_of(request) == [said]
    request = RunRequest(str(another), ("env.env_id=Acrobot-v1",), resume=str(tmp_path))
    assert resume.overrides_of(request) == ["env.env_id=Acrobot-v1"]
    for other in ("env: {env_id: CartPole-v1, origin: {observation: 8.0}}", "env: far"):
        another.write_text(other)  # whoever compares it with the run refuses it
        assert resume.overrides_of(RunRequest(str(another), resume=str(tmp_path))) == []


class Linear(torch.nn.Module):
    """Sums of two observations, of which the first is far."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, observation: Any, state: Any) -> Any:
        return self.layer(observation["at"] + observation["near"]), state


def test_what_is_exported_subtracts_it() -> None:
    inputs = {"observation/at": (2,), "observation/near": (2,)}
    module = Greedy(Linear(), lambda output: (output,), ["action"], inputs)
    module.subtract({"observation/at": (5_400_000.0, 0.0)})
    at = np.array([[FAR, 0.5], [FAR + 0.1, 0.5]])
    near = np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)
    own = module.network.layer(torch.tensor(at - [5_400_000.0, 0.0]).float() + torch.tensor(near))
    program = TorchProgram()
    act = program.load(program.trace(module, (2,), None).data)
    made = act({"observation/at": at, "observation/near": near})["action"]
    assert made == pytest.approx(own.detach().numpy(), abs=1e-6)
    assert abs(made[0] - made[1]).max() > 1e-3
    difference = check(as_source(module, "c"), "policy", "c", module, np.hstack([at, near]))
    assert difference is None or difference < 1e-5  # None: there is no compiler
