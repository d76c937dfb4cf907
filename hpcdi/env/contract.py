"""What an environment hands over, and what it takes: its nested values as rows of flat columns.

Nobody else converts, whatever kind an environment is of: a value goes into its row by `Space.put`
and comes back by `Space.value`, a step's results go by `Results.put`. A column is [rows, ...]::

    Box                                          ``observation``
    Box with a mask                              ``observation``, ``action_mask``
    Dict(position=Box, camera=Box) with a mask   ``observation/position``, ``observation/camera``,
                                                 ``action_mask``

Spaces are Box, Discrete (from any start), MultiDiscrete, MultiBinary, and Dict and Tuple of these,
nested. An observation space with the key ``action_mask`` has masks of legal actions, as PettingZoo
has them: one entry for each value of each discrete component of an action, one component after the
other. Policies count discrete actions from 0; environments are given their own values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as of_gymnasium

from hpcdi.errors import EnvError
from hpcdi.types import ACTION_MASK, Array, Columns, Leaf, Spaces

Path = tuple[Any, ...]
At = int | slice
"""One row, or several."""


def children_of(space: Any) -> list[tuple[Any, Any]] | None:
    """Returns keys and spaces in a Dict or Tuple; None: it is neither."""
    if isinstance(space, of_gymnasium.Dict):
        return list(space.spaces.items())
    if isinstance(space, of_gymnasium.Tuple):
        return list(enumerate(space.spaces))
    return None


def leaves_of(root: str, space: Any, path: Path = ()) -> Iterator[tuple[Leaf, Path]]:
    """Yields the arrays of a space, and the keys that lead to each.

    Args:
        root: "observation" or "action".
        space: gymnasium's.
        path: keys that lead to it.

    Raises:
        EnvError: a part of it is no array of numbers, or its key contains '/'.
    """
    children = children_of(space)
    if children is not None:
        for key, child in children:
            if "/" in str(key):
                raise EnvError(f"a key of a Dict space contains '/': {key!r}; rename it")
            yield from leaves_of(root, child, (*path, key))
        return
    yield _leaf(root, space, "/".join(map(str, path))), path


def _leaf(root: str, space: Any, name: str) -> Leaf:
    if isinstance(space, of_gymnasium.Box):
        low, high = (tuple(map(float, np.ravel(limit))) for limit in (space.low, space.high))
        return Leaf(name, space.shape, str(np.dtype(space.dtype)), low=low, high=high)
    if isinstance(space, of_gymnasium.Discrete):
        counts, starts = [int(space.n)], [int(space.start)]
    elif isinstance(space, of_gymnasium.MultiDiscrete):
        counts, starts = np.ravel(space.nvec).tolist(), np.ravel(space.start).tolist()
    elif isinstance(space, of_gymnasium.MultiBinary):
        counts, starts = [2] * math.prod(space.shape), []
    else:
        raise EnvError(
            f"{root}s {'have a part ' + name if name else 'are'} {space}; hpcdi takes Box, "
            "Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these: wrap the "
            "environment, or leave a part out, e.g. by env.wrappers: [{type: FilterObservation, "
            "filter_keys: [...]}]"
        )
    kept = tuple(starts) if any(starts) else ()
    return Leaf(name, space.shape or (), str(np.dtype(space.dtype)), tuple(counts), kept)


def split_mask(space: Any) -> tuple[Any, Any]:
    """Returns an observation space without its mask, and the mask's space or None.

    Where the key ``observation`` alone is left, that is the observation.
    """
    if not isinstance(space, of_gymnasium.Dict):
        return space, None
    others = {key: child for key, child in space.spaces.items() if key != ACTION_MASK}
    mask = space.spaces.get(ACTION_MASK)
    if list(others) == ["observation"]:
        return others["observation"], mask
    return (space if mask is None else of_gymnasium.Dict(others)), mask


def read_spaces(observation: Any, action: Any) -> Spaces:
    """Returns the arrays of gymnasium's spaces.

    Raises:
        EnvError: one of them is of another kind, or the mask has a wrong length.
    """
    seen, acts = Space.of_observations(observation), Space.of_actions(action)
    wanted = sum(sum(leaf.counts) for leaf in acts.leaves)
    if seen.mask not in (0, wanted):
        raise EnvError(
            f"its masks of actions have {seen.mask} entries, and its actions, {action}, need "
            f"{wanted}: one for each value of each discrete component"
        )
    return Spaces(seen.leaves, acts.leaves, is_masked=seen.mask > 0)


def stored_dtype(dtype: Any) -> str:
    """Returns the dtype in which observations are stored: float64 becomes float32, others stay."""
    return "float32" if np.dtype(dtype) == np.float64 else str(np.dtype(dtype))


@dataclass(frozen=True)
class Field:
    """One column of a space.

    Attributes:
        name: of the column.
        path: keys that lead to its value in the environment's.
        shape, dtype: of a row.
        start: the first of a discrete action's values in the environment; None: 0.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: Array | None = None

    def value(self, columns: Columns, at: At, from_zero: bool) -> Any:
        """Returns a copy of its part of a row, or of several; see `Space.value`."""
        value = columns[self.name][at]
        if self.start is not None and not from_zero:
            return value + self.start
        return value.copy() if value.ndim else value


