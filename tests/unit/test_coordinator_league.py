"""The league's decisions: matchmaking, freezing, payoff, ratings; and what they lead to in games.

Rock-paper-scissors and Kuhn poker are solved exactly: learners are exact best responses to the
opponents that the league draws, and the distance to the solution is computed, not sampled.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fakes.clock import Clock
from hpcdi.config.league import LeagueConfig
from hpcdi.league.league import (
    League,
    Payoff,
    Rating,
    Strengths,
    frozen_file,
    name_of_frozen,
)
from hpcdi.league.view import LeagueView, names_of, shown_of
from hpcdi.store.atomic import read_json
from hpcdi.types import Array


def league_with(frozen: int = 0, roles: Mapping[str, str] | None = None, **rules: object) -> League:
    """A league whose main player has some frozen copies."""
    players = {"main": "main"} if roles is None else roles
    league = League(LeagueConfig(players=dict(players), **rules))  # type: ignore[arg-type]
    for _ in range(frozen):
        league.freeze("main", league.next_copy("main"), 0)
    return league


# ------------------------------------------------------------------------------------------- payoff


def test_results_are_the_same_from_both_sides() -> None:
    payoff = Payoff()
    payoff.add("b", "a", 3, 1, 2)
    payoff.add("a", "b", 1, 0, 0)
    assert payoff.games("a", "b") == (3, 1, 3)
    assert payoff.games("b", "a") == (3, 1, 3)
    payoff.add("b", "a", 2, 0, 0)
    assert payoff.games("b", "a") == (5, 1, 3)
    assert payoff.score("a", "b") == pytest.approx(1 - payoff.score("b", "a"))
    for _ in range(2):  # against itself: as the first seat saw them
        payoff.add("a", "a", 1, 0, 0)
    assert payoff.games("a", "a") == (2, 0, 0)
    assert payoff.games("a", "c") == (0, 0, 0)
    assert payoff.score("a", "c") == 0.5


def test_old_games_count_less() -> None:
    payoff = Payoff(decay=0.99)
    payoff.add("a", "b", 1000, 0, 0)
    for _ in range(50):
        payoff.add("a", "b", 0, 0, 10)
    assert payoff.games("a", "b") == (1000, 0, 500)
    assert payoff.score("a", "b") < 0.02
    assert payoff.recent("a", "b").sum() == pytest.approx(100, abs=1)  # 1 / (1 - decay)


# -------------------------------------------------------------------------------------- matchmaking


def test_a_new_main_player_plays_itself() -> None:
    assert league_with().opponents("main") == {"main": 1.0}
    assert league_with(3, matchmaking="self_play").opponents("main") == {"main": 1.0}


def test_pfsp_prefers_those_who_win() -> None:
    league = league_with(2, self_play=0.4)
    league.count_games([("main", "main_000001", 90, 0, 10), ("main", "main_000002", 10, 0, 90)])
    drawn = league.opponents("main")
    assert sum(drawn.values()) == pytest.approx(1)
    assert drawn["main"] == 0.4
    assert drawn["main_000002"] > 40 * drawn["main_000001"]


def test_fictitious_and_variance() -> None:
    league = league_with(2, self_play=0.0, matchmaking="fictitious", fixed={"random": "random"})
    league.count_games([("main", "main_000001", 99, 0, 1), ("main", "main_000002", 50, 0, 50)])
    assert list(league.opponents("main").values()) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    league = league_with(2, self_play=0.0, matchmaking="variance")
    league.count_games([("main", "main_000001", 99, 0, 1), ("main", "main_000002", 50, 0, 50)])
    assert league.opponents("main")["main_000002"] > 0.9


def test_only_recent_copies_are_drawn() -> None:
    league = league_with(5, recent=2, matchmaking="fictitious")
    assert set(league.opponents("main")) == {"main", "main_000004", "main_000005"}


def test_exploiters() -> None:
    roles = {"main": "main", "exploiter": "main_exploiter", "all": "league_exploiter"}
    league = league_with(2, roles)
    assert league.opponents("exploiter") == {"main": 1.0}
    league.count_games([("exploiter", "main", 0, 0, 50)])
    assert set(league.opponents("exploiter")) == {"main_000001", "main_000002"}
    assert "main" not in league.opponents("all")
    assert league.freeze("exploiter", league.next_copy("exploiter"), 5), "it begins anew"
    assert not league.freeze("main", league.next_copy("main"), 5)
    resets = sum(league.freeze("all", league.next_copy("all"), 5) for _ in range(400))
    assert 60 < resets < 140


# ----------------------------------------------------------------------------------------- freezing


def test_a_player_is_frozen_by_steps() -> None:
    league = league_with(freeze_steps=100)
    league.count_steps("main", 99)
    assert not league.may_freeze("main")
    league.count_steps("main", 130)
    assert league.may_freeze("main")
    assert league.copy_due("main") == frozen_file("main_000001")
    league.freeze("main", frozen_file("main_000001"), 7)
    assert league.copy_due("main") == ""
    assert not league.may_freeze("main")
    assert league.next_copy("main") == frozen_file("main_000002")
    assert league.players["main_000001"].steps == 130


def test_a_player_that_beats_all_is_frozen_sooner() -> None:
    league = league_with(1, freeze_steps=100, freeze_win_rate=0.8)
    league.count_steps("main", 30)
    assert not league.may_freeze("main")
    league.count_games([("main", "main_000001", 50, 0, 0)])
    assert league.may_freeze("main")
    league.count_steps("main", 20)
    assert not league.may_freeze("main")


def test_one_that_begins_anew_has_won_nothing_yet() -> None:
    """A copy of the new policy was frozen by the games that the old one had won."""
    league = league_with(0, {"main": "main", "exploiter": "main_exploiter"}, freeze_steps=100)
    league.count_games([("exploiter", "main", 500, 0, 0), ("main", "main", 4, 0, 1)])
    league.count_steps("exploiter", 30)
    assert league.may_freeze("exploiter")
    assert league.freeze("exploiter", league.next_copy("exploiter"), 5)
    league.count_games([("exploiter", "main", 0, 0, 20)])
    league.count_steps("exploiter", 60)
    assert not league.may_freeze("exploiter")
    assert league.payoff.score("main", "exploiter") == pytest.approx(20.5 / 21, abs=1e-3)
    assert league.payoff.games("exploiter", "main") == (500, 0, 20)
    assert league.payoff.score("main", "main") > 0.5
    assert league.ratings()["exploiter"].elo < 1400


# ----------------------------------------------------------------------------------- state, ratings


def test_state_is_plain_data() -> None:
    league = league_with(2, fixed={"random": "random"})
    league.count_steps("main", 50)
    league.count_games([("main", "main_000002", 3, 1, 2), ("main", "main", 1, 0, 4)])
    state = json.loads(json.dumps(league.state_dict()))
    other = league_with(fixed={"random": "random"})
    other.load_state_dict(state)
    assert other.state_dict() == league.state_dict()
    assert other.opponents("main") == league.opponents("main")


def test_a_fixed_player_that_has_gone_keeps_its_results_and_is_drawn_no_more() -> None:
    league = league_with(1, fixed={"bob": "random", "eve": "random"})
    league.count_games([("main", "bob", 9, 0, 1), ("main", "main_000001", 5, 0, 5)])
    again = league_with(fixed={"eve": "random"})
    again.load_state_dict(json.loads(json.dumps(league.state_dict())))
    assert set(again.ratings()) == {"main", "bob", "main_000001"}
    assert set(again.opponents("main")) == {"main", "eve", "main_000001"}
    assert set(again.state_dict()["players"][-1].items()) >= {("name", "bob"), ("role", "fixed")}


def test_a_copy_that_is_not_known_joins_by_its_games() -> None:
    """It was frozen after the snapshot from which the run is resumed."""
    league = league_with(1)
    league.count_games([("main", "main_000002", 1, 0, 0)])
    assert league.players["main_000002"].source == frozen_file("main_000002")
    assert league.players["main_000002"].parent == "main"
    assert league.next_copy("main") == frozen_file("main_000003")
    assert (league.players["main_000002"].version, league.players["main_000002"].steps) == (-1, -1)
    league.learn_versions({frozen_file("main_000002"): 7}.__getitem__)
    assert league.players["main_000002"].version == 7
    late = league_with()
    late.count_games([("main", f"main_{n:06d}", 1, 0, 0) for n in (10, 2, 3)])
    assert [p.name[-2:] for p in late.frozen("main")] == ["02", "03", "10"], "oldest first"
    assert [name[-2:] for name in names_of(shown_of(late, 0))] == ["in", "02", "03", "10"]


def test_ratings_that_take_long_are_made_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a thousand copies took a second, every other second of rank 0."""
    clock, file = Clock(), tmp_path / "league.json"
    league, view, written = league_with(1), LeagueView(file), []

    def ratings() -> dict[str, Rating]:
        clock.now += 0.5
        return {}

    monkeypatch.setattr("hpcdi.league.view.time", clock)
    monkeypatch.setattr(league, "ratings", ratings)
    for now in (0.0, 2.0, 9.9, 10.0, 19.9):
        view.refresh(league, int(10 * now), now)
        written.append(read_json(file)["env_steps"])
    view.refresh(league, 200, 20.0 - 1e-3, at_once=True)
    assert [*written, read_json(file)["env_steps"]] == [0, 0, 0, 100, 100, 200]


