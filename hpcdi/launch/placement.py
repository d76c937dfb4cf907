"""Who plays which role where: pure functions of the ranks' places and the configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdi.errors import LaunchError
from hpcdi.launch.hostlist import compress
from hpcdi.launch.topology import check_world, learner_count

_MOST_ROWS = 16
"""Of a table; more ranks than that are told by host."""


@dataclass(frozen=True)
class Place:
    """Where a rank is.

    Attributes:
        host: its name.
        gpus: that the rank may use, by the scheduler's names.
        component: of a heterogeneous job.
    """

    host: str
    gpus: tuple[str, ...] = ()
    component: int = 0


def roles_of(places: Sequence[Place], config: Any) -> list[str]:
    """Role of every rank: 0 is the coordinator, some learn (see `learner_ranks`), others collect.

    Raises:
        LaunchError: the world is too small for the experiment.
    """
    check_world(len(places), config)
    chosen = learner_ranks(places, learner_count(config), cuda=config.policy.cuda)
    roles = ["learner" if rank in chosen else "collector" for rank in range(len(places))]
    return ["coordinator", *roles[1:]]


def learner_ranks(places: Sequence[Place], count: int, *, cuda: bool) -> list[int]:
    """Ranks that learn, in their order.

    With `cuda` they are ranks that see GPUs, one to a GPU, host after host; if there are fewer GPUs
    than learners, those share them evenly. Otherwise they are the first ranks after rank 0, in a
    heterogeneous job those behind its first component.

    Args:
        places: of all ranks.
        count: how many are to learn, less than there are ranks.
        cuda: whether they compute on GPUs.
    """
    free = sorted(range(1, len(places)), key=lambda rank: (places[rank].component == 0, rank))
    if not cuda or not any(places[rank].gpus for rank in free):
        return sorted(free[:count])
    # ranks of a host that are shown the same devices share them; those shown others do not
    taken: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def turn(rank: int) -> tuple[int, int]:
        """How many learners each of its devices has already, where it sees any."""
        place = places[rank]
        return taken[place.host, place.gpus] // len(place.gpus), rank

    able = [rank for rank in range(1, len(places)) if places[rank].gpus]
    chosen: list[int] = []
    for _ in range(min(count, len(able))):
        best = min(able, key=turn)
        able.remove(best)
        taken[places[best].host, places[best].gpus] += 1
        chosen.append(best)
    rest = [rank for rank in free if rank not in chosen]
    return sorted(chosen + rest[: count - len(chosen)])


def groups_of(roles: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Groups of ranks that get a communicator of their own, by name: several learners are one.

    All such groups are made here: an environment's ranks, a league's players, a job's trials would
    be more of them, and start-up makes their communicators without knowing what they are for.
    """
    learners = tuple(rank for rank, role in enumerate(roles) if role == "learner")
    return {"learners": learners} if len(learners) > 1 else {}


def check_gpus(places: Sequence[Place], *, cuda: bool) -> None:
    """See that learners that are to compute on GPUs may find some.

    Raises:
        LaunchError: no rank sees one.
    """
    if cuda and not any(place.gpus for place in places):
        hosts = compress(list(dict.fromkeys(place.host for place in places)))
        raise LaunchError(
            f"policy.cuda is true, but no rank sees a GPU on {hosts}; ask the scheduler for some "
            "(--gpus-per-node), or learn on cores: policy.cuda=false. hpcdi doctor --cuda tells "
            "more"
        )


def learner_of(rank: int, roles: Sequence[str]) -> int:
    """Learner rank that a rank belongs to: a learner's own, a collector's in turn."""
    learners = [r for r, role in enumerate(roles) if role == "learner"]
    if roles[rank] == "learner":
        return rank
    return learners[roles[:rank].count("collector") % len(learners)]


def table(placement: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines that say which rank is where, with which cores and GPU.

    Args:
        placement: of each rank: ``rank``, ``host``, ``role``, ``cores`` (a list), ``gpu`` (of a
            learner with one: its name).
    """
    if len(placement) <= _MOST_ROWS:
        width = max(4, *(len(place["host"]) for place in placement))
        lines = [f"  rank  {'host':<{width}}  role         cores  GPU"]
        for place in placement:
            lines.append(
                f"  {place['rank']:>4}  {place['host']:<{width}}  {place['role']:<11} "
                f"{len(place['cores']):>6}  {place['gpu'] or '-'}"
            )
        return lines
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for place in placement:
        hosts.setdefault(place["host"], []).append(place)
    alike: dict[str, list[str]] = {}  # hosts by what is on them
    for host, there in hosts.items():
        alike.setdefault(_summary(there), []).append(host)
    return [f"  {compress(names)}: {said}" for said, names in alike.items()]


def _summary(there: Sequence[Mapping[str, Any]]) -> str:
    """What is on one host."""
    roles = Counter(place["role"] for place in there)
    gpus = list(dict.fromkeys(place["gpu"] for place in there if place["gpu"]))
    cores = len({core for place in there for core in place["cores"]})
    said = ", ".join(f"{n} {role}{'s' * (n > 1)}" for role, n in sorted(roles.items()))
    return f"{said}; {cores} core{'s' * (cores > 1)}{f'; GPU {chr(44).join(gpus)}' if gpus else ''}"


def gpu_names(places: Sequence[Place], roles: Sequence[str], *, cuda: bool) -> list[str]:
    """GPU that each rank computes on, by the scheduler's name; empty for those without."""
    names, before = [], Counter[str]()
    for place, role in zip(places, roles, strict=True):
        is_on_gpu = cuda and role == "learner" and place.gpus
        # the n-th learner of a host takes the n-th device that it sees, see `local_device`
        names.append(place.gpus[before[place.host] % len(place.gpus)] if is_on_gpu else "")
        before[place.host] += role == "learner"
    return names
