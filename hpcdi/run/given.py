"""Data that a run is given: transitions of earlier runs and of Minari's datasets.

    data: [runs/cartpole_dqn/latest, "minari:cartpole/expert-v0"]

Rank 0 writes them into the folder of a new run before it begins, as a collector would: with this
policy's n-step returns, in items of `policy.collect.n_sample` steps, in shards of the rank `GIVEN`,
which no collector has. From there they go the way of all blocks::

    source ─► pieces of episodes ─► data/rank00000/*/*.h5 ─► rank 0 ─► learners
                                          └─► a run that is resumed, hpcdi inspect

An earlier run may have had shorter items: those that follow one another in an episode are joined
before they are cut. What is given is no environment step of this run: its counters do not count it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpcdi.comm.messages import BlockReady
from hpcdi.config.fields import replaced
from hpcdi.config.load import read_mapping
from hpcdi.config.policy import HindsightConfig, TorchPolicyConfig
from hpcdi.config.schema import MINARI, ExperimentConfig, offline_iterations
from hpcdi.config.team import TeamConfig
from hpcdi.data import (
    OF_AN_EPISODE,
    BlockNumbers,
    number_of_block,
    origin_row,
    origins_of,
    player_of,
    warn_of,
)
from hpcdi.dataclass import dataclass
from hpcdi.env.contract import Field, Space, arrays_in, pick, read_spaces
from hpcdi.errors import ConfigError, HpcdiError, Problem, ShardError, StoreError
from hpcdi.policy.base import ColumnarActor
from hpcdi.policy.create import get_policy_cls
from hpcdi.policy.spaces import action_leaves, as_shape, as_stored
from hpcdi.roles.collector.channels import DataPublisher
from hpcdi.roles.collector.recorder import segment_of
from hpcdi.run.placement import learner_count
from hpcdi.run.sizes import full_block, partition_size, row_size
from hpcdi.store.layout import RunLayout
from hpcdi.store.rows import rows_of, transitions
from hpcdi.store.segment import Segment
from hpcdi.store.shards import read_blocks
from hpcdi.types import (
    ACTION_MASK,
    GIVEN,
    RELABELLED,
    Array,
    Columns,
    Leaf,
    Spaces,
    collector_of,
)
from hpcdi.utils.metrics import counted
from hpcdi.utils.nested import concatenate_columns, take_rows, under
from hpcdi.utils.packages import missing
from hpcdi.utils.registry import POLICY_REGISTRY

_ENDS = ("terminated", "truncated")
_COPIED_COLUMNS = ("reward", *_ENDS, ACTION_MASK)
_ROUNDING = 1e-5
"""Share of a bound by which an action may be beyond it."""


@dataclass(frozen=True)
class Pieces:
    """Pieces of episodes, one after the other.

    Attributes:
        columns: of their transitions, [transitions, ...].
        length: transitions of each, int32 [pieces].
        after: observation after the last transition of each, columns [pieces, ...].
        facts: of each, columns [pieces]: ``env_id`` and ``episode_id``; of an earlier run all of
            `OF_AN_EPISODE`, and ``is_open``: whether more of its episode may follow.
    """

    columns: Columns
    length: Array
    after: Columns
    facts: Columns

    def take(self, which: Array) -> Pieces:
        """Returns pieces by their numbers (int64 [any]), in that order: copies."""
        length, ends = self.length[which].astype(np.int64), np.cumsum(self.length, dtype=np.int64)
        before = np.cumsum(length) - length  # transitions of those before it, in the result
        starts = ends[which] - length - before
        rows = np.repeat(starts, length) + np.arange(int(length.sum()))
        columns, after = take_rows(self.columns, rows), take_rows(self.after, which)
        return Pieces(columns, self.length[which], after, take_rows(self.facts, which))

    def cut(self, most: int) -> Pieces:
        """Returns them in pieces of at most so many transitions."""
        counts = -(-self.length // most)
        if not (counts > 1).any():
            return self
        whole = np.repeat(np.arange(len(counts)), counts)  # the piece that each is a part of
        number = np.arange(len(whole)) - np.repeat(np.cumsum(counts) - counts, counts)
        length = np.minimum(most, self.length[whole] - number * most).astype(np.int32)
        is_last = number == counts[whole] - 1
        following = np.minimum(np.cumsum(length), int(self.length.sum()) - 1)
        after = {name: self.columns[name][following] for name in self.after}
        for name, column in after.items():
            column[is_last] = self.after[name]
        return Pieces(self.columns, length, after, take_rows(self.facts, whole))

    def then(self, later: Pieces) -> Pieces:
        """Returns these, and later ones of the same columns after them."""
        return Pieces(
            concatenate_columns([self.columns, later.columns]),
            np.concatenate([self.length, later.length]),
            concatenate_columns([self.after, later.after]),
            concatenate_columns([self.facts, later.facts]),
        )

    def joined(self) -> Pieces:
        """Returns an earlier run's by episode, those that follow one another in one as one."""
        ordered = self.take(np.lexsort([self.facts[name] for name in OF_AN_EPISODE]))  # is stable
        if not len(self.length):
            return ordered
        columns, facts = ordered.columns, ordered.facts
        starts = np.cumsum(ordered.length, dtype=np.int64) - ordered.length
        episode = np.stack([facts[name] for name in OF_AN_EPISODE])
        follows = facts["is_open"][:-1] & (np.diff(episode, axis=1) == 0).all(axis=0)
        for name, after in under(ordered.after, "observation").items():
            # numbers of episodes may come again, as where environments share a generator
            is_next = after[:-1] == columns[name][starts[1:]]
            follows &= is_next.all(axis=tuple(range(1, is_next.ndim)))
        first = np.append(0, np.flatnonzero(~follows) + 1)
        last = np.append(first[1:], len(starts)) - 1
        length = np.add.reduceat(ordered.length, first)
        return Pieces(columns, length, take_rows(ordered.after, last), take_rows(facts, last))


