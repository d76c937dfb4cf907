"""Exploration: how often to act at random, and doing so."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hpcdi.types import Array


def get_epsilon_greedy_fn(
    start: float, end: float, decay: int, type_: str = "exp"
) -> Callable[[int], float]:
    """Exploration rate as a function of environment steps.

    "exp": ``end + (start - end) * exp(-step / decay)``; "linear": from `start` at step 0 to `end`
    at step `decay`, and `end` from there on.
    """
    if type_ == "exp":
        return lambda step: end + (start - end) * math.exp(-step / decay)
    if type_ == "linear":
        return lambda step: start + (end - start) * min(max(step / decay, 0.0), 1.0)
    raise ValueError(f"the decay must be 'exp' or 'linear', not {type_!r}")


def epsilon_greedy(
    greedy: Array,
    eps: float,
    action_count: int,
    rng: np.random.Generator,
    legal: Array | None = None,
) -> Array:
    """Actions int64 [envs]: each is `greedy`'s, or with probability `eps` uniformly random.

    Args:
        greedy: int64 [envs].
        eps: exploration rate.
        action_count: number of discrete actions.
        rng: random numbers.
        legal: bool [envs, action_count]: which of them may be drawn; None: all.
    """
    if eps <= 0.0:
        return greedy
    explore = rng.random(greedy.shape) < eps
    if legal is not None:
        return np.where(explore, uniform_legal(legal, rng), greedy)
    return np.where(explore, rng.integers(0, action_count, greedy.shape), greedy)


def uniform_legal(legal: Array, rng: np.random.Generator) -> Array:
    """One of the legal actions of each row, uniformly, int64; `legal`: bool [envs, actions]."""
    chosen: Array = np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=1)
    return chosen
