"""CQL: conservative values, to learn offline (Kumar et al. 2020, arXiv:2006.04779).

Values of actions that the data do not have are extrapolated, and a maximum over them picks the
errors. CQL(H) lowers the values of all actions and raises those of the data, eq. 4:
``w (log sum_a exp Q(o, a) - Q(o, a_data))`` beside the TD error. `DiscreteCQLPolicy` is DQN with
that term, `CQLPolicy` SAC with it; what is not here is in `dqn` and `sac`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcdi.config.algorithms import (
    CQLConfig,
    CQLLearnConfig,
    DiscreteCQLConfig,
    DiscreteCQLLearnConfig,
)
from hpcdi.policy import networks
from hpcdi.policy.dqn import DQNPolicy, taken
from hpcdi.policy.sac import SACPolicy, squashed_normal
from hpcdi.types import ACTION_MASK

_ACTIONS = 2  # stream of random numbers


class DiscreteCQLPolicy(DQNPolicy):
    """CQL for discrete actions, with or without masks of legal ones."""

    Config = DiscreteCQLConfig
    _cfg: DiscreteCQLConfig
    _learn: DiscreteCQLLearnConfig

    def losses(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """See `DQNPolicy.losses`, with the conservative term."""
        target = self.td_target(batch)
        values, _ = self._forward(networks.observation_of(batch), {})
        value = taken(values, batch["action"])
        legal = batch.get(ACTION_MASK)
        if legal is not None:
            values = values.masked_fill(~legal.bool(), -torch.inf)
        excess = values.logsumexp(dim=1) - value  # eq. 4
        losses = self.td_losses(value, target) + self._cfg.learn.cql_weight * excess
        return losses, value, (target - value).abs()


class CQLPolicy(SACPolicy):
    """CQL for continuous actions within bounds."""

    Config = CQLConfig
    _cfg: CQLConfig
    _learn: CQLLearnConfig

    def prepare_learning(self) -> None:
        """Random numbers of the actions whose values are lowered."""
        super().prepare_learning()
        self._drawing = self.random(_ACTIONS)

    def prepared(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See `SACPolicy.prepared`; with ``uniform_actions, noise_of_actions``, [batch, n, ...]."""
        shape = (len(batch["n_step_return"]), self._cfg.learn.cql_actions, len(self._box[0]))
        uniform = self._drawing.uniform(-1, 1, shape).astype(np.float32)
        normal = self._drawing.standard_normal(shape, dtype=np.float32)
        drawn = {"uniform_actions": uniform, "noise_of_actions": normal}
        there = {n: torch.from_numpy(column).to(self._device) for n, column in drawn.items()}
        return {**super().prepared(batch), **there}

    def critic_losses(self, batch: Mapping[str, Tensor], values: Tensor, target: Tensor) -> Tensor:
        """See `SACPolicy.critic_losses`, with the conservative term, of both critics."""
        uniform, noise = batch["uniform_actions"], batch["noise_of_actions"]
        count, drawn, components = uniform.shape
        observation = networks.observation_of(batch)
        with torch.no_grad():
            output, _ = self._forward(observation, {})
            output = output.unsqueeze(1).expand(-1, drawn, -1).flatten(0, 1)
            acted, log_prob = squashed_normal(output, noise.reshape(count * drawn, components))
        rows = torch.arange(count, device=uniform.device).unsqueeze(1).expand(-1, drawn).flatten()
        several = networks.rows_of(observation, rows)
        of_uniform, of_policy = (
            self._values(several, action) - log_density
            for action, log_density in (
                (uniform.reshape(count * drawn, components), -components * math.log(2)),
                (acted, log_prob),
            )
        )
        # log of the mean of exp(Q) / density over all that were drawn: appendix F
        each = [each.view(len(values), count, drawn) for each in (of_uniform, of_policy)]
        lowered = torch.cat(each, dim=2).logsumexp(dim=2) - math.log(2 * drawn)
        excess = (lowered - values).sum(dim=0)
        return super().critic_losses(batch, values, target) + self._cfg.learn.cql_weight * excess

    def saved_parts(self) -> dict[str, Any]:
        """See `TorchPolicy.saved_parts`."""
        return {**super().saved_parts(), "drawing": self._drawing}
