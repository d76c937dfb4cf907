"""Recording transitions in columns, and cutting them into items: pieces of one episode.

Columns are [rows, environments, ...], and each environment fills its own from row 0, as
environments need not step together. What a policy of dicts makes is one column of Python objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcdi.policy.base import ColumnarActor
from hpcdi.store.builder import Segment
from hpcdi.types import ITEM_DTYPE, Array, Columns, Transition
from hpcdi.utils.nested import stack_columns


class Items(NamedTuple):
    """Transitions cut from a recorder, environment by environment.

    Attributes:
        columns: name -> [transitions, ...], item after item.
        table: [items] of `ITEM_DTYPE`, without ids and versions.
        last_observation: after the last transition of each item, [items, ...]; None where the
            recorder was given none.
    """

    columns: Columns
    table: Array
    last_observation: Array | None


class Recorder:
    """Records steps of all environments; an item ends with its episode or where it is cut.

    Args:
        env_num: environments.
        length: steps until it is full.
        actor: adds the policy's columns to a segment.
    """

    def __init__(self, env_num: int, length: int = 32, actor: ColumnarActor | None = None) -> None:
        self.filled = np.zeros(env_num, dtype=np.int64)
        """Transitions held of each environment."""
        self._actor = actor
        self._columns: Columns = {}
        self._ended = np.zeros((length, env_num), dtype=bool)
        self._episode = np.zeros((length, env_num), dtype=np.int64)  # number of each row's episode
        self._running = np.zeros(env_num, dtype=np.int64)  # number of the running episode
        self._begun = np.zeros(env_num, dtype=np.int64)  # its first row
        self._last_observations: dict[tuple[int, int], Array] = {}  # of ended episodes, by row, env
        self._steps = 0  # since all environments were empty; none has filled more rows
        self._aligned = True  # each environment has filled just so many
        self._envs = np.arange(env_num)

    @property
    def is_full(self) -> bool:
        """Whether it must be cut before the next step."""
        return self._steps == len(self._ended)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to cut."""
        return not self.filled.any()

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
                name: np.empty((len(self._ended), *column.shape), dtype=column.dtype)
                for name, column in columns.items()
            }
        if self.is_full:
            self._make_room()
        if failed is not None:
            live = live & ~failed
        row = self._steps if self._aligned else (self.filled, self._envs)
        for name, column in columns.items():
            self._columns[name][row] = column
        self._ended[row] = ended
        self._episode[row] = self._running
        for env in np.flatnonzero(ended & live).tolist():
            if successor is not None:
                self._last_observations[int(self.filled[env]), env] = successor[env].copy()
            self._begun[env] = self.filled[env] + 1
            self._running[env] += 1
        self.filled += live
        self._steps += 1
        self._aligned = self._aligned and np.count_nonzero(live) == len(live)
        if failed is not None:
            for env in np.flatnonzero(failed).tolist():
                self.drop(env)

    def drop(self, env: int) -> None:
        """Drop an environment's running episode; what comes next belongs to another one."""
        self.filled[env] = self._begun[env]
        self._running[env] += 1
        self._aligned = False

    def take(
        self, envs: Array | None = None, next_observation: Array | None = None
    ) -> Items | None:
        """Take what is recorded, environment by environment.

        Args:
            envs: bool [envs]; which ones; None: all.
            next_observation: after the last recorded step, [envs, ...].

        Returns:
            The items; None where no transition is recorded.
        """
        filled = self.filled if envs is None else np.where(envs, self.filled, 0)
        env, row = np.nonzero(np.arange(filled.max()) < filled[:, None])  # environment-major
        items = self._items(env, row, next_observation) if env.size else None
        self.filled = self.filled - filled
        self._begun[self.filled == 0] = 0
        self._aligned = not self.filled.any()
        self._steps = 0 if self._aligned else self._steps
        return items

    def cut(self, next_observation: Array, policy_version: int) -> Segment | None:
        """Take everything as a segment with the policy's columns.

        Each item is followed by one row that holds only the observation after its last transition
        (the bootstrap row), so that every observation is stored once.

        Args:
            next_observation: after the last recorded step, [envs, ...].
            policy_version: of the policy that acted.

        Returns:
            The segment; None where no transition is recorded.
        """
        items = self.take(None, next_observation)
        if items is None or self._actor is None or items.last_observation is None:
            return None
        table = items.table
        item_len = table["item_len"].copy()
        extra = self._actor.train_columns(items.columns, item_len, items.last_observation)
        number = np.arange(len(table))
        total = int(item_len.sum()) + len(table)
        row = np.arange(total - len(table)) + np.repeat(number, item_len)
        placed = {}
        for name, column in {**items.columns, **extra.columns}.items():
            placed[name] = np.zeros((total, *column.shape[1:]), dtype=column.dtype)
            placed[name][row] = column
        table["item_start"] += number.astype(np.int32)
        placed["observation"][table["item_start"] + item_len] = items.last_observation
        table["policy_version"] = policy_version
        return Segment(placed, table, extra.views, tail_rows=1)

    def _items(self, env: Array, row: Array, next_observation: Array | None) -> Items:
        ended = self._ended[row, env]
        last = np.flatnonzero(ended | np.append(env[1:] != env[:-1], True))
        at, of = row[last], env[last]
        table = np.zeros(len(last), dtype=ITEM_DTYPE)
        table["item_len"] = np.diff(last, prepend=-1)
        table["item_start"] = last + 1 - table["item_len"]
        table["env_id"] = of
        table["episode_id"] = self._episode[at, of] * len(self.filled) + of
        last_observation = None
        if next_observation is not None:
            last_observation = next_observation[of]
            for item in np.flatnonzero(ended[last]).tolist():
                key = int(at[item]), int(of[item])
                last_observation[item] = self._last_observations.pop(key)
        columns = {name: column[row, env] for name, column in self._columns.items()}
        return Items(columns, table, last_observation)

    def _make_room(self) -> None:
        """Twice the rows, where an environment has filled them all."""
        self._steps = int(self.filled.max())
        if not self.is_full:
            return
        self._ended = np.concatenate([self._ended, np.zeros_like(self._ended)])
        self._episode = np.concatenate([self._episode, np.zeros_like(self._episode)])
        self._columns = {
            name: np.concatenate([column, np.empty_like(column)])
            for name, column in self._columns.items()
        }


