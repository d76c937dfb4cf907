"""Teams: one row of all players, policies by groups, and what mixes values."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text

from fakes.battle_envs import Numbers
from hpcdi.config.compat import parse
from hpcdi.config.compiled import compile_config
from hpcdi.config.fields import restore, to_mapping
from hpcdi.config.team import TeamConfig
from hpcdi.config.words import dump
from hpcdi.env.arguments import owner_of
from hpcdi.env.contract import read_spaces
from hpcdi.env.create import make_env_manager
from hpcdi.env.games import Meet, Pincer, Recall, SpeakerListener, TwoStep
from hpcdi.env.pettingzoo import as_battle
from hpcdi.env.team import Team
from hpcdi.errors import ConfigError, EnvError, EnvValueError, PolicyError
from hpcdi.policy import memories, networks
from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import RANDOM, RandomActor, RandomFirst
from hpcdi.policy.players import PolicyGroup, with_players
from hpcdi.policy.returns import gae, n_step
from hpcdi.policy.sequences import Sequences
from hpcdi.roles.callbacks import Callbacks, Context
from hpcdi.roles.collector.recorder import segment_of
from hpcdi.run.experiment import load_experiment
from hpcdi.store.rows import STATES, sequence_rows
from hpcdi.types import Columns, SequenceRule

pytestmark = pytest.mark.usefixtures("one_torch_thread")

GAMMA = 0.9


class Relay:
    """Three players; the last one comes in step 1, the first leaves after it, both for good."""

    agents = 3
    names = ("hare_0", "hare_1", "fox")
    observation_space = (Box(-9, 9, (2,), np.float32),) * 2 + (Discrete(5),)
    action_space = (Discrete(2), Discrete(2), Discrete(3))

    def reset(self, seed: int | None = None) -> list[Any]:
        del seed
        self.step_number = 0
        return self._seen()

    def _seen(self) -> list[Any]:
        t = self.step_number
        hares = [np.array([t, n], np.float32) for n in range(2)]
        return [hares[0] if t < 2 else None, hares[1], t % 5 if t > 0 else None]

    def step(self, actions: Any) -> Any:
        there = [seen is not None for seen in self._seen()]
        assert [action is not None for action in actions] == there
        self.step_number += 1
        over = self.step_number == 4
        rewards = np.array([10.0, 1.0, -1.0]) * self.step_number * there
        infos = [{"terminated": False, "truncated": over} for _ in there]
        infos[0] = {"terminated": self.step_number == 2, "truncated": False}
        seen = [np.array([9, 0], np.float32), np.array([4, 1], np.float32), 4]
        return (seen if over else self._seen()), rewards, over, infos

    def close(self) -> None:
        pass


def spaces_of(game: Any) -> Any:
    team = Team(game)
    return read_spaces(team.observation_space, team.action_space)


def test_a_player_s_name_with_a_slash_is_refused() -> None:
    game = Relay()
    game.names = ("hare/0", "hare/1", "fox")
    with pytest.raises(EnvError, match=r"a player's name contains '/': 'hare/0'; rename it"):
        Team(game)


def test_players_may_have_numbers_in_place_of_names() -> None:
    team = Team(as_battle(Numbers()))
    team.reset(seed=0)
    seen, *_, info = team.step({number: number % 4 for number in range(11)})
    assert seen["reward"].tolist() == [number % 4 for number in team.action_space.spaces]
    names = [leaf.name for leaf in spaces_of(as_battle(Numbers())).action]
    assert names == [str(number) for number in range(11)]
    with pytest.raises(EnvValueError, match="'fox' is no player; there are 10, 9, "):
        team.seen_by({"fox": np.zeros(1, np.float32)})
    for _ in range(3):
        *_, info = team.step(dict.fromkeys(range(11), 1))
    assert info["return/10"] == 2 + 3


def config(game: Any, **settings: Any) -> TeamConfig:
    parsed = parse(TeamConfig, settings, "a team")
    filled, problems = with_players(parsed, spaces_of(game))
    if problems:
        raise ConfigError(problems)
    return filled


PPO = {
    "type": "ppo",
    "discount_factor": GAMMA,
    "model": {"encoder_hidden_size_list": [8]},
    "learn": {"epoch_per_collect": 1, "batch_size": 64},
}
RELAY = {"policies": {"hare": PPO, "fox": PPO}}


def policy(cfg: TeamConfig, *modes: str) -> Any:
    return create_policy(cfg, modes, seed=np.random.SeedSequence(1))


# --------------------------------------------------------------------------------- the environment


def test_a_team_says_who_acts_and_what_each_step_brought() -> None:
    team = Team(Relay())
    seen, _ = team.reset()
    assert team.observation_space.contains(seen)
    assert seen["acts"].tolist() == [0, 1, 1]  # the fox is the first by name
    acts, ended, rewards = [], [], []
    for _ in range(4):
        seen, reward, terminated, truncated, info = team.step(team.action_space.sample())
        assert team.observation_space.contains(seen)
        assert reward == pytest.approx(float(seen["reward"].mean()))
        acts.append(seen["acts"].tolist())
        ended.append(seen["ended"].tolist())
        rewards.append(seen["reward"].tolist())
    assert acts == [[1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 0, 1]]  # it is cut: they would go on
    assert ended == [[0, 0, 0], [0, 1, 0], [0, 0, 0], [2, 0, 2]]
    assert rewards == [[0, 10, 1], [-2, 20, 2], [-3, 0, 3], [-4, 0, 4]]
    assert (terminated, truncated) == (False, True)
    assert info == {"return/hare_0": 30, "return/hare_1": 10, "return/fox": -9}


@pytest.mark.parametrize("form", ["base", "subprocess"])
@pytest.mark.usefixtures("env_helpers")
def test_a_team_that_is_cut_says_what_each_player_has_got_so_far(form: str) -> None:
    with make_env_manager({"type": form}, [_relay] * 2) as envs:
        envs.max_steps = 2
        envs.launch()
        actor = RandomActor(envs.spaces, np.random.SeedSequence(0))
        for _ in range(2):
            envs.step(actor.act(envs.observation, {}))
        infos = envs.take_episodes().infos
    assert infos == [{"return/hare_0": 30, "return/hare_1": 3, "return/fox": -2}] * 2


def _relay() -> Team:
    return Team(Relay())


class Leaving:
    """A `ParallelEnv`: b is cut after its first step, a after its third; masks are in infos."""

    possible_agents = ("a", "b")
    metadata: ClassVar[dict[str, Any]] = {}

    def observation_space(self, _name: str) -> Any:
        return Box(0, 9, (1,), np.float32)

    def action_space(self, name: str) -> Any:
        return Discrete({"a": 2, "b": 4}[name])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        del seed, options
        self.agents, self._steps = ["a", "b"], 0
        return self._seen(self.agents), {n: self._info(n) for n in self.agents}

    def _seen(self, names: Any) -> dict[str, Any]:
        return {name: np.full(1, self._steps, np.float32) for name in names}

    def _info(self, name: str) -> dict[str, Any]:
        return {"action_mask": np.arange(self.action_space(name).n) > 0}

    def step(self, actions: dict[str, int]) -> Any:
        self._steps += 1
        cut = {name: self._steps == {"a": 3, "b": 1}[name] for name in actions}
        self.agents = [name for name in actions if not cut[name]]
        infos = {name: self._info(name) for name in self.agents}  # none at the end
        none = dict.fromkeys(actions, False)
        return self._seen(actions), dict.fromkeys(actions, 1.0), none, cut, infos

    def close(self) -> None:
        pass


def test_one_that_leaves_has_seen_its_last_observation_and_masks_are_of_each_player() -> None:
    """The last observation was missing: what it bootstraps from was the one before."""
    team = Team(as_battle(Leaving()))
    seen, _ = team.reset(seed=0)
    assert seen["action_mask"].tolist() == [False, True, False, True, True, True]
    seen_by, masks = [], []
    for _ in range(3):
        seen, *_ = team.step({"a": 1, "b": 1})
        seen_by.append([float(seen["observation"]["players"][n][0]) for n in "ab"])
        masks.append(seen["action_mask"].tolist())
    assert seen_by == [[1, 1], [2, 1], [3, 1]]
    assert masks == [[False, *[True] * 5], [False, *[True] * 5], [True] * 6]
    assert seen["observation"]["ended"].tolist() == [2, 0]


class TakenDown(Leaving):
    """Its world, and the state with it, is gone once nobody is there; a terminates, or is cut."""

    state_space = Box(0, 9, (1,), np.float32)

    def __init__(self, *, is_cut: bool = False) -> None:
        self._is_cut = is_cut

    def state(self) -> Any:
        if not self.agents:
            raise AttributeError("'NoneType' object has no attribute 'position'")
        return np.full(1, self._steps, np.float32)

    def step(self, actions: dict[str, int]) -> Any:
        seen, rewards, none, cut, infos = super().step(actions)
        ends = (none, cut) if self._is_cut else (cut, none)
        return seen, rewards, *ends, infos


def test_a_state_may_be_gone_when_the_game_has_ended() -> None:
    """Multiwalker's last step of an episode failed, and with it every episode."""
    team = Team(as_battle(TakenDown()))
    states = [team.reset(seed=0)[0]["observation"]["state"]]
    for _ in range(3):
        seen, *_, terminated, _truncated, _info = team.step({"a": 1, "b": 1})
        states.append(seen["observation"]["state"])
    assert terminated
    assert [float(state[0]) for state in states] == [0, 1, 2, 2]
    cut = Team(as_battle(TakenDown(is_cut=True)))
    cut.reset(seed=0)
    for _ in range(2):
        cut.step({"a": 1, "b": 1})
    with pytest.raises(AttributeError, match="position"):  # a value of it is bootstrapped
        cut.step({"a": 1, "b": 1})


