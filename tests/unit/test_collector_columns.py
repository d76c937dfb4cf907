"""Recording by columns: whatever the episodes' ends, items are true pieces of single episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.scripted_env import Script, manager, scripts
from hpcdi.policy.base import TrainColumns
from hpcdi.policy.returns import n_step
from hpcdi.store.builder import Segment
from hpcdi.store.rows import RowStore
from hpcdi.types import Array, Columns, RowView, Settings
from hpcdi.worker.collector.loop import ColumnAgent, collect_loop


class CheckingActor:
    """Acts by counting, offers n-step columns, and checks what it is given."""

    def __init__(self, n: int) -> None:
        self._n, self._acted = n, 0

    def act(self, observation: Array, setting: Settings) -> Columns:
        self._acted += 1
        env_num = len(observation)
        return {
            "action": np.full(env_num, self._acted % 1000),
            "logit": np.stack([np.full(env_num, self._acted), np.arange(env_num)], axis=1),
        }

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Array
    ) -> TrainColumns:
        assert transitions.keys() == {
            "observation", "action", "logit", "reward", "terminated", "truncated"
        }  # fmt: skip
        assert {len(column) for column in transitions.values()} == {int(item_len.sum())}
        assert transitions["reward"].dtype == np.float32
        ended = transitions["terminated"] | transitions["truncated"]
        last = np.cumsum(item_len) - 1
        assert not np.delete(ended, last).any(), "an episode ends within an item"
        steps = n_step(transitions["reward"], transitions["terminated"], item_len, 1.0, self._n)
        columns = {"n_step_return": steps.returns, "offset": steps.steps}
        return TrainColumns(columns, (RowView("next_observation", "observation", "offset"),))


@dataclass(frozen=True)
class Transition:
    """One expected transition."""

    env: int
    episode: int
    step: int
    at: int
    """Vector step in which it is made, from 0."""
    ends: tuple[bool, bool]

    def observation(self, ahead: int = 0) -> list[float]:
        return [self.env, self.episode, self.step + ahead]


def expected(
    scripts: list[Script], steps: int, has_dummies: bool, quota: int | None
) -> list[list[Transition]]:
    """Transitions of each environment within `steps` vector steps, one after the other."""
    plan: list[list[Transition]] = []
    for env, script in enumerate(scripts):
        rows: list[Transition] = []
        at, episode = 0, 0
        while at < steps and (quota is None or episode < quota):
            length, terminated, truncated = script[episode % len(script)]
            for step in range(length):
                ended = step + 1 == length
                ends = (ended and terminated, ended and truncated)
                rows.append(Transition(env, episode, step, at, ends))
                at += 1
            episode += 1
            at += has_dummies
        plan.append([row for row in rows if row.at < steps])
    return plan


def pieces(plan: list[list[Transition]], start: int, end: int) -> list[list[Transition]]:
    """Items that a cut after vector steps [start, end) must give, in order."""
    cut = []
    for rows in plan:
        within = [row for row in rows if start <= row.at < end]
        for episode in sorted({row.episode for row in within}):
            cut.append([row for row in within if row.episode == episode])
    return cut


def check_segment(segment: Segment, items: list[list[Transition]], env_num: int, n: int) -> None:
    """Every number of a segment."""
    assert segment.tail_rows == 1
    lengths = [len(item) for item in items]
    assert segment.items["item_len"].tolist() == lengths
    starts = np.cumsum([0, *(length + 1 for length in lengths)])
    assert segment.items["item_start"].tolist() == starts[:-1].tolist()
    assert {len(column) for column in segment.columns.values()} == {int(starts[-1])}
    assert segment.items["env_id"].tolist() == [item[0].env for item in items]
    assert segment.items["episode_id"].tolist() == [
        item[0].episode * env_num + item[0].env for item in items
    ]
    ring = RowStore(int(starts[-1]), views=segment.views)
    ring.write(0, segment.columns)
    for start, item in zip(starts, items, strict=False):
        rows = ring.gather(start + np.arange(len(item)))
        assert rows["observation"].tolist() == [row.observation() for row in item]
        assert rows["reward"].tolist() == [100.0 * row.episode + row.step + 1 for row in item]
        assert rows["terminated"].tolist() == [row.ends[0] for row in item]
        assert rows["truncated"].tolist() == [row.ends[1] for row in item]
        assert rows["action"].tolist() == [(row.at + 1) % 1000 for row in item]
        assert rows["logit"].tolist() == [[row.at + 1, row.env] for row in item]
        ahead = [min(n, len(item) - k) for k in range(len(item))]
        assert rows["next_observation"].tolist() == [
            row.observation(m) for row, m in zip(item, ahead, strict=True)
        ]
        assert rows["n_step_return"].tolist() == [
            sum(100.0 * row.episode + row.step + 1 + k for k in range(m))
            for row, m in zip(item, ahead, strict=True)
        ]
        last = segment.columns["observation"][start + len(item)]
        assert last.tolist() == item[-1].observation(1), "the row after an item: its bootstrap"


@pytest.mark.parametrize("mode", list(AutoresetMode))
@settings(max_examples=60, deadline=None)
@given(scripts, st.integers(1, 7), st.integers(1, 25), st.integers(1, 4), st.integers(0, 3))
def test_segments_hold_the_transitions_of_the_script(
    mode: AutoresetMode, scripts: list[Script], length: int, steps: int, n: int, quota: int
) -> None:
    has_dummies = mode is AutoresetMode.NEXT_STEP
    plan = expected(scripts, steps, has_dummies, quota or None)
    with manager(scripts, mode, quota or None) as envs:
        envs.launch()
        loop = collect_loop(envs, Duck(CheckingActor(n)), length)
        assert isinstance(loop.agent, ColumnAgent)
        begun = counted = 0
        for at in range(1, steps + 1):
            counted += loop.once({})
            assert loop.must_cut == (at - begun == length)
            if loop.must_cut or at == steps:
                segment = loop.cut(at)
                items = pieces(plan, begun, at)
                assert (segment is None) == (not items)
                if segment is not None:
                    check_segment(segment, items, len(scripts), n)
                    assert (segment.items["policy_version"] == at).all()
                assert loop.cut(at) is None, "a cut recorder is empty"
                begun = at
    assert counted == sum(map(len, plan))


class Duck:
    """A mode that has nothing but its attribute ``columnar``."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def get_attribute(self, name: str) -> Any:
        assert name == "columnar"
        return self._actor


