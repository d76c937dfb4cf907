"""Environments of several players (battles): PettingZoo's by their id, your own, the seeds'.

All are brought into one shape, `BattleEnv`: a player that is not to act has observation None, and
its action must be None. In games that are played in turns one player acts at a time, in others all
act at once. At an episode's end every player that took part has an observation, the last one.
"""

from __future__ import annotations

import abc
import copy
import importlib
import types
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hpcdi.config.env import PettingZooConfig
from hpcdi.env.arguments import numbered
from hpcdi.env.base import EnvType
from hpcdi.env.contract import (
    MaskLayout,
    children_of,
    copy_of_info,
    described,
    infos_in,
    leaves_of,
    number_of,
    parts_of_reset,
    parts_of_step,
    split_mask,
    truth_of,
)
from hpcdi.env.gymnasium import cannot_make, errors_of_making
from hpcdi.env.joint import JointEnv
from hpcdi.env.old_gym import TIME_LIMIT, resets_anew, space_of
from hpcdi.errors import ConfigError, EnvError, EnvValueError, Problem
from hpcdi.types import ACTION_MASK, Array
from hpcdi.utils.registry import import_module

Joint = list[Any]
"""One element for each player."""
BattleStep = tuple[Joint, Array, bool, list[dict[str, Any]]]
"""Observations, rewards float32 [players], whether the episode is over, infos."""
_OF_STEP = ("observations", "rewards", "terminations", "truncations", "infos")
_NO_END = {"terminated": False, "truncated": False}
ALL = "__all__"
"""By this name ends may be said of all players of whom no other is said (RLlib's form)."""
_MAKERS = {"parallel": "parallel_env", "aec": "env"}


class PettingZooEnv(EnvType):
    """Makes PettingZoo's environments; never instantiated."""

    Config = PettingZooConfig
    is_battle = True

    @classmethod
    def make_single(cls, cfg: PettingZooConfig) -> BattleEnv:
        """One environment.

        Raises:
            ConfigError: PettingZoo or the environment is not installed, or does not exist; or the
                teams are not of its players.
        """
        battle: BattleEnv = made_battle(cfg)
        if isinstance(battle, BattleEnv):  # else it is one of the user's own, in that shape
            battle.may_come_back = False
        if cfg.teams:
            battle.teams = numbered_teams(cfg.teams, battle)
        return battle


def made_battle(cfg: PettingZooConfig) -> Any:
    """Returns an environment of several players, in `BattleEnv`'s shape.

    Raises:
        ConfigError: PettingZoo or the environment is not installed, or does not exist.
    """
    import_module(cfg.import_names)
    make = _maker(cfg.env_id, cfg.api)
    known = cfg.scenarios(evaluate=False) or cfg.scenarios(evaluate=True) or (0,)
    try:
        with errors_of_making(cfg.env_id):
            return as_battle(make(**numbered(cfg.kwargs)), known[0])
    except Exception as error:
        if not isinstance(error.__cause__ or error, ImportError):
            raise
        raise _cannot_make(cfg.env_id, str(error)) from error


def numbered_teams(teams: Mapping[str, Any], env: Any) -> tuple[tuple[int, ...], ...]:
    """Teams as their players' numbers.

    Args:
        teams: team -> names or numbers of its players.
        env: has `agents`, and maybe `names`.

    Raises:
        ConfigError: a player does not exist, or is not in one team.
    """
    names = list(getattr(env, "names", ()))
    problems, by_numbers, seen = [], [], set[int]()
    for team, members in teams.items():
        path = f"env.teams.{team}"
        if not isinstance(members, list | tuple) or not members:
            problems.append(Problem(path, "must be a list of players"))
            continue
        numbers = []
        for member in members:
            number = names.index(member) if member in names else member
            if type(number) is not int or not 0 <= number < env.agents:
                known = ", ".join(map(str, names)) or f"0 to {env.agents - 1}"
                problems.append(Problem(path, f"{member!r} is no player; there are {known}"))
            elif number in seen:
                problems.append(Problem(path, f"{member} is in two teams"))
            else:
                numbers.append(number)
                seen.add(number)
        by_numbers.append(tuple(numbers))
    if not problems and (missing := [n for n in range(env.agents) if n not in seen]):
        left_out = ", ".join(str(names[n]) if names else str(n) for n in missing)
        problems.append(Problem("env.teams", f"{left_out} must be in a team, too"))
    if problems:
        raise ConfigError(problems)
    return tuple(by_numbers)


