"""An environment, watched from outside while a manager steps it."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpcdi.commands.rehearse.facts import Habits, Times
from hpcdi.env.base import EnvFn
from hpcdi.env.old_gym import as_gymnasium
from hpcdi.env.pettingzoo import as_battle
from hpcdi.env.process_state import handlers_of_signals
from hpcdi.types import ACTION_MASK, Array

_CLOSELY = 500
"""Calls that are watched closely, which takes some time."""
_TIMERS = {
    "ITIMER_REAL": signal.ITIMER_REAL,
    "ITIMER_VIRTUAL": signal.ITIMER_VIRTUAL,
    "ITIMER_PROF": signal.ITIMER_PROF,
}


def watched(make: EnvFn, habits: Habits, *, is_battle: bool) -> EnvFn:
    """Returns what makes environments that are watched."""

    def making() -> Watched:
        with _observed(habits, habits.made, is_closely=True):
            made = make()
        for name in ("reset", "step"):
            if not callable(getattr(made, name, None)):
                return made  # type: ignore[no-any-return]  # its worker refuses it
        return Watched(as_battle(made) if is_battle else as_gymnasium(made), habits, is_battle)

    return making


class Watched:
    """An environment of gymnasium's API, or a battle of ours; everything else is the inner one's.

    Args:
        env: the environment.
        habits: where what it does is noted.
        is_battle: whether it is a battle.
    """

    def __init__(self, env: Any, habits: Habits, is_battle: bool) -> None:
        self._env, self._habits, self._is_battle = env, habits, is_battle
        self._calls = 0
        self._last: list[tuple[Array, Array]] = []  # arrays that were returned, and copies

    def reset(self, **given: Any) -> Any:
        """Begin an episode."""
        habits, is_closely = self._habits, self._looks_closely()
        with _observed(habits, habits.resets, is_closely=is_closely):
            result = self._env.reset(**given)
        if is_closely and not self._is_battle and isinstance(result, tuple | list) and result:
            self._compare(result[0])
            habits.tells_masks |= isinstance(result[-1], Mapping) and ACTION_MASK in result[-1]
        return result

    def step(self, action: Any) -> Any:
        """Step."""
        habits, is_closely = self._habits, self._looks_closely()
        with _observed(habits, habits.steps, is_closely=is_closely):
            result = self._env.step(action)
        if is_closely and isinstance(result, tuple | list) and result:
            self._compare(result[0])
        return result

    def _looks_closely(self) -> bool:
        self._calls += 1
        return self._calls <= _CLOSELY

    def _compare(self, observation: object) -> None:
        """Look whether the arrays of the last observation are still what they were."""
        if any(not np.array_equal(array, copy) for array, copy in self._last):
            self._habits.reuses_arrays = True
        self._last = [(array, array.copy()) for array in _arrays_in(observation)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def _arrays_in(value: object) -> Iterator[Array]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biu":
        yield value
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        yield np.nan_to_num(value) if np.isnan(value).any() else value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _arrays_in(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _arrays_in(part)


@contextmanager
def _observed(habits: Habits, times: Times, *, is_closely: bool) -> Iterator[None]:
    """Note what is done in it; see `Habits`."""
    before = _state() if is_closely else {}
    handlers = handlers_of_signals() if is_closely and times is not habits.steps else {}
    began = time.perf_counter()
    try:
        yield
    finally:
        times.add(time.perf_counter() - began)
        for name, state in before.items():
            if _state_of[name]() != state:
                habits.generators.add(name)
        after = handlers_of_signals() if handlers else {}
        habits.signals |= {name for name, handler in handlers.items() if after[name] != handler}
        if is_closely:
            habits.timers |= {n for n, which in _TIMERS.items() if any(signal.getitimer(which))}


def _of_torch() -> bytes:
    torch = sys.modules.get("torch")
    return b"" if torch is None else torch.random.get_rng_state().numpy().tobytes()


def _of_numpy() -> tuple[Any, ...]:
    _, words, *rest = np.random.get_state()
    return np.asarray(words).tobytes(), *rest


_state_of: dict[str, Callable[[], Any]] = {
    "random": random.getstate,
    "np.random": _of_numpy,
    "torch": _of_torch,
}


def _state() -> dict[str, Any]:
    states = {name: get() for name, get in _state_of.items()}
    if not states["torch"]:
        del states["torch"]  # to be imported is no draw
    return states
