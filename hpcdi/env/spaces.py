"""Gymnasium's spaces as arrays: which are supported, and how values are packed and unpacked.

Box, Discrete (from any start), MultiDiscrete, MultiBinary, and Dict and Tuple of these, nested. An
observation space with the key ``action_mask`` has masks of legal actions, as PettingZoo has them:
one entry for each value of each discrete component of an action, one component after the other.
Policies count discrete actions from 0; environments are given their own values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as of_gymnasium

from hpcdi.env.base import stored_dtype
from hpcdi.errors import EnvError
from hpcdi.types import Array, Leaf, Spaces
from hpcdi.utils.packed import ACTION_MASK, column_of, packed_dtype, pick

Path = tuple[Any, ...]


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
    seen, acts = Form.of_observations(observation), Form.of_actions(action)
    wanted = sum(sum(leaf.counts) for leaf in acts.leaves)
    if seen.mask not in (0, wanted):
        raise EnvError(
            f"its masks of actions have {seen.mask} entries, and its actions, {action}, need "
            f"{wanted}: one for each value of each discrete component"
        )
    return Spaces(seen.leaves, acts.leaves, is_masked=seen.mask > 0)


class Form:
    """How values of a space lie in an array, see `hpcdi.utils.packed`.

    Attributes:
        leaves: the arrays.
        mask: entries of the mask of legal actions; 0: there is none.
        dtype, shape: of one value in the array.
        is_plain: whether the values are arrays themselves, and lie there as they are.
    """

    def __init__(self, root: str, space: Any, mask: Any = None, prefix: Path = ()) -> None:
        found = list(leaves_of(root, space))
        is_seen = root == "observation"
        self.leaves = tuple(_as_stored(leaf) if is_seen else leaf for leaf, _ in found)
        self.mask = 0 if mask is None else math.prod(mask.shape)
        self.dtype, self.shape = packed_dtype(root, self.leaves, self.mask)
        self.is_plain = self.dtype.names is None and not prefix
        self._paths = {column_of(root, leaf): (*prefix, *path) for leaf, path in found}
        if self.mask:
            self._paths[ACTION_MASK] = (ACTION_MASK,)
        self._fields = {path: name for name, path in self._paths.items()}
        self._starts = {
            column_of(root, leaf): np.array(leaf.starts).reshape(leaf.shape)
            for leaf in self.leaves
            if leaf.starts and not is_seen
        }
        self.space = space

    @classmethod
    def of_observations(cls, space: Any) -> Form:
        """Returns that of observations.

        Raises:
            EnvError: they are no arrays.
        """
        inner, mask = split_mask(space)
        form = cls("observation", inner, mask, ("observation",) if _is_inside(space, inner) else ())
        form.space = space
        return form

    @classmethod
    def of_actions(cls, space: Any) -> Form:
        """Returns that of actions.

        Raises:
            EnvError: they are no arrays.
        """
        return cls("action", space)

    @property
    def is_own(self) -> bool:
        """Whether a value in the array is what the environment takes."""
        return self.is_plain and not self._starts

    def put(self, array: Array, row: int, value: Any) -> None:
        """Write a value to a row of an array [rows, ...]; actions are counted from 0."""
        if self.dtype.names is None:
            array[row] = value if self.is_plain else pick(value, next(iter(self._paths.values())))
            return
        for name, path in self._paths.items():
            array[name][row] = np.reshape(pick(value, path), array.dtype[name].shape)

    def pack(self, values: Any, count: int) -> Array:
        """Returns the values of `count` environments, each leaf [count, ...], as a new array."""
        if self.dtype.names is None:
            given = values if self.is_plain else pick(values, next(iter(self._paths.values())))
            stored = np.array(given, dtype=self.dtype, order="C")
            if stored.shape != (count, *self.shape):
                raise EnvError(other_than_space(given, (count, *self.shape), self.dtype))
            return stored
        packed = np.empty(count, dtype=self.dtype)
        for name, path in self._paths.items():
            packed[name] = pick(values, path)
        return packed

    def unpack(self, array: Array, rows: Any = slice(None), *, from_zero: bool = False) -> Any:
        """Returns rows of an array as the environment has them: copies, actions from its start.

        Args:
            array: [rows, ...].
            rows: which: all, or one.
            from_zero: leave discrete actions counted from 0.
        """

        def leaf_at(path: Path) -> Any:
            name = self._fields[path] if self.dtype.names or not self.is_plain else ""
            own = array[name] if self.dtype.names else array
            value: Any = np.array(own[rows])[()]
            starts = self._starts.get(name) if name else next(iter(self._starts.values()), None)
            return value if starts is None or from_zero else value + starts

        return _built(self.space, (), leaf_at)

    def from_zero(self, value: Any) -> Any:
        """Returns an environment's action as policies have it: discrete parts from 0."""
        return self._moved(value, -1)

    def from_start(self, value: Any) -> Any:
        """Returns a policy's action as the environment has it: see `from_zero`."""
        return self._moved(value, 1)

    def _moved(self, value: Any, sign: int) -> Any:
        if not self._starts:
            return value

        def leaf_at(path: Path) -> Any:
            starts = self._starts.get(self._fields[path])
            return pick(value, path) if starts is None else pick(value, path) + sign * starts

        return _built(self.space, (), leaf_at)


