"""The prioritized buffer's own promises: marks, limits, ranges, priorities, annealing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fakes.buffers import advanced, filled, uniform
from hpcdi.errors import BufferContractError
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer

MARKS = {"replay_unique_id", "replay_buffer_idx", "priority", "staleness", "use", "IS"}


def numbers(drawn: list[dict[str, Any]] | None) -> list[int]:
    assert drawn is not None
    return [int(d["n"]) for d in drawn]


def ids_of(buffer: Any) -> dict[int, dict[str, Any]]:
    """What the buffer says of each of its items, without drawing by priority."""
    return {int(d["n"]): d for d in buffer.sample(buffer.count(), 0, slice(None))}


# ------------------------------------------------------------------------------------------- marks


def test_marks_of_a_drawn_item() -> None:
    buffer = advanced(4)
    buffer.push([{"n": n, "collect_iter": 10 * n, "priority": 2.0} for n in range(6)])
    drawn = {int(d["n"]): d for d in buffer.sample(4, 55, slice(None))}
    assert drawn.keys() == {2, 3, 4, 5}
    for n, d in drawn.items():
        assert d.keys() == MARKS | {"n", "collect_iter"}
        assert d["replay_unique_id"] == f"buffer_{n}"
        assert d["replay_buffer_idx"] == n % 4
        assert d["priority"] == pytest.approx(2.0)
        assert d["staleness"] == 55 - 10 * n
        assert (d["use"], d["IS"]) == (1, 1.0)


def test_a_drawn_item_can_be_pushed_again() -> None:
    """Its marks are the buffer's: it gets new ones, like an item that never had any."""
    buffer = advanced(8)
    buffer.push([{"n": n, "priority": 1.0} for n in range(2)])
    drawn = buffer.sample(2, 0, slice(None))
    buffer.push(drawn[0])
    buffer.push([*drawn, {"n": 2}])
    again = buffer.sample(6, 0, slice(None))
    assert sorted(numbers(again)) == sorted([0, 1, 2, *numbers(drawn), drawn[0]["n"]])
    assert {one["replay_unique_id"] for one in again} == {f"buffer_{k}" for k in range(6)}
    assert all(one.keys() == MARKS | {"n"} for one in again)


def test_priorities_may_be_arrays_of_one() -> None:
    buffer = advanced(4)
    buffer.push([{"n": 0, "priority": np.array([2.0])}, {"n": 1, "priority": np.array([3.0])}])
    assert [ids_of(buffer)[n]["priority"] for n in (0, 1)] == [pytest.approx(2), pytest.approx(3)]
    drawn = [ids_of(buffer)[n] for n in (0, 1)]
    ids = {name: [one[name] for one in drawn] for name in ("replay_unique_id", "replay_buffer_idx")}
    buffer.update({**ids, "priority": np.array([[4.0], [5.0]])})
    assert [ids_of(buffer)[n]["priority"] for n in (0, 1)] == [pytest.approx(4), pytest.approx(5)]


def test_marks_are_plain_numbers() -> None:
    drawn = filled(3).sample(1, 0)[0]
    kinds = {key: type(drawn[key]) for key in MARKS}
    assert kinds == {
        "replay_unique_id": str, "replay_buffer_idx": int, "priority": float, "staleness": int,
        "use": int, "IS": np.float64,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "staleness"),
    [
        ({}, -1),
        ({"collect_iter": 3}, 7),
        ({"policy_iter": 4}, 6),
        ({"collect_iter": 3, "policy_iter": 4}, 7),
        ({"collect_iter": None, "policy_iter": 4, "text": ""}, 6),
        ({"collect_iter": 12}, -2),
    ],
)
def test_staleness_comes_from_either_key(said: dict[str, Any], staleness: int) -> None:
    """The predecessor wrote ``policy_iter`` and read ``collect_iter``: never stale."""
    buffer = advanced()
    buffer.push({"n": 0, **said})
    assert buffer.sample(1, 10)[0]["staleness"] == staleness


