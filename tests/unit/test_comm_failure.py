"""Errors that cross ranks, and the end of a job."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.processes import python
from hpcdi.comm import failure
from hpcdi.comm.failure import describe, headline, requeued_if_machine_fails
from hpcdi.comm.group import waiting_for
from hpcdi.comm.messages import WorkerFailed
from hpcdi.errors import (
    CommError,
    ConfigError,
    EnvError,
    EnvValueError,
    GroupBrokenError,
    GroupNotFormedError,
    HpcdiError,
    LaunchError,
    Problem,
    RankMissingError,
    StoreError,
)
from hpcdi.store.disk_full import or_refuse


@pytest.mark.parametrize(
    ("error", "summary", "exit_code"),
    [
        (ValueError("out of range"), "ValueError: out of range", 1),
        (KeyboardInterrupt(), "KeyboardInterrupt", 1),
        (EnvError("it hangs"), "EnvError: it hangs", 1),
        (ConfigError([Problem("a.b", "wrong")], "f"), None, 2),
        (LaunchError("no world"), "LaunchError: no world", 2),
        (CommError("no answer"), "CommError: no answer", 85),
        (OSError(errno.EIO, "a disk"), f"OSError: [Errno {errno.EIO}] a disk", 85),
        (OSError(errno.ENOENT, "no file"), f"FileNotFoundError: [Errno {errno.ENOENT}] no file", 1),
    ],
)
def test_a_report_says_what_and_how_to_exit(
    error: BaseException, summary: str | None, exit_code: int
) -> None:
    failure = describe(error, "learner")
    assert failure.role == "learner"
    assert failure.host == platform.node()
    assert failure.error == (summary or f"ConfigError: {error}")
    assert failure.exit_code == exit_code


@pytest.mark.parametrize(
    "number",
    [errno.ESTALE, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESHUTDOWN, errno.EROFS],
)
def test_a_file_system_that_fails_or_is_full_is_not_the_user_s_fault(number: int) -> None:
    def planted() -> None:
        try:
            raise OSError(number, os.strerror(number))  # noqa: TRY301
        except OSError as error:
            raise StoreError("a.h5", "cannot be read") from error

    with pytest.raises(StoreError) as caught:
        planted()
    assert describe(caught.value, "learner").exit_code == 85


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(errno.ESTALE, 85), (errno.ENOSPC, 85), (errno.ESHUTDOWN, 85), (errno.EROFS, 2)],
)
def test_a_start_is_tried_again_where_the_machine_fails(number: int, exit_code: int) -> None:
    """A folder that could not be written from the beginning is the user's to move."""

    @requeued_if_machine_fails()
    def start() -> None:
        with or_refuse("the run folder"):
            raise OSError(number, os.strerror(number))

    with pytest.raises(LaunchError) as caught:
        start()
    assert caught.value.exit_code == exit_code


def test_an_error_in_a_start_is_one_sentence_where_the_machine_fails() -> None:
    with (
        pytest.raises(LaunchError, match=r"fails: .*: 'runs/x'\. Start the run") as caught,
        requeued_if_machine_fails(),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO), "runs/x")
    assert caught.value.exit_code == 85
    with pytest.raises(FileNotFoundError), requeued_if_machine_fails():
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), "runs/x")


def test_a_learner_that_waited_in_vain_for_another_says_so_in_a_line() -> None:
    with pytest.raises(GroupBrokenError) as caught, waiting_for("a sum"):
        raise RuntimeError("Connection closed by peer.")
    failure = describe(caught.value, "learner")
    assert failure.exit_code == 85
    assert failure.traceback == ""
    assert "waited in vain for a sum: Connection closed by peer. A learner" in failure.error


def test_a_report_holds_the_whole_traceback_and_its_causes() -> None:
    def planted() -> None:
        try:
            Path("/nowhere/frame").read_bytes()
        except OSError as error:
            raise EnvError("no frame") from error

    with pytest.raises(EnvError) as caught:
        planted()
    traceback = describe(caught.value, "collector").traceback
    assert "in planted" in traceback
    assert "FileNotFoundError: " in traceback
    assert "direct cause" in traceback
    assert traceback.endswith("EnvError: no frame")


