"""Steps of optimizers: those that torch itself would make, and whatever somebody hangs on them."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch

from hpcdi.config.policy import LearnConfig
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


# ------------------------------------------------------------------------------------ saved states


def made(kind: dict[str, Any], rate: float = 0.1) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    learn = LearnConfig(learning_rate=rate, optimizer=kind)
    return network, optimizers.make_optimizer(network, learn)


def make_step(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    network(torch.ones(4, 3)).square().sum().backward()
    optimizers.step(optimizer)


def saved_of(kind: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, Any]]:
    network, optimizer = made(kind)
    make_step(network, optimizer)
    return network, copy.deepcopy(optimizer.state_dict())


def test_settings_of_an_optimizer_that_goes_on_are_those_that_it_is_given_now() -> None:
    """All of them, also those that are left out now; of another type with a state of that kind."""
    _, state = saved_of({"eps": 1e-3})
    network, optimizer = made({"type": "AdamW", "weight_decay": 0.5, "betas": [0.5, 0.9]}, 0.2)
    before = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    optimizers.load_state(optimizer, state)
    assert {k: v for k, v in optimizer.param_groups[0].items() if k != "params"} == before
    assert before["eps"] == 1e-8
    for number, parameter in enumerate(network.parameters()):
        for name, value in state["state"][number].items():
            assert torch.equal(optimizer.state[parameter][name], value)
    make_step(network, optimizer)


@pytest.mark.parametrize(
    "kind",
    [{"type": "SGD"}, {"type": "SGD", "momentum": 0.9}, {"type": "RMSprop"}, {"type": "Adamax"},
     {"amsgrad": True}],
    ids=str,
)  # fmt: skip
def test_an_optimizer_that_cannot_go_on_with_a_state_begins_anew(
    kind: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    weights, state = saved_of({})
    (network, optimizer), (other, fresh) = made(kind), made(kind)
    for each in (network, other):
        each.load_state_dict(weights.state_dict())
    make_step(other, fresh)
    with caplog.at_level(logging.WARNING):
        optimizers.load_state(optimizer, state)
    assert "begins anew" in caplog.text
    make_step(network, optimizer)
    assert all(map(torch.equal, network.parameters(), other.parameters()))


@pytest.mark.parametrize(
    "kind",
    [{}, {"amsgrad": True}, {"type": "SGD", "momentum": 0.9}, {"type": "RMSprop"},
     {"type": "Adafactor"}],
    ids=str,
)  # fmt: skip
def test_an_optimizer_goes_on_to_the_bit(
    kind: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    one, optimizer = made(kind)
    make_step(one, optimizer)
    other, again = made(kind)
    other.load_state_dict(one.state_dict())
    optimizers.load_state(again, copy.deepcopy(optimizer.state_dict()))
    assert not caplog.records
    for each in ((one, optimizer), (other, again)):
        make_step(*each)
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


class Adapting(torch.optim.SGD):
    """Somebody's optimizer, which keeps what it has found beside its settings."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.param_groups[0]["found"] = 1.0


def test_what_an_optimizer_keeps_beside_its_settings_is_loaded() -> None:
    kind = {"type": f"{__name__}:Adapting"}
    _, optimizer = made(kind)
    optimizer.param_groups[0]["found"] = 3.0
    _, again = made({**kind, "weight_decay": 0.5}, 0.2)
    optimizers.load_state(again, optimizer.state_dict())
    group = again.param_groups[0]
    assert (group["found"], group["weight_decay"], group["lr"]) == (3.0, 0.5, 0.2)


def test_a_schedule_of_torchs_goes_on_where_it_was() -> None:
    (_, optimizer), (_, again) = made({"type": "SGD"}), made({"type": "SGD"})
    for each in (optimizer, again):
        torch.optim.lr_scheduler.ExponentialLR(each, 0.1)
    optimizer.param_groups[0]["lr"] = 0.01
    optimizers.load_state(again, optimizer.state_dict())
    assert again.param_groups[0]["lr"] == 0.01


def test_a_state_of_other_parameters_is_refused() -> None:
    _, state = saved_of({})
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], fused=True)
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizers.load_state(optimizer, state)
