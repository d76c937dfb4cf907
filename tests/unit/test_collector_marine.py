"""The marine collector: battles of a learner against itself, frozen policies, scripts."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from fakes.battles import AtOnce, Counting, FirstLegal, LastLegal, marine
from fakes.collectors import Port, do, registered_probes
from hpcdi.errors import ConfigError, PolicyError, PolicyFileError
from hpcdi.league.battle_agent import Players, _results
from hpcdi.policy.base import actor_of
from hpcdi.roles.collector import base_parallel_collector as parallel
from hpcdi.roles.collector.base_parallel_collector import CollectorTask
from hpcdi.store.builder import BlockBuilder
from hpcdi.store.games import MOST_PAIRS, parse_games
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.store.segment import Segment
from hpcdi.types import ITEM_DTYPE, GameCounts
from hpcdi.utils.registry import POLICY_REGISTRY

pytest.importorskip("pettingzoo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("env_helpers"),
]
SELF = {"main": [1.0, ""]}
SCRIPT = "fakes.battles:first_legal"


@pytest.fixture(autouse=True)
def _probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(parallel, "PROGRESS_S", float("inf"))
    POLICY_REGISTRY.register("test_first_legal")(FirstLegal)
    POLICY_REGISTRY.register("test_last_legal")(LastLegal)
    POLICY_REGISTRY.register("test_counting")(Counting)
    yield
    for name in ("test_first_legal", "test_last_legal", "test_counting"):
        POLICY_REGISTRY._classes.pop(name)


def freeze(folder: Path, name: str, version: int) -> str:
    """Write a frozen policy; returns its source."""
    path = folder / "league" / f"{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    publish_policy(path, PolicyImage.of({"version": torch.tensor(version)}, version))
    return f"league/{name}.safetensors"


def episodes(port: Port) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Transitions of each environment's episodes, over all segments."""
    found = defaultdict(list)
    for segment in port.segments:
        for item in segment.items:
            for row in range(item["item_start"], item["item_start"] + item["item_len"]):
                of_row = {name: column[row] for name, column in segment.columns.items()}
                found[int(item["env_id"]), int(item["episode_id"])].append(of_row)
    return found


def games(port: Port) -> Counter[tuple[str, str]]:
    """Results that were sent: of each pair who won."""
    found = Counter[tuple[str, str]]()
    for segment in port.segments:
        assert segment.games is not None
        assert segment.ended is not None
        for is_end, results in zip(segment.ended, segment.games, strict=True):
            assert is_end or not results
            for one, other, wins, draws, losses in results:
                assert wins + draws + losses == 1
                found[one, other] += wins
    return found


def test_in_self_play_both_seats_are_learnt_from_and_a_game_counts_once() -> None:
    port = Port(versions=[3])
    with marine(port, collector_episode_num=40) as made:
        result = do(made, port, "task", opponents=SELF)
    assert len(port.segments) > 3, "episodes go on over cuts"
    acted = [[int(row["action"]) for row in each] for each in episodes(port).values()]
    assert sorted(acted) == sorted([[0, 2, 4, 6], [1, 3, 5]] * 80)
    for rows in episodes(port).values():
        is_first = int(rows[0]["action"]) == 0
        assert [float(row["reward"]) for row in rows][-1] == (1.0 if is_first else -1.0)
        assert not any(row["reward"] for row in rows[:-1])
        assert [bool(row["terminated"]) for row in rows] == [False] * (len(rows) - 1) + [True]
        assert {int(row["acted_by"]) for row in rows} == {3}
        # own stones are in the first plane, whoever one is: none yet in one's first move
        assert rows[0]["observation"][..., 0].sum() == 0
        assert rows[-1]["observation"][..., 0].sum() == len(rows) - 1
        assert rows[0]["action_mask"].sum() == (9 if is_first else 8)
    assert games(port) == {("main", "main"): 80}, "the first seat won each"
    assert result.env_steps == 80 * 7
    assert len(result.episode_returns) == 80


def test_rows_after_items_hold_the_next_own_observation() -> None:
    """From which a return is bootstrapped."""
    port = Port(versions=[0])
    with marine(port, collector_episode_num=20) as made:
        do(made, port, "task", opponents=SELF)
    for segment in port.segments:
        for item, is_end in zip(segment.items, np.asarray(segment.ended), strict=True):
            last = item["item_start"] + item["item_len"] - 1
            stones = segment.columns["observation"][..., 0].sum(axis=(1, 2))
            assert stones[last + 1] == stones[last] + 1, "one more own stone"
            others = segment.columns["observation"][..., 1].sum(axis=(1, 2))
            if not is_end:
                assert others[last + 1] == others[last] + 1


