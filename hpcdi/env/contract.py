"""What an environment hands over, and what it takes: its nested values as rows of flat columns.

Nobody else converts, whatever kind an environment is of: a value goes into its row by `Space.put`
and comes back by `Space.value`, a step's results go by `Results.put`, or `rewards_of_all` and
`truths_of_all`. A column is [rows, ...]::

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

import copy
import dataclasses
import itertools
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import EllipsisType
from typing import Any

import numpy as np
from gymnasium import spaces as of_gymnasium
from gymnasium.vector import AutoresetMode

from hpcdi.errors import EnvError, EnvValueError
from hpcdi.types import ACTION_MASK, Array, Columns, Leaf, Spaces
from hpcdi.utils.nested import as_array, is_like_tensor

Path = tuple[Any, ...]
At = int | EllipsisType
"""One row, or all."""
Put = Callable[[Any], None]
"""Checks a value, and copies it into its row, or those of all into theirs."""
Origin = Mapping[str, Sequence[float]]
"""What is subtracted from observations, by column: one number, or one for each component."""
COARSE_FROM = 1e5
"""Numbers from here on are in steps of 0.008 in float32."""
_WHOLE_WITH_ORIGIN = (np.dtype(np.int32), np.dtype(np.int64))
"""Whole numbers that may have an origin; the difference is stored in the same dtype."""
_ORIGIN_BELOW = 2.0**62
"""Origins of whole numbers are smaller."""
_WHOLE_COARSE_FROM = 2.0**24
"""Whole numbers from here on are not all in float32."""
_NO_ORIGIN: Origin = {}
_LARGEST_WITH_ORIGIN = 4096
"""Numbers of the largest observation that gets an origin by itself."""


def children_of(space: object) -> list[tuple[Any, Any]] | None:
    """Returns keys and spaces in a Dict or Tuple; None: it is neither."""
    if isinstance(space, of_gymnasium.Dict):
        return list(space.spaces.items())
    if isinstance(space, of_gymnasium.Tuple):
        return list(enumerate(space.spaces))
    return None


def blank_of(space: Any) -> Any:
    """Returns the value of a space that is zeros, or the nearest to them; None: it has no arrays.

    What `read_spaces` refuses has none.
    """
    children = children_of(space)
    if children is not None:
        parts = {key: blank_of(child) for key, child in children}
        return tuple(parts.values()) if isinstance(space, of_gymnasium.Tuple) else parts
    if isinstance(space, of_gymnasium.Box):
        return np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
    if isinstance(space, of_gymnasium.MultiBinary):
        return np.zeros(space.shape, dtype=space.dtype)
    if isinstance(space, of_gymnasium.Discrete | of_gymnasium.MultiDiscrete):
        return space.start.copy()
    return None


def leaves_of(root: str, space: object, path: Path = ()) -> Iterator[tuple[Leaf, Path]]:
    """Yields the arrays of a space, and the keys that lead to each.

    A key with a slash, as dm_control has ``walker/joints_pos``, is one of a group ``walker``.

    Args:
        root: "observation" or "action".
        space: gymnasium's.
        path: keys that lead to it.

    Raises:
        EnvError: a part of it is no array of numbers, or its key is no name in a file.
    """
    children = children_of(space)
    if children is not None:
        for key, child in children:
            parts = str(key).split("/")
            if "" in parts or "." in parts:
                wrong = "is empty" if "" in parts else "is a dot"
                part = "" if len(parts) == 1 else "a part of "
                raise EnvError(f"{part}a key of a Dict space {wrong}: {key!r}; rename it")
            yield from leaves_of(root, child, (*path, key))
        return
    yield _leaf(root, space, "/".join(map(str, path))), path


def arrays_in(space: Any) -> Any:
    """Returns a space without the parts of its Dicts that are no arrays, such as a Text."""
    if not isinstance(space, of_gymnasium.Dict):
        return space
    arrays = (
        of_gymnasium.Box, of_gymnasium.Discrete, of_gymnasium.MultiDiscrete,
        of_gymnasium.MultiBinary,
    )  # fmt: skip
    return of_gymnasium.Dict({
        key: arrays_in(part)
        for key, part in space.spaces.items()
        if isinstance(part, arrays) or children_of(part) is not None
    })  # fmt: skip


def _check_names(names: Sequence[str]) -> None:
    """Refuses the key ``a/b`` beside a key ``a`` that is an array, or a Dict with ``b``.

    Raises:
        EnvError: names the two.
    """
    taken: set[str] = set()
    for name in sorted(names, key=len):
        parts = name.split("/")
        groups = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        if (other := next(filter(taken.__contains__, groups), None)) is not None:
            raise EnvError(
                f"a Dict space has the parts {other!r} and {name!r}, and hpcdi joins keys by '/': "
                "rename one"
            )
        taken.add(name)


def _leaf(root: str, space: object, name: str) -> Leaf:
    if isinstance(space, of_gymnasium.Box):
        low, high = (tuple(map(float, np.ravel(limit))) for limit in (space.low, space.high))
        return Leaf(name, space.shape, _native(space.dtype), low=low, high=high)
    if isinstance(space, of_gymnasium.Discrete):
        counts, starts = [int(space.n)], [int(space.start)]
    elif isinstance(space, of_gymnasium.MultiDiscrete):
        counts, starts = np.ravel(space.nvec).tolist(), np.ravel(space.start).tolist()
    elif isinstance(space, of_gymnasium.MultiBinary):
        counts, starts = [2] * math.prod(space.shape), []
    else:
        leave_out = (
            ", or leave a part out (of type gymnasium, by env.wrappers: [{type: FilterObservation, "
            "filter_keys: [...]}])"
        )
        raise EnvError(
            f"{root}s {'have a part ' + name if name else 'are'} {space}; hpcdi takes Box, "
            "Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these: wrap the "
            f"environment{leave_out if root == 'observation' and name else ''}"
        )
    kept = tuple(starts) if any(starts) else ()
    return Leaf(name, space.shape or (), _native(space.dtype), tuple(counts), kept)


def _native(dtype: Any) -> str:
    """Returns a dtype in the byte order of this machine, which alone torch takes."""
    return str(np.dtype(dtype).newbyteorder("="))


def mask_size(space: object) -> int:
    """Returns how many entries the masks of a space have: an array, or a Tuple or Dict of such.

    Raises:
        EnvError: the space has another part.
    """
    children = children_of(space)
    if children is not None:
        return sum(mask_size(child) for _, child in children)
    if not isinstance(space, of_gymnasium.Box | of_gymnasium.MultiBinary):
        raise EnvError(
            f"its masks of actions are {space}: have a MultiBinary, a Box, or a Tuple or Dict of "
            "these, one for each discrete component"
        )
    return math.prod(space.shape)


def flat_mask(space: object, mask: Any, rows: tuple[int, ...] = ()) -> Array:
    """Returns the parts of a mask, or of the masks of several rows, as one array: [*rows, entries].

    Raises:
        EnvValueError: it is not as its space says.
    """
    children = children_of(space)
    try:
        is_flat = isinstance(mask, np.ndarray) and mask.ndim == len(rows) + 1
        if children is not None and not is_flat:
            parts = [flat_mask(child, pick(mask, (key,)), rows) for key, child in children]
            return np.concatenate(parts, axis=-1)
        numbers = as_numbers(mask)
        return numbers.reshape(*rows, math.prod(numbers.shape[len(rows) :]))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EnvValueError(
            f"{ACTION_MASK}: {described(mask)}, the space says {space}: the environment, or a "
            "wrapper, must set its space to what it returns"
        ) from error


class MaskLayout:
    """Where in a mask of legal actions the entries of an action's discrete parts lie.

    Parts of a mask by name belong to the parts of the action of these names; parts in a sequence,
    and an array, are in the order of the action's parts.

    Args:
        acts: gymnasium's space of actions.
        where: the mask's place, for messages.
        space: of masks, MultiBinary, Box, or a Tuple or Dict of these; None: they have none, as
            those of infos.

    Attributes:
        entries: of a mask; 0: no part of an action is discrete.
        space: in the action's order.

    Raises:
        EnvError: the space of masks has parts of other names than the action, or of other sizes.
    """

    def __init__(self, acts: Any, where: str = ACTION_MASK, space: Any = None) -> None:
        children = children_of(acts)
        self._acts, self._where = acts, where
        self._parts: dict[Any, MaskLayout] = {}
        self._counts: tuple[int, ...] = ()
        if children is None:
            self._counts = _leaf("action", acts, "").counts
            self.entries = sum(self._counts)
        else:
            parts = {key: MaskLayout(child, f"{where}[{key!r}]") for key, child in children}
            self._parts = {key: part for key, part in parts.items() if part.entries}
            self.entries = sum(part.entries for part in self._parts.values())
        self.space = None if space is None else self._ordered(space)

    def flat(self, mask: Any) -> Array:
        """Returns a mask as int8 [entries].

        Raises:
            EnvValueError: it is no mask, has another length, or parts of other names.
        """
        if children_of(self.space) is not None:
            mask = flat_mask(self.space, mask)
        if isinstance(mask, Mapping):
            mask = [part for _, part in self._named(mask)]
        if self._parts and isinstance(mask, tuple | list) and len(mask) == len(self._parts):
            own = zip(self._parts.values(), mask, strict=True)
            return np.concatenate([part.flat(of_part) for part, of_part in own])
        numbers = _read(_flattened, mask, self._where, "0 or 1 of each action")
        if len(numbers) != self.entries:
            raise EnvValueError(
                f"its mask of actions ({self._where}) has {len(numbers)} entries, and its actions, "
                f"{self._acts}, need {self.entries}"
            )
        is_legal: Array = numbers == 1
        if not (is_legal | (numbers == 0)).all():
            raise EnvValueError(f"{self._where}: {described(mask)} has other numbers than 0 and 1")
        return is_legal.astype(np.int8)

    def _named(self, mask: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        """Returns names and parts of a mask, or of its space, in the action's order."""
        names, wanted = ([*map(str, keys)] for keys in (mask, self._parts))
        if not wanted or sorted(names) != sorted(wanted):
            raise EnvValueError(
                f"its mask of actions ({self._where}) has parts of the names {names}, and its "
                f"actions, {self._acts}, have {wanted or 'no names'}: name parts as the action "
                "does, or have an array, or a sequence in the action's order"
            )
        of_name = {str(key): (key, part) for key, part in mask.items()}
        return [of_name[name] for name in wanted]

    def _ordered(self, space: Any) -> Any:
        """Returns a space of masks with its parts in the action's order.

        Names are free where the action has none, or numbers; then the order is the space's.
        """
        children = children_of(space) or []
        is_named = isinstance(space, of_gymnasium.Dict)
        if is_named and (
            isinstance(self._acts, of_gymnasium.Dict)
            or {str(key) for key, _ in children} == {*map(str, self._parts)}
        ):
            children = self._named(space.spaces)
        counts = tuple(part.entries for part in self._parts.values()) or self._counts
        if not children or len(children) != len(counts):
            return space
        if self._parts:
            own = zip(self._parts.values(), children, strict=True)
            children = [(key, part._ordered(child)) for part, (key, child) in own]
        for (key, child), count in zip(children, counts, strict=True):
            if child.shape is not None and math.prod(child.shape) != count:
                raise EnvError(
                    f"its masks of actions ({self._where}[{key!r}]) have {math.prod(child.shape)} "
                    f"entries, and that part of its actions, {self._acts}, needs {count}"
                )
        if is_named:
            return of_gymnasium.Dict(children)
        return of_gymnasium.Tuple([child for _, child in children])


