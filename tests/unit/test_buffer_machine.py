"""The prioritized buffer against a plain-Python model: any calls, in any order."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from fakes.moving_machine import MovingMachine
from hpcdi.errors import BufferContractError
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer

CAPACITY = 7
INF = float("inf")
LIKE = {"n": 0, "collect_iter": 0}

priorities = st.none() | st.floats(1e-4, 100.0)
iterations = st.integers(-1, 12)


@dataclass
class Item:
    n: int
    made_at: int
    priority: float
    use: int = 0


@dataclass
class Model:
    """What the buffer should hold: unique id -> item, the oldest first."""

    items: dict[int, Item] = field(default_factory=dict)
    pushed: int = 0
    largest: float = 1.0

    def push(self, made_at: int, priority: float | None) -> None:
        priority = self.largest if priority is None else priority
        self.items[self.pushed] = Item(self.pushed, made_at, priority)
        self.items.pop(self.pushed - CAPACITY, None)
        self.pushed += 1

    def note(self, given: list[float | None]) -> None:
        """Priorities count for later items, not for those of the same push."""
        self.largest = max([self.largest, *(p for p in given if p is not None)])


def check_valid(buffer: Any, model: Model) -> None:
    """Counts, ids and trees of the buffer agree with each other and with the model."""
    index, ring = buffer._index, buffer._ring
    sampler, slots = index._sampler, index.living()
    assert buffer.count() == index.count() == len(slots) == len(model.items)
    assert buffer.push_count == model.pushed
    assert [int(slot) for slot in slots] == [n % CAPACITY for n in model.items]
    assert len(ring) == ring.pushed - ring.first <= CAPACITY
    assert all(ring.first <= n < ring.pushed for n in model.items)
    mass = sampler.mass()
    assert np.flatnonzero(mass).tolist() == sorted(n % CAPACITY for n in model.items)
    assert index._use[slots].tolist() == [item.use for item in model.items.values()]
    assert index._made_at[slots].tolist() == [item.made_at for item in model.items.values()]
    if buffer._prioritized:
        expected = [item.priority for item in model.items.values()]
        assert sampler.priority(slots) == pytest.approx(expected)
        assert index.max_priority == pytest.approx(model.largest)
        *_, total, smallest = sampler._tree.draw(np.zeros(1))
        assert total == pytest.approx(mass.sum())
        assert smallest == (mass[mass > 0].min() if model.items else INF)


class BufferMachine(MovingMachine):
    """Limits are set by the subclasses below."""

    limits: ClassVar[dict[str, float]] = {}
    prioritized: ClassVar[bool] = True
    alpha: float = 0.6

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.model = Model()
        self.buffer = self.make(seed)
        self.folder = tempfile.TemporaryDirectory()

    def make(self, seed: int) -> Any:
        return AdvancedReplayBuffer(
            {"replay_buffer_size": CAPACITY, "alpha": self.alpha, **self.limits},
            rng=np.random.default_rng(seed), prioritized=self.prioritized,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ pushing

    @rule(made_at=iterations, priority=priorities)
    def push_one(self, made_at: int, priority: float | None) -> None:
        self.buffer.push(self.item(self.model.pushed, made_at, priority))
        self.model.push(made_at, priority)
        self.model.note([priority])

    @rule(marks=st.lists(st.tuples(iterations, priorities), max_size=2 * CAPACITY + 2))
    def push_list(self, marks: list[tuple[int, float | None]]) -> None:
        first = self.model.pushed
        self.buffer.push([self.item(first + k, *mark) for k, mark in enumerate(marks)])
        for made_at, priority in marks:
            self.model.push(made_at, priority)
        self.model.note([priority for _, priority in marks])

    @rule(made_at=iterations, given=st.lists(st.floats(1e-4, 100.0), max_size=CAPACITY))
    def push_columns(self, made_at: int, given: list[float]) -> None:
        numbers = np.arange(self.model.pushed, self.model.pushed + len(given))
        columns = {"n": numbers, "collect_iter": np.full(len(given), made_at)}
        ids = self.buffer.push_columns(columns, made_at, np.array(given))
        assert list(ids) == numbers.tolist()
        for priority in given:
            self.model.push(made_at, priority)
        self.model.note(list(given))

    @precondition(lambda self: self.model.pushed > 0)
    @rule(wrong=st.sampled_from([{"m": 1}, {**LIKE, "n": "text"}, {**LIKE, "priority": -1.0}, 3]))
    def push_refused(self, wrong: Any) -> None:
        # an empty buffer that has been cleared takes any form: nothing to differ from
        if self.buffer._ring.store is not None:
            with pytest.raises(BufferContractError):
                self.buffer.push([self.item(0, 0, None), wrong])

    @staticmethod
    def item(n: int, made_at: int, priority: float | None) -> dict[str, Any]:
        return {"n": n, "collect_iter": made_at, "priority": priority}

    # ------------------------------------------------------------------------------------ drawing

    def may_draw(self, size: int, now: int) -> bool:
        stale = self.limits.get("max_staleness", INF)
        for n, item in list(self.model.items.items()):
            if item.made_at >= 0 and now - item.made_at >= stale:
                del self.model.items[n]
        return len(self.model.items) >= max(size, self.limits.get("min_fill", 1))

    def take(self, ids: list[int]) -> None:
        for n in ids:
            self.model.items[n].use += 1
        for n in set(ids):
            if self.model.items[n].use >= self.limits.get("max_use", INF):
                del self.model.items[n]

    @rule(size=st.integers(1, CAPACITY + 1), now=st.integers(0, 12))
    def sample(self, size: int, now: int) -> None:
        drawn = self.buffer.sample(size, now)
        assert (drawn is not None) == self.may_draw(size, now)
        if drawn is None:
            return
        ids = [int(d["replay_unique_id"].rpartition("_")[2]) for d in drawn]
        assert len(ids) == size
        for n, d in zip(ids, drawn, strict=True):
            item = self.model.items[n]
            assert (d["n"], d["replay_buffer_idx"]) == (n, n % CAPACITY)
            assert d["staleness"] == (now - item.made_at if item.made_at >= 0 else -1)
            assert d["use"] == item.use + ids.count(n)
            assert 0 < d["IS"] <= 1
            if self.prioritized:
                assert d["priority"] == pytest.approx(item.priority)
        self.take(ids)

    @rule(size=st.integers(1, CAPACITY + 1), now=st.integers(0, 12))
    def sample_batch(self, size: int, now: int) -> None:
        batch = self.buffer.sample_batch(size, now)
        if self.buffer._ring.store is None:
            assert batch is None
            return
        assert (batch is not None) == self.may_draw(size, now)
        if batch is not None:
            assert batch.columns["n"].tolist() == batch.drawn.unique_ids.tolist()
            self.take(batch.drawn.unique_ids.tolist())

    @rule(size=st.integers(1, 4), start=st.integers(-9, 9), stop=st.none() | st.integers(-9, 9))
    def sample_range(self, size: int, start: int, stop: int | None) -> None:
        may = self.may_draw(size, 0)
        among = list(self.model.items)[start:stop]
        drawn = self.buffer.sample(size, 0, slice(start, stop))
        assert (drawn is not None) == (may and bool(among))
        ids = [int(d["n"]) for d in drawn or []]
        assert len(ids) == (0 if drawn is None else size)
        assert set(ids) <= set(among)
        self.take(ids)

    # ------------------------------------------------------------------------------------ changes

    @rule(given=st.lists(st.tuples(st.integers(-3, 60), st.floats(1e-4, 100.0)), max_size=6))
    def update(self, given: list[tuple[int, float]]) -> None:
        """Ids of items that are here, that have gone, and that never were."""
        given = [(n if n >= 40 else self.model.pushed - n, priority) for n, priority in given]
        self.buffer.update(
            {
                "replay_unique_id": [f"buffer_{n}" for n, _ in given],
                "replay_buffer_idx": [n % CAPACITY for n, _ in given],
                "priority": [priority for _, priority in given],
            }
        )
        here = [(n, priority) for n, priority in given if n in self.model.items]
        for n, priority in here:
            self.model.items[n].priority = priority
        self.model.note([priority for _, priority in here])

    @rule(back=st.integers(-2, CAPACITY + 2))
    def evict(self, back: int) -> None:
        before = self.model.pushed - back
        self.buffer._index.evict(before)
        self.model.items = {n: item for n, item in self.model.items.items() if n >= before}

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.model = Model(pushed=self.model.pushed)

    @rule(alpha=st.sampled_from([0.3, 0.6, 1.0]))
    def set_alpha(self, alpha: float) -> None:
        self.alpha = self.buffer.alpha = alpha

    # ------------------------------------------------------------------------------------- saving

    def fill(self, buffer: Any) -> None:
        buffer.push({"other": 1})

    def follow(self, moved: Any) -> None:
        """Both draw alike from now on; go on with the moved one."""
        assert moved.beta == self.buffer.beta
        left, right = (b._draw(3, 0) for b in (self.buffer, moved))
        assert (left is None) == (right is None) == (not self.may_draw(3, 0))
        if left is not None:
            for a, b in zip(left, right, strict=True):
                assert a.tolist() == b.tolist()
            for n in left.unique_ids.tolist():
                self.model.items[n].use += 1
        self.buffer = moved

    def check(self) -> None:
        check_valid(self.buffer, self.model)


class LimitedMachine(BufferMachine):
    limits: ClassVar[dict[str, float]] = {"max_use": 2, "max_staleness": 4, "min_fill": 2}


class UniformMachine(BufferMachine):
    prioritized: ClassVar[bool] = False
    limits: ClassVar[dict[str, float]] = {"max_use": 3}


EFFORT = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestPlain = BufferMachine.TestCase
TestLimited = LimitedMachine.TestCase
TestUniform = UniformMachine.TestCase
TestPlain.settings = TestLimited.settings = TestUniform.settings = EFFORT
