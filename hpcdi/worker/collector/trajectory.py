"""Recording steps, and cutting them into items: pieces of one episode in consecutive rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcdi.env.base import BaseEnvTimestep, VectorStep
from hpcdi.policy.base import ColumnarActor
from hpcdi.store.builder import Segment
from hpcdi.types import ITEM_DTYPE, Array, Columns, Transition
from hpcdi.utils.nested import stack_columns


class ColumnRecorder:
    """Records whole vector steps in columns [length, envs, ...]; cuts them all at once.

    A row holds the observation before a step, what was done, and what came of it. Each item is
    followed by one row that holds only the observation after its last transition (the bootstrap
    row), so that every observation is stored once.

    Args:
        env_num: environments.
        length: vector steps until it is full.
        actor: adds the policy's columns.
    """

    def __init__(self, env_num: int, length: int, actor: ColumnarActor) -> None:
        self._actor = actor
        self._columns: Columns = {}
        self._live = np.zeros((length, env_num), dtype=bool)
        self._broken = np.zeros((length, env_num), dtype=bool)  # an episode was given up here
        self._filled = 0
        self._last_observations: list[tuple[int, int, Array]] = []
        self._episodes = np.zeros(env_num, dtype=np.int64)  # begun before the first recorded step

    @property
    def is_full(self) -> bool:
        """Whether it must be cut before the next step."""
        return self._filled == len(self._live)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to cut."""
        return self._filled == 0

    def record(
        self, observation: Array, outputs: Columns, step: VectorStep, next_observation: Array
    ) -> None:
        """Add a vector step.

        Args:
            observation: before the step, [envs, ...].
            outputs: of the policy, each [envs, ...].
            step: what came of it.
            next_observation: what the policy acts on next, [envs, ...].
        """
        values = {
            "observation": observation,
            **outputs,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
        }
        if not self._columns:
            self._columns = {
                name: np.empty((len(self._live), *value.shape), dtype=value.dtype)
                for name, value in values.items()
            }
        t = self._filled
        for name, value in values.items():
            self._columns[name][t] = value
        self._live[t] = step.live
        self._broken[t] = False
        if step.abnormal is not None:
            self._drop_episodes(t, step.abnormal)
        if step.successor is not next_observation:
            ended = (step.terminated | step.truncated) & self._live[t]
            for env in np.flatnonzero(ended):
                self._last_observations.append((t, int(env), step.successor[env].copy()))
        self._filled += 1

    def cut(self, next_observation: Array, policy_version: int) -> Segment | None:
        """Everything recorded as items, environment by environment; the recorder is empty then.

        Args:
            next_observation: after the last recorded step, [envs, ...].
            policy_version: of the policy that acted.

        Returns:
            The segment; None where no transition was recorded.
        """
        steps, self._filled = self._filled, 0
        live = np.flatnonzero(self._live[:steps].T)  # environment-major
        env, t = np.divmod(live, steps) if steps else (live, live)
        if not live.size:
            self._episodes += self._broken[:steps].sum(axis=0)
            return None
        columns = {name: column[:steps][t, env] for name, column in self._columns.items()}
        ended = columns["terminated"] | columns["truncated"]
        is_last = ended | np.append(env[1:] != env[:-1], True)
        last = np.flatnonzero(is_last)
        item_len = np.diff(last, prepend=-1).astype(np.int32)
        row = np.arange(len(live)) + np.cumsum(is_last) - is_last  # one row more after each item
        successors = self._successors(t[last], env[last], steps, next_observation)
        extra = self._actor.train_columns(columns, item_len, successors)
        total = len(live) + len(last)
        placed = {}
        for name, column in {**columns, **extra.columns}.items():
            placed[name] = np.zeros((total, *column.shape[1:]), dtype=column.dtype)
            placed[name][row] = column
        placed["observation"][row[last] + 1] = successors
        items = np.zeros(len(last), dtype=ITEM_DTYPE)
        items["item_start"] = row[last] - item_len + 1
        items["item_len"] = item_len
        items["policy_version"] = policy_version
        items["env_id"] = env[last]
        items["episode_id"] = self._episode_ids(env, t, ended, last)
        self._episodes += self._broken[:steps].sum(axis=0)
        return Segment(placed, items, extra.views, tail_rows=1)

    def _drop_episodes(self, t: int, abnormal: Array) -> None:
        """What is recorded of unfinished episodes of failed environments counts no more."""
        for env in np.flatnonzero(abnormal):
            ended = (self._columns["terminated"] | self._columns["truncated"])[:t, env]
            ended &= self._live[:t, env]
            first = int(np.flatnonzero(ended)[-1]) + 1 if ended.any() else 0
            self._live[first : t + 1, env] = False
            self._broken[t, env] = True

    def _successors(self, t: Array, env: Array, steps: int, next_observation: Array) -> Array:
        """Observation after each of the steps (t, env)."""
        observation = self._columns["observation"]
        inside = np.minimum(t + 1, steps - 1)
        is_final = (t + 1 == steps).reshape(-1, *(1,) * (observation.ndim - 2))
        successors: Array = np.where(is_final, next_observation[env], observation[inside, env])
        if self._last_observations:
            at = {(int(a), int(b)): k for k, (a, b) in enumerate(zip(t, env, strict=True))}
            for step, which, last_observation in self._last_observations:
                successors[at[step, which]] = last_observation
            self._last_observations.clear()
        return successors

    def _episode_ids(self, env: Array, t: Array, ended: Array, last: Array) -> Array:
        """Number of each item's episode: pieces of one episode share it."""
        broken = np.cumsum(self._broken[: t.max() + 1], axis=0)
        before = np.cumsum(ended) - ended  # episodes that ended before each transition, all envs
        first_of_env = np.searchsorted(env, env)
        within = before - before[first_of_env]
        number = self._episodes[env] + within + broken[t, env]
        ids: Array = number[last] * len(self._episodes) + env[last]
        np.add.at(self._episodes, env[ended], 1)
        return ids


