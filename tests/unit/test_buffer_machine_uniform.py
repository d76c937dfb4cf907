"""The naive buffer, those of sequences and of episodes, against models: any calls, in any order."""

from __future__ import annotations

import tempfile
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from fakes.moving_machine import MovingMachine
from hpcdi.errors import BufferContractError
from hpcdi.worker.replay_buffer import EpisodeReplayBuffer, NaiveReplayBuffer, SequenceReplayBuffer

CAPACITY = 7

sizes = st.integers(1, CAPACITY + 1)
ends = st.none() | st.integers(-9, 9)
ranges = st.none() | st.builds(slice, ends, ends)
steps = st.sampled_from([None, 1, 2, -1, -3])


class UniformMachine(MovingMachine):
    """What the machines share: `here` are the model's items, the oldest first, [id, ...] each."""

    kind: ClassVar[Any]
    capacity: ClassVar[int] = CAPACITY

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.here: list[Any] = []
        self.pushed = self.origin = 0
        self.buffer = self.make(seed)
        self.folder = tempfile.TemporaryDirectory()

    def make(self, seed: int) -> Any:
        cfg = {"replay_buffer_size": self.capacity}
        return self.kind(cfg, rng=np.random.default_rng(seed))

    def note(self, *items: Any) -> None:
        """Items were pushed."""
        self.here = [*self.here, *items][-self.capacity :]
        self.pushed += len(items)

    def draw(self) -> Any:
        """Something that tells which random numbers come next; None of an empty buffer."""
        raise NotImplementedError

    def drawn(
        self, size: int, among: slice | None, replace: bool, batch: bool, allowed: int
    ) -> Any:
        """What is drawn of those `allowed`; None exactly when they are not enough."""
        draw = self.buffer.sample_batch if batch else self.buffer.sample
        drawn = draw(size, 0, sample_range=among, replace=replace)
        assert (drawn is not None) == (allowed >= (1 if replace else size))
        return drawn

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.here, self.origin = [], self.pushed

    def follow(self, moved: Any) -> None:
        """Both draw alike from now on; go on with the moved one."""
        drawn = self.draw()
        self.buffer = moved
        assert self.draw() == drawn
        assert (drawn is None) == (not self.here)

    def check(self) -> None:
        assert self.buffer.count() == len(self.here)
        assert self.buffer.push_count == self.pushed - self.origin
        self.check_valid()

    def check_valid(self) -> None:
        ring = self.buffer._ring
        assert [ring.first, ring.pushed] == [self.pushed - len(self.here), self.pushed]
        if self.here:
            found = self.buffer._ring.store.read(ring.slots())
            assert [int(item["n"]) for item in found] == [n for n, *_ in self.here]


class NaiveMachine(UniformMachine):
    kind = NaiveReplayBuffer

    @rule()
    def push_one(self) -> None:
        self.buffer.push({"n": self.pushed})
        self.note((self.pushed,))

    @rule(count=st.integers(0, 2 * CAPACITY + 2), columns=st.booleans())
    def push_many(self, count: int, columns: bool) -> None:
        numbers = range(self.pushed, self.pushed + count)
        if columns:
            self.buffer.push({"n": np.array(numbers, dtype=np.int64)}, columns=True)
        else:
            self.buffer.push([{"n": n} for n in numbers])
        self.note(*((n,) for n in numbers))

    @rule(wrong=st.sampled_from([{"m": 1}, {"n": "text"}, {"n": 0.5}]), columns=st.booleans())
    def push_refused(self, wrong: Any, columns: bool) -> None:
        if self.buffer._ring.store is not None:
            with pytest.raises(BufferContractError):
                self.buffer.push({n: [v] for n, v in wrong.items()} if columns else wrong,
                                 columns=columns)  # fmt: skip
            for pushed in ([{"n": 0}, wrong], 3, "text", None):
                with pytest.raises(BufferContractError):
                    self.buffer.push(pushed)

    @rule(size=sizes, among=ranges, step=steps, replace=st.booleans(), batch=st.booleans())
    def sample(
        self, size: int, among: slice | None, step: int | None, replace: bool, batch: bool
    ) -> None:
        if among is not None:
            among = slice(among.start, among.stop, step)
        allowed = [n for (n,) in (self.here if among is None else self.here[among])]
        drawn = self.drawn(size, among, replace, batch, len(allowed))
        if drawn is None:
            return
        if batch:
            numbers = drawn.columns["n"].tolist()
            assert drawn.drawn.unique_ids.tolist() == numbers
            assert drawn.drawn.slots.tolist() == [n % CAPACITY for n in numbers]
        else:
            numbers = [int(item["n"]) for item in drawn]
        assert len(numbers) == size
        assert set(numbers) <= set(allowed)
        assert replace or len(set(numbers)) == size

    def draw(self) -> Any:
        drawn = self.buffer.sample_batch(5, replace=True)
        return None if drawn is None else drawn.columns["n"].tolist()

    def fill(self, buffer: Any) -> None:
        buffer.push({"other": 1})


