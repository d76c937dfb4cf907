"""Collective calls among the learners; a process without torch is alone, and does not load it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hpcdi.errors import CommError

T = TypeVar("T")


def _group() -> Any:
    """Returns `comm.group`; None where torch is not loaded, and so there is no group."""
    if "torch" not in sys.modules:
        return None
    from hpcdi.comm import group

    return group


def place_in_group() -> tuple[int, int]:
    """Returns this process's rank among the learners, and their number."""
    group = _group()
    return (group.get_rank(), group.get_world_size()) if group is not None else (0, 1)


def sum_over_ranks(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns counts summed over the process group; unchanged where there is none. Collective."""
    group = _group()
    if group is None or group.get_world_size() == 1:
        return dict(counts)
    return {name: int(group.allreduce_data(count, "sum")) for name, count in counts.items()}


def on_first_rank(make: Callable[[], T]) -> T:
    """Call `make` on rank 0; returns its result on all ranks. Collective in a process group.

    Raises:
        CommError: `make` failed on rank 0, which raises its own error.
    """
    group = _group()
    if group is None:
        return make()
    if group.get_rank() > 0:
        value, failure = group.broadcast_object(None)
        if failure:
            raise CommError(f"the call failed on rank 0, see there: {failure}")
        result: T = value
        return result
    try:
        value = make()
    except Exception as error:
        group.broadcast_object((None, f"{type(error).__name__}: {error}"))
        raise
    group.broadcast_object((value, ""))
    return value


def from_all_ranks(make: Callable[[], T]) -> list[T]:
    """Call `make` on each rank; returns all results. Collective in a process group.

    Raises:
        CommError: `make` failed on another rank.
    """
    group = _group()
    if group is None:
        return [make()]
    try:
        value = make()
    except Exception as error:
        group.gather_objects((None, f"{type(error).__name__}: {error}"))
        raise
    gathered = group.gather_objects((value, ""))
    for rank, (_, failure) in enumerate(gathered):
        if failure:
            raise CommError(f"the call failed on rank {rank}, see there: {failure}")
    return [value for value, _ in gathered]
