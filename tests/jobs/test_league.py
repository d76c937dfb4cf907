"""A league over ranks: results count once whatever dies, and tic-tac-toe is learnt by self-play."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import CONFIGS, Running, hpcdi

from hpcdi.store.games import parse_games
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import survey

pytest.importorskip("pettingzoo")
pytestmark = [pytest.mark.job, pytest.mark.slow]
LEAGUE = CONFIGS / "tictactoe_league.yaml"
Start = Callable[..., Running]
SMALL = (
    "policy.other.commander.max_env_step=1e9", "policy.eval.every=200 env_steps",
    "policy.other.commander.league.freeze_steps=200", "policy.other.replay_buffer.min_fill=200",
    "policy.learn.replay_ratio=2", "env.evaluator_env_num=4", "env.evaluator_episode_num=2",
    "system.snapshot_s=2",
)  # fmt: skip


def in_shards(run_dir: Path) -> Counter[tuple[str, str, int]]:
    """Games by pair and result (0 the first one won, 1 drawn, 2 lost), as the shards say."""
    total = Counter[tuple[str, str, int]]()
    for path in RunLayout(run_dir).shard_numbers():
        for _, block in survey(run_dir / path, path).blocks:
            for one, other, *counts in parse_games(str(block.facts["games"])):
                total.update({(one, other, n): count for n, count in enumerate(counts)})
    return +total


def in_league(run_dir: Path) -> Counter[tuple[str, str, int]]:
    """The same, as rank 0 has counted."""
    total = Counter[tuple[str, str, int]]()
    for row in json.loads((run_dir / "league.json").read_text())["payoff"]:
        total.update({(row["one"], row["other"], n): c for n, c in enumerate(row["games"])})
    return +total


def frozen(run_dir: Path) -> int:
    """Frozen players that rank 0 knows."""
    file = run_dir / "league.json"
    players = json.loads(file.read_text())["players"] if file.exists() else []
    return sum(player["role"] == "historical" for player in players)


def test_results_count_once_whatever_dies(start: Start, resume: Callable[..., Running]) -> None:
    job = start(LEAGUE, *SMALL, "-n", "4", "--survive")
    job.until(lambda: frozen(job.run_dir) >= 1)
    job.kill_rank(3)
    job.until(lambda: frozen(job.run_dir) >= 2)
    job.kill_everything()
    known = frozen(job.run_dir)
    again = resume(job.run_dir)
    again.until(lambda: frozen(job.run_dir) > known)
    again.send_signal(signal.SIGTERM)
    assert again.wait().code == 85
    assert sum(in_league(job.run_dir).values()) > 100
    assert in_league(job.run_dir) == in_shards(job.run_dir)


long = pytest.mark.skipif("HPCDI_LONG" not in os.environ, reason="takes minutes: set HPCDI_LONG=1")


@long
def test_tictactoe_is_learnt_by_self_play(start: Start) -> None:
    """A perfect player wins none of 100 games against it, and random moves at most 3."""
    job = start(LEAGUE, "-n", "5")
    assert job.process.wait(3600) == 0, job.read()
    for opponent, least in (("fakes.battles:minimax", 100), ("random", 97)):
        said = hpcdi("eval", job.run_dir, "--against", opponent, "--games", 100, "--json")
        assert said.code == 0, said.said
        result = json.loads(said.out)
        assert result["wins"] + result["draws"] >= least


def of_the_average(run_dir: Path) -> float:
    """What a best response wins from the average of the frozen copies."""
    said = hpcdi("league", run_dir, "--exploitability", "--json")
    assert said.code == 0, said.said
    return float(json.loads(said.out)["average of the frozen"]["exploitability"])


@long
def test_kuhns_poker_is_nearly_solved_by_the_average(start: Start) -> None:
    job = start(CONFIGS / "kuhn_league.yaml")
    assert job.process.wait(3600) == 0, job.read()
    assert 0 <= of_the_average(job.run_dir) < 0.05


@long
def test_rock_paper_scissors_is_nearly_solved_by_the_average(start: Start) -> None:
    """Its exploitability, the largest difference in the cycle, bounds that to uniform play."""
    rules = (
        "env.env_id=classic.rps_v2", "env.kwargs={max_cycles: 1}", "policy.learn.replay_ratio=8",
        "policy.learn.learning_rate=0.01", "policy.learn.batch_size=128",
        "policy.other.replay_buffer.replay_buffer_size=300", "env.collector_env_num=16",
        "policy.other.replay_buffer.min_fill=200", "policy.collect.n_sample=16",
        "policy.other.commander.max_env_step=100000",
        "policy.other.commander.league.freeze_steps=500",
    )  # fmt: skip
    job = start(CONFIGS / "kuhn_league.yaml", *rules, "-n", "3")
    assert job.process.wait(3600) == 0, job.read()
    assert of_the_average(job.run_dir) < 0.1
