"""What environments are made with: numbers and folders of their own, the values of a schedule.

Numbers and folders are unique in a run: for ports, licences, displays, files. While an environment
is made `ENV_INDEX` has its number, and in its keyword arguments ``{index}`` and ``{index + 5005}``
stand for it; `ENV_FOLDER` and ``{folder}`` are its folder, where each has one. Collectors count on
over ranks; evaluations have numbers of their own.

A schedule (``env.schedule``) changes keyword arguments, or attributes that an environment has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import Any

from hpcdi.config.schedule import FIGURE, KWARGS, Scheduled, Value
from hpcdi.errors import ConfigError, EnvValueError, Problem
from hpcdi.utils.variables import variables_set

ENV_INDEX = "HPCDI_ENV_INDEX"
"""Environment variable with the number; in a child process it stays."""
ENV_FOLDER = "HPCDI_ENV_FOLDER"
"""Environment variable with the folder; a process of the environment's own is also in it."""
OWN_PROCESS: list[int] = []
"""The number of this process, where that is an environment's own: its present folder, too."""
_FOLDER = "{folder}"
_INDEX = re.compile(r"\{\s*index\s*(?:\+\s*(\d+)\s*)?\}")
_INSIDE = ("env", "aec_env", "par_env", "_env", "battle")
"""Attributes by which wrappers hold what they wrap; others say `unwrapped` alone."""


# ------------------------------------------------------------------------------ numbers and folders


def make_numbered(
    make: Callable[..., Any],
    index: int,
    folder: str = "",
    *,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Returns what `make` returns, made as the environment of that number.

    Args:
        make: makes it.
        index: the number.
        folder: in which a folder of its own is made, named by the number; empty: it has none.
        kwargs: keyword arguments that take the place of configured ones; None: there are none.
    """
    make = partial(make, kwargs) if kwargs else make
    variables = {ENV_INDEX: str(index)}
    if folder:
        numbered_folder = Path(folder).absolute() / f"{index:06d}"
        numbered_folder.mkdir(parents=True, exist_ok=True)
        variables[ENV_FOLDER] = str(numbered_folder)
    if OWN_PROCESS:  # it stays so
        os.environ.update(variables)
        if folder:
            os.chdir(variables[ENV_FOLDER])
        return make()
    with variables_set(variables):
        return make()


def numbered(value: object) -> Any:
    """Returns keyword arguments, or parts of them, with the number of the environment made now.

    A text that is nothing else becomes a whole number.

    Raises:
        ConfigError: a text has ``{folder}``, and the environment has none.
    """
    if isinstance(value, Mapping):
        return {key: numbered(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [numbered(part) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    if not isinstance(value, str):
        return value
    if _FOLDER in value:
        if not (folder := os.environ.get(ENV_FOLDER)):
            message = f"is empty, and an argument of the environment is {value!r}: name a folder"
            raise ConfigError([Problem("env.manager.folder", message)])
        value = value.replace(_FOLDER, folder)
    if "index" not in value:
        return value
    index = int(os.environ.get(ENV_INDEX, "0"))

    def number(match: re.Match[str]) -> str:
        return str(index + int(match[1] or 0))

    text = _INDEX.sub(number, value)
    return int(text) if _INDEX.fullmatch(value.strip()) else text


def is_numbered(value: object) -> bool:
    """Decides whether keyword arguments have the number, or the folder, of an environment."""
    if isinstance(value, Mapping):
        return any(map(is_numbered, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_numbered, value))
    return isinstance(value, str) and (_FOLDER in value or _INDEX.search(value) is not None)


# ------------------------------------------------------------------------------------- the schedule


def arguments_in(values: Scheduled) -> dict[str, Value]:
    """Returns the keyword arguments among the values of a schedule."""
    return {
        name.removeprefix(KWARGS): value
        for name, (value, _) in values.items()
        if name.startswith(KWARGS)
    }


def figures_of(values: Scheduled) -> dict[str, float]:
    """Returns the numbers by which an episode says what it was played with."""
    return {f"{FIGURE}{name}": number for name, (_, number) in values.items()}


def set_attributes(env: object, values: Scheduled) -> None:
    """Set the attributes among the values of a schedule.

    Raises:
        EnvValueError: the environment has no such attribute, or refuses the value.
    """
    for name, (value, _) in values.items():
        if not name.startswith(KWARGS):
            owner, attribute = owner_of(env, name)
            try:
                setattr(owner, attribute, value)
            except Exception as error:  # a property refuses as it likes
                raise EnvValueError(
                    f"env.schedule.{name}: {value!r} is refused: {type(error).__name__}: {error}"
                ) from error


def owner_of(env: object, name: str) -> tuple[Any, str]:
    """Returns the innermost object that has an attribute, and the attribute's name.

    Args:
        env: perhaps in wrappers.
        name: may lead over other objects: ``model.opt.gravity``.

    Raises:
        EnvValueError: nothing has it.
    """
    *path, attribute = name.split(".")
    for each in reversed(list(_layers(env))):
        owner = reduce(lambda at, part: getattr(at, part, None), path, each)
        if owner is not None and hasattr(owner, attribute):
            return owner, attribute
    raise EnvValueError(
        f"env.schedule.{name}: the environment has no attribute {name!r}; set it in its "
        f"constructor, or name a keyword argument: {KWARGS}{name}"
    )


def _layers(env: object) -> Iterator[Any]:
    """Yields an environment, and what it wraps, from outside."""
    known: list[Any] = []
    while env is not None and not any(env is other for other in known):
        known.append(env)
        yield env
        held = getattr(env, "__dict__", {})
        inner = next((held[name] for name in _INSIDE if held.get(name) is not None), None)
        env = getattr(env, "unwrapped", None) if inner is None else inner
