"""The stepping loop: observe, act, step, record.

It collects and evaluates, serial and parallel, one policy and several players. It knows one form
of data: columns, [environments, ...]. A policy that wants dicts is adapted by `DictAgent`, whose
columns hold Python objects, and so are the environments that it acts in, by `DictEnvs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from hpcdi.policy.base import ColumnarActor
from hpcdi.policy.dict_adapter import DictAgent
from hpcdi.roles.collector.dict_envs import DictEnvs
from hpcdi.roles.collector.recorder import Recorder, TrajectoryRecorder
from hpcdi.store.builder import Segment
from hpcdi.types import Array, Columns, Settings
from hpcdi.utils.nested import to_tensors
from hpcdi.utils.packed import ACTION_MASK, legal_of

Act = Callable[[Array, Settings], Columns]


class Agent(Protocol):
    """One policy, or one a player, acting for all environments at once."""

    def act(self, observation: Array, setting: Any) -> Columns:
        """Outputs for observations [envs, ...]: ``action`` [envs, ...] and what else is kept."""
        ...

    def transitions(
        self, player: int, observation: Array, outputs: Columns, step: Any
    ) -> tuple[Columns, Array, Array]:
        """A player's columns of a step; where it has a transition; where that ended its episode."""
        ...

    def forget(self, step: Any) -> None:
        """Reset the policy's memory of the episodes that ended or failed in a step."""
        ...


class ColumnAgent:
    """A policy that acts by columns."""

    def __init__(self, actor: ColumnarActor) -> None:
        self._actor = actor
        self._forget = getattr(actor, "forget", None)
        self._follow = getattr(actor, "step_columns", None)

    def act(self, observation: Array, setting: Settings) -> Columns:
        """See `Agent.act`; the actor's setting has the observations' mask of legal actions."""
        legal = legal_of(observation)
        if legal is not None:
            setting = {**(setting or {}), ACTION_MASK: legal}
        return self._actor.act(observation, setting)

    def transitions(
        self, _player: int, observation: Array, outputs: Columns, step: Any
    ) -> tuple[Columns, Array, Array]:
        """See `Agent.transitions`."""
        columns = {
            **outputs, "observation": observation, "reward": step.reward,
            "terminated": step.terminated, "truncated": step.truncated,
        }  # fmt: skip
        if self._follow is not None:
            columns |= self._follow(step.reward, step.live, _over(step))
        return columns, step.live, step.ended

    def forget(self, step: Any) -> None:
        """See `Agent.forget`; an actor without a memory has nothing to forget."""
        if self._forget is not None:
            self._forget(step.live, _over(step))


def _over(step: Any) -> Array:
    """Environments whose episode ended or failed in a step, bool [envs]."""
    over: Array = step.ended & step.live
    return over if step.abnormal is None else over | step.abnormal


