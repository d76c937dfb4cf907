"""Number of ranks of an experiment, their roles, and their shares of a host: pure functions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.config.policy import ModelConfig, PolicyConfig, TorchPolicyConfig
from hpcdi.config.schema import ExperimentConfig, communicator_of, learners_of
from hpcdi.config.team import TeamConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import LaunchError
from hpcdi.policy.spaces import image_axes, obs_leaves
from hpcdi.run.hostlist import compress
from hpcdi.types import Leaf
from hpcdi.utils.metrics import counted

COLLECTOR_NICENESS = 5
"""A collector gets a third of the learner's weight in the Linux scheduler."""
_WORK_OF_A_THREAD = 1 << 24
"""Multiplications of a layer that a further thread is worth: a quarter of a millisecond or more."""
_MANY = 1 << 16
_MOST_ROWS = 16
"""Of `table`; more ranks are summarised by host."""


@dataclass(frozen=True)
class Place:
    """Where a process runs, as it reports it at the start.

    Attributes:
        host: name of its host.
        gpus: GPUs that it may use, as the scheduler names them.
        component: its component of a heterogeneous job.
        cores: that it may run on.
        local_rank: its number among the ranks of its host.
        pid: of the process.
    """

    host: str
    gpus: tuple[str, ...] = ()
    component: int = 0
    cores: tuple[int, ...] = ()
    local_rank: int = 0
    pid: int = 0


@dataclass(frozen=True)
class RankPlace(Place):
    """Where a rank runs, and what it does there.

    Attributes:
        rank: in the world.
        role: "coordinator", "learner", "collector", or "serial".
        gpu: the scheduler's name of the GPU that it computes on; empty: none.
        player: that it learns for, where that is not the main one.
    """

    rank: int = 0
    role: str = ""
    gpu: str = ""
    player: str = ""

    def facts(self) -> dict[str, Any]:
        """Returns them as run.json has them."""
        facts = dataclasses.asdict(self)
        if not self.player:
            del facts["player"]
        return facts


@dataclass(frozen=True)
class HostShare:
    """A rank's share of its host.

    Attributes:
        cores: that the rank may run on.
        others: ranks of this job on the host that are not learners.
        learners: ranks of this job on the host that are learners.
        is_bound: whether the rank has its cores to itself.
    """

    cores: int
    others: int = 0
    learners: int = 1
    is_bound: bool = False


def learner_count(config: ExperimentConfig) -> int:
    """Returns the number of learner ranks."""
    return config.policy.learn.learner.learner_num


def collector_count(world: int, config: ExperimentConfig) -> int:
    """Returns the number of collector ranks in a world, also of those that wait."""
    return world - 1 - learner_count(config)


def default_world_size(config: ExperimentConfig) -> int:
    """Returns the number of ranks of an experiment: coordinator, learners, collectors."""
    collector = config.policy.collect.collector
    return 1 + learner_count(config) + int(collector.collector_max or collector.collector_num)


def working_collectors(world: int, config: ExperimentConfig) -> int:
    """Returns the number of collectors that work at first; others wait until they are needed."""
    collector, ranks = config.policy.collect.collector, collector_count(world, config)
    return ranks if collector.collector_max is None else min(ranks, int(collector.collector_num))


def least_collectors(config: ExperimentConfig) -> int:
    """Returns the fewest collectors: one to each player that learns; on-policy, to each learner.

    On-policy a batch consists of a rollout of every collector, and each learner needs one.
    """
    return learner_count(config) if config.policy.on_policy else len(learners_of(config))


def check_world(world: int, config: ExperimentConfig) -> None:
    """Check that a world is large enough.

    Raises:
        LaunchError: no ranks are left for `least_collectors`, or too few of them work at first.
    """
    learners, collectors = learner_count(config), least_collectors(config)
    each = "learner on-policy" if config.policy.on_policy else "player that learns"
    working, ranks = working_collectors(world, config), collector_count(world, config)
    if working < collectors <= ranks:
        raise LaunchError(
            f"of {ranks} collectors {working} would work at first "
            f"(policy.collect.collector.collector_num), but there must be one to each {each}: "
            f"{collectors}"
        )
    needed = 1 + learners + collectors
    if world < needed:
        missing = needed - world
        raise LaunchError(
            f"a world of {counted(world, 'rank')} is too small: {missing} missing. "
            f"This experiment needs 1 coordinator, {counted(learners, 'learner')} and at "
            f"least {counted(collectors, 'collector')}"
            f"{f', one to each {each}' * (collectors > 1)}; start it with -n {needed} "
            f"or more (it asks for {default_world_size(config)})"
        )


def roles_of(places: Sequence[Place], config: ExperimentConfig) -> list[str]:
    """Returns the role of every rank: 0 is the coordinator, then see `learner_ranks`.

    Raises:
        LaunchError: the world is too small for the experiment.
    """
    check_world(len(places), config)
    if isinstance(config.env, MpiEnvConfig):  # solvers know their collectors before MPI starts
        chosen = list(range(1, 1 + learner_count(config)))
    else:
        chosen = learner_ranks(places, learner_count(config), cuda=config.policy.cuda)
    roles = ["learner" if rank in chosen else "collector" for rank in range(len(places))]
    return ["coordinator", *roles[1:]]


