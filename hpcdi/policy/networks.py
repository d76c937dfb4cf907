"""Networks: built from three slots, or by a user's factory; and the device where they learn.

::

    observation ──► encoder ──► features ──► memory ──► features ──► head ──► output
                                  state in ──┘    └──► state out

Every network, whoever makes it, is an `nn.Module` with

``forward(observation, state) -> (output, state)``
    of one step. `observation` is [batch, ...] as the environment gave it (bytes stay bytes): the
    rows are environments when acting, and transitions when learning. `state` is a dict name ->
    [batch, ...]: what the memory knows before the step; the state that is returned is that after
    it, under the same names, shapes and dtypes. Without a memory it is ``{}`` and passed through.
    Learners call a network with a memory with the rows of whole sequences; see `memories`.
    `output` is a tensor [batch, ...] or a tuple of tensors; which, the algorithm's file says.
``acting(observation, state) -> (output, state)``
    optional: the same for an evaluation, with None for parts that only learning needs.
``initial_state(batch)``
    with a memory: the state at the start of episodes, name -> tensor [batch, ...].

Where ``policy.model.type`` is ``my_module:make``, ``make(model, **model.kwargs)`` returns the
network; `model` are the settings, filled with the environment's spaces. Else a head composes it,
of the other slots:

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

import dataclasses
import importlib
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcdi.errors import PolicyError
from hpcdi.policy.memories import LENGTH, Recurrent, State
from hpcdi.policy.settings import ModelConfig
from hpcdi.policy.spaces import as_shape

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
_VALUE = "value_"  # before the names of the state of a memory that is the value's own
_CONV_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih et al. 2015)


def make_network(model: ModelConfig, head: str) -> nn.Module:
    """The network that the settings ask for.

    Args:
        model: settings, filled with the environment's spaces.
        head: the head where the settings name none.

    Raises:
        PolicyError: a slot, or a factory, is not there.
    """
    if model.type:
        network: nn.Module = _imported(model.type)(model, **model.kwargs)
        return network
    made: nn.Module = _find(HEADS, "head", model.head or head)(model)
    return made


def encoder_of(model: ModelConfig) -> Any:
    """The encoder that ``model.encoder`` names."""
    name = model.encoder
    if name == "auto":
        name = "nature_cnn" if len(as_shape(model.obs_shape or ())) == 3 else "mlp"
    return _find(ENCODERS, "encoder", name)(model)


def memory_of(features: int, model: ModelConfig) -> Any:
    """The memory that ``model.memory`` names, for so many features."""
    return _find(MEMORIES, "memory", model.memory)(features, model)


def _find(slot: Mapping[str, Callable[..., Any]], kind: str, name: str) -> Callable[..., Any]:
    if ":" in name:
        return _imported(name)
    if name not in slot:
        raise PolicyError(
            f"policy.model.{kind}: there is no {kind} {name!r}; there are {', '.join(slot)}, and "
            "'my_module:make' for one of your own"
        )
    return slot[name]


def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    try:
        made: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise PolicyError(
            f"policy.model: {path!r} cannot be imported: {error}. It is 'module:function'; put the "
            "module's folder on PYTHONPATH of all ranks"
        ) from error
    return made


# --------------------------------------------------------------------------------------- encoders


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of the given sizes with an activation after each."""
    layers: list[nn.Module] = []
    for size_in, size_out in itertools.pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), activation()]
    return nn.Sequential(*layers)


class MLP(nn.Sequential):
    """Observations of any shape, flattened, through the hidden layers."""

    def __init__(self, model: ModelConfig) -> None:
        sizes = [math.prod(as_shape(model.obs_shape or ())), *model.encoder_hidden_size_list]
        super().__init__(nn.Flatten(), *mlp(sizes, _ACTIVATIONS[model.activation]))
        self.out_features = sizes[-1]


class NatureCNN(nn.Sequential):
    """Images [channels, height, width] of 0..255 through the convolutions of Mnih et al. 2015.

    They are scaled to 0..1 first; hidden layers follow the convolutions.

    Raises:
        PolicyError: the convolutions leave nothing of such an image.
    """

    def __init__(self, model: ModelConfig) -> None:
        shape = as_shape(model.obs_shape or ())
        layers: list[nn.Module] = [_Scale()]
        channels = shape[0]
        for out, kernel, stride in _CONV_LAYERS:
            layers += [nn.Conv2d(channels, out, kernel, stride), nn.ReLU()]
            channels = out
        layers.append(nn.Flatten())
        try:
            with torch.no_grad():
                flat = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
        except RuntimeError as error:
            raise PolicyError(
                f"observations of shape {shape} are taken for images [channels, height, width], "
                "and the convolutions need at least 36 x 36 pixels; resize, transpose or flatten "
                "them"
            ) from error
        sizes = [flat, *model.encoder_hidden_size_list]
        super().__init__(*layers, *mlp(sizes, _ACTIVATIONS[model.activation]))
        self.out_features = sizes[-1]


