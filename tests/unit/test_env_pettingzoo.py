"""Battles: games in turns and at once, of PettingZoo, of one's own, and of the seeds' kind."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from fakes.battle_envs import FromOne, SeedsBattle, ThreeEnv
from fakes.env_managers import of_games
from fakes.spaces import simple_spaces
from hpcdi.api import _type_of
from hpcdi.env.best_response import SmallGame
from hpcdi.env.create import create_env_manager, make_env_manager
from hpcdi.env.gymnasium import GymnasiumEnv
from hpcdi.env.pettingzoo import BattleEnv, PettingZooEnv, as_battle, teams_of
from hpcdi.env.probe import look_at
from hpcdi.env.team import Team, TeamEnv
from hpcdi.errors import ConfigError, EnvError, EnvValueError
from hpcdi.worker.dict_envs import DictManager

pytest.importorskip("pettingzoo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("env_helpers"),
]
FORMS = ("base", "subprocess")


def config(env_id: str, **settings: Any) -> Any:
    return PettingZooEnv.parse_config({"env_id": env_id, **settings})


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_what_has_players_is_not_taken_for_an_environment_of_one() -> None:
    pettingzoo = importlib.import_module("pettingzoo")
    kinds = [_type_of(made) for made in (pettingzoo.ParallelEnv, pettingzoo.AECEnv, gymnasium.Env)]
    assert kinds == ["team", "pettingzoo", "gymnasium"]
    single = GymnasiumEnv.parse_config({"env_id": "test_env_schedule:WindyPair"})
    with pytest.raises(ConfigError, match="WindyPair has several players, as PettingZoo"):
        look_at(single)
    in_turns = TeamEnv.parse_config({"env_id": "classic.tictactoe_v3"})
    with pytest.raises(ConfigError, match=r"(?s)^(?!.*manager).* is played in turns") as refused:
        look_at(in_turns, trains=True)
    assert str(refused.value).endswith("use env.type: pettingzoo"), "at once it has no masks"


def test_a_collector_waits_for_all_games() -> None:
    """A run was refused when all of its ranks had started."""
    manager = {"type": "subprocess", "wait_num": 2}
    cfg = config("fakes.battle_envs:ThreeEnv", manager=manager)
    with pytest.raises(ConfigError, match=r"env.manager.wait_num: is for environments of one"):
        look_at(cfg, trains=True)
    assert look_at(cfg).players == 3, "evaluations wait for all of them"
    look_at(TeamEnv.parse_config({"env_id": cfg.env_id, "manager": manager}), trains=True)


# ------------------------------------------------------------------------------------ the adapter


def tictactoe() -> BattleEnv:
    return PettingZooEnv.make_single(config("classic.tictactoe_v3"))


def played(env: Any, moves: list[int]) -> list[Any]:
    observations = env.reset(seed=0)
    steps = []
    for move in moves:
        actions = [None if seen is None else move for seen in observations]
        steps.append(env.step(actions))
        observations = steps[-1][0]
    return steps


def test_players_take_turns_and_a_win_pays_both() -> None:
    env = tictactoe()
    first = env.reset(seed=0)
    assert env.agents == 2
    assert first[1] is None
    assert first[0]["observation"].shape == (3, 3, 2)
    assert (first[0]["action_mask"].dtype, first[0]["action_mask"].tolist()) == (np.int8, [1] * 9)
    steps = played(env, [0, 3, 1, 4, 2])  # the first player fills a line
    turns = [[seen is None for seen in observations] for observations, *_ in steps[:-1]]
    assert turns == [[True, False], [False, True]] * 2
    assert steps[1][0][0]["action_mask"].tolist() == [0, 1, 1, 0, 1, 1, 1, 1, 1]
    assert [rewards.tolist() for _, rewards, _, _ in steps[:-1]] == [[0, 0]] * 4
    observations, rewards, done, infos = steps[-1]
    assert (done, rewards.tolist(), rewards.dtype) == (True, [1, -1], np.float32)
    assert all(seen is not None for seen in observations)
    assert [info["eval_episode_return"] for info in infos] == [1.0, -1.0]
    assert [info["terminated"] for info in infos] == [True, True]
    env.close()


def test_an_illegal_move_loses() -> None:
    _, (_, rewards, done, infos) = played(tictactoe(), [4, 4])
    assert (done, rewards.tolist()) == (True, [0, -1])
    assert [info["eval_episode_return"] for info in infos] == [0.0, -1.0]


@pytest.mark.parametrize("actions", [[None, 0], [0, 0], [None, None], [0]])
def test_only_the_player_whose_turn_it_is_acts(actions: list[Any]) -> None:
    env = tictactoe()
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"player|actions for 2"):
        env.step(actions)


def test_three_at_once_and_one_drops_out() -> None:
    env = as_battle(ThreeEnv())
    assert [seen.tolist() for seen in env.reset(seed=0)] == [[0.0]] * 3
    env.step([1, 2, 3])
    observations, rewards, done, infos = env.step([1, 2, 3])
    assert (observations[2], rewards.tolist(), done) == (None, [1, 2, 3], False)
    assert [info["terminated"] for info in infos] == [False, False, True]
    assert env.step([1, 2, None])[1].tolist() == [1, 2, 0]
    observations, _, done, infos = env.step([1, 2, None])
    assert done
    assert [seen.tolist() for seen in observations] == [[4.0], [4.0], [2.0]]
    assert [info["eval_episode_return"] for info in infos] == [4.0, 8.0, 6.0]
    # one that dropped out earlier ended then: nothing is bootstrapped from what it saw last
    assert [info["terminated"] for info in infos] == [True] * 3
    env.reset()
    assert [info["terminated"] for info in env.step([1, 2, 3])[3]] == [False] * 3


class InTurns(ThreeEnv):
    """In turns: the first is cut in its first turn, the second ends in its second turn."""

    possible_agents = ("a", "b")  # type: ignore[assignment]
    agent_iter = None

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._steps, self.agent_selection = ["a", "b"], 0, "a"
        self.rewards, self.infos = dict.fromkeys("ab", 0.0), {name: {} for name in "ab"}
        self.terminations, self.truncations = (dict.fromkeys("ab", False) for _ in range(2))

    def observe(self, name: str) -> Any:
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        if action is None:
            self.agents.remove(self.agent_selection)
            self.agent_selection = "b"
        elif self.agent_selection == "a":
            self.truncations["a"] = True
        else:
            self._steps += 1
            self.terminations["b"] = self._steps == 2


class AtOnce(InTurns):
    """The same, where both act at once."""

    agent_iter = property()

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return ThreeEnv.reset(self, seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        self._steps += 1
        playing, self.agents = self.agents, ["b"] if self._steps < 3 else []
        seen, paid = ({n: made(1) for n in playing} for made in (np.zeros, float))
        over, cut = dict.fromkeys(playing, self._steps == 3), {n: n == "a" for n in playing}
        return seen, paid, over, cut, {n: {} for n in playing}


@pytest.mark.parametrize("env", [InTurns, AtOnce])
def test_one_that_is_cut_before_the_game_ends_is_not_terminated(env: Any) -> None:
    with make_env_manager({"type": "base"}, [env], battle=True) as envs:
        envs.launch()
        for _ in range(2):  # the second game is not as the first has ended
            for _ in range(3):
                step = envs.step({"action": np.zeros(2, np.int64)})
            assert step.terminated.tolist() == [False, True]
            assert step.truncated.tolist() == [True, False]


class Scored(AtOnce):
    """Infos have the score of each player, in one array that each step writes to."""

    def step(self, actions: dict[str, int]) -> Any:
        if self._steps == 0:
            self._score = np.zeros(1)
        self._score += 1
        *told, _ = super().step(actions)
        return *told, {name: {"score": self._score} for name in actions}


class ScoredInTurns(InTurns):
    """The same in turns: the score is that of the player's own turns."""

    def step(self, action: Any) -> Any:
        name = self.agent_selection
        super().step(action)
        self.infos[name] = {"score": {"a": 1, "b": self._steps}[name]}