def other_than_space(value: Any, shape: tuple[int, ...], dtype: Any) -> str:
    """Returns the message of an observation that its space does not have."""
    found = np.asarray(value)
    return (
        f"an observation is {found.dtype} {found.shape}, and its observation_space says {dtype} "
        f"{shape}: the environment, or a wrapper, must set its space to what it returns"
    )


def _built(space: Any, path: Path, leaf_at: Callable[[Path], Any]) -> Any:
    """Returns a value of a space from its leaves."""
    children = children_of(space)
    if children is None:
        return leaf_at(path)
    built = {key: _built(child, (*path, key), leaf_at) for key, child in children}
    return tuple(built.values()) if isinstance(space, of_gymnasium.Tuple) else built


def _is_inside(space: Any, inner: Any) -> bool:
    return isinstance(space, of_gymnasium.Dict) and space.spaces.get("observation") is inner


def _as_stored(leaf: Leaf) -> Leaf:
    """An observation's array: of the dtype that is stored, and without bounds."""
    return Leaf(leaf.name, leaf.shape, stored_dtype(leaf.dtype), leaf.counts, leaf.starts)


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations with masks of legal actions, as ``{..., "action_mask": bool [entries]}``.

    Args:
        env: of gymnasium's API.
        source: where its masks are: ``info``, or a key of its observations.

    Raises:
        EnvError: it has no such key, or no discrete actions.
    """

    def __init__(self, env: Any, source: str) -> None:
        super().__init__(env)
        space = env.observation_space
        self._entries = sum(sum(leaf.counts) for leaf, _ in leaves_of("action", env.action_space))
        self._key = "" if source == "info" else source
        self._where = (
            f"key {source!r} of its observations" if self._key else f"info[{ACTION_MASK!r}]"
        )
        if self._key and self._key not in getattr(space, "spaces", {}):
            raise EnvError(f"env.action_mask is {source!r}: no key of its observations, {space}")
        if not self._entries:
            raise EnvError(f"masks are of discrete actions, and its actions are {env.action_space}")
        others = {"observation": space}
        self._merges = isinstance(space, of_gymnasium.Dict)
        if isinstance(space, of_gymnasium.Dict):
            others = {key: child for key, child in space.spaces.items() if key != self._key}
        mask = of_gymnasium.MultiBinary(self._entries)
        self.observation_space = of_gymnasium.Dict({**others, ACTION_MASK: mask})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(observation, info), reward, terminated, truncated, info

    def _masked(self, observation: Any, info: Any) -> dict[str, Any]:
        """Raises EnvError: there is no mask, or it has a wrong length."""
        given = observation if self._key else info
        if (key := self._key or ACTION_MASK) not in given:
            raise EnvError(f"its info has no {ACTION_MASK!r}; env.action_mask says that it has")
        mask = flat_mask(given[key])
        if len(mask) != self._entries:
            raise EnvError(
                f"its mask of actions ({self._where}) has {len(mask)} entries, and its actions, "
                f"{self.action_space}, need {self._entries}"
            )
        others = dict(observation) if self._merges else {"observation": observation}
        others.pop(self._key, None)
        return {**others, ACTION_MASK: mask}


def flat_mask(mask: Any) -> Array:
    """Returns a mask as int8 [entries]; it may also be a tuple with one for each component."""
    if isinstance(mask, tuple | list):
        return np.concatenate([flat_mask(part) for part in mask]) if mask else np.zeros(0, np.int8)
    flat: Array = (np.ravel(mask) != 0).astype(np.int8)
    return flat
