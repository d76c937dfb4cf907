"""Battles: who acts when, and whose a transition is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fakes.serial_parts import Actor, Battle, check, return_of, reward_of, steps_of, story
from hpcdi.errors import EnvError
from hpcdi.policy.dict_adapter import infos_of
from hpcdi.types import Transition
from hpcdi.worker import BattleEpisodeSerialCollector, BattleSampleSerialCollector

BOTH = [BattleSampleSerialCollector, BattleEpisodeSerialCollector]


def collect(cls: Any, env: Any, actors: list[Actor], n: int, **kwargs: Any) -> Any:
    """Data of each player as transitions in one list, and infos."""
    cfg = kwargs.pop("cfg", {})
    with cls(cfg, env, [actor.mode for actor in actors]) as made:
        data, info = made.collect(n, **kwargs)
    if cls is BattleEpisodeSerialCollector and not cfg.get("get_train_sample"):
        data = [[one for episode in own for one in episode] for own in data]
    return data, info


def actors_of(players: int, **attributes: Any) -> list[Actor]:
    return [Actor(player, **attributes) for player in range(players)]


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("players", [2, 3])
@pytest.mark.parametrize("one_info", [True, False])
def test_all_act_at_once(cls: Any, players: int, one_info: bool) -> None:
    env = Battle((3, 2), players=players, one_info=one_info)
    data, info = collect(cls, env, actors_of(players), 4, train_iter=2)
    assert len(data) == len(info) == players
    for player in range(players):
        check(data[player], env.lengths, player)
        assert {one["collect_iter"] for one in data[player]} == {2}
        ended = [(k, e) for s in range(env.life[0]) for k, e in ends_at(env, s + 1)]
        assert info[player] == [
            {"eval_episode_return": return_of(e, env.lengths[k], player), "length": env.lengths[k]}
            for k, e in ended
        ]
        assert all(type(one["eval_episode_return"]) is float for one in info[player])


def ends_at(env: Battle, step: int) -> list[tuple[int, int]]:
    return [(k, step // n - 1) for k, n in enumerate(env.lengths) if step % n == 0]


def own_turns(length: int, players: int, player: int) -> list[tuple[int, int]]:
    """Steps of each of a player's transitions in an episode: from one, to another (excluded)."""
    begins = list(range(player, length, players))
    return list(zip(begins, [*begins[1:], length], strict=True))


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("players", [2, 3])
@pytest.mark.parametrize("together", [None, 1])
def test_in_turns_a_transition_spans_from_turn_to_turn(
    cls: Any, players: int, together: int | None
) -> None:
    lengths = (7, 5)
    env = Battle(lengths, players=players, turns=True, together=together)
    data, _ = collect(cls, env, actors_of(players), 16)
    for player in range(players):
        for number, length in enumerate(lengths):
            turns = own_turns(length, players, player)
            mine = [one for one in data[player] if one["obs"][0] == number]
            assert len(mine) > len(turns), "more than an episode"
            for k, one in enumerate(mine):
                episode, (begin, end) = k // len(turns), turns[k % len(turns)]
                assert one["obs"].tolist() == [number, episode, begin, player]
                assert one["next_obs"].tolist() == [number, episode, end, player]
                rewards = [reward_of(episode, step, player) for step in range(begin + 1, end + 1)]
                assert one["reward"] == sum(rewards)
                assert one["done"] == (end == length)
    assert all(sum(one is not None for one in action) == 1 for action in env.actions)


@pytest.mark.parametrize("cls", BOTH)
def test_in_turns_only_those_who_act_are_asked(cls: Any) -> None:
    env, actors = Battle((4, 3), turns=True), actors_of(2)
    collect(cls, env, actors, 6)
    for actor in actors:
        for data in actor.seen:
            assert all(int(obs[2]) % 2 == int(obs[3]) == actor.player for obs in data.values())


@pytest.mark.parametrize("cls", BOTH)
def test_in_turns_an_environment_fails_between_two_turns(cls: Any) -> None:
    """No reward of a failed episode is in the next one's transitions."""
    env = Battle((6,), turns=True, failing={0: [2, 5]})
    data, info = collect(cls, env, actors_of(2), 4)
    assert {one["length"] for own in info for one in own} == {6}
    for player, own in enumerate(data):
        assert all(one["obs"][1] == one["next_obs"][1] for one in own), "of one episode"
        last = [one for one in own if one["obs"][1] == 2]
        assert [one["reward"] for one in last][:2] == [
            reward_of(2, begin + 1, player) + reward_of(2, begin + 2, player)
            for begin in (player, player + 2)
        ]
    assert env.renewed == [0, 0]