def test_a_part_of_what_players_see_that_is_no_array_is_named() -> None:
    """It failed with 'Text' object has no attribute 'start'."""

    class Speaking(Leaving):
        def observation_space(self, name: str) -> Any:
            return Dict(x=super().observation_space(name), said=Text(5))

    team = Team(as_battle(Speaking()))
    with pytest.raises(
        EnvError, match=r"have a part players/a/said Text.* leave a part out \(of t"
    ):
        read_spaces(team.observation_space, team.action_space)


class Back(Leaving):
    """a ends in its first step, is back in the second, and is cut with b in the third."""

    def step(self, actions: dict[str, int]) -> Any:
        self._steps += 1
        over, cut = self._steps == 1, self._steps == 3
        self.agents = [["b"], ["a", "b"], []][self._steps - 1]
        seen, infos = self._seen({*actions, *self.agents}), {n: self._info(n) for n in self.agents}
        ends = {"a": over, "b": False}, dict.fromkeys("ab", cut)
        return seen, dict.fromkeys(actions, 1.0), *ends, infos


def test_one_that_has_come_back_ends_as_it_ends_then() -> None:
    """It was terminated for good: nothing was bootstrapped where it was cut."""
    team = Team(as_battle(Back()))
    team.reset(seed=0)
    steps = [team.step({"a": 1, "b": 1}) for _ in range(3)]
    assert [step[0]["observation"]["ended"].tolist() for step in steps] == [[1, 0], [0, 0], [2, 2]]
    assert steps[-1][2:4] == (False, True)


def test_who_acts_for_players_whose_masks_are_in_infos_gives_them_beside_what_they_see() -> None:
    """It was an IndexError."""
    team, own = Team(as_battle(Leaving())), np.ones(1, np.float32)
    seen = team.seen_by({"b": own}, {"b": np.array([0, 1, 0, 1])})
    assert seen["observation"]["acts"].tolist() == [0, 1]
    assert seen["action_mask"].tolist() == [True, True, False, True, False, True]
    assert team.seen_by({"b": {"observation": own, "action_mask": np.array([0, 1, 0, 1])}})
    for masks in (None, {"a": np.ones(2)}, np.ones(6)):
        with pytest.raises(EnvValueError, match="'b' has no mask of legal actions"):
            team.seen_by({"b": own}, masks)
    with pytest.raises(EnvValueError, match="has no masks of actions, and one is given"):
        Team(Relay()).seen_by({"fox": 1}, {"fox": np.ones(3)})


def test_who_acts_for_players_without_names_is_told_them() -> None:
    """A tuple, as its environment returns it, was said to miss "acts"."""
    seen = np.array([1, 5]), np.array([5, 1])
    with pytest.raises(EnvValueError, match=r"give a dict.*player_0, player_1"):
        Team(Meet()).seen_by(seen)  # type: ignore[arg-type]


class NamedMasks(Leaving):
    """Player "b" moves and attacks; its mask is in the info, by name, in another order."""

    def action_space(self, name: str) -> Any:
        two = {"move": Discrete(3), "attack": Discrete(2)}
        return Dict(two) if name == "b" else Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["a", "b"]
        return {name: np.zeros(1, np.float32) for name in "ab"}, self._masks()

    def step(self, actions: Any) -> Any:
        masks = self._masks()
        infos = {name: {"x": 3.0, **masks[name]} for name in "ab"}
        seen, no = {name: np.ones(1, np.float32) for name in "ab"}, dict.fromkeys("ab", False)
        return seen, dict.fromkeys("ab", 1.0), no, no, infos

    def _masks(self) -> Any:
        own = {"move": [1, 0, 1], "attack": [0, 1]}
        return {"a": {"action_mask": [1, 0]}, "b": {"action_mask": own}}


def test_masks_of_players_by_name_belong_to_the_parts_of_their_actions() -> None:
    battle = as_battle(NamedMasks())
    assert battle.reset(seed=0)[1]["action_mask"].tolist() == [0, 1, 1, 0, 1]
    team, own = Team(battle), np.zeros(1, np.float32)
    legal = [True, False, False, True, True, False, True]
    assert team.reset(seed=0)[0]["action_mask"].tolist() == legal
    given = {"a": (1, 0), "b": {"move": [1, 0, 1], "attack": [0, 1]}}
    assert team.seen_by({"a": own, "b": own}, given)["action_mask"].tolist() == legal
    with pytest.raises(EnvValueError, match=r"action_mask of b.* parts of the names \['moves'\]"):
        team.seen_by({"b": own}, {"b": {"moves": [1, 0, 1]}})


def test_infos_of_each_step_are_told_and_attributes_of_the_environment_are_found() -> None:
    game = NamedMasks()
    team = Team(as_battle(game))
    team.reset(seed=0)
    info = team.step({"a": 0, "b": {"move": 0, "attack": 1}})[-1]
    assert info == {"x": 3.0}
    assert owner_of(team, "agents") == (game, "agents")


def test_masks_of_all_players_lie_side_by_side() -> None:
    class Masked(TwoStep):
        def __init__(self) -> None:
            super().__init__()
            from gymnasium.spaces import MultiBinary

            masked = Dict({"observation": Discrete(3), "action_mask": MultiBinary(2)})
            self.observation_space = (masked, Discrete(3))

        def _seen(self) -> list[Any]:
            first = {"observation": self._state, "action_mask": np.array([0, 1], np.int8)}
            return [first, self._state]

    team = Team(Masked())
    seen, _ = team.reset(seed=0)
    assert seen["action_mask"].tolist() == [False, True, True, True]
    assert team.observation_space.contains(
        {**seen, "action_mask": seen["action_mask"].astype(np.int8)}
    )


def test_games_have_the_optimum_that_they_state() -> None:
    best = SpeakerListener()
    thing, heard = best.reset(seed=0)
    total, over = 0.0, False
    while not over:
        (thing, heard), reward, over, _ = best.step([thing, int(np.argmax(heard))])
        total += reward[0]
    assert total == SpeakerListener.OPTIMUM
    remembering = Recall(steps=4)
    bits, over = remembering.reset(seed=0), False
    while not over:
        seen, reward, over, _ = remembering.step(bits)
    assert (bits, seen, reward.tolist()) == ([1, 1], [2, 2], [Recall.OPTIMUM] * 2)
    game, returns = Meet(), []
    for seed in range(400):
        (place, other), *_ = game.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            gap = other - place
            steps = [1 + np.sign(gap), 1 - np.sign(gap) * (abs(gap) > 1)]
            seen, reward, over, _ = game.step(steps)
            (place, other), total = seen[0], total + reward[0]
        returns.append(total)
    assert np.mean(returns) == pytest.approx(game.optimum, abs=0.015)


