"""A run's data for scripts: whole episodes, read from its shards.

    from hpcdi.data import read_episodes

    for episode in read_episodes("runs/cartpole_dqn/latest"):
        print(len(episode), episode.total, episode.observation.shape)

or, as a table of them: ``pandas.DataFrame(e.facts for e in read_episodes(run, columns=()))``.

A shard is plain HDF5, and an episode's steps lie over several items of it, perhaps over several
shards; each item is followed by a row that has the observation after it, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.config.load import read_mapping
from hpcdi.dataclass import dataclass
from hpcdi.errors import LaunchError, ShardError, StoreError
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout, rank_name
from hpcdi.store.rows import rows_of, transitions
from hpcdi.store.shards import facts_of, read_blocks
from hpcdi.types import (
    GIVEN,
    INFO,
    MAIN,
    NO_SEED,
    RELABELLED,
    RESTART_NUMBERS,
    Array,
    Columns,
    block_number,
)
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import counted
from hpcdi.utils.nested import take_rows, under

_OBSERVATION = "observation"
_COLUMNS_OF_FACTS = ("reward", "terminated", "truncated")
OF_AN_EPISODE = ("env_id", "episode_id", "episode_seed", "episode_resets")
"""What items of one episode have alike."""
_OF_ITEMS, _PERHAPS_NONE = "policy_version", INFO
"""What each item has, and of what a run may keep nothing: asked for, neither is a mistake."""


@dataclass(frozen=True)
class Episode:
    """An episode of one environment, or of one player in it.

    Attributes:
        observations: ``observation``, or ``observation/<leaf>``: [steps + 1, ...], the one after
            the last step too. They are the environment's, in float32's precision; where the run
            has subtracted an ``env.origin`` it is added again: float64, whole ones int64.
        columns: everything else that was stored of its steps, [steps, ...]: ``action`` (or
            ``action/<leaf>``), ``reward``, ``terminated``, ``truncated``, ``action_mask``, what the
            policy added, ``policy_version``, and ``info/<name>`` of ``env.keep_infos``.
        collector: name of its collector's rank, ``rank00002``.
        env: number of the environment among those of its collector.
        seed: with which this environment was last reset; None: it has no generator of its own, or
            the policy makes samples of its own.
        resets: later resets, without a seed, to the episode's beginning; 0: `seed` is its own. It
            begins as after ``env.reset(seed=seed)`` and so many ``env.reset()``, where beginnings
            depend on nothing else.
        is_whole: it has ended, and nothing of it is missing.
        player: who learns from it; in a league it may be another than the main one.
    """

    observations: Columns
    columns: Columns
    collector: str
    env: int
    seed: int | None
    resets: int
    is_whole: bool
    player: str = MAIN

    def __len__(self) -> int:
        """Returns the number of steps."""
        return len(self.columns["reward"])

    @property
    def observation(self) -> Any:
        """Observations [steps + 1, ...]: an array, or of several parts a dict of them."""
        return _grouped(self.observations, _OBSERVATION)

    @property
    def action(self) -> Any:
        """Actions [steps, ...], as policies count them: an array, or a dict of parts."""
        return _grouped(self.columns, "action")

    @property
    def reward(self) -> Array:
        """Rewards [steps]."""
        return self.columns["reward"]

    @property
    def infos(self) -> dict[str, Array]:
        """What is kept of infos, float64 [steps], by name, NaN where one has no such number."""
        kept = under(self.columns, INFO).items()
        return {name.removeprefix(f"{INFO}/"): column for name, column in kept}

    @property
    def total(self) -> float:
        """Sum of the rewards, which are float32, in float64."""
        return float(self.reward.sum(dtype=np.float64))

    @property
    def facts(self) -> dict[str, Any]:
        """What a table of episodes has in a row."""
        version = self.columns["policy_version"]
        return {
            "collector": self.collector,
            "env": self.env,
            "player": self.player,
            "steps": len(self),
            "return": self.total,
            "terminated": bool(self.columns["terminated"][-1]),
            "truncated": bool(self.columns["truncated"][-1]),
            "policy_version": int(version[0]),
            "seed": self.seed,
            "resets": self.resets,
        }


LeftOut = Callable[[ShardError], object]
"""Is called with what is wrong with a shard or a block of which nothing is returned."""


def warn_of(error: StoreError) -> None:
    """Warn of a shard or a block that is left out."""
    LOGGER.warning("%s; it is left out", error)


def read_episodes(
    run: str | Path,
    *,
    unfinished: bool = False,
    columns: Collection[str] | None = None,
    player: str | None = None,
    left_out: LeftOut | None = warn_of,
) -> Iterator[Episode]:
    """Yields the episodes of a run, collector after collector, in the order in which they ended.

    They are those that it has collected, without the `data` that it was given, and without copies
    that have other goals (`policy.hindsight`).

    A collector's open episodes are in memory, nothing else. A run that is on may be read: what is
    published so far.

    Args:
        run: its folder.
        unfinished: also those that were cut: by the run's end, by a failure, or because a shard is
            gone or damaged.
        columns: names, or one, of what is wanted of steps beside ``reward``, ``terminated`` and
            ``truncated``, ``observation`` or ``info`` with all its parts, or ``observation/arm``:
            nothing else is read, and checksums are not verified. Without
            observations there is none after the last step either. None: everything.
        player: name of a player of a league: only those that it learns from; None: of all.
        left_out: called once for each shard that cannot be read, and for each damaged block of
            another, with what is wrong with it; no step of it is returned. `warn_of`: that is a
            warning; None: nothing is said.

    Raises:
        LaunchError: nothing is of the player.
        StoreError: there are no data, or none that can be read, these are no transitions, or a
            column is in none of them.
    """
    columns = [columns] if isinstance(columns, str) else columns
    layout = RunLayout(Path(run))
    shards = [(rank, path) for path, (rank, _) in layout.shard_numbers().items() if rank != GIVEN]
    if not shards:
        raise StoreError(run, "holds no data that it has collected (data/*/*/*.h5)")
    every = [layout.root / path for _, path in shards]
    there = set(map(player_of, _facts_in(every))) if player is not None else ()
    if there and player not in there:
        names = ", ".join(sorted(there))
        raise LaunchError(f"{run} has 0 whole episodes of {player}: its data are those of {names}")
    _check_columns(run, every, columns or ())
    only = None if columns is None else {*_COLUMNS_OF_FACTS, *columns}
    origins, damaged, count = origins_of(layout), list[ShardError](), 0

    def leave_out(error: ShardError) -> None:
        damaged.append(error)
        if left_out is not None:
            left_out(error)

    for rank, of_rank in groupby(shards, itemgetter(0)):
        paths = [layout.root / path for _, path in of_rank]
        episodes = _episodes_of(
            paths, rank_name(rank), only, unfinished=unfinished, player=player, left_out=leave_out
        )
        for each in episodes:
            count += 1
            yield _with_origins(each, origins) if origins else each
    if damaged and not count and not _holds_blocks(every, only):
        raise StoreError(
            run, f"has {counted(len(every), 'shard')}, and none can be read: {damaged[0]}"
        )


def _episodes_of(
    paths: Sequence[Path],
    collector: str,
    only: Collection[str] | None,
    *,
    unfinished: bool,
    player: str | None = None,
    left_out: LeftOut | None = warn_of,
) -> Iterator[Episode]:
    """Yields the episodes of a collector, of all its starts; `paths` in the order of blocks."""
    open_episodes: dict[tuple[int, int], list[_Part]] = {}  # their parts so far
    gaps = _Gaps(paths)
    for path in paths:
        for block in _blocks(path, only, left_out):
            if isinstance(block, ShardError):
                gaps.at_damage()
                continue
            if "block_id" not in block.facts:
                raise StoreError(path, "has a block that is of no collector")
            gaps.at_block(number_of_block(block.facts), player_of(block.facts))
            for part in _parts_of(block, path, gaps, is_partial=only is not None, player=player):
                parts = open_episodes.setdefault(part.key, [])
                parts.append(part if part.has_ended else part.kept())
                if not part.has_ended:
                    continue
                del open_episodes[part.key]
                is_whole = parts[0].begins and parts[0].gaps == gaps.count
                if is_whole or unfinished:
                    yield _joined(parts, collector, is_whole=is_whole)
    if unfinished:
        for parts in open_episodes.values():
            yield _joined(parts, collector, is_whole=False)


def player_of(facts: Mapping[str, Any]) -> str:
    """Returns who learns from a block."""
    name: str = facts.get("player", MAIN)
    return name


def number_of_block(facts: Mapping[str, Any]) -> int:
    """Returns a block's number among those of its collector; 0: it is of no collector."""
    return block_number(int(facts.get("block_id", 0)))


