"""Checking an experiment, and handing it over: a mapping of settings becomes one, and back."""

from __future__ import annotations

import dataclasses
import json
import sys
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from hpcdi.config.fields import Parser, in_order, restore, to_mapping, without
from hpcdi.config.schema import ExperimentConfig, check
from hpcdi.dataclass import dataclass
from hpcdi.errors import ConfigError, Problem

_MOST_PLACES = 3
"""A key that occurs in more places is no hint."""


@dataclass(frozen=True)
class Compiled:
    """A checked experiment, and notes on keys that were ignored."""

    config: ExperimentConfig
    notes: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Returns the whole experiment as nested dicts, defaults included."""
        mapping: dict[str, Any] = to_mapping(self.config)
        return mapping


def compile_config(mapping: Mapping[str, Any], source: str = "the configuration") -> Compiled:
    """Check a whole experiment.

    Raises:
        ConfigError: holds every problem, each with its path.
    """
    system = mapping.get("system")
    _make_importable(system.get("import_path") if isinstance(system, Mapping) else None)
    parser = Parser()
    config = parser.parse(ExperimentConfig, mapping)
    # rules between components would judge defaults that stand in for wrong values
    problems = parser.problems or check(config)
    if problems:
        raise ConfigError(_with_places(problems), source)
    return Compiled(config, tuple(parser.notes))


def restore_config(mapping: Mapping[str, Any]) -> ExperimentConfig:
    """Returns the experiment that `Compiled.to_mapping` has made a mapping of, without checks."""
    _make_importable(mapping["system"]["import_path"])
    return restore(ExperimentConfig, mapping)


def show_notes(notes: Iterable[str]) -> None:
    """Write notes on a configuration to standard error."""
    for note in notes:
        sys.stderr.write(f"hpcdi: note: {note}\n")


def _make_importable(folders: object) -> None:
    """Let modules of these folders be imported, after all that are installed."""
    for folder in folders if isinstance(folders, list | tuple) else ():
        if isinstance(folder, str) and folder not in sys.path:
            sys.path.append(folder)


def _with_places(problems: Iterable[Problem]) -> list[Problem]:
    """Add to unknown keys where in the default experiment the same key exists."""
    places: dict[str, list[str]] = {}
    for path in _paths(to_mapping(ExperimentConfig())):
        places.setdefault(path.rpartition(".")[2], []).append(path)
    result = []
    for problem in problems:
        elsewhere = [
            p for p in places.get(problem.path.rpartition(".")[2], []) if p != problem.path
        ]
        # an equal key elsewhere is a better guess than a similar key here, unless it is common
        if problem.is_unknown_key and 0 < len(elsewhere) <= _MOST_PLACES:
            where = " or ".join(elsewhere)
            problem = dataclasses.replace(problem, message=f"unknown key; did you mean {where}?")
        result.append(problem)
    return result


def _paths(tree: Any, prefix: str = "") -> Iterable[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{key}.")


_UNTIL_WHEN = (
    *(f"policy.other.commander.{name}" for name in ("max_env_step", "max_train_iter")),
    *("env.stop_value", "slurm", "fault"),
    *(f"system.{name}" for name in ("auto_resume", "import_path", "loggers", "keep_snapshots")),
    "system.max_restarts_without_progress",
)
"""Settings that say how long and where a run works; what it does follows from the others."""


FREE_OF_ENV = (
    "import_names",
    "collector_env_num",
    "collector_episode_num",
    "evaluator_env_num",
    "evaluator_episode_num",
    "stop_value",
    "manager",
    "vectorization",
    "autoreset",
)
"""Settings of `env` that say nothing of its observations, actions and rewards."""


def repeats_as(config: ExperimentConfig, ranks: int) -> str:
    """Returns what a deterministic run follows from, as a checksum; "": it is not deterministic.

    Args:
        config: the experiment.
        ranks: of the run; 1: in one process.
    """
    if not config.system.deterministic:
        return ""
    settings = without(to_mapping(config), _UNTIL_WHEN)
    return checksum({**settings, "ranks": ranks})


def checksum(settings: Any) -> str:
    """Returns eight hexadecimal digits of plain settings; of mappings the order says nothing."""
    text = json.dumps(in_order(settings), default=str)
    return f"{zlib.crc32(text.encode()):08x}"
