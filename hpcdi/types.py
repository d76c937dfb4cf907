"""Types that several layers share: columns, references to shards, spaces, ids."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hpcdi.dataclass import dataclass

Array: TypeAlias = npt.NDArray[Any]
"""Any numpy array; docstrings give shapes and dtypes."""

NUMBERS = "biufc"
"""Kinds of dtype that columns can have: booleans, integers, floats, complex numbers."""

BLOCK_ID_BITS = 40
"""Low bits of a block or item id, which count per collector; the higher bits hold its rank."""

RESTART_NUMBERS = 10**9
"""Range of those counters for each restart of a run, so that no id is used twice."""

MOST_RESTARTS = (1 << BLOCK_ID_BITS) // RESTART_NUMBERS - 1
"""Restarts of a run: ids of a later one would be those of the next rank."""

GIVEN = 0
"""Rank under which data that a run is given lie in its folder: that of no collector."""

FIRST_GUEST = 100_000
"""Ranks from here on are guests': collectors that are no ranks of the job, each with its own."""

Columns: TypeAlias = dict[str, Array]
"""Column name -> array; all arrays have the same leading axis. Nested keys are joined by '/'."""

Settings: TypeAlias = Mapping[str, Any]
"""Settings from a policy's command mode for collectors or learners, e.g. ``{"eps": 0.1}``."""

Transition: TypeAlias = dict[str, Any]
"""One item as a dict, the form that DI-engine's policies use."""

ACTION_MASK = "action_mask"
"""Name of the column, and of the key of an observation or an info, that says what is legal: bool,
one entry for each value of each discrete component of an action."""

MAIN = "main"
"""Name of the player that a run trains; where it trains several, of the first."""

GameCounts: TypeAlias = tuple[str, str, int, int, int]
"""Names of two players, and how many games the first one won, drew and lost."""

Games: TypeAlias = Mapping[int, Sequence[GameCounts]]
"""Results of games that ended in a step, by the row in whose item they are stored; where that row
has none, with the next item."""

ITEM_DTYPE = np.dtype(
    [
        ("item_start", "<i4"),  # first row, counted from the block's first row
        ("item_len", "<i4"),  # number of transitions; one row each
        ("item_id", "<i8"),  # unique in the run
        ("policy_version", "<i8"),  # of the policy that acted
        ("env_id", "<i4"),  # environment, counted per collector
        ("episode_id", "<i8"),  # counted per collector; items of one episode share it
        ("episode_seed", "<i8"),  # with which its environment was last seeded, or `NO_SEED`
        ("episode_resets", "<i4"),  # resets without a seed from then to its beginning
    ]
)
"""A block's table of items: parts of episodes, each in consecutive rows of the block."""
ITEM_NAMES = ITEM_DTYPE.names or ()
NO_SEED = -1
"""Stands for a seed that is not known, or that several environments share."""
INFO = "info"
"""Before the names of columns that hold numbers of infos, see ``env.keep_infos``."""
RELABELLED = -1
"""Number of the episode of items that were not played: copies with another goal."""


