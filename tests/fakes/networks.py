"""Networks of users, for ``policy.model.type: fakes.networks:<name>``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcdi.policy.spaces import as_shape


class Linear(nn.Module):
    """Values of actions as a table: one-hot observations -> rows of it, or zeros."""

    def __init__(self, model: Any, table: Sequence[Sequence[float]] | None = None) -> None:
        super().__init__()
        size = (math.prod(as_shape(model.obs_shape)), model.action_shape)
        self.table = nn.Parameter(torch.zeros(size) if table is None else torch.tensor(table))

    def forward(self, observation: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Its row."""
        return observation.float() @ self.table, state


class Table(nn.Module):
    """For PPO: logits or means, and values, that are looked up by one-hot observations."""

    def __init__(
        self, _model: Any, heads: Any = None, values: Any = None, log_std: Any = None
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(heads))
        self.worth = nn.Parameter(torch.tensor(values))
        self.log_std = None if log_std is None else nn.Parameter(torch.tensor(log_std))

    def forward(self, observation: Tensor, state: Any) -> tuple[tuple[Tensor, ...], Any]:
        """Its rows."""
        policy, value = observation @ self.table, observation @ self.worth
        if self.log_std is None:
            return (policy, value), state
        return (policy, self.log_std, value), state
