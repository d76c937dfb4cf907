"""Settings: a component declares them, and a mapping becomes them.

A component's settings are one frozen dataclass, derived from `ComponentConfig`; each field states
in one place its type, its meaning, its bounds and its default::

    @dataclass(frozen=True)
    class DQNConfig(PolicyConfig):
        type: str = "dqn"
        nstep: int = setting(1, "steps of the n-step return", minimum=1)
        learn: DQNLearnConfig = section(DQNLearnConfig, "the update")
        manager: ManagerConfig = component(ENV_MANAGER_REGISTRY, "base", "steps the environments")

A value has the annotated type of its field. Of a component, `type` in the file chooses the class
of settings, which must be derived from the annotated one. `Parser` builds all of it from a mapping,
and collects every problem instead of stopping at the first.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import difflib
import functools
import math
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hpcdi.dataclass import dataclass
from hpcdi.errors import ConfigError, Problem, UnknownTypeError
from hpcdi.utils.registry import Registry, import_module

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
S = TypeVar("S", bound="DataclassInstance")

OTHER_NAMES = {
    "lr": "learning_rate",
    "gamma": "discount_factor",
    "n_envs": "collector_env_num",
    "num_envs": "collector_env_num",
    "buffer_size": "replay_buffer_size",
    "n_steps": "n_sample",
    "ent_coef": "entropy_weight",
    "vf_coef": "value_weight",
    "clip_range": "clip_ratio",
    "n_epochs": "epoch_per_collect",
    "max_grad_norm": "grad_clip_norm",
}
"""What other libraries call a setting -> its name here, where that is one of the section's."""
RETIRED_KEYS = {
    "host": "MPI needs no address",
    "port": "MPI needs no port",
    "operator_server": "there is no operator server in an MPI program",
    "communication_mode": "there is one way to communicate",
    "learner_gpu_num": "the number of learners is policy.learn.learner.learner_num",
    "multi_gpu": "learners of a run always average their gradients",
    "cfg_type": "a mark of default_config()",
    "path_data": "a run keeps its data in its own folder (--run-dir)",
    "path_policy": "a run keeps its policies in its own folder (--run-dir)",
    "eval_freq": "policy.eval.every says how often to evaluate",
    "deepcopy": "buffers always store and return copies",
    "enable_track_used_data": "system.storage.keep_data decides whether used data are kept",
    "compressor": "shards are not compressed",
    "chunk_size": "samples are loaded one by one",
    "print_freq": "system.coordinator.progress_interval is the interval of progress lines",
}
"""Keys of the predecessor without a meaning in an MPI program: accepted with a note."""
_PARTS = {"registry", "section"}
"""Metadata of settings that are parts of their own, with rules: `component` and `section`."""


@dataclass(frozen=True)
class Bounds:
    """Allowed values of a setting: closed limits, an open lower limit, or a list of choices."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: tuple[Any, ...] | None = None

    def objection(self, value: object) -> str | None:
        """Returns why `value`, or an element of it, is not allowed; None if it is."""
        if isinstance(value, list | tuple):
            return next(filter(None, map(self.objection, value)), None)
        if self.choices is not None and value not in self.choices:
            return f"must be one of {', '.join(map(repr, self.choices))}, not {value!r}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if self.minimum is not None and not value >= self.minimum:
            return f"must be at least {self.minimum:g}, not {_exact(value)}"
        if self.maximum is not None and not value <= self.maximum:
            return f"must be at most {self.maximum:g}, not {_exact(value)}"
        if self.above is not None and not value > self.above:
            return f"must be above {self.above:g}, not {_exact(value)}"
        return None


def _exact(value: float) -> str:
    """Returns a number in few digits if these say it, else in all."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def setting(
    default: T,
    about: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Sequence[Any] | None = None,
    merges: bool = False,
) -> T:
    """Declare a setting: its default, one line about it, and its bounds.

    Args:
        default: its value where the file does not have it.
        about: what it means.
        minimum: least value.
        maximum: largest value.
        above: value that it must be larger than.
        choices: all values that it may have.
        merges: the file's mapping updates the default one, instead of replacing it; an empty value
            in the file (false, null, 0) becomes the empty one of the default's type: 0, "", false.
    """
    bounds = Bounds(minimum, maximum, above, tuple(choices) if choices is not None else None)
    metadata = {"about": about, "bounds": bounds, "merges": merges}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(cls: type[T], about: str) -> T:
    """Declare a nested group of settings; `cls` is a frozen dataclass."""
    return field(default_factory=cls, metadata={"about": about, "section": cls})