@settings(max_examples=25, deadline=None)
@given(scripts, st.integers(1, 3))
def test_the_same_data_in_all_autoreset_modes(scripts: list[Script], quota: int) -> None:
    """All transitions of the same episodes: bit by bit the same rows, whatever the mode."""
    steps = quota * 6 * 3
    segments = []
    for mode in AutoresetMode:
        with manager(scripts, mode, quota) as envs:
            envs.launch()
            loop = collect_loop(envs, Duck(SilentActor()), steps)
            while not envs.done:
                loop.once({})
            segment = loop.cut(7)
            assert segment is not None
            segments.append(segment)
    first, *others = segments
    for other in others:
        assert other.items.tolist() == first.items.tolist()
        for name, column in first.columns.items():
            assert other.columns[name].tolist() == column.tolist()


class SilentActor:
    """Acts always alike and adds nothing."""

    def act(self, observation: Array, setting: Settings) -> Columns:
        return {"action": np.zeros(len(observation), dtype=np.int64)}

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Array
    ) -> TrainColumns:
        return TrainColumns({})


def test_an_evaluation_keeps_nothing() -> None:
    with manager([[(2, True, False)]], AutoresetMode.SAME_STEP) as envs:
        envs.launch()
        loop = collect_loop(envs, Duck(SilentActor()), None)
        assert loop.once({}) == 1
        assert not loop.must_cut
        assert loop.cut(0) is None