def _check_columns(run: str | Path, paths: Sequence[Path], columns: Collection[str]) -> None:
    """Check that each column, or parts of it, are in some block; reads on until all were seen.

    Raises:
        StoreError: it is in none.
    """
    unseen = {*columns} - {_OF_ITEMS, _PERHAPS_NONE}
    there: Block | None = None
    for path in paths if unseen else ():
        for block in _blocks(path, None if there is None else unseen):
            if isinstance(block, ShardError):
                continue
            there = there or block
            held = {**block.columns, **{view.name: view for view in block.views}}
            unseen -= {name for name in unseen if under(held, name)}
            if not unseen:
                return
    if there is not None and unseen:
        names = ", ".join(sorted({*there.columns, _OF_ITEMS}))
        raise StoreError(run, f"has no column {', '.join(sorted(unseen))}; there are {names}")


def origins_of(layout: RunLayout) -> dict[str, Any]:
    """Returns what a run has subtracted from its observations, by column; see ``env.origin``."""
    if not layout.config_file.is_file():
        return {}
    return (read_mapping(layout.config_file).get("env") or {}).get("origin") or {}


def origin_row(origin: Any, column: Array) -> Array:
    """Returns an origin, one number or one for each component, as what a row has added to it."""
    numbers = np.asarray(origin, np.float64)
    if column.dtype.kind in "iu":
        numbers = np.rint(numbers).astype(np.int64)
    return numbers.reshape(column.shape[1:] if numbers.size > 1 else ())


