"""What is said of items: by themselves when they are pushed, by the buffer when they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.types import Array
from hpcdi.worker.replay_buffer.index import Drawn


def made_at_of(items: Sequence[Mapping[str, Any]]) -> Array:
    """Train iteration of the policy that made each item, int64 [m]; -1 where it does not say."""
    said = [(item.get("collect_iter"), item.get("policy_iter")) for item in items]
    return np.array([next((int(v) for v in pair if v is not None), -1) for pair in said])


def priorities_of(items: Sequence[Mapping[str, Any]], largest: float, owner: str) -> Array:
    """Priority of each item, float64 [m]; `largest` where it has none.

    Raises:
        BufferContractError: see `check_priorities`.
    """
    said = [item.get("priority") for item in items]
    priorities = np.array([largest if value is None else float(value) for value in said])
    check_priorities(priorities, len(items), owner)
    return priorities


def check_priorities(priorities: Array, count: int, owner: str) -> None:
    """See that priorities are of `count` items, and can be drawn by.

    Raises:
        BufferContractError: they are not, or one is negative, infinite or not a number.
    """
    if np.shape(priorities) != (count,):
        raise BufferContractError(
            f"{owner}: priorities of shape {np.shape(priorities)} for {count} items"
        )
    if not np.all(np.isfinite(priorities) & (priorities >= 0)):
        raise BufferContractError(f"{owner}: a priority is negative, infinite or not a number")


def check_marks(made_at: Array | int, priority: Array | None, count: int, owner: str) -> None:
    """See that what is said of `count` items is said of each, or of all of them at once.

    Raises:
        BufferContractError: it is not, or see `check_priorities`.
    """
    if np.shape(made_at) not in ((), (count,)):
        raise BufferContractError(f"{owner}: ages of shape {np.shape(made_at)} for {count} items")
    if priority is not None:
        check_priorities(priority, count, owner)


def add_marks(items: list[dict[str, Any]], drawn: Drawn, priority: Array, prefix: str) -> None:
    """Write into drawn items [m] what the buffer says of them; `priority` is theirs."""
    for k, item in enumerate(items):
        item["replay_unique_id"] = f"{prefix}_{drawn.unique_ids[k]}"
        item["replay_buffer_idx"] = int(drawn.slots[k])
        item["priority"] = float(priority[k])
        item["staleness"] = int(drawn.staleness[k])
        item["use"] = int(drawn.use[k])
        item["IS"] = float(drawn.weights[k])


def number_of(name: Any, prefix: str) -> int:
    """The unique id in a ``replay_unique_id``; -1, which no item has, where another made it."""
    owner, _, number = str(name).rpartition("_")
    return int(number) if owner == prefix and number.isdecimal() else -1