def test_a_prey_is_caught_from_both_sides_alone() -> None:
    game = Pincer(size=9, steps=20)

    def best(seen: dict[str, Any]) -> dict[str, int]:
        """The hunters part; the prey runs to where it has more room."""
        distances = divmod(seen["prey"], 9)
        return {"hunter_0": 0, "hunter_1": 2, "prey": int(9 - max(distances) >= min(distances))}

    def together(seen: dict[str, Any]) -> dict[str, int]:
        return {**best(seen), "hunter_0": 2}

    assert game.chase() == -3 * game.optimum == 4
    assert Pincer(size=6).optimum == pytest.approx(-2.6 / 3)  # 2 or 3 steps, by where they start
    assert (game.gap(best), game.gap(together)) == (0, 16)
    for play, caught_after in ((best, 4), (together, 20)):
        total, over, _ = np.zeros(3), False, game.reset(seed=0)
        seen = game.place((3, 3))
        while not over:
            actions = play(dict(zip(game.names, seen, strict=True)))
            seen, rewards, over, infos = game.step(list(actions.values()))
            total += rewards
        assert total.tolist() == [-caught_after, -caught_after, caught_after]
        assert infos[2] == {"terminated": caught_after == 4, "truncated": caught_after == 20}


# -------------------------------------------------------------------------------------- the groups


def test_a_group_sees_its_players_beside_each_other_with_their_numbers() -> None:
    cfg = config(Relay(), **RELAY)
    hares = PolicyGroup("hare", cfg.policies["hare"], cfg)
    columns = {
        "observation/players/hare_0": np.array([[1, 2], [3, 4]], np.float32),
        "observation/players/hare_1": np.array([[5, 6], [7, 8]], np.float32),
    }
    seen = hares.observations(columns)
    assert seen["observation/own"].tolist() == [[1, 2], [5, 6], [3, 4], [7, 8]]
    assert seen["observation/number"].tolist() == [0, 1, 0, 1]
    outputs = hares.outputs({"action": np.arange(4), "action/x": np.arange(4) * 2})
    assert outputs["action/hare_1"].tolist() == [1, 3]
    assert outputs["action/hare_0/x"].tolist() == [0, 4]
    fox = PolicyGroup("fox", cfg.policies["fox"], cfg)
    assert [leaf.column("observation") for leaf in fox.spaces.observation] == ["observation"]


def test_a_group_sees_arrays_without_numbers() -> None:
    class WithNothing(Relay):
        observation_space = (Dict(x=Box(-9, 9, (2,)), none=Box(-9, 9, (0,))),) * 2 + (Discrete(5),)

    cfg = config(WithNothing(), **RELAY)
    x, none = np.zeros((3, 2), np.float32), np.zeros((3, 0), np.float32)
    columns = {
        f"observation/players/hare_{n}/{name}": column
        for n in range(2)
        for name, column in (("x", x), ("none", none))
    }
    seen = PolicyGroup("hare", cfg.policies["hare"], cfg).observations(columns)
    shapes = {name.rpartition("/")[2]: column.shape for name, column in seen.items()}
    assert shapes == {"x": (6, 2), "none": (6, 0), "number": (6,)}


def played(cfg: TeamConfig, game: Any, episodes: int = 2) -> tuple[Any, Columns, Any, Columns]:
    """Returns the actor, transitions, lengths of items and last observations of a random play."""
    actor = policy(cfg, "learn", "collect").collect_mode.get_attribute("columnar")
    team, rows, last, lengths = Team(game), [], [], []
    for _ in range(episodes):
        seen, _ = team.reset(seed=0)
        actor.reset(None)
        over, count = False, 0
        while not over:
            observation = {f"observation/{n}": np.asarray(c)[None] for n, c in flat(seen)}
            made = actor.act(observation, {name: {"eps": 1.0} for name in cfg.policies})
            action = {n: int(made[f"action/{n}"][0]) for n in team.names}
            seen, reward, terminated, truncated, _ = team.step(action)
            ends = {"reward": reward, "terminated": terminated, "truncated": truncated}
            rows.append({**observation, **made, **{n: np.array([v]) for n, v in ends.items()}})
            over, count = terminated or truncated, count + 1
        lengths.append(count)
        last.append({f"observation/{n}": np.asarray(c)[None] for n, c in flat(seen)})
    joined = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    after = {name: np.concatenate([each[name] for each in last]) for name in last[0]}
    return actor, joined, np.array(lengths, np.int32), after


def flat(seen: Any) -> list[tuple[str, Any]]:
    return [
        (f"{key}/{name}" if name else key, part)
        for key, value in seen.items()
        for name, part in (value.items() if isinstance(value, dict) else [("", value)])
    ]


def test_advantages_are_of_each_player_from_its_birth_to_its_death() -> None:
    cfg = config(Relay(), **RELAY)
    actor, transitions, lengths, last = played(cfg, Relay())
    made = actor.train_columns(transitions, lengths, last).columns
    value = transitions["value/hare_0"]  # there for two steps, then terminated
    advantage, returns = made["advantage/hare_0"], made["return/hare_0"]
    for first in (0, 4):
        own = slice(first, first + 2)
        expected = gae(
            np.array([10.0, 20.0], np.float32),
            np.array([False, True]),
            value[own],
            np.zeros(1, np.float32),
            np.array([2], np.int32),
            GAMMA,
            cfg.policies["hare"].collect.gae_lambda,  # type: ignore[attr-defined]
        )
        assert advantage[own] == pytest.approx(expected.advantage, rel=1e-5)
        assert returns[own] == pytest.approx(expected.returns, rel=1e-5)
        assert not advantage[first + 2 : first + 4].any()
    # the fox comes in step 1, and is cut: its last observation is valued
    own = PolicyGroup("fox", cfg.policies["fox"], cfg).observations(last)
    end = actor._parts[1][1].infer(own)[-1]
    expected = gae(
        np.array([-2.0, -3.0, -4.0], np.float32),
        np.zeros(3, bool),
        transitions["value/fox"][1:4],
        end[:1],
        np.array([3], np.int32),
        GAMMA,
        cfg.policies["fox"].collect.gae_lambda,  # type: ignore[attr-defined]
    )
    assert made["advantage/fox"][0] == 0
    assert made["advantage/fox"][1:4] == pytest.approx(expected.advantage, rel=1e-5)


class Posthumous(Relay):
    """Who has left is paid, too: 100 in the last step; so is who has not come yet, in the first."""

    def step(self, actions: Any) -> Any:
        seen, rewards, over, infos = super().step(actions)
        paid = np.array([100.0 * over, 0.0, 7.0 * (self.step_number == 1)])
        return seen, rewards + paid, over, infos


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_what_a_player_is_paid_after_it_has_left_is_of_its_last_step(kind: str) -> None:
    """It was learnt by nobody."""
    own = {"type": kind, "model": {"encoder_hidden_size_list": [8]}, "discount_factor": GAMMA}
    cfg = config(Posthumous(), policies={"hare": own, "fox": own})
    actor, transitions, lengths, last = played(cfg, Posthumous())

    def learnt(lengths: list[int], last: Columns) -> list[float]:
        """In the hare's last steps, in which it is terminated."""
        made = actor.train_columns(transitions, np.array(lengths, np.int32), last).columns
        if kind == "dqn":
            assert made["n_step_return/fox"][[1, 2, 5, 6]].tolist() == [-2, -3, -2, -3]
            return made["n_step_return/hare_0"][[1, 5]].tolist()  # type: ignore[no-any-return]
        advantage, value = made["advantage/hare_0"], transitions["value/hare_0"]
        return (advantage + value)[[1, 5]].tolist()  # type: ignore[no-any-return]

    assert learnt(lengths.tolist(), last) == pytest.approx([120, 120], rel=1e-5)
    # cut in between, an item does not have the last step
    cut = {name: np.concatenate([transitions[name][3:4], column]) for name, column in last.items()}
    assert learnt([3, 1, 4], cut) == pytest.approx([20, 120], rel=1e-5)


