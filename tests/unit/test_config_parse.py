"""Mappings to frozen dataclasses: types, bounds, sections, all problems at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from hpcdi.config.fields import ComponentConfig, component, section, setting
from hpcdi.config.parse import RETIRED_KEYS, Parser, convert
from hpcdi.errors import Problem
from hpcdi.utils.registry import Registry

ENGINES = Registry("engine", "json")


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


STEAM = Registry("engine", "json")


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
        "doors": "must be an integer, not 'two' (a text)",
        "colour": "must be one of None, 'red', 'blue', not 'pink'",
        "wheel": "unknown key; did you mean 'wheels'?",
        "wheels.number": "must be an integer, not 1.5 (a number)",
        "wheels.sizes": "must be a list, not 16 (an integer)",
        "engine.cylinders": "must be at most 12, not 13",
        "engine.turbo": "must be true or false, not 1 (an integer)",
    }


def test_a_setting_without_a_default_is_required() -> None:
    assert parse({}) == (None, {"name": "is required"})
    assert parse({"name": 3}) == (None, {"name": "must be a text, not 3 (an integer)"})


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


def test_rules_of_a_component_are_checked_at_its_path() -> None:
    _, problems = parse({"name": "x", "engine": {"cylinders": 2, "turbo": True}})
    assert problems == {"engine.turbo": "needs three cylinders"}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, "is required"),  # rules hold for a component that is left out
        ({"engine": {"coal": 3}}, "must be a text, not 3 (an integer)"),  # and repeat no problem
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
        ("b", Literal["a", "b"], "b"),
        (object, Any, object),
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
        (math.inf, int, "must be an integer, not inf (a number)"),
        (math.nan, int, "must be a number, not nan"),
        ("3", int, "must be an integer, not '3' (a text)"),
        ("1e-3", float, "must be a number, not '1e-3' (a text)"),
        (3, str, "must be a text, not 3 (an integer)"),
        (None, int, "must be an integer, not empty"),
        (None, str, "must be a text, not empty"),
        ([1], int, "must be an integer, not a list"),
        ({}, str, "must be a text, not a mapping"),
        ("ab", tuple[str, ...], "must be a list, not 'ab' (a text)"),
        ([1, "x"], tuple[int, ...], "must be an integer, not 'x' (a text)"),
        ([1], dict[str, Any], "must be a mapping, not a list"),
        ("c", Literal["a", "b"], "must be one of 'a', 'b', not 'c'"),
        (
            "x",
            int | tuple[int, ...] | None,
            "must be an integer, not 'x' (a text); or must be a list, not 'x' (a text)",
        ),
    ],
)
def test_values_that_do_not_fit(value: Any, hint: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        convert(value, hint)
    assert str(caught.value) == message
