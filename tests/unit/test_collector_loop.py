"""The stepping loop by policies of columns and of dicts."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.env_managers import COUNT, count_rows, running, shape_of
from fakes.environments import HeldEnv
from fakes.scripted_env import Script, manager, scripts
from hpcdi.policy.base import TrainColumns
from hpcdi.policy.create import create_policy
from hpcdi.roles.collector.loop import Loop, PolicyAgent, policy_loop
from hpcdi.roles.collector.recorder import Recorder
from hpcdi.store.rows import RowStore
from hpcdi.types import Array, Columns, Step, Transition
from hpcdi.utils.nested import column_rows, to_tensors
from hpcdi.worker.dict_envs import BaseEnvTimestep
from hpcdi.worker.dict_form import columns_of_samples
from hpcdi.worker.dict_policy import DictActor, DictRecorder, TrajectoryRecorder

pytestmark = pytest.mark.usefixtures("one_torch_thread")


# ---------------------------------------------------------- equal to the columns, for one policy


def dqn(n: int) -> Any:
    cfg = {
        "type": "dqn",
        "model": {"obs_shape": 3, "action_shape": 2, "encoder_hidden_size_list": [4]},
        "nstep": n,
        "discount_factor": 0.5,
    }
    return create_policy(cfg, ["collect"], seed=np.random.SeedSequence(0))


def dict_loop(envs: Any, policy: Any, taken: TrajectoryRecorder | None) -> Loop:
    """As a parallel collector makes it for a policy that knows no columns."""
    actor = DictActor([policy], to_tensors)
    return Loop(actor.bind(envs), PolicyAgent(actor), DictRecorder(actor, [taken]))


def pieces_of(envs: Any, policy: Any) -> TrajectoryRecorder:
    return TrajectoryRecorder(envs.env_num, 100, policy.get_train_sample)


def rows_by_transition(columns: Columns) -> dict[tuple[float, ...], tuple[Any, ...]]:
    """What the learner gets, by observation (each occurs once)."""
    names = ("next_observation", "action", "n_step_return", "bootstrap_discount")
    keys = map(tuple, columns["observation"].tolist())
    values = zip(*(columns[name].tolist() for name in names), strict=True)
    return dict(zip(keys, values, strict=True))


def run(loop: Any, steps: int) -> Any:
    for _ in range(steps):
        loop.once({"eps": 0.0})
    return loop.cut(0)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@settings(max_examples=20, deadline=None)
@given(scripts, st.integers(1, 15), st.integers(1, 4))
def test_dqn_learns_from_the_same_transitions_in_both_loops(
    mode: AutoresetMode, scripts: list[Script], steps: int, n: int
) -> None:
    policy = dqn(n)
    with manager(scripts, mode) as envs:
        envs.launch()
        columnar = run(policy_loop(envs, policy, 100), steps)
    ring = RowStore(len(columnar.columns["reward"]), views=columnar.views)
    ring.write(0, columnar.columns)
    rows = np.concatenate(
        [item["item_start"] + np.arange(item["item_len"]) for item in columnar.items]
    )
    with manager(scripts, mode) as envs:
        envs.launch()
        mode = policy.collect_mode
        segment = run(dict_loop(envs, mode, pieces_of(envs, mode)), steps)
    samples: list[Transition] = [
        {name: column[row] for name, column in segment.columns.items()}
        for row in range(len(segment.columns["obs"]))
    ]
    by_transition = rows_by_transition(columns_of_samples(samples, 0.0))
    assert by_transition == rows_by_transition(ring.gather(rows))
    assert len(by_transition) == len(rows) == len(samples)


# ---------------------------------------------------------------------------- the loop's own duties


class ForgetfulPolicy:
    """Remembers which environments it was told to forget."""

    def __init__(self) -> None:
        self.forgotten: list[list[int]] = []

    def forward(self, data: dict[int, Any], **kwargs: Any) -> dict[int, dict[str, Any]]:
        assert data, "forward is not called for nobody"
        assert kwargs in ({}, {"eps": 0.0})
        return {env: {"action": np.int64(0)} for env in data}

    def reset(self, data_id: list[int]) -> None:
        self.forgotten.append(data_id)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_policy_is_reset_at_each_episodes_end(mode: AutoresetMode) -> None:
    policy = ForgetfulPolicy()
    with manager([[(2, True, False)], [(3, False, True)]], mode, quota=1) as envs:
        envs.launch()
        loop = dict_loop(envs, policy, None)
        assert run(loop, 5) is None
        assert envs.done
    assert policy.forgotten == [[0], [1]]


class TensorPolicy:
    """Checks what it is given: tensors of its own, float32."""

    def forward(self, data: dict[int, Any], **_setting: Any) -> dict[int, dict[str, Any]]:
        assert all(obs.dtype == torch.float32 for obs in data.values())
        return {env: {"action": torch.tensor(0)} for env in data}

    def process_transition(self, obs: Any, output: Any, timestep: BaseEnvTimestep) -> Transition:
        assert timestep.obs.dtype == timestep.reward.dtype == torch.float32
        assert isinstance(timestep.done, bool)
        return {"obs": obs, "next_obs": timestep.obs, **output, "done": timestep.done}

    def get_train_sample(self, transitions: list[Transition]) -> list[Transition]:
        return transitions

    def reset(self, data_id: list[int] | None = None) -> None:
        pass


def test_a_policy_by_transitions_gets_and_gives_tensors() -> None:
    with manager([[(3, True, False)]], AutoresetMode.SAME_STEP) as envs:
        envs.launch()
        policy = TensorPolicy()
        segment = run(dict_loop(envs, policy, pieces_of(envs, policy)), 3)
    assert segment is not None
    assert {name: column.dtype.str for name, column in segment.columns.items()} == {
        "obs": "<f4", "next_obs": "<f4", "action": "<i8", "done": "|b1",
    }  # fmt: skip
    assert np.array_equal(segment.columns["obs"][1:], segment.columns["next_obs"][:-1])


@pytest.mark.parametrize("length", [math.inf, 3])
def test_no_trajectory_goes_on_over_a_reset(length: float) -> None:
    with manager([[(5, True, False)]], AutoresetMode.SAME_STEP) as envs:
        envs.launch()
        policy = TensorPolicy()
        taken = TrajectoryRecorder(1, length, policy.get_train_sample, opens="keep")
        loop = dict_loop(envs, policy, taken)
        first = run(loop, 3)
        assert (first is None) == (length > 3)
        loop.begin()
        second = run(loop, 5)
    assert second is not None
    assert second.columns["obs"].tolist() == [[0, 1, step] for step in range(5)]
    assert len({*second.items["episode_id"]}) == 1
    if first is not None:
        assert not {*first.items["episode_id"]} & {*second.items["episode_id"]}


def test_steps_are_counted_without_dummies() -> None:
    with manager([[(1, True, False)]] * 2, AutoresetMode.NEXT_STEP) as envs:
        envs.launch()
        loop = dict_loop(envs, ForgetfulPolicy(), None)
        counts = []
        for _ in range(4):
            counts.append(loop.once({}))
    assert counts == [2, 0, 2, 0]


# ------------------------------------------------------------------- steps that go on over a call


class Calls:
    """Says with each action in which call it was chosen."""

    number = 0

    def act(self, observation: Columns, _setting: Any, rows: Array | None = None) -> Columns:
        self.number += 1
        call = np.full(column_rows(observation), self.number)
        return {"action": np.zeros(len(call), np.int64), "call": call}

    def train_columns(self, *_given: Any) -> TrainColumns:
        return TrainColumns({})


@pytest.mark.usefixtures("env_helpers")
def test_a_transition_has_what_its_step_began_with(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fns = [partial(HeldEnv, str(pipe), 2), COUNT, COUNT]
    with running("late", fns, wait_num=2) as envs:
        actor = Calls()
        loop = policy_loop(envs, actor, 100)
        chosen = {}  # (environment, its transition) -> the call that chose its action
        begun = np.zeros(3, int)

        def step() -> None:
            for env in np.flatnonzero(envs.ready):
                chosen[env, int(begun[env])] = actor.number + 1
                begun[env] += 1
            loop.once({})

        while begun[0] < 2:  # its first step is not held, and may be over late
            step()
        for _ in range(3):
            step()
        first = loop.cut(0)  # in the middle of a step of environment 0
        assert first is not None
        first = first.copy()
        assert (first.items["env_id"] == 0).sum() == 1
        recorder = loop.recorder = Recorder(envs, 100, actor)  # as a serial collector's next call
        pipe.write_text("go on")
        while not recorder.counts[0]:
            step()
        second = loop.cut(0)
        assert second is not None
    made = np.zeros(3, int)
    for segment in (first, second):
        for item in segment.items:
            rows = slice(item["item_start"], item["item_start"] + item["item_len"] + 1)
            observed = segment.columns["observation"][rows].tolist()
            calls = segment.columns["call"][rows].tolist()[:-1]
            episode = count_rows(int(begun.max()))[made[item["env_id"]] :][: item["item_len"]]
            assert observed == [row[0] for row in episode] + [episode[-1][4]]
            for call in calls:
                assert call == chosen[item["env_id"], int(made[item["env_id"]])]
                made[item["env_id"]] += 1


def test_a_recorder_is_full_by_transitions_where_few_step_at_once() -> None:
    no, live = np.zeros(4, bool), np.array([True, False, False, False])
    for at_once, steps in ((live, 8), (~no, 2)):
        actor = dqn(1).collect_mode.get_attribute("columnar")
        recorder = Recorder(shape_of(4, wait_num=1), 2, actor)
        step = Step({}, np.zeros(4), no, no, no, at_once)
        for number in range(steps):
            assert not recorder.is_full, number
            recorder.record({"reward": step.reward}, at_once, step)
        assert recorder.is_full
