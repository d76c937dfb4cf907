"""Finds DI-engine's classes, and completes their settings by their defaults.

A class is named by its type in DI-engine's registries, or as ``module:Class``; then DI-engine need
not be there, if the class does without.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdi.config.compat import ConfigDict
from hpcdi.errors import ConfigError, Problem

TYPE_IS_REQUIRED = "is required: DI-engine's type, or module:Class"
_REGISTRIES = {"policy": "POLICY_REGISTRY", "env": "ENV_REGISTRY"}
_SECTIONS: dict[str, Any] = {
    "model": {},
    "learn": {"learner": {}},
    "collect": {"collector": {}},
    "eval": {"evaluator": {}},
    "other": {"replay_buffer": {}},
}
"""Sections that policies rely on."""


def class_of(kind: str, settings: Mapping[str, Any]) -> Any:
    """The class that ``settings["type"]`` names.

    Of a policy, the class with a command mode where there is one.

    Args:
        kind: "policy" or "env".
        settings: with ``type``, and the modules to import first in ``import_names``.

    Raises:
        ConfigError: there is no such class, or a module is missing.
    """
    path, name = f"{kind}.ding", settings.get("type")
    if not isinstance(name, str) or not name:
        raise ConfigError([Problem(f"{path}.type", TYPE_IS_REQUIRED)])
    named = settings.get("import_names") or ()
    for module in [named] if isinstance(named, str) else named:
        _imported(module, f"{path}.import_names")
    module, _, attribute = name.rpartition(":")
    if module:
        cls = getattr(_imported(module, f"{path}.type"), attribute, None)
    else:
        if kind == "policy":
            _imported("ding.policy", f"{path}.type")
        registry = getattr(_imported("ding.utils", f"{path}.type"), _REGISTRIES[kind])
        known = (f"{name}_command", name) if kind == "policy" else (name,)
        cls = next((registry.get(one) for one in known if one in registry), None)
    if cls is None:
        message = f"DI-engine has no {kind} {name!r}; import_names must name the module of your own"
        raise ConfigError([Problem(f"{path}.type", message)])
    return cls


def policy_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's settings over the defaults of its class, as DI-engine's entries complete them.

    Raises:
        ConfigError: see `class_of`.
    """
    policy_cls = class_of("policy", settings)
    defaults = policy_cls.default_config() if hasattr(policy_cls, "default_config") else {}
    merged = merge(merge(_SECTIONS, defaults), settings)
    if "unroll_len" in merged:
        merged["collect"]["unroll_len"] = merged["unroll_len"]
    return merged


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of `below` with the values of `above` over it."""
    merged: dict[str, Any] = {key: copy.deepcopy(value) for key, value in below.items()}
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def attribute_dict(settings: Mapping[str, Any]) -> Any:
    """Settings as DI-engine's classes take them: an EasyDict where there is one."""
    try:
        return importlib.import_module("easydict").EasyDict(plain(settings))
    except ModuleNotFoundError:
        return ConfigDict(plain(settings))


def plain(tree: Any) -> Any:
    """Nested mappings as dicts, and sequences as lists."""
    if isinstance(tree, Mapping):
        return {key: plain(value) for key, value in tree.items()}
    return [plain(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _imported(module: str, path: str) -> Any:
    _name_old_types()
    try:
        return importlib.import_module(module)
    except ImportError as error:  # of a module that is missing, or of another version
        message = f"{module} cannot be imported: {error}"
        if str(error.name).partition(".")[0] in ("ding", "dizoo"):
            message += "; it needs DI-engine: pip install DI-engine"
        raise ConfigError([Problem(path, message)]) from error


def _name_old_types() -> None:
    """Let gym 0.25 find the name of a type that numpy 2 has dropped."""
    if not hasattr(np, "bool8"):
        setattr(np, "bool8", np.bool_)  # noqa: B010 (numpy 2 has no such name)
