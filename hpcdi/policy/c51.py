"""C51: DQN that learns the distribution of the return, not its mean (Bellemare et al. 2017).

Equations and algorithms are those of the paper. All options of DQN work here as they do there: with
double, dueling, n-step, prioritized and noisy it is Rainbow (Hessel et al. 2018).

Network: observation -> logits of the atoms of each action's return, [batch, actions * atoms], an
action's atoms one after the other. A factory is asked for that many actions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hpcdi.config.algorithms import C51Config, C51LearnConfig
from hpcdi.policy import networks
from hpcdi.policy.dqn import DQNPolicy


class C51Policy(DQNPolicy):
    """C51, for discrete actions, with or without masks of legal ones."""

    Config = C51Config
    _cfg: C51Config
    _learn: C51LearnConfig

    def greedy(self, output: Tensor, legal: Tensor | None = None) -> tuple[Tensor, ...]:
        """Actions int64 [batch], and the means of their returns, that they follow from."""
        probabilities = self.by_action(output).softmax(dim=2)
        return super().greedy((probabilities * self._atoms(output)).sum(dim=2), legal)

    def losses(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Cross-entropy, mean return of the action taken, and priority: the first; each [batch]."""
        with torch.no_grad():
            output, action = self.following(batch)
            following = self.of_action(output, action).softmax(dim=1)
            atoms = self._atoms(output)
            moved = batch["n_step_return"][:, None] + batch["bootstrap_discount"][:, None] * atoms
            target = project(moved, following, atoms)
        output, _ = self._forward(networks.observation_of(batch), {})
        log_probs = self.of_action(output, batch["action"]).log_softmax(dim=1)
        losses = -(target * log_probs).sum(dim=1)
        # Hessel et al. 2018 have the KL divergence as the priority: this less the target's entropy
        return losses, (log_probs.exp() * atoms).sum(dim=1), losses

    def _atoms(self, like: Tensor) -> Tensor:
        """The returns ``z_i`` (3.1), [atoms]."""
        model = self._cfg.model
        return torch.linspace(model.v_min, model.v_max, model.n_atom, device=like.device)


def project(returns: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """Probability of each atom where each return's is shared among the two next to it (eq. 7).

    Args:
        returns: [batch, n]; those beyond the atoms count as the outermost one.
        probabilities: of these returns, [batch, n].
        atoms: equally spaced, ascending, [atoms].

    Returns:
        [batch, atoms].
    """
    last = len(atoms) - 1
    place = (returns.clamp(atoms[0], atoms[-1]) - atoms[0]) * (last / (atoms[-1] - atoms[0]))
    lower = place.floor().long().clamp(0, last - 1)  # so that the one above it is an atom, too
    above = (place - lower).clamp(0, 1) * probabilities
    shared = probabilities.new_zeros(len(returns), last + 1)
    return shared.scatter_add_(1, lower, probabilities - above).scatter_add_(1, lower + 1, above)
