"""Environments of any spaces, where everything is drawn, and actions must fit to the letter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "float64": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "number": spaces.Box(-1, 1, (), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "whole": spaces.Box(0, 10, (3,), np.int64),
    "picture": spaces.Box(0, 255, (36, 36, 3), np.uint8),
    "stack": spaces.Box(0, 255, (4, 36, 36), np.uint8),
    "discrete": spaces.Discrete(4, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(4),
    "dict": spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Discrete(3)),
    "one": spaces.Dict(only=spaces.Box(-1, 1, (2,), np.float32)),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))),
    "nested": spaces.Dict(
        inner=spaces.Dict(p=spaces.Box(-1, 1, (2,), np.float32), q=spaces.MultiBinary(2)),
        camera=spaces.Box(0, 255, (36, 36, 1), np.uint8),
    ),
}
DISCRETE = {"two": spaces.Discrete(2), "from_one": spaces.Discrete(5, start=1)}
BOUNDED = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "uneven": spaces.Box(-2.0, 3.0, (1,), np.float64),
    "number": spaces.Box(-1, 1, (), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
}
OTHERS = {
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "multi_discrete": spaces.MultiDiscrete([3, 2], start=[1, -1]),
    "bits": spaces.MultiBinary(3),
    "dict": spaces.Dict(gear=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,), np.float32)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (1,), np.float32))),
}
ACTIONS: dict[str, spaces.Space[Any]] = {**DISCRETE, **BOUNDED, **OTHERS}
GOALS = ("vector", "float64", "number", "matrix", "whole", "discrete", "multi_discrete", "bits")


def drawn(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    """Returns a value of a space, without large numbers where it has no bounds."""
    if isinstance(space, spaces.Dict):
        return {name: drawn(part, rng) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(drawn(part, rng) for part in space.spaces)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return np.asarray(rng.uniform(-1, 1, space.shape), space.dtype)
    space.seed(int(rng.integers(1 << 30)))
    return space.sample()


def check_action(space: spaces.Space[Any], action: Any, mask: Any = None) -> None:
    """Refuse an action that is not of the space, type for type, or not legal."""
    if not space.contains(action):
        raise AssertionError(f"{action!r} ({type(action).__name__}) is not of {space}")
    if mask is not None and isinstance(space, spaces.Discrete):
        assert mask[int(action) - int(space.start)], f"{action!r} is not legal: {mask}"


def mask_of(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    """Returns which actions are legal now: at least one."""
    assert isinstance(space, spaces.Discrete)
    mask = rng.integers(0, 2, int(space.n)).astype(np.int8)
    mask[rng.integers(len(mask))] = 1
    return mask


class Odd(gymnasium.Env[Any, Any]):
    """One player.

    Args:
        seen, acts: names of an observation and an action space.
        longest: steps of the longest episode; each ends by chance before.
        mask: where masks of legal actions are: "key", "info" or "" (nowhere).
    """

    def __init__(self, seen: str, acts: str, longest: int = 20, mask: str = "") -> None:
        self._own = OBSERVATIONS[seen]
        self.action_space, self._longest, self._mask_in = ACTIONS[acts], longest, mask
        self.observation_space = self._own
        if mask == "key":
            masks = spaces.MultiBinary(int(ACTIONS[acts].n))  # type: ignore[attr-defined]
            self.observation_space = spaces.Dict(observation=self._own, action_mask=masks)

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        seen = drawn(self._own, self.np_random)
        self._mask = mask_of(self.action_space, self.np_random) if self._mask_in else None
        if self._mask_in == "key":
            return {"observation": seen, "action_mask": self._mask}, {}
        return seen, {"action_mask": self._mask} if self._mask_in else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._step, self._end = 0, int(self.np_random.integers(1, self._longest + 1))
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step."""
        check_action(self.action_space, action, self._mask)
        self._step += 1
        over, is_even = self._step >= self._end, self._end % 2 == 0
        seen, info = self._seen()
        reward = float(self.np_random.normal())
        return seen, reward, over and is_even, over and not is_even, info


class OddGoal(Odd):
    """One player with a goal.

    Args:
        goal: name of an observation space.
        one_by_one: its rewards are of one goal, and fail for rows of goals.
    """

    def __init__(self, goal: str, seen: str, acts: str, one_by_one: bool = False) -> None:
        super().__init__(seen, acts, 8)
        of_goal = OBSERVATIONS[goal]
        self._one_by_one = one_by_one
        self._own = self.observation_space = spaces.Dict(
            observation=self._own, achieved_goal=of_goal, desired_goal=of_goal
        )

    def compute_reward(self, achieved: Any, desired: Any, _info: object) -> Any:
        """0 where a goal is reached, else -1."""
        distance = np.abs(np.asarray(achieved, np.float64) - np.asarray(desired, np.float64))
        of_one = len(self._own["achieved_goal"].shape or ())  # type: ignore[index]
        if self._one_by_one and distance.ndim != of_one:
            raise TypeError("one goal, please")
        return (distance.sum(axis=tuple(range(distance.ndim - of_one, distance.ndim))) < 0.5) - 1.0


