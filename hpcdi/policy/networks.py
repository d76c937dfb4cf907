"""Networks, in torch, and where they learn."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hpcdi.errors import PolicyError

_CONV_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih et al. 2015)


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


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of the given sizes with an activation after each."""
    layers: list[nn.Module] = []
    for size_in, size_out in itertools.pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), activation()]
    return nn.Sequential(*layers)


def encoder(
    obs_shape: Sequence[int], hidden: Sequence[int], activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Observation -> features [batch, hidden[-1]].

    Observations of three axes [channels, height, width] pass the convolutions of Mnih et al. 2015
    first (with ReLU) and are scaled from 0..255; others are flattened.

    Args:
        obs_shape: shape of one observation.
        hidden: sizes of the hidden layers.
        activation: after each hidden layer.

    Raises:
        PolicyError: the convolutions leave nothing of such an image.
    """
    if len(obs_shape) != 3:
        return nn.Sequential(nn.Flatten(), *mlp([math.prod(obs_shape), *hidden], activation))
    layers: list[nn.Module] = [_Scale()]
    channels = obs_shape[0]
    for out, kernel, stride in _CONV_LAYERS:
        layers += [nn.Conv2d(channels, out, kernel, stride), nn.ReLU()]
        channels = out
    layers.append(nn.Flatten())
    try:
        with torch.no_grad():
            flat = nn.Sequential(*layers)(torch.zeros(1, *obs_shape)).shape[1]
    except RuntimeError as error:
        raise PolicyError(
            f"observations of shape {tuple(obs_shape)} are taken for images [channels, height, "
            "width], and the convolutions need at least 36 x 36 pixels; resize, transpose or "
            "flatten them"
        ) from error
    return nn.Sequential(*layers, *mlp([flat, *hidden], activation))


class QNetwork(nn.Module):
    """Observation -> value of each action, float32 [batch, actions].

    Args:
        obs_shape: shape of one observation.
        action_shape: number of discrete actions.
        hidden: sizes of the hidden layers.
        dueling: value and advantage apart, ``Q = V + A - mean(A)`` (Wang et al. 2016, eq. 9).
    """

    def __init__(
        self, obs_shape: Sequence[int], action_shape: int, hidden: Sequence[int], *, dueling: bool
    ) -> None:
        super().__init__()
        self.encoder = encoder(obs_shape, hidden)
        self.advantage = nn.Linear(hidden[-1], action_shape)
        self.value = nn.Linear(hidden[-1], 1) if dueling else None

    def forward(self, observation: Tensor) -> Tensor:
        """Values for observations [batch, ...]."""
        features = self.encoder(observation.float())  # stored as they came, e.g. as bytes
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage
        value: Tensor = self.value(features)
        return value + advantage - advantage.mean(dim=-1, keepdim=True)


class _Scale(nn.Module):
    """Pixels 0..255 as 0..1."""

    def forward(self, observation: Tensor) -> Tensor:
        return observation / 255.0
