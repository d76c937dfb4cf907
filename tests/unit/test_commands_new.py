"""`hpcdi new`: what it writes works at once, and nothing is written over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdi.cli import main


@pytest.mark.parametrize("kind", ["policy", "env"])
def test_what_is_written_passes_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "my_own"]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {
        "my_own.py",
        "my_own.yaml",
        "test_my_own.py",
    }
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_own.py"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-own", "'my-own' is no name of a Python module: use letters, digits and _"),
        ("dqn", "there is a module or a policy dqn already"),
        ("json", "there is a module or a policy json already"),
        ("there", "there.yaml is there already; nothing was written"),
    ],
)
def test_names_that_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
    name: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.yaml").touch()
    assert said in refused("new", "policy", name)
    assert [file.name for file in tmp_path.iterdir()] == ["there.yaml"]
