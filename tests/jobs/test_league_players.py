"""Two players that learn in one run: counters of each are exact, whatever dies."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import CONFIGS, Running

from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import survey

pytest.importorskip("pettingzoo")
pytestmark = [pytest.mark.job, pytest.mark.slow]
SMALL = (
    "policy.other.commander.max_env_step=1e9", "policy.eval.every=200 env_steps",
    "policy.other.commander.league.freeze_steps=200", "policy.other.replay_buffer.min_fill=200",
    "policy.learn.replay_ratio=4", "env.evaluator_env_num=4", "env.evaluator_episode_num=2",
    "system.snapshot_s=1",
)  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def exploiter(run_dir: Path) -> dict[str, Any]:
    """What the status file says of it."""
    players = read(run_dir / "status.json").get("players", {})
    return dict(players.get("exploiter", {"train_iter": 0, "learners": None}))


def in_shards(run_dir: Path) -> Counter[str]:
    """Transitions of each player, as the shards say."""
    steps = Counter[str]()
    for path in RunLayout(run_dir).shard_numbers():
        for _, block in survey(run_dir / path, path).blocks:
            steps[str(block.facts.get("player", "main"))] += block.transitions
    return steps


def snapshots(run_dir: Path) -> list[dict[str, Any]]:
    """Facts of the snapshots that are whole, oldest first."""
    manifests = sorted((run_dir / "snapshots").glob("snapshot_*/manifest.json"))
    return [dict(json.loads(path.read_text())["facts"]) for path in manifests]


def of_exploiter(snapshot: dict[str, Any]) -> int:
    """Train iterations of its part of a snapshot."""
    return int(snapshot.get("iterations", {}).get("exploiter", 0))


def test_two_players_learn_and_one_outlives_the_other(
    start: Callable[..., Running], resume: Callable[..., Running]
) -> None:
    job = start(CONFIGS / "tictactoe_exploiter.yaml", *SMALL, "-n", "6", "--survive")
    run_dir = job.run_dir
    frozen = run_dir / "league" / "exploiter_000001.safetensors"
    job.until(lambda: frozen.exists() and any(map(of_exploiter, snapshots(run_dir))))
    both = {"main": [1], "exploiter": [2]}
    job.until(lambda: read(run_dir / "league.json").get("learners") == both)
    job.kill_rank(2)
    job.until(lambda: exploiter(run_dir)["learners"] == [])
    alone = read(run_dir / "status.json")["train_iter"]
    job.until(
        lambda: any(s["learners"] == [1] and s["train_iter"] > alone for s in snapshots(run_dir))
    )
    job.kill_everything()
    kept = of_exploiter(snapshots(run_dir)[-1])
    assert kept > 0, "its part of the last snapshot that it had is taken over"
    again = resume(run_dir)
    again.until(lambda: exploiter(run_dir)["learners"] == [2])
    again.until(lambda: exploiter(run_dir)["train_iter"] > kept)
    again.send_signal(signal.SIGTERM)
    ended = again.wait()
    assert ended.code == 85, ended.said
    counted = {n: player["env_steps"] for n, player in ended.run["figures"]["players"].items()}
    assert counted == in_shards(run_dir)
    league = {p["name"]: p["steps"] for p in read(run_dir / "league.json")["players"]}
    assert {name: league[name] for name in counted} == counted
    assert (run_dir / "policies" / "exploiter.safetensors").exists()
