"""PPO: on-policy learning of a policy and its value (Schulman et al. 2017).

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
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hpcdi.config.fields import section, sections, setting
from hpcdi.errors import Problem
from hpcdi.policy.base import TrainColumns
from hpcdi.policy.distributions import ActionDistribution
from hpcdi.policy.returns import gae
from hpcdi.policy.settings import (
    ACTIVATIONS,
    CollectConfig,
    LearnConfig,
    ModelConfig,
    OnPolicyConfig,
)
from hpcdi.policy.spaces import action_leaves
from hpcdi.policy.torch_policy import TorchPolicy
from hpcdi.types import Array, Columns, Leaf, Settings
from hpcdi.utils.packed import ACTION_MASK
from hpcdi.utils.registry import POLICY_REGISTRY, lazy_module

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hpcdi.comm import dist
    from hpcdi.policy import gradient_step, memories, minibatches, networks
    from hpcdi.policy.minibatches import Joint
else:
    torch = lazy_module("torch")
    dist = lazy_module("hpcdi.comm.dist")
    gradient_step = lazy_module("hpcdi.policy.gradient_step")
    memories = lazy_module("hpcdi.policy.memories")
    minibatches = lazy_module("hpcdi.policy.minibatches")
    networks = lazy_module("hpcdi.policy.networks")

_NETWORK, _ACTIONS, _SHUFFLES = range(3)  # streams of random numbers


@dataclass(frozen=True)
class PPOModelConfig(ModelConfig):
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


@dataclass(frozen=True)
class PPOLearnConfig(LearnConfig):
    """The update; `batch_size` is that of a minibatch."""

    SCHEDULED = ("learning_rate", "entropy_weight", "clip_ratio")

    learning_rate: float = setting(3e-4, "step size of the optimizer", above=0)
    optimizer: dict[str, Any] = setting(
        {"type": "Adam", "eps": 1e-5}, "as of every algorithm; the epsilon is that of PPO's first "
        "implementation",
    )  # fmt: skip
    epoch_per_collect: int = setting(10, "passes over the data of one policy", minimum=1)
    value_weight: float = setting(0.5, "weight of the value loss", minimum=0)
    entropy_weight: float = setting(0.0, "weight of the entropy bonus", minimum=0)
    clip_ratio: float = setting(0.2, "limit to the change of an action's probability", above=0)
    value_clip: bool = setting(False, "limit the change of values by clip_ratio too")
    adv_norm: bool = setting(True, "advantages of each minibatch to mean 0, deviation 1")
    grad_clip_norm: float = setting(0.5, "clip the gradient's norm to this; 0: do not", minimum=0)
    target_kl: float | None = setting(
        None, "an update ends where the policy has moved farther than this; empty: never", above=0
    )

    @staticmethod
    def renewed(given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Settings as earlier versions had them, as they are now, and a note about that."""
        old = ("lr_decay_iterations", "lr_end")
        kept = {key: value for key, value in given.items() if key not in old}
        if given.get(old[0]) is None:
            return kept, ""
        schedule = {"end": given.get(old[1], 0.0), "iterations": given[old[0]]}
        note = f"{', '.join(old)} are now schedule: {{end: ..., iterations: ...}}, and taken so"
        return {**kept, "schedule": schedule}, note


@dataclass(frozen=True)
class PPOCollectConfig(CollectConfig):
    """Collecting."""

    n_sample: int = setting(
        128, "steps of each environment between updates of the policy", minimum=1, maximum=65_535
    )
    gae_lambda: float = setting(
        0.95, "0: advantages by one step of reward, 1: by all steps", minimum=0, maximum=1
    )


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    DATA = "learns from its present policy's data"
    HORIZON = "collect.gae_lambda"

    type: str = "ppo"
    model: PPOModelConfig = section(PPOModelConfig, "the networks")
    learn: PPOLearnConfig = section(PPOLearnConfig, "the update")
    collect: PPOCollectConfig = section(PPOCollectConfig, "collecting")


