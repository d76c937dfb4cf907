"""DQN's samples in the per-transition form: dicts with ``obs, next_obs, action, reward, done``.

An observation is an array, or ``{"observation": array, "action_mask": [actions]}`` where not every
action is legal in every state: those whose mask is not 0 are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.policy.returns import n_step
from hpcdi.types import Array, Columns, Transition
from hpcdi.utils.nested import stack_columns

_OBSERVATION, _MASK = "observation", "action_mask"


def split_masks(data: Mapping[int, Any]) -> tuple[Array, Array | None]:
    """Observations [envs, ...] and, where they say what is legal, masks bool [envs, actions]."""
    given = list(data.values())
    if not isinstance(given[0], Mapping):
        return np.stack([np.asarray(obs) for obs in given]), None
    observation = np.stack([np.asarray(obs[_OBSERVATION]) for obs in given])
    if _MASK not in given[0]:
        return observation, None
    return observation, np.stack([np.asarray(obs[_MASK]) for obs in given]) != 0


def n_step_samples(transitions: Sequence[Transition], gamma: float, n: int) -> list[Transition]:
    """Samples of consecutive transitions of an episode.

    ``reward`` is the n-step return, ``next_obs`` and ``done`` are those n steps on, and
    ``value_gamma`` is the discount of the value there.
    """
    count = len(transitions)
    reward = np.array([t["reward"] for t in transitions], dtype=np.float32)
    done = np.array([t["done"] for t in transitions], dtype=bool)
    steps = n_step(reward, done, np.array([count], dtype=np.int32), gamma, n)
    value_gamma = (gamma**steps.steps).astype(np.float32)
    samples = []
    for k, transition in enumerate(transitions):
        last = transitions[k + int(steps.steps[k]) - 1]
        samples.append(
            {
                **transition,
                "next_obs": last["next_obs"],
                "done": last["done"],
                "reward": steps.returns[k],
                "value_gamma": value_gamma[k],
            }
        )
    return samples


def columns_of(samples: Sequence[Transition], default_discount: float) -> Columns:
    """Columns of samples, as `QLearner.update` takes them.

    Args:
        samples: as `n_step_samples` gives them.
        default_discount: of the value, for samples without ``value_gamma``.
    """
    columns = stack_columns(samples)
    count = len(samples)
    gamma = columns.get("value_gamma", np.full(count, default_discount))
    weight = columns.get("IS", columns.get("weight", np.ones(count)))
    made = {
        "observation": _inner(columns, "obs").astype(np.float32, copy=False),
        "next_observation": _inner(columns, "next_obs").astype(np.float32, copy=False),
        "action": columns["action"],
        "n_step_return": columns["reward"].astype(np.float32),
        "bootstrap_discount": (gamma * ~columns["done"].astype(bool)).astype(np.float32),
        "weight": weight.astype(np.float32),
    }
    mask = columns.get(f"next_obs/{_MASK}")
    return made if mask is None else {**made, "next_action_mask": mask != 0}


def _inner(columns: Columns, name: str) -> Array:
    return columns[name] if name in columns else columns[f"{name}/{_OBSERVATION}"]