def test_use_counts_every_draw() -> None:
    buffer = filled(2)
    used: Counter[int] = Counter()
    for _ in range(20):
        drawn = buffer.sample(2, 0)
        used.update(numbers(drawn))
        assert all(d["use"] == used[int(d["n"])] for d in drawn)


# ------------------------------------------------------------------------------------------ ranges

RANGES = [
    slice(None), slice(-3, None), slice(None, 3), slice(2, 5), slice(1, -1), slice(None, None, 2),
    slice(-1, None), slice(-100, 100), slice(None, None, -1),
]  # fmt: skip


@pytest.mark.parametrize("among", RANGES, ids=str)
@pytest.mark.parametrize("pushed", [1, 5, 8, 13, 16])
def test_a_range_counts_from_the_oldest(pushed: int, among: slice) -> None:
    """On partly filled, full and wrapped buffers, as on a list of the items."""
    expected = list(range(max(0, pushed - 8), pushed))[among]
    buffer = filled(pushed)
    drawn = buffer.sample(max(1, len(expected)), 0, among) if expected else None
    assert sorted(numbers(drawn) if drawn else []) == sorted(expected)
    if len(expected) < buffer.count():
        again = buffer.sample(len(expected) + 1, 0, among)
        assert len(again or []) == (len(expected) + 1 if expected else 0), "one of them twice"
        assert {*numbers(again or [])} <= {*expected}


def test_a_range_passes_over_what_has_gone() -> None:
    buffer = filled(8, max_use=1)
    assert numbers(buffer.sample(1, 0, slice(2, 3))) == [2]
    assert numbers(buffer.sample(1, 0, slice(3, 4))) == [4]  # 0, 1, 3, 4, ... are left
    assert sorted(numbers(buffer.sample(3, 0, slice(0, 3)))) == [0, 1, 3]


def test_a_range_is_drawn_from_uniformly_and_weighs_one() -> None:
    buffer = filled(4)
    buffer.update_priorities(np.arange(4), np.array([1e-3, 1.0, 10.0, 1000.0]))
    counts: Counter[int] = Counter()
    for _ in range(2000):
        drawn = buffer.sample(1, 0, slice(0, 2))
        counts.update(numbers(drawn))
        assert drawn[0]["IS"] == 1.0
    assert counts.keys() == {0, 1}
    assert abs(counts[0] - 1000) < 150  # 6.7 standard deviations


# ------------------------------------------------------------------------------------------ limits


def test_min_fill() -> None:
    buffer = filled(4, min_fill=5)
    assert buffer.sample(1, 0) is None
    assert buffer.sample(1, 0, slice(None)) is None
    assert buffer.sample_batch(1, 0) is None
    buffer.push({"n": 4})
    assert len(buffer.sample(1, 0)) == 1


def test_a_draw_of_nothing() -> None:
    buffer = filled(3)
    assert buffer.sample(0, 0) == []
    with pytest.raises(BufferContractError, match="default_experiment/buffer: cannot draw -1"):
        buffer.sample(-1, 0)
    for size in (0, -1):
        with pytest.raises(BufferContractError, match=f"cannot draw {size} items"):
            buffer.sample_batch(size, 0)


def test_max_use() -> None:
    buffer = filled(4, max_use=2)
    used: Counter[int] = Counter()
    while buffer.count():
        used.update(numbers(buffer.sample(1, 0)))
    assert used == {0: 2, 1: 2, 2: 2, 3: 2}
    assert buffer.sample(1, 0) is None
    buffer.push({"n": 9})  # the place of a used item is used again, from zero
    assert buffer.sample(1, 0)[0]["use"] == 1


def test_max_use_within_one_draw() -> None:
    """A draw may name an item more than once; it is gone afterwards all the same."""
    buffer = filled(2, max_use=1)
    buffer.update_priorities(np.array([0, 1]), np.array([1e6, 1e-6]))
    assert numbers(buffer.sample(2, 0)) == [0, 0]
    assert buffer.count() == 1
    assert numbers(buffer.sample(1, 0)) == [1]


