"""Exact best responses: against the known values of small games."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from fakes.battle_envs import FromOne, Named, RockPaperScissors, Shaped
from fakes.battles import first_legal, minimax
from hpcdi.env.best_response import Act, SmallGame, best_response_value, best_responses
from hpcdi.env.games import KuhnPoker
from hpcdi.env.pettingzoo import PettingZooEnv
from hpcdi.errors import EnvError
from hpcdi.types import Columns
from hpcdi.utils.nested import take_rows


def always(action: int) -> Act:
    return lambda _seen: action


def kuhn(bluffs: bool, second_bluffs: bool) -> Act:
    """One of two pure strategies; a third of the first and the rest of the second are an optimum.

    Kuhn 1950, "A simplified two-person poker", with alpha = 0: who begins never bets at first, and
    calls with the middle card a third of the time; the other bets the lowest card a third of the
    time, and calls with the middle one as often.
    """

    def act(seen: Columns) -> int:
        card, checks, bets = seen["observation"][0].tolist()
        if bets:  # call?
            return int(card == 2 or (card == 1 and bluffs))
        return int(checks > 0 and (card == 2 or (card == 0 and second_bluffs)))

    return act


def of_pettingzoo(name: str) -> Any:
    pytest.importorskip("pettingzoo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        config = PettingZooEnv.Config(type="pettingzoo", env_id=f"classic.{name}")
        return PettingZooEnv.make_single(config)


@pytest.mark.parametrize("form", [RockPaperScissors, FromOne, Shaped, Named])
def test_rock_paper_scissors(form: type[RockPaperScissors]) -> None:
    game = SmallGame(form())
    uniform = [(1 / 3, always(action)) for action in range(3)]
    assert best_responses(game, uniform).exploitability == pytest.approx(0.0)
    assert best_responses(game, [(1.0, always(0))]).exploitability == 1.0
    assert (
        best_responses(game, [(0.5, always(0)), (0.5, always(1))]).exploitability == 0.5
    )  # paper: 1/2 - 0


def test_kuhn_poker() -> None:
    game = SmallGame(KuhnPoker())
    optimum = [(1 / 3, kuhn(True, True)), (2 / 3, kuhn(False, False))]
    assert best_response_value(game, 0, optimum) == pytest.approx(-1 / 18)
    assert best_response_value(game, 1, optimum) == pytest.approx(1 / 18)
    assert best_responses(game, optimum).exploitability == pytest.approx(0.0)
    # against who always bets and calls: bet or call with the highest card, which wins 2 of 6 deals
    # by 2; with the middle one call, which wins and loses one each; with the lowest fold
    assert best_response_value(game, 1, [(1.0, always(1))]) == pytest.approx((2 * 2 - 2 * 1) / 6)
    assert best_responses(game, [(1.0, always(0))]).exploitability == pytest.approx(1.0), (
        "who folds loses each"
    )


@pytest.mark.slow
def test_tictactoe() -> None:
    rng = np.random.default_rng(0)
    game = SmallGame(of_pettingzoo("tictactoe_v3"))
    perfect, simple = (
        [(1.0, lambda seen, play=play: play(take_rows(seen, 0), rng))]
        for play in (minimax, first_legal)
    )
    assert best_responses(game, perfect).exploitability == 0.0
    assert best_responses(game, simple).exploitability == 1.0


def test_games_that_cannot_be_solved() -> None:
    with pytest.raises(EnvError, match="the environment is random"):
        best_responses(SmallGame(KuhnPoker(says_deals=False)), [(1.0, always(1))])
    with pytest.raises(EnvError, match=r"has about .* lines of play: best responses"):
        best_responses(SmallGame(of_pettingzoo("connect_four_v3")), [(1.0, always(0))])
    with pytest.raises(EnvError, match="more than 10 positions"):
        best_responses(SmallGame(KuhnPoker(), most=10), [(1.0, always(1))])
