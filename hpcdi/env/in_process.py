"""Single environments: the back-end that steps them together, and those that live in this process.

Each environment has a worker, which is asked for something and answers later, so that environments
in child processes (`hpcdi.env.child_process`) work at the same time::

    for worker in workers: worker.ask(command)
    for worker in workers: worker.answer()

Observations, actions and results lie side by side in arrays (`SharedArrays`), one row for each
environment; those of battles are objects, and travel with the commands.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Protocol, Self

import numpy as np

from hpcdi.env.base import (
    BackendStep,
    BaseEnvTimestep,
    EnvFacts,
    EnvFailure,
    EnvFn,
    EpisodeStart,
)
from hpcdi.env.old_gym import as_gymnasium
from hpcdi.env.pettingzoo import as_battle, teams_of
from hpcdi.env.spaces import Form, other_than_space
from hpcdi.errors import ConfigError, EnvError
from hpcdi.types import Array
from hpcdi.utils.lifetime import Closing

Command = tuple[Any, ...]
"""The name of a method of `LocalWorker`, and its arguments."""

CLOSE_S = 1.0
"""How long environments may take to close, all together, before their processes are killed."""
_ALIGNMENT = 64


# ------------------------------------------------------------------------------------------- arrays


@dataclass(frozen=True)
class Layout:
    """Sizes of the arrays."""

    env_num: int
    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype[Any]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]

    @classmethod
    def of(cls, env_num: int, observation: Any, action: Any) -> Self:
        """Returns the layout for two gymnasium spaces.

        Raises:
            EnvError: these are not arrays.
        """
        seen, acts = Form.of_observations(observation), Form.of_actions(action)
        return cls(env_num, seen.shape, seen.dtype, acts.shape, acts.dtype)

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Returns shape and dtype of each array."""
        row = (self.env_num,)
        observation = ((*row, *self.obs_shape), self.obs_dtype)
        return {
            "observation": observation,
            "final": observation,
            "action": ((*row, *self.action_shape), self.action_dtype),
            "reward": (row, np.dtype(np.float32)),
            "terminated": (row, np.dtype(bool)),
            "truncated": (row, np.dtype(bool)),
        }


