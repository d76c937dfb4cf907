"""Returns of transitions that lie item after item in columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcdi.types import Array


class NStep(NamedTuple):
    """n-step returns; all [transitions]."""

    returns: Array
    """float32: rewards of up to n steps, discounted."""
    steps: Array
    """uint16: how many steps that are; the bootstrap observation lies that many rows on."""
    discount: Array
    """float32: factor of the bootstrapped value; 0 where the episode terminated."""


def n_step(reward: Array, terminated: Array, item_len: Array, gamma: float, n: int) -> NStep:
    """n-step returns within items.

    The return of transition t is ``sum_k gamma^k r[t+k]`` over k < m, and its bootstrap is
    ``gamma^m V(o[t+m])`` where m = min(n, transitions left in the item): Sutton and Barto 2018, eq.
    7.1. An item that was cut (truncated, or full) is bootstrapped from the observation after its
    last transition; one that terminated is not.

    Args:
        reward: float32 [transitions].
        terminated: bool [transitions]; true only at the last transition of an item.
        item_len: int32 [items]; sums to the number of transitions.
        gamma: discount of one step.
        n: steps.
    """
    count = len(reward)
    ends = np.cumsum(item_len, dtype=np.int64)
    left = np.repeat(ends, item_len) - np.arange(count)  # transitions left, this one included
    steps = np.minimum(left, n)
    returns = np.zeros(count, dtype=np.float64)
    longest = int(steps.max(initial=0))
    padded = np.concatenate([reward, np.zeros(longest, dtype=reward.dtype)])
    for k in range(longest):
        returns += np.where(k < left, gamma**k * padded[k : k + count], 0.0)
    last = np.arange(count) + steps - 1
    discount = np.where(terminated[last], 0.0, gamma**steps)
    return NStep(returns.astype(np.float32), steps.astype(np.uint16), discount.astype(np.float32))
