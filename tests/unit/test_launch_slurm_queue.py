"""What Slurm's commands say, as they said it; and where there are none."""

from __future__ import annotations

import stat
import sys
import time
from pathlib import Path

import pytest

from hpcdi.run.slurm_queue import (
    GONE,
    NO_ANSWER,
    QueueJob,
    ask,
    ask_all,
    is_job_id,
    parse_scontrol,
    set_for_slurm,
    slurm_variables,
)

# said by Slurm 22.05
RUNNING = (
    "JobId=73 JobName=hpcdi a=b UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901757 "
    "Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 "
    "Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:04 TimeLimit=01:00:00 "
    "StartTime=2026-11-22T01:00:00 EndTime=2026-11-22T02:00:00 Partition=debug NodeList=node[1-2] "
    "BatchHost=node1 NumNodes=2 TRES=cpu=4,node=2,billing=4 Socks/Node=* "
    "Command=/home/me/my runs/a b.sbatch WorkDir=/home/me/my runs StdErr=/home/me/x.out "
    "StdIn=/dev/null StdOut=/home/me/x.out Power="
)


def test_a_running_job_is_read() -> None:
    ends_at = time.mktime(time.strptime("2026-11-22T02:00:00", "%Y-%m-%dT%H:%M:%S"))
    job = parse_scontrol("73", RUNNING + "\n")
    assert job == QueueJob(
        "73", "RUNNING", "", "node[1-2]", ends_at, 2, "/home/me/x.out", "/home/me/my runs"
    )
    assert job.is_on
    assert not job.waits


def test_a_pending_job_says_why() -> None:
    text = "JobId=8 JobState=PENDING Reason=BeginTime EndTime=Unknown NodeList=(null) Restarts=1"
    job = parse_scontrol("8", text)
    assert job == QueueJob("8", "PENDING", "BeginTime", restarts=1)
    assert job.waits
    assert not job.is_on


@pytest.mark.parametrize(
    ("states", "found"),
    [
        (["COMPLETED", "PENDING", "RUNNING"], "RUNNING"),
        (["FAILED", "PENDING", "COMPLETED"], "PENDING"),
        (["TIMEOUT", "COMPLETED"], "TIMEOUT"),
    ],
)
def test_an_array_is_on_while_one_of_its_tasks_is(states: list[str], found: str) -> None:
    lines = [f"JobId={9 + i} ArrayJobId=9 JobState={state}" for i, state in enumerate(states)]
    job = parse_scontrol("9", "\n".join(lines))
    assert job == QueueJob("9", found)


def test_a_heterogeneous_job_has_the_nodes_of_all_its_components() -> None:
    lines = [
        "JobId=9 HetJobId=9 HetJobOffset=0 JobState=RUNNING NodeList=cpu[1-2] StdOut=/a",
        "JobId=10 HetJobId=9 HetJobOffset=1 JobState=RUNNING NodeList=gpu1 StdOut=/b",
        "JobId=11 HetJobId=9 HetJobOffset=2 JobState=PENDING NodeList=(null)",
    ]
    job = parse_scontrol("9", "\n".join(lines))
    expected = QueueJob("9", "RUNNING", nodes="cpu[1-2],gpu1", output="/a", het_job="9")
    assert job == expected


def test_what_is_no_job_is_none() -> None:
    assert parse_scontrol("8", "") is None
    assert parse_scontrol("8", "No jobs in the system") is None


@pytest.mark.parametrize(
    ("text", "is_one"), [("12", True), ("12_3", True), ("12_", False), ("run", False), ("", False)]
)
def test_job_numbers(text: str, is_one: bool) -> None:
    assert is_job_id(text) is is_one


def test_without_slurm_nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask("12") is None


