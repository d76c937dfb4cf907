"""Collecting training samples: pieces, on-policy cuts, random steps, whole columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from fakes.scripted_env import manager
from fakes.serial_parts import Actor, ColumnarActor, Manager, check, return_of, steps_of, story
from hpcdi.env.base import VectorStep
from hpcdi.env.create import create_env_manager, make_env_manager
from hpcdi.env.toy import CountEnv
from hpcdi.errors import PolicyError
from hpcdi.types import Array, Columns, Settings, Transition
from hpcdi.worker import SampleSerialCollector


def collector(env: Any, actor: Actor, **cfg: Any) -> SampleSerialCollector:
    return SampleSerialCollector(cfg, env, actor.mode)


def pieces(samples: Sequence[Transition]) -> list[int]:
    return [one["piece"] for one in samples]


# ------------------------------------------------------------------------------------------ pieces


def test_a_piece_is_an_environments_share() -> None:
    with collector(Manager((50, 50, 50)), Actor()) as made:
        assert pieces(made.collect(12)) == [4] * 12
        assert pieces(made.collect(7)) == [3] * 7
        assert pieces(made.collect(1)) == [1]


def test_a_piece_is_as_long_as_it_must_be_to_unroll() -> None:
    with collector(Manager((50, 50)), Actor(unroll_len=6)) as made:
        assert pieces(made.collect(4)) == [6] * 4
        assert pieces(made.collect(4, drop_extra=False)) == [6] * 12


def test_pieces_are_whole_episodes_where_the_settings_say_so() -> None:
    actor = Actor(cfg=SimpleNamespace(traj_len_inf=True))
    with collector(Manager((5, 7)), actor) as made:
        got = made.collect(6, drop_extra=False)
        assert pieces(got) == [5] * 5 + [7] * 7
        assert made.envstep == 14


def test_a_shorter_target_ends_longer_pieces() -> None:
    with collector(Manager((50,)), Actor(unroll_len=1)) as made:
        made.collect(3)
        (recorder,) = made._loop.recorders
        recorder.length = 10  # as if a longer one had been asked for
        step = {"transition": np.array([{"obs": np.zeros(4)}])}
        recorder.record(step, np.array([True]), np.array([False]))
        assert pieces(made.collect(1)) == [2]


def test_what_is_more_than_enough_is_dropped_or_given() -> None:
    for drop_extra, count in ((True, 5), (False, 6)):
        with collector(Manager((50, 50)), Actor()) as made:
            assert len(made.collect(5, drop_extra=drop_extra)) == count
            assert made._report.totals["train_sample"] == 6
    with collector(Manager((50, 50)), Actor()) as made:
        assert len(made.collect(5)) == 5


def test_level_seeds() -> None:
    with collector(Manager((3, 3)), Actor()) as made:
        got = made.collect(6, train_iter=2, level_seeds={0: 40, 1: 41})
    assert [one["seed"] for one in got] == [40 + int(one["obs"][0]) for one in got]
    assert {one["collect_iter"] for one in got} == {2}
    assert all("seed" not in one for one in collector(Manager((3,)), Actor()).collect(3))


def test_samples_are_the_collectors_own() -> None:
    """A mark is not written into what the policy may keep."""
    kept: list[Transition] = []
    actor = Actor()
    actor.get_train_sample = lambda piece: kept.extend(piece) or piece  # type: ignore[func-returns-value]
    with collector(Manager((3,)), actor) as made:
        assert "collect_iter" in made.collect(3)[0]
    assert "collect_iter" not in kept[0]


# --------------------------------------------------------------------------------------- on-policy


def test_on_policy_nothing_of_an_older_policy_is_in_the_next_result() -> None:
    """Environments answer when they like, so that pieces are of all lengths at the end."""
    actor, env = Actor(on_policy=True), Manager((4, 7, 9), together=2)
    got: list[Transition] = []
    with collector(env, actor) as made:
        for version in range(6):
            actor.version = version
            new = made.collect(8, train_iter=version, drop_extra=False)
            assert {one["by"] for one in new} <= {version, version - 1}
            got += new
            assert made._loop.recorders[0].open_transitions == 0
    for number, length in enumerate(env.lengths):
        mine = steps_of(got, number)
        assert mine == story(len(mine), length), "no step is lost"
        assert len(mine) == env.life[number]


def test_on_policy_in_lock_step_all_is_of_one_policy() -> None:
    actor = Actor(on_policy=True)
    with collector(Manager((4, 7, 9)), actor) as made:
        for version in range(6):
            actor.version = version
            got = made.collect(8, drop_extra=False)
            assert len(got) == 9, "three steps of three environments"
            assert {one["by"] for one in got} == {version}


def test_off_policy_pieces_go_on() -> None:
    actor = Actor(on_policy=False)
    with collector(Manager((3, 50)), actor) as made:
        assert len(made.collect(8, drop_extra=False)) == 10
        assert made._loop.recorders[0].open_transitions == 2
        actor.version = 1
        got = made.collect(8, drop_extra=False)
    long = [one for one in got if one["obs"][0] == 1]
    assert [one["by"] for one in long[:4]] == [0, 0, 1, 1]
    assert steps_of(got, 1)[0] == (0, 4)


def test_on_policy_sequences_are_as_many_as_were_asked_for() -> None:
    """A sample may be a sequence of several transitions."""
    actor = Actor(on_policy=True, unroll_len=4)
    actor.get_train_sample = (
        lambda piece: [  # type: ignore[method-assign]
            {"steps": piece[k : k + 4]} for k in range(0, len(piece) - 3, 4)
        ]
    )
    with collector(Manager((50, 50)), actor) as made:
        for _ in range(2):
            got = made.collect(6, drop_extra=False)
            assert len(got) >= 6
            assert {len(one["steps"]) for one in got} == {4}
        assert made.envstep == 48


def test_on_policy_pieces_that_give_fewer_samples_than_they_have_steps() -> None:
    actor = Actor(on_policy=True)
    actor.sample = lambda piece: piece[:-2]
    for together in (None, 1):
        with collector(Manager((50, 50, 50), together=together), actor) as made:
            for _ in range(3):
                assert len(made.collect(8)) == 8
                assert made._loop.recorders[0].is_empty, "nothing is left for the next policy"


# ------------------------------------------------------------------------------------------ random


def test_random_steps_ask_no_policy() -> None:
    actor, env = Actor(), Manager((3, 3))
    with collector(env, actor) as made:
        got = made.collect(6, random_collect=True)
        check(got, env.lengths)
        assert [one["action"] for one in got] == [900 + int(one["obs"][0]) for one in got]
        assert actor.calls == 0
        assert made._report.totals == {"envstep": 6, "train_sample": 6, "episode": 2}
        assert {one["action"] for one in made.collect(4)} == {1, 2}


def test_random_steps_that_are_not_counted() -> None:
    with collector(Manager((3, 3)), Actor()) as made:
        assert len(made.collect(6, random_collect=True, record_random_collect=False)) == 6
        assert made._report.totals == {"envstep": 0, "train_sample": 0, "episode": 0}
        made.collect(4, record_random_collect=False)
        assert made._report.totals == {"envstep": 4, "train_sample": 4, "episode": 0}
        made.collect(2)
        assert made._report.totals["episode"] == 2


def test_random_steps_where_environments_answer_later() -> None:
    env = Manager((3, 2, 4), together=1)
    with collector(env, Actor()) as made:
        got = made.collect(9, random_collect=True)
    check(got, env.lengths)


# ------------------------------------------------------------------------ managers that count, too


def test_episodes_of_a_manager_that_counts_are_its_own() -> None:
    """It is not left to keep every episode of a long run."""
    cfg = {
        "type": "gymnasium", "import_names": ["hpcdi.env.toy"], "env_id": "hpcdi/Count-v0",
        "kwargs": {"length": 5}, "collector_env_num": 2,
    }  # fmt: skip
    env = create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0))
    with SampleSerialCollector({}, env, Actor().mode) as made:
        got = made.collect(20)
        assert made._report.totals == {"envstep": 20, "train_sample": 20, "episode": 4}
        assert len(env.take_episodes()[0]) == 0
    for number in range(2):
        mine = [one for k, one in enumerate(got) if k // 10 == number]
        assert len(mine) == 10
    assert sorted(tuple(map(int, one["obs"])) for one in got) == sorted(
        (step, episode) for episode in range(2) for step in range(5) for _ in range(2)
    )


# ----------------------------------------------------------------------------------------- columns

MODES = list(AutoresetMode)
SCRIPTS = [[(3, True, False), (2, False, True)], [(5, False, True)], [(1, True, False)]]


def samples_and_columns(mode: AutoresetMode, n: int) -> tuple[list[Transition], Columns]:
    results: list[Any] = []
    for by_columns in (False, True):
        env, actor = manager(SCRIPTS, mode), ColumnarActor(on_policy=True)
        with SampleSerialCollector({}, env, actor.mode) as made:
            results.append(
                made.collect_columns(n, 3) if by_columns else made.collect(n, 3, drop_extra=False)
            )
            assert made.envstep == made._report.totals["train_sample"]
            results[-1] = (results[-1], dict(made._report.totals))
    (samples, counted), (columns, counted_too) = results
    assert counted == counted_too
    return samples, columns


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 10, 50])
def test_columns_hold_the_same_transitions_as_samples(mode: AutoresetMode, n: int) -> None:
    samples, columns = samples_and_columns(mode, n)
    assert len(columns["reward"]) == len(samples) >= n

    actions = columns["action"].tolist()
    if mode is AutoresetMode.NEXT_STEP:  # where all are being reset, only columns are acted on
        actions = [one["action"] for one in samples]
        samples = sorted(samples, key=lambda one: list(one["obs"]))
        order = sorted(range(len(samples)), key=lambda k: columns["observation"][k].tolist())
        for k, one in zip(order, samples, strict=True):
            actions[k] = one["action"]
    rows = zip(
        columns["observation"].tolist(), actions, columns["reward"].tolist(),
        (columns["terminated"] | columns["truncated"]).tolist(), strict=True,
    )  # fmt: skip
    expected = [
        (list(map(float, one["obs"])), one["action"], float(one["reward"]), one["done"])
        for one in samples
    ]
    assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize("mode", MODES)
def test_columns_go_on_from_call_to_call(mode: AutoresetMode) -> None:
    env, actor = manager(SCRIPTS, mode), ColumnarActor(n_sample=6)
    rows: list[list[float]] = []
    with SampleSerialCollector({}, env, actor.mode) as made:
        for _ in range(4):
            got = made.collect_columns(policy_kwargs={"eps": 0.1})
            assert 6 <= len(got["reward"]) <= 8, "as many, or a few more"
            rows += got["observation"].tolist()
        assert made.envstep == len(rows)
    assert actor.settings == [{"eps": 0.1}] * actor.calls
    assert len(set(map(tuple, rows))) == len(rows)
    for number, script in enumerate(SCRIPTS):
        mine = sorted((row[1], row[2]) for row in rows if row[0] == number)
        lengths = [script[int(k) % len(script)][0] for k in range(40)]
        story_of = [(float(e), float(k)) for e, length in enumerate(lengths) for k in range(length)]
        assert mine == story_of[: len(mine)]


def test_columns_acted_by_somebody_else() -> None:
    def act(observation: Array, setting: Settings) -> Columns:
        return {"action": np.full(len(observation), 77)}

    actor = ColumnarActor()
    with SampleSerialCollector({}, manager(SCRIPTS, MODES[0]), actor.mode) as made:
        assert set(made.collect_columns(6, act=act)["action"]) == {77}
    assert actor.calls == 0


def test_columns_of_a_policy_that_knows_none() -> None:
    with (
        SampleSerialCollector({}, manager(SCRIPTS, MODES[0]), Actor().mode) as made,
        pytest.raises(PolicyError, match=r"columnar.*call collect\(\)"),
    ):
        made.collect_columns(6)


def test_columns_between_samples_leave_no_gap_in_a_piece() -> None:
    """Steps that were given as columns are not in samples: no piece goes on across them."""
    scripts = [[(3, True, False)], [(50, True, False)]]
    with SampleSerialCollector({}, manager(scripts, MODES[1]), ColumnarActor().mode) as made:
        made.collect(8)
        assert made._loop.recorders[0].open_transitions == 2
        columns = made.collect_columns(4)
        long = columns["observation"][:, 0] == 1
        steps = columns["observation"][long, 2].tolist()
        assert steps == [steps[0], steps[0] + 1]
        got = made.collect(8)
    at = [int(one["obs"][2]) for one in got if one["obs"][0] == 1]
    assert at == list(range(int(steps[1]) + 1, int(steps[1]) + 1 + len(at)))
    assert at, "it has gone on"


class FailingVector:
    """Environments of `length` steps, by columns; all fail in the steps that `failing` names."""

    resets_abnormal = True

    def __init__(self, env_num: int, length: int, failing: dict[int, list[int]]) -> None:
        self.env_num, self.length, self.failing = env_num, length, failing
        self.closed, self.steps = True, 0
        self.episode, self.at = np.full(env_num, -1), np.zeros(env_num, dtype=int)

    def launch(self) -> None:
        self.closed = False
        self.reset()

    def reset(self) -> None:
        self._begin(np.ones(self.env_num, dtype=bool))
        self.observation = self._observe()

    def close(self) -> None:
        self.closed = True

    def take_episodes(self) -> tuple[Array, Array]:
        return np.zeros(0), np.zeros(0, dtype=int)

    def step_all(self, actions: Array) -> VectorStep:
        self.steps += 1
        self.at += 1
        abnormal = np.isin(np.arange(self.env_num), self.failing.get(self.steps, []))
        ended = self.at == self.length
        successor = self._observe()
        reward = np.asarray(100 * self.episode + self.at, dtype=np.float32)
        self._begin(ended | abnormal)
        self.observation = self._observe()
        never = np.zeros(self.env_num, dtype=bool)
        failed = abnormal if abnormal.any() else None
        # what a failed environment says means nothing; this one says that its episode has ended
        return VectorStep(successor, reward, ended | abnormal, never, ~never, failed)

    def _begin(self, where: Array) -> None:
        self.episode[where] += 1
        self.at[where] = 0

    def _observe(self) -> Array:
        columns = [np.arange(self.env_num), self.episode, self.at]
        return np.stack(columns, axis=1).astype(np.float32)


@pytest.mark.parametrize("n", [1, 5, 12, 40])
def test_columns_are_enough_though_environments_fail(n: int) -> None:
    """What is dropped is collected again; only whole beginnings of episodes are there."""
    failing = {2: [0], 3: [0, 1, 2], 6: [1], 9: [0, 2], 10: [0]}
    env = FailingVector(3, 6, failing)
    with SampleSerialCollector({}, env, ColumnarActor().mode) as made:
        got = made.collect_columns(n)
        assert n <= len(got["reward"]) < n + 3 * math.ceil(n / 3) + 3
        again = made.collect_columns(n)
        assert len(again["reward"]) >= n
        assert made._report.totals["train_sample"] == len(got["reward"]) + len(again["reward"])
        failures = sum(len(failed) for step, failed in failing.items() if step <= env.steps)
        assert made.envstep == 3 * env.steps - failures
    rows = list(map(tuple, got["observation"].tolist()))
    assert len(set(rows)) == len(rows)
    for env_id in range(3):
        mine = [row for row in rows if row[0] == env_id]
        for episode in {row[1] for row in mine}:
            steps = [row[2] for row in mine if row[1] == episode]
            assert steps == list(range(int(steps[0]), int(steps[0]) + len(steps)))


def test_lengths_of_episodes_after_a_failure() -> None:
    """Steps of an episode that failed are not the next one's."""
    with collector(Manager((3, 4), failing={0: [2], 1: [3]}), Actor()) as made:
        call = made._begin({})
        for _ in zip(range(12), call.steps(), strict=False):
            pass
        returns, lengths = call.loop.envs.take_episodes()
    assert sorted(lengths.tolist()) == [3, 3, 3, 4, 4]
    assert sorted(returns.tolist()) == sorted(
        [return_of(k, 3) for k in (1, 2, 3)] + [return_of(k, 4) for k in (1, 2)]
    )


