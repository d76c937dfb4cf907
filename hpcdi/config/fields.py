"""How a component declares its settings.

A component's settings are one frozen dataclass, `Config`, nested in its class and derived from
`ComponentConfig`; each field says in one place what it is, what it may be, and its default::

    @dataclass(frozen=True)
    class Config(ComponentConfig):
        type: str = "dqn"
        nstep: int = setting(1, "steps of the n-step return", minimum=1)
        learner: Any = component(LEARNER_REGISTRY, "base", "the training loop")
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdi.errors import Problem
from hpcdi.utils.registry import Registry


@dataclass(frozen=True)
class Bounds:
    """What a setting may be: closed limits, an open lower limit, or a list of choices."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: tuple[Any, ...] | None = None

    def objection(self, value: Any) -> str | None:
        """Why `value`, or an element of it, is not allowed; None where it is."""
        if isinstance(value, list | tuple):
            return next(filter(None, map(self.objection, value)), None)
        if self.choices is not None and value not in self.choices:
            return f"must be one of {', '.join(map(repr, self.choices))}, not {value!r}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if self.minimum is not None and not value >= self.minimum:
            return f"must be at least {self.minimum:g}, not {value:g}"
        if self.maximum is not None and not value <= self.maximum:
            return f"must be at most {self.maximum:g}, not {value:g}"
        if self.above is not None and not value > self.above:
            return f"must be above {self.above:g}, not {value:g}"
        return None


def setting(
    default: Any,
    about: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Sequence[Any] | None = None,
) -> Any:
    """A setting with its default, one line about it, and what it may be."""
    bounds = Bounds(minimum, maximum, above, tuple(choices) if choices is not None else None)
    metadata = {"about": about, "bounds": bounds}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(cls: type, about: str) -> Any:
    """A nested group of settings: `cls` is a frozen dataclass."""
    return field(default_factory=cls, metadata={"about": about, "section": cls})


def sections(cls: type, about: str) -> Any:
    """Groups of settings: a list of mappings, one mapping, or by default nothing."""
    return field(default=(), metadata={"about": about, "sections": cls})


def component(registry: Registry, default_type: str, about: str) -> Any:
    """A part whose class, and so whose settings, follow from its `type` in a registry."""
    metadata = {"about": about, "registry": registry, "default_type": default_type}
    return field(default_factory=lambda: registry.get(default_type).Config(), metadata=metadata)


@dataclass(frozen=True)
class ComponentConfig:
    """Settings that every component has: which class it is, and the modules that define it."""

    type: str = ""
    import_names: tuple[str, ...] = ()

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings of this component; paths are relative to it."""
        return iter(())


def to_mapping(config: Any) -> Any:
    """Plain nested dict (lists, scalars) of a frozen configuration: what YAML and JSON can hold."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {
            # an override may put a mapping in place of nothing, but not in place of a list
            f.name: to_mapping(getattr(config, f.name) or None)
            if "sections" in f.metadata
            else to_mapping(getattr(config, f.name))
            for f in dataclasses.fields(config)
        }
    if isinstance(config, dict):
        return {str(key): to_mapping(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_mapping(value) for value in config]
    return config
