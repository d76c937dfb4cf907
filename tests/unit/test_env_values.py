"""What environments return: seen as it is, or refused by name, whatever their kind and form."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes.env_managers import MODES, CountEnv, running, steps_of
from fakes.odd_values import COLUMN, FORMS, KINDS, RIGHT, WRONG, Single, Task, manager_of
from hpcdi.env.contract import Space, as_numbers, described, number_of, truth_of
from hpcdi.env.create import create_env_manager
from hpcdi.env.wrappers import Checked
from hpcdi.errors import EnvError, EnvValueError

pytestmark = pytest.mark.usefixtures("env_helpers")
# here and not there: child processes import what is there, and torch would take long
TENSOR = torch.tensor([200.0, 0.0], requires_grad=True)
RIGHT["a tensor"] = (spaces.Box(-np.inf, np.inf, (2,), np.float32), np.zeros(2, np.float32), TENSOR)
HERE = [kind for kind in KINDS if kind != "child"]


def spread(values: Any) -> list[Any]:
    """Every kind with every value, and every kind and every value with every form; by turns."""
    pairs = [(kind, value) for kind in HERE for value in values]
    return [
        pytest.param(kind, FORMS[(number + number // len(values)) % len(FORMS)], value)
        for number, (kind, value) in enumerate(pairs)
    ]


def played(kind: str, task: Task, steps: int = 4) -> Any:
    """Returns the manager after some steps, closed, and the last step."""
    with manager_of(kind, task) as envs:
        envs.launch()
        for _ in range(steps):
            step = envs.step({"action": np.zeros(envs.rows, np.int64)})
        observation = {name: column.copy() for name, column in envs.observation.items()}
        assert envs.failures == 0
        return observation, step


@pytest.mark.parametrize(("kind", "form", "wrong"), spread(WRONG))
def test_a_wrong_value_is_refused_at_once_by_name(kind: str, form: str, wrong: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EnvValueError) as caught:
            played(kind, Task(form, wrong))
    said = str(caught.value)
    assert f"{COLUMN[form]}" in said
    assert "the space says" in said
    assert "step 2 of its episode" in said
    assert ("np.asarray(..., np.uint8)" in said) or wrong != "whole floats"
    assert said.startswith(("environment 0", "the vector environment") if kind in MODES else "env")
    if kind in ("parallel", "turns"):
        assert "player " in said


@pytest.mark.parametrize("wrong", ["fractions", "beyond Discrete", "other order"])
@pytest.mark.slow
def test_a_child_process_says_the_same(wrong: str) -> None:
    with pytest.raises(EnvValueError, match=r"environment 0, step 2 .*observation/a") as caught:
        played("child", Task("dict", wrong))
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(("kind", "form", "right"), spread(RIGHT))
def test_what_means_the_same_is_taken(kind: str, form: str, right: str) -> None:
    observation, _ = played(kind, Task(form, right), steps=2)
    column = observation[COLUMN[form]][:2]  # of those who act next
    assert column.reshape(len(column), -1)[:, 0].tolist() == [200] * len(column)


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("form", FORMS)
def test_a_first_observation_too(kind: str, form: str) -> None:
    with (
        manager_of(kind, Task(form, "fractions", at=0)) as envs,
        pytest.raises(EnvValueError, match=r"at the beginning of an episode: .*the space says"),
    ):
        envs.launch()


def test_a_key_that_is_missing_is_named() -> None:
    space = Space.of_observations(spaces.Dict(a=spaces.Box(0, 1), b=spaces.Box(0, 1)))
    for value in ({"a": np.zeros(1)}, np.zeros(1), None):
        with pytest.raises(EnvValueError, match=r"observation/[ab]: is missing in"):
            space.put(space.zeros(1), 0, value)


class Known(Single):
    """A single environment by the names of its form and leaf."""

    def __init__(self, form: str, leaf: str, result: Any = None) -> None:
        super().__init__(Task(form, leaf, result=result))


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium's own checker
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("leaf", ["fractions", "beyond int8", "one number", "a list", "a column"])
def test_environments_that_gymnasium_steps_together_are_checked_before_it_casts(
    form: str, leaf: str
) -> None:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:Known", "vectorization": "sync",
        "kwargs": {"form": form, "leaf": leaf}, "collector_env_num": 2,
    }  # fmt: skip
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
        envs.launch()
        envs.step({"action": np.zeros(2, np.int64)})
        if leaf in WRONG:
            with pytest.raises(EnvValueError, match=rf"{COLUMN[form]}.*the space says"):
                envs.step({"action": np.zeros(2, np.int64)})
        else:
            envs.step({"action": np.zeros(2, np.int64)})
            assert envs.observation[COLUMN[form]][:, 0].tolist() == [200, 200]


# ------------------------------------------------------------------------------- rewards and ends


NUMBERS: dict[str, Any] = {
    "array": np.array([2.0]), "column": np.array([[2.0]]), "list": [2.0], "zero-d": np.array(2.0),
    "float32": np.float32(2), "int": 2, "int8": np.int8(2), "tensor": torch.tensor(2.0),
    "with a gradient": torch.tensor([2.0], requires_grad=True),
    "matrix": np.ones((1, 1)).view(np.matrix) * 2,
}  # fmt: skip
NO_NUMBERS: dict[str, Any] = {
    "text": "2.0", "None": None, "vector": np.array([2.0, -1.0]), "infinite": float("inf"),
    "too large": 1e39, "object": object(), "complex": 2j, "empty": [], "dict": {},
    "array of text": np.array(["2.0"]), "a long whole number": 10**400,
    "a time": np.timedelta64(2, "s"),
}  # fmt: skip
TRUTHS: dict[str, Any] = {
    "int": 1, "numpy": np.bool_(True), "array": np.array([True]), "list": [True], "float": 1.0,
    "int8": np.int8(1), "tensor": torch.tensor(True), "zero-d": np.array(1),
}  # fmt: skip
NO_TRUTHS: dict[str, Any] = {
    "text": "False", "None": None, "NaN": float("nan"), "two": np.array([True, False]),
    "a half": 0.5, "2": 2, "empty": [], "dict": {},
}  # fmt: skip


def end_of(kind: str, values: Any, name: str) -> str:
    """Which end is odd: by turns; old environments have but one."""
    is_cut = (HERE.index(kind) + list(values).index(name)) % 2 and kind != "old"
    return "truncated" if is_cut else "terminated"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("kind", HERE)
def test_what_means_one_number_is_a_reward(kind: str, name: str) -> None:
    _, step = played(kind, Task(result={"reward": NUMBERS[name]}), steps=2)
    assert step.reward[0] == (3.0 if kind == "turns" else 2.0)


@pytest.mark.parametrize("name", NO_NUMBERS)
@pytest.mark.parametrize("kind", HERE)
def test_what_is_no_number_is_refused_at_once(kind: str, name: str) -> None:
    with pytest.raises(EnvValueError, match="reward") as caught:
        played(kind, Task(result={"reward": NO_NUMBERS[name]}))
    assert "step 2 of its episode" in str(caught.value)


@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize("kind", HERE)
def test_what_means_one_truth_is_an_end(kind: str, name: str) -> None:
    key = end_of(kind, TRUTHS, name)
    _, step = played(kind, Task(result={key: TRUTHS[name]}, length=2), steps=2)
    assert step.ended.all()
    assert getattr(step, key).all()


@pytest.mark.parametrize("name", NO_TRUTHS)
@pytest.mark.parametrize("kind", HERE)
def test_what_is_no_truth_is_refused_at_once(kind: str, name: str) -> None:
    key = end_of(kind, NO_TRUTHS, name)
    word = "done" if kind == "old" else key
    with pytest.raises(EnvValueError, match=f"{word}.*must be") as caught:
        played(kind, Task(result={key: NO_TRUTHS[name]}))
    assert "step 2 of its episode" in str(caught.value)


@pytest.mark.parametrize("value", [np.ones((2, 1)), [1.0, 1.0], torch.ones(2, requires_grad=True)])
@pytest.mark.parametrize("kind", MODES)
def test_rewards_and_ends_of_a_vector_may_be_columns_lists_or_tensors(
    kind: str, value: Any
) -> None:
    with manager_of(kind, Task()) as envs:
        envs.launch()
        inner = envs._backend._env  # type: ignore[attr-defined]
        inner._many = lambda one: value if isinstance(one, float) else type(inner)._many(inner, one)
        step = envs.step({"action": np.zeros(2, np.int64)})
    assert step.reward.tolist() == [1.0, 1.0]


def test_a_masked_array_is_no_value() -> None:
    """Gymnasium's vector environments lose the mask; their environments are looked at before."""
    with pytest.raises(ValueError, match="masked"):
        as_numbers(np.ma.array([1.0, 2.0], mask=[1, 0]))
    with pytest.raises(EnvValueError, match="masked"):
        number_of(np.ma.masked)
    assert as_numbers(np.ma.array([1.0, 2.0])).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("info", [None, [1]])
