"""Objects for a file: a tree of plain data, and the arrays in it stacked by their kind.

What comes back is what went in, type for type: numpy's numbers and arrays, torch's tensors, lists,
tuples, mappings with any plain keys. Anything else is left in the tree, which JSON refuses then.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from hpcdi.types import NUMBERS

_Groups = dict[tuple[Any, ...], tuple[int, list[Any]]]
"""Kind, dtype and shape of arrays -> the group's number, and the arrays."""

_MARK = "\x00"  # of a mapping that stands for something else; no item has such a key


def pack(tree: Any) -> dict[str, Any]:
    """The tree without arrays, and ``arrays``: those of one kind, dtype and shape stacked."""
    groups: _Groups = {}
    plain = _packed(tree, groups)
    return {
        "plain": plain,
        "kinds": [kind for kind, *_ in groups],
        "arrays": {str(n): np.stack(group) for n, group in groups.values()},
    }


def unpack(packed: Mapping[str, Any]) -> Any:
    """The tree that `pack` was given."""
    return _unpacked(packed["plain"], packed["kinds"], packed.get("arrays", {}))


def _packed(value: Any, groups: _Groups) -> Any:
    kind, array = _as_array(value)
    if array is not None:
        key = (kind, array.dtype.str, array.shape)
        number, group = groups.setdefault(key, (len(groups), []))
        group.append(array)
        return {_MARK: [number, len(group) - 1]}
    if type(value) is tuple:
        return {_MARK: "tuple", "of": [_packed(one, groups) for one in value]}
    if isinstance(value, Mapping):
        pairs = [[_packed(key, groups), _packed(one, groups)] for key, one in value.items()]
        return {_MARK: "mapping", "of": pairs}
    if type(value) is list:
        return [_packed(one, groups) for one in value]
    return value


def _as_array(value: Any) -> tuple[str, Any]:
    """What a leaf is, and the array of its content; or None where it is no such leaf."""
    if isinstance(value, np.generic) and value.dtype.kind in NUMBERS:
        return "number", np.asarray(value)
    if type(value) is np.ndarray and value.dtype.kind in NUMBERS:
        return "array", value
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor and value.dtype != torch.bfloat16:
        return "tensor", value.detach().cpu().numpy()
    return "", None


def _unpacked(value: Any, kinds: list[str], arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_unpacked(one, kinds, arrays) for one in value]
    if not isinstance(value, Mapping):
        return value
    mark = value[_MARK]
    if mark == "tuple":
        return tuple(_unpacked(one, kinds, arrays) for one in value["of"])
    if mark == "mapping":
        pairs = ([_unpacked(one, kinds, arrays) for one in pair] for pair in value["of"])
        return dict(map(tuple, pairs))
    number, row = mark
    array = arrays[str(number)][row]
    if kinds[number] == "tensor":
        return import_module("torch").from_numpy(np.array(array))
    return np.array(array) if kinds[number] == "array" else array
