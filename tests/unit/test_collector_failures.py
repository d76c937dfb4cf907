"""Recording by columns where environments fail: against a model in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.env.base import VectorStep
from hpcdi.policy.base import TrainColumns
from hpcdi.types import Array, Columns
from hpcdi.worker.collector.loop import ColumnAgent
from hpcdi.worker.collector.recorder import Recorder

GO, TERMINATE, TRUNCATE, FAIL, FAIL_LIVE, IDLE = range(6)
Item = tuple[int, int, list[float], list[float], list[bool], float]
"""Environment, episode id, observations, rewards, whether each ended, last observation."""


class Adds:
    """Adds what it was told of each item's last observation."""

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Array
    ) -> TrainColumns:
        assert int(item_len.sum()) == len(transitions["reward"])
        return TrainColumns({"last": np.repeat(last_observation[:, 0], item_len)})


@dataclass
class Env:
    """One environment's side of the model."""

    number: int
    env_num: int
    episode: int = 0
    is_between: bool = True
    """Whether no transition of its episode has been made yet."""
    rows: list[tuple[float, float, bool]] = field(default_factory=list)
    ended: list[Item] = field(default_factory=list)

    def close(self, last_observation: float) -> None:
        if self.rows:
            obs, rewards, ends = map(list, zip(*self.rows, strict=True))
            number = self.episode * self.env_num + self.number
            self.ended.append((self.number, number, obs, rewards, ends, last_observation))
        self.rows = []

    def take(self) -> list[Item]:
        taken, self.ended = self.ended, []
        return taken


class Model:
    """Makes vector steps of events, and knows what must come of them."""

    def __init__(self, env_num: int) -> None:
        self.envs = [Env(number, env_num) for number in range(env_num)]
        self.fresh = 0.0
        self.observation = self.new(env_num)

    def new(self, count: int) -> Array:
        self.fresh += count
        return np.arange(self.fresh - count, self.fresh, dtype=np.float32)[:, None]

    def step(self, events: list[int]) -> tuple[Array, VectorStep, Array]:
        """Observation before a step, the step, and the observation after it."""
        before, count = self.observation, len(events)
        successor, reward, later = self.new(count), self.new(count)[:, 0], self.new(count)
        terminated, truncated, live, abnormal = (np.zeros(count, dtype=bool) for _ in range(4))
        for env, event in zip(self.envs, events, strict=True):
            k = env.number
            if event == IDLE and not env.is_between:
                event = GO
            live[k] = event not in (FAIL, IDLE)
            abnormal[k] = event in (FAIL, FAIL_LIVE)
            # what is not live, or failed, means nothing: let it say that an episode has ended
            terminated[k] = event in (TERMINATE, FAIL, FAIL_LIVE, IDLE)
            truncated[k] = event in (TRUNCATE, IDLE)
            env.is_between = event not in (GO,)
            if abnormal[k]:
                env.rows = []
                env.episode += 1
            elif live[k]:
                ends = event in (TERMINATE, TRUNCATE)
                env.rows.append((float(before[k, 0]), float(reward[k]), ends))
                if ends:
                    env.close(float(successor[k, 0]))
                    env.episode += 1
                else:
                    later[k] = successor[k]
        self.observation = later
        failed = abnormal if abnormal.any() else None
        return before, VectorStep(successor, reward, terminated, truncated, live, failed), later

    def cut(self) -> list[Item]:
        for env in self.envs:
            env.close(float(self.observation[env.number, 0]))
        return [item for env in self.envs for item in env.take()]


def items_of(segment: Any) -> list[Item]:
    items: list[Item] = []
    if segment is None:
        return items
    columns = segment.columns
    for item in segment.items:
        first, count = int(item["item_start"]), int(item["item_len"])
        rows = slice(first, first + count)
        last = float(columns["observation"][first + count, 0])
        assert set(columns["last"][rows].tolist()) == {last}
        ends = columns["terminated"][rows] | columns["truncated"][rows]
        items.append(
            (
                int(item["env_id"]), int(item["episode_id"]),
                columns["observation"][rows, 0].tolist(), columns["reward"][rows].tolist(),
                ends.tolist(), last,
            )
        )  # fmt: skip
    return items


def run(env_num: int, length: int, events: list[list[int]]) -> list[Item]:
    """Record events; every cut must be what the model says."""
    model, taken = Model(env_num), Recorder(env_num, length, Adds())  # type: ignore[arg-type]
    everything: list[Item] = []
    for at, of_all in enumerate(events, 1):
        before, step, later = model.step(of_all)
        outputs = {"action": np.zeros(env_num, dtype=np.int64)}
        columns = ColumnAgent(Adds()).transitions(0, before, outputs, step)  # type: ignore[arg-type]
        taken.record(*columns, step.abnormal, step.successor)
        if taken.is_full or at == len(events):
            items = items_of(taken.cut(later, 0))
            assert items == model.cut()
            assert taken.is_empty
            everything += items
    return everything


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 6))
def test_unfinished_episodes_of_failed_environments_are_dropped(
    data: st.DataObject, env_num: int, length: int
) -> None:
    event = st.sampled_from([GO, GO, GO, TERMINATE, TRUNCATE, FAIL, FAIL_LIVE, IDLE])
    rows = st.lists(event, min_size=env_num, max_size=env_num)
    events = data.draw(st.lists(rows, min_size=1, max_size=20))
    items = run(env_num, length, events)
    open_ids = {item[1] for item in items if not item[4][-1]}
    ended_ids = [item[1] for item in items if item[4][-1]]
    assert len(set(ended_ids)) == len(ended_ids), "an episode ends once"
    assert all(number % env_num == env for env, number, *_ in items)
    seen: set[float] = set()
    for _, _, obs, *_ in items:
        assert not seen & set(obs), "a transition is given once"
        seen |= set(obs)
    assert open_ids | set(ended_ids) == {item[1] for item in items}


@pytest.mark.parametrize("fail", [FAIL, FAIL_LIVE])
def test_earlier_episodes_stay_and_other_environments_too(fail: int) -> None:
    items = run(2, 10, [[GO, GO], [TERMINATE, GO], [GO, GO], [fail, GO], [GO, GO]])
    assert [(env, number, len(obs)) for env, number, obs, *_ in items] == [
        (0, 0, 2), (0, 4, 1), (1, 1, 5)
    ]  # fmt: skip


@pytest.mark.parametrize("fail", [FAIL, FAIL_LIVE])
def test_numbers_of_episodes_go_on_after_cuts_of_nothing(fail: int) -> None:
    items = run(1, 1, [[GO], [fail], [fail], [GO], [TERMINATE], [GO]])
    assert [number for _, number, *_ in items] == [0, 2, 2, 3]