def test_the_newest_copies_of_all_players_are_shown_whatever_their_numbers() -> None:
    league = league_with(roles={"main": "main", "bot": "main_exploiter"})
    for n in range(50):
        league.freeze("main", league.next_copy("main"), n)
    league.freeze("bot", league.next_copy("bot"), 50)
    league.count_games([("main", "main_000052", 1, 0, 0), ("bot", "main_000051", 1, 0, 0)])
    shown = ["main_000050", "bot_000001", "main_000051", "main_000052"]
    assert list(names_of(shown_of(league, 0)))[-4:] == shown


def test_ratings_find_true_strengths_within_their_uncertainty() -> None:
    rng, true = np.random.default_rng(1), np.array([0.0, 100.0, 200.0, 400.0])
    league = league_with(4, decay=1.0)
    names = [p.name for p in league.frozen()]
    for i, j in itertools.combinations(range(4), 2):
        chance = 1 / (1 + 10 ** ((true[j] - true[i]) / 400))
        wins = int(rng.binomial(300, chance))
        league.count_games([(names[i], names[j], wins, 0, 300 - wins)])
    ratings = league.ratings()
    for name, expected in zip(names, true - true.mean() + 1500, strict=True):
        assert abs(ratings[name].elo - expected) < 3 * ratings[name].std
        assert 5 < ratings[name].std < 30
    gains = Strengths.of(names, league.payoff).gains(names)
    for (before, name), expected in zip(itertools.pairwise(names), np.diff(true), strict=True):
        assert gains[name].elo == pytest.approx(ratings[name].elo - ratings[before].elo)
        assert abs(gains[name].elo - expected) < 3 * gains[name].std
        # a game of two moves one up and the other down: their errors are opposite
        assert gains[name].std > np.hypot(ratings[name].std, ratings[before].std)


