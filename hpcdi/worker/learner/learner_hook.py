"""The contract of hooks, which a learner calls before and after a run and each iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from hpcdi.errors import ConfigError, Problem

POSITIONS = ("before_run", "after_run", "before_iter", "after_iter")
Hooks = dict[str, list["LearnerHook"]]


class Hook(ABC):
    """A callable with a name and a priority, called with the engine that it is registered in.

    Args:
        name: for people.
        priority: the lower, the earlier.
    """

    def __init__(self, name: str, priority: float, **_kwargs: Any) -> None:
        self._name, self._priority = name, priority

    @property
    def name(self) -> str:
        """For people."""
        return self._name

    @property
    def priority(self) -> float:
        """The lower, the earlier."""
        return self._priority

    @abstractmethod
    def __call__(self, engine: Any) -> None:
        """Acts on the engine."""

    def close(self) -> None:  # noqa: B027
        """Releases resources when the engine closes."""


class LearnerHook(Hook):
    """A hook of a learner.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: one of `POSITIONS`.

    Raises:
        ValueError: there is no such position.
        TypeError: the priority is no number.
    """

    positions: ClassVar[list[str]] = list(POSITIONS)
    needs_monitor: ClassVar[bool] = False
    """It needs the monitor of every learner of a group, not only of the first."""

    def __init__(self, name: str, priority: float = 100, *, position: str, **kwargs: Any) -> None:
        super().__init__(name, priority, **kwargs)
        if position not in POSITIONS:
            raise ValueError(f"a hook's position is one of {POSITIONS}, not {position!r}")
        if isinstance(priority, bool) or not isinstance(priority, int | float):
            raise TypeError(f"a hook's priority is a number, not {priority!r}")
        self._position = position

    @property
    def position(self) -> str:
        """Position at which it is called."""
        return self._position


hook_mapping: dict[str, type[LearnerHook]] = {}
"""Hook types by name, for configurations."""

simplified_hook_mapping: dict[str, Any] = {}
"""Configuration key -> function that makes the hook of the key's value, or None for no hook."""


def register_learner_hook(name: str, hook_type: type) -> None:
    """Registers a hook type for configurations.

    Raises:
        TypeError: it is not a `LearnerHook`.
    """
    if not issubclass(hook_type, LearnerHook):
        raise TypeError(f"{hook_type!r} is not a subclass of LearnerHook")
    hook_mapping[name] = hook_type


_WHOLE = ("name", "type", "priority", "position", "ext_args")


def no_hooks() -> Hooks:
    """Returns positions without hooks."""
    return {position: [] for position in POSITIONS}


def add_learner_hook(hooks: Hooks, hook: LearnerHook) -> None:
    """Adds a hook after those of its position with the same or a lower priority value."""
    there = hooks.setdefault(hook.position, [])
    after = [k for k, other in enumerate(there) if other.priority > hook.priority]
    there.insert(after[0] if after else len(there), hook)


def merge_hooks(hooks1: Hooks, hooks2: Hooks) -> Hooks:
    """Returns the hooks of both by priority; of equal priority, those of `hooks1` first."""
    merged = no_hooks()
    for position in POSITIONS:
        both = [*hooks1.get(position, []), *hooks2.get(position, [])]
        merged[position] = sorted(both, key=lambda hook: hook.priority)
    return merged


def build_learner_hook_by_cfg(cfg: Mapping[str, Any]) -> Hooks:
    """Returns the hooks of a configuration.

    Each entry is either a simplified key with its value, e.g. ``log_show_after_iter: 100``, or a
    name of your choice with a whole hook: ``{name, type, priority, position, ext_args}``, whose
    type was registered.

    Raises:
        ConfigError: a key is neither, a type is not registered, or a value is of the wrong kind;
            all such problems at once.
    """
    hooks = no_hooks()
    problems = []
    for key, value in cfg.items():
        try:
            hook = _build(key, value)
        except (TypeError, ValueError) as error:
            problems.append(Problem(f"hook.{key}", str(error)))
            continue
        if hook is not None:
            add_learner_hook(hooks, hook)
    if problems:
        raise ConfigError(problems)
    return hooks


def hook_problems(cfg: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Returns what is wrong with a configuration of hooks."""
    try:
        build_learner_hook_by_cfg(cfg)
    except ConfigError as error:
        return error.problems
    return ()


def _build(key: str, value: Any) -> LearnerHook | None:
    if key in simplified_hook_mapping:
        hook: LearnerHook | None = simplified_hook_mapping[key](value)
        return hook
    if isinstance(value, Mapping) and value.get("type") in hook_mapping:
        unknown = sorted(value.keys() - _WHOLE)
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}; a hook has {', '.join(_WHOLE)}")
        return hook_mapping[value["type"]](
            value.get("name", key), value.get("priority", 100),
            position=value.get("position", ""), ext_args=dict(value.get("ext_args") or {}),
        )  # fmt: skip
    known = ", ".join(sorted(simplified_hook_mapping))
    types = ", ".join(sorted(hook_mapping))
    raise ValueError(f"is neither one of {known} nor a hook of type {types}")


def __getattr__(name: str) -> Any:
    """Returns the built-in hooks, which DI-engine has in this module, by their names."""
    for kind in hook_mapping.values():
        if kind.__name__ == name and kind.__module__.startswith(__package__):
            return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def show_hooks(hooks: Hooks) -> str:
    """Returns the hooks in the order of their calls, as text."""
    return "\n".join(
        f"{position}: " + ", ".join(f"{hook.name}({hook.priority:g})" for hook in hooks[position])
        for position in POSITIONS
    )