def program(folder: Path, name: str, text: str) -> None:
    """A command of that name: a site's wrapper around Slurm's own is no more than that."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("sacct", ["", "print('TIMEOUT|node1|/home/me')"])
def test_a_job_that_scontrol_has_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sacct: str
) -> None:
    invalid = "sys.exit('slurm_load_jobs error: Invalid job id specified')"
    program(tmp_path, "scontrol", invalid)
    program(tmp_path, "squeue", invalid)
    program(tmp_path, "sacct", sacct or "sys.exit('Slurm accounting storage is disabled')")
    monkeypatch.setenv("PATH", str(tmp_path))
    job = ask("12")
    assert job is not None
    assert job.state == ("TIMEOUT" if sacct else GONE)
    assert not job.is_on
    assert not job.waits


def test_a_controller_that_does_not_answer_is_not_believed_to_know_no_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("scontrol", "squeue", "sacct"):
        program(tmp_path, name, "sys.exit('Unable to contact slurm controller')")
    monkeypatch.setenv("PATH", str(tmp_path))
    job = ask("12")
    assert job == QueueJob("12", NO_ANSWER)
    assert job.is_on, "it may run: nobody may take its run folder"
    assert not job.has_failed
    for name in ("scontrol", "squeue"):  # the commands are there, but no cluster
        program(tmp_path, name, "sys.exit('Could not establish a configuration source')")
    assert ask("12") is None


def test_only_squeue_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "squeue", "print('PENDING|Priority|')")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask("12") == QueueJob("12", "PENDING", "Priority")


def test_many_jobs_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = (
        "7 |0 |RUNNING |None |node1|2|\\n7|1|PENDING|Resources||0|\\n7|2|FAILED|None|n|0|\\n"
        "8|N/A|PENDING|x||0|"
    )
    program(tmp_path, "squeue", f"assert '7,8' in sys.argv\nprint('{answer}')")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_all(["7_0", "7_1", "7_3", "8"]) == {
        "7_0": QueueJob("7_0", "RUNNING", "", "node1", restarts=2),
        "7_1": QueueJob("7_1", "PENDING", "Resources"),
        "7_3": QueueJob("7_3", GONE),
        "8": QueueJob("8", "PENDING", "x"),
    }
    assert ask_all([]) == {}
    program(tmp_path, "squeue", "sys.exit('Unable to contact slurm controller')")
    assert ask_all(["7_0"]) == {"7_0": QueueJob("7_0", NO_ANSWER)}
    (tmp_path / "squeue").unlink()
    assert ask_all(["7_0"]) == {}


BANNERS = [
    "Banner: maintenance\\n", "\\n", "Site|says|hello|to|all|of|you|\\n", "no bar\\n"
]  # fmt: skip


@pytest.mark.parametrize(
    ("banner", "reason", "restarts"),
    [
        *((banner, "Priority", "2") for banner in BANNERS), ("", "Priority", "(null)"),
        ("", "Priority", "N/A"), ("", "Priority", ""), ("", "a|b", "2"), (BANNERS[0], "a|b|c", ""),
    ],
)  # fmt: skip
def test_a_table_of_jobs_with_other_lines_and_odd_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, banner: str, reason: str, restarts: str
) -> None:
    program(tmp_path, "squeue", f"print('{banner}7|1|RUNNING|{reason}|n1|{restarts}|\\n7|2||||0|')")
    monkeypatch.setenv("PATH", str(tmp_path))
    count = int(restarts) if restarts.isdecimal() else 0
    found = ask_all(["7_1", "7_2"])
    assert found["7_1"] == QueueJob("7_1", "RUNNING", reason, "n1", restarts=count)
    assert found["7_2"] == QueueJob("7_2", GONE)
    program(tmp_path, "squeue", f"print('{banner}RUNNING|{reason}|n1')")
    assert ask("12") == QueueJob("12", "RUNNING", reason, "n1")


@pytest.mark.parametrize(
    ("says", "state"),
    [
        ("|n1|/tmp", GONE), ("Welcome", GONE), ("CANCELLED by 1000|n1|/a|b", "CANCELLED"),
        ("FAILED|n1|/a|b\\n|n1|/tmp", "FAILED"),
    ],
)  # fmt: skip
def test_odd_lines_of_the_accounting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, state: str
) -> None:
    program(tmp_path, "squeue", "print('Banner: maintenance')")
    program(tmp_path, "sacct", f"print('{says}')")
    monkeypatch.setenv("PATH", str(tmp_path))
    known = state != GONE
    assert ask("12") == QueueJob("12", state, nodes="n1" * known, folder="/a|b" * known)


def test_a_job_whose_restarts_are_no_number() -> None:
    job = parse_scontrol("73", RUNNING.replace("Restarts=2", "Restarts=(null)"))
    assert job is not None
    assert (job.state, job.restarts) == ("RUNNING", 0)


def test_variables_that_change_what_slurm_does_are_named() -> None:
    user = {"SBATCH_TIMELIMIT": "3", "SQUEUE_FORMAT": "%i", "SBATCH_ACCOUNT": "a", "HOME": "/"}
    assert set_for_slurm(user) == ["SBATCH_TIMELIMIT", "SQUEUE_FORMAT"]
    job = {**user, "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SRUN_CPUS_PER_TASK": "1"}
    assert set_for_slurm(job) == ["SBATCH_TIMELIMIT", "SQUEUE_FORMAT"]
    step = {**job, "SRUN_DEBUG": "3"}  # srun gives its tasks this
    assert set_for_slurm(step) == ["SBATCH_TIMELIMIT", "SQUEUE_FORMAT"]
    assert set_for_slurm({"SRUN_DEBUG": "3"}) == ["SRUN_DEBUG"]
    odd = {**job, "SLURM_TIME_FORMAT": "%H:%M"}
    assert "SLURM_TIME_FORMAT" in set_for_slurm(odd)
    assert set(slurm_variables(job)) == {"SBATCH_ACCOUNT", "HOME"}