def learner_ranks(places: Sequence[Place], count: int, *, cuda: bool) -> list[int]:
    """Chooses the learner ranks, in ascending order.

    With `cuda` they are ranks that see GPUs, one per GPU, host after host; if there are fewer GPUs
    than learners, these share them evenly. Otherwise they are the first ranks after rank 0, in a
    heterogeneous job those after its first component.

    Args:
        places: places of all ranks.
        count: number of learners, less than the number of ranks.
        cuda: whether they compute on GPUs.
    """
    free = sorted(range(1, len(places)), key=lambda rank: (places[rank].component == 0, rank))
    if not cuda or not any(places[rank].gpus for rank in free):
        return sorted(free[:count])
    # ranks of a host share the devices that all of them see
    taken: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def turn(rank: int) -> tuple[int, int]:
        """Returns the learners per device that the rank sees, then the rank."""
        place = places[rank]
        return taken[place.host, place.gpus] // len(place.gpus), rank

    able = [rank for rank in range(1, len(places)) if places[rank].gpus]
    chosen: list[int] = []
    for _ in range(min(count, len(able))):
        best = min(able, key=turn)
        able.remove(best)
        taken[places[best].host, places[best].gpus] += 1
        chosen.append(best)
    others = [rank for rank in free if rank not in chosen]
    return sorted(chosen + others[: count - len(chosen)])


def learner_groups(roles: Sequence[str], config: ExperimentConfig) -> dict[str, tuple[int, ...]]:
    """Returns the ranks of each group of learners: ranks next to each other, in turn."""
    ranks = [rank for rank, role in enumerate(roles) if role == "learner"]
    groups, first = dict[str, tuple[int, ...]](), 0
    for name, count in learners_of(config).items():
        groups[name] = tuple(ranks[first : first + count])
        first += count
    return groups


