"""Ranks that are no worker's but a solver's: environments that are MPI programs (``type: mpi``).

The first ranks of a job are hpcdi's own: coordinator, learners, collectors. After them come the
groups of the first collector, those of the second one, and so on; of each first its environments,
then its spare groups. So every rank knows before MPI starts what it is, from its number alone::

    0 coordinator | 1 learner | 2, 3 collectors | 4-5, 6-7 groups of 2: of rank 2's, of rank 3's

A rank of a group becomes its program (`become_solver_rank`) and never returns; hpcdi's own ranks
have a world of their own (`comm.world.open_world`).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdi.comm.failure import LeaveLimit
from hpcdi.comm.solver_protocol import SolverPlace, ranks_text
from hpcdi.config.compiled import restore_config
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.config.schema import ExperimentConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import LaunchError
from hpcdi.run.environment import all_ranks_are_here, local_rank_of, rank_of, visible_gpus
from hpcdi.run.placement import (
    check_world,
    collector_count,
    default_world_size,
    learner_count,
    least_collectors,
)
from hpcdi.run.request import RunRequest
from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.metrics import counted

_MOST_LOGS = 4
LEAVE_S = 60.0
"""For groups, and so for mpirun, to end when the run has, beside `stop_timeout_s`."""
MUST_END = (
    "A solver's program must end at END, on all its ranks; where it writes longer, raise "
    "system.coordinator.stop_timeout_s"
)
_GO_ON = (
    "rank 0 (host {host}): the run has ended, but {limit_s:g} s later a solver goes on (one of "
    "ranks {ranks}). The job is aborted; the run's own files are complete. " + MUST_END
)
_REFUSAL_S = 10.0
"""For the first solver's rank to load, and to refuse."""


@dataclass(frozen=True)
class RankPlan:
    """Which ranks are hpcdi's own, and which are solvers'.

    Attributes:
        own: number of the first ones, which are hpcdi's.
        groups: of the others, in the order of ranks.
        leave_s: seconds that these may take to end when the run has.
    """

    own: int
    groups: tuple[SolverPlace, ...] = ()
    leave_s: float = 0.0

    @property
    def world(self) -> int:
        """Number of all ranks."""
        return self.own + sum(len(group.ranks) for group in self.groups)

    def of_collector(self, rank: int) -> list[SolverPlace]:
        """Returns a collector's groups."""
        return [group for group in self.groups if group.collector == rank]

    def place_of(self, rank: int) -> SolverPlace | None:
        """Returns the group of a rank; None: it is hpcdi's own."""
        return next((group for group in self.groups if rank in group.ranks), None)


def world_of(own: int, config: ExperimentConfig) -> int:
    """Returns the number of all ranks of a run with so many of hpcdi's own."""
    return own + max(0, collector_count(own, config)) * _beside_collector(config)


def default_ranks(config: ExperimentConfig) -> int:
    """Returns the number of all ranks that an experiment asks for."""
    return world_of(default_world_size(config), config)


def _beside_collector(config: ExperimentConfig) -> int:
    """Returns the solvers' ranks of each collector."""
    env = config.env
    if not isinstance(env, MpiEnvConfig):
        return 0
    return (env.collector_env_num + env.spares) * env.ranks


