"""Environments of gymnasium whose values are of several players, in PettingZoo's parallel API."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from hpcdi.env.contract import (
    MaskLayout,
    blank_of,
    children_of,
    described,
    parts_of_reset,
    parts_of_step,
    split_mask,
    truth_of,
)
from hpcdi.errors import ConfigError, EnvValueError, Problem
from hpcdi.types import ACTION_MASK


class JointEnv:
    """An environment whose spaces are a Tuple or a Dict with a part for each player.

    Its observations and rewards are, too; ends and infos are, or are one for all. A player that
    has ended acts no more: a blank action is given in its place, for which nothing is paid. A mask
    of legal actions, beside the observations or in an info of all, has each player's entries in
    turn, or a part for each; numbers that are the entries of one are those of each.

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
        self._seen, self._mask = split_mask(env.observation_space)
        seen, acts = children_of(self._seen), children_of(env.action_space)
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
        own = self._seen[self._keys[name]]
        entries = 0 if self._mask is None else self._entries[name]
        if not entries:
            return own
        return spaces.Dict({"observation": own, ACTION_MASK: spaces.MultiBinary(entries)})

    def action_space(self, name: Any) -> Any:
        """Returns the space of a player's actions."""
        return self._env.action_space[self._keys[name]]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin an episode; returns observations and infos, by name."""
        seen, info = parts_of_reset(self._env.reset(seed=seed, options=options))
        self.agents = list(self.possible_agents)
        return self._observations(seen), self._infos(info)

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
        terminations, truncations = (
            self._ends(what, end) for what, end in zip(kinds, ends, strict=True)
        )
        self.agents = [
            name
            for name in acted
            if not (terminations.get(name, False) or truncations.get(name, False))
        ]
        seen, rewards = (
            {name: own for name, own in of_all.items() if name in acted or name not in self._keys}
            for of_all in (self._observations(seen), self._of_each("rewards", rewards))
        )
        return seen, rewards, terminations, truncations, self._infos(info)

    def _observations(self, seen: Any) -> dict[Any, Any]:
        """Returns what each player sees, with its mask of actions where there is one beside."""
        if self._mask is None:
            return self._of_each("observations", seen)
        if not isinstance(seen, Mapping) or ACTION_MASK not in seen:
            raise EnvValueError(f"observations: {described(seen)}, and must have {ACTION_MASK!r}")
        others = {key: part for key, part in seen.items() if key != ACTION_MASK}
        of_all = others["observation"] if [*others] == ["observation"] else others
        masks = self._masks(seen[ACTION_MASK])
        return {
            name: {"observation": own, ACTION_MASK: masks[name]} if name in masks else own
            for name, own in self._of_each("observations", of_all).items()
        }

    def _masks(self, mask: Any) -> dict[Any, Any]:
        """Returns the mask of each player that has discrete actions, of one of all."""
        is_flat = isinstance(mask, np.ndarray | list | tuple) and [*map(np.ndim, mask[:1])] == [0]
        if is_flat and {len(mask)} == {*self._entries.values()}:
            return dict.fromkeys(self._keys, mask)
        if isinstance(mask, Mapping):  # there may be none of those that have left
            gone = {
                key: np.ones(self._entries[name], np.int8)
                for name, key in self._keys.items()
                if self._entries[name] and name not in self.agents and key not in mask
            }
            mask = {**mask, **gone}
        ends = np.cumsum([*self._entries.values()])
        parts = np.split(self._layout.flat(mask), ends[:-1])
        return {name: part for name, part in zip(self._keys, parts, strict=True) if part.size}

    @cached_property
    def _layout(self) -> MaskLayout:
        return MaskLayout(self._env.action_space, ACTION_MASK, self._mask)

    @cached_property
    def _entries(self) -> dict[Any, int]:
        """Entries of each player's mask."""
        return {name: MaskLayout(self.action_space(name)).entries for name in self._keys}

    def _of_each(self, what: str, value: Any) -> dict[Any, Any]:
        """Returns players' parts of a value by name; a mapping may lack some, and have others."""
        if isinstance(value, Mapping):
            names = {key: name for name, key in self._keys.items()}
            return {names.get(key, key): part for key, part in value.items()}
        try:
            return {name: value[key] for name, key in self._keys.items()}
        except (TypeError, LookupError) as error:
            said = f"{what}: {described(value)}, and must be one for each of {len(self._keys)}"
            raise EnvValueError(f"{said} players") from error

    def _ends(self, what: str, value: Any) -> dict[Any, bool]:
        """Returns whether each player's episode has ended."""
        is_one = np.ndim(value) == 0 and not isinstance(value, Mapping)
        each = dict.fromkeys(self._keys, value) if is_one else self._of_each(what, value)
        return {
            name: truth_of(end, f"{what} of player {name}") if name in self._keys else end
            for name, end in each.items()
        }

    def _infos(self, info: Any) -> dict[Any, Any]:
        info = {} if info is None else info
        if not isinstance(info, Mapping):
            return self._of_each("infos", info)
        own = {
            name: info[key]
            for name, key in self._keys.items()
            if isinstance(info.get(key), Mapping)
        }
        if own:  # what is of nobody is of all
            info = {key: value for key, value in info.items() if key not in self._keys.values()}
        of_all = self._shared(info)
        return {
            name: {**part, **own[name]} if name in own else part for name, part in of_all.items()
        }

    def _shared(self, info: Mapping[Any, Any]) -> dict[Any, Any]:
        """Returns each player's part of what is said of all; a joint mask has one for each."""
        if ACTION_MASK not in info or not any(self._entries.values()):
            return dict.fromkeys(self._keys, info)
        masks = self._masks(info[ACTION_MASK])
        others = {key: value for key, value in info.items() if key != ACTION_MASK}
        return {
            name: {**others, ACTION_MASK: masks[name]} if name in masks else others
            for name in self._keys
        }

    def render(self) -> Any:
        """The environment's picture."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
