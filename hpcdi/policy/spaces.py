"""What an environment's spaces say about a policy's network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hpcdi.errors import Problem
from hpcdi.types import Spaces

SMALLEST_IMAGE = 36
"""Pixels that the convolutions need in height and width."""


def as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape; a number is that of a vector."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


def is_board(spaces: Spaces) -> bool:
    """Whether observations have three axes and are no picture: the planes of a board, say."""
    return (
        len(spaces.obs_shape) == 3
        and spaces.obs_dtype != "uint8"
        and max(spaces.obs_shape) < SMALLEST_IMAGE
    )


def network_shape(spaces: Spaces) -> tuple[int, ...]:
    """Shape of observations as a network is to take them: boards are vectors to it."""
    return (math.prod(spaces.obs_shape),) if is_board(spaces) else spaces.obs_shape


def observation_problems(given: int | Sequence[int] | None, spaces: Spaces) -> Iterator[Problem]:
    """What is wrong with a configured ``model.obs_shape``, or with the environment's observations.

    Args:
        given: the configured shape; None: to be taken from the environment.
        spaces: of the environment.
    """
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