class Loop:
    """Steps environments by an agent.

    Args:
        envs: have ``observation`` [envs, ...], ``step_all(actions)`` and ``take_episodes()``: a
            `VectorManager` or `DictEnvs`.
        agent: acts, and makes transitions.
        recorders: one a player; None: that player's transitions are not kept. Empty: no player's
            are, as in an evaluation.
    """

    def __init__(
        self,
        envs: Any,
        agent: Agent,
        recorders: Sequence[Recorder | TrajectoryRecorder | None] = (),
    ) -> None:
        self.envs, self.agent = envs, agent
        self.recorders: list[Any] = list(recorders)
        self.latest: Any = None
        """The step that `once` made last."""
        self._goes_on = getattr(envs, "wait_num", None) is not None
        self._ready: Any = None  # who began a step, where steps go on after it

    def run(self, setting: Any, act: Act | None = None) -> Iterator[int]:
        """Step without end; yields the number of transitions of each step. See `once`."""
        while True:
            yield self.once(setting, act)

    def once(self, setting: Any, act: Act | None = None) -> int:
        """Make one step of all environments.

        Args:
            setting: keyword arguments of the policy; in a battle maybe a list, one a player.
            act: acts instead of the agent, e.g. at random.

        Returns:
            Number of transitions.
        """
        observation = self.observe()
        outputs = (act or self.act)(observation, setting)
        self.latest = self.step(outputs)
        return self.record(observation, outputs, self.latest)

    def observe(self) -> Array:
        """Observations [envs, ...] to act on."""
        observation: Array = self.envs.observation
        return observation

    def act(self, observation: Array, setting: Any) -> Columns:
        """The policy's outputs, each [envs, ...]."""
        return self.agent.act(observation, setting)

    def step(self, outputs: Columns) -> Any:
        """Step the environments by the outputs' ``action``."""
        if self._goes_on:
            self._ready = self.envs.ready
        return self.envs.step_all(outputs["action"])

    def record(self, observation: Array, outputs: Columns, step: Any) -> int:
        """Record a step's transitions; returns their number."""
        if self._ready is not None:
            given = self.envs.given(self._ready, {**outputs, "observation": observation})
            observation, outputs = given["observation"], given
        for player, recorder in enumerate(self.recorders):
            if recorder is not None:
                columns, live, ended = self.agent.transitions(player, observation, outputs, step)
                recorder.record(columns, live, ended, step.abnormal, step.successor)
        self.agent.forget(step)
        live = step.live if step.abnormal is None else step.live & ~step.abnormal
        return int(np.count_nonzero(live))

    @property
    def must_cut(self) -> bool:
        """True if `cut` is due before the next step."""
        return any(recorder is not None and recorder.is_full for recorder in self.recorders)

    def cut(self, policy_version: int) -> Segment | None:
        """Take what was recorded of a single player; None where there is nothing."""
        recorder = self.recorders[0] if self.recorders else None
        return None if recorder is None else recorder.cut(self.envs.observation, policy_version)


def columnar_actor(policy: Any) -> ColumnarActor | None:
    """The object that acts for a policy's mode by columns; None where the policy wants dicts."""
    try:
        actor = policy.get_attribute("columnar")
    except (NotImplementedError, AttributeError):
        return None
    return actor if hasattr(actor, "act") else None


def attribute_of(policy: Any, name: str, default: Any) -> Any:
    """A policy's attribute; `default` where it has none."""
    try:
        return policy.get_attribute(name)
    except (NotImplementedError, AttributeError):
        return default


def trajectory_length(policy: Any, target: int, env_num: int) -> float:
    """Transitions that the policy makes samples of at once: an environment's share of the target.

    At least its ``unroll_len``; without end, up to whole episodes, where its settings say
    ``traj_len_inf``.
    """
    if getattr(attribute_of(policy, "cfg", None), "traj_len_inf", False):
        return math.inf
    return max(math.ceil(target / env_num), int(attribute_of(policy, "unroll_len", 1)))


def collect_loop(envs: Any, policy: Any, length: int | None) -> Loop:
    """The loop of a parallel collector.

    Args:
        envs: a `VectorManager`.
        policy: a collect or eval mode.
        length: steps of each environment between two cuts; None: nothing is kept (evaluation).
    """
    actor = columnar_actor(policy)
    if actor is not None:
        kept = [Recorder(envs.env_num, length, actor, envs.wait_num)] if length else []
        return Loop(envs, ColumnAgent(actor), kept)
    agent = DictAgent(policy, envs.env_num, to_tensors)
    recorder = None
    if length:
        piece = trajectory_length(policy, length * envs.env_num, envs.env_num)
        has_sequences = int(attribute_of(policy, "unroll_len", 1)) > 1
        recorder = TrajectoryRecorder(
            envs.env_num, piece, policy.get_train_sample, length,
            keeps_open=math.isinf(piece)
            or (has_sequences and not attribute_of(policy, "on_policy", False)),
        )  # fmt: skip
    return Loop(DictEnvs(envs, counts=False), agent, [recorder])
