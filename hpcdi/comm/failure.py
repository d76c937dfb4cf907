"""An error on one rank ends the whole job, with that rank's traceback."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Iterator
from typing import NoReturn

from hpcdi.comm.messages import KillFrozen, WorkerFailed
from hpcdi.dataclass import dataclass
from hpcdi.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_REQUEUE,
    EnvValueError,
    GroupBrokenError,
    GroupNotFormedError,
    HpcdiError,
    LaunchError,
    RankMissingError,
)
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.log import LOGGER
from hpcdi.utils.processes import end_mpirun, launcher_of, mapped_files
from hpcdi.utils.threads import BackgroundThread

_ULFM_VARIABLE = "OMPI_MCA_mpi_ft_enable"  # set by ``mpirun --with-ft ulfm``
_OF_THE_MACHINE = (
    errno.EIO,
    errno.ESTALE,
    errno.EREMOTEIO,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.ESHUTDOWN,  # Lustre has evicted this host
    errno.EHOSTDOWN,
    errno.ENODEV,
    errno.ENXIO,
    errno.ENOSPC,
    errno.EDQUOT,
)
"""Errors of file systems that may be gone at the next start."""
_REMOUNTED = errno.EROFS
"""The same, of a run that has written before; one that never could is the user's to move."""
_SAYS_ALL = (EnvValueError, GroupBrokenError, GroupNotFormedError, RankMissingError)
_EXIT = os._exit
_SEGMENT = "sm_segment."  # how Open MPI names its shared memory
_OTHERS_FIRST_S = 1.0
_FORWARD_S = 0.2
"""For the launcher to forward this rank's output, before it reports the abort itself."""


def ranks_may_die() -> bool:
    """Returns whether the other ranks go on when one is killed (ULFM, see `mpi_link`)."""
    return os.environ.get(_ULFM_VARIABLE, "0") == "1"


def leave_alone(exit_code: int) -> int:
    """Exit a process that cannot talk to other ranks with `exit_code`, without MPI_Finalize.

    Open MPI's leaves shared memory behind where no launcher has started the process, and ends in a
    segmentation fault where variables of one that has gone say that one has (seen with 5.0.11).
    """
    _flush()
    _remove_shared_memory()
    return _EXIT(exit_code)


def describe(error: BaseException, role: str) -> WorkerFailed:
    """Report of an error for the coordinator, with its traceback.

    Those whose message says all have none: a value that the environment's spaces do not have, or
    another rank's death; the frames are those of who noticed it.
    """
    says_all = isinstance(error, _SAYS_ALL)
    lines = [] if says_all else traceback.format_exception(type(error), error, error.__traceback__)
    summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    code = exit_code_of(error)
    return WorkerFailed(role, platform.node(), summary, "".join(lines).rstrip(), code)


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code of a run that an error ends."""
    if _is_of_the_machine(error, (*_OF_THE_MACHINE, _REMOUNTED)):
        return EXIT_REQUEUE
    return error.exit_code if isinstance(error, HpcdiError) else EXIT_FAILED


@contextlib.contextmanager
def requeued_if_machine_fails() -> Iterator[None]:
    """A block in which a run starts.

    Raises:
        HpcdiError: as in the block, or a `LaunchError` in place of an `OSError`; with the exit code
            by which the run is started again, where the machine is to blame.
    """
    try:
        yield
    except (HpcdiError, OSError) as error:
        if not _is_of_the_machine(error, _OF_THE_MACHINE):
            raise
        if isinstance(error, HpcdiError):
            error.exit_code = EXIT_REQUEUE
            raise
        refusal = LaunchError(f"the file system fails: {error}. Start the run once more")
        refusal.exit_code = EXIT_REQUEUE
        raise refusal from error


def _is_of_the_machine(error: BaseException, numbers: Collection[int]) -> bool:
    """Returns whether an error is neither the user's nor ours: MPI's, or a file system's."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and isinstance(error, mpi.Exception):
        return True  # such as of a collective call that misses a rank which has died
    cause = error.__cause__ if isinstance(error, HpcdiError) else error
    return isinstance(cause, OSError) and cause.errno in numbers


def headline(failure: WorkerFailed, rank: int) -> str:
    """Message for people: who failed, where, and the whole traceback, if there is one."""
    who = f"rank {rank} ({failure.role}, host {failure.host})"
    return f"hpcdi: {who} failed\n{failure.traceback or failure.error}"


def abort_job(exit_code: int) -> None:
    """End every process of the MPI job at once; does not return.

    Open MPI exits with `exit_code` and kills the other ranks within a second. With ULFM its
    MPI_Abort may end the caller alone; so mpirun is signalled, and the others notice the death.
    """
    _flush()
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            wait_s(_FORWARD_S)
            if ranks_may_die():
                end_mpirun(launcher_of(os.getpid()))
                _die()
            MPI.COMM_WORLD.Abort(exit_code)
    _EXIT(exit_code)


