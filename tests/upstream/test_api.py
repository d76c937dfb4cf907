"""Every public name that DI-engine's `ding.worker` defines is in `hpcdi.worker`, at its path.

Functions and methods take the same parameters by position, and need no others.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from beside import answer_of

pytestmark = [
    pytest.mark.ding,
    pytest.mark.skipif(
        importlib.util.find_spec("dizoo") is None, reason="DI-engine is not here: make ding"
    ),
]
_SERVER = "there is no server of workers: hpcdi scale, or the queue, adds and removes ranks"
LEFT_OUT = {
    "collector.base_parallel_collector:TickMonitor": "the rank's meter has a collector's times",
    "collector.base_serial_evaluator:ISerialEvaluator.eval": "a metric's takes no n_episode",
    "collector.comm.base_comm_collector:BaseCommCollector.send_stepdata": "path, as its only "
    "implementation has it",
    "coordinator.comm_coordinator:CommCoordinator": "the link has its place, and no threads",
    "coordinator.operator_server:OperatorServer": _SERVER,
    "replay_buffer.utils:PeriodicThruputMonitor": "a part of a buffer; reports go to its tb_logger",
    "replay_buffer.utils:SampledDataAttrMonitor": "the same",
    "replay_buffer.utils:ThruputController": "counts are told to it, by note",
}
"""Name, or class, that differs; and why."""


def modules() -> Iterator[ModuleType]:
    """Modules below `ding.worker`."""
    import stubs

    stubs.install()
    package = importlib.import_module("ding.worker")
    for module in pkgutil.walk_packages(package.__path__, "ding.worker."):
        if ".tests" not in module.name:
            yield importlib.import_module(module.name)


def own(owner: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Names that an object of a module or class of theirs defines itself; its constructor, too."""
    for key, value in vars(owner).items():
        if (not key.startswith("_") or key == "__init__") and getattr(
            value, "__module__", name
        ) == name:
            yield key, value


def takes(function: Any) -> tuple[list[str], list[str]]:
    """Names of parameters by position, and of those that must be given."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return places, [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def differences(path: str, theirs: Any, ours: Any) -> Iterator[str]:
    """Names of what is missing or takes other parameters, with the reason."""
    if inspect.isclass(theirs):
        for name, member in own(theirs, theirs.__module__):
            declared = any(name in inspect.get_annotations(base) for base in ours.__mro__)
            if not declared and not hasattr(ours, name):
                yield f"{path}.{name}: missing"
            elif inspect.isfunction(member) and not declared:
                yield from differences(f"{path}.{name}", member, getattr(ours, name))
    elif inspect.isfunction(theirs) and callable(ours):
        places, required = takes(theirs)
        our_places, our_required = takes(ours)
        if our_places[: len(places)] != places:
            yield f"{path}: takes {our_places}, should begin with {places}"
        is_open = any(
            p.kind is p.VAR_POSITIONAL for p in inspect.signature(theirs).parameters.values()
        )
        if not is_open and set(our_required) - {*required, *places}:
            yield f"{path}: needs {our_required}"


def compared() -> tuple[int, list[str]]:
    """Names that were compared, and their differences."""
    unlike, count = [], 0
    for module in modules():
        path = module.__name__.removeprefix("ding.worker.")
        ours = importlib.import_module(f"hpcdi.worker.{path}")
        numbers = [key for key, one in vars(module).items() if isinstance(one, int | float)]
        unlike += [f"{path}:{key}: missing" for key in numbers if not hasattr(ours, key)]
        for name, theirs in own(module, module.__name__):
            if getattr(theirs, "__module__", "") != module.__name__:
                continue
            count += 1
            one, place = getattr(ours, name, None), f"{path}:{name}"
            unlike += [f"{place}: missing"] if one is None else differences(place, theirs, one)
    return count, unlike


def test_names_and_parameters() -> None:
    count, unlike = answer_of(__file__)
    known = tuple(LEFT_OUT)
    wrong = [line for line in unlike if not line.startswith(known)]
    assert not wrong, "\n".join(wrong)
    assert [name for name in known if not any(line.startswith(name) for line in unlike)] == []
    assert count > 70


if __name__ == "__main__":
    print(json.dumps(compared()))
