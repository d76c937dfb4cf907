"""Seeing a job through: its exit code, its signals, its end.

The jobs of these tests are small commands in mpirun's place; tests/jobs starts real ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.failing_files import FailingFiles
from hpcdi.errors import EXIT_USAGE, LaunchError
from hpcdi.run import local, loopback, signals
from hpcdi.run.environment import REFUSED
from hpcdi.run.local import Job, Patience
from hpcdi.store.layout import RunLayout


@pytest.fixture(autouse=True)
def _own_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tests may themselves run under nohup, or in the background of a script."""
    monkeypatch.setenv(loopback.SWITCH, "0")  # what stands in mpirun's place here sleeps at once
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


NAME_OF_JOB = local._name_of_job


@pytest.fixture(autouse=True)
def _known_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`write_run` names the job before it begins."""
    monkeypatch.setattr(local, "_name_of_job", lambda: f"{platform.node()}:{os.getpid()}")


def write_run(path: Path, **facts: Any) -> None:
    """A run of this process's own, unless `launcher` says otherwise."""
    path.mkdir(exist_ok=True)
    facts = {"launcher": f"{platform.node()}:{os.getpid()}", **facts}
    RunLayout(path).run_file.write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("run", "returned", "exit_code"),
    [
        (None, EXIT_USAGE, EXIT_USAGE),
        (None, REFUSED, 1),
        (None, 85, 85),  # such as a full disk
        (None, 1, 85),  # mpirun's numbers say little, and not the same in all libraries
        (None, 0, 85),
        (None, 137, 85),
        ({"state": "done", "exit_code": 0}, 0, 0),
        ({"state": "done", "exit_code": 0}, 9, 0),  # a rank broke as it left: all is on disk
        ({"state": "stopped", "exit_code": 143}, 9, 143),  # what the run says counts, not mpirun
        ({"state": "failed", "exit_code": 1}, 0, 1),
        ({"state": "stopped", "exit_code": 143}, 0, 143),
    ],
)
def test_the_exit_code_is_the_run_s(
    tmp_path: Path, run: dict[str, Any] | None, returned: int, exit_code: int
) -> None:
    if run is not None:
        write_run(tmp_path / "run", **run)
    with Job(["sh", "-c", f"exit {returned}"], tmp_path / "run", {}) as job:
        assert job.wait() == exit_code


def test_a_run_that_is_done_stays_so_where_its_folder_cannot_be_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment in which the file system fails, and `hpcdi train` ended by a traceback."""
    write_run(tmp_path / "run", state="done", exit_code=0)
    (tmp_path / "run" / "data").mkdir()
    failing = FailingFiles(monkeypatch, "run/data", times=1)
    with Job(["sh", "-c", "exit 9"], tmp_path / "run", {}) as job:  # a rank broke as it left
        assert job.wait() == 0
    assert failing.left == 0


WRITES_RUN = """
import json, os, sys
facts = {"launcher": os.environ["HPCDI_LAUNCHER"], "state": "done", "exit_code": 0}
open(sys.argv[1], "w").write(json.dumps(facts))
"""


def test_a_second_job_of_one_process_that_does_not_begin_is_not_done_as_the_first_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`hpcdi.train(resume=run)` after `hpcdi.train()`: the folder says what the first reached."""
    monkeypatch.setattr(local, "_name_of_job", NAME_OF_JOB)
    command = [sys.executable, "-c", WRITES_RUN, str(RunLayout(tmp_path).run_file)]
    with Job(command, tmp_path, {}) as job:
        assert job.wait() == 0
    with Job(["sh", "-c", f"exit {EXIT_USAGE}"], tmp_path, {}) as job:  # rank 0 has said why
        assert job.wait() == EXIT_USAGE
    assert "the run is done" not in capfd.readouterr().err


