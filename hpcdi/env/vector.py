"""The back-end of one vector environment (gymnasium's own kinds, EnvPool), in any autoreset mode.

What an episode's end looks like, by mode::

    NEXT_STEP   the step returns the last observation; the next step resets (a dummy: not live)
    SAME_STEP   the step returns the first observation of the next episode; the last one is in info
    DISABLED    the step returns the last observation; the back-end resets with a mask

All three become the same: `successor` is always the last observation of the old episode,
`observation` always what the policy acts on next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from hpcdi.config.schedule import Scheduled
from hpcdi.env.base import BackendStep, EnvFacts, EnvFailure, EpisodeStart
from hpcdi.env.contract import (
    Origin,
    Space,
    as_numbers,
    copy_of_info,
    described,
    number_in,
    numbers_in,
    objection_to,
    parts_of_reset,
    parts_of_step,
    rewards_of_all,
    truths_of_all,
    with_ordered_masks,
)
from hpcdi.env.in_process import TIMED_EVERY, call_method, close_or_warn
from hpcdi.env.process_state import SignalGuard, seed_libraries
from hpcdi.errors import ConfigError, EnvError, EnvValueError
from hpcdi.types import ACTION_MASK, INFO, NO_SEED, Array, Columns
from hpcdi.utils.truths import all_of, any_of


class VectorEnvs:
    """Back-end of one vector environment in this process; see `hpcdi.env.base.Backend`.

    Single environments cannot be replaced in it: when one raises, all are re-created.

    Args:
        make: makes the vector environment.
        env_num: environments in it.
    """

    fails_as_one = True
    wait_num: int | None = None
    is_taken = False
    keeps_infos = False
    kept: Sequence[str] = ()
    origin: Origin = MappingProxyType({})

    def __init__(self, make: Callable[[], VectorEnv[Any, Any, Any]], env_num: int) -> None:
        self.env_num = env_num
        self.facts: EnvFacts | None = None
        self.acts = np.zeros(env_num, dtype=bool)
        self.observation: Columns = {}
        self.infos: dict[int, Any] = {}
        self._make = make
        self._env: Any = None
        self._signals = SignalGuard()
        self._other: Columns = {}  # observations that the next step writes to
        self._put: Any = None  # into the present ones, and into the others
        self._put_other: Any = None
        self.step_times = np.zeros((2, env_num))
        self._steps, self._timed = 0, list[TimedEnv]()
        self._all, self._none = np.ones(env_num, dtype=bool), np.zeros(env_num, dtype=bool)
        self._all.flags.writeable = self._none.flags.writeable = False

    def schedule(self, values: Scheduled) -> None:
        """See `Backend.schedule`; where there is a schedule, single environments are made."""
        raise EnvError(f"a vector environment has no schedule: {sorted(values)}")

    def start(self, starts: Mapping[int, EpisodeStart]) -> dict[int, EnvFailure]:
        """Create the vector environment where it does not exist, and reset those of `starts`.

        Raises:
            EnvError: it does not say how it resets; or it cannot reset single environments, or not
                by options. ConfigError: it cannot be made.
        """
        seed = next(iter(starts.values())).seed
        if seed is not None:
            seed_libraries(seed, with_torch=False)
        try:
            with self._signals:
                if not all(start.exists for start in starts.values()):
                    self._create()
                self._reset(starts)
        except EnvValueError as error:
            return {0: EnvFailure.of(error)}
        except (ConfigError, EnvError):
            raise
        except BaseException as error:  # whatever an environment raises is its failure
            return {0: EnvFailure.of(error)}
        self.acts = self.acts.copy()
        self.acts[list(starts)] = True
        return {}

    def step(
        self,
        action: Columns,
        began: Array,
        seeds: Sequence[int | None],  # noqa: ARG002 (its generators go on)
        goes_on: Sequence[bool],  # noqa: ARG002 (it always goes on)
    ) -> BackendStep:
        """Step all environments, also those that do not act."""
        # the policy may still read the present ones
        self.observation, self._other = self._other, self.observation
        self._put, self._put_other = self._put_other, self._put
        try:
            return self._stepped(action, began)
        except ConfigError:
            raise
        except BaseException as error:  # whatever an environment raises is its failure
            no, failed = np.zeros(self.env_num, dtype=bool), {0: EnvFailure.of(error)}
            nothing = no.astype(np.float32)
            return BackendStep(self.observation, nothing, no, no, no, no, {}, failed)

    def _stepped(self, action: Columns, began: Array) -> BackendStep:
        """`step`, which may raise. All that the environment returns is copied before its next call.

        What it returned may be its own arrays, and what it is given it may change.
        """
        mode, rows = self._mode, self.env_num
        action = action or self._nothing
        if self._refuses_zeros and not all_of(began):
            action = self._idle(action, ~began)
        given = self._acts.value(action, ...)
        observation, reward, terminated, truncated, info = parts_of_step(self._step_env(given))
        reward = rewards_of_all(reward, rows)
        terminated = truths_of_all(terminated, rows, "terminated")
        truncated = truths_of_all(truncated, rows, "truncated")
        self._put(observation)
        is_cut, successor = any_of(truncated), self.observation
        is_over = terminated | truncated if is_cut else terminated
        if not all_of(began):
            reward[~began] = 0.0
        if not any_of(is_over):
            self.acts = self._all  # those that did not have begun an episode in this step
            if self.keeps_infos:
                self.infos = copy_of_info(_infos(info, began))
            none = self._none
            kept = self._kept(info, none, is_same=False)
            return BackendStep(successor, reward, none, none, none, began, {}, {}, kept)
        ended = is_over & began
        terminated, truncated = (
            (terminated & began, truncated & began) if is_cut else (ended, self._none)
        )
        is_same, not_begun = mode is AutoresetMode.SAME_STEP, dict[int, EnvFailure]()
        ends: dict[int, list[dict[str, float]]]
        if info or self.keeps_infos:
            # in SAME_STEP those beside the final ones are of the next episodes
            infos = _infos(_final_info(info, ended) if is_same else info, ended)
            ends = {env: [numbers_in(of_env)] for env, of_env in infos.items()}
            if self.keeps_infos:
                self.infos = copy_of_info(_infos(info, began & ~ended) | infos)
        else:
            ends = {env: [{}] for env in ended.nonzero()[0].tolist()}
        kept = self._kept(info, ended, is_same=is_same)
        if mode is AutoresetMode.NEXT_STEP:
            # a step that resets ends nothing
            self.acts = ~(is_over & self.acts)
        else:
            successor = {name: column.copy() for name, column in self.observation.items()}
            if is_same:
                self._put_last(successor, is_over, info)
            else:
                not_begun = self._begin_next(is_over.copy())  # that may be the environment's own
        return BackendStep(
            successor, reward, terminated, truncated, ended, began, ends, {}, kept, not_begun
        )

    def _idle(self, action: Columns, rows: Array) -> Columns:
        """Returns actions of which those of some rows, bool [rows], where nobody acts, are legal.

        Their environments are stepped, too, and may refuse what masks forbid, or is out of bounds.
        """
        action = {name: column.copy() for name, column in action.items()}
        mask: Any = self._other.get(ACTION_MASK)  # of before this step
        entry = 0
        for leaf in self._acts.leaves:
            column = action[leaf.column("action")].reshape(self.env_num, -1)
            if leaf.low:
                column[rows] = np.clip(0.0, leaf.low, leaf.high)
            for part, values in enumerate(leaf.counts if mask is not None else ()):
                column[rows, part] = mask[rows, entry : entry + values].argmax(axis=1)
                entry += values
        return action

    def _begin_next(self, mask: Array) -> dict[int, EnvFailure]:
        """Reset some environments, bool [rows], whose step is over; returns the failure of all."""
        try:
            with self._signals:
                first, _ = parts_of_reset(self._env.reset(options={"reset_mask": mask.copy()}))
            self._put_rows(mask, first)
        except ConfigError:
            raise
        except BaseException as error:  # whatever an environment raises is its failure
            return {0: EnvFailure.of(error)}
        return {}

    def _step_env(self, action: object) -> Any:
        """Step the vector environment; some steps of a `SyncVectorEnv` are timed one by one."""
        env, self._steps = self._env, self._steps + 1
        if self._steps % TIMED_EVERY or not self._timed:
            return env.step(action)
        untimed, env.envs = env.envs, self._timed
        try:
            return env.step(action)
        finally:
            env.envs = untimed

    def _kept(self, info: Mapping[str, Any], ended: Array, *, is_same: bool) -> Columns:
        """Returns what is kept of infos, of ended episodes the final ones (`is_same`)."""
        kept = {}
        for name in self.kept:
            kept[f"{INFO}/{name}"] = column = _numbers(info, name, self.env_num)
            if is_same:
                column[ended] = _numbers(_final_info(info, ended), name, self.env_num)[ended]
        return kept

    def _put_rows(self, rows: Array, observation: object) -> None:
        """Write some rows (bool) of an observation of all; others stay what a step has returned."""
        scratch = self._seen.zeros(self.env_num)
        self._seen.put(scratch, ..., observation)
        for name, column in self.observation.items():
            column[rows] = scratch[name][rows]

    def turn_over(self) -> None:
        """See `Backend.turn_over`."""
        self.observation = {name: column.copy() for name, column in self.observation.items()}
        self._put = self._seen.into(self.observation, ...)

    def seed_taken(self, env: int, seed: int | None, *, is_later: bool) -> int | None:  # noqa: ARG002
        """See `Backend.seed_taken`: only a `SyncVectorEnv` has a generator for each."""
        if not isinstance(self._env, SyncVectorEnv):
            return NO_SEED
        return None if is_later else seed

    @property
    def resets_alone(self) -> bool:
        """Whether single environments can be reset."""
        return isinstance(self._env, SyncVectorEnv) or self._mode is AutoresetMode.DISABLED

    def call(self, env: int, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call an environment's method; only a `SyncVectorEnv` has single environments."""
        if not isinstance(self._env, SyncVectorEnv):
            return False, None
        try:
            return call_method(self._env.envs[env], name, args)
        except Exception as error:  # whatever an environment raises is its failure
            raise EnvFailure.of(error) from error

    def render(self, _live: Array) -> list[Any]:
        """Returns a picture of each environment; None where it draws none."""
        if isinstance(self._env, SyncVectorEnv):
            return [self.call(env, "render", ())[1] for env in range(self.env_num)]
        drawn: Any = self._env.render() if self._env.render_mode == "rgb_array" else None
        if not isinstance(drawn, list | tuple):  # one array of all, or a tensor
            pictures = as_numbers(0 if drawn is None else drawn)
            drawn = pictures if pictures.ndim == 4 else []
        return [*drawn, *[None] * self.env_num][: self.env_num]

    def retire(self, env: int) -> None:
        """Never: the failure of one is the failure of all."""

    def close(self) -> None:
        """Close the vector environment. Idempotent."""
        env, self._env, self.facts, self._timed = self._env, None, None, []
        close_or_warn(env)

    def _create(self) -> None:
        self.close()
        env = self._env = self._make()
        if wrong := objection_to(env, self.env_num):
            raise EnvError(wrong)
        self._mode = env.metadata["autoreset_mode"]
        envs = env.envs if isinstance(env, SyncVectorEnv) else ()
        self._timed = [TimedEnv(one, self.step_times[:, k]) for k, one in enumerate(envs)]
        observation = with_ordered_masks(env.single_observation_space, env.single_action_space)
        self.facts = EnvFacts(observation, env.single_action_space)
        self._seen = Space.of_observations(observation, origin=self.origin)
        self._acts = Space.of_actions(env.single_action_space)
        self._nothing = self._acts.zeros(self.env_num)
        bounds = [(leaf.low, leaf.high) for leaf in self._acts.leaves if leaf.low]
        self._refuses_zeros = self._seen.mask_size > 0 or any(
            np.any(np.clip(0.0, low, high)) for low, high in bounds
        )
        if not self.observation:
            self.observation, self._other = (self._seen.zeros(self.env_num) for _ in range(2))
        self._put = self._seen.into(self.observation, ...)
        self._put_other = self._seen.into(self._other, ...)

    def _reset(self, starts: Mapping[int, EpisodeStart]) -> None:
        """Reset the environments of `starts`, and write their observations."""
        is_sync = isinstance(self._env, SyncVectorEnv)
        seeds: Any = next(iter(starts.values())).seed  # of the generator that all copies share
        if is_sync:
            seeds = [starts[env].seed if env in starts else None for env in range(self.env_num)]
        if any(start.options for start in starts.values()):
            raise EnvError("options are not supported by gymnasium's vector environments")
        if len(starts) == self.env_num:
            result = self._env.reset(seed=seeds)
            self._put(parts_of_reset(result)[0])
            return
        if not is_sync and self._mode is not AutoresetMode.DISABLED:
            raise EnvError(
                "this vector environment cannot reset single environments; set "
                "env.manager.type: subprocess, or env.vectorization: sync"
            )
        mask = np.isin(np.arange(self.env_num), list(starts))
        result = self._env.reset(seed=seeds, options={"reset_mask": mask.copy()})
        self._put_rows(mask, parts_of_reset(result)[0])

    def _put_last(self, successor: Columns, ended: Array, info: Mapping[str, Any]) -> None:
        """Replace observations of ended episodes by their last ones (SAME_STEP)."""
        if "final_obs" not in info:
            raise EnvValueError(
                "the environment says it resets in the same step, but its info has no 'final_obs'"
            )
        space = self._env.single_observation_space
        for env in np.flatnonzero(ended).tolist():
            self._seen.put(successor, env, _of_one(info["final_obs"], env, space))


