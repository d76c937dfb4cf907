"""What the built-in hooks have in common: arguments that are checked, and how often they act."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from hpcdi.worker.learner.learner_hook import LearnerHook


class BuiltinHook(LearnerHook):
    """A hook with a name, a priority, positions and arguments of its own.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: where it is called.
        ext_args: its arguments.

    Raises:
        ValueError: it is not for that position, or knows no such argument.
    """

    usual_name: ClassVar[str]
    usual_priority: ClassVar[float] = 100
    usual_position: ClassVar[str] = "after_iter"
    positions: ClassVar[list[str]] = LearnerHook.positions
    args: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        name: str | None = None,
        priority: float | None = None,
        *,
        position: str | None = None,
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            self.usual_name if name is None else name,
            self.usual_priority if priority is None else priority,
            position=self.usual_position if position is None else position,
        )
        if self.position not in self.positions:
            raise ValueError(f"its position is one of {self.positions}, not {self.position!r}")
        unknown = sorted((ext_args or {}).keys() - set(self.args))
        if unknown:
            known = ", ".join(self.args) or "none"
            raise ValueError(f"unknown argument {unknown[0]!r}; it has {known}")


class PeriodicHook(BuiltinHook):
    """After iterations it acts at each `freq`-th one; before and after a run, always.

    One with `every_s` acts after so many seconds too: iterations can be long.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: where it is called.
        ext_args: the number of iterations, under the hook's `freq_key`.

    Raises:
        ValueError: that number is not positive.
    """

    freq_key: ClassVar[str] = "freq"
    args = ("freq",)
    usual_freq: ClassVar[int] = 1
    every_s: ClassVar[float] = float("inf")

    def __init__(
        self,
        name: str | None = None,
        priority: float | None = None,
        *,
        position: str | None = None,
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position=position, ext_args=ext_args)
        self._freq = int((ext_args or {}).get(self.freq_key, self.usual_freq))
        if self._freq < 1:
            raise ValueError(f"{self.freq_key} must be at least 1, not {self._freq}")
        self._acted = time.monotonic()

    def __call__(self, engine: Any) -> None:
        """Act, if it is time."""
        if (
            self.position not in ("before_iter", "after_iter")
            or engine.train_iter % self._freq == 0
            or time.monotonic() - self._acted >= self.every_s
        ):
            self._acted = time.monotonic()
            self.act(engine)

    @abstractmethod
    def act(self, engine: Any) -> None:
        """What the hook is there for."""


def every(hook: type[PeriodicHook], value: Any) -> PeriodicHook | None:
    """A hook by its number of iterations; true: the usual number; nothing or less: no hook."""
    if not value or (isinstance(value, int | float) and value < 0):
        return None
    if value is True:
        return hook()
    if not isinstance(value, int):
        raise TypeError(f"must be a number of iterations, or false, not {value!r}")
    return hook(ext_args={"freq": value})
