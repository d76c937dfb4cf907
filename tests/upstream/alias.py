"""A plugin of pytest: `ding.worker`, and all below it but its tests, is `hpcdi.worker`."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import stubs

WORKER = "ding.worker"


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds hpcdi's modules by DI-engine's names, and DI-engine's tests in its own folders.

    Args:
        package: folder of DI-engine.
    """

    def __init__(self, package: Path) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != WORKER and not fullname.startswith(f"{WORKER}."):
            return None
        parts = fullname.split(".")
        if "tests" in parts:
            folder = self._package.joinpath(*parts[1:-1])
            return importlib.machinery.PathFinder.find_spec(fullname, [str(folder)])
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.name.replace("ding", "hpcdi", 1))
        spec.loader_state = vars(module)["__spec__"]
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = vars(module)["__spec__"].loader_state
        module.__name__ = str(module.__spec__ and module.__spec__.name)


def install() -> None:
    """Let DI-engine be imported, with `hpcdi.worker` in the place of its own."""
    stubs.install()
    spec = importlib.util.find_spec("ding")
    assert spec is not None
    assert spec.origin is not None
    sys.meta_path.insert(0, Finder(Path(spec.origin).parent))


install()
