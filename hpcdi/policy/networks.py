"""Networks: built from three slots, or by a user's factory; and the device where they learn.

::

    observation ──► encoder ──► features ──► memory ──► features ──► head ──► output
                                  state in ──┘    └──► state out

Every network, whoever makes it, is an `nn.Module` with

``forward(observation, state) -> (output, state)``
    of one step. `observation` is [batch, ...] with the environment's dtype (bytes stay bytes), or,
    if its space is a Dict or Tuple, a dict name -> [batch, ...] (``arm/angle`` in nested ones). Its
    rows are those that act or, when learning, transitions. `state` is a dict name -> [batch, ...],
    the memory's state before the step; the returned one, with the same names, shapes and dtypes, is
    that after the step. Without a memory it is ``{}`` and passed through.
    Learners call a network with a memory with the rows of whole sequences; see `memories`.
    `output` is a tensor [batch, ...] or a tuple of tensors; which, the algorithm's file says.
``acting(observation, state) -> (output, state)``
    optional, called instead of `forward` in evaluations: outputs that only learning needs may be
    None.
``initial_state(batch)``
    with a memory: the state at the start of episodes, name -> tensor [batch, ...].

If ``policy.model.type`` is ``my_module:make``, ``make(model, **model.kwargs)`` returns the network;
`model` are the settings, filled with the environment's spaces. Else a head composes it of the other
slots:

``encoder``: ``make(model)`` returns an `nn.Module`, observations -> features [batch, n], with n as
    its attribute ``out_features``.
``memory``: ``make(features, model)`` returns an `nn.Module` with ``out_features``, with
    ``initial_state(batch)``, the state at the start of an episode (a dict name -> tensor [batch,
    ...]), and with ``forward(features, state) -> (features, state)`` of a step, or of sequences:
    see `memories`. An algorithm that supports memories stores the state before each step beside its
    transition, as columns ``state/<name>`` [transitions, ...], so that a learner can unroll from
    stored rows (Kapturowski et al. 2019, "stored state"); episodes begin with `initial_state`.
``head``: ``make(model)`` returns the network: it calls `encoder_of` and `memory_of`, and says what
    comes out. Its layers stand at the top, so that parameters are named ``encoder.*`` and
    ``advantage.*``, say, in files.

A slot names an entry of `ENCODERS`, `MEMORIES` or `HEADS`, or a ``my_module:make`` of one's own.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcdi.config.algorithms import ActorCriticModelConfig
from hpcdi.config.policy import ModelConfig
from hpcdi.errors import PolicyError
from hpcdi.policy.gtrxl import GTrXL
from hpcdi.policy.memories import Recurrent, State, initial_state, state_of
from hpcdi.policy.named import call_named
from hpcdi.policy.spaces import (
    action_leaves,
    as_shape,
    encoder_objection,
    image_axes,
    obs_leaves,
    one_hot_places,
    scale_of,
    without,
)
from hpcdi.store.rows import SEQUENCE_LEN, STATES
from hpcdi.types import ACTION_MASK, Array, Columns, Leaf

Observation = Tensor | dict[str, Tensor]
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}
_CALLED = (
    "A network is made by f(model, **policy.model.kwargs), encoder and head by f(model), a memory "
    "by f(features, model)"
)
_OF_USER = "_is_of_user"
"""Attribute of an encoder or a memory that the user's code made."""
_VALUE = "value_"  # prefix of state names, where the value has a separate memory
_IMPALA_CHANNELS = (16, 32, 32)
_SMALL_IMAGE, _TINY_IMAGE = 12, 3
"""Smallest width and height, in pixels, of pictures for `ImpalaCNN`; for `SmallCNN`."""
_SMALL_CHANNELS = (16, 32)
_CONV_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih et al. 2015)


def make_network(model: ModelConfig, head: str) -> nn.Module:
    """Make the network that the settings describe.

    Args:
        model: settings, filled with the environment's spaces.
        head: name of the head, if the settings name none.

    Raises:
        PolicyError: a slot or a factory does not exist, or a factory's network does not fit.
    """
    network: nn.Module
    if model.type:
        network = call_named(model.type, "policy.model.type", _CALLED, model, **model.kwargs)
        _check_outputs(network, model, head)
        return network
    network = _find(HEADS, "head", model.head or head)(model)
    return initialized(network, model)


def initialized(network: nn.Module, model: ModelConfig) -> nn.Module:
    """Draw a network's weights as ``model.init`` says, if it says so; returns the network."""
    if model.init:
        draw_weights(network, model.init, model.init_gain)
    return network