@pytest.mark.parametrize(("env", "of_last"), [(ScoredInTurns, 2.0), (Scored, 3.0)])
def test_a_game_s_last_infos_have_those_of_players_that_left_before(
    env: Any, of_last: float
) -> None:
    with make_env_manager({"type": "base"}, [env], battle=True) as envs:
        envs.keeps_infos = True
        envs.launch()
        for _ in range(2):
            for _ in range(3):
                envs.step({"action": np.zeros(2, np.int64)})
            assert [info["score"] for info in envs.take_episodes().infos] == [1.0, of_last]
            assert [np.ravel(info["score"])[0] for info in envs.infos[0]] == [1.0, of_last]


def test_a_team_s_last_info_has_what_players_said_when_they_left() -> None:
    class Bonus(Scored):
        def step(self, actions: dict[str, int]) -> Any:
            *told, infos = super().step(actions)
            return *told, {n: {**info, f"by_{n}": 1} for n, info in infos.items()}

    team = Team(as_battle(Bonus()))
    team.reset(seed=0)
    for _ in range(3):
        info = team.step({"a": 0, "b": 0})[-1]
    # what several say is of the first of those who are there
    assert {"by_a": 1, "by_b": 1, "score": 3.0}.items() <= info.items()


class ComesBack(InTurns):
    """In turns: a ends in its first turn, comes back after b's, and both are cut in its second."""

    def step(self, action: Any) -> Any:
        name, other = self.agent_selection, "b" if self.agent_selection == "a" else "a"
        self._steps += 1
        if action is None:
            self.agents.remove(name)
        elif name == "a":
            self.terminations["a"] = self._steps == 1
            self.truncations = dict.fromkeys("ab", self._steps > 1)
        else:
            self.agents, self.terminations["a"] = ["a", "b"], False
        self.agent_selection = name if self.terminations[name] and action is not None else other


def test_one_that_has_come_back_in_turns_ends_as_it_ends_then() -> None:
    env = as_battle(ComesBack())
    env.reset(seed=0)
    env.step([1, None])
    env.step([None, 1])
    _, _, done, infos = env.step([1, None])
    assert done
    assert infos[0] == {"terminated": False, "truncated": True, "eval_episode_return": 0.0}


class ComesBackAtOnce(AtOnce):
    """Where both act at once: a ends in its first step, and is back in b's second one."""

    def step(self, actions: dict[str, int]) -> Any:
        self._steps += 1
        self.agents = ["b"] if self._steps == 1 else ["a", "b"]
        seen, none = {n: np.zeros(1) for n in "ab"}, dict.fromkeys("ab", False)
        return seen, dict.fromkeys("ab", 0.0), {**none, "a": self._steps == 1}, none, {}


@pytest.mark.parametrize("env", [ComesBack, ComesBackAtOnce])
def test_one_that_comes_back_is_refused_in_a_game_and_taken_in_a_team(env: Any) -> None:
    """Its value was bootstrapped across its end, until which its transition had not lasted."""
    game = PettingZooEnv.make_single(config(f"{__name__}:{env.__name__}"))
    for _ in range(2):  # the second game is not refused for the end in the first one
        seen = game.reset(seed=0)
        seen, *_ = game.step([None if own is None else 1 for own in seen])
        with pytest.raises(EnvValueError, match=r"^player 0 \(a\) has ended, and .*env.type: team"):
            game.step([None if own is None else 1 for own in seen])
    if env is ComesBackAtOnce:
        cfg = TeamEnv.parse_config({"env_id": f"{__name__}:{env.__name__}"})
        team = TeamEnv.make_single(cfg)
        team.reset(seed=0)
        acts = [team.step({"a": 1, "b": 1})[0]["acts"].tolist() for _ in range(2)]
        assert acts == [[0, 1], [1, 1]]


class NeverEmpty(ThreeEnv):
    """Its players stay in `agents`, also when they have ended."""

    def step(self, actions: dict[str, int]) -> Any:
        playing, self.agents = self.agents, [*actions]
        made = super().step(actions)
        self.agents = playing
        return made


