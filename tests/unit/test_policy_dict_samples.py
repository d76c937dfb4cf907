"""Samples of policies of dicts travel as columns, and come back as tensors in the same tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hpcdi.errors import PolicyError
from hpcdi.worker.dict_samples import columns_of, samples_of


def sample(number: int) -> dict[str, Any]:
    states = [{"h": torch.full((1, 2), 10.0 * number + step), "c": step} for step in range(3)]
    return {
        "obs": [np.full(4, number, np.float32), np.zeros(4, np.float32)],
        "prev_state": states,
        "logit": {"mu": torch.tensor([float(number)]), "sigma": torch.ones(1)},
        "grid": [[[number, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [0, 1]]],
        "done": number > 0,
        "gamma": 0.5,
        "double": np.float64(number),
    }


def test_names_are_the_paths_and_sequences_are_an_axis() -> None:
    columns = columns_of([sample(0), sample(1)])
    shapes = {name: (column.shape, column.dtype.name) for name, column in columns.items()}
    assert shapes == {
        "obs[]": ((2, 2, 4), "float32"),
        "prev_state[]/h": ((2, 3, 1, 2), "float32"),
        "prev_state[]/c": ((2, 3), "int64"),
        "logit/mu": ((2, 1), "float32"),
        "logit/sigma": ((2, 1), "float32"),
        "grid[][][]": ((2, 3, 2, 2), "int64"),
        "done": ((2,), "bool"),
        "gamma": ((2,), "float32"),
        "double": ((2,), "float64"),
    }


def test_bfloat16_is_kept_as_float32() -> None:
    (column,) = columns_of([{"q": torch.ones(3, dtype=torch.bfloat16)}] * 2).values()
    assert (column.dtype, column.shape) == (np.float32, (2, 3))


def test_they_come_back_as_they_were() -> None:
    samples = [sample(number) for number in range(4)]
    tensors = {name: torch.from_numpy(column) for name, column in columns_of(samples).items()}
    for back, made in zip(samples_of(tensors), samples, strict=True):
        assert_same(back, made)
    assert samples_of({}) == []
    assert columns_of([]) == {}


def assert_same(back: Any, made: Any) -> None:
    if isinstance(made, dict):
        assert back.keys() == made.keys()
        for key in made:
            assert_same(back[key], made[key])
    elif isinstance(made, list):
        assert isinstance(back, list)
        assert len(back) == len(made)
        for one, other in zip(back, made, strict=True):
            assert_same(one, other)
    else:
        assert isinstance(back, torch.Tensor)
        assert back.shape == np.shape(made)
        assert np.array_equal(back.numpy(), np.asarray(made))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"a": [1, 2, 3]}, "sequences of one length"),
        ({"a": 1}, "sequences of one length"),
        ({"b": [1, 2]}, r"not all of them have \['a', 'b'\]"),
        ({"a": [np.zeros(2), np.zeros(3)]}, "differ in 'a"),
    ],
)
def test_samples_that_differ_are_refused(other: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        columns_of([{"a": [1, 2]}, other])


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"a": "text"}, "'a' is 'text'"),
        ({"a": None}, "'a' is None"),
        ({"a": []}, "'a' is empty"),
        ({"a/b": 1}, "must not have '/'"),
        ({"a[]": 1}, "end in"),
        ({"a": {3: 1}}, "a sample's key is a text.*: 3 in 'a'"),
        ({3: 1}, "a sample's key is a text.*: 3$"),
        ({"a": {"b": {}}, "c": 1}, "mapping 'a/b' is empty: leave it out"),
        ({}, "a sample of a policy is empty"),
    ],
)
def test_what_no_column_holds_is_refused(odd: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        columns_of([odd, odd])