def die_alone() -> None:
    """End this process while the other ranks go on; does not return.

    By a signal: ULFM does not notice a rank that exits without MPI_Finalize.
    """
    _flush()
    wait_s(_FORWARD_S)
    _die()


def die_if_it_exits() -> None:
    """Have this rank die by a signal where a library, a simulator say, ends its process.

    That is, by exit() in C, or by `os._exit`: the other ranks notice, see `die_alone`. Processes
    that it starts end as they like; a forked one that calls exit() ends by the signal, too.
    """
    if not ranks_may_die():
        return
    pid, libc = os.getpid(), ctypes.CDLL(None)
    die = ctypes.cast(getattr(libc, "raise"), ctypes.c_void_p)
    libc.__cxa_atexit(die, ctypes.c_void_p(signal.SIGKILL), None)  # no Python may run any more

    def exit_or_die(status: int) -> NoReturn:
        if os.getpid() == pid:
            sys.stderr.write(f"hpcdi: os._exit({status}) was called: this rank dies\n")
            die_alone()
        _EXIT(status)

    os._exit = exit_or_die


@contextlib.contextmanager
def said_if_it_exits() -> Iterator[None]:
    """Within it, say so where a library, a simulator say, ends this process: see above."""
    message = (
        "hpcdi: {} was called, by the environment or a library, and ends this process; with "
        "env.manager.type: subprocess that is the environment's failure, and the run goes on\n"
    )
    pid, libc = os.getpid(), ctypes.CDLL(None)
    libc.strdup.restype = ctypes.c_void_p
    line = ctypes.c_void_p(libc.strdup(message.format("exit()").encode()))  # outlives Python
    libc.__cxa_atexit(ctypes.cast(libc.printf, ctypes.c_void_p), line, None)

    def say_and_exit(status: int) -> NoReturn:
        if os.getpid() == pid:
            _flush()
            caller = sys._getframe(1)
            where = f"{caller.f_code.co_filename}, line {caller.f_lineno}"
            sys.stderr.write(message.format(f"os._exit({status}) ({where})"))
            sys.stderr.flush()
            status = status or EXIT_FAILED
        _EXIT(status)

    os._exit = say_and_exit
    try:
        yield
    finally:
        os._exit = _EXIT
        ctypes.memset(line, 0, 1)  # nothing to be said


def kill_frozen(order: KillFrozen) -> None:
    """Kill a rank of this host that sends nothing any more: the others notice its death."""
    LOGGER.warning("rank %d (process %d) is frozen, and is killed", order.rank, order.pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(order.pid, signal.SIGKILL)


@dataclass(frozen=True)
class LeaveLimit:
    """How long this rank waits for others to leave, who have to call MPI_Finalize, too.

    Attributes:
        seconds: after which it aborts the job, with its own exit code.
        cause: what it says on standard error then: who has not left, and the next step.
    """

    seconds: float
    cause: str


def leave_job(exit_code: int, limit: LeaveLimit | None = None) -> int:
    """Orderly end of a rank's program: returns `exit_code`, or exits the process with it.

    With ULFM nobody calls MPI_Finalize: with a dead rank it hangs now and then (seen in one of
    three, Open MPI 5.0.11). A rank that leaves with an error waits for the others to exit first:
    launchers kill those that are left, and then return that signal instead of the exit code.

    Args:
        exit_code: of this rank.
        limit: of the wait for the others; None: there is none.
    """
    _flush()
    if not ranks_may_die():
        _finalize(exit_code, limit)
    if exit_code != EXIT_DONE:
        wait_s(_OTHERS_FIRST_S)
    if not ranks_may_die():
        return exit_code
    _remove_shared_memory()
    return _EXIT(exit_code)


def _finalize(exit_code: int, limit: LeaveLimit | None) -> None:
    from mpi4py import MPI

    if limit is None:
        MPI.Finalize()
        return
    over = threading.Event()

    def watch() -> None:
        if not over.wait(limit.seconds):
            sys.stderr.write(f"hpcdi: {limit.cause}\n")
            _flush()
            wait_s(_FORWARD_S)
            MPI.COMM_WORLD.Abort(exit_code)

    watching = BackgroundThread(watch, "leave-watch")
    ctypes.CDLL(MPI.__file__).MPI_Finalize()  # mpi4py's lets no other thread run
    over.set()
    watching.join()


def _die() -> None:
    _remove_shared_memory()
    os.kill(os.getpid(), signal.SIGKILL)


def _remove_shared_memory() -> None:
    """Remove that of all ranks on this host, dead ones too: without MPI_Finalize nobody does."""
    with contextlib.suppress(OSError):
        for path in mapped_files():
            if path.name.startswith(_SEGMENT):
                path.unlink(missing_ok=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader may be gone already
            stream.flush()
