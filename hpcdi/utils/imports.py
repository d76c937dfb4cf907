"""Importing modules that a configuration names."""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterable
from typing import Any

from hpcdi.errors import ConfigError, Problem


def import_module(names: str | Iterable[object]) -> None:
    """Import a module, or each of several, for the registrations that they make.

    Raises:
        ConfigError: modules, or what they need in turn, are not installed here; all of them.
    """
    problems = []
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            problems.append(Problem("import_names", f"{name!r} is not the name of a module"))
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            problems.append(Problem("import_names", missing_module(name, error)))
    if problems:
        raise ConfigError(problems)


def missing_module(wanted: str, error: ModuleNotFoundError) -> str:
    """Say which module is missing, and what to type."""
    missing = error.name or wanted
    needed = "" if missing == wanted else f" (needed by {wanted!r})"
    return (
        f"there is no module {missing!r}{needed}; install it into this environment, "
        "or put its folder on PYTHONPATH"
    )


def lazy_module(name: str) -> Any:
    """A stand-in for a module that is imported at the first use of one of its attributes."""
    return _LazyModule(name)


class _LazyModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # found at once from now on
        return value
