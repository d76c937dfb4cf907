"""Losses of a user's, see `hpcdi.policy.extra`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hpcdi.policy.extra import Outputs


class Reward(nn.Module):
    """Features predict the reward, or another column."""

    def __init__(
        self, features: int, model: Any, weight: float = 0.5, column: str = "reward"
    ) -> None:
        super().__init__()
        assert model.obs_shape is not None or model.obs_leaves
        self.weight, self.column = weight, column
        self.reward = nn.Linear(features, 1)

    def forward(self, batch: Mapping[str, Tensor], outputs: Outputs) -> Any:
        """Checks what it is given, too."""
        reward = batch[self.column]
        assert outputs.features is not None
        assert outputs.features.requires_grad
        assert outputs.features.shape[:-1] == reward.shape
        for each in (outputs.log_prob, outputs.value):
            assert each is None or each.shape == reward.shape
        error = (self.reward(outputs.features).squeeze(-1) - reward).square()
        mean = outputs.mean(error)
        return self.weight * mean, {"reward_error": mean, "parts": outputs.share(batch)}


def unreduced(_features: int, _model: Any) -> Any:
    """Returns one number a sample, which is refused."""
    return lambda _batch, outputs: (outputs.features.sum(dim=1), {})
