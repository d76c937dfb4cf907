"""A reward for what is new: random network distillation, or curiosity.

`Distillation`, "rnd" (Burda et al. 2018, arXiv:1810.12894): a network learns to predict what
another one, whose weights are random and stay, makes of observations: the error is small where it
has learnt much. `Curiosity`, "icm" (Pathak et al. 2017, arXiv:1705.05363): a network learns to
predict the features of the next observation from those of this one and the action; features are
learnt by telling from both which action was taken, and so leave out what actions do not change.

The bonus of a transition is the error at the observation after it, which for random networks is
divided by the running root mean square of errors, so that it is about 1 at first, and is added to
the reward, `weight` times. Burda et al. have two values with two discounts, not one; they divide by
the running deviation of the discounted sums of errors; and they always normalise observations,
which is `normalize` here, by what a random policy sees first.

The learner has what learns to predict (`Explorer`). What the bonus is by now, a `Novelty`, is part
of the network, as running normalisation is, and so of each policy version: on-policy a collector
adds it before it computes advantages. A learner from a replay buffer adds it to each batch, by what
is new by now; to an n-step return that of its last observation alone, which is not discounted.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcdi.comm import group
from hpcdi.config.policy import TorchPolicyConfig
from hpcdi.policy import gradient_step, networks
from hpcdi.policy.base import ColumnarActor, TrainColumns
from hpcdi.policy.distributions import ActionDistribution
from hpcdi.policy.normalization import Moments, of_all_learners, packed_moments
from hpcdi.policy.returns import NEXT_OBSERVATION, following
from hpcdi.policy.spaces import action_leaves
from hpcdi.types import Array, Columns
from hpcdi.utils.nested import under

_NEXT = "next_observation"
_TINY = 1e-12
"""What errors are divided by at least: all may be 0."""
_HIDDEN = 256
"""Units of curiosity's models (Pathak et al. 2017, section 3)."""


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
    """How new transitions are: the predictor, and the size of its errors, all as buffers.

    Args:
        cfg: a policy's settings, filled with the environment's spaces.
    """

    READS_NEXT: ClassVar[bool] = True
    """True if `learnt` reads the next observation."""
    SCALES: ClassVar[bool] = False
    """True if errors are divided by their running root mean square: they are of no known size."""

    def __init__(self, cfg: TorchPolicyConfig) -> None:
        super().__init__()
        self.prepare(cfg)
        self.predictor: nn.Module = _as_buffers(self.make_predictor(cfg))
        self.errors = Moments(()) if self.SCALES else None

    def forward(self, columns: Mapping[str, Tensor]) -> Tensor:
        """The bonus of transitions, float32 [batch].

        Args:
            columns: ``observation``, ``action`` and ``next_observation`` or what is below them.
        """
        with torch.no_grad():
            return self.scaled(self.error(self.predictor, columns))

    def scaled(self, error: Tensor) -> Tensor:
        """Bonuses [batch] of errors [batch]; before any are counted these are their own measure."""
        if (moments := self.errors) is None:
            return error
        squared = moments.mean.square() + moments.m2 / moments.count.clamp(min=1)
        squared = torch.where(moments.count > 0, squared, error.double().square().mean())
        return (error / squared.sqrt().clamp(min=_TINY)).float()

    def prepare(self, cfg: TorchPolicyConfig) -> None:
        """Make what stays."""
        raise NotImplementedError

    def make_predictor(self, cfg: TorchPolicyConfig) -> nn.Module:
        """Make a network that learns to predict."""
        raise NotImplementedError

    def error(self, predictor: nn.Module, columns: Mapping[str, Tensor]) -> Tensor:
        """The mean square of what a predictor does not predict, [batch]."""
        raise NotImplementedError

    def loss(self, predictor: nn.Module, columns: Mapping[str, Tensor]) -> Tensor:
        """What a predictor learns to make small, [batch]; by default its error."""
        return self.error(predictor, columns)

    def learnt(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The columns of a learner's batch that `loss` takes."""
        raise NotImplementedError


class Distillation(Novelty):
    """Random network distillation, of the observation after a transition."""

    READS_NEXT = False
    SCALES = True

    def prepare(self, cfg: TorchPolicyConfig) -> None:
        """See `Novelty.prepare`."""
        self.target = _as_buffers(bonus_network(cfg))

    def make_predictor(self, cfg: TorchPolicyConfig) -> nn.Module:
        """See `Novelty.make_predictor`."""
        return bonus_network(cfg)

    def error(self, predictor: Any, columns: Mapping[str, Tensor]) -> Tensor:
        """See `Novelty.error`."""
        observation = networks.observation_of(columns, _NEXT)
        with torch.no_grad():
            wanted, _ = self.target(observation, {})
        predicted, _ = predictor(observation, {})
        error: Tensor = (predicted - wanted).square().mean(dim=1)
        return error

    def learnt(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Novelty.learnt`: its observations, which every algorithm has."""
        return {f"next_{name}": column for name, column in under(batch, "observation").items()}


class Curiosity(Novelty):
    """How far off predicted features of the next observation are (Pathak et al. 2017, eq. 6)."""

    def prepare(self, cfg: TorchPolicyConfig) -> None:
        """See `Novelty.prepare`."""
        self._actions = ActionDistribution(action_leaves(cfg.model))

    def make_predictor(self, cfg: TorchPolicyConfig) -> nn.Module:
        """See `Novelty.make_predictor`."""
        return CuriosityNetwork(cfg, self._actions)

    def error(self, predictor: nn.Module, columns: Mapping[str, Tensor]) -> Tensor:
        """See `Novelty.error`."""
        return self._error(predictor, *_features(predictor, columns), columns)

    def loss(self, predictor: Any, columns: Mapping[str, Tensor]) -> Tensor:
        """The error (eq. 5), and the inverse model's (eq. 3), by which alone features are learnt.

        So the features do not become what is easily predicted, all the same say (Burda et al. 2018,
        arXiv:1808.04355); and no weight between the two, for they have no parameters in common.
        """
        before, after = _features(predictor, columns)
        outputs = predictor.inverse(torch.cat([before, after], dim=1))
        log_prob = self._actions.log_prob_of_given(outputs, columns)
        return self._error(predictor, before.detach(), after.detach(), columns) - log_prob

    def learnt(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Novelty.learnt`."""
        roots = ("observation", "action", _NEXT)
        return {name: column for root in roots for name, column in under(batch, root).items()}

    def _error(
        self, predictor: Any, before: Tensor, after: Tensor, columns: Mapping[str, Tensor]
    ) -> Tensor:
        parts = [before]
        for leaf in self._actions.leaves:
            chosen = networks.as_vectors(columns[leaf.column("action")])
            parts += [
                functional.one_hot(chosen[:, k].long(), count).to(before.dtype)
                for k, count in enumerate(leaf.counts)
            ]
        if self._actions.means:
            parts.append(self._actions.raw_of(columns))
        predicted: Tensor = predictor.forward_model(torch.cat(parts, dim=1))
        return (predicted - after).square().mean(dim=1)


class CuriosityNetwork(nn.Module):
    """What curiosity learns: features of observations, and two models of them.

    Args:
        cfg: a policy's settings, filled with the environment's spaces.
        actions: of the environment.
    """

    def __init__(self, cfg: TorchPolicyConfig, actions: ActionDistribution) -> None:
        super().__init__()
        size, outputs = cfg.exploration_bonus.features, actions.logits + actions.means
        self.features = bonus_network(cfg)
        self.inverse = _layers(2 * size, outputs)
        self.forward_model = _layers(size + outputs, size)


def _features(predictor: Any, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Of the observations before and after transitions, [batch, features] each.

    Of each observation their mean is 0, their variance 1: so errors are between 0 and about 2,
    however large features grow.
    """
    before, _ = predictor.features(networks.observation_of(columns), {})
    after, _ = predictor.features(networks.observation_of(columns, _NEXT), {})
    size = before.shape[1:]
    return functional.layer_norm(before, size), functional.layer_norm(after, size)


def _layers(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, outputs))


NOVELTIES: dict[str, type[Novelty]] = {"rnd": Distillation, "icm": Curiosity}
"""By `ExplorationBonusConfig.type`."""


def _as_buffers(network: nn.Module) -> nn.Module:
    """Makes buffers of all parameters: no optimizer sees them."""
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach().clone())
    return network