def test_moves_at_once_are_transitions_of_all_players() -> None:
    """Rock-paper-scissors, three rounds an episode, which are truncated."""
    port = Port(versions=[2])
    env = {"env_id": "classic.rps_v2", "kwargs": {"max_cycles": 3}}
    with (
        registered_probes(),
        marine(port, policy="test_columnar", collector_episode_num=6, **env) as made,
    ):
        result = do(made, port, "task", opponents=SELF)
    found = episodes(port)
    assert len(found) == 2 * 6 * 2, "of both seats"
    for rows in found.values():
        assert [bool(row["truncated"]) for row in rows] == [False, False, True]
        assert not any(row["terminated"] for row in rows)
        assert {int(row["action"]) for row in rows} == {0}
    played = [game for s in port.segments for results in s.games or () for game in results]
    assert played == [("main", "main", 0, 1, 0)] * 12
    assert result.episode_lengths.tolist() == [3] * 12


def test_actions_that_do_not_count_from_zero() -> None:
    """The learner's columns hold what its policy chose."""
    port = Port(versions=[2])
    with (
        registered_probes(),
        marine(
            port,
            policy="test_columnar",
            collector_episode_num=4,
            env_id="fakes.battle_envs:FromOne",
        ) as made,
    ):
        do(made, port, "task", opponents=SELF)
    assert {int(row["action"]) for rows in episodes(port).values() for row in rows} == {0}


class PortOfPlayers(Port):
    """Gives policies of two players that learn; `given` is the version of the one that acts."""

    def __init__(self) -> None:
        super().__init__()
        self.player, self.newest = "main", {"main": 5, "exploiter": 9}

    def get_policy_update_info(
        self, path: str, have_version: int = -1, *, newest: bool = False
    ) -> dict[str, Any] | None:
        version = self.newest[path]
        if path == self.player:
            self.given = version
        else:
            assert newest is (have_version < 0), "it waits for the first one alone"
        if have_version == version:
            return None
        return {"model": {"version": torch.tensor(version)}, "iter": version}


def test_a_player_that_learns_is_played_against_and_a_collector_may_change_over() -> None:
    port = PortOfPlayers()
    with marine(port, collector_episode_num=6) as made:
        do(made, port, "of main", opponents=SELF)
        assert games(port) == {("main", "main"): 12}
        port.segments.clear()
        port.player = port.task_id = "exploiter"
        setting = {"learner": "exploiter", "opponents": {"main": [1.0, ""]}}
        made.begin(CollectorTask("exploiter", setting, player="exploiter"))
        made.start()
        assert made.result().player == port.progress[-1].player == "exploiter"
        opponent, _, version = made._opponents["main"]
        assert (int(opponent.state_dict()["model"]["version"]), version) == (5, 5)
    assert games(port).keys() == {("exploiter", "main")}
    rows = [row for found in episodes(port).values() for row in found]
    assert {int(row["acted_by"]) for row in rows} == {9}
    assert sum(not found[0]["observation"].sum() for found in episodes(port).values()) > 0


def test_only_the_learner_is_learnt_from_against_a_frozen_policy(tmp_path: Path) -> None:
    source = freeze(tmp_path, "main_000001", 7)
    port = Port(versions=[9])
    with marine(port, str(tmp_path), collector_episode_num=30) as made:
        do(made, port, "task", opponents={"main": [0.0, ""], "main_000001": [1.0, source]})
        assert made._loop.agent.players.loaded == 1, "its file is read once"
    found = episodes(port)
    assert len(found) == 60
    assert {int(row["acted_by"]) for rows in found.values() for row in rows} == {9}
    began = sum(int(rows[0]["action"]) == 0 for rows in found.values())
    assert 15 < began < 45, "it sits in both seats"
    assert games(port) == {("main", "main_000001"): began}
    played = [result for s in port.segments for results in s.games or () for result in results]
    assert len(played) == 60


