"""A run's config.yaml: every change of it is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hpcdi.store.sealed import change_of, write_sealed

TEXT = "env:\n  stop_value: 195\npolicy: {discount_factor: 0.99}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    write_sealed(path, TEXT)
    return path


def test_it_is_yaml_still(file: Path) -> None:
    assert yaml.safe_load(file.read_text()) == yaml.safe_load(TEXT)
    assert change_of(file) == ""


def test_every_flip_and_every_cut_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    for place in range(len(whole)):
        for damaged in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :],
        ):
            file.write_bytes(damaged)
            assert change_of(file), damaged
    file.write_bytes(whole + b"policy: {type: ppo}\n")
    assert change_of(file) == "its checksum is wrong"