def test_players_that_have_ended_do_not_act_though_they_are_said_to() -> None:
    env = as_battle(NeverEmpty())
    env.reset(seed=0)
    env.step([1, 2, 3])
    assert env.step([1, 2, 3])[0][2] is None
    env.step([1, 2, None])
    _, _, done, infos = env.step([1, 2, None])
    assert done
    assert [info["terminated"] for info in infos] == [True] * 3


class BothEnds(FromOne):
    """Its games terminate for the first player, and are cut for both."""

    action_space = (gymnasium.spaces.Discrete(3),) * 2

    def step(self, actions: Any) -> Any:
        seen, rewards, over, infos = super().step(actions)
        ends = [{"truncated": True, "terminated": number == 0} for number in (0, 1)]
        return seen, rewards, over, [{**info, **end} for info, end in zip(infos, ends, strict=True)]


def test_terminated_and_truncated_are_both_kept() -> None:
    with make_env_manager({"type": "base"}, [BothEnds], battle=True) as envs:
        envs.launch()
        step = envs.step({"action": np.zeros(2, np.int64)})
        assert step.terminated.tolist() == [True, False]
        assert step.truncated.tolist() == [True, True]


def test_teams_are_named_by_the_players() -> None:
    here = "fakes.battle_envs:FourEnv"
    by_name = {"red": ["red_1", "red_2"], "blue": ["blue_2", 1]}
    cfg = {"env_id": here, "teams": by_name, "collector_env_num": 1}
    assert look_at(PettingZooEnv.parse_config(cfg)).teams == 2
    for form in FORMS:
        with create_env_manager(
            {"type": "pettingzoo", **cfg, "manager": {"type": form}},
            evaluate=False, seed=np.random.SeedSequence(0),
        ) as manager:  # fmt: skip
            manager.launch()
            assert manager.facts.players == 4
            assert manager.facts.teams == ((0, 2), (3, 1))
    without = PettingZooEnv.make_single(config(here))
    assert teams_of(without) == ((0,), (1,), (2,), (3,))
    with pytest.raises(ConfigError) as caught:
        PettingZooEnv.make_single(
            config(here, teams={"a": ["red_1", "green"], "b": ["red_1"], "c": 3, "d": [4]})
        )
    said = str(caught.value)
    assert "env.teams.a: 'green' is no player; there are red_1, blue_1, red_2, blue_2" in said
    assert "env.teams.b: red_1 is in two teams" in said
    assert "env.teams.c: must be a list of players" in said
    assert "env.teams.d: 4 is no player" in said
    with pytest.raises(ConfigError, match="blue_1, red_2, blue_2 must be in a team, too"):
        PettingZooEnv.make_single(config(here, teams={"a": ["red_1"]}))
    of_numbers = config("fakes.battle_envs:Numbers", teams={"a": [11]})
    with pytest.raises(ConfigError, match="11 is no player; there are 10, 9, 8"):
        PettingZooEnv.make_single(of_numbers)


def test_actions_of_a_battle_count_from_zero(form: str) -> None:
    with make_env_manager({"type": form}, [FromOne], battle=True) as rows:
        rows.launch()
        manager = DictManager(rows)
        assert manager.step({0: [1, 0]})[0].reward.tolist() == [1.0, -1.0]
        seen = {action for _ in range(50) for action in manager.random_action()[0]}
        assert seen == {0, 1, 2}


def test_a_foreign_battle_environment(form: str) -> None:
    with make_env_manager({"type": form}, [SeedsBattle], battle=True) as manager:
        manager.launch()
        step = DictManager(manager).step({0: [0, 1]})[0]
    assert (step.reward.tolist(), step.done) == ([1.0, -1.0], True)
    assert step.info[1]["eval_episode_return"] == -1.0
    assert [seen.shape for seen in step.obs] == [(3,)] * 2


class ByNumber(SeedsBattle):
    """Has its infos in a dict, by the players' numbers."""

    def step(self, actions: Any) -> Any:
        timestep = super().step(actions)
        timestep.info = {"level": 3, **dict(enumerate(timestep.info))}
        return timestep


def test_a_foreign_battle_may_have_its_infos_by_number(form: str) -> None:
    with make_env_manager({"type": form}, [ByNumber], battle=True) as manager:
        manager.launch()
        step = DictManager(manager).step({0: [0, 1]})[0]
    assert [info["eval_episode_return"] for info in step.info] == [1.0, -1.0]


class LimitedBattle(SeedsBattle):
    """Is over since its time is, as old environments say it."""

    def step(self, actions: Any) -> Any:
        timestep = super().step(actions)
        timestep.info[0]["TimeLimit.truncated"] = True
        return timestep


def test_a_foreign_battle_may_be_cut_as_old_environments_are() -> None:
    with make_env_manager(None, [LimitedBattle], battle=True) as rows:
        rows.launch()
        step = rows.step({"action": np.zeros(2, np.int64)})
    assert (step.truncated.tolist(), step.terminated.tolist()) == ([True, False], [False, True])


# ------------------------------------------------------------------------------------ the manager


def battles(env_id: str, form: str, episodes: int = 2, **manager: Any) -> Any:
    return create_env_manager(
        {
            "type": "pettingzoo", "env_id": env_id, "evaluator_env_num": 2,
            "evaluator_episode_num": episodes, "manager": {"type": form, **manager},
        },
        evaluate=True, seed=np.random.SeedSequence(1),
    )  # fmt: skip


def rounds(rows: Any) -> Iterator[tuple[Any, Any, Any]]:
    manager = DictManager(rows)
    while not manager.done:
        ready = manager.ready_obs
        actions = manager.random_action()
        yield ready, actions, manager.step(actions)


class NobodyActs(SeedsBattle):
    """Goes on in its second step, and has an observation for nobody."""

    steps = 0

    def step(self, actions: Any) -> Any:
        self.steps += 1
        obs = np.ones((2, 3)) if self.steps == 1 else [None, None]
        return SimpleNamespace(obs=obs, reward=[0.0, 0.0], done=False, info=[{}, {}])


