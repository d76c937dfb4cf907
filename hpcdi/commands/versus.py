"""Games between players of a run: of two (`hpcdi eval RUN --player A --against B`), or of all."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.film import Film
from hpcdi.commands.run_state import find_run
from hpcdi.commands.saved_policy import LoadedPolicy, find_policy, load_policy
from hpcdi.config.league import OneVsOneCommanderConfig
from hpcdi.config.modules import modules_beside
from hpcdi.config.schema import ExperimentConfig
from hpcdi.dataclass import dataclass
from hpcdi.env.best_response import Act
from hpcdi.env.create import create_env_manager
from hpcdi.env.manager import EnvManager
from hpcdi.env.probe import look_at
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.league.battle_agent import TEAM, BattleAgent, Players, in_turn, play_of, remembers
from hpcdi.league.league import LEARNER, OPPONENTS
from hpcdi.policy.base import Actor, actor_of
from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import RandomActor
from hpcdi.policy.spaces import with_bounds
from hpcdi.roles.collector.loop import Loop, evaluate
from hpcdi.run.run_folder import short
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage
from hpcdi.types import Array, Columns, Settings
from hpcdi.utils.console import others_to_stderr
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import say
from hpcdi.utils.metrics import human_return
from hpcdi.utils.nested import column_rows, jsonable, under

_GAMES = 200
_KEPT_BYTES = 1 << 28


def play(options: argparse.Namespace) -> int:
    """Play the games that `hpcdi eval` was asked for, and print the result; returns the exit code.

    Raises:
        LaunchError: there is no such player, or the run has no battles.
        EnvError: the environment cannot be filmed.
    """
    root = find_run(options.policy)
    name, against = options.player or "main", options.against or "random"
    games = options.episodes or _GAMES
    with (
        others_to_stderr(options.json),
        Arena(root, options, games, name, is_filmed=options.video is not None) as arena,
    ):
        source, other = arena.source(name, "--player"), arena.source(against, "--against")
        result = arena.play(source, other)
        video, on_it = None, ""
        if options.video is not None:
            folder = Path(options.video) if options.video else RunLayout(root).videos_dir
            safe = f"{name}_against_{against}_seed_{arena.seed}".replace(":", ".").replace("/", ".")
            video, count, ends = arena.film(source, other, folder / safe)
            on_it = (
                f"{count} pictures of 2 games: in the first seat {name} has {ends[0]}, then "
                f"{against} has {ends[1]}"
            )
        more = f" (not {games}, for all seats equally often)" if arena.games != games else ""
    if options.json:
        figures = {
            "player": name, "against": against, **result.figures(),
            "return_mean": float(result.own.mean()), "returns": result.own.tolist(),
            "video": None if video is None else str(video),
        }  # fmt: skip
        say(json.dumps(jsonable(figures)))
        return EXIT_DONE
    wins, draws, losses = map(_shown, result.counts)
    say(
        f"{name} (train iteration {arena.iteration}) against {against}, without exploration, "
        "in all seats"
    )
    say(f"  games        {result.games}: {wins} won, {draws} drawn, {losses} lost{more}")
    say(f"  score        {result.score:.3f} ± {spread_text(result.std_error, 3)}")
    say(f"  mean return  {human_return(float(result.own.mean()))}")
    if video is not None:
        say(f"  video        {short(video)}: {on_it}")
    return EXIT_DONE


@dataclass(frozen=True)
class Result:
    """Games of a player against another, which has all other seats.

    A game is scored seat against seat, so that equal players have half of the points however many
    seats each has: each other seat has the same share of it.

    Attributes:
        own: its returns [games].
        others: returns of the other seats, or teams [games, others].
        seats: where it sat, or its team [games].
    """

    own: Array
    others: Array
    seats: Array

    @property
    def games(self) -> int:
        """Number of games."""
        return len(self.own)

    @property
    def points(self) -> Array:
        """Of each game [games]: 1 it is won, 0.5 drawn, 0 lost; the mean over the other seats."""
        points: Array = (self._signs.mean(axis=1) + 1) / 2
        return points

    @property
    def counts(self) -> tuple[float, float, float]:
        """Wins, draws and losses; against several seats a game is divided between them."""
        wins, draws, losses = ((self._signs == s).mean(axis=1).sum() for s in (1, 0, -1))
        return float(wins), float(draws), float(losses)

    @property
    def score(self) -> float:
        """Mean of the points."""
        return float(self.points.mean())

    @property
    def std_error(self) -> float:
        """Of the score; each seat has its share of the games, so what differs by seat is no error.

        (Cochran 1977, "Sampling Techniques", 5.3: stratified sampling.) NaN: a seat has one game.
        """
        by_seat = [self.points[self.seats == seat] for seat in np.unique(self.seats)]
        if min(map(len, by_seat)) < 2:
            return float("nan")
        return float(np.sqrt(sum(len(p) * p.var(ddof=1) for p in by_seat)) / self.games)

    def figures(self) -> dict[str, Any]:
        """Returns figures for programs."""
        wins, draws, losses = map(_shown, self.counts)
        return {
            "games": self.games, "wins": wins, "draws": draws, "losses": losses,
            "score": self.score, "score_std_error": self.std_error,
        }  # fmt: skip

    @property
    def _signs(self) -> Array:
        """Of each game and other seat: 1 it has less than the player, 0 as much, -1 more."""
        signs: Array = np.sign(self.own[:, None] - self.others)
        return signs


def _shown(count: float) -> float:
    """Returns a number of games; of a game that is divided, in thousandths."""
    rounded = round(count, 3)
    return int(rounded) if rounded.is_integer() else rounded


def spread_text(error: float, digits: int) -> str:
    """Returns a standard error for people: ``?`` where it is not known."""
    return "?" if np.isnan(error) else f"{error:.{digits}f}"


class PartlyRandom:
    """A policy, some of whose actions are drawn uniformly at random.

    Args:
        actor: the policy, see `ColumnarActor`.
        random: draws.
        share: of its actions, from 0 to 1.
        rng: decides which.
    """

    def __init__(self, actor: Actor, random: Actor, share: float, rng: np.random.Generator) -> None:
        self._actor, self._random, self._share, self._rng = actor, random, share, rng
        self.reset = getattr(actor, "reset", None)

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """See `Actor.act`: actions alone."""
        chosen = under(self._actor.act(observation, setting, rows), "action")
        is_drawn = self._rng.random(column_rows(observation)) < self._share
        drawn = self._random.act(observation, setting)
        for name, column in chosen.items():
            chosen[name] = column.copy()
            chosen[name][is_drawn] = drawn[name][is_drawn]
        return chosen


def _env_num(most: int, games: int, seats: int) -> int:
    """Returns in how many environments all games are played, with equal shares of the seats."""
    return next(
        count
        for count in range(min(most, games), 0, -1)
        if games % count == 0 and (count % seats == 0 or games // count % seats == 0)
    )


def frozen(loaded: LoadedPolicy, seed: np.random.SeedSequence, image: PolicyImage) -> Actor:
    """Returns what acts by the parameters of an image, without exploration.

    Args:
        loaded: whose configuration holds.
        seed: of the policy; the next one gets another.
        image: parameters.
    """
    mode = create_policy(loaded.config.policy, ["eval"], seed=seed.spawn(1)[0]).eval_mode
    mode.load_state_dict({"model": image.state_dict()})
    return actor_of(mode)


class Arena(Closing):
    """Environments in which players of a run play, without exploration.

    Args:
        root: the run folder.
        options: ``config``, ``override``, ``seed`` and ``trust`` of the command line.
        games: of two players; rounded up, so that each sits in all seats equally often.
        name: of a player that has a policy: its configuration holds for the others.
        is_filmed: make an environment that can be filmed, too.
        random_share: of the policies' actions, which are drawn at random.

    Raises:
        LaunchError: there is no such policy, or the environment has one player.
        EnvError: the environment cannot be filmed.
    """

    def __init__(
        self,
        root: Path,
        options: argparse.Namespace,
        games: int,
        name: str,
        *,
        is_filmed: bool = False,
        random_share: float = 0.0,
    ) -> None:
        self._layout = RunLayout(root.absolute())
        self._random_share = random_share
        self._manager: EnvManager | None = None
        self._film: Film | None = None
        file = self._file_of(name)
        if file is None:
            known = ", ".join(self._policies())
            raise LaunchError(f"--player {name} is no policy of {short(root)}; there are {known}")
        saved = find_policy(str(file), config=options.config, trust=options.trust)
        self._loaded = load_policy(saved, options.override, options.seed)
        self.iteration = saved.image.version
        config = self._loaded.config
        self.seed = config.seed if options.seed is None else options.seed
        self.players = look_at(config.env).teams
        """Seats of a game; where there are teams, these."""
        if self.players < 2:
            raise LaunchError(
                f"{short(root)} has an environment of one player or team: nobody plays "
                "against it here; hpcdi eval without --player and --against evaluates its policy"
            )
        self.games = -(-games // self.players) * self.players
        """Of two players."""
        env_num = _env_num(config.env.evaluator_env_num, self.games, self.players)
        env = dataclasses.replace(
            config.env, evaluator_env_num=env_num, evaluator_episode_num=self.games // env_num
        )
        envs, films, loops, self._acts = self._loaded.seed.spawn(4)
        if is_filmed:
            self._film = Film(config, films)
        self._manager = create_env_manager(env, evaluate=True, policy=config.policy, seed=envs)
        self._manager.launch()
        draws, random, scripts = loops.spawn(3)
        self._random = RandomActor(with_bounds(self._loaded.spaces), random)
        self._sources = Players(
            str(self._layout.root),
            self._actor_of,
            self._random,
            self._manager.facts.action_space,
            scripts,
            _KEPT_BYTES,
        )
        self._rng = np.random.default_rng(draws)

    def source(self, name: str, option: str = "") -> str:
        """Returns what acts for a player: a policy's file, "random", or ``module:function``.

        Args:
            name: of the player, or a source.
            option: of the command line, that named it.

        Raises:
            LaunchError: there is no such player. ConfigError: there is no such function.
        """
        commander = self._loaded.config.policy.other.commander
        fixed = commander.league.fixed if isinstance(commander, OneVsOneCommanderConfig) else {}
        file = None if name in fixed else self._file_of(name)
        if file is not None:
            return str(file.relative_to(self._layout.root))
        source = fixed.get(name, name)
        if source == name and ":" in name:  # as modules that an experiment names
            sys.path += map(str, modules_beside({"fixed": name}, [Path.cwd()]))
            play_of(name, option)
        if source == "random" or ":" in source or (self._layout.root / source).is_file():
            return source
        known = ", ".join(dict.fromkeys([*self._policies(), "random", *fixed]))
        said = f"{option} {name} is no player of {short(self._layout.root)}".lstrip()
        raise LaunchError(f"{said}; there are {known}, and my_module:play")

    @property
    def config(self) -> ExperimentConfig:
        """The experiment, overrides applied."""
        return self._loaded.config

    def strategy(self, source: str) -> Act:
        """Returns what acts for a source on one observation.

        Raises:
            LaunchError: it has a memory.
        """
        player = self._sources.get(source)
        if remembers(player):
            raise LaunchError(
                f"{source} has a memory: what it does follows from more than it sees, and best "
                "responses are solved for strategies without one"
            )

        def act(seen: Columns) -> int:
            (action,) = under(player.act(seen, {}), "action").values()
            return int(action.item())

        return act

    def play(self, one: str, other: str) -> Result:
        """Play the games of two players, named by their sources; the first sits in all seats."""
        if self._manager is None:
            raise LaunchError("the arena is closed")
        return self._play(self._manager, one, other)

    def film(self, one: str, other: str, name: Path) -> tuple[Path, int, list[str]]:
        """Film two games: in the first seat sits the one player, then the other.

        Args:
            one: source of a player.
            other: of the other.
            name: of the file, see `Film.write`.

        Returns:
            The file, the number of its pictures, and how each game has ended for its first seat.
        """
        film = self._film
        if film is None:
            raise LaunchError("this arena was made without a film")
        ends = []
        for first, second in ((one, other), (other, one)):
            result = self._play(film.env, first, second, film.snap)
            film.snap()  # how it has ended
            ends.append({-1: "lost", 0: "drawn", 1: "won"}[int(np.sign(result.score - 0.5))])
        file, count = film.write(name)
        return file, count, ends

    def close(self) -> None:
        """Close the environments. Idempotent."""
        for one in (self._manager, self._film):
            if one is not None:
                one.close()

    def _play(
        self,
        manager: EnvManager,
        one: str,
        other: str,
        before: Callable[[], None] = lambda: None,
    ) -> Result:
        setting = {LEARNER: "one", OPPONENTS: {"one": (0.0, one), "other": (1.0, other)}}
        agent = BattleAgent(
            manager.env_num, manager.facts.teams, self._random, self._sources, self._rng, in_turn
        )
        episodes = evaluate(Loop(manager, agent), None, setting, before)
        seats: Array = np.array([info[TEAM] for info in episodes.infos], dtype=np.int64)
        others: Array = np.array([
            [info[f"_returns/{team}"] for team in range(self.players) if team != info[TEAM]]
            for info in episodes.infos
        ])  # fmt: skip
        return Result(episodes.returns, others, seats)

    def _actor_of(self, image: PolicyImage) -> Actor:
        """Returns what acts by an image, partly at random where that is asked for."""
        actor = frozen(self._loaded, self._acts, image)
        if not self._random_share:
            return actor
        return PartlyRandom(actor, self._random, self._random_share, self._rng)

    def _file_of(self, name: str) -> Path | None:
        """Returns the policy file of a player; None: it has none."""
        layout = self._layout
        known = {
            "main": layout.latest_policy, "latest": layout.latest_policy, "best": layout.best_policy
        }  # fmt: skip
        if "/" in name or ":" in name:
            return None
        latest, frozen = layout.latest_policy_of(name), layout.league_dir / f"{name}.safetensors"
        file = known.get(name, latest if latest.is_file() else frozen)
        return file if file.is_file() else None

    def _policies(self) -> Iterator[str]:
        """Yields the names of players that have a policy file."""
        frozen = [path.stem for path in self._layout.frozen_files()]
        files = [path.stem for path in self._layout.policy_files()]
        yield from ("main", "best", *(name for name in files if name not in ("latest", "best")))
        if frozen:
            yield f"{frozen[0]} to {frozen[-1]}"
