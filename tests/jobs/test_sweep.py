"""`hpcdi sweep --local`: real runs; one fails or loses a rank, and is started again alone; a
population."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
from pathlib import Path

import pytest
from jobs import (
    CARTPOLE,
    ENDLESS,
    FAULTS_ALLOWED,
    HPCDI,
    ONE_COLLECTOR,
    PYTHONPATH,
    QUICK,
    TESTS,
    Running,
    hpcdi,
    max_train_iter,
    until,
    wait_until_gone,
)

from fakes.patience import stretched
from hpcdi.config.load import load

pytestmark = pytest.mark.job

SWEEP = (
    "seed=0..2", *QUICK, "policy.type=planted_run", "policy.import_names=[fakes.planted_policies]",
    "--local", "--serial",
)  # fmt: skip


def states(root: Path) -> list[str]:
    return [run["state"] for run in json.loads((root / "sweep.json").read_text())["runs"]]


def test_the_run_that_failed_is_started_again_alone(tmp_path: Path) -> None:
    root, planted = tmp_path / "s", tmp_path / "planted"
    planted.write_text("001")
    variables = {"PLANTED_WHILE": str(planted)}
    ran = hpcdi("sweep", CARTPOLE, *SWEEP, "--jobs", 2, "--sweep-dir", root, variables=variables)
    assert ran.code == 1, ran.said
    assert "run 1 (seed=1) failed after" in ran.out
    assert "run 1 is not done" in ran.err
    assert states(root) == ["done", "failed", "done"]
    assert "planted in run 001" in (root / "output" / "001.out").read_text()
    before = {run: (root / run / "run.json").read_text() for run in ("000", "002")}

    planted.unlink()
    again = hpcdi("sweep", "resume", root, "--local", variables=variables)
    assert again.code == 0, again.said
    assert [line.split()[1] for line in again.out.splitlines()] == ["1", "1"]
    assert states(root) == ["done"] * 3
    assert before == {run: (root / run / "run.json").read_text() for run in before}
    table = hpcdi("sweep", "status", root)
    assert table.code == 0
    assert "cartpole_dqn: 3 runs, 3 done" in table.out


@pytest.mark.slow
def test_ctrl_c_ends_the_runs_in_order(tmp_path: Path) -> None:
    root = tmp_path / "s"
    command = [
        *HPCDI, "sweep", str(CARTPOLE), "seed=0..3", "env.stop_value=1e9", "--local", "--serial",
        "--sweep-dir", str(root),
    ]  # fmt: skip
    environment = {**os.environ, **PYTHONPATH}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, process_group=0, env=environment
    ) as process:
        try:
            until((root / "000" / "status.json").exists, "the first run has not begun")
            process.send_signal(signal.SIGINT)
            assert process.wait(stretched()) == 130
        finally:
            process.kill()
    assert states(root) == ["stopped", "waiting", "waiting", "waiting"]
    wait_until_gone(root)


@pytest.mark.slow
def test_a_killed_learner_ends_its_own_run_alone(tmp_path: Path) -> None:
    """Three runs over ranks share two cores; kill -9 in one, which is resumed."""
    root, kill = tmp_path / "s", "{kind: kill, role: learner, at_step: 20}"
    later = kill.replace("20", "1000")  # than the end
    ran = hpcdi(
        "sweep", CARTPOLE, f"fault=[],[{kill}],[{later}]", *ENDLESS, max_train_iter(200),
        ONE_COLLECTOR, "--local", "--pack", "--jobs", 3, "--sweep-dir", root,
        variables=FAULTS_ALLOWED,
    )  # fmt: skip
    assert ran.code == 0, ran.said
    assert "3 of 3 runs at a time" in ran.out
    assert ran.out.count("(exit code 85)") == ran.out.count("it is started again") == 1
    runs = [json.loads((root / name / "run.json").read_text()) for name in ("000", "001", "002")]
    assert [(run["state"], run.get("restarts", 0)) for run in runs] == [
        ("done", 0), ("done", 1), ("done", 0),
    ]  # fmt: skip
    assert all(run["slurm"] == {} for run in runs)  # a share is a machine of its own
    cores = [run["placement"][1]["cores"] for run in runs]
    assert all(len(each) <= math.ceil(len(os.sched_getaffinity(0)) / 3) for each in cores)
    wait_until_gone(root)


@pytest.mark.slow
def test_a_population_replaces_bad_learning_rates(tmp_path: Path) -> None:
    """Two of three runs do not learn; one of them is ended; the sweep is stopped, then resumed."""
    root = tmp_path / "s"
    asked = (
        "policy.learn.learning_rate=1e-9,2e-9,1e-3", "policy.learn.replay_ratio=32",
        "policy.other.commander.max_env_step=6000", "env.stop_value=1e9", "--pbt", 3000,
        "--pbt-share", 0.5, "--local", "--pack", "--serial", "--jobs", 2, "--sweep-dir", root,
    )  # fmt: skip
    job = Running([*HPCDI, "sweep", str(CARTPOLE), *map(str, asked)], root, {})
    job.until((root / "000" / "snapshots" / "snapshot_000001").exists)
    os.kill(json.loads((root / "000" / "run.json").read_text())["pid"], signal.SIGINT)
    job.until_said("at 3000 environment steps")
    job.send_signal(signal.SIGTERM)
    assert job.wait().code == 143
    again = hpcdi("sweep", "resume", root, "--local", "--pack", "--jobs", 2)
    assert again.code == 0, again.said
    assert states(root) == ["done"] * 3

    (decision,) = json.loads((root / "population.json").read_text())["decisions"]
    scores = [member["score"] for member in decision["members"]]
    assert scores[0] is None
    assert scores[2] > scores[1]
    assert [(copy["index"], copy["donor"]) for copy in decision["copies"]] == [(0, 2), (1, 2)]
    for copy in decision["copies"]:
        name = f"{copy['index']:03d}"
        assert "policy of 002/snapshot_" in (root / "output" / f"{name}.out").read_text()
        learnt = load(root / name / "config.yaml").config.policy.learn.learning_rate
        assert learnt == float(copy["settings"]["policy.learn.learning_rate"])
        status = json.loads((root / name / "status.json").read_text())
        assert status["env_steps"] >= 6000
        assert status["evaluation"]["mean"] > scores[1]
    wait_until_gone(root)


@pytest.mark.slow
def test_a_search_goes_on_after_kill_9_by_the_same_command(tmp_path: Path) -> None:
    """A searcher of one's own; a run outlives its sweep, is watched by the next, and pruned."""
    root, steps = tmp_path / "s", "policy.other.commander.max_env_step=320,100000000"
    command = [
        *HPCDI, "sweep", str(TESTS / "fakes" / "hill.yaml"), "--search", "fakes.searchers:Planted",
        "--space", steps, "--trials", "2", "--jobs", "2", "--prune-every", "500", "--local",
        "--serial", "--sweep-dir", str(root),
    ]  # fmt: skip
    environment = {**os.environ, **PYTHONPATH}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        until((root / "001" / "status.json").exists, "the second run has not begun")
        process.kill()
    again = hpcdi(*command[len(HPCDI) :])
    assert again.code == 0, again.said
    assert "is still on (process" in again.out
    assert "run 1 is pruned at 1000 steps" in again.out
    trials = [json.loads((root / "trials" / f"00{n}.json").read_text()) for n in (0, 1)]
    assert [trial["state"] for trial in trials] == ["done", "pruned"]
    run = json.loads((root / "001" / "run.json").read_text())
    assert (run["state"], run["exit_code"], run.get("restarts", 0)) == ("stopped", 85, 0)
    assert "1 100000000 True True" in (root / "told.txt").read_text().splitlines()
    wait_until_gone(root)
