"""Filling a policy's settings from its environment's spaces."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcdi.errors import Problem
from hpcdi.types import Array, Spaces

SMALLEST_IMAGE = 36
"""Pixels that the convolutions need in height and width."""


def as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape; a number is that of a vector."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


def box_of(low: Sequence[float], high: Sequence[float]) -> tuple[Array, Array]:
    """Middle and half of the width of each component, float32: -1..1 is between the bounds."""
    bounds = np.array([low, high], dtype=np.float64)
    middle, half = bounds.mean(axis=0), (bounds[1] - bounds[0]) / 2
    return middle.astype(np.float32), half.astype(np.float32)


def is_board(spaces: Spaces) -> bool:
    """True if observations have three axes and are no picture: the planes of a board, say."""
    return (
        len(spaces.obs_shape) == 3
        and spaces.obs_dtype != "uint8"
        and max(spaces.obs_shape) < SMALLEST_IMAGE
    )


def network_shape(spaces: Spaces) -> tuple[int, ...]:
    """Shape of observations as a network is to take them: boards are vectors to it."""
    return (math.prod(spaces.obs_shape),) if is_board(spaces) else spaces.obs_shape


def fill_spaces(cfg: Any, spaces: Spaces, *, actions: Sequence[str]) -> tuple[Any, list[Problem]]:
    """Settings with empty shapes and bounds filled, and where given ones contradict the spaces.

    Args:
        cfg: a policy's settings; its section ``model`` has ``obs_shape, action_shape`` and, where
            actions may be continuous, ``action_space, action_low, action_high``.
        spaces: of the environment.
        actions: kinds that the policy can act in, of "discrete" and "continuous".
    """
    model = cfg.model
    problems = list(_observation_problems(model.obs_shape, spaces))
    kind = "continuous" if spaces.action_count is None else "discrete"
    if kind not in actions:
        said = f"{cfg.type} needs an environment with {' or '.join(actions)} actions"
        problems.append(Problem("type", said))
    shape = spaces.action_shape if spaces.action_count is None else spaces.action_count
    found = {
        "action_shape": shape, "action_space": kind,
        "action_low": spaces.action_low, "action_high": spaces.action_high,
    }  # fmt: skip
    found = {name: value for name, value in found.items() if hasattr(model, name)}
    if kind in actions:
        problems += _action_problems(model, found)
    filled = dataclasses.replace(model, obs_shape=network_shape(spaces), **found)
    return dataclasses.replace(cfg, model=filled), problems


def _action_problems(model: Any, found: dict[str, Any]) -> Iterator[Problem]:
    kind, shape = getattr(model, "action_space", None), model.action_shape
    if kind not in (None, found.get("action_space")):
        said = f"is {kind}, the environment's are {found['action_space']}"
        yield Problem("model.action_space", said)
    elif shape is not None and as_shape(shape) != as_shape(found["action_shape"]):
        said = f"is {shape}, the environment's is {found['action_shape']}"
        yield Problem("model.action_shape", said)
    for name in ("action_low", "action_high"):
        given = getattr(model, name, ())
        if given and given != found[name]:
            yield Problem(f"model.{name}", f"is {given}, the environment's is {found[name]}")


def _observation_problems(given: int | Sequence[int] | None, spaces: Spaces) -> Iterator[Problem]:
    shape = spaces.obs_shape
    if given is not None and as_shape(given) not in (shape, network_shape(spaces)):
        yield Problem("model.obs_shape", f"is {as_shape(given)}, the environment gives {shape}")
    if is_board(spaces):
        return
    if len(shape) == 3 and (spaces.obs_dtype != "uint8" or shape[0] > shape[2]):
        yield Problem(
            "model.obs_shape",
            "observations of three axes must be uint8 images [channels, height, width], "
            f"the environment gives {spaces.obs_dtype} {shape}; wrap it",
        )