class Piece(NamedTuple):
    """Consecutive transitions of one episode, as the policy made samples of them."""

    env: int
    episode: int
    samples: list[Transition]
    transitions: int
    ended: bool
    """Whether the episode ended with it."""


class TransitionRecorder:
    """Records transition by transition, for policies that know no columns.

    Args:
        env_num: environments.
        length: transitions of one environment until its piece is closed; infinite: whole episodes.
        process_transition: the policy's; makes a transition.
        get_train_sample: the policy's; makes samples of a piece.
    """

    def __init__(
        self,
        env_num: int,
        length: float,
        process_transition: Callable[[Any, Any, BaseEnvTimestep], Transition],
        get_train_sample: Callable[[list[Transition]], list[Transition]],
    ) -> None:
        self.length = length
        self._process, self._sample = process_transition, get_train_sample
        self._open: list[list[Transition]] = [[] for _ in range(env_num)]
        self._episodes = np.zeros(env_num, dtype=np.int64)
        self._closed: list[Piece] = []

    @property
    def open_transitions(self) -> int:
        """Transitions of pieces that are not closed yet."""
        return sum(map(len, self._open))

    @property
    def closed(self) -> int:
        """Pieces that `take` would give."""
        return len(self._closed)

    @property
    def is_full(self) -> bool:
        """Whether it must be cut before the next step: it holds `length` steps of all envs."""
        held = self.open_transitions + sum(piece.transitions for piece in self._closed)
        return held >= self.length * len(self._open)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to cut."""
        return not self._closed and not any(self._open)

    def record(self, env: int, obs: Any, output: Any, timestep: BaseEnvTimestep) -> None:
        """Add one environment's step; one marked ``abnormal`` drops its open piece."""
        if timestep.info.get("abnormal", False):
            self.drop(env)
            return
        self._open[env].append(self._process(obs, output, timestep))
        if timestep.done or len(self._open[env]) >= self.length:
            self._close(env, ended=bool(timestep.done))
            self._episodes[env] += bool(timestep.done)

    def drop(self, env: int) -> None:
        """Forget an environment's open piece: what comes next belongs to another episode."""
        self._open[env] = []
        self._episodes[env] += 1

    def take(self, most: int | None = None) -> list[Piece]:
        """The pieces that were closed and not taken yet, oldest first; at most so many."""
        taken, self._closed = self._closed[:most], self._closed[most:] if most is not None else []
        return taken

    def close_all(self) -> None:
        """Close all open pieces, however short they are."""
        for env in range(len(self._open)):
            self._close(env, ended=False)

    def cut(self, policy_version: int) -> Segment | None:
        """Everything recorded as items; the recorder is empty then."""
        self.close_all()
        cut = [piece for piece in self.take() if piece.samples]
        if not cut:
            return None
        lengths = np.array([len(piece.samples) for piece in cut], dtype=np.int32)
        items = np.zeros(len(cut), dtype=ITEM_DTYPE)
        items["item_start"] = np.cumsum(lengths) - lengths
        items["item_len"] = lengths
        items["policy_version"] = policy_version
        items["env_id"] = [piece.env for piece in cut]
        items["episode_id"] = [piece.episode * len(self._open) + piece.env for piece in cut]
        samples = [sample for piece in cut for sample in piece.samples]
        return Segment(stack_columns(samples), items)

    def _close(self, env: int, *, ended: bool) -> None:
        piece = self._open[env]
        if piece:
            self._open[env] = []
            episode = int(self._episodes[env])
            self._closed.append(Piece(env, episode, self._sample(piece), len(piece), ended))
