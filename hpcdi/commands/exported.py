"""What `hpcdi export` has written, acting beside the policy: programs, and compiled source code."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from hpcdi.commands.eval import played
from hpcdi.commands.saved_policy import LoadedPolicy
from hpcdi.env.contract import as_dtype
from hpcdi.errors import LaunchError, PolicyFileError
from hpcdi.policy.base import ColumnarActor, TrainColumns
from hpcdi.policy.programs import Act
from hpcdi.policy.source_code import name_from, why_no_name
from hpcdi.store.disk_full import or_refuse
from hpcdi.types import ACTION_MASK, Array, Columns, Settings, Spaces
from hpcdi.utils.nested import column_rows

SOURCES = {"c": ".c", "fortran": ".f90"}
"""Language -> suffix of its files."""
RTOL, ATOL = 1e-4, 1e-5
"""The policy computes in float32, a program by other kernels or in double precision."""
FlatAct: TypeAlias = Callable[[Array], Array]
"""Observations, float64 [n, numbers] -> actions, float64 [n, numbers]."""
_COMPILERS = {"c": ("cc", "gcc", "clang"), "fortran": ("gfortran",)}


class ProgramActor:
    """Acts by a program, and carries its memory from step to step.

    Args:
        act: the program, name -> [batch, ...] to name -> [batch, ...].
        first_state: makes the inputs ``state/<name>`` at the start of episodes, of a number of
            rows.
        inputs: makes its inputs of an actor's observation.
        spaces: of the environment.
        batch: observations that it takes at a time; None: any number.
    """

    def __init__(
        self,
        act: Act,
        first_state: Callable[[int], Columns],
        inputs: Callable[[Columns], Columns],
        spaces: Spaces,
        batch: int | None,
    ) -> None:
        self._act, self._first, self._inputs, self._batch = act, first_state, inputs, batch
        self._starts = starts_of(spaces)
        self._state: dict[str, Array] = {}

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """See `Actor.act`."""
        count = column_rows(observation)
        rows = np.arange(count) if rows is None else np.asarray(rows)
        self._grow(int(rows.max(initial=-1)) + 1)
        inputs = {**self._inputs(observation), **{n: s[rows] for n, s in self._state.items()}}
        size = self._batch or count
        parts = [self._of(inputs, slice(at, at + size), size) for at in range(0, count, size)]
        made = {name: np.concatenate([part[name] for part in parts])[:count] for name in parts[0]}
        for name, state in self._state.items():
            state[rows] = made[f"next_{name}"]
        return {name: made[name] - start for name, start in self._starts.items()}

    def _of(self, inputs: Columns, some: slice, size: int) -> Mapping[str, Array]:
        """Returns what the program makes of some rows, filled up to its size by the first one."""
        part = {name: column[some] for name, column in inputs.items()}
        lack = size - column_rows(part)
        filler = {name: np.repeat(column[:1], lack, axis=0) for name, column in part.items()}
        made: Mapping[str, Array] = self._act(
            {name: np.concatenate([column, filler[name]]) for name, column in part.items()}
        )
        return made

    def reset(self, rows: Sequence[int] | Array | None = None) -> None:
        """New episodes begin."""
        for name, state in self._state.items():
            chosen = np.arange(len(state)) if rows is None else np.asarray(rows)
            chosen = chosen[chosen < len(state)].astype(np.int64)
            state[chosen] = self._first(len(chosen))[name]

    def train_columns(
        self,
        transitions: Mapping[str, Array],  # noqa: ARG002
        item_len: Array,  # noqa: ARG002
        last_observation: Columns,  # noqa: ARG002
    ) -> TrainColumns:
        """Nothing: it does not collect."""
        return TrainColumns({})

    def _grow(self, count: int) -> None:
        held = len(next(iter(self._state.values()))) if self._state else 0
        if count > held:
            more = self._first(count - held)
            self._state = {
                n: np.concatenate([self._state[n], s]) if held else s for n, s in more.items()
            }


def returns_of(
    loaded: LoadedPolicy, actor: ColumnarActor, episodes: int
) -> tuple[list[float], list[float]]:
    """Returns the policy's returns and the program's, of the same seeds."""
    by_program = dataclasses.replace(loaded, stand_in=actor)
    return played(loaded, episodes).returns, played(by_program, episodes).returns


def starts_of(spaces: Spaces) -> dict[str, Any]:
    """Returns for each part of an action what the environment counts it from."""
    return {
        leaf.column("action"): np.array(leaf.starts, np.int64).reshape(leaf.shape)
        if leaf.starts
        else np.zeros((), leaf.dtype)
        for leaf in spaces.action
    }


def mask_of(observation: Columns) -> Columns:
    """Returns the program's mask; empty where there is none."""
    mask = observation.get(ACTION_MASK)
    return {} if mask is None else {ACTION_MASK: np.asarray(mask, bool)}


