"""`hpcdi eval`: evaluates a policy in this process."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands import versus
from hpcdi.commands.film import Film
from hpcdi.commands.options import add_policy, at_least, make_parser
from hpcdi.commands.saved_policy import LoadedPolicy, find_policy, load_policy
from hpcdi.config.league import OneVsOneCommanderConfig
from hpcdi.dataclass import dataclass
from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.manager import EnvManager
from hpcdi.env.probe import look_at
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.league.battle_agent import BattleAgent, Players, in_turn
from hpcdi.league.league import OPPONENTS
from hpcdi.policy.exploration import RandomActor
from hpcdi.policy.spaces import with_bounds
from hpcdi.roles.collector.loop import Loop, evaluate, policy_loop, quotas
from hpcdi.run.experiment import evaluation_goal
from hpcdi.run.run_folder import short
from hpcdi.store.layout import RunLayout
from hpcdi.types import Settings
from hpcdi.utils.console import others_to_stderr
from hpcdi.utils.log import say
from hpcdi.utils.metrics import counted, human_count, human_return
from hpcdi.utils.nested import jsonable

HELP = """\
Evaluate a policy: mean return, its spread, and whether the stop value is reached. It plays in this
process, without exploration, in as many environments as the run evaluated with; nothing is written
but films.

  hpcdi eval runs/cartpole_dqn/latest                          the best policy of a run
  hpcdi eval runs/cartpole_dqn/latest --policy latest --episodes 100 --seed 7
  hpcdi eval runs/cartpole_dqn/latest --video                  film one episode, too
  hpcdi eval runs/tictactoe_league/latest --player main --against main_000003 --games 200
  hpcdi eval best.safetensors --config configs/cartpole_dqn.yaml --json

