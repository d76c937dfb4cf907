"""PPO that writes down of each batch whether its present policy has made it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hpcdi.config.algorithms import PPOConfig
from hpcdi.policy.distributions import log_prob_entropy
from hpcdi.policy.ppo import PPOPolicy
from hpcdi.utils.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("watching_ppo")
class WatchingPPO(PPOPolicy):
    """The probability of each action is as it was when it was chosen, or another policy chose it.

    Each update adds a line to the file ``WATCHED_AT``: transitions, and the largest difference of
    the logarithm of a probability.
    """

    @dataclass(frozen=True)
    class Config(PPOConfig):
        """No settings of its own."""

        type: str = "watching_ppo"

    def _forward_learn(self, data: Any, **kwargs: Any) -> list[dict[str, Any]]:
        with torch.no_grad():
            (*policy, _value), _ = self._model(data["observation"], {})
            log_prob, _ = log_prob_entropy(policy, data["action"])
            largest = float((log_prob - data["log_prob"]).abs().max())
        with Path(os.environ["WATCHED_AT"]).open("a") as file:
            file.write(f"{len(log_prob)} {largest}\n")
        return super()._forward_learn(data, **kwargs)
