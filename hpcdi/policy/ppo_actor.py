"""PPO's policy as collectors and evaluators call it: whole batches as arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from hpcdi.policy.actor_critic import ActorCritic
from hpcdi.policy.base import TrainColumns
from hpcdi.policy.ppo_settings import PPOConfig
from hpcdi.policy.returns import gae
from hpcdi.types import Array, Columns, Settings


class PPOActor:
    """A `ColumnarActor` that samples its actions, or takes the likeliest ones.

    Args:
        network: policy and value.
        cfg: settings, filled with the environment's spaces.
        rng: for sampling; None: the likeliest actions.
    """

    def __init__(
        self, network: ActorCritic, cfg: PPOConfig, rng: np.random.Generator | None
    ) -> None:
        self._network, self._rng = network, rng
        self._gamma, self._lambda = cfg.discount_factor, cfg.collect.gae_lambda
        self._limits: tuple[Array, Array] | None = None
        shape = cfg.model.action_shape
        self._shape = shape if isinstance(shape, tuple) else (shape or 1,)
        if cfg.model.action_low:
            low, high = cfg.model.action_low, cfg.model.action_high
            self._limits = (np.array(low, np.float32), np.array(high, np.float32))

    def act(self, observation: Array, setting: Settings) -> Columns:  # noqa: ARG002
        """See `ColumnarActor.act`.

        Returns:
            ``action`` [envs, ...]. Where they are sampled also ``log_prob`` and ``value`` (float32
            [envs]) and, where they are continuous, ``raw_action``: the one that was sampled and is
            learnt from; `action` is that within the environment's bounds.
        """
        network = self._network
        with torch.inference_mode():
            given = self._tensor(observation)
            if self._rng is None:
                heads = network.heads(given).cpu().numpy()
                return self._discrete(heads) if network.log_std is None else self._bounded(heads)
            outputs, values = network(given)
            heads, value = outputs.cpu().numpy(), values.cpu().numpy()
            if network.log_std is None:
                return {**self._sample_discrete(heads, self._rng), "value": value}
            log_std = network.log_std.cpu().numpy()
        return {**self._sample_normal(heads, log_std, self._rng), "value": value}

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Array
    ) -> TrainColumns:
        """See `ColumnarActor.train_columns`: ``advantage`` and ``return``, float32."""
        advantages = gae(
            transitions["reward"], transitions["terminated"], transitions["value"],
            self.values(last_observation), item_len, self._gamma, self._lambda,
        )  # fmt: skip
        return TrainColumns({"advantage": advantages.advantage, "return": advantages.returns})

    def values(self, observation: Array) -> Array:
        """Values of observations [n, ...], float32 [n]."""
        with torch.inference_mode():
            values: Array = self._network.values(self._tensor(observation)).cpu().numpy()
        return values

    def _tensor(self, observation: Array) -> Any:
        return torch.from_numpy(observation).to(self._network.value.weight.device)

    def _discrete(self, logits: Array) -> Columns:
        return {"action": logits.argmax(axis=1)}

    def _bounded(self, raw: Array) -> Columns:
        action = raw if self._limits is None else np.clip(raw, *self._limits)
        return {"action": action.reshape(len(raw), *self._shape)}

    def _sample_discrete(self, logits: Array, rng: np.random.Generator) -> Columns:
        """One action for each row, by the inverse of the cumulated probabilities."""
        shifted = logits - logits.max(axis=1, keepdims=True)
        cumulated = np.cumsum(np.exp(shifted), axis=1)
        total = cumulated[:, -1]
        drawn = rng.random(len(logits), dtype=np.float32) * total
        # a product that is rounded up to the total would be an action too many
        action = np.minimum((cumulated <= drawn[:, None]).sum(axis=1), logits.shape[1] - 1)
        log_prob = shifted[np.arange(len(logits)), action] - np.log(total)
        return {"action": action, "log_prob": log_prob}

    def _sample_normal(self, mean: Array, log_std: Array, rng: np.random.Generator) -> Columns:
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        raw = mean + np.exp(log_std) * noise
        log_prob = -(0.5 * noise * noise + log_std).sum(axis=1, dtype=np.float32)
        log_prob -= np.float32(0.5 * math.log(2 * math.pi) * mean.shape[1])
        columns = {"raw_action": raw.reshape(len(raw), *self._shape), "log_prob": log_prob}
        return {**self._bounded(raw), **columns}
