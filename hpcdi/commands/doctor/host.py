"""Judges of `hpcdi doctor`: cores, memory, limits, clocks, devices, packages of the hosts.

Pure functions of facts, one of each rank in the order of ranks; `hosts` has each rank's host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcdi.commands.doctor.facts import Cores, Gpus, Limits, Memory
from hpcdi.commands.doctor.report import (
    FAIL,
    OK,
    WARN,
    Finding,
    dissenters,
    over_hosts,
    ranks_of,
    ranks_text,
    together,
)
from hpcdi.launch.placement import Place, learner_ranks
from hpcdi.utils.metrics import human_bytes

_LEAST_MEMORY_BYTES = 1 << 30
_LEAST_SHM_BYTES = 32 << 20  # Open MPI's segments take about half of it
_SPARE_FILES = 256
_SKEW_S = 1.0


def judge_cores(cores: Sequence[Cores], hosts: Sequence[str]) -> Finding:
    """Cores of each rank, and whether ranks of a host get in each other's way."""
    return over_hosts(
        {host: _host_cores({r: cores[r] for r in ranks}) for host, ranks in ranks_of(hosts).items()}
    )


def _host_cores(cores: Mapping[int, Cores]) -> Finding:
    """The cores of a host's ranks."""
    taken = {core for of_rank in cores.values() for core in of_rank.mask}
    usable = max(of_rank.usable for of_rank in cores.values())
    counts = sorted({len(of_rank.mask) for of_rank in cores.values()})
    each = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    ranks_here = f"{len(cores)} rank{'s' * (len(cores) > 1)}"
    usual = f"{ranks_here}, {each} core{'s' * (each != '1')} each, of {usable}"
    for ranks in _neighbourhoods(cores):
        shared = {core for rank in ranks for core in cores[rank].mask}
        crowd = f"{ranks_text(ranks)} share {len(shared)} core{'s' * (len(shared) > 1)}"
        free = usable - len(taken)
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
    return Finding(OK, usual)


def _neighbourhoods(cores: Mapping[int, Cores]) -> list[list[int]]:
    """Ranks whose cores overlap, directly or through others."""
    groups: list[tuple[set[int], list[int]]] = []
    for rank, of_rank in cores.items():
        mask, members = set(of_rank.mask), [rank]
        apart = []
        for other, others in groups:
            if other & mask:
                mask, members = mask | other, others + members
            else:
                apart.append((other, others))
        groups = [*apart, (mask, members)]
    return [sorted(members) for _, members in groups]


def judge_threads(cores: Sequence[Cores], hosts: Sequence[str]) -> Finding:
    """Threads that the user has asked for, against cores that there are."""
    findings = []
    common, _ = dissenters([tuple(sorted(of_rank.threads.items())) for of_rank in cores])
    said = " ".join(f"{name}={value}" for name, value in common)  # type: ignore[attr-defined]
    usual = said or "no thread variable is set: each role gets what fits it"
    many = [
        rank
        for rank, of_rank in enumerate(cores)
        if any(v.isdigit() and int(v) > len(of_rank.mask) for v in of_rank.threads.values())
    ]
    if many:
        found = f"more threads than cores on {ranks_text(many, hosts)}"
        findings.append(Finding(WARN, found, "unset them: hpcdi chooses by role and cores"))
    cut = [rank for rank, of_rank in enumerate(cores) if of_rank.asked > len(of_rank.mask)]
    if cut:
        found = f"{ranks_text(cut, hosts)} did not get the cores that --cpus-per-task asked for"
        advice = "before srun: export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
        findings.append(Finding(WARN, found, advice))
    return together([Finding(OK, usual), *findings])


def judge_memory(memory: Sequence[Memory], hosts: Sequence[str]) -> Finding:
    """Memory that each rank may count on."""
    findings, least = {}, (float("inf"), "")
    for host, ranks in ranks_of(hosts).items():
        facts = memory[ranks[0]]
        room = min(facts.available_bytes, facts.limit_bytes or facts.available_bytes)
        each = room / len(ranks)
        limit = (
            f"cgroup limit {human_bytes(facts.limit_bytes)}"
            if facts.limit_bytes
            else "no cgroup limit"
        )
        text = f"{human_bytes(each)} a rank ({human_bytes(facts.available_bytes)} free, {limit})"
        least = min(least, (each, f"{text} on {host}"))
        if each < _LEAST_MEMORY_BYTES:
            advice = "start fewer ranks on a host, or ask for more: --mem, --mem-per-cpu"
            findings[host] = Finding(WARN, text, advice)
    if findings:
        return over_hosts(findings)
    return Finding(OK, ("least: " if len(set(hosts)) > 1 else "") + least[1])


