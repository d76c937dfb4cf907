"""What is said of items: by themselves when they are pushed, by the buffer when they are drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.types import Array
from hpcdi.worker.replay_buffer.samplers import LARGEST_PRIORITY


class Drawn(NamedTuple):
    """Items that were drawn; all of length m."""

    slots: Array
    unique_ids: Array
    weights: Array
    """Importance weights, float32, at most 1."""
    staleness: Array
    """Train iterations between the policy that made the item and now; -1 where not known."""
    use: Array
    """How often each item has been drawn, this draw included; -1 where it is not counted."""


class Sample(NamedTuple):
    """Items that were drawn: their columns, and what the buffer says of them."""

    columns: dict[str, Any]
    """Arrays, or torch tensors, [m, ...]; nested as the items are."""
    drawn: Drawn


def made_at_of(item: Mapping[str, Any]) -> int:
    """Train iteration of the policy that made an item; -1 where it does not say."""
    said = item.get("collect_iter")
    said = item.get("policy_iter") if said is None else said
    return -1 if said is None else int(said)


def priorities_of(items: Sequence[Mapping[str, Any]], largest: float) -> Array:
    """Priority of each item, float64 [m]; `largest` where it has none.

    Raises:
        BufferContractError: see `check_priorities`.
    """
    said = [item.get("priority") for item in items]
    priorities = _numbers([largest if value is None else value for value in said])
    check_priorities(priorities, len(items))
    return priorities


def marks_of_columns(columns: Mapping[str, Any]) -> tuple[Array | int, Array | None]:
    """What columns say of their items, as `made_at_of` and `priorities_of` do; None: nothing."""
    made_at = columns.get("collect_iter", columns.get("policy_iter"))
    priority = columns.get("priority")
    ages = -1 if made_at is None else np.asarray(made_at)
    return ages, None if priority is None else _numbers(priority)


def rows_of(columns: Mapping[str, Any]) -> int:
    """Rows of columns, nested or not; 0 where they are none."""
    for column in columns.values():
        rows = rows_of(column) if isinstance(column, Mapping) else _length(column)
        if rows:
            return rows
    return 0


def _length(column: Any) -> int:
    return len(column) if isinstance(column, Sized) and getattr(column, "ndim", True) else 0


def _numbers(values: Any) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BufferContractError(f"a priority is no number: {error}") from error


def check_priorities(priorities: Array, count: int) -> float:
    """See that priorities are of `count` items, and can be drawn by; gives the largest one.

    Raises:
        BufferContractError: they are not, or one is negative, not a number, or above 1e30.
    """
    if np.shape(priorities) != (count,):
        raise BufferContractError(f"priorities of shape {np.shape(priorities)} for {count} items")
    largest = float(priorities.max(initial=0.0))
    if not (priorities.min(initial=0.0) >= 0 and largest <= LARGEST_PRIORITY):
        raise BufferContractError(
            f"a priority is negative, not a number or above {LARGEST_PRIORITY:g}"
        )
    return largest


def check_marks(made_at: Array | int, priority: Array | None, count: int) -> None:
    """See that what is said of `count` items is said of each, or of all of them at once.

    Raises:
        BufferContractError: it is not, or see `check_priorities`.
    """
    if np.shape(made_at) not in ((), (count,)):
        raise BufferContractError(f"ages of shape {np.shape(made_at)} for {count} items")
    if priority is not None:
        check_priorities(priority, count)


def add_marks(items: list[dict[str, Any]], drawn: Drawn, priority: Array, prefix: str) -> None:
    """Write into drawn items [m] what the buffer says of them; `priority` is theirs."""
    marks = zip(
        drawn.unique_ids.tolist(), drawn.slots.tolist(), priority.tolist(),
        drawn.staleness.tolist(), drawn.use.tolist(), drawn.weights.tolist(), strict=True,
    )  # fmt: skip
    for item, (number, slot, own_priority, staleness, use, weight) in zip(
        items, marks, strict=True
    ):
        item["replay_unique_id"] = f"{prefix}_{number}"
        item["replay_buffer_idx"] = slot
        item["priority"] = own_priority
        item["staleness"] = staleness
        item["use"] = use
        item["IS"] = weight


def number_of(name: Any, prefix: str) -> int:
    """The unique id in a ``replay_unique_id``; -1, which no item has, where another made it."""
    owner, _, number = str(name).rpartition("_")
    return int(number) if owner == prefix and number.isdecimal() else -1


class UsedData:
    """Which data files no item refers to any more: items name theirs by ``data_id``.

    Nothing is removed here: who owns the files asks, and decides.
    """

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._new: list[str] = []
        self._known: set[str] = set()  # told by `take_new`, and not yet by `take`
        self._unused: list[str] = []

    def arrive(self, item: Any) -> None:
        """An item is here."""
        data_id = item.get("data_id") if isinstance(item, Mapping) else None
        if data_id is not None:
            self._users[str(data_id)] += 1
            if self._users[str(data_id)] == 1:
                self._new.append(str(data_id))

    def leave(self, item: Any) -> None:
        """An item that was here has gone."""
        data_id = item.get("data_id") if isinstance(item, Mapping) else None
        if data_id is not None:
            self._users[str(data_id)] -= 1
            if self._users[str(data_id)] == 0:
                del self._users[str(data_id)]
                self._unused.append(str(data_id))

    def take(self) -> list[str]:
        """Data ids that no item has any more, since the last call; each once."""
        unused = [data_id for data_id in dict.fromkeys(self._unused) if data_id not in self._users]
        self._unused = []
        self._known.difference_update(unused)
        self._new = [data_id for data_id in self._new if data_id in self._users]
        return unused

    def take_new(self) -> list[str]:
        """Data ids that an item has now, or had in between, and none had at the last call."""
        new = [data_id for data_id in dict.fromkeys(self._new) if data_id not in self._known]
        self._new = []
        self._known.update(new)
        return new
