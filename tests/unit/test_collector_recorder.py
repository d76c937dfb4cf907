"""Recording: whatever the episodes' ends, items are true pieces of single episodes."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.env_managers import shape_of
from fakes.scripted_env import Script, manager, scripts
from hpcdi.policy.base import TrainColumns
from hpcdi.policy.returns import n_step
from hpcdi.roles.collector.loop import policy_loop
from hpcdi.roles.collector.recorder import Recorder
from hpcdi.store.rows import RowStore
from hpcdi.store.segment import Segment
from hpcdi.types import Array, Columns, RowView, Settings, Step
from hpcdi.utils.nested import column_rows
from hpcdi.worker.dict_policy import TrajectoryRecorder

# ------ recording by columns: whatever the episodes' ends, items are true pieces of single episodes


class CheckingActor:
    """Acts by the number of the step, offers n-step columns, and checks what it is given."""

    def __init__(self, n: int) -> None:
        self._n = n

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        count = column_rows(observation)
        numbers = np.arange(count) if rows is None else rows
        assert observation["observation"][:, 0].tolist() == numbers.tolist(), "its own rows"
        return {
            "action": np.full(count, setting["step"] % 1000),
            "logit": np.stack([np.full(count, setting["step"]), numbers], axis=1),
        }

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Columns
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
        loop = policy_loop(envs, CheckingActor(n), length)
        begun = counted = 0
        for at in range(1, steps + 1):
            counted += loop.once({"step": at})
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


@settings(max_examples=25, deadline=None)
@given(scripts, st.integers(1, 3))
def test_the_same_data_in_all_autoreset_modes(scripts: list[Script], quota: int) -> None:
    """All transitions of the same episodes: bit by bit the same rows, whatever the mode."""
    steps = quota * 6 * 3
    segments = []
    for mode in AutoresetMode:
        with manager(scripts, mode, quota) as envs:
            envs.launch()
            loop = policy_loop(envs, SilentActor(), steps)
            while not envs.done:
                loop.once({})
            segment = loop.cut(7)
            assert segment is not None
            segments.append(segment.copy())
    first, *others = segments
    for other in others:
        assert other.items.tolist() == first.items.tolist()
        for name, column in first.columns.items():
            assert other.columns[name].tolist() == column.tolist()


class SilentActor:
    """Acts always alike and adds nothing."""

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        return {"action": np.zeros(column_rows(observation), dtype=np.int64)}

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        return TrainColumns({})


def test_an_evaluation_keeps_nothing() -> None:
    with manager([[(2, True, False)]], AutoresetMode.SAME_STEP) as envs:
        envs.launch()
        loop = policy_loop(envs, SilentActor())
        assert loop.once({}) == 1
        assert not loop.must_cut
        assert loop.cut(0) is None


# -------------------- recording by columns where environments fail: against a model in plain python


GO, TERMINATE, TRUNCATE, FAIL, FAIL_LIVE, IDLE = range(6)
Item = tuple[int, int, list[float], list[float], list[bool], float]
"""Environment, episode id, observations, rewards, whether each ended, last observation."""


class Adds:
    """Adds what it was told of each item's last observation."""

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        assert int(item_len.sum()) == len(transitions["reward"])
        return TrainColumns({"last": np.repeat(last_observation["observation"][:, 0], item_len)})


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

    def step(self, events: list[int]) -> tuple[Array, Step, Array]:
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
        ended = terminated | truncated
        after = {"observation": successor}
        step = Step(after, reward, terminated, truncated, ended, live, failed)
        return before, step, later

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
    model, taken = Model(env_num), Recorder(shape_of(env_num), length, Adds())
    everything: list[Item] = []
    for at, of_all in enumerate(events, 1):
        before, step, later = model.step(of_all)
        columns = {
            "observation": before, "action": np.zeros(env_num, dtype=np.int64),
            "reward": step.reward, "terminated": step.terminated, "truncated": step.truncated,
        }  # fmt: skip
        taken.record(columns, step.live, step)
        if taken.is_full or at == len(events):
            items = items_of(taken.cut({"observation": later}, 0))
            assert items == model.cut()
            assert not taken.counts.any()
            everything += items
    return everything


@settings(max_examples=100, deadline=None)
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


def test_where_all_episodes_are_dropped_others_with_other_numbers_follow() -> None:
    model, taken, found = Model(2), Recorder(shape_of(2), 10, Adds()), []
    for is_cut in (True, False, True):
        before, step, later = model.step([GO, GO])
        taken.record({"observation": before, "reward": step.reward} | {
            name: np.zeros(2, bool) for name in ("terminated", "truncated")
        }, step.live, step)  # fmt: skip
        if is_cut:
            found.append([item[1:3] for item in items_of(taken.cut({"observation": later}, 0))])
        else:
            taken.drop()
    assert [[number for number, _ in items] for items in found] == [[0, 1], [2, 3]]
    assert [len(obs) for items in found for _, obs in items] == [1] * 4, "what was not cut is gone"