@pytest.mark.parametrize("returned", [REFUSED, EXIT_USAGE, 85])
def test_a_solver_s_program_that_ends_before_the_run_begins_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], returned: int
) -> None:
    """Its exit code was taken for a refusal of hpcdi's, of which a rank has said why."""
    log = RunLayout(tmp_path / "run").solver_dir(0) / "rank00000.log"
    log.parent.mkdir(parents=True)
    with Job(
        ["sh", "-c", f"sleep 0.02; echo no grid.dat >{log}; exit {returned}"], tmp_path / "run", {}
    ) as job:
        job.wait()
    said = capfd.readouterr().err
    assert f"(mpirun: {returned}); where no rank has said why, a solver's program ended" in said
    assert said.endswith(f"{log}:\nno grid.dat\n")
    with Job(["sh", "-c", f"sleep 0.01; exit {returned}"], tmp_path / "run", {}) as job:
        job.wait()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("state", "exit_code"), [("COMPLETED", EXIT_USAGE), ("RUNNING", 85)])
def test_a_shell_of_an_allocation_that_has_ended_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    state: str,
    exit_code: int,
) -> None:
    """mpirun cannot start there, and no start again helps."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho JobId=9 JobState={state} Partition=x\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    with Job(["sh", "-c", "exit 213"], tmp_path / "run", {}) as job:
        assert job.wait() == exit_code
    said = capfd.readouterr().err
    assert ("Slurm job 9 has ended" in said) == (exit_code == EXIT_USAGE)


@pytest.mark.parametrize("returned", [0, 14, 137])
def test_a_job_that_ends_without_a_word_is_to_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], returned: int
) -> None:
    """mpirun exits with 0 when a node dies, with 137 when a rank is killed."""
    path = tmp_path / "run"
    write_run(path, state="running", exp_name="x")
    with Job(["sh", "-c", f"exit {returned}"], path, {}) as job:
        assert job.wait() == 85
    said = capfd.readouterr().err
    assert f"mpirun: {returned}" in said
    assert str(path / "log") in said
    facts = json.loads(RunLayout(path).run_file.read_text())
    assert (facts["state"], facts["exit_code"], facts["exp_name"]) == ("stopped", 85, "x")


def test_a_job_that_ends_before_it_began_leaves_no_folder(tmp_path: Path) -> None:
    """Nothing was claimed, so there is nothing to write the end into."""
    with Job(["true"], tmp_path / "run", {}) as job:
        assert job.wait() == 85
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_faster_is_left_alone(tmp_path: Path) -> None:
    """Two `hpcdi train` were given one folder; this one's ranks have found it taken."""
    path = tmp_path / "run"
    write_run(path, state="running", launcher="another:1", exp_name="the other")
    before = RunLayout(path).run_file.read_text()
    with Job(["sh", "-c", f"exit {EXIT_USAGE}"], path, {}) as job:
        assert job.wait() == EXIT_USAGE
    assert RunLayout(path).run_file.read_text() == before