def _with_origins(episode: Episode, origins: Mapping[str, Any]) -> Episode:
    """Returns an episode with the observations that its environment has returned."""
    observations = dict(episode.observations)
    for name in origins.keys() & observations.keys():
        row = origin_row(origins[name], observations[name])
        observations[name] = observations[name].astype(row.dtype) + row
    return dataclasses.replace(episode, observations=observations)


def _blocks(
    path: Path, only: Collection[str] | None, left_out: LeftOut | None = None
) -> Iterator[Block | ShardError]:
    """Yields the blocks of a shard, or what is wrong with them; nothing where the shard is torn.

    A running run may remove a shard while it is read: nothing is wrong with that one.
    """

    def leave_out(error: ShardError) -> None:
        if left_out is not None and os.path.lexists(path):
            left_out(error)

    try:
        for block in read_blocks(path, only=only):
            if isinstance(block, ShardError):
                leave_out(block)
            yield block
    except ShardError as error:
        leave_out(error)


def _holds_blocks(paths: Sequence[Path], only: Collection[str] | None) -> bool:
    """Returns whether a block of shards can be read."""
    blocks = (block for path in paths for block in _blocks(path, only))
    return any(isinstance(block, Block) for block in blocks)


def _facts_in(paths: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    """Yields the facts of all blocks in shards, those that are not torn."""
    for path in paths:
        with contextlib.suppress(ShardError):
            yield from facts_of(path)


class BlockNumbers:
    """The numbers of a collector's blocks, one after the other, as they are stored.

    They are from 1 on, and in each start of the run anew, from another number on. Blocks are
    numbered when they are begun, and stored when they are full: where several players' are open at
    once, a lower number may come later.

    Args:
        paths: of all the collector's shards, read where a number does not follow the one before.

    Attributes:
        start: number of the run's start.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.start = 0
        self._paths, self._highest = paths, 0  # number of a block so far

    def advance(self, number: int) -> tuple[bool, bool]:
        """Take the next number; returns whether it begins a later start, and whether one is lost.

        A block is lost where its number has been passed, and no shard has it.
        """
        start = number // RESTART_NUMBERS
        is_later_start = start != self.start
        if is_later_start:
            self.start, self._highest = start, start * RESTART_NUMBERS
        passed = range(self._highest + 1, number)
        self._highest = max(number, self._highest)
        return is_later_start, bool(passed) and not self._stored.issuperset(passed)

    @cached_property
    def _stored(self) -> frozenset[int]:
        """Numbers of all blocks in the shards, also of those whose rows are damaged."""
        return frozenset(map(number_of_block, _facts_in(self._paths)))


class _Gaps:
    """Where data of a collector are missing: a part of an episode may have been there.

    Args:
        paths: of all its shards.

    Attributes:
        count: gaps so far.
        blocks: the numbers of its blocks.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.count, self.blocks = 0, BlockNumbers(paths)
        self._player = MAIN  # of the block
        self._count_at_start = 0  # gaps when this start began
        # player and environment -> gaps when its last episode ended
        self._count_at_end: dict[tuple[str, int], int] = {}
        self._of_several: set[int] = set()  # environments with several players in this block
        self._ended_in_block: set[int] = set()  # those of them of which an episode has ended here

    def at_damage(self) -> None:
        """Note that the next block cannot be read."""
        self._close_block()
        self.count += 1

    def at_block(self, number: int, player: str) -> None:
        """Note the next block, of a player."""
        self._close_block()
        self._player = player
        is_later_start, is_lost = self.blocks.advance(number)
        if is_later_start:  # environments began anew
            self.count += 1
            self._count_at_start = self.count
            self._count_at_end.clear()
        self.count += is_lost

    def _close_block(self) -> None:
        self._count_at_end |= {(self._player, env): self.count for env in self._ended_in_block}
        self._ended_in_block.clear()

    def note_items(self, items: Array) -> None:
        """Note the table of the block's items: an episode's players have one each."""
        self._of_several = _of_several_players(items)

    def begins(self, env: int) -> bool:
        """Returns whether an item of a new episode of an environment is the episode's first.

        After a gap that is so once an episode of the environment has ended since.
        """
        return self._count_at_end.get((self._player, env), self._count_at_start) == self.count

    def ended(self, env: int) -> None:
        """Note that an episode of an environment has ended in this block.

        Of several players it counts from the next block on: items of another player of the same
        episode may follow.
        """
        if env in self._of_several:
            self._ended_in_block.add(env)
        else:
            self._count_at_end[self._player, env] = self.count


def _of_several_players(items: Array) -> set[int]:
    """Returns environments of which two episodes have one seed: items of several players.

    Those without a seed are among them, since nothing tells.
    """
    several, episodes = set[int](), dict[tuple[int, ...], int]()
    of_items = zip(*(items[name].tolist() for name in OF_AN_EPISODE), strict=True)
    for env, episode, seed, resets in of_items:
        if episode == RELABELLED:
            continue
        if seed == NO_SEED or episodes.setdefault((env, seed, resets), episode) != episode:
            several.add(env)
    return several


@dataclass
class _Part:
    """An item: consecutive steps of an episode, and the observation after them.

    `gaps` is how many there were before it; `begins` whether it may be its episode's first; `start`
    which start of the run it is of; `player` who learns from it.
    """

    start: int
    env: int
    episode: int
    observations: Columns
    after: Columns
    columns: Columns
    seed: int
    resets: int
    gaps: int
    begins: bool
    player: str

    @property
    def key(self) -> tuple[int, int]:
        """What parts of one episode share, and no others of the collector: a start counts anew."""
        return self.start, self.episode

    @property
    def has_ended(self) -> bool:
        return bool(self.columns["terminated"][-1] or self.columns["truncated"][-1])

    def kept(self) -> _Part:
        """Returns it with copies of its rows: views hold all rows of their block in memory."""
        rows = (self.observations, self.after, self.columns)
        observations, after, columns = ({n: c.copy() for n, c in part.items()} for part in rows)
        return dataclasses.replace(self, observations=observations, after=after, columns=columns)


def _parts_of(
    block: Block,
    path: Path,
    gaps: _Gaps,
    *,
    is_partial: bool = False,
    player: str | None = None,
) -> Iterator[_Part]:
    """Yields the items of a block, of which not all columns may have been read.

    There are none where another than `player` learns from it; None: of all.

    Raises:
        StoreError: they are no transitions.
    """
    if player not in (None, player_of(block.facts)):
        return
    items, columns = block.items, transitions(block)
    seen = under(columns, _OBSERVATION)
    if "reward" not in columns or not (seen or is_partial) or not block.tail_rows:
        raise StoreError(path, "holds no transitions with the observations around them")
    after = rows_of(block, items["item_start"].astype(np.int64) + items["item_len"])
    of_views = {name for view in block.views for name in (view.name, view.offset)}
    columns["policy_version"] = np.repeat(items["policy_version"], items["item_len"])
    others = {n: c for n, c in columns.items() if n not in seen and n not in of_views}
    ends = np.cumsum(items["item_len"])
    gaps.note_items(items)
    for number, (start, end) in enumerate(zip(ends - items["item_len"], ends, strict=True)):
        if items["episode_id"][number] == RELABELLED:
            continue
        env = int(items["env_id"][number])
        part = _Part(
            gaps.blocks.start,
            env,
            int(items["episode_id"][number]),
            take_rows(seen, slice(start, end)),
            {name: after[name][number : number + 1] for name in seen},
            take_rows(others, slice(start, end)),
            int(items["episode_seed"][number]),
            int(items["episode_resets"][number]),
            gaps.count,
            gaps.begins(env),
            player_of(block.facts),
        )
        if part.has_ended:
            gaps.ended(env)
        yield part


def _joined(parts: list[_Part], collector: str, *, is_whole: bool) -> Episode:
    first, last = parts[0], parts[-1]
    return Episode(
        {
            name: np.concatenate([*(part.observations[name] for part in parts), last.after[name]])
            for name in first.observations
        },
        {name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns},
        collector,
        first.env,
        None if first.seed == NO_SEED else first.seed,
        first.resets,
        is_whole,
        first.player,
    )


def _grouped(columns: Mapping[str, Array], name: str) -> Any:
    if name in columns:
        return columns[name]
    return {path.removeprefix(f"{name}/"): part for path, part in under(columns, name).items()}
