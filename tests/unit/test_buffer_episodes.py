"""The buffer of episodes: whole ones, padded ones, slices of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fakes.episodes import check_rows, columns, described, episode, filled, held, make, slices
from fakes.statistics import chi_square_p
from hpcdi.errors import BufferContractError
from hpcdi.worker.replay_buffer.base_buffer import Guard

# ----------------------------------------------------------------------------------- whole episodes


def test_items_are_episodes() -> None:
    buffer = filled(3, 1, 5)
    assert (buffer.count(), buffer.push_count, buffer.episode_len) == (3, 3, [3, 1, 5])
    assert held(buffer) == [(0, 3), (1, 1), (2, 5)]
    assert buffer.sample(4, 0) is None
    assert len(buffer.sample(50, 0, replace=True)) == 50


def test_lengths_are_read_while_others_push() -> None:
    """A deque that changes must not be iterated over."""
    buffer, entered = filled(3, 1), []

    class Counting(Guard):
        def __enter__(self) -> None:
            entered.append(1)
            super().__enter__()

    buffer._lock = Counting("x")
    assert (buffer.episode_len, entered) == ([3, 1], [1])


def test_many_in_one_push() -> None:
    by_lists, by_columns, as_columns = make(3), make(3), make(3)
    by_lists.push([episode(n, n + 1) for n in range(5)])
    by_columns.push([columns(n, n + 1) for n in range(5)])
    for n in range(5):
        as_columns.push(columns(n, n + 1), columns=True)
    for buffer in (by_lists, by_columns, as_columns):
        assert (buffer.count(), buffer.push_count) == (3, 5)
        assert held(buffer) == [(2, 3), (3, 4), (4, 5)]
        assert sorted(buffer.sample_batch(3).unique_ids) == [2, 3, 4]


def test_the_oldest_give_way_however_long_they_are() -> None:
    buffer = filled(2000, 1, 3, size=2)
    assert held(buffer) == [(1, 1), (2, 3)]
    assert buffer.episode_len == [3, 1]  # by slot: the newest took the place of the oldest
    assert len(buffer._ring) == 4  # transitions


def test_more_transitions_than_there_was_room_for() -> None:
    lengths = [900, 200, 1, 1500, 40, 9000, 7]
    buffer = filled(*lengths)
    assert held(buffer) == list(enumerate(lengths))
    assert buffer.episode_len == lengths


def test_room_is_used_again() -> None:
    """It grows with what is here, not with what was pushed."""
    buffer = make(3)
    for n in range(200):
        buffer.push(columns(n, 50))
    assert buffer._ring.capacity == 1024
    assert held(buffer) == [(197, 50), (198, 50), (199, 50)]


def test_a_range_counts_episodes_from_the_oldest() -> None:
    buffer = filled(*range(1, 9), size=5)  # 3 to 7 are here
    for among in (slice(None, 2), slice(-2, None), slice(1, -1), slice(None, None, 2)):
        expected = [3, 4, 5, 6, 7][among]
        drawn = buffer.sample(len(expected), 0, among)
        assert sorted(described(d)[0] for d in drawn) == expected
        assert buffer.sample(len(expected) + 1, 0, among) is None
        batch = buffer.sample_batch(len(expected), sample_range=among)
        assert sorted(batch.unique_ids.tolist()) == expected
        many = buffer.sample_batch(60, sample_range=among, replace=True)
        assert set(many.unique_ids.tolist()) == set(expected)


def test_episodes_are_laid_out_once_for_all_draws_between_two_pushes() -> None:
    """It takes time for each of them; what is loaded takes the place of what was there."""
    buffer = filled(3, 1, 5, size=3)
    table = buffer._by_age()
    for length in (None, 1):
        buffer.sample_batch(2, length=length)
    buffer.sample(2, 0)
    assert buffer._by_age() is table
    again = filled(2, 2, 2, size=3)
    assert sorted(again.sample_batch(3).lengths) == [2, 2, 2]
    again.load_state_dict(buffer.state_dict())
    assert sorted(again.sample_batch(3).lengths) == [1, 3, 5]
    again.push([episode(3, 4)])
    assert sorted(again.sample_batch(3).lengths) == [1, 4, 5]


def test_each_episode_is_as_likely_however_long_it_is() -> None:
    buffer = filled(1, 50, 3, 500, 2)
    counts = np.zeros(5)
    for _ in range(1000):
        np.add.at(counts, buffer.sample_batch(2).unique_ids, 1)
    assert chi_square_p(counts, np.full(5, 400.0)) > 1e-4


def test_ids_go_on_after_a_clear() -> None:
    buffer = filled(2, 2)
    buffer.clear()
    assert (buffer.count(), buffer.push_count, buffer.episode_len) == (0, 0, [])
    assert buffer.sample_batch(1) is None
    buffer.push(columns(7, 4))
    assert (buffer.push_count, buffer.sample_batch(1).unique_ids.tolist()) == (1, [2])


# ------------------------------------------------------------------------------------------ batches


def test_whole_episodes_are_padded_with_zeros() -> None:
    buffer = filled(2, 5, 3, 1)
    batch = buffer.sample_batch(4)
    assert dict(zip(batch.unique_ids, batch.lengths, strict=True)) == {0: 2, 1: 5, 2: 3, 3: 1}
    assert batch.columns["e"].shape == (4, 5)
    assert batch.columns["obs"]["x"].shape == (4, 5, 2)
    assert batch.columns["obs"]["x"].dtype == np.float32
    check_rows(batch)


def test_a_batch_and_a_list_are_the_same_draw() -> None:
    by_list, by_batch = filled(4, 2, 6, 3), filled(4, 2, 6, 3)
    drawn, batch = by_list.sample(3, 0), by_batch.sample_batch(3)
    pairs = zip(batch.unique_ids.tolist(), batch.lengths.tolist(), strict=True)
    assert [described(d) for d in drawn] == list(pairs)


def test_a_batch_is_the_callers_own() -> None:
    buffer = filled(3)
    buffer.sample_batch(1).columns["e"][:] = 9
    buffer.sample(1, 0)[0][0]["obs"]["x"][:] = 9
    assert held(buffer) == [(0, 3)]


@pytest.mark.parametrize("length", [None, 2])
def test_batches_of_tensors(length: int | None) -> None:
    torch = pytest.importorskip("torch")
    batch = filled(3, 2, 4).sample_batch(3, length=length, tensors=True)
    assert isinstance(batch.columns["e"], torch.Tensor)
    assert isinstance(batch.columns["obs"]["x"], torch.Tensor)
    check_rows(batch)


# ------------------------------------------------------------------------------------------- slices


def test_slices_are_of_one_length_and_of_one_episode() -> None:
    buffer = filled(5, 2, 3, 9)
    batch = buffer.sample_batch(200, length=3)
    assert batch.columns["e"].shape == (200, 3)
    assert (batch.lengths == 3).all()
    expected = {(n, t) for n, many in ((0, 3), (2, 1), (3, 7)) for t in range(many)}
    assert set(map(tuple, slices(batch).tolist())) == expected
    assert buffer.sample_batch(1, length=10) is None
    assert slices(buffer.sample_batch(5, length=9)).tolist() == [[3, 0]] * 5


def test_each_slice_is_as_likely() -> None:
    buffer = filled(900, 12, 2, 3, 7, 3, size=5)  # the first one has gone; in the ring, too
    counts = Counter(map(tuple, slices(buffer.sample_batch(11_000, length=3)).tolist()))
    assert len(counts) == 10 + 0 + 1 + 5 + 1
    found = np.array(list(counts.values()), dtype=float)
    assert chi_square_p(found, np.full(17, 11_000 / 17)) > 1e-4


def test_slices_of_a_range() -> None:
    buffer = filled(4, 4, 4, 4)
    for among in (slice(1, 3), slice(-2, None), slice(None, None, -3)):
        batch = buffer.sample_batch(100, length=2, sample_range=among)
        assert set(slices(batch)[:, 0]) == set(range(4)[among])
    assert buffer.sample_batch(1, length=2, sample_range=slice(4, 9)) is None
    assert make().sample_batch(1, length=1) is None


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("size", "length"), [(0, None), (-1, None), (0, 1), (1, 0), (2, -1)])
def test_a_draw_of_nothing_is_an_error(size: int, length: int | None) -> None:
    words = f"{size} episodes" if length is None else f"{size} slices of {length} transitions"
    with pytest.raises(
        BufferContractError, match=f"default_experiment/buffer: cannot draw {words}"
    ):
        filled(3).sample_batch(size, length=length)


STEPS = np.arange(3)
REFUSED: dict[str, tuple[Any, str]] = {
    "a list of transitions": (episode(0, 3), r"goes into a list: push\(\[transitions\]\)"),
    "one transition": ({"e": 1, "obs": {"x": np.zeros(2, np.float32)}}, "of one length"),
    "no transitions": ([[]], "lists of at least one transition"),
    "some without transitions": ([episode(0, 1), []], "at least one transition"),
    "no columns": ({}, "of one length"),
    "columns of no steps": (columns(0, 0), r"\[steps, ...\], at least 1"),
    "lists among columns": ([columns(0, 2), episode(0, 2)], "put it into a list"),
    "a number": (3, "a list of transitions in a list, or columns"),
    "numbers": ([1, 2], "to push one episode, put it into a list"),
    "columns of two lengths": ({"e": STEPS, "obs": {"x": np.zeros((2, 2))}}, "of one length"),
    "a ragged column": ({"e": [[1], [2, 3]]}, "arrays of numbers"),
    "texts": ({"e": np.array(["a"]), "obs": {"x": np.zeros((1, 2))}}, "a column holds numbers"),
    "another column": ([columns(0, 2), {"e": STEPS}], "of one set of names"),
    "another row shape": (
        [columns(0, 2), {"e": STEPS, "obs": {"x": np.zeros((3, 1))}}], "differ in shape",
    ),
    "a transition of another shape": ([[*episode(0, 2), {"e": 1}]], "in the keys"),
}  # fmt: skip
LATER: dict[str, tuple[Any, str]] = {
    "another dtype": ([[{**t, "e": 0.5} for t in episode(0, 1500)]], "'e' is float64"),
    "columns of another dtype": (columns(0, 2) | {"e": np.ones(2)}, "'e' is float64"),
    "columns of another shape": (
        columns(0, 2) | {"obs": {"x": np.zeros((2, 3))}}, r"'obs/x' is float64\(3,\)",
    ),
    "other names": ({"m": STEPS}, r"in the keys \['e', 'm', 'obs/x'\]"),
    "no dicts": ([["text", "text"]], "."),  # whatever the words
}  # fmt: skip


CASES = [(name, before) for name in REFUSED for before in (0, 3)] + [(name, 3) for name in LATER]


@pytest.mark.parametrize(("name", "before"), CASES)
def test_what_is_refused_leaves_no_trace(name: str, before: int) -> None:
    pushed, words = (REFUSED | LATER)[name]
    lengths = [4, 2, 700][:before]
    buffer, untouched = filled(*lengths, size=4), filled(*lengths, size=4)
    with pytest.raises(BufferContractError, match=f"default_experiment/buffer: .*{words}"):
        buffer.push(pushed)
    for both in (buffer, untouched):
        assert (both.count(), both.push_count) == (before, before)
        both.push([episode(8, 2), episode(9, 3)])
    assert held(buffer) == held(untouched)
    left, right = buffer.sample_batch(2), untouched.sample_batch(2)
    assert left.unique_ids.tolist() == right.unique_ids.tolist()