def _flattened(mask: Any) -> Array:
    """Returns numbers, also of nested sequences of different lengths, as one vector.

    Raises:
        ValueError: there is something else; says what.
    """
    try:
        return np.ravel(as_numbers(mask))
    except ValueError:
        if not isinstance(mask, tuple | list):
            raise
        return np.concatenate([_flattened(part) for part in mask])


def with_ordered_masks(observation: Any, acts: Any) -> Any:
    """Returns an observation space whose masks have their named parts in the action's order.

    Raises:
        EnvError: see `MaskLayout`.
    """
    mask = split_mask(observation)[1]
    if not isinstance(mask, of_gymnasium.Dict | of_gymnasium.Tuple):
        return observation
    children = {**observation.spaces, ACTION_MASK: MaskLayout(acts, ACTION_MASK, mask).space}
    return of_gymnasium.Dict([*children.items()])


def split_mask(space: object) -> tuple[Any, Any]:
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


def read_spaces(observation: object, action: object) -> Spaces:
    """Returns the arrays of gymnasium's spaces.

    Raises:
        EnvError: one of them is of another kind, or the mask has a wrong length.
    """
    acts = Space.of_actions(action)
    seen = Space.of_observations(with_ordered_masks(observation, action))
    for name, given, space in (("observations", observation, seen), ("actions", action, acts)):
        if not sum(math.prod(leaf.shape) for leaf in space.leaves):
            raise EnvError(f"its {name}, {given}, hold no number: have one, if only a constant")
    wanted = sum(sum(leaf.counts) for leaf in acts.leaves)
    if seen.mask_size not in (0, wanted):
        joint = math.prod(count for leaf in acts.leaves for count in leaf.counts)
        hint = ""
        if wanted and seen.mask_size == joint:
            hint = f"; masks of all combinations of components go with one Discrete({joint})"
        elif wanted and seen.mask_size > wanted and not seen.mask_size % wanted:
            hint = "; a wrapper that stacks observations stacks masks, too: env.action_mask: info"
        raise EnvError(
            f"its masks of actions have {seen.mask_size} entries, and its actions, {action}, need "
            f"{wanted}: one for each value of each discrete component{hint}"
        )
    return Spaces(seen.leaves, acts.leaves, is_masked=seen.mask_size > 0)


