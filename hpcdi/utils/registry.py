"""Registries: the `type` of a configuration -> the class that implements it.

A class registers its type names with a decorator::

    @POLICY_REGISTRY.register("dqn")
    class DQNPolicy: ...

A registry imports the package of the built-in types when it is first asked for one. Types of your
own are found through ``import_names``, which names their modules beside the ``type``.
"""

from __future__ import annotations

import difflib
import importlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from hpcdi.errors import ConfigError, Problem, UnknownTypeError

T = TypeVar("T", bound=type)


class Registry:
    """Type names -> classes, for one kind of component.

    Args:
        kind: name of the kind in messages.
        home: package whose import registers the built-in types; imported when first needed.
    """

    def __init__(self, kind: str, home: str) -> None:
        self.kind = kind
        self._home = home
        self._classes: dict[str, type] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Decorator that registers a class; re-importing the same class replaces it.

        Raises:
            ValueError: another class has one of these names.
        """

        def add(cls: T) -> T:
            for name in names:
                known = self._classes.get(name)
                if known is not None and _identity(known) != _identity(cls):
                    raise ValueError(
                        f"{self.kind} type {name!r} is already {known.__module__}.{known.__name__}"
                    )
                self._classes[name] = cls
            return cls

        return add

    def get(self, name: str) -> Any:
        """Returns the class of a type name.

        Raises:
            UnknownTypeError: no class is registered as `name`; suggests the nearest name.
        """
        if isinstance(name, str):
            if name not in self._classes:
                importlib.import_module(self._home)
            if name in self._classes:
                return self._classes[name]
        raise UnknownTypeError(self.explain(name))

    def explain(self, name: object) -> str:
        """Returns the message for an unknown `name`, with the nearest known one."""
        near = difflib.get_close_matches(str(name), self._classes, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(sorted(self._classes)) or "none"
        return (
            f"no {self.kind} of type {name!r} is registered{guess} (known: {known}; "
            "a type of your own needs its module in import_names)"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)


def _identity(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


POLICY_REGISTRY = Registry("policy", "hpcdi.policy.create")
ENV_REGISTRY = Registry("environment", "hpcdi.env.create")
ENV_MANAGER_REGISTRY = Registry("environment manager", "hpcdi.env.create")
BUFFER_REGISTRY = Registry("replay buffer", "hpcdi.worker")
LEARNER_REGISTRY = Registry("learner", "hpcdi.worker")
COMM_LEARNER_REGISTRY = Registry("comm learner", "hpcdi.worker")
HOOK_REGISTRY = Registry("learner hook", "hpcdi.worker")
PARALLEL_COLLECTOR_REGISTRY = Registry(
    "parallel collector", "hpcdi.roles.collector.marine_parallel_collector"
)
SERIAL_COLLECTOR_REGISTRY = Registry("serial collector", "hpcdi.worker")
SERIAL_EVALUATOR_REGISTRY = Registry("serial evaluator", "hpcdi.worker")
COMM_COLLECTOR_REGISTRY = Registry("comm collector", "hpcdi.roles.collector.mpi_fs_collector")
PARALLEL_COMMANDER_REGISTRY = Registry("parallel commander", "hpcdi.worker.coordinator.commanders")


def import_module(names: str | Iterable[object]) -> None:
    """Import modules for the classes that they register.

    Raises:
        ConfigError: modules, or modules that they import, are not installed; names all of them.
    """
    problems = []
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            problems.append(Problem("import_names", f"{name!r} is not the name of a module"))
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            problems.append(Problem("import_names", missing_module(name, error)))
    if problems:
        raise ConfigError(problems)


def missing_module(wanted: str, error: ModuleNotFoundError) -> str:
    """Returns the message for a module that cannot be imported: which one, and what to do."""
    missing = error.name or wanted
    needed = "" if missing == wanted else f" (needed by {wanted!r})"
    return (
        f"there is no module {missing!r}{needed}; install it into this environment, "
        "or put its folder on PYTHONPATH"
    )


def lazy_module(name: str) -> Any:
    """Returns a stand-in for a module, which is imported when an attribute is first used."""
    return _LazyModule(name)


class _LazyModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value
