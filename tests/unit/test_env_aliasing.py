"""What is handed out is never what is kept: reused, changed arrays give the same transitions."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest

from fakes.env_managers import MODES, running, steps_of
from fakes.odd_values import FORMS, KINDS, tape_manager
from hpcdi.env import manager
from hpcdi.env.toy import CountEnv
from hpcdi.policy.base import TrainColumns
from hpcdi.roles.collector.loop import policy_loop
from hpcdi.types import Array, Columns
from hpcdi.utils.nested import column_rows

pytestmark = pytest.mark.usefixtures("env_helpers")


class Drawing:
    """Acts at random, by a generator of its own; masked environments take discrete actions."""

    def __init__(self, is_discrete: bool) -> None:
        self._rng, self._is_discrete = np.random.default_rng(0), is_discrete

    def act(self, observation: Columns, _setting: Any, rows: Array | None = None) -> Columns:
        count = column_rows(observation)
        if self._is_discrete:
            return {"action": self._rng.integers(2, size=count)}
        return {"action": self._rng.uniform(-1, 1, (count, 2)).astype(np.float32)}

    def train_columns(self, *_args: Any) -> TrainColumns:
        return TrainColumns({})


def collected(kind: str, form: str, reuses: bool, steps: int) -> tuple[Columns, Any]:
    """Returns all columns of the steps, which were recorded and then cut, and the episodes."""
    with tape_manager(kind, form, reuses) as envs:
        envs.launch()
        loop = policy_loop(envs, Drawing(form == "masked"), 4 * steps)
        for _ in range(steps):
            loop.once({})
        segment = loop.cut(0)
        assert segment is not None
        items = {name: segment.items[name].copy() for name in ("item_start", "item_len")}
        return {**{name: segment.columns[name] for name in segment.columns}, **items}, (
            loop.take_episodes()
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "child"])
def test_reused_arrays_give_the_same_transitions_to_the_bit(kind: str, form: str) -> None:
    fresh, ended = collected(kind, form, False, 40)
    reused, ended_too = collected(kind, form, True, 40)
    assert fresh.keys() == reused.keys()
    for name, column in fresh.items():
        assert column.tobytes() == reused[name].tobytes(), name
    assert ended.returns.size > 5
    assert ended.returns.tobytes() == ended_too.returns.tobytes()
    assert fresh["terminated"].any()
    assert fresh["truncated"].any()
    assert np.unique(fresh["action"]).size > 1, "those that were drawn"


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_one_player_gives_the_same(form: str) -> None:
    """All but the dummy steps of NEXT_STEP: by observation before, reward, ends."""
    taken = {}
    for kind in ("single", "old", *MODES, *(["child"] if form == "nested" else [])):
        columns, _ = collected(kind, form, True, 12)
        names = [name for name in columns if name.startswith("observation")]
        first, count = int(columns["item_start"][0]), int(columns["item_len"][0])
        taken[kind] = [columns[name][first : first + count + 1].tolist() for name in names]
        taken[kind] += [columns["terminated"][first : first + count].tolist()]
    assert all(value == taken["single"] for value in taken.values())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "child"])
def test_an_episode_that_is_too_long_is_cut_by_name(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts with its return so far; what can be reset alone begins another one."""
    with tape_manager(kind, "bare", False) as envs, caplog.at_level(logging.WARNING, "hpcdi"):
        envs.max_steps = 2
        envs.launch()
        envs.reset(quota=2)
        actor, ended = Drawing(False), []
        for _ in range(20):
            if envs.done:
                break
            step = envs.step(actor.act(envs.observation, {}))
            if step.ended.any():
                assert (step.truncated & ~step.terminated)[step.ended].all()
                assert step.successor["observation"][step.ended][:, 1].tolist() == [2, 2] or (
                    kind in ("parallel", "turns", "next_step", "same_step")
                )
                ended.append(envs.take_episodes())
        assert envs.done
        assert all((each.lengths == 2).all() for each in ended)
        counts = np.bincount(np.concatenate([each.rows for each in ended]) % 2)
        assert (counts == 2 * envs.seats).all()
    assert "an episode was cut after 2 steps" in caplog.text


def test_an_episode_is_cut_in_time_though_another_environment_fails() -> None:
    with running("pool", [partial(CountEnv, 99, fail_at=3), partial(CountEnv, 99)]) as envs:
        envs.max_steps = 3
        steps = [step for _, step in steps_of(envs, 3)]
        assert steps[-1].failed is not None
        assert [step.ended.tolist() for step in steps] == [[False, False]] * 2 + [[False, True]]
        assert envs.take_episodes().lengths.tolist() == [3]


def test_where_no_episode_ends_that_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "_NO_END_FROM", 3)
    with (
        caplog.at_level(logging.WARNING, "hpcdi"),
        running("pool", [partial(CountEnv, 99)]) as envs,
    ):
        steps_of(envs, 9)
    assert [each.message for each in caplog.records] == [
        "no episode has ended in 3 steps: set env.kwargs: {max_episode_steps: ...}, else returns "
        "come late or never"
    ]
