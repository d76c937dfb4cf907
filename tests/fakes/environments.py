"""Environments for tests in child processes: those import this module, so it is light."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hpcdi.env.toy import CountEnv


class InfoEnv(CountEnv):
    """Says in info which step it was."""

    def __init__(self) -> None:
        super().__init__(2)

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        return (*result, {"from_step": self._steps})


class NeverEnv(CountEnv):
    """Cannot be reset; hangs there if it is told to."""

    def __init__(self, hangs: bool = False) -> None:
        super().__init__()
        self._hangs = hangs

    def reset(self, **_kwargs: Any) -> Any:
        while self._hangs:
            time.sleep(1.0)
        raise ValueError("no such level")


class NaNEnv(CountEnv):
    """Returns NaN once, in the second step of the first one's life.

    Args:
        what: "reward" or "observation".
        done: empty; a word is added when it has been returned.
    """

    def __init__(self, what: str, done: list[str], length: int = 3) -> None:
        super().__init__(length)
        self._what, self._done = what, done

    def step(self, action: Any) -> Any:
        observation, reward, *others = super().step(action)
        if self._life == 2 and not self._done:
            self._done.append(self._what)
            observation, reward = (
                (observation, np.nan) if self._what == "reward" else (observation * np.nan, reward)
            )
        return observation, reward, *others


class SlowResetEnv(CountEnv):
    """The second reset hangs, which comes at an episode's end."""

    def reset(self, **kwargs: Any) -> Any:
        while self._episode == 0:
            time.sleep(1.0)
        return super().reset(**kwargs)


class HeldEnv(CountEnv):
    """A step of its life is over when somebody writes to a named pipe."""

    def __init__(self, pipe: str, at: int) -> None:
        super().__init__(3)
        self._pipe, self._at = Path(pipe), at

    def step(self, action: Any) -> Any:
        if self._life + 1 == self._at:
            self._pipe.read_text()
        return super().step(action)


class FragileEnv(gymnasium.Env[Any, Any]):
    """Fails in its second step; the observation is random."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(3, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 2:
            raise RuntimeError("fragile")
        return self.np_random.random(3, dtype=np.float32), 0.0, False, False, {}


class EnvironEnv(CountEnv):
    """Says what its process knows of the launcher."""

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        begun_with = Path("/proc/self/environ").read_text().split("\0")
        variables = [
            n for n in (*os.environ, *begun_with) if n.startswith(("OMPI_", "PMI_", "PMIX_"))
        ]
        heavy = [n for n in ("torch", "mpi4py.MPI", "h5py", "tensorboard") if n in sys.modules]
        info = {"variables": variables, "kept": os.environ.get("KEPT_BY_TEST"), "heavy": heavy}
        return (*result, info)


class CrashingEnv(CountEnv):
    """Its process reads what is not its own in a step, and is ended by the kernel."""

    def __init__(self, crash_at: int) -> None:
        super().__init__()
        self._crash_at = crash_at

    def step(self, action: Any) -> Any:
        if self._life + 1 == self._crash_at:
            import ctypes

            ctypes.string_at(0)
        return super().step(action)


def stacked(base: str = "CartPole-v1") -> Any:
    """An environment whose observation is a stack of the last four of another's."""
    return gymnasium.wrappers.FrameStackObservation(gymnasium.make(base), 4)


gymnasium.register("hpcdi/Stacked-v0", entry_point="fakes.environments:stacked")


class Speechless(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError


class Ending(CountEnv):
    """Ends its process by an exception once it has made some steps, or when it is made or reset."""

    def __init__(self, how: str, where: str) -> None:
        super().__init__(9)
        self._how, self._where = how, where
        self._steps = self._resets = 0
        self._end("make")

    def _end(self, where: str) -> None:
        if where == self._where:
            if self._how == "exit":
                sys.exit("licence lost")
            if self._how == "cancel":
                raise asyncio.CancelledError("licence lost")
            if self._how == "speechless":
                raise Speechless
            raise KeyboardInterrupt("licence lost")

    def reset(self, **given: Any) -> Any:
        self._resets += 1
        if self._resets > 1:
            self._end("reset")
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps >= 2:
            self._end("step")
        return super().step(action)


class Drawing(gymnasium.Env[Any, Any]):
    """Observes what it draws from the process's generators, also when it is made."""

    observation_space = spaces.Box(0, 1, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._first = np.random.random()

    def _drawn(self) -> Any:
        return np.array([self._first, np.random.random(), random.random()])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._drawn(), {}

    def step(self, action: Any) -> Any:
        return self._drawn(), 0.0, False, False, {}


class Breaking(Drawing):
    """Fails in each step."""

    def step(self, action: Any) -> Any:
        raise ValueError("broken")


class LateEnv(CountEnv):
    """Its steps take five milliseconds."""

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return super().step(action)


class Drifts(gymnasium.ObservationWrapper[Any, Any, Any]):
    """From its third step on observations are not what the space says."""

    def __init__(self, change: str) -> None:
        super().__init__(CountEnv(9))
        self._change, self._seen = change, 0

    def observation(self, observation: Any) -> Any:
        self._seen += 1
        if self._seen <= 3:
            return observation
        if self._change == "NaN from the start":
            return observation * np.nan
        return {"longer": np.zeros(3, np.float32), "one": np.zeros(1, np.float32)}[self._change]


class BadStart(CountEnv):
    """Its second reset raises, or returns NaN."""

    def __init__(self, how: str) -> None:
        super().__init__(3)
        self._how, self._resets = how, 0

    def reset(self, **given: Any) -> Any:
        observation, info = super().reset(**given)
        self._resets += 1
        if self._resets == 2 and self._how == "raises":
            raise RuntimeError("not connected")
        return observation * (np.nan if self._resets == 2 else 1), info
