"""Several policies at one table; the first one is judged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fakes.evaluator_parts import BattleManager, DuckPolicy
from hpcdi.errors import EnvError, PolicyError
from hpcdi.policy.base import EvalMode
from hpcdi.worker import BattleInteractionSerialEvaluator

EPISODES = [[(4, 1.0), (2, 3.0)], [(3, -5.0)]]


def play(env: Any, policies: Any = None, cfg: Any = None, **kwargs: Any) -> Any:
    policies = policies or [DuckPolicy(10), DuckPolicy(11)]
    with BattleInteractionSerialEvaluator(cfg or {}, env, policies) as evaluator:
        return evaluator.eval(**kwargs)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("one_info", [False, True])
@pytest.mark.parametrize("together", [None, 1])
def test_each_policy_gets_its_own_returns(
    turns: bool, one_info: bool, together: int | None
) -> None:
    env = BattleManager(EPISODES, turns=turns, one_info=one_info, together=together)
    stop, infos = play(env, n_episode=3)
    assert stop is False
    first, second = ([info["eval_episode_return"] for info in of_one] for of_one in infos)
    assert sorted(first) == [-5.0, 1.0, 3.0]
    assert second == [-value for value in first]
    assert all(info["level"] == 3 for of_one in infos for info in of_one)


def test_policy_0_decides() -> None:
    good = BattleManager([[(2, 9.0)]])
    assert play(good, cfg={"stop_value": 5}, train_iter=1)[0] is True
    bad = BattleManager([[(2, -9.0)]])  # policy 1 has 9
    assert play(bad, cfg={"stop_value": 5}, train_iter=1)[0] is False


def test_who_is_not_to_act_is_not_asked() -> None:
    seats = [DuckPolicy(10), DuckPolicy(11)]
    asked: list[list[int]] = [[], []]
    for seat, policy in enumerate(seats):
        forward = policy.forward

        def noted(data: Any, seat: int = seat, forward: Any = forward) -> Any:
            asked[seat] += [int(obs[0]) for obs in data.values()]
            return forward(data)

        policy.forward = noted  # type: ignore[method-assign]
    play(BattleManager([[(5, 1.0)]], turns=True), seats)
    assert asked == [[0] * 3, [1] * 2]


def test_tensors_become_arrays() -> None:
    env = BattleManager([[(2, 1.0)]], turns=True)
    play(env, [DuckPolicy(torch.tensor(10)), DuckPolicy(torch.tensor(11))])
    assert [type(a).__name__ for a in env.actions[0][0]] == ["ndarray", "NoneType"]


def test_policies_may_want_tensors() -> None:
    env = BattleManager([[(3, 1.0)]], turns=True)
    policies = [DuckPolicy(10 + seat, wants=torch.Tensor) for seat in range(2)]
    play(env, policies, {"transform_obs": True})


@pytest.mark.parametrize("renews", [False, True])
def test_an_episode_that_failed_counts_for_nobody(renews: bool) -> None:
    env = BattleManager([[(3, 1.0), (3, 2.0)]], failing={0: [2]}, renews=renews)
    policies = [DuckPolicy(10), DuckPolicy(11)]
    _, infos = play(env, policies)
    assert [info["eval_episode_return"] for info in infos[1]] == [-2.0]
    for policy in policies:
        assert policy.resets == [None, None, [0], [0]]
    assert env.resets == ([] if renews else [0])


def test_one_info_a_player_may_say_that_it_failed() -> None:
    class Each(BattleManager):
        def step(self, actions: Any) -> Any:
            steps = super().step(actions)
            return {
                i: s._replace(info=[{}, s.info]) if s.info == {"abnormal": True} else s
                for i, s in steps.items()
            }

    _, infos = play(Each([[(3, 1.0), (3, 2.0)]], failing={0: [2]}))
    assert [info["eval_episode_return"] for info in infos[0]] == [2.0]


def test_one_policy_cannot_battle() -> None:
    env = BattleManager([[(2, 1.0)]])
    duck = DuckPolicy()
    mode = EvalMode(duck.forward, duck.reset, None, None, None, None)
    for alone in (duck, mode, [duck]):
        with pytest.raises(PolicyError, match=r"two or more policies, one a player, not 1"):
            BattleInteractionSerialEvaluator({}, env, alone)


def test_more_policies_than_players() -> None:
    with pytest.raises(EnvError, match="observations for 2 players, and there are 3 policies"):
        play(BattleManager([[(2, 1.0)]]), [DuckPolicy(10 + seat) for seat in range(3)])


@pytest.mark.parametrize("returns", [1.0, torch.tensor(1.0), [1.0], [1.0, 2.0, 3.0]])
def test_each_player_needs_its_return(returns: Any) -> None:
    class Odd(BattleManager):
        def ended(self, env_id: int, total: float) -> Any:
            return {"eval_episode_return": returns}

    with pytest.raises(EnvError, match=r"episode of 2 players with \d returns"):
        play(Odd([[(2, 1.0)]]))


@pytest.mark.parametrize("form", [torch.tensor, list, lambda x: [torch.tensor([v]) for v in x]])
def test_returns_of_players_in_many_forms(form: Any) -> None:
    class Formed(BattleManager):
        def ended(self, env_id: int, total: float) -> Any:
            return {"eval_episode_return": form([total, -total])}

    _, infos = play(Formed([[(2, 1.5)]]))
    assert [info[0]["eval_episode_return"] for info in infos] == [1.5, -1.5]


def test_without_a_return() -> None:
    class Silent(BattleManager):
        def ended(self, env_id: int, total: float) -> Any:
            return [{"level": 1}, {"level": 1}]

    with pytest.raises(EnvError, match=r"environment 0 .*without info\['eval_episode_return'\]"):
        play(Silent([[(2, 1.0)]]))
