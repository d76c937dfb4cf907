"""Names that several layers share: columns, references to shards, ids, versions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""Any numpy array; the docstring at hand says shape and dtype."""

NUMBERS = "biufc"
"""Kinds of dtype that columns hold: truth values, integers, floats, complex numbers."""

BLOCK_ID_BITS = 40
"""Of a collector's own counters of blocks and items; its rank stands above them."""

RESTART_NUMBERS = 10**9
"""Of those counters for each time that a run is taken up again: they never come twice."""

Columns: TypeAlias = dict[str, Array]
"""Column name -> array; all arrays have the same leading axis. Nested keys are joined by '/'."""

Settings: TypeAlias = Mapping[str, Any]
"""What a policy's command mode asks of collectors or learners, e.g. ``{"eps": 0.1}``."""

Transition: TypeAlias = dict[str, Any]
"""One item of data in the per-transition form that foreign policies use."""

ITEM_DTYPE = np.dtype(
    [
        ("item_start", "<i4"),  # first row, counted from the block's first row
        ("item_len", "<i4"),  # transitions; each is one row
        ("item_id", "<i8"),  # unique in the run
        ("policy_version", "<i8"),  # of the policy that acted
        ("env_id", "<i4"),  # which environment of its collector
        ("episode_id", "<i8"),  # counted per collector; pieces of one episode share it
    ]
)
"""A block's table of items: pieces of episodes, each in consecutive rows of the block."""


@dataclass(frozen=True)
class ColumnSpec:
    """One stored array: its name, dtype (numpy's spelling), whole shape, first byte in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class RowView:
    """A column that is not stored: at row r it is ``column[r + offset[r]]``.

    The next observation is one: observations are stored once, and a column of offsets says where
    the observation lies from which a transition's return is bootstrapped. A stack of k frames is
    one, too: each frame is stored once, and `offset` has k numbers a row. `column` may itself be a
    view.
    """

    name: str
    column: str
    offset: str


@dataclass(frozen=True)
class ShardRef:
    """Where a published block lies, and all that a reader needs to use it without parsing HDF5."""

    path: str
    """Relative to the run folder."""
    n_bytes: int
    rows: int
    crc32: int
    """Of the bytes of all columns, in their order."""
    columns: tuple[ColumnSpec, ...]
    """Row columns, then the columns of the item table (`ITEM_DTYPE`)."""
    views: tuple[RowView, ...] = ()

    def row_bytes(self) -> int:
        """Bytes of one row over all row columns."""
        names = ITEM_DTYPE.names or ()
        return sum(
            np.dtype(spec.dtype).itemsize * math.prod(spec.shape[1:])
            for spec in self.columns
            if spec.name not in names
        )


@dataclass(frozen=True)
class Spaces:
    """What a policy must know of an environment.

    Attributes:
        obs_shape: shape of one observation.
        obs_dtype: numpy's spelling.
        action_count: number of discrete actions; None where actions are continuous.
        action_shape: shape of one action; empty where it is a number.
        action_low, action_high: bounds of each number of a continuous action, flat; empty where
            actions are discrete.
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
    """What makes a task the same each time: it is one piece, or one evaluation.

    With `begins_anew`, episodes and random numbers begin with seeds that follow from the round.
    """

    round: int
    policy_version: int
    """The policy to act by: no older and no newer one."""
    begins_anew: bool


def collector_of(block_id: int) -> int:
    """Rank of the collector that sealed a block."""
    return block_id >> BLOCK_ID_BITS


def number_of(block_id: int) -> int:
    """Number of a block among those of its collector; it rises."""
    return block_id & ((1 << BLOCK_ID_BITS) - 1)
