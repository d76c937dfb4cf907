"""Memory for large results: used again when nobody holds the last one, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.store import memory
from hpcdi.store.memory import LARGE_BYTES, Recycler
from hpcdi.types import Array

FLOATS = np.dtype(np.float64)
LARGE = (LARGE_BYTES // 8, 2)


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def given_again(recycler: Recycler, shape: Any = LARGE, dtype: Any = FLOATS) -> set[int]:
    """Where the arrays lie that it gives while all of them are held."""
    held = [recycler.empty(shape, np.dtype(dtype)) for _ in range(4)]
    return {address(array) for array in held}


@pytest.mark.parametrize("shape", [(), (0,), (5, 0), (3,), (LARGE_BYTES // 8 - 1,), LARGE])
@pytest.mark.parametrize("dtype", ["f8", "u1", ">i4", "?", "c16", [("a", "i4"), ("b", "f8")]])
def test_shape_and_dtype_are_those_asked_for(shape: tuple[int, ...], dtype: Any) -> None:
    recycler = Recycler()
    for _ in range(2):
        array = recycler.empty(shape, np.dtype(dtype))
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.flags.aligned


def test_memory_that_nobody_holds_is_given_again() -> None:
    recycler = Recycler()
    array = recycler.empty(LARGE, FLOATS)
    where = address(array)
    del array
    array = recycler.empty(LARGE, FLOATS)
    assert address(array) == where


def test_other_shapes_and_dtypes_of_as_many_bytes_share_it() -> None:
    recycler = Recycler()
    where = address(recycler.empty(LARGE, FLOATS))
    assert address(recycler.empty((2, *LARGE), np.dtype(np.float32))) == where
    assert address(recycler.empty((LARGE[0] * 16,), np.dtype(np.uint8))) == where


def test_other_sizes_do_not() -> None:
    recycler = Recycler()
    array = recycler.empty(LARGE, FLOATS)
    where = address(array)
    del array
    other = recycler.empty((LARGE[0] + 1, 2), FLOATS)
    assert other.shape == (LARGE[0] + 1, 2)
    assert where in given_again(recycler)  # and the first one is kept meanwhile


HOLDERS: dict[str, Callable[[Array], Any]] = {
    "itself": lambda array: array,
    "a row": lambda array: array[3],
    "a view of a view": lambda array: array[3:].reshape(-1)[::5].view(np.uint64),
    "a list of rows": lambda array: list(array[:2]),
    "a memoryview": memoryview,
    "a tensor": torch.from_numpy,
    "a tensor's row": lambda array: torch.from_numpy(array)[5],
    "a tensor's array": lambda array: torch.from_numpy(array).numpy(),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_memory_that_is_held_is_not_given_until_it_is_let_go(name: str) -> None:
    recycler = Recycler()
    array = recycler.empty(LARGE, FLOATS)
    where, holder = address(array), HOLDERS[name](array)
    del array
    assert where not in given_again(recycler)
    recycler = Recycler()  # one that has not passed over it
    array = recycler.empty(LARGE, FLOATS)
    where, holder = address(array), HOLDERS[name](array)
    del array, holder
    assert where in given_again(recycler)


def test_arrays_that_are_held_at_once_lie_apart() -> None:
    recycler = Recycler()
    held = [recycler.empty(LARGE, FLOATS) for _ in range(12)]
    for n, array in enumerate(held):
        array[:] = n
    assert [{float(x) for x in np.unique(array)} for array in held] == [
        {float(n)} for n in range(12)
    ]


@pytest.mark.parametrize("keep", [1, 4])
def test_it_keeps_few(keep: int) -> None:
    recycler = Recycler(keep)
    held = [recycler.empty(LARGE, FLOATS) for _ in range(50)]
    assert len({address(array) for array in held}) == 50
    assert sum(slab.nbytes for slab in recycler._slabs) <= keep * held[0].nbytes


def test_small_arrays_are_not_kept() -> None:
    recycler = Recycler()
    recycler.empty((LARGE_BYTES - 1,), np.dtype(np.uint8))
    assert recycler._slabs == []


def test_without_exact_counts_nothing_is_given_again() -> None:
    """A Python without the lock that makes reference counts exact."""
    recycler = Recycler()
    recycler._counted = False
    recycler.empty(LARGE, FLOATS)
    assert recycler._slabs == []


def test_the_count_of_memory_that_nobody_holds_is_this_pythons() -> None:
    """One holder more must be seen, whatever references the interpreter itself takes."""
    assert memory._unheld() == memory._UNHELD
    assert 1 <= memory._UNHELD <= 3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "view", "drop"]), st.integers(0, 5))))
def test_no_order_of_taking_and_dropping_changes_what_is_held(todo: list[tuple[str, int]]) -> None:
    recycler, held = Recycler(), list[tuple[Array, int]]()
    for n, (how, which) in enumerate(todo):
        if how == "take":
            array = recycler.empty((LARGE_BYTES + which % 2,), np.dtype(np.uint8))
            array[:] = n % 256
            held.append((array, n % 256))
        elif held and how == "view":
            array, value = held[which % len(held)]
            held[which % len(held)] = (array[5:-5:100], value)
        elif held:
            held.pop(which % len(held))
        array = np.zeros(0)  # hold nothing by accident
        for kept, value in held:
            assert (kept == value).all()


@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_several_threads_take_what_one_does_into_memory_of_another_kind(rows: int) -> None:
    made: list[int] = []

    def make(n_bytes: int) -> Array:
        made.append(n_bytes)
        return np.empty(n_bytes, np.uint8)

    column = np.arange(100 * 1000, dtype=np.uint16).reshape(100, 1000)
    where = np.random.default_rng(0).integers(0, 100, (rows, 2))
    recycler = Recycler(make=make, threads=3)
    for _ in range(2):
        taken = recycler.take(column, where)
        assert np.array_equal(taken, column[where])
    assert made == [taken.nbytes] * (taken.nbytes >= LARGE_BYTES) * 2
    del taken
    recycler.take(column, where)
    assert len(made) <= 2
    recycler.close()