def communicators(groups: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Returns the ranks that have a communicator of their own, by its name: groups of learners.

    All are named here: an environment's ranks would be more of them, and start-up makes the
    communicators without knowing what they are for. Trials that share an allocation are none, but
    jobs of their own: see `hpcdi.run.shares`.

    Args:
        groups: see `learner_groups`.
    """
    return {communicator_of(name): tuple(r) for name, r in groups.items() if len(r) > 1}


def check_gpus(places: Sequence[Place], *, cuda: bool) -> None:
    """Check that learners that need GPUs can get some.

    Raises:
        LaunchError: no rank sees a GPU.
    """
    if cuda and not any(place.gpus for place in places):
        hosts = compress(list(dict.fromkeys(place.host for place in places)))
        raise LaunchError(
            f"policy.cuda is true, but no rank sees a GPU on {hosts}; request some (Slurm: "
            "--gpus-per-node), or learn on CPUs: policy.cuda=false. `hpcdi doctor --cuda` shows "
            "more"
        )


def learners_for(rank: int, roles: Sequence[str], learners: Sequence[int]) -> tuple[int, ...]:
    """Returns the learners of a group, first the one that a rank belongs to.

    That is a learner itself; of collectors each in turn.
    """
    turn = roles[:rank].count("collector") % len(learners)
    first = rank if rank in learners else learners[turn]
    return tuple(sorted(learners, key=lambda learner: learner != first))


def relay_for(rank: int, placement: Sequence[RankPlace], config: ExperimentConfig) -> int | None:
    """Returns the collector that hands policies on to a rank; None: it asks the learners."""
    collectors = [place for place in placement if place.role == "collector"]
    are_few = len(collectors) <= config.system.relay_policies_above
    if placement[rank].role != "collector" or are_few or config.system.deterministic:
        return None
    first = next(place.rank for place in collectors if place.host == placement[rank].host)
    return None if first == rank else first


def shared_cores(placement: Sequence[RankPlace]) -> int | None:
    """Returns how many cores all ranks have together on their host; None: they are on several."""
    if len({place.host for place in placement}) > 1:
        return None
    return len({core for place in placement for core in place.cores})


def table(placement: Sequence[RankPlace]) -> list[str]:
    """Returns lines with each rank's host, role, cores and GPU."""
    if len(placement) <= _MOST_ROWS:
        width = max(4, *(len(place.host) for place in placement))
        lines = [f"  rank  {'host':<{width}}  role         cores  GPU"]
        for place in placement:
            player = f"  learns for {place.player}" if place.player else ""
            lines.append(
                f"  {place.rank:>4}  {place.host:<{width}}  {place.role:<11} "
                f"{len(place.cores):>6}  {place.gpu or '-'}{player}"
            )
        return lines
    hosts: dict[str, list[RankPlace]] = {}
    for place in placement:
        hosts.setdefault(place.host, []).append(place)
    alike: dict[str, list[str]] = {}  # hosts by what is on them
    for host, places in hosts.items():
        alike.setdefault(_summary(places), []).append(host)
    return [f"  {compress(names)}: {summary}" for summary, names in alike.items()]


def _summary(places: Sequence[RankPlace]) -> str:
    """Returns roles, cores and GPUs of one host."""
    roles = Counter(place.role for place in places)
    gpus = list(dict.fromkeys(place.gpu for place in places if place.gpu))
    cores = len({core for place in places for core in place.cores})
    parts = ", ".join(counted(n, role) for role, n in sorted(roles.items()))
    return f"{parts}; {counted(cores, 'core')}{f'; GPU {chr(44).join(gpus)}' if gpus else ''}"


def gpu_names(places: Sequence[Place], roles: Sequence[str], *, cuda: bool) -> list[str]:
    """Returns the scheduler's name of the GPU that each rank computes on, or an empty string."""
    names, before = [], Counter[str]()
    for place, role in zip(places, roles, strict=True):
        is_on_gpu = cuda and role == "learner" and place.gpus
        # the n-th learner of a host takes the n-th device that it sees, see `hpcdi.run.work`
        names.append(place.gpus[before[place.host] % len(place.gpus)] if is_on_gpu else "")
        before[place.host] += role == "learner"
    return names


def placement_of(places: Sequence[Place], config: ExperimentConfig) -> list[RankPlace]:
    """Returns what each rank does, and where.

    Raises:
        LaunchError: the world is too small for the experiment, or has no GPU for its learners.
    """
    check_gpus(places, cuda=config.policy.cuda)
    roles = roles_of(places, config)
    names = gpu_names(places, roles, cuda=config.policy.cuda)
    others = list(learner_groups(roles, config).items())[1:]
    player_of = {rank: player for player, ranks in others for rank in ranks}
    return [
        RankPlace(
            **dataclasses.asdict(place),
            rank=rank,
            role=role,
            gpu=name,
            player=player_of.get(rank, ""),
        )
        for rank, (place, role, name) in enumerate(zip(places, roles, names, strict=True))
    ]


def share_of_host(place: RankPlace, placement: Sequence[RankPlace], solvers: int = 0) -> HostShare:
    """Returns a rank's share of its host, by where all ranks are.

    Args:
        place: of the rank.
        placement: of all ranks.
        solvers: ranks of its host that are solvers', and not among these.
    """
    neighbours = [other for other in placement if other.host == place.host]
    learners = sum(other.role == "learner" for other in neighbours)
    return HostShare(
        len(place.cores),
        len(neighbours) - learners + solvers,
        learners,
        is_bound=all(p is place or not set(p.cores) & set(place.cores) for p in neighbours),
    )


def threads_of(role: str, share: HostShare, policy: PolicyConfig) -> int:
    """Returns the number of threads that a rank computes with.

    A learner that is bound to its own cores may use all of them. On a shared host every other rank
    gets one core, and the learners divide the rest. More than are useful to its network none uses.
    Coordinators and collectors use one thread.
    """
    if role != "learner":
        return 1
    cores = share.cores
    if not share.is_bound:
        cores = (share.cores - share.others) // share.learners
    if isinstance(policy, TorchPolicyConfig | TeamConfig) and not policy.cuda:
        cores = min(cores, useful_threads(policy))
    return max(1, cores)


def useful_threads(policy: PolicyConfig, observation: Sequence[Leaf] = ()) -> int:
    """Returns how many threads make updates faster: small layers are fastest by one.

    With pictures it is any number; else it follows from the largest layer's multiplications in a
    batch, of a team's policies those of the largest. Networks of the user's count as if they had
    the layers of the settings.

    Args:
        policy: its settings, filled.
        observation: the environment's arrays, for a policy whose settings do not have them.
    """
    if isinstance(policy, TeamConfig):  # off-policy its batches are steps of all players
        rows = 0 if policy.on_policy else int(policy.learn.batch_size) * len(policy.names)
        each = policy.policies.values()
        return max(_useful_threads(one.model, rows or int(one.learn.batch_size)) for one in each)
    if isinstance(policy, TorchPolicyConfig):
        return _useful_threads(policy.model, int(policy.learn.batch_size))
    return _MANY if any(image_axes(leaf) is not None for leaf in observation) else 1


def _useful_threads(model: ModelConfig, batch: int) -> int:
    """Returns how many are useful to a network that learns from batches of so many rows."""
    leaves = obs_leaves(model)
    if any(image_axes(leaf) is not None for leaf in leaves):
        return _MANY
    sizes = [sum(math.prod(leaf.shape) for leaf in leaves), *model.encoder_hidden_size_list]
    largest = max(size_in * size_out for size_in, size_out in itertools.pairwise(sizes))
    return max(1, batch * largest // _WORK_OF_A_THREAD)


def niceness_of(role: str, share: HostShare) -> int:
    """Returns a rank's Unix niceness.

    If the ranks of a host outnumber its cores, learners come before collectors: new data are useful
    only as fast as they are learnt from.
    """
    # rank 0 needs little
    is_crowded = share.learners > 0 and share.learners + share.others > share.cores + 1
    return COLLECTOR_NICENESS if role == "collector" and is_crowded and not share.is_bound else 0
