"""Wrappers of gymnasium's environments, as a configuration names them, and some that it lacks.

``env.wrappers`` is a list; the first one is the innermost. Each is a name, or a mapping of ``type``
and the wrapper's arguments. Those that only change rewards are for learning: evaluations leave
them out. A name is one of `WRAPPERS`, one of ``gymnasium.wrappers``, or a
``module:Class`` of your own: a callable that takes an environment and returns one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium import wrappers as of_gymnasium

from hpcdi.env.contract import (
    MaskLayout,
    Space,
    children_of,
    number_of,
    numbers_in,
    parts_of_reset,
    parts_of_step,
    split_mask,
    truth_of,
)
from hpcdi.env.old_gym import as_gymnasium, parameters_of
from hpcdi.env.process_state import SignalGuard
from hpcdi.errors import ConfigError, EnvError, EnvValueError, Problem
from hpcdi.types import ACTION_MASK, Array
from hpcdi.utils.registry import missing_module, named_in_module

Wrap = Callable[..., Any]


def _box_of(space: Any, changed: Callable[[Array], Array]) -> spaces.Box:
    """Returns a Box whose bounds are changed as the values are."""
    low, high = (changed(bound) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype)


class ChannelsFirst(gymnasium.ObservationWrapper[Array, Any, Array]):
    """Images [height, width, channels] as [channels, height, width], which convolutions take."""

    def __init__(self, env: gymnasium.Env[Array, Any]) -> None:
        super().__init__(env)
        self.observation_space = _box_of(env.observation_space, self.observation)

    def observation(self, observation: Array) -> Array:
        """The last axis comes first."""
        return np.moveaxis(observation, -1, 0)


class Components(gymnasium.ObservationWrapper[Array, Any, Array]):
    """Some components of a vector only, e.g. positions without velocities.

    Args:
        env: its observations are vectors of a Box.
        keep: numbers of the components, from 0.
    """

    def __init__(self, env: gymnasium.Env[Array, Any], keep: Sequence[int]) -> None:
        super().__init__(env)
        self._keep = list(keep)
        self.observation_space = _box_of(env.observation_space, self.observation)

    def observation(self, observation: Array) -> Array:
        """The components that are kept."""
        return np.asarray(observation)[self._keep]


class AsFloats(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Whole numbers as float32, times `scale`: networks divide bytes by 255, and these not.

    Args:
        env: its observations are of a Box, or of a Dict or Tuple, whose Boxes of whole numbers
            change, however deep they lie.
        scale: of the numbers.

    Raises:
        ValueError: there are none.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], scale: float = 1.0) -> None:
        super().__init__(env)
        self._scale = scale
        space = env.observation_space
        is_bare = isinstance(space, spaces.Box)  # one of floats is scaled, too
        made, change = self._scaling(space) if is_bare else self._changed(space)
        if change is None:
            raise ValueError(f"there is no Box of whole numbers in {space}")
        self.observation_space, self._change = made, change

    def _changed(self, space: Any) -> tuple[Any, Callable[[Any], Any] | None]:
        """Returns the space of the scaled values, and what scales one; None: nothing changes."""
        children = children_of(space)
        if children is None:
            is_whole = isinstance(space, spaces.Box) and space.dtype.kind in "iu"
            return self._scaling(space) if is_whole else (space, None)
        parts, changes = dict(children), {}
        for key, child in children:
            made, change = self._changed(child)
            if change is not None and key != ACTION_MASK:
                parts[key], changes[key] = made, change
        if not changes:
            return space, None

        def each(value: Any) -> dict[Any, Any]:
            own = dict(value if isinstance(value, Mapping) else enumerate(value))
            return own | {key: change(own[key]) for key, change in changes.items()}

        if isinstance(space, spaces.Tuple):
            return spaces.Tuple(parts.values()), lambda value: tuple(each(value).values())
        return spaces.Dict(parts), each

    def _scaling(self, space: Any) -> tuple[spaces.Box, Callable[[Any], Array]]:
        limits = np.stack([space.low, space.high]).astype(np.float64)
        low, high = np.sort(self._scale * limits, axis=0)
        made = spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
        return made, self._scaled

    def observation(self, observation: Any) -> Any:
        """The numbers, scaled."""
        return self._change(observation)

    def _scaled(self, numbers: Any) -> Array:
        return np.asarray(numbers, np.float32) * np.float32(self._scale)


class RepeatAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each action is taken several times in a row; the rewards of these steps are added up.

    Args:
        env: what happens in between is not seen.
        times: steps of `env` for one action; fewer where the episode ends.

    Attributes:
        times: see there.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], times: int) -> None:
        super().__init__(env)
        if times < 1:
            raise ValueError(f"an action is taken at least once, not {times} times")
        self.times = times

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The last observation, and the sum of rewards."""
        total = 0.0
        for _ in range(self.times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += number_of(reward)
            if truth_of(terminated, "terminated") or truth_of(truncated, "truncated"):
                break
        return observation, total, terminated, truncated, info


class ResetOptions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Every episode begins by the same options.

    Args:
        env: its reset takes them.
        options: of each reset; those that a reset is given besides come before them.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], options: Mapping[str, Any]) -> None:
        super().__init__(env)
        self._options = dict(options)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        return self.env.reset(seed=seed, options={**self._options, **(options or {})})


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations with masks of legal actions, as ``{..., "action_mask": bool [entries]}``.

    Args:
        env: of gymnasium's API.
        source: where its masks are: ``info``, or a key of its observations.

    Attributes:
        mask_layout: of its masks.

    Raises:
        EnvError: it has no such key, or no discrete actions.
    """

    def __init__(self, env: Any, source: str) -> None:
        super().__init__(env)
        space = env.observation_space
        self._key = "" if source == "info" else source
        if self._key and self._key not in getattr(space, "spaces", {}):
            raise EnvError(f"env.action_mask is {source!r}: no key of its observations, {space}")
        of_masks = space.spaces[self._key] if self._key else None
        where = f"observation[{source!r}]" if self._key else f"info[{ACTION_MASK!r}]"
        self.mask_layout = MaskLayout(env.action_space, where, of_masks)
        if not self.mask_layout.entries:
            raise EnvError(f"masks are of discrete actions, and its actions are {env.action_space}")
        self._merges = isinstance(space, spaces.Dict)
        parts = space.spaces if self._merges else {"observation": space}
        others = {key: child for key, child in parts.items() if key != self._key}
        mask = spaces.MultiBinary(self.mask_layout.entries)
        self.observation_space = spaces.Dict({**others, ACTION_MASK: mask})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info, is_over=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        is_over = truth_of(terminated, "terminated") or truth_of(truncated, "truncated")
        masked = self._masked(observation, info, is_over=is_over)
        return masked, reward, terminated, truncated, info

    def _masked(self, observation: Any, info: Any, *, is_over: bool) -> dict[str, Any]:
        """The observation with its mask; nobody needs one where the episode is over.

        Raises:
            EnvValueError: there is no mask, or it is not of its actions.
        """
        given = observation if self._key else info
        mask = given.get(self._key or ACTION_MASK)
        if mask is None and not is_over:
            raise EnvValueError(
                f"its info has no {ACTION_MASK!r}; env.action_mask says that it has"
            )
        entries = self.mask_layout.entries
        mask = np.ones(entries, np.int8) if mask is None else self.mask_layout.flat(mask)
        others = dict(observation) if self._merges else {"observation": observation}
        others.pop(self._key, None)
        return {**others, ACTION_MASK: mask}


def rewarded(env: object, rewards: Any, judge: object) -> Any:
    """Returns the rewards that `judge` says, as wrappers of rewards around it change them."""
    wrappers = []
    while isinstance(env, gymnasium.Wrapper) and env is not judge:
        if isinstance(env, gymnasium.RewardWrapper):
            wrappers.append(env)
        env = env.env
    for wrapper in reversed(wrappers):  # the innermost first
        each = [number_of(wrapper.reward(reward)) for reward in np.ravel(rewards).tolist()]
        rewards = np.reshape(each, np.shape(rewards))
    return rewards


def sums_rewards(env: object) -> bool:
    """Decides whether rewards of an environment are sums that its `compute_reward` cannot know.

    Whether a wrapper of the user's around `RepeatAction` rewards anew, only its rewards show.
    """
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, RepeatAction):
            return env.times > 1
        if type(env).__module__.partition(".")[0] not in ("gymnasium", "hpcdi"):
            return False
        env = env.env
    return False


class ScaleReward(gymnasium.RewardWrapper[Any, Any]):
    """Rewards times `scale`."""

    def __init__(self, env: gymnasium.Env[Any, Any], scale: float) -> None:
        super().__init__(env)
        self._scale = scale

    def reward(self, reward: object) -> float:
        """The scaled reward."""
        return number_of(reward) * self._scale


class SignReward(gymnasium.RewardWrapper[Any, Any]):
    """The sign of each reward: -1, 0 or 1 (Mnih et al. 2015)."""

    def reward(self, reward: object) -> float:
        """The sign."""
        return float(np.sign(number_of(reward)))


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations, rewards and ends as the spaces say, or an `EnvValueError`.

    For environments that gymnasium steps together: its vector environments cast what they return
    to what the first of them returned. So infos are their numbers alone, all of them floats. What
    a reset takes of the process is put back, which may be in a step of theirs (`SignalGuard`).

    Args:
        env: one of them.
        number: of it among them, which errors name.
    """

    def __init__(self, env: Any, number: int) -> None:
        super().__init__(env)
        self._number, self._signals = number, SignalGuard()
        seen = Space.of_observations(env.observation_space, as_is=True)
        row = seen.zeros(1)
        self._put, self._value = seen.into(row, 0), seen.out_of(row, 0)
        self._mask = split_mask(env.observation_space)[1]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        try:
            with self._signals:
                observation, info = parts_of_reset(self.env.reset(seed=seed, options=options))
            return self._checked(observation), numbers_in(info)
        except EnvValueError as error:
            raise EnvValueError(str(error), self._number) from error

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Step."""
        try:
            observation, reward, terminated, truncated, info = parts_of_step(self.env.step(action))
            return (
                self._checked(observation), number_of(reward), truth_of(terminated, "terminated"),
                truth_of(truncated, "truncated"), numbers_in(info),
            )  # fmt: skip
        except EnvValueError as error:
            raise EnvValueError(str(error), self._number) from error

    def _checked(self, observation: object) -> Any:
        self._put(observation)
        value = self._value()
        if self._mask is not None:  # it is flat there
            value[ACTION_MASK] = spaces.unflatten(self._mask, value[ACTION_MASK])
        return value


_OURS = (
    AsFloats, ChannelsFirst, Components, RepeatAction, ResetOptions, ScaleReward, SignReward,
)  # fmt: skip
WRAPPERS: dict[str, Wrap] = {wrapper.__name__: wrapper for wrapper in _OURS}
_OF_ONE_COPY = {
    "NormalizeObservation": "each environment would scale by statistics of its own",
    "NormalizeReward": "each environment would scale by statistics of its own",
    "RecordVideo": "`hpcdi eval --video` films",
    "Autoreset": "the environment manager resets",
}
"""Wrappers that are refused, since a run has many environments, and why."""


def wrap(env: object, wrappers: Sequence[str | Mapping[str, Any]]) -> Any:
    """Returns an environment inside its wrappers.

    Args:
        env: of gymnasium's API.
        wrappers: see the module's docstring; the first one is the innermost.

    Raises:
        ConfigError: a wrapper is not there, or cannot be made; names its place in the list.
    """
    for number, each in enumerate(wrappers):
        path = f"env.wrappers[{number}]"
        arguments = {"type": each} if isinstance(each, str) else dict(each)
        name = str(arguments.pop("type", ""))
        make = find_wrapper(name, path)
        if name not in WRAPPERS:
            arguments = _as_annotated(make, arguments, is_of_gymnasium=":" not in name)
        try:
            env = as_gymnasium(make(env, **arguments))  # one of yours may be old itself
        except Exception as error:  # a wrapper refuses as it likes
            raise ConfigError(
                [Problem(path, f"{name}: {type(error).__name__}: {error}")]
            ) from error
    return env


def _as_annotated(
    make: Wrap, arguments: Mapping[str, Any], *, is_of_gymnasium: bool
) -> dict[str, Any]:
    """Returns arguments of a wrapper: lists are arrays where its annotations say ``ndarray``.

    Other lists are tuples in gymnasium's own, which want those. YAML has neither.
    """
    wanted, made = parameters_of(make) or {}, dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, list):
            is_array = name in wanted and "ndarray" in str(wanted[name].annotation)
            made[name] = np.array(value) if is_array else tuple(value) if is_of_gymnasium else value
    return made


def without_reward_wrappers(
    wrappers: Sequence[str | dict[str, Any]],
) -> tuple[str | dict[str, Any], ...]:
    """Returns the wrappers but for those that only change rewards (`gymnasium.RewardWrapper`).

    Those are for learning: an evaluation's returns are the environment's own.
    """
    kept = []
    for each in wrappers:
        name = each if isinstance(each, str) else str(each.get("type"))
        wrapper = find_wrapper(name, "env.wrappers")
        if not (isinstance(wrapper, type) and issubclass(wrapper, gymnasium.RewardWrapper)):
            kept.append(each)
    return tuple(kept)


def find_wrapper(name: str, path: str) -> Wrap:
    """Returns the wrapper of a name.

    Args:
        name: see the module's docstring.
        path: of the setting, for the message.

    Raises:
        ConfigError: there is none of that name.
    """
    if name in _OF_ONE_COPY:
        raise ConfigError([Problem(path, f"{name} is of no use here: {_OF_ONE_COPY[name]}")])
    if ":" in name:
        wrapper: Wrap = named_in_module(name, path)
        return wrapper
    known = {**{each: None for each in of_gymnasium.__all__ if each != "vector"}, **WRAPPERS}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else "."
        message = (
            f"there is no wrapper {name!r}{guess} It is one of gymnasium.wrappers, one of "
            f"{', '.join(WRAPPERS)}, or a 'module:Class' of yours"
        )
        raise ConfigError([Problem(path, message)])
    try:
        return WRAPPERS.get(name) or getattr(of_gymnasium, name)
    except ModuleNotFoundError as error:  # gymnasium imports each where it is asked for
        raise ConfigError([Problem(path, missing_module(name, error))]) from error