@pytest.mark.parametrize("cls", BOTH)
def test_in_turns_rewards_are_tensors_where_observations_are(cls: Any) -> None:
    env, actors = Battle((4,), turns=True), actors_of(2)
    data, _ = collect(cls, env, actors, 2, cfg={"transform_obs": True})
    for own in data:
        for one in own:
            for name in ("obs", "next_obs", "reward"):
                assert one[name].dtype == torch.float32


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("players", [1, 3])
def test_there_must_be_a_policy_for_each_player(cls: Any, players: int) -> None:
    with pytest.raises(EnvError, match=f"for {players} players, and there are 2 policies"):
        collect(cls, Battle((3,), players=players), actors_of(2), 4)


@pytest.mark.parametrize("cls", BOTH)
def test_each_policy_has_its_own_setting(cls: Any) -> None:
    actors = actors_of(2)
    collect(cls, Battle((3,)), actors, 2, policy_kwargs=[{"eps": 0.1}, {"eps": 0.2}])
    assert [actor.settings[0] for actor in actors] == [{"eps": 0.1}, {"eps": 0.2}]


def test_a_policy_whose_data_are_not_collected_plays() -> None:
    actors = [Actor(0), Actor(1, collect_data=False)]
    data, info = collect(BattleSampleSerialCollector, Battle((3, 2)), actors, 6)
    assert [len(own) for own in data] == [6, 0]
    assert len(info[0]) == len(info[1]) > 0
    assert actors[1].calls == actors[0].calls
    assert not actors[1].timesteps
    assert actors[1].resets.count([0]) > 0, "it is told of ends"


def test_pieces_of_each_player_are_as_its_policy_unrolls() -> None:
    actors = [Actor(0, unroll_len=4), Actor(1)]
    data, _ = collect(BattleSampleSerialCollector, Battle((50, 50)), actors, 4)
    assert [[one["piece"] for one in own] for own in data] == [[4] * 4, [2] * 4]


def test_samples_of_the_slower_player_are_waited_for() -> None:
    """Of an episode of three steps the first player has two transitions, the other one."""
    env = Battle((3,), turns=True)
    with BattleSampleSerialCollector({}, env, [a.mode for a in actors_of(2)]) as made:
        data, _ = made.collect(4, drop_extra=False)
        assert [len(own) for own in data] == [8, 4]
        assert made._report.totals["train_sample"] == 8
        data, _ = made.collect(4)
        assert [len(own) for own in data] == [4, 4]


def test_on_policy_samples_are_of_one_policy() -> None:
    actors = actors_of(2, on_policy=True)
    env = Battle((3, 50))
    with BattleSampleSerialCollector({}, env, [actor.mode for actor in actors]) as made:
        for version in range(3):
            for actor in actors:
                actor.version = version
            data, _ = made.collect(8, drop_extra=False)
            for own in data:
                assert {one["by"] for one in own} == {version}


def test_training_samples_of_episodes() -> None:
    env = Battle((3, 2))
    cls, actors = BattleEpisodeSerialCollector, actors_of(2)
    data, _ = collect(cls, env, actors, 2, cfg={"get_train_sample": True})
    assert [[one["piece"] for one in own] for own in data] == [[2, 2, 3, 3, 3]] * 2


def test_episodes_that_ended_at_the_same_time_are_given_by_the_next_call() -> None:
    env = Battle((2, 2))
    got: list[Transition] = []
    with BattleEpisodeSerialCollector({}, env, [actor.mode for actor in actors_of(2)]) as made:
        for target in (3, 3, 2):
            data, _ = made.collect(target)
            assert [len(own) for own in data] == [target, target]
            got += [one for episode in data[1] for one in episode]
        assert made.envstep == 16
    for number in range(2):
        assert steps_of(got, number) == story(8, 2)


@pytest.mark.parametrize(
    ("info", "own"),
    [
        ([{"a": 1}, {"a": 2}], {"a": 2}),
        (({"a": 1}, {"a": 2}), {"a": 2}),
        ({"eval_episode_return": [1.0, 2.0], "b": 3}, {"eval_episode_return": 2.0, "b": 3}),
        ({"eval_episode_return": np.array([[1.0], [2.0]])}, {"eval_episode_return": 2.0}),
        ({"eval_episode_return": torch.tensor([1.0, 2.0])}, {"eval_episode_return": 2.0}),
        ({"eval_episode_return": [torch.tensor(1.0), torch.tensor(2.0)]},
         {"eval_episode_return": 2.0}),
        ({}, {}),
    ],
)  # fmt: skip
def test_a_players_part_of_an_info(info: Any, own: dict[str, Any]) -> None:
    ended = "eval_episode_return" in own
    assert infos_of(info, 2, 0, ended=ended)[1] == own
