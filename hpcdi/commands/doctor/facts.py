"""What a rank of `hpcdi doctor` knows of its own process and host, without asking another rank."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import hpcdi
from hpcdi.comm.plain import sendable
from hpcdi.launch.run_folder import git_commit, versions
from hpcdi.launch.topology import thread_variables

OPTIONAL_PACKAGES = (
    "numba", "isal", "hdf5plugin", "imageio_ffmpeg", "envpool", "pettingzoo", "onnx",
)  # fmt: skip
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" by a number near 2**63


@sendable
@dataclass(frozen=True)
class Software:
    """Versions that have to be the same on all ranks.

    Attributes:
        code: hash of hpcdi's source files.
        commit: of the checkout that hpcdi is imported from; empty where there is none.
        versions: name -> version, Python's among them.
    """

    code: str
    commit: str
    versions: Mapping[str, str]


@sendable
@dataclass(frozen=True)
class Cores:
    """Where a rank may run.

    Attributes:
        mask: cores that it may run on.
        usable: cores of the host that the job may use at all.
        threads: thread variables that the user has set, name -> value.
        asked: cores a task that Slurm was asked for; 0: it was not.
    """

    mask: tuple[int, ...]
    usable: int
    threads: Mapping[str, str]
    asked: int = 0


@sendable
@dataclass(frozen=True)
class Memory:
    """What a host has to give; a limit of 0 is none."""

    available_bytes: int
    limit_bytes: int
    shm_bytes: int
    shm_free_bytes: int


@sendable
@dataclass(frozen=True)
class Limits:
    """Bounds of this process; -1 is unlimited."""

    open_files: int
    open_files_hard: int
    locked_bytes: int
    has_infiniband: bool


@sendable
@dataclass(frozen=True)
class Gpus:
    """CUDA devices that a rank sees.

    Attributes:
        names: of the devices.
        driver: its version; empty where there is none.
        cuda: version that torch was built for; empty where it was built without, or not asked.
        variable: CUDA_VISIBLE_DEVICES; None where it is not set.
    """

    names: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""
    variable: str | None = None


def software() -> Software:
    """Versions of this process."""
    root = Path(hpcdi.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    found = {"python": platform.python_version(), **versions()}
    names = ("python", "hpcdi", "torch", "numpy", "h5py", "mpi4py")
    commit = git_commit(root.parent) or ""
    return Software(digest.hexdigest()[:12], commit[:8], {name: found[name] for name in names})


def cores(variables: Mapping[str, str]) -> Cores:
    """Where this process may run.

    Args:
        variables: the environment as it was before hpcdi set thread variables.
    """
    threads = {name: variables[name] for name in thread_variables(1) if name in variables}
    asked = int(variables.get("SLURM_CPUS_PER_TASK", "0"))
    return Cores(tuple(sorted(os.sched_getaffinity(0))), _usable_cores(variables), threads, asked)


def memory() -> Memory:
    """What this host has to give now."""
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    try:
        shm = os.statvfs("/dev/shm")  # noqa: S108 (it is looked at, nothing is written)
    except FileNotFoundError:
        return Memory(available, _memory_limit(), 0, 0)
    size, free = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    return Memory(available, _memory_limit(), size, free)


def limits() -> Limits:
    """Bounds of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    has_infiniband = any(Path("/sys/class/infiniband").glob("*"))
    return Limits(soft, hard, locked, has_infiniband)


def gpus(variables: Mapping[str, str]) -> Gpus:
    """CUDA devices that this process sees; torch is imported only where there is a driver."""
    variable = variables.get("CUDA_VISIBLE_DEVICES")
    if not Path("/dev/nvidiactl").exists():
        return Gpus(variable=variable)
    import torch

    names = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Gpus(names, _driver(), str(torch.version.cuda or ""), variable)


def optional_packages() -> dict[str, bool]:
    """Name -> whether it can be imported."""
    return {name: importlib.util.find_spec(name) is not None for name in OPTIONAL_PACKAGES}


def _driver() -> str:
    """Version of the driver: the first word with dots of its version file."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return "unknown"
    return next((w for w in words if w.count(".") >= 1 and w.replace(".", "").isdigit()), "unknown")


def _usable_cores(variables: Mapping[str, str]) -> int:
    """Cores of this host that the job may use: Slurm's word, the cgroup's, else all."""
    counts = [os.cpu_count() or 1]
    if "SLURM_CPUS_ON_NODE" in variables:
        counts.append(int(variables["SLURM_CPUS_ON_NODE"]))
    for folder in _cgroup_folders("cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            if (text := _read(folder / name)) != "":
                counts.append(count_cores(text))
    return min(counts)


def count_cores(listing: str) -> int:
    """Cores of a kernel list: "0-3,8" are five."""
    total = 0
    for part in listing.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _memory_limit() -> int:
    """The lowest limit of this process's cgroup and those above it; 0: none."""
    known = []
    for folder in _cgroup_folders("memory"):
        while folder.is_relative_to(_CGROUPS):
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = _read(folder / name)
                if text.isdigit() and int(text) < _UNLIMITED:
                    known.append(int(text))
            folder = folder.parent
    return min(known, default=0)


def _cgroup_folders(controller: str) -> list[Path]:
    """Folders of this process's cgroup, in either version of the hierarchy."""
    folders = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders.append(_CGROUPS / path.lstrip("/"))
        elif controller in controllers.split(","):
            folders.append(_CGROUPS / controller / path.lstrip("/"))
    return folders


def _read(path: Path) -> str:
    """A kernel file's text, without blanks around it; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
