"""The mapping that the seeds' callers expect: keys are attributes, and it prints as a dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hpcdi.config.fields import ComponentConfig, to_mapping
from hpcdi.config.parse import Parser
from hpcdi.errors import ConfigError
from hpcdi.utils.imports import import_module
from hpcdi.utils.registry import Registry


class ConfigDict(dict[str, Any]):
    """A dict whose keys are attributes too; nested mappings become `ConfigDict`.

    It prints, compares, copies, merges and indexes like any dict.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.update(*args, **kwargs)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _wrap(value))

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(map(str, self))
            raise AttributeError(f"no key {name!r} (there are: {known})") from None

    def __setattr__(self, name: str, value: Any) -> None:
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

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Value of `key`, set to `default` first where it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> ConfigDict:
        """A `ConfigDict` with the same values."""
        return ConfigDict(self)

    def __or__(self, other: Any) -> Any:
        merged = ConfigDict(self)
        merged.update(other)
        return merged

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ConfigDict:
        import copy

        return ConfigDict({key: copy.deepcopy(value, memo) for key, value in self.items()})


def _wrap(value: Any) -> Any:
    if isinstance(value, Mapping) and not isinstance(value, ConfigDict):
        return ConfigDict(value)
    if isinstance(value, list | tuple):
        return type(value)(_wrap(item) for item in value)
    return value


def component_class(registry: Registry, cfg: Any) -> Any:
    """The class that ``cfg.type`` names, after the modules of ``cfg.import_names`` were imported.

    Args:
        registry: of its kind of component.
        cfg: settings, a mapping or a frozen dataclass.

    Raises:
        UnknownTypeError: no class has that type (it is a KeyError).
        ConfigError: a module is missing.
    """
    if isinstance(cfg, Mapping):
        import_module(cfg.get("import_names", ()))
        return registry.get(cfg["type"])
    import_module(cfg.import_names)
    return registry.get(cfg.type)


class Configurable:
    """Mix-in for classes that own a nested `Config`: the seeds' `default_config`, and checking."""

    Config: ClassVar[type] = ComponentConfig

    @classmethod
    def default_config(cls) -> ConfigDict:
        """All settings with their defaults, and ``cfg_type`` = ``<class>Dict``."""
        return ConfigDict(to_mapping(cls.Config()), cfg_type=f"{cls.__name__}Dict")

    @classmethod
    def parse_config(cls, cfg: Any) -> Any:
        """Checked, frozen settings from a mapping; an instance of `Config` passes as it is.

        Raises:
            ConfigError: with every problem of the mapping.
        """
        # None means: all defaults.
        if isinstance(cfg, cls.Config):
            return cfg
        parser = Parser()
        config = parser.parse(cls.Config, cfg if cfg is not None else {})
        if parser.problems:
            raise ConfigError(parser.problems, f"the configuration of {cls.__name__}")
        return config
