"""Words of YAML: what a person writes into `env.kwargs` is what the environment gets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hpcdi.config import words
from hpcdi.config.load import read_mapping
from hpcdi.config.words import dump
from hpcdi.errors import ConfigError

READ: dict[str, Any] = {
    "NO": "NO", "no": "no", "off": "off", "On": "On", "yes": "yes", "y": "y", "true": True,
    "False": False, "12:30:00": "12:30:00", "1:30": "1:30", "190:20:30.15": "190:20:30.15",
    "0123": 123, "-7": -7, "1_000_000": 1_000_000, "0x1F": 31, "0b11": 3, "1e6": 1e6,
    "1e-3": 1e-3, "1.10": 1.1, ".5": 0.5, "-.inf": -math.inf, "~": None, "null": None,
    "0o17": 15, "'0o17'": "0o17", "'0_e1'": "0_e1", "0o18": "0o18", "+1": 1, "0x_": "0x_",
    "2026-11-26": "2026-11-26", "'1'": "1", "1.2.3": "1.2.3",
    "{1: a, yes: b}": {1: "a", "yes": "b"},
    "[no, 1, 08]": ["no", 1, 8],
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_words_are_those_of_yaml_1_2(text: str, tmp_path: Path) -> None:
    assert words.read(text) == READ[text]
    assert type(words.read(text)) is type(READ[text])
    (tmp_path / "x.yaml").write_text(f"env: {{kwargs: {{id: {text}}}}}\n")
    wanted = {"env": {"kwargs": {"id": READ[text]}}}
    read = read_mapping(tmp_path / "x.yaml")
    assert read == wanted
    assert read_mapping(tmp_path / "x.yaml", [f"env.kwargs.id={text}"]) == wanted
    (tmp_path / "again.yaml").write_text(dump(read))
    assert read_mapping(tmp_path / "again.yaml") == wanted, "config.yaml of a run says the same"


def test_keys_that_come_twice_are_refused_and_anchors_merge(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("env: {a: 1, a: 2}\n")
    with pytest.raises(ConfigError, match="duplicate key a"):
        read_mapping(tmp_path / "x.yaml")
    (tmp_path / "y.yaml").write_text("base: &base {a: 1, b: 2}\nenv: {<<: *base, b: 3}\n")
    assert read_mapping(tmp_path / "y.yaml")["env"] == {"a": 1, "b": 3}
    (tmp_path / "z.yaml").write_text("x: {y: {z: &a {<<: &b {p: 1, q: 2}, p: 3}}}\nc: {<<: *a}\n")
    assert read_mapping(tmp_path / "z.yaml")["c"] == {"p": 3, "q": 2}, "merged after it was read"


@pytest.mark.parametrize(
    "text", ["run ${CASE}", r"a\${b}", r"\\${b}", "${", "${a:b", "$ {a}", "\\"]
)
def test_what_is_written_is_read_as_it_was(text: str, tmp_path: Path) -> None:
    value = {"env": {"kwargs": {"texts": [text, {"one": text}], 3: text, 2.5: 1, True: 0}}}
    (tmp_path / "x.yaml").write_text(dump(value))
    assert read_mapping(tmp_path / "x.yaml") == value
