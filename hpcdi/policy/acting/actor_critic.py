"""Acting by a distribution of actions, with the value beside it: PPO and IMPALA."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from hpcdi.config.algorithms import ActorCriticConfig, BCConfig, IMPALAConfig, PPOConfig
from hpcdi.policy.acting.base import ActingPolicy, DensePolicy, Network
from hpcdi.policy.acting.network import ActorCritic
from hpcdi.policy.acting.sampling import ActionSampler
from hpcdi.policy.base import TrainColumns
from hpcdi.policy.returns import NEXT_OBSERVATION, gae
from hpcdi.types import ACTION_MASK, Array, Columns, Settings

_ACTIONS = 1  # stream of random numbers


class DistributionActing(ActingPolicy):
    """What acts by a distribution of actions."""

    _cfg: ActorCriticConfig | BCConfig

    def prepare_acting(self) -> None:
        """Random numbers of drawn actions."""
        self._rng = self.random(_ACTIONS)

    @functools.cached_property
    def distribution(self) -> ActionSampler:
        """Samples actions by the network's output."""
        return ActionSampler.of(self._cfg.model)


class ActorCriticActing(DistributionActing):
    """Sampled actions of every space, with or without masks of legal ones."""

    Config: ClassVar[type] = ActorCriticConfig
    _cfg: ActorCriticConfig

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """Sampled actions, legal ones where there is a mask.

        Returns:
            ``value`` (float32 [rows]) and what `ActionSampler.sample` returns: ``action``,
            ``log_prob`` and of Boxes ``raw_action``: what was sampled and is learnt from; `action`
            is that within the environment's bounds.
        """
        *policy, value = self.infer(observation)
        return {**self.drawn(policy, observation), "value": value}

    def drawn(self, policy: Sequence[Array], observation: Columns) -> Columns:
        """Returns actions that are sampled from a policy's parameters, and what comes with them."""
        return self.distribution.sample(policy, self._rng, observation.get(ACTION_MASK))

    def infer_policy(self, observation: Columns) -> Sequence[Array]:
        """The network's output without the value."""
        return self.infer(observation)[:-1]


class PPOActing(ActorCriticActing):
    """Advantages of what was sampled."""

    Config: ClassVar[type] = PPOConfig
    _cfg: PPOConfig

    def train_columns(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        """``advantage`` and ``return``, float32."""
        last_value = self.infer_last(transitions, item_len, last_observation)[-1]
        advantages = gae(
            transitions["reward"],
            transitions["terminated"],
            transitions["value"],
            last_value,
            item_len,
            gamma=self._cfg.discount_factor,
            gae_lambda=self._cfg.collect.gae_lambda,
        )
        columns = {"advantage": advantages.advantage, "return": advantages.returns}
        return TrainColumns(columns | self.sequence_columns(item_len))


class IMPALAActing(ActorCriticActing):
    """Sequences of what was sampled."""

    Config: ClassVar[type] = IMPALAConfig
    _cfg: IMPALAConfig

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """See `ActorCriticActing.act`; without values, which V-trace takes from the learner."""
        return self.drawn(self.infer_policy(observation), observation)

    def train_columns(
        self,
        transitions: Mapping[str, Array],  # noqa: ARG002
        item_len: Array,
        last_observation: Columns,  # noqa: ARG002
    ) -> TrainColumns:
        """Where sequences begin; the next observation is read one row on."""
        one = np.ones(int(item_len.sum()), dtype=np.uint16)
        columns = {"bootstrap_offset": one, **self.sequence_columns(item_len)}
        return TrainColumns(columns, (NEXT_OBSERVATION,))


class DenseDistribution(DistributionActing, DensePolicy):
    """The network in numpy."""

    def best(self, output: tuple[Array, ...], legal: Array | None) -> Columns:
        """The likeliest actions."""
        return self.distribution.best(output, legal)


class DenseActorCritic(ActorCriticActing, DenseDistribution):
    """Policy and value in numpy."""

    def make_dense_network(self) -> Network:
        """See `hpcdi.policy.actor_critic`."""
        return ActorCritic(self._cfg.model)

    def infer_policy(self, observation: Columns) -> Sequence[Array]:
        """See `ActorCriticActing.infer_policy`; the value is not computed."""
        return self._evaluated(self._normalizer(observation))


class DensePPO(PPOActing, DenseActorCritic):
    """PPO in numpy."""


class DenseIMPALA(IMPALAActing, DenseActorCritic):
    """IMPALA in numpy."""