def test_the_ranks_get_their_variables_and_no_input(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["sh", "-c", "read line; echo $HPCDI_LAUNCHER $?; exit 2"]
    with Job(command, tmp_path, {}) as job:
        assert job.wait() == 2
    assert capfd.readouterr().out == f"{platform.node()}:{os.getpid()} 1\n"


def test_folders_for_mpi_are_the_user_s_where_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRTE_MCA_base", "mine")
    folders = {"PRTE_MCA_base": "ours", "OMPI_MCA_base": "ours"}
    with Job(["sh", "-c", "echo $PRTE_MCA_base $OMPI_MCA_base"], tmp_path, folders) as job:
        job.wait()
    assert capfd.readouterr().out == "mine ours\n"


def test_leaving_the_block_ends_the_job_and_gives_the_signals_back(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with Job(["sleep", "1000"], tmp_path, {}) as job:
        assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before
    assert job._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"state": "stopped", "exit_code": 85}, "after the run ended"),
        ({"state": "running", "pid": 2**22 + 1}, "after rank 0 ended"),
        (None, "after the job was started"),
    ],
)
def test_a_mpirun_that_waits_for_nothing_is_killed(
    tmp_path: Path,
    run: dict[str, Any] | None,
    said: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a network to its daemons it waits for ever, and SIGHUP does not end it."""
    for limit in ("_WATCH_S", "LEAVE_S", "_LAST_S"):
        monkeypatch.setattr(local, limit, 0.02)
    if run is not None:
        write_run(tmp_path / "run", host=platform.node(), **run)
    deaf = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); signal.pause()"
    with Job([sys.executable, "-c", deaf], tmp_path / "run", {}) as job:
        assert job.wait(Patience(0.0, 0.0)) == 85
    assert said in capfd.readouterr().err


def test_solvers_that_do_not_leave_are_named_when_their_job_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that goes on after END keeps mpirun, though all is done."""
    for limit in ("_WATCH_S", "LEAVE_S"):
        monkeypatch.setattr(local, limit, 0.02)
    write_run(tmp_path / "run", host=platform.node(), state="done", exit_code=0)
    (tmp_path / "run" / "solvers").mkdir()
    keeps = "OMPI_COMM_WORLD_RANK=3 sleep 20 & trap 'kill $!; exit 0' HUP; wait"
    with Job(["sh", "-c", keeps], tmp_path / "run", {}) as job:
        job.wait(Patience(0.0, 0.0, 0.3))
    assert "have not left: 3. A solver's program must end at END" in capfd.readouterr().err


def test_a_run_that_goes_on_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coordinator: subprocess.Popen[str]
) -> None:
    for limit in ("_WATCH_S", "LEAVE_S"):
        monkeypatch.setattr(local, limit, 0.001)
    write_run(tmp_path / "run", state="running", host=platform.node(), pid=coordinator.pid)
    with Job(["sh", "-c", "sleep 0.3; exit 0"], tmp_path / "run", {}) as job:
        assert job.wait(Patience(0.0, 0.0)) == 85
        assert job._process.returncode == 0


# ------------------------------------------------------------------------------------------ signals

COORDINATOR = """
import signal

numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGXCPU)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
print(signal.Signals(signal.sigwait(numbers)).name, flush=True)
"""
"""Waits instead of handling: a second signal's handler may run within the first one's."""


