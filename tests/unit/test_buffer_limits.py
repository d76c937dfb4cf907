"""When drawing, or pushing, has to wait: what is enough, how fast, and never forever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.clock import Clock
from hpcdi.errors import ConfigError
from hpcdi.replay.limits import Limits, Traffic
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer

WINDOW = 30


def control(low: float = 0.0, high: float = float("inf"), ratio: float = 1.0) -> dict[str, Any]:
    return {
        "push_sample_rate_limit": {"min": low, "max": high},
        "window_seconds": WINDOW, "sample_min_limit_ratio": ratio,
    }  # fmt: skip


def limits_of(clock: Clock, min_fill: int = 1, **rate: float) -> Limits:
    cfg = {"min_fill": min_fill, "thruput_controller": control(**rate)}
    parsed = AdvancedReplayBuffer.parse_config(cfg)
    return Limits(parsed.thruput_controller, parsed.min_fill, clock)


def buffer_of(**settings: Any) -> AdvancedReplayBuffer:
    return AdvancedReplayBuffer(settings, rng=np.random.default_rng(0))


def items(count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]


def test_traffic_counts_what_is_in_the_window_and_forgets_the_rest() -> None:
    clock = Clock()
    traffic = Traffic(WINDOW, clock)
    traffic.add(pushed=5, drawn=0)
    clock.now += WINDOW / 2
    traffic.add(pushed=1, drawn=7)
    assert (traffic.pushed, traffic.drawn) == (6, 7)
    clock.now += WINDOW / 2 + 1  # adding forgets too
    traffic.add(pushed=2, drawn=0)
    assert (traffic.pushed, traffic.drawn) == (3, 7)
    clock.now += 10 * WINDOW
    traffic.forget()
    assert (traffic.pushed, traffic.drawn) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, WINDOW / 3), st.integers(0, 9), st.integers(0, 9)), max_size=60)
)
def test_traffic_is_the_sum_over_the_window_but_for_a_hundredth(
    events: list[tuple[float, int, int]],
) -> None:
    """What is younger than 99 hundredths of the window counts, what is older than it does not."""
    clock, seen = Clock(), list[tuple[float, int, int]]()
    traffic = Traffic(WINDOW, clock)
    for pause, pushed, drawn in events:
        clock.now += pause
        traffic.add(pushed, drawn)
        seen.append((clock.now, pushed, drawn))
        for k, counted in ((1, traffic.pushed), (2, traffic.drawn)):
            surely = sum(e[k] for e in seen if clock.now - e[0] < 0.989 * WINDOW)
            at_most = sum(e[k] for e in seen if clock.now - e[0] <= WINDOW)
            assert surely <= counted <= at_most


def test_traffic_needs_no_memory_for_each_event() -> None:
    clock = Clock()
    traffic = Traffic(WINDOW, clock)
    for _ in range(20_000):
        clock.now += WINDOW / 5000
        traffic.add(1, 1)
    assert len(traffic._buckets) <= 102
    assert traffic.pushed == pytest.approx(5000, rel=0.02)


def test_without_limits_nothing_has_to_wait() -> None:
    limits = limits_of(Clock())
    assert limits.why_not_draw(1, 1) == ""
    assert limits.why_not_push(10**9) == ""
    limits.note(drawn=10**9)
    assert limits.why_not_draw(64, 64) == limits.why_not_push(1) == ""


def test_drawing_begins_at_min_fill() -> None:
    limits = limits_of(Clock(), min_fill=100)
    assert limits.why_not_draw(1, 99) == "99 items are here, drawing begins at 100 (min_fill)"
    assert limits.why_not_draw(1, 100) == ""


@pytest.mark.parametrize(("ratio", "needed"), [(1.0, 10), (2.5, 25), (0.25, 3), (0.0, 1)])
def test_a_draw_needs_items_in_proportion(ratio: float, needed: int) -> None:
    limits = limits_of(Clock(), ratio=ratio)
    assert limits.why_not_draw(10, needed) == ""
    why = limits.why_not_draw(10, needed - 1)
    assert why.startswith(f"{needed - 1} items are here, ")
    if needed > 1:
        assert why.endswith(f"a draw of 10 needs {needed} (sample_min_limit_ratio)")


def test_drawing_waits_where_too_little_was_pushed() -> None:
    clock = Clock()
    limits = limits_of(clock, low=0.5)
    limits.note(pushed=20)
    assert limits.why_not_draw(40, 1000) == ""
    assert limits.why_not_draw(41, 1000) == (
        "20 items pushed for 41 drawn in 30 s, less than 0.5 for one "
        "(push_sample_rate_limit.min): data come too slowly"
    )
    limits.note(drawn=40)
    assert "20 items pushed for 41 drawn" in limits.why_not_draw(1, 1000)
    limits.note(pushed=1)
    assert limits.why_not_draw(2, 1000) == ""
    assert limits.why_not_push(10**6) == ""  # there is no maximum


def test_pushing_waits_where_too_little_was_drawn() -> None:
    limits = limits_of(Clock(), high=2.0)
    limits.note(pushed=10**6)
    assert limits.why_not_push(1) == ""  # nothing was drawn: it is free
    limits = limits_of(Clock(), high=2.0)
    limits.note(drawn=10)
    assert limits.why_not_push(20) == ""
    assert limits.why_not_push(21) == (
        "21 items pushed for 10 drawn in 30 s, more than 2 for one "
        "(push_sample_rate_limit.max): they are learnt from too slowly"
    )
    limits.note(pushed=20)
    assert "21 items pushed for 10 drawn" in limits.why_not_push(1)
    limits.note(drawn=1)
    assert limits.why_not_push(2) == ""
    assert limits.why_not_draw(1000, 1000) == ""  # there is no minimum


def test_the_window_forgets() -> None:
    clock = Clock()
    limits = limits_of(clock, low=1.0, high=1.0)
    limits.note(pushed=10, drawn=10)
    assert limits.why_not_draw(1, 100) != ""
    assert limits.why_not_push(1) != ""
    clock.now += WINDOW + 1
    assert limits.why_not_push(1) == ""
    assert "0 items pushed for 1 drawn" in limits.why_not_draw(1, 100)


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(0, 4), above=st.floats(0, 2), size=st.integers(1, 64), count=st.integers(1, 64)
)
def test_drawing_and_pushing_never_wait_for_each_other_longer_than_the_window(
    low: float, above: float, size: int, count: int
) -> None:
    """Whoever asks once a second goes on; also where pushes and draws do not fit the rates."""
    clock = Clock()
    limits = limits_of(clock, low=low, high=low + above + 0.01)
    held, moved_at, draws = 0, clock.now, 0
    for _ in range(10 * WINDOW):
        if not limits.why_not_push(count):
            limits.note(pushed=count)
            held, moved_at = held + count, clock.now
        if not limits.why_not_draw(size, held):
            limits.note(drawn=size)
            moved_at, draws = clock.now, draws + 1
        assert clock.now - moved_at <= WINDOW + 1
        clock.now += 1
    fed = count * (WINDOW - 1) >= low * size  # what a window of pushes alone makes room for
    assert draws > 0 or not fed or held < size


@settings(max_examples=40, deadline=None)
@given(low=st.floats(0.1, 2), above=st.floats(0, 2), todo=st.lists(st.booleans(), max_size=80))
def test_who_asks_first_keeps_the_rate(low: float, above: float, todo: list[bool]) -> None:
    """Within one window: never below the minimum by a draw, nor above the maximum by a push."""
    limits, pushed, drawn = limits_of(Clock(), low=low, high=low + above), 0, 0
    for is_push in todo:
        if is_push and not limits.why_not_push(3):
            limits.note(pushed=3)
            pushed += 3
            assert not drawn or pushed <= (low + above) * drawn
        elif not is_push and not limits.why_not_draw(2, 100):
            limits.note(drawn=2)
            drawn += 2
            assert pushed >= low * drawn


def test_a_buffer_says_why_it_gave_nothing() -> None:
    buffer = buffer_of(replay_buffer_size=16, min_fill=4)
    assert buffer.blocked == ""
    buffer.push(items(3))
    assert buffer.sample(1, 0) is None
    assert buffer.blocked == "3 items are here, drawing begins at 4 (min_fill)"
    assert buffer.why_not_sample(1, 0) == buffer.blocked
    buffer.push(items(3))
    assert buffer.sample_batch(7, 0) is None
    assert buffer.blocked == "6 items are here, a draw of 7 needs 7 (sample_min_limit_ratio)"
    assert buffer.sample(6, 0) is not None
    assert buffer.blocked == buffer.why_not_sample(6, 0) == ""
    assert buffer.sample(2, 0, slice(6, 9)) is None
    assert buffer.blocked == "no items in slice(6, 9, None)"


def test_asking_whether_one_may_changes_nothing() -> None:
    buffer = buffer_of(replay_buffer_size=16, thruput_controller=control(low=1.0))
    buffer.push(items(10))
    for _ in range(5):
        assert buffer.why_not_sample(10, 0) == buffer.why_not_push(10**6) == ""
    assert buffer.sample(10, 0) is not None
    assert "10 items pushed for 11 drawn" in buffer.why_not_sample(1, 0)
    assert buffer.sample_batch(1, 0) is None
    assert "data come too slowly" in buffer.blocked


@pytest.mark.parametrize("as_columns", [False, True])
def test_a_buffer_counts_every_way_of_pushing(as_columns: bool) -> None:
    buffer = buffer_of(replay_buffer_size=4, thruput_controller=control(high=1.0))
    buffer.push(items(4))
    buffer.sample(4, 0)
    assert buffer.why_not_push(1) != ""
    assert "5 items pushed for 4 drawn" in buffer.why_not_push(1)
    if as_columns:  # these are always taken
        buffer.push_columns({"n": np.arange(6)})
        buffer.push({"n": np.arange(3)}, columns=True)
        assert "14 items pushed for 4 drawn" in buffer.why_not_push(1)
    else:  # items beyond the rate are not taken, as the predecessor does
        buffer.push(items(8))
        buffer.push({"n": 1})
        assert (buffer.push_count, buffer.count()) == (4, 4)
        assert "5 items pushed for 4 drawn" in buffer.why_not_push(1)
    before = buffer.why_not_push(1)
    buffer.clear()
    assert buffer.why_not_push(1) == before != ""


def test_items_that_may_not_be_drawn_any_more_do_not_count() -> None:
    buffer = buffer_of(replay_buffer_size=8, max_staleness=3)
    buffer.push([{"n": n, "collect_iter": n} for n in range(8)])
    assert buffer.why_not_sample(5, 5) == ""
    assert buffer.why_not_sample(6, 5).startswith("5 items are here")
    assert buffer.sample(1, 100) is None
    assert buffer.blocked.startswith("0 items are here")


@pytest.mark.parametrize(
    ("settings", "path", "words"),
    [
        (
            {"thruput_controller": control(low=3, high=2)},
            "thruput_controller.push_sample_rate_limit.min", "is above max (2)",
        ),
        ({"replay_buffer_size": 5, "min_fill": 6}, "min_fill", "is above replay_buffer_size (5)"),
        (
            {"thruput_controller": {"window_seconds": 0}},
            "thruput_controller.window_seconds", "must be above 0",
        ),
        (
            {"thruput_controller": control(high=0)},
            "thruput_controller.push_sample_rate_limit.max", "must be above 0",
        ),
        (
            {"thruput_controller": control(ratio=-1)},
            "thruput_controller.sample_min_limit_ratio", "must be at least 0",
        ),
    ],
)  # fmt: skip
def test_limits_that_nothing_can_keep_are_problems(
    settings: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        buffer_of(**settings)
    problems = {problem.path: problem.message for problem in caught.value.problems}
    assert words in problems[path]