class SequenceMachine(UniformMachine):
    """The model's items are [number, whether it ends its episode, environment]."""

    kind = SequenceReplayBuffer

    @rule(
        marks=st.lists(st.tuples(st.booleans(), st.integers(0, 1)), max_size=2 * CAPACITY + 2),
        form=st.sampled_from(["one by one", "list", "columns"]),
    )
    def push(self, marks: list[tuple[bool, int]], form: str) -> None:
        new = [(self.pushed + k, done, env) for k, (done, env) in enumerate(marks)]
        items = [{"n": n, "done": done, "env_id": env} for n, done, env in new]
        if form == "columns":
            kinds = {"n": np.int64, "done": bool, "env_id": np.int64}
            columns = {k: np.array([i[k] for i in items], dtype=t) for k, t in kinds.items()}
            self.buffer.push(columns, columns=True)
        else:
            for part in items if form == "one by one" else [items]:
                self.buffer.push(part)
        self.note(*new)

    def whole(self, length: int, among: slice | None) -> list[list[int]]:
        """All sequences that may be drawn."""
        here = self.here if among is None else self.here[among]
        runs = [here[k : k + length] for k in range(len(here) - length + 1)]
        return [
            [n for n, _, _ in run]
            for run in runs
            if len({env for *_, env in run}) == 1 and not any(done for _, done, _ in run[:-1])
        ]

    @rule(batch=st.integers(1, 4), length=st.integers(1, 5), among=ranges,
          replace=st.booleans(), columns=st.booleans())  # fmt: skip
    def sample(
        self, batch: int, length: int, among: slice | None, replace: bool, columns: bool
    ) -> None:
        allowed = self.whole(length, among)
        draw = self.buffer.sample_batch if columns else self.buffer.sample
        drawn = draw(batch, length, 0, sample_range=among, replace=replace)
        assert (drawn is not None) == (len(allowed) >= (1 if replace else batch))
        if drawn is None:
            return
        if columns:
            numbers = drawn.columns["n"].tolist()
            assert drawn.drawn.unique_ids.tolist() == numbers
        else:
            numbers = [[int(item["n"]) for item in run] for run in drawn]
        assert len(numbers) == batch
        assert all(run in allowed for run in numbers)
        assert replace or len({run[0] for run in numbers}) == batch

    def draw(self) -> Any:
        drawn = self.buffer.sample_batch(5, 1, replace=True)
        return None if drawn is None else drawn.columns["n"].tolist()

    def fill(self, buffer: Any) -> None:
        buffer.push([{"done": True}, {"done": False}])


