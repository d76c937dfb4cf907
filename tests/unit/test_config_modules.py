"""Which code a configuration names, and in which folders it is looked for."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fakes.processes import python
from hpcdi.config.load import load
from hpcdi.config.modules import folders_of_modules, modules_beside, named_code
from hpcdi.utils.python import python_command

YAML = "exp_name: x\nenv: {env_id: CartPole-v1}\npolicy: {type: dqn}\n"


@pytest.mark.parametrize(
    "tree",
    [
        {"env": {"env_id": "evil:ns/X-v0"}},
        {"env": {"env_id": "evil:X-v0"}},
        {"env": {"env_id": "evil-mod:X"}},
        {"env": {"env_id": " evil:X"}},
        {"env": {"env_id": "evil: 0"}},
        {"env": {"env_id": "a.evil:b/C.d-v1"}},
        {"env": {"kwargs": {"entry_point": "evil:Env"}}},
        {"env": {"wrappers": [{"evil:Wrap": {}}]}},
        {"env": {"wrappers": ["evil:Wrap"]}},
        {"env": {"import_names": ["evil"]}},
        {"env": {"import_names": "evil"}},
        {"env": {"ding": {"import_names": ["evil"]}}},
        {"policy": {"learn": {"optimizer": {"type": "evil:Adam"}}}},
        {"policy": {"model": {"encoder": "evil:make"}}},
        {"policy": {"other": {"commander": {"league": {"fixed": {"bot": "evil:play"}}}}}},
        {"system": {"import_path": ["/evil"]}},
    ],
)
def test_every_key_that_can_name_a_module(tree: dict[str, Any]) -> None:
    assert list(named_code(tree)), tree


def test_what_names_no_module() -> None:
    harmless = {
        "env": {"env_id": "ALE/Pong-v5"},
        "policy": {"learn": {"learning_rate": 1e-3, "optimizer": {"type": "Adam"}}},
        "slurm": {"time": "1:30:00", "setup": ["export A=b:c"]},
        "system": {"import_path": [], "limit": "2-12:00:00"},
    }
    assert list(named_code(harmless)) == []


def test_the_folder_of_a_script_is_searched_and_no_package_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m hpcdi` found modules named data and env in hpcdi itself."""
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "mine.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert tmp_path in folders_of_modules(tmp_path / "configs" / "x.yaml")
    script.__spec__ = ModuleSpec("package.mine", None)
    assert tmp_path not in folders_of_modules(tmp_path / "configs" / "x.yaml")
    script.__spec__ = ModuleSpec("__main__", None)  # of a folder that runs
    assert tmp_path in folders_of_modules(tmp_path / "configs" / "x.yaml")
    del script.__spec__  # by pdb
    assert tmp_path in folders_of_modules(tmp_path / "configs" / "x.yaml")


def test_a_folder_is_searched_only_for_modules_that_are_named_and_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine, present = tmp_path / "mine", tmp_path / "present"
    for folder in (mine, present):
        folder.mkdir()
        for module in ("isal", "random", "numpy"):
            (folder / f"{module}.py").write_text("raise RuntimeError('it was imported')")
    (mine / "x.yaml").write_text(YAML)
    monkeypatch.chdir(present)
    assert load(mine / "x.yaml").config.system.import_path == ()
    assert modules_beside({"import_names": ["random", "numpy"]}, [mine, present]) == {}
    assert not {str(mine), str(present)} & set(sys.path)
    (present / "my_module_of_a_test.py").write_text("")
    (mine / "x.yaml").write_text(
        YAML.replace("env: {", "env: {import_names: [my_module_of_a_test], ")
    )
    assert load(mine / "x.yaml").config.system.import_path == (str(present),)
    assert sys.path[-1] == str(present)
    (mine / "my_module_of_a_test.py").write_text("")
    assert load(mine / "x.yaml").config.system.import_path == (str(mine),)


def planted(folder: Path) -> dict[str, str]:
    """A present folder whose modules would take the place of the standard library's."""
    for module in ("random", "types", "argparse", "isal", "hpcdi"):
        (folder / f"{module}.py").write_text("raise RuntimeError('of the present folder')")
    return {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}


@pytest.mark.parametrize("how", ["as ranks are", "as scripts do", "an empty entry"])
def test_commands_that_are_started_do_not_search_the_present_folder(
    tmp_path: Path, how: str
) -> None:
    variables, command = planted(tmp_path), python_command("hpcdi", "--version")
    if how == "as scripts do":
        command = [word for word in command if word != "-P"]
        for module in ("hpcdi", "types"):  # which Python itself takes, before it runs us
            (tmp_path / f"{module}.py").unlink()
    if how == "an empty entry":  # of PYTHONPATH=$PYTHONPATH:/x; those above are imported before us
        variables["PYTHONPATH"] = os.pathsep.join(["", "/x"])
        for module in ("hpcdi", "types"):
            (tmp_path / f"{module}.py").unlink()
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


CHILD = """\
import os, sys
from functools import partial
import gymnasium
from hpcdi.env.child_process import ChildWorker

class Looks(gymnasium.Env):
    def __init__(self):
        is_searched, variable = os.getcwd() in sys.path, os.environ.get("PYTHONSAFEPATH")
        raise RuntimeError(f"searched: {is_searched}; {variable}")

if __name__ == "__main__":
    worker = ChildWorker(Looks, start_method=sys.argv[1], is_battle=False,
                         step_timeout_s=None, reset_timeout_s=None)
    worker.ask(("make",))
    try:
        worker.answer()
    except Exception as error:
        print(str(error))
    worker.retire()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_child_processes_do_not_search_the_present_folder(tmp_path: Path, method: str) -> None:
    program, present = tmp_path / "program.py", tmp_path / "present"
    program.write_text(CHILD)
    present.mkdir()
    done = python(program, method, cwd=present, env=planted(present))
    assert "searched: False; None" in done.stdout, done.stderr
