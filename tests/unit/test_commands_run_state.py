"""The state of a run: every pair of what run.json and the queue say, and the signs of life."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcdi.commands.run_state import (
    QUIET_S,
    RunStatus,
    SignsOfLife,
    job_to_come,
    jobs_of,
    judge,
    status_of,
)
from hpcdi.commands.status import lines_of
from hpcdi.config.schema import ExperimentConfig, SystemConfig
from hpcdi.errors import NoProgressError
from hpcdi.run import resume, run_folder, slurm_queue
from hpcdi.run.run_lock import SILENT_S, RunLock, this_process
from hpcdi.run.slurm_queue import GONE, NO_ANSWER, QueueJob
from hpcdi.store.layout import RunLayout

SLURM = {"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "1"}
RUN = {"pid": 7, "host": "node1", "slurm": SLURM}
RUNNING = {**RUN, "state": "running"}
REQUEUED = {**RUN, "state": "stopped", "reason": "received SIGTERM", "exit_code": 85}
STOPPED = {**REQUEUED, "exit_code": 130}
FAILED = {**RUN, "state": "failed", "reason": "ValueError", "exit_code": 1}
DONE = {**RUN, "state": "done", "reason": "solved", "exit_code": 0}

QUEUE = ("PENDING", "REQUEUED", "CONFIGURING", "RUNNING", "COMPLETING", "CANCELLED", "COMPLETED",
         "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", GONE)  # fmt: skip
WAITS, IS_ON = QUEUE[:3], QUEUE[3:5]


def expected(facts: dict[str, Any], state: str, *, is_new_start: bool) -> str:
    """The table of `judge` once more, by the questions of a person who waits for a result."""
    if facts is DONE:
        return "done"
    if state in WAITS:
        return "pending"
    if state in IS_ON:
        if is_new_start or not facts:
            return "pending" if state == "COMPLETING" else "starting"
        return {"running": "running", "failed": "failed"}.get(
            facts["state"], "pending" if facts is REQUEUED else "stopped"
        )
    if not facts or facts is RUNNING:
        return "dead"
    if is_new_start and state not in ("CANCELLED", "COMPLETED", GONE):
        return "failed"
    return str(facts["state"])


@pytest.mark.parametrize("is_new_start", [False, True])
@pytest.mark.parametrize("state", QUEUE)
@pytest.mark.parametrize("facts", [{}, RUNNING, REQUEUED, STOPPED, FAILED, DONE])
def test_every_pair_of_run_and_job(
    facts: dict[str, Any], state: str, *, is_new_start: bool
) -> None:
    job = QueueJob("12", state, "reason", restarts=2 if is_new_start else 1)
    signs = SignsOfLife(1.0, 1.0, None, job=job)
    found, why = judge(facts, {"phase": "running"}, signs)
    assert found == expected(facts, state, is_new_start=is_new_start), why
    status = RunStatus(RunLayout(Path("run")), found, why, facts, {}, signs)
    if state in (*WAITS, *IS_ON) and facts not in (DONE, FAILED, STOPPED):
        assert not status.is_over, "`submit --wait` would return before the end"
    assert (status.exit_code == 0) is (found in ("pending", "starting", "running", "done"))
    if found not in ("done", "running") and found != facts.get("state"):
        assert f"job 12 is {state} (reason)" in why


def test_another_job_that_goes_on_is_a_new_start() -> None:
    job = QueueJob("13", "RUNNING")
    assert judge(REQUEUED, {}, SignsOfLife(1.0, None, None, job=job))[0] == "starting"


@pytest.mark.parametrize("facts", [REQUEUED, STOPPED, FAILED, DONE])
def test_a_process_that_has_taken_the_folder_of_an_ended_run_starts_it(
    facts: dict[str, Any],
) -> None:
    signs = SignsOfLife(900.0, 1.0, is_process=True, is_retaken=True)
    assert judge(facts, {}, signs)[0] == "starting"
    ended = QueueJob("12", "COMPLETED", restarts=1)
    signs = SignsOfLife(900.0, 1.0, is_process=True, is_retaken=True, job=ended)
    assert judge(facts, {}, signs)[0] == "starting"


def seen(
    age_s: float | None, is_process: bool | None = None, state: str = "", reason: str = ""
) -> SignsOfLife:
    """With a lock that is touched."""
    job = QueueJob("12", state, reason, restarts=1) if state else None
    return SignsOfLife(age_s, 1.0, is_process, job=job)


@pytest.mark.parametrize(
    ("facts", "signs", "state", "why"),
    [
        ({}, seen(None), "dead", "it never began: no queue knows its job"),
        ({}, seen(None, None, "FAILED"), "dead", "it never began; job 12 is FAILED"),
        (RUNNING, seen(1.0, True), "running", ""),
        (RUNNING, seen(1.0, None), "running", ""),
        (RUNNING, seen(1.0, False), "dead", "process 7 on node1 is gone; its last status is 1 s"),
        (RUNNING, SignsOfLife(1.0), "dead", "process 7 on node1 is gone"),  # there is no lock
        (RUNNING, seen(QUIET_S + 1, True), "running", "31 s old: does it hang?"),
        (RUNNING, seen(QUIET_S + 1), "running", "does it hang?"),
        (RUNNING, SignsOfLife(900.0, SILENT_S - 1), "running", "does it hang?"),
        (RUNNING, SignsOfLife(900.0, SILENT_S + 1), "dead", "no sign of life for 61 s; its last"),
        (RUNNING, SignsOfLife(900.0, SILENT_S + 1, True), "running", "does it hang?"),
        (RUNNING, SignsOfLife(900.0, SILENT_S + 1, None, job=QueueJob("12", "RUNNING")),
         "running", "does it hang?"),
        (RUNNING, seen(900.0, None, "SUSPENDED"), "running", "job 12 is SUSPENDED; its last status "
         "is 900 s old"),
        (RUNNING, seen(1.0, True, "COMPLETED"), "running", ""),  # resumed here, without the job
        (RUNNING, seen(1.0, False, "RUNNING"), "pending", "is gone; its last status is 1 s old; "
         "job 12 is RUNNING still, and its script has it requeued"),
        (RUNNING, seen(1.0, False, "COMPLETING"), "pending", "; job 12 is COMPLETING: Slurm does "
         "not say yet whether it is requeued"),  # cancelled, or requeued by its script
        (RUNNING, seen(1.0, False, "COMPLETING", "TimeLimit"), "dead", "COMPLETING (TimeLimit)"),
        (REQUEUED, seen(900.0), "stopped", "received SIGTERM"),
        (REQUEUED, seen(9.0, None, "CANCELLED"), "stopped", "SIGTERM; job 12 is CANCELLED"),
        (DONE, seen(9.0, None, GONE), "done", "solved"),
        (FAILED, seen(9.0, False), "failed", "ValueError"),
        ({}, seen(None, None, NO_ANSWER), "pending", "Slurm does not answer: job 12 may wait"),
        (RUNNING, seen(1.0, None, NO_ANSWER), "running", ""),
        (RUNNING, SignsOfLife(900.0, SILENT_S + 1, job=QueueJob("12", NO_ANSWER)), "pending",
         "no sign of life for 61 s; its last status is 900 s old; Slurm does not answer"),
        (REQUEUED, seen(9.0, None, NO_ANSWER), "pending", "SIGTERM; Slurm does not answer"),
        (STOPPED, seen(9.0, None, NO_ANSWER), "stopped", "received SIGTERM"),
        (FAILED, seen(9.0, None, NO_ANSWER), "failed", "ValueError"),
        (DONE, seen(9.0, None, NO_ANSWER), "done", "solved"),
    ],
)  # fmt: skip
def test_signs_of_life(facts: dict[str, Any], signs: SignsOfLife, state: str, why: str) -> None:
    found = judge(facts, {"phase": "running"}, signs)
    assert found[0] == state, found
    assert why in found[1]
    assert bool(found[1]) is bool(why)


def test_a_stopped_run_in_a_job_without_a_script_stays_stopped() -> None:
    job = QueueJob("12", "RUNNING", restarts=1, has_script=False)
    assert judge(REQUEUED, {}, SignsOfLife(1.0, job=job)) == ("stopped", "received SIGTERM")


@pytest.mark.parametrize("progress", [{}, {"phase": "starting"}, {"phase": "running", "pid": 6}])
def test_a_run_whose_ranks_have_not_all_come_is_starting(progress: dict[str, Any]) -> None:
    assert judge(RUNNING, progress, seen(1.0, True)) == ("starting", "")


# ----------------------------------------------------------------------------- of real run folders


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """The folder of a run that stopped in order, in its job's first start."""
    for name, value in {**SLURM, "SLURM_RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    placement = [{"rank": rank, "role": "collector", "host": "node1"} for rank in range(3)]
    layout = run_folder.claim(tmp_path / "run", {"exp_name": "pong"}, placement, mpi="none")
    run_folder.end(layout, "stopped", "received SIGTERM", 85, {})
    return layout


def ask_of(*jobs: QueueJob) -> Any:
    return {job.job_id: job for job in jobs}.get


def test_what_is_said_before_the_next_start_is_not_of_the_last(layout: RunLayout) -> None:
    progress = {"pid": 7, "written_at": 2.0, "started_at": 1.0, "env_steps": 9, "train_iter": 1,
                "env_steps_per_s": 5.0, "train_iters_per_s": 1.0, "idle": {"1": 0.5},
                "error": {"rank": 1, "role": "learner", "host": "n", "error": "E"}}  # fmt: skip
    layout.status_file.write_text(json.dumps(progress))
    again = QueueJob("12", "RUNNING", nodes="node[2-3]", restarts=1)
    text = "\n".join(lines_of(status_of(layout.root, ask_of(again))))
    assert text.startswith("pong, 3 ranks: starting; job 12 is RUNNING; it will resume")
    assert "node1" not in text
    assert "on node[2-3]" in text
    assert "9 env steps (0/s)" in text
    assert "error" not in text
    assert "idle" not in text
    assert "--resume" not in text


def test_the_job_that_waits_is_asked_about(layout: RunLayout) -> None:
    ended = QueueJob("12", "FAILED")
    for file in (layout.submit_file, layout.next_job_file):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"job": {"SLURM_JOB_ID": "13"}}))
        found = status_of(layout.root, ask_of(ended, QueueJob("13", "PENDING", "Dependency")))
        assert (found.state, found.signs.job.job_id) == ("pending", "13")
        file.unlink()
    assert status_of(layout.root, ask_of(ended)).state == "stopped"
    assert status_of(layout.root, ask_of(ended, QueueJob("14", "RUNNING")), "14").state == (
        "starting"
    )


