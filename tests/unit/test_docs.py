"""README, guides and CHANGELOG: what they name exists, and what they show is what is printed."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcdi
from hpcdi import cli
from hpcdi.config.load import load
from hpcdi.worker import AdvancedReplayBuffer

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
GUIDES = [
    ROOT / folder / "README.md"
    for folder in ("configs", "slurm", "hpcdi", "hpcdi/worker", "hpcdi/policy", "hpcdi/env")
]
ALL_GUIDES = [
    *GUIDES,
    ROOT / "hpcdi/env/MPI.md",
    ROOT / "hpcdi/env/TEAMS.md",
    *sorted((ROOT / "guides").glob("*.md")),
]
CODE = re.findall(r"`([^`\n]+)`", README)
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
FOLDERS = ("hpcdi/", "configs/", "guides/", "slurm/", "tests/", "tools/")
EXPERIMENTS = ("cartpole_dqn", "cartpole_ppo", "tictactoe_league")


def shell_lines() -> list[str]:
    """Commands of README, in blocks and in tables, without their comments."""
    lines = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
    lines += [code for code in CODE if code.startswith(("hpcdi ", "make ", "srun ", "sbatch "))]
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 110


@pytest.mark.parametrize(
    "guide",
    ALL_GUIDES,
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_guides_name_what_exists(guide: Path) -> None:
    """Links, settings, and paths: from the root, or from the guide's own folder."""
    text = re.sub(r"```.*?```", "", guide.read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    files = [link.partition("#")[0] for link in links]
    assert [file for file in files if not (guide.parent / file).exists()] == []
    code = re.findall(r"`([^`\n]+)`", text)
    own = {path.name for path in guide.parent.iterdir() if path.is_dir()}
    paths = [word for word in code if re.fullmatch(r"[\w.-]+/[\w./-]*", word)]
    assert [
        path
        for path in paths
        if (path.startswith(FOLDERS) and not (ROOT / path).exists())
        or (path.split("/")[0] in own and not (guide.parent / path).exists())
    ] == []
    assert [key for key in settings_in(code) if not is_setting(key)] == []


def test_the_gallery_names_every_configuration_and_each_can_be_loaded() -> None:
    text, files = (ROOT / "configs" / "README.md").read_text(), (ROOT / "configs").glob("*.yaml")
    names = sorted(path.name for path in files)
    assert sorted(set(re.findall(r"[\w]+\.yaml", text)) & set(names)) == names
    for name in names:
        # without the packages that some need
        found = load(ROOT / "configs" / name, ["env.import_names=[]"]).to_mapping()
        assert found["exp_name"] == name.removesuffix(".yaml")


def settings_in(code: list[str]) -> list[str]:
    """Names of settings among code spans."""
    return sorted({c for c in code if re.fullmatch(r"(env|policy|system)(\.\w+)+", c)})


def is_setting(key: str) -> bool:
    """Whether an experiment has a setting."""
    return any(_has(experiment(name), key) for name in EXPERIMENTS)


@functools.cache
def experiment(name: str) -> dict[str, Any]:
    return load(ROOT / "configs" / f"{name}.yaml").to_mapping()


def _has(node: Any, key: str) -> bool:
    for part in key.split("."):
        if part not in node:
            return False
        node = node[part]
    return True


def test_readme_names_settings_that_exist_and_links_the_guides() -> None:
    assert [key for key in settings_in(CODE) if not is_setting(key)] == []
    linked = re.findall(r"\]\(([\w/]+/README\.md)\)", README)
    assert sorted(linked) == sorted(str(path.relative_to(ROOT)) for path in GUIDES)


@pytest.mark.parametrize(
    "path",
    sorted({word for code in [*CODE, *shell_lines()] for word in code.split()
            if word.startswith(FOLDERS)}),
)  # fmt: skip
def test_paths_exist(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("make ")])
def test_make_targets_exist(line: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert line.split()[1] in targets


def commands() -> list[str]:
    """Command lines of `hpcdi` in README: every one without a launcher before it."""
    return [line for line in shell_lines() if line.startswith("hpcdi ") and " " in line[6:]]


def commands_of(*names: str) -> list[str]:
    """Command lines of some commands; the one that is there for its error is not among them."""
    return sorted({c for c in commands() if c.split()[1] in names and "lern" not in c})


@pytest.mark.parametrize(
    "line", [c for c in commands_of("train", "serial", "plan") if "--resume" not in c]
)
def test_commands_are_understood(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What can be planned can be trained: the arguments are the same."""
    monkeypatch.chdir(ROOT)
    assert cli.main(["plan", *shlex.split(line)[2:]]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [c for c in commands_of("inspect", "eval", "export", "train") if " runs/" in c],
)
def test_commands_on_runs_are_understood(
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is wrong with them but that there is no such run: that is no matter of arguments."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(line)[1:]) == 2
    assert capsys.readouterr().err.startswith(f"hpcdi {line.split()[1]}: ")


def test_readme_has_the_commands_that_help_has() -> None:
    shown = {found[1] for line in shell_lines() if (found := re.search(r"\bhpcdi (\w+)", line))}
    assert shown == set(re.findall(r"^  hpcdi (\w+)", cli.DESCRIPTION, flags=re.MULTILINE))


def test_commands_are_found_at_all() -> None:
    found = {line.split()[1] for line in commands()}
    assert found == set(cli.COMMANDS) - {"doctor"}


GUIDE = (ROOT / "slurm" / "README.md").read_text()
OF_RUNS = re.compile(r"\bruns/|minari:|^status\b")


def guide_lines() -> list[str]:
    """Commands of `hpcdi` in the blocks of all guides, without those of a file that is yet to come.

    What the quickstart does is done by a test of jobs.
    """
    blocks = [
        text.replace("\\\n", " ")
        for guide in ALL_GUIDES
        for text in re.findall(r"```bash\n(.*?)```", guide.read_text(), flags=re.DOTALL)
    ]
    found = {
        line
        for b in blocks
        for line in re.findall(r"^(?:\w+=\S+ )?hpcdi (.+?)(?:  +#.*)?$", b, re.MULTILINE)
    }
    return sorted(line for line in found if "my_walk" not in line and line.split()[0] != "doctor")


def test_the_cluster_guide_is_short_and_its_files_exist() -> None:
    assert len(GUIDE.splitlines()) <= 180
    paths = re.findall(r"(?:slurm|tools|configs)/[\w.]+", GUIDE)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("line", guide_lines())
def test_commands_of_the_guides_are_understood(
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What needs Slurm is printed instead, and of runs there are none."""
    words = shlex.split(line)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setenv("HPCDI_ALLOW_FAULTS", "1")
    if OF_RUNS.search(line):
        (tmp_path / "configs").symlink_to(ROOT / "configs")
        monkeypatch.chdir(tmp_path)
        assert cli.main(words) == 2
        assert re.search(rf"^hpcdi {words[0]}( \w+)?: ", capsys.readouterr().err, re.MULTILINE)
        return
    monkeypatch.chdir(ROOT)
    dry = {"submit": ["--print"], "sweep": ["--dry-run"]}.get(words[0], [])
    if words[0] in ("train", "serial", "rehearse"):  # what can be planned can be trained
        words[0] = "plan"
    assert cli.main([*words, *dry]) == 0


def test_the_error_it_shows_is_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (shown,) = [text for kind, text in BLOCKS if kind == "text" and text.startswith("$ ")]
    command, _, printed = shown.partition("\n")
    assert cli.main(shlex.split(command)[2:]) == 2
    assert capsys.readouterr().err.strip() == printed.strip()


@pytest.mark.slow
def test_the_library_program_solves_its_task(tmp_path: Path) -> None:
    (program,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "hpcdi" / "README.md").read_text(), flags=re.DOTALL
    )
    (tmp_path / "program.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert ran.stdout.endswith("solved: True\n"), ran.stderr
    steps = int(ran.stdout.split()[0])
    again = AdvancedReplayBuffer({"replay_buffer_size": 100_000})
    again.load_data(tmp_path / "buffer.h5")
    assert again.count() == min(steps, 100_000)


def test_the_changelog_knows_the_present() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in changelog or f"## {hpcdi.__version__}" in changelog


@pytest.mark.parametrize("script", sorted((ROOT / "slurm").glob("*.sbatch")), ids=lambda p: p.name)
def test_batch_scripts_are_bash_and_name_real_files(script: Path) -> None:
    text = script.read_text()
    assert text.startswith("#!/bin/bash\n")
    for path in re.findall(r"(?:configs|slurm|tools)/[\w.]+", text):
        assert (ROOT / path).exists(), path
