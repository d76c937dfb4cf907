"""Observations and actions of several arrays as one array, whose fields are columns to be stored.

An observation that is one array travels as that, [envs, ...]. One of a Dict or Tuple space, or with
a mask of legal actions, travels as numpy's structured array [envs]: a field for each leaf, named as
the column that it is stored in. So code that passes observations on need not know their parts::

    Dict(position=Box, camera=Box) with a mask   ``observation/position``, ``observation/camera``,
                                                 ``action_mask``
    Box with a mask                              ``observation``, ``action_mask``
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.types import Array, Columns, Leaf

ACTION_MASK = "action_mask"
"""Name of the column, and of the key of an observation or an info, that says what is legal."""


def packed_dtype(
    root: str, leaves: Sequence[Leaf], mask: int = 0
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns dtype and shape of one value.

    Args:
        root: "observation" or "action".
        leaves: of the space.
        mask: entries of the mask of legal actions; 0: there is none.
    """
    if not mask and len(leaves) == 1 and not leaves[0].name:
        return np.dtype(leaves[0].dtype), leaves[0].shape
    fields: list[Any] = [(column_of(root, leaf), leaf.dtype, leaf.shape) for leaf in leaves]
    if mask:
        fields.append((ACTION_MASK, "?", (mask,)))
    return np.dtype(fields, align=True), ()


def column_of(root: str, leaf: Leaf) -> str:
    """Returns the column of a leaf."""
    return f"{root}/{leaf.name}" if leaf.name else root


def fields_of(name: str, column: Array) -> Iterator[tuple[str, Array]]:
    """Yields the fields of a structured column by their names; another column as it is."""
    if column.dtype.names is None:
        yield name, column
        return
    for field in column.dtype.names:
        yield field, column[field]


def spread(columns: Mapping[str, Array]) -> Columns:
    """Returns columns with the fields of structured ones in their place."""
    return dict(field for name, column in columns.items() for field in fields_of(name, column))


def legal_of(observation: Array) -> Array | None:
    """Returns the mask of legal actions, bool [envs, actions]; None: there is none."""
    names = observation.dtype.names
    return observation[ACTION_MASK] if names and ACTION_MASK in names else None


def grouped(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Returns columns by the first part of their names; those of several parts in one dict.

    ``observation/arm/angle`` is ``["observation"]["arm/angle"]``.
    """
    groups: dict[str, Any] = {}
    for name, column in columns.items():
        root, slash, rest = name.partition("/")
        if slash:
            groups.setdefault(root, {})[rest] = column
        else:
            groups[name] = column
    return groups


def ungrouped(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Returns columns by their whole names: the inverse of `grouped`."""
    columns: dict[str, Any] = {}
    for name, column in groups.items():
        if isinstance(column, Mapping):
            columns.update({f"{name}/{rest}": each for rest, each in column.items()})
        else:
            columns[name] = column
    return columns


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


def uniform_legal(legal: Array, rng: np.random.Generator) -> Array:
    """Draws one of the legal actions of each row, int64; `legal`: bool [envs, actions]."""
    chosen: Array = np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=1)
    return chosen


def draw_discrete(
    actions: Array, leaves: Sequence[Leaf], rng: np.random.Generator, legal: Array | None = None
) -> None:
    """Set the discrete parts of actions [envs, ...] to uniformly random values, counted from 0.

    Args:
        actions: see `packed_dtype`.
        leaves: of an action.
        rng: random numbers.
        legal: bool [envs, entries]; None: everything is legal.
    """
    entry = 0
    for leaf in leaves:
        if not leaf.counts:
            continue
        drawn = []
        for count in leaf.counts:
            if legal is None:
                drawn.append(rng.integers(0, count, len(actions)))
            else:
                drawn.append(uniform_legal(legal[:, entry : entry + count], rng))
            entry += count
        part = actions if actions.dtype.names is None else actions[column_of("action", leaf)]
        part[...] = np.stack(drawn, axis=1).reshape(part.shape)


def rows_of(value: Any, rows: Any) -> Any:
    """Returns some rows of an array or tensor, or of each of a group (see `grouped`)."""
    if isinstance(value, Mapping):
        return {name: part[rows] for name, part in value.items()}
    return value[rows]
