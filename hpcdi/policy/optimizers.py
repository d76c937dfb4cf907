"""Optimizers by their names, and their steps without torch's compiler."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from hpcdi.config.policy import LearnConfig
from hpcdi.errors import PolicyError
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
    except (TypeError, ValueError) as error:
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