class TimedEnv:
    """A single environment of a vector one, for the steps that are timed.

    Args:
        env: it.
        times: its column of `Backend.step_times`.
    """

    def __init__(self, env: Any, times: Array) -> None:
        self._env, self._times = env, times

    def step(self, action: Any) -> Any:
        """Step it."""
        began = time.perf_counter()
        result = self._env.step(action)
        self._times[0] += time.perf_counter() - began
        self._times[1] += 1.0
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def _of_one(value: Any, env: int, space: Any) -> Any:
    """Returns one environment's of values of all: a batch, or a value of each in a sequence.

    Args:
        value: values of all; of a Dict or a Tuple a mapping or a tuple of those of its parts.
        env: number of the environment.
        space: of one value.
    """
    if isinstance(value, Mapping):
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        return {key: _of_one(part, env, parts.get(key)) for key, part in value.items()}
    if isinstance(value, tuple) and isinstance(space, spaces.Tuple):
        return tuple(_of_one(part, env, own) for part, own in zip(value, space, strict=True))
    return value[env]


def _final_info(info: Mapping[str, Any], ended: Array) -> Any:
    """Returns the infos of episodes that ended (SAME_STEP): a mapping of arrays, or one info each.

    Raises:
        EnvValueError: it is neither.
    """
    final = info.get("final_info", {})
    if isinstance(final, Mapping) or np.shape(final)[:1] == ended.shape:
        return final
    raise EnvValueError(
        f"final_info: {described(final)}, and must be a mapping of arrays, or one info of each of "
        f"{len(ended)} environments"
    )


