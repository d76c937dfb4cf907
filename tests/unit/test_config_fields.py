"""Bounds of settings, frozen results, and plain data of a configuration."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.config.fields import Bounds, ComponentConfig, section, setting, to_mapping
from hpcdi.config.parse import Parser

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
        "options": {"b": [1, {"3": None}]},
        "inner": {"sizes": [4]},
    }


@QUICK
@given(st.floats(0, 10, exclude_min=True), st.lists(st.integers(), max_size=4))
def test_plain_data_parses_to_the_same(rate: float, sizes: list[int]) -> None:
    config = Outer("x", (), rate, {}, Inner(tuple(sizes)))
    parser = Parser()
    assert parser.parse(Outer, to_mapping(config)) == config
    assert parser.problems == []


def test_a_component_has_no_rules_by_default() -> None:
    assert list(ComponentConfig().problems()) == []
