"""Compares exported source code with the policy that it is of."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdi.commands.exported import SOURCES, compiled, difference_of
from hpcdi.types import Array


def check(
    files: Mapping[str, str], name: str, language: str, module: object, observations: Array
) -> float | None:
    """Returns the largest difference of an action; None: there is no compiler.

    Arguments are those of `compiled` and `difference_of`.
    """
    with compiled(files, name, language, module) as act:
        if act is None:
            return None
        return difference_of(act, f"{name}{SOURCES[language]}", module, observations)
