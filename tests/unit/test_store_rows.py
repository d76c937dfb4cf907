"""A learner's rows: where blocks go, and what batches are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.errors import BufferContractError
from hpcdi.replay.placer import Placement, RowPlacer
from hpcdi.store.memory import LARGE_BYTES, Recycler
from hpcdi.store.rows import RowStore
from hpcdi.types import Columns, RowView

QUICK = settings(deadline=None, max_examples=100)
VIEW = RowView("next", "obs", "offset")


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[int]]:
    capacity = draw(st.integers(1, 30))
    return capacity, draw(st.lists(st.integers(1, capacity), max_size=40))


@QUICK
@given(histories())
def test_live_blocks_never_overlap_and_the_oldest_give_way(
    history: tuple[int, list[int]],
) -> None:
    capacity, sizes = history
    placer = RowPlacer(capacity)
    live: dict[int, range] = {}  # in the order of their ages
    for block_id, rows in enumerate(sizes):
        placement = placer.place(block_id, rows)
        assert list(placement.evicted) == list(live)[: len(placement.evicted)]
        for evicted in placement.evicted:
            del live[evicted]
        live[block_id] = range(placement.first_row, placement.first_row + rows)
        taken = [row for block in live.values() for row in block]
        assert len(taken) == len(set(taken)), "blocks overlap"
        assert min(taken) >= 0
        assert max(taken) < capacity, "a block leaves the ring"


@QUICK
@given(histories())
def test_a_block_gives_way_only_if_it_must(history: tuple[int, list[int]]) -> None:
    """It is in the way, or lies in the gap before the end that the new block skips."""
    capacity, sizes = history
    placer = RowPlacer(capacity)
    live: dict[int, range] = {}
    head = 0
    for block_id, rows in enumerate(sizes):
        placement = placer.place(block_id, rows)
        new = range(placement.first_row, placement.first_row + rows)
        wraps = head + rows > capacity
        assert new.start == (0 if wraps else head)
        for evicted in placement.evicted:
            old = live.pop(evicted)
            is_in_the_way = old.start < new.stop and new.start < old.stop
            assert is_in_the_way or (wraps and old.start >= head)
        live[block_id] = new
        head = new.stop


def test_a_ring_of_known_blocks() -> None:
    placer = RowPlacer(10)
    assert placer.place(1, 4) == Placement(0, ())
    assert placer.place(2, 4) == Placement(4, ())
    assert placer.place(3, 4) == Placement(0, (1,))  # wraps: two rows stay empty
    assert placer.place(4, 6) == Placement(4, (2,))
    assert placer.place(5, 10) == Placement(0, (3, 4))


def test_a_block_that_cannot_fit_is_refused_with_what_to_do() -> None:
    with pytest.raises(BufferContractError) as caught:
        RowPlacer(10).place(1, 11)
    assert "a block of 11 rows does not fit into a ring of 10" in str(caught.value)
    assert "replay_buffer_size" in str(caught.value)


@pytest.mark.parametrize("rows", [0, -1])
def test_a_block_without_rows_is_refused(rows: int) -> None:
    """It would stand in the way of the order in which blocks give way."""
    with pytest.raises(BufferContractError, match="block 7 has no rows"):
        RowPlacer(10).place(7, rows)


# -------------------------------------------------------------------------------------------- rows


def make_columns(first: int, rows: int) -> Columns:
    number = np.arange(first, first + rows)
    return {
        "obs": np.stack([number, number + 0.5], axis=1),
        "done": number % 3 == 0,
        "offset": np.where(np.arange(rows) < rows - 1, 1, 0).astype("i4"),
    }


@QUICK
@given(histories(), st.integers(0, 2**32 - 1))
def test_a_batch_is_what_was_written_at_its_rows(history: tuple[int, list[int]], seed: int) -> None:
    capacity, sizes = history
    placer, ring = RowPlacer(capacity), RowStore(capacity, views=[VIEW])
    model: dict[int, int] = {}  # row -> number that was written there
    number = 0
    for block_id, rows in enumerate(sizes):
        first = placer.place(block_id, rows).first_row
        ring.write(first, make_columns(number, rows))
        model.update((first + k, number + k) for k in range(rows))
        number += rows
    if not model:
        return
    rng = np.random.default_rng(seed)
    rows_drawn = rng.choice(list(model), 20)
    batch = ring.gather(rows_drawn)
    expected = np.array([model[int(row)] for row in rows_drawn])
    assert batch["obs"].tolist() == [[n, n + 0.5] for n in expected]
    assert batch["done"].tolist() == (expected % 3 == 0).tolist()
    following = [
        model[int(row) + int(o)] for row, o in zip(rows_drawn, batch["offset"], strict=True)
    ]
    assert batch["next"][:, 0].tolist() == following


@pytest.mark.parametrize("names", [("obs", "done", "offset"), ("obs", "offset")])
def test_a_ring_that_grows_keeps_what_is_written(names: tuple[str, ...]) -> None:
    ring = RowStore(6, views=[VIEW])
    large = {"picture": np.arange(6 * 3000, dtype=np.float32).reshape(6, 3000)}
    ring.grow(8)
    ring.write(2, {n: c for n, c in make_columns(0, 6).items() if n in names} | large)
    before = ring.gather(np.arange(2, 7))
    ring.grow(8)
    ring.grow(20)
    ring.write(14, {n: c for n, c in make_columns(9, 6).items() if n in names} | large)
    after = ring.gather(np.arange(2, 7))
    assert all(np.array_equal(column, after[name]) for name, column in before.items())
    assert ring.gather(np.array([14]))["next"].tolist() == [[10.0, 10.5]]


def test_dtypes_and_shapes_are_those_of_the_first_block() -> None:
    ring = RowStore(4)
    ring.write(1, {"a": np.ones((2, 2), "f4"), "b": np.ones(2, bool)})
    batch = ring.gather(np.array([1, 2, 1]))
    assert {n: (c.dtype, c.shape) for n, c in batch.items()} == {
        "a": (np.dtype("f4"), (3, 2)),
        "b": (np.dtype(bool), (3,)),
    }
    assert ring.n_bytes == 4 * (2 * 4 + 1 + 3)  # small columns lie in aligned records


def test_a_batch_is_not_changed_by_later_blocks() -> None:
    ring = RowStore(2)
    ring.write(0, {"a": np.array([1.0, 2.0])})
    batch = ring.gather(np.array([0, 1]))
    ring.write(0, {"a": np.array([8.0, 9.0])})
    assert batch["a"].tolist() == [1.0, 2.0]


def test_of_a_memory_a_sequence_has_the_state_before_it_alone() -> None:
    """Those of its other rows, which nobody reads, were copied with it; a stack was each time."""
    number = np.arange(12)
    held = RowView("state/held", "state/held_frames", "state/held_offsets")
    ring = RowStore(12, views=[VIEW, held])
    columns = make_columns(0, 12) | {
        "state/small": number + 0.25, "state/large": np.repeat(number[:, None], 99, axis=1),
        "state/held_frames": np.repeat(number[:, None], 99, axis=1),
        "state/held_offsets": np.stack([-(number > 0).astype("i4"), np.zeros(12, "i4")], axis=1),
        "sequence_len": (12 - number).astype("u2"),
    }  # fmt: skip
    ring.write(0, columns)
    starts = np.array([3, 10])
    batch = ring.gather(starts, 4)
    assert batch["obs"][..., 0].tolist() == [[3, 4, 5, 6], [10, 11, 11, 11]]
    assert batch["next"][..., 0].tolist() == [[4, 5, 6, 7], [11, 11, 11, 11]]
    assert batch["state/small"].tolist() == [[3.25], [10.25]]
    assert batch["state/large"][..., 0].tolist() == [[3], [10]]
    assert batch["state/held"][..., 0].tolist() == [[[2, 3]], [[9, 10]]]
    assert batch.keys() == ring.gather(starts).keys(), "the same columns as of single rows"
    assert ring.gather(starts)["state/held"][..., 0].tolist() == [[2, 3], [9, 10]]


def test_an_empty_batch() -> None:
    ring = RowStore(2, views=[VIEW])
    ring.write(0, make_columns(0, 1))
    batch = ring.gather(np.zeros(0, dtype=np.int64))
    assert batch["next"].shape == (0, 2)


@pytest.mark.parametrize("rows", [[2], [-1], [0, 1, 7]])
def test_rows_outside_the_ring_are_an_error(rows: list[int]) -> None:
    with pytest.raises(BufferContractError, match=r"rows .* are not in a ring of 2"):
        RowStore(2).gather(np.array(rows))


def test_a_view_of_rows_outside_the_ring_is_an_error() -> None:
    ring = RowStore(4, views=[VIEW])
    ring.write(0, make_columns(0, 4) | {"offset": np.full(4, 3, "i4")})
    with pytest.raises(BufferContractError, match="rows 4 to 4 are not in a ring of 4"):
        ring.gather(np.array([1]))


def test_a_large_batch_is_the_callers_for_as_long_as_it_is_held() -> None:
    ring = RowStore(4)
    ring.recycler = Recycler(16)
    for row in range(4):
        ring.write(row, {"a": np.full((1, LARGE_BYTES), row, np.uint8)})
    held = [ring.gather(np.array([row]))["a"] for row in range(4)]
    parts = [batch[0, :2] for batch in held]
    where = {batch.__array_interface__["data"][0] for batch in held}
    del held
    more = [ring.gather(np.array([3]))["a"] for _ in range(40)]
    assert [part.tolist() for part in parts] == [[row, row] for row in range(4)]
    assert not where & {batch.__array_interface__["data"][0] for batch in more}
    newest = more[-1].__array_interface__["data"][0]
    del more
    again = [ring.gather(np.array([0]))["a"] for _ in range(16)]
    assert newest in {batch.__array_interface__["data"][0] for batch in again}
    assert not any(batch.any() for batch in again)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": np.zeros(1)}, "differs from the first one: only one of them has ['b']"),
        ({"a": np.zeros(1), "b": np.zeros((1, 2)), "c": np.zeros(1)}, "only one of them has ['c']"),
        (
            {"a": np.zeros(1, "f4"), "b": np.zeros((1, 2))},
            "column 'a' is float32(), not float64()",
        ),
        (
            {"a": np.zeros(1), "b": np.zeros((1, 3))},
            "column 'b' is float64(3,), not float64(2,)",
        ),
    ],
)
def test_a_block_unlike_the_first_one_is_refused(columns: Columns, message: str) -> None:
    ring = RowStore(4)
    ring.write(0, {"a": np.zeros(1), "b": np.zeros((1, 2))})
    with pytest.raises(BufferContractError) as caught:
        ring.write(0, columns)
    assert message in str(caught.value)
