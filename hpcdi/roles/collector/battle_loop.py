"""The stepping loop of battles: several players in each environment, each with its own policy.

One of them, the learner, is trained; in some games it plays against itself. Its transitions, in
whichever seats it sits, are recorded in columns like those of a single player. A player's
transition spans from its own turn to its next one, and rewards in between are summed; where all
act at once, that is the step itself. At the end of a game new players are drawn for the next one.

A player sits in all seats of a team. A policy with a memory has a state for each seat of each
environment, numbered ``seat * environments + environment``, from a game's start to its end; that is
so for the learner and for its opponents, frozen ones, too.

On-policy: an action that waits for the other players when a new policy comes stays one of the old
policy, with the old one's probability, and is learnt from with the new policy's first rollout.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcdi.env.spaces import Form
from hpcdi.errors import ConfigError, PolicyError, Problem
from hpcdi.policy.base import ColumnarActor
from hpcdi.policy.dict_adapter import infos_of, object_column, to_arrays
from hpcdi.roles.collector.dict_envs import DictEnvs
from hpcdi.roles.collector.loop import columnar_actor
from hpcdi.roles.collector.recorder import Recorder
from hpcdi.store.builder import Segment
from hpcdi.store.policies import PolicyImage, read_policy
from hpcdi.types import Array, Columns, GameCounts, Settings
from hpcdi.utils.packed import ACTION_MASK, legal_of
from hpcdi.utils.registry import missing_module

OPPONENTS = "opponents"
"""Key of a task's setting: name of a player -> probability that it is drawn, and its source; an
empty source is the newest policy of a player that learns: the learner itself, or another one."""
LEARNER = "learner"
"""Key of a task's setting: name of the player that is trained."""


class Player(Protocol):
    """What acts for a player that does not learn; a `ColumnarActor` is one."""

    def act(self, observation: Array, setting: Settings) -> Columns:
        """See `ColumnarActor.act`."""
        ...


class Players:
    """Frozen players by name; policies are loaded from their files once, and kept up to a limit.

    Args:
        root: the run folder, to which policy files are relative.
        make: makes a policy that acts by the parameters of an image.
        random: acts at random.
        seed: of scripts.
        limit_bytes: of the policies that are kept; those that have not played for longest go.
        live: returns what acts for a player that learns; None: no other learns.
    """

    def __init__(
        self,
        root: str,
        make: Callable[[PolicyImage], Player],
        random: Player,
        seed: np.random.SeedSequence,
        limit_bytes: int,
        live: Callable[[str], Player] | None = None,
    ) -> None:
        self.loaded = 0
        """Files that were read."""
        self._root, self._make, self._random = Path(root), make, random
        self._rng, self._limit = np.random.default_rng(seed), limit_bytes
        self._live = live
        self._kept: OrderedDict[str, tuple[Player, int]] = OrderedDict()

    def get(self, source: str) -> Player:
        """Returns what acts for a source: "random", ``module:function``, or a policy file.

        Raises:
            PolicyFileError: the file is missing or torn.
        """
        if source == "random":
            return self._random
        if source not in self._kept:
            if ":" in source:
                self._kept[source] = (Script(_imported(source), self._rng), 0)
            else:
                image = read_policy(self._root / source)
                self.loaded += 1
                self._kept[source] = (self._make(image), len(image.data))
        self._kept.move_to_end(source)
        while len(self._kept) > 1 and sum(size for _, size in self._kept.values()) > self._limit:
            self._kept.popitem(last=False)
        return self._kept[source][0]

    def live(self, name: str) -> Player:
        """Returns what acts for another player that learns.

        Raises:
            PolicyError: nobody else learns here.
        """
        if self._live is None:
            raise PolicyError(f"player {name} has no policy here: nobody but the learner learns")
        return self._live(name)


class Script:
    """A player by a function: ``play(observation, rng)`` returns an action, counted from 0.

    Args:
        play: takes a row of packed observations (see `hpcdi.utils.packed`): an array, or with a
            mask of legal actions a record of ``observation`` and ``action_mask``.
        rng: random numbers.
    """

    def __init__(self, play: Callable[[Any, np.random.Generator], Any], rng: Any) -> None:
        self._play, self._rng = play, rng

    def act(self, observation: Array, _setting: Settings) -> Columns:
        """See `ColumnarActor.act`."""
        return {"action": np.array([self._play(row, self._rng) for row in observation])}


