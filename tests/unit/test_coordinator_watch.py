"""Whom to look at, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcdi.roles.coordinator.workers import Watch


def test_each_is_due_at_its_earliest_time_until_it_is_put_off() -> None:
    watch = Watch()
    watch.add(3, 5.0)
    watch.add(3, 2.0)
    watch.add(3, 9.0)
    watch.add(1, 2.0)
    assert watch.due(1.9) == []
    assert watch.due(2.0) == [1, 3]
    assert watch.due(2.0) == [1, 3]
    watch.put_off(3, 7.0)
    watch.remove(1)
    assert watch.due(6.9) == [], "the entry of 5.0 is void"
    assert watch.due(7.0) == [3]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=30))
def test_nobody_is_missed(added: list[tuple[int, int]]) -> None:
    watch, earliest = Watch(), dict[int, int]()
    for rank, at in added:
        watch.add(rank, at)
        earliest[rank] = min(at, earliest.get(rank, at))
    for now in range(21):
        assert watch.due(now) == sorted(rank for rank, at in earliest.items() if at <= now)
