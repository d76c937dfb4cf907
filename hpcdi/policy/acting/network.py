"""Networks of layers of numbers, in numpy: as those of `hpcdi.policy.networks`, to 1e-6.

Parameters have the names that they have there, so both read the same files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpcdi.config.algorithms import ActorCriticModelConfig, DQNModelConfig
from hpcdi.config.policy import ModelConfig, TorchPolicyConfig
from hpcdi.policy.spaces import (
    image_axes,
    is_normalised,
    obs_leaves,
    one_hot_places,
    scale_of,
    without,
)
from hpcdi.types import Array, Columns, Leaf

Parameters = Mapping[str, Array]

_LAYER_NORM_EPSILON = 1e-5
VARIANCE_EPSILON = 1e-8
_ZEROS = np.zeros(1 << 16, np.float32)


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _silu(x: Array) -> Array:
    with np.errstate(over="ignore"):  # of numbers below -88, which become 0
        silu: Array = x / (1 + np.exp(-x))
    return silu


def _relu(x: Array) -> Array:
    # of two arrays, which is three times as quick as of an array and a number
    zeros = _ZEROS[: x.size].reshape(x.shape) if x.size <= _ZEROS.size else 0
    positive: Array = np.maximum(x, zeros, out=x)
    return positive


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": _relu,
    "tanh": lambda x: np.tanh(x, out=x),
    "elu": _elu,
    "silu": _silu,
}
"""numpy has no error function, and so no gelu."""


def is_dense(cfg: TorchPolicyConfig) -> bool:
    """Returns whether a policy's network is one of layers of numbers, and nobody's own."""
    model = cfg.model
    leaves = obs_leaves(model)
    is_vector = model.encoder in ("auto", "mlp", "multi") and not model.leaf_encoders
    return (
        is_vector
        and not cfg.has_own_network
        and not (cfg.on_policy and cfg.exploration_bonus.type != "none")  # collectors compute it
        and not (model.type or model.head or model.embedding_size)
        and model.memory == "none"
        and model.activation in _ACTIVATIONS
        and not getattr(model, "noisy", False)
        and (model.encoder == "multi" or len(leaves) == 1 or model.encoder == "auto")
        and not any(_is_picture(leaf, has_bounds=bool(model.obs_leaves)) for leaf in leaves)
    )


def _is_picture(leaf: Leaf, *, has_bounds: bool) -> bool:
    """Returns whether the default encoder of an array has convolutions, or may have."""
    if len(leaf.shape) < 3:
        return False
    return leaf.dtype == "uint8" or not has_bounds or image_axes(leaf) is not None


class Encoder:
    """One array, or several side by side, through the hidden layers: `MLP` or `MultiEncoder`.

    Args:
        model: the settings.
        prefix: of its parameters' names.
    """

    def __init__(self, model: ModelConfig, prefix: str) -> None:
        leaves = obs_leaves(model)
        self._columns = [leaf.column("observation") for leaf in leaves]
        self._parts = [_vector_of(leaf) for leaf in leaves]
        is_multi = len(leaves) > 1 or bool(leaves[0].name) or model.encoder == "multi"
        self._prefix = f"{prefix}.layers" if is_multi else prefix
        self._first = 0 if is_multi else 1  # of an MLP the array's own module is the first one
        self._activation = _ACTIVATIONS[model.activation]
        self._has_norm = model.layer_norm
        self._count = len(model.encoder_hidden_size_list)
        self._layers: list[tuple[Array, ...]] = []

    def load(self, parameters: Parameters) -> None:
        """Take parameters; they are copied."""
        stride = 3 if self._has_norm else 2
        self._layers = []
        for number in range(self._count):
            name = f"{self._prefix}.{self._first + stride * number}"
            layer = linear_of(parameters, name)
            if self._has_norm:
                norm = f"{self._prefix}.{self._first + stride * number + 1}"
                layer += _floats(parameters, f"{norm}.weight"), _floats(parameters, f"{norm}.bias")
            self._layers.append(layer)

    def __call__(self, observation: Columns) -> Array:
        """Features float32 [rows, n] of observations [rows, ...]."""
        parts = [
            part(observation[name]) for name, part in zip(self._columns, self._parts, strict=True)
        ]
        x = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        for weight, bias, *norm in self._layers:
            x = x @ weight
            x += bias
            if norm:
                x = _layer_norm(x, *norm)
            x = self._activation(x)
        return x


def _vector_of(leaf: Leaf) -> Callable[[Array], Array]:
    """Returns what makes a vector of an array: `Vector` or `OneHot`."""
    places, scale, size = one_hot_places(leaf), scale_of(leaf), math.prod(leaf.shape)
    if places is not None:
        total = sum(leaf.counts)

        def one_hot(values: Array) -> Array:
            numbers = values.reshape(len(values), -1).astype(np.int64) + places
            vectors: Array = np.zeros((len(values), total), np.float32)
            vectors[np.arange(len(values))[:, None], numbers] = 1
            return vectors

        return one_hot

    def vector(values: Array) -> Array:
        numbers = values.reshape(len(values), size).astype(np.float32, copy=False)
        return numbers if scale is None else numbers / np.float32(scale)

    return vector


def linear_of(parameters: Parameters, name: str) -> tuple[Array, ...]:
    """Returns weight [in, out] and bias [out] of a linear layer."""
    weight = _floats(parameters, f"{name}.weight")
    return np.ascontiguousarray(weight.T), _floats(parameters, f"{name}.bias")


def _floats(parameters: Parameters, name: str) -> Array:
    return np.array(parameters[name], dtype=np.float32)


def _layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    normed: Array = centred / np.sqrt(variance + np.float32(_LAYER_NORM_EPSILON)) * weight + bias
    return normed


class Linear:
    """A head with as many outputs as an action has components: `LinearHead`."""

    def __init__(self, model: ModelConfig) -> None:
        self._encoder = Encoder(model, "encoder")
        self._layer: tuple[Array, ...] = ()

    def load(self, parameters: Parameters) -> None:
        """Take parameters; they are copied."""
        self._encoder.load(parameters)
        self._layer = linear_of(parameters, "output")

    def __call__(self, observation: Columns) -> tuple[Array, ...]:
        """The outputs float32 [rows, components]."""
        weight, bias = self._layer
        return (self._encoder(observation) @ weight + bias,)


class Values:
    """A head of action values: `QHead`."""

    def __init__(self, model: DQNModelConfig) -> None:
        self._encoder = Encoder(model, "encoder")
        self._outputs, self._dueling = model.outputs, model.dueling
        self._advantage: tuple[Array, ...] = ()
        self._value: tuple[Array, ...] = ()

    def load(self, parameters: Parameters) -> None:
        """Take parameters; they are copied."""
        self._encoder.load(parameters)
        self._advantage = linear_of(parameters, "advantage")
        if self._dueling:
            self._value = linear_of(parameters, "value")

    def __call__(self, observation: Columns) -> tuple[Array, ...]:
        """Values float32 [rows, actions * outputs]."""
        features = self._encoder(observation)
        weight, bias = self._advantage
        advantage: Array = features @ weight + bias
        if not self._dueling:
            return (advantage,)
        weight, bias = self._value
        value = (features @ weight + bias)[:, None, :]
        advantage = advantage.reshape(len(advantage), -1, self._outputs)
        values = value + advantage - advantage.mean(axis=1, keepdims=True)
        return (values.reshape(len(values), -1),)


class ActorCritic:
    """Parameters of a distribution of actions, and the value: `ActorCritic` there."""

    def __init__(self, model: ActorCriticModelConfig) -> None:
        self._encoder = Encoder(without(model, model.value_only), "encoder")
        self._value_encoder = None if model.share_encoder else Encoder(model, "value_encoder")
        self._policy: tuple[Array, ...] = ()
        self._value: tuple[Array, ...] = ()
        self._log_std: Array | None = None

    def load(self, parameters: Parameters) -> None:
        """Take parameters; they are copied."""
        self._encoder.load(parameters)
        if self._value_encoder is not None:
            self._value_encoder.load(parameters)
        self._policy = linear_of(parameters, "policy")
        self._value = linear_of(parameters, "value")
        self._log_std = _floats(parameters, "log_std") if "log_std" in parameters else None

    def __call__(self, observation: Columns) -> tuple[Array, ...]:
        """``(logits, value)`` or ``(mean, log_std, value)``; see `hpcdi.policy.actor_critic`."""
        features = self._encoder(observation)
        policy = self.policy(features)
        if self._value_encoder is not None:
            features = self._value_encoder(observation)
        weight, bias = self._value
        return (*policy, (features @ weight + bias)[:, 0])

    def acting(self, observation: Columns) -> tuple[Array, ...]:
        """The distribution alone."""
        return self.policy(self._encoder(observation))

    def policy(self, features: Array) -> tuple[Array, ...]:
        """The distribution's parameters."""
        weight, bias = self._policy
        outputs = features @ weight + bias
        return (outputs,) if self._log_std is None else (outputs, self._log_std)


