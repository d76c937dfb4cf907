"""Whether memory grows all the time: a leak."""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np

from hpcdi.dataclass import dataclass

_LEAK_BYTES = 1 << 20
_WARM_UP = 1 / 3
"""Share of the samples in which caches may fill."""
_LEAST_SAMPLES, _MOST_SAMPLES = 6, 240


@dataclass
class Memory:
    """Samples of what processes hold: steps that were made, and bytes that are resident.

    Of a long life every second sample is kept, then every fourth, and so on, and the newest: they
    stay evenly spread over all of it.
    """

    steps: list[int] = field(default_factory=list)
    n_bytes: list[int] = field(default_factory=list)
    _count: int = 0
    _every: int = 1

    def add(self, steps: int, n_bytes: int) -> None:
        """Add a sample."""
        if (self._count - 1) % self._every:  # the last is only the newest
            del self.steps[-1], self.n_bytes[-1]
        self.steps.append(steps)
        self.n_bytes.append(n_bytes)
        self._count += 1
        if len(self.steps) > _MOST_SAMPLES:
            del self.steps[1::2], self.n_bytes[1::2]
            self._every *= 2

    @property
    def tells(self) -> bool:
        """True if there are samples enough for `slope` to tell."""
        steps = self.steps[self._first :]
        return len(steps) >= _LEAST_SAMPLES and steps[-1] > steps[0]

    @property
    def _first(self) -> int:
        return math.ceil(_WARM_UP * len(self.steps))

    @property
    def slope(self) -> float:
        """Bytes a step; 0: it does not grow all the time, or by little."""
        if not self.tells:
            return 0.0
        steps, held = np.array(self.steps[self._first :]), np.array(self.n_bytes[self._first :])
        # what is held for a while and given back comes and goes; only a leak lifts the floor again
        # and again
        floors = [part.min() for part in np.array_split(held, 4)]
        grown = int(held[-1] - held[0])
        if grown < _LEAK_BYTES or min(np.diff(floors)) < 0.15 * grown:
            return 0.0
        return float(np.polyfit(steps - steps[0], held, 1)[0])
