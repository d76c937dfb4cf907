"""Environments with one defect each, for the rehearsal to find; beside them one without."""

from __future__ import annotations

import signal
import sys
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Right(gymnasium.Env[Any, Any]):
    """The cue, 0 or 1, is the action that pays 1; ten steps an episode. Nothing is wrong."""

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.observation_space: Any = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def draw(self) -> int:
        return int(self.np_random.integers(2))

    def observe(self) -> Any:
        return np.eye(2, dtype=np.float32)[self.cue]

    def pay(self, action: Any) -> float:
        return float(int(action) == self.cue)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.cue = 0, self.draw()
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        reward = self.pay(action)
        self.t += 1
        self.cue = self.draw()
        return self.observe(), reward, self.t >= self.length, False, {}


class SilentCast(Right):
    """Bytes by its space, fractions in its steps."""

    def __init__(self) -> None:
        super().__init__()
        camera = spaces.Box(0, 255, (2, 2), np.uint8)
        self.observation_space = spaces.Dict(camera=camera, cue=spaces.Discrete(2))

    def observe(self) -> Any:
        whole = np.zeros((2, 2), np.uint8)
        return {"camera": whole if self.t < 3 else whole + 0.9, "cue": self.cue}


class ReusedArrays(Right):
    """One array for all observations."""

    def __init__(self) -> None:
        super().__init__()
        self._array = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self._array[:] = super().observe()
        return self._array


class Endless(Right):
    """No episode ends."""

    def __init__(self) -> None:
        super().__init__(length=sys.maxsize)


class Leak(Right):
    """Keeps what nobody needs."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[bytearray] = []

    def step(self, action: Any) -> Any:
        self._kept.append(bytearray(8_000))
        return super().step(action)


class SlowReset(Right):
    """A simulator that starts anew for each episode."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(0.06)
        return super().reset(seed=seed)


class GlobalRandom(Right):
    """Draws from the generator of the process."""

    def draw(self) -> int:
        return int(np.random.randint(2))


class Printing(Right):
    """Says what it does."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        print("an episode begins")
        return super().reset(seed=seed)


class Dots(Right):
    """Shows its progress by dots, and ends no line."""

    def step(self, action: Any) -> Any:
        print("." * 10, end="")
        return super().step(action)


class SlowPictures(Right):
    """Large observations, few of them: nothing is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (256, 256, 3), np.uint8)

    def observe(self) -> Any:
        time.sleep(0.002)
        return np.full((256, 256, 3), self.cue, np.uint8)


class OneBeyondItsSpace(Right):
    """A component beyond its bounds, beside one whose bounds are wide."""

    def __init__(self) -> None:
        super().__init__()
        high = np.array([1, 100], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)

    def observe(self) -> Any:
        return super().observe() * np.array([5, 90], np.float32)


class FailsBesideOthers(Right):
    """Has room for one with a licence: others fail in their third step."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1

    def step(self, action: Any) -> Any:
        if self.t == 3 and self.made > 2:
            raise RuntimeError("licence server: too many clients")
        return super().step(action)


class FailsInReset(Right):
    """Never begins."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        raise RuntimeError("no mesh")


class LargeRewards(Right):
    """Pays in millions."""

    def pay(self, action: Any) -> float:
        return 1e6 * super().pay(action)


class RareNaN(Right):
    """Something divides by zero, once in 5,000 steps."""

    steps: ClassVar[int] = 0

    def observe(self) -> Any:
        RareNaN.steps += 1
        return super().observe() * (np.float32("nan") if not RareNaN.steps % 5_000 else 1.0)


class TakenSignal(Right):
    """A library of its installs handlers."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        signal.signal(signal.SIGUSR2, lambda *_: None)
        return super().reset(seed=seed)


class OnlyOne(Right):
    """There can be one in a process."""

    lives: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        if OnlyOne.lives:
            raise RuntimeError("the simulator is initialised already")
        OnlyOne.lives = True

    def close(self) -> None:
        OnlyOne.lives = False


class OtherEachTime(Right):
    """Does not heed its seed."""

    def draw(self) -> int:
        return time.perf_counter_ns() // 100 % 2


class BeyondItsSpace(Right):
    """Observations beyond the bounds of their space."""

    def observe(self) -> Any:
        return 3 * super().observe()


class LargeObservations(Right):
    """Metres beside degrees: one component a million times the other."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observe(self) -> Any:
        return super().observe() * np.array([1e6, 1.0], np.float32)


class Codes(Right):
    """Bytes that are kinds of things, as MiniGrid's cells, in a space for brightness."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (7, 7, 3), np.uint8)

    def observe(self) -> Any:
        return np.full((7, 7, 3), 2 + 6 * self.cue, np.uint8)


class UnreadMasks(Right):
    """Infos say which actions are legal, as those of Taxi do."""

    def reset(self, **given: Any) -> Any:
        observation, info = super().reset(**given)
        return observation, {**info, "action_mask": np.array([1, 0], np.int8)}


class Hill(gymnasium.Env[Any, Any]):
    """A setting's worth is known: the return is highest, 1, at x = 1e-3, y = 7, kind "b".

    It rises to that over the first `steps` steps of the environment's life; an episode is one step.
    """

    def __init__(self, x: float = 1.0, y: int = 0, kind: str = "a", steps: int = 1) -> None:
        self.observation_space: Any = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        far = abs(np.log10(x) + 3) / 3 + abs(y - 7) / 16 + 0.5 * (kind != "b")
        self.worth, self.steps, self.life = 1.0 - float(far), steps, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.life += 1
        return (
            np.zeros(1, np.float32),
            self.worth * min(1.0, self.life / self.steps),
            True,
            False,
            {},
        )