def test_policies_learn_from_the_rows_in_which_their_players_were_there() -> None:
    cfg = config(Relay(), **RELAY)
    actor, transitions, lengths, last = played(cfg, Relay())
    columns = {**transitions, **actor.train_columns(transitions, lengths, last).columns}
    batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    hares, rows = PolicyGroup("hare", cfg.policies["hare"], cfg).learner_batch(batch)
    assert rows.tolist() == [0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 15]
    assert hares["observation/own"][:, 1].tolist() == [0, 1, 0, 1, 1, 1] * 2
    assert hares["advantage"][0] == batch["advantage/hare_0"][0]
    built = policy(cfg, "learn", "collect")
    before = {name: p.clone() for name, p in built._state_dict_learn()["model"].items()}
    log = built.learn_mode.forward(batch)
    assert log["total_loss"] == pytest.approx(log["hare/total_loss"] + log["fox/total_loss"])
    state = built.learn_mode.state_dict()
    changed = {n.split(".")[0] for n, p in state["model"].items() if not torch.equal(p, before[n])}
    assert changed == {"hare", "fox"}
    other = policy(cfg, "learn")
    other.learn_mode.load_state_dict(state)
    again = other.learn_mode.state_dict()
    assert all(torch.equal(again["model"][name], p) for name, p in state["model"].items())
    assert again["optimizer"].keys() == {"hare", "fox"}


def test_a_callback_sets_what_a_policy_or_all_of_them_learn_with() -> None:
    built = policy(config(Relay(), **RELAY), "learn")
    hare, fox = built._policies.values()
    built.set_setting("policy.learn.learning_rate", 0.5)
    built.set_setting("policy.policies.fox.learn.learning_rate", 0.25)
    assert hare._changed_settings == {"learning_rate": 0.5}
    assert fox._changed_settings == {"learning_rate": 0.25}
    rate = hare.configured("policy.learn.learning_rate")["value"]
    assert built.configured("policy.learn.learning_rate") == {
        "value": {"hare": rate, "fox": rate}, "schedule": {"hare": [], "fox": []}
    }  # fmt: skip
    assert built.configured("policy.policies.fox.learn.learning_rate")["value"] == {"fox": rate}
    for key in ("policy.policies.cat.learn.learning_rate", "policy.learn.batch_size"):
        with pytest.raises(PolicyError, match=key):
            built.set_setting(key, 1.0)
    names = {name.partition(".")[0] for name, _ in built._model.named_parameters()}
    assert names == {"hare", "fox"}


def test_what_a_callback_has_set_last_holds_after_a_resume_too() -> None:
    experiment = compile_config({"env": {"env_id": "CartPole-v1"}}).config

    def learning() -> tuple[Callbacks, Any]:
        built, context = policy(config(Relay(), **RELAY), "learn"), Context(experiment, 1, "", None)
        context.policy = built.learn_mode
        return Callbacks(context, lambda _name, _value: None), built

    (first, _), (again, resumed) = learning(), learning()
    for of, rate in (("", 0.5), ("policies.fox.", 0.25), ("", 0.125)):
        first.context.set(f"policy.{of}learn.learning_rate", rate)
    again.load_state_dict(first.state_dict())
    for one in resumed._policies.values():
        assert one._changed_settings == {"learning_rate": 0.125}


@pytest.mark.parametrize("memory", ["lstm", "gtrxl"])
def test_what_a_player_remembers_begins_when_it_comes_and_is_learnt_in_its_order(
    memory: str,
) -> None:
    remembering = {
        **PPO,
        "model": {"encoder_hidden_size_list": [8], "memory": memory, "memory_size": 8},
        "collect": {"unroll_len": 2},
    }
    cfg = config(Relay(), policies={"hare": remembering, "fox": remembering})
    actor, transitions, lengths, last = played(cfg, Relay())
    actor.reset(None)
    made = actor.train_columns(transitions, lengths, last)
    (first, *_) = [name for name in transitions if name.startswith("state/fox/")]
    assert not transitions[first][1].any()  # where it comes; before it was not there
    assert transitions[first][2].any()
    assert made.columns["sequence_len/hare_0"].tolist() == [2, 0, 0, 0] * 2
    assert made.columns["sequence_len/fox"].tolist() == [0, 2, 0, 1] * 2
    assert bool(made.stacks) == (memory == "gtrxl") == (cfg.stack_len > 0)
    assert cfg.names == ("fox", "hare_0", "hare_1")
    batch = {n: torch.from_numpy(c) for n, c in {**transitions, **made.columns}.items()}
    for group, built in policy(cfg, "learn", "collect")._each():
        columns, _ = group.learner_batch(batch)  # of one player after the other
        sequences = {**columns, **memories.of_sequences(columns)}
        seen, before = networks.observation_of(sequences), memories.state_of(sequences)
        *_, value = built._model(seen, before)[0]
        torch.testing.assert_close(value, columns["value"], rtol=1e-4, atol=1e-6)
        assert built._forward_learn(columns)["value_loss"] > 0


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_collectors_without_torch_act_as_those_with_it(memory: str) -> None:
    """Also beside a policy of the team that acts in torch, since it remembers."""
    fox = {**PPO, "model": {**PPO["model"], "memory": memory}}
    fox |= {"collect": {"unroll_len": 2}} if memory != "none" else {}
    hare = {**PPO, "normalize": {"observation": True}}
    cfg = config(Relay(), policies={"hare": hare, "fox": fox})
    learner = policy(cfg, "learn")
    model = learner.learn_mode.state_dict()["model"]
    _, transitions, *_ = played(cfg, Relay())
    observation = {n: c for n, c in transitions.items() if n.startswith("observation/")}
    seed = np.random.SeedSequence(1)
    dense = create_policy(cfg, ["collect"], seed=seed, gets_weights=True)
    assert dense.collect_mode.get_attribute("takes_arrays") == (memory == "none")
    given = {n: p.numpy() for n, p in model.items()} if memory == "none" else model
    dense.collect_mode.load_state_dict({"model": given})
    values = dense.collect_mode.get_attribute("columnar").act(observation, {})["value/hare_1"]
    hares = PolicyGroup("hare", cfg.policies["hare"], cfg)
    seen = {n: torch.from_numpy(c) for n, c in hares.observations(observation).items()}
    network = learner._policies["hare"]._model
    of_network = network({n.split("/")[1]: c for n, c in seen.items()}, {})[0][-1]
    assert values == pytest.approx(of_network[1::2].detach().numpy(), abs=1e-5)


def test_a_replay_batch_is_of_one_size_whoever_was_there() -> None:
    own = {"type": "dqn", "model": {"encoder_hidden_size_list": [8]}, "discount_factor": GAMMA}
    cfg = config(Relay(), policies={"hare": own, "fox": own})
    actor, transitions, lengths, last = played(cfg, Relay())
    made = actor.train_columns(transitions, lengths, last)
    expected = n_step(
        np.array([10.0, 20.0], np.float32), np.array([False, True]), np.array([2]), GAMMA, 1
    )
    assert made.columns["n_step_return/hare_0"][:2] == pytest.approx(expected.returns)
    assert made.columns["bootstrap_discount/hare_0"][:2] == pytest.approx(expected.discount)
    columns = {**transitions, **made.columns}
    for view in made.views:  # of the rows here the next observation is the next row's
        columns[view.name] = np.roll(columns[view.column], -1, axis=0)
    batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    hares, rows = PolicyGroup("hare", cfg.policies["hare"], cfg).learner_batch(batch)
    assert len(rows) == 16
    assert set(rows.tolist()) == {0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 15}
    first = {n: c[0].tolist() for n, c in hares.items() if n.startswith("next_observation")}
    assert first == {"next_observation/own": [1.0, 0.0], "next_observation/number": 0}
    log = policy(cfg, "learn").learn_mode.forward({**batch, "weight": torch.ones(8)})
    assert np.isfinite(log["total_loss"])