Without --episodes it plays as many as the experiment evaluates with, but at least 20
(policy.eval.evaluator.n_episode, else env.evaluator_env_num x evaluator_episode_num). Settings are
overridden as for `hpcdi train`: env.evaluator_env_num=4. The same seed returns the same figures.
A player of a league plays as the run evaluates it: as each team in turn, against evaluate_against.
With --player or --against two players of a league play, in all seats equally often (default: main
against random, 200 games; in a league N is rounded up to a multiple of the seats): main, best,
another player that learns, or a frozen one; --against also a fixed one, random, or my_module:play.
--video then films two games, in which each sits first once. See `hpcdi league`.
"""
LEAST_EPISODES = 20
"""Fewer say little: an experiment whose evaluations have fewer is evaluated with so many."""


@dataclass(frozen=True)
class EvalResult:
    """The episodes of an evaluation.

    Attributes:
        returns: of each episode.
        lengths: steps of each episode.
        duration_s: of all of them.
        stop_value: mean return at which the experiment ends; infinite: none is set.
    """

    returns: list[float]
    lengths: list[int]
    duration_s: float
    stop_value: float

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    def figures(self) -> dict[str, Any]:
        """Returns figures for programs; None where there is no stop value."""
        returns, steps = np.asarray(self.returns), sum(self.lengths)
        has_goal = math.isfinite(self.stop_value)
        return {
            "episodes": len(returns),
            "return_mean": float(returns.mean()),
            "return_std": float(returns.std()),
            "return_median": float(np.median(returns)),
            "return_min": float(returns.min()),
            "return_max": float(returns.max()),
            "length_mean": steps / len(returns),
            "seconds": self.duration_s,
            "steps_per_s": steps / self.duration_s,
            "stop_value": self.stop_value,
            "stop_value_reached": bool(returns.mean() >= self.stop_value) if has_goal else None,
            "returns": self.returns,
            "lengths": self.lengths,
        }

    def lines(self) -> list[str]:
        """Returns lines for people."""
        figures = self.figures()
        mean, std, median, least, most = (
            human_return(figures[f"return_{name}"], figures["return_mean"])
            for name in ("mean", "std", "median", "min", "max")
        )
        reached = {True: "reached", False: "not reached", None: "none is set"}
        goal = "" if figures["stop_value_reached"] is None else f"{self.stop_value:g}: "
        speed = f"{figures['seconds']:.1f} s, {human_count(figures['steps_per_s'])} steps/s"
        return [
            f"  episodes     {figures['episodes']}",
            f"  mean return  {mean} ± {std}",
            f"  median       {median}",
            f"  min, max     {least}, {most}",
            f"  mean length  {figures['length_mean']:.1f} steps",
            f"  time         {speed}",
            f"  stop value   {goal}{reached[figures['stop_value_reached']]}",
        ]


def main(arguments: Sequence[str]) -> int:
    """Evaluate a policy and print the result; returns the exit code.

    Raises:
        LaunchError: there is no such policy, or it does not fit its configuration.
        ConfigError: the configuration is wrong. StoreError: the policy is torn.
        EnvError: the environments break their contract, or cannot be filmed.
    """
    options = _parse(arguments)
    if options.player or options.against:
        if options.which:
            raise LaunchError(
                "--policy is of an evaluation without --player and --against; with them write "
                "--player main for the run's latest policy, --player best for the best"
            )
        return versus.play(options)
    with others_to_stderr(options.json):
        figures = _evaluated(options)
    if options.json:
        say(json.dumps(jsonable(figures)))
    return EXIT_DONE


def _evaluated(options: argparse.Namespace) -> dict[str, Any]:
    """Evaluate a policy, and print the result where people read it; returns the figures."""
    saved = find_policy(options.policy, options.which, options.config, trust=options.trust)
    loaded = load_policy(saved, options.override, options.seed)
    seed = loaded.config.seed if options.seed is None else options.seed
    env_num, n_episode = _sizes(loaded, options.episodes)
    if not options.json:
        env = f"{loaded.config.env.title}, seed {seed}"
        say(f"{saved}\n  config       {short(saved.config_file)}")
        say(f"  playing      {counted(n_episode, 'episode')} in {env_num} of {env}")
    env_seed, film_seed, players_seed = loaded.seed.spawn(3)
    make_loop = partial(loop_of, loaded, players_seed)
    with ExitStack() as stack:
        film = None
        if options.video is not None:
            film = stack.enter_context(Film(loaded.config, film_seed))
        outcome = _play(loaded, make_loop, env_num, n_episode, env_seed)
        if not options.json:
            say("\n".join(outcome.lines()))
        video, on_it = None, ""
        if film is not None:
            folder = Path(options.video) if options.video else RunLayout(saved.home).videos_dir
            name = folder / f"iter_{saved.image.version:06d}_seed_{seed}"
            video, on_it = film.shoot(make_loop, name)
    if video is not None and not options.json:
        say(f"  video        {short(video)}: {on_it}")
    about = {
        "policy": str(saved.file),
        "train_iter": saved.image.version,
        "config": str(saved.config_file),
        "seed": seed,
        "video": None if video is None else str(video),
    }
    return {**about, **outcome.figures()}


def played(loaded: LoadedPolicy, episodes: int | None = None) -> EvalResult:
    """Returns the result of an evaluation, the same one in each call.

    Args:
        loaded: the policy.
        episodes: None: as many as the experiment evaluates with.

    Raises:
        LaunchError: they are below 1.
    """
    env_num, n_episode = _sizes(loaded, episodes)
    env_seed, _, players_seed = copy.deepcopy(loaded.seed).spawn(3)
    make_loop = partial(loop_of, loaded, players_seed)
    return _play(loaded, make_loop, env_num, n_episode, env_seed)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("eval", HELP)
    add_policy(parser)
    parser.add_argument(
        "--episodes",
        "--games",
        type=at_least(1),
        metavar="N",
        help="episodes to play (default: see above)",
    )
    parser.add_argument(
        "--seed", type=at_least(0), metavar="S",
        help="seed of the environments (default: the experiment's)",
    )  # fmt: skip
    parser.add_argument(
        "--video", nargs="?", const="", metavar="DIR",
        help="film an episode, of two players two (default folder: videos in the run folder)",
    )  # fmt: skip
    parser.add_argument("--player", metavar="A", help="in a league: who plays")
    parser.add_argument("--against", metavar="B", help="in a league: the opponent")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_intermixed_args(arguments)
    if options.video and "=" in options.video:  # `--video seed=3`: a setting follows, and no folder
        options.video, options.override = "", [options.video, *options.override]
    return options


def _sizes(loaded: LoadedPolicy, asked: int | None) -> tuple[int, int]:
    """Returns the numbers of environments and episodes; never more environments than episodes.

    Raises:
        LaunchError: fewer episodes than one are asked for.
    """
    if asked is not None and asked < 1:
        raise LaunchError(f"episodes={asked}: an evaluation plays 1 at least")
    usual = max(evaluation_goal(loaded.config)[0], LEAST_EPISODES)
    n_episode = usual if asked is None else asked
    if getattr(get_env_cls(loaded.config.env), "is_battle", False):  # as each team equally often
        teams = look_at(loaded.config.env).teams
        n_episode = -(-n_episode // teams) * teams
    return min(loaded.config.env.evaluator_env_num, n_episode), n_episode


def loop_of(
    loaded: LoadedPolicy, seed: np.random.SeedSequence, envs: EnvManager
) -> tuple[Loop, Settings]:
    """Returns who plays in environments; in a battle in all seats, as the run's evaluations do.

    Its opponents are those of a player that is no exploiter.
    """
    if envs.seats < 2:
        return policy_loop(envs, loaded.actor), {}
    random = RandomActor(with_bounds(loaded.spaces), seed)
    make, acts = partial(versus.frozen, loaded, seed), envs.facts.action_space
    players = Players(".", make, random, acts, seed, 0)
    draws = np.random.default_rng(seed)
    agent = BattleAgent(envs.env_num, envs.facts.teams, loaded.actor, players, draws, in_turn)
    commander = loaded.config.policy.other.commander
    against = "random"
    if isinstance(commander, OneVsOneCommanderConfig):
        against = commander.evaluate_against
    return Loop(envs, agent), {OPPONENTS: {"against": (1.0, against)}}


def _play(
    loaded: LoadedPolicy,
    make_loop: Callable[[EnvManager], tuple[Loop, Settings]],
    env_num: int,
    n_episode: int,
    seed: np.random.SeedSequence,
) -> EvalResult:
    env_cfg = dataclasses.replace(loaded.config.env, evaluator_env_num=env_num)
    policy = loaded.config.policy
    with create_env_manager(
        env_cfg, evaluate=True, is_endless=True, policy=policy, seed=seed
    ) as envs:
        envs.launch()
        loop, setting = make_loop(envs)
        began = time.perf_counter()
        episodes = evaluate(loop, quotas(n_episode, env_num), setting)
        duration_s = time.perf_counter() - began
    goal = evaluation_goal(loaded.config)[1]
    return EvalResult(episodes.stated.tolist(), episodes.lengths.tolist(), duration_s, goal)