def test_a_game_that_waits_for_nobody_is_refused() -> None:
    """It would go on for ever, without a step of anybody's."""
    with make_env_manager({"type": "base"}, [NobodyActs], battle=True) as rows:
        rows.launch()
        rows.step({"action": np.zeros(2, np.int64)})
        with pytest.raises(EnvValueError, match="no player has an observation"):
            rows.step({"action": np.zeros(2, np.int64)})


@pytest.mark.parametrize("env_id", ["classic.tictactoe_v3", "classic.connect_four_v3"])
def test_random_legal_games_to_the_end(env_id: str, form: str) -> None:
    ends = []
    with battles(env_id, form) as manager:
        manager.launch()
        for ready, actions, steps in rounds(manager):
            assert steps.keys() == ready.keys()
            for env, step in steps.items():
                assert sum(seen is not None for seen in ready[env]) == 1
                player = next(i for i, seen in enumerate(ready[env]) if seen is not None)
                assert ready[env][player]["action_mask"][actions[env][player]]
                assert step.reward.dtype == np.float32
                if step.done:
                    assert all(seen is not None for seen in step.obs)
                    told = [info["eval_episode_return"] for info in step.info]
                    assert told in ([1, -1], [-1, 1], [0, 0])
                    ends.append(told)
                else:
                    assert step.reward.tolist() == [0, 0]
        returns, lengths = of_games(manager)
        assert not manager.ready.any()
    assert returns.tolist() == ends
    assert (len(ends), lengths.min() >= 5) == (4, True)


def test_child_processes_play_the_same_games() -> None:
    games = []
    for form in FORMS:
        with battles("classic.connect_four_v3", form) as manager:
            manager.launch()
            games.append([(actions, steps[0].reward.tolist() if 0 in steps else None)
                          for _, actions, steps in rounds(manager)])  # fmt: skip
    assert games[0] == games[1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["exit_at", "hang_at"])
def test_a_process_that_ends_or_hangs_is_replaced_and_its_game_dropped(fault: str) -> None:
    fns = [partial(ThreeEnv, 0), partial(ThreeEnv, **{fault: 3})]
    settings = {"type": "subprocess", "retry_waiting_time": 0.0, "step_timeout": 2.0}
    with make_env_manager(settings, fns, battle=True) as rows:
        rows.launch()
        manager = DictManager(rows)
        for t in range(4):
            ready = manager.ready_obs
            actions = {e: [None if s is None else 1 for s in seen] for e, seen in ready.items()}
            steps = manager.step(actions)
            assert steps[1].info[0].get("abnormal", False) == (t == 2)
            assert "abnormal" not in steps[0].info[0]
            if t == 2:
                assert (steps[1].reward.tolist(), steps[1].done) == ([0, 0, 0], False)
                assert [seen.tolist() for seen in steps[1].obs] == [[0.0]] * 3
        assert rows.failures == 1
        assert of_games(rows)[0].tolist() == [[4, 4, 2]]


def test_one_battle_is_reset() -> None:
    with battles("classic.tictactoe_v3", "base") as rows:
        rows.launch()
        manager = DictManager(rows)
        manager.step(manager.random_action())
        manager.reset({1: None})
        masks = [max(filter(None, seen), key=len)["action_mask"].sum()
                 for seen in manager.ready_obs.values()]  # fmt: skip
        assert masks == [8, 9]


# ------------------------------------------------------------------------------- by configuration


def test_spaces_and_players() -> None:
    cfg = config("classic.connect_four_v3")
    assert look_at(cfg).spaces == simple_spaces((6, 7, 2), "int8", 7, (), is_masked=True)
    assert look_at(cfg).players == 2


def test_parallel_where_there_is_a_choice() -> None:
    pytest.importorskip("pettingzoo.classic.rps.rps")
    assert type(PettingZooEnv.make_single(config("classic.rps_v2"))).__name__ == "ParallelBattle"
    turns = PettingZooEnv.make_single(config("classic.rps_v2", api="aec"))
    assert type(turns).__name__ == "TurnBattle"


def test_rock_paper_scissors_in_turns_pays_when_both_have_chosen() -> None:
    env = PettingZooEnv.make_single(config("classic.rps_v2", api="aec", kwargs={"max_cycles": 2}))
    steps = played(env, [1, 0, 1, 0])
    assert [rewards.tolist() for _, rewards, _, _ in steps] == [[0, 0], [1, -1]] * 2
    assert [done for *_, done, _ in steps] == [False, False, False, True]
    assert [info["eval_episode_return"] for info in steps[-1][3]] == [2.0, -2.0]


@pytest.mark.parametrize(
    ("env_id", "problem"),
    [
        ("", "env_id: is required"),
        ("classic.whist_v1", r"'classic.whist_v1' cannot be made: .*hpcdi\[battle\]"),
        ("no_such_module:env", "cannot be made: No module named 'no_such_module'"),
    ],
)
def test_what_cannot_be_made_says_so(env_id: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        look_at(config(env_id))


def test_wrong_keyword_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match=r"env.kwargs: .*'colour'"):
        look_at(config("classic.connect_four_v3", kwargs={"colour": 1}))


class Solo:
    """PettingZoo's API, of one player or two; options of a reset say its steps."""

    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self, players: int = 1) -> None:
        self.possible_agents = [*"ab"[:players]]

    def observation_space(self, _name: str) -> Any:
        return gymnasium.spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, _name: str) -> Any:
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.left = list(self.possible_agents), (options or {}).get("steps", 2)
        return self._each(np.zeros(1, np.float32)), self._each({})

    def step(self, _actions: Any) -> Any:
        self.left -= 1
        self.agents = self.agents if self.left else []
        seen = self._each(np.full(1, self.left, np.float32))
        return seen, *map(self._each, (1.0, not self.left, False, {}))

    def _each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def close(self) -> None: ...