@pytest.mark.parametrize("kind", ["dqn", "ppo"])
def test_a_policy_whose_players_are_not_there_learns_nothing(kind: str) -> None:
    """It learnt from a row of zeros: that its value is what follows from 0."""
    own = {"type": kind, "model": {"encoder_hidden_size_list": [8]}}
    cfg = config(Relay(), policies={"hare": own, "fox": own})
    actor, transitions, lengths, last = played(cfg, Relay())
    made = actor.train_columns(transitions, lengths, last)
    columns = {**transitions, **made.columns}
    for view in made.views:
        columns[view.name] = np.roll(columns[view.column], -1, axis=0)
    is_without = transitions["observation/acts"][:, 0] == 0  # the fox
    batch = {name: torch.from_numpy(column[is_without]) for name, column in columns.items()}
    built = policy(cfg, "learn")
    before = {name: p.clone() for name, p in built._state_dict_learn()["model"].items()}
    log = built.learn_mode.forward({**batch, "weight": torch.ones(int(is_without.sum()))})
    after = built.learn_mode.state_dict()["model"]
    changed = {n.split(".")[0] for n, p in after.items() if not torch.equal(p, before[n])}
    assert changed == {"hare"}
    assert {name.split("/")[0] for name in log if "/" in name} == {"hare"}
    assert log["total_loss"] == pytest.approx(log["hare/total_loss"])