def test_max_staleness() -> None:
    buffer = advanced(max_staleness=6)  # dropped at 6, as in DI-engine
    buffer.push([{"n": n, "collect_iter": n} for n in range(4)])
    buffer.push([{"n": 4, "collect_iter": -1}])  # not known: never stale
    assert len(buffer.sample(1, 5)) == 1
    assert buffer.count() == 5
    assert buffer.sample(4, 7) is None  # 0 and 1 are 7 and 6 iterations old
    assert buffer.count() == 3
    assert set(numbers(buffer.sample(3, 7, slice(None)))) == {2, 3, 4}
    assert numbers(buffer.sample(1, 10_000)) == [4]


def test_all_items_are_looked_through_only_where_one_may_be_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes time for each of them; here they are overwritten before they are stale."""
    buffer, looks = advanced(8, max_staleness=6), list[int]()
    living = buffer._index.living
    for now in range(20):
        monkeypatch.setattr(buffer._index, "living", lambda now=now: looks.append(now) or living())
        buffer.push([{"n": now, "collect_iter": now}, {"n": now, "collect_iter": -1}])
        assert buffer.why_not_sample(1, now) == ""
    assert looks == [6, 9, 12, 15, 18]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_items_of_any_age_in_any_order_are_dropped_in_time(one_by_one: bool) -> None:
    """Also those of a file."""
    rng, buffer, made = np.random.default_rng(3), advanced(64, max_staleness=9), list[int]()
    for now in range(100):
        made_at = np.where(rng.random(8) < 0.3, -1, now - rng.integers(0, 12, 8)).clip(-1).tolist()
        items = [{"n": one, "collect_iter": one} for one in made_at]
        for some in [[item] for item in items] if one_by_one else [items]:
            buffer.push(some[0] if one_by_one else some)
        if now % 30 == 29:
            state, buffer = buffer.state_dict(), advanced(64, max_staleness=9)
            buffer.load_state_dict(state)
        assert buffer.why_not_sample(1, now) == ""
        made += made_at
        here = numbers(buffer.sample(buffer.count(), now, slice(None)))
        assert sorted(here) == sorted(one for one in made[-64:] if one < 0 or now - one < 9)


def test_evict() -> None:
    buffer = filled(6)
    for before_id, left in [(0, 6), (-1, 6), (2, 4), (1, 4), (5, 1), (100, 0), (3, 0)]:
        buffer._index.evict(before_id)
        assert buffer.count() == left
    buffer.push([{"n": 6}, {"n": 7}])
    assert set(ids_of(buffer)) == {6, 7}


# -------------------------------------------------------------------------------------- priorities


def test_new_items_get_the_largest_priority_so_far() -> None:
    buffer = filled(2)
    buffer.update_priorities(np.array([0]), np.array([3.0]))
    buffer.push([{"n": 2}, {"n": 3}])
    assert {n: round(d["priority"], 6) for n, d in ids_of(buffer).items()} == {
        0: 3.0, 1: 1.0, 2: 3.0, 3: 3.0,
    }  # fmt: skip


def test_priority_of_an_item_that_says_none() -> None:
    buffer = advanced()
    buffer.push([{"text": "", "n": 0, "priority": None}, {"text": "", "n": 1, "priority": 4.0}])
    assert {n: round(d["priority"], 6) for n, d in ids_of(buffer).items()} == {0: 1.0, 1: 4.0}


def test_update_by_the_seeds_form() -> None:
    buffer = filled(3)
    buffer.update(
        {
            "replay_unique_id": ["buffer_0", "buffer_2"],
            "replay_buffer_idx": [0, 2],
            "priority": [0.25, 7],
        }
    )
    priorities = {n: round(d["priority"], 6) for n, d in ids_of(buffer).items()}
    assert priorities == {0: 0.25, 1: 1.0, 2: 7.0}


@pytest.mark.parametrize("form", ["dicts", "columns"])
def test_an_item_of_priority_zero_leaves_the_others_their_weights(form: str) -> None:
    """DI-engine's are (1e-5 / 1.00001) ** alpha, for a beta of 1."""
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 64, "beta": 1.0, "anneal_step": 0})
    buffer.push([{"n": float(n)} for n in range(64)])
    ids = [f"buffer_{n}" for n in range(64)]
    named = {"replay_unique_id": ids} if form == "dicts" else {"unique_ids": np.arange(64)}
    buffer.update({**named, "priority": [0.0] + [1.0] * 63})
    weights = [one["IS"] for one in buffer.sample(32, 0) or [] if one["n"] > 0]
    assert weights == pytest.approx([(1e-5 / 1.00001) ** 0.6] * len(weights), rel=1e-4)
    with pytest.raises(BufferContractError, match="negative"):
        buffer.update({**named, "priority": [-1e-6] * 64})