def test_a_game_of_one_player_is_played(form: str) -> None:
    cfg = config(f"{__name__}:Solo", collector_env_num=1, manager={"type": form})
    assert look_at(cfg, trains=True).players == 1
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as rows:
        rows.launch()
        steps = [rows.step({"action": np.zeros(1, np.int64)}) for _ in range(4)]
        assert [step.terminated[0] for step in steps] == [False, True, False, True]
        assert [step.successor["observation"][0, 0] for step in steps] == [1, 0, 1, 0]
        assert not rows.failures


def test_a_game_begins_by_options() -> None:
    with make_env_manager(None, [partial(Solo, 2)], battle=True) as rows:
        rows.launch()
        rows.reset({0: {"options": {"steps": 1}}})
        assert rows.step({"action": np.zeros(2, np.int64)}).terminated.all()
    team = Team(as_battle(Solo(2)))
    team.reset(options={"steps": 1})
    assert team.step({"a": 0, "b": 0})[2], "a team's were dropped without a word"


class Late(Solo):
    """Its reset shows all of the observations, as later steps do; the second comes later."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        seen, infos = super().reset(seed, options)
        self.agents = ["a"]
        return {} if options else seen, infos


def test_a_reset_may_show_what_those_see_who_do_not_act_yet() -> None:
    battle = as_battle(Late(2))
    first, second = battle.reset()
    assert first is not None
    assert second is None
    assert battle.step([0, None])[0][1] is None
    with pytest.raises(EnvValueError, match=r"\['a'\] are to act, and have no observation"):
        battle.reset(options={"steps": 1})


class EndsOfAll(Solo):
    """Ends are said of all at once, and the players stay in the list."""

    def step(self, actions: Any) -> Any:
        seen, paid, *_ = super().step(actions)
        self.agents = list(self.possible_agents)
        return seen, paid, {"__all__": not self.left}, {"__all__": False}, {}


class OtherNames(Solo):
    """Rewards or ends are by other names than the players'."""

    def __init__(self, what: int) -> None:
        super().__init__(2)
        self._what = what

    def step(self, actions: Any) -> Any:
        told = [*super().step(actions)]
        told[self._what] = {f"player_{name}": value for name, value in told[self._what].items()}
        return tuple(told)


def test_what_is_said_of_all_ends_all_who_play() -> None:
    battle = as_battle(EndsOfAll(2))
    battle.reset(seed=0)
    assert [battle.step([0, 1])[2] for _ in range(2)] == [False, True]


def test_what_is_said_of_all_ends_games_in_turns() -> None:
    class Together(Leaves):
        def step(self, action: Any) -> Any:
            super().step(action)
            self.agents, self.terminations = [*"ab"], {"__all__": self._steps == 2}

    battle = as_battle(Together())
    battle.reset(seed=0)
    assert [battle.step([0, None])[2], battle.step([None, 0])[2]] == [False, True]


def test_what_is_said_of_all_ends_those_who_have_just_come() -> None:
    class Joins(EndsOfAll):
        def reset(self, *args: Any, **kwargs: Any) -> Any:
            (seen, infos), self.agents = super().reset(*args, **kwargs), ["a"]
            return {"a": seen["a"]}, infos

        def step(self, actions: Any) -> Any:
            seen, paid, *_ = super().step(actions)
            return seen, paid, {"__all__": True}, {"__all__": False}, {}

    battle = as_battle(Joins(2))
    battle.reset(seed=0)
    assert battle.step([0, None])[2]


@pytest.mark.parametrize(("what", "name"), [(1, "rewards"), (2, "terminations")])
def test_values_by_other_names_than_the_players_are_refused(what: int, name: str) -> None:
    battle = as_battle(OtherNames(what))
    battle.reset(seed=0)
    with pytest.raises(EnvValueError, match=rf"{name}: by the names \['player_a', .* \['a', 'b'\]"):
        battle.step([0, 1])


def test_rewards_by_other_names_are_refused_in_turns_and_joint_environments_too() -> None:
    class Turns(InTurns):
        def step(self, action: Any) -> Any:
            super().step(action)
            self.rewards = {0: 1.0, 1: 0.0}

    class Both(Joint):
        def step(self, action: Any) -> Any:
            seen, _, *others = super().step(action)
            return seen, {"A": 1.0, "B": 0.0}, *others

    for battle, actions in ((as_battle(Turns()), [0, None]), (as_battle(Both("dict")), [0, 1])):
        battle.reset(seed=0)
        with pytest.raises(EnvValueError, match="rewards: by the names"):
            battle.step(actions)


def test_one_that_nobody_has_named_is_refused() -> None:
    class Stranger(Solo):
        def step(self, actions: Any) -> Any:
            told = super().step(actions)
            self.agents = [*self.agents, "c"]
            return told

    battle = as_battle(Stranger(2))
    battle.reset(seed=0)
    with pytest.raises(EnvValueError, match=r"'c' is none of the possible_agents \['a', 'b'\]"):
        battle.step([0, 1])
    with pytest.raises(EnvError, match="possible_agents are empty"):
        as_battle(Solo(0))


class Remembers(Solo):
    """A game at once that begins where the one before has left it; it knows some seeds alone."""

    place: Any = None

    def __init__(self, known: tuple[int, ...] = ()) -> None:
        super().__init__(2)
        self._known = known

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        assert seed is None or not self._known or seed in self._known, seed
        if seed is not None or self.place is None:
            self._rng = np.random.default_rng(seed)
        self.place = self._rng.integers(1000) + (self.place or 0) / 1000
        super().reset(seed, options)
        return self._each(np.full(1, self.place, np.float32)), self._each({})


@pytest.mark.parametrize(("kind", "cls"), [("pettingzoo", PettingZooEnv), ("team", TeamEnv)])
def test_a_game_is_the_same_by_the_same_seed_whatever_it_remembers(kind: str, cls: Any) -> None:
    """Its infos are looked at in a first reset, which its later games may show."""

    def first(**settings: Any) -> list[Any]:
        cfg = cls.parse_config(
            {"env_id": f"{__name__}:Remembers", "collector_env_num": 1, **settings}
        )
        seed = np.random.SeedSequence(0)
        with create_env_manager(cfg, evaluate=False, seed=seed) as envs:
            envs.launch()
            assert not envs.failures
            return [column.tolist() for column in envs.observation.values()]

    assert first() == first()
    scenarios = {"seeds": [7, 9], "kwargs": {"known": [7, 9]}}
    assert first(**scenarios) == first(**scenarios)