def coarse_from(dtype: np.dtype[Any]) -> float:
    """Returns from where on networks, which see float32, tell numbers of a dtype hardly apart."""
    if dtype.kind == "f":
        return COARSE_FROM
    return _WHOLE_COARSE_FROM if _is_coarse(dtype) else math.inf


def _is_coarse(dtype: np.dtype[Any]) -> bool:
    """Returns whether not all whole numbers of a dtype are in float32."""
    return dtype.kind in "iu" and dtype.itemsize >= 4


def _is_double(dtype: np.dtype[Any]) -> bool:
    """Returns whether a dtype of floats has more digits than float32."""
    return dtype.kind == "f" and dtype.itemsize >= 8


def origin_of(
    space: object, value: object, *, is_of_several: bool = False
) -> dict[str, tuple[float, ...]]:
    """Returns what to subtract from columns whose numbers are too large for float32.

    It is the first observation, in whole thousands; of its small components 0. Whole numbers have
    none where the bounds allow differences that their dtype has not.

    Args:
        space: gymnasium's, of observations.
        value: one of these, as the environment returned it.
        is_of_several: `value` is of a vector environment; the first of its rows counts.
    """
    origins: dict[str, tuple[float, ...]] = {}
    for field in Space.of_observations(space, as_is=True).fields:
        is_float = field.dtype.kind == "f"
        if not is_float and (field.dtype not in _WHOLE_WITH_ORIGIN or field.is_discrete):
            continue
        numbers = as_numbers(pick(value, field.path))
        is_double = numbers.dtype.kind in "iu" and _is_double(field.dtype)
        if is_float and not (is_double or _is_double(numbers.dtype)):
            continue
        numbers = (numbers[0] if is_of_several else numbers).astype(np.float64)
        is_far = np.isfinite(numbers) & (np.abs(numbers) >= coarse_from(field.dtype))
        if not is_far.any() or numbers.size > _LARGEST_WITH_ORIGIN:
            continue
        origin = np.where(is_far, np.round(np.where(is_far, numbers, 0.0), -3), 0.0).ravel()
        if not is_float and not _holds_differences(pick_space(space, field.path), origin):
            continue
        is_uniform = bool((origin == origin[0]).all())
        origins[field.name] = (float(origin[0]),) if is_uniform else tuple(origin.tolist())
    return origins


