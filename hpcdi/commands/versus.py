"""`hpcdi eval RUN --player A --against B`: games between two players of a league."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.run_state import find as find_run
from hpcdi.commands.saved_policy import find as find_policy
from hpcdi.commands.saved_policy import load_policy
from hpcdi.config.fields import to_mapping
from hpcdi.env.create import battle_players
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.launch.run_folder import short
from hpcdi.store.layout import RunLayout
from hpcdi.utils.log import say
from hpcdi.utils.metrics import human_return
from hpcdi.worker.collector.base_parallel_collector import CollectorTask
from hpcdi.worker.collector.marine_parallel_collector import MarineParallelCollector

_GAMES = 200


def play(given: argparse.Namespace) -> int:
    """Play the games that `hpcdi eval` was asked for, and print the result; returns the exit code.

    Raises:
        LaunchError: there is no such player, or the run has no battles.
    """
    root = find_run(given.policy)
    layout = RunLayout(root)
    name, against = given.player or "main", given.against or "random"
    file = _file_of(layout, name)
    if file is None:
        raise LaunchError(f"--player {name} is no policy of {short(root)}; {_known(layout)}")
    kept = find_policy(str(file), config=given.config, trust=given.trust)
    ready = load_policy(kept, given.override, given.seed)
    if battle_players(ready.config.env) < 2:
        raise LaunchError(f"{short(root)} has an environment of one player; leave --against out")
    games = given.episodes or _GAMES
    fixed = getattr(getattr(ready.config.policy.other.commander, "league", None), "fixed", {})
    opponent = _file_of(layout, against)
    source = fixed.get(against, against) if opponent is None else str(opponent)
    if opponent is None and source != "random" and ":" not in source:
        raise LaunchError(f"--against {against} is no player of {short(root)}; {_known(layout)}")
    returns = _returns(ready, kept.image, str(root.absolute()), source, games)
    wins, draws = int((returns > 0).sum()), int((returns == 0).sum())
    losses = len(returns) - wins - draws
    points = (np.sign(returns) + 1) / 2
    score, error = float(points.mean()), float(points.std() / np.sqrt(len(points)))
    if given.json:
        figures = {
            "player": name, "against": against, "games": len(returns), "wins": wins,
            "draws": draws, "losses": losses, "score": score, "score_std_error": error,
            "return_mean": float(returns.mean()), "returns": returns.tolist(),
        }  # fmt: skip
        say(json.dumps(figures))
        return EXIT_DONE
    say(f"{name} (train iteration {kept.image.version}) against {against}, greedy, in all seats")
    say(f"  games        {len(returns)}: {wins} won, {draws} drawn, {losses} lost")
    say(f"  score        {score:.3f} ± {error:.3f}")
    say(f"  mean return  {human_return(float(returns.mean()))}")
    return EXIT_DONE


def _returns(ready: Any, image: Any, root: str, source: str, games: int) -> Any:
    """Returns of one player, in all seats equally often, against another."""
    most = min(ready.config.env.evaluator_env_num, games)
    env_num = next(count for count in range(most, 0, -1) if games % count == 0)
    env = dataclasses.replace(
        ready.config.env, evaluator_env_num=env_num, evaluator_episode_num=games // env_num
    )
    cfg = {
        **to_mapping(MarineParallelCollector.Config()), "env": env, "policy": ready.config.policy,
        "eval_flag": True, "policy_update_path": root, "seed": ready.seed.spawn(1)[0],
    }  # fmt: skip
    with MarineParallelCollector(cfg) as collector:
        collector.policy.load_state_dict({"model": image.state_dict()})
        collector.begin(CollectorTask("games", {"opponents": {"against": [1.0, source]}}))
        collector.start()
        return collector.result().episode_returns


def _file_of(layout: RunLayout, name: str) -> Path | None:
    """The policy file of a player; None: it has none."""
    known = {
        "main": layout.latest_policy, "latest": layout.latest_policy, "best": layout.best_policy
    }  # fmt: skip
    if "/" in name or ":" in name:
        return None
    file = known.get(name, layout.league_dir / f"{name}.safetensors")
    return file if file.is_file() else None


def _known(layout: RunLayout) -> str:
    frozen: Sequence[str] = sorted(path.stem for path in layout.league_dir.glob("*.safetensors"))
    some = f"{frozen[0]} to {frozen[-1]}, " if frozen else ""
    return f"there are main, best, {some}random, the league's fixed players, and my_module:play"