class Space:
    """How values of one of gymnasium's spaces lie in the rows of columns.

    Attributes:
        leaves: the arrays.
        mask: entries of the mask of legal actions; 0: there is none.
        fields: the columns.
    """

    def __init__(self, root: str, space: Any, mask: Any = None, prefix: Path = ()) -> None:
        found = list(leaves_of(root, space))
        is_seen = root == "observation"
        self.leaves = tuple(_as_stored(leaf) if is_seen else leaf for leaf, _ in found)
        self.mask = 0 if mask is None else math.prod(mask.shape)
        self.fields = [
            Field(
                leaf.column(root), (*prefix, *path), leaf.shape, np.dtype(leaf.dtype),
                None if is_seen or not leaf.starts else np.reshape(leaf.starts, leaf.shape),
            )
            for leaf, (_, path) in zip(self.leaves, found, strict=True)
        ]  # fmt: skip
        if self.mask:
            self.fields.append(Field(ACTION_MASK, (ACTION_MASK,), (self.mask,), np.dtype(bool)))
        self._by_path = {field.path: field for field in self.fields}
        self._has_starts = any(field.start is not None for field in self.fields)
        self._space = space
        self._only = self.fields[0] if len(found) == 1 and not self.fields[0].path else None
        """The one column, where a value is one array."""
        self._dtype, self._shape = None, None  # of the last array that fitted there

    @classmethod
    def of_observations(cls, space: Any) -> Space:
        """Returns that of observations.

        Raises:
            EnvError: they are no arrays.
        """
        inner, mask = split_mask(space)
        is_inside = (
            isinstance(space, of_gymnasium.Dict) and space.spaces.get("observation") is inner
        )
        made = cls("observation", inner, mask, ("observation",) if is_inside else ())
        made._space = space
        return made

    @classmethod
    def of_actions(cls, space: Any) -> Space:
        """Returns that of actions.

        Raises:
            EnvError: they are no arrays.
        """
        return cls("action", space)

    def zeros(self, rows: int) -> Columns:
        """Returns new columns with so many rows."""
        return {field.name: np.zeros((rows, *field.shape), field.dtype) for field in self.fields}

    # ---- into rows

    def put(self, columns: Columns, at: At, value: Any) -> None:
        """Write an environment's value to its row; or those of several, leaf by leaf, to theirs.

        Nothing of it is kept. Actions are written as they are: policies count from 0.

        Args:
            columns: of this space, and perhaps others.
            at: the row, or rows.
            value: as the environment has it; of several rows each leaf is [rows, ...].

        Raises:
            EnvError: it is not as the space says.
        """
        if self._only is not None:
            column = columns[self._only.name]
            if getattr(value, "dtype", column) is not self._dtype or value.shape != self._shape:
                self._check(column[at], value)
                self._dtype = getattr(value, "dtype", None)
                self._shape = getattr(value, "shape", None)
            column[at] = value
            return
        for field in self.fields:
            column = columns[field.name]
            given = pick(value, field.path)
            column[at] = given if isinstance(at, slice) else np.reshape(given, field.shape)

    def _check(self, place: Any, value: Any) -> None:
        if np.shape(value) != np.shape(place) or _loses(value, place.dtype):
            raise EnvError(other_than_space(value, np.shape(place), place.dtype))

    # ---- and back

    def value(self, columns: Columns, at: At, *, from_zero: bool = False) -> Any:
        """Returns what the environment takes, or has returned: copies of its row, or rows.

        Args:
            columns: of this space, and perhaps others.
            at: the row, or rows.
            from_zero: leave discrete actions counted from 0.
        """
        if self._only is not None:
            return self._only.value(columns, at, from_zero)
        return _built(
            self._space, (), lambda path: self._by_path[path].value(columns, at, from_zero)
        )

    def from_zero(self, value: Any) -> Any:
        """Returns an environment's action as policies have it: discrete parts from 0."""
        return self._moved(value, -1)

    def from_start(self, value: Any) -> Any:
        """Returns a policy's action as the environment has it: see `from_zero`."""
        return self._moved(value, 1)

    def _moved(self, value: Any, sign: int) -> Any:
        if not self._has_starts:
            return value

        def leaf_at(path: Path) -> Any:
            start = self._by_path[path].start
            return pick(value, path) if start is None else pick(value, path) + sign * start

        return _built(self._space, (), leaf_at)


