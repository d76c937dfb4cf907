"""Collecting whole episodes."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.serial_parts import Actor, Manager, check, steps_of, story
from hpcdi.errors import ConfigError
from hpcdi.types import Transition
from hpcdi.worker import EpisodeSerialCollector


def collector(env: Any, actor: Actor, **cfg: Any) -> EpisodeSerialCollector:
    return EpisodeSerialCollector(cfg, env, actor.mode)


def names(episodes: list[list[Transition]]) -> list[tuple[int, int]]:
    """Environment and number of each episode; checks that it is whole."""
    for episode in episodes:
        assert [int(one["obs"][2]) for one in episode] == list(range(len(episode)))
        assert [one["done"] for one in episode] == [False] * (len(episode) - 1) + [True]
    return [(int(episode[0]["obs"][0]), int(episode[0]["obs"][1])) for episode in episodes]


def test_episodes_are_lists_of_transitions_in_the_order_of_their_ends() -> None:
    with collector(Manager((3, 2)), Actor()) as made:
        got = made.collect(4, train_iter=3)
        assert names(got) == [(1, 0), (0, 0), (1, 1), (0, 1)]
        assert all(one["collect_iter"] == 3 for episode in got for one in episode)
        assert "piece" not in got[0][0], "no samples are made of them"
        assert made._report.totals == {"envstep": 12, "train_sample": 10, "episode": 5}


def test_what_ended_at_the_same_time_is_given_by_the_next_call() -> None:
    env = Manager((2, 2, 2, 2))
    with collector(env, Actor()) as made:
        assert names(made.collect(6)) == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]
        steps = made.envstep
        got = made.collect(4)
        assert names(got) == [(2, 1), (3, 1), (0, 2), (1, 2)]
        assert made.envstep == steps + 8


def test_short_episodes_are_not_preferred() -> None:
    """Over many calls every environment gives all its episodes, however long they are."""
    env = Manager((1, 10))
    got: list[list[Transition]] = []
    with collector(env, Actor()) as made:
        for _ in range(20):
            got += made.collect(2)
    assert names(got).count((1, 0)) == 1
    whole = [one for episode in got for one in episode]
    check(whole, env.lengths)
    for number, length in enumerate(env.lengths):
        mine = steps_of(whole, number)
        assert mine == story(len(mine), length)
        assert len(mine) >= env.life[number] - length


def test_on_policy_episodes_begin_anew_and_are_shared_out() -> None:
    actor, env = Actor(on_policy=True), Manager((1, 4))
    with collector(env, actor) as made:
        for version in range(3):
            actor.version = version
            begun = [episode + 1 for episode in env.episode]
            got = made.collect(5)
            assert {one["by"] for episode in got for one in episode} == {version}
            assert sorted(names(got)) == [
                *((0, begun[0] + k) for k in range(3)), (1, begun[1]), (1, begun[1] + 1)
            ], "at most three of one"  # fmt: skip
            assert actor.resets.count(None) == 1 + version + 1
        assert env.resets == 3
        assert env.launches == 1


@pytest.mark.parametrize("on_policy", [False, True])
def test_fewer_episodes_than_environments_are_refused(on_policy: bool) -> None:
    """The shortest ones would be chosen."""
    actor = Actor(on_policy=on_policy, n_episode=2)
    with collector(Manager((3, 3, 3)), actor) as made:
        for target in (2, None):
            with pytest.raises(
                ConfigError, match=r"n_episode: .* number of environments, 3, not 2"
            ):
                made.collect(target)
        assert made.envstep == 0
        assert len(made.collect(3)) == 3


def test_training_samples_of_all_episodes() -> None:
    actor = Actor()
    actor.sample = lambda piece: piece[:-1]
    with collector(Manager((3, 2)), actor, get_train_sample=True) as made:
        got: list[Any] = made.collect(3, train_iter=1)
    assert [one["piece"] for one in got] == [2, 3, 3, 2]
    assert [(int(one["obs"][0]), int(one["obs"][2])) for one in got] == [
        (1, 0),
        (0, 0),
        (0, 1),
        (1, 0),
    ]
    assert {one["collect_iter"] for one in got} == {1}


@pytest.mark.parametrize("get_train_sample", [False, True])
def test_rewards_are_shaped_by_the_manager(get_train_sample: bool) -> None:
    """Before samples are made, as these may add rewards up."""
    actor, env = Actor(), Manager((3, 2))
    seen: list[float] = []
    actor.sample = lambda piece: [seen.append(one["reward"]) or one for one in piece]  # type: ignore[func-returns-value]
    cfg = {"reward_shaping": True, "get_train_sample": get_train_sample}
    with collector(env, actor, **cfg) as made:
        got: list[Any] = made.collect(2)
    assert env.shaped == [1, 0]
    flat = got if get_train_sample else [one for episode in got for one in episode]
    assert [one["reward"] for one in flat] == [-1.0, -2.0, -1.0, -2.0, -3.0]
    assert seen == ([-1.0, -2.0, -1.0, -2.0, -3.0] if get_train_sample else [])


def test_an_asynchronous_manager_on_policy() -> None:
    """Environments that are slow are waited for: each gives its share."""
    actor, env = Actor(on_policy=True), Manager((1, 9, 3), together=1)
    with collector(env, actor) as made:
        got = made.collect(6)
    assert sorted(env_id for env_id, _ in names(got)) == [0, 0, 1, 1, 2, 2]
