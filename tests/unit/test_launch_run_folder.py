"""The run folder: one run's own, and never another's."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

import hpcdi
from fakes.failing_files import FailingFiles
from hpcdi.commands.run_state import find_run, runs_of
from hpcdi.config.load import load
from hpcdi.errors import EXIT_USAGE, LaunchError
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.run import run_folder
from hpcdi.run.experiment import load_experiment
from hpcdi.store.atomic import write_json
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.store.sealed import load_sealed_json, rewritten_files, write_sealed_json
from hpcdi.types import RESTART_NUMBERS, block_number
from hpcdi.utils.event_file import TensorBoardWriter

ROOT = Path(__file__).parent.parent.parent
CONFIG = str(ROOT / "configs" / "cartpole_dqn.yaml")
OFFLINE = ("policy.other.commander.max_train_iter=9", "policy.eval.every=9 iterations")
PLACEMENT = [{"rank": 0, "role": "coordinator", "host": "node1", "pid": 11, "cores": [0, 1]}]


def claim(path: Path, config: dict[str, Any] | None = None) -> RunLayout:
    config = config if config is not None else {"exp_name": "x", "seed": 3}
    return run_folder.claim(path, config, PLACEMENT, mpi="Open MPI v5.0.11")


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes; folders have none."""
    paths = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in paths}


# ---------------------------------------------------------------------------------------- choosing


def test_a_folder_that_is_named_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder.choose("x", "some/where") == tmp_path / "some" / "where"
    assert tree(tmp_path) == {}
    (tmp_path / "empty").mkdir()
    assert run_folder.choose("x", "empty") == tmp_path / "empty"


def test_a_folder_is_named_by_experiment_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = run_folder.choose("cartpole", None)
    assert path.parent == tmp_path / "runs" / "cartpole"
    assert abs(time.time() - time.mktime(time.strptime(path.name, "%Y%m%d-%H%M%S"))) < 60


def test_a_second_run_of_the_same_second_gets_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = time.time()
    for second in range(20):
        name = time.strftime("%Y%m%d-%H%M%S", time.localtime(now + second))
        (tmp_path / "runs" / "x" / name).mkdir(parents=True)
        (tmp_path / "runs" / "x" / f"{name}-2").mkdir()
    path = run_folder.choose("x", None)
    assert path.name.endswith("-3")
    assert list(path.iterdir()) == []


def test_where_runs_is_a_link_to_nowhere_no_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster that has removed old files from its scratch disk."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(tmp_path / "scratch" / "runs")
    with pytest.raises(LaunchError, match=r"cannot be made: .*/runs is a link to nowhere"):
        run_folder.choose("x", None)


def test_a_run_folder_that_is_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to("gone")
    with pytest.raises(LaunchError, match=r"/run cannot be .* a link to nowhere \(gone\)"):
        run_folder.check_free(tmp_path / "run")


