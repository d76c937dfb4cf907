"""Building a policy from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.config.compat import component_class
from hpcdi.config.fields import ComponentConfig
from hpcdi.policy import c51 as _c51  # noqa: F401  (registers a built-in policy)
from hpcdi.policy import dqn as _dqn  # noqa: F401  (registers a built-in policy)
from hpcdi.policy import impala as _impala  # noqa: F401  (registers a built-in policy)
from hpcdi.policy import ppo as _ppo  # noqa: F401  (registers a built-in policy)
from hpcdi.policy import qrdqn as _qrdqn  # noqa: F401  (registers a built-in policy)
from hpcdi.policy import r2d2 as _r2d2  # noqa: F401  (registers a built-in policy)
from hpcdi.policy import sac as _sac  # noqa: F401  (registers a built-in policy)
from hpcdi.policy import td3 as _td3  # noqa: F401  (registers a built-in policy)
from hpcdi.policy.base import Policy
from hpcdi.utils.registry import POLICY_REGISTRY


def create_policy(
    cfg: Mapping[str, Any] | ComponentConfig,
    enable_field: Sequence[str] | None = None,
    *,
    seed: np.random.SeedSequence | None = None,
) -> Policy:
    """The policy that ``cfg.type`` names, with the modes of `enable_field`.

    Raises:
        UnknownTypeError: no policy has that type. ConfigError: its settings are wrong.
    """
    policy: Policy = get_policy_cls(cfg)(cfg, enable_field, seed=seed)
    return policy


def get_policy_cls(cfg: Mapping[str, Any] | ComponentConfig) -> Any:
    """The class that ``cfg.type`` names."""
    return component_class(POLICY_REGISTRY, cfg)
