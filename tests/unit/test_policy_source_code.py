"""Policies as source code: compiled, they act as the policies do, to 1e-6."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fakes.compiled_source import check
from hpcdi.commands.exported import name_of
from hpcdi.errors import LaunchError, PolicyError, PolicyFileError
from hpcdi.policy.create import create_policy
from hpcdi.policy.source_code import as_source

CONTINUOUS = {"action_shape": 3, "action_space": "continuous"}
BOUNDS = {"action_low": [-2.0] * 3, "action_high": [1.0, 2.0, 3.0]}
POLICIES = {
    "dqn": {"action_shape": 4, "dueling": True},
    "sac": {"action_shape": 3, **BOUNDS},
    "ppo": {**CONTINUOUS, **BOUNDS},
}
LEVERS = {"name": "lever", "shape": (2,), "dtype": "int64", "counts": (3, 4)}
PUSH = {"name": "push", "shape": (1,), "low": (-1.0,), "high": (3.0,)}
HIDDEN = {"obs_shape": 5, "encoder_hidden_size_list": [16]}
PARTS = {
    "levers": {**HIDDEN, "action_space": "multi_discrete", "action_shape": 7,
               "action_leaves": [{**LEVERS, "name": ""}]},
    "mixed": {**HIDDEN, "action_space": "mixed", "action_shape": 8,
              "action_leaves": [LEVERS, PUSH]},
    "whole": {**HIDDEN, "action_space": "mixed", "action_shape": 2,
              "action_leaves": [PUSH, {**PUSH, "name": "turn", "dtype": "int64"}]},
}  # fmt: skip
HAS = {"c": shutil.which("cc"), "fortran": shutil.which("gfortran")}


def module_of(kind: str, **settings: Any) -> Any:
    model = {"obs_shape": 5, "encoder_hidden_size_list": [16, 16], **POLICIES[kind]}
    policy = create_policy({"type": kind, "model": model, **settings}, ["eval"])
    module = policy.eval_mode.get_attribute("export_module")
    module.inputs["observation"] = (5,)
    return module


@pytest.mark.parametrize(
    ("kind", "language", "settings"),
    [
        ("dqn", "c", {}), ("ppo", "c", {"normalize": {"observation": True}}),
        ("sac", "fortran", {}), ("ppo", "c", {"model": PARTS["levers"]}),
        ("ppo", "fortran", {"model": PARTS["mixed"]}), ("ppo", "c", {"model": PARTS["whole"]}),
    ],
)  # fmt: skip
def test_what_is_compiled_acts_as_the_policy(
    kind: str, language: str, settings: dict[str, Any]
) -> None:
    if HAS[language] is None:
        pytest.skip(f"NO COMPILER FOR {language}: its source code is not tested here")
    module = module_of(kind, **settings)
    files = as_source(module, language, "act_well")
    observations = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    difference = check(files, "act_well", language, module, observations)
    assert difference is not None
    assert difference <= 1e-6


class _Odd(torch.nn.Module):
    """Clamps that bound nothing, and figures of all numbers at once."""

    inputs: ClassVar = {"observation": (3,)}
    output_names = ("action",)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor]:
        infinite = float("inf")
        clamped = observation.maximum(torch.tensor([-infinite, -1.0, -infinite])).clamp(
            max=infinite
        )
        figures = [clamped.mean(), clamped.sum(), clamped.amax()]
        return (torch.cat([clamped, torch.stack(figures)[None]], 1),)


@pytest.mark.parametrize("language", ["c", "fortran"])
def test_infinite_bounds_and_figures_of_all_numbers_have_a_form(language: str) -> None:
    """`inf` and `inf_dp` did not compile; a mean without axes was a TypeError."""
    if HAS[language] is None:
        pytest.skip(f"NO COMPILER FOR {language}: its source code is not tested here")
    files = as_source(_Odd(), language, "act_well")
    observations = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    difference = check(files, "act_well", language, _Odd(), observations)
    assert difference is not None
    assert difference <= 1e-6
    low = [-float("inf"), -2.0, -float("inf")]
    bounds = {"action_low": low, "action_high": [float("inf"), 1.0, 2.0]}
    module = module_of("ppo", model={"obs_shape": 5, **CONTINUOUS, **bounds})
    files = as_source(module, language, "act_well")
    observations = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    assert check(files, "act_well", language, module, observations) is not None


class _Rounding(_Odd):
    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor]:
        return (observation.round(),)


@pytest.mark.parametrize("language", ["c", "fortran"])
def test_halves_are_rounded_as_by_the_policy(language: str) -> None:
    """Fortran's anint takes them away from zero."""
    if HAS[language] is None:
        pytest.skip(f"NO COMPILER FOR {language}: its source code is not tested here")
    observations = np.arange(-13, 14, dtype=np.float32).reshape(9, 3) / 4
    files = as_source(_Rounding(), language, "act_well")
    assert check(files, "act_well", language, _Rounding(), observations) == 0


