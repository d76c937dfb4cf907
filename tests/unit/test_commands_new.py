"""`hpcdi new`: what it writes works at once, and nothing is written over."""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdi.cli import main
from hpcdi.utils.registry import POLICY_REGISTRY

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("kind", ["policy", "env", "env --mpi", "env --mpi c"])
def test_what_is_written_passes_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind.endswith(" c") and shutil.which("cc") is None:
        pytest.skip("NO C COMPILER: what is written in C is not tested here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["new", *kind.split()[:1], "my_own", *kind.split()[1:]]) == 0
    written = {file.name for file in tmp_path.iterdir()}
    source = "my_own.c" if kind.endswith(" c") else "my_own.py"
    assert written == {source, "my_own.yaml", "test_my_own.py"}
    try:
        tests = vars(importlib.import_module("test_my_own"))
        for name in [name for name in tests if name.startswith("test_")]:
            takes = inspect.signature(tests[name]).parameters
            tests[name](**{"tmp_path": tmp_path} if takes else {})
    finally:
        POLICY_REGISTRY._classes.pop("my_own", None)
        for module in ("my_own", "test_my_own"):
            sys.modules.pop(module, None)


def test_a_class_hides_nothing_that_its_files_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `_` there was a class without a name; one named Path hid pathlib's in the test."""
    monkeypatch.chdir(tmp_path)
    classes = {"_": "Own", "path": "OwnPath", "_2048": "Own2048", "my_flow": "MyFlow"}
    for name, kind in classes.items():
        assert main(["new", "env", name, "--mpi"]) == 0
        assert f"class {kind}:" in Path(f"{name}.py").read_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-own", "'my-own' is no name of a Python module: use letters, digits and _"),
        ("dqn", "there is a module or a policy dqn already"),
        ("json", "there is a module or a policy json already"),
        ("there", "already there: there.yaml; nothing was written"),
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
    assert said in refused("new", Path("policy"), name)
    assert [file.name for file in tmp_path.iterdir()] == ["there.yaml"]