@pytest.mark.parametrize("has_other_rows", [True, False])
def test_a_learner_without_rows_learns_what_others_have(
    has_other_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learnt from a batch of one row that nobody had played."""
    own = {"type": "dqn", "model": {"encoder_hidden_size_list": [8]}}
    own |= {"learn": {"accumulate": 2}}
    policies = {"hare": {**own, "normalize": {"observation": True}}, "fox": own}
    cfg = config(Relay(), policies=policies, priority=True)
    actor, transitions, lengths, last = played(cfg, Relay())
    columns = {**transitions, **actor.train_columns(transitions, lengths, last).columns}
    batch = {f"next/{p}/{n}": c for p in cfg.names for n, c in transitions.items()}
    batch |= {**columns, "observation/acts": np.array([[1, 0, 0]] * len(columns["reward"]))}
    batch = {name: torch.from_numpy(column) for name, column in batch.items()}  # of the fox alone
    exchanged = []

    def with_other(table: torch.Tensor, op: str) -> None:
        exchanged.append((op, table.tolist()))
        table += torch.tensor([float(has_other_rows), 1.0])

    monkeypatch.setattr("hpcdi.policy.team.get_world_size", lambda: 2)
    monkeypatch.setattr("hpcdi.policy.team.allreduce_data", with_other)
    built = policy(cfg, "learn")
    hare = built._policies["hare"]
    before = {name: value.clone() for name, value in hare._model.state_dict().items()}
    log = built.learn_mode.forward(batch)
    assert exchanged == [("sum", [0.0, 1.0])]
    assert hare._updates == has_other_rows
    after = hare._model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert after["normalizer.observation.0.count"] == 0
    assert {name.split("/")[0] for name in log if "/" in name} == {"fox"}
    assert np.isfinite(log["total_loss"])
    assert log["priority"].shape == (8,)
    assert np.isfinite(log["priority"]).all()


@pytest.mark.parametrize(
    "kind", ["c51", "qrdqn", "discrete_sac", "discrete_cql", "sac", "tqc", "td3", "cql", "iql"]
)
def test_a_batch_of_no_rows_teaches_nothing(kind: str) -> None:
    model = {"obs_shape": 2, "encoder_hidden_size_list": [4], "action_shape": 3}
    if kind in ("sac", "tqc", "td3", "cql", "iql"):
        model |= {"action_low": [-1.0] * 3, "action_high": [1.0] * 3}
    learn = {"policy_delay": 1} if kind == "td3" else {}
    cfg = {"type": kind, "model": model, "learn": learn, "priority": True}
    built = create_policy(cfg, ("learn",), seed=np.random.SeedSequence(1))
    names = ("n_step_return", "bootstrap_discount", "observation", "next_observation", "action")
    shapes = [(0,), (0,), (0, 2), (0, 2), (0, 3) if "action_low" in model else (0,)]
    before = [p.clone() for p in built._model.parameters()]
    log = built.learn_mode.forward(
        {name: torch.zeros(shape) for name, shape in zip(names, shapes, strict=True)}
    )
    assert log["total_loss"] == 0
    assert log["priority"].shape == (0,)
    after = built._model.parameters()
    assert all(torch.equal(p, b) for p, b in zip(after, before, strict=True))


# ------------------------------------------------------------------------------------------- MAPPO


def test_the_state_reaches_the_value_alone() -> None:
    model = {"encoder_hidden_size_list": [8], "value_only": ["state"]}
    cfg = config(Meet(), policies={"all": {**PPO, "model": model}})
    built = policy(cfg, "learn")._policies["all"]
    rng = np.random.default_rng(0)
    leaves = {leaf.column("observation"): leaf for leaf in built._cfg.model.obs_leaves}
    assert list(leaves) == ["observation/own", "observation/number", "observation/state"]
    seen = {
        leaf.name: torch.from_numpy(rng.integers(0, leaf.counts or 2, (6, *leaf.shape)))
        for leaf in leaves.values()
    }
    (logits, value), _ = built._model(seen, {})
    other = {**seen, "state": (seen["state"] + 1) % 7}
    (same, moved), _ = built._model(other, {})
    assert torch.equal(logits, same)
    assert not torch.isclose(value, moved).any()


def test_a_state_that_the_environment_does_not_have_is_what_all_see() -> None:
    model = {"encoder_hidden_size_list": [8], "value_only": ["state"]}
    cfg = config(Relay(), policies={"hare": {**PPO, "model": model}, "fox": PPO})
    names = [leaf.name for leaf in cfg.policies["hare"].model.obs_leaves]
    assert names == ["own", "number", "state/fox", "state/hare_0", "state/hare_1"]


# ------------------------------------------------------------------------------------ VDN and QMIX


def batch_of(cfg: Any, env: Any) -> dict[str, Any]:
    """Six episodes, as a learner has them: each column with its views, a row on."""
    actor, transitions, lengths, last = played(cfg, env, episodes=6)
    made = actor.train_columns(transitions, lengths, last)
    columns = {**transitions, **made.columns}
    for view in made.views:
        columns[view.name] = np.roll(columns[view.column], -1, axis=0)
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def mixing(kind: str, **model: Any) -> tuple[Any, dict[str, torch.Tensor], TeamConfig]:
    """Returns a policy of the two-step game, a batch of it, and the settings."""
    own = {
        "type": kind,
        "model": {"encoder_hidden_size_list": [8], **model},
        "discount_factor": GAMMA,
        "learn": {"loss": "mse"},
    }
    cfg = config(TwoStep(), policies={"all": own})
    batch = batch_of(cfg, TwoStep())
    return policy(cfg, "learn")._policies["all"], batch, cfg


def test_vdn_learns_the_sum_of_its_players_values() -> None:
    built, batch, cfg = mixing("vdn")
    rows, _ = PolicyGroup("all", cfg.policies["all"], cfg).learner_batch(batch)
    losses, value, priority = built.losses(rows)
    seen = {
        n.removeprefix("observation/"): c for n, c in rows.items() if "next" not in n and "/" in n
    }
    following = {
        n.removeprefix("next_observation/"): c for n, c in rows.items() if n.startswith("next_obs")
    }
    with torch.no_grad():
        output, later = built._model(seen, {})[0].numpy(), built._model(following, {})[0].numpy()
    chosen = output[np.arange(len(output)), rows["action"].numpy()].reshape(-1, 2).sum(axis=1)
    best = later.max(axis=1).reshape(-1, 2).sum(axis=1)
    paid = batch["observation/reward"].roll(-1, 0)[:, 0].numpy()
    paid = np.where(batch["terminated"], rows["n_step_return"].numpy()[::2], paid)
    target = paid + GAMMA * best * ~batch["terminated"].numpy()
    assert value.detach().numpy()[::2] == pytest.approx(chosen, abs=1e-5)
    assert losses.detach().numpy()[1::2] == pytest.approx((chosen - target) ** 2, abs=1e-4)
    assert priority.detach().numpy()[::2] == pytest.approx(abs(chosen - target), abs=1e-4)


@pytest.mark.parametrize("hidden", [0, 5])
def test_qmix_mixes_as_the_paper_says_and_grows_with_each_value(hidden: int) -> None:
    built, _, _ = mixing("qmix", mixing_size=4, hypernet_size=hidden)
    mixer = built._model.mixer
    state = torch.tensor([0, 1, 2, 2])
    values = torch.randn(4, 2, requires_grad=True)
    mixed = mixer(values, {"state": state})
    one_hot = np.eye(3, dtype=np.float32)[state]

    def made(module: Any) -> Any:
        with torch.no_grad():
            return module(torch.from_numpy(one_hot)).numpy()

    weights = abs(made(mixer.first)).reshape(4, 2, 4)
    inner = np.einsum("bp,bpm->bm", values.detach().numpy(), weights) + made(mixer.bias)
    inner = np.where(inner > 0, inner, np.expm1(inner))
    expected = (inner * abs(made(mixer.last))).sum(axis=1) + made(mixer.value)[:, 0]
    assert mixed.detach().numpy() == pytest.approx(expected, abs=1e-5)
    (slopes,) = torch.autograd.grad(mixed.sum(), values)
    assert (slopes >= 0).all()


@pytest.mark.parametrize("kind", ["vdn", "qmix"])
def test_a_team_that_is_cut_is_bootstrapped_from_those_who_would_go_on(kind: str) -> None:
    """Nobody was said to act there: a time limit was taken for an end, with a value of 0."""
    own = {"type": kind, "model": {"encoder_hidden_size_list": [8]}, "discount_factor": GAMMA}
    cfg = config(Relay(), policies={"hare": own, "fox": own})
    actor, transitions, lengths, last = played(cfg, Relay(), episodes=1)
    made = actor.train_columns(transitions, lengths, last)
    columns = {**transitions, **made.columns}
    for view in made.views:
        columns[view.name] = np.concatenate([columns[view.column][1:], last[view.column]])
    batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    rows, _ = PolicyGroup("hare", cfg.policies["hare"], cfg).learner_batch(batch)
    assert rows["next_acts"][-2:].tolist() == [False, True]  # the first has ended before
    built = policy(cfg, "learn")._policies["hare"]
    with torch.no_grad():
        output, _ = built._model(networks.observation_of(rows, "next_observation"), {})
        mixed = built.mixed(built._model, output.amax(dim=1), rows, "next_")
    expected = 2.0 + GAMMA * mixed[-1].item()  # they were paid 0 and 4
    assert built.td_target(rows)[-2:].tolist() == pytest.approx([expected] * 2, abs=1e-5)
    if kind == "vdn":
        assert mixed[-1].item() == pytest.approx(output[-1].max().item(), abs=1e-5)


def test_an_absent_player_adds_nothing_to_the_value_of_its_team() -> None:
    built, batch, cfg = mixing("vdn")
    batch["observation/acts"] = batch["observation/acts"].clone()
    batch["observation/acts"][:, 1] = 0
    rows, _ = PolicyGroup("all", cfg.policies["all"], cfg).learner_batch(batch)
    values = torch.arange(2.0 * len(batch["reward"]))
    assert torch.equal(built.mixed(built._model, values, rows), values[::2])


def test_players_learn_from_their_own_actions_where_the_policy_has_the_name_of_one() -> None:
    """All of them learned from the actions of that one."""

    class Named(Relay):
        names = ("hare", "hare_b", "fox")

    cfg = config(Named(), policies={"hare": {"type": "vdn"}, "fox": {"type": "vdn"}})
    batch = batch_of(cfg, Named())
    rows, _ = PolicyGroup("hare", cfg.policies["hare"], cfg).learner_batch(batch)
    own = [batch[f"action/{name}"] for name in ("hare", "hare_b")]
    assert not torch.equal(*own)
    assert torch.equal(rows["action"].view(-1, 2), torch.stack(own, dim=1))
    of_team = batch["n_step_return/hare"]
    assert torch.equal(rows["n_step_return"].view(-1, 2), torch.stack([of_team] * 2, dim=1))


def test_those_who_are_cut_when_others_end_are_bootstrapped() -> None:
    """The group's last step was taken for its end, since another policy's player had ended."""

    class Ending(Relay):
        def step(self, actions: Any) -> Any:
            seen, rewards, over, infos = super().step(actions)
            if over:
                infos[2] = {"terminated": True, "truncated": False}
            return seen, rewards, over, infos

    cfg = config(Ending(), policies={"hare": {"type": "vdn"}, "fox": {"type": "vdn"}})
    actor, transitions, lengths, last = played(cfg, Ending(), episodes=1)
    made = actor.train_columns(transitions, lengths, last).columns
    assert transitions["terminated"].tolist() == [False] * 3 + [True]
    assert last["observation/acts"].tolist() == [[0, 0, 1]]  # fox, hare_0, hare_1
    assert made["bootstrap_discount/hare"].all()
    assert made["bootstrap_discount/fox"].astype(bool).tolist() == [True] * 3 + [False]


@pytest.mark.parametrize("remembers", [False, True])
def test_statistics_are_of_the_players_who_are_there(remembers: bool) -> None:
    """Those who are not were counted as zeros; the state is what the mixing network sees of all."""
    own = remembering("qmix") if remembers else {"type": "qmix"}
    own |= {"model": {"encoder_hidden_size_list": [8], **own.get("model", {})}}
    own |= {"normalize": {"observation": True}}
    cfg = config(Relay(), policies={"hare": own, "fox": {**own, "normalize": {}}})
    actor, transitions, lengths, last = played(cfg, Relay(), episodes=6)
    if remembers:
        batch = sequences_of(cfg, Relay())
    else:
        columns = {**transitions, **actor.train_columns(transitions, lengths, last).columns}
        batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    built = policy(cfg, "learn")._policies["hare"]
    rows, _ = PolicyGroup("hare", cfg.policies["hare"], cfg).learner_batch(batch)
    acts = rows["acts"].clone()
    built._normalizer.learn(rows)
    assert torch.equal(rows["acts"], acts)
    moments = dict(zip(built._normalizer._columns, built._normalizer.observation, strict=True))
    assert moments["observation/own"].count == 6 * 6  # of four steps two, and all
    assert moments["observation/own"].mean.tolist() == pytest.approx([7 / 6, 4 / 6])
    assert moments["observation/state/hare_0"].count == 6 * 8


def test_an_update_of_qmix_moves_its_mixing_network() -> None:
    built, batch, cfg = mixing("qmix")
    before = [p.clone() for p in built._model.mixer.parameters()]
    rows, _ = PolicyGroup("all", cfg.policies["all"], cfg).learner_batch(batch)
    log = built._forward_learn(rows)
    assert np.isfinite(log["total_loss"])
    after = built._model.mixer.parameters()
    moved = [not torch.equal(p, b) for p, b in zip(after, before, strict=True)]
    assert all(moved)


def remembering(kind: str, **settings: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "model": {"encoder_hidden_size_list": [8], "memory": "gru", "memory_size": 4},
        "collect": {"unroll_len": 3},
        "discount_factor": GAMMA,
        **settings,
    }


def sequences_of(cfg: TeamConfig, game: Any) -> dict[str, torch.Tensor]:
    """Sequences of the team, as a learner's ring gathers them, of six episodes."""
    actor, transitions, lengths, last = played(cfg, game, episodes=6)
    segment = segment_of(transitions, np.arange(lengths.sum()), lengths, last, actor)
    assert not segment.views
    columns, stride = segment.columns, cfg.sequence.stride
    items = zip(segment.items["item_start"], segment.items["item_len"], strict=True)
    starts = np.concatenate([np.arange(start, start + count, stride) for start, count in items])
    rows = sequence_rows(starts, columns["sequence_len"][starts], cfg.sequence.rows)
    return {
        name: torch.from_numpy(column[rows[:, :1] if name.startswith(STATES) else rows])
        for name, column in columns.items()
    }


@pytest.mark.parametrize("kind", ["vdn", "qmix"])
def test_a_memory_learns_the_value_of_the_team_from_its_sequences(kind: str) -> None:
    """Relay's hares: the first leaves after two of four steps, and its memory runs on."""
    own = remembering(kind, learn={"burn_in": 1, "loss": "mse"})
    cfg = config(Relay(), policies={"hare": own, "fox": remembering("vdn")})
    assert cfg.sequence == SequenceRule(3, 2, 1)
    assert cfg.burn_in == 0, "the fox needs none"
    batch = sequences_of(cfg, Relay())
    assert batch["sequence_len"][:, 0].tolist() == [5, 3] * 6  # with the row behind the item
    built = policy(cfg, "learn")._policies["hare"]
    rows, numbers = PolicyGroup("hare", cfg.policies["hare"], cfg).learner_batch(batch)
    assert (len(rows["action"]), numbers) == (24, None)
    losses, value, priority = built.losses(rows)
    for team in range(12):
        length, two = [4, 3][team % 2], slice(2 * team, 2 * team + 2)
        learnt = [[0, 1, 2], [1]][team % 2]  # steps 0 to 2 of an episode, and 3 after a burn-in
        state = {"hidden": rows["state/hidden"][two, 0]}
        values, mixed, best = [], [], []
        for step in range(length):
            seen = {n[12:]: c[two, step] for n, c in rows.items() if n.startswith("observation/")}
            with torch.no_grad():
                output, state = built._model(seen, state)
            values.append(output)
            steps = {n: c for n, c in rows.items() if c.ndim > 1 and not n.startswith(STATES)}
            now = {n: c[two, step] for n, c in steps.items()}
            action = rows["action"][two, step].unsqueeze(1)
            mixed.append(built.mixed(built._model, output.gather(1, action)[:, 0], now).item())
            best.append(built.mixed(built._model, output.amax(dim=1), now).item())
        paid = rows["n_step_return"][two][0]
        errors = [paid[step].item() + GAMMA * best[step + 1] - mixed[step] for step in learnt]
        seen = np.mean([mixed[step] for step in learnt])
        assert value[two].tolist() == pytest.approx([seen] * 2, abs=1e-4)
        assert losses[two].tolist() == pytest.approx([np.mean(np.square(errors))] * 2, abs=1e-3)
        assert priority[two].tolist() == pytest.approx([np.mean(np.abs(errors))] * 2, abs=1e-3)
    log = policy(cfg, "learn").learn_mode.forward({**batch, "weight": torch.ones(12)})
    assert np.isfinite(log["hare/total_loss"])


def test_a_team_is_not_learnt_from_while_a_memory_of_one_of_its_players_is_burnt_in() -> None:
    """Its value is that of all of them; who has just come begins with an empty memory."""
    cfg = config(Recall(7), policies={"all": remembering("vdn", learn={"burn_in": 1})})
    rows, _ = PolicyGroup("all", cfg.policies["all"], cfg).learner_batch(
        sequences_of(cfg, Recall(7))
    )
    built = policy(cfg, "learn")._policies["all"]
    rows["state/hidden"][3] = 0.0  # the second player's of a sequence within an episode
    before = built.losses(rows)
    rows["n_step_return"][2:4, 0] += 100.0
    for were, are in zip(before, built.losses(rows), strict=True):
        assert torch.equal(were, are)


@pytest.mark.parametrize(("nstep", "burn_in", "stride"), [(1, 0, None), (2, 1, None), (3, 0, 2)])
def test_sequences_teach_every_step(nstep: int, burn_in: int, stride: int | None) -> None:
    """The last `nstep` steps of each but the episode's were learnt from in none."""
    collect = {"unroll_len": 3, "stride": stride}
    own = remembering("vdn", collect=collect, learn={"burn_in": burn_in}, nstep=nstep)
    cfg = config(Recall(7), policies={"all": own})
    every = stride or 3 - burn_in
    assert cfg.sequence == SequenceRule(3, every, nstep)
    assert cfg.burn_in == burn_in
    rows, _ = PolicyGroup("all", cfg.policies["all"], cfg).learner_batch(
        sequences_of(cfg, Recall(7))
    )
    begin = dict.fromkeys(("hidden", "cell"), torch.zeros(1))
    learnt = Sequences(rows, burn_in, cfg.sequence, begin).learnt[::2]  # of one player
    starts = [*range(0, 7, every)] * 6
    taught = [s + int(i) for s, each in zip(starts, learnt, strict=True) for i in each.nonzero()]
    assert {*taught} == {*range(7)}
    assert stride or len(taught) == 7 * 6, "each once"
    said = problems_of(
        Recall(), policies={"all": remembering("qmix", collect={"unroll_len": 3, "stride": 4})}
    )
    assert "policies.all.collect.stride: is above unroll_len" in said
    said = problems_of(Recall(), policies={"all": {"type": "vdn", "collect": {"stride": 1}}})
    assert "policies.all.collect.stride: is for a memory" in said


def test_a_memory_of_attention_keeps_its_stacks_for_each_player() -> None:
    model = {"encoder_hidden_size_list": [8], "memory": "gtrxl", "memory_size": 8}
    cfg = config(Recall(3), policies={"all": remembering("qmix", model=model)})
    actor, transitions, lengths, last = played(cfg, Recall(3))
    stacks = actor.train_columns(transitions, lengths, last).stacks
    assert stacks
    assert {name.split("/")[1] for name in stacks} == {"player_0", "player_1"}
    rows, _ = PolicyGroup("all", cfg.policies["all"], cfg).learner_batch(
        sequences_of(cfg, Recall(3))
    )
    log = policy(cfg, "learn")._policies["all"]._forward_learn(rows)
    assert log["total_loss"] > 0


@pytest.mark.parametrize("memory", ["none", "lstm", "gtrxl"])
def test_a_segment_without_a_player_is_of_the_same_form(memory: str) -> None:
    """A block takes segments of one form; one hare is not there in the last steps of an episode."""
    hare = {**PPO, "model": {**PPO["model"], "memory": memory, "memory_size": 8}}
    hare |= {"collect": {"unroll_len": 2}} if memory != "none" else {}
    cfg = config(Relay(), policies={"hare": hare, "fox": hare})
    actor, transitions, lengths, last = played(cfg, Relay())
    whole = actor.train_columns(transitions, lengths, last)
    end = {name: column[-2:] for name, column in transitions.items()}
    after = {name: column[-1:] for name, column in last.items()}
    alone = actor.train_columns(end, np.array([2], np.int32), after)
    assert (alone.views, alone.stacks) == (whole.views, whole.stacks)
    forms = [
        {n: (c.dtype, c.shape[1:]) for n, c in made.columns.items()} for made in (alone, whole)
    ]
    assert forms[0] == forms[1]


# ----------------------------------------------------------------------------------------- settings


def problems_of(game: Any, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(game, **settings)
    return "\n".join(map(str, caught.value.problems))


def test_a_player_without_discrete_actions_has_no_mask_though_others_have() -> None:
    """A policy that knows no masks was refused for it."""

    class Steering(Leaving):
        def action_space(self, name: str) -> Any:
            return Discrete(2) if name == "a" else Box(-1, 1, (1,), np.float32)

        def _info(self, name: str) -> dict[str, Any]:
            return {"action_mask": np.ones(2, np.int8)} if name == "a" else {}

    small = {"model": {"encoder_hidden_size_list": [8]}}
    policies = {"a": {"type": "dqn", **small}, "b": {"type": "sac", **small}}
    cfg = config(as_battle(Steering()), policies=policies)
    groups = [PolicyGroup(name, cfg.policies[name], cfg) for name in "ab"]
    assert [group.spaces.is_masked for group in groups] == [True, False]
    actor = policy(cfg, "collect").collect_mode.get_attribute("columnar")
    seen, _ = Team(as_battle(Steering())).reset(seed=0)
    own = {f"observation/{n}": np.asarray(c)[None] for n, c in flat(seen["observation"])}
    made = actor.act({**own, "action_mask": seen["action_mask"][None]}, {"a": {"eps": 1.0}})
    assert made["action/b"].shape == (1, 1)


def with_actions(space: Any) -> Relay:
    """Returns a game of players who see and do the same."""
    game: Any = Relay()
    game.observation_space, game.action_space = (Box(-9, 9, (2,)),) * 3, (space,) * 3
    return game  # type: ignore[no-any-return]


def test_settings_that_do_not_fit_are_named() -> None:
    said = problems_of(Relay(), policies={"hare": PPO, "wolf": PPO})
    assert "players: 'fox' matches none of hare, wolf; the players are fox, hare_0, hare_1" in said
    assert "policies.wolf: no player acts by it" in said
    said = problems_of(Relay(), policies={"all": PPO})
    assert "policies.all: fox and hare_0, hare_1 have different spaces" in said
    box = Box(-1, 1, (1,), np.float32)
    said = problems_of(with_actions(box), policies={"all": {"type": "vdn"}})
    assert "policies.all.type: vdn takes actions that are Discrete, and" in said
    assert said.endswith("; cql, iql, ppo, sac, td3 and tqc would"), "no team takes impala"
    said = problems_of(Relay(), policies={"hare": PPO, "fox": {"type": "dqn"}})
    assert "policies: all learn on-policy, or all from the replay buffer" in said
    said = problems_of(Relay(), policies={"hare": {**PPO, "collect": {"n_sample": 9}}, "fox": PPO})
    assert "policies.hare.collect.n_sample: is one of the whole team" in said
    said = problems_of(Relay(), policies={"hare": {"lr": 1}, "fox": {"type": "r2d2"}})
    assert "policies.hare.type: is required" in said
    lstm = {**PPO, "model": {"memory": "lstm"}, "collect": {"unroll_len": 64}}
    said = problems_of(Relay(), policies={"hare": lstm, "fox": PPO}, collect={"n_sample": 32})
    assert "policies.hare.collect.unroll_len: is above policy.collect.n_sample (32)" in said
    said = problems_of(Relay(), policies={"hare": remembering("vdn"), "fox": {"type": "dqn"}})
    assert "policies: all learn from single steps, or all by a memory from sequences of one" in said
    said = problems_of(Recall(), policies={"all": remembering("qmix")}, random_collect_size=9)
    assert "random_collect_size: has no states for a memory" in said
    both = remembering("qmix", learn={"burn_in": 3})
    said = problems_of(Recall(), policies={"all": both})
    assert "learn.burn_in: leaves nothing of collect.unroll_len" in said
    said = problems_of(Recall(), policies={"all": {"type": "vdn", "learn": {"burn_in": 1}}})
    assert "learn.burn_in: is for a memory, and model.memory is none" in said
    said = problems_of(Relay(), policies={"a": PPO}, players={"hare*": "b"})
    assert "players.hare*: is b, no policy; there are a" in said
    patterns = {"fox": "lone", "hare_*": "fox"}
    policies = {"fox": {"type": "vdn"}, "lone": {"type": "dqn"}}
    said = problems_of(Relay(), policies=policies, players=patterns)
    assert "policies.fox: is the name of a player that acts by another policy: rename the" in said
    config(Relay(), policies={**policies, "fox": {"type": "dqn"}}, players=patterns)
    for name in ("fox.old", "fox/old"):
        said = problems_of(Relay(), policies={"hare": PPO, name: PPO}, players={"*": name})
        assert f"policies.{name}: has . or / in its name, which part those of its p" in said
    said = problems_of(Relay(), policies={"hare": PPO, "fox": {"type": "dqn"}}, nstep=3)
    assert "\nnstep: is each policy's own: set policy.policies.hare.nstep" in f"\n{said}"
    own = {"discount_factor": 0.5, "learn": {"batch_size": 9}, "eval": {"sample": True}}
    said = problems_of(Relay(), **RELAY, **own)
    for name in ("discount_factor", "learn.batch_size"):
        assert f"{name}: is each policy's own: set policy.policies.hare.{name}" in said
    assert "eval.sample" not in said
    dqn = {"type": "dqn", "learn": {"batch_size": 512}}
    said = problems_of(Meet(), policies={"all": dqn}, eval={"sample": True})
    assert "policies.all.learn.batch_size: is one of the whole team: set policy.learn.b" in said
    assert "policies.all.type: dqn has no distribution of actions to draw from; leave p" in said
    equal = config(Relay(), **RELAY, discount_factor=GAMMA, learn={"batch_size": 64})
    assert equal.discount_factor == GAMMA


def test_a_policy_named_random_acts_by_itself_when_the_random_steps_are_over() -> None:
    """Its setting, found by that name, was taken for the word that actions are drawn at random."""

    class Acts:
        def __init__(self, name: str) -> None:
            self.name = name

        def act(self, _observation: Any, _setting: Any, _rows: Any = None) -> Any:
            return self.name

    cfg = config(Meet(), policies={"random": {"type": "dqn"}})
    actor, at_random = Acts("policy"), Acts("at random")
    first: Any = RandomFirst(actor, at_random)  # type: ignore[arg-type]
    setting = cfg.collect_setting({"envstep": 9})
    assert setting["random"].keys() == {"eps"}
    assert first.act({}, setting) == "policy"
    assert first.act({}, {**setting, RANDOM: True}) == "at random"


def test_patterns_choose_the_policy_and_settings_survive_their_way_to_ranks() -> None:
    patterns = {"hare_1": "lone", "hare_*": "hare", "*": "fox"}
    cfg = config(Relay(), policies={"hare": PPO, "lone": PPO, "fox": PPO}, players=patterns)
    assert [cfg.policy_of(n) for n in Relay.names] == ["hare", "lone", "fox"]
    assert cfg.on_policy
    assert restore(TeamConfig, to_mapping(cfg)) == cfg


def test_an_algorithm_alone_is_that_of_all_players_of_a_team(tmp_path: Any) -> None:
    file = tmp_path / "meet.yaml"
    file.write_text('env: {type: team, env_id: "hpcdi.env.games:Meet"}\npolicy: {type: qmix}\n')
    compiled, _ = load_experiment(str(file), [], over_ranks=False)
    team = compiled.config.policy
    assert isinstance(team, TeamConfig)
    assert team.policies["all"].type == "qmix"
    assert team.policies["all"].players == 2  # type: ignore[attr-defined]
    assert team.replay_ratio == 8
    assert dataclasses.replace(team, policies={}).replay_ratio is None
    limit = "policy.other.replay_buffer.thruput_controller.push_sample_rate_limit.max=0.5"
    for other in (limit, "policy.learn.update_per_collect=3", "policy.learn.replay_ratio=null"):
        compiled, _ = load_experiment(str(file), [other], over_ranks=False)
        assert compiled.config.policy.replay_ratio is None, "another setting takes its place"
    words = [
        "policy.model.memory=gru",
        "policy.collect.unroll_len=16",
        "policy.collect.n_sample=16",
    ]
    compiled, _ = load_experiment(str(file), words, over_ranks=False)
    assert compiled.config.policy.replay_ratio == 0.5, "8 steps, in sequences of 16"
    kept = tmp_path / "config.yaml"  # as the run keeps it
    for words in (["policy.type=ppo", "policy.collect.n_sample=16"], []):
        compiled, _ = load_experiment(str(file), words, over_ranks=False)
        kept.write_text(dump(to_mapping(compiled.config)))
        changed = ["policy.other.commander.max_env_step=9", "policy.collect.n_sample=8"]
        again, _ = load_experiment(str(kept), changed, over_ranks=False)
        assert again.config.policy.collect.n_sample == 8
        assert again.config.policy.policies == compiled.config.policy.policies  # type: ignore[attr-defined]
    for words, of in ([["policy.type=ppo"], "policies.all."], [["policy.learn.accumulate=1"], ""]):
        words = [*words, "policy.learn.batch_size=128"]
        compiled, _ = load_experiment(str(file), words, over_ranks=False)
        kept.write_text(dump(to_mapping(compiled.config)))
        changed = [f"policy.{of}learn.batch_size=32"]
        again, _ = load_experiment(str(kept), changed, over_ranks=False)
        assert again.config.policy.learn.batch_size == (64 if of else 32)
    for words in (["policy.nstep=40"], ["policy.collect.unroll_len=40", "policy.model.memory=gru"]):
        compiled, _ = load_experiment(
            str(file), [*words, "policy.collect.n_sample=64"], over_ranks=False
        )
        kept.write_text(dump(to_mapping(compiled.config)))
        again, _ = load_experiment(str(kept), [], over_ranks=False)
        assert again.config.policy == compiled.config.policy
    file.write_text("policy: {type: vdn}\nenv: {env_id: CartPole-v1}\n")
    with pytest.raises(ConfigError, match="vdn learns from teams"):
        load_experiment(str(file), [], over_ranks=False)


def test_importance_weights_of_a_team_are_those_of_its_policies() -> None:
    own = {"type": "dqn", "model": {"encoder_hidden_size_list": [8]}}
    policies = {"hare": own, "fox": own}
    cfg = config(Relay(), policies=policies, priority=True, priority_IS_weight=True)
    made = policy(cfg, "learn")._policies
    assert [each._cfg.priority_IS_weight for each in made.values()] == [True, True]