@pytest.mark.parametrize(
    ("facts", "submitted", "state", "comes"),
    [
        ({}, "12", "PENDING", True),
        ({}, "12", "RUNNING", True),
        (RUNNING, "12", "SPECIAL_EXIT", True),  # until somebody releases it
        ({}, "12", NO_ANSWER, True),
        ({}, "12", "FAILED", False),
        (DONE, "12", "COMPLETING", False),  # `submit --wait` returns as soon as the run is over
        (DONE, "13", "PENDING", True),  # submitted to train on
        (STOPPED, "13", "RUNNING", True),  # it has not come to the folder yet
        (REQUEUED, "12", "RUNNING", True),  # its script has it requeued
        (REQUEUED, "", "PENDING", True),
        (REQUEUED, "", "RUNNING", False),  # a script of the user's own
        ({**DONE, "slurm": {**SLURM, "SLURM_RESTART_COUNT": "(null)"}}, "12", "RUNNING", False),
    ],
)
def test_a_job_to_come(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], submitted: str,
    state: str, *, comes: bool,
) -> None:  # fmt: skip
    layout.run_file.write_text(json.dumps(facts))
    for file in (layout.submit_file, layout.next_job_file):
        monkeypatch.setattr(slurm_queue, "ask", ask_of(QueueJob(submitted or "12", state)))
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"job": {"SLURM_JOB_ID": submitted}}))
        assert (job_to_come(layout) is not None) is comes
        file.unlink()


