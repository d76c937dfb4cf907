"""Faults in a rank's start, for tests and tools: Python imports this before all else.

Put this folder on PYTHONPATH, and set START_FAULT=KIND:RANK. With START_FAULT_ONCE=FILE the fault
comes once: the file notes that it has. `line` kills the rank at START_LINE=FILE:NUMBER, or
FILE:FUNCTION; it makes the file START_STRUCK before, if that is set. `lines:*` is no fault: each
rank writes to the file START_LINES and its number each line of the functions of hpcdi that it comes
to, and what another process can notice of it.
"""

import dis
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def _rank() -> str:
    """Returns this process' rank; empty: it is none."""
    return next((os.environ[name] for name in _RANKS if name in os.environ), "")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sleep() -> None:
    time.sleep(3600)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise() -> None:
    raise ImportError("planted: this package cannot be read on this host")


def _die_soon() -> None:
    """Be killed by a child when MPI's library has been loaded, and MPI_Init is under way."""
    rank = os.getpid()
    if os.fork() == 0:
        while True:
            try:
                with open(f"/proc/{rank}/maps") as maps:  # noqa: PTH123 (nothing more to import)
                    if "libmpi" in maps.read():
                        break
            except OSError:
                os._exit(0)
            time.sleep(0.001)
        time.sleep(0.05)
        os.kill(rank, signal.SIGKILL)
        os._exit(0)


def _at_each_line(visit: Callable[[str, FrameType], None]) -> None:
    """Call `visit` with each line of a function of hpcdi that any thread comes to."""
    seen = set[tuple[str, int]]()

    def on_line(frame: FrameType, event: str, _: object) -> object:
        path = frame.f_code.co_filename
        if event == "line" and (path, frame.f_lineno) not in seen:
            seen.add((path, frame.f_lineno))
            place = path.rpartition(f"{os.sep}hpcdi{os.sep}")[2]
            visit(f"{place}:{frame.f_lineno}:{frame.f_code.co_name}", frame)
        return on_line

    def on_call(frame: FrameType, _event: str, _: object) -> object:
        code = frame.f_code
        is_function = code.co_flags & 1  # CO_OPTIMIZED: no module, and no body of a class
        return on_line if is_function and f"{os.sep}hpcdi{os.sep}" in code.co_filename else None

    threading.settrace(on_call)
    sys.settrace(on_call)


def _write_lines() -> None:
    """Write `THREAD FILE:NUMBER:FUNCTION` for each line, and `THREAD * ACT` for what it does."""
    file = os.open(os.environ["START_LINES"] + _rank(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write = os.write

    def note(text: str) -> None:
        write(file, f"{os.getpid()}-{threading.get_ident()} {text}\n".encode())

    def on_line(line: str, frame: FrameType) -> None:
        note(line)
        for name in _names_in(frame) & (_LIBRARIES | _mpi_names()):
            note(f"* {name}")

    def on_event(_frame: FrameType, event: str, function: object) -> None:
        if event == "c_call" and function is not write and _is_act(function):
            note(f"* {function}")

    def on_audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE:
            note(f"* open {arguments[0]!r}")

    _at_each_line(on_line)
    threading.setprofile(on_event)
    sys.setprofile(on_event)
    sys.addaudithook(on_audit)


_ACTS = {
    "posix": {
        "_exit", "chmod", "close", "fchmod", "fork", "fsync", "ftruncate", "kill", "killpg",
        "link", "mkdir", "mkfifo", "nice", "posix_spawn", "rename", "replace", "rmdir",
        "sched_setaffinity", "sendfile", "setsid", "symlink", "truncate", "unlink", "utime",
        "waitpid", "write", "writev",
    },
    "fcntl": {"flock", "lockf", "fcntl", "ioctl"},
    "_io": {"flush", "truncate", "write", "writelines"},
    "_posixsubprocess": {"fork_exec"},
    "_socket": {"bind", "close", "connect", "listen", "send", "sendall", "sendmsg", "shutdown"},
}  # fmt: skip
"""By module: functions written in C whose call another process can notice."""
_LIBRARIES = {
    "File", "close", "create_dataset", "create_group", "flush", "require_group", "resize",
    "TCPStore", "all_gather", "all_reduce", "broadcast", "destroy_process_group",
    "init_process_group", "new_group",
}  # fmt: skip
"""Of HDF5 and torch.distributed, whose calls Python does not tell of: a line with such a name."""


def _is_act(function: object) -> bool:
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or type(owner).__module__
    return name in _ACTS.get(module, ())


def _mpi_names() -> set[str]:
    """Returns the names of MPI's calls, of which Python does not tell either."""
    mpi = sys.modules.get("mpi4py.MPI")
    owners = [getattr(mpi, name, None) for name in ("Comm", "Intracomm", "Request", "Message")]
    names = {name for owner in (mpi, *owners) if owner is not None for name in vars(owner)}
    return {x for x in names if x[0].isupper() and not x.isupper() and x[:4] not in _LOCAL}


_LOCAL = ("Comm", "Get_", "Grou", "Intr", "Requ", "Stat", "Exce", "Is_f", "Is_i", "Quer")
"""Calls, and classes, of MPI that ask nobody."""


def _names_in(frame: FrameType) -> set[str]:
    """Returns the names of attributes and globals in a frame's present line."""
    line, names = None, set[str]()
    for step in dis.get_instructions(frame.f_code):
        line = step.starts_line or line
        if line == frame.f_lineno and isinstance(step.argval, str):
            names.add(step.argval)
    return names


def _die_at_line() -> None:
    place, struck = os.environ["START_LINE"], os.environ.get("START_STRUCK")

    def visit(line: str, _frame: FrameType) -> None:
        path, number, function = line.split(":")
        if place in (f"{path}:{number}", f"{path}:{function}"):
            if struck:
                os.close(os.open(struck, os.O_CREAT))
            _die()

    _at_each_line(visit)


_MPI, _GROUP = "mpi4py.MPI", "hpcdi.comm.group"
_KINDS = {  # kind -> at which module's import, before or after it, what
    "never_begins": ("", True, _sleep),
    "killed_at_once": ("", True, _die),
    "hpcdi_missing": ("hpcdi.run", True, _raise),
    "import_error": (_MPI, True, _raise),
    "killed_before_init": (_MPI, True, _die),
    "stopped_before_init": (_MPI, True, _stop),
    "killed_in_init": (_MPI, True, _die_soon),
    "killed_after_init": (_MPI, False, _die),
    "killed_in_group": (_GROUP, False, _die),
    "lines": ("", True, _write_lines),
    "line": ("", True, _die_at_line),
}


class _Importer(importlib.abc.MetaPathFinder):
    """Lets something happen before or after a module runs."""

    def __init__(self, name: str, is_before: bool, happen: object) -> None:
        self._name, self._is_before, self._happen = name, is_before, happen

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        if self._is_before:
            self._happen()
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_then(module: ModuleType) -> None:
            run(module)
            self._happen()

        spec.loader.exec_module = run_and_then
        return spec


def _plant() -> None:
    kind, _, rank = os.environ.get("START_FAULT", "").partition(":")
    if kind not in _KINDS or not _rank() or rank not in (_rank(), "*"):
        return
    once = os.environ.get("START_FAULT_ONCE")
    if once:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    module, is_before, happen = _KINDS[kind]
    if module:
        sys.meta_path.insert(0, _Importer(module, is_before, happen))
    else:
        happen()


_plant()
