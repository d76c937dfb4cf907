"""Returns of transitions that lie item after item in columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hpcdi.policy.base import TrainColumns
from hpcdi.types import Array, RowView

NEXT_OBSERVATION = RowView("next_observation", "observation", "bootstrap_offset")


def following(column: Array, ends: Array, last: Array) -> Array:
    """A column's rows one step later: after the end of an item, what was seen last.

    Args:
        column: [transitions, ...], item after item.
        ends: rows of the items' last transitions, [items].
        last: what follows these, [items, ...].
    """
    later: Array = np.roll(column, -1, axis=0)
    later[ends] = last
    return later


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
    row = np.arange(len(reward))
    left = item_len.cumsum(dtype=np.int64).repeat(item_len) - row  # this one included
    steps = np.minimum(left, n)
    most = int(steps.max(initial=0))
    returns = reward.astype(np.float64)
    for k in range(1, most):
        sums = returns[:-k]
        np.add(sums, gamma**k * reward[k:], out=sums, where=left[:-k] > k)
    powers = gamma ** np.arange(most + 1)
    discount = np.where(terminated[row + steps - 1], 0.0, powers.take(steps))
    return NStep(returns.astype(np.float32), steps.astype(np.uint16), discount.astype(np.float32))


def n_step_columns(
    transitions: Mapping[str, Array], item_len: Array, gamma: float, n: int
) -> TrainColumns:
    """What algorithms with a replay buffer add to transitions before they are stored.

    ``n_step_return``, ``bootstrap_discount`` and ``bootstrap_offset`` are those of `n_step`; the
    learner reads ``next_observation`` so many rows on.
    """
    steps = n_step(transitions["reward"], transitions["terminated"], item_len, gamma, n)
    columns = {
        "n_step_return": steps.returns,
        "bootstrap_discount": steps.discount,
        "bootstrap_offset": steps.steps,
    }
    return TrainColumns(columns, (NEXT_OBSERVATION,))


class Advantages(NamedTuple):
    """Of each transition; both float32 [transitions]."""

    advantage: Array
    returns: Array
    """Target of the value: advantage + value."""


def gae(
    reward: Array,
    terminated: Array,
    value: Array,
    last_value: Array,
    item_len: Array,
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """Generalized advantage estimation within items (Schulman et al. 2016, eq. 11 and 16).

    ``A[t] = d[t] + gamma lambda A[t+1]`` with ``d[t] = r[t] + gamma V(o[t+1]) - V(o[t])``. After an
    item's last transition A is 0, and V is `last_value` where the item was cut (truncated, or full)
    and 0 where the episode terminated.

    Args:
        reward: float32 [transitions].
        terminated: bool [transitions]; true only at the last transition of an item.
        value: of the observation before each transition, float32 [transitions].
        last_value: of the observation after each item's last transition, float32 [items].
        item_len: int32 [items]; sums to the number of transitions.
        gamma: discount of one step.
        gae_lambda: 0: the TD error alone; 1: the return less the value.
    """
    last = np.cumsum(item_len, dtype=np.int64) - 1
    next_value = following(
        value.astype(np.float64), last, np.where(terminated[last], 0, last_value)
    )
    advantage = reward + gamma * next_value - value  # the deltas; they become advantages in place
    order = np.argsort(-item_len, kind="stable")
    last, longer = last[order], item_len[order]
    for back in range(1, int(item_len.max(initial=0))):  # steps before the item's last transition
        rows = last[: np.searchsorted(-longer, -back)] - back  # of the items that reach so far
        advantage[rows] += gamma * gae_lambda * advantage[rows + 1]
    returns = advantage + value
    return Advantages(advantage.astype(np.float32), returns.astype(np.float32))