def _whole_differences(
    numbers: Array, origin: Array | None, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Returns int64 numbers minus an origin, and which of these differences are of a dtype."""
    with np.errstate(over="ignore"):  # of numbers without axes; arrays wrap around
        difference = numbers - np.asarray(origin, np.int64)
    wraps = ((numbers ^ np.asarray(origin, np.int64)) & (numbers ^ difference)) < 0
    low, high = _range_of(dtype)
    return difference, ~wraps & (difference >= low) & (difference <= high)


def _holds_differences(space: Any, origin: Array) -> bool:
    """Decides whether a dtype of whole numbers has all of a space minus an origin.

    Where bounds are but those of the dtype, they say nothing.
    """
    dtype = np.dtype(space.dtype)
    if (np.abs(origin) >= _ORIGIN_BELOW).any():
        return False
    whole = np.rint(origin).astype(np.int64).reshape(space.shape)
    for limit, of_dtype in zip((space.low, space.high), _range_of(dtype), strict=True):
        _, fits = _whole_differences(limit.astype(np.int64), whole, dtype)
        if not (fits | (limit == of_dtype)).all():
            return False
    return True


def _origin_in(origin: Origin, leaf: Leaf, column: str) -> Array | None:
    """Returns the origin of a column as an array of a row's shape; None: it has none.

    Raises:
        EnvError: it has other components than the column, or the column can have none.
    """
    if origin.get(column) is None:
        return None
    numbers = np.asarray(origin[column], np.float64).ravel()
    dtype = np.dtype(leaf.dtype)
    may_have_one = dtype.kind == "f" or (dtype in _WHOLE_WITH_ORIGIN and not leaf.counts)
    if numbers.size not in (1, math.prod(leaf.shape)) or not may_have_one:
        raise EnvError(f"env.origin.{column} has {numbers.size} numbers, and that is {leaf}")
    if not numbers.any():
        return None
    if dtype.kind == "i":
        if (np.abs(numbers) >= _ORIGIN_BELOW).any():
            most = np.abs(numbers).max()
            raise EnvError(f"env.origin.{column} is {most:g}, and must be below 2**62")
        numbers = np.rint(numbers).astype(np.int64)
    return np.broadcast_to(numbers.reshape(() if numbers.size == 1 else leaf.shape), leaf.shape)


class Field:
    """One column of a space: checks values of one part, and copies them there.

    Args:
        name: of the column.
        path: keys that lead to its value in the environment's.
        leaf: shape and dtype of a row, and the values of a discrete one.
        start: the first of a discrete action's values in the environment; None: 0.
        limits: of whole numbers, both included; None: none but those of the dtype.
        mask_space: of masks of legal actions, 0 and 1 of any dtype; None: it is no column of masks.
        origin: is subtracted from values, in float64; None: nothing is.
        bounds: of what is handed back, see `_narrow_bounds`; None: none.

    Attributes:
        name, path, start, origin, bounds: see there.
        shape, dtype: of a row.
        is_discrete: whether its values are counted: `leaf` has their counts.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        leaf: Leaf,
        start: Array | None = None,
        limits: tuple[Any, Any] | None = None,
        *,
        mask_space: Any = None,
        origin: Array | None = None,
        bounds: tuple[Array, Array] | None = None,
    ) -> None:
        self.origin, self.bounds = origin, bounds
        self.name, self.path, self.start = name, path, start
        self.shape, self.dtype = leaf.shape, np.dtype(leaf.dtype)
        self.is_discrete = bool(leaf.counts)
        self._mask_space = mask_space
        self._limits = _range_of(self.dtype) if limits is None else limits
        self._is_number = not self.shape and self.dtype.kind in "iu" and origin is None
        # any value of its own dtype and shape is right, and stored as it is
        self._takes_all = origin is None and (self.dtype.kind == "f" or self._is_within(self.dtype))
        # whether of one row -> dtype and shape of the last array that needed no conversion, and
        # whether all values of that dtype are within the limits
        self._known: dict[bool, tuple[Any, tuple[int, ...], bool]] = {}

    def into(self, column: Array, at: At) -> Put:
        """Returns what writes a value to a row, or those of all to theirs; it raises as `put`."""
        part = column if at is ... else column[at, ...]
        array_type, dtype, shape = np.ndarray, self.dtype if self._takes_all else None, part.shape

        def put(value: object) -> None:
            if value.__class__ is array_type and value.dtype is dtype and value.shape == shape:
                part[...] = value  # needs no other look
            else:
                self.put(column, at, value)

        return put

    def put(self, column: Array, at: At, value: Any) -> None:
        """Write a value to a row, or those of all to theirs.

        Raises:
            EnvValueError: it is not as the space says.
        """
        is_one = at is not ...
        if (
            is_one
            and self._is_number
            and isinstance(value, _WHOLE)
            and value.__class__ is not _TIMEDELTA
        ):
            low, high = self._limits
            if not low <= value <= high:
                raise self._outside(np.asarray(value), is_one=True)
            column[at] = value
            return
        array = value
        dtype, shape, is_safe = self._known.get(is_one, (None, (), False))
        if value.__class__ is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            array, is_safe = self._fitting(value, np.shape(column[at]), is_one)
        if not is_safe and not self._is_allowed(array).all():
            raise self._outside(array, is_one)
        if self.origin is None and array.dtype is column.dtype:
            column[at] = array
            return
        with np.errstate(all="ignore"):  # infinite in float32: the manager names it
            column[at] = array if self.origin is None else self._from_origin(array, is_one)

    def _from_origin(self, array: Array, is_one: bool) -> Array:
        """Returns numbers minus the origin.

        Raises:
            EnvValueError: a difference of whole numbers is none of the dtype.
        """
        if self.dtype.kind == "f":
            return array - self.origin
        numbers = array.astype(np.int64, copy=False)
        difference, fits = _whole_differences(numbers, self.origin, self.dtype)
        if fits.all():
            return difference
        first, name, row = self._first_wrong(fits, is_one)
        origin = np.broadcast_to(np.asarray(self.origin), numbers.shape)[first]
        raise EnvValueError(
            f"{name}: {numbers[first]} minus env.origin, {origin}, is no {self.dtype}: "
            f"set env.origin.{self.name} to what lies nearer, or to 0 for none",
            row,
        )

    def value(self, column: Array, at: At, from_zero: bool = False) -> Any:
        """Returns a copy of its part of a row, or of all; see `Space.value`."""
        value = as_dtype(column if at is ... else column[at], self.dtype)
        if self.start is not None and not from_zero:
            return (value + self.start).astype(self.dtype)
        if self.bounds is not None:
            return value.clip(*self.bounds)
        return value.copy() if value.ndim else value

    def _fitting(self, value: object, shape: tuple[int, ...], is_one: bool) -> tuple[Array, bool]:
        """Returns a value as an array of a shape; and whether its dtype is within the limits."""
        is_mask = self._mask_space is not None
        if is_mask:
            value = flat_mask(self._mask_space, value, () if is_one else shape[:1])
        try:
            array = as_numbers(value)
        except ValueError as error:
            raise self._unlike_space(str(error), is_one) from error
        is_whole = array.dtype.kind != "f"
        if not (is_whole or self.dtype.kind == "f" or is_mask):
            hint = f"; or return whole numbers as such, np.asarray(..., np.{self.dtype})"
            raise self._unlike_space(described(value), is_one, hint)
        is_safe = (is_whole and self._is_within(array.dtype)) or self.dtype.kind == "f"
        if array.shape == shape:
            if value is array:
                self._known[is_one] = (array.dtype, shape, is_safe)
            return array, is_safe
        rows = 0 if is_one else 1  # an axis of several environments stays one, if there is one env
        if array.shape[:rows] != shape[:rows] or _squeezed(array.shape[rows:]) != _squeezed(
            shape[rows:]
        ):
            raise self._unlike_space(described(value), is_one)
        return array.reshape(shape), is_safe

    def _is_within(self, dtype: np.dtype[Any]) -> bool:
        """Decides whether all values of a dtype of whole numbers are within the limits."""
        low, high = _range_of(dtype)
        return bool(np.max(self._limits[0]) <= low and high <= np.min(self._limits[1]))

    def _is_allowed(self, array: Array) -> Array:
        """Returns which numbers are within the limits; of a mask of floats, which are 0 or 1."""
        low, high = self._limits
        is_allowed: Array = (array >= low) & (array <= high)
        return is_allowed & ((array == 0) | (array == 1)) if array.dtype.kind == "f" else is_allowed

    def _unlike_space(self, value: str, is_one: bool, hint: str = "") -> EnvValueError:
        """The error of a value, in words, of another dtype or shape; `hint`: what else may help."""
        row = "" if is_one else " of each environment"
        return EnvValueError(
            f"{self.name}: {value}, the space says {self.dtype} {[*self.shape]}{row}: the "
            f"environment, or a wrapper, must set its space to what it returns{hint}"
        )

    def _outside(self, array: Array, is_one: bool) -> EnvValueError:
        """The error of a value beyond the limits; names the first number."""
        low, high = (np.broadcast_to(limit, array.shape) for limit in self._limits)
        first, name, row = self._first_wrong(self._is_allowed(array), is_one)
        return EnvValueError(
            f"{name}: {array[first]}, the space says {self.dtype} from {low[first]} to "
            f"{high[first]}: the environment, or a wrapper, must set its space to what it returns",
            row,
        )

    def _first_wrong(
        self, is_right: Array, is_one: bool
    ) -> tuple[tuple[int, ...], str, int | None]:
        """Returns the index of the first wrong number, its name, and its row, if of several."""
        first = tuple(np.argwhere(~is_right)[0].tolist())
        row, place = (None, first) if is_one else (first[0], first[1:])
        return first, self.name + (f"[{', '.join(map(str, place))}]" if place else ""), row