def test_runs_that_start_together_get_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = [run_folder.choose("x", None) for _ in range(50)]
    assert len(set(chosen)) == len(chosen)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: claim(path), r"holds another run \(state 'running'\).*--run-dir"),
        (lambda path: path.write_text("mine"), r"Not a directory.*--run-dir"),
        (lambda path: (path.mkdir(), (path / ".hidden").touch()), r"is not empty.*--run-dir"),
        (
            lambda path: (path.mkdir(), (path / "run.json").write_text("{")),
            r"holds another run \(state 'unknown'\)",
        ),
    ],
    ids=["a run", "a file", "not empty", "a torn run"],
)
def test_a_folder_that_is_taken_is_left_as_it_is(tmp_path: Path, make: Any, message: str) -> None:
    path = tmp_path / "taken"
    make(path)
    before = tree(tmp_path)
    with pytest.raises(LaunchError, match=message) as caught:
        run_folder.choose("x", str(path))
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["file/run", "x" * 300])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LaunchError, match="--run-dir"):
        run_folder.choose("x", str(tmp_path / name))
    with pytest.raises(LaunchError, match="cannot be written"):
        claim(tmp_path / name)
    assert tree(tmp_path) == {"file": b"mine"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(LaunchError, match="Permission denied"):
            claim(tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)


# ---------------------------------------------------------------------------------------- claiming


def test_a_claim_writes_what_the_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hpcdi", "train", "c.yaml"])
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    monkeypatch.setenv("SLURM_PROCID", "0")
    layout = claim(tmp_path / "deep" / "run")
    assert sorted(path.name for path in layout.root.iterdir()) == [
        ".reserve", "config.yaml", "run.json",
    ]  # fmt: skip
    facts = load_sealed_json(layout.run_file)
    started = time.mktime(time.strptime(facts.pop("started")[:19], "%Y-%m-%dT%H:%M:%S"))
    assert abs(time.time() - started) < 60
    versions = facts.pop("versions")
    assert versions == {**run_folder.versions(), "mpi": "Open MPI v5.0.11"}
    assert facts == {
        "exp_name": "x",
        "state": "running",
        "command": ["hpcdi", "train", "c.yaml"],
        "host": platform.node(),
        "pid": os.getpid(),
        "launcher": "",
        "python": platform.python_version(),
        "git_commit": run_folder.git_commit(ROOT),
        "slurm": {"SLURM_JOB_ID": "71"},
        "placement": PLACEMENT,
    }


def test_a_job_of_pbs_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PBS_JOBID", "12[3].head")
    layout = claim(tmp_path / "run", {"exp_name": "x"})
    assert run_folder.read(layout.root)["slurm"] == {"PBS_JOBID": "12[3].head"}


def test_the_config_that_is_kept_gives_the_same_run_again(tmp_path: Path) -> None:
    compiled, _ = load_experiment(CONFIG, ["env.stop_value=.inf", "seed=7"])
    layout = claim(tmp_path / "run", compiled.to_mapping())
    assert load(layout.config_file).config == compiled.config


def test_versions_of_what_results_depend_on() -> None:
    versions = run_folder.versions()
    assert versions["hpcdi"] == hpcdi.__version__
    assert versions["torch"].startswith("2.")
    assert "not installed" not in versions.values()


def test_a_claim_of_a_claimed_folder_changes_nothing(tmp_path: Path) -> None:
    claim(tmp_path / "run")
    before = tree(tmp_path)
    with pytest.raises(LaunchError, match="has just been taken by another run") as caught:
        claim(tmp_path / "run", {"exp_name": "y"})
    assert caught.value.exit_code == EXIT_USAGE
    assert tree(tmp_path) == before


RACER = """
import sys
from pathlib import Path
from hpcdi.errors import LaunchError
from hpcdi.run import run_folder

print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    try:
        run_folder.claim(
            Path(sys.argv[1]) / "runs" / "x" / str(number), {"exp_name": sys.argv[3]}, [], mpi=""
        )
        print(number)
    except LaunchError as error:
        assert "has just been taken" in str(error)
"""


def test_of_two_processes_that_want_a_folder_exactly_one_gets_it(tmp_path: Path) -> None:
    rounds = 30
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), str(rounds), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    assert [racer.stdout.readline() for racer in racers if racer.stdout] == ["ready\n"] * 2
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [list(map(int, racer.communicate(timeout=60)[0].split())) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert sorted(won[0] + won[1]) == list(range(rounds))
    for name, numbers in zip("ab", won, strict=True):
        for number in numbers:
            folder = tmp_path / "runs" / "x" / str(number)
            assert run_folder.read(folder)["exp_name"] == name
            assert load_name(folder) == name


def load_name(folder: Path) -> str:
    """Name in the kept configuration."""
    [line, _checksum] = RunLayout(folder).config_file.read_text().splitlines()
    return line.removeprefix("exp_name: ")


# ------------------------------------------------------------------------------------ latest, state


def test_latest_points_to_the_newest_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        path = tmp_path / "runs" / "x" / name
        claim(path)
        latest = path.parent / "latest"
        assert RunLayout(latest) == RunLayout(latest.resolve()) == RunLayout(path)
        assert (latest / "run.json").resolve() == path / "run.json"
        assert os.path.lexists(latest / "snapshots"), "a run makes it later"
        assert not os.path.lexists(latest / "tb")
    assert [view.name for view in (path.parent / ".latest").iterdir()] == ["two"]


def test_tensorboard_without_its_data_server_shows_a_run_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with TensorBoardWriter(claim(tmp_path / "runs" / "x" / name).tensorboard_dir) as writer:
            writer.add_scalar("curves/return", 1.0, 1)
    loader = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "runs"))
    assert list(loader.Runs()) == ["x/one/tb", "x/two/tb"]


def test_latest_shows_at_the_end_what_is_there(tmp_path: Path) -> None:
    layout = claim(tmp_path / "runs" / "x" / "one")
    for folder in (layout.tensorboard_dir, layout.data_dir, layout.checkpoints_of(3)):
        folder.mkdir()
    run_folder.end(layout, "done", "", 0, {})
    shutil.move(tmp_path / "runs", tmp_path / "moved")
    latest = tmp_path / "moved" / "x" / "latest"
    names = {"README", "checkpoints3", "config.yaml", "data", "run.json"}
    assert {path.name for path in latest.iterdir() if path.exists()} == names
    assert {path.name for path in latest.iterdir()} == names, "no links to nothing"
    assert "../../one" in (latest / "README").read_text()
    moved = RunLayout(latest)
    assert moved.root == tmp_path / "moved" / "x" / "one"
    run_folder.reopen(moved, {}, PLACEMENT)
    assert os.path.lexists(latest / "snapshots"), "it may make them now"


