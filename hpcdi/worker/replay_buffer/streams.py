"""Streams of items that come to slots in turn: of each environment, which one came before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcdi.types import Array


class Streams:
    """The last item of each environment, for as long as its slot is not given to another.

    Args:
        capacity: slots.
    """

    def __init__(self, capacity: int) -> None:
        self._put = 0
        self._numbers = np.zeros(capacity, np.int64)  # of each slot: which item is in it, from 1
        self._latest: dict[int, tuple[int, int]] = {}  # environment -> slot, number

    @property
    def n_bytes(self) -> int:
        """Bytes of what is known of all slots."""
        return self._numbers.nbytes

    def take(self, start: int, stop: int) -> None:
        """New items come to slots [start, stop); those that were there have gone."""
        first, self._put = self._put + 1, self._put + stop - start
        self._numbers[start:stop] = np.arange(first, self._put + 1)

    def last_of(self, env: int) -> int | None:
        """Slot of an environment's last item; None where it has gone, or there was none."""
        slot, number = self._latest.get(env, (0, -1))
        return slot if self._numbers[slot] == number else None

    def follow(self, env: int, slot: int) -> None:
        """The item in a slot is the last one of an environment."""
        self._latest[env] = slot, int(self._numbers[slot])
        if len(self._latest) > len(self._numbers):  # environments that have gone for good
            self._latest = {
                env: last for env, last in self._latest.items() if self._numbers[last[0]] == last[1]
            }


def by_env(envs: Array | None) -> Iterator[tuple[int, Any]]:
    """Environments of rows (None: of one), and which are whose: a slice if evenly spaced."""
    numbers = np.zeros(1, np.int64) if envs is None else envs.reshape(-1)
    different = dict.fromkeys(numbers.tolist())
    if len(different) == 1:
        yield int(numbers[0]), slice(None)
        return
    for env in different:
        own = np.flatnonzero(numbers == env)
        steps = set(np.diff(own).tolist()) or {1}
        is_even = len(steps) == 1
        yield int(env), slice(own[0], own[-1] + 1, steps.pop()) if is_even else own
