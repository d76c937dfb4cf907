"""Classes of DI-engine's callers: found by type, in its registries too, and known to its code."""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Mapping
from typing import Any

from hpcdi.config.compat import component_class
from hpcdi.errors import ConfigError, UnknownTypeError
from hpcdi.utils.registry import Registry
from hpcdi.worker.errors import NoModuleError


class KnownClass(ABCMeta):
    """Makes a class equal to DI-engine's of its name.

    A program that hands classes to DI-engine's own `compile_config` needs that: it fills in an
    evaluator's ``n_episode`` and ``stop_value`` where the class is one of those that it knows.
    """

    def __eq__(cls, other: object) -> bool:
        if not isinstance(other, type) or cls is other:
            return cls is other
        return other.__module__.startswith("ding.worker.") and other.__name__ == cls.__name__

    __hash__ = ABCMeta.__hash__


_DI_ENGINES = {
    "comm collector": "COMM_COLLECTOR_REGISTRY",
    "comm learner": "COMM_LEARNER_REGISTRY",
    "learner": "LEARNER_REGISTRY",
    "parallel collector": "PARALLEL_COLLECTOR_REGISTRY",
    "parallel commander": "COMMANDER_REGISTRY",
    "replay buffer": "BUFFER_REGISTRY",
    "serial collector": "SERIAL_COLLECTOR_REGISTRY",
    "serial evaluator": "SERIAL_EVALUATOR_REGISTRY",
}
"""Kind of component -> its registry in `ding.utils`."""


def class_of(registry: Registry, cfg: Any, default: str = "") -> Any:
    """Imports the modules that settings name, and returns the class of their type.

    A class that a user has registered in DI-engine's registry is found where DI-engine has been
    imported.

    Args:
        registry: of this kind of component.
        cfg: settings, a mapping or frozen: ``type``, or ``<kind>_type`` as DI-engine's documents
            call it; ``import_names``, or ``import_module``.
        default: type of settings that name none.

    Raises:
        UnknownTypeError: no class has that type (it is a KeyError).
        NoModuleError: a module is missing (it is a ModuleNotFoundError).
    """
    if isinstance(cfg, Mapping):
        named = cfg.get("type", cfg.get(f"{registry.kind.replace(' ', '_')}_type", default))
        modules = cfg.get("import_names", cfg.get("import_module", ()))
        cfg = {"type": named, "import_names": modules}
    try:
        return component_class(registry, cfg)
    except ConfigError as error:
        raise NoModuleError(error.problems, error.source) from error
    except UnknownTypeError:
        theirs = getattr(sys.modules.get("ding.utils"), _DI_ENGINES[registry.kind], {})
        name = cfg["type"] if isinstance(cfg, Mapping) else cfg.type
        if name not in theirs:
            raise
        return theirs[name]