@dataclass(frozen=True)
class Size:
    """What a source, a block or a learner holds.

    Attributes:
        transitions: how many.
        rows: at most how many, with one after each item.
        given: transitions that are no run's own.
    """

    transitions: int = 0
    rows: int = 0
    given: int = 0

    def __add__(self, other: Size) -> Size:
        given = self.given + other.given
        return Size(self.transitions + other.transitions, self.rows + other.rows, given)


class Source(Protocol):
    """Where data come from."""

    def objections(self, config: ExperimentConfig, spaces: Spaces) -> Iterator[str]:
        """Yields why a run cannot learn from it.

        Raises:
            HpcdiError: it is not there, or cannot be read.
        """
        ...

    def size(self) -> Size:
        """Returns how much it holds, in items of this run."""
        ...

    def pieces(self) -> Iterator[Pieces | StoreError]:
        """Yields what it holds, or why a part of it is left out."""
        ...


def source_of(name: str, config: ExperimentConfig) -> Source:
    """Returns what an entry of `data` names."""
    origins, n_sample = config.env.origins, config.policy.collect.n_sample
    if name.startswith(MINARI):
        return _Minari(name.removeprefix(MINARI), origins, n_sample)
    hindsight = getattr(config.policy, "hindsight", HindsightConfig())
    return _Run(Path(name), origins, n_sample, takes_copies=hindsight.goals > 0)


def check(config: ExperimentConfig, spaces: Spaces) -> None:
    """Check that a new run can learn from the data that it is given.

    Raises:
        ConfigError: some are missing, belong to other spaces, or are too many or too few; names
            each. Or the policy is that of a team.
    """
    if isinstance(config.policy, TeamConfig):  # which it becomes by the environment's players
        raise ConfigError(
            [Problem("data", "a team needs its players' steps together, and data are single ones")]
        )
    problems, sizes = list[Problem](), list[Size]()
    for name in config.data:
        source = source_of(name, config)
        try:
            objections = list(source.objections(config, spaces))
            if not objections:
                sizes.append(source.size())
        except HpcdiError as error:
            objections = [str(error)]
        problems += [
            Problem("data", why if name in why else f"{name}: {why}") for why in objections
        ]
    size = sum(sizes, Size())
    room, needed = config.policy.buffer.replay_buffer_size, _room_for(size, config, spaces)
    if needed > room:
        learners = learner_count(config)
        shared = f", of which {learners} learners share whole blocks" * (learners > 1)
        why = (
            f"is {room:,}, and `data` are {size.transitions:,} transitions in {size.rows:,} rows"
            f"{shared}; set it to {needed:,}, or to more if the run goes on to collect"
        )
        problems.append(Problem("policy.other.replay_buffer.replay_buffer_size", why))
    elif not problems and offline_iterations(config) > 0:
        share = _smallest_share(sizes, config, spaces)
        problems += _too_few(share, size.transitions, config)
    if problems:
        raise ConfigError(problems)