@POLICY_REGISTRY.register("ppo", "ppo_command")
class PPOPolicy(TorchPolicy):
    """PPO, for actions of every space, with or without masks of legal ones.

    Where there are several learners they learn as one would from joint minibatches, to which each
    gives one of its own; how much data each has is its own affair. They need one exchange for how
    they cut their data, one a pass for the advantages' moments and one for the logs, and with
    `target_kl` one a minibatch, beside the gradients.
    """

    Config: ClassVar[type] = PPOConfig
    ACTIONS = ("discrete", "continuous", "multi_discrete", "mixed")
    TAKES_MASKS = True
    TAKES_MEMORY = True
    OUTPUTS = ("action", "value")

    def make_network(self) -> nn.Module:
        """See the module's docstring."""
        network = networks.make_network(self._cfg.model, "actor_critic")
        if isinstance(network, networks.ActorCritic):
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

    def train_columns(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Array
    ) -> TrainColumns:
        """``advantage`` and ``return``, float32."""
        last_value = self.infer_last(transitions, item_len, last_observation)[-1]
        advantages = gae(
            transitions["reward"], transitions["terminated"], transitions["value"],
            last_value, item_len, self._cfg.discount_factor, self._cfg.collect.gae_lambda,
        )  # fmt: skip
        columns = {"advantage": advantages.advantage, "return": advantages.returns}
        return TrainColumns(columns | self.sequence_columns(item_len))

    # ---------------------------------------------------------------------------------- learning

    def prepare_learning(self) -> None:
        """Shuffles."""
        self._shuffles = self.random(_SHUFFLES)

    def update(self, batch: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Several passes over all data of one policy, in minibatches.

        Args:
            batch: ``observation, action, log_prob, value, advantage, return``, of Boxes
                ``raw_action`` and, where there are masks, ``action_mask``; each [transitions, ...].
                For a memory also ``sequence_len`` and ``state/<name>``; minibatches are of whole
                sequences then.

        Returns:
            Python scalars of each (joint) minibatch: ``total_loss, policy_loss, value_loss,
            entropy, approx_kl, clipfrac, adv_max, value_mean, grad_norm``, ``cur_lr`` and, with
            fp16, ``skipped_steps``. Where `target_kl` ends the update, the last ones are of the
            minibatch that was not learnt from.
        """
        learn = self._learn
        columns = {name: batch[name] for name in _COLUMNS if name in batch}
        if not self._distribution.counts:
            del columns["action"]  # `raw_action` is learnt from
        if self._remembers:
            columns |= memories.of_sequences(batch)
        rows: list[Tensor] = []
        for minibatch, joint in minibatches.minibatches(
            columns, learn.batch_size, learn.epoch_per_collect, self._shuffles
        ):
            row, is_over = self._learn_from(minibatch, joint)
            rows.append(row)
            if is_over:
                break
        return self.logs_of(rows, _SCALARS)

    def logs_of(self, rows: list[Tensor], names: Sequence[str]) -> list[dict[str, Any]]:
        """Logs of joint minibatches: one exchange and one copy from a GPU, not one a scalar.

        Args:
            rows: this learner's shares in the scalars of each minibatch, [scalars].
            names: of the scalars.
        """
        table = torch.stack(rows)
        dist.allreduce_data(table, "avg")
        others = {"cur_lr": self._learn.learning_rate, **self._step.scalars()}
        return [{**dict(zip(names, row, strict=True)), **others} for row in table.tolist()]

    def _learn_from(self, minibatch: Mapping[str, Tensor], joint: Joint) -> tuple[Tensor, bool]:
        """One gradient step, if the policy may still move.

        Returns:
            `_SCALARS` of the minibatch, [scalars], this learner's shares in them; and whether the
            policy has moved too far, and so nothing was learnt.
        """
        seen: list[Tensor] = []

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            output, _ = self._forward(part["observation"], memories.state_of(part))
            losses = ppo_losses(self._distribution, output, part, self._learn, joint)
            seen.append(torch.stack([loss.detach() for loss in losses]))
            return losses.total

        self._step.gradients(minibatch, loss_of)
        losses = sum(seen[1:], seen[0])
        is_over = self._is_too_far(losses)
        norm = torch.zeros((), device=self._device)
        if not is_over:
            norm = self._step.apply(measured=True)
            self._updates += 1
        value = gradient_step.mean_share(minibatch["value"], joint.per_learner)
        return torch.cat([losses, torch.stack((joint.largest, value, norm))]), is_over

    def _is_too_far(self, losses: Tensor) -> bool:
        """True if the joint minibatch says so; the same on all learners."""
        limit = self._cfg.learn.target_kl
        if limit is None:
            return False
        approx_kl = losses[_SCALARS.index("approx_kl")].clone()
        dist.allreduce_data(approx_kl, "avg")
        return bool(approx_kl.item() > limit)

    def _monitor_vars_learn(self) -> list[str]:
        return ["total_loss", "policy_loss", "value_loss", "entropy", "approx_kl", "cur_lr"]

    def _state_dict_learn(self) -> dict[str, Any]:
        return {**super()._state_dict_learn(), "rng": self._shuffles.bit_generator.state}

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state_dict)
        if "rng" in state_dict:
            self._shuffles.bit_generator.state = state_dict["rng"]


# ------------------------------------------------------------------------------------------- losses


class Losses(NamedTuple):
    """Scalars of a minibatch; `total` is differentiable."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clipfrac: Tensor


_COLUMNS = (
    "observation", "action", "raw_action", ACTION_MASK, "log_prob", "value", "advantage", "return",
)  # fmt: skip
_SCALARS = (
    "total_loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac",
    "adv_max", "value_mean", "grad_norm",
)  # fmt: skip


def ppo_losses(
    distribution: ActionDistribution,
    output: tuple[Tensor, ...],
    batch: Mapping[str, Tensor],
    learn: PPOLearnConfig,
    joint: Joint,
) -> Losses:
    """Losses of a minibatch, or the shares in them that a part of it has.

    Equations are those of Schulman et al. 2017.

    Args:
        distribution: of actions.
        output: of the network for the observations.
        batch: ``action`` (of Boxes ``raw_action``), ``log_prob, value, advantage, return`` and,
            where not all actions were legal, ``action_mask`` of the minibatch, or of a part of it;
            a part may be empty, its shares are 0.
        learn: settings.
        joint: of the whole minibatch.
    """
    *policy, value = output
    count, clip = joint.per_learner, learn.clip_ratio
    mean_share = gradient_step.mean_share
    legal = batch.get(ACTION_MASK)
    log_prob, entropies = distribution.log_prob_entropy(policy, batch, legal)
    advantage = batch["advantage"]
    if learn.adv_norm:
        advantage = (advantage - joint.mean) / (joint.deviation + 1e-8)
    log_ratio = log_prob - batch["log_prob"]
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    policy_loss = -mean_share(gain, count)  # eq. 7
    error = (value - batch["return"]).square()
    if learn.value_clip:
        limited = batch["value"] + (value - batch["value"]).clamp(-clip, clip)
        error = torch.maximum(error, (limited - batch["return"]).square())
    value_loss, entropy = mean_share(error, count), mean_share(entropies, count)
    # the negative of eq. 9
    total = policy_loss + learn.value_weight * value_loss - learn.entropy_weight * entropy
    with torch.no_grad():
        # KL(old, new) without bias and never negative: Schulman 2020, "Approximating KL", k3
        approx_kl = mean_share(ratio - 1 - log_ratio, count)
        clipfrac = mean_share(((ratio - 1).abs() > clip).float(), count)
    return Losses(total, policy_loss, value_loss, entropy, approx_kl, clipfrac)