def test_ratings_know_less_of_those_who_have_hardly_played() -> None:
    league = league_with(3, decay=1.0)
    league.count_games(
        [("main_000001", "main_000002", 100, 0, 100), ("main_000001", "main_000003", 2, 0, 0)]
    )
    ratings = league.ratings()
    assert ratings["main_000003"].std > 1.5 * ratings["main_000001"].std
    assert ratings["main_000003"].elo < ratings["main_000002"].elo
    assert "main" not in ratings  # it has played no game
    assert League().ratings() == {}


# ------------------------------------------------------------------------------ rock paper scissors

_BEATS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])


def play_rock_paper_scissors(rounds: int, seed: int, **rules: object) -> list[int]:
    """Actions of the frozen copies of a learner that answers its opponents in the best way."""
    rng, league = np.random.default_rng(seed), league_with(freeze_steps=1, **rules)
    acts, action = dict[str, int](), 0
    for step in range(1, rounds + 1):
        acts["main"] = action
        drawn = league.opponents("main")
        names = rng.choice(list(drawn), size=30, p=list(drawn.values()))
        for other in names.tolist():
            result = int(_BEATS[action, acts[other]])
            league.count_games([("main", other, result > 0, result == 0, result < 0)])
        league.count_steps("main", step)
        assert league.may_freeze("main")
        copy = name_of_frozen(league.next_copy("main"))
        league.freeze("main", frozen_file(copy), step)
        acts[copy] = action
        mixture = np.zeros(3)
        for other, share in league.opponents("main").items():
            mixture[acts[other]] += share
        action = int((_BEATS @ mixture).argmax())
    return [acts[p.name] for p in league.frozen()]


