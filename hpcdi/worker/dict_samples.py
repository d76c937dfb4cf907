"""Samples of policies of dicts as columns, and back: what travels to learners and lies in shards.

A column's name is the path to a value in a sample: ``/`` goes into a mapping, ``[]`` after a key
into a list, one level each. Samples ``{"obs": [a, b], "state": [{"h": c}, {"h": d}]}``, each of two
steps, are the columns ``obs[]`` [samples, 2, ...] and ``state[]/h`` [samples, 2, ...]: any HDF5
tool reads them, and a learner makes the same samples of their names alone. A sample's own key
``weight`` is the column ``weight[own]``: a batch's column ``weight`` has the importance weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.errors import PolicyError
from hpcdi.types import NUMBERS, Columns, Transition
from hpcdi.utils.nested import as_array, is_tensor, unflatten

_LIST = "[]"
_OWN = "[own]"


def columns_of(samples: Sequence[Transition]) -> Columns:
    """Columns with a row a sample.

    Python's floats become float32, as torch makes them, and so does bfloat16, which numpy lacks;
    other arrays and tensors keep their dtype. Tuples come back as lists.

    Args:
        samples: mappings of numbers, arrays and tensors; of lists of such; nested as they like.

    Raises:
        PolicyError: samples differ in keys, lengths of lists or shapes; a key is no such text as
            a path can have; or a value is no number, or an empty list or mapping.
    """
    return _columns(samples, "") if samples else {}


def samples_of(tensors: Mapping[str, Any]) -> list[Transition]:
    """The samples again, their values as tensors without the leading axis.

    Args:
        tensors: column name -> tensor [samples, ...].
    """
    return _values(unflatten(tensors))


def weighted_samples_of(columns: Mapping[str, Any]) -> list[Transition]:
    """Returns a batch as a list of dicts of tensors, one a sample, ``IS`` among them.

    Args:
        columns: name -> tensor [batch, ...], the importance weights ``weight`` among them.
    """
    tensors = {name: column for name, column in columns.items() if name != "weight"}
    weights = columns["weight"].tolist()
    return [
        {**sample, "IS": weight}
        for sample, weight in zip(samples_of(tensors), weights, strict=True)
    ]


def _columns(values: Sequence[Any], name: str) -> Columns:
    """Columns of equal trees, one a row."""
    first = values[0]
    if isinstance(first, Mapping):
        return _columns_of_mappings(values, name)
    if isinstance(first, list | tuple):
        length = len(first)
        if not all(isinstance(one, list | tuple) and len(one) == length for one in values):
            raise PolicyError(
                f"samples differ in {name!r}: the first has a list of {length}, and not all others "
                "have; get_train_sample must make sequences of one length, not empty"
            )
        if not length:
            raise PolicyError(f"a sample's list {name!r} is empty")
        flat = _columns([step for one in values for step in one], f"{name}{_LIST}")
        return {key: c.reshape(len(values), length, *c.shape[1:]) for key, c in flat.items()}
    return {name: _column(values, name)}


def _columns_of_mappings(values: Sequence[Any], name: str) -> Columns:
    columns: Columns = {}
    keys = values[0].keys()
    if not keys:
        raise PolicyError(
            f"a sample's mapping {name!r} is empty: leave it out in process_transition"
            if name
            else "a sample of a policy is empty"
        )
    for one in values:
        if not isinstance(one, Mapping) or one.keys() != keys:
            odd = sorted(map(str, one.keys() ^ keys)) if isinstance(one, Mapping) else [name]
            raise PolicyError(f"samples of a policy differ: not all of them have {odd}")
    for key in keys:
        if not isinstance(key, str) or "/" in key or key.endswith((_LIST, _OWN)):
            raise PolicyError(
                f"a sample's key is a text, which must not have '/' or end in '[]' or '{_OWN}': "
                f"{key!r}" + (f" in {name!r}" if name else "")
            )
        path = f"{name}/{key}" if name else f"{key}{_OWN}" if key == "weight" else key
        columns |= _columns([one[key] for one in values], path)
    return columns


def _column(values: Sequence[Any], name: str) -> Any:
    try:
        if all(map(is_tensor, values)):
            import torch

            return as_array(torch.stack(list(values)))
        dtype = np.float32 if all(type(value) is float for value in values) else None
        column = np.array(values, dtype=dtype)
    except (ValueError, RuntimeError, TypeError) as error:
        raise PolicyError(f"samples of a policy differ in {name!r}: {error}") from error
    if column.dtype.kind not in NUMBERS:
        raise PolicyError(
            f"a sample's {name!r} is {values[0]!r:.60}: samples that travel between ranks are of "
            "numbers, arrays and tensors; leave it out in process_transition"
        )
    return column


def _values(tree: Any) -> list[Any]:
    """One value a row of a tensor, or of a mapping of such."""
    if not isinstance(tree, Mapping):
        return list(tree.unbind(0))
    keys, columns = [], []
    for segment, below in tree.items():
        key = segment
        lengths: list[int] = []
        while key.endswith(_LIST):
            key = key.removesuffix(_LIST)
            below, length = _unfolded(below)
            lengths.append(length)
        values = _values(below)
        for length in reversed(lengths):
            values = [values[k : k + length] for k in range(0, len(values), length)]
        keys.append(key.removesuffix(_OWN))
        columns.append(values)
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def _unfolded(tree: Any) -> tuple[Any, int]:
    """The same values with one leading axis for the first two; and the length of the second."""
    if not isinstance(tree, Mapping):
        return tree.flatten(0, 1), int(tree.shape[1])
    parts = {name: _unfolded(below) for name, below in tree.items()}
    length = next(iter(parts.values()))[1]
    return {name: part for name, (part, _) in parts.items()}, length
