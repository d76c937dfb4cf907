"""The tree of errors: exit codes, and what the messages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdi import errors
from hpcdi.errors import (
    ConfigError,
    HpcdiError,
    Problem,
    ShardError,
    StoreError,
    UnknownTypeError,
    WorkerSilentError,
)

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, HpcdiError)
]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_is_drawn_with_its_exit_code(cls: type[HpcdiError]) -> None:
    """The tree in the docstring is the tree; a line without a number has its parent's."""
    lines = (errors.__doc__ or "").splitlines()
    drawn = [line for line in lines if cls.__name__ in line.replace("─", " ").split()]
    assert len(drawn) == 1, f"{cls.__name__} is drawn {len(drawn)} times"
    numbers = [int(word) for word in drawn[0].split() if word.isdigit()]
    parent = cls.__bases__[0]
    inherited = getattr(parent, "exit_code", 1)
    assert cls.exit_code == (numbers[0] if numbers else inherited)


def test_a_config_error_lists_all_problems() -> None:
    problems = [Problem("seed", "must be a number"), Problem("", "there is no file 'x'")]
    error = ConfigError(problems, "x.yaml")
    assert str(error) == (
        "x.yaml has 2 problems\n  - seed: must be a number\n  - there is no file 'x'"
    )
    assert error.problems == tuple(problems)
    assert error.source == "x.yaml"
    assert str(ConfigError(problems[:1])).startswith("the configuration has 1 problem\n")


def test_an_unknown_type_prints_without_quotes() -> None:
    """KeyError alone would print the repr of its message."""
    assert str(UnknownTypeError("no such type")) == "no such type"
    assert str(UnknownTypeError()) == ""


def test_a_store_error_names_its_file() -> None:
    error = ShardError("data/1.h5", "is torn")
    assert str(error) == "data/1.h5: is torn"
    assert error.path == Path("data/1.h5")
    assert error.reason == "is torn"
    assert isinstance(error, StoreError)


def test_a_silent_worker_is_named_with_what_to_read() -> None:
    text = str(WorkerSilentError(3, 61.4, "BlockReady"))
    assert text.startswith("rank 3 has been silent for 61 s; its last message: BlockReady")
    assert "log/rank00003.jsonl" in text
