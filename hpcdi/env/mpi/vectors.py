"""Values of gymnasium's spaces as vectors of float64, as they travel between ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from hpcdi.errors import EnvError
from hpcdi.types import Array


class Vectors:
    """How values of a space are vectors: its arrays one after the other, discrete ones from 0.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these.

    Attributes:
        size: numbers in a vector.

    Raises:
        EnvError: a part of it is something else.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._space = space
        self._parts = list(_parts(space))
        self.size = sum(map(_size, self._parts))

    def flat(self, value: Any) -> Array:
        """Returns the vector of a value, float64 [size].

        Raises:
            EnvError: the space has other values.
        """
        found = list(_values(self._space, value))
        arrays = [
            np.ravel(np.asarray(one, np.float64) - _start(part))
            for part, one in zip(self._parts, found, strict=True)
        ]
        made = np.concatenate(arrays)
        if made.size != self.size:
            raise EnvError(
                f"a value has {made.size} numbers, and its space, {self._space}, {self.size}"
            )
        return made

    def value(self, vector: Array) -> Any:
        """Returns the value of a vector [size]."""
        at, made = 0, []
        for part in self._parts:
            end = at + _size(part)
            array = vector[at:end].reshape(part.shape or ()) + _start(part)
            whole = part.dtype is not None and np.dtype(part.dtype).kind in "iub"
            cast = (np.rint(array) if whole else array).astype(part.dtype)
            made.append(int(cast) if isinstance(part, spaces.Discrete) else cast)
            at = end
        return _nested(self._space, iter(made))


def _children(space: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    return None


def _parts(space: Any) -> Iterator[Any]:
    children = _children(space)
    if children is not None:
        for _, child in children:
            yield from _parts(child)
    elif isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        yield space
    else:
        raise EnvError(f"a solver's space has a part {space}, which is no array of numbers")


def _values(space: Any, value: Any) -> Iterator[Any]:
    children = _children(space)
    if children is None:
        yield value
        return
    for key, child in children:
        yield from _values(child, value[key])


def _nested(space: Any, values: Iterator[Any]) -> Any:
    children = _children(space)
    if children is None:
        return next(values)
    made = {key: _nested(child, values) for key, child in children}
    return tuple(made.values()) if isinstance(space, spaces.Tuple) else made


def _size(part: Any) -> int:
    return math.prod(part.shape or ())


def _start(part: Any) -> Any:
    """The first value of a discrete space."""
    return getattr(part, "start", 0)