@pytest.mark.parametrize(
    ("explores", "first", "second"), [(True, [8, 6, 4, 2], [7, 5, 3]), (False, [8, 7, 6], [8, 7])]
)
def test_frozen_players_may_act_as_in_evaluations(
    tmp_path: Path, explores: bool, first: list[int], second: list[int]
) -> None:
    """A policy that takes the last legal action where it collects, and else the first."""
    opponents = {"main": [0.0, ""], "main_000001": [1.0, freeze(tmp_path, "main_000001", 7)]}
    port = Port(versions=[9])
    with marine(
        port, str(tmp_path), policy="test_last_legal", opponents_explore=explores,
        collector_episode_num=10,
    ) as made:  # fmt: skip
        do(made, port, "task", opponents=opponents)
    acted = [[int(row["action"]) for row in rows] for rows in episodes(port).values()]
    assert all(own in (first, second) for own in acted)
    assert {tuple(first), tuple(second)} == set(map(tuple, acted))


def test_an_evaluation_is_played_from_both_seats_against_a_script() -> None:
    port = Port(versions=[4])
    opponents = {"against": [1.0, SCRIPT]}
    with marine(port, evaluate=True, evaluator_episode_num=4) as made:
        for _ in range(2):
            result = do(made, port, "task", opponents=opponents)
            assert sorted(result.episode_returns) == [-1.0] * 4 + [1.0] * 4
            assert result.is_evaluation
            port.given = 4
    assert not port.segments