@pytest.mark.parametrize("name", ["buffer_0", "buffer_99", "other_11", "buffer_-1", "buffer", ""])
def test_update_passes_over_ids_that_are_not_here(name: str) -> None:
    """Evicted, never given out, of another buffer, or no id at all."""
    buffer = filled(12)  # 4 to 11 are here; 0 lay where 8 lies now
    buffer.update({"replay_unique_id": [name], "replay_buffer_idx": [0], "priority": [50.0]})
    assert {round(d["priority"], 6) for d in ids_of(buffer).values()} == {1.0}
    buffer.push({"n": 12})
    assert ids_of(buffer)[12]["priority"] == pytest.approx(1.0)


def test_ids_of_before_a_clear_name_nothing() -> None:
    buffer = filled(3)
    buffer.clear()
    buffer.push([{"n": n} for n in range(3)])
    assert buffer.update_priorities(np.arange(3), np.full(3, 9.0)) == 0


def test_update_says_how_many_were_here() -> None:
    buffer = filled(12, max_use=1)
    buffer.sample(1, 0, slice(0, 1))  # 4 is used up
    told = buffer.update_priorities(np.array([3, 4, 5, 6, 12, -1]), np.full(6, 2.0))
    assert told == 2
    assert buffer.update_priorities(np.zeros(0, np.int64), np.zeros(0)) == 0


def test_of_repeated_ids_the_last_counts() -> None:
    buffer = filled(2)
    buffer.update_priorities(np.array([1, 1]), np.array([5.0, 2.0]))
    assert ids_of(buffer)[1]["priority"] == pytest.approx(2.0)


@pytest.mark.parametrize("wrong", [[-0.1, 1.0], [float("nan"), 1.0], [float("inf"), 1.0], [1.0]])
def test_bad_priorities_are_refused_whole(wrong: list[float]) -> None:
    buffer = filled(2)
    with pytest.raises(BufferContractError, match="priorit"):
        buffer.update_priorities(np.arange(2), np.array(wrong))
    assert {d["priority"] for d in ids_of(buffer).values()} == {1.0}


def test_a_priority_of_zero_is_still_drawn() -> None:
    buffer = filled(1)
    buffer.update_priorities(np.array([0]), np.array([0.0]))
    assert numbers(buffer.sample(1, 0)) == [0]


# ----------------------------------------------------------------------------------------- batches


def test_a_batch_and_a_list_are_the_same_draw() -> None:
    by_list, by_batch = filled(8), filled(8)
    drawn, batch = by_list.sample(5, 3), by_batch.sample_batch(5, 3)
    assert batch.columns["n"].tolist() == numbers(drawn)
    assert [f"buffer_{n}" for n in batch.drawn.unique_ids] == [d["replay_unique_id"] for d in drawn]
    assert batch.drawn.weights.tolist() == pytest.approx([d["IS"] for d in drawn])
    assert uniform().sample_batch(1, 0) is None