# ---------------------------- recording transition by transition: for policies that know no columns


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def recorder(env_num: int, length: int) -> TrajectoryRecorder:
    """Samples are the transitions, which are plain numbers; each is told its piece's length."""
    return TrajectoryRecorder(
        env_num,
        length,
        lambda piece: [{**transition, "piece": len(piece)} for transition in piece],
    )


def record(
    taken: TrajectoryRecorder, env: int, obs: int, *, done: bool = False, abnormal: bool = False
) -> None:
    """One environment answers."""
    if abnormal:
        taken.drop(env)
    else:
        taken.add(env, {"obs": obs, "action": obs}, ended=done)


def trajectories_of(
    taken: TrajectoryRecorder, policy_version: int = 0
) -> list[tuple[int, int, list[int]]]:
    """Environment, episode and observations of each item."""
    segment = taken.cut(policy_version)
    assert segment is not None
    assert segment.tail_rows == 0
    assert (segment.items["policy_version"] == policy_version).all()
    obs = segment.columns["obs"]
    items = []
    for item in segment.items:
        rows = slice(item["item_start"], item["item_start"] + item["item_len"])
        assert (segment.columns["piece"][rows] == item["item_len"]).all()
        items.append((int(item["env_id"]), int(item["episode_id"]), obs[rows].tolist()))
    return items


def test_pieces_end_with_the_episode_and_at_the_length() -> None:
    taken = recorder(env_num=2, length=3)
    for obs in range(4):
        record(taken, 0, obs, done=obs == 0)
        record(taken, 1, 10 + obs)
    assert trajectories_of(taken, 7) == [
        (0, 0, [0]),
        (1, 1, [10, 11, 12]),
        (0, 2, [1, 2, 3]),
        (1, 1, [13]),
    ]


def test_pieces_of_one_episode_share_its_number_over_cuts() -> None:
    taken = recorder(env_num=2, length=5)
    record(taken, 1, 0)
    assert trajectories_of(taken) == [(1, 1, [0])]
    record(taken, 1, 1, done=True)
    assert trajectories_of(taken) == [(1, 1, [1])]
    record(taken, 1, 2)
    assert trajectories_of(taken) == [(1, 3, [2])]


def test_pieces_that_end_in_one_step_come_in_the_order_of_environments() -> None:
    """Whether by their length or with their episode: what a buffer holds must not depend on it."""
    taken = recorder(env_num=2, length=1)
    for env in range(2):
        taken.add(env, {"obs": env, "action": env}, ended=env == 1)
    segment = taken.cut(0)
    assert segment is not None
    assert segment.items["env_id"].tolist() == [0, 1]
    assert segment.ended.tolist() == [False, True]


def test_it_is_full_after_so_many_steps_of_all_environments() -> None:
    """Not at the first episode's end: that would cut the pieces of all others short."""
    taken = recorder(env_num=2, length=2)
    for obs, done in ((0, True), (1, False), (2, False)):
        assert not taken.is_full
        record(taken, 0, obs, done=done)
    assert not taken.is_full
    record(taken, 1, 3)
    assert taken.is_full
    assert len(trajectories_of(taken)) == 3
    assert not taken.is_full


def test_an_abnormal_step_drops_the_open_piece() -> None:
    taken = recorder(env_num=2, length=2)
    for obs in range(3):
        record(taken, 0, obs)
        record(taken, 1, 10 + obs)
    record(taken, 0, 3, done=True, abnormal=True)
    record(taken, 0, 4)
    assert trajectories_of(taken) == [(0, 0, [0, 1]), (1, 1, [10, 11]), (0, 2, [4]), (1, 1, [12])]


def test_whole_episodes_of_any_length() -> None:
    """While a long episode runs, another environment has many short ones and fails now and then."""
    taken = TrajectoryRecorder(2, math.inf, list)
    for step in range(1000):
        record(taken, 0, step, done=step == 999)
        record(taken, 1, step, done=step % 3 == 2, abnormal=step % 100 == 99)
    episodes = [(one.env, [item["obs"] for item in one.samples]) for one in taken.take()]
    assert [obs for env, obs in episodes if env == 0] == [list(range(1000))]
    short = [obs for env, obs in episodes if env == 1]
    assert all(obs == list(range(obs[0], obs[0] + len(obs))) for obs in short)
    assert [obs[-1] for obs in short] == [s for s in range(1000) if s % 3 == 2 and s % 100 != 99]
    assert len({one.episode for one in taken.take()}) == 0


def test_objects_that_were_taken_or_dropped_are_not_kept_alive() -> None:
    class Item(dict[str, int]):
        pass

    taken = TrajectoryRecorder(2, math.inf, list)
    items = [Item(obs=k) for k in range(4)]
    alive = [weakref.ref(item) for item in items]
    for item, done in zip(items, (False, True, False, False), strict=True):
        taken.add(0, item, ended=done)
    taken.drop(0)
    del items, item
    taken.take()
    gc.collect()
    assert [ref() for ref in alive] == [None] * 4


