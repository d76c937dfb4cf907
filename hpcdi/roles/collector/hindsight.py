"""Hindsight experience replay: what was reached is a goal, too (Andrychowicz et al. 2017).

arXiv:1707.01495, algorithm 1, where a collector cuts its rows into items. Of each item, some copies
are stored beside it: the first j of its n transitions, j uniform in 1..n, with what was reached
after the last of them as the goal of all. So the goals of a transition are uniform over what its
item reached later ("future", section 4.5), and a copy is an item like any other: n-step returns,
priorities and ranks know nothing of it. Of n transitions and k copies k (n + 1) / 2 are added.

Environments follow gymnasium-robotics: observations are a Dict with ``achieved_goal`` and
``desired_goal``, and ``compute_reward(achieved, desired, info)`` returns the rewards of goals
[rows, ...], or of one goal; ``compute_terminated``, where there is one, says which end an episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hpcdi.errors import EnvError, EnvValueError
from hpcdi.store.block import rows_from
from hpcdi.types import Array, Columns

if TYPE_CHECKING:
    from hpcdi.env.manager import EnvManager

ACHIEVED, DESIRED = "observation/achieved_goal", "observation/desired_goal"
_NO_ORIGINS: Mapping[str, Sequence[float]] = MappingProxyType({})
_LOOKED_AT, _LEAST_TOLD, _MOST_TOLD = 4096, 16, 512
"""Collected transitions that are judged: the first ones, and of later ones those with a reward,
until so many tell; of fewer than the least nothing is concluded."""
_FEW = 0.25
"""Share that may differ: a goal, rounded, crosses a threshold; an event has a reward of its own."""
_ROUNDING = 0.01


class Items(NamedTuple):
    """Transitions, item after item.

    Attributes:
        columns: name -> [any, ...].
        rows: of each transition in these, int64 [transitions].
        length: transitions of each item, int32 [items].
        after: observation after the last transition of each, columns [items, ...].
        source: number of the item that each was made of: of the collected ones their own.
    """

    columns: Columns
    rows: Array
    length: Array
    after: Columns
    source: Array


class Hindsight:
    """Adds copies of items with other goals.

    Args:
        envs: the environments; the first one is asked for rewards.
        goals: copies of each item.
        rng: draws goals.
        origins: what was subtracted from observations, see ``env.origin``.
    """

    def __init__(
        self,
        envs: EnvManager,
        goals: int,
        rng: np.random.Generator,
        origins: Mapping[str, Sequence[float]] = _NO_ORIGINS,
    ) -> None:
        self._envs, self._goals, self._rng = envs, goals, rng
        self._has_origins = not {ACHIEVED, DESIRED}.isdisjoint(origins)
        self._from, self._to = (np.asarray(origins.get(n, 0.0)) for n in (ACHIEVED, DESIRED))
        self._judge_rows, self._judge_one = set[str](), set[str]()  # methods, by what they judge
        self._to_look_at, self._told, self._differ = _LOOKED_AT, 0, 0

    def extended(self, columns: Columns, rows: Array, length: Array, after: Columns) -> Items:
        """Returns the items and, behind them, their copies.

        Raises:
            EnvError: the environment cannot say what goals are worth, or says otherwise than the
                rewards that were collected.
        """
        collected = {name: column[rows] for name, column in columns.items()}
        last = np.cumsum(length, dtype=np.int64) - 1
        following = {name: _moved(collected[name], last, after[name]) for name in after}
        source = np.arange(len(length)).repeat(self._goals)
        copied = self._rng.integers(1, length[source] + 1)
        first = (last - length + 1)[source]
        of_goal = following[ACHIEVED][first + copied - 1]
        of_row, copy = _rows(first, copied)
        reached, goals = following[ACHIEVED][of_row], of_goal[copy]
        if self._has_origins:  # the environment judges its own values
            reached, goals = self._whole(reached, self._from), self._whole(goals, self._from)
            of_goal = (self._whole(of_goal, self._from - self._to)).astype(of_goal.dtype)
        reward = self._of("compute_reward", reached, goals)
        if reward is None:
            raise EnvError(
                "policy.hindsight: the environment has no compute_reward(achieved_goal, "
                "desired_goal, info), as gymnasium-robotics' have it; write one, which takes goals "
                "[rows, ...] or one goal, or set policy.hindsight.goals=0"
            )
        if self._told < _MOST_TOLD:
            self._compare(collected, following)
        terminated = self._of("compute_terminated", reached, goals)
        if terminated is None:
            terminated = collected["terminated"][of_row]
        # an episode with that goal would have ended where it is first reached
        ends = np.flatnonzero(terminated)
        first_row = np.cumsum(copied) - copied
        at = np.searchsorted(ends, first_row)
        first_end = np.append(ends, len(of_row))[at]
        kept = np.minimum(copied, first_end - first_row + 1).astype(length.dtype)
        chosen, copy = _rows(first_row, kept)
        of_row, terminated = of_row[chosen], terminated[chosen].astype(bool)
        made = {name: column[of_row] for name, column in collected.items()}
        made[DESIRED] = of_goal[copy]
        made["reward"] = reward[chosen].astype(collected["reward"].dtype)
        made["terminated"], made["truncated"] = terminated, made["truncated"] & ~terminated
        behind = {name: column[first + kept - 1] for name, column in following.items()}
        behind[DESIRED] = of_goal
        everything = {n: np.concatenate([column, made[n]]) for n, column in collected.items()}
        return Items(
            everything,
            np.arange(len(rows) + len(of_row)),
            np.concatenate([length, kept]),
            {name: np.concatenate([column, behind[name]]) for name, column in after.items()},
            np.concatenate([np.arange(len(length)), source]),
        )

    def _compare(self, collected: Columns, following: Columns) -> None:
        """Judge transitions as they were collected, with their own goals.

        Rewards of 0 on both sides tell nothing, nor do those of an episode's end that was worth
        nothing by its goal: an environment may have its own reward for a failure. Where the goal
        changes in a step, nobody says which one was rewarded.

        Raises:
            EnvError: many rewards differ.
        """
        rewards, goals = collected["reward"], following[DESIRED]
        is_same = (goals == collected[DESIRED]).reshape(len(goals), -1).all(axis=1)
        is_first = np.arange(len(rewards)) < self._to_look_at
        self._to_look_at = max(0, self._to_look_at - len(rewards))
        rows = np.flatnonzero(is_same & (is_first | (rewards != 0)))
        if not rows.size:
            return
        reached, goals, rewards = following[ACHIEVED][rows], goals[rows], rewards[rows]
        if self._has_origins:
            reached, goals = self._whole(reached, self._from), self._whole(goals, self._to)
        judged = self._of("compute_reward", reached, goals)
        if judged is None:  # which has just judged others
            return
        ended = (collected["terminated"] | collected["truncated"])[rows]
        tells = (judged != 0) | ((rewards != 0) & ~ended)
        slack = _ROUNDING * np.abs(rewards).mean()
        differs = tells & ~np.isclose(judged, rewards, rtol=_ROUNDING, atol=slack)
        self._told += int(tells.sum())
        self._differ += int(differs.sum())
        if self._told < _LEAST_TOLD or self._differ <= _FEW * self._told or not differs.any():
            return
        one = int(differs.argmax())
        raise EnvValueError(  # other ranks see the same, and no new environment helps
            f"policy.hindsight: {self._differ} of {self._told} rewards that were collected are not "
            f"what compute_reward(achieved_goal, desired_goal, info) says of them (one is "
            f"{rewards[one]:g}, and is said to be {judged[one]:g}), so that those of copies with "
            "other goals would be on another scale: a wrapper that changes rewards must be a "
            "gymnasium.RewardWrapper, which copies get, too, and step must reward by "
            "compute_reward, of the observation that it returns; or set policy.hindsight.goals=0"
        )

    @staticmethod
    def _whole(goals: Array, origin: Array) -> Array:
        """Returns goals [rows, ...] with an origin added, float64."""
        shape = goals.shape[1:] if origin.size > 1 else ()
        whole: Array = goals.astype(np.float64) + origin.reshape(shape)
        return whole

    def _of(self, method: str, reached: Array, goals: Array) -> Array | None:
        """Returns what a method says of each row; None: the environment has no such method.

        It is given all rows at once, unless it is seen to judge one goal at a time.

        Raises:
            EnvError: it fails, of one goal, too.
        """
        if method in self._judge_one:
            return self._of_each(method, reached, goals)
        with suppress(EnvError):  # it may be written for one goal, which else says what is wrong
            is_there, said = self._envs.call(self._free, method, reached, goals, {})
            if not is_there:
                return None
            if self._is_of_rows(method, said, reached, goals):
                return np.asarray(said)
        self._judge_one.add(method)
        return self._of_each(method, reached, goals)

    def _of_each(self, method: str, reached: Array, goals: Array) -> Array:
        each = zip(reached, goals, strict=True)
        return np.array([self._envs.call(self._free, method, *pair, {})[1] for pair in each])

    @property
    def _free(self) -> int:
        """An environment that is not in a step: it waits for an action, or all are done."""
        ready = self._envs.ready
        first = int(np.argmax(ready if ready.any() else self._envs.lives))
        return first % self._envs.env_num

    def _is_of_rows(self, method: str, said: Any, reached: Array, goals: Array) -> bool:
        """Returns whether a method has judged rows: of fewer it says the same, which is asked once.

        What is written for one goal may return an array that only looks like one of rows.
        """
        if np.shape(said) != (len(goals),):
            return False
        if method in self._judge_rows or len(goals) == 1:
            return True
        _, of_others = self._envs.call(self._free, method, reached[1:], goals[1:], {})
        if np.shape(of_others) != (len(goals) - 1,) or not np.allclose(of_others, said[1:]):
            return False
        self._judge_rows.add(method)
        return True


def _moved(column: Array, last: Array, after: Array) -> Array:
    """Returns a column as it is one row on, within items; `last`: their last rows."""
    moved = np.roll(column, -1, axis=0)
    moved[last] = after
    return moved


def _rows(first: Array, count: Array) -> tuple[Array, Array]:
    """Returns rows [first, first + count) of each piece, and the piece of each row."""
    return rows_from(first, count), np.arange(len(first)).repeat(count)