def test_an_info_that_is_no_mapping_says_nothing(info: Any) -> None:
    class Env(CountEnv):
        def reset(self, **given: Any) -> Any:
            return super().reset(**given)[0], info

        def step(self, action: Any) -> Any:
            return (*super().step(action)[:4], info)

    for form, make in (("pool", lambda: Env(2)), ("next_step", lambda: Checked(Env(2), 0))):
        with running(form, [make] * 2) as envs:
            steps_of(envs, 4)
            assert envs.failures == 0


def test_what_a_value_is_called() -> None:
    assert described(np.zeros((3, 8), np.float32)) == "float32 [3, 8]"
    assert described("1.0") == "the text '1.0'"
    assert described([0.5]) == "float64 [1]"
    assert described({"a": 1}) == "a mapping of ['a']"
    assert number_of(1e39) == float("inf")
    assert not truth_of(0, "terminated")


# ------------------------------------------------------------------------------- not finite, bounds


@pytest.mark.parametrize(("kind", "form", "value"), spread([np.nan, np.inf, -np.inf, 1e300]))
def test_a_number_that_is_not_finite_fails_its_environment_by_name(
    kind: str, form: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(form)
    task.space, task.odd = spaces.Box(-np.inf, np.inf, (2,), np.float64), np.array([value, 0.0])
    with manager_of(kind, task) as envs, caplog.at_level(logging.WARNING, "hpcdi"):
        envs.launch()
        for _ in range(3):
            step = envs.step({"action": np.zeros(envs.rows, np.int64)})
            assert all(np.isfinite(column).all() for column in step.successor.values()) or (
                step.failed is not None
            )
        assert envs.failures > 0
    word = "NaN" if np.isnan(value) else "infinite"
    leaf = COLUMN[form].partition("/")[2]
    kind = f"an observation{f' ({leaf})' if leaf else ''} that is {word}"
    assert f"returned {kind}" in caplog.text
    assert "in step 2 of its episode" in caplog.text
    once = {str(getattr(record, "once", "")) for record in caplog.records}
    assert any(text.startswith(f"an environment failed ({kind}") for text in once)


@pytest.mark.parametrize(("dtype", "value"), [(np.float16, 7e4), (np.float32, 1e300)])
def test_a_number_that_its_dtype_has_not_is_said_to_be_beyond_that(
    dtype: Any, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task("bare")
    task.space, task.odd = spaces.Box(-np.inf, np.inf, (2,), dtype), np.array([value, 0.0])
    with manager_of("single", task) as envs, caplog.at_level(logging.WARNING, "hpcdi"):
        envs.launch()
        for _ in range(2):
            envs.step({"action": np.zeros(envs.rows, np.int64)})
    assert f"infinite, or beyond {np.dtype(dtype)} in step 2" in caplog.text


def test_numbers_beyond_a_box_are_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    task = Task("dict", at=0)
    task.space, task.odd = spaces.Box(0, 1, (2,)), np.array([50.0, 0.0], np.float32)
    with manager_of("single", task) as envs, caplog.at_level(logging.WARNING, "hpcdi"):
        envs.launch()
        assert envs.observation["observation/a"].tolist() == [[50.0, 0.0]] * 2
    assert "observation/a is from 0 to 50, and its space says from 0 to 1;" in caplog.text
    assert len(caplog.records) == 1


# ------------------------------------------------------------------------------ other than its API


@pytest.mark.parametrize(
    ("method", "result", "said"),
    [
        ("step", (np.zeros(2, np.float32), 1.0), "step() returned 2 values"),
        ("step", None, "step() returned None"),
        ("reset", None, "reset() returned None"),
        ("reset", np.zeros(2, np.float32), "reset() returned float32 [2]"),
    ],
)
@pytest.mark.parametrize("kind", ["single", *MODES])
def test_another_number_of_results(kind: str, method: str, result: Any, said: str) -> None:
    with manager_of(kind, Task()) as envs:
        envs.launch()
        backend: Any = envs._backend
        inner = backend._env if kind in MODES else backend.workers[0]._env
        setattr(inner, method, lambda *_args, **_kwargs: result)
        with pytest.raises(
            EnvError, match=said.replace("(", r"\(").replace(")", r"\)").replace("[", r"\[")
        ):
            envs.step({"action": np.zeros(2, np.int64)}) if method == "step" else envs.reset()


def test_large_float64_numbers_are_said_to_lose_digits(caplog: pytest.LogCaptureFixture) -> None:
    task = Task("dict", at=0)
    task.space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    task.odd = np.array([5_400_000.1, 0.0])
    with manager_of("single", task) as envs, caplog.at_level(logging.WARNING, "hpcdi"):
        envs.launch()
        envs.reset()
    assert (
        "observation/a is 5.4e+06, float64, and is stored as float32, in steps of 0.5"
        in caplog.text
    )
    assert len(caplog.records) == 1


def test_keys_with_slashes_are_those_of_groups() -> None:
    """As dm_control has them; the environment gets the keys that it has."""
    box = spaces.Box(-1, 1, (2,))
    acts = spaces.Dict({"arm/torque": box, "grip/close": spaces.Discrete(2)})
    space = Space.of_observations(spaces.Dict({"arm/at": box, "arm": spaces.Dict(speed=box)}))
    columns = space.zeros(1)
    space.put(columns, 0, {"arm/at": np.ones(2), "arm": {"speed": np.zeros(2)}})
    assert {name: column.tolist() for name, column in columns.items()} == {
        "observation/arm/at": [[1, 1]], "observation/arm/speed": [[0, 0]],
    }  # fmt: skip
    chosen = {"action/arm/torque": np.ones((1, 2), np.float32), "action/grip/close": np.array([1])}
    assert set(Space.of_actions(acts).value(chosen, 0)) == {"arm/torque", "grip/close"}


class WrongLate(CountEnv):
    """Number 1 returns another shape in the second step of its second episode."""

    made = 0

    def __init__(self) -> None:
        super().__init__(3)
        self._is_wrong, WrongLate.made = WrongLate.made == 1, WrongLate.made + 1

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        is_now = self._is_wrong and observation.tolist() == [2.0, 1.0]
        return (np.zeros(3, np.float32) if is_now else observation, *others)


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_the_environment_and_its_step_are_named(vectorization: str) -> None:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:WrongLate", "vectorization": vectorization,
        "collector_env_num": 3,
    }  # fmt: skip
    WrongLate.made = 0
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
        envs.launch()
        with pytest.raises(EnvValueError, match="environment 1, step 2 of its episode: observ"):
            steps_of(envs, 9)
