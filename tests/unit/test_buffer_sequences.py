"""The buffer of sequences: items that follow each other in one episode, each run as likely."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.buffers import maker
from fakes.statistics import chi_square_p
from hpcdi.errors import BufferContractError
from hpcdi.worker.replay_buffer import SequenceReplayBuffer

make = maker(SequenceReplayBuffer)


def filled(ends: str, size: int = 100, key: str = "done", **settings: Any) -> Any:
    """Items 0, 1, ...: one a character; '|' ends an episode."""
    buffer = make(size, **settings)
    buffer.push([{"n": n, key: end == "|"} for n, end in enumerate(ends)])
    return buffer


def starts(buffer: Any, sequence: int, **more: Any) -> set[int]:
    """Where the sequences begin that can be drawn: without replacement, so it takes all of them."""
    found: set[int] = set()
    for batch in range(1, 200):
        drawn = buffer.sample(batch, sequence, 0, **more)
        if drawn is None:
            return found
        numbers = [[int(item["n"]) for item in run] for run in drawn]
        assert all(run == list(range(run[0], run[0] + sequence)) for run in numbers)
        found = {run[0] for run in numbers}
        assert len(found) == batch
    raise AssertionError("there is no end of sequences")


@pytest.mark.parametrize("key", ["done", "terminated", "truncated"])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_never_across_the_end_of_an_episode(key: str, one_by_one: bool) -> None:
    buffer = make()
    ends = "--|-|-"
    items = [{"n": n, key: end == "|"} for n, end in enumerate(ends)]
    for part in [[item] for item in items] if one_by_one else [items]:
        buffer.push(part)
    assert starts(buffer, 1) == set(range(6))
    assert starts(buffer, 2) == {0, 1, 3}
    assert starts(buffer, 3) == {0}
    assert starts(buffer, 4) == set()


@pytest.mark.parametrize("text", ["", "an object"])
def test_any_of_the_three_ends_it(text: str) -> None:
    """Of columns and of objects."""
    more = {"text": text} if text else {}
    buffer = make()
    for n, end in enumerate(["", "terminated", "", "truncated", "done", ""]):
        buffer.push({"n": n, **more, **{k: k == end for k in ("done", "terminated", "truncated")}})
    assert starts(buffer, 2) == {0, 2}


@pytest.mark.parametrize("names", [(0, 1, 2), ("a", "b", None)], ids=str)
def test_never_across_environments(names: tuple[Any, ...]) -> None:
    buffer = make()
    for n, env in enumerate([0, 0, 1, 1, 1, 0, 2, 2]):
        buffer.push({"n": n, "env_id": names[env]})
    assert starts(buffer, 2) == {0, 2, 3, 6}
    assert starts(buffer, 3) == {2}


@pytest.mark.parametrize("shape", [(1,), (2,)])
def test_marks_may_be_arrays(shape: tuple[int, ...]) -> None:
    buffer = make()
    for n in range(6):
        done, env = np.zeros(shape, bool), np.zeros(shape, np.int64)
        done[-1], env[-1] = n == 1, n >= 4
        buffer.push({"n": n, "done": done, "env_id": env})
    assert starts(buffer, 2) == {0, 2, 4}


def test_without_marks_all_items_are_one_episode() -> None:
    buffer = make(5)
    buffer.push([{"n": n} for n in range(7)])
    assert starts(buffer, 5) == {2}


@pytest.mark.parametrize("pushed", range(5, 17))
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_never_across_the_write_head(pushed: int, at_once: int) -> None:
    """The newest item lies beside the oldest one, and the last slot beside the first."""
    buffer, items = make(5), [{"n": n} for n in range(pushed)]
    for first in range(0, pushed, at_once):
        buffer.push(items[first : first + at_once])
    for sequence in (1, 2, 4, 5):
        assert starts(buffer, sequence) == set(range(pushed - 5, pushed - sequence + 1))
    assert starts(buffer, 6) == set()


def test_an_episode_whose_beginning_has_gone_goes_on() -> None:
    buffer = filled("----|---", size=6)
    assert starts(buffer, 3) == {2, 5}
    buffer.push({"n": 8, "done": False})
    assert starts(buffer, 4) == {5}


def test_a_clear_parts_episodes() -> None:
    buffer = filled("---")
    buffer.clear()
    buffer.push([{"n": n, "done": False} for n in range(3, 6)])
    assert starts(buffer, 3) == {3}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 1)), min_size=1, max_size=40),
    st.lists(st.integers(1, 20), max_size=6),
    st.integers(1, 15),
    st.booleans(),
)
def test_sequences_are_those_of_a_list(
    marks: list[tuple[bool, int]], cuts: list[int], size: int, objects: bool
) -> None:
    """However the items came, and whatever lies in memory beside them."""
    buffer = make(size)
    more = {"text": ""} if objects else {}
    items = [{"n": n, "done": d, "env_id": e, **more} for n, (d, e) in enumerate(marks)]
    rest = items
    for cut in [*cuts, 40]:
        buffer.push(rest[:cut])
        rest = rest[cut:]
    here = items[-size:]
    for sequence in (1, 2, 3, 6):
        runs = [here[k : k + sequence] for k in range(len(here) - sequence + 1)]
        whole = {
            run[0]["n"]
            for run in runs
            if len({item["env_id"] for item in run}) == 1
            and not any(item["done"] for item in run[:-1])
        }
        assert starts(buffer, sequence) == whole


@pytest.mark.parametrize("length", [1, 2, 17, 64])
def test_any_length_up_to_the_longest_episode(length: int) -> None:
    buffer = filled("-" * 62 + "|" + "-" * 63 + "|" + "-" * 5, size=1000)
    (run,) = buffer.sample(1, length, 0)
    numbers = [int(item["n"]) for item in run]
    assert numbers == list(range(numbers[0], numbers[0] + length))
    assert starts(buffer, 64) == {63}
    assert buffer.sample(1, 65, 0) is None


@pytest.mark.parametrize("replace", [False, True])
def test_the_only_whole_sequence_among_many_is_found(replace: bool) -> None:
    """Where hardly any start is good, trials would miss it."""
    buffer = filled("|" * 700 + "--|" + "|" * 700, size=10_000)
    (run,) = buffer.sample(1, 3, 0, replace=replace)
    assert [int(item["n"]) for item in run] == [700, 701, 702]
    assert (buffer.sample(2, 3, 0, replace=replace) is None) == (not replace)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    ("ends", "batch"),
    [("-" * 50, 3), ("--|" * 12 + "------", 4), ("||||" * 12 + "------", 2), ("---|--|---", 2)],
    ids=["all are good", "a third", "few: they are listed", "few items"],
)
def test_each_sequence_is_as_likely(ends: str, batch: int, replace: bool) -> None:
    buffer, counts = filled(ends), Counter[int]()
    good = starts(buffer, 3)
    draws = 3000
    for _ in range(draws):
        drawn = [int(run[0]["n"]) for run in buffer.sample(batch, 3, 0, replace=replace)]
        counts.update(drawn)
        assert replace or len(set(drawn)) == batch
    assert counts.keys() == good
    found = np.array([counts[n] for n in sorted(good)], dtype=float)
    assert chi_square_p(found, np.full(len(good), draws * batch / len(good))) > 1e-4


@pytest.mark.parametrize(
    ("among", "good"),
    [
        (slice(None), {0, 1, 3, 4, 5, 6}),
        (slice(-4, None), {4, 5, 6}),
        (slice(None, 4), {0, 1}),
        (slice(1, 5), {1, 3}),
        (slice(2, 3), set()),
        (slice(5, 2), set()),
    ],
    ids=str,
)
@pytest.mark.parametrize("gone", [0, 4])
def test_a_range_counts_from_the_oldest(among: slice, good: set[int], gone: int) -> None:
    """No item of a sequence lies outside of it; also after the ring went round."""
    buffer = make(8)
    buffer.push([{"n": n - gone, "done": n - gone == 2} for n in range(8 + gone)])
    assert starts(buffer, 2, sample_range=among) == good
    if good:
        drawn = buffer.sample(20, 2, 0, among, True)
        assert {int(run[0]["n"]) for run in drawn} <= good


def test_without_replacement_there_must_be_as_many() -> None:
    buffer = filled("---|--")
    assert buffer.sample(5, 2, 0) is None
    assert len(buffer.sample(4, 2, 0)) == 4
    assert len(buffer.sample(50, 2, 0, replace=True)) == 50
    assert buffer.sample(1, 5, 0, replace=True) is None


def test_a_batch_and_lists_are_the_same_draw() -> None:
    by_list, by_batch = filled("---|----", size=6), filled("---|----", size=6)
    drawn, batch = by_list.sample(3, 2, 0), by_batch.sample_batch(3, 2)
    numbers = [[int(item["n"]) for item in run] for run in drawn]
    assert batch.columns["n"].tolist() == batch.drawn.unique_ids.tolist() == numbers
    assert batch.drawn.slots.tolist() == [[n % 6 for n in run] for run in numbers]
    for said in batch.drawn:
        assert said.shape == (3, 2)


def test_shapes_of_a_batch() -> None:
    buffer = make()
    buffer.push([{"obs": {"image": np.full((2, 3), n, np.uint8)}, "n": n} for n in range(7)])
    columns = buffer.sample_batch(4, 3).columns
    assert columns["n"].shape == (4, 3)
    assert columns["obs"]["image"].shape == (4, 3, 2, 3)
    assert (columns["obs"]["image"] == columns["n"][:, :, None, None]).all()
    columns["n"][:] = -1
    assert buffer.sample_batch(4, 3).columns["n"].min() >= 0


def test_batches_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    batch = filled("-----").sample_batch(2, 3, tensors=True)
    assert isinstance(batch.columns["n"], torch.Tensor)
    assert batch.columns["n"].shape == (2, 3)
    assert batch.columns["n"].tolist() == batch.drawn.unique_ids.tolist()


def test_no_batch_of_objects_nor_of_nothing() -> None:
    buffer = make()
    assert buffer.sample_batch(1, 1) is None
    buffer.push([{"n": n, "text": ""} for n in range(4)])
    assert buffer.sample_batch(1, 1) is None
    assert len(buffer.sample(1, 4, 0)[0]) == 4


def test_items_that_are_no_dicts_are_one_episode() -> None:
    buffer = make(3)
    buffer.push(["a", "b", "c", "d"])
    assert buffer.sample(1, 3, 0) == [["b", "c", "d"]]


@pytest.mark.parametrize(("batch", "sequence"), [(1, 0), (-1, 2), (1, -3)])
def test_a_draw_of_nothing_is_an_error(batch: int, sequence: int) -> None:
    buffer, words = filled("---"), f"cannot draw {batch} sequences of {sequence} items"
    for draw in (buffer.sample, buffer.sample_batch):
        with pytest.raises(BufferContractError, match=words):
            draw(batch, sequence, 0)


def test_no_sequences_are_an_empty_list() -> None:
    """As with the other buffers; of columns there are none."""
    assert filled("---").sample(0, 2, 0) == []
    with pytest.raises(BufferContractError, match="cannot draw 0 sequences"):
        filled("---").sample_batch(0, 1, 0)


@pytest.mark.parametrize("step", [2, -1])
def test_a_range_with_steps_is_an_error(step: int) -> None:
    with pytest.raises(BufferContractError, match=f"default_experiment/buffer: .*every {step}"):
        filled("---").sample(1, 1, 0, slice(None, None, step))


@pytest.mark.parametrize("ends", ["", "--|-", "-|---|--|-----|-"])
@pytest.mark.parametrize("text", ["", "an object"])
def test_saved_sequences_go_on(ends: str, text: str, tmp_path: Path) -> None:
    buffer, moved = make(7), make(7)
    more = {"text": text} if text else {}
    buffer.push([{"n": n, "done": end == "|", **more} for n, end in enumerate(ends)])
    buffer.save_data(tmp_path / "b.h5")
    moved.load_data(tmp_path / "b.h5")
    for both in (buffer, moved):
        both.push([{"n": n, "done": False, **more} for n in range(len(ends), len(ends) + 3)])
    for sequence in (1, 2, 3):
        assert starts(moved, sequence) == starts(buffer, sequence) != set()


def test_columns_of_no_items_can_be_saved() -> None:
    buffer, moved = make(), make()
    buffer.push({"n": np.zeros(0, np.int64), "done": np.zeros(0, bool)}, columns=True)
    moved.load_state_dict(buffer.state_dict())
    moved.push([{"n": n, "done": False} for n in range(3)])
    assert starts(moved, 2) == {0, 1}
