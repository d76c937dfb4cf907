"""The attribute-access mapping, default_config() and parse_config()."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.config.compat import ConfigDict, Configurable
from hpcdi.config.fields import ComponentConfig, Parser, component, restore, setting, to_mapping
from hpcdi.errors import ConfigError, Problem
from hpcdi.utils.registry import (
    BUFFER_REGISTRY,
    COMM_COLLECTOR_REGISTRY,
    COMM_LEARNER_REGISTRY,
    ENV_MANAGER_REGISTRY,
    ENV_REGISTRY,
    LEARNER_REGISTRY,
    PARALLEL_COLLECTOR_REGISTRY,
    PARALLEL_COMMANDER_REGISTRY,
    POLICY_REGISTRY,
    Registry,
)

REGISTRIES = [
    BUFFER_REGISTRY, COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY, ENV_MANAGER_REGISTRY,
    ENV_REGISTRY, LEARNER_REGISTRY, PARALLEL_COLLECTOR_REGISTRY, PARALLEL_COMMANDER_REGISTRY,
    POLICY_REGISTRY,
]  # fmt: skip
plain = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3), st.none(), st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.fixture
def config() -> ConfigDict:
    return ConfigDict(a=1, b={"c": {"d": 2}}, e=[{"f": 3}], g=({"h": 4},))


def test_keys_are_attributes_at_every_depth(config: ConfigDict) -> None:
    assert config.b.c.d == config["b"]["c"]["d"] == 2
    assert config.e[0].f == 3
    assert config.g[0].h == 4


class Size(NamedTuple):
    """A setting of two parts."""

    of: Any
    times: int


def test_a_named_tuple_stays_one() -> None:
    config = ConfigDict(size=Size({"a": 1}, 2))
    assert (config.size.of.a, config.size.times) == (1, 2)
    assert type(config.size) is type(copy.deepcopy(config).size) is Size


def test_setting_either_way_sets_both(config: ConfigDict) -> None:
    config.x = {"y": 1}
    config["z"] = {"y": 2}
    assert (config["x"].y, config.z.y) == (1, 2)
    config.b.c.d = 5
    assert config["b"]["c"]["d"] == 5


def test_a_missing_key_names_those_there_are(config: ConfigDict) -> None:
    with pytest.raises(AttributeError, match=r"no key 'nope' \(there are: a, b, e, g\)"):
        _ = config.nope
    with pytest.raises(KeyError):
        config["nope"]
    assert not hasattr(config, "nope")
    assert getattr(config, "nope", 7) == 7


def test_deleting(config: ConfigDict) -> None:
    del config.a
    assert "a" not in config
    with pytest.raises(AttributeError, match="a"):
        del config.a


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.text("abc", max_size=2), plain, max_size=4))
def test_it_compares_and_prints_as_a_dict(mapping: dict[str, object]) -> None:
    config = ConfigDict(mapping)
    assert config == mapping
    assert repr(config) == repr(mapping)
    assert json.loads(json.dumps(config)) == mapping
    assert list(config.items()) == list(mapping.items())


def test_a_copy_is_shallow_and_keeps_its_kind(config: ConfigDict) -> None:
    for twin in (config.copy(), copy.copy(config)):
        assert isinstance(twin, ConfigDict)
        assert twin == config
        assert twin.b is config.b
        twin.a = 9
    assert config.a == 1


def test_a_deep_copy_shares_nothing(config: ConfigDict) -> None:
    twin = copy.deepcopy(config)
    assert isinstance(twin, ConfigDict)
    assert isinstance(twin.b.c, ConfigDict)
    twin.b.c.d = 9
    twin.e[0].f = 9
    assert (config.b.c.d, config.e[0].f) == (2, 3)


def test_merging_keeps_the_kind_of_new_values(config: ConfigDict) -> None:
    merged = config | {"x": {"y": 1}}
    assert isinstance(merged, ConfigDict)
    assert merged.x.y == 1
    assert "x" not in config
    config |= {"x": {"y": 2}}
    assert config.x.y == 2
    config.update({"x": {"y": 3}}, z={"w": 4})
    assert (config.x.y, config.z.w) == (3, 4)
    config.update([("q", {"r": 5})])
    assert config.q.r == 5


def test_setdefault_sets_only_what_is_missing(config: ConfigDict) -> None:
    assert config.setdefault("a", 5) == 1
    assert config.setdefault("new", {"x": 6}).x == 6
    assert config.new.x == 6


def test_a_config_dict_inside_stays_the_same_object() -> None:
    inner = ConfigDict(x=1)
    assert ConfigDict(inner=inner).inner is inner


# -------------------------------------------------------------------------------- default_config()


class Motor(Configurable):
    @dataclass(frozen=True)
    class Config(ComponentConfig):
        type: str = "motor"
        speed: float = setting(1.0, "how fast", minimum=0)
        gears: tuple[int, ...] = setting((1, 2), "which gears")

        def problems(self) -> Iterator[Problem]:
            if self.speed > 10 and len(self.gears) < 3:
                yield Problem("gears", "too few for that speed")


def test_default_config_is_a_fresh_mapping_with_its_mark() -> None:
    config = Motor.default_config()
    assert config == {
        "type": "motor",
        "import_names": [],
        "speed": 1.0,
        "gears": [1, 2],
        "cfg_type": "MotorDict",
    }
    config.gears.append(3)
    assert Motor.default_config().gears == [1, 2]


def test_default_config_parses_to_the_defaults() -> None:
    assert Motor.parse_config(Motor.default_config()) == Motor.Config()


@pytest.mark.parametrize("cfg", [None, {}, ConfigDict(), {"cfg_type": "MotorDict"}])
def test_nothing_given_means_all_defaults(cfg: object) -> None:
    assert Motor.parse_config(cfg) == Motor.Config()


def test_an_instance_passes_as_it_is() -> None:
    config = Motor.Config(speed=3.0)
    assert Motor.parse_config(config) is config


def test_a_mapping_is_checked_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        Motor.parse_config({"speeed": 1, "speed": -1, "gears": 5})
    assert str(caught.value).startswith("the configuration of Motor has 3 problems\n")
    assert {p.path for p in caught.value.problems} == {"speeed", "speed", "gears"}


def test_rules_hold_for_a_component_alone() -> None:
    with pytest.raises(ConfigError, match="gears: too few for that speed"):
        Motor.parse_config({"speed": 11})


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_every_component_has_a_default_config(registry: Registry) -> None:
    """Of the types that come with hpcdi: it prints, and gives the defaults back."""
    for name in registry:
        cls = registry.get(name)
        if not cls.__module__.startswith("hpcdi."):
            continue  # another test's
        settings = registry.settings(name)  # the table's, imported without the class
        # a class for programs of one's own may add settings to those of runs: `BaseLearner`
        assert issubclass(settings, cls.Config) or issubclass(cls.Config, settings)
        config = cls.default_config()
        assert config.cfg_type == f"{cls.__name__}Dict"
        assert config.type in registry
        assert "cfg_type" in repr(config)
        assert copy.deepcopy(config) == config
        if not list(cls.Config().problems()):
            assert cls.parse_config(config) == cls.Config()


def test_a_subclass_states_settings_of_its_own() -> None:
    """As users of DI-engine do: a dict `config`, over that of the class below."""

    class Below(Configurable):
        @dataclass(frozen=True)
        class Config(ComponentConfig):
            rate: float = setting(0.5, "a rate")

    class Own(Below):
        config: ClassVar[Any] = {**Below.config, "rate": 0.25, "window": {"size": 3}}

    class Further(Own):
        pass

    assert Below.config["rate"] == 0.5
    assert Further.default_config().window.size == 3
    parsed = Further.parse_config({"window": {"size": 4}})
    assert (parsed.rate, parsed.window.size) == (0.25, 4)
    assert Own.parse_config(Own.default_config()).window.size == 3

    class Nested(Own):
        config: ClassVar[Any] = {"window": {"size": 5, "at": {"x": 1, "y": 2}}}

    window = Nested.parse_config({"window": {"at": {"x": 3}}}).window
    assert window == {"size": 5, "at": {"x": 3, "y": 2}}
    assert Nested.config["window"]["at"]["x"] == 1
    with pytest.raises(ConfigError, match="windows: unknown key"):
        Own.parse_config({"windows": 1})


class Rated(Configurable):
    @dataclass(frozen=True)
    class Config(ComponentConfig):
        type: str = "rated"
        rate: float = setting(0.5, "a rate")


class OwnRated(Rated):
    config: ClassVar[Any] = {"type": "rated", "rate": 0.25, "window": {"size": 3}}


def test_what_a_subclass_states_holds_in_a_run_and_for_any_type() -> None:
    registry = Registry("part")
    registry.register("own")(OwnRated)

    @dataclass(frozen=True)
    class Run:
        part: Rated.Config = component(registry, "own", "a part")

    mapping = {"type": "own", "window": {"more": 1}}
    part: Any = Parser().parse(Run, {"part": mapping}).part
    again: Any = restore(Run, to_mapping(Run(part))).part
    for each in (part, again, OwnRated.parse_config(mapping), pickle.loads(pickle.dumps(part))):
        assert (each.type, each.rate, each.window) == ("own", 0.25, {"size": 3, "more": 1})
        assert each.window.size == 3
    assert {"import_names", "window"} <= OwnRated.default_config().keys()
    assert Parser().parse(Run, {}).part.type == "own", "whatever it states itself"
    derived = OwnRated.parse_config(Rated.Config(rate=0.75))
    assert (derived.rate, derived.window) == (0.75, {"size": 3})
