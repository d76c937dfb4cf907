"""Building a policy from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.config.compat import component_class, parse
from hpcdi.config.fields import ComponentConfig
from hpcdi.policy.base import Policy
from hpcdi.utils.registry import POLICY_REGISTRY


def create_policy(
    cfg: Mapping[str, Any] | ComponentConfig,
    enable_field: Sequence[str] | None = None,
    *,
    seed: np.random.SeedSequence | None = None,
) -> Policy:
    """The policy that ``cfg.type`` names, with the modes of `enable_field`.

    With the command mode alone, a built-in policy is its settings: torch is not imported.

    Raises:
        UnknownTypeError: no policy has that type. ConfigError: its settings are wrong.
    """
    is_command = enable_field is not None and list(enable_field) == ["command"]
    settings = POLICY_REGISTRY.settings_apart(cfg["type"] if isinstance(cfg, Mapping) else cfg.type)
    if is_command and settings is not None:
        config = cfg if isinstance(cfg, settings) else parse(settings, cfg, settings.__name__)
        return Policy(config, enable_field, seed=seed)
    policy: Policy = get_policy_cls(cfg)(cfg, enable_field, seed=seed)
    return policy


def get_policy_cls(cfg: Mapping[str, Any] | ComponentConfig) -> Any:
    """The class that ``cfg.type`` names."""
    return component_class(POLICY_REGISTRY, cfg)
