"""Stepping environments by a policy: whole batches as arrays, or one environment at a time.

Both forms do the same four things, which the collecting loop calls in turn::

    observe ──► act ──► step ──► record          (and, now and then, cut)

A policy whose attribute ``columnar`` has an `act` is called in the first form; any other policy
that keeps the mode contract in the second.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from hpcdi.env.base import BaseEnvTimestep, VectorStep, is_abnormal
from hpcdi.env.manager import VectorManager
from hpcdi.policy.base import ColumnarActor
from hpcdi.store.builder import Segment
from hpcdi.types import Array, Columns, Settings
from hpcdi.utils.nested import to_tensors
from hpcdi.worker.collector.caches import CachePool
from hpcdi.worker.collector.contract import actions_of, as_number, episode_return
from hpcdi.worker.collector.stats import EpisodeCounter
from hpcdi.worker.collector.trajectory import ColumnRecorder, TransitionRecorder


class RolloutForm(Protocol):
    """One way to step environments; the values that pass between its methods are its own."""

    def observe(self) -> Any:
        """What the policy acts on."""
        ...

    def act(self, observation: Any, setting: Settings) -> Any:
        """The policy's outputs."""
        ...

    def step(self, outputs: Any) -> Any:
        """What came of it."""
        ...

    def record(self, observation: Any, outputs: Any, step: Any) -> int:
        """Keep it, if it is to be kept; gives the number of transitions."""
        ...

    @property
    def must_cut(self) -> bool:
        """Whether `cut` is due before the next step."""
        ...

    def cut(self, policy_version: int) -> Segment | None:
        """Everything recorded; None where there is nothing."""
        ...

    def take_episodes(self) -> tuple[Array, Array]:
        """Returns and lengths of the episodes that ended since the last call, in order."""
        ...


class ColumnarForm:
    """Whole batches as arrays.

    Args:
        envs: the environments.
        actor: the policy.
        length: vector steps between cuts; None: nothing is kept (evaluation).
    """

    def __init__(self, envs: VectorManager, actor: ColumnarActor, length: int | None) -> None:
        self._envs, self._actor = envs, actor
        self._recorder = ColumnRecorder(envs.env_num, length, actor) if length else None

    def observe(self) -> Array:
        """Observations [envs, ...]."""
        return self._envs.observation

    def act(self, observation: Array, setting: Settings) -> Columns:
        """The policy's outputs, each [envs, ...]."""
        return self._actor.act(observation, setting)

    def step(self, outputs: Columns) -> VectorStep:
        """Step all environments."""
        return self._envs.step_all(outputs["action"])

    def record(self, observation: Array, outputs: Columns, step: VectorStep) -> int:
        """See `RolloutForm.record`."""
        if self._recorder is not None:
            self._recorder.record(observation, outputs, step, self._envs.observation)
        failed = False if step.abnormal is None else step.abnormal
        return int(np.count_nonzero(step.live & ~np.asarray(failed)))

    @property
    def must_cut(self) -> bool:
        """See `RolloutForm.must_cut`."""
        return self._recorder is not None and self._recorder.is_full

    def cut(self, policy_version: int) -> Segment | None:
        """See `RolloutForm.cut`."""
        if self._recorder is None or self._recorder.is_empty:
            return None
        return self._recorder.cut(self._envs.observation, policy_version)

    def take_episodes(self) -> tuple[Array, Array]:
        """See `RolloutForm.take_episodes`."""
        return self._envs.take_episodes()