def test_a_resumed_run_belongs_to_its_new_job(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "15")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "14")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    run_folder.reopen(layout, {"restarts": 1}, [])
    layout.lock_file.write_text(json.dumps(vars(this_process())))
    assert jobs_of(layout, run_folder.read(layout.root)) == ["14_2"]
    assert status_of(layout.root, ask_of(QueueJob("14_2", "RUNNING"))).state == "starting"
    layout.status_file.write_text(json.dumps({"phase": "running"}))
    assert status_of(layout.root, ask_of(QueueJob("14_2", "RUNNING"))).state == "running"


@pytest.mark.parametrize(
    ("trial", "job", "state"),
    [
        ("running", QueueJob("12_1", "RUNNING"), "pending"),
        ("pruned", QueueJob("12_1", "RUNNING"), "stopped"),
        ("running", QueueJob("13", "PENDING"), "pending"),  # that goes on with the search
        ("pruned", QueueJob("13", "PENDING"), "stopped"),
    ],
)
def test_a_trial_that_is_over_does_not_wait_for_the_job_of_its_search(
    tmp_path: Path, trial: str, job: QueueJob, state: str
) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"job": job.job_id.partition("_")[0]}))
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "000.json").write_text(json.dumps({"state": trial}))
    layout = RunLayout(tmp_path / "000")
    layout.root.mkdir()
    task = {**SLURM, "SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1"}
    layout.run_file.write_text(json.dumps({**REQUEUED, "slurm": task}))
    assert status_of(layout.root, ask_of(job), job.job_id).state == state


