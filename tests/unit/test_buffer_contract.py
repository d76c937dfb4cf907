"""What every replay buffer must do: one class of tests, run against each of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fakes.buffers import SIZE, Make, advanced, item, items, maker, number, seen, uniform
from hpcdi.errors import BufferContractError, ConfigError, SnapshotError, UnknownTypeError
from hpcdi.store.state_file import save_state
from hpcdi.worker.replay_buffer import (
    AdvancedReplayBuffer,
    ElasticReplayBuffer,
    EpisodeReplayBuffer,
    IBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
    create_buffer,
    get_buffer_cls,
)

TYPES = {
    "advanced": AdvancedReplayBuffer, "naive": NaiveReplayBuffer, "elastic": ElasticReplayBuffer,
    "sequence": SequenceReplayBuffer, "episode": EpisodeReplayBuffer,
}  # fmt: skip


class SequencesOfOne(SequenceReplayBuffer):
    """Draws items, as the other buffers do."""

    def sample(self, size: int, cur_learner_iter: int) -> Any:  # type: ignore[override]
        return [only for (only,) in super().sample(size, 1, cur_learner_iter) or []] or None


class EpisodesOfOne(EpisodeReplayBuffer):
    """Takes items, each as an episode of its own, and draws them."""

    def push(self, data: Any, *_: Any) -> None:  # type: ignore[override]
        super().push([[each] for each in (data if isinstance(data, list) else [data])])

    def sample(self, size: int, cur_learner_iter: int) -> Any:  # type: ignore[override]
        return [only for (only,) in super().sample(size, cur_learner_iter) or []] or None


MAKERS: dict[str, Make] = {
    "advanced": advanced,
    "advanced, uniform": uniform,
    "naive": maker(NaiveReplayBuffer),
    "elastic": maker(ElasticReplayBuffer, set_buffer_size=lambda _steps: 1000),
    "sequence": maker(SequencesOfOne),
    "episode": maker(EpisodesOfOne),
}
"""Each makes an empty, seeded buffer of a size; a new buffer joins the contract by a line here."""


def sequence(buffer: Any, draws: int = 5) -> list[list[int]]:
    return [[number(drawn) for drawn in buffer.sample(3, 0)] for _ in range(draws)]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
class TestBuffers:
    """Items are dicts of numbers and arrays; see `test_buffer_items` for others."""

    def test_is_a_buffer(self, make: Make) -> None:
        assert isinstance(make(), IBuffer)
        assert make().default_config()["type"] in TYPES

    def test_is_empty_at_first(self, make: Make) -> None:
        buffer = make()
        assert buffer.count() == buffer.push_count == 0
        assert buffer.replay_buffer_size == SIZE
        assert buffer.sample(1, 0) is None

    def test_holds_what_is_pushed(self, make: Make) -> None:
        buffer = make()
        buffer.push(item(0), 0)
        assert (buffer.count(), seen(buffer)) == (1, {0})
        buffer.push(items(1, 4), 0)
        buffer.push([], 0)
        assert (buffer.count(), buffer.push_count) == (4, 4)
        assert seen(buffer) == {0, 1, 2, 3}

    @pytest.mark.parametrize("pushed", [SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 3 * SIZE + 3])
    def test_the_oldest_give_way(self, make: Make, pushed: int) -> None:
        one_by_one, at_once = make(), make()
        for n in range(pushed):
            one_by_one.push(item(n), 0)
        at_once.push(items(0, pushed), 0)
        for buffer in (one_by_one, at_once):
            assert (buffer.count(), buffer.push_count) == (min(pushed, SIZE), pushed)
            assert seen(buffer) == set(range(max(0, pushed - SIZE), pushed))

    def test_a_buffer_of_one(self, make: Make) -> None:
        buffer = make(1)
        buffer.push(items(0, 3), 0)
        assert seen(buffer, 5) == {2}
        assert buffer.sample(2, 0) is None

    def test_none_when_there_are_not_enough(self, make: Make) -> None:
        buffer = make()
        buffer.push(items(0, 3), 0)
        assert buffer.sample(4, 0) is None
        assert len(buffer.sample(3, 0)) == 3

    def test_gives_items_that_are_the_callers_own(self, make: Make) -> None:
        buffer, mine = make(2), items(0, 2)
        buffer.push(mine, 0)
        mine[0]["obs"]["image"][:] = 99  # what was pushed is the buffer's own too
        for drawn in buffer.sample(2, 0):
            drawn["obs"]["image"][:] = 77
            drawn["n"] = -1
        assert seen(buffer) == {0, 1}

    def test_clear(self, make: Make) -> None:
        buffer = make()
        buffer.push(items(0, SIZE + 2), 0)
        buffer.clear()
        counts_on = isinstance(buffer, AdvancedReplayBuffer)  # as with DI-engine
        assert (buffer.count(), buffer.push_count) == (0, SIZE + 2 if counts_on else 0)
        assert buffer.sample(1, 0) is None
        buffer.push({"another": "form"}, 0)  # the next first item decides anew
        assert buffer.count() == 1

    def test_close_drops_everything_and_may_be_repeated(self, make: Make) -> None:
        with make() as buffer:
            buffer.start()
            buffer.push(items(0, 3), 0)
        assert buffer.count() == 0
        buffer.close()

    def test_draws_follow_the_generator(self, make: Make) -> None:
        first, again = make(), make()
        for buffer in (first, again):
            buffer.push(items(0, 20), 0)
        assert sequence(first) == sequence(again)
        assert sequence(first) != sequence(first)

    @pytest.mark.parametrize("pushed", [0, 3, SIZE, 2 * SIZE + 3])
    def test_state_round_trip(self, make: Make, pushed: int, tmp_path: Path) -> None:
        """Empty, partly filled, full, wrapped: the same draws follow, from memory and from file."""
        buffer, from_memory, from_file = make(), make(), make()
        buffer.push(items(0, pushed), 0)
        buffer.sample(2, 0)
        from_file.push(items(50, 55), 0)  # must be gone afterwards
        from_file.sample(3, 0)
        buffer.save_data(tmp_path / "buffer.h5")
        from_memory.load_state_dict(buffer.state_dict())
        from_file.load_data(tmp_path / "buffer.h5")
        for other in (from_memory, from_file):
            assert (other.count(), other.push_count) == (min(pushed, SIZE), pushed)
        if pushed:
            assert sequence(buffer) == sequence(from_memory) == sequence(from_file)
        for other in (buffer, from_memory, from_file):
            other.push(items(pushed, pushed + 3), 0)
        assert sequence(buffer) == sequence(from_memory) == sequence(from_file)

    def test_a_state_is_a_copy(self, make: Make) -> None:
        buffer, before, after = make(), make(), make()
        buffer.push(items(0, 4), 0)
        state = buffer.state_dict()
        buffer.push(items(4, 20), 0)
        before.load_state_dict(state)
        after.load_state_dict(state)
        before.push(items(20, 30), 0)
        assert (after.count(), seen(after)) == (4, {0, 1, 2, 3})

    def test_a_state_of_another_size_is_refused(self, make: Make) -> None:
        buffer = make(SIZE + 1)
        buffer.push(items(0, 2), 0)
        with pytest.raises(BufferContractError, match=f"holds {SIZE} items.* {SIZE + 1} "):
            buffer.load_state_dict(make(SIZE).state_dict())
        assert buffer.count() == 2

    def test_a_bad_file_is_refused(self, make: Make, tmp_path: Path) -> None:
        """Missing, torn, of something else: the error names the path; the buffer stays as it is."""
        buffer, path = make(), tmp_path / "buffer.h5"
        buffer.push(items(0, 2), 0)
        with pytest.raises(SnapshotError, match=r"buffer\.h5"):
            buffer.load_data(path)
        buffer.save_data(path)
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(SnapshotError, match=r"buffer\.h5"):
            buffer.load_data(path)
        save_state(path, "coordinator", 1, {"n": 1})
        with pytest.raises(SnapshotError, match="holds the state of 'coordinator'"):
            buffer.load_data(path)
        assert seen(buffer) == {0, 1}

    def test_threads_may_share_it(self, make: Make) -> None:
        """A smoke test: pushes are counted, no draw is of half an item."""
        buffer, wrong = make(64), list[BaseException]()
        rounds, workers = 60, 4

        def use(worker: int) -> None:
            try:
                for k in range(rounds):
                    start = 1000 * worker + 3 * k
                    buffer.push(items(start, start + 3), 0)
                    drawn = buffer.sample(3, k) or []
                    assert {number(d) % 1000 < 3 * rounds for d in drawn} <= {True}
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=use, args=(n,)) for n in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert wrong == []
        assert (buffer.count(), buffer.push_count) == (64, 3 * rounds * workers)


class TestMakingOne:
    """`create_buffer` and `get_buffer_cls`, from mappings and from frozen settings."""

    @pytest.mark.parametrize("name", TYPES)
    def test_every_type_by_its_name(self, name: str) -> None:
        window = {"set_buffer_size": abs} if name == "elastic" else {}
        buffer: Any = create_buffer({"type": name, "replay_buffer_size": 5, **window})
        assert type(buffer) is TYPES[name] is get_buffer_cls({"type": name})
        assert buffer.replay_buffer_size == 5
        config = buffer.default_config()
        assert (config.type, config.cfg_type) == (name, f"{TYPES[name].__name__}Dict")

    def test_a_deque_gives_back_what_it_was_given(self) -> None:
        """Marks are for learners of priorities; a run makes it like an advanced buffer."""
        for priority in (False, True):
            cfg = {"type": "deque", "priority": priority}
            buffer: Any = create_buffer(cfg, prioritized=True)
            buffer.push(items(0, 12), 0)
            drawn = buffer.sample(12, 0)
            assert len({number(one) for one in drawn}) == 12 or priority
            marks = drawn[0].keys() - item(0).keys()
            assert ("replay_unique_id" in marks) is priority
            assert bool(marks) is priority

    def test_a_deque_that_draws_uniformly_draws_no_item_twice(self) -> None:
        buffer: Any = create_buffer({"type": "deque"})
        buffer.push([{"n": n} for n in range(20)], 0)
        batch = buffer.sample_batch(20, 9)
        assert sorted(batch.columns["n"].tolist()) == list(range(20))

    def test_a_deque_that_draws_uniformly_takes_what_was_drawn_beside_what_was_not(self) -> None:
        """Their marks are no keys of theirs; nor are those of a plain state's items."""
        drawn = AdvancedReplayBuffer({})
        drawn.push(items(0, 5), 0)
        buffer: Any = create_buffer({"type": "deque"})
        buffer.push(drawn.sample(3, 0), 0)
        other: Any = create_buffer({"type": "deque"})
        other.load_state_dict(dict(buffer.state_dict()))
        for one in (buffer, other):
            one.push(items(5, 7), 0)
            assert one.sample(5)[0].keys() == items(0, 1)[0].keys()

    def test_a_deque_takes_priorities_of_its_last_batch(self) -> None:
        buffer: Any = create_buffer({"type": "deque", "priority": True})
        buffer.push(items(0, 100), 0)
        buffer.sample(4)
        slots = buffer.sample_batch(4, 0).drawn.slots.tolist()
        buffer.update({"priority": [9.0] * 4})
        held = [one["priority"] for one in buffer.state_dict()["data"] if one]
        assert {k for k, one in enumerate(held) if one == pytest.approx(9.0)} == set(slots)

    def test_a_deque_takes_priorities_of_its_last_sample(self) -> None:
        buffer: Any = create_buffer({"type": "deque", "priority": True})
        buffer.push(items(0, 12), 0)
        buffer.update({"priority": [5.0]})  # nothing was drawn
        drawn = buffer.sample(size=3, train_iter=5)
        expected = {one["replay_buffer_idx"]: number(one) + 2.0 for one in drawn}
        buffer.update({"priority": [number(one) + 2.0 for one in drawn]})
        buffer.update({"priority": [7.0] * 3})  # they came already
        held = buffer.state_dict()["data"]
        assert [held[k]["priority"] for k in expected] == pytest.approx(list(expected.values()))
        plain: Any = create_buffer({"type": "deque"})
        plain.push(items(0, 3), 0)
        plain.sample(2, train_iter=5)
        plain.update({"priority": [3.0, 4.0]})  # it draws uniformly
        assert len(plain.sample(3)) == 3

    def test_from_a_mapping(self) -> None:
        buffer: Any = create_buffer(
            {"type": "advanced", "replay_buffer_size": 5}, None, instance_name="mine"
        )
        assert isinstance(buffer, AdvancedReplayBuffer)
        buffer.push(item(0))
        assert buffer.sample(1, 0)[0]["replay_unique_id"] == "mine_0"

    def test_from_frozen_settings(self) -> None:
        settings = AdvancedReplayBuffer.Config(replay_buffer_size=5)
        assert get_buffer_cls(settings) is AdvancedReplayBuffer
        buffer: Any = create_buffer(settings)
        assert buffer.replay_buffer_size == 5

    def test_unknown_types_are_errors_of_both_kinds(self) -> None:
        with pytest.raises(UnknownTypeError, match="did you mean 'advanced'"):
            create_buffer({"type": "advnced"})
        with pytest.raises(KeyError):
            get_buffer_cls({"type": "no such"})
        with pytest.raises(ConfigError, match="no_such_module"):
            get_buffer_cls({"type": "advanced", "import_names": ["no_such_module"]})

    def test_all_wrong_settings_are_told_at_once(self) -> None:
        wrong = {"replay_buffer_size": 4, "min_fill": 5, "alpha": -1, "bta": 0.5}
        with pytest.raises(ConfigError) as caught:
            AdvancedReplayBuffer(wrong)
        problems = {problem.path: problem.message for problem in caught.value.problems}
        assert problems["alpha"] == "must be at least 0, not -1"
        assert problems["bta"] == "unknown key; did you mean 'beta'?"
        assert problems["min_fill"] == "is above replay_buffer_size (4)"