class Explorer:
    """The learner's half: learns to predict, and adds the bonus to batches of a replay buffer.

    Args:
        policy: learns, with a `Novelty` in its network, which is renewed after each iteration.
    """

    def __init__(self, policy: Any) -> None:
        cfg, self._novelty = policy._cfg, cast(Novelty, policy._model.novelty)
        self._cfg, self._is_added = cfg.exploration_bonus, not cfg.on_policy
        self._predictor = gradient_step.placed(self._novelty.make_predictor(cfg), policy._device)
        self._predictor.load_state_dict(self._novelty.predictor.state_dict())
        step: gradient_step.GradientStep = policy.make_step(self._predictor, decays=False)
        self._step = step
        self._is_counted = False  # the present batch's errors, because they were the first

    def added(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """A batch of a replay buffer with the bonus in its returns; on-policy it is there."""
        if not self._is_added:
            return batch
        moments = self._novelty.errors
        self._is_counted = moments is not None and moments.count.item() == 0
        if self._is_counted:  # of all learners, before one of them uses it
            self._count(self._errors(self._novelty.learnt(batch)))
        bonus = self._novelty(batch)
        returns = batch["n_step_return"] + self._cfg.weight * bonus
        return {**batch, "n_step_return": returns}

    def learn(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """Learn from a batch, which was `added`; collective over the learners.

        Returns:
            ``bonus``, its mean before, and ``bonus_loss``: of all learners' rows.
        """
        columns = self._novelty.learnt(batch)
        errors = self._errors(columns)
        bonus = self._novelty.scaled(errors)
        count = gradient_step.rows_per_learner(len(bonus))

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            return gradient_step.mean_share(self._novelty.loss(self._predictor, part), count)

        self._step.set_rate(self._cfg.learning_rate)  # the policy has set its own
        for _ in range(self._cfg.steps):
            loss = self._step.gradients(columns, loss_of)
            self._step.apply()
        if not self._is_counted:
            self._count(errors)
        self._novelty.predictor.load_state_dict(self._predictor.state_dict())
        row = torch.stack([gradient_step.mean_share(bonus, count), loss])
        group.allreduce_data(row, "avg")
        return dict(zip(("bonus", "bonus_loss"), row.tolist(), strict=True))

    @torch.no_grad()
    def _errors(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Those of the predictor that acts, [batch]."""
        return self._novelty.error(self._novelty.predictor, columns)

    def _count(self, errors: Tensor) -> None:
        """Have a batch's errors among the statistics; collective over the learners."""
        if (moments := self._novelty.errors) is not None:
            for packed in of_all_learners(packed_moments(errors.unsqueeze(1))):
                moments.merge(packed)

    def statistics(self) -> list[Tensor]:
        """Returns what the first batch is counted in before it is learnt from."""
        errors = self._novelty.errors
        return [] if errors is None else [*errors.buffers()]

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer; weights are the network's."""
        return self._step.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the weights of the network, which were loaded before, and the optimizer."""
        self._predictor.load_state_dict(self._novelty.predictor.state_dict())
        self._step.load_state_dict(state)


class BonusActor:
    """An actor whose rewards have the bonus, before the policy's columns are made of them.

    Args:
        policy: with a network, on-policy.
        actor: acts.
    """

    def __init__(self, policy: Any, actor: ColumnarActor) -> None:
        self.act = actor.act
        self._policy, self._actor = policy, actor

    def train_columns(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        """See `ColumnarActor.train_columns`."""
        last = np.cumsum(item_len, dtype=np.int64) - 1
        columns = under(transitions, "action")
        for name, after in last_observation.items():
            columns[name] = transitions[name]
            columns[f"next_{name}"] = following(transitions[name], last, after)
        bonus = self._policy.novelty_of(columns)
        weight = self._policy._cfg.exploration_bonus.weight
        reward = (transitions["reward"] + np.float32(weight) * bonus).astype(np.float32)
        seen: Mapping[str, Array] = ChainMap({"reward": reward}, transitions)  # type: ignore[arg-type]
        made: TrainColumns = self._actor.train_columns(seen, item_len, last_observation)
        if not self._policy._model.novelty.READS_NEXT:
            return made
        stored = {**made.columns, NEXT_OBSERVATION.offset: np.ones(len(reward), np.uint16)}
        views = (*made.views, NEXT_OBSERVATION)  # one row on, for learners
        return dataclasses.replace(made, columns=stored, views=views)

    def reset(self, rows: Sequence[int] | Array | None = None) -> None:
        """New episodes begin; None: in all rows."""
        if hasattr(self._actor, "reset"):
            self._actor.reset(rows)