class OddTeam:
    """Players of groups, as PettingZoo's parallel environments have them.

    Args:
        groups: name -> number of players, observation space, action space.
        longest: steps of the longest episode.
        leaves, comes: players leave before the end, or come after the beginning.
        masks: observations have masks of legal actions.
    """

    metadata: Mapping[str, Any] = {"name": "odd"}

    def __init__(
        self,
        groups: Mapping[str, Any],
        longest: int = 12,
        leaves: bool = False,
        comes: bool = False,
        masks: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = [f"{g}_{i}" for g, (n, *_) in groups.items() for i in range(n)]
        of_player = {name: groups[name.split("_")[0]] for name in self.possible_agents}
        self.action_spaces = {name: ACTIONS[acts] for name, (*_, acts) in of_player.items()}
        self.observation_spaces = {
            name: OBSERVATIONS[see] for name, (_, see, _) in of_player.items()
        }
        if masks:
            self.observation_spaces = {
                name: spaces.Dict(
                    observation=space,
                    action_mask=spaces.MultiBinary(int(self.action_spaces[name].n)),  # type: ignore[attr-defined]
                )
                for name, space in self.observation_spaces.items()
            }
        self._longest, self._leaves, self._comes, self._has_masks = longest, leaves, comes, masks
        self.render_mode = render_mode
        self._rng = np.random.default_rng(0)

    def observation_space(self, name: str) -> spaces.Space[Any]:
        """Of a player."""
        return self.observation_spaces[name]

    def action_space(self, name: str) -> spaces.Space[Any]:
        """Of a player."""
        return self.action_spaces[name]

    def _seen(self, name: str) -> Any:
        space = self.observation_spaces[name]
        if not self._has_masks:
            return drawn(space, self._rng)
        self._masks[name] = mask_of(self.action_spaces[name], self._rng)
        own = drawn(space["observation"], self._rng)  # type: ignore[index]
        return {"observation": own, "action_mask": self._masks[name]}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin an episode."""
        del options
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._step, self._end = 0, int(self._rng.integers(1, self._longest + 1))
        self._masks: dict[str, Any] = {}
        here = [n for n in self.possible_agents if not (self._comes and self._rng.random() < 0.4)]
        self.agents = here or self.possible_agents[:1]
        return {name: self._seen(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step."""
        assert set(actions) == set(self.agents), f"{set(actions)}, not {self.agents}"
        for name, action in actions.items():
            check_action(self.action_spaces[name], action, self._masks.get(name))
        self._step += 1
        over, here = self._step >= self._end, list(self.agents)
        terminated = {
            name: (over and self._end % 2 == 0) or (self._leaves and self._rng.random() < 0.15)
            for name in here
        }
        truncated = {name: over and not terminated[name] for name in here}
        self.agents = [n for n in here if not (terminated[n] or truncated[n])]
        away = [name for name in self.possible_agents if name not in here]
        if self._comes and self.agents and away and self._rng.random() < 0.3:
            self.agents.append(away[0])
            here.append(away[0])
            terminated[away[0]] = truncated[away[0]] = False
        seen = {name: self._seen(name) for name in here}
        rewards = {name: float(self._rng.normal()) for name in here}
        return seen, rewards, terminated, truncated, {name: {} for name in here}

    def close(self) -> None:
        """Nothing is open."""


class OddTurns(OddTeam):
    """The same players, who act one after the other in an order that is drawn (PettingZoo's AEC).

    Rewards come to all players after each step, also to those whose turn it is not.
    """

    def agent_iter(self) -> Any:
        """Players, as their turns come."""
        while self.agents:
            yield self.agent_selection

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        self.rewards, self.infos = dict.fromkeys(self.agents, 0.0), {n: {} for n in self.agents}
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._views = {name: self._seen(name) for name in self.agents}
        self._choose()

    def _choose(self) -> None:
        """The players whose episode is over are next, then any."""
        over = [n for n in self.agents if self.terminations[n] or self.truncations[n]]
        if names := over or self.agents:
            self.agent_selection = names[int(self._rng.integers(len(names)))]

    def observe(self, name: str) -> Any:
        """What a player sees."""
        return self._views[name]

    def step(self, action: Any) -> Any:
        """Let the player act whose turn it is; one whose episode is over goes, by None."""
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            assert action is None, f"{action!r} of {name}, whose episode is over"
            self.agents.remove(name)
            self.rewards = dict.fromkeys(self.agents, 0.0)
            return self._choose()
        check_action(self.action_spaces[name], action, self._masks.get(name))
        self._step += 1
        self.rewards = {n: float(self._rng.normal()) for n in self.agents}
        self._views = {n: self._seen(n) for n in self.agents}
        if self._step >= self._end:
            ends = self.terminations if self._end % 2 == 0 else self.truncations
            ends.update(dict.fromkeys(self.agents, True))
        elif self._leaves and self._rng.random() < 0.15:
            self.terminations[self.agents[int(self._rng.integers(len(self.agents)))]] = True
        return self._choose()

    def render(self) -> Any:
        """A picture."""
        return np.zeros((16, 16, 3), np.uint8)
