"""The policies of a run. `hpcdi.worker` is imported only where one is of dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.config.fields import ComponentConfig
from hpcdi.policy.create import create_policy
from hpcdi.roles.collector.loop import attribute_of


def columnar_policy(
    cfg: Mapping[str, Any] | ComponentConfig,
    enable_field: Sequence[str] | None = None,
    *,
    seed: np.random.SeedSequence | None = None,
    gets_weights: bool = False,
) -> Any:
    """Returns the policy that ``cfg.type`` names; one of dicts as one of columns.

    See `create_policy`.
    """
    policy = create_policy(cfg, enable_field, seed=seed, gets_weights=gets_weights)
    if attribute_of(policy, "columnar", False):
        return policy
    from hpcdi.worker.dict_policy import PolicyOfDicts

    return PolicyOfDicts(policy)


def why_not_loaded(mode: Any, parameters: Mapping[str, Any]) -> str:
    """Loads parameters into a policy's mode; returns why they do not fit, else "".

    Args:
        mode: of a policy.
        parameters: name -> tensor.
    """
    difference = next(_differences(parameters, mode.state_dict().get("model", {})), "")
    if not difference:
        try:
            mode.load_state_dict({"model": parameters})
        except (RuntimeError, KeyError, ValueError) as error:  # of a policy that shows none of them
            difference = " ".join(str(error).split())
    return difference


def _differences(parameters: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    """Yields the differences of parameters; none if the policy does not list its own."""
    for name, tensor in expected.items():
        if name not in parameters:
            yield f"it lacks the parameter {name} {tuple(tensor.shape)}"
        elif parameters[name].shape != tensor.shape:
            yield (
                f"the parameter {name} is {tuple(parameters[name].shape)} in the file and "
                f"{tuple(tensor.shape)} by the configuration"
            )
    if expected:
        for name in parameters.keys() - expected.keys():
            yield f"the configuration has no parameter {name} {tuple(parameters[name].shape)}"
