"""Recording transitions in columns, and cutting them into items: pieces of one episode.

Columns are [steps, rows, ...], a row being a seat of an environment, with a mask of the rows that
completed a transition in a step. A cut gathers them item by item, once, straight into a block.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from hpcdi.env.base import Envs
from hpcdi.errors import BufferContractError
from hpcdi.policy.base import ColumnarActor
from hpcdi.roles.collector.hindsight import Hindsight, Items
from hpcdi.store.games import MOST_PAIRS
from hpcdi.store.segment import Gather, Segment
from hpcdi.types import (
    ITEM_DTYPE,
    NO_SEED,
    RELABELLED,
    Array,
    Columns,
    GameCounts,
    Games,
    RowView,
    Step,
)
from hpcdi.utils.truths import any_of


class StepRecorder(Protocol):
    """Records the transitions of a stepping loop; `Recorder` does, of columns."""

    @property
    def is_full(self) -> bool:
        """See `Recorder.is_full`."""
        ...

    def record(self, columns: Columns, live: Array, step: Step, games: Games | None = None) -> None:
        """See `Recorder.record`."""
        ...

    def drop(self) -> None:
        """Drop all running episodes; see `Recorder.drop`."""
        ...

    def cut(self, next_observation: Columns, policy_version: int) -> Segment | None:
        """See `Recorder.cut`."""
        ...


class Recorder:
    """Records steps of all rows; an item ends with its episode or where it is cut.

    Args:
        envs: the environments.
        length: steps until it is full; if not all rows complete a transition in each step, it is
            full after ``length * env_num`` transitions.
        actor: adds the policy's columns to a segment.
        keeps_games: record results of games, too.
        hindsight: adds items with other goals; None: there are only those that were collected.
    """

    def __init__(
        self,
        envs: Envs,
        length: int,
        actor: ColumnarActor,
        *,
        keeps_games: bool = False,
        hindsight: Hindsight | None = None,
    ) -> None:
        self._env_num, rows = envs.env_num, envs.rows
        self._max_transitions: float = math.inf  # else it is full after `length` steps
        if envs.wait_num is not None or envs.seats > 1:
            self._max_transitions = length * self._env_num
            at_once = min(envs.wait_num or self._env_num, self._env_num)
            length = math.ceil(length * self._env_num / at_once)
        self._actor, self._keeps_games, self._hindsight = actor, keeps_games, hindsight
        self._columns: Columns = {}
        self._live = np.zeros((length, rows), dtype=bool)  # where there is a transition
        self._ended = np.zeros((length, rows), dtype=bool)
        self._episode = np.zeros((length, rows), dtype=np.int64)  # number of its episode
        self._running = np.zeros(rows, dtype=np.int64)  # number of the running episode
        # of episodes that ended: rows, observations after them, and their seeds
        self._finals: list[tuple[Array, Columns, Array]] = []
        self._seeds = np.full((rows, 2), (NO_SEED, 0), np.int64)  # last `Step.seeds`
        self._games: dict[tuple[int, int], Sequence[GameCounts]] = {}  # by row and episode
        # of games that ended without an item, or of more pairs of players than a block takes: they
        # go with the next items
        self._games_apart: dict[tuple[str, str], GameCounts] = {}
        self._steps = 0

    @property
    def is_full(self) -> bool:
        """True if it must be cut before the next step."""
        if self._max_transitions < math.inf:
            return int(np.count_nonzero(self._live[: self._steps])) >= self._max_transitions
        return self._steps == len(self._live)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to cut."""
        return not self._live[: self._steps].any()

    @property
    def counts(self) -> Array:
        """Number of transitions of each row, int64 [rows]."""
        counts: Array = self._live[: self._steps].sum(axis=0, dtype=np.int64)
        return counts

    def record(self, columns: Columns, live: Array, step: Step, games: Games | None = None) -> None:
        """Add a step.

        Args:
            columns: name -> [rows, ...]; observations and outputs that transitions began with, and
                their results.
            live: bool [rows]; where a transition was completed that is to be recorded.
            step: says where episodes ended or failed, and the observations then.
            games: see `Games`; where a row has no transition then, they go with other items. A cut
                takes those of as many pairs of players as a block does; the others follow.
        """
        if step.failed is not None:
            live = live & ~step.failed
        self._note_games(games or {}, live)
        if step.seeds is not None:
            self._seeds = step.seeds
        is_some = any_of(live)
        if self._max_transitions < math.inf and step.failed is None and not is_some:
            return
        if is_some and self._columns.keys() != columns.keys():
            self._declare(columns)
        if self._steps == len(self._live):
            self._make_room()
        at, self._steps = self._steps, self._steps + 1
        for name, column in columns.items() if is_some else ():
            self._columns[name][at] = column
        self._live[at], self._ended[at], self._episode[at] = live, step.ended, self._running
        if any_of(step.ended):
            self._end((step.ended & live).nonzero()[0], step)
        if step.failed is not None:
            self.drop(step.failed)

    def _note_games(self, games: Games, live: Array) -> None:
        """Keep results for the items that end now in their rows, else for the next of any row."""
        for row, results in games.items():
            if live[row]:
                self._games[row, int(self._running[row])] = results
                continue
            self._keep_apart(results)

    def _keep_apart(self, results: Sequence[GameCounts]) -> None:
        """Keep results for later items, of any row."""
        for one, other, wins, draws, losses in results:
            *_, won, drawn, lost = self._games_apart.get((one, other), (one, other, 0, 0, 0))
            sums = (one, other, won + wins, drawn + draws, lost + losses)
            self._games_apart[one, other] = sums

    def _games_of(self, ends: Sequence[tuple[int, int]]) -> list[Sequence[GameCounts]]:
        """Take the results that go with items: those of as many pairs as one block takes.

        The others wait for the next cut, and go first then: a rollout is never split for them.

        Args:
            ends: row and episode of each item.
        """
        waiting = list(self._games_apart)[: min(len(ends), MOST_PAIRS)]
        # a pair each: what an item has goes into one block
        apart = [self._games_apart.pop(pair) for pair in waiting]
        taken, games = set(waiting), list[Sequence[GameCounts]]()
        for number, end in enumerate(ends):
            own = list[GameCounts]()
            for result in self._games.pop(end, ()):
                if len(taken) < MOST_PAIRS:
                    taken.add(result[:2])
                if result[:2] in taken:
                    own.append(result)
                else:
                    self._keep_apart([result])
            games.append(own + apart[number : number + 1])
        return games

    def _end(self, over: Array, step: Step) -> None:
        """Note what episodes of some rows (numbers) have ended with."""
        last = {name: column.take(over, axis=0) for name, column in step.successor.items()}
        self._finals.append((over, last, self._seeds.take(over, axis=0)))
        self._running[over] += 1

    def _declare(self, columns: Columns) -> None:
        """Make arrays for columns that are new; earlier steps have zeros there.

        Raises:
            BufferContractError: transitions with other columns have been recorded.
        """
        if not self.is_empty:
            odd = sorted(self._columns.keys() ^ columns.keys())
            raise BufferContractError(f"the policy's outputs have changed in a rollout: {odd}")
        shape = self._live.shape
        self._columns = {
            name: self._columns.get(name, np.zeros((*shape, *column.shape[1:]), column.dtype))
            for name, column in columns.items()
        }

    def drop(self, rows: Array | bool = True) -> None:
        """Drop running episodes, of some rows (bool [rows]) or of all; others come next there.

        What was cut of them stays, as episodes that never end.
        """
        self._live[: self._steps] &= ~((self._episode[: self._steps] == self._running) & rows)
        self._running += rows

    def cut(self, next_observation: Columns, policy_version: int) -> Segment | None:
        """Take everything as items, row by row, with the policy's columns.

        Each item is followed by one row that holds only the observation after its last transition
        (the bootstrap row), so that every observation is stored once. The segment gathers from
        this recorder's arrays when it is read: read it before the next step is recorded.

        Args:
            next_observation: observation after the last recorded step, columns [rows, ...].
            policy_version: version of the policy that acted.

        Returns:
            The segment; None if no transition was recorded.
        """
        rows = self._live.shape[1]
        row, step = np.nonzero(self._live[: self._steps].T)  # row-major
        if not row.size:
            self._clear()
            return None
        at = step * rows + row
        ended = self._ended.ravel()[at]
        is_last = ended | np.append(row[1:] != row[:-1], True)
        last = is_last.nonzero()[0]
        item_len = np.diff(last, prepend=-1).astype(np.int32)
        after, seeds = self._at_ends(row[last], ended[last], next_observation)
        recorded = {n: c.reshape(self._live.size, *c.shape[2:]) for n, c in self._columns.items()}
        items = Items(recorded, at, item_len, after, np.arange(len(item_len)))
        collected = slice(len(item_len))  # items of hindsight follow: no steps, no ends, no games
        env_steps = None
        if self._hindsight is not None:
            items = self._hindsight.extended(recorded, at, item_len, after)
            env_steps = np.zeros(len(items.length), np.int64)
            env_steps[collected] = item_len
        segment = segment_of(items.columns, items.rows, items.length, items.after, self._actor)
        episode, table = self._episode.ravel()[at[last]], segment.items
        table["policy_version"] = policy_version
        env, seat = row[last] % self._env_num, row[last] // self._env_num
        table["env_id"] = env[items.source]
        table["episode_id"] = RELABELLED
        numbers = (episode * self._env_num + env) * (rows // self._env_num) + seat
        table["episode_id"][collected] = numbers
        table["episode_seed"], table["episode_resets"] = seeds[items.source].T
        games = None
        if self._keeps_games:
            ends = zip(row[last].tolist(), episode.tolist(), strict=True)
            games = self._games_of(list(ends))
        self._clear()
        has_ended = np.zeros(len(items.length), dtype=bool)
        has_ended[collected] = ended[last]
        return dataclasses.replace(segment, ended=has_ended, env_steps=env_steps, games=games)

    def _at_ends(
        self, row: Array, ended: Array, next_observation: Columns
    ) -> tuple[Columns, Array]:
        """Returns what follows from each item's end.

        Args:
            row: row of each item, int64 [items].
            ended: whether its episode ended with it, bool [items].
            next_observation: see `cut`.

        Returns:
            The observation after its last transition, columns [items, ...], and the seeds of its
            episode, int64 [items, 2], see `Step.seeds`.
        """
        observations = {name: column[row] for name, column in next_observation.items()}
        seeds = self._seeds[row]
        if self._finals:
            rows, finals, final_seeds = zip(*self._finals, strict=True)
            order = np.argsort(np.concatenate(rows), kind="stable")  # from order of steps to rows
            for name, column in observations.items():
                column[ended] = np.concatenate([final[name] for final in finals])[order]
            seeds[ended] = np.concatenate(final_seeds)[order]
        return observations, seeds

    def _clear(self) -> None:
        self._steps = 0
        self._finals.clear()

    def _make_room(self) -> None:
        """Close the gaps in each row's steps; double the number of steps if little room is won."""
        rows, length = np.arange(self._live.shape[1]), len(self._live)
        live_first = np.argsort(~self._live, axis=0, kind="stable")
        self._steps = int(self.counts.max())
        new_steps = length if 2 * self._steps > length else 0

        def moved(column: Array) -> Array:
            room = np.zeros((new_steps, *column.shape[1:]), dtype=column.dtype)
            return np.concatenate([column[live_first, rows], room])

        self._columns = {name: moved(column) for name, column in self._columns.items()}
        self._live, self._ended = moved(self._live), moved(self._ended)
        self._episode = moved(self._episode)


def segment_of(
    recorded: Columns, rows: Array, item_len: Array, after: Columns, actor: ColumnarActor
) -> Segment:
    """Returns items of transitions, each with its bootstrap row, and the policy's columns.

    Args:
        recorded: observations, outputs of acting, and results, columns [any, ...].
        rows: of each transition in these, item after item: int64 [transitions].
        item_len: transitions of each item, int32 [items].
        after: observation after the last transition of each, columns [items, ...].
        actor: adds the policy's columns.
    """
    extra = actor.train_columns(Gather().add(recorded, rows), item_len, after)
    ends = np.cumsum(item_len)
    is_last = np.zeros(len(rows), dtype=bool)
    is_last[ends - 1] = True
    of_row = np.repeat(np.arange(len(rows)), 1 + is_last)  # one more row after each item
    tails = ends + np.arange(len(ends))
    columns = Gather(tails, after).add(recorded, rows[of_row]).add(extra.columns, of_row)
    table = np.zeros(len(ends), dtype=ITEM_DTYPE)
    table["item_start"], table["item_len"] = tails - item_len, item_len
    table["episode_seed"] = NO_SEED
    views = tuple(_views_of_parts(extra.views, after))
    return Segment(columns, table, views, tail_rows=1, stacks=extra.stacks)


def _views_of_parts(views: Sequence[RowView], observation: Columns) -> Iterator[RowView]:
    """Yields the views, with one for each column of the observation instead of one of it all."""
    for view in views:
        if view.column != "observation":
            yield view
            continue
        for name in observation:
            yield RowView(view.name.replace("observation", name, 1), name, view.offset)
