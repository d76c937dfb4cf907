"""Environments of gymnasium whose values are of several players, in PettingZoo's parallel API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from hpcdi.env.contract import (
    blank_of,
    children_of,
    described,
    parts_of_reset,
    parts_of_step,
    truth_of,
)
from hpcdi.errors import ConfigError, EnvValueError, Problem


class JointEnv:
    """An environment whose spaces are a Tuple or a Dict with a part for each player.

    Its observations and rewards are, too; ends and infos are, or are one for all. A player that
    has ended acts no more: a blank action is given in its place, for which nothing is paid. The end
    of "__all__" is that of players of whom nothing else is said.

    Args:
        env: a `gymnasium.Env`.

    Raises:
        ConfigError: its spaces are of one player.

    Attributes:
        possible_agents, agents: names of players, ``player_0`` and so on for those of a Tuple.
        metadata, render_mode: the environment's own.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        seen, acts = children_of(env.observation_space), children_of(env.action_space)
        if seen is None or acts is None or dict(seen).keys() != dict(acts).keys():
            message = (
                f"must be gymnasium for {env}, which has one player: with several, observations "
                "and actions are both a Tuple or a Dict with a part for each, and they are "
                f"{env.observation_space} and {env.action_space}"
            )
            raise ConfigError([Problem("env.type", message)])
        is_named = isinstance(env.action_space, spaces.Dict)
        self._keys = {key if is_named else f"player_{key}": key for key, _ in acts}
        self.possible_agents = self.agents = list(self._keys)
        self.metadata, self.render_mode = env.metadata, env.render_mode

    def observation_space(self, name: Any) -> Any:
        """Returns the space of a player's observations."""
        return self._env.observation_space[self._keys[name]]

    def action_space(self, name: Any) -> Any:
        """Returns the space of a player's actions."""
        return self._env.action_space[self._keys[name]]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin an episode; returns observations and infos, by name."""
        seen, info = parts_of_reset(self._env.reset(seed=seed, options=options))
        self.agents = list(self.possible_agents)
        return self._of_each("observations", seen), self._infos(info)

    def step(self, actions: Mapping[Any, Any]) -> tuple[Any, ...]:
        """Returns observations, rewards, terminations, truncations and infos, by name."""
        given: Any = {
            key: actions[name] if name in actions else blank_of(self.action_space(name))
            for name, key in self._keys.items()
        }
        if isinstance(self._env.action_space, spaces.Tuple):
            given = tuple(given.values())
        seen, rewards, *ends, info = parts_of_step(self._env.step(given))
        acted, kinds = self.agents, ("terminated", "truncated")
        told = [self._ends(what, end) for what, end in zip(kinds, ends, strict=True)]
        for what, end, each in zip(kinds, ends, told, strict=True):
            if isinstance(end, Mapping) and truth_of(end.get("__all__", False), f"{what} of all"):
                each |= {n: True for n in acted if not any(one.get(n, False) for one in told)}
        terminations, truncations = told
        seen, rewards = (
            {name: own for name, own in self._of_each(what, of_all).items() if name in acted}
            for what, of_all in (("observations", seen), ("rewards", rewards))
        )
        self.agents = [
            name
            for name in acted
            if not (terminations.get(name, False) or truncations.get(name, False))
        ]
        return seen, rewards, terminations, truncations, self._infos(info)

    def _of_each(self, what: str, value: Any) -> dict[Any, Any]:
        """Returns players' parts of a value by name; a mapping may lack some."""
        is_mapping = isinstance(value, Mapping)
        try:
            return {
                name: value[key]
                for name, key in self._keys.items()
                if not is_mapping or key in value
            }
        except (TypeError, LookupError) as error:
            said = f"{what}: {described(value)}, and must be one for each of {len(self._keys)}"
            raise EnvValueError(f"{said} players") from error

    def _ends(self, what: str, value: Any) -> dict[Any, bool]:
        """Returns whether each player's episode has ended."""
        is_one = np.ndim(value) == 0 and not isinstance(value, Mapping)
        each = dict.fromkeys(self._keys, value) if is_one else self._of_each(what, value)
        return {name: truth_of(end, f"{what} of player {name}") for name, end in each.items()}

    def _infos(self, info: Any) -> dict[Any, Any]:
        info = {} if info is None else info
        is_each = isinstance(info, list | tuple) or {*info} >= {*self._keys.values()}
        return self._of_each("infos", info) if is_each else dict.fromkeys(self._keys, info)

    def render(self) -> Any:
        """The environment's picture."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
