"""The stepping loop: observe, act, step, record. There is no other one.

It collects and evaluates, over ranks and in one process, with one policy and with the players of a
league. It has one form of data: flat columns [rows, ...]; a row is a seat of an environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from hpcdi.env.base import Envs
from hpcdi.errors import ConfigError, EnvError, Problem
from hpcdi.policy.base import Actor, ColumnarActor
from hpcdi.roles.collector.hindsight import Hindsight
from hpcdi.roles.collector.recorder import Recorder, StepRecorder
from hpcdi.store.segment import Segment
from hpcdi.types import Array, Columns, Episodes, Games, Settings, Step
from hpcdi.utils.nested import column_objection, under
from hpcdi.utils.truths import all_of, any_of

Act = Callable[[Columns, Settings], Columns]
_MAX_FAILURES = 100
"""Failures of environments that an evaluation bears."""


class Agent(Protocol):
    """Acts for all rows of environments: one policy, or the players of a league."""

    @property
    def learns(self) -> Array | None:
        """Rows whose transitions are recorded, bool [rows]; None: all."""
        ...

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """See `Actor.act`."""
        ...

    def follow(self, step: Step) -> Columns:
        """Follow a step; returns columns [rows, ...] that are stored beside its transitions."""
        ...

    def judge(self, step: Step, episodes: Episodes) -> tuple[Episodes, Games]:
        """Returns the episodes that count, and results of games.

        All count, but in a league one of each game, the learner's.

        Args:
            step: the step in which they ended.
            episodes: episodes of all rows.
        """
        ...

    def forget(self, rows: Array | None = None) -> None:
        """Forget the episodes of some rows (by number), which ended or failed; None: of all."""
        ...


class PolicyAgent:
    """One policy, which acts for all rows.

    Args:
        actor: the actor of one of the policy's modes.
    """

    learns = None

    def __init__(self, actor: Actor) -> None:
        self.act = actor.act
        self._reset = getattr(actor, "reset", None)
        self._columns = getattr(actor, "step_columns", None)

    def follow(self, step: Step) -> Columns:
        """See `Agent.follow`."""
        if self._columns is None:
            return {}
        columns: Columns = self._columns(step.reward, step.live, step.over)
        return columns

    def judge(self, step: Step, episodes: Episodes) -> tuple[Episodes, Games]:  # noqa: ARG002
        """See `Agent.judge`: all count."""
        return episodes, {}

    def forget(self, rows: Array | None = None) -> None:
        """See `Agent.forget`."""
        if self._reset is not None:
            self._reset(rows)


class Loop:
    """Steps environments by an agent.

    Args:
        envs: the environments.
        agent: acts.
        recorder: records transitions; None: an evaluation records none.
    """

    def __init__(self, envs: Envs, agent: Agent, recorder: StepRecorder | None = None) -> None:
        self.envs, self.agent, self.recorder = envs, agent, recorder
        self.latest: Step
        """The last step."""
        self._episodes: list[Episodes] = []
        # where a transition may take several steps (asynchronous environments, battles): the
        # observation and outputs that each row's unfinished transition began with
        self._takes_several_steps = envs.wait_num is not None or envs.seats > 1
        self._began: Columns = {}
        self._unfinished = np.zeros(envs.rows, dtype=bool)

    def begin(self, quota: int | Sequence[int] | None = None) -> None:
        """Begin new episodes everywhere; forget those that were running.

        Args:
            quota: how many episodes each environment plays, one number or one for each; None: as
                before.
        """
        self.envs.reset(quota=quota)
        self.forget()
        self.take_episodes()

    def forget(self) -> None:
        """Forget the running episodes, which a reset of the environments has dropped."""
        self.agent.forget()
        self._unfinished[:] = False
        if self.recorder is not None:
            self.recorder.drop()

    def once(self, setting: Settings, act: Act | None = None) -> int:
        """Make one step of all environments; returns the number of recorded transitions.

        Args:
            setting: keyword arguments of the policy; in a league also who plays.
            act: acts instead of the agent, e.g. at random.
        """
        observation = self.envs.observation
        outputs = self.act(observation, setting, act)
        return self.record(observation, outputs, self.step(outputs))

    def act(self, observation: Columns, setting: Settings, act: Act | None = None) -> Columns:
        """Returns outputs of the agent, [rows, ...]; undefined for rows that are not ready."""
        ready = self._ready = self.envs.ready
        if all_of(ready):
            return (act or self.agent.act)(observation, setting)
        rows = ready.nonzero()[0]
        if not rows.size:
            return {}
        of_rows = {name: column.take(rows, axis=0) for name, column in observation.items()}
        outputs = act(of_rows, setting) if act else self.agent.act(of_rows, setting, rows)
        return {name: _spread(column, rows, len(ready)) for name, column in outputs.items()}

    def step(self, outputs: Columns) -> Step:
        """Step the environments by the outputs' actions."""
        self.latest = self.envs.step(under(outputs, "action"))
        return self.latest

    def record(self, observation: Columns, outputs: Columns, step: Step) -> int:
        """Record a step's transitions; returns how many."""
        columns = self._begun_with({**observation, **outputs})
        columns["reward"] = step.reward
        columns["terminated"] = step.terminated
        columns["truncated"] = step.truncated
        if step.infos:
            columns |= step.infos
        columns |= self.agent.follow(step)
        learns = self.agent.learns
        live = step.live if learns is None else step.live & learns
        games: Games = {}
        if is_over := step.failed is not None or any_of(step.ended):
            episodes, games = self.agent.judge(step, self.envs.take_episodes())
            self._episodes.append(episodes)
        if self.recorder is not None:
            self.recorder.record(columns, live, step, games)
        if is_over:
            self.agent.forget(step.over.nonzero()[0])
        if self._takes_several_steps:
            self._unfinished &= ~(step.live if step.failed is None else step.live | step.failed)
        return int(np.count_nonzero(live))

    def _begun_with(self, columns: Columns) -> Columns:
        """Returns the observation and outputs that each row's latest transition began with.

        Args:
            columns: observation and outputs of this step, [rows, ...]: of rows that are ready.

        Raises:
            EnvError: the columns differ from those of unfinished transitions.
        """
        if not self._takes_several_steps:
            return columns
        ready, learns = self._ready, self.agent.learns
        if ready.any() and column_objection(columns, self._began):
            unfinished = self._unfinished if learns is None else self._unfinished & learns
            if (unfinished & ~ready).any():
                raise EnvError(
                    "the policy's outputs have changed while steps are under way: from "
                    f"{sorted(self._began)} to {sorted(columns)}; set env.manager.wait_num: null"
                )
            self._began = {name: np.zeros_like(column) for name, column in columns.items()}
        if ready.any():
            for name, column in self._began.items():
                column[ready] = columns[name][ready]
        self._unfinished |= ready
        return dict(self._began)

    def take_episodes(self) -> Episodes:
        """Returns the episodes that ended since the last call."""
        ended, self._episodes = self._episodes, []
        return Episodes.joined(ended)

    @property
    def must_cut(self) -> bool:
        """True if `cut` is due before the next step."""
        return self.recorder is not None and self.recorder.is_full

    def cut(self, policy_version: int) -> Segment | None:
        """Take the recorded transitions as a segment; None without any. See `Recorder.cut`."""
        if self.recorder is None:
            return None
        return self.recorder.cut(self.envs.observation, policy_version)