@dataclass(frozen=True)
class ColumnSpec:
    """One stored array: name, dtype (as numpy spells it), full shape, byte offset in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape[1:])

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class SequenceRule:
    """What is drawn from a replay buffer: so many transitions in a row, of one episode.

    They begin every `stride` transitions of a block's item, and end with it. Up to `ahead` rows
    behind a sequence are drawn with it, which its last transitions bootstrap from. The column
    ``sequence_len`` has how many rows follow in the item, from each transition's to that of the
    observation after the last one.

    None begins where only `burn_in` transitions are left, from which nothing would be learnt; an
    item's first one always does, since an episode that begins there needs no burn-in. An item has
    up to `item_len` transitions; 0: unknown.
    """

    length: int = 1
    stride: int = 1
    ahead: int = 0
    burn_in: int = 0
    item_len: int = 0

    @property
    def rows(self) -> int:
        """Rows that are drawn, at most."""
        return self.length + self.ahead

    @property
    def begins_everywhere(self) -> bool:
        """True if one begins at each transition."""
        return self.stride == 1 and not self.burn_in

    @property
    def apart(self) -> float:
        """Rows from one's start to the next's in full items, each with the row behind its last one.

        At least `stride`; more with a burn-in, where none begins at an item's end.
        """
        if self.begins_everywhere or not self.item_len:
            return self.stride
        count = int(self.counts(np.array(self.item_len)))
        return max(self.stride, (self.item_len + 1) / count)

    @property
    def most_rows(self) -> int:
        """Rows of one in the worst items: which have it alone, with the row behind them."""
        length = self.stride + self.burn_in
        return min(length, self.item_len or length) + 1

    def counts(self, item_len: Array) -> Array:
        """Returns how many begin in items, int64, of so many transitions; in each at least one."""
        lengths = item_len.astype(np.int64)
        counts = -(-(lengths - self.burn_in) // self.stride)
        return np.minimum(np.maximum(counts, 1), lengths)


@dataclass(frozen=True)
class RowView:
    """A column that is not stored: its row r is ``column[r + offset[r]]``.

    The next observation is one: observations are stored once, and a column of offsets points to the
    observation from which a transition's return is bootstrapped. A stack of k frames is one too:
    each frame is stored once, and `offset` has k numbers per row. `column` may itself be a view.
    """

    name: str
    column: str
    offset: str


@dataclass(frozen=True)
class BlockSchema:
    """What the blocks of a run have in common: their columns but for how long they are, and where.

    First row columns, then the columns of the item table (`ITEM_DTYPE`).
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Of one row of each."""
    views: tuple[RowView, ...] = ()


_PLACE = np.dtype("<i8")
SHARED = "memory:"
"""Begins the names of blocks in shared memory."""


@dataclass(frozen=True)
class ShardRef:
    """A published block: where it lies, and all that is needed to read it without parsing HDF5."""

    path: str
    """Name of the block in the run: its shard, relative to the run folder, and its number there, as
    `store.layout.block_name` makes it."""
    n_bytes: int
    """Of the block."""
    rows: int
    crc32: int
    """Checksum of the bytes of all columns, in order, as they are in the file."""
    schema: BlockSchema
    places: bytes
    """Length and offset of the block's part of each column, one after the other, int64: rank 0
    passes them on as they are."""

    @classmethod
    def of(
        cls,
        path: str,
        n_bytes: int,
        rows: int,
        crc32: int,
        columns: Sequence[ColumnSpec],
        views: tuple[RowView, ...] = (),
    ) -> ShardRef:
        """Returns the reference to a block with these parts of columns; see `columns`."""
        schema = _schema_of(
            tuple(spec.name for spec in columns),
            tuple(spec.dtype for spec in columns),
            tuple(spec.shape[1:] for spec in columns),
            views,
        )
        places = [number for spec in columns for number in (spec.shape[0], spec.offset)]
        return cls(path, n_bytes, rows, crc32, schema, np.array(places, _PLACE).tobytes())

    @property
    def is_shared(self) -> bool:
        """True if its rows lie in memory that its collector lends; it is in no shard yet."""
        return self.path.startswith(SHARED)

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """Row columns, then the columns of the item table: the block's part of each."""
        schema, places = self.schema, np.frombuffer(self.places, _PLACE).tolist()
        parts = zip(
            schema.names,
            schema.dtypes,
            schema.shapes,
            places[::2],
            places[1::2],
            strict=True,
        )
        return tuple(
            ColumnSpec(name, dtype, (length, *shape), offset)
            for name, dtype, shape, length, offset in parts
        )

    @property
    def views(self) -> tuple[RowView, ...]:
        """Columns that are not stored."""
        return self.schema.views

    def row_bytes(self) -> int:
        """Returns the bytes of one row over all row columns."""
        return sum(spec.row_bytes for spec in self.columns if spec.name not in ITEM_NAMES)


