"""Recording transitions in columns, and cutting them into items: pieces of one episode.

Columns are [rows, environments, ...]: one row a step, with a mask of the environments that made a
transition in it. What a policy of dicts makes are lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from hpcdi.policy.dict_samples import columns_of
from hpcdi.store.builder import Segment
from hpcdi.types import ITEM_DTYPE, Array, Columns, RowView, Transition
from hpcdi.utils.packed import fields_of, spread


class Recorder:
    """Records steps of all environments; an item ends with its episode or where it is cut.

    Args:
        env_num: environments.
        length: steps until it is full; or as many transitions of all environments together.
        actor: a `ColumnarActor`, which adds the policy's columns to a segment.
        wait_num: environments that make a transition in a step, at least; None: about all.
    """

    def __init__(
        self, env_num: int, length: int = 32, actor: Any = None, wait_num: int | None = None
    ) -> None:
        self._most = math.inf if wait_num is None else length * env_num
        if wait_num is not None:
            length = math.ceil(length * env_num / min(wait_num, env_num))
        self.held = np.zeros(env_num, dtype=np.int64)
        """Transitions held of each environment."""
        self._actor = actor
        self._columns: Columns = {}
        self._live = np.zeros((length, env_num), dtype=bool)  # where a transition is held
        self._ended = np.zeros((length, env_num), dtype=bool)
        self._episode = np.zeros((length, env_num), dtype=np.int64)  # number of its episode
        self._running = np.zeros(env_num, dtype=np.int64)  # number of the running episode
        self._finals: list[tuple[Array, Array]] = []  # envs, and observations after their ends
        self._rows = 0

    @property
    def is_full(self) -> bool:
        """True if it must be cut before the next step."""
        is_full = self._rows == len(self._live)
        return is_full or (self._most < math.inf and int(self.held.sum()) >= self._most)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to cut."""
        return not self.held.any()

    def record(
        self,
        columns: Columns,
        live: Array,
        ended: Array,
        failed: Array | None = None,
        successor: Array | None = None,
    ) -> None:
        """Add a step.

        Args:
            columns: name -> [envs, ...].
            live: bool [envs]; where a transition was made.
            ended: bool [envs]; which transitions ended their episode; anything where not live.
            failed: bool [envs]; environments whose running episode is to be dropped.
            successor: observations after the step, [envs, ...]; None: items need none.
        """
        if not self._columns:
            self._columns = {
                name: np.empty((len(self._live), *column.shape), dtype=column.dtype)
                for name, column in columns.items()
            }
        if self._rows == len(self._live):
            self._make_room()
        row, self._rows = self._rows, self._rows + 1
        if failed is not None:
            live = live & ~failed
        for name, column in columns.items():
            self._columns[name][row] = column
        self._live[row], self._ended[row], self._episode[row] = live, ended, self._running
        self.held += live
        over = (ended & live).nonzero()[0]
        if over.size:
            if successor is not None:
                self._finals.append((over, successor.take(over, axis=0)))
            self._running[over] += 1
        if failed is not None:
            for env in failed.nonzero()[0].tolist():
                self.drop(env)

    def drop(self, env: int) -> None:
        """Drop an environment's running episode; what comes next belongs to another one."""
        is_own = self._live[: self._rows, env] & (
            self._episode[: self._rows, env] == self._running[env]
        )
        self.held[env] -= np.count_nonzero(is_own)
        self._live[: self._rows, env][is_own] = False
        self._running[env] += 1

    def cut(self, next_observation: Array, policy_version: int) -> Segment | None:
        """Take everything as items, environment by environment, with the policy's columns.

        Each item is followed by one row that holds only the observation after its last transition
        (the bootstrap row), so that every observation is stored once. Structured columns come apart
        here: each of their fields is a column of the segment.

        Args:
            next_observation: after the last recorded step, [envs, ...].
            policy_version: of the policy that acted.

        Returns:
            The segment; None where no transition is recorded.
        """
        env, row = np.nonzero(self._live[: self._rows].T)  # environment-major
        if not env.size:
            self._clear()
            return None
        at = row * len(self.held) + env
        columns = {n: _rows_of(column).take(at, axis=0) for n, column in self._columns.items()}
        ended = _rows_of(self._ended).take(at)
        is_last = ended | np.append(env[1:] != env[:-1], True)
        last = is_last.nonzero()[0]
        item_len = np.diff(last, prepend=-1).astype(np.int32)
        last_observation = self._last_observations(env[last], ended[last], next_observation)
        extra = self._actor.train_columns(columns, item_len, last_observation)
        place = np.arange(len(env)) + np.cumsum(is_last) - is_last  # one row more after each item
        total = len(env) + len(last)
        placed = {}
        for name, column in spread({**columns, **extra.columns}).items():
            placed[name] = np.zeros((total, *column.shape[1:]), dtype=column.dtype)
            placed[name][place] = column
        for name, column in fields_of("observation", last_observation):
            placed[name][place[last] + 1] = column
        table = np.zeros(len(last), dtype=ITEM_DTYPE)
        table["item_start"] = place[last] - item_len + 1
        table["item_len"] = item_len
        table["policy_version"] = policy_version
        table["env_id"] = env[last]
        table["episode_id"] = self._episode[row[last], env[last]] * len(self.held) + env[last]
        self._clear()
        views = tuple(_views_of_fields(extra.views, columns))
        return Segment(placed, table, views, tail_rows=1, ended=ended[last])

    def _last_observations(self, env: Array, ended: Array, next_observation: Array) -> Array:
        """Observation after the last transition of each item, [items, ...].

        Args:
            env: of each item.
            ended: whether its episode ended with it.
            next_observation: see `cut`.
        """
        observations: Array = next_observation[env]
        if self._finals:
            envs, finals = map(np.concatenate, zip(*self._finals, strict=True))  # in order of rows
            observations[ended] = finals[np.argsort(envs, kind="stable")]
        return observations

    def _clear(self) -> None:
        self.held[:], self._rows = 0, 0
        self._finals.clear()

    def _make_room(self) -> None:
        """Move each environment's transitions together; double the rows if that is not enough."""
        envs = np.arange(len(self.held))
        order = np.argsort(~self._live, axis=0, kind="stable")
        self._rows = int(self.held.max())
        more = (len(order) if 2 * self._rows > len(order) else 0, len(envs))

        def moved(column: Array) -> Array:
            room = np.zeros((*more, *column.shape[2:]), dtype=column.dtype)
            return np.concatenate([column[order, envs], room])

        self._columns = {name: moved(column) for name, column in self._columns.items()}
        self._live, self._ended = moved(self._live), moved(self._ended)
        self._episode = moved(self._episode)