def policy_loop(
    envs: Envs, actor: ColumnarActor, length: int = 0, hindsight: Hindsight | None = None
) -> Loop:
    """Returns the loop of one policy.

    Args:
        envs: the environments.
        actor: if it has a method ``recorder(envs, length)``, that makes the
            recorder; ``bind(envs)``, if it has that, is called first.
        length: steps of each environment between two cuts; 0: nothing is recorded (evaluation).
        hindsight: see `Recorder`.
    """
    if hasattr(actor, "bind"):
        actor.bind(envs)
    recorder: StepRecorder | None = None
    if length and hasattr(actor, "recorder"):
        recorder = actor.recorder(envs, length)
    elif length:
        recorder = Recorder(envs, length, actor, hindsight=hindsight)
    return Loop(envs, PolicyAgent(actor), recorder)


def evaluate(
    loop: Loop,
    quota: int | Sequence[int] | None = None,
    setting: Settings | None = None,
    before: Callable[[], None] = lambda: None,
    after: Callable[[Step, Episodes], None] = lambda _step, _episodes: None,
) -> Episodes:
    """Play new episodes until each environment has played its quota.

    An episode in which an environment failed does not count, and another takes its place.

    Args:
        loop: keeps nothing.
        quota: episodes of each environment, one number or one for each; None: as many as its
            environments are made for.
        setting: of the policy, and in a league of the players.
        before: called before each step.
        after: called after each step, with it and the episodes that ended in it.

    Returns:
        The episodes, in the order in which they ended.

    Raises:
        EnvError: environments keep failing.
    """
    loop.begin(quota)
    failures, played = 0, [loop.take_episodes()]
    while not loop.envs.done:
        before()
        loop.once(setting or {})
        played.append(loop.take_episodes())
        after(loop.latest, played[-1])
        if (failed := loop.latest.failed) is not None:
            envs = np.unique(np.flatnonzero(failed) % loop.envs.env_num)
            failures += len(envs)
            if failures > _MAX_FAILURES:
                raise EnvError(
                    f"environments failed {failures} times in one evaluation, environment "
                    f"{envs[-1]} last; their own log says why"
                )
    return Episodes.joined(played)


def quotas(episodes: int, env_num: int) -> list[int]:
    """Returns the episodes of each environment, so many of all together.

    The first `n` episodes that several environments end are more often short ones than long ones,
    and their mean is biased: so each has its quota. The first environments play one more where the
    number is not a multiple.

    Raises:
        ConfigError: there are fewer episodes than environments, or no environment.
    """
    if not 1 <= env_num <= episodes:
        problem = f"{episodes} episodes are too few for {env_num} environments: give each one"
        raise ConfigError([Problem("n_episode", problem)], "the evaluation")
    return [(episodes + env_num - 1 - env) // env_num for env in range(env_num)]


def _spread(column: Array, rows: Array, count: int) -> Array:
    """Returns a column [len(rows), ...] as [count, ...]: at its rows, and 0 in others."""
    spread = np.zeros((count, *column.shape[1:]), column.dtype)
    spread[rows] = column
    return spread
