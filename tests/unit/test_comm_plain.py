"""Values as JSON and bytes: what comes back is what went, and nothing else can come."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes.messages import ANYTHING, is_same
from hpcdi.comm import plain
from hpcdi.comm.messages import CloseTask
from hpcdi.comm.plain import flatten, restore, sendable
from hpcdi.comm.wire import pack, unpack
from hpcdi.errors import CommError

KEYS = st.one_of(st.text(max_size=4), st.integers(), st.tuples(st.integers(), st.booleans()))
NESTED = st.recursive(
    ANYTHING | st.binary(max_size=9),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip


@given(NESTED)
def test_what_went_comes_back(value: Any) -> None:
    assert is_same(unpack(pack(value).copy()), value)


@pytest.mark.parametrize(
    "value",
    [
        math.inf, -math.inf, -0.0, 2**200, "\ud800 lone", "ü\0\n", Path("a/b"), 1 - 2j,
        np.float32(0.1), np.int64(-3), np.bool_(True), np.datetime64("2026-11-22"),
        CloseTask("task"), [CloseTask("a"), {"b": (CloseTask("c"),)}], {}, (), [["l", 1]], "l",
    ],
)  # fmt: skip
def test_odd_ones_come_back(value: Any) -> None:
    again = unpack(pack(value))
    assert again == value
    assert type(again) is type(value)
    assert math.copysign(1, again) == math.copysign(1, value) if value == 0.0 else True


def test_what_is_no_number_comes_back() -> None:
    assert math.isnan(unpack(pack(math.nan)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64", "uint8", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = (
        torch.randint(0, 2, shape)
        .to(getattr(torch, dtype))
        .requires_grad_(dtype in ("float32", "bfloat16"))
    )
    again = unpack(pack({"t": tensor, "u": tensor.T if shape == (2, 3) else tensor}))
    assert again["t"].dtype == tensor.dtype
    assert torch.equal(again["t"], tensor.detach())
    assert again["u"].shape == (tensor.T.shape if shape == (2, 3) else tensor.shape)


def test_other_mappings_come_back_as_dicts() -> None:
    assert unpack(pack(Counter("aab"))) == {"a": 2, "b": 1}


def test_arrays_in_files_come_back_as_arrays(tmp_path: Path) -> None:
    lying = np.memmap(tmp_path / "array", np.int32, "w+", shape=(3, 2))
    lying[:] = 7
    again = unpack(pack(lying))
    assert type(again) is np.ndarray
    assert np.array_equal(again, lying)


class Unknown:
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Unknown(), "it holds a test_comm_plain.Unknown"),
        ({"deep": [(Unknown,)]}, "it holds a builtins.type"),
        ({1, 2}, "it holds a builtins.set"),
        (np.ma.masked_array([1, 2], [True, False]), r"it holds a numpy\.ma.*MaskedArray"),
        (np.array([None, 1]), "it holds an array of Python objects"),
    ],
)
def test_what_has_no_bytes_is_refused(value: Any, said: str) -> None:
    with pytest.raises(CommError, match=said):
        flatten(value)


def test_what_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CommError, match="it holds itself"):
        flatten(endless)


# ---------------------------------------------------------------------------------- who reads it


class Evil:
    """Its pickle would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_that_comes_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    body = pickle.dumps(Evil(trap))
    with pytest.raises(ValueError, match=r"codec|JSON|Expecting"):
        restore(body, [])
    pickle.loads(body)
    assert trap.exists(), "the trap works where pickles are read"


@pytest.mark.parametrize("name", ["Path", "Unknown", "object", "eval", "Message"])
def test_classes_that_are_not_sendable_are_refused(name: str) -> None:
    with pytest.raises(CommError, match=f"a {name} has come"):
        restore(json.dumps(["c", name, "a"]).encode(), [])


def test_a_name_means_one_class() -> None:
    def make(module: str) -> type:
        @dataclass(frozen=True)
        class Twin:
            number: int

        Twin.__module__ = module
        return Twin

    one = sendable(make("one"))
    try:
        assert unpack(pack(one(3))) == one(3)
        with pytest.raises(TypeError, match="one has a sendable class Twin, too"):
            sendable(make("two"))
    finally:
        del plain._CLASSES["Twin"]


def test_no_pickle_in_the_whole_package() -> None:
    """But for a process's own children, whose environments come to them by their parent's pipe."""
    root = Path(plain.__file__).parents[1]
    words = ("import pickle", "broadcast_object_list", "all_gather_object", ".bcast(", ".isend(")
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert found == {"env/child_process.py"}
