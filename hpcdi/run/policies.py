"""The policies of a run. `hpcdi.worker` is imported only where one is of dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