def test_what_earlier_starts_have_taken_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that was killed up to its last status; of one that never wrote any, nothing more."""
    layout = claim(tmp_path / "run")
    told = {"started_at": 100.0, "written_at": 110.0, "data_bytes": 7}
    write_json(layout.status_file, told)
    taken = {"elapsed_s": 10.0, "core_s": 20.0, "data_bytes": 7}
    assert run_folder.spent(run_folder.read(layout.root), told) == taken
    monkeypatch.setattr(run_folder.time, "time", lambda: 200.0)
    for _ in range(2):
        run_folder.reopen(layout, {}, PLACEMENT)
        assert run_folder.spent(run_folder.read(layout.root), told) == taken
    run_folder.leave(layout)
    run_folder.end(layout, "stopped", "", 85, {"elapsed_s": 4.0, "data_bytes": 1})
    run_folder.reopen(layout, {}, [*PLACEMENT, {"rank": 1, "role": "x", "host": "n2"}])
    facts = run_folder.read(layout.root)
    assert run_folder.spent(facts, told) == {"elapsed_s": 14.0, "core_s": 28.0, "data_bytes": 8}
    later = {"started_at": 201.0, "written_at": 202.0}
    assert run_folder.spent(facts, later) == {"elapsed_s": 15.0, "core_s": 31.0, "data_bytes": 8}
    assert run_folder.spent({}, {"started_at": "x"}) == {}


@pytest.mark.parametrize("name", [".", "latest", "latest/", "../x/latest", "mine"])
def test_a_run_is_opened_by_what_leads_to_latest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = claim(tmp_path / "runs" / "x" / "one").root
    (run.parent / "mine").symlink_to("latest")
    monkeypatch.chdir(run.parent / "latest" if name == "." else run.parent)
    assert RunLayout(Path(name)).root == run
    assert RunLayout(Path("../x")).root == Path("../x"), "others stay as they are called"
    assert find_run(name) == run
    assert hpcdi.Run(name).folder == run


def test_a_list_of_runs_and_given_data_have_the_run_itself(tmp_path: Path) -> None:
    run = claim(tmp_path / "runs" / "x" / "one").root
    assert runs_of([str(run.parent)]) == [run], "once"
    before, _ = load_experiment(CONFIG, [f"data=[{run.parent / 'latest'}]", *OFFLINE])
    claim(run.parent / "two")
    assert before.config.data == (str(run),)


def test_of_two_that_begin_at_once_one_is_the_latest(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, [folder / str(number) for number in range(24)]))
    assert RunLayout(folder / "latest").run_file.samefile(folder / "latest" / "run.json")
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".latest-")]


def test_a_folder_elsewhere_gets_no_link(tmp_path: Path) -> None:
    claim(tmp_path / "elsewhere" / "x" / "one")
    assert [path.name for path in (tmp_path / "elsewhere" / "x").iterdir()] == ["one"]


def test_a_link_that_cannot_be_made_does_not_end_the_run(tmp_path: Path) -> None:
    """A copy of runs/ may hold a real folder of that name."""
    latest = tmp_path / "runs" / "x" / "latest"
    latest.mkdir(parents=True)
    (latest / "run.json").write_text("{}")
    claim(tmp_path / "runs" / "x" / "one")
    assert sorted(tree(tmp_path / "runs" / "x")) == [
        "latest", "latest/run.json", "one", "one/.reserve", "one/config.yaml", "one/run.json",
    ]  # fmt: skip


def test_the_end_is_added_to_the_facts(tmp_path: Path) -> None:
    layout = claim(tmp_path)
    before = run_folder.read(tmp_path)
    run_folder.end(layout, "stopped", "received SIGTERM", 85, {"env_steps": 7})
    facts = run_folder.read(tmp_path)
    assert time.strptime(facts.pop("ended")[:19], "%Y-%m-%dT%H:%M:%S")
    assert facts == {
        **before,
        "state": "stopped",
        "reason": "received SIGTERM",
        "exit_code": 85,
        "figures": {"env_steps": 7},
        "files": rewritten_files(layout),
    }
    assert run_folder.read_state(tmp_path) == "stopped"


def test_an_end_is_written_where_the_file_system_was_away_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not: a run that was done went on as one that is running, or was started again."""
    layout = claim(tmp_path)
    failing = FailingFiles(monkeypatch, "run.json", times=2)
    run_folder.end(layout, "done", "why", 0, {})
    assert failing.left == 0
    assert run_folder.read_state(tmp_path) == "done"


