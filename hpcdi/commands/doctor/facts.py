"""The facts of `hpcdi doctor` about one rank: its process, its host, its file system."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import resource
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import hpcdi
from hpcdi.comm.codec import sendable
from hpcdi.comm.probe import GroupSpeed, LinkSpeed
from hpcdi.commands.quotas import Quota, mount_of, quotas_of
from hpcdi.dataclass import dataclass
from hpcdi.errors import StoreError
from hpcdi.run.environment import thread_variables
from hpcdi.run.run_folder import git_commit, versions
from hpcdi.run.slurm_queue import set_for_slurm
from hpcdi.store import probe
from hpcdi.utils.host import cgroup_folders, count_in, memory_of_host, read_kernel_file

OPTIONAL_PACKAGES = (
    "numba",
    "isal",
    "hdf5plugin",
    "imageio_ffmpeg",
    "envpool",
    "pettingzoo",
    "onnx",
)
_PACKAGES = ("python", "hpcdi", "torch", "numpy", "h5py", "mpi4py")
_TRANSPORT_VARIABLES = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", "UCX_", "FI_PROVIDER")
_SEEN_S = 15.0
_BLOCKS = 3
sendable(Quota)


@sendable
@dataclass(frozen=True)
class Folder:
    """The folder that runs would be written to, as rank 0 sees it.

    Attributes:
        path: the nearest folder that exists.
        kind: type of its file system.
        mount: mount point of that.
        umask: of this process.
        mode: permissions of the folder.
        lock_error: why HDF5 cannot lock files there; empty: it can.
        quotas: that apply there, if a command knows them.
        free_bytes, total_bytes: of the file system, as an ordinary user may use it.
        free_inodes, total_inodes: of it; 0: it does not count them.
    """

    path: str = ""
    kind: str = ""
    mount: str = ""
    umask: int = 0
    mode: int = 0
    lock_error: str = ""
    quotas: tuple[Quota, ...] = ()
    free_bytes: int = 0
    total_bytes: int = 0
    free_inodes: int = 0
    total_inodes: int = 0


@sendable
@dataclass
class Facts:
    """The facts of one rank; a field keeps its default where its probe failed or does not apply.

    Attributes:
        host: its name.
        errors: probe -> why it failed.
        library, thread_level, transports, start_s: of MPI as it started, see `start_mpi`.
        ulfm: fault tolerance, see `fault_tolerance`.
        code: hash of hpcdi's source files.
        commit: of the checkout that hpcdi is imported from; empty: no checkout.
        versions: package -> version, Python's among them.
        transport_variables: variables of the user that choose MPI's transport.
        slurm_variables: variables that change what Slurm's commands do, see `set_for_slurm`.
        cores: that this rank may run on.
        usable_cores: cores of the host that the job may use.
        threads: thread variables of the user.
        asked_cores: cores per task that Slurm was asked for; 0: none.
        memory_bytes, memory_limit_bytes: available on the host; limit of the cgroup, 0: none.
        shm_bytes, shm_free_bytes: of /dev/shm.
        open_files, open_files_hard, locked_bytes: limits of this process; -1: unlimited.
        has_infiniband: whether the host has InfiniBand.
        gpus: names of the CUDA devices it sees.
        driver: version; empty: no driver.
        cuda: version that torch was built for; empty: without CUDA, or not asked.
        visible: CUDA_VISIBLE_DEVICES; None: not set.
        packages: optional package -> whether it can be imported.
        links, offsets_s: rank 0's measurements with the leaders of other hosts, in their order.
        gloo, nccl: process groups that this rank was in.
        folder: rank 0's.
        sync_s, shard_s: rank 0's seconds to sync 1 MB to disk, and to write a shard of 1 MiB.
        seen_s: seconds until a leader saw rank 0's shards; None: it did not look.
    """

    host: str = ""
    errors: dict[str, str] = field(default_factory=dict)
    library: str = ""
    thread_level: str = ""
    transports: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 0.0
    ulfm: str = ""
    code: str = ""
    commit: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    transport_variables: Mapping[str, str] = field(default_factory=dict)
    slurm_variables: tuple[str, ...] = ()
    cores: tuple[int, ...] = (0,)
    usable_cores: int = 1
    threads: Mapping[str, str] = field(default_factory=dict)
    asked_cores: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    shm_bytes: int = 0
    shm_free_bytes: int = 0
    open_files: int = -1
    open_files_hard: int = -1
    locked_bytes: int = -1
    has_infiniband: bool = False
    gpus: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""
    visible: str | None = None
    packages: Mapping[str, bool] = field(default_factory=dict)
    links: Sequence[LinkSpeed] = ()
    offsets_s: Sequence[float] = ()
    gloo: Sequence[GroupSpeed] = ()
    nccl: Sequence[GroupSpeed] = ()
    folder: Folder = Folder()
    sync_s: float = 0.0
    shard_s: float = 0.0
    seen_s: float | None = None


def software() -> dict[str, Any]:
    """Returns ``code``, ``commit``, ``versions``."""
    root = Path(hpcdi.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    known_versions = {"python": platform.python_version(), **versions()}
    commit = git_commit(root.parent) or ""
    named = {name: known_versions[name] for name in _PACKAGES}
    return {"code": digest.hexdigest()[:12], "commit": commit[:8], "versions": named}


def cores(variables: Mapping[str, str]) -> dict[str, Any]:
    """Returns ``cores``, ``usable_cores``, ``threads``, ``asked_cores``.

    Args:
        variables: the environment as it was before hpcdi set thread variables.
    """
    all_cores = os.cpu_count() or 1
    counts = [all_cores, count_in(variables, "SLURM_CPUS_ON_NODE", all_cores)]
    for folder in cgroup_folders("cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            if (text := read_kernel_file(folder / name)) != "":
                counts.append(count_cores(text))
    return {
        "cores": tuple(sorted(os.sched_getaffinity(0))),
        "usable_cores": min(counts),
        "threads": {name: variables[name] for name in thread_variables(1) if name in variables},
        "asked_cores": count_in(variables, "SLURM_CPUS_PER_TASK"),
    }


def count_cores(listing: str) -> int:
    """Returns the number of cores in a kernel list: "0-3,8" has five."""
    total = 0
    for part in listing.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def memory() -> dict[str, int]:
    """Returns ``memory_bytes``, ``memory_limit_bytes``, ``shm_bytes``, ``shm_free_bytes``."""
    free, limit = memory_of_host()
    sizes = {"memory_bytes": free, "memory_limit_bytes": limit}
    if Path("/dev/shm").exists():  # noqa: S108 (it is looked at, nothing is written)
        shm = os.statvfs("/dev/shm")  # noqa: S108
        sizes["shm_bytes"] = shm.f_blocks * shm.f_frsize
        sizes["shm_free_bytes"] = shm.f_bavail * shm.f_frsize
    return sizes


def limits() -> dict[str, int]:
    """Returns ``open_files``, ``open_files_hard``, ``locked_bytes``, ``has_infiniband``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "open_files": soft,
        "open_files_hard": hard,
        "locked_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "has_infiniband": any(Path("/sys/class/infiniband").glob("*")),
    }


