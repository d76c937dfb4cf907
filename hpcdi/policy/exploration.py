"""Exploration: rates of many environments, epsilon-greedy actions, and actions at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdi.errors import PolicyError
from hpcdi.policy.base import ColumnarActor
from hpcdi.policy.spaces import as_stored, is_bounded, is_whole
from hpcdi.types import ACTION_MASK, Array, Columns, Settings, Spaces
from hpcdi.utils.nested import column_rows


def ladder(eps: float, exponent: float, rungs: Array, count: int) -> Array:
    """Exploration rates ``eps ** (1 + exponent i / (count - 1))`` (Horgan et al. 2018, 4.1).

    Args:
        eps: of rung 0, which explores most.
        exponent: how far the last rung is away.
        rungs: numbers i of environments, of `count` in the whole run.
        count: of rungs.
    """
    rates: Array = eps ** (1.0 + exponent * rungs / max(count - 1, 1))
    return rates


def epsilon_greedy(
    greedy: Array,
    eps: float | Array,
    action_count: int,
    rng: np.random.Generator,
    legal: Array | None = None,
) -> Array:
    """Actions int64 [envs]: each is `greedy`'s, or with probability `eps` uniformly random.

    Args:
        greedy: int64 [envs].
        eps: exploration rate, or that of each environment [envs].
        action_count: number of discrete actions.
        rng: random numbers.
        legal: bool [envs, action_count]: which of them may be drawn; None: all.
    """
    if not isinstance(eps, np.ndarray) and eps <= 0.0:
        return greedy
    drawn = rng.random(greedy.shape)
    explore = (drawn < eps).nonzero()[0]
    action = greedy.copy()
    if legal is not None:
        action[explore] = uniform_legal(legal[explore], rng)
        return action
    # numbers below eps are uniform too: they choose the action, and no second draw is needed
    rate = eps[explore] if isinstance(eps, np.ndarray) else eps
    action[explore] = drawn.take(explore) / rate * action_count
    return action


class LastingActions:
    """Temporally extended epsilon-greedy (ez-greedy, Dabney et al. 2021): random actions last.

    An action that explores is repeated n steps with a probability in proportion to
    ``n ** -exponent``, also beyond the end of an episode; others are greedy meanwhile.

    Args:
        exponent: above 1; the paper has 2.
        rng: random numbers.
    """

    LONGEST = 10_000

    def __init__(self, exponent: float, rng: np.random.Generator) -> None:
        self._exponent, self._rng = exponent, rng
        self._action = np.zeros(0, dtype=np.int64)
        self._remaining = np.zeros(0, dtype=np.int64)  # further steps of `_action`, [envs]

    def act(
        self,
        greedy: Array,
        eps: float | Array,
        action_count: int,
        envs: Array,
        legal: Array | None = None,
    ) -> Array:
        """See `epsilon_greedy`; `envs` are the environments' numbers, int64 [envs].

        An action that is not legal any more ends early.
        """
        more = int(envs.max(initial=-1)) + 1 - len(self._remaining)
        if more > 0:
            self._action = np.pad(self._action, (0, more))
            self._remaining = np.pad(self._remaining, (0, more))
        random, remaining = self._action[envs], self._remaining[envs]
        if legal is not None:
            remaining[~legal[np.arange(len(envs)), random]] = 0
        begins = (remaining == 0) & (self._rng.random(len(envs)) < eps)
        if begins.any():
            count = int(begins.sum())
            random[begins] = (
                self._rng.integers(action_count, size=count)
                if legal is None
                else uniform_legal(legal[begins], self._rng)
            )
            remaining[begins] = self._rng.zipf(self._exponent, count).clip(max=self.LONGEST)
        action: Array = np.where(remaining > 0, random, greedy)
        self._action[envs], self._remaining[envs] = random, np.maximum(remaining - 1, 0)
        return action


def uniform_legal(legal: Array, rng: np.random.Generator) -> Array:
    """Draws one of the legal actions of each row, int64; `legal`: bool [rows, actions]."""
    chosen: Array = np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=1)
    return chosen


_MOST_WHOLE = 2.0**62
RANDOM = "random"
"""Key of a task's setting: true while actions are drawn at random, before learning begins."""


class RandomFirst:
    """Acts at random while a task's setting says so (`RANDOM`), then as another actor does.

    Args:
        actor: a `ColumnarActor`.
        random: acts at random.
    """

    def __init__(self, actor: ColumnarActor, random: RandomActor) -> None:
        self._actor, self._random = actor, random

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """See `Actor.act`."""
        # a team's setting has those of its policies by name, of which one may have this key's
        actor = self._random if setting.get(RANDOM) is True else self._actor
        columns: Columns = actor.act(observation, setting, rows)
        return columns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)


class RandomActor:
    """Acts uniformly at random, e.g. to fill a replay buffer before learning begins.

    Args:
        spaces: of the environment: what actions there are.
        seed: of the random numbers.

    Raises:
        PolicyError: actions are continuous and not bounded on both sides.
    """

    def __init__(self, spaces: Spaces, seed: np.random.SeedSequence) -> None:
        self._leaves = spaces.action
        self._rng = np.random.default_rng(seed)
        for leaf in spaces.action:
            if not is_bounded(leaf):
                raise PolicyError(
                    f"no uniform choice of actions between {leaf.low} and {leaf.high}; leave out "
                    "policy.random_collect_size, or bound the actions by a wrapper"
                )

    def act(
        self,
        observation: Columns,
        setting: Settings,  # noqa: ARG002
        rows: Array | None = None,  # noqa: ARG002
    ) -> Columns:
        """See `Actor.act`: actions alone, legal ones where there is a mask."""
        return self.draw(column_rows(observation), observation.get(ACTION_MASK))

    def draw(self, count: int, legal: Array | None = None) -> Columns:
        """Draws actions [count, ...]: discrete parts from 0, others within their bounds.

        Their dtypes are those of a policy's actions, beside which they are stored (`as_stored`).

        Args:
            count: how many.
            legal: bool [count, entries]; None: everything is legal.
        """
        drawn: Columns = {}
        entry = 0
        for leaf in (leaf for leaf in self._leaves if leaf.counts):
            parts = []
            for values in leaf.counts:
                if legal is None:
                    parts.append(self._rng.integers(0, values, count))
                else:
                    parts.append(uniform_legal(legal[:, entry : entry + values], self._rng))
                entry += values
            drawn[leaf.name] = np.stack(parts, axis=1)
        for leaf in (leaf for leaf in self._leaves if not leaf.counts):
            size = count, len(leaf.low)
            if is_whole(leaf.dtype):
                low, high = np.clip([leaf.low, leaf.high], -_MOST_WHOLE, _MOST_WHOLE).astype(
                    np.int64
                )
                drawn[leaf.name] = self._rng.integers(low, high, size, endpoint=True)
            else:
                drawn[leaf.name] = self._rng.uniform(leaf.low, leaf.high, size)
        return {
            leaf.column("action"): as_stored(drawn[leaf.name], leaf).reshape(count, *leaf.shape)
            for leaf in self._leaves
        }