# ------------------------------------------------------------------------------------- source code


def name_of(output: str | None, title: str, language: str) -> tuple[Path, str]:
    """Returns folder and name of the files.

    Raises:
        LaunchError: the file that is named has a name that no language takes.
    """
    place = Path(output) if output is not None else Path()
    if output is None or place.is_dir():
        return place, name_from(title, language)
    if refusal := why_no_name(place.stem, language):
        raise LaunchError(f"-o {output}: {refusal}")
    return place.parent, place.stem


@contextlib.contextmanager
def compiled(
    files: Mapping[str, str], name: str, language: str, module: Any
) -> Iterator[FlatAct | None]:
    """Yields how they act, as long as their library is there; None: there is no compiler.

    Args:
        files: name -> text.
        name: of the function, without ``_act``.
        language: of the files.
        module: the policy, see `hpcdi.policy.networks.Greedy`.

    Raises:
        PolicyFileError: they do not compile.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS[language])), None)
    if compiler is None:
        yield None
        return
    source = next(file for file in files if file.endswith(SOURCES[language]))
    size = _actions_of(module, np.zeros((1, sum(map(math.prod, module.inputs.values()))))).shape[1]
    with tempfile.TemporaryDirectory() as folder, or_refuse(folder):
        for file, text in files.items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        built = subprocess.run(  # noqa: S603 (our own command line)
            [compiler, "-O2", "-shared", "-fPIC", source, "-o", "policy.so", "-lm"], cwd=folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if built.returncode:
            raise PolicyFileError(source, f"was not written: {compiler} says\n{built.stderr}")
        symbol = f"{name}_act" if language == "c" else f"__{name.lower()}_MOD_{name.lower()}_act"
        function = getattr(ctypes.CDLL(f"{folder}/policy.so"), symbol)

        def act(observations: Array) -> Array:
            made = np.zeros((len(observations), size))
            for row, observation in enumerate(np.ascontiguousarray(observations, np.float64)):
                function(observation.ctypes, made[row].ctypes)
            return made

        yield act


def difference_of(act: FlatAct, source: str, module: object, observations: Array) -> float:
    """Returns the largest difference of an action from the policy.

    Args:
        act: what they compile to.
        source: name of the file, for messages.
        module: the policy.
        observations: [n, numbers].

    Raises:
        PolicyFileError: it is too large; or of an observation of NaN a number of the action is not.
    """
    expected, acted = _actions_of(module, observations), act(observations)
    difference = float(np.abs(acted - expected).max(initial=0.0))
    if not np.allclose(acted, expected, rtol=RTOL, atol=ATOL):
        why = f"was not written: its actions differ from the policy's by up to {difference:.3g}"
        raise PolicyFileError(source, why)
    (of_nothing,) = act(np.full((1, observations.shape[1]), np.nan))
    if not np.isnan(of_nothing).all():
        why = f"was not written: of an observation of NaN its action is {of_nothing.tolist()}"
        raise PolicyFileError(source, why)
    return difference


def as_program(act: FlatAct, module: Any, spaces: Spaces) -> Act:
    """Returns it as a program: inputs [batch, ...] by name -> actions, as the environment's."""
    leaves = {leaf.column("action"): leaf for leaf in spaces.action}
    parts = [leaves[name] for name in module.output_names if name in leaves]

    def run(inputs: Mapping[str, Array]) -> Columns:
        flat = [inputs[name].reshape(len(inputs[name]), -1) for name in module.inputs]
        made, actions, at = act(np.concatenate(flat, axis=1)), dict[str, Array](), 0
        for leaf in parts:
            size = math.prod(leaf.shape)
            column = made[:, at : at + size].reshape(len(made), *leaf.shape)
            dtype = np.dtype(np.int64 if leaf.counts else leaf.dtype)
            starts = np.reshape(leaf.starts, leaf.shape) if leaf.starts else 0
            actions[leaf.column("action")] = as_dtype(column, dtype) + starts
            at += size
        return actions

    return run


def _actions_of(module: Any, observations: Array) -> Array:
    """Returns the policy's actions, float64 [n, numbers]."""
    inputs, at = [], 0
    for name, shape in module.inputs.items():
        size = int(np.prod(shape))
        part = observations[:, at : at + size].reshape(-1, *shape)
        number = torch.float64 if name in getattr(module, "far", {}) else torch.float32
        inputs.append(torch.tensor(part, dtype=number))
        at += size
    with torch.no_grad():
        outputs = module.eval()(*inputs)
    is_action = [n == "action" or n.startswith("action/") for n in module.output_names]
    parts = [
        out.reshape(len(observations), -1).double().numpy()
        for out, wanted in zip(outputs, is_action, strict=True)
        if wanted
    ]
    actions: Array = np.concatenate(parts, axis=1)
    return actions
