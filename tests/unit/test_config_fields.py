"""Mappings to frozen dataclasses: types, bounds, sections, all problems at once."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi import config
from hpcdi.config.fields import (
    RETIRED_KEYS,
    Bounds,
    ComponentConfig,
    Parser,
    component,
    components,
    convert,
    restore,
    section,
    setting,
    to_mapping,
)
from hpcdi.errors import Problem
from hpcdi.utils.registry import Registry

ENGINES = Registry("engine")


@ENGINES.register("petrol")
class Petrol:
    @dataclass(frozen=True)
    class Config(ComponentConfig):
        type: str = "petrol"
        cylinders: int = setting(4, "how many", minimum=1, maximum=12)
        turbo: bool = setting(False, "with a turbo charger")

        def problems(self) -> Iterator[Problem]:
            if self.turbo and self.cylinders < 3:
                yield Problem("turbo", "needs three cylinders")


@ENGINES.register("electric")
class Electric:
    @dataclass(frozen=True)
    class Config(ComponentConfig):
        type: str = "electric"
        kilowatts: float = setting(50.0, "power", above=0)


STEAM = Registry("engine")


@STEAM.register("steam")
class Steam:
    @dataclass(frozen=True)
    class Config(ComponentConfig):
        coal: str = setting("", "which coal")

        def problems(self) -> Iterator[Problem]:
            if not self.coal:
                yield Problem("coal", "is required")


@dataclass(frozen=True)
class Train:
    engine: Any = component(STEAM, "steam", "what moves it")


@dataclass(frozen=True)
class Fleet:
    engines: dict[str, Any] = components(ENGINES, "by name")


@dataclass(frozen=True)
class Wheels:
    number: int = setting(4, "how many", minimum=2)
    sizes: tuple[int, ...] = setting((16, 16), "in inches")


@dataclass(frozen=True)
class Car:
    name: str
    speed: float = setting(100.0, "km/h", minimum=0)
    doors: int | None = setting(None, "doors; empty: unknown", minimum=1)
    colour: str | None = setting(None, "of the body", choices=(None, "red", "blue"))
    extras: dict[str, Any] = setting({"radio": True}, "whatever else")
    wheels: Wheels = section(Wheels, "what it rolls on")
    engine: Any = component(ENGINES, "petrol", "what moves it")


def parse(mapping: Any) -> tuple[Any, dict[str, str]]:
    """The configuration, and its problems by path."""
    parser = Parser()
    config = parser.parse(Car, mapping)
    found = [(problem.path, problem.message) for problem in parser.problems]
    assert len(dict(found)) == len(found), f"a path is told twice: {found}"
    return config, dict(found)


def test_defaults_fill_what_is_left_out() -> None:
    config, problems = parse({"name": "x"})
    assert problems == {}
    assert config == Car(
        "x", 100.0, None, None, {"radio": True}, Wheels(4, (16, 16)), Petrol.Config()
    )


def test_everything_can_be_set() -> None:
    config, problems = parse(
        {
            "name": "x",
            "speed": 90,
            "doors": 2,
            "colour": "red",
            "extras": {},
            "wheels": {"number": 3, "sizes": [14, 15, 16]},
            "engine": {"type": "electric", "kilowatts": 80},
        }
    )
    assert problems == {}
    engine = Electric.Config("electric", (), 80.0)
    assert config == Car("x", 90.0, 2, "red", {}, Wheels(3, (14, 15, 16)), engine)


def test_all_problems_are_told_at_once_each_at_its_path() -> None:
    _, problems = parse(
        {
            "speed": -1,
            "doors": "two",
            "colour": "pink",
            "wheel": {},
            "wheels": {"number": 1.5, "sizes": 16},
            "engine": {"cylinders": 13, "turbo": 1},
        }
    )
    assert problems == {
        "name": "is required",
        "speed": "must be at least 0, not -1",
        "doors": "must be an integer, not 'two' (a string)",
        "colour": "must be one of None, 'red', 'blue', not 'pink'",
        "wheel": "unknown key; did you mean 'wheels'?",
        "wheels.number": "must be an integer, not 1.5 (a number)",
        "wheels.sizes": "must be a list, not 16 (an integer)",
        "engine.cylinders": "must be at most 12, not 13",
        "engine.turbo": "must be true or false, not 1 (an integer)",
    }


def test_a_setting_without_a_default_is_required() -> None:
    assert parse({}) == (None, {"name": "is required"})
    assert parse({"name": 3}) == (None, {"name": "must be a string, not 3 (an integer)"})


@pytest.mark.parametrize("value", [None, 3, "text", [1]])
@pytest.mark.parametrize("part", ["wheels", "engine"])
def test_a_part_must_be_a_mapping(part: str, value: Any) -> None:
    _, problems = parse({"name": "x", part: value})
    assert list(problems) == [part]
    assert problems[part].startswith("must be a mapping of settings, not")


@pytest.mark.parametrize("value", [None, 3, "text", [1]])
def test_the_whole_must_be_a_mapping(value: Any) -> None:
    _, problems = parse(value)
    assert problems[""].startswith("must be a mapping of settings, not")


# ----------------------------------------------------------------------------------- unknown keys


def test_an_unknown_key_far_from_all_lists_what_there_is() -> None:
    _, problems = parse({"name": "x", "wheels": {"zzz": 1}})
    assert problems == {"wheels.zzz": "unknown key; known here: number, sizes"}


@pytest.mark.parametrize("key", [1, None, True])
def test_a_key_that_is_no_text_is_unknown(key: Any) -> None:
    _, problems = parse({"name": "x", "wheels": {key: 1}})
    assert problems == {f"wheels.{key}": "unknown key; known here: number, sizes"}


@pytest.mark.parametrize("key", RETIRED_KEYS)
def test_retired_keys_are_accepted_with_a_note(key: str) -> None:
    parser = Parser()
    config = parser.parse(Car, {"name": "x", "wheels": {key: "whatever"}})
    assert parser.problems == []
    assert config.wheels == Wheels()
    assert parser.notes == [f"wheels.{key} is ignored: {RETIRED_KEYS[key]}"]


# ------------------------------------------------------------------------------------- components


def test_the_type_chooses_the_settings() -> None:
    _, problems = parse({"name": "x", "engine": {"type": "electric", "cylinders": 4}})
    assert list(problems) == ["engine.cylinders"]
    assert problems["engine.cylinders"].startswith("unknown key; known here: import_names, kilo")


def test_an_unknown_type_is_told_with_the_nearest_name() -> None:
    _, problems = parse({"name": "x", "engine": {"type": "electrik", "kilowatts": -1}})
    assert list(problems) == ["engine.type"]
    assert "did you mean 'electric'?" in problems["engine.type"]


def test_a_class_without_settings_is_no_type() -> None:
    _, problems = parse({"name": "x", "engine": {"type": "pathlib:Path"}})
    assert list(problems) == ["engine.type"]
    assert "'pathlib:Path' is no type of" in problems["engine.type"]


@pytest.mark.parametrize("value", [None, 3, ["petrol"]])
def test_a_type_that_is_no_text_is_a_problem(value: Any) -> None:
    assert list(parse({"name": "x", "engine": {"type": value}})[1]) == ["engine.type"]


def test_every_missing_import_is_told_at_its_component() -> None:
    parser = Parser()
    parser.parse(Car, {"name": "x", "engine": {"import_names": ["no_such_a", "no_such_b"]}})
    assert [problem.path for problem in parser.problems] == ["engine.import_names"] * 2
    assert "'no_such_a'" in parser.problems[0].message
    assert "'no_such_b'" in parser.problems[1].message


@pytest.mark.parametrize("names", [5, {"a": 1}, [5], [""], [".x"], "json", "no_such_module"])
def test_import_names_must_be_a_list_of_module_names(names: Any) -> None:
    assert list(parse({"name": "x", "engine": {"import_names": names}})[1]) == [
        "engine.import_names"
    ]


def test_imported_modules_are_named_in_the_result() -> None:
    config, problems = parse({"name": "x", "engine": {"import_names": ["json", "math"]}})
    assert problems == {}
    assert config.engine.import_names == ("json", "math")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([0, "one"], None),
        ([0, "0"], "has '0' twice, as a text and as a number: quote both"),
        ([0.5], "has the key 0.5 (a number), where a text stands: quote it"),
    ],
)
def test_names_of_components_are_texts(names: list[Any], problem: str | None) -> None:
    parser = Parser()
    fleet = parser.parse(Fleet, {"engines": {name: {"type": "electric"} for name in names}})
    assert parser.problems == ([Problem("engines", problem)] if problem is not None else [])
    assert [*fleet.engines] == ([] if problem is not None else ["0", "one"])


def test_rules_of_a_component_are_checked_at_its_path() -> None:
    _, problems = parse({"name": "x", "engine": {"cylinders": 2, "turbo": True}})
    assert problems == {"engine.turbo": "needs three cylinders"}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, "is required"),  # rules hold for a component that is left out
        ({"engine": {"coal": 3}}, "must be a string, not 3 (an integer)"),  # and repeat no problem
        ({"engine": {"coal": ""}}, "is required"),
    ],
)
def test_rules_add_what_is_not_told_yet(mapping: dict[str, Any], message: str) -> None:
    parser = Parser()
    parser.parse(Train, mapping)
    assert parser.problems == [Problem("engine.coal", message)]


# ------------------------------------------------------------------------------------------ types


@pytest.mark.parametrize(
    ("value", "hint", "result"),
    [
        (3, int, 3),
        (3.0, int, 3),
        (1e6, int, 1_000_000),
        (3, float, 3.0),
        (1e-3, float, 0.001),
        (math.inf, float, math.inf),
        (2**63 - 1, int, 2**63 - 1),
        ("inf", float, math.inf),  # JSON has no other way to say it
        (True, bool, True),
        ("x", str, "x"),
        (None, int | None, None),
        (4, int | None, 4),
        ([1, 2], tuple[int, ...], (1, 2)),
        ((1, 2.0), list[int], [1, 2]),
        ([], tuple[int, ...], ()),
        (4, int | tuple[int, ...] | None, 4),
        ([4, 5], int | tuple[int, ...] | None, (4, 5)),
        ({"a": 1}, dict[str, Any], {"a": 1}),
        ({0: "a", "b": "c"}, dict[str, str], {"0": "a", "b": "c"}),
        ({"a": {0: 1}}, dict[str, Any], {"a": {0: 1}}),  # somebody else's: as it is
        ({0: 1}, dict, {0: 1}),
        ("b", Literal["a", "b"], "b"),
        (object, Any, object),
        (np.int64(3), int, 3),
        (np.float32(3), int, 3),
        (np.float32(0.5), float, 0.5),
        (np.uint8(3), float | None, 3.0),
        (np.True_, bool, True),
        (np.str_("b"), Literal["a", "b"], "b"),
        ([np.int64(1), 2], tuple[int, ...], (1, 2)),
    ],
)
def test_values_that_fit(value: Any, hint: Any, result: Any) -> None:
    got = convert(value, hint)
    assert got == result
    assert type(got) is type(result)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        (True, int, "must be an integer, not True (true or false)"),
        (True, float, "must be a number, not True (true or false)"),
        (1, bool, "must be true or false, not 1 (an integer)"),
        (2.5, int, "must be an integer, not 2.5 (a number)"),
        (np.float32(2.5), int, "must be an integer, not 2.5 (a number)"),
        (np.True_, int, "must be an integer, not True (true or false)"),
        (math.inf, int, "must be an integer, not inf (a number)"),
        (math.nan, int, "must be a number, not nan"),
        (math.nan, float, "must be a number, not nan"),
        (math.nan, float | None, "must be a number, not nan"),
        ([1.0, math.nan], tuple[float, ...], "must be a number, not nan"),
        (1e30, int, "must be an integer from -2^63 to 2^63 - 1"),
        (2**63, int | None, "must be an integer from -2^63 to 2^63 - 1"),
        ("3", int, "must be an integer, not '3' (a string)"),
        ("1e-3", float, "must be a number, not '1e-3' (a string)"),
        (3, str, "must be a string, not 3 (an integer)"),
        (None, int, "must be an integer, not empty"),
        (None, str, "must be a string, not empty"),
        ([1], int, "must be an integer, not a list"),
        ({}, str, "must be a string, not a mapping"),
        ("ab", tuple[str, ...], "must be a list, not 'ab' (a string)"),
        ([1, "x"], tuple[int, ...], "must be an integer, not 'x' (a string)"),
        ([1], dict[str, Any], "must be a mapping, not a list"),
        ({0: 1, "0": 2}, dict[str, int], "has '0' twice, as a text and as a number: quote both"),
        (
            {True: 1},
            dict[str, int],
            "has the key True (true or false), where a text stands: quote it",
        ),
        ("c", Literal["a", "b"], "must be one of 'a', 'b', not 'c'"),
        (
            "x",
            int | tuple[int, ...] | None,
            "must be an integer, not 'x' (a string); or must be a list, not 'x' (a string)",
        ),
    ],
)
def test_values_that_do_not_fit(value: Any, hint: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        convert(value, hint)
    assert str(caught.value) == message


# --------------------------------------------------------- bounds, frozen results, plain data

QUICK = settings(deadline=None, max_examples=60)


@dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...] = setting((1, 2), "some sizes")


@dataclass(frozen=True)
class Outer(ComponentConfig):
    rate: float = setting(1.0, "a rate", above=0, maximum=10)
    options: dict[str, Any] = setting({"a": [1]}, "anything")
    inner: Inner = section(Inner, "a part")


@pytest.mark.parametrize(
    ("bounds", "value", "objection"),
    [
        (Bounds(minimum=1), 1, None),
        (Bounds(minimum=1), 0, "must be at least 1, not 0"),
        (Bounds(maximum=2), 2, None),
        (Bounds(maximum=2), 2.5, "must be at most 2, not 2.5"),
        (Bounds(above=0), 1e-300, None),
        (Bounds(above=0), 0.0, "must be above 0, not 0"),
        (Bounds(minimum=0), math.inf, None),
        (Bounds(minimum=0), math.nan, "must be at least 0, not nan"),
        (Bounds(above=0), math.nan, "must be above 0, not nan"),
        (Bounds(maximum=1), math.nan, "must be at most 1, not nan"),
        (Bounds(minimum=1), None, None),  # whether null is allowed is the type's matter
        (Bounds(minimum=1), "text", None),
        (Bounds(choices=("a", None)), None, None),
        (Bounds(choices=("a", "b")), "c", "must be one of 'a', 'b', not 'c'"),
        (Bounds(), -1e9, None),
    ],
)
def test_bounds(bounds: Bounds, value: Any, objection: str | None) -> None:
    assert bounds.objection(value) == objection


@QUICK
@given(st.floats(), st.floats(-10, 10), st.floats(-10, 10))
def test_bounds_are_comparisons(value: float, low: float, high: float) -> None:
    is_allowed = Bounds(minimum=low, maximum=high).objection(value) is None
    assert is_allowed == (low <= value <= high)


def test_results_are_frozen() -> None:
    config = Parser().parse(Outer, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.rate = 2.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.inner.sizes = ()


def test_defaults_are_not_shared() -> None:
    first, second = Outer(), Outer()
    first.options["a"].append(2)
    assert second.options == {"a": [1]}


def test_a_setting_says_what_it_is_about() -> None:
    about = {field.name: field.metadata.get("about") for field in dataclasses.fields(Outer)}
    assert about["rate"] == "a rate"
    assert about["inner"] == "a part"


def test_plain_data_holds_lists_and_scalars_only() -> None:
    config = Outer("x", ("m",), 2.0, {"b": (1, {3: None})}, Inner((4,)))
    assert to_mapping(config) == {
        "type": "x",
        "import_names": ["m"],
        "rate": 2.0,
        "options": {"b": [1, {3: None}]},
        "inner": {"sizes": [4]},
    }


@QUICK
@given(st.floats(0, 10, exclude_min=True), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_plain_data_parses_to_the_same(rate: float, sizes: list[int]) -> None:
    config = Outer("x", (), rate, {}, Inner(tuple(sizes)))
    parser = Parser()
    assert parser.parse(Outer, to_mapping(config)) == config
    assert parser.problems == []


def test_a_component_has_no_rules_by_default() -> None:
    assert list(ComponentConfig().problems()) == []


def test_a_default_is_what_is_read_back_where_it_was_written() -> None:
    @dataclass(frozen=True)
    class OfUser(ComponentConfig):
        rate: float = 30
        limit: float | None = setting(5, "most")
        none: int = None  # type: ignore[assignment]
        weights: dict[str, float] = setting({"a": 1}, "of parts")

    parsed = Parser().parse(OfUser, {})
    kinds = [type(value) for value in (parsed.rate, parsed.limit, parsed.none)]
    assert kinds == [float, float, type(None)]


def test_defaults_of_settings_are_of_their_types() -> None:
    for module in pkgutil.iter_modules(config.__path__, "hpcdi.config."):
        for cls in vars(importlib.import_module(module.name)).values():
            if isinstance(cls, type) and dataclasses.is_dataclass(cls):
                for each in dataclasses.fields(cls):
                    is_float = "float" in str(each.type)
                    whole = type(each.default) is int and "int" not in str(each.type)
                    assert not (is_float and whole), f"{cls.__name__}.{each.name}"


@dataclass(frozen=True)
class Plain:
    x: float = 1.0
    y: int = 2


@dataclass(frozen=True)
class OfUser:
    """Settings as Python has them, declared by nothing of hpcdi."""

    one: Plain = Plain(x=3.0)
    maybe: Plain | None = Plain(y=8)
    several: tuple[Plain, ...] = (Plain(),)
    pair: tuple[float, int] = (0.5, 1)


def test_annotations_of_python_s_own_kinds_are_understood_on_all_ranks() -> None:
    mapping = {"one": {"y": 5}, "maybe": {"x": 4}, "several": [{}, {"y": 7}], "pair": [2, 3]}
    parser = Parser()
    for given_by, expected in (
        ({}, OfUser()),
        (mapping, OfUser(Plain(3.0, 5), Plain(4.0, 8), (Plain(), Plain(y=7)), (2.0, 3))),
    ):
        parsed = parser.parse(OfUser, given_by)
        assert parsed == restore(OfUser, to_mapping(parsed)) == expected
        assert isinstance(parsed.pair[1], int)
    assert not parser.problems
    parser.parse(OfUser, {"one": {"z": 1}, "pair": [1, 2, 3]})
    assert [problem.path for problem in parser.problems] == ["one", "pair"]
    assert "z: unknown key" in parser.problems[0].message
    assert parser.problems[1].message == "must have 2 values, not 3"


def test_no_default_is_made_where_a_value_is_given() -> None:
    def fails() -> list[int]:
        raise AssertionError("it was called")

    @dataclass(frozen=True)
    class Made:
        numbers: list[int] = dataclasses.field(default_factory=fails)

    assert Parser().parse(Made, {"numbers": [3]}) == Made([3])
