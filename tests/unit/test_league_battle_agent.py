"""Scripts in a league: what they return becomes columns of an action; results of games."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from hpcdi.env.contract import read_spaces
from hpcdi.errors import PolicyError
from hpcdi.league.battle_agent import Players, _results
from hpcdi.policy.exploration import RandomActor
from hpcdi.policy.spaces import with_bounds
from hpcdi.types import ACTION_MASK, Array, Columns
from hpcdi.utils.nested import column_objection

SOURCE = "my_module:play"
SPOKEN = {"move": Discrete(5), "say": Discrete(3)}
BOX = Box(np.array([-1, 0], np.float32), np.array([1, 9], np.float32))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a script that returns an answer does in two rows."""

    def act(space: Space[Any], answer: Any, legal: list[int] | None = None) -> Columns:
        module = ModuleType("my_module")
        module.play = lambda _observation, _rng: answer  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "my_module", module)
        seed = np.random.SeedSequence(0)
        random = RandomActor(with_bounds(read_spaces(Discrete(2), space)), seed)
        seen: Columns = {"observation": np.zeros((2, 4))}
        if legal is not None:
            seen[ACTION_MASK] = np.array([legal, legal], dtype=bool)
        players = Players(".", None, random, space, seed, limit_bytes=0)  # type: ignore[arg-type]
        columns = players.get(SOURCE).act(seen, {})
        objection = column_objection(columns, random.act({"observation": seen["observation"]}, {}))
        assert objection is None, "they are the columns of all other players"
        return columns

    return act


@pytest.mark.parametrize(
    ("space", "answer", "columns"),
    [
        (Discrete(5), 4, {"action": 4}),
        (Discrete(5, start=3), np.array([4]), {"action": 4}),
        (Discrete(2), True, {"action": 1}),
        (MultiDiscrete([5, 3]), [4, 2.0], {"action": [4, 2]}),
        (Dict(SPOKEN), {"say": 2, "move": 4}, {"action/move": 4, "action/say": 2}),
        (
            Tuple((*SPOKEN.values(), BOX)),
            (4, 2, [0, 1]),
            {"action/0": 4, "action/1": 2, "action/2": [0.0, 1.0]},
        ),
        (
            Dict({"arm": Dict(SPOKEN)}),
            {"arm": {"move": 4, "say": 2}},
            {"action/arm/move": 4, "action/arm/say": 2},
        ),
        (BOX, [0, 3], {"action": [0.0, 3.0]}),
        (BOX, np.array([7.0, -9.0]), {"action": [1.0, 0.0]}),
        (Box(-np.inf, np.inf, (1,)), 1e9, {"action": [1e9]}),
        (Box(0, 255, (2,), np.uint8), [1.6, 300], {"action": [2.0, 255.0]}),
    ],
)
def test_an_answer_becomes_the_columns_of_an_action(
    script: Any, space: Space[Any], answer: Any, columns: dict[str, Any]
) -> None:
    """Whole numbers are no other action of a Box; what is beyond its bounds is clipped."""
    acted = script(space, answer)
    assert {name: column.tolist() for name, column in acted.items()} == {
        name: [value, value] for name, value in columns.items()
    }


@pytest.mark.parametrize(
    ("space", "answer", "form"),
    [
        (Discrete(5), 9, "Discrete(5)"),
        (Discrete(5), -3, "Discrete(5)"),
        (Discrete(5), 1.7, "Discrete(5)"),
        (Discrete(5), None, "Discrete(5)"),
        (Discrete(5), "4", "Discrete(5)"),
        (Discrete(5), {"move": 4}, "Discrete(5)"),
        (MultiBinary(2), [0, 2], "MultiDiscrete(2, 2)"),
        (MultiDiscrete([5, 3]), 4, "MultiDiscrete(5, 3)"),
        (Dict(SPOKEN), (4, 2), "move: Discrete(5), say: Discrete(3)"),
        (Dict(SPOKEN), {"move": 4}, "move: Discrete(5), say: Discrete(3)"),
        (Dict(SPOKEN), 4, "move: Discrete(5), say: Discrete(3)"),
        (Tuple([*SPOKEN.values()]), {"move": 4, "say": 2}, "0: Discrete(5), 1: Discrete(3)"),
        (BOX, [0.0, np.nan], "float32 [2]"),
        (BOX, [[0.0], [0.0]], "float32 [2]"),
        (BOX, [[0.0], []], "float32 [2]"),
    ],
)
def test_an_answer_of_another_form_is_refused(
    script: Any, space: Space[Any], answer: Any, form: str
) -> None:
    said = f"my_module:play returned {answer!r}: it must return an action, {form}; "
    with pytest.raises(PolicyError, match=re.escape(said)):
        script(space, answer)


def test_an_action_that_is_not_legal_is_refused(script: Any) -> None:
    legal = [0, 1, 0, 0, 0, 1, 1, 0]
    space, answer = Dict({"far": BOX, **SPOKEN}), {"far": [0, 0], "move": 1, "say": 1}
    acted: dict[str, Array] = script(space, answer, legal)
    assert (acted["action/move"].tolist(), acted["action/say"].tolist()) == ([1, 1], [1, 1])
    for wrong in ({"move": 0}, {"say": 2}):
        with pytest.raises(PolicyError, match=r"^my_module:play returned .* is not legal: .*mask"):
            script(space, answer | wrong, legal)
    script(MultiDiscrete([5, 3]), [1, 0], legal)
    with pytest.raises(PolicyError, match="not legal"):
        script(MultiDiscrete([5, 3]), [1, 2], legal)


@pytest.mark.parametrize(
    "seating", [["one", "two", "two", "two"], ["one", "one", "two", "two"], ["one", "two"]]
)
def test_results_of_equal_players_favour_neither_seats_nor_who_has_more(seating: list[str]) -> None:
    """The first seat wins: where one had a seat and two three, one's score was 0.25."""
    rng, games = np.random.default_rng(0), 4000
    won = [1.0] + [0.0] * (len(seating) - 1)
    points = 0.0
    for _ in range(games):
        names = rng.permutation(seating).tolist()
        ((*pair, wins, draws, losses),) = _results(names, won, names.index("one"), rng)
        assert (pair, wins + draws + losses) == (["one", "two"], 1), "one game a game"
        points += wins + draws / 2
    assert points / games == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(games))