def sections(cls: type[T], about: str) -> tuple[T, ...]:
    """Declare any number of groups: a list of mappings or one mapping; none by default."""
    return field(default=(), metadata={"about": about, "sections": cls})


def component(registry: Registry, default_type: str, about: str) -> Any:
    """Declare a part whose class, and so its settings, is chosen by its `type` in a registry.

    Its settings must be derived from the class that the field is annotated with.
    """
    metadata = {"about": about, "registry": registry, "default_type": default_type}
    return field(default_factory=lambda: registry.settings(default_type)(), metadata=metadata)


def components(registry: Registry, about: str) -> Any:
    """Declare any number of parts by name, a mapping of such mappings as `component` takes.

    Their settings must be derived from the class that the annotation, ``dict[str, Base]``, names.
    """
    return field(default_factory=dict, metadata={"about": about, "components": registry})


@dataclass(frozen=True)
class ComponentConfig:
    """Settings that every component has: its type, and modules to import before it is looked up."""

    type: str = ""
    import_names: tuple[str, ...] = ()

    def problems(self) -> Iterator[Problem]:
        """Check rules over several settings of this component; paths are relative to it."""
        return iter(())


def to_mapping(config: object) -> Any:
    """Returns a frozen configuration as nested dicts, lists and scalars, for YAML and JSON."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        values = {f.name: to_mapping(getattr(config, f.name)) for f in dataclasses.fields(config)}
        for f in dataclasses.fields(config):
            if "sections" in f.metadata:
                # an override can replace null by a mapping, but not a list
                values[f.name] = values[f.name] or None
        return values
    if isinstance(config, dict):
        return {key_of(key): to_mapping(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_mapping(value) for value in config]
    return config


def key_of(key: object) -> Any:
    """Returns a key of a mapping as YAML keeps it: texts, numbers and truths as they are."""
    return key if isinstance(key, int | float) else str(key)


def in_order(tree: Any) -> Any:
    """Returns nested mappings and lists with the keys of each mapping in order, as texts are."""
    if isinstance(tree, dict):
        return {key: in_order(tree[key]) for key in sorted(tree, key=str)}
    if isinstance(tree, list | tuple):
        return [in_order(value) for value in tree]
    return tree


def without(tree: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """Returns nested settings but for those, and the sections, that dotted paths name."""

    def kept(section: Mapping[str, Any], above: str) -> dict[str, Any]:
        return {
            key: kept(value, f"{above}{key}.") if isinstance(value, dict) else value
            for key, value in section.items()
            if f"{above}{key}" not in paths
        }

    return kept(tree, "")


def replaced(settings: S, changes: Mapping[str, Any]) -> S:
    """Returns a frozen configuration with other values, by their dotted paths in it."""
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        inner = replaced(getattr(settings, name), {rest: value}) if rest else value
        settings = dataclasses.replace(settings, **{name: inner})
    return settings


def restore(cls: type[T], mapping: Mapping[str, Any]) -> T:
    """Returns the settings of which `to_mapping` returned the mapping, without checking them again.

    Imports the modules in their `import_names`.
    """
    hints = _hints_of(cast("type", cls))
    values: dict[str, Any] = {}
    for spec in dataclasses.fields(cls):  # type: ignore[arg-type]
        value, meta = mapping[spec.name], spec.metadata
        if "registry" in meta:
            import_module(value["import_names"])
            values[spec.name] = restore(meta["registry"].settings(value["type"]), value)
        elif "components" in meta:
            import_module([name for part in value.values() for name in part["import_names"]])
            settings = meta["components"].settings
            values[spec.name] = {
                name: restore(settings(part["type"]), part) for name, part in value.items()
            }
        elif "section" in meta:
            values[spec.name] = restore(meta["section"], value)
        elif "sections" in meta:
            values[spec.name] = tuple(restore(meta["sections"], each) for each in value or ())
        else:
            values[spec.name] = convert(value, hints[spec.name])
    return cls(**values)


@functools.cache
def _hints_of(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


class Parser:
    """Builds dataclasses from mappings, and collects problems and notes while it does.

    Attributes:
        problems: everything that is wrong, each at its path.
        notes: keys that were accepted and ignored.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def parse(self, cls: type, mapping: object, path: str = "") -> Any:
        """Build the dataclass `cls`; a setting with a problem keeps its default.

        Returns:
            The instance; None if a required setting is missing, here or in a part.
        """
        if not isinstance(mapping, Mapping):
            self._add(path, f"must be a mapping of settings, not {_type_name(mapping)}")
            mapping = {}
        hints = _hints_of(cls)
        specs = {f.name: f for f in dataclasses.fields(cls)}
        # an omitted part is parsed like an empty one, so that its rules are checked
        omitted = [n for n, f in specs.items() if n not in mapping and f.metadata.keys() & _PARTS]
        values: dict[str, Any] = {}
        for key, value in {**mapping, **{name: {} for name in omitted}}.items():
            if key in specs:
                values[key] = self._value(specs[key], hints[key], value, _join(path, key))
            else:
                self._unknown(path, str(key), list(specs))
        for name, spec in specs.items():
            if values.get(name, MISSING) is MISSING:
                values[name] = self._default(spec, hints[name], _join(path, name))
        if any(value is MISSING for value in values.values()):
            return None
        config = cls(**values)
        if hasattr(config, "problems"):
            for problem in config.problems():
                # where a value was wrong, and reported, the rule has judged its default
                self._add_once(_join(path, problem.path), problem.message)
        return config

    def _value(self, spec: dataclasses.Field[Any], hint: object, value: object, path: str) -> Any:
        """Returns a setting's value; MISSING if it has a problem."""
        meta = spec.metadata
        if "registry" in meta:
            return self._component(meta["registry"], meta["default_type"], hint, value, path)
        if "components" in meta:
            return self._components(meta["components"], typing.get_args(hint)[1], value, path)
        if "section" in meta:
            parsed = self.parse(meta["section"], value, path)
            return MISSING if parsed is None else parsed
        if "sections" in meta:
            items = value if isinstance(value, list | tuple) else [] if value is None else [value]
            groups = tuple(
                self.parse(meta["sections"], item, f"{path}[{number}]" if number else path)
                for number, item in enumerate(items)
            )
            return MISSING if None in groups else groups
        if isinstance(value, Mapping):
            default = spec.default if spec.default_factory is MISSING else spec.default_factory()
            if dataclasses.is_dataclass(default):
                value = {**to_mapping(default), **value}
        try:
            parsed = convert(value, hint)
        except (TypeError, ValueError, OverflowError) as error:
            self._add(path, str(error))
            return MISSING
        if meta.get("merges"):
            parsed = _merged(self._default(spec, hint, path), parsed)
        objection = meta["bounds"].objection(parsed) if "bounds" in meta else None
        if objection:
            self._add(path, objection)
        return MISSING if objection else parsed

    def _component(
        self, registry: Registry, default_type: str, base: Any, mapping: Any, path: str
    ) -> Any:
        """Returns the settings of the type that a mapping names; MISSING if there is no such type.

        Args:
            registry: has the types of this kind of component.
            default_type: the type, if the mapping names none.
            base: class that the settings must be derived from; `Any`: any class.
            mapping: the settings.
            path: path of the component in the configuration.
        """
        if not isinstance(mapping, Mapping):
            self._add(path, f"must be a mapping of settings, not {_type_name(mapping)}")
            return MISSING
        names = mapping.get("import_names")
        names = [names] if isinstance(names, str) else names
        name = mapping.get("type", default_type)
        try:
            import_module(names if isinstance(names, list | tuple) else ())
            cls = registry.settings_apart(name)
            if cls is None:
                made = registry.get(name)
                cls = getattr(made, "Config", None)
                if hasattr(made, "over_defaults"):
                    mapping = {**made.over_defaults(mapping), "type": name}
        except ConfigError as error:
            self.problems += [Problem(_join(path, p.path), p.message) for p in error.problems]
            return MISSING
        except UnknownTypeError as error:
            self._add(_join(path, "type"), str(error))
            return MISSING
        if not isinstance(cls, type):
            message = f"{name!r} is no type of {registry.kind}: it has no class Config of settings"
            hint = "; a class of gymnasium's API is an env_id" * (registry.kind == "environment")
            self._add(_join(path, "type"), f"{message}{hint}")
            return MISSING
        if base is not Any and not issubclass(cls, base):
            where = f"{base.__module__}.{base.__qualname__}"
            self._add(_join(path, "type"), f"the Config of {name!r} must be derived from {where}")
            return MISSING
        parsed = self.parse(cls, {"type": default_type, **mapping}, path)
        return MISSING if parsed is None else parsed

    def _components(self, registry: Registry, base: object, mapping: object, path: str) -> Any:
        """Returns the settings of parts by their names; MISSING if one has a problem."""
        if not isinstance(mapping, Mapping):
            self._add(path, f"must be a mapping of names, not {_type_name(mapping)}")
            return MISSING
        try:
            named = _by_text(mapping)
        except (TypeError, ValueError) as error:
            self._add(path, str(error))
            return MISSING
        parts = {}
        for name, each in named.items():
            if isinstance(each, Mapping) and "type" not in each:
                self._add(_join(path, f"{name}.type"), "is required")
                continue
            parts[name] = self._component(registry, "", base, each, _join(path, name))
        is_whole = len(parts) == len(mapping) and MISSING not in parts.values()
        return parts if is_whole else MISSING

    def _default(self, spec: dataclasses.Field[Any], hint: object, path: str) -> Any:
        """Returns a setting's default, as it is read back where it was written; or MISSING."""
        if spec.default is not MISSING:
            with contextlib.suppress(TypeError, ValueError):  # a default that no file may have
                return convert(spec.default, hint)
            return spec.default
        if spec.default_factory is MISSING:
            self._add_once(path, "is required")
            return MISSING
        try:
            return spec.default_factory()
        except UnknownTypeError:  # `_component` has reported it
            return MISSING

    def _unknown(self, path: str, key: str, names: list[str]) -> None:
        full = _join(path, key)
        if key in RETIRED_KEYS:
            self.notes.append(f"{full} is ignored: {RETIRED_KEYS[key]}")
            return
        near = [OTHER_NAMES[key]] if OTHER_NAMES.get(key) in names else []
        near = near or difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(names))}"
        self.problems.append(Problem(full, f"unknown key; {hint}", is_unknown_key=True))

    def _add(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    def _add_once(self, path: str, message: str) -> None:
        """Add a problem unless there is one at this path or below it."""
        if not any(f"{problem.path}.".startswith(f"{path}.") for problem in self.problems):
            self._add(path, message)


def _merged(default: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a default mapping with changes over it; see `setting`."""
    changed = {
        key: value or type(default[key])() if key in default else value
        for key, value in changes.items()
    }
    return {**default, **changed}


def convert(value: object, hint: object) -> Any:
    """Convert `value` to the annotated type `hint`, if that loses nothing; NumPy's to Python's.

    Whole numbers become texts where these are keys.

    Raises:
        TypeError: it is of another type.
        ValueError: it is nan, an integer of more than 64 bits, not one of the literals, or has two
            keys that are one text.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    numpy = sys.modules.get("numpy")  # not imported here: without it there is no value of its types
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, args)
    if origin is typing.Literal:
        if value not in args:
            raise ValueError(f"must be one of {', '.join(map(repr, args))}, not {value!r}")
        return value
    if origin in (tuple, list):
        return _convert_sequence(value, origin, args)
    if origin is dict or hint is dict:
        return _convert_mapping(value, args)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):  # without `section`
        parser = Parser()
        made = parser.parse(cast("type", hint), value)
        if parser.problems:
            raise ValueError("; ".join(map(str, parser.problems)))
        return made
    return _convert_scalar(value, hint)