def is_wide(dtype: np.dtype[Any]) -> bool:
    """Returns whether not all numbers of a dtype are in float32: large whole ones."""
    return dtype.kind in "iu" and dtype.itemsize >= 4


class Normalizer:
    """Running statistics as a version of the policy has them: `normalization.Normalizer`.

    Args:
        cfg: a policy's settings, filled with the environment's spaces.
    """

    def __init__(self, cfg: TorchPolicyConfig) -> None:
        leaves = obs_leaves(cfg.model) if cfg.normalize.observation else ()
        self._columns = [leaf.column("observation") for leaf in leaves if is_normalised(leaf)]
        self._clip = np.float32(cfg.normalize.clip)
        self.returns: np.float32 | None = np.float32(1) if cfg.normalize.reward else None
        """The deviation of discounted returns; None: rewards are as they are."""
        self._moments: dict[str, tuple[Array, Array]] = {}

    def load(self, parameters: Parameters) -> None:
        """Take the statistics of a version."""
        for number, column in enumerate(self._columns):
            name = f"normalizer.observation.{number}"
            scale = (1 / _deviation(parameters, name)).astype(np.float32)
            self._moments[column] = np.asarray(parameters[f"{name}.mean"], np.float64), scale
        if self.returns is not None:
            self.returns = np.float32(_deviation(parameters, "normalizer.returns"))

    def __call__(self, observation: Columns) -> Columns:
        """Observations [rows, ...] as a network is to see them."""
        seen = dict(observation)
        for name, (mean, scale) in self._moments.items():
            column = seen[name]
            if is_wide(column.dtype):
                centred = (column - mean).astype(np.float32)
            else:
                centred = column.astype(np.float32) - mean.astype(np.float32)
            seen[name] = (centred * scale).clip(-self._clip, self._clip)
        return seen

    def rewards(self, reward: Array) -> Array:
        """Rewards, scaled and clipped, float32."""
        if self.returns is None:
            return reward
        scaled: Array = (reward / self.returns).clip(-self._clip, self._clip)
        return scaled


def _deviation(parameters: Parameters, name: str) -> Any:
    count, m2 = parameters[f"{name}.count"], parameters[f"{name}.m2"]
    if count <= 0:
        return np.ones_like(m2)
    return np.sqrt(m2 / max(float(count), 1.0) + VARIANCE_EPSILON)