def beyond(name: str, least: Array, most: Array, bounds: tuple[Array, Array, Array]) -> str:
    """Returns which numbers are beyond the bounds of their space, for a message; "": none is.

    Where bounds of components differ, the message names the component farthest beyond its own.

    Args:
        name: of the column.
        least: smallest number of each component, [...] as the space.
        most: largest number of each component.
        bounds: see `Space.bounds`.
    """
    low, high, slack = bounds
    with np.errstate(over="ignore", invalid="ignore"):  # of bounds near the largest float64
        is_out = (least < low - slack) | (most > high + slack)
        if not is_out.any():
            return ""
        excess = np.where(is_out, np.maximum(low - least, most - high), -np.inf)
    if (low == low.flat[0]).all() and (high == high.flat[0]).all():
        least, most, low, high = least.min(), most.max(), low.min(), high.max()
    else:
        worst = np.unravel_index(int(excess.argmax()), excess.shape)
        name += f"[{', '.join(map(str, worst))}]"
        least, most, low, high = least[worst], most[worst], low[worst], high[worst]
    return f"{name} is from {least:g} to {most:g}, and its space says from {low:g} to {high:g}"


class Space:
    """How values of one of gymnasium's spaces lie in the rows of columns.

    Attributes:
        leaves: the arrays.
        mask_size: entries of the mask of legal actions; 0: there is none.
        fields: the columns.
    """

    def __init__(
        self,
        root: str,
        space: Any,
        mask_space: Any = None,
        prefix: Path = (),
        *,
        as_is: bool = False,
        origin: Origin = _NO_ORIGIN,
    ) -> None:
        leaves = list(leaves_of(root, space))
        _check_names([leaf.name for leaf, _ in leaves])
        is_seen = root == "observation"
        stores = is_seen and not as_is
        self.leaves = tuple(_as_stored(leaf) if stores else leaf for leaf, _ in leaves)
        self.mask_size = 0 if mask_space is None else mask_size(mask_space)
        self.fields = [
            Field(
                leaf.column(root), (*prefix, *path), stored,
                None if is_seen or not leaf.starts else np.reshape(leaf.starts, leaf.shape),
                _limits_of(pick_space(space, path), leaf, is_seen),
                bounds=None if is_seen else _narrow_bounds(pick_space(space, path)),
                origin=_origin_in(origin, stored, leaf.column(root)),
            )
            for stored, (leaf, path) in zip(self.leaves, leaves, strict=True)
        ]  # fmt: skip
        if self.mask_size:
            leaf = Leaf(ACTION_MASK, (self.mask_size,), "bool")
            self.fields.append(Field(ACTION_MASK, (ACTION_MASK,), leaf, mask_space=mask_space))
        self._by_path = {field.path: field for field in self.fields}
        self._space = space
        self._only = self.fields[0] if len(leaves) == 1 and not self.fields[0].path else None
        """The one column, where a value is one array."""

    @classmethod
    def of_observations(
        cls, space: object, *, as_is: bool = False, origin: Origin = _NO_ORIGIN
    ) -> Space:
        """Returns that of observations.

        Args:
            space: gymnasium's.
            as_is: rows have its own dtypes, not those that are stored.
            origin: what is subtracted from values, by column; see ``env.origin``.

        Raises:
            EnvError: a part is no array of numbers; or the origin is of another column.
        """
        inner, mask = split_mask(space)
        is_inside = (
            isinstance(space, of_gymnasium.Dict) and space.spaces.get("observation") is inner
        )
        prefix = ("observation",) if is_inside else ()
        observations = cls("observation", inner, mask, prefix, as_is=as_is, origin=origin)
        observations._space = space
        if unknown := origin.keys() - {field.name for field in observations.fields}:
            names = ", ".join(field.name for field in observations.fields)
            raise EnvError(f"env.origin has {', '.join(unknown)}, and its observations are {names}")
        return observations

    @classmethod
    def of_actions(cls, space: object) -> Space:
        """Returns that of actions.

        Raises:
            EnvError: they are no arrays.
        """
        return cls("action", space)

    def zeros(self, rows: int) -> Columns:
        """Returns new columns with so many rows."""
        return {field.name: np.zeros((rows, *field.shape), field.dtype) for field in self.fields}

    def coarse(self) -> list[str]:
        """Returns the columns whose numbers may lose digits in float32, which networks see."""
        return [
            field.name
            for field in self.fields
            if (
                field.dtype == np.float32
                and _is_double(np.dtype(pick_space(self._space, field.path).dtype))
            )
            or (field.dtype.kind != "f" and not field.is_discrete and _is_coarse(field.dtype))
        ]

    def may_be_coarse(self) -> bool:
        """Decides whether bounds allow numbers that float32 would round to coarse steps."""
        for field in self.fields:
            if field.dtype.kind in "fiu" and not field.is_discrete:
                space = pick_space(self._space, field.path)
                most = max(
                    -float(np.min(space.low, initial=0)), float(np.max(space.high, initial=0))
                )
                if most >= coarse_from(field.dtype):
                    return True
        return False

    def bounds(self) -> dict[str, tuple[Array, Array, Array]]:
        """Returns by column low, high and the rounding allowed beyond them, of bounded floats."""
        bounds = {}
        for field in self.fields:
            if field.dtype.kind != "f":
                continue
            space = pick_space(self._space, field.path)
            from_origin = 0.0 if field.origin is None else field.origin
            low, high = (
                np.asarray(limit, np.float64) - from_origin for limit in (space.low, space.high)
            )
            if not (np.isinf(low).all() and np.isinf(high).all()):
                slack = 1e-5 * np.maximum(1.0, np.nan_to_num(np.maximum(-low, high), posinf=0.0))
                bounds[field.name] = low, high, slack
        return bounds

    # ---- into rows

    def put(self, columns: Columns, at: At, value: object) -> None:
        """Write an environment's value to its row; or those of all, leaf by leaf, to theirs.

        Nothing of it is kept. Actions are written as they are: policies count from 0.

        Args:
            columns: of this space, and perhaps others.
            at: the row; `...`: all.
            value: as the environment has it; of all rows each leaf is [rows, ...].

        Raises:
            EnvValueError: it is not as the space says.
        """
        self.into(columns, at)(value)

    def into(self, columns: Columns, at: At) -> Put:
        """Returns what does `put` of many values, one after the other."""
        if self._only is not None:
            return self._only.into(columns[self._only.name], at)
        parts = [
            (field.name, field.path, field.into(columns[field.name], at)) for field in self.fields
        ]

        def put(value: object) -> None:
            for name, path, put_part in parts:
                try:
                    part = pick(value, path)
                except (KeyError, IndexError, TypeError, ValueError) as error:
                    raise EnvValueError(
                        f"{name}: is missing in {described(value)}; the space has it"
                    ) from error
                put_part(part)

        return put

    # ---- and back

    def value(self, columns: Columns, at: At, *, from_zero: bool = False) -> Any:
        """Returns what the environment takes, or has returned: copies of its row, or of all.

        A mask of legal actions is flat, as it is in its column.

        Args:
            columns: of this space, and perhaps others.
            at: the row; `...`: all.
            from_zero: leave discrete actions counted from 0.
        """
        if self._only is not None:
            return self._only.value(columns[self._only.name], at, from_zero)

        return _built(
            self._space, (), self._by_path,
            lambda field: field.value(columns[field.name], at, from_zero),
        )  # fmt: skip

    def out_of(self, columns: Columns, row: int) -> Callable[[], Any]:
        """Returns what does `value` of a row, again and again."""
        only = self._only
        if only is None:
            return partial(self.value, columns, row)
        # a number of an array is a copy
        if not only.shape and only.start is None and only.bounds is None:
            return partial(columns[only.name].__getitem__, row)
        return partial(only.value, columns[only.name], row)


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
        self._may_end = [True] * len(self.reward)  # rows whose ends may be written as true

    def put(self, row: int, reward: object, terminated: object, truncated: object) -> bool:
        """Write what an environment returned of a step to its row; returns whether it ended.

        Raises:
            EnvValueError: it is no number, or no truth; a reward that is none (NaN) is taken, and
                the manager's business.
        """
        if reward.__class__ is not float or not -_FLOAT32_MAX <= reward <= _FLOAT32_MAX:
            reward = number_of(reward)
        self.reward[row] = reward
        if terminated is False and truncated is False and not self._may_end[row]:
            return False
        is_terminated = (
            terminated if terminated.__class__ is bool else truth_of(terminated, "terminated")
        )
        is_truncated = (
            truncated if truncated.__class__ is bool else truth_of(truncated, "truncated")
        )
        self.terminated[row], self.truncated[row] = is_terminated, is_truncated
        self._may_end[row] = is_over = bool(is_terminated or is_truncated)
        return is_over


