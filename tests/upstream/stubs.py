"""Stands in for what DI-engine imports and a serial run never calls: servers, plots, trackers."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any, ClassVar

NEEDLESS = frozenset(
    (
        "bitmath",
        "chardet",
        "deprecation",
        "dill",
        "enum_tools",
        "flask",
        "graphviz",
        "matplotlib",
        "mpire",
        "pynng",
        "pytimeparse",
        "redis",
        "requests",
        "responses",
        "six",
        "tqdm",
        "urlobject",
        "wandb",
        "yapf",
    )
)


class Stub(ModuleType):
    """A module with any name: classes where it begins with a capital, else decorators."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            base = Exception if name.endswith(("Error", "Exception")) else object
            stub: Any = type(name, (base,), {})
        else:
            stub = _decorator
        setattr(self, name, stub)
        return stub


def _decorator(*args: Any, **_kwargs: Any) -> Any:
    return args[0] if len(args) == 1 and callable(args[0]) else _decorator


_decorator.document_enum = _decorator  # type: ignore[attr-defined]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs for modules that are not installed."""

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in NEEDLESS:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Let DI-engine be imported; its gym names types that numpy 2 has no more.

    Configurations are saved as they are, not laid out by yapf.
    """
    import numpy as np

    if not hasattr(np, "bool8"):
        np.bool8 = np.bool_  # type: ignore[attr-defined]
    sys.meta_path.append(Finder())
    importlib.import_module("yapf.yapflib.yapf_api").FormatCode = lambda text, **_: (text, False)