class _Rows(_Odd):
    """A layer that several rows of numbers go through, as in a network of sets."""

    inputs: ClassVar = {"observation": (12,)}

    def __init__(self, *shape: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self._shape = shape
        self._each, self._all = torch.nn.Linear(3, 8), torch.nn.Linear(8, 2, bias=False)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor]:
        features = self._each(observation.view(self._shape)).relu()
        return (self._all(features.sum(-2).view(1, 8)),)


@pytest.mark.parametrize("language", ["c", "fortran"])
@pytest.mark.parametrize("shape", [(4, 3), (1, 4, 3)])
def test_a_layer_takes_several_rows(shape: tuple[int, ...], language: str) -> None:
    """Of one that was not compiled only the first row was looked at."""
    if HAS[language] is None:
        pytest.skip(f"NO COMPILER FOR {language}: its source code is not tested here")
    module = _Rows(*shape)
    observations = np.random.default_rng(0).normal(size=(1, 12)).astype(np.float32)
    files = as_source(module, language, "act_well")
    difference = check(files, "act_well", language, module, observations)
    assert difference is not None
    assert difference <= 1e-6


def test_arguments_without_a_form_are_refused() -> None:
    module = _Odd()
    for product in (lambda seen: seen.t() @ seen, lambda seen: torch.ones(2, 3) @ seen.t()):
        module.forward = lambda seen, product=product: (product(seen).sum(0, keepdim=True),)  # type: ignore[method-assign]
        with pytest.raises(PolicyError, match=r"multiplies computed matrices has no form"):
            as_source(module, "c")
    module.forward = lambda seen: (seen.mean(1, dtype=torch.float64)[:, None],)  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match=r"computes 'mean' with .*dtype=.* has no form"):
        as_source(module, "c")
    module.forward = lambda seen: (torch.where(seen > 0, seen, -seen),)  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match=r"computes 'gt' .*has no form"):
        as_source(module, "c")
    module.forward = lambda seen: (torch.cat([seen[:, :0].tanh(), seen], 1),)  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match=r"an array without numbers has no form"):
        as_source(module, "c")


def test_names_are_those_that_the_language_takes(tmp_path: Path) -> None:
    for language, suffix in (("c", ".c"), ("fortran", ".f90")):
        assert name_of(None, "2048_dqn", language)[1] == "policy_2048_dqn"
        assert name_of(str(tmp_path), "müller-ü", language) == (tmp_path, "m_ller__")
        for name in ("_a", "2048", "ü", "a b", "x" * 201):
            with pytest.raises(LaunchError, match=rf"-o .*{suffix}: .* names .* functions: "):
                name_of(f"{name}{suffix}", "run", language)
            with pytest.raises(PolicyError, match=" names "):
                as_source(module_of("dqn"), language, name)
    assert name_of("dp.c", "run", "c")[1] == "dp"
    for name in ("dp", "H3", "exp", "Observation", "merge", "nan"):
        with pytest.raises(LaunchError, match="has that name already: choose another one"):
            name_of(f"{name}.f90", "run", "fortran")
        assert name_of(None, name, "fortran")[1] == f"policy_{name}"
    long = name_of(None, "x" * 90, "fortran")[1]
    assert len(f"{long}_observations") == 63


class _Long(_Odd):
    """Many numbers, in many buffers, limited by some that take long to write."""

    inputs: ClassVar = {"observation": (1021,)}

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor]:
        for _ in range(99):
            observation = observation.neg()
        low, high = -1.2345678901234567e-05, 1.2345678901234567e-05
        return (observation.clamp(low, high) + torch.linspace(0, 1, 1021),)


