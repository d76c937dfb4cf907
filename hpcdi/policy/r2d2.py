"""R2D2: recurrent replay for DQN (Kapturowski et al. 2019).

Samples are sequences of `collect.unroll_len` transitions; one begins every `collect.stride`
transitions, and the first `learn.burn_in` steps are for the memory alone (`sequences`).
Targets are n-step ones of double Q-learning, rescaled; `nstep` rows more are drawn for the
bootstrap values of the last steps.

Read `dqn` and `torch_policy` for what is not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hpcdi.config.algorithms import R2D2Config, R2D2LearnConfig
from hpcdi.policy.dqn import DQNPolicy, taken
from hpcdi.policy.memories import initial_state
from hpcdi.policy.sequences import Sequences


class R2D2Policy(DQNPolicy):
    """R2D2; priorities are of sequences."""

    Config = R2D2Config
    _cfg: R2D2Config
    _learn: R2D2LearnConfig

    def losses(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, value and priority of sequences: means over their steps; each [sequences].

        Args:
            batch: that of `Sequences`, of `unroll_len` + `nstep` rows, with ``action`` and
                ``n_step_return``, and ``action_mask`` where not all actions are legal.
        """
        learn = self._cfg.learn
        begin = initial_state(self._model, 1)
        sequences = Sequences(batch, learn.burn_in, self._cfg.sequence, begin)
        values = sequences.unrolled(self._forward)
        with torch.no_grad():
            following = self.following_each(sequences, values, batch)
            bootstrap = unscaled(sequences.ahead(following), learn.rescale)
            bootstrap = bootstrap * batch["bootstrap_discount"]
            target = scaled(batch["n_step_return"] + bootstrap, learn.rescale)
        value = taken(values, batch["action"])
        if self._extra:
            self._of_sequences = sequences.outputs_for(values, value, self._extra.features)
        error = torch.where(sequences.learnt, target - value, 0.0)
        size = error.detach().abs()
        # eq. of sec. 2.3
        priority = learn.eta * size.amax(dim=1) + (1 - learn.eta) * sequences.means(size)
        losses = self.td_losses(error, torch.zeros_like(error))
        return sequences.means(losses), sequences.means(value), priority

    def td_losses(self, value: Tensor, target: Tensor) -> Tensor:
        """See `DQNPolicy.td_losses`; of ``learn.loss: mse`` half the square."""
        losses = super().td_losses(value, target)
        return 0.5 * losses if self._cfg.learn.loss == "mse" else losses


def scaled(value: Tensor, slope: float) -> Tensor:
    """``h(x) = sign(x) (sqrt(|x| + 1) - 1) + e x`` (Pohlen et al. 2018); x itself for e = 1."""
    if slope == 1:
        return value
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + slope * value


def unscaled(value: Tensor, slope: float) -> Tensor:
    """The inverse of `scaled`."""
    if slope == 1:
        return value
    root = (1 + 4 * slope * (value.abs() + 1 + slope)).sqrt()
    return value.sign() * (((root - 1) / (2 * slope)).square() - 1)
