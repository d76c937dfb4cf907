"""The predecessor's API of settings: a dict with attribute access, `default_config`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from hpcdi.config.fields import ComponentConfig, Parser, to_mapping
from hpcdi.errors import ConfigError
from hpcdi.utils.registry import Registry, import_module

S = TypeVar("S")


class ConfigDict(dict[str, Any]):
    """A dict whose keys are also attributes; nested mappings become `ConfigDict`.

    It prints, compares, copies, merges and indexes like any dict.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.update(*args, **kwargs)

    def __setitem__(self, key: str, value: object) -> None:
        super().__setitem__(key, _wrap(value))

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            keys = ", ".join(map(str, self))
            raise AttributeError(f"no key {name!r} (there are: {keys})") from None

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(name) from None

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set keys from mappings, as `dict.update` does."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: object = None) -> Any:
        """Return the value of `key` after setting it to `default` if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> ConfigDict:
        """Returns a `ConfigDict` with the same values."""
        return ConfigDict(self)

    def __or__(self, other: object) -> Any:
        merged = ConfigDict(self)
        merged.update(other)
        return merged

    def __ior__(self, other: object) -> Any:
        self.update(other)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ConfigDict:
        return ConfigDict({key: copy.deepcopy(value, memo) for key, value in self.items()})


def _wrap(value: object) -> Any:
    if isinstance(value, Mapping) and not isinstance(value, ConfigDict):
        return ConfigDict(value)
    if isinstance(value, list | tuple):
        items = map(_wrap, value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def component_class(registry: Registry, cfg: Any) -> Any:
    """Import the modules of ``cfg.import_names`` and return the class registered as ``cfg.type``.

    Args:
        registry: of this kind of component.
        cfg: settings, a mapping or a frozen dataclass.

    Raises:
        UnknownTypeError: no class has that type (a KeyError).
        ConfigError: a module is missing.
    """
    if isinstance(cfg, Mapping):
        import_module(cfg.get("import_names", ()))
        return registry.get(cfg["type"])
    import_module(cfg.import_names)
    return registry.get(cfg.type)


class SettingError(ConfigError, AssertionError, KeyError):
    """A setting of a component is wrong.

    The predecessor asserts what it checks of them, and looks a hook's type up.
    """

    __str__ = Exception.__str__  # a KeyError shows a text with its quotes


def parse(settings: type[S], mapping: object, name: str) -> S:
    """Check a mapping, and freeze it.

    Args:
        settings: the class that it becomes.
        mapping: of settings.
        name: of the component, for messages.

    Raises:
        SettingError: holds every problem of the mapping.
    """
    parser = Parser()
    config: S = parser.parse(settings, mapping)
    if parser.problems:
        raise SettingError(parser.problems, f"the configuration of {name}")
    return config


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings updated by others at every depth; a part of another `type` is replaced."""
    merged = {**below, **above}
    for key in below.keys() & above.keys():
        old, new = below[key], above[key]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            is_other = new.get("type", old.get("type")) != old.get("type")
            merged[key] = new if is_other else _merged(old, new)
    return merged


def _with_settings(config: type, names: Sequence[str]) -> type:
    """Returns a class of settings with further ones, whose values are taken as they are."""

    def wrap(self: object) -> None:
        if hasattr(config, "__post_init__"):
            config.__post_init__(self)
        for name in names:
            object.__setattr__(self, name, _wrap(getattr(self, name)))

    more = [(name, Any, None) for name in names]
    return dataclasses.make_dataclass(
        config.__name__, more, bases=(config,), frozen=True, namespace={"__post_init__": wrap}
    )


class _Defaults:
    """The class attribute ``config``: settings with their defaults."""

    def __get__(self, owner: Any, cls: Any) -> dict[str, Any]:
        defaults: dict[str, Any] = to_mapping(cls.Config())
        return defaults


class Configurable:
    """Mix-in for classes with a nested `Config`: `default_config` and parsing.

    A user's subclass may state settings of its own, or other defaults, as a dict: ``config``. Of
    those that only this knows, `Config` has whatever values they are given.
    """

    Config: ClassVar[type] = ComponentConfig
    config: ClassVar[Any] = _Defaults()
    UNUSED: ClassVar[Mapping[str, Any]] = {}
    """Settings of the predecessor that nothing reads, with its defaults (None: it has none).

    `parse_config` drops them.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add settings to `Config` that only ``config`` knows."""
        super().__init_subclass__(**kwargs)
        stated = cls.over_defaults({})
        known = {field.name for field in dataclasses.fields(cls.Config)} if stated else set()
        if more := [name for name in stated if name not in known]:
            cls.Config = _with_settings(cls.Config, more)
            cls.Config.__module__ = cls.__module__  # so that it can be pickled
            cls.Config.__qualname__ = f"{cls.__qualname__}.Config"

    @classmethod
    def over_defaults(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings over the defaults that a subclass states as ``config``."""
        stated = inspect.getattr_static(cls, "config")
        return _merged(stated if isinstance(stated, dict) else {}, mapping)

    @classmethod
    def default_config(cls) -> ConfigDict:
        """Returns all settings with their defaults, and ``cfg_type`` = ``<class>Dict``."""
        unused = {name: value for name, value in cls.UNUSED.items() if value is not None}
        defaults = _merged({**unused, **to_mapping(cls.Config())}, copy.deepcopy(cls.config))
        return ConfigDict(defaults, cfg_type=f"{cls.__name__}Dict")

    @classmethod
    def parse_config(cls, cfg: object) -> Any:
        """Check a mapping and freeze it; an instance of `Config` is returned unchanged.

        Args:
            cfg: a mapping, an instance of `Config`, or None for all defaults.

        Raises:
            ConfigError: holds every problem of the mapping.
        """
        if isinstance(cfg, cls.Config):
            return cfg
        mapping = {} if cfg is None else cfg
        if isinstance(mapping, ComponentConfig) and issubclass(cls.Config, type(mapping)):
            mapping = to_mapping(mapping)  # of the class that this one is derived from
        if isinstance(mapping, Mapping):
            known = {field.name for field in dataclasses.fields(cls.Config)}
            unused = cls.UNUSED.keys() - known
            mapping = {k: v for k, v in cls.over_defaults(mapping).items() if k not in unused}
        return parse(cls.Config, mapping, cls.__name__)
