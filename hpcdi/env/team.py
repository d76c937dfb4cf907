"""Environments of several players as one row: all their observations, and all their actions.

A team is what `hpcdi.policy.team` acts for. To a run it is an environment of one player, whose
observation is a Dict::

    players/<name>  what each player sees; of one that is not there what it saw last, or zeros
    state           the environment's own, if it has one (`state()` and `state_space`)
    acts            who is to act, bool [players]; at an episode's end who would, but was cut
    reward          what the step before has brought to each, float32 [players]
    ended           how that step ended for each: 0 not, 1 terminated, 2 truncated [players]

and ``action_mask``, those of all players side by side, if any has one. The action is a Dict, player
-> its action. Players are in the order of these Dicts, which gymnasium sorts by name. So players
may have different spaces, drop out, and come later. The reward is the mean of the players'; info
has ``return/<name>`` of each at an episode's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hpcdi.config.env import PettingZooConfig, TeamEnvConfig
from hpcdi.env.base import EnvType
from hpcdi.env.contract import MaskLayout, blank_of, described, split_mask
from hpcdi.env.pettingzoo import TurnBattle, made_battle, spaces_of_each
from hpcdi.errors import ConfigError, EnvError, EnvValueError, Problem
from hpcdi.types import ACTION_MASK

_TERMINATED, _TRUNCATED = 1, 2


class TeamEnv(EnvType):
    """Makes environments of teams; never instantiated."""

    Config = TeamEnvConfig

    @classmethod
    def make_single(cls, cfg: TeamEnvConfig) -> Team:
        """One environment.

        Raises:
            ConfigError: it is not installed, or does not exist; or its players act in turns.
        """
        battle = made_battle(
            PettingZooConfig(
                import_names=cfg.import_names,
                env_id=cfg.env_id,
                kwargs=cfg.kwargs,
                seeds=cfg.seeds,
                eval_seeds=cfg.eval_seeds,
            )
        )
        if isinstance(battle, TurnBattle):
            message = (
                f"{cfg.env_id} is played in turns, and a team acts at once: "
                "use env.type: pettingzoo"
            )
            raise ConfigError([Problem("env.env_id", message)])
        return Team(battle)


class Team(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """All players of an environment as one; see the module.

    Args:
        battle: in the shape of `hpcdi.env.pettingzoo.BattleEnv`, its players' observations None
            where they are not to act.

    Raises:
        EnvError: a player's name contains '/', which joins it to the names of its arrays.
    """

    def __init__(self, battle: Any) -> None:
        self.battle = battle
        count = int(battle.agents)
        self.names = list(getattr(battle, "names", ())) or [f"player_{n}" for n in range(count)]
        if odd := next((name for name in self.names if "/" in str(name)), None):
            raise EnvError(f"a player's name contains '/': {odd!r}; rename it")
        self.metadata = getattr(battle, "metadata", {})
        self.render_mode = getattr(getattr(battle, "_env", battle), "render_mode", None)
        observations, actions = spaces_of_each(battle)
        seen = [split_mask(space) for space in observations]
        self.action_space: spaces.Dict = spaces.Dict(dict(zip(self.names, actions, strict=True)))
        observation: dict[str, Any] = {
            "players": spaces.Dict(dict(zip(self.names, (own for own, _ in seen), strict=True))),
            "acts": spaces.MultiBinary(count),
            "reward": spaces.Box(-np.inf, np.inf, (count,), np.float32),
            "ended": spaces.MultiDiscrete([3] * count),
        }
        self._order = [self.names.index(name) for name in self.action_space.spaces]
        self._owner = getattr(battle, "_env", battle)  # of the state
        state_space = getattr(self._owner, "state_space", None)
        self._has_state = isinstance(state_space, gymnasium.Space)
        if isinstance(state_space, gymnasium.Space):
            observation["state"] = state_space
            self._state = blank_of(state_space)
        self._blank = [blank_of(own) for own, _ in seen]
        self._is_masked = [mask is not None for _, mask in seen]
        self._is_wrapped = [
            own is not space for (own, _), space in zip(seen, observations, strict=True)
        ]
        self._layouts = [  # of each player's masks
            MaskLayout(acts, f"{ACTION_MASK} of {name}", mask)
            for name, acts, (_, mask) in zip(self.names, actions, seen, strict=True)
        ]
        self.observation_space: Any = spaces.Dict(observation)
        if any(self._is_masked):
            masks = spaces.MultiBinary(sum(layout.entries for layout in self._layouts))
            self.observation_space = spaces.Dict(
                {"observation": self.observation_space, ACTION_MASK: masks}
            )
        self._begin([None] * count)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; options are passed on where there are some."""
        super().reset(seed=seed)
        given = {"options": options} if options else {}
        self._begin(self.battle.reset(seed=seed, **given))
        return self._observation(), {}

    def _begin(self, seen: list[Any]) -> None:
        count = len(self.names)
        self._last, self._masks = (
            list(self._blank),
            [np.ones(layout.entries, bool) for layout in self._layouts],
        )
        self._reward, self._ended = np.zeros(count, np.float32), np.zeros(count, np.int64)
        self._returns = np.zeros(count)
        self._see(seen)
        self._acts = np.array([own is not None for own in seen], dtype=np.int8)

    def step(
        self, action: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Have all players act that are there.

        Raises:
            EnvError: nobody is to act, though the episode is not over.
        """
        acted = self._acts.astype(bool)
        actions = [action[n] if acts else None for n, acts in zip(self.names, acted, strict=True)]
        seen, self._reward, over, infos = self.battle.step(actions)
        self._reward = np.asarray(self._reward, dtype=np.float32)
        self._returns += self._reward
        self._see(seen, getattr(self.battle, "last_seen", None))
        goes_on = np.array([own is not None and not over for own in seen])
        ends = [
            _TRUNCATED if info.get("truncated") and not info.get("terminated") else _TERMINATED
            for info in infos
        ]
        self._ended = np.where(acted & ~goes_on, ends, 0)
        if not (over or goes_on.any()):
            raise EnvError(
                "no player is to act, and the episode is not over: let agents have those that act "
                "next, or end it (terminations, truncations)"
            )
        is_cut = bool(over) and _TERMINATED not in self._ended
        # a team's value after a cut is that of the players who would go on (see `policy.mixing`)
        self._acts = (self._ended == _TRUNCATED if over else goes_on).astype(np.int8)
        there = [
            info for is_so in (True, False) for acts, info in zip(acted, infos, strict=True)
            if acts == is_so
        ]  # fmt: skip
        info = self._info(there, over=bool(over))
        reward = float(self._reward.mean())
        return self._observation(), reward, bool(over) and not is_cut, is_cut, info

    def seen_by(self, players: Mapping[str, Any], masks: Any = None) -> dict[str, Any]:
        """Returns the team's observation of what its players see, of another environment like this.

        Its state is left blank: nobody acts by it.

        Args:
            players: name -> observation, as the environment returns it, of those that are to act.
            masks: name -> mask of legal actions, of those whose observation does not have it.

        Raises:
            EnvValueError: they are no mapping; or there is no such player, or its mask is missing,
                or not of its actions.
        """
        known = ", ".join(map(str, self.names))
        if not isinstance(players, Mapping):
            raise EnvValueError(
                f"{described(players)}: give a dict, player -> observation: {known}"
            )
        if unknown := [name for name in players if name not in self.names]:
            raise EnvValueError(f"{unknown[0]!r} is no player; there are {known}")
        if masks is not None and not any(self._is_masked):
            raise EnvValueError("the environment has no masks of actions, and one is given")
        self._begin([None] * len(self.names))
        seen = [players.get(name) for name in self.names]
        for number, (name, own) in enumerate(zip(self.names, seen, strict=True)):
            if own is None or not self._is_masked[number]:
                continue
            if not (isinstance(own, Mapping) and ACTION_MASK in own):
                if not isinstance(masks, Mapping) or name not in masks:
                    raise EnvValueError(
                        f"{name!r} has no mask of legal actions: the environment says it in infos; "
                        f"give it beside the observations, mask={{{name!r}: ...}}"
                    )
                seen[number] = {"observation": own, ACTION_MASK: masks[name]}
        self._see(seen)
        self._acts = np.array([own is not None for own in seen], dtype=np.int8)
        return self._observation(is_blank=True)

    def render(self) -> Any:
        """The environment's picture."""
        return self.battle.render()

    def close(self) -> None:
        """Close the environment."""
        self.battle.close()

    def _see(self, seen: list[Any], left: Mapping[str, Any] | None = None) -> None:
        """Keep what players see.

        Args:
            seen: of each player; None: it is not there.
            left: what those who are not there saw last, by name; others keep what is known.
        """
        for number, own in enumerate(seen):
            self._masks[number] = np.ones_like(self._masks[number])
            if own is not None and self._is_masked[number]:
                self._masks[number] = self._layouts[number].flat(own[ACTION_MASK]).astype(bool)
            if own is None and left is not None:
                own = left.get(self.names[number])
            if own is not None and self._is_wrapped[number]:  # in a Dict, as `split_mask` takes it
                others = {key: part for key, part in own.items() if key != ACTION_MASK}
                own = others["observation"] if list(others) == ["observation"] else others
            if own is not None:
                self._last[number] = own

    def _observation(self, *, is_blank: bool = False) -> dict[str, Any]:
        observation: dict[str, Any] = {
            "players": dict(zip(self.names, self._last, strict=True)),
            "acts": self._acts[self._order],
            "reward": self._reward[self._order],
            "ended": self._ended[self._order],
        }
        if self._has_state:
            space = self._owner.state_space
            observation["state"] = blank_of(space) if is_blank else self._state_now()
        if not any(self._is_masked):
            return observation
        masks = [self._masks[number] for number in self._order]
        return {"observation": observation, ACTION_MASK: np.concatenate(masks)}

    def _state_now(self) -> Any:
        """Returns the environment's state; where a game that has ended has none, the one before.

        Nobody acts on that, and no value of it is learnt from.
        """
        try:
            self._state = self._owner.state()
        except Exception:  # whatever it raises of a world that it has taken down
            if self._acts.any():  # those who were cut: their value is that of this state
                raise
        return self._state

    def _info(self, infos: list[dict[str, Any]], *, over: bool) -> dict[str, Any]:
        """What the players' infos have, the first of several; at the end each player's return.

        Args:
            infos: of those who acted, then of others.
            over: whether the episode is.
        """
        told = {key: value for info in reversed(infos) for key, value in info.items()}
        for key in ("terminated", "truncated", "eval_episode_return", ACTION_MASK):
            told.pop(key, None)
        if not over:
            return told
        return {**told, **self.returns_of_players()}

    def returns_of_players(self) -> dict[str, float]:
        """What each player has got in this episode so far; see `RETURNS`."""
        returns = zip(self.names, self._returns.tolist(), strict=True)
        return {f"return/{name}": total for name, total in returns}