_BOOL = np.dtype(bool)
_FLOAT32 = np.dtype(np.float32)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_WHOLE = (int, np.integer)
_TIMEDELTA: Any = np.timedelta64
"""A subclass of numpy's integers that is no number."""
_NUMBERS = (float, int, np.floating, np.integer)


_OF_PLAYERS = "; with one for each of several players it is of env.type: team, or pettingzoo"


def number_of(value: object, name: str = "reward") -> float:
    """Converts one number, also as an array, tensor or list of one element, to a float.

    Beyond float32 it is infinite.

    Raises:
        EnvValueError: it is not one number.
    """
    if not isinstance(value, _NUMBERS) or value.__class__ is _TIMEDELTA:
        are_several = isinstance(value, Mapping | list | tuple) or getattr(value, "ndim", 0) > 0
        hint = _OF_PLAYERS if are_several and name == "reward" else ""
        value = _one(value, name, f"one number{hint}")
    elif isinstance(value, np.floating):
        value = float(value)
    if -_FLOAT32_MAX <= value <= _FLOAT32_MAX:
        return float(value)
    if value > _FLOAT32_MAX:
        return math.inf
    return -math.inf if value < -_FLOAT32_MAX else math.nan


def truth_of(value: object, name: str) -> bool:
    """Converts one truth value, True, False, 0 or 1, to a bool; forms as of `number_of`.

    Raises:
        EnvValueError: it is something else.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    number = _one(value, name, "True or False")
    if number not in (0.0, 1.0):
        raise EnvValueError(f"{name}: {described(value)}, and must be True or False")
    return number == 1.0


def results_of(reward: object, terminated: object, truncated: object) -> tuple[float, bool, bool]:
    """Converts what a step returned beside its observation; see `number_of` and `truth_of`."""
    number = number_of(reward)
    return number, truth_of(terminated, "terminated"), truth_of(truncated, "truncated")


def _read(read: Callable[[Any], Array], value: object, name: str, wanted: str) -> Array:
    """Returns the numbers in a value; else says what they must be."""
    try:
        return read(value)
    except ValueError as error:
        raise EnvValueError(f"{name}: {error}, and must be {wanted}") from error


def _one(value: object, name: str, wanted: str) -> float:
    array = _read(as_numbers, value, name, wanted)
    if array.size != 1:
        raise EnvValueError(f"{name}: {described(value)}, and must be {wanted}")
    return float(array.reshape(-1)[0])


def rewards_of_all(value: object, rows: int) -> Array:
    """Copies the rewards of all environments, in any form of numbers, to float32 [rows].

    Beyond float32 they are infinite.

    Raises:
        EnvValueError: it is something else; a number that is none (NaN) is taken.
    """
    numbers = _of_each("reward", value, rows)
    if numbers.dtype is _FLOAT32:
        return numbers.copy()
    with np.errstate(all="ignore"):  # infinite in float32: the manager names it
        return numbers.astype(_FLOAT32)


def truths_of_all(value: object, rows: int, name: str) -> Array:
    """Converts truth values, one for each environment, to bool [rows]; may return `value` itself.

    Raises:
        EnvValueError: it is something else; see `truth_of`.
    """
    if value.__class__ is np.ndarray and value.dtype is _BOOL and value.shape == (rows,):
        truths: Array = value
        return truths
    array = _of_each(name, value, rows)
    if array.dtype is _BOOL:
        return array
    is_true: Array = array == 1
    wrong = ~(is_true | (array == 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise EnvValueError(f"{name}: {array[row]}, and must be True or False", row)
    return is_true


def _of_each(name: str, value: object, rows: int) -> Array:
    """Returns the numbers of several environments, one each, [rows]."""
    if value.__class__ is np.ndarray and value.shape == (rows,) and value.dtype.kind in "fb":
        numbers: Array = value
        return numbers
    array = _read(as_numbers, value, name, "one of each environment")
    if array.size != rows or (rows > 1 and array.shape[0] != rows):
        raise EnvValueError(
            f"{name}: {described(value)}, and must be one of each of {rows} environments"
        )
    return array.reshape(rows)


def as_dtype(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Returns numbers in a dtype; into whole ones they are rounded, not cut off."""
    if numbers.dtype == dtype:
        return numbers
    if dtype.kind in "biu" and numbers.dtype.kind == "f":
        numbers = np.rint(numbers)
    return numbers.astype(dtype)