def test_nothing_recorded_is_nothing_cut() -> None:
    taken = recorder(env_num=1, length=2)
    assert taken.finished == taken.open_transitions == 0
    assert taken.cut(0) is None
    record(taken, 0, 0)
    assert (taken.finished, taken.open_transitions) == (0, 1)
    record(taken, 0, 1, abnormal=True)
    assert taken.finished == taken.open_transitions == 0
    assert not taken.is_full


def test_on_policy_a_cut_drops_what_is_open_and_counts_its_steps() -> None:
    """As DI-engine does: of a single transition that is not the last one A2C makes no sample."""

    def advantages(piece: list[Any]) -> list[Any]:
        assert len(piece) > 1 or piece[-1]["done"]
        return [{"obs": one["obs"]} for one in piece]

    taken = TrajectoryRecorder(2, 3, advantages, opens="drop")
    for obs in range(4):
        assert not taken.is_full
        record(taken, 0, obs, done=obs == 2)
        record(taken, 1, 10 + obs, done=obs == 1)
    assert not taken.is_full, "five steps are finished, six make a rollout"
    record(taken, 0, 4)
    record(taken, 1, 14)
    assert taken.is_full
    segment = taken.cut(7)
    assert segment is not None
    assert segment.columns["obs"].tolist() == [10, 11, 0, 1, 2, 12, 13, 14]
    assert segment.env_steps is not None
    assert segment.env_steps.tolist() == [4, 3, 3], "two of these steps were dropped"
    assert taken.open_transitions == 0


def test_episodes_are_as_many_of_each_environment() -> None:
    """The first that end are more often short ones."""
    taken = TrajectoryRecorder(
        2,
        math.inf,
        lambda piece: [{"obs": one["obs"]} for one in piece],
        opens="drop",
        quota=[1, 1],
    )
    for obs in range(3):
        assert not taken.is_full
        record(taken, 0, obs, done=obs < 2)  # two short ones
        record(taken, 1, 10 + obs, done=obs == 2)
    assert taken.is_full
    segment = taken.cut(7)
    assert segment is not None
    assert segment.columns["obs"].tolist() == [0, 10, 11, 12]
    assert segment.env_steps is not None
    assert int(segment.env_steps.sum()) == 6, "all steps are counted"
    assert not taken.is_full


def test_an_episode_whose_beginning_was_dropped_is_none_of_the_next_rollout() -> None:
    """Its environment goes on in it."""
    taken = TrajectoryRecorder(
        2, math.inf, lambda piece: [dict(one) for one in piece], opens="drop", quota=[1, 1]
    )
    lengths, at, steps, counted = [2, 7], [0, 0], 0, 0
    for _ in range(3):
        while not taken.is_full:
            for env in range(2):
                at[env] += 1
                taken.add(env, {"at": at[env]}, ended=at[env] == lengths[env])
                at[env] %= lengths[env]
            steps += 2
        segment = taken.cut(0)
        assert segment is not None
        assert segment.columns["at"].tolist() == [1, 2, *range(1, 8)]
        assert segment.env_steps is not None
        counted += int(segment.env_steps.sum())
    assert counted == steps


def test_pieces_without_samples_are_left_out() -> None:
    """A policy may need more than a piece holds."""
    taken = TrajectoryRecorder(
        1, 2, lambda piece: [{"obs": one["obs"]} for one in piece] if len(piece) == 2 else []
    )
    record(taken, 0, 0, done=True)
    assert taken.cut(0) is None
    for obs in range(3):
        record(taken, 0, obs)
    segment = taken.cut(0)
    assert segment is not None
    assert segment.columns["obs"].tolist() == [0, 1]


@pytest.mark.parametrize("opens", ["keep", "drop"])
def test_a_rollout_of_sequences_counts_samples(opens: Any) -> None:
    """As DI-engine's collector does: a sample may hold an episode's twenty transitions."""
    taken = TrajectoryRecorder(8, 42, lambda _piece: [{"x": 1.0}], 4, opens=opens)
    steps = 0
    while not taken.is_full:
        for env in range(8):
            taken.add(env, {}, ended=(steps + env) % 20 == 0)
        steps += 1
    segment = taken.cut(0)
    assert segment is not None
    assert len(segment.columns["x"]) == 32
    rest = taken.open_transitions
    assert int(segment.env_steps.sum()) + rest == 8 * steps, "all steps are counted"


def test_a_rollout_ends_though_its_pieces_have_no_samples() -> None:
    taken = TrajectoryRecorder(2, 3, lambda _piece: [], 2, opens="keep")
    for step in range(12):
        assert not taken.is_full
        taken.add(step % 2, {}, ended=False)
    assert taken.is_full
    assert taken.cut(0) is None
    assert not taken.is_full
