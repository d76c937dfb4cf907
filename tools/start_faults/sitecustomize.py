"""Faults in a rank's start, for tests and tools: Python imports this before all else.

Put this folder on PYTHONPATH, and set START_FAULT=KIND:RANK. With START_FAULT_ONCE=FILE the fault
comes once: the file notes that it has. `lines` is no fault: it writes to the file START_LINES each
line of the functions of hpcdi that the rank comes to; `line` kills it at START_LINE=FILE:NUMBER,
or FILE:FUNCTION.
"""

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


def _at_each_line(visit: Callable[[str], None]) -> None:
    """Call `visit` with each line of a function of hpcdi that any thread comes to."""
    seen = set[tuple[str, int]]()

    def on_line(frame: FrameType, event: str, _: object) -> object:
        path = frame.f_code.co_filename
        if event == "line" and (path, frame.f_lineno) not in seen:
            seen.add((path, frame.f_lineno))
            place = path.rpartition(f"{os.sep}hpcdi{os.sep}")[2]
            visit(f"{place}:{frame.f_lineno}:{frame.f_code.co_name}")
        return on_line

    def on_call(frame: FrameType, _event: str, _: object) -> object:
        code = frame.f_code
        is_function = code.co_flags & 1  # CO_OPTIMIZED: no module, and no body of a class
        return on_line if is_function and f"{os.sep}hpcdi{os.sep}" in code.co_filename else None

    threading.settrace(on_call)
    sys.settrace(on_call)


def _write_lines() -> None:
    file = os.open(os.environ["START_LINES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _at_each_line(lambda line: os.write(file, f"{line}\n".encode()) and None)


def _die_at_line() -> None:
    place = os.environ["START_LINE"]

    def visit(line: str) -> None:
        path, number, function = line.split(":")
        if place in (f"{path}:{number}", f"{path}:{function}"):
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
    own = [os.environ[name] for name in _RANKS if name in os.environ]
    if kind not in _KINDS or own[:1] != [rank]:
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
