"""Faults of commands that were found by using them."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcdi
from hpcdi import api, cli
from hpcdi.commands.cross_play import write_picture
from hpcdi.commands.doctor.checks import over_hosts
from hpcdi.commands.eval import _sizes
from hpcdi.commands.findings import WARN, Finding
from hpcdi.commands.output_file import output_file
from hpcdi.commands.quotas import mount_of
from hpcdi.commands.report.runs import grouped, read_run
from hpcdi.commands.sweep.on_slurm import array_job, command_to_submit
from hpcdi.commands.sweep.runs import Element, Sweep
from hpcdi.commands.tail import parse, tail
from hpcdi.config.load import read_mapping
from hpcdi.config.schema import SlurmConfig
from hpcdi.errors import ConfigError, LaunchError, RunError
from hpcdi.run import latest
from hpcdi.run.request import Ended, RunRequest
from hpcdi.run.resume import config_of
from hpcdi.run.run_folder import choose
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurveFile

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml")
INFINITE = float("inf")


def make_run(folder: Path, settings: str = "seed: 0\n", points: int = 2) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"exp_name": "try", "state": "done"}')
    (folder / "config.yaml").write_text(settings)
    with CurveFile(folder / "curves.csv") as curves:
        for number in range(points):
            curves.add_scalar("curves/evaluation_return", 10.0 * number, 1000 * number)
    return folder


# ------------------------------------------------------------------------------ files that -o names


@pytest.mark.parametrize(
    "name", ["run.json", "config.yaml", "status.json", "curves.csv", "log/rank00000.jsonl"]
)
def test_a_runs_own_files_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = make_run(tmp_path / "run")
    (run / "log").mkdir()
    (run / "log" / "rank00000.jsonl").write_text("{}")
    target = run / name
    before = target.read_text() if target.exists() else None
    for command in (["report"], ["curves", "--to", "csv"]):
        assert cli.main([command[0], str(run), *command[1:], "-o", str(target)]) == 2
        assert "is the run's own record, and is not overwritten" in capsys.readouterr().err
    with pytest.raises(LaunchError, match="own record"):
        write_picture(["a"], np.full((1, 1), np.nan), target)
    assert (target.read_text() if target.exists() else None) == before


def test_what_is_made_of_a_run_may_lie_in_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for name in ("report.html", "some.csv", "policies/best.pt2", "figures/a.json"):
        for text in (b"one", b"two"):
            with output_file(run / name) as file:
                file.write(text)
        assert (run / name).read_bytes() == b"two"
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(LaunchError, match="own record"), output_file(tmp_path / "sweep.json"):
        pass


def test_what_is_made_in_latest_lies_in_the_run_and_is_seen_in_both(tmp_path: Path) -> None:
    """The view that `latest` is goes with the next run."""
    run = make_run(tmp_path / "runs" / "x" / "one")
    latest.point_to(RunLayout(run))
    latest.keep_up(RunLayout(run), is_over=True)
    for name in ("some.csv", "figures/a.json"):
        for text in (b"one", b"two"):
            with output_file(run.with_name("latest") / name) as file:
                file.write(text)
            assert (
                (run / name).read_bytes() == (run.with_name("latest") / name).read_bytes() == text
            )
    with (
        pytest.raises(LaunchError, match="own record"),
        output_file(run.with_name("latest") / "league.json"),
    ):
        pass
    assert choose("x", str(run.with_name("latest") / "again")) == run / "again"
    make_run(run.with_name("two"))
    latest.point_to(RunLayout(run.with_name("two")))
    assert [view.name for view in run.with_name(".latest").iterdir()] == ["two"]


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert cli.main(["report", str(run), "-o", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()


# ---------------------------------------------------------------------------------- report and plot


def test_runs_whose_settings_cannot_be_read_are_no_seeds_of_one_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [make_run(tmp_path / name) for name in ("a", "b", "c")]
    (folders[0] / "config.yaml").unlink()
    (folders[1] / "config.yaml").write_text(": {")
    groups = grouped([read_run(folder) for folder in folders])
    assert [len(group.runs) for group in groups] == [1, 1, 1]
    unread = "try, whose config.yaml is missing or damaged"
    above = tmp_path.name
    assert [g.name for g in groups] == [f"{unread} ({above}/a)", f"{unread} ({above}/b)", "try"]
    assert cli.main(["plot", *map(str, folders)]) == 0
    assert f"{unread} ({above}/b): 10 at the end" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [1, 5, 13, 18, 20, 30])
def test_a_plot_in_a_narrow_terminal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["plot", str(make_run(tmp_path / "run"))]) == 0
    assert "0 env step 1" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("score", ["nan", "inf", "x"])
def test_a_published_score_is_a_finite_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], score: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["report", str(make_run(tmp_path / "run")), "--against", f"x={score}"])
    assert "with a finite score" in capsys.readouterr().err


def test_one_point_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["curves", str(make_run(tmp_path / "run", points=1))]) == 0
    assert ", 1 point to env step 0" in capsys.readouterr().out


def test_one_rank_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "rank00000.jsonl").write_text("")
    with pytest.raises(LaunchError, match=r"no log of rank 9 in .*; it has rank 0 alone"):
        tail(parse([str(tmp_path), "--rank", "9"]), lambda: (0, ""))


# -------------------------------------------------------------------------------- hpcdi.train, load


class Kind(str, Enum):  # noqa: UP042 (its own text is another one)
    """A text that has a name."""

    MEAN = "mean"


def test_values_of_mappings_are_settings_infinite_ones_too(tmp_path: Path) -> None:
    """They were a JSONDecodeError."""
    given: dict[str, Any] = {
        "env.stop_value": -INFINITE,
        "policy.list": [INFINITE, {"deep": np.float64(INFINITE)}, np.array([1.5, INFINITE])],
        "policy.kind": Kind.MEAN,
        "policy.path": tmp_path,
        "policy.letters": '\U0001f600 \u00e9 \u2028 \x85 \x7f " \\ #',
        "exp_name": "a/b" * 100,
    }
    with ExitStack() as stack:
        read = read_mapping(api._written(given, stack))
        overrides = [f"{path}={api._as_yaml(value)}" for path, value in given.items()]
        again = read_mapping(api._written({"exp_name": "x"}, stack), overrides)
    for found in (read, again):
        assert found["env"]["stop_value"] == -INFINITE
        assert found["policy"]["list"] == [INFINITE, {"deep": INFINITE}, [1.5, INFINITE]]
        assert found["policy"]["kind"] == "mean"
        assert found["policy"]["path"] == str(tmp_path)
        assert found["policy"]["letters"] == given["policy.letters"]
        assert found["exp_name"] == given["exp_name"]
    assert api._as_yaml(float("nan")) == ".nan"
    with pytest.raises(ConfigError, match="a object is no number"):
        api._as_yaml({"a": [object()]})


def test_a_name_that_is_no_folders_is_refused_by_what_checks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="exp_name: must be a plain folder name, not 'a/b'"):
        hpcdi.train(env="CartPole-v1", policy="ppo", exp_name="a/b", max_env_step=10)


def test_a_command_has_a_folders_name_quoted_and_python_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    layout = RunLayout(tmp_path / "a b")
    layout.submit_dir.mkdir(parents=True)
    layout.submit_file.write_text("{}")
    with pytest.raises(LaunchError, match=r"`hpcdi status 'a b'` .*sbatch '?.*a b/submit/job.sb"):
        config_of(RunRequest(None, resume="a b"))
    make_run(tmp_path / "c d")
    with pytest.raises(RunError, match=r"go on by hpcdi.train\(resume='c d'\), .* 'c d/log'"):
        api._run_of(Ended(tmp_path / "c d", 1))


@pytest.mark.parametrize("episodes", [0, -1])
def test_an_evaluation_plays_one_episode_at_least(episodes: int) -> None:
    loaded: Any = None
    with pytest.raises(LaunchError, match=f"episodes={episodes}: an evaluation plays 1 at least"):
        _sizes(loaded, episodes)


# ------------------------------------------------------------------------------------------- sweeps


def test_a_dry_run_names_the_sweeps_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["sweep", CONFIG, "seed=0,1", "--sweep-dir", "it's x", "--dry-run"]
    assert cli.main([*asked, "--local", "--serial"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    words = shlex.split(first.partition(": ")[2])
    assert words[-2:] == ["--run-dir", str(tmp_path / "it's x" / "000")]
    assert cli.main(asked) == 0
    printed = capsys.readouterr().out
    (command,) = (text for text in printed.splitlines() if text.startswith("sbatch "))
    assert shlex.split(command)[-1] == "it's x/submit/job.sbatch"
    assert shlex.quote(f"{tmp_path}/it's x") in printed, "in the script, too"
    assert not (tmp_path / "it's x").exists()


def test_sbatch_gets_a_path_that_is_quoted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(tmp_path / "d d", "x", (Element(0, ("seed=0",)),), 3, 0)
    job = array_job(sweep, SlurmConfig())
    assert command_to_submit(sweep, [0], job)[-1] == "d d/submit/job.sbatch"


# ------------------------------------------------------------------------------------------- doctor


def test_a_mount_point_may_have_any_letters() -> None:
    mounts = "a / ext4 rw 0 0\nb /data/Müller\\040ß lustre rw 0 0\n"
    assert mount_of(Path("/data/Müller ß/runs"), mounts) == ("lustre", "/data/Müller ß", "b")


def test_hosts_that_are_not_named_are_counted() -> None:
    parts = {f"a{i}": Finding(WARN, "A") for i in range(7)}
    parts |= {host: Finding(WARN, host.upper()) for host in "bcd"}
    assert over_hosts(parts).found.endswith("; C on c; and so on 1 more host")
    parts |= {host: Finding(WARN, host.upper()) for host in "ef"}
    assert over_hosts(parts).found.endswith("; C on c; and so on 3 more hosts")
