"""Base of algorithms with a policy and a value: network, acting, and the columns to learn from.

For actions of every space: categorical distributions of discrete components, independent normal
ones of a Box's, and products of them (`distributions`). A Box's normal distribution is in the units
of the environment, not scaled; what is sampled is stored and learnt from as it is, and clipped to
the bounds for the environment. Read `torch_policy` for what is not here.

Network: observation -> ``(logits, value)`` or, of a Box, ``(mean, log_std, value)``; logits and
mean are [batch, components], value [batch], log_std [components] or [batch, components]. Of actions
of several parts the logits of all discrete ones come first, the means behind them in one tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcdi.comm import group
from hpcdi.policy import memories, networks
from hpcdi.policy.acting.actor_critic import ActorCriticActing
from hpcdi.policy.distributions import ActionDistribution
from hpcdi.policy.spaces import without
from hpcdi.policy.torch_policy import TorchPolicy
from hpcdi.store.rows import SEQUENCE_LEN

_NETWORK, _SHUFFLES = 0, 2  # streams of random numbers


class ActorCriticPolicy(ActorCriticActing, TorchPolicy):
    """Base of PPO and IMPALA: actions of every space, with or without masks of legal ones.

    Several learners learn as one would from joint minibatches, to which each contributes one of its
    own; they may have different amounts of data.
    """

    OUTPUTS = ("action", "value")

    def make_network(self) -> nn.Module:
        """See the module's docstring."""
        network = networks.make_network(self._cfg.model, "actor_critic")
        if isinstance(network, networks.ActorCritic) and not self._cfg.model.init:
            network.initialize(int(self.random(_NETWORK).integers(2**63)))
        return network

    # ----------------------------------------------------------------------------------- acting

    def greedy(self, output: tuple[Tensor, ...], legal: Tensor | None = None) -> tuple[Any, ...]:
        """The likeliest actions [batch, ...], legal and within bounds, and the values [batch]."""
        *policy, value = output
        return self.distribution.greedy(policy, legal), value

    def actor_alone(self) -> tuple[nn.Module, Any, tuple[str, ...]]:
        """Without the value, where that sees what acting does without."""
        model, network = self._cfg.model, self._model
        if not model.value_only or not isinstance(network, networks.ActorCritic):
            return super().actor_alone()
        return network.without_value(), without(model, model.value_only), self.OUTPUTS[:1]

    def parameters_of(
        self, output: tuple[Tensor, ...], legal: Tensor | None = None
    ) -> Mapping[str, Tensor]:
        """See `ActionDistribution.parameters`."""
        return self.distribution.parameters(output[:-1], legal)

    @functools.cached_property
    def distribution(self) -> ActionDistribution:
        """Of actions, by the network's output."""
        return ActionDistribution.of(self._cfg.model)

    # ---------------------------------------------------------------------------------- learning

    def prepare_learning(self) -> None:
        """Random numbers of shuffles."""
        self._shuffles = self.random(_SHUFFLES)

    def learnt_columns(
        self, batch: Mapping[str, Tensor], names: Sequence[str]
    ) -> dict[str, Tensor]:
        """The columns of a batch that an update reads; for sequences also where these are.

        Args:
            batch: see `update`.
            names: of columns, or of what is above them, ``action`` and ``raw_action`` among them:
                of Boxes alone the latter is learnt from.
        """
        wanted = set(names) if self.distribution.counts else set(names) - {"action"}
        if self._extra:  # whose author may want any of them
            wanted = {name.partition("/")[0] for name in batch} - {SEQUENCE_LEN, "state"}
        columns = {name: c for name, c in batch.items() if name.partition("/")[0] in wanted}
        if self._remembers or self._cfg.LEARNS_FROM_SEQUENCES:
            columns |= memories.of_sequences(batch)
        return columns

    def logs_of(self, rows: list[Tensor], names: Sequence[str]) -> list[dict[str, Any]]:
        """Logs of joint minibatches: one exchange and one copy from a GPU, not one a scalar.

        Args:
            rows: this learner's shares in the scalars of each minibatch, [scalars].
            names: of the scalars; those of an extra loss come behind them.
        """
        names = (*names, *self._extra.names)
        table = torch.stack(rows)
        group.allreduce_data(table, "avg")
        others = {"cur_lr": self._learn.learning_rate, **self._step.scalars()}
        return [{**dict(zip(names, row, strict=True)), **others} for row in table.tolist()]

    def saved_parts(self) -> dict[str, Any]:
        """See `TorchPolicy.saved_parts`."""
        return {"rng": self._shuffles}
