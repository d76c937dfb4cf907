"""Settings that may change when a run is resumed: those that its snapshots do not depend on.

That is: limits, intervals, numbers of ranks and environments, learning rate, batch size ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

BINDING = (
    "env",  # weights and stored data belong to its observations, actions and rewards
    "policy.type",
    "policy.model",  # the shapes of the weights
    "policy.normalize",  # its statistics are among them
    "policy.on_policy",
    "policy.nstep",  # how an item of the replay buffer was made
    "policy.collect.unroll_len",
    "policy.discount_factor",  # the meaning of the learnt values
    "policy.priority",  # the content of the buffer's index
    "policy.other.replay_buffer.type",
    "policy.other.replay_buffer.replay_buffer_size",
    "policy.other.replay_buffer.frames",
    "policy.other.commander.type",
    "policy.learn.learner.type",
)
"""Keys that must keep their values, with everything below them."""

FREE = (
    "env.import_names",
    "env.collector_env_num",
    "env.collector_episode_num",
    "env.evaluator_env_num",
    "env.evaluator_episode_num",
    "env.stop_value",
    "env.manager",
    "env.vectorization",
    "env.autoreset",
)
"""Exceptions: keys below `BINDING` that may change."""

SAME = ("exp_name", "seed")
"""Keys that make it another experiment, although the snapshots would fit."""

_ABSENT = "nothing"


@dataclass(frozen=True)
class Difference:
    """A setting whose value has changed."""

    key: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.was} in the run, {self.now} now"


def differences(
    was: Mapping[str, Any], now: Mapping[str, Any], keys: Collection[str] = BINDING
) -> list[Difference]:
    """Returns the settings below `keys`, and not below `FREE`, that differ between two experiments.

    Args:
        was: the run's experiment as a nested mapping.
        now: the requested one.
        keys: dotted paths.
    """
    old, new = dict(_leaves(was)), dict(_leaves(now))
    return [
        Difference(key, old.get(key, _ABSENT), new.get(key, _ABSENT))
        for key in dict.fromkeys([*old, *new])
        if is_below(key, keys)
        and not is_below(key, FREE)
        and old.get(key, _ABSENT) != new.get(key, _ABSENT)
    ]


def named(overrides: Iterable[str]) -> list[str]:
    """Returns the keys of ``key=value`` overrides."""
    return [text.partition("=")[0] for text in overrides]


def is_below(key: str, keys: Iterable[str]) -> bool:
    """Returns whether a dotted path is one of `keys` or below one of them."""
    return any(key == above or key.startswith(f"{above}.") for above in keys)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
