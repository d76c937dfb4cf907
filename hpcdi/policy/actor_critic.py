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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcdi.config.fields import sections, setting
from hpcdi.errors import Problem
from hpcdi.policy.distributions import ActionDistribution
from hpcdi.policy.settings import ACTIVATIONS, ModelConfig
from hpcdi.policy.spaces import action_leaves
from hpcdi.policy.torch_policy import TorchPolicy
from hpcdi.types import Array, Columns, Leaf, Settings
from hpcdi.utils.packed import ACTION_MASK
from hpcdi.utils.registry import lazy_module

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hpcdi.comm import group
    from hpcdi.policy import memories, networks
else:
    torch = lazy_module("torch")
    group = lazy_module("hpcdi.comm.group")
    memories = lazy_module("hpcdi.policy.memories")
    networks = lazy_module("hpcdi.policy.networks")

_NETWORK, _ACTIONS, _SHUFFLES = range(3)  # streams of random numbers


@dataclass(frozen=True)
class ActorCriticModelConfig(ModelConfig):
    """The networks; shapes and bounds left empty are taken from the environment."""

    action_space: str | None = setting(
        None, "'discrete', 'continuous' (a Box), 'multi_discrete' or 'mixed' (a Dict or Tuple)",
        choices=(None, "discrete", "continuous", "multi_discrete", "mixed"),
    )  # fmt: skip
    action_leaves: tuple[Leaf, ...] = sections(Leaf, "parts of an action, where it has several")
    action_low: tuple[float, ...] = setting((), "lower bounds of a continuous action, flat")
    action_high: tuple[float, ...] = setting((), "upper bounds of a continuous action, flat")
    encoder_hidden_size_list: tuple[int, ...] = setting(
        (64, 64), "sizes of the hidden layers", minimum=1
    )
    activation: str = setting("tanh", "of the hidden layers", choices=ACTIVATIONS)
    share_encoder: bool = setting(False, "one encoder for policy and value, e.g. of images")
    log_std_init: float = setting(0.0, "logarithm of a continuous action's deviation at first")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from ModelConfig.problems(self)
        if self.action_space == "discrete" and isinstance(self.action_shape, tuple):
            yield Problem("action_shape", "is a number where actions are discrete")
        if len(self.action_low) != len(self.action_high):
            yield Problem("action_low", "has not as many numbers as model.action_high")


class ActorCriticPolicy(TorchPolicy):
    """Base of PPO and IMPALA: actions of every space, with or without masks of legal ones.

    Several learners learn as one would from joint minibatches, to which each contributes one of its
    own; they may have different amounts of data.
    """

    ACTIONS = ("discrete", "continuous", "multi_discrete", "mixed")
    TAKES_MASKS = True
    OUTPUTS = ("action", "value")

    def make_network(self) -> nn.Module:
        """See the module's docstring."""
        network = networks.make_network(self._cfg.model, "actor_critic")
        if isinstance(network, networks.ActorCritic) and not self._cfg.model.init:
            network.initialize(int(self.random(_NETWORK).integers(2**63)))
        return network

    # ----------------------------------------------------------------------------------- acting

    def prepare_acting(self) -> None:
        """Random numbers of sampling."""
        self._rng = self.random(_ACTIONS)

    def act(self, observation: Array, setting: Settings) -> Columns:
        """Sampled actions, legal ones where there is a mask.

        Returns:
            ``value`` (float32 [envs]) and what `ActionDistribution.sample` returns: ``action``,
            ``log_prob`` and of Boxes ``raw_action``: what was sampled and is learnt from; `action`
            is that within the environment's bounds.
        """
        *policy, value = self.infer(observation)
        drawn = self._distribution.sample(policy, self._rng, setting.get(ACTION_MASK))
        return {**drawn, "value": value}

    def greedy(self, output: tuple[Tensor, ...], legal: Tensor | None = None) -> tuple[Any, ...]:
        """The likeliest actions [batch, ...], legal and within bounds, and the values [batch]."""
        *policy, value = output
        return self._distribution.greedy(policy, legal), value

    @functools.cached_property
    def _distribution(self) -> ActionDistribution:
        return ActionDistribution(action_leaves(self._cfg.model))

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
            names: of columns, ``action`` and ``raw_action`` among them: of Boxes alone the latter
                is learnt from.
        """
        columns = {name: batch[name] for name in names if name in batch}
        if not self._distribution.counts:
            del columns["action"]
        if self._remembers or self._cfg.LEARNS_FROM_SEQUENCES:
            columns |= memories.of_sequences(batch)
        return columns

    def logs_of(self, rows: list[Tensor], names: Sequence[str]) -> list[dict[str, Any]]:
        """Logs of joint minibatches: one exchange and one copy from a GPU, not one a scalar.

        Args:
            rows: this learner's shares in the scalars of each minibatch, [scalars].
            names: of the scalars.
        """
        table = torch.stack(rows)
        group.allreduce_data(table, "avg")
        others = {"cur_lr": self._learn.learning_rate, **self._step.scalars()}
        return [{**dict(zip(names, row, strict=True)), **others} for row in table.tolist()]

    def _state_dict_learn(self) -> dict[str, Any]:
        return {**super()._state_dict_learn(), "rng": self._shuffles.bit_generator.state}

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state_dict)
        if "rng" in state_dict:
            self._shuffles.bit_generator.state = state_dict["rng"]
