"""What a schedule (``env.schedule``) changes of an environment: its attributes and arguments."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from hpcdi.config.schedule import FIGURE, KWARGS, Scheduled, Value
from hpcdi.errors import EnvValueError

_INSIDE = ("env", "aec_env", "par_env", "_env", "battle")
"""Attributes by which wrappers hold what they wrap; others say `unwrapped` alone."""


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
        owner = functools.reduce(lambda at, part: getattr(at, part, None), path, each)
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