def test_an_end_is_written_although_the_folder_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = claim(tmp_path)
    (tmp_path / "snapshots").mkdir()
    layout.latest_policy.parent.mkdir()
    outcome = Outcome("stopped", "received SIGTERM", 85)

    def refuse(path: Any = ".") -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    run_folder.end(layout, outcome.state, outcome.reason, outcome.exit_code, {"env_steps": 7})
    assert run_folder.read_state(tmp_path) == "stopped"
    lines = run_folder.closing("hpcdi serial", outcome, [], layout)
    assert lines[0] == "\nstopped: received SIGTERM"


def test_a_run_that_could_not_go_on_keeps_its_facts_where_they_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = claim(tmp_path)
    before = layout.run_file.read_bytes()
    FailingFiles(monkeypatch, "run.json", 99)
    run_folder.leave(layout)
    assert layout.run_file.read_bytes() == before


def test_an_end_before_the_last_policy_does_not_call_it_a_wrong_one(tmp_path: Path) -> None:
    """Rank 0 fails, and a learner still publishes."""
    layout = claim(tmp_path)
    publish_policy(layout.latest_policy, PolicyImage.of({"w": torch.ones(1)}, 1), fsync=False)
    run_folder.end(layout, "failed", "no more memory", 1, {}, is_last=False)
    publish_policy(layout.latest_policy, PolicyImage.of({"w": torch.ones(1)}, 2), fsync=False)
    assert not [error for error in inspect(tmp_path).errors if "wrote last" in error]


@pytest.mark.parametrize("content", [None, "", "{", '{"exp_name": "x"}'])
def test_where_nothing_can_be_read_the_state_is_unknown(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        RunLayout(tmp_path).run_file.write_text(content)
    assert run_folder.read_state(tmp_path) == "unknown"
    assert "state" not in run_folder.read(tmp_path)


def test_a_restart_that_was_forgotten_overwrites_no_shard(tmp_path: Path) -> None:
    layout = claim(tmp_path / "run")
    shard = layout.root / layout.shard_path(1, 3 * RESTART_NUMBERS + 7)
    shard.parent.mkdir(parents=True)
    shard.touch()
    reached = {"train_iter": 1, "env_steps": 1}
    assert run_folder.count_restart(layout, reached, 9)["restarts"] == 4


def test_what_is_damaged_of_restarts_counts_as_not_said(tmp_path: Path) -> None:
    layout = claim(tmp_path / "run")
    facts, reached = run_folder.load(layout.root), {"train_iter": 1, "env_steps": 1}
    for damaged in ([7], {"train_iter": "7"}):
        wrong = {"restarted_at": damaged, "restarts_without_progress": "many"}
        write_sealed_json(layout.run_file, {**facts, **wrong})
        assert run_folder.count_restart(layout, reached, 9)["restarts"] == 1


def test_a_run_is_not_restarted_so_often_that_ids_are_those_of_the_next_rank(
    tmp_path: Path,
) -> None:
    layout = claim(tmp_path / "run")
    facts, reached = run_folder.load(layout.root), {"train_iter": 1, "env_steps": 1}
    write_sealed_json(layout.run_file, {**facts, "restarts": 1097})
    last = run_folder.count_restart(layout, reached, 9)["restarts"]
    newest = (last + 1) * RESTART_NUMBERS - 1
    assert block_number(newest) == newest
    write_sealed_json(layout.run_file, {**facts, "restarts": last})
    with pytest.raises(LaunchError, match="was restarted 1098 times, and cannot be once more"):
        run_folder.count_restart(layout, reached, 9)


def test_a_folder_that_a_job_is_to_fill_is_that_job_s_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = 'echo "JobId=71 JobState=$STATE Reason=None"'
    (tmp_path / "scontrol").write_text(f"#!/bin/bash\n{answer}\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    layout = RunLayout(tmp_path / "run")
    layout.submit_dir.mkdir(parents=True)
    layout.submit_file.write_text('{"job": {"SLURM_JOB_ID": "71"}}')
    for state in ("PENDING", "RUNNING"):
        monkeypatch.setenv("STATE", state)
        for own in ("", "70"):
            monkeypatch.setenv("SLURM_JOB_ID", own)
            with pytest.raises(LaunchError, match=f"job 71 is {state} for the run folder"):
                run_folder.check_free(layout.root)
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    run_folder.check_free(layout.root)
    monkeypatch.setenv("SLURM_JOB_ID", "70")
    monkeypatch.setenv("STATE", "CANCELLED")
    run_folder.check_free(layout.root)
    layout.next_job_file.write_text('{"job": {"SLURM_JOB_ID": "72"}}')
    monkeypatch.setenv("STATE", "PENDING")
    monkeypatch.setenv("SLURM_JOB_ID", "71")  # that may not be requeued, and has submitted another
    with pytest.raises(LaunchError, match="job 72 is PENDING"):
        run_folder.check_free(layout.root)