def draw_weights(
    network: nn.Module,
    init: str,
    gain: float,
    gains: Mapping[nn.Module, float] = MappingProxyType({}),
    generator: torch.Generator | None = None,
) -> None:
    """Draw the weights of linear and convolutional layers anew; biases become 0.

    An encoder or a memory of the user's keeps its own, which may have been trained before.

    Args:
        network: has these layers.
        init: name of a function of `torch.nn.init`, without its last underscore.
        gain: scale of weights, if they are drawn orthogonal or xavier.
        gains: scales of single layers, instead of `gain`.
        generator: random numbers; None: torch's global generator.
    """
    own = [part for part in network.modules() if hasattr(part, _OF_USER)]
    kept = {module for part in own for module in part.modules()}
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module not in kept:
            scale = {} if init.startswith("kaiming") else {"gain": gains.get(module, gain)}
            getattr(nn.init, f"{init}_")(module.weight, **scale, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def encoder_of(model: ModelConfig) -> Any:
    """Make the encoder that ``model.encoder`` names."""
    name = model.encoder
    if name == "auto":
        name = _encoder_for(obs_leaves(model), has_bounds=bool(model.obs_leaves))
    if said := encoder_objection(name, obs_leaves(model)):
        raise PolicyError(f"policy.model.encoder: {said}")
    return _with_size(_find(ENCODERS, "encoder", name)(model), "encoder", name)


def _encoder_for(leaves: Sequence[Leaf], *, has_bounds: bool) -> str:
    """Returns the name of the default encoder.

    Args:
        leaves: arrays of an observation.
        has_bounds: their dtypes and bounds are known; else only their shapes are.
    """
    first = leaves[0]
    if len(leaves) > 1 or first.name:
        return "multi"
    if image_axes(first) is not None or (len(first.shape) == 3 and not has_bounds):
        return "nature_cnn"
    for name, smallest in (("impala_cnn", _SMALL_IMAGE), ("small_cnn", _TINY_IMAGE)):
        if first.dtype == "uint8" and image_axes(first, smallest) is not None:
            return name
    return "mlp"


def memory_of(features: int, model: ModelConfig) -> Any:
    """Make the memory that ``model.memory`` names, for a number of features."""
    memory = _find(MEMORIES, "memory", model.memory)(features, model)
    return _with_size(memory, "memory", model.memory)


def _with_size(part: Any, kind: str, name: str) -> Any:
    """Returns an encoder or a memory, which must say how many features come out of it."""
    if not isinstance(getattr(part, "out_features", None), int):
        raise PolicyError(
            f"policy.model.{kind}: {name} has no attribute out_features, an int: the number of "
            "features [batch, out_features] that it returns; a whole network is policy.model.type"
        )
    if ":" in name:
        setattr(part, _OF_USER, True)
    return part


def _find(slot: Mapping[str, Callable[..., Any]], kind: str, name: str) -> Callable[..., Any]:
    if ":" in name:
        return partial(call_named, name, f"policy.model.{kind}", _CALLED)
    if name not in slot:
        raise PolicyError(
            f"policy.model.{kind}: there is no {kind} {name!r}; there are {', '.join(slot)}, and "
            "'my_module:make' for one of your own"
        )
    return slot[name]


def _check_outputs(network: nn.Module, model: ModelConfig, head: str) -> None:
    """Check the shapes of a network's outputs, by two observations of the least values, or zeros.

    The state of torch's random numbers stays as it is.

    Raises:
        PolicyError: it fails, or returns something else than the algorithm expects.
    """
    firsts = {
        leaf.column("observation"): np.full(
            (2, *leaf.shape), np.reshape(leaf.starts, leaf.shape) if leaf.starts else 0, leaf.dtype
        )
        for leaf in obs_leaves(model)
    }
    state, is_training = initial_state(network, 2), network.training
    like = next(network.parameters(), torch.empty(0))
    observation = observation_of(tensors_of(firsts, like.device))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            output, _ = network.eval()(observation, state)
    except Exception as error:  # whatever a network raises
        raise PolicyError(
            f"policy.model: {model.type} fails with 2 observations {described(observation)} and a "
            f"state {described(state)}: {error!r}. It is called as network(observation, state), "
            "and returns its output and the next state"
        ) from error
    finally:
        network.train(is_training)
    size = action_size(model)
    wanted = f"[2, {size}]"
    shapes: list[list[tuple[int, ...]]] = [[(2, size)]]
    if head == "actor_critic":
        boxes = sum(math.prod(leaf.shape) for leaf in action_leaves(model) if not leaf.counts)
        wanted = f"(mean [2, {size}], log_std [{boxes}] or [2, {boxes}], value [2])"
        shapes = [[(2, size), deviation, (2,)] for deviation in ((boxes,), (2, boxes))]
        if not boxes:
            wanted, shapes = f"(logits [2, {size}], value [2])", [[(2, size), (2,)]]
    parts = output if isinstance(output, tuple | list) else [output]
    if [tuple(getattr(part, "shape", ())) for part in parts] not in shapes:
        raise PolicyError(
            f"policy.model: {model.type} returns {described(output)} for 2 observations, and must "
            f"return {wanted}"
        )


def described(value: object) -> str:
    """Returns dtype and shape of a tensor, or of each in a nested value, as text."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {described(part)}" for name, part in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(described, value)) + ")"
    return f"a {type(value).__name__}"


# --------------------------------------------------------------------------------------- encoders


def tensors_of(columns: Columns, device: torch.device) -> dict[str, Tensor]:
    """An actor's columns [rows, ...] as tensors on a device, which may share their memory."""
    return {name: torch.from_numpy(column).to(device) for name, column in columns.items()}


def observation_of(columns: Mapping[str, Tensor], name: str = "observation") -> Observation:
    """What a network takes of columns: the one of this name, or a dict of those below it.

    ``observation/arm/angle`` is ``arm/angle`` in the dict. Columns are flat everywhere else.

    Args:
        columns: name -> [rows, ...].
        name: of the observation, e.g. ``next_observation``.
    """
    if name in columns:
        return columns[name]
    prefix = f"{name}/"
    return {n.removeprefix(prefix): c for n, c in columns.items() if n.startswith(prefix)}


def rows_of(observation: Observation, rows: Tensor) -> Observation:
    """Some rows of an observation, which numbers or a mask choose."""
    if isinstance(observation, Tensor):
        return observation[rows]
    return {name: part[rows] for name, part in observation.items()}


def as_floats(observation: Observation) -> Observation:
    """The same in float32."""
    if isinstance(observation, Tensor):
        return observation.float()
    return {name: part.float() for name, part in observation.items()}


class NoisyLinear(nn.Linear):
    """A linear layer with learnt noise on its weights (Fortunato et al. 2018, 3.b: factorised).

    Noise is there within `Noise` alone; without it, this is the linear layer of the mean weights.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__(size_in, size_out)
        scale = 1 / math.sqrt(size_in)
        nn.init.uniform_(self.weight, -scale, scale)
        self.weight_sigma = nn.Parameter(torch.full((size_out, size_in), 0.5 * scale))
        self.bias_sigma = nn.Parameter(torch.full((size_out,), 0.5 * scale))
        self.register_buffer("noise_in", torch.zeros(size_in), persistent=False)
        self.register_buffer("noise_out", torch.zeros(size_out), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(mu + sigma eps) x + ...`` (eq. 9), where the weights' eps is an outer product."""
        drawn = nn.functional.linear(x * self.noise_in, self.weight_sigma, self.bias_sigma)
        return super().forward(x) + drawn * self.noise_out


class Noise:
    """Within it, the noisy layers of some networks compute with noise that is drawn once.

    Args:
        rng: random numbers, drawn only where there are such layers.
        networks: with any layers.
    """

    def __init__(self, rng: np.random.Generator, *networks: nn.Module) -> None:
        self.rng = rng
        self._layers = [
            one for each in networks for one in each.modules() if isinstance(one, NoisyLinear)
        ]

    def __enter__(self) -> None:
        for layer in self._layers:
            for part in (layer.noise_in, layer.noise_out):
                drawn = torch.from_numpy(self.rng.standard_normal(len(part), dtype=np.float32))
                part.copy_(drawn.sign() * drawn.abs().sqrt())  # eq. 11: f

    def __exit__(self, *_error: object) -> None:
        for layer in self._layers:
            layer.noise_in.zero_()
            layer.noise_out.zero_()


def _linear(model: ModelConfig) -> type[nn.Linear]:
    return NoisyLinear if getattr(model, "noisy", False) else nn.Linear


def mlp(
    sizes: Sequence[int],
    activation: type[nn.Module] = nn.ReLU,
    *,
    layer_norm: bool = False,
    linear: type[nn.Linear] = nn.Linear,
) -> nn.Sequential:
    """Linear layers of the given sizes with an activation after each."""
    layers: list[nn.Module] = []
    for size_in, size_out in itertools.pairwise(sizes):
        norm = [nn.LayerNorm(size_out)] if layer_norm else []
        layers += [linear(size_in, size_out), *norm, activation()]
    return nn.Sequential(*layers)


def _hidden(size_in: int, model: ModelConfig) -> tuple[nn.Sequential, int]:
    """The hidden layers of the settings, and how many features come out."""
    sizes = [size_in, *model.encoder_hidden_size_list]
    activation = _ACTIVATIONS[model.activation]
    layers = mlp(sizes, activation, layer_norm=model.layer_norm, linear=_linear(model))
    return layers, sizes[-1]


def as_vectors(values: Tensor) -> Tensor:
    """Returns values [batch, ...] as [batch, n]; a scalar [batch] has n = 1."""
    return values.unsqueeze(1) if values.ndim == 1 else values.flatten(1)


class Vector(nn.Flatten):
    """Numbers of any shape as a vector [batch, out_features]; bytes become 0..1."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.out_features = math.prod(leaf.shape)
        self._scale = scale_of(leaf)

    def forward(self, values: Tensor) -> Tensor:
        """Of an array [batch, ...]."""
        if self._scale is not None:
            values = values / self._scale
        return as_vectors(values)


class OneHot(nn.Module):
    """Discrete numbers as one-hot vectors, or as sums of learnt ones, [batch, out_features].

    Args:
        places: where each component's value 0 is, see `spaces.one_hot_places`.
        total: values of all components.
        size: features that are learnt of each component; 0: one-hot.
    """

    places: Tensor

    def __init__(self, places: Array, total: int, size: int) -> None:
        super().__init__()
        self._total = total
        self.register_buffer("places", torch.from_numpy(places), persistent=False)
        self.embedding = nn.Embedding(total, size) if size else None
        self.out_features = len(places) * size if size else total

    def forward(self, values: Tensor) -> Tensor:
        """Of whole numbers [batch, ...], in any dtype."""
        rows = values.reshape(-1, self.places.numel()).long() + self.places
        if self.embedding is not None:
            learnt: Tensor = self.embedding(rows).flatten(1)
            return learnt
        zeros = torch.zeros(rows.shape[0], self._total, device=rows.device)  # len() would fix it
        return zeros.scatter(1, rows, 1.0)


class MLP(nn.Sequential):
    """One array, flattened or one-hot, through the hidden layers."""

    def __init__(self, model: ModelConfig) -> None:
        (leaf,) = obs_leaves(model)
        first = vector_of(leaf, model)
        layers, size = _hidden(first.out_features, model)
        super().__init__(first, *layers)
        self.out_features = size


def vector_of(leaf: Leaf, model: ModelConfig) -> Any:
    """Module from an array to a vector, with its size as ``out_features``."""
    places = one_hot_places(leaf)
    return (
        Vector(leaf) if places is None else OneHot(places, sum(leaf.counts), model.embedding_size)
    )


class Image(nn.Module):
    """Pictures as floats [batch, channels, height, width]; bytes become 0..1.

    Channels may come last; of a stack of pictures all channels are side by side.
    """

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        axes = image_axes(leaf, smallest=1) or tuple(range(len(leaf.shape)))
        self._axes = (0, *(axis + 1 for axis in axes))
        self._is_moved = axes != tuple(range(len(axes)))
        self._scale = scale_of(leaf)

    def forward(self, observation: Tensor) -> Tensor:
        """Of pictures [batch, ...]."""
        if self._is_moved:
            observation = observation.permute(self._axes)
        if observation.ndim == 5:
            observation = observation.flatten(1, 2)
        if self.training:  # gradients of convolutions are computed faster so, on CPUs too
            observation = observation.contiguous(memory_format=torch.channels_last)
        return observation if self._scale is None else observation / self._scale


class _Convolutions(nn.Sequential):
    """Pictures through convolutions, and the hidden layers after them."""

    def __init__(self, model: ModelConfig) -> None:
        (leaf,) = obs_leaves(model)
        image, example = Image(leaf), torch.zeros(1, *leaf.shape)
        layers = [image, *self.layers(int(image(example).shape[1])), nn.Flatten()]
        with torch.no_grad():
            flat_size = int(nn.Sequential(*layers)(example).shape[1])
        hidden, size = _hidden(flat_size, model)
        super().__init__(*layers, *hidden)
        self.out_features = size

    @staticmethod
    def layers(channels: int) -> Iterator[nn.Module]:
        """Yields the layers of a picture of so many channels."""
        raise NotImplementedError


class NatureCNN(_Convolutions):
    """Those of Mnih et al. 2015."""

    @staticmethod
    def layers(channels: int) -> Iterator[nn.Module]:
        """See `_Convolutions.layers`."""
        for out, kernel, stride in _CONV_LAYERS:
            yield nn.Conv2d(channels, out, kernel, stride)
            yield nn.ReLU()
            channels = out


class SmallCNN(_Convolutions):
    """Two of 3 x 3, for pictures of few pixels.

    As MinAtar's network (Young and Tian 2019), with one convolution more; no pixel is left out.
    """

    @staticmethod
    def layers(channels: int) -> Iterator[nn.Module]:
        """See `_Convolutions.layers`."""
        for out in _SMALL_CHANNELS:
            yield nn.Conv2d(channels, out, 3, padding=1)
            yield nn.ReLU()
            channels = out


class ImpalaCNN(_Convolutions):
    """The residual network of Espeholt et al. 2018 (fig. 3, right), for pictures of any size.

    Three times a convolution, a maximum over 3 x 3 pixels that halves the picture, and two residual
    blocks.
    """

    @staticmethod
    def layers(channels: int) -> Iterator[nn.Module]:
        """See `_Convolutions.layers`."""
        for out in _IMPALA_CHANNELS:
            yield nn.Conv2d(channels, out, 3, padding=1)
            yield nn.MaxPool2d(3, stride=2, padding=1)
            yield from (_Residual(out), _Residual(out))
            channels = out
        yield nn.ReLU()


class _Residual(nn.Module):
    """``x + conv(relu(conv(relu(x))))``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.second(self.first(x.relu()).relu())
        return x + inner


class MultiEncoder(nn.Module):
    """Several arrays: pictures through an encoder each, then all side by side through layers.

    Discrete arrays come one-hot or learnt, others as they are. A picture's encoder has the first of
    the hidden layers, all of them follow behind the parts.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        leaves = obs_leaves(model)
        self._names = [leaf.name for leaf in leaves]
        unknown = sorted(model.leaf_encoders.keys() - set(self._names))
        if unknown:
            raise PolicyError(f"policy.model.leaf_encoders: {unknown} are none of {self._names}")
        parts: list[Any] = [_part_of(leaf, model) for leaf in leaves]
        self.parts = nn.ModuleList(parts)
        self.layers, self.out_features = _hidden(sum(part.out_features for part in parts), model)

    def forward(self, observation: Observation) -> Tensor:
        """Of a dict name -> [batch, ...], or of one array."""
        arrays = {"": observation} if isinstance(observation, Tensor) else observation
        features = [part(arrays[name]) for name, part in zip(self._names, self.parts, strict=True)]
        joined: Tensor = self.layers(torch.cat(features, dim=1))
        return joined


def _part_of(leaf: Leaf, model: ModelConfig) -> Any:
    name = model.leaf_encoders.get(leaf.name, "auto")
    unnamed = dataclasses.replace(leaf, name="")
    if name == "auto" and _encoder_for([unnamed], has_bounds=True) == "mlp":
        return vector_of(leaf, model)
    of_leaf = dataclasses.replace(
        model,
        encoder=name,
        obs_shape=leaf.shape,
        obs_leaves=(unnamed,),
        leaf_encoders={},
        encoder_hidden_size_list=model.encoder_hidden_size_list[:1],
    )
    return encoder_of(of_leaf)


# ---------------------------------------------------------------------------------------- memories


class NoMemory(nn.Module):
    """Features are of the present observation alone; the state is empty."""

    def __init__(self, features: int, _model: ModelConfig) -> None:
        super().__init__()
        self.out_features = features

    def initial_state(self, _batch: int) -> State:
        """No columns."""
        return {}

    def forward(self, features: Tensor, state: State) -> tuple[Tensor, State]:
        """Both as they are."""
        return features, state


def recurrent(kind: type[nn.LSTM] | type[nn.GRU], features: int, model: ModelConfig) -> Recurrent:
    """An LSTM or a GRU with ``model.memory_size`` cells."""
    return Recurrent(features, model.memory_size, kind, model.memory_span)


def gtrxl(features: int, model: ModelConfig) -> GTrXL:
    """A gated transformer-XL."""
    layers, heads = model.memory_layers, model.memory_heads
    return GTrXL(features, model.memory_size, layers, heads, model.memory_len)


# ------------------------------------------------------------------------------------------- heads


class QHead(nn.Module):
    """Values of all actions, float32 [batch, actions].

    Args:
        model: settings; where they have ``outputs``, an action has so many, side by side.
        dueling: value and advantage apart, ``Q = V + A - mean(A)`` (Wang et al. 2016, eq. 9).
    """

    def __init__(self, model: ModelConfig, *, dueling: bool = False) -> None:
        super().__init__()
        self.encoder = encoder_of(model)
        self.memory = memory_of(self.encoder.out_features, model)
        features = self.memory.out_features
        linear = _linear(model)
        self.advantage = linear(features, action_size(model))
        self._outputs = getattr(model, "outputs", 1)
        self.value = linear(features, self._outputs) if dueling else None

    def forward(self, observation: Observation, state: State) -> tuple[Tensor, State]:
        """Values of actions; see the module's docstring."""
        features, state = self.memory(self.encoder(as_floats(observation)), state)
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage, state
        value: Tensor = self.value(features)
        if self._outputs == 1:
            return value + advantage - advantage.mean(dim=-1, keepdim=True), state
        advantage = advantage.view(-1, advantage.shape[1] // self._outputs, self._outputs)
        values = value.unsqueeze(1) + advantage - advantage.mean(dim=1, keepdim=True)
        return values.flatten(1), state


class LinearHead(nn.Module):
    """As many outputs as an action has components, float32 [batch, components]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.encoder = encoder_of(model)
        self.memory = memory_of(self.encoder.out_features, model)
        self.output = nn.Linear(self.memory.out_features, action_size(model))

    def forward(self, observation: Observation, state: State) -> tuple[Tensor, State]:
        """The outputs; see the module's docstring."""
        features, state = self.memory(self.encoder(as_floats(observation)), state)
        return self.output(features), state


class ActionValues(nn.Module):
    """Values of continuous actions by several critics: a network that learners alone have.

    A critic is the network that the settings ask for, with the pair of observation and action as
    its observation [batch, n] and a value as its only output, or quantiles of it. Images, and
    whatever an encoder of the user's takes, are encoded before, by one encoder for all critics.

    Args:
        model: settings.
        critics: how many.
        outputs: of each, such as quantiles.
    """

    def __init__(self, model: ModelConfig, critics: int, outputs: int = 1) -> None:
        super().__init__()
        shape = as_shape(model.obs_shape or ())
        is_vector = len(shape) != 3 and not model.obs_leaves and ":" not in model.encoder
        encoder: Any = (
            Vector(Leaf(shape=shape)) if is_vector else initialized(encoder_of(model), model)
        )
        self.encoder = encoder
        pair = dataclasses.replace(
            model,
            obs_shape=encoder.out_features + action_size(model),
            obs_leaves=(),
            leaf_encoders={},
            action_shape=outputs,
            encoder=model.encoder if is_vector else "mlp",
        )
        self.critics = nn.ModuleList(make_network(pair, "linear") for _ in range(critics))

    def forward(self, observation: Observation, action: Tensor) -> Tensor:
        """Values of actions [batch, components] between -1 and 1, float32 [critics, batch].

        Where there are several outputs, [critics, batch, outputs].
        """
        pair = torch.cat([self.encoder(as_floats(observation)), action], dim=1)
        return torch.stack([critic(pair, {})[0].squeeze(1) for critic in self.critics])


class Number(nn.Module):
    """A number that is learnt."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(start))


class ActorCritic(nn.Module):
    """Parameters of a distribution of actions, and the value of the observation.

    The output is ``(logits, value)`` of discrete and ``(mean, log_std, value)`` of continuous
    actions: logits and means [batch, components], values [batch], and the logarithm of the
    deviation [components], which is the same for all observations.

    Args:
        model: settings, with ``share_encoder`` (one encoder and memory for policy and value),
            ``log_std_init`` and ``value_only`` (arrays that the policy does not see).
    """

    def __init__(self, model: ActorCriticModelConfig) -> None:
        super().__init__()
        self.encoder = encoder_of(without(model, model.value_only))
        self.value_encoder = None if model.share_encoder else encoder_of(model)
        self.memory = memory_of(self.encoder.out_features, model)
        self.value_memory = None
        if self.value_encoder is not None:
            self.value_memory = memory_of(self.value_encoder.out_features, model)
        size, features = action_size(model), self.memory.out_features
        self.policy = nn.Linear(features, size)
        self.value = nn.Linear(features, 1)
        boxes = sum(math.prod(leaf.shape) for leaf in action_leaves(model) if not leaf.counts)
        self.log_std = nn.Parameter(torch.full((boxes,), model.log_std_init)) if boxes else None

    def initialize(self, seed: int) -> None:
        """Draw all weights anew: orthogonal (Andrychowicz et al. 2021, 3.2).

        They are scaled by sqrt(2) in hidden layers, by 1 before the value, and by 0.01 before the
        policy, so that it begins near uniform.
        """
        gains: dict[nn.Module, float] = {self.policy: 0.01, self.value: 1.0}
        generator = torch.Generator().manual_seed(seed)
        draw_weights(self, "orthogonal", math.sqrt(2), gains, generator)

    def forward(self, observation: Observation, state: State) -> tuple[tuple[Tensor, ...], State]:
        """Distribution and value; see the module's docstring."""
        observation = as_floats(observation)
        policy, features, after = self._policy(observation, state)
        if self.value_encoder is not None and self.value_memory is not None:
            of_value = {n.removeprefix(_VALUE): state[n] for n in state if n.startswith(_VALUE)}
            of_value |= {SEQUENCE_LEN: state[SEQUENCE_LEN]} if SEQUENCE_LEN in state else {}
            features, of_value = self.value_memory(self.value_encoder(observation), of_value)
            after = {**after, **{_VALUE + n: of_value[n] for n in of_value if n != SEQUENCE_LEN}}
        return (*policy, self.value(features).squeeze(1)), after

    def initial_state(self, batch: int) -> State:
        """Returns the state of the policy's memory and, if it is separate, of the value's."""
        state: State = self.memory.initial_state(batch)
        if self.value_memory is None:
            return state
        of_value = self.value_memory.initial_state(batch)
        return {**state, **{_VALUE + name: of_value[name] for name in of_value}}

    @property
    def stacks(self) -> tuple[str, ...]:
        """See `memories.stacks`."""
        own = tuple(getattr(self.memory, "stacks", ()))
        return own if self.value_memory is None else (*own, *(_VALUE + name for name in own))

    def acting(
        self, observation: Observation, state: State
    ) -> tuple[tuple[Tensor | None, ...], State]:
        """The distribution alone; see the module's docstring."""
        policy, _, after = self._policy(as_floats(observation), state)
        return (*policy, None), {**state, **after}

    def without_value(self) -> nn.Module:
        """Returns a copy that has the distribution alone, see `acting`."""
        return _Actor(self)

    def _policy(
        self, observation: Observation, state: State
    ) -> tuple[tuple[Tensor, ...], Tensor, State]:
        """Parameters of the distribution, the features that they follow from, and the state."""
        features, state = self.memory(self.encoder(observation), state)
        policy = self.policy(features)
        return ((policy,) if self.log_std is None else (policy, self.log_std)), features, state


class _Actor(nn.Module):
    """An `ActorCritic` without its value."""

    def __init__(self, network: ActorCritic) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.normalizer: Any = getattr(self.network, "normalizer", None)
        self.network.value_encoder = self.network.value_memory = None
        for name in ("value", "normalizer", "novelty"):
            if hasattr(self.network, name):
                delattr(self.network, name)

    def initial_state(self, batch: int) -> State:
        """See `ActorCritic.initial_state`: of the policy's memory."""
        return self.network.initial_state(batch)

    def forward(
        self, observation: Observation, state: State
    ) -> tuple[tuple[Tensor | None, ...], State]:
        """See `ActorCritic.acting`."""
        return self.network.acting(observation, state)


def action_size(model: ModelConfig) -> int:
    """Number of discrete actions, or of a continuous action's components."""
    return math.prod(as_shape(model.action_shape))


ENCODERS: dict[str, Callable[..., Any]] = {
    "mlp": MLP,
    "nature_cnn": NatureCNN,
    "impala_cnn": ImpalaCNN,
    "small_cnn": SmallCNN,
    "multi": MultiEncoder,
}
MEMORIES: dict[str, Callable[..., Any]] = {
    "none": NoMemory,
    "lstm": partial(recurrent, nn.LSTM),
    "gru": partial(recurrent, nn.GRU),
    "gtrxl": gtrxl,
}
HEADS: dict[str, Callable[..., nn.Module]] = {
    "q": QHead,
    "dueling_q": partial(QHead, dueling=True),
    "actor_critic": ActorCritic,
    "linear": LinearHead,
}


# -------------------------------------------------------------------------- where they are computed


class Greedy(nn.Module):
    """A policy as a function of observations, without random numbers: what is exported.

    Args:
        network: the network.
        greedy: its output -> the best actions, and what else is of interest.
        names: of what `greedy` returns; the first is "action".
        parameters: output and mask -> parameters of the distribution of actions, by their names.
        inputs: name -> shape of one: ``observation`` or, of several arrays, ``observation/<name>``;
            with a memory also ``state/<name>``, zeros at the start of an episode. None: one array.

    Attributes:
        output_names: of what is returned; actions of several parts are ``action/<name>``, and the
            states after the step, ``next_state/<name>``, come last; before them the distribution's
            parameters.
        far: inputs of which something is subtracted first.
        starts: of actions, by their names, what the environment counts them from.
        firsts: of discrete inputs the first value of each component, where it is not 0.
        logits: entries of the input ``action_mask``, see `take_masks`; 0: there is none.
    """

    def __init__(
        self,
        network: nn.Module,
        greedy: Callable[[Any], tuple[Any, ...]],
        names: Sequence[str],
        inputs: Mapping[str, tuple[int, ...]] | None = None,
        action_names: Sequence[str] = (),
        parameters: Callable[..., Mapping[str, Tensor]] | None = None,
    ) -> None:
        super().__init__()
        self.network, self.inputs = network, dict(inputs or {})
        self._greedy, self._parameters_of = greedy, parameters
        self._outputs = len(names)
        self._parts = [name.removeprefix("action/") for name in action_names]
        self._states = [name for name in self.inputs if name.startswith(STATES)]
        self._parameter_names: tuple[str, ...] = ()  # of those that are returned, too
        action, *others = names
        after = [f"next_{name}" for name in self._states]
        self.output_names = (*(action_names or (action,)), *others, *after)
        self.far: dict[str, str] = {}
        self.starts: dict[str, Sequence[int]] = {}
        self.firsts: dict[str, tuple[int, ...]] = {}
        self.logits = 0

    def tell(self) -> None:
        """Return also the parameters of the distribution; they are computed once, for names."""
        if self._parameters_of is None:
            return
        zeros = {name: self.first(name) for name in self.inputs}
        with torch.no_grad():
            output, _ = self.network(observation_of(zeros), state_of(zeros))
        self._parameter_names = tuple(self._parameters_of(output, None))
        first = len(self.output_names) - len(self._states)  # of the states after the step
        before, after = self.output_names[:first], self.output_names[first:]
        self.output_names = (*before, *self._parameter_names, *after)

    def first(self, name: str) -> Tensor:
        """An input [1, ...] of zeros, or of the first values that it can have."""
        values = torch.zeros(1, *self.inputs[name])
        if firsts := self.firsts.get(name):
            values += torch.tensor(firsts).reshape(self.inputs[name])
        return values

    def take_masks(self, logits: int) -> None:
        """Take masks of legal actions, bool [batch, logits], as the input ``action_mask``."""
        self.logits = logits
        self.inputs[ACTION_MASK] = (logits,)

    def subtract(self, origin: Mapping[str, Sequence[float]]) -> None:
        """Take some inputs as float64, and subtract numbers first, as environments' rows have it.

        Args:
            origin: of each such input, one number or one for each component; see ``env.origin``.
        """
        for number, (name, given) in enumerate(origin.items()):
            shape = self.inputs[name]
            numbers = torch.tensor(given, dtype=torch.float64)
            self.far[name] = f"origin{number}"
            self.register_buffer(
                self.far[name], numbers.expand(shape) if len(given) == 1 else numbers.view(shape)
            )

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Of float32 [batch, ...], float64 where they are far, in the order of `inputs`."""
        columns = dict(zip(self.inputs or ("observation",), inputs, strict=True))
        for name, buffer in self.far.items():
            columns[name] = (columns[name] - getattr(self, buffer)).float()
        normalizer = getattr(self.network, "normalizer", None)
        normalized = columns if normalizer is None else normalizer(columns)
        output, state = self.network(observation_of(normalized), state_of(columns))
        legal = [columns[ACTION_MASK]] if self.logits else []
        action, *others = self._greedy(output, *legal)[: self._outputs]
        actions = [action[name] for name in self._parts] if self._parts else [action]
        names = [f"action/{name}" for name in self._parts] or ["action"]
        actions = [self._counted(name, one) for name, one in zip(names, actions, strict=True)]
        if self._parameters_of is not None and self._parameter_names:
            parameters = self._parameters_of(output, legal[0] if legal else None)
            others += [parameters[name] for name in self._parameter_names]
        after = (state[name.removeprefix(STATES)] for name in self._states)
        return (*actions, *others, *after)

    def _counted(self, name: str, action: Tensor) -> Tensor:
        starts = self.starts.get(name, ())
        if not any(starts):
            return action
        return action + torch.tensor(starts, device=action.device).reshape(action.shape[1:])


def learner_device(*, cuda: bool) -> torch.device:
    """Returns where a policy learns: the CPU, or this process's current CUDA device.

    Raises:
        PolicyError: `cuda` is set, and there is no such device.
    """
    if cuda and not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"CUDA_VISIBLE_DEVICES is {'not set' if visible is None else repr(visible)}"
        if torch.version.cuda is None and torch.version.hip is None:
            why = f"torch {torch.__version__} was built without it"
        raise PolicyError(
            f"policy.cuda is true, but torch sees no CUDA device on this rank ({why}); "
            "hpcdi doctor --cuda tells more; policy.cuda=false learns on cores"
        )
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