def test_a_battle_of_the_seeds_kind_is_first_reset_by_a_seed() -> None:
    class Seen(SeedsBattle):
        seeds: ClassVar[list[int]] = []

        def seed(self, seed: int) -> None:
            self.seeds.append(seed)

    as_battle(Seen(), 3)
    assert Seen.seeds == [3]


class Leaves(InTurns):
    """In turns: b's first turn ends the game, pays both, and leaves nobody in the list."""

    def observe(self, name: str) -> Any:
        return np.full(1, self._steps, np.float32)

    def step(self, action: Any) -> Any:
        self._steps += 1
        self.rewards = {"a": float(self._steps), "b": -1.0}
        self.agent_selection = "b"
        if self._steps == 2:
            self.agents, self.terminations = [], dict.fromkeys("ab", True)


class PaidTwice(InTurns):
    """In turns: rewards stay as they are while one that has ended leaves."""

    def step(self, action: Any) -> Any:
        if action is not None:
            self.rewards = {"a": 1.0, "b": 10.0}
        super().step(action)


def test_players_that_leave_at_once_have_their_last_reward_and_observation() -> None:
    battle = as_battle(Leaves())
    battle.reset(seed=0)
    assert battle.step([0, None])[1].tolist() == [1.0, -1.0]
    seen, paid, over, infos = battle.step([None, 0])
    assert over
    assert [float(own[0]) for own in seen] == [2.0, 2.0]
    assert paid.tolist() == [2.0, -1.0]
    assert [info["eval_episode_return"] for info in infos] == [3.0, -2.0]


class Forgets(Leaves):
    """In turns: b leaves in a's first step, and nothing is known of it any more."""

    def observe(self, name: str) -> Any:
        return {n: super(Forgets, self).observe(n) for n in self.agents}[name]

    def step(self, action: Any) -> Any:
        super().step(action)
        self.agents, self.agent_selection = ["a"], "a"
        for of_each in (self.rewards, self.terminations, self.truncations, self.infos):
            of_each.pop("b", None)


def test_one_that_is_forgotten_as_it_leaves_is_not_observed() -> None:
    battle = as_battle(Forgets())
    battle.reset(seed=0)
    seen, paid, over, _ = battle.step([0, None])
    assert (float(seen[0][0]), seen[1], over) == (1.0, None, False)
    assert paid.tolist() == [1.0, 0.0]
    assert battle.step([0, None])[2]


def test_ends_in_turns_may_be_of_any_form_of_a_truth() -> None:
    class Lists(InTurns):
        def step(self, action: Any) -> Any:
            super().step(action)
            self.terminations = {n: [bool(np.all(end))] for n, end in self.terminations.items()}

    battle = as_battle(Lists())
    battle.reset(seed=0)
    seen, _, over, _ = battle.step([0, None])
    assert not over
    assert seen[1] is not None
    assert [battle.step([None, 0])[2] for _ in range(2)] == [False, True]


def test_nobody_is_paid_while_one_leaves() -> None:
    battle = as_battle(PaidTwice())
    battle.reset(seed=0)
    assert battle.step([0, None])[1].tolist() == [1.0, 10.0]


@pytest.mark.parametrize("form", ["one", "dict", "by name"])
def test_spaces_of_players_are_a_method_a_dict_or_one(form: str) -> None:
    class Said(Solo):
        observation_space, action_space = None, None  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__(2)
            for kind in ("observation_space", "action_space"):
                one = getattr(super(), kind)("a")
                each = dict.fromkeys("ab", one)
                if form == "by name":
                    setattr(self, f"{kind}s", each)
                else:
                    setattr(self, kind, one if form == "one" else gymnasium.spaces.Dict(each))

    battle, method = as_battle(Said()), as_battle(Solo(2))
    assert battle.observation_space == method.observation_space
    assert battle.action_space == method.action_space


class Ghost(Solo):
    """The first player is cut in the first step, and what it would see is still shown."""

    def step(self, actions: Any) -> Any:
        seen, rewards, ends, _, infos = super().step(actions)
        self.agents = self.agents[-1:]
        return seen, rewards, ends, {"a": not ends["a"], "b": False}, infos


def test_what_is_shown_of_one_that_has_ended_does_not_count() -> None:
    """The value of what it saw as it was cut is bootstrapped."""
    with make_env_manager(None, [partial(Ghost, 2)], battle=True) as rows:
        rows.launch()
        rows.step({"action": np.zeros(2, np.int64)})
        step = rows.step({"action": np.zeros(2, np.int64)})
    assert step.live.all()
    assert step.truncated.tolist() == [True, False]
    assert step.successor["observation"].tolist() == [[1], [0]]


class OneSpace:
    """Of `BattleEnv`'s shape; its players' spaces are one."""

    agents = 2
    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> Any:
        return [np.zeros(1, np.float32)] * 2

    def close(self) -> None: ...


def test_one_space_is_that_of_each_player() -> None:
    here = f"{__name__}:OneSpace"
    assert look_at(config(here)).players == 2
    team = look_at(TeamEnv.parse_config({"env_id": here}))
    assert [field.name for field in team.spaces.action] == ["player_0", "player_1"]
    assert SmallGame(OneSpace()).at(0, ()).seen[1] is not None


def test_one_reward_for_all_of_a_parallel_environment_is_named() -> None:
    """It was 'float' object has no attribute 'get', without a place."""

    class Shared(Solo):
        def step(self, actions: Any) -> Any:
            seen, _reward, *others = super().step(actions)
            return seen, 1.0, *others

    battle = as_battle(Shared(2))
    battle.reset(seed=0)
    with pytest.raises(EnvValueError, match=r"rewards: float 1\.0, and must be a dict, by player"):
        battle.step([0, 0])