class Results:
    """What steps have led to beside observations, a row each; arrays of their owner.

    Attributes:
        reward: float32 [rows].
        terminated: bool [rows]; the task ended: nothing is bootstrapped.
        truncated: bool [rows]; the episode was cut.
        acts: bool [rows]; who takes an action in the next step.
        of_all: these four.
    """

    LAYOUT: tuple[tuple[str, str], ...] = (
        ("reward", "float32"), ("terminated", "bool"), ("truncated", "bool"), ("acts", "bool"),
    )  # fmt: skip

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.of_all = [arrays[name] for name, _ in self.LAYOUT]
        self.reward, self.terminated, self.truncated, self.acts = self.of_all

    def put(self, at: At, reward: Any, terminated: Any, truncated: Any) -> None:
        """Write what an environment returned of a step to its row, or of several to theirs."""
        self.reward[at] = reward
        self.terminated[at] = terminated
        self.truncated[at] = truncated


def numbers_in(info: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of an info, those of nested ones by '/'-joined names."""
    found: dict[str, float] = {}
    for name, value in info.items():
        if isinstance(value, Mapping):
            found.update({f"{name}/{below}": number for below, number in numbers_in(value).items()})
        elif isinstance(value, int | float | np.number | np.bool_):
            found[str(name)] = float(value)
        elif (
            getattr(value, "size", 0) == 1 and getattr(value, "dtype", np.dtype("O")).kind in "biuf"
        ):
            found[str(name)] = float(value.item())
    return found


def pick(value: Any, path: Iterable[Any]) -> Any:
    """Returns the value at a path of keys in nested mappings and sequences.

    A sequence's keys are numbers, or these as text; it may have become a mapping of the latter.
    """
    for key in path:
        if isinstance(value, Mapping):
            value = value[key] if key in value else value[str(key)]
        else:
            value = value[int(key)]
    return value


def other_than_space(value: Any, shape: tuple[int, ...], dtype: Any) -> str:
    """Returns the message of an observation that its space does not have."""
    found = np.asarray(value)
    return (
        f"an observation is {found.dtype} {found.shape}, and its observation_space says {dtype} "
        f"{shape}: the environment, or a wrapper, must set its space to what it returns"
    )


def _loses(observation: Any, dtype: np.dtype[Any]) -> bool:
    """True if numbers with fractions are given where the space has whole ones."""
    return dtype.kind in "biu" and getattr(observation, "dtype", dtype).kind == "f"


def _built(space: Any, path: Path, leaf_at: Callable[[Path], Any]) -> Any:
    """Returns a value of a space from its leaves."""
    children = children_of(space)
    if children is None:
        return leaf_at(path)
    built = {key: _built(child, (*path, key), leaf_at) for key, child in children}
    return tuple(built.values()) if isinstance(space, of_gymnasium.Tuple) else built


def _as_stored(leaf: Leaf) -> Leaf:
    """An observation's array: of the dtype that is stored, and without bounds."""
    return dataclasses.replace(leaf, dtype=stored_dtype(leaf.dtype), low=(), high=())
