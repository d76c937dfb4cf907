"""Networks: what comes in, what comes out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hpcdi.config.algorithms import ActorCriticModelConfig
from hpcdi.config.policy import ModelConfig
from hpcdi.errors import PolicyError
from hpcdi.policy.networks import QHead, Vector, encoder_of, make_network, mlp

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def model_of(shape: tuple[int, ...], hidden: list[int], **settings: Any) -> ModelConfig:
    return ModelConfig(
        obs_shape=shape, action_shape=3, encoder_hidden_size_list=tuple(hidden), **settings
    )  # fmt: skip


def q_network(shape: tuple[int, ...], hidden: list[int], *, dueling: bool) -> QHead:
    return QHead(model_of(shape, hidden), dueling=dueling)


def test_mlp_has_a_relu_after_each_layer() -> None:
    layers = mlp([3, 4, 5])
    assert [type(layer) for layer in layers] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert layers(torch.zeros(2, 3)).shape == (2, 5)
    assert (layers(torch.randn(20, 3)) >= 0).all()


def test_other_activations_take_the_place_of_relu() -> None:
    kinds = [type(layer) for layer in encoder_of(model_of((3,), [4, 5], activation="tanh"))]
    assert kinds == [Vector, nn.Linear, nn.Tanh, nn.Linear, nn.Tanh]


@pytest.mark.parametrize("head", ["q", "linear", "actor_critic"])
@pytest.mark.parametrize(
    ("init", "spread"),
    [
        ("xavier_uniform", 0.5 * (2 / (64 + 400)) ** 0.5),
        ("xavier_normal", 0.5 * (2 / (64 + 400)) ** 0.5),
        ("kaiming_uniform", (2 / 64) ** 0.5),
        ("kaiming_normal", (2 / 64) ** 0.5),
    ],
)
def test_weights_are_drawn_as_the_settings_say(head: str, init: str, spread: float) -> None:
    kind = ActorCriticModelConfig if head == "actor_critic" else ModelConfig
    settings = {"obs_shape": 64, "action_shape": 3, "encoder_hidden_size_list": (400,)}
    network = make_network(kind(init=init, init_gain=0.5, **settings), head)
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    hidden, *_, output = layers
    assert hidden.weight.std().item() == pytest.approx(spread, rel=0.05)
    assert output.weight.std() > 0.01
    assert not any(layer.bias.any() for layer in layers)


def test_orthogonal_weights_of_a_gain() -> None:
    network = make_network(model_of((6,), [6], init="orthogonal", init_gain=3.0), "linear")
    hidden = network.encoder[1].weight
    torch.testing.assert_close(hidden @ hidden.T, 9 * torch.eye(6))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("shape", [(4,), (5, 6), (1, 36, 40)])
def test_one_value_for_each_action(shape: tuple[int, ...], dueling: bool) -> None:
    network = q_network(shape, [16, 8], dueling=dueling)
    values = network(torch.zeros(7, *shape), {})[0]
    assert values.shape == (7, 3)
    assert values.dtype == torch.float32


def test_dueling_adds_the_value_to_advantages_of_mean_zero() -> None:
    network = q_network((4,), [8], dueling=True)
    observation = torch.randn(5, 4)
    features = network.encoder(observation)
    assert network.value is not None
    value, advantage = network.value(features), network.advantage(features)
    expected = value + advantage - advantage.mean(dim=1, keepdim=True)
    assert torch.equal(network(observation, {})[0], expected)
    torch.testing.assert_close(network(observation, {})[0].mean(dim=1), value.squeeze(1))


def test_without_dueling_there_is_no_value_head() -> None:
    names = q_network((4,), [8], dueling=False).state_dict().keys()
    assert not [name for name in names if name.startswith("value")]


def test_images_are_scaled_from_bytes() -> None:
    """A byte image gives what the encoder's layers give for its pixels as 0..1."""
    network = q_network((2, 36, 36), [8], dueling=False)
    image = torch.randint(0, 256, (4, 2, 36, 36), dtype=torch.uint8)
    layers = nn.Sequential(*list(network.encoder)[1:])  # what follows the scaling
    expected = network.advantage(layers(image.float() / 255))
    torch.testing.assert_close(network(image, {})[0], expected)  # channels last: other sums
    assert torch.equal(network.eval()(image, {})[0], expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float16])
def test_numbers_of_any_dtype_that_an_environment_may_give(dtype: torch.dtype) -> None:
    """Only float64 is turned into float32 before it is stored; others come as they are."""
    network = q_network((4,), [8], dueling=False)
    observation = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]])
    assert torch.equal(network(observation.to(dtype), {})[0], network(observation.float(), {})[0])


@pytest.mark.parametrize("shape", [(3, 7, 7), (35, 36, 3), (1, 35, 36)])
def test_images_that_the_convolutions_use_up(shape: tuple[int, ...]) -> None:
    with pytest.raises(PolicyError, match=r"shape \(.*need at least 36 x 36 pixels"):
        encoder_of(model_of(shape, [8]))
