"""Reading an experiment: YAML, overrides, what is wrong. Only this file knows OmegaConf."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcdi.config.check import check
from hpcdi.config.fields import to_mapping
from hpcdi.config.parse import Parser
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import ConfigError, Problem

_MOST_PLACES = 3


@dataclass(frozen=True)
class Compiled:
    """A checked experiment and what its reader should know about it."""

    config: ExperimentConfig
    notes: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """The whole experiment, defaults included, as plain data."""
        mapping: dict[str, Any] = to_mapping(self.config)
        return mapping


def load(path: str | Path, overrides: Sequence[str] = ()) -> Compiled:
    """Compile the experiment of a YAML file with ``key=value`` overrides.

    Raises:
        ConfigError: the file is missing or not YAML, or anything in it is wrong; all at once.
    """
    mapping = read_mapping(path, overrides)
    return compile_config(mapping, source=str(path))


def read_mapping(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The YAML file's mapping, overrides applied and ``${...}`` resolved, not checked yet."""
    source = str(path)
    if not Path(path).is_file():
        raise ConfigError(
            [Problem("", f"there is no file {source!r}{_offer_configs(path)}")], source
        )
    try:
        tree: Any = OmegaConf.load(path)
        if not OmegaConf.is_dict(tree):
            raise ConfigError([Problem("", "the file must hold a mapping of settings")], source)
        tree = OmegaConf.merge(tree, OmegaConf.from_dotlist(_checked(overrides)))
        resolved: Any = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except (yaml.YAMLError, OmegaConfBaseException, OSError, TypeError) as error:
        raise ConfigError([Problem("", " ".join(str(error).split()))], source) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem("", f"the file is not text: {error}")], source) from error
    return {str(key): value for key, value in resolved.items()}


def compile_config(mapping: Mapping[str, Any], source: str = "the configuration") -> Compiled:
    """Check a whole experiment.

    Raises:
        ConfigError: with every problem, each at its path.
    """
    parser = Parser()
    config = parser.parse(ExperimentConfig, mapping)
    problems = list(parser.problems)
    if not problems:
        problems += check(config)
    if problems:
        raise ConfigError(with_places(problems), source)
    return Compiled(config, tuple(parser.notes))


def dump(mapping: Mapping[str, Any]) -> str:
    """YAML text of plain data, keys in their order."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(mapping)))


def with_places(problems: Iterable[Problem]) -> list[Problem]:
    """Add to unknown keys where in the default experiment such a key stands."""
    places: dict[str, list[str]] = {}
    for path in _paths(to_mapping(ExperimentConfig())):
        places.setdefault(path.rpartition(".")[2], []).append(path)
    told = []
    for problem in problems:
        found = [p for p in places.get(problem.path.rpartition(".")[2], []) if p != problem.path]
        # an equal key elsewhere is a better guess than a similar one here, unless it is everywhere
        if problem.is_unknown_key and 0 < len(found) <= _MOST_PLACES:
            where = " or ".join(found)
            problem = dataclasses.replace(problem, message=f"unknown key; did you mean {where}?")
        told.append(problem)
    return told


def _paths(tree: Any, prefix: str = "") -> Iterable[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{key}.")


def _checked(overrides: Sequence[str]) -> list[str]:
    problems = []
    for text in overrides:
        key, sign, _ = text.partition("=")
        if not sign or not all(key.split(".")):
            problems.append(Problem("", f"override {text!r} is not of the form key=value"))
            continue
        try:
            OmegaConf.from_dotlist([text])
        except yaml.YAMLError as error:
            why = " ".join(str(error).split())
            problems.append(Problem("", f"the value of override {text!r} is not YAML: {why}"))
    if problems:
        raise ConfigError(problems, "the command line")
    return list(overrides)


def _offer_configs(path: str | Path) -> str:
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    found = sorted(p.name for p in folder.glob("[!.]*.yaml")) if folder.is_dir() else []
    return f"; in {folder} there are {', '.join(found)}" if found else ""