class _Scale(nn.Module):
    """Pixels 0..255 as 0..1."""

    def forward(self, observation: Tensor) -> Tensor:
        return observation / 255.0


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


def lstm(features: int, model: ModelConfig) -> Recurrent:
    """An LSTM with ``model.memory_size`` cells."""
    return Recurrent(features, model.memory_size, nn.LSTM)


def gru(features: int, model: ModelConfig) -> Recurrent:
    """A GRU with ``model.memory_size`` cells."""
    return Recurrent(features, model.memory_size, nn.GRU)


# ------------------------------------------------------------------------------------------- heads


class QHead(nn.Module):
    """Values of all actions, float32 [batch, actions].

    Args:
        model: settings; where they have ``n_atom``, an action has so many outputs, side by side.
        dueling: value and advantage apart, ``Q = V + A - mean(A)`` (Wang et al. 2016, eq. 9).
    """

    def __init__(self, model: ModelConfig, *, dueling: bool = False) -> None:
        super().__init__()
        self.encoder = encoder_of(model)
        self.memory = memory_of(self.encoder.out_features, model)
        features = self.memory.out_features
        self.advantage = nn.Linear(features, _action_size(model))
        self._atoms = getattr(model, "n_atom", 1)
        self.value = nn.Linear(features, self._atoms) if dueling else None

    def forward(self, observation: Tensor, state: State) -> tuple[Tensor, State]:
        """Values of actions; see the module's docstring."""
        features, state = self.memory(self.encoder(observation.float()), state)
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage, state
        value: Tensor = self.value(features)
        if self._atoms == 1:
            return value + advantage - advantage.mean(dim=-1, keepdim=True), state
        advantage = advantage.view(-1, advantage.shape[1] // self._atoms, self._atoms)
        values = value.unsqueeze(1) + advantage - advantage.mean(dim=1, keepdim=True)
        return values.flatten(1), state


class DuelingQHead(QHead):
    """`QHead`, dueling."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model, dueling=True)


class LinearHead(nn.Module):
    """As many outputs as an action has components, float32 [batch, components]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.encoder = encoder_of(model)
        self.memory = memory_of(self.encoder.out_features, model)
        self.output = nn.Linear(self.memory.out_features, _action_size(model))

    def forward(self, observation: Tensor, state: State) -> tuple[Tensor, State]:
        """The outputs; see the module's docstring."""
        features, state = self.memory(self.encoder(observation.float()), state)
        return self.output(features), state


class ActionValues(nn.Module):
    """Values of continuous actions by several critics: a network that learners alone have.

    A critic is the network that the settings ask for, with the pair of observation and action as
    its observation [batch, n] and a value as its only output. Images are encoded before, by one
    encoder for all critics.

    Args:
        model: settings.
        critics: how many.
    """

    def __init__(self, model: ModelConfig, critics: int) -> None:
        super().__init__()
        shape = as_shape(model.obs_shape or ())
        is_image = len(shape) == 3
        encoder: Any = encoder_of(model) if is_image else nn.Flatten()
        size: int = encoder.out_features if is_image else math.prod(shape)
        self.encoder = encoder
        pair = dataclasses.replace(
            model, obs_shape=size + _action_size(model), action_shape=1,
            encoder="mlp" if is_image else model.encoder,
        )  # fmt: skip
        self.critics = nn.ModuleList(make_network(pair, "linear") for _ in range(critics))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Values float32 [critics, batch], of actions [batch, components] between -1 and 1."""
        pair = torch.cat([self.encoder(observation.float()), action], dim=1)
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
        model: settings, with ``share_encoder`` (one encoder and memory for policy and value) and
            ``log_std_init``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = encoder_of(model)
        self.value_encoder = None if model.share_encoder else encoder_of(model)
        self.memory = memory_of(self.encoder.out_features, model)
        own = self.value_encoder
        self.value_memory = None if own is None else memory_of(own.out_features, model)
        size, features = _action_size(model), self.memory.out_features
        self.policy = nn.Linear(features, size)
        self.value = nn.Linear(features, 1)
        is_discrete = model.action_space == "discrete"
        log_std = None if is_discrete else torch.full((size,), model.log_std_init)
        self.log_std = None if log_std is None else nn.Parameter(log_std)

    def initialize(self, seed: int) -> None:
        """Draw all weights anew: orthogonal (Andrychowicz et al. 2021, 3.2).

        They are scaled by sqrt(2) in hidden layers, by 1 before the value, and by 0.01 before the
        policy, so that it begins near uniform.
        """
        generator = torch.Generator().manual_seed(seed)
        gains = {id(self.policy): 0.01, id(self.value): 1.0}
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                gain = gains.get(id(module), math.sqrt(2))
                nn.init.orthogonal_(module.weight, gain, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, observation: Tensor, state: State) -> tuple[tuple[Tensor, ...], State]:
        """Distribution and value; see the module's docstring."""
        observation = observation.float()
        policy, features, after = self._policy(observation, state)
        if self.value_encoder is not None and self.value_memory is not None:
            own = {n.removeprefix(_VALUE): state[n] for n in state if n.startswith(_VALUE)}
            own |= {LENGTH: state[LENGTH]} if LENGTH in state else {}
            features, own = self.value_memory(self.value_encoder(observation), own)
            after = {**after, **{_VALUE + n: held for n, held in own.items() if n != LENGTH}}
        return (*policy, self.value(features).squeeze(1)), after

    def initial_state(self, batch: int) -> State:
        """Of the policy's memory and, with an encoder of its own, the value's."""
        state: State = self.memory.initial_state(batch)
        if self.value_memory is None:
            return state
        own = self.value_memory.initial_state(batch)
        return {**state, **{_VALUE + name: held for name, held in own.items()}}

    def acting(self, observation: Tensor, state: State) -> tuple[tuple[Tensor | None, ...], State]:
        """The distribution alone; see the module's docstring."""
        policy, _, after = self._policy(observation.float(), state)
        return (*policy, None), {**state, **after}

    def _policy(
        self, observation: Tensor, state: State
    ) -> tuple[tuple[Tensor, ...], Tensor, State]:
        """Parameters of the distribution, the features that they follow from, and the state."""
        features, state = self.memory(self.encoder(observation), state)
        policy = self.policy(features)
        return ((policy,) if self.log_std is None else (policy, self.log_std)), features, state


def _action_size(model: ModelConfig) -> int:
    """Number of discrete actions, or of a continuous action's components."""
    shape: Any = model.action_shape
    return math.prod(as_shape(shape))


ENCODERS: dict[str, Callable[..., Any]] = {"mlp": MLP, "nature_cnn": NatureCNN}
MEMORIES: dict[str, Callable[..., Any]] = {"none": NoMemory, "lstm": lstm, "gru": gru}
HEADS: dict[str, Callable[..., nn.Module]] = {
    "q": QHead, "dueling_q": DuelingQHead, "actor_critic": ActorCritic,
    "linear": LinearHead,
}  # fmt: skip


# -------------------------------------------------------------------------- where they are computed


class Greedy(nn.Module):
    """A policy as a function of observations, without random numbers: what is exported.

    Args:
        network: the network.
        greedy: its output -> the best actions, and what else is of interest.
        names: of what `greedy` returns; the first is "action".
    """

    def __init__(
        self, network: nn.Module, greedy: Callable[[Any], tuple[Tensor, ...]], names: Sequence[str]
    ) -> None:
        super().__init__()
        self.network, self.output_names = network, tuple(names)
        self._greedy = greedy

    def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
        """Of observations float32 [batch, ...]."""
        output, _ = self.network(observation, {})
        return self._greedy(output)


def learner_device(*, cuda: bool) -> torch.device:
    """Where a policy learns: on the CPU, or on the CUDA device that this process has chosen.

    Raises:
        PolicyError: `cuda` is asked for where there is none.
    """
    if cuda and not torch.cuda.is_available():
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"CUDA_VISIBLE_DEVICES is {'not set' if shown is None else repr(shown)}"
        if torch.version.cuda is None and torch.version.hip is None:
            why = f"torch {torch.__version__} was built without it"
        raise PolicyError(
            f"policy.cuda is true, but torch sees no CUDA device on this rank ({why}); "
            "hpcdi doctor --cuda tells more; policy.cuda=false learns on cores"
        )
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