def as_numbers(value: Any) -> Array:
    """Returns numbers or truths as an array: arrays, numbers, tensors, lists of such.

    Raises:
        ValueError: it is something else; says what.
    """
    array = value
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        masked = int(np.ma.getmaskarray(value).sum())
        raise ValueError(f"an array of which {masked} of {value.size} values are masked")
    if value.__class__ is not np.ndarray:
        try:
            array = as_array(value)
        except Exception as error:  # whatever another library's arrays raise
            raise ValueError(described(value)) from error
    if array.dtype.kind == "V":
        array = _of_numpys_own(array)
    if array.dtype.kind not in "biuf":
        raise ValueError(described(value))
    numbers: Array = array
    return numbers


def _of_numpys_own(array: Array) -> Array:
    """Returns numbers of a dtype that numpy has not, such as jax's bfloat16, in one that it has."""
    own = (each for each in (np.int64, np.float32) if np.can_cast(array.dtype, each))
    return array.astype(next(own, array.dtype))


def described(value: Any) -> str:
    """Returns what a value is, for messages: dtype and shape, or its type and what it shows."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, Mapping):
        return f"a mapping of {[*map(str, value)]}"
    array = value
    if not hasattr(value, "dtype"):
        try:
            array = np.asarray(value)
        except (ValueError, TypeError):  # e.g. lists of different lengths
            return f"{type(value).__name__} {reprlib.repr(value)}"
        if array.dtype.kind not in "biuf":
            return f"{type(value).__name__} {reprlib.repr(value)}"
        if not array.shape:
            return f"{type(value).__name__} {value!r}"
    return f"{array.dtype} {[*array.shape]}"


OF_DM_ENV = (
    "is of dm_env's API, and hpcdi takes gymnasium's: wrap it, e.g. by shimmy's "
    "DmControlCompatibilityV0"
)


def refuse_dm_env(result: object) -> None:
    """Refuses what dm_env's environments return: a TimeStep, whose parts are in another order.

    Raises:
        EnvValueError: it is one.
    """
    if hasattr(result, "step_type") and hasattr(result, "discount"):
        raise EnvValueError(
            f"what the environment returned, a {type(result).__name__}, {OF_DM_ENV}"
        )


def parts_of_step(result: object) -> tuple[Any, Any, Any, Any, Any]:
    """Returns what a step of gymnasium's API returned: observation, reward, two ends, info.

    Raises:
        EnvValueError: it is something else.
    """
    if result.__class__ is tuple and len(result) == 5:
        return result
    refuse_dm_env(result)
    if isinstance(result, (tuple, list)) and len(result) == 5:
        observation, reward, terminated, truncated, info = result
        return observation, reward, terminated, truncated, info
    raise EnvValueError(
        f"step() returned {_parts(result)}, and must return observation, reward, terminated, "
        "truncated and info"
    )


def parts_of_reset(result: object) -> tuple[Any, Any]:
    """Returns what a reset of gymnasium's API returned: observation and info.

    Raises:
        EnvValueError: it is something else.
    """
    if result.__class__ is tuple and len(result) == 2:
        return result
    refuse_dm_env(result)
    if isinstance(result, (tuple, list)) and len(result) == 2:
        return result[0], result[1]
    raise EnvValueError(f"reset() returned {_parts(result)}, and must return observation and info")


def _parts(result: Any) -> str:
    is_tuple = isinstance(result, tuple)
    return f"{len(result)} values" if is_tuple else described(result)


def objection_to(env: Any, env_num: int) -> str:
    """Returns why a vector environment cannot be stepped as one of `env_num`; "": it can."""
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        return (
            f"{env} does not say how it resets: its metadata['autoreset_mode'] is {mode!r}, and "
            "must be one of gymnasium.vector.AutoresetMode"
        )
    if (own := getattr(env, "num_envs", env_num)) != env_num:  # it may not say
        return (
            f"{env} has {own} environments (num_envs), and was made for {env_num}; where it always "
            f"has so many, set env.collector_env_num and env.evaluator_env_num to {own}"
        )
    return ""


def copy_of_info(info: Any) -> Any:
    """Returns a copy of infos: the next step or reset may write to the same ones.

    Where they hold what cannot be copied, such as a lock, only they themselves are.
    """
    try:
        return copy.deepcopy(info)
    except Exception:  # whatever a simulator's objects raise
        return [*map(copy.copy, info)] if isinstance(info, list) else copy.copy(info)


def infos_in(info: Any) -> list[Any]:
    """Returns the infos of an info: itself, or one a player, in a sequence or by number.

    One that has an episode's return is itself the info.
    """
    if not isinstance(info, Mapping):
        return list(info)
    if 0 not in info or "eval_episode_return" in info:
        return [info]
    players = itertools.takewhile(lambda n: isinstance(info.get(n), Mapping), itertools.count())
    return [info[player] for player in players] or [info]


def numbers_in(info: object, _above: tuple[object, ...] = ()) -> dict[str, float]:
    """Returns the numbers of an info, those of nested ones by '/'-joined names; {} if no dict.

    What holds itself has no more numbers within (`_above`: the mappings that hold this one).
    """
    numbers: dict[str, float] = {}
    if info.__class__ is not dict and not isinstance(info, Mapping):
        return numbers
    for name, value in info.items():
        if isinstance(value, Mapping):
            inner = (*_above, info)
            if not any(value is each for each in inner):
                within = numbers_in(value, inner)
                numbers |= {f"{name}/{below}": number for below, number in within.items()}
        elif (number := _number_or_none(value)) is not None:
            numbers[str(name)] = number
    return numbers


def number_in(info: object, name: str) -> float:
    """Returns a number of an info by its name, see `numbers_in`; NaN where there is none."""
    if not isinstance(info, Mapping):
        return math.nan
    if name in info:
        number = _number_or_none(info[name])
        return math.nan if number is None else number
    first, slash, below = name.partition("/")
    number = number_in(info[first], below) if slash and first in info else math.nan
    if not math.isnan(number):
        return number
    others = {k: part for k, part in info.items() if k != first and name.startswith(str(k))}
    return numbers_in(others).get(name, math.nan)


def _number_or_none(value: Any) -> float | None:
    if value.__class__ is float:
        return float(value)
    if is_like_tensor(value):  # perhaps with a gradient or on a device
        if value.numel() != 1 or value.is_complex():
            return None
        value = value.item()
    elif not isinstance(value, int | float):  # numpy's
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        if not kind or kind not in "biufV" or getattr(value, "size", 0) != 1:
            return None
        try:
            value = as_numbers(value).item()
        except ValueError:
            return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


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


def pick_space(space: Any, path: Path) -> Any:
    """Returns the part of a space at a path of keys."""
    for key in path:
        space = space.spaces[key]
    return space


def _limits_of(space: Any, leaf: Leaf, is_seen: bool) -> tuple[Any, Any] | None:
    """The limits of a part's values in rows: policies count actions from 0."""
    if leaf.counts:
        counts = np.reshape(np.asarray(leaf.counts, np.int64), leaf.shape)
        first: Any = 0
        if is_seen and leaf.starts:
            first = np.reshape(np.asarray(leaf.starts, np.int64), leaf.shape)
        low, high = np.broadcast_to(first, counts.shape), first + counts - 1
    elif np.dtype(leaf.dtype).kind in "biu":
        low, high = np.asarray(space.low), np.asarray(space.high)
    else:
        return None
    if not low.size:
        return None
    if low.min() == low.max() and high.min() == high.max():  # one comparison for all
        return low.min().item(), high.max().item()
    return low, high


