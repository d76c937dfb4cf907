"""`hpcdi export --to c`: source files, compiled and compared where a compiler is there."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcdi.commands.export import ATOL, RTOL, SOURCES
from hpcdi.errors import LaunchError, PolicyFileError
from hpcdi.policy.source_code import name_from, why_no_name
from hpcdi.store.disk_full import or_refuse
from hpcdi.types import Array

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


def check(
    files: Mapping[str, str], name: str, language: str, module: object, observations: Array
) -> float | None:
    """Returns the largest difference of an action from the policy; None: there is no compiler.

    Args:
        files: name -> text.
        name: of the function, without ``_act``.
        language: of the files.
        module: the policy, see `hpcdi.policy.networks.Greedy`.
        observations: [n, numbers].

    Raises:
        PolicyFileError: they do not compile, or it is too large.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS[language])), None)
    if compiler is None:
        return None
    source = next(file for file in files if file.endswith(SOURCES[language]))
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
        act = getattr(ctypes.CDLL(f"{folder}/policy.so"), symbol)
        own = _actions_of(module, observations)
        made = np.zeros_like(own)
        for row, observation in enumerate(observations.astype(np.float64)):
            act(observation.ctypes, made[row].ctypes)
    difference = float(np.abs(made - own).max(initial=0.0))
    if not np.allclose(made, own, rtol=RTOL, atol=ATOL):
        why = f"was not written: its actions differ from the policy's by up to {difference:.3g}"
        raise PolicyFileError(source, why)
    return difference


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
