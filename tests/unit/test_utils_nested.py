"""Nested dictionaries as flat columns, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.utils.nested import (
    dotted,
    flatten,
    jsonable,
    split_columns,
    stack_columns,
    to_ndarrays,
    to_tensors,
    unflatten,
)
from hpcdi.worker.dict_envs import to_arrays

QUICK = settings(deadline=None, max_examples=60)

keys = st.text("abcxyz_0 .ü", min_size=1, max_size=4)
trees = st.recursive(
    st.dictionaries(keys, st.integers(), min_size=1, max_size=3),
    lambda inner: st.dictionaries(keys, st.one_of(st.integers(), inner), min_size=1, max_size=3),
    max_leaves=8,
)


def test_paths_are_joined_in_order() -> None:
    tree = {"obs": {"image": 1, "speed": 2}, "done": 3}
    assert list(flatten(tree).items()) == [("obs/image", 1), ("obs/speed", 2), ("done", 3)]
    assert flatten(tree, "next/") == {"next/obs/image": 1, "next/obs/speed": 2, "next/done": 3}


def test_a_mapping_whose_keys_are_no_names_stays_whole() -> None:
    whole = {"kwargs": {1: "a", "b": 2}, "schedule": {"kwargs.wind": {"x": 1}}, "empty": {}}
    assert dict(dotted({"env": {**whole, "deep": {"er": 1}}})) == {
        **{f"env.{name}": value for name, value in whole.items()},
        "env.deep.er": 1,
    }


@QUICK
@given(trees)
def test_unflatten_undoes_flatten(tree: dict[str, Any]) -> None:
    assert unflatten(flatten(tree)) == tree


@QUICK
@given(st.dictionaries(keys, st.one_of(st.just({}), trees), max_size=4))
def test_empty_mappings_are_leaves_on_demand(tree: dict[str, Any]) -> None:
    assert unflatten(flatten(tree, keep_empty=True)) == tree
    assert unflatten(flatten(tree)) == {key: value for key, value in tree.items() if value}


@pytest.mark.parametrize("turn", [1, -1])
def test_a_path_below_a_value_stays_a_key(turn: int) -> None:
    """Infos of Gymnasium have ``reward`` beside ``reward/ctrl``: neither is lost."""
    flat = {"reward": 1, "reward/ctrl": 2, "x/y": 3, "x/y/z": 4, "x/w": 5}
    flat = dict([*flat.items()][::turn])
    assert unflatten(flat) == {
        "reward": 1, "reward/ctrl": 2, "x": {"y": 3, "w": 5}, "x/y/z": 4,
    }  # fmt: skip


def test_numbers_of_every_kind_are_json() -> None:
    kinds = (np.float16, np.float32, np.float64, np.longdouble)
    values = [*(kind(1.5) for kind in kinds), np.longdouble("nan"), np.int8(2), np.True_]
    assert jsonable({"of": values}) == {"of": [1.5, 1.5, 1.5, 1.5, None, 2, True]}


@pytest.mark.parametrize("convert", [to_arrays, to_ndarrays])
@pytest.mark.parametrize(("dtype", "kept_as"), [("bfloat16", "float32"), ("float16", "float16")])
def test_actions_are_arrays_of_any_precision(convert: Any, dtype: str, kept_as: str) -> None:
    (action,) = convert([torch.ones(2, dtype=getattr(torch, dtype))])
    assert action.dtype == kept_as


@pytest.mark.parametrize(
    "seen", [torch.ones(2, dtype=torch.bfloat16), torch.ones(2, requires_grad=True)]
)
def test_observations_may_be_tensors_of_any_kind(seen: torch.Tensor) -> None:
    (tensor,) = to_tensors([seen])
    assert torch.equal(tensor, torch.ones(2))
    assert not tensor.requires_grad


def test_a_slash_in_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="must not contain '/': 'b/c'"):
        flatten({"a": {"b/c": 1}})


def test_stacking_gives_one_row_an_item() -> None:
    items = [
        {"obs": {"image": np.full((2, 2), k, dtype=np.uint8)}, "reward": 0.5 * k, "done": k == 2}
        for k in range(3)
    ]
    columns = stack_columns(items)
    assert columns["obs/image"].shape == (3, 2, 2)
    assert columns["obs/image"].dtype == np.uint8
    assert columns["reward"].tolist() == [0.0, 0.5, 1.0]
    assert columns["done"].tolist() == [False, False, True]
    assert columns["done"].dtype == bool


@QUICK
@given(trees, st.integers(1, 4))
def test_split_undoes_stack(tree: dict[str, Any], rows: int) -> None:
    def item(row: int) -> dict[str, Any]:
        flat = {name: np.array([row, value % 1000]) for name, value in flatten(tree).items()}
        return unflatten(flat)

    items = [item(row) for row in range(rows)]
    back = split_columns(stack_columns(items))
    assert len(back) == rows
    for given_item, got in zip(items, back, strict=True):
        assert {n: a.tolist() for n, a in flatten(got).items()} == {
            n: a.tolist() for n, a in flatten(given_item).items()
        }


def test_nothing_stacks_to_nothing() -> None:
    assert stack_columns([]) == {}
    assert split_columns({}) == []


def test_items_with_other_keys_are_named() -> None:
    with pytest.raises(ValueError, match=r"item 2 differs from item 0 in the keys \['b', 'c'\]"):
        stack_columns([{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}])


def test_items_with_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        stack_columns([{"a": np.zeros(2)}, {"a": np.zeros(3)}])


@pytest.mark.parametrize("others", [[1, {}], [{}, 1], [np.zeros(2), {"b": 1}], [{"b": 1}, None]])
def test_items_of_which_some_are_nested_are_refused(others: list[Any]) -> None:
    with pytest.raises(ValueError, match="'a/x'"):
        stack_columns([{"a": {"x": other}} for other in others])


def test_the_order_of_keys_does_not_matter() -> None:
    columns = stack_columns([{"a": 1, "b": 2}, {"b": 4, "a": 3}])
    assert {name: column.tolist() for name, column in columns.items()} == {"a": [1, 3], "b": [2, 4]}
