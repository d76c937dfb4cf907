"""`hpcdi export --to c`: source files, compiled and compared where a compiler is there."""

from __future__ import annotations

import contextlib
import ctypes
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from hpcdi.commands.export import ATOL, RTOL, SOURCES
from hpcdi.env.contract import as_dtype
from hpcdi.errors import LaunchError, PolicyFileError
from hpcdi.policy.source_code import name_from, why_no_name
from hpcdi.store.disk_full import or_refuse
from hpcdi.types import Array, Columns, Spaces

_COMPILERS = {"c": ("cc", "gcc", "clang"), "fortran": ("gfortran",)}


def name_of(output: str | None, title: str, language: str) -> tuple[Path, str]:
    """Returns folder and name of the files.

    Raises:
        LaunchError: the file that is named has another suffix, or a name that no language takes.
    """
    place = Path(output) if output is not None else Path()
    if output is None or place.is_dir():
        return place, name_from(title, language)
    if place.suffix != SOURCES[language]:
        raise LaunchError(f"-o {output}: the file's name must end in {SOURCES[language]}")
    if refusal := why_no_name(place.stem, language):
        raise LaunchError(f"-o {output}: {refusal}")
    return place.parent, place.stem


Act: TypeAlias = Callable[[Array], Array]
"""Observations, float64 [n, numbers] -> actions, float64 [n, numbers]."""


@contextlib.contextmanager
def compiled(
    files: Mapping[str, str], name: str, language: str, module: Any
) -> Iterator[Act | None]:
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
    size = _actions_of(module, np.zeros((1, _numbers_of(module)))).shape[1]
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


def difference_of(act: Act, source: str, module: object, observations: Array) -> float:
    """Returns the largest difference of an action from the policy.

    Args:
        act: what they compile to.
        source: name of the file, for messages.
        module: the policy.
        observations: [n, numbers].

    Raises:
        PolicyFileError: it is too large; or of an observation of NaN a number of the action is not.
    """
    own, made = _actions_of(module, observations), act(observations)
    difference = float(np.abs(made - own).max(initial=0.0))
    if not np.allclose(made, own, rtol=RTOL, atol=ATOL):
        why = f"was not written: its actions differ from the policy's by up to {difference:.3g}"
        raise PolicyFileError(source, why)
    (of_nothing,) = act(np.full((1, observations.shape[1]), np.nan))
    if not np.isnan(of_nothing).all():
        why = f"was not written: of an observation of NaN its action is {of_nothing.tolist()}"
        raise PolicyFileError(source, why)
    return difference


def as_program(act: Act, module: Any, spaces: Spaces) -> Callable[[Columns], Columns]:
    """Returns it as a program: inputs [batch, ...] by name -> actions, as the environment's."""
    leaves = {leaf.column("action"): leaf for leaf in spaces.action}
    parts = [leaves[name] for name in module.output_names if name in leaves]

    def run(given: Columns) -> Columns:
        flat = [given[name].reshape(len(given[name]), -1) for name in module.inputs]
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


def _numbers_of(module: Any) -> int:
    return sum(math.prod(shape) for shape in module.inputs.values())


def _actions_of(module: Any, observations: Array) -> Array:
    """Returns the policy's actions, float64 [n, numbers]."""
    given, at = [], 0
    for name, shape in module.inputs.items():
        size = int(np.prod(shape))
        part = observations[:, at : at + size].reshape(-1, *shape)
        number = torch.float64 if name in getattr(module, "far", {}) else torch.float32
        given.append(torch.tensor(part, dtype=number))
        at += size
    with torch.no_grad():
        outputs = module.eval()(*given)
    is_action = [n == "action" or n.startswith("action/") for n in module.output_names]
    parts = [
        out.reshape(len(observations), -1).double().numpy()
        for out, wanted in zip(outputs, is_action, strict=True)
        if wanted
    ]
    actions: Array = np.concatenate(parts, axis=1)
    return actions
