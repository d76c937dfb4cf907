"""Steps of optimizers: those that torch itself would make, and whatever somebody hangs on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hpcdi.config.policy import LearnConfig
from hpcdi.errors import ConfigError
from hpcdi.policy import optimizers


def learn(kind: dict[str, Any], *, as_torch: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    optimizer = optimizers.make_optimizer(network, LearnConfig(learning_rate=0.1, optimizer=kind))
    for _ in range(5):
        optimizer.zero_grad()
        network(torch.rand(4, 3)).square().sum().backward()
        optimizer.step() if as_torch else optimizers.step(optimizer)
    return [p.detach().clone() for p in network.parameters()]


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"type": "Adam", "foreach": True},
        {"type": "AdamW", "weight_decay": 0.1},
        {"type": "SGD", "momentum": 0.9},
        {"type": "RMSprop"},
        {"type": "Adagrad"},
    ],
    ids=str,
)
def test_a_step_is_torchs_to_the_bit(kind: dict[str, Any]) -> None:
    ours, torchs = learn(kind, as_torch=False), learn(kind, as_torch=True)
    assert all(map(torch.equal, ours, torchs))


def test_hooks_and_schedules_are_heeded() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("hook"))
    optimizers.step(optimizer)
    assert (calls, parameter.item()) == (["hook"], 0.5)
    scheduled = torch.optim.SGD([parameter], lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(scheduled, 0.1)
    optimizers.step(scheduled)
    schedule.step()  # would warn, an error here, had it not seen a step of the optimizer
    optimizers.step(scheduled)
    assert parameter.item() == pytest.approx(-0.05)


class Own(torch.optim.SGD):
    """Somebody's optimizer, whose step is what it says."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["params"][0].data.fill_(7.0)


def test_an_optimizer_of_somebody_else_s_steps_as_it_says() -> None:
    network = torch.nn.Linear(1, 1)
    kind = LearnConfig(optimizer={"type": f"{__name__}:Own"})
    optimizers.step(optimizers.make_optimizer(network, kind))
    assert network.weight.item() == 7.0


def test_one_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'Adamm'; did you mean 'torch\.optim:Adam'\?"):
        optimizers.make_optimizer(torch.nn.Linear(1, 1), LearnConfig(optimizer={"type": "Adamm"}))
