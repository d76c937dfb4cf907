"""What a rehearsal measures.

A stage fills its facts step by step, so that some are left of one whose process dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.types import Array, Columns
from hpcdi.utils.growth import Memory


@dataclass
class Stage:
    """What every stage has.

    Attributes:
        doing: what it does now, for the message of a process that has died or hangs.
        trouble: why it could not go on; empty: nothing.
        warnings: that a run would show.
    """

    doing: str = "starting"
    trouble: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass
class Times:
    """Durations of like calls, in seconds."""

    count: int = 0
    total_s: float = 0.0
    most_s: float = 0.0

    def add(self, duration_s: float) -> None:
        """Add one."""
        self.count += 1
        self.total_s += duration_s
        self.most_s = max(self.most_s, duration_s)

    @property
    def mean_s(self) -> float:
        """Their mean; 0: there was none."""
        return self.total_s / self.count if self.count else 0.0


@dataclass(frozen=True)
class Printed:
    """What was printed in a while.

    Attributes:
        lines, n_bytes: how much.
        first: the first line that is not empty.
        ends: where, in all that was printed.
    """

    lines: int = 0
    n_bytes: int = 0
    first: str = ""
    ends: int = 0


@dataclass
class Habits:
    """What an environment does, seen from outside.

    Attributes:
        made, resets, steps: how long these took.
        generators: of the whole process, that it draws from.
        signals, timers: that it takes.
        reuses_arrays: whether an observation that it has returned changes later.
        tells_masks: whether its infos have masks of legal actions.
    """

    made: Times = field(default_factory=Times)
    resets: Times = field(default_factory=Times)
    steps: Times = field(default_factory=Times)
    generators: set[str] = field(default_factory=set)
    signals: set[str] = field(default_factory=set)
    timers: set[str] = field(default_factory=set)
    reuses_arrays: bool = False
    tells_masks: bool = False


@dataclass
class Numbers:
    """The values of one column, over everything that was seen of it; each [components].

    Attributes:
        low, high, mean: of the finite ones.
        squares: sum of their squared distances to the mean.
        count: how many rows.
    """

    low: Array
    high: Array
    mean: Array
    squares: Array
    count: int = 0

    @classmethod
    def of(cls, size: int) -> Numbers:
        """Returns those of a column with so many components, of which nothing was seen."""
        return cls(np.full(size, np.inf), np.full(size, -np.inf), np.zeros(size), np.zeros(size))

    def add(self, rows: Array) -> None:
        """Add rows, [rows, ...] (Chan, Golub and LeVeque 1983, eq. 2.1)."""
        values = rows.reshape(len(rows), -1).astype(np.float64)
        values = values[np.isfinite(values).all(axis=1)]
        if not len(values):
            return
        np.minimum(self.low, values.min(axis=0), out=self.low)
        np.maximum(self.high, values.max(axis=0), out=self.high)
        mean = values[0] + (values - values[0]).mean(axis=0)  # of equal ones exactly their value
        away, share = mean - self.mean, len(values) / (self.count + len(values))
        self.squares += np.square(values - mean).sum(axis=0) + self.count * share * away**2
        self.mean += share * away
        self.count += len(values)

    @property
    def deviation(self) -> Array:
        """Standard deviation of each component; exactly 0 of one that never changes."""
        deviation: Array = np.sqrt(self.squares / max(1, self.count))
        return deviation

    @property
    def most(self) -> float:
        """The largest absolute value; 0: nothing was seen."""
        return float(np.maximum(-self.low, self.high).max(initial=0.0)) if self.count else 0.0


@dataclass
class Alone(Stage):
    """One environment, watched closely.

    Attributes:
        habits: what it does.
        steps, failures: that it made; what a run would drop the episode for.
        lengths, returns: of the episodes that ended; in a battle of each player.
        running: steps of the longest one that has not ended.
        limit: steps after which it truncates, as its specification says.
        numbers: what its columns held.
        outside: which columns left the bounds of their space, and how far.
        reward: of each step.
        repeats: where two episodes of one seed differ, "" where they do not; None: not tried.
        made, played: what it printed when it was made, and in random play.
        memory: of its process.
        another: why no second one can be made beside it; "": it can; None: not tried.
    """

    habits: Habits = field(default_factory=Habits)
    steps: int = 0
    failures: int = 0
    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    running: int = 0
    limit: int | None = None
    numbers: dict[str, Numbers] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)
    reward: Numbers = field(default_factory=lambda: Numbers.of(1))
    repeats: str | None = None
    made: Printed = Printed()
    played: Printed = Printed()
    memory: Memory = field(default_factory=Memory)
    another: str | None = None

    def see(self, observations: Sequence[Columns], rewards: Sequence[Array]) -> None:
        """Add what some steps have returned; each [rows, ...]."""
        for name in observations[0] if observations else ():
            rows = np.concatenate([columns[name] for columns in observations])
            if rows.dtype.kind != "b":
                size = int(np.prod(rows.shape[1:]))
                self.numbers.setdefault(name, Numbers.of(size)).add(rows)
        if rewards:
            self.reward.add(np.concatenate(rewards))


@dataclass
class AsARun(Stage):
    """All environments of a collector, then those of an evaluation beside them.

    Attributes:
        env_num: environments.
        launch_s: until all were made and reset.
        steps, step_s: environment steps by the fresh policy, and how long they took.
        failures: see `Alone`.
        wanted, played: episodes of an evaluation, and those that were over in time.
        evaluated_s, evaluated_steps: how long this took, and the steps of all environments.
        returns: of these.
        memory_bytes: of the process and its children.
    """

    env_num: int = 0
    launch_s: float = 0.0
    steps: int = 0
    step_s: float = 0.0
    failures: int = 0
    wanted: int = 0
    played: int = 0
    evaluated_s: float = 0.0
    evaluated_steps: int = 0
    returns: list[float] = field(default_factory=list)
    memory_bytes: int = 0
