"""Settings of PPO."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from hpcdi.config.fields import section, setting
from hpcdi.errors import Problem
from hpcdi.policy.settings import CollectConfig, LearnConfig, PolicyConfig
from hpcdi.policy.spaces import as_shape, network_shape, observation_problems
from hpcdi.types import Spaces


@dataclass(frozen=True)
class PPOModelConfig:
    """The networks; shapes and bounds left empty are taken from the environment."""

    obs_shape: int | tuple[int, ...] | None = setting(None, "shape of an observation")
    action_shape: int | tuple[int, ...] | None = setting(
        None, "number of discrete actions, or shape of a continuous one"
    )
    action_space: str | None = setting(
        None, "'discrete' or 'continuous'", choices=(None, "discrete", "continuous")
    )
    action_low: tuple[float, ...] = setting((), "lower bounds of a continuous action, flat")
    action_high: tuple[float, ...] = setting((), "upper bounds of a continuous action, flat")
    encoder_hidden_size_list: tuple[int, ...] = setting(
        (64, 64), "sizes of the hidden layers", minimum=1
    )
    activation: str = setting("tanh", "of the hidden layers", choices=("tanh", "relu"))
    share_encoder: bool = setting(False, "one encoder for policy and value, e.g. of images")
    log_std_init: float = setting(0.0, "logarithm of a continuous action's deviation at first")


@dataclass(frozen=True)
class PPOLearnConfig(LearnConfig):
    """The update; `batch_size` is that of a minibatch."""

    learning_rate: float = setting(3e-4, "step size of the optimizer", above=0)
    lr_decay_iterations: int | None = setting(
        None, "train iterations until the learning rate has fallen linearly to its end; empty: "
        "it stays", minimum=1,
    )  # fmt: skip
    lr_end: float = setting(0.0, "learning rate at the end of its fall", minimum=0)
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
class PPOConfig(PolicyConfig):
    """All of them."""

    type: str = "ppo"
    on_policy: bool = setting(True, "data are used once, by the policy that made them")
    discount_factor: float = setting(0.99, "discount of one step", minimum=0, maximum=1)
    model: PPOModelConfig = section(PPOModelConfig, "the networks")
    learn: PPOLearnConfig = section(PPOLearnConfig, "the update")
    collect: PPOCollectConfig = section(PPOCollectConfig, "collecting")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        model = self.model
        if not model.encoder_hidden_size_list:
            yield Problem("model.encoder_hidden_size_list", "needs at least one size")
        if model.action_space == "discrete" and isinstance(model.action_shape, tuple):
            yield Problem("model.action_shape", "is a number where actions are discrete")
        if len(model.action_low) != len(model.action_high):
            yield Problem("model.action_low", "has not as many numbers as model.action_high")
        yield from PolicyConfig.problems(self)
        if not self.on_policy:
            yield Problem("on_policy", "PPO learns from its present policy's data; leave this true")
        if self.priority or self.priority_IS_weight:
            yield Problem("priority", "is for replay buffers; PPO uses all its data alike")
        if self.nstep != 1:
            yield Problem("nstep", "is not PPO's; collect.gae_lambda says how far rewards count")
        if self.learn.lr_end > self.learn.learning_rate:
            yield Problem("learn.lr_end", "is above learn.learning_rate, from which it falls")


def fill_spaces(cfg: PPOConfig, spaces: Spaces) -> tuple[PPOConfig, list[Problem]]:
    """Empty shapes and bounds from the environment; and where given ones contradict it."""
    model = cfg.model
    problems = list(observation_problems(model.obs_shape, spaces))
    if spaces.is_masked:
        said = "PPO knows no action masks, and this environment has them; DQN does"
        problems.append(Problem("type", said))
    kind = "continuous" if spaces.action_count is None else "discrete"
    shape: int | tuple[int, ...]
    shape = spaces.action_shape if spaces.action_count is None else spaces.action_count
    if model.action_space not in (None, kind):
        problems.append(
            Problem("model.action_space", f"is {model.action_space}, the environment's are {kind}")
        )
    elif model.action_shape is not None and as_shape(model.action_shape) != as_shape(shape):
        given = model.action_shape
        problems.append(Problem("model.action_shape", f"is {given}, the environment's is {shape}"))
    for name in ("action_low", "action_high"):
        given_bounds, bounds = getattr(model, name), getattr(spaces, name)
        if given_bounds and given_bounds != bounds:
            problems.append(
                Problem(f"model.{name}", f"is {given_bounds}, the environment's is {bounds}")
            )
    filled = dataclasses.replace(
        model, obs_shape=network_shape(spaces), action_shape=shape, action_space=kind,
        action_low=spaces.action_low, action_high=spaces.action_high,
    )  # fmt: skip
    return dataclasses.replace(cfg, model=filled), problems
