"""The buffer whose size follows the run: the newest items, as many as the steps allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcdi.errors import BufferContractError
from hpcdi.worker.replay_buffer import ElasticReplayBuffer


def elastic(size: int = 10, window: Any = abs) -> Any:
    """By default it draws among as many items as there were steps."""
    cfg = {"replay_buffer_size": size, "set_buffer_size": window}
    return ElasticReplayBuffer(cfg, rng=np.random.default_rng(0))


def filled(count: int, steps: int, size: int = 10) -> Any:
    buffer = elastic(size)
    buffer.push([{"n": n} for n in range(count)])
    buffer.update(steps)
    return buffer


def held(buffer: Any, **more: Any) -> list[int]:
    """All items that can be drawn; there must be no other one."""
    count = len(range(buffer.count())[more.get("sample_range", slice(None))])
    assert buffer.sample(count + 1, 0, **more) is None
    return sorted(int(item["n"]) for item in buffer.sample(count, 0, **more))


@pytest.mark.parametrize("pushed", [4, 10, 17])
def test_the_newest_items_as_many_as_the_window_allows(pushed: int) -> None:
    """Partly filled, full and wrapped; the window shrinks and grows, and older items come back."""
    buffer = filled(pushed, 0)
    for steps in (1, 3, 10, 2, 7, 1000, 1):
        buffer.update(steps)
        count = min(steps, pushed, 10)
        assert buffer.count() == count
        assert held(buffer) == list(range(pushed - count, pushed))


def test_what_was_overwritten_does_not_come_back() -> None:
    buffer = filled(10, 2)
    buffer.push([{"n": n} for n in range(10, 15)])
    assert held(buffer) == [13, 14]
    buffer.update(10)
    assert held(buffer) == list(range(5, 15))


def test_it_begins_with_the_window_of_no_steps() -> None:
    buffer = elastic(window=lambda steps: 3 + steps)
    buffer.push([{"n": n} for n in range(6)])
    assert held(buffer) == [3, 4, 5]
    buffer.update(1)
    assert held(buffer) == [2, 3, 4, 5]


def test_the_newest_item_can_always_be_drawn() -> None:
    for window in (lambda _: 0, lambda _: -5, lambda _: 0.5):
        buffer = elastic(window=window)
        buffer.push([{"n": n} for n in range(3)])
        assert held(buffer) == [2]


@pytest.mark.parametrize("window", [4.9, np.int64(4), np.float32(4.0), True + 3])
def test_any_number_is_a_window(window: Any) -> None:
    buffer = elastic(window=lambda _: window)
    buffer.push([{"n": n} for n in range(6)])
    assert buffer.count() == 4


def test_a_window_without_end_is_the_whole_buffer() -> None:
    buffer = elastic(window=lambda _: float("inf"))
    buffer.push([{"n": n} for n in range(12)])
    assert held(buffer) == list(range(2, 12))


def test_a_range_counts_from_the_oldest_of_the_window() -> None:
    buffer = filled(17, 6)
    for among in (slice(None, 2), slice(-2, None), slice(1, -1), slice(None, None, 3)):
        assert held(buffer, sample_range=among) == sorted(list(range(11, 17))[among])


def test_batches_are_of_the_window_too() -> None:
    buffer = filled(17, 4)
    batch = buffer.sample_batch(4)
    assert sorted(batch.columns["n"].tolist()) == [13, 14, 15, 16]
    assert batch.drawn.unique_ids.tolist() == batch.columns["n"].tolist()
    assert buffer.sample_batch(5) is None
    assert set(buffer.sample_batch(100, replace=True).columns["n"].tolist()) == {13, 14, 15, 16}


def test_a_clear_keeps_the_window() -> None:
    buffer = filled(10, 3)
    buffer.clear()
    assert buffer.count() == 0
    buffer.push([{"n": n} for n in range(5)])
    assert held(buffer) == [2, 3, 4]


@pytest.mark.parametrize("by_file", [False, True])
def test_a_saved_buffer_keeps_its_window(by_file: bool, tmp_path: Path) -> None:
    """And the items outside of it."""
    buffer, moved = filled(13, 4), elastic()
    if by_file:
        buffer.save_data(tmp_path / "buffer.h5")
        moved.load_data(tmp_path / "buffer.h5")
    else:
        moved.load_state_dict(buffer.state_dict())
    assert held(moved) == held(buffer) == [9, 10, 11, 12]
    moved.update(10)
    assert held(moved) == list(range(3, 13))


@pytest.mark.parametrize("window", [None, 5, "steps"])
def test_the_size_must_be_a_function(window: Any) -> None:
    with pytest.raises(BufferContractError, match="mine/this: set_buffer_size must be a function"):
        ElasticReplayBuffer({"set_buffer_size": window}, None, "mine", "this")


@pytest.mark.parametrize("wrong", [None, "many", float("nan")])
def test_the_function_must_give_a_number(wrong: Any) -> None:
    """At once where it never does; else when it does not, and then the window stays."""
    with pytest.raises(BufferContractError, match=r"set_buffer_size\(0\) returns .* not a number"):
        elastic(window=lambda _: wrong)
    buffer = elastic(window=lambda steps: wrong if steps == 7 else 2)
    buffer.push([{"n": n} for n in range(6)])
    with pytest.raises(BufferContractError, match=r"buffer: set_buffer_size\(7\) returns"):
        buffer.update(7)
    assert held(buffer) == [4, 5]