class EpisodeMachine(UniformMachine):
    """The model's items are [number, length]; lengths are such that rows outgrow their ring."""

    kind = EpisodeReplayBuffer
    capacity = 4

    @rule(
        lengths=st.lists(st.sampled_from([1, 2, 3, 5, 8, 300, 600]), max_size=6),
        columns=st.booleans(),
    )
    def push(self, lengths: list[int], columns: bool) -> None:
        new = [(self.pushed + k, length) for k, length in enumerate(lengths)]
        if columns:
            self.buffer.push([{"n": np.full(m, n), "t": np.arange(m)} for n, m in new])
        else:
            self.buffer.push([[{"n": n, "t": t} for t in range(m)] for n, m in new])
        self.note(*new)

    @rule(wrong=st.sampled_from([[[]], [[{"n": 0}]], {"n": np.arange(2), "t": np.arange(3)}]))
    def push_refused(self, wrong: Any) -> None:
        if self.buffer._ring.store is not None:
            with pytest.raises(BufferContractError):
                self.buffer.push(wrong)

    @rule(size=sizes, among=ranges, replace=st.booleans(), batch=st.booleans())
    def sample(self, size: int, among: slice | None, replace: bool, batch: bool) -> None:
        allowed = self.here if among is None else self.here[among]
        drawn = self.drawn(size, among, replace, batch, len(allowed))
        if drawn is None:
            return
        if batch:
            found = list(zip(drawn.unique_ids.tolist(), drawn.lengths.tolist(), strict=True))
            longest = drawn.lengths.max()
            assert drawn.columns["t"].shape == (size, longest)
            for row, (number, length) in enumerate(found):
                rest = [0] * (longest - length)
                assert drawn.columns["t"][row].tolist() == [*range(length), *rest]
                assert drawn.columns["n"][row].tolist() == [number] * length + rest
        else:
            found = [(int(each[0]["n"]), len(each)) for each in drawn]
            for each, (number, length) in zip(drawn, found, strict=True):
                told = [(int(item["n"]), int(item["t"])) for item in each]
                assert told == [(number, t) for t in range(length)]
        assert len(found) == size
        assert set(found) <= set(allowed)
        assert replace or len(set(found)) == size

    @rule(size=sizes, length=st.sampled_from([1, 2, 4, 9, 500]), among=ranges)
    def sample_slices(self, size: int, length: int, among: slice | None) -> None:
        allowed = dict(self.here if among is None else self.here[among])
        drawn = self.buffer.sample_batch(size, length=length, sample_range=among)
        assert (drawn is not None) == any(each >= length for each in allowed.values())
        if drawn is not None:
            first = drawn.columns["t"][:, 0]
            assert drawn.lengths.tolist() == [length] * size
            assert (drawn.columns["n"] == drawn.unique_ids[:, None]).all()
            assert (drawn.columns["t"] == first[:, None] + np.arange(length)).all()
            for number, start in zip(drawn.unique_ids.tolist(), first.tolist(), strict=True):
                assert start + length <= allowed[number]

    def draw(self) -> Any:
        drawn = self.buffer.sample_batch(5, length=1)
        return None if drawn is None else [c.tolist() for c in drawn.columns.values()]

    def fill(self, buffer: Any) -> None:
        buffer.push({"other": np.arange(2000)})

    def check_valid(self) -> None:
        lengths, ring = [length for _, length in self.here], self.buffer._ring
        assert self.buffer.episode_len == [len(e) for e in self.buffer._data if e is not None]
        assert sorted(self.buffer.episode_len) == sorted(lengths)
        assert sum(lengths) == len(ring) <= ring.capacity <= 8192
        assert [length for _, length in self.buffer._episodes] == lengths


EFFORT = settings(max_examples=15, stateful_step_count=30, deadline=None)
TestNaive = NaiveMachine.TestCase
TestSequence = SequenceMachine.TestCase
TestEpisode = EpisodeMachine.TestCase
TestNaive.settings = TestSequence.settings = TestEpisode.settings = EFFORT