def check_resumed(
    config: ExperimentConfig, published: Iterable[BlockReady], train_iter: int
) -> None:
    """Check that a run which is still offline can go on by its present settings.

    Args:
        config: the experiment.
        published: its blocks, oldest first.
        train_iter: its train iterations so far.

    Raises:
        StoreError: a learner would wait for ever, or be given more than it can hold.
    """
    if offline_iterations(config) <= train_iter:
        return
    learners = learner_count(config)
    blocks = (
        Size(
            ready.transitions,
            ready.shard.rows,
            ready.transitions if collector_of(ready.block_id) == GIVEN else 0,
        )
        for ready in published
    )
    shares = _shared_out(blocks, learners)
    total = sum(share.transitions for share in shares)
    problems = list(_too_few(min(share.transitions for share in shares), total, config))
    most, room = max(share.given for share in shares), partition_size(config)
    if most > room:
        why = f"is {room * learners:,}, and one of {counted(learners, 'learner')} is given {most:,}"
        least = f"{why} transitions; set it to {most * learners:,} or more"
        problems.append(Problem("policy.other.replay_buffer.replay_buffer_size", least))
    if problems:
        why = "; ".join(f"{problem.path} {problem.message}" for problem in problems)
        raise StoreError(", ".join(config.data), f"the run cannot go on: {why}")


def _shared_out(blocks: Iterable[Size], learners: int) -> list[Size]:
    """Returns what each learner has if each block goes to the one with the fewest rows."""
    shares = [Size()] * learners
    for block in blocks:
        least = min(range(learners), key=lambda learner: shares[learner].rows)
        shares[least] += block
    return shares


def _too_few(share: int, total: int, config: ExperimentConfig) -> Iterator[Problem]:
    """Yields the settings by which a learner would wait for ever for more than it is given.

    Args:
        share: transitions of the learner that is given the fewest.
        total: those of all.
        config: the experiment.
    """
    learners, buffer = learner_count(config), config.policy.buffer
    batch, ratio = config.policy.learn.batch_size, buffer.thruput_controller.sample_min_limit_ratio
    each = f", of which one of {learners} learners gets {share:,}" * (learners > 1)
    given = f"`data` are {total:,} transitions{each}"
    nothing = "without more of them nothing is ever learnt"
    if share < batch * ratio:
        per_item = f" x {ratio:g} (sample_min_limit_ratio)" * (ratio != 1)
        most = math.floor(share / ratio)
        hint = f"set it to {most:,} or less" if most else "have more data, or fewer learners"
        why = f"is {batch:,}{per_item}, and {given}: {nothing}; {hint}"
        yield Problem("policy.learn.batch_size", why)
    if share < buffer.min_fill // learners:
        why = f"is {buffer.min_fill:,}, and {given}: {nothing}"
        yield Problem("policy.other.replay_buffer.min_fill", why)