class Joint(gymnasium.Env[Any, Any]):
    """Values of two players side by side, as those of lbforaging, rware, vmas and multigrid.

    In a Dict a ends before b does; in a Tuple both end at once.
    """

    def __init__(self, kind: str = "tuple") -> None:
        box = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
        acts = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2, start=1)
        self._is_dict = kind == "dict"
        make: Any = gymnasium.spaces.Dict if self._is_dict else gymnasium.spaces.Tuple
        self.observation_space = make(self._each(box, box))
        self.action_space = make(self._each(*acts))

    def _each(self, *parts: Any) -> Any:
        return dict(zip("ab", parts, strict=True)) if self._is_dict else list(parts)

    def _seen(self) -> Any:
        return self._each(*(np.full(2, at, np.float32) for at in (self.at, -self.at)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.at += 1
        over = self.at == 3
        ends = self._each(self.at >= 2, over) if self._is_dict else over
        return self._seen(), self._each(1.0, 2.0), ends, False, {"at": self.at}


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_gymnasium_s_environments_of_several_players_are_battles(kind: str) -> None:
    battle = as_battle(Joint(kind))
    assert battle.names == (["a", "b"] if kind == "dict" else ["player_0", "player_1"])
    assert [seen.tolist() for seen in battle.reset(seed=0)] == [[0, 0], [0, 0]]
    _, rewards, over, _ = battle.step([0, 1])
    assert rewards.tolist() == [1, 2]
    assert not over
    seen, _, over, infos = battle.step([1, 2])
    assert (seen[0] is None) == infos[0]["terminated"] == (kind == "dict")
    seen, _, over, infos = battle.step([None if kind == "dict" else 1, 2])
    assert over
    last = 2 if kind == "dict" else 3
    assert [own.tolist() for own in seen] == [[last, last], [-3, -3]]
    assert infos[1] == {"terminated": True, "truncated": False, "eval_episode_return": 6, "at": 3}


class JointMasks(Joint):
    """Masks are of all players: arrays, or with a part for each; in infos, or beside."""

    def __init__(self, kind: str, form: str, *, in_info: bool) -> None:
        super().__init__(kind)
        self._form, self._in_info = form, in_info
        if not in_info:
            masks: Any = gymnasium.spaces.MultiBinary(4)
            if form == "parts":
                parts = self._each(*(gymnasium.spaces.MultiBinary(2) for _ in "ab"))
                masks = type(self.action_space)(parts)
            self.observation_space = gymnasium.spaces.Dict({
                "observation": self.observation_space, "action_mask": masks,
            })  # fmt: skip

    def _masked(self, seen: Any, info: Any) -> Any:
        masks = np.array([1, 0, 0, 1], np.int8)
        mask = self._each(*masks.reshape(2, 2)) if self._form == "parts" else masks
        mask = tuple(mask) if isinstance(mask, list) else mask
        if self._in_info:
            return seen, {**info, "action_mask": mask}
        seen = tuple(seen) if isinstance(seen, list) else seen
        return {"observation": seen, "action_mask": mask}, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._masked(*super().reset(seed=seed))

    def step(self, action: Any) -> Any:
        seen, *others, info = super().step(action)
        seen, info = self._masked(seen, info)
        return seen, *others, info


@pytest.mark.parametrize("in_info", [True, False])
@pytest.mark.parametrize("form", ["array", "parts"])
@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_masks_of_all_players_are_split(kind: str, form: str, in_info: bool) -> None:
    battle = as_battle(JointMasks(kind, form, in_info=in_info))
    assert all(space["action_mask"].n == 2 for space in battle.observation_space)
    for seen in (battle.reset(seed=0), battle.step([0, 2])[0]):
        assert [own["action_mask"].tolist() for own in seen] == [[1, 0], [0, 1]]
        assert [own["observation"].shape for own in seen] == [(2,), (2,)]
    team = Team(as_battle(JointMasks(kind, form, in_info=in_info)))
    assert team.observation_space.contains(team.reset(seed=0)[0])


@pytest.mark.parametrize("in_info", [True, False])
def test_masks_are_of_those_that_go_on(in_info: bool) -> None:
    class Playing(JointMasks):
        def _masked(self, seen: Any, info: Any) -> Any:
            seen, info = super()._masked(seen, info)
            holder = info if in_info else seen
            holder["action_mask"] = {
                name: mask
                for name, mask in holder["action_mask"].items()
                if name == told or self.at < 2
            }
            return seen, info

    told = "b"
    battle = as_battle(Playing("dict", "parts", in_info=in_info))
    battle.reset(seed=0)
    seen = [battle.step(actions)[0] for actions in ([0, 2], [1, 1], [None, 2])]
    assert [own["action_mask"].tolist() for own in seen[0]] == [[1, 0], [0, 1]]
    assert seen[1][0] is None
    assert seen[1][1]["action_mask"].tolist() == [0, 1]
    told = "a"  # whose game is over
    battle.reset(seed=0)
    battle.step([0, 2])
    with pytest.raises(EnvValueError, match=r"\['a'\]"):
        battle.step([1, 1])


@pytest.mark.parametrize("mask", [np.array([0, 1], np.int8), [0, 1], (0, 1)])
def test_a_mask_of_one_player_s_entries_is_that_of_each(mask: Any) -> None:
    class OneForAll(JointMasks):
        def _masked(self, seen: Any, info: Any) -> Any:
            return seen, {"action_mask": mask}

    seen = as_battle(OneForAll("tuple", "array", in_info=True)).reset(seed=0)
    assert [own["action_mask"].tolist() for own in seen] == [[0, 1]] * 2


def test_a_mask_of_no_discrete_action_stays_in_the_infos() -> None:
    class Moves(JointMasks):
        def __init__(self) -> None:
            super().__init__("tuple", "array", in_info=True)
            self.action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 1, (1,))] * 2)

    battle = as_battle(Moves())
    assert [own.shape for own in battle.reset(seed=0)] == [(2,), (2,)]
    *_, infos = battle.step([np.zeros(1, np.float32)] * 2)
    assert [info["action_mask"].size for info in infos] == [4, 4]