def test_pure_self_play_cycles() -> None:
    actions = play_rock_paper_scissors(60, 0, matchmaking="self_play")
    assert all((after - before) % 3 == 1 for before, after in itertools.pairwise(actions))


@pytest.mark.parametrize("seed", range(3))
def test_the_league_averages_to_the_solution(seed: int) -> None:
    actions = play_rock_paper_scissors(
        300, seed, matchmaking="fictitious", self_play=0.0, recent=1000
    )
    average = np.bincount(actions, minlength=3) / len(actions)
    assert np.abs(average - 1 / 3).max() < 0.1


# --------------------------------------------------------------------------------------- Kuhn poker

_CARDS = list(itertools.permutations(range(3), 2))
Strategy = dict[tuple[int, str], Array]
"""(own card, history of checks "p" and bets "b") -> probabilities of "p" and "b"."""


def pays(cards: tuple[int, int], history: str) -> float | None:
    """What the first player gets; None while the game is on. (Kuhn 1950)"""
    higher = 1.0 if cards[0] > cards[1] else -1.0
    return {"pp": higher, "bb": 2 * higher, "pbb": 2 * higher, "bp": 1.0, "pbp": -1.0}.get(history)


def mean_strategy(parts: list[tuple[Strategy, float]]) -> Strategy:
    """The strategy that plays as a player does who draws one of `parts` before each game."""
    sums: Strategy = {}
    for strategy, share in parts:
        for card, history in strategy:
            reach = share
            for turn in range(len(history) % 2, len(history), 2):
                reach *= strategy[card, history[:turn]]["pb".index(history[turn])]
            key = (card, history)
            sums[key] = sums.get(key, np.zeros(2)) + reach * strategy[key]
    return {k: v / v.sum() if v.sum() > 0 else np.full(2, 0.5) for k, v in sums.items()}


def best_response(strategy: Strategy, seat: int) -> tuple[Strategy, float]:
    """The best answer to a strategy from a seat, and what it earns a game."""
    answer: Strategy = {}

    def value(history: str, deals: dict[tuple[int, int], float]) -> float:
        """Of the deals with one card of `seat`, weighted by chance and the other's moves."""
        payments = {d: pays(d, history) for d in deals}
        if None not in payments.values():
            sign = 1 if seat == 0 else -1
            return sum(sign * float(payments[d] or 0) * w for d, w in deals.items())
        if len(history) % 2 == seat:
            values = [value(history + move, deals) for move in "pb"]
            (card,) = {d[seat] for d in deals}
            answer[card, history] = np.eye(2)[int(np.argmax(values))]
            return max(values)
        return sum(
            value(
                history + move,
                {d: w * strategy[d[1 - seat], history][i] for d, w in deals.items()},
            )
            for i, move in enumerate("pb")
        )

    total = sum(value("", {d: 1 / 6 for d in _CARDS if d[seat] == card}) for card in range(3))
    return answer, total


def test_kuhn_poker_is_nearly_solved_by_the_league() -> None:
    """Exploitability: what the best responses from both seats win together, halved."""
    histories = ["", "pb", "p", "b"]
    strategies: dict[str, Strategy] = {
        "main": {(c, h): np.full(2, 0.5) for c in range(3) for h in histories}
    }
    league = league_with(freeze_steps=1, matchmaking="fictitious", self_play=0.0, recent=10_000)
    for step in range(1, 151):
        league.count_steps("main", step)
        assert league.may_freeze("main")
        copy = name_of_frozen(league.next_copy("main"))
        league.freeze("main", frozen_file(copy), step)
        strategies[copy] = strategies["main"]
        drawn = league.opponents("main")
        mixed = mean_strategy([(strategies[n], p) for n, p in drawn.items() if p > 0])
        strategies["main"] = best_response(mixed, 0)[0] | best_response(mixed, 1)[0]
    average = mean_strategy([(strategies[p.name], 1.0) for p in league.frozen()])
    exploitability = (best_response(average, 0)[1] + best_response(average, 1)[1]) / 2
    assert 0 <= exploitability < 0.05
    last = strategies[league.frozen()[-1].name]
    assert (best_response(last, 0)[1] + best_response(last, 1)[1]) / 2 > 0.2  # one alone is beaten