@pytest.mark.parametrize(
    ("env_num", "each", "games"), [(5, 1, 6), (1, 1, 2), (3, 3, 10), (4, 1, 4)]
)
def test_an_evaluation_has_games_for_all_seats_equally_often(
    env_num: int, each: int, games: int
) -> None:
    """Whoever begins wins."""
    port = Port(versions=[4])
    env = {"evaluator_env_num": env_num, "evaluator_episode_num": each}
    with marine(port, evaluate=True, **AT_ONCE, **env) as made:
        for _ in range(2):
            result = do(made, port, "task", opponents={"bob": [1.0, "random"]})
            assert sorted(result.episode_returns) == [-1.0] * (games // 2) + [1.0] * (games // 2)
            port.given = 4
        assert made.get_finish_info()["predefined_episode_count"] == games


class Lonely(AtOnce):
    """One of some number fails in each step."""

    def __init__(self, index: int, broken: int) -> None:
        super().__init__()
        self._fails = index == broken

    def step(self, *given: Any) -> Any:
        if self._fails:
            raise RuntimeError("broken")
        return super().step(*given)


def test_an_evaluation_goes_on_for_all_seats_without_a_retired_environment() -> None:
    """Whoever begins wins: the one environment that is left had the first seat alone."""
    port = Port(versions=[4])
    given = {"kwargs": {"index": "{index}", "broken": 3}, "manager": {"max_retry": 1}}
    env = {**AT_ONCE, "env_id": f"{__name__}:Lonely", **given}
    with marine(port, evaluate=True, evaluator_episode_num=2, **env) as made:
        for _ in range(2):
            result = do(made, port, "task", opponents={"bob": [1.0, "random"]})
            assert sorted(result.episode_returns) == [-1.0] * 2 + [1.0] * 2
            assert result.is_evaluation
            port.given = 4
        assert made.health["envs_retired"] == 1


def test_an_evaluation_of_an_exploiter_is_played_against_main() -> None:
    port = PortOfPlayers()
    port.player = port.task_id = "exploiter"
    with marine(port, evaluate=True, evaluator_episode_num=4) as made:
        for newest in (5, 6):
            port.newest["main"] = newest
            setting = {"learner": "exploiter", "opponents": {"main": [1.0, ""]}}
            made.begin(CollectorTask("exploiter", setting, player="exploiter"))
            made.start()
            result = made.result()
            assert (result.player, result.policy_version) == ("exploiter", 9)
            assert sorted(result.episode_returns) == [-1.0] * 4 + [1.0] * 4
            assert made._opponents["main"][2] == newest


def test_random_opponents_play_legal_moves() -> None:
    port = Port(versions=[4])
    with marine(port, evaluate=True, evaluator_episode_num=20) as made:
        result = do(made, port, "task", opponents={"against": [1.0, "random"]})
    assert set(result.episode_returns) == {-1.0, 1.0} or 0.0 in result.episode_returns
    assert 5 <= result.episode_lengths.min() <= result.episode_lengths.max() <= 9


RELAY = {"policy": "test_counting", "env_id": "fakes.battles:Relay"}


@pytest.mark.parametrize("kept_bytes", [1, 1 << 20])
def test_each_seat_of_each_environment_is_remembered_by_each_player(
    tmp_path: Path, kept_bytes: int
) -> None:
    """Frozen ones are remembered in a game that began before they left the cache."""
    frozen = {f"main_00000{n}": [0.3, freeze(tmp_path, f"main_00000{n}", n)] for n in (1, 2, 3)}
    port = Port(versions=[9])
    with marine(port, str(tmp_path), collector_episode_num=40, **RELAY) as made:
        made._loop.agent.players._limit = kept_bytes
        do(made, port, "task", opponents={"main": [0.1, ""], **frozen})
        assert (made._loop.agent.players.loaded > 10) is (kept_bytes == 1)
    rows = [row for found in episodes(port).values() for row in found]
    assert len(port.segments) > 3, "games go on over cuts"
    assert not any(row["reward"] for row in rows)
    assert max(int(row["action"]) for row in rows) > 2
    played = [result for s in port.segments for results in s.games or () for result in results]
    assert len({other for _, other, *_ in played}) == 3
    assert all(draws == 1 for _, _, _, draws, _ in played), "nobody has made a wrong move"


def test_an_evaluation_begins_without_memories() -> None:
    port = Port(versions=[4])
    with marine(port, evaluate=True, evaluator_episode_num=8, **RELAY) as made:
        for _ in range(2):
            result = do(made, port, "task", opponents={"against": [1.0, "random"]})
            assert not result.episode_returns.any()
            port.given = 4


def test_a_team_is_one_player(tmp_path: Path) -> None:
    source = freeze(tmp_path, "main_000001", 7)
    port = Port(versions=[9])
    env = {**RELAY, "kwargs": {"teams": True}, "collector_episode_num": 20}
    with marine(port, str(tmp_path), **env) as made:
        result = do(made, port, "task", opponents={"main_000001": [1.0, source]})
    seats = Counter(episode % 4 for _, episode in episodes(port))
    assert (seats[0], seats[1]) == (seats[2], seats[3]), "both of a team, or neither"
    assert seats[0] + seats[1] == len(result.episode_returns) == 40
    assert 10 < seats[0] < 30, "it is either team"
    played = [results for s in port.segments for results in s.games or () if results]
    assert played == [[("main", "main_000001", 0, 1, 0)]] * 40, "one result a game"


AT_ONCE = {"policy": "test_counting", "env_id": "fakes.battles:AtOnce"}


def test_games_count_in_which_the_learner_had_no_turn() -> None:
    """They have no item of their own: they go with the next ones."""
    port = Port(versions=[9, 10])
    with marine(port, collector_episode_num=40, **AT_ONCE) as made:
        result = do(made, port, "task", opponents={"bob": [0.5, "random"], "eve": [0.5, "random"]})
        do(made, port, "next", opponents=SELF)
    own = [results for s in port.segments for results in s.games or ()]
    total = np.zeros(3)
    for one, _, *counts in (game for results in own for game in results):
        total += np.multiply(counts, one != "main")
    returns = Counter(result.episode_returns.tolist())
    assert total.tolist() == [returns[-1.0], 0, returns[1.0]], "of bob and eve against main"
    assert returns[1.0] + returns[-1.0] == 80
    assert returns[1.0] > 20 < returns[-1.0]
    assert max(map(len, own)) <= 3, "a pair of players more with each item: a block takes few"


def test_a_rollout_is_one_block_however_many_pairs_have_met() -> None:
    """The learner would learn from its first block alone; what does not fit goes with the next."""
    port = Port(versions=list(range(9, 13)))
    opponents = {f"player_{n:06d}": [0.03, "random"] for n in range(30)}
    with marine(port, collector_episode_num=80, **AT_ONCE) as made:
        result = do(made, port, "task", opponents=opponents)
        for task in ("second", "third", "fourth"):
            do(made, port, task, opponents=SELF)
    builder = BlockBuilder(lambda _bytes: 10_000, itertools.count(), dict)
    total = Counter[str]()
    for segment in port.segments:
        assert list(builder.fill(segment)) == []
        block = builder.seal()
        assert block is not None
        tally = parse_games(block.facts["games"])
        assert len(tally) <= MOST_PAIRS
        for one, other, *counts in tally:
            if one != other:
                total[{one, other}.difference({"main"}).pop()] += sum(counts)
    assert len(total) > 2 * MOST_PAIRS, "more than two blocks take"
    assert total.total() == len(result.episode_returns), "none is lost, none counts twice"


def test_results_of_a_game_of_many_go_with_several_items() -> None:
    port = Port(versions=[9])
    opponents = {f"player_{n:06d}": [0.05, "random"] for n in range(20)}
    crowd = {"policy": "test_counting", "env_id": "fakes.battles:Crowd"}
    with marine(port, collector_episode_num=40, **crowd) as made:
        do(made, port, "task", opponents=opponents)
    own = [results for s in port.segments for results in s.games or ()]
    assert any(own)
    assert max(map(len, own)) < MOST_PAIRS


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_teams_return_and_success_are_means(evaluate: bool) -> None:
    port = Port(versions=[9])
    env = {**AT_ONCE, "kwargs": {"teams": True}, "evaluator_episode_num": 8}
    with marine(port, evaluate=evaluate, collector_episode_num=8, **env) as made:
        result = do(made, port, "task", opponents={"bob": [1.0, "random"]})
    figures = result.episode_figures if evaluate else port.progress[-1].episode_figures
    assert set(result.episode_returns.tolist()) == {0.5, -0.5}
    assert figures.keys() == {"success"}
    assert figures["success"].tolist() == [0.5 * (own > 0) for own in result.episode_returns]


def test_a_team_of_all_plays_alone() -> None:
    port = Port(versions=[9])
    env = {**RELAY, "teams": {"us": [0, 1, 2, 3]}, "evaluator_episode_num": 4}
    with marine(port, evaluate=True, **env) as made:
        result = do(made, port, "task", opponents={"against": [1.0, "random"]})
    assert result.episode_returns.tolist() == [0.0] * 8, "nobody moved at random"


def test_the_cache_keeps_what_has_played_last(tmp_path: Path) -> None:
    sources = [freeze(tmp_path, f"main_00000{n}", n) for n in range(3)]
    size = (tmp_path / sources[0]).stat().st_size

    def make(image: PolicyImage) -> Any:
        return image.version

    seed = np.random.SeedSequence(0)
    players = Players(str(tmp_path), make, None, Discrete(9), seed, limit_bytes=2 * size)  # type: ignore[arg-type]
    assert [players.get(s) for s in (sources[0], sources[1], sources[0])] == [0, 1, 0]
    assert players.loaded == 2
    assert [players.get(s) for s in (sources[2], sources[0])] == [2, 0]
    assert players.loaded == 3
    assert players.get(sources[1]) == 1
    assert players.loaded == 4
    with pytest.raises(PolicyFileError, match="cannot be read"):
        players.get("league/missing.safetensors")
    with pytest.raises(ConfigError, match="no module 'no_such_module'"):
        players.get("no_such_module:play")


def test_results_between_several_players() -> None:
    rng = np.random.default_rng(0)
    assert _results(["a", "b"], [1, -1], 0, rng) == [("a", "b", 1, 0, 0)]
    assert _results(["b", "a"], [1, -1], 1, rng) == [("a", "b", 0, 0, 1)]
    assert _results(["a", "a"], [0, 0], 0, rng) == [("a", "a", 0, 1, 0)]
    three = _results(["c", "a", "b"], [1, 0, 0], 1, rng)
    assert sorted(three) == [("a", "b", 0, 1, 0), ("a", "c", 0, 0, 1), ("b", "c", 0, 0, 1)]


def test_a_policy_of_dicts_is_refused() -> None:
    with pytest.raises(PolicyError, match="knows no columns"):
        actor_of(object())


# ------------------------------------------------------------------------------- results in blocks


def test_blocks_hold_all_results_and_records_of_equal_length() -> None:
    builder = BlockBuilder(lambda _bytes: 1000, itertools.count(), dict)
    items = np.zeros(40, dtype=ITEM_DTYPE)
    items["item_start"], items["item_len"] = np.arange(40), 1
    given: list[tuple[GameCounts, ...]] = [
        (("main", f"main_{n // 2:06d}", 1, 0, 0),) if n % 3 else () for n in range(40)
    ]
    segment = Segment({"x": np.zeros(40)}, items, ended=np.ones(40, bool), games=given)
    blocks = [*builder.fill(segment), builder.seal()]
    tallies = [parse_games(block.facts["games"]) for block in blocks if block is not None]
    assert len(blocks) == 2
    assert all(len(tally) <= MOST_PAIRS for tally in tallies)
    assert len({len(block.facts["games"]) for block in blocks if block is not None}) == 1
    total = Counter[str]()
    for tally in tallies:
        total.update({other: wins for _, other, wins, _, _ in tally})
    assert total == Counter(result[0][1] for result in given if result)
