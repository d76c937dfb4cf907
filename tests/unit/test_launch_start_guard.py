"""A rank's start that cannot hang: real processes, with a shell script in mpirun's place."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcdi.errors import EXIT_REQUEUE

LIMIT_S = 60
BEGIN = """
import os, signal, sys, time
from hpcdi.run.start_guard import StartGuard
guard = StartGuard()
"""
WAIT_FOR_EVER = "time.sleep(3600)"  # as in MPI_Init
MPIRUN = """#!/bin/bash
pids=()
trap 'kill -KILL "${pids[@]}"; exit 15' TERM
for program in "$@"; do
    OMPI_COMM_WORLD_LOCAL_SIZE=$# OMPI_COMM_WORLD_RANK=${#pids[@]} PYTHON -c "$program" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; echo "code $?"; done
"""


def run(*programs: str, folder: Path, name: str = "prterun") -> subprocess.CompletedProcess[str]:
    """Run a program for each rank, below a launcher of that name."""
    launcher = folder / name
    launcher.write_text(MPIRUN.replace("PYTHON", sys.executable))
    launcher.chmod(0o755)
    return subprocess.run(
        [launcher, *programs], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_a_start_that_is_over_leaves_no_guard(tmp_path: Path) -> None:
    begun = f"""{BEGIN}
from hpcdi.utils.processes import children_of
assert len(children_of(os.getpid())) == 1
guard.limit(50)
guard.over()
guard.over()
assert not children_of(os.getpid())
"""
    ended = run(begun, begun, folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "code 0\ncode 0\n"


@pytest.mark.parametrize(
    "death",
    ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)", "sys.exit(3)"],
    ids=["killed", "left in C", "left in Python"],
)
def test_the_death_of_a_rank_ends_mpirun_and_is_named(tmp_path: Path, death: str) -> None:
    began = time.monotonic()
    ended = run(BEGIN + WAIT_FOR_EVER, BEGIN + death, folder=tmp_path)
    assert ended.returncode == 15, "mpirun was asked to end"
    assert time.monotonic() - began < 20
    assert "hpcdi: rank 1 (host " in ended.stderr
    assert "has died before the run had begun" in ended.stderr
    assert ended.stderr.count("hpcdi: ") == 1, "one guard speaks for all"


def test_what_is_sent_to_all_processes_of_a_job_ends_no_guard(tmp_path: Path) -> None:
    """Without a guard the others waited for ever for a rank that such a signal had killed."""
    signalled = f"""{BEGIN}
from hpcdi.utils.processes import children_of
time.sleep(0.2)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGUSR2):
    os.kill(children_of(os.getpid())[0], number)
os.kill(os.getpid(), signal.SIGUSR2)
"""
    ended = run(BEGIN + WAIT_FOR_EVER, signalled, folder=tmp_path)
    assert ended.returncode == 15, "mpirun was asked to end"
    assert "hpcdi: rank 1 (host " in ended.stderr


@pytest.mark.slow
def test_a_rank_that_dies_before_it_has_a_guard_is_missed(tmp_path: Path) -> None:
    ended = run(BEGIN + WAIT_FOR_EVER, "import no_hpcdi_here", folder=tmp_path)
    assert ended.returncode == 15
    assert "No module named 'no_hpcdi_here'" in ended.stderr
    assert "hpcdi: 1 of 2 ranks of host " in ended.stderr
    assert "  rank 0: process " in ended.stderr


def test_a_daemon_that_is_no_mpirun_loses_its_ranks(tmp_path: Path) -> None:
    """Slurm's: it belongs to root, and sees by its ranks' end that the step is over."""
    ended = run(
        BEGIN + WAIT_FOR_EVER, f"{BEGIN}os.kill(os.getpid(), 9)", folder=tmp_path, name="slurmstepd"
    )
    assert ended.returncode == 0
    assert ended.stdout == f"code {128 + signal.SIGKILL}\n" * 2


def test_a_rank_that_never_begins_is_named_among_those_that_wait(tmp_path: Path) -> None:
    stopped = f"{BEGIN}os.kill(os.getpid(), signal.SIGSTOP)"
    waits = f"{BEGIN}guard.limit(2)\n{WAIT_FOR_EVER}"
    never = "import time\ntime.sleep(3600)"
    ended = run(stopped, waits, never, folder=tmp_path)
    assert ended.returncode == 15
    assert "MPI has not started within 2 s (system.coordinator.start_timeout_s)" in ended.stderr
    assert "\n  rank 0: process " in ended.stderr
    for number, doing in enumerate(
        ["is stopped (SIGSTOP)", "waits for the others", "has not begun (Python or hpcdi loads)"]
    ):
        (line,) = [x for x in ended.stderr.splitlines() if x.startswith(f"  rank {number}: ")]
        assert line.endswith(doing)


def with_block(error: str) -> str:
    return f"""
from hpcdi.errors import LaunchError
from hpcdi.run.start_guard import StartGuard
with StartGuard():
    raise {error}
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("ImportError('no numpy here')", EXIT_REQUEUE),  # maybe of this host alone
        ("SystemExit(2)", 2),  # all ranks alike
        ("LaunchError('a wrong option')", 1),
    ],
)
def test_an_error_of_one_rank_ends_the_start_of_all(tmp_path: Path, error: str, code: int) -> None:
    is_alone = code == EXIT_REQUEUE
    others = [BEGIN + WAIT_FOR_EVER] if is_alone else [with_block(error)]
    ended = run(with_block(error), *others, folder=tmp_path)
    assert ("has died before the run had begun" in ended.stderr) is is_alone
    assert ("could not start\nTraceback" in ended.stderr) is is_alone
    if not is_alone:
        assert ended.stdout == f"code {code}\n" * 2
