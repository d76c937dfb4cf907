"""Environments of any spaces, where everything is drawn, and actions must fit to the letter.

All that happens in an episode follows from its key, which a reset draws, and from its actions: so
`reset(options={"key": ...})` plays it again, in another process, whatever was played before. Infos
say the key and the step. Where a folder is named (`journal`), each environment writes there what it
was told and has returned, at once: what a run has done, whatever the run says of it.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "float64": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "half": spaces.Box(-1, 1, (3,), np.float16),
    "far": spaces.Box(5e6, 5.0001e6, (2,), np.float64),
    "far_whole": spaces.Box(10**9, 10**9 + 1000, (2,), np.int64),
    "number": spaces.Box(-1, 1, (), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "whole": spaces.Box(0, 10, (3,), np.int64),
    "short": spaces.Box(-300, 300, (2, 2), np.int16),
    "bytes": spaces.Box(0, 255, (5,), np.uint8),
    "picture": spaces.Box(0, 255, (36, 36, 3), np.uint8),
    "stack": spaces.Box(0, 255, (4, 36, 36), np.uint8),
    "discrete": spaces.Discrete(4, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "table": spaces.MultiDiscrete([[3, 4], [2, 5]], start=[[-1, 0], [2, 0]]),
    "bits": spaces.MultiBinary(4),
    "grid": spaces.MultiBinary((2, 2)),
    "dict": spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Discrete(3)),
    "one": spaces.Dict(only=spaces.Box(-1, 1, (2,), np.float32)),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))),
    "nested": spaces.Dict(
        inner=spaces.Dict(p=spaces.Box(-1, 1, (2,), np.float32), q=spaces.MultiBinary(2)),
        camera=spaces.Box(0, 255, (36, 36, 1), np.uint8),
    ),
    "deep": spaces.Dict(
        x=spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-1, 1, (), np.float64))),
        y=spaces.Dict(z=spaces.MultiDiscrete([2, 3])),
    ),
}
DISCRETE = {"two": spaces.Discrete(2), "from_one": spaces.Discrete(5, start=1)}
BOUNDED = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "uneven": spaces.Box(-2.0, 3.0, (1,), np.float64),
    "number": spaces.Box(-1, 1, (), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "steps": spaces.Box(-2, 3, (2,), np.int32),
    "half": spaces.Box(-1, 1, (2,), np.float16),
}
OTHERS = {
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "multi_discrete": spaces.MultiDiscrete([3, 2], start=[1, -1]),
    "bits": spaces.MultiBinary(3),
    "dict": spaces.Dict(gear=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,), np.float32)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (1,), np.float32))),
    "table": spaces.MultiDiscrete([[3, 2], [2, 2]]),
    "deep": spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2, start=-1), c=spaces.MultiBinary(2))),
}
ACTIONS: dict[str, spaces.Space[Any]] = {**DISCRETE, **BOUNDED, **OTHERS}
GOALS = ("vector", "float64", "number", "matrix", "whole", "discrete", "multi_discrete", "bits")


def drawn(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    """Returns a value of a space, from -1 to 1 where it has no bounds."""
    if isinstance(space, spaces.Dict):
        return {name: drawn(part, rng) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(drawn(part, rng) for part in space.spaces)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low = np.where(np.isinf(space.low), -1, space.low).astype(np.float64)
        high = np.where(np.isinf(space.high), 1, space.high).astype(np.float64)
        return np.asarray(rng.uniform(low, high), space.dtype)
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


def leaves(value: Any) -> Iterator[Any]:
    """Yields the arrays of a nested value, in the order of its keys."""
    if isinstance(value, Mapping):
        value = tuple(value[key] for key in sorted(value, key=str))
    if isinstance(value, tuple | list):
        for part in value:
            yield from leaves(part)
    else:
        yield np.asarray(value)


def digest(value: Any, before: int = 0, *, floats: bool = True) -> int:
    """Returns a checksum of a nested value; without its `floats`, if they are not to matter."""
    for leaf in leaves(value):
        if floats or leaf.dtype.kind != "f":
            before = zlib.crc32(np.ascontiguousarray(leaf), before)
    return before


def paid(action: Any) -> float:
    """Returns what an action adds to the reward."""
    return 0.1 * sum(float(leaf.astype(np.float64).sum()) for leaf in leaves(action))


_NUMBERS = ("key", "step", "action", "over")
RECORD = np.dtype([
    *((name, "<i8") for name in _NUMBERS), ("reward", "<f8"), ("at", "<f8"),
    ("acts", "?", (6,)), ("rewards", "<f8", (6,)),
])  # fmt: skip
"""A line of a journal: a step; `over` is 1 where the episode terminated, 2 where it was cut; of
several players `acts` says who acted, `rewards` what each got."""


class Plot:
    """What happens in an episode: random numbers that follow from its key and its actions alone.

    Args:
        key: of the episode.
        journal: folder of what is written; "": none.

    Attributes:
        step: steps so far.
        rng: draws what the present step brings.
    """

    def __init__(self, key: int, journal: str = "") -> None:
        self.key, self.step, self._trail, self._journal = key, 0, 0, journal
        self.rng = np.random.default_rng([key, 0, 0])

    def go_on(self, told: Any) -> None:
        """Make a step; floats in actions change nothing but rewards, so that rounding does not."""
        self.step += 1
        self._trail = digest(told, self._trail, floats=False)
        self.rng = np.random.default_rng([self.key, self.step, self._trail])

    def note(
        self,
        told: Any,
        reward: float,
        over: int,
        acts: Sequence[bool] = (),
        rewards: Sequence[float] = (),
    ) -> None:
        """Write a step to the journal of this process."""
        if not self._journal:
            return
        path = Path(self._journal, str(os.getpid()))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            of_each = ([*row, *[0] * (6 - len(row))] for row in (acts, rewards))
            line = (self.key, self.step, digest(told), over, reward, time.time(), *of_each)
            file.write(np.array(line, RECORD).tobytes())

    @property
    def info(self) -> dict[str, Any]:
        """What infos say: numbers, also nested and not in every step, and texts."""
        some = {"odd": {"half": self.step / 2}} if self.step % 2 == 0 else {}
        return {"key": self.key, "step": self.step, "word": "odd", **some}


KEYS = 1 << 50
"""Keys are below: float64 has them."""
NONE: Mapping[str, Any] = {}


class Odd(gymnasium.Env[Any, Any]):
    """One player.

    Args:
        seen, acts: names of an observation and an action space.
        longest: steps of the longest episode; each ends by chance before.
        mask: where masks of legal actions are: "key", "info" or "" (nowhere).
        journal: see `Plot`.

    Attributes:
        scale: of rewards, which a schedule may change; infos say it.
    """

    def __init__(
        self, seen: str, acts: str, longest: int = 20, mask: str = "", journal: str = ""
    ) -> None:
        self.scale, self._journal = 1.0, journal
        self._own = OBSERVATIONS[seen]
        self.action_space, self._longest, self._mask_in = ACTIONS[acts], longest, mask
        self.observation_space = self._own
        if mask == "key":
            masks = spaces.MultiBinary(int(ACTIONS[acts].n))  # type: ignore[attr-defined]
            self.observation_space = spaces.Dict(observation=self._own, action_mask=masks)

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        rng, info = self._plot.rng, {**self._plot.info, "scale": self.scale}
        self._last = seen = drawn(self._own, rng)
        self._mask = mask_of(self.action_space, rng) if self._mask_in else None
        if self._mask_in == "key":
            return {"observation": seen, "action_mask": self._mask}, info
        return seen, info | ({"action_mask": self._mask} if self._mask_in else {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        key = int(self.np_random.integers(KEYS))
        self._plot = Plot((options or NONE).get("key", key), self._journal)
        self._end = int(self._plot.rng.integers(1, self._longest + 1))
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step."""
        check_action(self.action_space, action, self._mask)
        self._plot.go_on(action)
        over, is_even = self._plot.step >= self._end, self._end % 2 == 0
        seen, info = self._seen()
        reward = self._reward(action)
        self._plot.note(action, reward, over * (1 if is_even else 2))
        return seen, reward, over and is_even, over and not is_even, info

    def _reward(self, action: Any) -> float:
        return self.scale * (float(self._plot.rng.normal()) + paid(action))


