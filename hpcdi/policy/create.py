"""Building a policy from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.config.compat import component_class, parse
from hpcdi.config.fields import ComponentConfig
from hpcdi.policy.acting.network import is_dense
from hpcdi.policy.base import Policy
from hpcdi.utils.registry import POLICY_REGISTRY

_ACTS = {"collect", "eval"}


def create_policy(
    cfg: Mapping[str, Any] | ComponentConfig,
    enable_field: Sequence[str] | None = None,
    *,
    seed: np.random.SeedSequence | None = None,
    gets_weights: bool = False,
) -> Policy:
    """The policy that ``cfg.type`` names, with the modes of `enable_field`.

    With the command mode alone, a built-in policy is its settings: torch is not imported.

    Args:
        cfg: its settings.
        enable_field: the modes; None: all.
        seed: of its random numbers.
        gets_weights: it acts only after weights have been loaded: where it collects and evaluates
            alone, and its network has layers of numbers, it needs no torch (`policy.acting`).

    Raises:
        UnknownTypeError: no policy has that type. ConfigError: its settings are wrong.
    """
    kind = cfg["type"] if isinstance(cfg, Mapping) else cfg.type
    settings = POLICY_REGISTRY.settings_apart(kind)
    modes = set(Policy.MODES if enable_field is None else enable_field)
    acting = POLICY_REGISTRY.core(kind) if gets_weights and modes <= _ACTS else None
    is_command = modes == {"command"}
    if settings is not None and (is_command or acting is not None):
        config = cfg if isinstance(cfg, settings) else parse(settings, cfg, settings.__name__)
        if is_command:
            return Policy(config, enable_field, seed=seed)
        if acting is not None and is_dense(config):
            return acting(config, enable_field, seed=seed)  # type: ignore[no-any-return]
    policy_cls = get_policy_cls(cfg)
    of_several = (
        {"gets_weights": gets_weights} if getattr(policy_cls, "HOLDS_OTHERS", False) else {}
    )
    policy: Policy = policy_cls(cfg, enable_field, seed=seed, **of_several)
    return policy


def get_policy_cls(cfg: Mapping[str, Any] | ComponentConfig) -> Any:
    """The class that ``cfg.type`` names."""
    return component_class(POLICY_REGISTRY, cfg)