def _smallest_share(sizes: Sequence[Size], config: ExperimentConfig, spaces: Spaces) -> int:
    """Returns the fewest transitions of a learner, by blocks that are full but for the last."""
    learners = learner_count(config)
    if learners == 1:
        return sum(sizes, Size()).transitions
    full = full_block(config, row_size(config, spaces))
    blocks = (
        Size(rows * size.transitions // size.rows, rows)
        for size in sizes
        for rows in (min(full, size.rows - start) for start in range(0, size.rows, full))
    )
    return min(share.transitions for share in _shared_out(blocks, learners))


def _room_for(size: Size, config: ExperimentConfig, spaces: Spaces) -> int:
    """Returns the size of a replay buffer that holds all of some data.

    Of several learners, who get one block after the other, one may have a block more than its
    share.
    """
    learners = learner_count(config)
    if learners == 1:
        return size.rows
    share, partition = -(-size.rows // learners), partition_size(config)
    block = config.system.storage.block_bytes // max(1, row_size(config, spaces))
    most = _largest_share(share, min(block, partition // 4), learners)
    if len(config.data) == 1:  # all blocks but the last one are full
        block_now = full_block(config, row_size(config, spaces))
        most = min(most, -(-size.rows // block_now // learners) * block_now)
    if most <= partition:
        return learners * partition
    return learners * min(_largest_share(share, block, learners), share * 2)


def _largest_share(share: int, block: int, learners: int) -> int:
    """Returns the most rows of a learner, if each block goes to the one with fewest (Graham 1969).

    Args:
        share: rows of each, if they could be split evenly.
        block: rows of the largest block.
        learners: how many there are.
    """
    return share + block * (learners - 1) // learners + 1


def size_of(config: ExperimentConfig) -> Size:
    """Returns how much the data are that a run is given.

    Raises:
        HpcdiError: some are missing.
    """
    return sum((source_of(name, config).size() for name in config.data), Size())


def fill(config: ExperimentConfig, layout: RunLayout) -> str:
    """Write the given data into the folder of a new run; returns a line about them.

    Raises:
        StoreError: there are none, they do not fit the policy or the replay buffer, or one is no
            number or none of the environment's discrete values; names source, episode and step.
    """
    actor, leaves = _train_columns_of(config), _leaves_of(config)
    # blocks end by their size, never by time: the same data become the same blocks
    sealed_by_size = replaced(config, {"system.storage.seal_seconds": math.inf})
    count, rows, damaged, episodes, copies, clipped = 0, 0, 0, 0, 0, 0
    with DataPublisher(sealed_by_size, layout, GIVEN, lambda _ready: None) as publisher:
        for name in config.data:
            publisher.begin(f"data {name}")
            form: dict[str, str] = {}  # of the source's first block
            for pieces in source_of(name, config).pieces():
                if isinstance(pieces, StoreError):
                    warn_of(pieces)
                    damaged += 1
                    continue
                if not len(pieces.length):
                    continue
                form = form or _form_of(pieces.columns)
                if (other := _form_of(pieces.columns)) != form:
                    raise StoreError(name, f"has data of two kinds: {form}, and later {other}")
                _check_values(pieces, name, leaves)
                pieces, beyond = _within_bounds(pieces, leaves)
                clipped += beyond
                segment = _segment(pieces, config, actor)
                rows += segment.rows
                publisher.put(segment)
                is_copy = np.repeat(pieces.facts["episode_id"] == RELABELLED, pieces.length)
                has_ended = pieces.columns["terminated"] | pieces.columns["truncated"]
                count, copies = count + int((~is_copy).sum()), copies + int(is_copy.sum())
                episodes += int((has_ended & ~is_copy).sum())
    if not count:
        raise StoreError(", ".join(config.data), "hold no transition that can be read")
    if rows > config.policy.buffer.replay_buffer_size:  # which `check` cannot know of Minari's
        why = (
            f"are {count:,} transitions in {rows:,} rows, since episodes go on after terminations; "
            f"set policy.other.replay_buffer.replay_buffer_size to {rows:,}, or to more"
        )
        raise StoreError(", ".join(config.data), why)
    line = f"{count:,} transitions, {counted(episodes, 'episode')} of {', '.join(config.data)}"
    line += f"; {copies:,} more with other goals" * bool(copies)
    if clipped:
        line += f"; {clipped:,} actions beyond the environment's bounds, which are clipped to them"
    return line + f"; {counted(damaged, 'damaged block')} left out" * bool(damaged)


def _train_columns_of(config: ExperimentConfig) -> ColumnarActor:
    """Returns what adds the policy's columns: without a network, and without torch if it can."""
    policy = config.policy
    acting = POLICY_REGISTRY.core(policy.type) or get_policy_cls(policy)
    actor: ColumnarActor = acting(policy, [])
    return actor


def _form_of(columns: Columns) -> dict[str, str]:
    """Returns dtype and shape of what a policy learns from, by column."""
    seen = {**under(columns, "observation"), **under(columns, "action")}
    return {
        name: f"{column.dtype} {[*column.shape[1:]]}"
        for name, column in sorted({**seen, **_mask_in(columns)}.items())
    }


def _mask_in(columns: Columns) -> Columns:
    return {ACTION_MASK: columns[ACTION_MASK]} if ACTION_MASK in columns else {}


def _check_values(pieces: Pieces, name: str, leaves: Mapping[str, Leaf]) -> None:
    """Check that numbers are finite, and discrete values those of the environment.

    Args:
        pieces: of the source.
        name: of the source.
        leaves: column -> what it is of.

    Raises:
        StoreError: one is not; names the first, its episode and its step.
    """
    ends = np.cumsum(pieces.length)
    for column in ("reward", *under(pieces.columns, "observation"), *leaves):
        leaf = leaves.get(column)
        for values, is_after in ((pieces.columns[column], False), (pieces.after.get(column), True)):
            if values is None or (are_right := _are_right(values, leaf)).all():
                continue
            row = int(are_right.argmin())
            piece = row if is_after else int(np.searchsorted(ends, row, side="right"))
            length = int(pieces.length[piece])
            step = length if is_after else row - int(ends[piece]) + length
            of = f", and the environment's are {_told(leaf)}" if leaf and leaf.counts else ""
            raise StoreError(
                name,
                f"has the {column} {values[row]} in episode {pieces.facts['episode_id'][piece]} of "
                f"environment {pieces.facts['env_id'][piece]}, step {step} of {length} there{of}",
            )


def _are_right(values: Array, leaf: Leaf | None) -> Array:
    """Returns of which rows all values are finite, or discrete ones of an environment's."""
    flat = values.reshape(len(values), -1)
    if leaf is None or not leaf.counts:
        are_finite: Array = np.logical_and.reduce(np.isfinite(flat), axis=1)
        return are_finite
    starts = np.array(leaf.starts or [0] * len(leaf.counts))
    is_within = (flat >= starts) & (flat < starts + np.array(leaf.counts))
    are_within: Array = np.logical_and.reduce(is_within, axis=1)
    return are_within


def _within_bounds(pieces: Pieces, leaves: Mapping[str, Leaf]) -> tuple[Pieces, int]:
    """Returns pieces whose actions are stored as a run's own, and how many exceeded their bounds.

    Those of a run are clipped before the environment gets them, and so they are stored.
    """
    columns, are_beyond = dict(pieces.columns), np.zeros(len(pieces.columns["reward"]), bool)
    for name, column in under(pieces.columns, "action").items():
        leaf = leaves.get(name)
        if leaf is None:
            continue
        columns[name] = as_stored(column, leaf)
        if leaf.counts or not leaf.low:
            continue
        flat = column.reshape(len(are_beyond), math.prod(column.shape[1:]))
        low, high = (np.array(limit) for limit in (leaf.low, leaf.high))
        excess = np.maximum(low - flat, flat - high)
        slack = _ROUNDING * np.maximum(1.0, np.where(flat < low, np.abs(low), np.abs(high)))
        are_beyond |= (excess > slack).any(axis=1)
    return dataclasses.replace(pieces, columns=columns), int(are_beyond.sum())


def _segment(pieces: Pieces, config: ExperimentConfig, actor: ColumnarActor) -> Segment:
    """Returns pieces of a source as the run's collectors would publish them."""
    pieces = pieces.cut(config.policy.collect.n_sample)
    columns = under(pieces.columns, "observation")
    acts = [leaf.column("action") for leaf in _action_leaves_of(config)]
    columns |= {name: pieces.columns[name] for name in acts}
    columns |= {n: pieces.columns[n] for n in _COPIED_COLUMNS if n in pieces.columns}
    rows = np.arange(len(columns["reward"]))
    segment = segment_of(columns, rows, pieces.length, pieces.after, actor)
    for name in ("env_id", "episode_id"):
        segment.items[name] = pieces.facts[name]
    # no steps of this run, and no episodes
    return dataclasses.replace(segment, env_steps=np.zeros(len(segment.items), np.int64))


def _action_leaves_of(config: ExperimentConfig) -> Sequence[Leaf]:
    policy = config.policy
    return action_leaves(policy.model) if isinstance(policy, TorchPolicyConfig) else ()


def _leaves_of(config: ExperimentConfig) -> dict[str, Leaf]:
    """Returns by column what is known of discrete observations, and of actions from 0 on."""
    policy = config.policy
    seen = policy.model.obs_leaves if isinstance(policy, TorchPolicyConfig) else ()
    acts = [dataclasses.replace(leaf, starts=()) for leaf in _action_leaves_of(config)]
    return {
        **{leaf.column("observation"): leaf for leaf in seen if leaf.counts},
        **{leaf.column("action"): leaf for leaf in acts},
    }


# ------------------------------------------------------------------------------------ earlier runs


class _Run:
    """The transitions that an earlier run has collected; see `Source`.

    Args:
        root: its folder.
        origin: what is subtracted from this run's observations.
        n_sample: transitions of an item of this run, at most.
        takes_copies: also those that have other goals, see `hpcdi.roles.collector.hindsight`.
    """

    def __init__(
        self,
        root: Path,
        origin: Mapping[str, Sequence[float]],
        n_sample: int,
        *,
        takes_copies: bool = False,
    ) -> None:
        self._root, self._origin, self._takes_copies = root, origin, takes_copies
        self._n_sample = n_sample

    def objections(self, config: ExperimentConfig, spaces: Spaces) -> Iterator[str]:
        """See `Source`."""
        blocks = (read for path in self._shards() for read in self._items_in(path))
        first = next((read.pieces for read in blocks if isinstance(read, _BlockPieces)), None)
        if first is None:
            raise StoreError(self._root, "holds no transitions that it has collected")
        yield from _unlike("observation", first.columns, spaces.observation)
        for leaf in spaces.observation:
            stored = self._seen.get(leaf.name)
            if stored is not None and _kind_of(stored) != _kind_of(leaf):
                yield (
                    f"is of other observations: {leaf.column('observation')} is {_told(stored)}, "
                    f"the environment's {_told(leaf)}"
                )
        yield from _unlike("action", first.columns, spaces.action)
        if spaces.is_masked is not (ACTION_MASK in first.columns):
            yield f"has {'no ' * spaces.is_masked}masks of actions, unlike the environment"
        model = getattr(config.policy, "model", None)
        source_model = (self._settings.get("policy") or {}).get("model") or {}
        for name in ("action_shape", "action_low", "action_high"):
            here, there = getattr(model, name, None), source_model.get(name)
            if here and there and np.ravel(here).tolist() != np.ravel(there).tolist():
                yield f"is of an environment with other actions: {name} {there}, here {here}"

    def size(self) -> Size:
        """See `Source`."""
        size = Size()
        for pieces in self._joined(_ENDS):
            if isinstance(pieces, Pieces):
                count = int(pieces.length.sum())
                size += Size(count, count + len(pieces.length))
        return size

    def pieces(self) -> Iterator[Pieces | StoreError]:
        """See `Source`."""
        subtracted = origins_of(RunLayout(self._root))
        for pieces in self._joined():
            if isinstance(pieces, Pieces):
                columns, after = (
                    _of_origin(part, self._origin, subtracted)
                    for part in (pieces.columns, pieces.after)
                )
                yield dataclasses.replace(pieces, columns=columns, after=after)
            else:
                yield pieces

    def _joined(self, only: Collection[str] | None = None) -> Iterator[Pieces | StoreError]:
        """Yields pieces of `n_sample` transitions, or fewer where episodes end, or why none.

        Args:
            only: names of the columns that are read, `_ENDS` among them; None: all.
        """
        for _, paths in groupby(self._shards(), lambda path: path.parent.parent):
            shards = list(paths)
            joiner = _Joiner(self._n_sample, shards)
            for read in (read for path in shards for read in self._items_in(path, only)):
                if isinstance(read, _BlockPieces):
                    yield from joiner.add(read)
                else:
                    yield from joiner.cut()
                    yield read
            yield from joiner.cut()

    def _items_in(
        self, path: Path, only: Collection[str] | None = None
    ) -> Iterator[_BlockPieces | ShardError]:
        """Yields the items of each block of a shard that are learnt from, or why it has none."""
        try:
            for block in read_blocks(path, only=only):
                if isinstance(block, ShardError):
                    yield block
                    continue
                columns = transitions(block)
                if "terminated" not in columns or not block.tail_rows:
                    why = "holds samples of a policy of dicts, not transitions"
                    raise StoreError(self._root, why)
                ends = np.cumsum(block.items["item_len"], dtype=np.int64) - 1
                has_ended = (columns["terminated"] | columns["truncated"])[ends]
                after = rows_of(block, block.items["item_start"] + block.items["item_len"])
                seen = under(columns, "observation")
                copied = {name: columns[name] for name in _COPIED_COLUMNS if name in columns}
                is_copy = block.items["episode_id"] == RELABELLED
                facts = {name: block.items[name].astype(np.int64) for name in OF_AN_EPISODE}
                pieces = Pieces(
                    {**seen, **under(columns, "action"), **copied},
                    block.items["item_len"],
                    {name: after[name] for name in {**seen, **_mask_in(columns)}},
                    {**facts, "is_open": ~(is_copy | has_ended)},
                )
                if not self._takes_copies:
                    pieces = pieces.take(np.flatnonzero(~is_copy))
                yield _BlockPieces(pieces, number_of_block(block.facts), player_of(block.facts))
        except ShardError as error:
            yield error

    def _shards(self) -> list[Path]:
        layout = RunLayout(self._root)
        if self._root.is_file():
            why = "is a file; data are a run's folder, or a dataset of Minari as minari:NAME"
            raise StoreError(self._root, why)
        if not self._root.is_dir():
            raise StoreError(self._root, "is no folder of a run")
        numbers = layout.shard_numbers()
        return [self._root / name for name, (rank, _) in numbers.items() if rank != GIVEN]

    @cached_property
    def _settings(self) -> Mapping[str, Any]:
        file = RunLayout(self._root).config_file
        return read_mapping(file) if file.is_file() else {}

    @property
    def _seen(self) -> dict[str, Leaf]:
        """Arrays of its observations by their names; none, where its settings do not say them."""
        model = (self._settings.get("policy") or {}).get("model") or {}
        if leaves := model.get("obs_leaves"):
            return {leaf.name: leaf for leaf in map(_leaf_of, leaves)}
        shape = model.get("obs_shape")
        return {} if shape is None else {"": Leaf("", as_shape(shape))}


class _BlockPieces(NamedTuple):
    """The items of a block as pieces; the block's number, and who learns from it."""

    pieces: Pieces
    number: int
    player: str


class _Joiner:
    """Joins the items of a collector; holds the end of each open episode, less than an item.

    Args:
        n_sample: transitions of an item, at most.
        shards: all of the collector's.
    """

    def __init__(self, n_sample: int, shards: Sequence[Path]) -> None:
        self._n_sample, self._numbers = n_sample, BlockNumbers(shards)
        self._held: dict[str, Pieces] = {}  # of each player

    def add(self, block: _BlockPieces) -> Iterator[Pieces]:
        """Yields what is complete by the items of the next block."""
        if any(self._numbers.advance(block.number)):
            yield from self.cut()  # episodes began anew, or a part of them is missing
        held = self._held.pop(block.player, None)
        pieces = block.pieces if held is None else held.then(block.pieces)
        parts = pieces.joined().cut(self._n_sample)
        is_open = parts.facts["is_open"] & (parts.length < self._n_sample)
        yield parts.take(np.flatnonzero(~is_open))
        self._held[block.player] = parts.take(np.flatnonzero(is_open))

    def cut(self) -> Iterator[Pieces]:
        """Yields the ends of episodes that nothing follows."""
        held, self._held = self._held, {}
        yield from held.values()


def _of_origin(
    columns: Columns, origin: Mapping[str, Any], subtracted: Mapping[str, Any]
) -> Columns:
    """Returns observations less an origin, from those less another one; see ``env.origin``."""
    shifted = dict(columns)
    for name in columns.keys() & {*origin, *subtracted}:
        column = columns[name]
        new, old = (origin_row(by.get(name, 0.0), column) for by in (origin, subtracted))
        if (new != old).any():
            shifted[name] = (column + (old - new)).astype(column.dtype)
    return shifted


def _leaf_of(told: Mapping[str, Any]) -> Leaf:
    """Returns what a configuration file says of an array."""
    given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in told.items()}
    return Leaf(**given)


def _kind_of(leaf: Leaf) -> tuple[object, ...]:
    """Returns what two arrays of observations must have alike.

    Not the dtype: where bytes are normalised, a configuration calls them numbers.
    """
    return leaf.shape, leaf.counts, leaf.starts


def _told(leaf: Leaf) -> str:
    starts = f" from {', '.join(map(str, leaf.starts))}" if leaf.starts else ""
    return f"{leaf}{starts}"


def _unlike(root: str, columns: Columns, leaves: Sequence[Leaf]) -> Iterator[str]:
    """Yields how columns of observations or actions differ from an environment's."""
    stored, wanted = under(columns, root), {leaf.column(root): leaf for leaf in leaves}
    for name in sorted(stored.keys() ^ wanted.keys()):
        whose = "the environment" if name in stored else "its data"
        yield f"is of other {root}s: {whose} has no {name}"
    for name in stored.keys() & wanted.keys():
        leaf, shape, dtype = wanted[name], stored[name].shape[1:], stored[name].dtype
        is_alike = root == "action" or dtype == np.dtype(leaf.dtype)
        if math.prod(shape) != math.prod(leaf.shape) or not is_alike:
            yield f"is of other {root}s: {name} is {dtype} {list(shape)}, the environment's {leaf}"


# ----------------------------------------------------------------------------------------- Minari


class _Minari:
    """A dataset of Minari's; see `Source`.

    Args:
        name: of the dataset.
        origin: what is subtracted from this run's observations.
        n_sample: transitions of an item of this run, at most.
    """

    def __init__(self, name: str, origin: Mapping[str, Sequence[float]], n_sample: int) -> None:
        self._name, self._origin, self._n_sample = name, origin, n_sample

    def objections(self, config: ExperimentConfig, spaces: Spaces) -> Iterator[str]:  # noqa: ARG002
        """See `Source`."""
        dataset = self._dataset
        stored = read_spaces(arrays_in(dataset.observation_space), dataset.action_space)
        if spaces.is_masked:
            yield "datasets of Minari have no masks of actions after an episode's last step"
        for root, here, there in (
            ("observation", spaces.observation, stored.observation),
            ("action", spaces.action, stored.action),
        ):
            if here != there:
                its, ours = (", ".join(map(str, leaves)) for leaves in (there, here))
                bounds = " with other bounds" * (its == ours)
                yield f"is of other {root}s: {its}, the environment's {ours}{bounds}"

    def size(self) -> Size:
        """See `Source`."""
        steps, episodes = int(self._dataset.total_steps), int(self._dataset.total_episodes)
        return Size(steps, steps + steps // self._n_sample + episodes)

    def pieces(self) -> Iterator[Pieces | StoreError]:
        """See `Source`."""
        dataset = self._dataset
        seen = Space.of_observations(
            arrays_in(dataset.observation_space), origin=self._origin
        ).fields
        acts = Space.of_actions(dataset.action_space).fields
        for episode in dataset.iterate_episodes():
            steps = len(episode.rewards)
            if not steps:
                continue
            observations = {
                field.name: _values_of(pick(episode.observations, field.path), field, steps + 1)
                for field in seen
            }
            columns = {name: column[:-1] for name, column in observations.items()}
            for field in acts:
                action = _values_of(pick(episode.actions, field.path), field, steps)
                columns[field.name] = action if field.start is None else action - field.start
            columns["reward"] = np.asarray(episode.rewards, np.float32)
            columns["terminated"] = np.asarray(episode.terminations, bool)
            columns["truncated"] = np.asarray(episode.truncations, bool)
            is_cut = columns["truncated"][:-1] & ~columns["terminated"][:-1]
            if is_cut.any():
                raise StoreError(
                    MINARI + self._name,
                    f"is truncated at step {int(is_cut.argmax())} of {steps} of episode "
                    f"{episode.id}, and goes on: the observation after that step is missing",
                )
            ends = np.union1d(np.flatnonzero(columns["terminated"]), steps - 1) + 1
            yield Pieces(  # several, where it goes on after a termination
                columns,
                np.diff(ends, prepend=0).astype(np.int32),
                {name: column[ends] for name, column in observations.items()},
                {
                    "env_id": np.zeros(len(ends), np.int64),
                    "episode_id": np.full(len(ends), int(episode.id)),
                },
            )

    @cached_property
    def _dataset(self) -> Any:
        if needed := missing("minari"):
            raise StoreError(MINARI + self._name, needed)
        import minari

        try:
            return minari.load_dataset(self._name)
        except (FileNotFoundError, ValueError, TypeError) as error:
            raise StoreError(
                MINARI + self._name,
                f"is not on this machine; `minari list local` shows what is, and `minari download "
                f"{self._name}` fetches it if it is public",
            ) from error


def _values_of(dataset_values: Any, field: Field, steps: int) -> Array:
    """Returns a dataset's values of one column as they are stored; actions from their start."""
    array = np.asarray(dataset_values).reshape(steps, *field.shape)
    if field.origin is not None:
        array = array - field.origin
    stored: Array = array.astype(field.dtype)
    return stored
