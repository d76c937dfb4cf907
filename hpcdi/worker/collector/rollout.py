"""Stepping environments by a policy: whole batches as arrays, or one environment at a time.

Both forms do the same four things, which the collecting loop calls in turn::

    observe ──► act ──► step ──► record          (and, now and then, cut)

A policy whose attribute ``columnar`` has an `act` is called in the first form; any other policy
that keeps the mode contract in the second.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hpcdi.env.base import BaseEnvTimestep, VectorStep
from hpcdi.env.gym_manager import GymManager
from hpcdi.policy.base import ColumnarActor
from hpcdi.store.builder import Segment
from hpcdi.types import Array, Columns, Settings
from hpcdi.utils.nested import to_tensors
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


class ColumnarForm:
    """Whole batches as arrays.

    Args:
        envs: the environments.
        actor: the policy.
        length: vector steps between cuts; None: nothing is kept (evaluation).
    """

    def __init__(self, envs: GymManager, actor: ColumnarActor, length: int | None) -> None:
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
        return int(np.count_nonzero(step.live))

    @property
    def must_cut(self) -> bool:
        """See `RolloutForm.must_cut`."""
        return self._recorder is not None and self._recorder.is_full

    def cut(self, policy_version: int) -> Segment | None:
        """See `RolloutForm.cut`."""
        if self._recorder is None or self._recorder.is_empty:
            return None
        return self._recorder.cut(self._envs.observation, policy_version)


class TransitionForm:
    """One environment at a time, through the mode contract that foreign policies keep.

    They get observations and rewards as float32 tensors, and may give actions as tensors.

    Args:
        envs: the environments.
        policy: a collect or eval mode.
        length: transitions of one environment between cuts; None: nothing is kept (evaluation).
    """

    def __init__(self, envs: GymManager, policy: Any, length: int | None) -> None:
        self._envs, self._policy = envs, policy
        self._recorder = (
            TransitionRecorder(
                envs.env_num, length, policy.process_transition, policy.get_train_sample
            )
            if length
            else None
        )

    def observe(self) -> dict[int, Any]:
        """Observation of each environment that waits."""
        return {env: to_tensors(obs) for env, obs in self._envs.ready_obs.items()}

    def act(self, observation: dict[int, Any], setting: Settings) -> dict[int, Any]:
        """The policy's output for each environment that waits."""
        outputs: dict[int, Any] = (
            self._policy.forward(observation, **setting) if observation else {}
        )
        return outputs

    def step(self, outputs: dict[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step the environments."""
        return self._envs.step(
            {env: np.asarray(output["action"]) for env, output in outputs.items()}
        )

    def record(
        self,
        observation: dict[int, Any],
        outputs: dict[int, Any],
        step: dict[int, BaseEnvTimestep],
    ) -> int:
        """See `RolloutForm.record`."""
        for env, timestep in step.items():
            if self._recorder is not None:
                given = timestep._replace(
                    obs=to_tensors(timestep.obs), reward=to_tensors(timestep.reward)
                )
                self._recorder.record(env, observation[env], outputs[env], given)
            if timestep.done:
                self._policy.reset([env])
        return len(step)

    @property
    def must_cut(self) -> bool:
        """See `RolloutForm.must_cut`."""
        return self._recorder is not None and self._recorder.is_full

    def cut(self, policy_version: int) -> Segment | None:
        """See `RolloutForm.cut`."""
        if self._recorder is None or self._recorder.is_empty:
            return None
        return self._recorder.cut(policy_version)


def rollout_form(envs: GymManager, policy: Any, length: int | None) -> RolloutForm:
    """The form that a policy's mode is to be called in."""
    try:
        actor = policy.get_attribute("columnar")
    except (NotImplementedError, AttributeError):
        actor = None
    if actor is not None and hasattr(actor, "act"):
        return ColumnarForm(envs, actor, length)
    return TransitionForm(envs, policy, length)
