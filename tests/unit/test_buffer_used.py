"""Data files that no item refers to any more: told once, and never too early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.buffers import advanced, maker
from hpcdi.worker.replay_buffer import (
    ElasticReplayBuffer,
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
)
from hpcdi.worker.replay_buffer.ring import UsedData

Make: TypeAlias = Callable[..., Any]

MAKERS: dict[str, Make] = {
    "advanced": advanced,
    "naive": maker(NaiveReplayBuffer),
    "elastic": maker(ElasticReplayBuffer, set_buffer_size=lambda _: 2),
    "sequence": maker(SequenceReplayBuffer),
}
every_buffer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def tracking(make: Make = advanced, size: int = 4, **more: Any) -> Any:
    return make(size, enable_track_used_data=True, **more)


def items(ids: str, **more: Any) -> list[dict[str, Any]]:
    """Items of data files, one a letter."""
    return [{"data_id": name, **more} for name in ids]


@every_buffer
def test_overwritten_items_have_no_data_any_more(make: Make) -> None:
    buffer = tracking(make)
    buffer.push(items("abcd"))
    assert buffer.take_used() == []
    buffer.push(items("e")[0])
    assert buffer.take_used() == ["a"]
    buffer.push(items("fg"))
    assert buffer.take_used() == ["b", "c"]
    assert buffer.take_used() == []


@every_buffer
def test_data_of_several_items_go_with_the_last_of_them(make: Make) -> None:
    buffer = tracking(make)
    buffer.push(items("aaba"))
    buffer.push(items("cc"))
    assert buffer.take_used() == []
    buffer.push(items("c"))
    assert buffer.take_used() == ["b"]
    buffer.push(items("c"))
    assert buffer.take_used() == ["a"]


@every_buffer
def test_data_that_come_again_are_not_used(make: Make) -> None:
    """In the push that overwrites them, or later, before anybody asked."""
    buffer = tracking(make, 2)
    buffer.push(items("ab"))
    buffer.push(items("ab"))
    assert buffer.take_used() == []
    buffer.push(items("cd"))
    buffer.push(items("a"))
    assert buffer.take_used() == ["b", "c"]  # d and a are here
    buffer.push(items("a")[0])
    buffer.push(items("b")[0])
    assert buffer.take_used() == ["d"]


@every_buffer
def test_more_at_once_than_fit(make: Make) -> None:
    """Those that never found a place are used too."""
    buffer = tracking(make, 2)
    buffer.push(items("abacdb"))
    assert sorted(buffer.take_used()) == ["a", "c"]
    buffer.clear()
    assert sorted(buffer.take_used()) == ["b", "d"]


@every_buffer
@pytest.mark.parametrize("end", ["clear", "close"])
def test_nothing_is_left_after_the_end(make: Make, end: str) -> None:
    buffer = tracking(make)
    buffer.push(items("aabcde"))
    getattr(buffer, end)()
    assert sorted(buffer.take_used()) == ["a", "b", "c", "d", "e"]
    buffer.push(items("xyzuv"))
    assert buffer.take_used() == ["x"]


@every_buffer
@pytest.mark.parametrize("by_file", [False, True])
def test_a_loaded_state_takes_the_place_of_the_items(
    make: Make, by_file: bool, tmp_path: Path
) -> None:
    saved, buffer = tracking(make), tracking(make)
    saved.push(items("-abc"))
    saved.push(items("d"))
    buffer.push(items("bxby"))
    if by_file:
        saved.save_data(tmp_path / "b.h5")
        buffer.load_data(tmp_path / "b.h5")
    else:
        buffer.load_state_dict(saved.state_dict())
    assert sorted(buffer.take_used()) == ["x", "y"]  # b is here again
    buffer.push(items("----"))
    assert sorted(buffer.take_used()) == ["a", "b", "c", "d"]


@every_buffer
@pytest.mark.parametrize("ids", [[0, 1, 2, 0], [1.5, 2.5, 3.5, 1.5], list("abca")])
def test_an_id_may_be_a_number(make: Make, ids: list[Any]) -> None:
    """One by one or at once; it is told as a text."""
    for one_by_one in (False, True):
        buffer = tracking(make, 2)
        pushed = [{"data_id": each, "n": 3} for each in ids]
        for part in pushed if one_by_one else [pushed]:
            buffer.push(part)
        assert buffer.take_used() == [str(ids[1])]


@every_buffer
def test_items_without_data_are_passed_over(make: Make) -> None:
    buffer = tracking(make, 2)
    buffer.push([{"text": "", "data_id": None}, {"text": ""}, *items("a"), {"text": ""}])
    buffer.push([{"text": ""}, {"text": ""}])
    assert buffer.take_used() == ["a"]
    buffer = tracking(make, 2)
    buffer.push([{"n": n} for n in range(9)])
    assert buffer.take_used() == []
    assert buffer.sample_batch(*([1, 1] if make is MAKERS["sequence"] else [1, 0])) is not None


@every_buffer
def test_nothing_is_told_without_the_setting(make: Make) -> None:
    buffer = make(2)
    buffer.push(items("abcdef"))
    buffer.clear()
    assert buffer.take_used() == []


@every_buffer
def test_a_refused_item_changes_nothing(make: Make) -> None:
    """What cannot be copied is no reason to forget the item in whose place it should lie."""
    buffer = tracking(make, 2, deepcopy=True)
    buffer.push(items("ab"))
    with pytest.raises(TypeError):
        buffer.push({"data_id": "c", "lock": (n for n in range(2))})
    assert buffer.take_used() == []
    drawn = buffer.sample(*([2, 1] if make is MAKERS["sequence"] else [2]), 0)
    assert None not in drawn


# -------------------------------------------------------------------- the prioritized buffer's ways


def test_used_up() -> None:
    buffer = tracking(max_use=2)
    buffer.push(items("aab"))
    told: list[str] = []
    while buffer.count():
        count = buffer.count()
        buffer.sample(1, 0)
        told += buffer.take_used()
        assert len(told) == len(set(told)) <= 3 - buffer.count()
        assert count - 1 <= buffer.count()
    assert sorted(told) == ["a", "b"]
    buffer.push(items("cdef"))  # in the place of items whose data are told already
    assert buffer.take_used() == []


def test_stale() -> None:
    buffer = tracking(max_staleness=6)
    for n, name in enumerate("aba"):
        buffer.push(items(name, collect_iter=n))
    buffer.sample(1, 6)
    assert buffer.take_used() == []  # one a is left
    buffer.sample(1, 7)
    assert buffer.take_used() == ["b"]
    buffer.sample(1, 8)
    assert buffer.take_used() == ["a"]


def test_evicted() -> None:
    buffer = tracking()
    buffer.push(items("aabcdde"))
    assert buffer.take_used() == ["a", "b"]
    buffer._index.evict(5)
    assert buffer.take_used() == ["c"]
    buffer._index.evict(5)
    buffer._index.evict(100)
    assert buffer.take_used() == ["d", "e"]
    buffer.push(items("fghij"))
    assert buffer.take_used() == ["f"]


# -------------------------------------------------------------------------------------- episodes


@pytest.mark.parametrize("steps", [1, 700])
def test_data_of_episodes(steps: int) -> None:
    """Also as the room for transitions grows: no item is counted twice."""
    buffer = tracking(maker(EpisodeReplayBuffer), 2)
    for name in "abca":
        buffer.push([[{"data_id": name}] * steps])
    assert buffer.take_used() == ["b"]
    buffer.push([items("de")])
    assert buffer.take_used() == ["c"]
    buffer.close()
    assert sorted(buffer.take_used()) == ["a", "d", "e"]


# ------------------------------------------------------------------------------------- in any order


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.text("abcd", max_size=7).map(lambda ids: ("push", ids)),
            st.sampled_from("abcd").map(lambda name: ("one", name)),
            st.integers(1, 3).map(lambda size: ("sample", size)),
            st.integers(0, 5).map(lambda back: ("evict", back)),
            st.sampled_from([("clear", 0), ("move", 0), ("take", 0)]),
        ),
        max_size=30,
    )
)
def test_told_when_the_last_item_has_gone_and_not_before(calls: list[tuple[str, Any]]) -> None:
    """What is told is what was here since the last time, and is not here now."""
    buffer = tracking(max_use=2)
    known: set[str] = set()
    for name, argument in calls:
        if name == "push":
            buffer.push(items(argument))
            known |= set(argument)
        elif name == "one":
            buffer.push(items(argument)[0])
            known.add(argument)
        elif name == "sample":
            buffer.sample(argument, 0)
        elif name == "evict":
            buffer._index.evict(buffer._ring.pushed - argument)
        elif name == "clear":
            buffer.clear()
        elif name == "move":
            buffer.load_state_dict(buffer.state_dict())
        store, slots = buffer._ring.store, buffer._index.living().tolist()
        here = {store.peek(slot)["data_id"] for slot in slots}
        if name == "take":
            assert sorted(buffer.take_used()) == sorted(known - here)
            known = here
    buffer.close()
    assert sorted(buffer.take_used()) == sorted(known)


def test_what_stays_is_not_looked_through() -> None:
    """With `start`, each push and each draw of a large buffer asks what has gone."""

    class Users(Counter[str]):
        asked = 0

        def __contains__(self, data_id: object) -> bool:
            self.asked += 1
            return super().__contains__(data_id)

    used = UsedData()
    used._users = users = Users()
    for n in range(100):
        used.arrive({"data_id": n})
    used.leave({"data_id": 7})
    users.asked = 0
    assert used.take() == ["7"]
    assert users.asked == 1
    assert used.take_new() == [str(n) for n in range(100) if n != 7]


def test_ids_of_columns_are_not_followed() -> None:
    buffer = tracking(maker(NaiveReplayBuffer), 2)
    buffer.push({"data_id": np.arange(5)}, columns=True)
    buffer.clear()
    assert buffer.take_used() == []


# ------------------------------------------------------------------------------- files as a library


def test_after_a_start_files_that_nobody_names_are_removed(tmp_path: Path) -> None:
    names = [tmp_path / name for name in "abcde"]
    for name in names:
        name.write_text("data")
    buffer = tracking(size=2)
    buffer.push([{"data_id": str(name)} for name in names[:3]])
    assert all(name.exists() for name in names), "nothing is removed unless told to"
    buffer.start()
    buffer.push({"data_id": str(names[3])})
    assert [name.exists() for name in names] == [False, False, True, True, True]
    buffer.close()
    assert [name.exists() for name in names] == [False, False, False, False, True]