def _narrow_bounds(space: Any) -> tuple[Array, Array] | None:
    """Returns the bounds of a Box with a component that is narrower than steps of float32.

    Policies act in float32, so that what they mean by its bounds may lie beyond them. None: there
    is no such component.
    """
    if not isinstance(space, of_gymnasium.Box) or space.dtype == np.float32:
        return None
    low, high = (limit.astype(np.float64) for limit in (space.low, space.high))
    with np.errstate(all="ignore"):  # of bounds that are none
        step = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32))
        if not (high - low <= 2 * step).any():
            return None
    native = _native(space.dtype)
    return space.low.astype(native), space.high.astype(native)


def _range_of(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Returns the smallest and the largest number of a dtype; floats have no limits."""
    if dtype.kind not in "iu":
        return (0, 1) if dtype.kind == "b" else (-math.inf, math.inf)
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _built(
    space: object, path: Path, fields: Mapping[Path, Field], part_of: Callable[[Field], Any]
) -> Any:
    """Returns a value of a space from the parts of its fields, of which a mask is one."""
    if path in fields:
        return part_of(fields[path])
    children = children_of(space) or ()
    built = {key: _built(child, (*path, key), fields, part_of) for key, child in children}
    return tuple(built.values()) if isinstance(space, of_gymnasium.Tuple) else built


def _as_stored(leaf: Leaf) -> Leaf:
    """An observation's array: float64 becomes float32; and with the bound of bytes alone."""
    dtype = "float32" if _is_double(np.dtype(leaf.dtype)) else leaf.dtype
    most = max(leaf.high, default=255.0)
    high = (most,) if leaf.dtype == "uint8" and not leaf.counts and most < 255.0 else ()
    return dataclasses.replace(leaf, dtype=dtype, low=(), high=high)