def _by_text(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns a mapping whose keys are texts: YAML reads ``0: mlp`` with a whole number.

    Raises:
        TypeError: a key is neither. ValueError: two keys are one text.
    """
    named: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise TypeError(f"has the key {_type_name(key)}, where a text stands: quote it")
        if str(key) in named:
            raise ValueError(f"has {str(key)!r} twice, as a text and as a number: quote both")
        named[str(key)] = value
    return named


def _convert_union(value: object, args: tuple[Any, ...]) -> Any:
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


def _convert_mapping(value: object, args: tuple[Any, ...]) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"must be a mapping, not {_type_name(value)}")
    named = value if not args or args[0] is Any else _by_text(value)
    element = args[1] if args else Any
    return {key: _convert_item(key, item, element) for key, item in named.items()}


def _convert_item(key: str, value: object, hint: object) -> Any:
    try:
        return convert(value, hint)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{key} {error}") from error


def _convert_sequence(value: Any, origin: Any, args: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        raise TypeError(f"must be a list, not {_type_name(value)}")
    if origin is tuple and args and args[-1] is not Ellipsis:  # as tuple[int, str]
        if len(value) != len(args):
            raise ValueError(f"must have {len(args)} values, not {len(value)}")
        return tuple(map(convert, value, args))
    element = args[0] if args else Any
    return origin(convert(item, element) for item in value)


def _convert_scalar(value: Any, hint: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("must be a number, not nan")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is float and value in ("inf", "-inf"):  # YAML itself spells it .inf
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if hint is int and isinstance(value, bool):
        raise TypeError(f"must be an integer, not {_type_name(value)}")
    if hint is int and isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("must be an integer from -2^63 to 2^63 - 1")
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    raise TypeError(f"must be {_WORDS.get(hint, hint)}, not {_type_name(value)}")


_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def _type_name(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"{value!r} ({_WORDS.get(type(value), type(value).__name__)})"


def _join(path: str, key: str) -> str:
    return ".".join(part for part in (path, key) if part)