def teams_of(env: Any) -> tuple[tuple[int, ...], ...]:
    """Returns the players of each team of a battle, by numbers; without teams each is its own."""
    teams = getattr(env, "teams", None)
    return tuple((n,) for n in range(int(env.agents))) if teams is None else tuple(teams)


def _maker(env_id: str, api: str) -> Any:
    """The callable that makes an environment: of PettingZoo's, of gymnasium's, or of a module."""
    kinds = list(_MAKERS) if api == "auto" else [api]
    module_name, _, name = env_id.partition(":")
    try:
        pettingzoo: Any = None if name else importlib.import_module("pettingzoo")
        if hasattr(pettingzoo, "make"):
            known = {"parallel": pettingzoo.parallel_registry, "aec": pettingzoo.aec_registry}
            for kind in kinds:
                if env_id.replace(".", "/", 1) in known[kind]:
                    return partial(pettingzoo.make, kind, env_id.replace(".", "/", 1))
        module: Any = importlib.import_module(module_name) if name else None
        if (name or env_id) in gymnasium.registry:
            return partial(gymnasium.make, name or env_id, disable_env_checker=True)
        module = module or importlib.import_module(f"pettingzoo.{env_id}")
    except ImportError as error:
        raise _cannot_make(env_id, str(error)) from error
    if isinstance(inner := getattr(module, name, None), types.ModuleType):
        module, name = inner, ""
    for wanted in [name] if name else [_MAKERS[kind] for kind in kinds]:
        if hasattr(module, wanted):
            return getattr(module, wanted)
    raise _cannot_make(env_id, f"it does not exist with api {api!r}")


def _cannot_make(env_id: str, reason: str) -> ConfigError:
    advice = "pip install 'hpcdi[battle]', and what the environment itself needs"
    ids = "ids look like classic.connect_four_v3, those of other packages like module:parallel_env"
    return cannot_make(env_id, f"{reason}; {ids}; {advice}")


# --------------------------------------------------------------------------------------- the shape


