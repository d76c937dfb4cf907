"""Types that several layers share: columns, references to shards, spaces, ids."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""Any numpy array; docstrings give shapes and dtypes."""

NUMBERS = "biufc"
"""Kinds of dtype that columns can have: booleans, integers, floats, complex numbers."""

BLOCK_ID_BITS = 40
"""Low bits of a block or item id, which count per collector; the higher bits hold its rank."""

RESTART_NUMBERS = 10**9
"""Range of those counters for each restart of a run, so that no id is used twice."""

Columns: TypeAlias = dict[str, Array]
"""Column name -> array; all arrays have the same leading axis. Nested keys are joined by '/'."""

Settings: TypeAlias = Mapping[str, Any]
"""Settings from a policy's command mode for collectors or learners, e.g. ``{"eps": 0.1}``."""

Transition: TypeAlias = dict[str, Any]
"""One item as a dict, the form that DI-engine's policies use."""

ITEM_DTYPE = np.dtype(
    [
        ("item_start", "<i4"),  # first row, counted from the block's first row
        ("item_len", "<i4"),  # number of transitions; one row each
        ("item_id", "<i8"),  # unique in the run
        ("policy_version", "<i8"),  # of the policy that acted
        ("env_id", "<i4"),  # environment, counted per collector
        ("episode_id", "<i8"),  # counted per collector; items of one episode share it
    ]
)
"""A block's table of items: parts of episodes, each in consecutive rows of the block."""


@dataclass(frozen=True)
class ColumnSpec:
    """One stored array: name, dtype (as numpy spells it), full shape, byte offset in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


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
class ShardRef:
    """A published block: where it lies, and all that is needed to read it without parsing HDF5."""

    path: str
    """Name of the block in the run: its shard, relative to the run folder, and its number there, as
    `store.layout.block_name` makes it. Earlier versions' shards held one block: their path."""
    n_bytes: int
    """Of the block."""
    rows: int
    crc32: int
    """Checksum of the bytes of all columns, in order, as they are in the file."""
    columns: tuple[ColumnSpec, ...]
    """Row columns, then the columns of the item table (`ITEM_DTYPE`): the block's part of each."""
    views: tuple[RowView, ...] = ()

    def row_bytes(self) -> int:
        """Returns the bytes of one row over all row columns."""
        names = ITEM_DTYPE.names or ()
        return sum(
            np.dtype(spec.dtype).itemsize * math.prod(spec.shape[1:])
            for spec in self.columns
            if spec.name not in names
        )


@dataclass(frozen=True)
class Spaces:
    """An environment's observation and action space.

    Attributes:
        obs_shape: shape of one observation.
        obs_dtype: as numpy spells it.
        action_count: number of discrete actions; None if actions are continuous.
        action_shape: shape of one action; empty for a scalar.
        action_low, action_high: bounds of each component of a continuous action, flattened; empty
            if actions are discrete.
        is_masked: whether observations come with a mask of legal actions.
    """

    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_count: int | None
    action_shape: tuple[int, ...]
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    is_masked: bool = False

    @property
    def observation_bytes(self) -> int:
        """Bytes of one stored observation."""
        return math.prod(self.obs_shape) * np.dtype(self.obs_dtype).itemsize


@dataclass(frozen=True)
class Lockstep:
    """Makes a task of a deterministic run reproducible: it is one rollout, or one evaluation.

    With `begins_anew`, environments and random numbers are seeded from the round.
    """

    round: int
    policy_version: int
    """The exact policy to act with."""
    begins_anew: bool


def collector_of(block_id: int) -> int:
    """Returns the rank of the collector that sealed a block."""
    return block_id >> BLOCK_ID_BITS


def number_of(block_id: int) -> int:
    """Returns the number of a block, which counts up per collector."""
    return block_id & ((1 << BLOCK_ID_BITS) - 1)
