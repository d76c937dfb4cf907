"""The checks of `hpcdi doctor`: which facts each rank gives, and which judge looks at them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.comm import probe
from hpcdi.comm.probe_dist import reduce_together
from hpcdi.comm.probe_facts import Begun, Link, Reduced
from hpcdi.comm.world import World
from hpcdi.commands.doctor import facts, files, host, world
from hpcdi.commands.doctor.files import Place
from hpcdi.commands.doctor.quota import quotas_of
from hpcdi.commands.doctor.report import Finding, ranks_of
from hpcdi.errors import StoreError
from hpcdi.launch.environment import LAUNCHER_VARIABLE
from hpcdi.store import probe as store_probe

MAX_PAIRS = 8
_GROUP_TIMEOUT_S = 20.0
_SEEN_S = 15.0
_SHARDS = 3
_TRANSPORT_VARIABLES = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", "UCX_", "FI_PROVIDER")


@dataclass(frozen=True)
class Ground:
    """What a check may use on a rank.

    Attributes:
        world: all ranks.
        begun: how MPI has started.
        place: where to look.
        hosts: of every rank.
        nccl: ranks of the NCCL test.
        variables: the environment as the user has left it.
        doing: takes what this rank waits for.
    """

    world: World
    begun: Begun
    place: Place
    hosts: Sequence[str]
    nccl: Sequence[int]
    variables: Mapping[str, str]
    doing: Callable[[str], None]

    def leaders(self) -> list[int]:
        """The first rank of every host but rank 0's; on one host: rank 1."""
        by_host = ranks_of(self.hosts)
        others = [ranks[0] for host, ranks in by_host.items() if host != self.hosts[0]]
        return others or list(range(1, self.world.size))[:1]


Judge = Callable[[list[Any], Ground], Finding]


@dataclass(frozen=True)
class Check:
    """One look at the machine, by all ranks together.

    Attributes:
        collect: gives this rank's facts.
        judges: names of rows, and who judges the facts of all ranks for them (on rank 0).
        advice: what to do where facts cannot be had.
        needs: the check without whose facts this one makes no sense.
        limit_s: seconds that it may take.
    """

    collect: Callable[[Ground], Any]
    judges: Mapping[str, Judge]
    advice: str = ""
    needs: str = ""
    limit_s: float = 60.0

    @property
    def name(self) -> str:
        """Name of its first row."""
        return next(iter(self.judges))


def _ulfm(_ground: Ground) -> str:
    return probe.fault_tolerance()


def _transport(ground: Ground) -> dict[str, str]:
    return {k: v for k, v in ground.variables.items() if k.startswith(_TRANSPORT_VARIABLES)}


def _links(ground: Ground) -> list[Link]:
    partners = ground.leaders()[:MAX_PAIRS]
    return _with_rank_0(ground, partners, probe.measure_link)


def _clocks(ground: Ground) -> list[float]:
    partners = ground.leaders() if len(set(ground.hosts)) > 1 else []
    return _with_rank_0(ground, partners, probe.clock_offset)


def _with_rank_0(
    ground: Ground, partners: Sequence[int], measure: Callable[[Any, int], Any]
) -> list[Any]:
    """Rank 0 measures with each partner in turn and has the results; the others have none."""
    if ground.world.rank == 0:
        results = []
        for partner in partners:
            ground.doing(f"rank {partner}")
            results.append(measure(ground.world.comm, partner))
        return results
    if ground.world.rank in partners:
        ground.doing("rank 0")
        measure(ground.world.comm, 0)
    return []


def _gloo(ground: Ground) -> list[Reduced]:
    pairs = dict.fromkeys((0, rank) for rank in [*range(1, ground.world.size)][:1])
    pairs |= dict.fromkeys((0, rank) for rank in ground.leaders()[:1])
    return _reduced(ground, "gloo", list(pairs))


def _judge_fault_tolerance(states: list[str], ground: Ground) -> Finding:
    is_ours = LAUNCHER_VARIABLE in os.environ
    return world.judge_fault_tolerance(states, ground.begun.library, is_ours=is_ours)


def _nccl(ground: Ground) -> list[Reduced]:
    return _reduced(ground, "nccl", [tuple(ground.nccl)] if ground.nccl else [])


def _reduced(ground: Ground, backend: str, groups: Sequence[Sequence[int]]) -> list[Reduced]:
    """Results of the groups that this rank is in."""
    return [
        reduce_together(ground.world.comm, ranks, backend, _GROUP_TIMEOUT_S, ground.doing)
        for ranks in groups
        if ground.world.rank in ranks
    ]


