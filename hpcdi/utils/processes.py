"""Processes of this host, by Linux's /proc: parents, children, states, sockets that listen."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from hpcdi.utils.host import read_kernel_file

MPIRUN = ("mpirun", "prterun", "prted")
"""Open MPI's launcher and its daemons on other hosts: SIGTERM to one of them ends the job; the
launcher may have it blocked, see `hpcdi.run.local.Job`."""
_LAUNCHERS = (*MPIRUN, "slurmstepd", "hydra_pmi_proxy")
_LISTENS = "0A"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ANY_ADDRESS = {"00000000": "tcp", "0" * 32: "tcp6"}
"""As a table of sockets below ``/proc/net`` spells it -> that table."""


def _command_of(pid: int) -> str:
    """Returns a process's command; empty: it is gone, or there is no /proc."""
    return read_kernel_file(Path(f"/proc/{pid}/comm"))


def pid_space() -> str:
    """Returns the running kernel and the space of its process numbers; empty: unknown.

    A container may have its own space.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def stat_of(pid: int) -> tuple[str, int]:
    """Returns a process's state ("R", "S", "D", "T", "Z") and its parent; ("", 0): it is gone."""
    try:
        state, parent = _stat(pid)[:2]
    except (OSError, ValueError):
        return "", 0
    return state, int(parent)


def has_ended(pid: int) -> bool:
    """Returns whether a process is gone, or has ended and its parent has not looked yet."""
    return stat_of(pid)[0] in ("", "Z")


def born_of(pid: int) -> str:
    """Returns the start of a process, in kernel ticks; empty: it is gone, "unknown": not seen."""
    try:
        state, *rest = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):  # the latter: while it was read
        return ""
    except OSError:
        return "unknown"
    return "" if state in "ZX" else rest[18]


def _stat(pid: int) -> list[str]:
    """Returns the fields of a process, from its state on."""
    # the name before them, which may hold anything, is in parentheses
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def children_of(pid: int) -> list[int]:
    """Returns the child processes of a process; none where the kernel does not list them."""
    children: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            children += map(int, listed.read_text().split())
    return children


def resident_bytes(pid: int) -> int:
    """Returns what a process holds in memory; 0: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def tree_bytes(pid: int) -> int:
    """Returns what a process, and those that it has started, hold in memory."""
    return resident_bytes(pid) + sum(map(tree_bytes, children_of(pid)))


def variables_of(pid: int) -> dict[str, str]:
    """Returns the environment variables that a process was started with.

    Raises:
        OSError: it is gone, or another user's.
    """
    words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(word.partition("=")[::2] for word in words)


def open_doors(pid: int) -> Iterator[int]:
    """Yields descriptors of a process that listen on all addresses of all interfaces.

    Raises:
        OSError: it is gone, or another user's.
    """
    doors = {
        words[9]
        for table in _ANY_ADDRESS.values()
        for words in map(str.split, read_kernel_file(Path(f"/proc/net/{table}")).splitlines()[1:])
        if words[3] == _LISTENS and words[1].partition(":")[0] in _ANY_ADDRESS
    }
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(entry.readlink()).removeprefix("socket:[").removesuffix("]") in doors:
                yield int(entry.name)


def launcher_of(pid: int) -> int:
    """Returns the process of mpirun, or its or Slurm's daemon, above a rank; 0: none is seen."""
    above = stat_of(pid)[1]
    while above > 1 and _command_of(above) not in _LAUNCHERS:  # a shell, a container's starter
        above = stat_of(above)[1]
    return above if above > 1 else 0


def end_mpirun(launcher: int) -> bool:
    """Ask mpirun to end the job and all that is left of it; returns whether it could be asked.

    Args:
        launcher: see `launcher_of`.
    """
    if _command_of(launcher) not in MPIRUN:
        return False
    # that of `hpcdi train` has SIGTERM blocked, so that a batch system's is the ranks' alone
    number = signal.SIGHUP if _is_blocked(launcher, signal.SIGTERM) else signal.SIGTERM
    with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
        os.kill(launcher, number)
        return True
    return False


def _is_blocked(pid: int, number: int) -> bool:
    """Returns whether a process has a signal blocked, as far as the kernel says."""
    return bool(int(status_field(pid, "SigBlk") or "0", 16) >> (number - 1) & 1)


def status_field(pid: int, name: str) -> str:
    """Returns a field of a process's status, as the kernel spells it; empty: there is none."""
    lines = read_kernel_file(Path(f"/proc/{pid}/status")).splitlines()
    start = f"{name}:"
    return next((line.removeprefix(start).strip() for line in lines if line.startswith(start)), "")


def mapped_files() -> list[Path]:
    """Returns what this process has mapped into its memory, libraries and files; and some names."""
    lines = read_kernel_file(Path("/proc/self/maps")).splitlines()
    return [Path(path) for path in dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines)]