class TransitionForm:
    """One environment at a time, through the mode contract that foreign policies keep.

    Args:
        envs: the environments.
        policy: a collect or eval mode.
        recorder: takes the transitions; None: nothing is kept (evaluation).
        present: what the policy is to get for an observation or a reward: float32 tensors, as in a
            parallel run, unless the caller has it otherwise.
        deepcopy: keep copies of observations, for environments that write each over the one before.
        counts: give episodes as their last info tells of them; else as the manager counts them.
    """

    def __init__(
        self,
        envs: Any,
        policy: Any,
        recorder: TransitionRecorder | None,
        *,
        present: Callable[[Any], Any] | None = to_tensors,
        deepcopy: bool = False,
        counts: bool = True,
    ) -> None:
        self._envs, self._policy = envs, policy
        self._present = present or (copy.deepcopy if deepcopy else None)  # tensors are copies too
        self.recorder = recorder
        self._observations = CachePool("observations", envs.env_num)
        self._outputs = CachePool("policy outputs", envs.env_num)
        self._episodes = EpisodeCounter(envs.env_num) if counts else None

    def observe(self) -> dict[int, Any]:
        """Observation of each environment that waits."""
        ready: dict[int, Any] = self._envs.ready_obs
        if self._present is not None:
            ready = {env: self._present(obs) for env, obs in ready.items()}
        self._observations.update(ready)
        return ready

    def act(self, observation: dict[int, Any], setting: Settings) -> dict[int, Any]:
        """The policy's output for each environment that waits."""
        if not observation:
            return {}
        outputs: dict[int, Any] = self._policy.forward(observation, **setting)
        return outputs

    def step(self, outputs: dict[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step the environments; those that step aside of the others may answer later."""
        self._outputs.update(outputs)
        steps: dict[int, BaseEnvTimestep] = self._envs.step(actions_of(outputs, outputs))
        return steps

    def record(self, _observation: Any, _outputs: Any, step: dict[int, BaseEnvTimestep]) -> int:
        """See `RolloutForm.record`."""
        count = 0
        for env, timestep in step.items():
            if is_abnormal(timestep):
                self._give_up(env)
                continue
            count += 1
            if self.recorder is not None:
                self._keep(env, timestep)
            if self._episodes is not None:
                told = episode_return(timestep.info, env) if timestep.done else None
                self._episodes.step(env, None if told is None else as_number(told))
            if timestep.done:
                self._policy.reset([env])
        return count

    @property
    def must_cut(self) -> bool:
        """See `RolloutForm.must_cut`."""
        return self.recorder is not None and self.recorder.is_full

    def cut(self, policy_version: int) -> Segment | None:
        """See `RolloutForm.cut`."""
        if self.recorder is None or self.recorder.is_empty:
            return None
        return self.recorder.cut(policy_version)

    def take_episodes(self) -> tuple[Array, Array]:
        """See `RolloutForm.take_episodes`."""
        counted = taken_from(self._envs)
        return counted if self._episodes is None else self._episodes.take()

    def _keep(self, env: int, timestep: BaseEnvTimestep) -> None:
        if self._present is not None:
            timestep = timestep._replace(
                obs=self._present(timestep.obs), reward=self._present(timestep.reward)
            )
        if self.recorder is not None:
            self.recorder.record(env, self._observations[env], self._outputs[env], timestep)

    def _give_up(self, env: int) -> None:
        """An environment has failed: its unfinished episode is worth nothing."""
        if self.recorder is not None:
            self.recorder.drop(env)
        if self._episodes is not None:
            self._episodes.drop(env)
        self._policy.reset([env])
        renew(self._envs, env)


def renew(envs: Any, env: int) -> None:
    """See that an environment whose step was abnormal begins a new episode.

    Our managers have done it already, and say so by ``resets_abnormal``; foreign ones are asked to.
    """
    if not getattr(envs, "resets_abnormal", False):
        envs.reset({env: None})


def taken_from(envs: Any) -> tuple[Array, Array]:
    """Episodes that a manager of ours has counted; nothing from a foreign one, which counts none.

    Take them even where they are counted elsewhere: else a manager keeps those of a whole run.
    """
    if not hasattr(envs, "take_episodes"):
        return np.zeros(0), np.zeros(0, dtype=np.int64)
    returns, lengths = envs.take_episodes()
    return returns, lengths


def rollout(
    form: RolloutForm, setting: Settings, act: Callable[[Any, Settings], Any] | None = None
) -> Iterator[int]:
    """Step environments without end; gives the number of transitions of each step.

    Args:
        form: how to step.
        setting: keyword arguments of the policy.
        act: acts instead of the form's policy, e.g. at random; as `form.act` does.
    """
    while True:
        observation = form.observe()
        outputs = (act or form.act)(observation, setting)
        yield form.record(observation, outputs, form.step(outputs))


def columnar_actor(policy: Any) -> ColumnarActor | None:
    """What acts for a policy's mode in whole batches; None where it knows no columns."""
    try:
        actor = policy.get_attribute("columnar")
    except (NotImplementedError, AttributeError):
        return None
    return actor if hasattr(actor, "act") else None


def rollout_form(envs: VectorManager, policy: Any, length: int | None) -> RolloutForm:
    """The form that a policy's mode is to be called in."""
    actor = columnar_actor(policy)
    if actor is not None:
        return ColumnarForm(envs, actor, length)
    recorder = None
    if length:
        recorder = TransitionRecorder(
            envs.env_num, length, policy.process_transition, policy.get_train_sample
        )
    return TransitionForm(envs, policy, recorder, counts=False)
