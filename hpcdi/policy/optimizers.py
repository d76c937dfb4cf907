"""Optimizers by their names, and their steps without torch's compiler."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hpcdi.config.policy import LearnConfig
from hpcdi.errors import PolicyError
from hpcdi.utils.log import LOGGER
from hpcdi.utils.registry import named_in_module

_SETTING = "policy.learn.optimizer"
_FUSED = ("Adam", "AdamW", "SGD")  # have a fused form on every device


def make_optimizer(network: nn.Module, settings: LearnConfig) -> torch.optim.Optimizer:
    """The optimizer that ``settings.optimizer`` names, of the network's parameters.

    Raises:
        ConfigError: there is none of this name.
        PolicyError: it does not take these arguments.
    """
    arguments = dict(settings.optimizer)
    path = str(arguments.pop("type", "Adam"))
    if path in _FUSED and "foreach" not in arguments:
        arguments.setdefault("fused", True)
    try:
        make = named_in_module(path if ":" in path else f"torch.optim:{path}", _SETTING)
        optimizer: torch.optim.Optimizer = make(
            network.parameters(), lr=settings.learning_rate, **arguments
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise PolicyError(
            f"{_SETTING}: {path} cannot be made of {arguments or 'no arguments'}: {error}"
        ) from error
    return optimizer


def is_recordable(optimizer: torch.optim.Optimizer) -> bool:
    """True if its steps can be a part of a CUDA graph: with all numbers on the device."""
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and all(
        group["fused"] and not group["differentiable"] for group in optimizer.param_groups
    )


def step(optimizer: torch.optim.Optimizer) -> None:
    """Make a step of an optimizer, as it is where nobody compiles or watches it.

    Torch wraps the step of its own optimizers for its compiler, for profilers and for hooks, and
    imports the compiler at the first one: a second of each learner's start. An optimizer of
    somebody else's, one with hooks or with a step of its own makes the step that it says.
    """
    kind = type(optimizer)
    if (
        not kind.__module__.startswith("torch.optim.")
        or "step" in vars(optimizer)  # a learning rate schedule puts its own there
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or optimizer.defaults.get("differentiable")
    ):
        optimizer.step()
        return
    with torch.no_grad():
        inspect.unwrap(kind.step)(optimizer)


def load_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take the state of each parameter from a state dict; settings stay the optimizer's own.

    Settings are what its class takes as arguments. What else somebody's optimizer keeps beside them
    is loaded, and so is everything where a schedule of torch's changes them. An optimizer that
    cannot go on with the state, which one of another type has left, begins anew, with a warning.

    Args:
        optimizer: of these parameters, in this order.
        state: a ``state_dict``, from any device.

    Raises:
        ValueError: it is of other numbers of parameters.
    """
    if not _fits(optimizer, state):
        LOGGER.warning(
            "%s: the saved state is not one of %s with these settings: the optimizer begins anew",
            _SETTING,
            type(optimizer).__name__,
            extra={"once": "optimizer begins anew"},
        )
        optimizer.state.clear()
        return
    arguments = _arguments_of(optimizer)
    groups = [dict(saved) for saved in state["param_groups"]]
    for own, group in zip(optimizer.param_groups, groups, strict=False):
        if "initial_lr" not in own:
            group.update((name, own[name]) for name in own.keys() & arguments)
    optimizer.load_state_dict({**state, "param_groups": groups})


def _arguments_of(optimizer: torch.optim.Optimizer) -> set[str]:
    """Names of what its class and those above it are made with."""
    parts = map(vars, type(optimizer).__mro__)
    made = [part["__init__"] for part in parts if "__init__" in part]
    return {name for each in made for name in inspect.signature(each).parameters} - {"params"}


def _fits(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> bool:
    """True if the optimizer can go on with a state that was saved."""
    if not state["state"]:
        return True
    for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=False):
        here, there = (group.keys() - {"initial_lr"} for group in (own, saved))
        if here - there and there - here:  # a release of torch may add some, and drops none
            return False
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, needed in zip(numbers, _needed(optimizer), strict=False):
        if number in state["state"] and needed - state["state"][number].keys():
            return False
    return True


def _needed(optimizer: torch.optim.Optimizer) -> list[set[str]]:
    """For each parameter the keys of its state, as a step makes them; none where not known.

    Somebody else's optimizer is not tried: nobody knows what its step does.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return []
    shadow = copy.copy(optimizer)
    shadow.state = defaultdict(dict)
    shadow.param_groups = [
        {**group, "params": [_stand_in(parameter) for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    with contextlib.suppress(RuntimeError, TypeError):  # it takes other gradients, or a function
        step(shadow)
    stand_ins = [each for group in shadow.param_groups for each in group["params"]]
    return [set(shadow.state.get(each, {})) for each in stand_ins]


def _stand_in(parameter: Tensor) -> Tensor:
    """A single number with a gradient, of as many dimensions."""
    made = parameter.new_zeros((1,) * parameter.ndim)
    made.grad = torch.zeros_like(made)
    return made


def _spare_the_compiler() -> None:
    """Let torch's optimizers be made, saved and loaded without an import of its compiler.

    Their methods ask it, once, for a form of themselves that it leaves alone, and keep that by
    this name (`torch._compile`). Here they are left alone by nobody: only networks are compiled.
    """
    for method in vars(torch.optim.Optimizer).values():
        bare = getattr(method, "__wrapped__", None)
        if bare is not None:
            vars(bare).setdefault("__dynamo_disable", bare)


_spare_the_compiler()