_schema_of = lru_cache(maxsize=256)(BlockSchema)
"""Makes a schema, or returns the same one again: the codec knows it by its identity."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or an action; Dict and Tuple spaces have several.

    Attributes:
        name: its keys in Dict and Tuple spaces, joined by '/'; empty: the space is this array.
        shape: of one value.
        dtype: as numpy spells it.
        counts: how many values each component can have, flattened; empty: it is a Box.
        starts: the first of these values in the environment, flattened; empty: all are 0.
        low, high: bounds of each component of a Box of actions, flattened; of an observation of
            bytes `high` is the largest, where that is below 255; else empty.
    """

    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    counts: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Bytes of one value."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def column(self, root: str) -> str:
        """Returns the name of its column among those of an observation or an action (`root`)."""
        return f"{root}/{self.name}" if self.name else root

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        kind = f"{self.dtype} [{shape}]"
        if self.counts:
            kind = "MultiDiscrete" if self.shape else "Discrete"
            kind += f"({', '.join(map(str, self.counts))})"
        return f"{self.name}: {kind}" if self.name else kind


@dataclass(frozen=True)
class Spaces:
    """An environment's observation and action space.

    Attributes:
        observation: arrays of an observation.
        action: arrays of an action.
        is_masked: whether observations come with a mask of legal actions.
    """

    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    is_masked: bool = False

    @property
    def action_kind(self) -> str:
        """One of "discrete", "continuous" (a Box), "multi_discrete" and "mixed".

        MultiDiscrete and MultiBinary are "multi_discrete", Dict and Tuple are "mixed".
        """
        first = self.action[0]
        if len(self.action) > 1 or first.name:
            return "mixed"
        if not first.counts:
            return "continuous"
        return "multi_discrete" if first.shape else "discrete"

    @property
    def observation_bytes(self) -> int:
        """Bytes of one stored observation; of a mask one for each action."""
        mask = sum(sum(leaf.counts) for leaf in self.action) if self.is_masked else 0
        return sum(leaf.n_bytes for leaf in self.observation) + mask


class Step(NamedTuple):
    """One step of all rows of a manager; arrays are [rows, ...].

    A row is one player of one environment: ``player * environments + environment``. A transition of
    a row lasts from its turn to its next one, or to the end of the episode, and rewards in between
    are summed; where all players act in each step, that is the step itself.

    Attributes:
        successor: observation after the step: at an episode's end the last one of that episode.
        reward: float32; of the transition that was completed.
        terminated: bool; the task ended: nothing is bootstrapped.
        truncated: bool; the episode was cut: the value of `successor` is bootstrapped.
        ended: bool; the episode ended.
        live: bool; rows whose transition was completed in this step. Ignore the other arrays where
            it is false: it is not the player's turn yet, the environment was being reset, is still
            in its step, or has done all its episodes.
        failed: bool; the environment failed in this step and was reset or re-created: drop the
            transitions of its unfinished episode. None: no environment failed.
        seeds: int64 [rows, 2]; of the episode that the step belongs to the seed with which its
            environment was last seeded, or `NO_SEED`, and its resets without one since. None: they
            are not known.
        infos: float64 [rows] each, by ``info/<name>``; what is kept of infos, NaN where one has no
            such number.
    """

    successor: Columns
    reward: Array
    terminated: Array
    truncated: Array
    ended: Array
    live: Array
    failed: Array | None = None
    seeds: Array | None = None
    infos: Columns = {}  # noqa: RUF012 (of a tuple: nobody writes to it)

    @property
    def over(self) -> Array:
        """Returns the rows whose episode ended or failed, bool [rows]."""
        over: Array = self.ended & self.live
        return over if self.failed is None else over | self.failed


FIGURES_KEPT = 50
"""Names of numbers in infos that become curves: an info may have thousands."""
FIGURES_SENT = 1000
"""Names of numbers in infos that rank 0 is told: with 10,000, each message would be a megabyte, and
cost it 20 ms."""