def plan_ranks(world: int, config: ExperimentConfig) -> RankPlan:
    """Returns what each rank of a world is.

    Raises:
        LaunchError: the experiment does not fit the world.
    """
    env, learners, least = config.env, learner_count(config), least_collectors(config)
    if not isinstance(env, MpiEnvConfig):
        check_world(world, config)
        return RankPlan(world)
    collectors, rest = divmod(collector_count(world, config), 1 + _beside_collector(config))
    if rest or collectors < least:
        fewer = max(collectors, least - 1)
        fits = [world_of(1 + learners + n, config) for n in (fewer, fewer + 1) if n >= least]
        each = counted(env.collector_env_num, "group") + (
            f" and {counted(env.spares, 'spare one')}" if env.spares else ""
        )
        raise LaunchError(
            f"a world of {counted(world, 'rank')} cannot be divided: 1 coordinator, "
            f"{counted(learners, 'learner')}, and for each "
            f"{f'of {least} or more collectors' if least > 1 else 'collector'} {each} of "
            f"{counted(env.ranks, 'rank')} (env.ranks); start it with -n "
            f"{' or '.join(map(str, fits))}"
        )
    own = 1 + learners + collectors
    check_world(own, config)
    groups: list[SolverPlace] = []
    environments, first = itertools.count(), own
    spares = itertools.count(collectors * env.collector_env_num)  # behind all environments
    for collector in range(own - collectors, own):
        for index in range(env.collector_env_num + env.spares):
            is_spare = index >= env.collector_env_num
            environment = next(spares if is_spare else environments)
            ranks = tuple(range(first, first + env.ranks))
            assigner = collector if is_spare else None
            groups.append(SolverPlace(environment, ranks, collector, assigner))
            first += env.ranks
    leave_s = LEAVE_S + config.system.coordinator.stop_timeout_s
    return RankPlan(own, tuple(groups), leave_s)


# ------------------------------------------------------------------------------ before MPI starts


def has_solvers(settings: Mapping[str, Any]) -> bool:
    """Returns whether an experiment's settings, which nobody has checked, name solvers."""
    env = settings.get("env")
    return isinstance(env, Mapping) and env.get("type") == "mpi"


def experiment_of(request: RunRequest, handed_over: Mapping[str, Any] | None) -> ExperimentConfig:
    """Returns the experiment.

    Raises:
        ConfigError, LaunchError: there is none.
    """
    if handed_over is not None:
        return restore_config(handed_over)
    from hpcdi.config.load import load
    from hpcdi.env.mpi.launch import located
    from hpcdi.run import resume

    file = resume.config_of(request)
    config = load(file, request.overrides).config
    return dataclasses.replace(config, env=located(config.env, Path(file).parent))


def is_solver(plan: RankPlan) -> bool:
    """Returns whether this process is a solver's rank.

    Raises:
        LaunchError: its launcher does not say which rank it is.
    """
    return plan.place_of(_rank()) is not None


def _rank() -> int:
    rank = rank_of(os.environ)
    if rank == "?":
        raise LaunchError(
            "environments of type 'mpi' need a launcher that tells each process its rank before "
            "MPI starts: mpirun of Open MPI or MPICH, or srun"
        )
    return int(rank)


def let_first_refuse(plan: RankPlan) -> None:
    """Wait for the first solver's rank, where all are on this host, to say why they refuse.

    Its end ends the job, and this process with it. Returns where it does not come, or has another
    reason: then each says its own.
    """
    if all_ranks_are_here(os.environ) and _rank() > plan.own:
        wait_s(_REFUSAL_S)


def become_solver_rank(plan: RankPlan, request: RunRequest, config: ExperimentConfig) -> int:
    """Turn this process into the solver's rank that it is.

    Returns:
        The exit code of a solver in Python; one that is another program is not returned from.

    Raises:
        LaunchError: its program cannot be run; or the run folder is not known yet.
    """
    rank, env = _rank(), config.env
    place, folder = plan.place_of(rank), request.resume or request.run_dir
    if place is None or not isinstance(env, MpiEnvConfig):
        raise LaunchError(f"rank {rank} is no solver's")
    if folder is None:
        raise LaunchError(
            "environments of type 'mpi' need to know their folder before the run begins: name the "
            "run folder by --run-dir"
        )
    if env.gpus_per_rank:
        learners = learner_count(config) if config.policy.cuda else 0
        first = rank - local_rank_of(os.environ)
        gpus = gpus_of(range(first, rank), plan, learners, env.gpus_per_rank)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    from hpcdi.env.mpi.launch import Program, become_solver

    own = RunLayout(Path(folder).absolute()).solver_dir(place.environment)
    return become_solver(place, Program.of(env), own, rank)