def _folder(ground: Ground) -> files.Folder | None:
    if ground.world.rank:
        return None
    place = ground.place
    ground.doing(f"the file system of {place.folder}")
    try:
        place.scratch.mkdir()
    except OSError as error:
        raise StoreError(place.folder, f"cannot be written: {error.strerror}") from error
    kind, mount = store_probe.mount_of(place.folder, Path("/proc/mounts").read_text())
    umask = os.umask(0o077)
    os.umask(umask)
    return files.Folder(
        str(place.folder), kind, mount, store_probe.space(place.folder), umask,
        place.folder.stat().st_mode, store_probe.lock_error(place.scratch),
        quotas_of(place.folder, kind, mount),
    )  # fmt: skip


def _disk(ground: Ground) -> tuple[float, float] | None:
    """Rank 0 writes; the readers look into the folder, so that their caches know it without."""
    scratch = ground.place.scratch
    if ground.world.rank:
        if ground.world.rank in ground.leaders() and scratch.exists():
            list(scratch.iterdir())
        return None
    ground.doing(f"the file system of {ground.place.folder}")
    times = []
    for number in range(_SHARDS):
        start = time.perf_counter()
        store_probe.write_probe(scratch, number)
        times.append(time.perf_counter() - start)
    return store_probe.sync_s(scratch), float(np.median(times))


def _sharing(ground: Ground) -> float | None:
    if ground.world.rank not in ground.leaders():
        return None
    ground.doing(f"shards in {ground.place.scratch}")
    limits_s = [_SEEN_S] + [_SEEN_S / _SHARDS] * (_SHARDS - 1)
    seen = enumerate(limits_s)
    return max(store_probe.await_probe(ground.place.scratch, n, limit_s) for n, limit_s in seen)


def _by_rank(results: list[Any], ground: Ground) -> list[Any]:
    """Rank 0's results with each leader, in the order of ranks; None for the others."""
    given = dict(zip(ground.leaders(), results, strict=False))
    return [given.get(rank) for rank in range(len(ground.hosts))]


def _judge_transport(given: list[Any], ground: Ground) -> Finding:
    has_infiniband = facts.limits().has_infiniband
    return world.judge_transport(dict(ground.begun.transports), given[0], has_infiniband)


CHECKS: tuple[Check, ...] = (
    Check(lambda g: g.begun, {"mpi": lambda f, g: world.judge_mpi(f, g.hosts)}),
    Check(
        lambda _g: facts.software(),
        {"software": lambda f, g: world.judge_software(f, g.hosts)},
        "every rank has to be able to read hpcdi's own files",
    ),
    Check(
        _ulfm,
        {"rank death": _judge_fault_tolerance},
    ),
    Check(_transport, {"transport": _judge_transport}),
    Check(_links, {"messages": lambda f, g: world.judge_links(f[0], g.hosts)}),
    Check(
        _gloo,
        {"gloo": lambda f, _g: world.judge_groups(f, "gloo")},
        "several learners need it; one does not",
        limit_s=180.0,
    ),
    Check(
        _nccl,
        {"nccl": lambda f, g: world.judge_nccl(f, g.nccl)},
        "NCCL_DEBUG=INFO tells more; learners without it: policy.cuda=false",
        limit_s=180.0,
    ),
    Check(
        _folder,
        {
            "folder": lambda f, _g: files.judge_folder(f[0]),
            "hdf5 locks": lambda f, _g: files.judge_locks(f[0]),
        },
        files.ELSEWHERE,
    ),
    Check(
        _disk, {"disk": lambda f, _g: files.judge_disk(*f[0])}, files.ELSEWHERE,
        needs="folder",
    ),
    Check(
        _sharing,
        {"sharing": lambda f, g: files.judge_sharing(f, g.hosts)},
        "all hosts have to see the folder: take one on the shared file system (not /tmp)",
        needs="disk",
    ),
    Check(
        lambda g: facts.cores(g.variables),
        {
            "cores": lambda f, g: host.judge_cores(f, g.hosts),
            "threads": lambda f, g: host.judge_threads(f, g.hosts),
        },
    ),
    Check(
        lambda _g: facts.memory(),
        {
            "memory": lambda f, g: host.judge_memory(f, g.hosts),
            "shm": lambda f, g: host.judge_shm(f, g.hosts),
        },
    ),
    Check(
        lambda _g: facts.limits(),
        {"limits": lambda f, g: host.judge_limits(f, g.hosts)},
    ),
    Check(
        _clocks,
        {"clocks": lambda f, g: host.judge_clocks(_by_rank(f[0], g), g.hosts)},
    ),
    Check(
        lambda g: facts.gpus(g.variables),
        {
            "gpus": lambda f, g: host.judge_gpus(
                f, g.hosts, g.place.learners, g.place.cuda
            )
        },
        "the driver and torch do not fit: nvidia-smi, and a torch that was built for its CUDA",
    ),
    Check(
        lambda _g: facts.optional_packages(),
        {"packages": lambda f, _g: host.judge_packages(f[0])},
    ),
)  # fmt: skip
