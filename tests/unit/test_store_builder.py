"""Gathering rows into blocks: nothing is lost, nothing crosses a block."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.store import write_shard
from hpcdi.errors import BufferContractError
from hpcdi.store.block import Block, transition_rows
from hpcdi.store.builder import BlockBuilder
from hpcdi.store.frames import share_frames
from hpcdi.store.layout import RunLayout
from hpcdi.store.rows import RowStore, transitions
from hpcdi.store.segment import Segment
from hpcdi.store.shards import read_shard
from hpcdi.types import ITEM_DTYPE, Array, Columns, RowView
from hpcdi.utils.nested import concatenate_columns

QUICK = settings(deadline=None, max_examples=60)
FIRST_ID = 2 << 40


def make_segment(
    lengths: list[int], first_row: int = 0, tail_rows: int = 0, **others: Any
) -> Segment:
    """Items one behind the other; column `row` numbers the rows from `first_row`."""
    items = np.zeros(len(lengths), dtype=ITEM_DTYPE)
    whole = np.array(lengths, dtype=np.int64) + tail_rows
    items["item_len"] = lengths
    items["item_start"] = np.cumsum(whole) - whole
    items["item_id"] = -1  # the builder gives ids
    items["episode_id"] = first_row + items["item_start"]
    row = np.arange(first_row, first_row + int(whole.sum()))
    columns = {"row": row, "obs/x": np.stack([row, -row], axis=1).astype("f4"), **others}
    return Segment(columns, items, tail_rows=tail_rows)


def make_builder(capacity: int) -> BlockBuilder:
    numbers = iter(range(10_000))
    return BlockBuilder(
        lambda row_bytes: capacity, itertools.count(FIRST_ID), lambda: {"number": next(numbers)}
    )


def put(builder: BlockBuilder, segment: Segment) -> list[Block]:
    return list(builder.fill(segment))


def rows_of(block: Block, position: int) -> list[int]:
    """Rows of one item, those after its transitions included."""
    item = block.items[position]
    start = int(item["item_start"])
    return block.columns["row"][start : start + int(item["item_len"]) + block.tail_rows].tolist()


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[list[int]], list[bool]]:
    """Capacity, tail rows, lengths of the items of each segment, and whether it is sealed then."""
    tail_rows = draw(st.integers(0, 1))
    capacity = draw(st.integers(1 + tail_rows, 12))
    lengths = st.lists(st.integers(1, capacity - tail_rows), max_size=6)
    segments = draw(st.lists(lengths, max_size=8))
    seals = draw(st.lists(st.booleans(), min_size=len(segments), max_size=len(segments)))
    return capacity, tail_rows, segments, seals


def play(
    capacity: int, tail_rows: int, segments: list[list[int]], seals: list[bool]
) -> tuple[list[Block], list[bool]]:
    """All blocks, and whether each was sealed because it was full."""
    builder = make_builder(capacity)
    blocks, full, first_row = [], [], 0
    for lengths, seal in zip(segments, seals, strict=True):
        got = put(builder, make_segment(lengths, first_row, tail_rows))
        blocks, full = blocks + got, full + [True] * len(got)
        first_row += sum(lengths) + tail_rows * len(lengths)
        if seal and (block := builder.seal()) is not None:
            blocks, full = [*blocks, block], [*full, False]
    if (block := builder.seal()) is not None:
        blocks, full = [*blocks, block], [*full, False]
    assert builder.is_empty
    return blocks, full


@QUICK
@given(histories())
def test_every_item_is_in_one_block_whole_and_in_order(
    history: tuple[int, int, list[list[int]], list[bool]],
) -> None:
    capacity, tail_rows, segments, seals = history
    blocks, _ = play(capacity, tail_rows, segments, seals)
    wanted, row = [], 0
    for length in [length for lengths in segments for length in lengths]:
        wanted.append(list(range(row, row + length + tail_rows)))
        row += length + tail_rows
    got = [rows_of(block, k) for block in blocks for k in range(len(block.items))]
    assert got == wanted
    assert [row for block in blocks for row in block.columns["row"]] == list(range(row))
    assert [int(i) for b in blocks for i in b.items["episode_id"]] == [rows[0] for rows in wanted]
    ids = [int(i) for block in blocks for i in block.items["item_id"]]
    assert ids == list(range(FIRST_ID, FIRST_ID + len(wanted)))


@QUICK
@given(histories())
def test_blocks_are_full_and_never_too_full(
    history: tuple[int, int, list[list[int]], list[bool]],
) -> None:
    capacity, tail_rows, segments, seals = history
    blocks, full = play(capacity, tail_rows, segments, seals)
    assert all(0 < block.rows <= capacity for block in blocks)
    assert [block.facts["number"] for block in blocks] == list(range(len(blocks)))
    for block, following, is_full in zip(blocks, blocks[1:], full, strict=False):
        next_item = int(following.items["item_len"][0]) + tail_rows
        assert not is_full or block.rows + next_item > capacity
        assert block.tail_rows == tail_rows
        assert (block.columns["obs/x"][:, 1] == -block.columns["row"]).all()


def test_nothing_is_sealed_from_nothing() -> None:
    builder = make_builder(4)
    assert builder.is_empty
    assert builder.seal() is None
    assert put(builder, make_segment([])) == []
    assert builder.is_empty
    assert builder.seal() is None


def test_a_block_does_not_share_memory_with_the_next() -> None:
    builder = make_builder(2)
    (first,) = put(builder, make_segment([2, 2]))
    second = builder.seal()
    assert second is not None
    assert not np.shares_memory(first.columns["row"], second.columns["row"])
    assert first.columns["row"].tolist() == [0, 1]


def test_the_capacity_follows_from_the_bytes_of_a_row() -> None:
    asked: list[int] = []

    def capacity_of(row_bytes: int) -> int:
        asked.append(row_bytes)
        return 3

    builder = BlockBuilder(capacity_of, itertools.count(), dict)
    for _ in range(3):
        put(builder, make_segment([3]))
    assert asked == [16]  # int64 and two float32; asked once


def test_an_item_that_exactly_fits_is_taken() -> None:
    builder = make_builder(4)
    assert put(builder, make_segment([3], tail_rows=1)) == []
    block = builder.seal()
    assert block is not None
    assert (block.rows, block.transitions) == (4, 3)


def test_an_item_larger_than_a_block_is_refused() -> None:
    builder = make_builder(4)
    with pytest.raises(BufferContractError) as caught:
        put(builder, make_segment([4], tail_rows=1))
    assert "an item of 5 rows does not fit into a block of 4" in str(caught.value)
    assert "raise system.storage.block_bytes" in str(caught.value)


def test_a_segment_with_an_item_that_is_too_large_changes_nothing() -> None:
    builder = make_builder(4)
    put(builder, make_segment([2]))
    with pytest.raises(BufferContractError, match="5 rows does not fit into a block of 4"):
        put(builder, make_segment([2, 5]))
    block = builder.seal()
    assert block is not None
    assert block.columns["row"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (make_segment([2], more=np.zeros(2)), "only one of them has ['more']"),
        (
            make_segment([2], row=np.zeros(2)),
            "column 'row' is float64(), not int64()",
        ),
        (
            make_segment([2], **{"obs/x": np.zeros((2, 3), "f4")}),
            "column 'obs/x' is float32(3,), not float32(2,)",
        ),
        (Segment({"row": np.zeros(2)}, np.zeros(1)), "the item table has dtype float64"),
        (make_segment([1], tail_rows=1), "other views or tail rows"),
        (
            Segment(make_segment([2]).columns, make_segment([2]).items, (RowView("a", "b", "c"),)),
            "other views or tail rows",
        ),
    ],
)
def test_a_segment_unlike_the_first_one_is_refused(segment: Segment, message: str) -> None:
    builder = make_builder(4)
    put(builder, make_segment([2]))
    with pytest.raises(BufferContractError) as caught:
        put(builder, segment)
    assert message in str(caught.value)
    block = builder.seal()
    assert block is not None
    assert block.columns["row"].tolist() == [0, 1]  # what was there is whole


# ------------------------------------------------------------------------------------------ frames

DEPTH = 3
NEXT = RowView("next_observation", "observation", "bootstrap_offset")


def stacks_of(lengths: list[int], tail_rows: int, palette: Array, kind: str, seed: int) -> Columns:
    """Stacked observations of episodes, one an item: sliding from the first frame on, or any."""
    rng, found = np.random.default_rng(seed), []
    for length in lengths:
        frames = palette[rng.integers(0, len(palette), length + tail_rows + DEPTH - 1)]
        if kind == "padded":
            frames[: DEPTH - 1] = frames[DEPTH - 1]
        rows = np.arange(length + tail_rows)[:, None] + np.arange(DEPTH)
        stacks = frames[rows]
        if kind == "any":
            stacks = palette[rng.integers(0, len(palette), stacks.shape[:2])]
        found.append(stacks)
    return {"observation": np.concatenate(found)}


@pytest.mark.parametrize("kind", ["padded", "sliding", "any"])
@pytest.mark.parametrize("names", [["observation"], ["observation", "next_observation"]])
@pytest.mark.parametrize("form", ["view", "stored"])
@pytest.mark.slow
def test_stacks_in_a_ring_are_those_that_were_collected(
    tmp_path: Path, kind: str, names: list[str], form: str
) -> None:
    """Through builder, shard and ring; whether the next observation is a view or stored too."""

    @settings(deadline=None, max_examples=15)
    @given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4),
           st.integers(2, 9), st.integers(0, 2**32 - 1))  # fmt: skip
    def check(parts: list[list[int]], colours: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        palette = rng.integers(0, 256, (colours, 2, 3), np.uint8)
        tail_rows = 1 if form == "view" else 0
        blocks, segments = [], []
        builder = BlockBuilder(lambda row_bytes: 40, itertools.count(), dict, names)
        for k, lengths in enumerate(parts):
            columns = stacks_of(lengths, tail_rows, palette, kind, seed + k)
            rows = len(columns["observation"])
            if form == "view":
                columns["bootstrap_offset"] = np.ones(rows, np.int32)
            else:
                columns["next_observation"] = np.roll(columns["observation"], -2, axis=0)
            segment = make_segment(lengths, 100 * k, tail_rows, **columns)
            views = (NEXT,) if form == "view" else ()
            segments.append(dataclasses.replace(segment, views=views))
            blocks += builder.fill(segments[-1])
        blocks.append(builder.seal())
        ring, layout, drawn = RowStore(400, views=blocks[0].views), RunLayout(tmp_path), []
        first = 0
        for block in blocks:
            ref = write_shard(layout, "a.h5", block, fsync=False)
            ring.write(first, read_shard(layout, ref))
            rows = first + transition_rows(block.items)
            drawn.append(ring.gather(rows))
            same(transitions(block), drawn[-1])
            first += block.rows
        whole = [transitions(Block(s.columns, s.items, {}, s.views, s.tail_rows)) for s in segments]
        same(concatenate_columns(drawn), concatenate_columns(whole))

    check()


def same(found: Columns, expected: Columns) -> None:
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        assert found[name].dtype == column.dtype
        assert found[name].tolist() == column.tolist(), name


def test_a_long_item_costs_a_frame_a_row() -> None:
    lengths, palette = [200, 50], np.arange(300, dtype=np.int16)[:, None, None]
    stacks = np.concatenate([
        palette[k * 100 + np.arange(n + 1)[:, None] + np.arange(DEPTH)]
        for k, n in enumerate(lengths)
    ])  # fmt: skip
    segment = share_frames(make_segment(lengths, 0, 1, observation=stacks), ["observation"])
    assert len(segment.columns["observation_frames"]) == sum(n + 1 + DEPTH - 1 for n in lengths)
    assert segment.items["item_start"].tolist() == [0, 203]
    assert segment.views == (RowView("observation", "observation_frames", "observation_offsets"),)


@pytest.mark.parametrize("names", [["obs"], ["row"], ["row", "obs/x"]])
def test_what_is_no_stack_of_frames_is_refused(names: list[str]) -> None:
    with pytest.raises(BufferContractError, match="should be a stack of frames, it is"):
        share_frames(make_segment([3]), names)


def test_env_steps_of_samples_are_a_fact_of_their_block() -> None:
    """A policy of dicts may make one sample of many steps; of transitions nothing is said."""
    builder = make_builder(4)
    steps = [np.array([10, 20]), np.array([5, 6])]
    full = [
        block
        for lengths, of in zip(([1, 2], [2, 1]), steps, strict=True)
        for block in put(builder, dataclasses.replace(make_segment(lengths), env_steps=of))
    ]
    last = builder.seal()
    assert last is not None
    assert [block.facts["env_steps"] for block in (*full, last)] == [30, 11]
    plain = make_builder(4)
    put(plain, make_segment([1]))
    sealed = plain.seal()
    assert sealed is not None
    assert "env_steps" not in sealed.facts


def whole_builder(capacity: int) -> BlockBuilder:
    most = 3 * capacity
    return BlockBuilder(lambda _bytes: capacity, itertools.count(), dict, whole=most)


def test_a_segment_that_must_stay_whole_is_one_block() -> None:
    """On-policy the rest of a rollout came after its batch was drawn, and was thrown away."""
    builder = whole_builder(64)
    for count in (10, 35, 32, 60):  # one-step episodes, each with a row behind it
        segment = make_segment([1] * count, tail_rows=1)
        assert put(builder, segment) == []
        block = builder.seal()
        assert block is not None
        assert block.columns["row"].tolist() == segment.columns["row"].tolist()
        assert len(block.items) == count
        assert builder.seal() is None


def test_a_segment_that_is_much_larger_than_a_block_is_cut_all_the_same() -> None:
    builder = whole_builder(4)
    assert [block.rows for block in put(builder, make_segment([1] * 15))] == [12]
    block = builder.seal()
    assert block is not None
    assert block.rows == 3


# ------------------------------------------------------------------------------------------ lending


def test_each_full_block_is_handed_over_before_the_next_is_lent() -> None:
    lent: list[Block] = []
    builder = BlockBuilder(
        lambda _bytes: 4, itertools.count(), dict, lend=lambda piece, *_: lent.append(piece)
    )
    assert [len(lent) for _ in builder.fill(make_segment([4] * 20))] == list(range(1, 20))


def test_what_comes_to_an_open_block_is_lent_once_and_the_block_is_whole_in_the_end() -> None:
    lent: list[tuple[Block, int, int]] = []
    numbers = itertools.count()
    builder = BlockBuilder(
        lambda _bytes: 20, itertools.count(), lambda: {"number": next(numbers)},
        lend=lambda *piece: lent.append(piece),
    )  # fmt: skip
    made = [make_segment([3, 4], 0), make_segment([5], 7), make_segment([6, 4], 12)]
    blocks: list[Block] = []
    for segment in made:
        blocks += builder.fill(segment)
        builder.lend()
        builder.lend()  # nothing has come since
    assert [(first, capacity) for _, first, capacity in lent] == [
        (0, 20),
        (7, 20),
        (12, 18),
        (0, 20),
    ]
    last = builder.seal()
    assert last is not None
    assert len(lent) == 4, "all of it was lent"
    for block, number in zip([*blocks, last], (0, 1), strict=True):
        pieces = [piece for piece, _, _ in lent if piece.facts["number"] == number]
        assert block.facts["number"] == number
        rows = np.concatenate([piece.columns["row"] for piece in pieces])
        assert rows.tolist() == block.columns["row"].tolist()
        own = np.concatenate(
            [rows_of(piece, k) for piece in pieces for k in range(len(piece.items))]
        )
        whole = np.concatenate([rows_of(block, k) for k in range(len(block.items))])
        assert own.tolist() == whole.tolist(), "items count from their piece's first row"
        ids = np.concatenate([piece.items["item_id"] for piece in pieces])
        assert ids.tolist() == block.items["item_id"].tolist()
        assert sum(piece.facts["episodes"] for piece in pieces) == block.facts["episodes"]
    assert np.shares_memory(lent[0][0].columns["row"], blocks[0].columns["row"]), "no copy"