def test_a_player_that_has_ended_is_paid_no_more() -> None:
    battle = as_battle(Joint("dict"))
    battle.reset(seed=0)
    for actions in ([0, 1], [1, 2], [None, 2]):
        _, _, over, infos = battle.step(actions)
    assert over
    assert [info["eval_episode_return"] for info in infos] == [2, 6]


def test_an_environment_of_several_players_may_be_asked_for_infos() -> None:
    class Asked(Joint):
        def reset(
            self, *, seed: int | None = None, return_info: bool = True, options: Any = None
        ) -> Any:
            return super().reset(seed=seed)

    battle = as_battle(Asked())
    battle.reset(seed=0)
    assert battle.step([0, 1])[1].tolist() == [1, 2]


def test_what_is_given_for_a_player_that_has_ended_may_be_changed_in_place() -> None:
    class Changes(Joint):
        def step(self, action: Any) -> Any:
            told = super().step(action)
            action["a"] += 1
            return told

    env = Changes("dict")
    env.action_space["a"] = gymnasium.spaces.MultiDiscrete([2])
    battle = as_battle(env)
    for _ in range(2):
        battle.reset(seed=0)
        for own in (np.zeros(1, int), np.zeros(1, int), None):
            battle.step([own, 1])


def test_infos_are_of_each_player_though_one_has_left() -> None:
    class Playing(Joint):
        def step(self, action: Any) -> Any:
            *told, _ = super().step(action)
            each = {name: {"at": self.at} for name in ("ab" if self.at < 3 else "b")}
            return *told, {**each, "day": 10 + self.at}

    battle = as_battle(Playing("dict"))
    battle.reset(seed=0)
    for actions in ([0, 1], [1, 2], [None, 2]):
        *_, infos = battle.step(actions)
    assert [(info["at"], info["day"]) for info in infos] == [(2, 13), (3, 13)]


class EndsTogether(Joint):
    """Says of all players at once that they have ended, and nothing more."""

    def step(self, action: Any) -> Any:
        seen, paid, *_ = super().step(action)
        ends = {"a": False, "b": False, "__all__": self.at == 3}
        return seen, paid, ends, {"__all__": False}, None


def test_joint_environments_may_end_all_players_at_once() -> None:
    battle = as_battle(EndsTogether("dict"))
    battle.reset(seed=0)
    assert [battle.step([0, 1])[2] for _ in range(3)] == [False, False, True]


class CutTogether(Joint):
    """Says of each player that it was cut, and of all that they have ended."""

    def step(self, action: Any) -> Any:
        seen, paid, *_ = super().step(action)
        over = self.at == 3
        return seen, paid, {"a": False, "b": False, "__all__": over}, {"a": over, "b": over}, {}


def test_that_all_have_ended_does_not_say_how() -> None:
    battle = as_battle(CutTogether("dict"))
    battle.reset(seed=0)
    for _ in range(3):
        *_, over, infos = battle.step([0, 1])
    assert over
    assert all(info["truncated"] and not info["terminated"] for info in infos)


class SeedsOfGymnasium(gymnasium.Env[Any, Any]):
    """A battle of the seeds' kind, which says nowhere how many players it has."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self) -> Any:  # type: ignore[override]
        return [np.zeros(2, np.float32)] * 2

    def step(self, _actions: Any) -> Any:
        return SimpleNamespace(obs=self.reset(), reward=[0.0, 1.0], done=False, info={})


def test_battles_of_the_seeds_kind_may_be_of_gymnasiums_class() -> None:
    battle = as_battle(SeedsOfGymnasium())
    assert battle.agents == 2
    assert battle.step([0, 1])[1].tolist() == [0, 1]
    assert as_battle(CountedSeeds()).agents == 3


class CountedSeeds(SeedsOfGymnasium):
    """Another one, whose reset takes a seed."""

    agent_num = 3

    def reset(self, **_given: Any) -> Any:
        return [np.zeros(2, np.float32)] * 3


def test_gymnasium_s_environments_of_several_players_by_their_id() -> None:
    """Their type was gymnasium's alone, which said that the reward is no number."""
    gymnasium.register("test/Joint-v0", entry_point=Joint, max_episode_steps=2)
    try:
        for env_id in ("test/Joint-v0", f"{__name__}:test/Joint-v0", f"{__name__}:Joint"):
            team = TeamEnv.make_single(TeamEnv.parse_config({"env_id": env_id}))
            team.reset(seed=0)
            for _ in range(2):
                *_, truncated, _info = team.step({"player_0": 0, "player_1": 2})
            assert truncated == ("-" in env_id)
            with pytest.raises(ConfigError, match=r"different spaces: action_space"):
                look_at(config(env_id))
        cfg = GymnasiumEnv.parse_config({"env_id": "test/Joint-v0"})
        with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
            envs.launch()
            act = {f"action/{n}": np.zeros(envs.env_num, np.int64) for n in range(2)}
            with pytest.raises(EnvError, match=r"reward: .*one number; .*env.type: team, or petti"):
                envs.step(act)
        for env_cls in (PettingZooEnv, TeamEnv):
            with pytest.raises(ConfigError, match=r"env.type: must be gymnasium for .*CartPole"):
                look_at(env_cls.parse_config({"env_id": "CartPole-v1"}))
    finally:
        gymnasium.registry.pop("test/Joint-v0")


def test_what_joint_rewards_lack_is_named() -> None:
    class Shared(Joint):
        def step(self, action: Any) -> Any:
            seen, _rewards, *others = super().step(action)
            return seen, 3.0, *others

    battle = as_battle(Shared())
    battle.reset(seed=0)
    with pytest.raises(
        EnvValueError, match=r"rewards: float 3\.0, and must be one for each of 2 pl"
    ):
        battle.step([0, 1])


def test_a_module_of_pettingzoo_s_may_be_named_in_its_package() -> None:
    """It was called: 'module' object is not callable."""
    assert look_at(config("pettingzoo.classic:tictactoe_v3")).players == 2
    with pytest.raises(ConfigError, match="those of other packages like module:parallel_env"):
        look_at(config("mpe3.simple_spread_v3"))
