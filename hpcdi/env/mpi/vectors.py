"""A row of a space's columns as a vector of float64, as it travels between ranks."""

from __future__ import annotations

import math
import zlib

import numpy as np

from hpcdi.comm.solver_protocol import Sizes
from hpcdi.env.base import EnvFacts
from hpcdi.env.contract import Space, leaves_of
from hpcdi.errors import EnvValueError
from hpcdi.types import Array, Columns

_WHOLE_BELOW = 2.0**53
"""float64 has all whole numbers below it."""


def size_of(space: Space) -> int:
    """Returns the numbers in a vector."""
    return sum(math.prod(field.shape) for field in space.fields)


def sizes_of(facts: EnvFacts) -> Sizes:
    """Returns what all ranks of a solver must agree to."""
    seen, acts = (
        Space.of_observations(facts.observation_space),
        Space.of_actions(facts.action_space),
    )
    return Sizes(size_of(seen), size_of(acts), _checksum(facts))


def _checksum(facts: EnvFacts) -> str:
    """Returns a checksum of gymnasium's spaces, with their bounds."""
    checksum = 0
    for root, space in (("observation", facts.observation_space), ("action", facts.action_space)):
        for leaf, path in leaves_of(root, space):
            text = repr((path, leaf.shape, leaf.dtype, leaf.counts, leaf.starts))
            for part in (text.encode(), np.array([leaf.low, leaf.high]).tobytes()):
                checksum = zlib.crc32(part, checksum)
    return f"{checksum:08x}"


def unrounded(space: Space) -> Columns:
    """Returns columns of one row whose numbers `vector_of` sends as they are: all float64."""
    return {name: column.astype(np.float64) for name, column in space.zeros(1).items()}


def vector_of(space: Space, columns: Columns, row: int) -> Array:
    """Returns a row as a vector [n]; discrete actions count from 0."""
    parts = [np.ravel(columns[field.name][row]) for field in space.fields]
    vector: Array = np.concatenate(parts).astype(np.float64)
    return vector


def put_vector(space: Space, columns: Columns, row: int, vector: Array) -> None:
    """Write a vector [n] to a row, as its space checks every environment's values.

    Raises:
        EnvValueError: it has another size, or values that the space does not have.
    """
    if vector.size != size_of(space):
        raise EnvValueError(
            f"the program returned {vector.size} numbers, and its space has {size_of(space)}"
        )
    at = 0
    for field in space.fields:
        end = at + math.prod(field.shape)
        part = vector[at:end].reshape(field.shape)
        if field.dtype.kind in "biu" and (part == np.rint(part)).all() and np.isfinite(part).all():
            if (most := np.abs(part).max(initial=0.0)) >= _WHOLE_BELOW:
                raise EnvValueError(
                    f"{field.name}: {most:.0f}: numbers travel as float64, which has not all whole "
                    "ones from 2**53 on: return smaller ones, differences say"
                )
            part = part.astype(np.int64)  # whole numbers, which travel as float64
        field.put(columns[field.name], row, part)
        at = end