class OddVector(VectorEnv[Any, Any, Any]):
    """Several of these as an environment that is vectorised itself.

    Args:
        num_envs: how many.
        mode: how it begins episodes, see `gymnasium.vector.AutoresetMode`.
        kwargs: of each.
    """

    def __init__(self, num_envs: int = 1, mode: str = "same_step", **kwargs: Any) -> None:
        kind = AutoresetMode[mode.upper()]
        self._envs = SyncVectorEnv([partial(Odd, **kwargs)] * num_envs, autoreset_mode=kind)
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": kind}
        for name in ("observation_space", "action_space"):
            setattr(self, name, getattr(self._envs, name))
            setattr(self, f"single_{name}", getattr(self._envs, f"single_{name}"))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin episodes."""
        return self._envs.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """Step all."""
        return self._envs.step(actions)

    def close_extras(self, **_kwargs: Any) -> None:
        """Close all."""
        self._envs.close()


class OddGoal(Odd):
    """One player with a goal.

    Args:
        goal: name of an observation space.
        one_by_one: its rewards are of one goal, and fail for rows of goals.
    """

    def __init__(
        self, goal: str, seen: str, acts: str, one_by_one: bool = False, journal: str = ""
    ) -> None:
        super().__init__(seen, acts, 8, journal=journal)
        of_goal = OBSERVATIONS[goal]
        self._one_by_one = one_by_one
        self._own = self.observation_space = spaces.Dict(
            observation=self._own, achieved_goal=of_goal, desired_goal=of_goal
        )

    def _reward(self, action: Any) -> float:  # noqa: ARG002
        achieved, desired = self._last["achieved_goal"], self._last["desired_goal"]
        return float(self.compute_reward(achieved, desired, {}))

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
        blind: actions change nothing but the rewards of those that act, as where others' actions
            are not known.
        journal: see `Plot`.
    """

    metadata: Mapping[str, Any] = {"name": "odd"}

    def __init__(
        self,
        groups: Mapping[str, Any],
        longest: int = 12,
        leaves: bool = False,
        comes: bool = False,
        masks: bool = False,
        blind: bool = False,
        journal: str = "",
        render_mode: str | None = None,
    ) -> None:
        self._is_blind, self._journal = blind, journal
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
        self._source = np.random.default_rng(0)  # of keys

    def observation_space(self, name: str) -> spaces.Space[Any]:
        """Of a player."""
        return self.observation_spaces[name]

    def action_space(self, name: str) -> spaces.Space[Any]:
        """Of a player."""
        return self.action_spaces[name]

    def _seen(self, name: str) -> Any:
        space = self.observation_spaces[name]
        if not self._has_masks:
            return drawn(space, self._plot.rng)
        self._masks[name] = mask_of(self.action_spaces[name], self._plot.rng)
        own = drawn(space["observation"], self._plot.rng)  # type: ignore[index]
        return {"observation": own, "action_mask": self._masks[name]}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin an episode."""
        if seed is not None:
            self._source = np.random.default_rng(seed)
        key = int(self._source.integers(KEYS))
        self._plot = Plot((options or NONE).get("key", key), self._journal)
        rng = self._plot.rng
        self._end = int(rng.integers(1, self._longest + 1))
        self._masks: dict[str, Any] = {}
        here = [n for n in self.possible_agents if not (self._comes and rng.random() < 0.4)]
        self.agents = here or self.possible_agents[:1]
        return {name: self._seen(name) for name in self.agents}, self._infos(self.agents)

    def _infos(self, names: Iterable[str]) -> dict[str, Any]:
        return {n: {**self._plot.info, "player": self.possible_agents.index(n)} for n in names}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step."""
        assert set(actions) == set(self.agents), f"{set(actions)}, not {self.agents}"
        for name, action in actions.items():
            check_action(self.action_spaces[name], action, self._masks.get(name))
        self._plot.go_on(() if self._is_blind else actions)
        over, here, rng = self._plot.step >= self._end, list(self.agents), self._plot.rng
        terminated = {
            name: (over and self._end % 2 == 0) or (self._leaves and rng.random() < 0.15)
            for name in here
        }
        truncated = {name: over and not terminated[name] for name in here}
        self.agents = [n for n in here if not (terminated[n] or truncated[n])]
        away = [name for name in self.possible_agents if name not in here]
        if self._comes and self.agents and away and rng.random() < 0.3:
            self.agents.append(away[0])
            here.append(away[0])
            terminated[away[0]] = truncated[away[0]] = False
        seen = {name: self._seen(name) for name in here}
        rewards = {name: float(rng.normal()) + paid(actions.get(name, ())) for name in here}
        mean = sum(rewards.values()) / len(self.possible_agents)
        self._note(actions, mean, actions, rewards)
        return seen, rewards, terminated, truncated, self._infos(here)

    def _note(self, told: Any, reward: float, acts: Any, rewards: Mapping[str, float]) -> None:
        of_each = zip(
            *((n in acts, rewards.get(n, 0.0)) for n in self.possible_agents), strict=True
        )
        self._plot.note(told, reward, not self._lives(), *of_each)

    def _lives(self) -> list[str]:
        return self.agents

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
        self.rewards, self.infos = dict.fromkeys(self.agents, 0.0), self._infos(self.agents)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._views = {name: self._seen(name) for name in self.agents}
        self._choose()

    def _choose(self) -> None:
        """The players whose episode is over are next, then any."""
        over = [n for n in self.agents if self.terminations[n] or self.truncations[n]]
        if names := over or self.agents:
            self.agent_selection = names[int(self._plot.rng.integers(len(names)))]

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
        self._plot.go_on(() if self._is_blind else action)
        self.rewards = {n: float(self._plot.rng.normal()) for n in self.agents}
        self.rewards[name] += paid(action)
        self._views = {n: self._seen(n) for n in self.agents}
        self.infos = self._infos(self.agents)
        if self._plot.step >= self._end:
            ends = self.terminations if self._end % 2 == 0 else self.truncations
            ends.update(dict.fromkeys(self.agents, True))
        elif self._leaves and self._plot.rng.random() < 0.15:
            self.terminations[self.agents[int(self._plot.rng.integers(len(self.agents)))]] = True
        self._note(action, self.rewards[name], (name,), self.rewards)
        return self._choose()

    def _lives(self) -> list[str]:
        return [n for n in self.agents if not (self.terminations[n] or self.truncations[n])]

    def render(self) -> Any:
        """A picture."""
        return np.zeros((16, 16, 3), np.uint8)


gymnasium.register("OddVector-v0", vector_entry_point=OddVector)