@dataclasses.dataclass
class Seat:
    """One seat of all environments, [envs]: what its player saw and did since its last turn."""

    observation: Array  # the last one
    acted_on: Array  # the observation of the pending action
    has_acted: Array  # bool; an action is pending
    reward: Array  # float32; since then
    outputs: Columns  # of the learner, with that action
    recorder: Recorder | None
    games: list[deque[Sequence[GameCounts]]]  # by environment; of ended items that are not cut yet

    @classmethod
    def of(cls, env_num: int, form: Form, recorder: Recorder | None) -> Seat:
        """An empty seat."""
        observation = np.zeros((env_num, *form.shape), dtype=form.dtype)
        return cls(
            observation, observation.copy(), np.zeros(env_num, bool),
            np.zeros(env_num, np.float32), {}, recorder, [deque() for _ in range(env_num)],
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Game:
    """Who plays in an environment, by team."""

    names: list[str]
    players: list[Any]


@dataclasses.dataclass
class Turn:
    """A player, and where it is to act: (seat, environment)."""

    name: str = ""
    player: Any = None
    places: list[tuple[int, int]] = dataclasses.field(default_factory=list)


class Made:
    """Transitions that a step completes, each [seats, envs]; `live`: of the learner."""

    def __init__(self, seats: int, env_num: int) -> None:
        self.live, self.terminated, self.truncated = np.zeros((3, seats, env_num), dtype=bool)
        self.reward = np.zeros((seats, env_num), dtype=np.float32)


class BattleLoop:
    """Steps battle environments by the learner and its opponents; has the methods of `Loop`.

    Args:
        manager: a `BattleManager`, launched.
        actor: acts for the learner; see `actor_of`.
        players: the opponents.
        rng: draws seats and opponents.
        target: transitions of the learner until a segment is due; 0: nothing is kept, and the
            learner changes its seat from game to game (evaluation).
    """

    def __init__(
        self,
        manager: Any,
        actor: ColumnarActor,
        players: Players,
        rng: np.random.Generator,
        target: int = 0,
    ) -> None:
        self._envs = DictEnvs(manager, manager.players, counts=False)
        self._manager, self._actor, self._players = manager, actor, players
        self._rng, self._target, self._env_num = rng, target, manager.env_num
        spaces = zip(manager.observation_space, manager.action_space, strict=True)
        self._forms = [(Form.of_observations(seen), Form.of_actions(act)) for seen, act in spaces]
        rows = max(32, 2 * target // self._env_num)
        self._seats = [
            Seat.of(self._env_num, form, Recorder(self._env_num, rows, actor) if target else None)
            for form, _ in self._forms
        ]
        self._teams: Sequence[Sequence[int]] = manager.teams
        self._team_of = {seat: n for n, team in enumerate(self._teams) for seat in team}
        self._follow = getattr(actor, "step_columns", None)
        self._learner = "main"
        self._opponents: Mapping[str, Sequence[Any]] = {}
        self._games: list[Game | None] = [None] * self._env_num
        self._sources: dict[str, str] = {}
        self._played = np.zeros(self._env_num, dtype=np.int64)  # games since `begin`
        self._lengths = np.zeros(self._env_num, dtype=np.int64)
        self._ended: list[tuple[Sequence[float], int, int]] = []  # returns, own team, length

    def begin(self) -> None:
        """New games begin in all environments: those that were running are forgotten."""
        self._played[:] = 0
        for env in range(self._env_num):
            self._end_game(env)

    # ------------------------------------------------------------------------------------ stepping

    def observe(self) -> Array:
        """Observations, objects [envs]: lists with one of each player, or None."""
        return self._envs.observation

    def act(self, observation: Array, setting: Settings) -> Columns:
        """Actions of all players that are to act: objects [envs], lists as the environments take.

        Args:
            observation: see `observe`.
            setting: keyword arguments of policies, and `OPPONENTS` and `LEARNER`.
        """
        setting = dict(setting or {})
        self._opponents = setting.pop(OPPONENTS, self._opponents)
        self._learner = setting.pop(LEARNER, self._learner)
        turns: defaultdict[int, Turn] = defaultdict(Turn)
        waiting = [(env, seen) for env, seen in enumerate(observation.tolist()) if seen is not None]
        for env, seen in waiting:
            game = self._games[env]
            if game is None:
                game = self._games[env] = self._draw(env)
            for seat, own in enumerate(seen):
                if own is not None:
                    self._forms[seat][0].put(self._seats[seat].observation, env, own)
                    team = self._team_of[seat]
                    turn = turns[id(game.players[team])]
                    turn.name, turn.player = game.names[team], game.players[team]
                    turn.places.append((seat, env))
        actions: dict[int, list[Any]] = {env: [None] * len(self._seats) for env, _ in waiting}
        for turn in turns.values():
            self._act_for(turn, setting, actions)
        return {"action": object_column(actions, self._env_num)}

    def _act_for(self, turn: Turn, setting: Settings, actions: Mapping[int, list[Any]]) -> None:
        """Have one player act in some places, (seat, environment), of all seats at once."""
        seen = np.stack([self._seats[seat].observation[env] for seat, env in turn.places])
        legal = legal_of(seen)
        given = setting if legal is None else {**setting, ACTION_MASK: legal}
        is_learner = turn.name == self._learner
        if not (is_learner or self._sources.get(turn.name)):
            self._players.live(turn.name)  # it may have a newer policy
        if remembers(turn.player):
            numbers = [self._number(seat, env) for seat, env in turn.places]
            outputs = turn.player.act(seen, given, numbers)
        else:
            outputs = turn.player.act(seen, given)
        for row, (seat, env) in enumerate(turn.places):
            place = self._seats[seat]
            own = self._forms[seat][1].unpack(outputs["action"], row, from_zero=True)
            actions[env][seat] = to_arrays(own)
            place.acted_on[env], place.has_acted[env] = seen[row], True
            if is_learner and place.recorder is not None:
                for key, column in outputs.items():
                    if key not in place.outputs:
                        shape = (self._env_num, *column.shape[1:])
                        place.outputs[key] = np.zeros(shape, dtype=column.dtype)
                    place.outputs[key][env] = column[row]

    def _number(self, seat: int, env: int) -> int:
        """The number of a place, under which a policy has its memory of it."""
        return seat * int(self._env_num) + env

    def step(self, outputs: Columns) -> Any:
        """Step the environments by the outputs' ``action``."""
        return self._envs.step_all(outputs["action"])

    def record(self, _observation: Array, _outputs: Columns, step: Any) -> int:
        """Record a step; returns the number of the learner's transitions that it completed."""
        made = Made(len(self._seats), self._env_num)
        over = [env for env, one in step.timesteps.items() if self._complete(env, one, made)]
        failed = [] if step.abnormal is None else np.flatnonzero(step.abnormal).tolist()
        followed = self._followed(made, failed)
        for seat, place in enumerate(self._seats):
            is_new = made.live[seat].any() or step.abnormal is not None
            if place.recorder is None or not is_new or not place.outputs:  # it has not acted yet
                continue
            columns = {
                "observation": place.acted_on, **place.outputs, "reward": made.reward[seat],
                "terminated": made.terminated[seat], "truncated": made.truncated[seat],
                **{name: column[seat] for name, column in followed.items()},
            }  # fmt: skip
            ended = made.terminated[seat] | made.truncated[seat]
            place.recorder.record(columns, made.live[seat], ended, step.abnormal, place.observation)
        for env in over + failed:
            self._end_game(env)
        return int(np.count_nonzero(made.live))

    def _followed(self, made: Made, failed: Sequence[int]) -> Columns:
        """What the learner's `step_columns` adds to its transitions, [seats, envs, ...]."""
        if self._follow is None or not self._target:
            return {}
        over = made.terminated | made.truncated
        over[:, list(failed)] = True
        found = self._follow(made.reward.ravel(), made.live.ravel(), over.ravel())
        return {name: col.reshape(*over.shape, *col.shape[1:]) for name, col in found.items()}

    def _complete(self, env: int, timestep: Any, made: Made) -> bool:
        """Complete the transitions of players who are to act again, at a game's end of all.

        Returns whether that was the end of a game.
        """
        done, game = bool(timestep.done), self._games[env]
        infos = infos_of(timestep.info, len(self._seats), env, ended=done)
        reward = np.asarray(timestep.reward, dtype=np.float32)
        self._lengths[env] += 1
        for seat, place in enumerate(self._seats):
            if not place.has_acted[env]:
                continue
            place.reward[env] += reward[seat]
            own = timestep.obs[seat]
            if not done and own is None:
                continue  # others are to move first
            self._forms[seat][0].put(place.observation, env, own)
            is_own = game is not None and game.names[self._team_of[seat]] == self._learner
            made.live[seat, env] = is_own
            made.reward[seat, env] = place.reward[env]
            made.truncated[seat, env] = done and bool(infos[seat].get("truncated", False))
            made.terminated[seat, env] = done and not made.truncated[seat, env]
            place.reward[env], place.has_acted[env] = 0.0, False
        if done and game is not None:
            returns = [info["eval_episode_return"] for info in infos]
            self._count(env, game, returns, np.flatnonzero(made.live[:, env]).tolist())
        return done

    # ------------------------------------------------------------------------------------- results

    def _draw(self, env: int) -> Game:
        """Players of an environment's next game, by team: the learner is one of them."""
        drawn = {name: share for name, (share, _) in self._opponents.items() if share > 0}
        self._sources.update({name: source for name, (_, source) in self._opponents.items()})
        names = [self._learner] * len(self._teams)
        if self._target:
            own = int(self._rng.integers(len(names)))
        else:
            own = (env + int(self._played[env])) % len(names)
        if drawn:
            shares = np.array(list(drawn.values()))
            others = self._rng.choice(list(drawn), size=len(names), p=shares / shares.sum())
            names = [names[own] if team == own else str(o) for team, o in enumerate(others)]
        return Game(names, [self._player(name) for name in names])

    def _player(self, name: str) -> Any:
        """What acts for a player until the end of a game, though it may leave the cache."""
        source = self._sources.get(name, "")
        if source:
            return self._players.get(source)
        return self._actor if name == self._learner else self._players.live(name)

    def _count(self, env: int, game: Game, returns: Sequence[float], seats: Sequence[int]) -> None:
        """A game is over: its result goes with the first item of the learner that ended with it.

        Args:
            env: where.
            game: whose.
            returns: of each seat.
            seats: those with such an item.
        """
        of_teams = [sum(returns[seat] for seat in team) / len(team) for team in self._teams]
        own = game.names.index(self._learner)
        self._ended.append((of_teams, own, int(self._lengths[env])))
        for seat in seats:
            results = _results(game.names, of_teams, own) if seat == seats[0] else ()
            self._seats[seat].games[env].append(results)
        self._played[env] += 1

    def _end_game(self, env: int) -> None:
        """Forget the environment's game: its players remember nothing of it."""
        game, self._games[env] = self._games[env], None
        self._lengths[env] = 0
        for place in self._seats:
            place.has_acted[env], place.reward[env] = False, 0.0
        for team, player in zip(self._teams, game.players, strict=True) if game else ():
            if remembers(player):
                player.reset([self._number(seat, env) for seat in team])

    def take_games(self) -> tuple[Array, Array, Array]:
        """The games that ended since: returns [games, teams], the learner's team, and length."""
        self._manager.take_episodes()  # else it keeps them for the whole run
        ended, self._ended = self._ended, []
        returns, own, lengths = zip(*ended, strict=True) if ended else ((), (), ())
        shape = (len(ended), len(self._teams))
        of_teams = np.array(returns, dtype=np.float64).reshape(shape)
        return of_teams, np.array(own, dtype=np.int64), np.array(lengths, dtype=np.int64)

    def take_episodes(self) -> tuple[Array, Array]:
        """The learner's returns, and lengths in steps, of the games that ended since."""
        returns, own, lengths = self.take_games()
        return returns[np.arange(len(own)), own], lengths

    # ------------------------------------------------------------------------------------- segments

    @property
    def must_cut(self) -> bool:
        """True if `cut` is due before the next step."""
        held = sum(int(s.recorder.held.sum()) for s in self._seats if s.recorder is not None)
        return bool(self._target) and held >= self._target

    def cut(self, policy_version: int) -> Segment | None:
        """Take what was recorded of the learner, in all seats; None where there is nothing."""
        parts = []
        for number, seat in enumerate(self._seats):
            if seat.recorder is None or seat.recorder.is_empty:
                continue
            part = seat.recorder.cut(seat.observation, policy_version)
            if part is None or part.ended is None:
                continue
            envs = part.items["env_id"].tolist()
            games = [
                seat.games[env].popleft() if is_end else ()
                for env, is_end in zip(envs, part.ended.tolist(), strict=True)
            ]
            items = part.items.copy()
            items["episode_id"] = items["episode_id"] * len(self._seats) + number
            parts.append(dataclasses.replace(part, items=items, games=games))
        return joined(parts) if parts else None


def _imported(source: str) -> Callable[[Any, np.random.Generator], Any]:
    """The function of a script, ``module:function``."""
    module, _, name = source.partition(":")
    path = "policy.other.commander.league.fixed"
    try:
        play: Callable[[Any, np.random.Generator], Any] = getattr(
            importlib.import_module(module), name
        )
    except ModuleNotFoundError as error:
        raise ConfigError([Problem(path, missing_module(module, error))]) from error
    except AttributeError as error:
        raise ConfigError([Problem(path, f"{module} has no {name!r}")]) from error
    return play


def joined(parts: Sequence[Segment]) -> Segment:
    """Segments of the same columns as one, one after the other."""
    first, items, games, rows = parts[0], [], list[Sequence[GameCounts]](), 0
    for part in parts:
        moved = part.items.copy()
        moved["item_start"] += rows
        rows += len(next(iter(part.columns.values())))
        items.append(moved)
        games += part.games or [()] * len(moved)
    columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in first.columns}
    ended = np.concatenate([np.asarray(part.ended) for part in parts])
    return dataclasses.replace(
        first, columns=columns, items=np.concatenate(items), ended=ended, games=games
    )


def _results(names: Sequence[str], returns: Sequence[float], own: int) -> list[GameCounts]:
    """The result of a game between each two different players, by the returns of their teams.

    Where one player is all teams, its result is that of the first one against the last; where there
    is one team, nobody has played against anybody.
    """
    if len(set(names)) == 1:
        return [_result(names[own], names[own], returns[0], returns[-1])] if len(names) > 1 else []
    found: dict[tuple[str, str], GameCounts] = {}
    for i, one in enumerate(names):
        for j, other in enumerate(names[i + 1 :], i + 1):
            if one != other:
                pair = (one, other) if one < other else (other, one)
                result = (returns[i], returns[j]) if one < other else (returns[j], returns[i])
                found.setdefault(pair, _result(*pair, *result))
    return list(found.values())


def _result(one: str, other: str, own: float, others: float) -> GameCounts:
    return one, other, int(own > others), int(own == others), int(own < others)


def actor_of(mode: Any) -> ColumnarActor:
    """What acts by columns for a policy's mode.

    Raises:
        PolicyError: it wants dicts, or has a memory that is not kept by places.
    """
    actor = columnar_actor(mode)
    if actor is None:
        raise PolicyError(
            f"the policy {mode!r} knows no columns (its attribute 'columnar' has no act): a league "
            "is for those that act by columns"
        )
    if remembers(actor) and not hasattr(actor, "reset"):
        raise PolicyError(
            f"the policy {mode!r} has a memory without reset(envs): a league has a state of it for "
            "each seat of each environment (see hpcdi.policy.base.ColumnarActor)"
        )
    return actor


def remembers(player: Any) -> bool:
    """True if a player has a state for each place in which it acts; see `ColumnarActor`."""
    return getattr(player, "forget", None) is not None