class Episodes(NamedTuple):
    """Episodes that ended, in order; each of one row.

    Attributes:
        rows: int64 [episodes]; whose.
        returns: float64 [episodes]; sums of rewards.
        lengths: int64 [episodes]; steps of the environment.
        infos: the numbers of the info at the end of each.
    """

    rows: Array
    returns: Array
    lengths: Array
    infos: Sequence[Mapping[str, float]]

    @classmethod
    def joined(cls, parts: Sequence[Episodes]) -> Episodes:
        """Returns the episodes of all parts, one part after the other."""
        parts = [part for part in parts if len(part.rows)]
        if len(parts) == 1:
            return parts[0]
        none = cls(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64), [])
        rows, returns, lengths, infos = zip(none, *parts, strict=True)
        every = [info for part in infos for info in part]
        return cls(np.concatenate(rows), np.concatenate(returns), np.concatenate(lengths), every)

    def of(self, chosen: Array) -> Episodes:
        """Returns some of them, bool [episodes]."""
        infos = [self.infos[number] for number in chosen.nonzero()[0].tolist()]
        return Episodes(self.rows[chosen], self.returns[chosen], self.lengths[chosen], infos)

    @property
    def stated(self) -> Array:
        """The returns that environments state in ``eval_episode_return``, else the sums.

        One that is NaN or infinite is not stated.
        """
        known = [info.get("eval_episode_return", np.nan) for info in self.infos]
        stated = np.array(known, dtype=np.float64)
        returns: Array = np.where(np.isfinite(stated), stated, self.returns)
        return returns

    @property
    def figures(self) -> Columns:
        """What environments say of their episodes beside the return, as columns.

        Returns:
            name of a number in the infos -> float64 [episodes], NaN where an info has none of it;
            at most `FIGURES_SENT` names, the first, and none that begins with an underscore.
        """
        names = dict.fromkeys(n for info in self.infos for n in info if not n.startswith("_"))
        names.pop("eval_episode_return", None)
        return {
            name: np.array([info.get(name, np.nan) for info in self.infos], dtype=np.float64)
            for name in list(names)[:FIGURES_SENT]
        }


@dataclass(frozen=True)
class Interval:
    """From one evaluation to the next: so much of `unit`, which is one of `UNITS`."""

    UNITS: ClassVar[tuple[str, ...]] = ("env_steps", "iterations", "seconds")

    unit: str
    length: float

    @classmethod
    def of(cls, text: str | None) -> Interval | None:
        """Parse a text such as ``20000 env_steps``; None where there is none, or it is another."""
        found = re.fullmatch(rf"([\d_.e+]+) ?({'|'.join(cls.UNITS)})", text or "")
        try:
            length = float(found[1]) if found else 0.0
        except ValueError:
            length = 0.0
        return cls(found[2], length) if found and length > 0 else None

    def count(self, env_steps: int, iterations: int, seconds: float) -> float:
        """Returns that of a run's counts that is in the interval's unit."""
        return dict(zip(self.UNITS, (env_steps, iterations, seconds), strict=True))[self.unit]


@dataclass(frozen=True)
class Lockstep:
    """Makes a task a step of a round: it is one rollout, or one evaluation.

    With `begins_anew`, environments and random numbers are seeded from the round, which makes the
    task reproducible.
    """

    round: int
    policy_version: int
    """The exact policy to act with."""
    begins_anew: bool
    start: int = 0
    """Of a deterministic run: the last start, by its number, that did not repeat the one before:
    it draws numbers of its own."""


class ScalarWriter(Protocol):
    """Takes curves, as TensorBoard's writers do."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> object:
        """Add a point to the curve of a name."""
        ...


def collector_of(block_id: int) -> int:
    """Returns the rank of the collector that sealed a block."""
    return block_id >> BLOCK_ID_BITS


def block_number(block_id: int) -> int:
    """Returns the number of a block, which counts up per collector."""
    return block_id & ((1 << BLOCK_ID_BITS) - 1)


def is_guest(rank: int) -> bool:
    """Returns whether a rank is that of a guest, see `FIRST_GUEST`."""
    return rank >= FIRST_GUEST