def gpus(variables: Mapping[str, str]) -> dict[str, Any]:
    """Returns ``gpus``, ``driver``, ``cuda``, ``visible``; torch is imported only for a driver."""
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if not Path("/dev/nvidiactl").exists():
        return {"visible": visible}
    import torch

    names = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    words = read_kernel_file(Path("/proc/driver/nvidia/version")).split()
    numbers = (w for w in words if w.count(".") >= 1 and w.replace(".", "").isdigit())
    return {
        "gpus": names,
        "driver": next(numbers, "unknown"),
        "cuda": str(torch.version.cuda or ""),
        "visible": visible,
    }


def packages() -> dict[str, dict[str, bool]]:
    """Returns ``packages``."""
    return {"packages": {n: importlib.util.find_spec(n) is not None for n in OPTIONAL_PACKAGES}}


def transport(variables: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Returns ``transport_variables``."""
    chosen = {k: v for k, v in variables.items() if k.startswith(_TRANSPORT_VARIABLES)}
    return {"transport_variables": chosen}


def slurm(variables: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns ``slurm_variables``."""
    return {"slurm_variables": tuple(set_for_slurm(variables))}


def folder(path: Path, scratch: Path) -> dict[str, Folder]:
    """Returns ``folder``; makes `scratch`, the folder in it for files of probes.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        scratch.mkdir()
    except OSError as error:
        raise StoreError(path, f"cannot be written: {error.strerror}") from error
    mount = mount_of(path)
    umask = os.umask(0o077)
    os.umask(umask)
    space = os.statvfs(path)
    return {
        "folder": Folder(
            str(path),
            mount.kind,
            mount.point,
            umask,
            path.stat().st_mode,
            probe.lock_error(scratch),
            quotas_of(path, mount),
            space.f_bavail * space.f_frsize,
            space.f_blocks * space.f_frsize,
            space.f_favail,
            space.f_files,
        )
    }


def disk(scratch: Path) -> dict[str, float]:
    """Returns ``sync_s``, ``shard_s``; leaves the blocks that `sharing` waits for."""
    times = probe.write_probes(scratch, _BLOCKS)
    return {"sync_s": probe.sync_s(scratch), "shard_s": statistics.median(times)}


def sharing(scratch: Path) -> dict[str, float]:
    """Returns ``seen_s``.

    Raises:
        ShardError: rank 0's blocks are not seen in time.
    """
    limits_s = [_SEEN_S] + [_SEEN_S / _BLOCKS] * (_BLOCKS - 1)
    return {"seen_s": max(probe.await_probe(scratch, n, s) for n, s in enumerate(limits_s))}
