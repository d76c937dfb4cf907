"""Random network distillation: a bonus for what has seldom been seen (Burda et al. 2018).

arXiv:1810.12894. A network learns to predict what another one, whose weights are random and stay,
makes of observations: the error is small where it has learnt much. The bonus of a transition is
the error at the observation after it, over the running deviation of errors, and is added to the
reward, `weight` times: there is one value and one discount, not two as in the paper.

The learner has the predictor. What the bonus is by now, `Novelty`, is part of the network, as
running normalisation is, and so of each policy version: on-policy a collector adds it before it
computes advantages. A learner from a replay buffer adds it to each batch, by what is new by now; of
n-step returns to the last reward alone.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcdi.comm import group
from hpcdi.config.policy import TorchPolicyConfig
from hpcdi.policy import gradient_step, networks
from hpcdi.policy.base import TrainColumns
from hpcdi.policy.normalization import Moments, packed_moments
from hpcdi.types import Array, Columns


def bonus_network(cfg: TorchPolicyConfig) -> nn.Module:
    """A network of observations, with the encoder of the policy's settings."""
    model = cfg.model
    others: dict[str, Any] = {"noisy": False} if hasattr(model, "noisy") else {}
    size = cfg.exploration_bonus.features
    plain = dataclasses.replace(
        model, action_shape=size, type="", head="", memory="none", kwargs={}, **others
    )
    return networks.make_network(plain, "linear")


class Novelty(nn.Module):
    """How new observations are: the networks, and the deviation of errors, all as buffers.

    Args:
        cfg: a policy's settings, filled with the environment's spaces.
    """

    def __init__(self, cfg: TorchPolicyConfig) -> None:
        super().__init__()
        self.target, self.predictor = (_as_buffers(bonus_network(cfg)) for _ in range(2))
        self.errors = Moments(())

    def forward(self, observation: networks.Observation) -> Tensor:
        """The bonus of observations, float32 [batch]."""
        with torch.no_grad():
            error = error_of(self.predictor, self.target, observation)
            return error / self.errors.deviation.float()


def error_of(predictor: nn.Module, target: nn.Module, observation: networks.Observation) -> Tensor:
    """The mean square of what is not predicted, [batch]."""
    with torch.no_grad():
        wanted, _ = target(observation, {})
    predicted, _ = predictor(observation, {})
    error: Tensor = (predicted - wanted).square().mean(dim=1)
    return error


def _as_buffers(network: nn.Module) -> nn.Module:
    """Makes buffers of all parameters: no optimizer sees them."""
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach().clone())
    return network


class Distillation:
    """The learner's half: learns to predict, and adds the bonus to batches of a replay buffer.

    Args:
        cfg: the policy's settings.
        novelty: what acts, a part of the network; it is renewed after each iteration.
        predictor: begins as that of `novelty`, and learns.
        step: its `GradientStep`.
    """

    def __init__(
        self,
        cfg: TorchPolicyConfig,
        novelty: Novelty,
        predictor: nn.Module,
        step: gradient_step.GradientStep,
    ) -> None:
        self._cfg, self._novelty = cfg.exploration_bonus, novelty
        self._is_added = not cfg.on_policy
        self._predictor, self._step = predictor, step
        predictor.load_state_dict(novelty.predictor.state_dict())

    def added(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """A batch of a replay buffer with the bonus in its returns; on-policy it is there."""
        if not self._is_added:
            return batch
        bonus = self._novelty(networks.observation_of(batch, "next_observation"))
        returns = batch["n_step_return"] + self._cfg.weight * bonus
        return {**batch, "n_step_return": returns}

    def learn(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """Learn from a batch's observations; collective over the learners.

        Returns:
            ``bonus``, its mean before, and ``bonus_loss``.
        """
        observation = networks.observation_of(batch)
        seen = {"": observation} if isinstance(observation, Tensor) else observation
        columns = {f"observation/{n}" if n else "observation": c for n, c in seen.items()}
        bonus = self._novelty(observation)
        count = len(bonus)

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            observation = networks.observation_of(part)
            errors = error_of(self._predictor, self._novelty.target, observation)
            return gradient_step.mean_share(errors, count)

        for _ in range(self._cfg.steps):
            self._step.set_rate(self._cfg.learning_rate)
            loss = self._step.gradients(columns, loss_of)
            self._step.apply()
        moments = self._novelty.errors
        errors = bonus * moments.deviation.float()
        packed = packed_moments(errors.unsqueeze(1))
        gathered = [torch.empty_like(packed) for _ in range(group.get_world_size())]
        group.allgather(gathered, packed)
        for of_learner in gathered:
            moments.merge(of_learner)
        self._renew()
        return {"bonus": bonus.mean().item(), "bonus_loss": loss.item()}

    def _renew(self) -> None:
        self._novelty.predictor.load_state_dict(self._predictor.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer; weights are the network's."""
        return self._step.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the weights of the network, which were loaded before, and the optimizer."""
        self._predictor.load_state_dict(self._novelty.predictor.state_dict())
        self._step.load_state_dict(state)


def distillation(policy: Any, novelty: Novelty) -> Distillation:
    """Returns the learner's half for a policy that learns."""
    predictor = gradient_step.placed(bonus_network(policy._cfg), policy._device)
    return Distillation(policy._cfg, novelty, predictor, policy.make_step(predictor))


class BonusActor:
    """An actor whose rewards have the bonus, before the policy's columns are made of them.

    Args:
        policy: with a network, on-policy.
        actor: acts.
    """

    def __init__(self, policy: Any, actor: Any) -> None:
        self.act = actor.act
        self._policy, self._actor = policy, actor

    def train_columns(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        """See `ColumnarActor.train_columns`."""
        last = np.cumsum(item_len, dtype=np.int64) - 1
        following = {}
        for name, after in last_observation.items():
            column = np.roll(transitions[name], -1, axis=0)
            column[last] = after
            following[name] = column
        bonus = self._policy.novelty_of(following)
        weight = self._policy._cfg.exploration_bonus.weight
        reward = (transitions["reward"] + np.float32(weight) * bonus).astype(np.float32)
        seen: Mapping[str, Array] = ChainMap({"reward": reward}, transitions)  # type: ignore[arg-type]
        made: TrainColumns = self._actor.train_columns(seen, item_len, last_observation)
        return made

    def reset(self, rows: Sequence[int] | Array | None = None) -> None:
        """New episodes begin; None: in all rows."""
        if hasattr(self._actor, "reset") and self._actor is not self._policy:
            self._actor.reset(rows)