_FINAL = ("final_obs", "final_info")
"""Of ended episodes, in infos of gymnasium's vector environments (SAME_STEP)."""


def _infos(info: Any, envs: Array) -> dict[int, dict[str, Any]]:
    """Returns a vector environment's info as one dict for each environment of the mask `envs`.

    Where a mask ``_name`` is missing, numbers are of all environments; what else there is, of none.
    """
    numbers: list[int] = envs.nonzero()[0].tolist()
    if not isinstance(info, Mapping):
        return {env: dict(info[env] or {}) for env in numbers}
    infos: dict[int, dict[str, Any]] = {env: {} for env in numbers}
    for name, value in info.items():
        text = str(name)
        if text in _FINAL or (text.startswith("_") and text[1:] in info):
            continue
        mask, parts = info.get(f"_{name}"), value
        if isinstance(value, Mapping):
            parts = _infos(value, envs)
        elif mask is None:
            parts = _numbers_of_each(value, len(envs))
        for env in numbers if parts is not None else ():
            if mask is None or mask[env]:
                infos[env][name] = parts[env]
    return infos


def _numbers_of_each(value: object, env_num: int) -> Array | None:
    """Returns numbers, of which each environment has one or several; None: it is something else."""
    with suppress(ValueError):
        numbers = as_numbers(value)
        return numbers if numbers.shape[:1] == (env_num,) else None
    return None


def _numbers(info: Any, name: str, env_num: int) -> Array:
    """Returns a number of a vector environment's info, float64 [environments]; see `number_in`."""
    if not isinstance(info, Mapping):
        return np.array([number_in(own, name) for own in info])
    value, mask = info.get(name), info.get(f"_{name}", True)
    if isinstance(value, np.ndarray) and value.shape == (env_num,) and value.dtype.kind in "biuf":
        return np.where(mask, value.astype(np.float64), np.nan)
    of_mask = f"_{name}"
    named = {
        key: part for key, part in info.items()
        if name.startswith(str(key)) or of_mask.startswith(str(key))
    }  # fmt: skip
    infos = _infos(named, np.ones(env_num, bool))
    return np.array([number_in(infos[env], name) for env in range(env_num)])