def gpus_of(
    before: Sequence[int],
    plan: RankPlan,
    learners: int,
    count: int,
    visible: Sequence[str] | None = None,
) -> list[str]:
    """Returns the GPUs of a solver's rank: of those of its host that no learner uses, its turn's.

    Args:
        before: ranks of its host before it, which follow each other.
        plan: of all ranks.
        learners: that compute on GPUs, each on one: ranks 1, 2, ...
        count: wanted.
        visible: GPUs that this process may use; None: those that its environment says.

    Raises:
        LaunchError: there are too few.
    """
    visible = visible_gpus(os.environ) if visible is None else visible
    taken = sum(1 <= rank <= learners for rank in before)
    free = visible[taken:]
    if count > len(free):
        raise LaunchError(
            f"rank {len(before)} of host {platform.node()}: env.gpus_per_rank is {count}, and of "
            f"{counted(len(visible), 'GPU')} there learners use {taken}; set it to "
            f"{len(free) or 'nothing'}, or leave hosts with more GPUs to solvers"
        )
    turn = sum(rank >= plan.own for rank in before) * count
    return [free[(turn + number) % len(free)] for number in range(count)]


# -------------------------------------------------------------------------------------- collectors


def expect_solvers(plan: RankPlan, rank: int, config: ExperimentConfig, layout: RunLayout) -> None:
    """Have a collector expect its groups; nothing on other ranks."""
    groups = plan.of_collector(rank)
    if groups and isinstance(config.env, MpiEnvConfig):
        from hpcdi.env.mpi.pool import SOLVERS

        folders = {g.environment: layout.solver_dir(g.environment) for g in groups}
        SOLVERS.open(config.env, groups, folders)


def let_solvers_end(plan: RankPlan, rank: int) -> None:
    """Have a collector's groups end, also where it has never expected them."""
    if groups := plan.of_collector(rank):
        from hpcdi.env.mpi.pool import SOLVERS

        SOLVERS.close(groups)


def leave_limit_of(plan: RankPlan | None, rank: int) -> LeaveLimit | None:
    """Returns how long rank 0 waits for solvers to leave; None: they are none, or it is another."""
    if plan is None or not plan.groups or rank != 0:
        return None
    ranks = ranks_text(range(plan.own, plan.world))
    cause = _GO_ON.format(host=platform.node(), limit_s=plan.leave_s, ranks=ranks)
    return LeaveLimit(plan.leave_s, cause)


# --------------------------------------------------------------------------------------- for people


def lines_of(plan: RankPlan, layout: RunLayout | None = None) -> list[str]:
    """Returns a line for each collector's groups, and where their output is."""
    lines = []
    for collector in dict.fromkeys(group.collector for group in plan.groups):
        own = plan.of_collector(collector)
        parts = [
            f"{ranks_text(group.ranks)} "
            + ("(spare)" if group.assigner is not None else f"(environment {group.environment})")
            for group in own
        ]
        lines.append(f"  solvers      of rank {collector}: ranks {', '.join(parts)}")
    if lines and layout is not None:
        lines.append(f"               they print to files in {layout.solvers_dir}")
    return lines


def solvers_have_begun(layout: RunLayout, since_s: float) -> bool:
    """Returns whether a solver's rank has opened its log since then (`time.time`)."""
    return any(log.stat().st_mtime >= since_s for log in _logs_in(layout))


def words_of_solvers(layout: RunLayout) -> str:
    """Returns the last lines of the solvers that printed last, for people; "" where there are none.

    A run that ends with a dead rank cannot say whose it was.
    """
    from hpcdi.env.mpi.launch import last_words

    logs = sorted(_logs_in(layout), key=lambda log: log.stat().st_mtime)
    said = last_words(logs[-_MOST_LOGS:])
    return f"  what solvers printed last:\n{said}\n" if said else ""


def _logs_in(layout: RunLayout) -> Iterator[Path]:
    """Returns the files into which solvers' ranks print."""
    return layout.solvers_dir.glob("env*/rank*.log")