def judge_shm(memory: Sequence[Memory], hosts: Sequence[str]) -> Finding:
    """Room in /dev/shm, through which ranks of a host talk."""
    low = {}
    for host, ranks in ranks_of(hosts).items():
        facts = memory[ranks[0]]
        text = (
            f"{human_bytes(facts.shm_free_bytes)} of {human_bytes(facts.shm_bytes)} of /dev/shm "
            "are free"
        )
        if facts.shm_free_bytes < _LEAST_SHM_BYTES * len(ranks):
            advice = "remove what lies there; in a container: --shm-size=1g, or bind the host's"
            low[host] = Finding(WARN, text, advice)
    if low:
        return over_hosts(low)
    least = min(facts.shm_free_bytes for facts in memory)
    return Finding(OK, f"at least {human_bytes(least)} of /dev/shm are free on every host")


def judge_limits(limits: Sequence[Limits], hosts: Sequence[str]) -> Finding:
    """Files that a rank may open, memory that it may lock."""
    needed = _SPARE_FILES + 2 * len(hosts)
    low = [r for r, own in enumerate(limits) if 0 <= own.open_files < needed]
    least = min(limits, key=lambda own: own.open_files if own.open_files >= 0 else 1 << 62)
    files = "unlimited" if least.open_files < 0 else str(least.open_files)
    findings = [Finding(OK, f"{files} open files (ulimit -n)")]
    if low:
        hard = limits[low[0]].open_files_hard
        enough = hard < 0 or hard >= needed
        advice = (
            f"ulimit -n {needed}" if enough else f"ask for a hard limit of {needed} (now {hard})"
        )
        found = f"{ranks_text(low, hosts)} may need {needed}"
        findings.append(Finding(WARN, found, advice))
    locked = [r for r, own in enumerate(limits) if own.has_infiniband and own.locked_bytes >= 0]
    if locked:
        found = f"{ranks_text(locked, hosts)} may not lock enough memory for InfiniBand"
        advice = "ulimit -l unlimited (Slurm: PropagateResourceLimitsExcept=MEMLOCK)"
        findings.append(Finding(WARN, found, advice))
    return together(findings)


def judge_clocks(offsets: Sequence[float | None], hosts: Sequence[str]) -> Finding:
    """Clocks against rank 0's; None: of the same host as another, or not measured."""
    known = {rank: offset for rank, offset in enumerate(offsets) if offset is not None}
    if not known:
        return Finding(OK, "one host, one clock")
    worst = max(known.values(), key=abs)
    found = f"at most {abs(worst) * 1e3:.1f} ms apart"
    off = [rank for rank, offset in known.items() if abs(offset) > _SKEW_S]
    if off:
        found = f"up to {abs(worst):.1f} s apart: {ranks_text(off, hosts)}"
        advice = "times in logs and names will be wrong: ask for NTP (chronyc tracking)"
        return Finding(WARN, found, advice)
    return Finding(OK, found)


def judge_gpus(gpus: Sequence[Gpus], hosts: Sequence[str], learners: int, must_be: bool) -> Finding:
    """Devices of the ranks that will learn, where a run would place them."""
    seen = {rank: len(own.names) for rank, own in enumerate(gpus)}
    shown = [tuple(f"{own.variable} {n}" for n in range(len(own.names))) for own in gpus]
    places = [Place(host, devices) for host, devices in zip(hosts, shown, strict=False)]
    learning = learner_ranks(places, min(learners, len(gpus) - 1), cuda=True) or [0]
    if not any(seen.values()):
        advice = "ask for GPUs (--gpus-per-node), and install a torch that was built for CUDA"
        bare = Finding(FAIL, "no rank sees a CUDA device", advice)
        return bare if must_be else Finding(OK, "no GPU: learners compute on cores")
    some = next(own for own in gpus if own.names)
    counts = {host: max(seen[r] for r in ranks) for host, ranks in ranks_of(hosts).items()}
    each = "/".join(map(str, sorted(set(counts.values()))))
    found = f"{each} x {some.names[0]} a host, driver {some.driver}, torch for CUDA {some.cuda}"
    blind = [rank for rank in learning if not seen[rank]]
    findings = [Finding(OK, f"{found}; {len(learning)} learner{'s' * (len(learning) > 1)}")]
    if blind:
        advice = "--gpus-per-node=N lets all ranks see them (--gpus-per-task only under srun)"
        status = FAIL if must_be else WARN
        findings.append(
            Finding(status, f"{ranks_text(blind, hosts)} will learn, sees none", advice)
        )
    for host, ranks in ranks_of(hosts).items():
        here = [rank for rank in ranks if rank in learning and seen[rank]]
        alone = len({gpus[rank].variable for rank in here}) > 1
        devices = len(here) if alone else max((seen[rank] for rank in here), default=0)
        if here and len(here) > devices:
            found = f"{len(here)} learners share {devices} GPU{'s' * (devices > 1)} of {host}"
            advice = "policy.learn.learner.learner_num: one learner to a GPU"
            findings.append(Finding(WARN, found, advice))
    return together(findings)


def judge_packages(present: Mapping[str, bool]) -> Finding:
    """Optional packages, for information."""
    have = [name for name, is_there in present.items() if is_there]
    lack = [name for name, is_there in present.items() if not is_there]
    texts = [f"{', '.join(names)}: {word}" for names, word in ((have, "there"), (lack, "not"))
             if names]  # fmt: skip
    return Finding(OK, "; ".join(texts))