@pytest.mark.parametrize("kind", ["sac", "long"])
def test_fortran_has_lines_and_statements_of_the_lengths_of_its_standard(
    kind: str, tmp_path: Path
) -> None:
    """132 characters, and 255 lines that continue a statement."""
    module: Any = _Long()
    if kind == "sac":
        model = {"obs_shape": 1021, "encoder_hidden_size_list": [4], "action_shape": 3}
        module = module_of("sac", model={**model, **BOUNDS})
        module.inputs["observation"] = (1021,)
    (text,) = as_source(module, "fortran", "x" * 50).values()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 132
    statements = "".join("&" if line.endswith("&") else "." for line in lines).split(".")
    assert 240 < max(map(len, statements)) <= 255
    if HAS["fortran"] is not None:
        (tmp_path / "long.f90").write_text(text)
        strict = ["-std=f2008", "-pedantic", "-Werror", "-fsyntax-only"]
        subprocess.run([str(HAS["fortran"]), *strict, "long.f90"], cwd=tmp_path, check=True)


def test_compilers_get_utf_8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdi.commands.exported.Path.write_text", _write_ascii)
    if HAS["c"] is not None:
        module = module_of("sac")
        files = as_source(module, "c", "well", "The policy of ü")
        assert check(files, "well", "c", module, np.ones((1, 5), np.float32)) is not None


def _write_ascii(self: Path, text: str, encoding: str = "ascii") -> int:
    return self.write_bytes(text.encode(encoding))


@pytest.mark.skipif(HAS["c"] is None, reason="NO C COMPILER: source code is not tested here")
def test_what_does_not_act_as_the_policy_is_not_written() -> None:
    files = {"wrong.c": "void wrong_act(const double *o, double *a) { a[0] = a[1] = a[2] = o[0]; }"}
    with pytest.raises(PolicyFileError, match="was not written: its actions differ"):
        check(files, "wrong", "c", module_of("sac"), np.ones((2, 5), np.float32))


def test_what_has_no_form_is_refused(tmp_path: Path) -> None:
    module = module_of("sac")
    module.inputs["state/hidden"] = (3,)
    with pytest.raises(PolicyError, match="a memory"):
        as_source(module, "c")
    discrete = [{"shape": (), "dtype": "int64", "counts": (7,)}]
    module = module_of("dqn", model={"obs_leaves": discrete, "action_shape": 4})
    module.inputs = {"observation": ()}
    with pytest.raises(PolicyError, match=r"discrete numbers .* export it to torch or ONNX"):
        as_source(module, "c")
    assert name_of(None, "my-run", "c") == (Path(), "my_run")
    assert name_of(str(tmp_path / "jets.f90"), "run", "fortran") == (tmp_path, "jets")


class _Least(_Odd):
    """All that drops a NaN in C's or Fortran's own functions."""

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor]:
        least = observation.clamp(-1.0, 1.0)
        kinds = [least, least.relu(), torch.nn.functional.elu(least), least.round()]
        kinds += [torch.minimum(least, observation), torch.maximum(observation, least)]
        numbers = torch.cat(kinds, 1)
        figures = [numbers.amax(), numbers.mean(), numbers.argmax().float()]
        return (torch.cat([numbers, torch.stack(figures)[None]], 1),)


@pytest.mark.parametrize("language", ["c", "fortran"])
def test_of_no_number_nothing_is_made(tmp_path: Path, language: str) -> None:
    if HAS[language] is None:
        pytest.skip(f"NO COMPILER FOR {language}: its source code is not tested here")
    for name, text in as_source(_Least(), language, "least").items():
        (tmp_path / name).write_text(text)
    (source,) = (path for path in tmp_path.iterdir() if path.suffix != ".h")
    built = [str(HAS[language]), "-O2", "-shared", "-fPIC", source.name, "-o", "least.so", "-lm"]
    subprocess.run(built, cwd=tmp_path, check=True)
    symbol = "least_act" if language == "c" else "__least_MOD_least_act"
    act, action = getattr(ctypes.CDLL(str(tmp_path / "least.so")), symbol), np.zeros(21)
    seen = np.array([0.25, -2.0, 3.0])
    act(seen.ctypes, action.ctypes)
    (own,) = _Least()(torch.tensor(seen[None], dtype=torch.float32))
    np.testing.assert_allclose(action, own[0].numpy(), rtol=1e-6)
    for place in range(3):
        spoilt = seen.copy()
        spoilt[place] = np.nan
        act(spoilt.ctypes, action.ctypes)
        expected = [*[number == place for _ in range(6) for number in range(3)], *[True] * 3]
        assert np.isnan(action).tolist() == expected