def test_a_copy_of_a_run_that_is_on_is_dead_and_has_no_job(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.submit_file.parent.mkdir(exist_ok=True)
    layout.submit_file.write_text(json.dumps({"job": {"SLURM_JOB_ID": "12"}}))
    layout.run_file.write_text(json.dumps({**RUNNING, "pid": os.getpid()}))
    ask = ask_of(QueueJob("12", "RUNNING"))
    monkeypatch.setattr(slurm_queue, "ask", ask)
    with RunLock(layout):
        copy = RunLayout(layout.root.with_name("copy"))
        shutil.copytree(layout.root, copy.root)
        found = status_of(copy.root, ask)
        assert (found.state, found.signs.job) == ("dead", None)
        assert found.why.startswith(
            f"it is a copy of {layout.root}, made before that run had ended; "
        )
        assert job_to_come(copy) is None
        assert status_of(layout.root, ask).state in ("starting", "running")
        assert job_to_come(layout) is not None


def test_a_run_that_never_began_names_its_output(layout: RunLayout) -> None:
    layout.run_file.unlink()
    output = layout.submit_dir / "slurm-12.out"
    output.parent.mkdir()
    output.write_text("no module torch\n")
    layout.submit_file.write_text(json.dumps({"job": {"SLURM_JOB_ID": "12"}}))
    lines = lines_of(status_of(layout.root, ask_of(QueueJob("12", "FAILED", "NonZeroExitCode"))))
    assert lines[0] == "run: dead; it never began; job 12 is FAILED (NonZeroExitCode)"
    assert "  output       run/submit/slurm-12.out" in lines
    assert lines[-1] == "  next         less run/submit/slurm-12.out"


def test_a_run_that_was_restarted_in_vain_has_failed(layout: RunLayout) -> None:
    config = ExperimentConfig("pong", system=SystemConfig(max_restarts_without_progress=1))
    resume.take(layout, resume.StartMode.RESTART, config, [], mpi="none")
    with pytest.raises(NoProgressError):
        resume.take(layout, resume.StartMode.RESTART, config, [], mpi="none")
    found = status_of(layout.root, ask_of(QueueJob("12", "FAILED")))
    assert (found.state, found.exit_code) == ("failed", 1)
    assert "restarted 1 times in a row without a newer snapshot" in found.why