class BattleEnv(abc.ABC):
    """One of PettingZoo's environments.

    Args:
        env: an environment with PettingZoo's API.
        seed: by which it is reset for a look at its infos.

    Attributes:
        agents: number of players.
        names: of the players.
        teams: numbers of each team's players; None: each plays for itself.
        may_come_back: a player may end and act again in the same game. False: that is an error,
            where a transition lasts until its player's next turn, since an end would be lost in it.
        observation_space, action_space: of each player, in a list.
        last_seen: what each player saw last in this episode, by name; one that leaves, at its end.
    """

    def __init__(self, env: Any, seed: int = 0) -> None:
        self._env = env
        self.names: list[str] = list(env.possible_agents)
        self.agents = len(self.names)
        self.teams: tuple[tuple[int, ...], ...] | None = None
        self.may_come_back = True
        if not self.names:
            raise EnvError("its possible_agents are empty: name all who may play, from the start")
        self._known = {*self.names, ALL}
        self.observation_space, self.action_space = (
            [_space_of_player(env, kind, name) for name in self.names]
            for kind in ("observation_space", "action_space")
        )
        self._masks: dict[str, MaskLayout] = {}  # of those in infos, by player
        self._add_masks(seed)
        deals = getattr(getattr(env, "unwrapped", env), "deals", None)
        if deals is not None:  # see `hpcdi.env.best_response`
            self.deals = int(deals)
        self._returns = np.zeros(self.agents)
        self.last_seen: dict[str, Any] = {}
        # of each player: one that has dropped out is not reported any more
        self._ends: dict[str, dict[str, bool]] = {}
        self._left_infos: dict[str, dict[str, Any]] = {}

    def _add_masks(self, seed: int) -> None:
        """Say in the spaces that infos have masks of legal actions, which a reset tells."""
        masks = [split_mask(space)[1] for space in self.observation_space]
        counts = [
            [sum(leaf.counts) for leaf, _ in leaves_of("action", space)]
            for space in self.action_space
        ]
        if any(mask is not None for mask in masks) or not any(map(all, counts)):
            return
        if any(ACTION_MASK in (info or {}) for info in self._first_infos(seed).values()):
            for number, entries in enumerate(counts):
                if all(entries):  # else its actions are not discrete
                    where = f"info[{ACTION_MASK!r}]"
                    layout = MaskLayout(self.action_space[number], where)
                    self._masks[self.names[number]] = layout
                    self.observation_space[number] = spaces.Dict({
                        "observation": self.observation_space[number],
                        ACTION_MASK: spaces.MultiBinary(sum(entries)),
                    })  # fmt: skip

    @abc.abstractmethod
    def _first_infos(self, seed: int) -> Mapping[str, Mapping[str, Any]]:
        """Reset; returns the players' infos."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Joint:
        """Begin an episode; returns the observation of each player that is to act."""
        self._returns[:] = 0.0
        self.last_seen.clear()
        self._ends.clear()
        self._left_infos.clear()
        self._go_on(self.names)
        return self._begin({"seed": seed, **({"options": options} if options else {})})

    def step(self, actions: Sequence[Any]) -> BattleStep:
        """Let the players act, each whose observation is not None.

        The last infos of a game have those with which players have left it, too.

        Raises:
            EnvError: an action is missing, or a player acts that is not to, or comes back.
        """
        rewards = np.zeros(self.agents, dtype=np.float32)
        infos: list[dict[str, Any]] = [{} for _ in self.names]
        observations, done = self._play(actions, rewards, infos)
        left = self._left_infos
        for (name, end), info in zip(self._ends.items(), infos, strict=True):
            if done:
                info |= {**left.get(name, {}), **info}
            elif not any(end.values()):
                left.pop(name, None)
            elif info:
                left[name] = left.get(name, {}) | copy_of_info(info)
            info.update(end)
        self._returns += rewards
        if done:
            observations = [self.last_seen.get(name) for name in self.names]
            for info, total in zip(infos, self._returns, strict=True):
                info["eval_episode_return"] = float(total)
        return observations, rewards, done, infos

    def render(self) -> Any:
        """The environment's picture."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    @abc.abstractmethod
    def _begin(self, given: Mapping[str, Any]) -> Joint:
        """Reset by these arguments; returns the observations of the players that are to act."""

    @abc.abstractmethod
    def _play(
        self, actions: Sequence[Any], rewards: Array, infos: list[dict[str, Any]]
    ) -> tuple[Joint, bool]:
        """One step; fills in rewards and infos; returns observations, and whether it is over."""

    def _there(self) -> list[str]:
        """Returns the names of those who are in the game now.

        Raises:
            EnvValueError: one may not be.
        """
        there = [*self._env.agents]
        if not self._known.issuperset(there):
            strange = next(name for name in there if name not in self._known)
            raise EnvValueError(
                f"agents: {strange!r} is none of the possible_agents {self.names}: name all who "
                "may play, from the start"
            )
        return there

    def _check_names(self, of_each: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> None:
        """Refuses values by names that are no players', where players have none.

        Args:
            of_each: what they are -> values by name.
            names: of players that are to have one.

        Raises:
            EnvValueError: there are such values.
        """
        for what, of_all in of_each.items():
            if not (self._known >= of_all.keys() or of_all.keys() >= {*names}):
                raise EnvValueError(
                    f"{what}: by the names {[*of_all]}, and players are {self.names}"
                )

    def _ends_by(
        self, name: str, ends: Sequence[Mapping[str, Any]], *, with_all: bool = True
    ) -> bool:
        """Keep how a player ends, until it goes on; returns whether it does.

        Args:
            name: of the player.
            ends: by player, terminations and truncations.
            with_all: where it does not end by its own name, it may as all do.
        """
        of_player = f"of player {self.names.index(name)} ({name})"
        for key in (name, ALL) if with_all else (name,):
            said = {
                what: truth_of(of_each.get(key, False), f"{what} {of_player}")
                for what, of_each in zip(_NO_END, ends, strict=True)
            }
            self._ends[name] |= {what: True for what, is_so in said.items() if is_so}
            if any(said.values()):
                return True
        return False

    def _go_on(self, names: Iterable[str]) -> None:
        """Forget how players have ended before: they are there, or have come back.

        Raises:
            EnvValueError: one has come back, and may not.
        """
        names = list(names)
        back = [name for name in names if any(self._ends.get(name, _NO_END).values())]
        if back and not self.may_come_back:
            raise EnvValueError(
                f"player {self.names.index(back[0])} ({back[0]}) has ended, and comes back in the "
                "same game, in which its end would be lost: set env.type: team, where players may "
                "come back"
            )
        self._ends |= {name: dict(_NO_END) for name in names}

    def _check(self, actions: Sequence[Any], actors: set[str]) -> None:
        if len(actions) != self.agents:
            raise EnvError(f"{len(actions)} actions for {self.agents} players")
        for name, action in zip(self.names, actions, strict=True):
            if (action is None) == (name in actors):
                wrong = "is to act and has no action" if action is None else "is not to act"
                raise EnvError(f"player {self.names.index(name)} ({name}) {wrong}")

    def _observed(
        self, name: str, value: object, info: Mapping[str, Any] | None, *, acts: bool
    ) -> Any:
        """A copy of an observation, with its mask of actions beside it where infos have that.

        The environment may write the next observation into the same arrays.

        Args:
            name: of its player.
            value: the observation.
            info: of the player.
            acts: the player is to act next; else it needs no mask.
        """
        if name not in self._masks:
            return copy.deepcopy(value)
        mask = (info or {}).get(ACTION_MASK)
        if mask is None and acts:
            raise EnvValueError(f"an info has no {ACTION_MASK!r}; after a reset there is one")
        layout = self._masks[name]
        mask = np.ones(layout.entries, np.int8) if mask is None else layout.flat(mask)
        return {"observation": copy.deepcopy(value), ACTION_MASK: mask}

    def _joint(self, seen: Mapping[str, Any]) -> Joint:
        return [seen.get(name) for name in self.names]


class ParallelBattle(BattleEnv):
    """All players act at once; those that have dropped out act no more."""

    def _first_infos(self, seed: int) -> Mapping[str, Mapping[str, Any]]:
        infos: Mapping[str, Mapping[str, Any]] = parts_of_reset(self._env.reset(seed=seed))[1]
        return infos

    def _begin(self, given: Mapping[str, Any]) -> Joint:
        observations, infos = parts_of_reset(self._env.reset(**given))
        self._playing = self._there()
        return self._joint(self._shown(observations, infos))

    def _play(
        self, actions: Sequence[Any], rewards: Array, infos: list[dict[str, Any]]
    ) -> tuple[Joint, bool]:
        self._check(actions, set(self._playing))
        given = {
            name: action
            for name, action in zip(self.names, actions, strict=True)
            if action is not None
        }
        told = parts_of_step(self._env.step(given))
        for what, of_all in zip(_OF_STEP, told, strict=True):
            if not isinstance(of_all, Mapping):
                raise EnvValueError(f"{what}: {described(of_all)}, and must be a dict, by player")
        observations, paid, *ends, given_infos = told
        self._check_names(dict(zip(_OF_STEP[1:4], told[1:4], strict=True)), given)
        left, over = self._ended, set[str]()
        for i, name in enumerate(self.names):
            rewards[i] = number_of(paid.get(name, 0.0), f"reward of player {i} ({name})")
            if self._ends_by(name, ends, with_all=name not in left):
                over.add(name)
            infos[i].update(given_infos.get(name) or {})
        # some leave those in `agents` that have ended; one that comes back is observed
        gone = over | (self._ended - {*observations})
        self._playing = [name for name in self._there() if name not in gone]
        self._go_on(self._playing)
        seen = {n: own for n, own in observations.items() if n in self._playing or n not in left}
        return self._joint(self._shown(seen, given_infos)), not self._playing

    @property
    def _ended(self) -> set[str]:
        """Who has ended, and has not come back."""
        return {name for name, end in self._ends.items() if any(end.values())}

    def _shown(self, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what all have seen last; returns the observations of those who are to act.

        Raises:
            EnvValueError: one of them has none.
        """
        self.last_seen |= {
            name: self._observed(name, value, infos.get(name), acts=name in self._playing)
            for name, value in observations.items()
        }
        if missing := [name for name in self._playing if name not in observations]:
            raise EnvValueError(f"players {missing} are to act, and have no observation")
        return {name: self.last_seen[name] for name in self._playing}


class TurnBattle(BattleEnv):
    """One player acts at a time (PettingZoo's agent environment cycle)."""

    def _first_infos(self, seed: int) -> Mapping[str, Mapping[str, Any]]:
        self._env.reset(seed=seed)
        infos: Mapping[str, Mapping[str, Any]] = self._env.infos
        return infos

    def _begin(self, given: Mapping[str, Any]) -> Joint:
        self._env.reset(**given)
        return self._turn()

    def _play(
        self, actions: Sequence[Any], rewards: Array, infos: list[dict[str, Any]]
    ) -> tuple[Joint, bool]:
        env = self._env
        self._check(actions, {env.agent_selection})
        action = actions[self.names.index(env.agent_selection)]
        acted = self._there()
        env.step(action)
        there = self._there()
        for i, name in enumerate(self.names):
            if name in acted or name in there:
                paid = env.rewards.get(name, 0.0)
                rewards[i] = number_of(paid, f"reward of player {i} ({name})")
        # without a turn to leave in; one that the environment knows no more shows nothing
        at_once = [name for name in acted if name not in there and name in env.terminations]
        self._tell([*there, *at_once], infos)
        for name in at_once:
            self.last_seen[name] = self._observe(name)
        while True:
            if all(map(self._is_out, there)):
                for name in there:
                    self.last_seen[name] = self._observe(name)
                return [], True
            name = env.agent_selection
            if not self._is_out(name):
                return self._turn(), False
            self.last_seen[name] = self._observe(name)
            env.step(None)  # one that has dropped out goes, and nobody is paid
            there = self._there()
            self._tell(there, infos)

    def _turn(self) -> Joint:
        name = self._env.agent_selection
        self.last_seen[name] = self._observe(name)
        return self._joint({name: self.last_seen[name]})

    def _tell(self, names: Sequence[str], infos: list[dict[str, Any]]) -> None:
        """Keep how some players end or go on, and fill in their infos."""
        env = self._env
        told = {what: getattr(env, what) for what in _OF_STEP[1:4]}
        self._check_names(told, names)
        for i, name in enumerate(self.names):
            if name in names:
                if not self._ends_by(name, (env.terminations, env.truncations)):
                    self._go_on([name])
                infos[i].update(env.infos.get(name) or {})

    def _is_out(self, name: str) -> bool:
        return any(self._ends[name].values())

    def _observe(self, name: str) -> Any:
        env = self._env
        acts = not self._is_out(name)
        return self._observed(name, env.observe(name), env.infos.get(name), acts=acts)


class ForeignBattle:
    """A battle environment of the seeds' kind: ``reset() -> obs``, ``step(actions) -> timestep``.

    Args:
        env: the environment; `agent_num` or `player_num` says how many players it has, else two.
        seed: by which it is reset for a look at its observations.
    """

    def __init__(self, env: Any, seed: int = 0) -> None:
        self._env = env
        self.agents = int(getattr(env, "agent_num", getattr(env, "player_num", 2)))
        self.teams: tuple[tuple[int, ...], ...] | None = None
        self.observation_space = _space_like(self.reset(seed)[0])
        space = space_of(getattr(env, "action_space", None))
        parts = [child for _, child in children_of(space) or ()]  # one a player: a Dict, a Tuple
        each = parts if len(parts) == self.agents else space
        each = [*map(space_of, each)] if isinstance(each, list | tuple) else [each] * self.agents
        is_known = all(isinstance(space, gymnasium.Space) for space in each)
        self.action_space = each if is_known else [spaces.Discrete(2**31 - 1)] * self.agents

    def reset(self, seed: int | None = None) -> Joint:
        """See `BattleEnv.reset`."""
        if seed is not None and hasattr(self._env, "seed"):
            self._env.seed(seed)
        return list(self._env.reset())

    def step(self, actions: Sequence[Any]) -> BattleStep:
        """See `BattleEnv.step`."""
        timestep = self._env.step(list(actions))
        obs, reward, done = timestep.obs, timestep.reward, timestep.done
        info = timestep.info
        each_info = infos_in(info)
        is_one = len(each_info) == 1 and each_info[0] is info
        infos = [dict(own) for own in (each_info * self.agents if is_one else each_info)]
        for own in infos:
            if TIME_LIMIT in own:
                own.setdefault("truncated", own[TIME_LIMIT])
        if is_one and np.size(info.get("eval_episode_return", 0)) == self.agents:
            for own, number in zip(infos, np.ravel(info["eval_episode_return"]), strict=True):
                own["eval_episode_return"] = float(number)
        each = reward if np.shape(reward)[:1] == (self.agents,) else np.ravel(reward)
        numbers = [number_of(one, f"reward of player {i}") for i, one in enumerate(each)]
        rewards: Array = np.asarray(numbers, dtype=np.float32).reshape(self.agents)
        return list(obs), rewards, truth_of(done, "done"), infos

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)


def _space_of_player(env: Any, kind: str, name: Any) -> Any:
    """Returns a player's space: what a method says, a part of a Dict or dict, or one for all."""
    given = getattr(env, kind, None)
    if callable(given):
        return given(name)
    of_each = getattr(env, f"{kind}s", None) or dict(children_of(given) or ())
    return of_each.get(name, given)


def _space_like(value: object) -> Any:
    """The space of an observation that is like this one."""
    if isinstance(value, Mapping):
        return spaces.Dict({key: _space_like(part) for key, part in value.items()})
    array = np.asarray(value)
    if array.dtype.kind == "b":
        return spaces.MultiBinary(array.shape)
    ends = np.finfo(array.dtype) if array.dtype.kind == "f" else np.iinfo(array.dtype)
    return spaces.Box(ends.min, ends.max, array.shape, array.dtype.type)


def space_of_players(env: object) -> tuple[Any, Any]:
    """Returns the observation and action space of each player of a battle.

    Raises:
        EnvError: they differ.
    """
    names = ("observation_space", "action_space")
    for name, (first, *others) in zip(names, spaces_of_each(env), strict=True):
        if any(other != first for other in others):
            raise EnvError(
                f"its players have different spaces: {name} is {getattr(env, name)}; in a league "
                "they are to be equal: pad them, or let players learn by policies of their own "
                "(env.type: team and policy.type: team)"
            )
    observations, actions = spaces_of_each(env)
    return observations[0], actions[0]


def spaces_of_each(env: Any) -> tuple[list[Any], list[Any]]:
    """Returns the observation spaces and the action spaces of a battle's players, one of each.

    One that is no list is that of every player.
    """
    observations, actions = (
        list(given) if isinstance(given, list | tuple) else [given] * int(env.agents)
        for given in (env.observation_space, env.action_space)
    )
    return observations, actions


def as_battle(env: object, seed: int = 0) -> Any:
    """Returns `env` in `BattleEnv`'s shape: PettingZoo's, gymnasium's, the seeds' are wrapped.

    Args:
        env: of one of these.
        seed: one that it takes; what it begins with before its first episode is always the same.

    Raises:
        ConfigError: it is gymnasium's, and of one player.
    """
    if hasattr(env, "possible_agents"):
        return (TurnBattle if hasattr(env, "agent_iter") else ParallelBattle)(env, seed)
    if isinstance(getattr(env, "agents", None), int):
        return env
    is_of_seeds = hasattr(env, "agent_num") or hasattr(env, "player_num") or not resets_anew(env)
    if isinstance(env, gymnasium.Env) and not is_of_seeds:
        return ParallelBattle(JointEnv(env), seed)
    return ForeignBattle(env, seed)
