"""Rows of columns, copied together: the same by one thread and by several."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdi.types import Array
from hpcdi.utils.gather import LARGE_BYTES, gather

ROW_BYTES = 4096
MANY = LARGE_BYTES // ROW_BYTES + 3


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def column_of(dtype: Any, rows: int = 50) -> Array:
    noise = np.random.default_rng(0).integers(0, 256, (rows, ROW_BYTES), dtype=np.uint8)
    return (noise % 2 if dtype == "?" else noise).view(dtype)


def threads_now() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def same(left: Array, right: Array) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "f2", "f4", "u8", ">i4", "c16", "?"])
@pytest.mark.parametrize("shape", [(3,), (MANY,), (MANY, 2), (2, MANY, 1), (1,), (0,)])
def test_it_is_what_indexing_gives(dtype: str, shape: tuple[int, ...]) -> None:
    column = column_of(dtype)
    rows = np.random.default_rng(1).integers(0, len(column), shape)
    out = np.zeros((*shape, *column.shape[1:]), column.dtype)
    gather(column, rows, out)
    assert same(out, column[rows])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("row", [(64, 8, 8), (ROW_BYTES,), ()])
def test_rows_of_any_shape(row: tuple[int, ...]) -> None:
    column = column_of("u1").reshape(-1)[: 50 * max(1, int(np.prod(row)))].reshape(50, *row)
    rows = np.random.default_rng(1).integers(0, 50, 2 * LARGE_BYTES if row == () else MANY)
    out = np.zeros((len(rows), *row), np.uint8)
    gather(column, rows, out)
    assert same(out, column[rows])


@pytest.mark.usefixtures("threads")
def test_columns_and_results_that_do_not_lie_in_a_row() -> None:
    column = np.asfortranarray(column_of("f4"))
    rows = np.arange(MANY) % len(column)
    out = np.zeros((MANY, 2, column.shape[1]), column.dtype)
    gather(column, rows, out[:, 1])
    assert same(out[:, 1], column[rows])
    assert not out[:, 0].any()


def test_another_thread_does_not_call_others() -> None:
    """Torch would make threads for it that compete with those of the main thread."""
    column, rows = column_of("u1"), np.arange(MANY) % 50
    out = np.zeros((MANY, ROW_BYTES), np.uint8)
    asked = []

    def body() -> None:
        before = threads_now()
        gather(column, rows, out)
        asked.append(threads_now() - before)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert asked == [0]
    assert same(out, column[rows])