def _rows_of(column: Array) -> Array:
    """[rows, environments, ...] as [rows * environments, ...]."""
    return column.reshape(-1, *column.shape[2:])


def _views_of_fields(views: Iterable[RowView], columns: Columns) -> Iterator[RowView]:
    """Yields views of all fields where there was one of a structured column."""
    for view in views:
        names = columns[view.column].dtype.names if view.column in columns else None
        if names is None:
            yield view
            continue
        for field in names:
            name = view.name.replace(view.column, field, 1)
            yield RowView(name, field, view.offset)


class Trajectory(NamedTuple):
    """Consecutive transitions of one episode, as the samples that a policy made of them."""

    env: int
    episode: int
    samples: list[Transition]
    transitions: int
    is_whole: bool
    """Whether its episode ended with it."""


class TrajectoryRecorder:
    """Records transitions of a policy of dicts, which makes samples of each finished trajectory.

    A trajectory is finished when its episode ends, or when it has `length` transitions.

    Args:
        env_num: environments.
        length: transitions of one environment; infinite: whole episodes.
        make_samples: the policy's ``get_train_sample``.
        rollout: transitions of one environment after which it is full; None: `length`.
        keeps_open: unfinished trajectories go on after a cut, for samples that are sequences of
            `length`; else a cut finishes them.
    """

    def __init__(
        self,
        env_num: int,
        length: float,
        make_samples: Callable[[list[Transition]], list[Transition]],
        rollout: float | None = None,
        *,
        keeps_open: bool = False,
    ) -> None:
        self.length = length
        self._keeps_open = keeps_open
        self._make_samples = make_samples
        self._rollout = rollout
        self._open: list[list[Transition]] = [[] for _ in range(env_num)]
        self._episode = [0] * env_num  # number of the running episode
        self._finished: list[Trajectory] = []
        self._without_samples = 0  # transitions that no cut has counted yet

    @property
    def open_transitions(self) -> int:
        """Transitions of unfinished trajectories."""
        return sum(map(len, self._open))

    @property
    def finished(self) -> int:
        """Trajectories that `take` would return."""
        return len(self._finished)

    @property
    def is_full(self) -> bool:
        """True if it must be cut before the next step: it holds a rollout of all environments."""
        held = sum(trajectory.transitions for trajectory in self._finished)
        if not self._keeps_open:
            held += self.open_transitions
        rollout = self.length if self._rollout is None else self._rollout
        return held >= rollout * len(self._open)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to cut."""
        return not self._finished and not any(self._open)

    def record(
        self,
        columns: Columns,
        live: Array,
        ended: Array,
        failed: Array | None = None,
        _successor: Any = None,
    ) -> None:
        """Add a step; see `Recorder.record`; the only column is ``transition``, of dicts."""
        made, over = columns["transition"].tolist(), ended.tolist()
        if failed is not None:
            live = live & ~failed
            for env in failed.nonzero()[0].tolist():
                self._open[env] = []
                self._episode[env] += 1
        for env in live.nonzero()[0].tolist():
            self._open[env].append(made[env])
            if over[env] or len(self._open[env]) >= self.length:
                self._finish(env, is_whole=over[env])

    def take(self, most: int | None = None) -> list[Trajectory]:
        """Take the finished trajectories, oldest first, at most so many."""
        taken = self._finished[:most]
        self._finished = self._finished[len(taken) :]
        return taken

    def drop_open(self) -> None:
        """Drop what was recorded of unfinished trajectories."""
        for env, transitions in enumerate(self._open):
            if transitions:
                self._open[env] = []
                self._episode[env] += 1

    def finish_all(self) -> None:
        """Finish all trajectories, however short they are."""
        for env, transitions in enumerate(self._open):
            if transitions:
                self._finish(env, is_whole=False)

    def cut(self, _next_observation: Any, policy_version: int) -> Segment | None:
        """Take everything, or what is finished, as a segment of samples.

        Returns:
            A row a sample, see `dict_samples`; None where there are none.
        """
        if not self._keeps_open:
            self.finish_all()
        taken = self.take()
        cut = [trajectory for trajectory in taken if trajectory.samples]
        steps = np.array([trajectory.transitions for trajectory in cut], dtype=np.int64)
        self._without_samples += sum(one.transitions for one in taken) - int(steps.sum())
        if not cut:
            return None
        steps[0] += self._without_samples
        self._without_samples = 0
        table = np.zeros(len(cut), dtype=ITEM_DTYPE)
        table["item_len"] = [len(trajectory.samples) for trajectory in cut]
        table["item_start"] = np.cumsum(table["item_len"]) - table["item_len"]
        table["policy_version"] = policy_version
        table["env_id"] = [trajectory.env for trajectory in cut]
        table["episode_id"] = [trajectory.episode for trajectory in cut]
        return Segment(
            columns_of([one for trajectory in cut for one in trajectory.samples]), table,
            ended=np.array([trajectory.is_whole for trajectory in cut]), env_steps=steps,
        )  # fmt: skip

    def _finish(self, env: int, *, is_whole: bool) -> None:
        """Make samples of an environment's trajectory, which may end with its episode."""
        transitions, self._open[env] = self._open[env], []
        samples, count = self._make_samples(transitions), len(transitions)
        episode = self._episode[env] * len(self._open) + env
        self._finished.append(Trajectory(env, episode, samples, count, is_whole))
        self._episode[env] += is_whole
