"""What this host gives a process: memory, by the kernel and by its control group; cores."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" by a number near 2**63


def memory_of_host() -> tuple[int, int]:
    """Returns the bytes that are free, and the control group's limit; 0: it has none."""
    limits = []
    for folder in cgroup_folders("memory"):
        while folder.is_relative_to(_CGROUPS):
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = read_kernel_file(folder / name)
                if text.isdigit() and int(text) < _UNLIMITED:
                    limits.append(int(text))
            folder = folder.parent
    return _bytes_of("MemAvailable:"), min(limits, default=0)


def may_open_files() -> int:
    """Returns how many open files a process here may have, at most."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard


def open_files() -> int:
    """Returns how many open files this process has; 0: unknown."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return 0


def allow_open_files(count: int) -> None:
    """Let this process have so many open files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < count:
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def free_bytes() -> int:
    """Returns the most that processes here can still take of the memory; 0: unknown.

    What others in the control group have taken of its limit is not taken off.
    """
    free, limit = memory_of_host()
    return min(free, limit or free)


def promised_bytes() -> int:
    """Returns the memory beyond which the kernel refuses an array that is still empty; 0: unknown.

    All of the host's, that on its disks included, unless it promises any (``overcommit_memory``).
    """
    if read_kernel_file(Path("/proc/sys/vm/overcommit_memory")) == "1":
        return 0
    return _bytes_of("MemTotal:", "SwapTotal:")


def _bytes_of(*kinds: str) -> int:
    """Returns a sum of some kinds of memory, by the kernel; 0: unknown."""
    lines = read_kernel_file(Path("/proc/meminfo")).splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(kinds))


def count_in(texts: Mapping[str, str], name: str, default: int = 0) -> int:
    """Returns the count that a text says; `default` where there is none, or it says something else.

    Args:
        texts: by name: environment variables, fields of one of Slurm's answers.
        name: of the text.
        default: what counts then.
    """
    text = texts.get(name, "").strip()
    return int(text) if text.isdecimal() else default


def local_ranks(variables: Mapping[str, str]) -> int:
    """Returns how many ranks mpirun has started on this host; 0: unknown, or another launcher."""
    names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    return next((count_in(variables, name) for name in names if name in variables), 0)


def is_crowded() -> bool:
    """Returns whether this host has more ranks than cores: who spins takes another's core."""
    return local_ranks(os.environ) > (os.cpu_count() or 1)


def cgroup_folders(controller: str) -> list[Path]:
    """Returns the folders of this process's cgroup, in either version of the hierarchy."""
    folders = []
    for line in read_kernel_file(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders.append(_CGROUPS / path.lstrip("/"))
        elif controller in controllers.split(","):
            folders.append(_CGROUPS / controller / path.lstrip("/"))
    return folders


def read_kernel_file(path: Path) -> str:
    """Returns a kernel file's text, stripped; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