@pytest.fixture
def coordinator() -> Iterator[subprocess.Popen[str]]:
    """A process that says which signal it gets, in rank 0's place."""
    with subprocess.Popen(
        [sys.executable, "-c", COORDINATOR], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_ctrl_c_while_mpirun_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for its end would take a stop away: it stood still for ever."""
    monkeypatch.delenv(loopback.SWITCH)
    with Job(["sh", "-c", "kill -INT $PPID; sleep 0.5; true"], tmp_path / "run", {}) as job:
        assert job.wait() == 130


def test_ctrl_c_while_mpirun_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores KeyboardInterrupt in what `logging` does at a fork: the run went on."""
    prepare = local._in_mpirun

    def interrupt() -> None:
        os.kill(os.getppid(), signal.SIGINT)
        prepare()

    monkeypatch.setattr(local, "_in_mpirun", interrupt)
    with Job(["sleep", "30"], tmp_path / "run", {}) as job:
        assert job.wait() == 130


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a job that ends when `end` is written to, with these facts in its run.json."""
    os.mkfifo(tmp_path / "end")

    def start(**facts: Any) -> Job:
        write_run(tmp_path / "run", state="running", **facts)
        fifo = shlex.quote(str(tmp_path / "end"))
        started.append(Job(["sh", "-c", f"read line < {fifo}; exit 0"], tmp_path / "run", {}))
        return started[-1]

    started: list[Job] = []
    yield start
    for each in started:
        each.__exit__()


@pytest.mark.parametrize(
    ("number", "handed_on", "exit_code"),
    [
        ("SIGINT", "SIGINT", 130), ("SIGTERM", "SIGTERM", 143), ("SIGHUP", "SIGTERM", 143),
        ("SIGUSR2", "SIGUSR2", 85), ("SIGXCPU", "SIGXCPU", 85),
    ],
)  # fmt: skip
def test_the_first_signal_is_handed_to_rank_0(
    tmp_path: Path,
    job: Callable[..., Job],
    coordinator: subprocess.Popen[str],
    number: str,
    handed_on: str,
    exit_code: int,
) -> None:
    running = job(host=platform.node(), pid=coordinator.pid)
    signal.raise_signal(signal.Signals[number])
    assert coordinator.stdout
    assert coordinator.stdout.readline() == f"{handed_on}\n"
    (tmp_path / "end").write_text("\n")
    assert running.wait() == exit_code


def test_the_second_signal_ends_mpirun(
    job: Callable[..., Job], coordinator: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "SECOND_S", 0.05)
    running = job(host=platform.node(), pid=coordinator.pid)
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.05)
    signal.raise_signal(signal.SIGINT)
    assert running.wait() == 130
    assert running._process.returncode == -signal.SIGHUP


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_the_same_wish_said_twice_is_one(
    tmp_path: Path, job: Callable[..., Job], coordinator: subprocess.Popen[str], number: str
) -> None:
    """A batch system sends SIGTERM to mpirun as well, or SIGINT before it."""
    running = job(host=platform.node(), pid=coordinator.pid)
    for each in (signal.Signals[number], signal.SIGTERM):
        signal.raise_signal(each)
        running._process.send_signal(each)
    assert coordinator.stdout
    assert coordinator.stdout.readline() == f"{number}\n"
    write_run(tmp_path / "run", state="stopped", exit_code=85)
    (tmp_path / "end").write_text("\n")
    assert running.wait() == 85
    assert running._process.returncode == 0


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP", "SIGUSR2", "SIGXCPU"])
def test_a_stop_before_there_is_a_run_is_no_error_of_its(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: str, *, begins: bool
) -> None:
    """Also where rank 0 begins just then."""
    path = tmp_path / "run"
    with Job(["sleep", "1000"], path, {}) as running:
        signal.raise_signal(signal.Signals[number])
        time.sleep(0.01)
        signal.raise_signal(signal.SIGUSR2)  # again: it is the same wish
        if begins:
            write_run(path, state="running")
        assert running.wait() == 85
    assert capfd.readouterr().err == "hpcdi: ended by a signal before the run began\n"
    if begins:
        facts = json.loads(RunLayout(path).run_file.read_text())
        assert (facts["state"], facts["exit_code"]) == ("stopped", 85)


def test_usr1_shows_what_ranks_of_this_host_do_and_ends_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], coordinator: subprocess.Popen[str]
) -> None:
    rank = "import faulthandler, signal, time\nfaulthandler.register(signal.SIGUSR1, file=2)\n"
    ready = tmp_path / "ready"
    begun = f"{rank}open({str(ready)!r}, 'w').close()\ntime.sleep(600)"
    path, here = tmp_path / "run", {"rank": 0, "host": platform.node()}
    with Job([sys.executable, "-c", begun], path, {}) as job:
        while not ready.exists():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGUSR1)  # the run has not begun
        others = [{**here, "pid": coordinator.pid}, {**here, "host": "node9", "pid": 1}]
        write_run(path, state="running", placement=[{**here, "pid": job._process.pid}, *others])
        signal.raise_signal(signal.SIGUSR1)
        while "most recent call first" not in capfd.readouterr().err:  # may lose what comes as it
            time.sleep(0.1)  # clears what it has read
            signal.raise_signal(signal.SIGUSR1)
        assert job._process.poll() is None
    assert coordinator.poll() is None, "its number came again: it is none of this job's"


def test_nohup_is_obeyed(
    tmp_path: Path, job: Callable[..., Job], coordinator: subprocess.Popen[str]
) -> None:
    """A run that is to outlive its terminal does."""
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = job(host=platform.node(), pid=coordinator.pid)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGHUP)
        write_run(tmp_path / "run", state="done", exit_code=0)
        (tmp_path / "end").write_text("\n")
        assert running.wait() == 0
    finally:
        signal.signal(signal.SIGHUP, old)
    assert coordinator.poll() is None


@pytest.mark.parametrize(
    ("number", "preempts"),
    [("SIGTERM", ""), ("SIGHUP", ""), ("SIGHUP", "HUP"), ("SIGXCPU", ""), ("SIGALRM", "ALRM")],
)
def test_where_rank_0_is_elsewhere_mpirun_hands_the_wish_on(
    tmp_path: Path,
    number: str,
    preempts: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HPCDI_PREEMPT_SIGNAL", preempts)
    path = tmp_path / "run"
    write_run(path, state="running", host="another host", pid=1)
    trapped = "trap 'echo handed on; exit 0' USR2; echo ready; while :; do sleep 0.05; done"
    with Job(["sh", "-c", trapped], path, {}) as job:
        while "ready" not in capfd.readouterr().out:
            time.sleep(0.01)
        signal.raise_signal(signal.Signals[number])
        assert job._process.wait(30) == 0
        write_run(path, state="stopped", exit_code=85)
        assert job.wait() == 85
    assert "handed on" in capfd.readouterr().out


def test_a_second_signal_ends_mpirun_wherever_rank_0_is(job: Callable[..., Job]) -> None:
    running = job(host="another host", pid=1)
    signal.raise_signal(signal.SIGINT)
    assert running.wait() == 130
    assert running._process.returncode == -signal.SIGHUP


def test_a_signal_that_comes_when_rank_0_has_gone(
    tmp_path: Path, job: Callable[..., Job], coordinator: subprocess.Popen[str]
) -> None:
    """Between its last word and mpirun's end: nothing is left to ask."""
    coordinator.kill()
    coordinator.wait()
    running = job(host=platform.node(), pid=coordinator.pid)
    signal.raise_signal(signal.SIGINT)
    (tmp_path / "end").write_text("\n")
    assert running.wait() == 130


def test_a_terminal_that_has_gone_keeps_nobody_from_ending(
    tmp_path: Path,
    job: Callable[..., Job],
    coordinator: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGHUP says that nobody reads our words any more."""
    running = job(host=platform.node(), pid=coordinator.pid)
    reading, writing = os.pipe()
    os.close(reading)
    terminal = os.fdopen(writing, "w", buffering=1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        signal.raise_signal(signal.SIGHUP)
    with contextlib.suppress(BrokenPipeError):
        terminal.close()
    assert coordinator.stdout
    assert coordinator.stdout.readline() == "SIGTERM\n"
    (tmp_path / "end").write_text("\n")
    assert running.wait() == 143


def test_rank_0_is_waited_for_where_mpirun_has_left_it_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It writes how the run ended half a second after mpirun's own end, and prints it in vain."""
    late = (
        "import json, os, pathlib, sys, time\n"
        "file = pathlib.Path(sys.argv[1]); facts = json.loads(file.read_text())\n"
        "if os.fork(): sys.exit(3)\n"
        "facts['pid'] = os.getpid(); file.write_text(json.dumps(facts)); time.sleep(0.5)\n"
        "facts.update(state='done', exit_code=0, reason='it is solved')\n"
        "file.write_text(json.dumps(facts))\n"
    )
    path = tmp_path / "run"
    write_run(path, state="running", host=platform.node(), pid=os.getpid())
    with Job([sys.executable, "-c", late, str(path / "run.json")], path, {}) as job:
        assert job.wait() == 0
    assert json.loads(RunLayout(path).run_file.read_text())["state"] == "done"
    assert "hpcdi: done: it is solved\n" in capfd.readouterr().err


def test_settings_that_no_program_takes_are_refused(tmp_path: Path) -> None:
    """By the kernel: a word of a command line may have 128 KiB."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(LaunchError, match=r"too long\. Put long settings into the exp"):
        Job(["true", f"env.seeds={'1' * (1 << 17)}"], tmp_path, {})
    assert signal.getsignal(signal.SIGTERM) is before