@pytest.mark.parametrize("kind", [EnvValueError, GroupNotFormedError, RankMissingError])
def test_what_says_all_is_said_without_our_frames(kind: type[HpcdiError]) -> None:
    try:
        raise kind("reward: None")
    except HpcdiError as error:
        failure = describe(error, "collector")
    assert headline(failure, 2).endswith(f"failed\n{kind.__name__}: reward: None")


def test_the_headline_names_rank_role_and_host_first() -> None:
    failure = WorkerFailed("learner", "node7", "ValueError: x", "Traceback...\nValueError: x")
    assert headline(failure, 3) == (
        "hpcdi: rank 3 (learner, host node7) failed\nTraceback...\nValueError: x"
    )


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process whose output is buffered, as it is without a terminal."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    code = f"from hpcdi.comm.failure import abort_job\n{code}"
    return python("-c", code, env=variables, timeout=60)


def test_abort_ends_the_process_at_once_with_its_words() -> None:
    """Also from another thread, and where ordinary threads would keep the interpreter alive."""
    ended = run(
        "import sys, threading\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "print('said', end=''); print('warned', end='', file=sys.stderr)\n"
        "threading.Thread(target=abort_job, args=(7,)).start()\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "said", "warned")


def test_abort_needs_no_reader() -> None:
    """Whoever read our output may be gone before us; the job must end all the same."""
    code = (
        "import os\n"
        "reading, writing = os.pipe()\n"
        "os.close(reading)\n"
        "os.dup2(writing, 1)\n"
        "print('nobody reads this')\n"
        "abort_job(7)\n"
    )
    ended = run(code)
    assert ended.returncode == 7, ended.stderr


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("ctypes.CDLL(None).exit(3)", "hpcdi: exit() was called"),
        ("os._exit(3)", "hpcdi: os._exit(3) (<string>, line 6) was called"),
        ("os._exit(0)", "hpcdi: os._exit(0) (<string>, line 6) was called"),
        ("pass", ""),
        ("sys.exit(3)", ""),
    ],
)
def test_a_run_in_one_process_says_who_has_ended_it(how: str, said: str) -> None:
    """Not where it ends by itself, nor where a forked process exits."""
    ended = run(
        "import ctypes, os, sys\n"
        "from hpcdi.comm.failure import said_if_it_exits\n"
        "with said_if_it_exits():\n"
        "    os.fork() or os._exit(0)\n"
        f"    {how}\n"
    )
    assert ended.returncode == {"pass": 0, "os._exit(0)": 1}.get(how, 3)
    assert (ended.stdout + ended.stderr).partition(", by the")[0] == said


@pytest.mark.parametrize("how", ["ctypes.CDLL(None).exit(3)", "os._exit(3)", "sys.exit(3)"])
@pytest.mark.parametrize("may_die", [True, False])
def test_a_rank_that_exits_dies_by_a_signal_where_others_go_on(how: str, may_die: bool) -> None:
    code = (
        "import ctypes, os, sys\n"
        "from hpcdi.comm.failure import die_if_it_exits\n"
        "die_if_it_exits()\n"
        "child = os.fork()\n"
        "if not child: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        f"{how}\n"
    )
    variables = {**os.environ, "OMPI_MCA_mpi_ft_enable": str(int(may_die))}
    assert python("-c", code, env=variables).returncode == (-9 if may_die else 3)


@pytest.mark.parametrize("limit_s", [0.02, 30.0])
def test_a_rank_that_never_leaves_is_waited_for_only_so_long(
    limit_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aborted, codes = threading.Event(), []

    def abort(code: int) -> None:
        codes.append(code)
        aborted.set()

    def finalize() -> None:
        aborted.wait(10.0 if limit_s < 1.0 else 0.0)

    fake = SimpleNamespace(__file__="", COMM_WORLD=SimpleNamespace(Abort=abort))
    monkeypatch.setattr("mpi4py.MPI", fake, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(MPI_Finalize=finalize))
    monkeypatch.setattr(failure, "ranks_may_die", lambda: False)
    for name in ("_FORWARD_S", "_OTHERS_FIRST_S"):
        monkeypatch.setattr(failure, name, 0.0)
    assert failure.leave_job(85, failure.LeaveLimit(limit_s, "rank 7 goes on")) == 85
    assert codes == ([85] if limit_s < 1.0 else [])
    assert ("hpcdi: rank 7 goes on" in capsys.readouterr().err) == (limit_s < 1.0)
