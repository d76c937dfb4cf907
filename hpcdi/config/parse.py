"""Turning a mapping into a frozen dataclass, with all problems at once."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from hpcdi.config.fields import Bounds, ComponentConfig
from hpcdi.errors import ConfigError, Problem, UnknownTypeError
from hpcdi.utils.imports import import_module
from hpcdi.utils.registry import Registry

# Keys of the predecessor that have no meaning in an MPI program: accepted, and said to be ignored.
RETIRED_KEYS = {
    "host": "MPI needs no address",
    "port": "MPI needs no port",
    "operator_server": "there is no operator server in an MPI program",
    "communication_mode": "there is one way to communicate",
    "learner_gpu_num": "the number of learners is policy.learn.learner.learner_num",
    "cfg_type": "a mark of default_config()",
    "path_data": "a run keeps its data in its own folder (--run-dir)",
    "path_policy": "a run keeps its policies in its own folder (--run-dir)",
    "eval_freq": "a parallel run evaluates every policy.other.commander.eval_interval seconds",
    "deepcopy": "buffers always hold and give copies",
    "enable_track_used_data": "system.storage.keep_data says what becomes of used data",
    "compressor": "shards are not compressed",
    "print_freq": "system.coordinator.progress_interval says how often there is a line",
}
_PARTS = {"registry", "section"}


class Parser:
    """Collects problems and notes while it builds dataclasses from mappings."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def parse(self, cls: type, mapping: Any, path: str = "") -> Any:
        """Instance of the dataclass `cls` from `mapping`; what does not fit keeps its default."""
        if not isinstance(mapping, Mapping):
            self._problem(path, f"must be a mapping of settings, not {_type_name(mapping)}")
            mapping = {}
        hints = typing.get_type_hints(cls)
        known = {f.name: f for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        # a part that is left out is parsed like an empty one, so that its rules hold
        parts = [name for name, field in known.items() if field.metadata.keys() & _PARTS]
        for key, value in {**mapping, **{n: {} for n in parts if n not in mapping}}.items():
            if key not in known:
                self._unknown(path, str(key), list(known))
                continue
            ok, parsed = self._field(known[key], hints[key], value, _join(path, key))
            if ok:
                values[key] = parsed
        for name in known.keys() - values.keys():
            default = self._default(known[name], _join(path, name))
            if default is not dataclasses.MISSING:
                values[name] = default
        if values.keys() != known.keys():
            return None
        config = cls(**values)
        if hasattr(config, "problems"):
            self._add_rules(config, path)
        return config

    def parse_component(
        self, registry: Registry, default_type: str, mapping: Any, path: str
    ) -> Any:
        """Settings of the class that ``mapping["type"]`` names."""
        if not isinstance(mapping, Mapping):
            self._problem(path, f"must be a mapping of settings, not {_type_name(mapping)}")
            return None
        names = mapping.get("import_names")
        names = [names] if isinstance(names, str) else names
        try:
            import_module(names if isinstance(names, list | tuple) else ())
            cls = registry.get(mapping.get("type", default_type))
        except ConfigError as error:
            self.problems += [Problem(_join(path, p.path), p.message) for p in error.problems]
            return None
        except UnknownTypeError as error:
            self._problem(_join(path, "type"), str(error))
            return None
        return self.parse(cls.Config, {"type": default_type, **mapping}, path)

    def _field(
        self, spec: dataclasses.Field[Any], hint: Any, value: Any, path: str
    ) -> tuple[bool, Any]:
        if "registry" in spec.metadata:
            meta = spec.metadata
            parsed = self.parse_component(meta["registry"], meta["default_type"], value, path)
            return parsed is not None, parsed
        if "section" in spec.metadata:
            parsed = self.parse(spec.metadata["section"], value, path)
            return parsed is not None, parsed
        if "sections" in spec.metadata:
            given = value if isinstance(value, list | tuple) else [] if value is None else [value]
            several = [
                self.parse(spec.metadata["sections"], one, f"{path}[{number}]" if number else path)
                for number, one in enumerate(given)
            ]
            return None not in several, tuple(several)
        try:
            parsed = convert(value, hint)
        except (TypeError, ValueError, OverflowError) as error:
            self._problem(path, str(error))
            return False, None
        bounds: Bounds | None = spec.metadata.get("bounds")
        objection = bounds.objection(parsed) if bounds else None
        if objection:
            self._problem(path, objection)
        return objection is None, parsed

    def _default(self, spec: dataclasses.Field[Any], path: str) -> Any:
        if spec.default is not dataclasses.MISSING:
            return spec.default
        if spec.default_factory is dataclasses.MISSING:
            if not self._told(path):
                self._problem(path, "is required")
            return dataclasses.MISSING
        try:
            return spec.default_factory()
        except UnknownTypeError as error:
            if not self._told(path):
                self._problem(path, str(error))
            return dataclasses.MISSING

    def _add_rules(self, config: ComponentConfig, path: str) -> None:
        for problem in config.problems():
            full = _join(path, problem.path)
            if not self._told(full):  # the rule saw the default that stands in for a wrong value
                self._problem(full, problem.message)

    def _told(self, path: str) -> bool:
        return any(f"{problem.path}.".startswith(f"{path}.") for problem in self.problems)

    def _unknown(self, path: str, key: str, known: list[str]) -> None:
        full = _join(path, key)
        if key in RETIRED_KEYS:
            self.notes.append(f"{full} is ignored: {RETIRED_KEYS[key]}")
            return
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(known))}"
        self.problems.append(Problem(full, f"unknown key; {hint}", is_unknown_key=True))

    def _problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))


def convert(value: Any, hint: Any) -> Any:
    """`value` as the type `hint`, where nothing is lost by it.

    Raises:
        TypeError: it is of another type. ValueError: it is not one of the literals.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, args)
    if origin is typing.Literal:
        if value not in args:
            raise ValueError(f"must be one of {', '.join(map(repr, args))}, not {value!r}")
        return value
    if origin in (tuple, list):
        return _convert_sequence(value, origin, args)
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise TypeError(f"must be a mapping, not {_type_name(value)}")
        return dict(value)
    return _convert_scalar(value, hint)


def _convert_union(value: Any, args: tuple[Any, ...]) -> Any:
    if value is None and type(None) in args:
        return None
    errors = []
    for option in args:
        if option is not type(None):
            try:
                return convert(value, option)
            except (TypeError, ValueError) as error:
                errors.append(str(error))
    raise TypeError("; or ".join(dict.fromkeys(errors)))


def _convert_sequence(value: Any, origin: Any, args: tuple[Any, ...]) -> Any:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise TypeError(f"must be a list, not {_type_name(value)}")
    element = args[0] if args else Any
    return origin(convert(item, element) for item in value)


def _convert_scalar(value: Any, hint: Any) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("must be a number, not nan")
    if hint is float and value in ("inf", "-inf"):  # YAML itself spells it .inf
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is int and isinstance(value, bool):
        raise TypeError(f"must be an integer, not {_type_name(value)}")
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    raise TypeError(f"must be {_WORDS.get(hint, hint)}, not {_type_name(value)}")


_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def _type_name(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"{value!r} ({_WORDS.get(type(value), type(value).__name__)})"


def _join(path: str, key: str) -> str:
    return ".".join(part for part in (path, key) if part)