class SharedArrays(Closing):
    """Arrays with one row for each environment; processes that hold the descriptor share them.

    Shared ones lie in anonymous memory (a memfd): it has no name, so that nothing can be left
    behind, and is freed with the last process that holds it, however that ends.

    Args:
        layout: sizes.
        fd: of the memory; -1: memory of this process only.

    Attributes:
        observation: the policy acts on it next.
        final: the last observation of the episode that ended last.
        action: of the next step.
        reward, terminated, truncated: of the last step.
    """

    observation: Array
    final: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array

    def __init__(self, layout: Layout, fd: int) -> None:
        self.layout, self.fd = layout, fd
        places, size = {}, 0
        for name, (shape, dtype) in layout.arrays().items():
            places[name] = size
            size += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if fd >= 0:
            os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)  # unmapped with the last array on it
        for name, (shape, dtype) in layout.arrays().items():
            flat = np.frombuffer(memory, dtype, count=math.prod(shape), offset=places[name])
            setattr(self, name, flat.reshape(shape))

    @classmethod
    def create(cls, layout: Layout, *, is_shared: bool) -> Self:
        """Returns new arrays, all zeros."""
        return cls(layout, os.memfd_create("hpcdi-env") if is_shared else -1)

    def close(self) -> None:
        """Close the descriptor; the arrays stay. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


# ------------------------------------------------------------------------------------------ workers


class EnvWorker(Protocol):
    """One environment, which does one command after the other."""

    def ask(self, command: Command) -> None:
        """Begin a command; a failure shows in `answer`."""
        ...

    def answer(self) -> Any:
        """Wait for the command, and return its result.

        Raises:
            EnvFailure: it failed, or took too long.
        """
        ...

    def attach(self, arrays: SharedArrays, row: int) -> None:
        """Use a row of arrays."""
        ...

    def retire(self) -> None:
        """Close the environment without waiting for it, whatever it raises."""
        ...

    def begin_close(self) -> None:
        """Ask the environment to close."""
        ...

    def close(self, patience_s: float) -> None:
        """Close it within `patience_s`."""
        ...


class LocalWorker:
    """An environment in this process; it does a command when it is asked.

    Args:
        make: makes the environment.
        takes_objects: whether it is a battle environment.
        on_reset: called when a step is over and the reset at an episode's end begins.
    """

    def __init__(
        self,
        make: EnvFn,
        *,
        takes_objects: bool = False,
        on_reset: Callable[[], None] = lambda: None,
    ) -> None:
        self._make_env, self._takes_objects, self._on_reset = make, takes_objects, on_reset
        self._env: Any = None
        self._row = 0
        self._arrays: Any = None
        self._shape: tuple[int, ...] = ()  # of observations
        self._dtype: Any = ""  # of the last one: those like it need no check
        self._seen: Form | None = None  # of observations, where they are no plain arrays
        self._acts: Form | None = None  # of actions, likewise
        self._result: Any = None
        self._failure: EnvFailure | None = None

    # the commands

    def make(self) -> EnvFacts:
        """Create the environment, in place of the one there was."""
        self.shut()
        made = self._make_env()
        for name in ("reset", "step"):
            if not callable(getattr(made, name, None)):
                raise EnvError(f"{made!r} is no environment: it has no {name}()")
        env = self._env = as_battle(made) if self._takes_objects else as_gymnasium(made)
        observation = getattr(env, "observation_space", None)
        action = getattr(env, "action_space", None)
        if not self._takes_objects:
            return EnvFacts(observation, action, 1)
        return EnvFacts(observation, action, int(env.agents), teams_of(env))

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Begin an episode; returns the players' observations in a battle, else None."""
        if self._takes_objects:
            return self._env.reset(seed=seed, **({"options": options} if options else {}))
        self._keep(self._arrays.observation, self._env.reset(seed=seed, options=options)[0])
        return None

    def step(self, next_seed: int | None, goes_on: bool, wants_info: bool) -> Any:
        """Act as the arrays say, and begin the next episode where one ended.

        Sets the arrays' marks of an end where there is one; who reads them clears them.

        Args:
            next_seed: for the episode that begins; None: the environment's generator goes on.
            goes_on: begin it.
            wants_info: return the environment's info.
        """
        arrays, row = self._arrays, self._row
        if self._acts is not None:
            action = self._acts.unpack(arrays.action, row)
        else:
            action = arrays.action[row]
            if action.ndim:  # a view of memory that the next action is written to
                action = action.copy()
        observation, arrays.reward[row], terminated, truncated, info = self._env.step(action)
        if terminated or truncated:
            arrays.terminated[row], arrays.truncated[row] = terminated, truncated
            self._keep(arrays.final, observation)
            if goes_on:
                self._on_reset()
                observation, _ = self._env.reset(seed=next_seed)
        self._keep(arrays.observation, observation)
        return info if wants_info else None

    def _keep(self, array: Array, observation: Any) -> None:
        if self._seen is not None:
            self._seen.put(array, self._row, observation)
            return
        dtype = getattr(observation, "dtype", None)
        if dtype is not self._dtype or observation.shape != self._shape:
            if np.shape(observation) != self._shape or _loses(observation, array.dtype):
                raise EnvError(other_than_space(observation, self._shape, array.dtype))
            self._dtype = dtype or "a list's"
        array[self._row] = observation

    def play(
        self, next_seed: int | None, goes_on: bool, actions: list[Any]
    ) -> tuple[BaseEnvTimestep, Any]:
        """`step` of a battle; returns the next episode's first observation, too, if it began."""
        obs, reward, done, info = self._env.step(actions)
        first = None
        if done and goes_on:
            self._on_reset()
            first = self._env.reset(seed=next_seed)
        rewards: Array = np.asarray(reward, dtype=np.float32)
        return BaseEnvTimestep(list(obs), rewards, bool(done), info), first

    def call(self, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call the environment's method; see `call_method`."""
        return call_method(self._env, name, args)

    def shut(self) -> None:
        """Close the environment. Idempotent."""
        env, self._env = self._env, None
        if hasattr(env, "close"):
            env.close()

    # the contract of workers

    def ask(self, command: Command) -> None:
        """Do a command at once."""
        try:
            self._result = getattr(self, command[0])(*command[1:])
        except ConfigError:  # no retry would help
            raise
        except Exception as error:  # whatever an environment raises is its failure
            self._failure = EnvFailure.of(error)
            self._failure.__cause__ = error

    def answer(self) -> Any:
        """Returns the command's result, or raises its failure."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self._result

    def attach(self, arrays: SharedArrays, row: int) -> None:
        """Use a row of arrays."""
        self._arrays, self._row = arrays, row
        seen = Form.of_observations(self._env.observation_space)
        acts = Form.of_actions(self._env.action_space)
        self._shape, self._dtype = seen.shape, ""
        self._seen, self._acts = None if seen.is_plain else seen, None if acts.is_own else acts

    def retire(self) -> None:
        """Close the environment; an error of its own does not matter any more."""
        self.ask(("shut",))
        self._failure = None

    def begin_close(self) -> None:
        """Nothing to do before `close`."""

    def close(self, _patience_s: float) -> None:
        """Close the environment."""
        self.shut()
        self._arrays = None


def _loses(observation: Any, dtype: np.dtype[Any]) -> bool:
    """True if numbers with fractions are given where the space has whole ones."""
    return dtype.kind in "biu" and getattr(observation, "dtype", dtype).kind == "f"


def call_method(env: Any, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
    """Call a method of an environment, looking through wrappers.

    Returns:
        Whether the environment has the method, and what that returned.
    """
    method = getattr(env, name, None) or getattr(getattr(env, "unwrapped", None), name, None)
    if method is None:
        return False, None
    try:
        return True, method(*args)
    except NotImplementedError:  # gymnasium.Env names methods that an environment has not
        return False, None


# ----------------------------------------------------------------------------------------- back-end


class SingleEnvs:
    """Back-end of single environments with a worker each; see `hpcdi.env.base.Backend`.

    Args:
        workers: one for each environment.
        has_arrays: whether observations and actions are arrays; else objects (battles).
        is_shared: whether workers are other processes, which share the arrays.
        wait_num: steps that are waited for; None: all. Needs workers that are other processes.
    """

    fails_as_one = False

    def __init__(
        self,
        workers: Sequence[EnvWorker],
        *,
        has_arrays: bool = True,
        is_shared: bool = False,
        wait_num: int | None = None,
    ) -> None:
        self.workers, self.env_num = workers, len(workers)
        self.facts: EnvFacts | None = None
        self.waiting = np.zeros(self.env_num, dtype=bool)
        self.observation: Any = [None] * self.env_num  # of battles; else an array
        self.wait_num = wait_num
        self._has_arrays, self._is_shared = has_arrays, is_shared
        self._arrays: Any = None
        self._stepping: dict[int, bool] = {}  # whose step is under way -> whether it goes on after

    def perform(
        self, commands: Mapping[int, Command]
    ) -> tuple[dict[int, Any], dict[int, EnvFailure]]:
        """Returns results of commands that environments do at the same time, and the failures."""
        for env, command in commands.items():
            self.workers[env].ask(command)
        return self._answers(commands)

    def _answers(self, envs: Iterable[int]) -> tuple[dict[int, Any], dict[int, EnvFailure]]:
        """Results of what environments were asked, and the failures."""
        results, failed = {}, {}
        for env in envs:
            try:
                results[env] = self.workers[env].answer()
            except EnvFailure as failure:
                failed[env] = failure
        return results, failed

    def start(self, starts: Mapping[int, EpisodeStart]) -> dict[int, EnvFailure]:
        """Create environments that do not exist, and reset all of `starts`."""
        for env in [env for env in starts if env in self._stepping]:
            self._finish(env)
        made, failed = self.perform({e: ("make",) for e, s in starts.items() if not s.exists})
        for env, facts in made.items():
            self._admit(env, facts)
        firsts, not_reset = self.perform(
            {e: ("reset", s.seed, s.options) for e, s in starts.items() if e not in failed}
        )
        self.waiting[list(firsts)] = True
        if self._stepping:  # others write to their rows
            self.observation = self.observation.copy()
            self.observation[list(firsts)] = self._arrays.observation[list(firsts)]
        elif self._arrays is not None:
            self.observation = self._arrays.observation.copy()
        else:
            for env, first in firsts.items():
                self.observation[env] = first
        return failed | not_reset

    def step(
        self,
        actions: Array,
        live: Array,
        *,
        seeds: Sequence[int | None],
        goes_on: Sequence[bool],
        wants_info: bool,
    ) -> BackendStep:
        """Step the environments of `live`; the rows of others are zero.

        With `wait_num` it begins their steps, and returns when so many are over of all that are
        under way: environments of which some have begun with earlier calls.
        """
        if self.wait_num is not None:
            return self._step_some(actions, live, seeds, goes_on, wants_info)
        arrays = self._arrays
        arrays.action[...] = actions
        envs = live.nonzero()[0].tolist()
        for env in envs:
            self.workers[env].ask(("step", seeds[env], goes_on[env], wants_info))
        infos, failed = self._answers(envs)
        reward, terminated = arrays.reward.copy(), arrays.terminated.copy()
        truncated = arrays.truncated.copy()
        if len(infos) < self.env_num:
            resting = np.ones(self.env_num, dtype=bool)
            resting[list(infos)] = False
            reward[resting], terminated[resting], truncated[resting] = 0.0, False, False
        ended = terminated | truncated
        self.observation = successor = arrays.observation.copy()
        over = ended.nonzero()[0]
        if failed or over.size:
            arrays.terminated[:], arrays.truncated[:] = False, False
            successor = self.observation.copy()
            successor[over] = arrays.final[over]
            for env in over.tolist():
                self.waiting[env] = goes_on[env]
        return BackendStep(successor, reward, terminated, truncated, ended, infos, failed)

    def _step_some(
        self,
        actions: Array,
        live: Array,
        seeds: Sequence[int | None],
        goes_on: Sequence[bool],
        wants_info: bool,
    ) -> BackendStep:
        arrays = self._arrays
        arrays.action[live] = actions[live]  # others may not have read theirs yet
        for env in live.nonzero()[0].tolist():
            self.workers[env].ask(("step", seeds[env], goes_on[env], wants_info))
            self._stepping[env] = goes_on[env]
        self.waiting[live] = False
        made = np.zeros(self.env_num, dtype=bool)
        infos, failed, follows = {}, {}, {}
        for env in self._answered(min(self.wait_num or 0, len(self._stepping))):
            made[env], follows[env] = True, self._stepping.pop(env)
            try:
                infos[env] = self.workers[env].answer()
            except EnvFailure as failure:
                failed[env] = failure
        self.observation = self.observation.copy()
        self.observation[made] = arrays.observation[made]
        successor = self.observation.copy()
        is_good = made.copy()
        is_good[list(failed)] = False
        terminated, truncated = arrays.terminated & is_good, arrays.truncated & is_good
        arrays.terminated[made], arrays.truncated[made] = False, False
        ended = terminated | truncated
        successor[ended] = arrays.final[ended]
        for env in is_good.nonzero()[0].tolist():
            self.waiting[env] = follows[env] or not ended[env]
        reward = np.where(is_good, arrays.reward, np.float32(0))
        return BackendStep(successor, reward, terminated, truncated, ended, infos, failed, made)

    def _answered(self, wanted: int) -> list[int]:
        """Wait until at least so many of the steps under way are over; returns whose."""
        workers: dict[int, Any] = {env: self.workers[env] for env in self._stepping}
        while True:
            answered = [env for env, worker in workers.items() if worker.has_answer()]
            if len(answered) >= wanted:
                return answered
            others = [worker for env, worker in workers.items() if env not in answered]
            left_s = min(worker.left_s for worker in others)
            wait(
                [worker.connection for worker in others],
                timeout=None if left_s == math.inf else left_s,
            )

    def _finish(self, env: int) -> None:
        """Wait for the step of an environment that is to be reset, whatever becomes of it."""
        with contextlib.suppress(EnvFailure):
            self.workers[env].answer()
        del self._stepping[env]
        self._arrays.terminated[env], self._arrays.truncated[env] = False, False

    def play(
        self,
        actions: Mapping[int, list[Any]],
        *,
        seeds: Sequence[int | None],
        goes_on: Sequence[bool],
    ) -> tuple[dict[int, BaseEnvTimestep], dict[int, EnvFailure]]:
        """`step` of battles: timesteps of those that the players' actions name, and failures."""
        played, failed = self.perform(
            {env: ("play", seeds[env], goes_on[env], given) for env, given in actions.items()}
        )
        for env, (timestep, first) in played.items():
            self.observation[env] = first if timestep.done else timestep.obs
            self.waiting[env] = goes_on[env] or not timestep.done
        return {env: timestep for env, (timestep, _) in played.items()}, failed

    def call(self, env: int, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call an environment's method; returns whether it has one, and what that returned.

        Raises:
            EnvFailure: the method failed; or a step of the environment is under way.
        """
        if env in self._stepping:
            raise EnvFailure("it is in a step (env.manager.wait_num)")
        self.workers[env].ask(("call", name, args))
        called: tuple[bool, Any] = self.workers[env].answer()
        return called

    def render(self) -> list[Any]:
        """Returns a picture of each environment; None where it draws none."""
        return [self.call(env, "render", ())[1] for env in range(self.env_num)]

    def retire(self, env: int) -> None:
        """Close an environment that has failed too often, without waiting for it."""
        self.workers[env].retire()

    def close(self) -> None:
        """Close all environments within `CLOSE_S`. Idempotent."""
        self.facts = None
        self._stepping.clear()
        for worker in self.workers:
            worker.begin_close()
        deadline = time.monotonic() + CLOSE_S
        for worker in self.workers:
            worker.close(max(0.0, deadline - time.monotonic()))
        if self._arrays is not None:
            self._arrays.close()
            self._arrays = None

    def _admit(self, env: int, facts: EnvFacts) -> None:
        """Attach a new environment to its row of the arrays, after a look at its spaces."""
        if self.facts is None:
            self.facts = facts
            if self._has_arrays:
                layout = Layout.of(self.env_num, facts.observation_space, facts.action_space)
                self._arrays = SharedArrays.create(layout, is_shared=self._is_shared)
        elif facts != self.facts:
            raise EnvError(
                f"environment {env} is of another kind than the first: {facts} against "
                f"{self.facts}; the environments of one manager must have the same spaces"
            )
        if self._arrays is not None:
            self.workers[env].attach(self._arrays, env)
