"""Registries: the `type` of a configuration -> the class that implements it.

A class registers itself where it is defined, with its type names as a decorator::

    @POLICY_REGISTRY.register("dqn")
    class DQNPolicy: ...

Built-in types are registered when their package is imported, which a registry does when it is first
asked; yours by naming your module in ``import_names`` beside the ``type``.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hpcdi.errors import UnknownTypeError

T = TypeVar("T", bound=type)


class Registry:
    """Type names -> classes, for one kind of component.

    Args:
        kind: a word for messages.
        home: the package whose import registers the built-in types; imported when first needed.
    """

    def __init__(self, kind: str, home: str) -> None:
        self.kind = kind
        self._home = home
        self._classes: dict[str, type] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Give a class its type names; naming two classes alike is an error.

        Re-importing the same class (same module and name) replaces it.
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
        """Class of a type name.

        Raises:
            UnknownTypeError: no class is registered under `name`; says which is like it.
        """
        if isinstance(name, str):
            if name not in self._classes:
                importlib.import_module(self._home)
            if name in self._classes:
                return self._classes[name]
        raise UnknownTypeError(self.explain(name))

    def explain(self, name: object) -> str:
        """Why `name` is not known, with the nearest known name."""
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


_WORKERS = "hpcdi.worker"
POLICY_REGISTRY = Registry("policy", "hpcdi.policy.create")
ENV_REGISTRY = Registry("environment", "hpcdi.env.create")
ENV_MANAGER_REGISTRY = Registry("environment manager", "hpcdi.env.create")
BUFFER_REGISTRY = Registry("replay buffer", _WORKERS)
LEARNER_REGISTRY = Registry("learner", _WORKERS)
COMM_LEARNER_REGISTRY = Registry("comm learner", _WORKERS)
PARALLEL_COLLECTOR_REGISTRY = Registry("parallel collector", _WORKERS)
SERIAL_COLLECTOR_REGISTRY = Registry("serial collector", _WORKERS)
SERIAL_EVALUATOR_REGISTRY = Registry("serial evaluator", _WORKERS)
COMM_COLLECTOR_REGISTRY = Registry("comm collector", _WORKERS)
PARALLEL_COMMANDER_REGISTRY = Registry("parallel commander", _WORKERS)
