"""Exploration: schedules of its rate, epsilon-greedy actions, and a policy of random actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpcdi.config.policy import EpsConfig
from hpcdi.errors import PolicyError
from hpcdi.policy.base import TrainColumns
from hpcdi.types import Array, Columns, Settings, Spaces
from hpcdi.utils.nested import split_columns
from hpcdi.utils.packed import (
    ACTION_MASK,
    column_of,
    draw_discrete,
    legal_of,
    packed_dtype,
    spread,
    uniform_legal,
)


def get_epsilon_greedy_fn(
    start: float, end: float, decay: int, type_: str = "exp"
) -> Callable[[int], float]:
    """Exploration rate as a function of environment steps.

    "exp": ``end + (start - end) * exp(-step / decay)``; "linear": from `start` at step 0 to `end`
    at step `decay`, and `end` from there on.
    """
    if type_ not in ("exp", "linear"):
        raise ValueError(f"the decay must be 'exp' or 'linear', not {type_!r}")
    return EpsConfig(type_, start, end, decay).rate


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
    action[explore] = drawn[explore] / rate * action_count
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
        self._left = np.zeros(0, dtype=np.int64)  # steps of it that are to come, by environment

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
        more = max(0, int(envs.max(initial=-1)) + 1 - len(self._left))
        self._action, self._left = np.pad(self._action, (0, more)), np.pad(self._left, (0, more))
        held, left = self._action[envs], self._left[envs]
        if legal is not None:
            left[~legal[np.arange(len(envs)), held]] = 0
        begins = (left == 0) & (self._rng.random(len(envs)) < eps)
        if begins.any():
            count = int(begins.sum())
            held[begins] = (
                self._rng.integers(action_count, size=count)
                if legal is None
                else uniform_legal(legal[begins], self._rng)
            )
            left[begins] = self._rng.zipf(self._exponent, count).clip(max=self.LONGEST)
        action: Array = np.where(left > 0, held, greedy)
        self._action[envs], self._left[envs] = held, np.maximum(left - 1, 0)
        return action


class RandomPolicy:
    """A collect mode that acts uniformly at random, to fill a replay buffer before learning begins.

    All but acting is delegated to another mode, whose contract it keeps (`CollectMode`); where that
    mode is columnar, so is this.

    Args:
        spaces: of the environment: what actions there are.
        collect_mode: the mode that makes transitions and samples.
        seed: of the random numbers.

    Raises:
        PolicyError: actions are continuous and not bounded on both sides.
    """

    def __init__(self, spaces: Spaces, collect_mode: Any, seed: np.random.SeedSequence) -> None:
        self._spaces, self._mode = spaces, collect_mode
        self._rng = np.random.default_rng(seed)
        self._dtype, self._shape = packed_dtype("action", spaces.action)
        for leaf in spaces.action:
            bounds = np.array([leaf.low, leaf.high], dtype=np.float64)
            if not leaf.counts and not (bounds.size and np.isfinite(bounds).all()):
                raise PolicyError(
                    f"no uniform choice of actions between {leaf.low} and {leaf.high}; leave out "
                    "policy.random_collect_size, or bound the actions by a wrapper"
                )

    def forward(self, data: Mapping[int, Any], **_setting: Any) -> dict[int, dict[str, Any]]:
        """An action for each environment; a legal one where its observation has a mask."""
        masks = [obs.get(ACTION_MASK) for obs in data.values() if isinstance(obs, Mapping)]
        legal = None
        if masks and len(masks) == len(data) and all(mask is not None for mask in masks):
            legal = np.stack([np.asarray(mask) for mask in masks]) != 0
        actions = spread({"action": self._draw(len(data), legal)})
        return dict(zip(data, split_columns(actions), strict=True))

    def act(self, observation: Array, setting: Settings) -> Columns:  # noqa: ARG002
        """See `ColumnarActor.act`: ``action`` alone, a legal one where there is a mask."""
        return {"action": self._draw(len(observation), legal_of(observation))}

    def train_columns(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Array
    ) -> TrainColumns:
        """Columns that the other mode's actor adds."""
        actor = self._mode.get_attribute("columnar")
        added: TrainColumns = actor.train_columns(transitions, item_len, last_observation)
        return added

    def get_attribute(self, name: str) -> Any:
        """Value in the other mode; ``columnar`` is this."""
        value = self._mode.get_attribute(name)
        return self if name == "columnar" and hasattr(value, "act") else value

    def state_dict(self) -> dict[str, Any]:
        """Empty: nothing is learnt."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Ignored."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mode, name)

    def _draw(self, count: int, legal: Array | None) -> Array:
        """Actions [count, ...]: discrete parts from 0, others within the bounds."""
        actions = np.zeros((count, *self._shape), dtype=self._dtype)
        leaves = self._spaces.action
        draw_discrete(actions, leaves, self._rng, legal)
        for leaf in leaves:
            if not leaf.counts:
                part = actions if self._dtype.names is None else actions[column_of("action", leaf)]
                flat = self._rng.uniform(leaf.low, leaf.high, (count, len(leaf.low)))
                part[...] = flat.reshape(part.shape)
        return actions