# ------------------------------------------------------------------------------- our own managers


@pytest.mark.parametrize("by_columns", [False, True])
def test_environments_of_a_pool_that_fail(by_columns: bool) -> None:
    """CountEnv: the observation is the step and the episode; the reward of step k is k."""
    env_fns = [partial(CountEnv, length=3, fail_at=5), partial(CountEnv, length=4)]
    env = make_env_manager(None, env_fns)
    with SampleSerialCollector({}, env, ColumnarActor(on_policy=True).mode) as made:
        if by_columns:
            columns = made.collect_columns(16)
            got = list(zip(columns["observation"].tolist(), columns["reward"], strict=True))
        else:
            samples = made.collect(16, drop_extra=False)
            got = [(one["obs"].tolist(), one["reward"]) for one in samples]
        assert env.failures == 1
        assert made._report.totals["train_sample"] == len(got) >= 16
    assert all(reward == step + 1 for (step, _), reward in got)
    firsts = [episode for (step, episode), _ in got if step == 0]
    lasts = [episode for (step, episode), _ in got if step == 3]
    assert 1.0 in lasts, "the other one goes on"
    assert firsts.count(1.0) == 1, "episode 1 of the first environment failed in its second step"


def test_random_actions_of_a_pool() -> None:
    env = make_env_manager(None, [partial(CountEnv, length=3)] * 2)
    with SampleSerialCollector({}, env, Actor().mode) as made:
        got = made.collect(6, random_collect=True)
    assert {one["action"] for one in got} <= {0, 1}
    assert sorted(int(one["reward"]) for one in got) == [1, 1, 2, 2, 3, 3]