class Piece(NamedTuple):
    """Consecutive transitions of one episode, as samples that a policy made of them."""

    env: int
    episode: int
    samples: list[Transition]
    transitions: int


class PieceRecorder:
    """Records transitions of a policy of dicts, and has it make samples of each finished piece.

    A piece is finished when its episode ends, or when it has `length` transitions.

    Args:
        env_num: environments.
        length: transitions of one environment; infinite: whole episodes.
        make_samples: the policy's ``get_train_sample``.
    """

    def __init__(
        self,
        env_num: int,
        length: float,
        make_samples: Callable[[list[Transition]], list[Transition]],
    ) -> None:
        self.length = length
        self._make_samples = make_samples
        self._open = Recorder(env_num)
        self._finished: list[Piece] = []

    @property
    def open_transitions(self) -> int:
        """Transitions of unfinished pieces."""
        return int(self._open.filled.sum())

    @property
    def finished(self) -> int:
        """Pieces that `take` would return."""
        return len(self._finished)

    @property
    def is_full(self) -> bool:
        """Whether it must be cut before the next step: it holds `length` steps of all envs."""
        held = self.open_transitions + sum(piece.transitions for piece in self._finished)
        return held >= self.length * len(self._open.filled)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to cut."""
        return not self._finished and self._open.is_empty

    def record(
        self,
        columns: Columns,
        live: Array,
        ended: Array,
        failed: Array | None = None,
        _successor: Any = None,
    ) -> None:
        """Add a step; see `Recorder.record`; the only column is ``transition``, of dicts."""
        self._open.record(columns, live, ended, failed)
        due = live & (ended | (self._open.filled >= self.length))
        if due.any():
            self._finish(due)

    def take(self, most: int | None = None) -> list[Piece]:
        """Take the finished pieces, oldest first, at most so many."""
        taken = self._finished[:most]
        self._finished = self._finished[len(taken) :]
        return taken

    def finish_all(self) -> None:
        """Finish all pieces, however short they are."""
        self._finish(self._open.filled > 0)

    def cut(self, _next_observation: Any, policy_version: int) -> Segment | None:
        """Take everything as a segment of samples; None where there are none."""
        self.finish_all()
        pieces = [piece for piece in self.take() if piece.samples]
        if not pieces:
            return None
        table = np.zeros(len(pieces), dtype=ITEM_DTYPE)
        table["item_len"] = [len(piece.samples) for piece in pieces]
        table["item_start"] = np.cumsum(table["item_len"]) - table["item_len"]
        table["policy_version"] = policy_version
        table["env_id"] = [piece.env for piece in pieces]
        table["episode_id"] = [piece.episode for piece in pieces]
        return Segment(stack_columns([one for piece in pieces for one in piece.samples]), table)

    def _finish(self, envs: Array) -> None:
        items = self._open.take(envs)
        if items is None:
            return
        transitions: list[Transition] = items.columns["transition"].tolist()
        for item in items.table:
            begin, count = int(item["item_start"]), int(item["item_len"])
            samples = self._make_samples(transitions[begin : begin + count])
            self._finished.append(
                Piece(int(item["env_id"]), int(item["episode_id"]), samples, count)
            )
