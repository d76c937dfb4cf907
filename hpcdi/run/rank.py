"""One rank's program, from MPI's start to its exit code: it gets a role, and plays it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdi.config.compiled import restore_config
from hpcdi.dataclass import dataclass
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, HpcdiError
from hpcdi.run.environment import (
    LAUNCHER_VARIABLE,
    REFUSED,
    REFUSED_VARIABLE,
    WITHOUT_NETWORK,
    LaunchEnvironment,
    all_ranks_are_here,
    check_world_size,
    is_first,
    job_component,
    own_words,
    take_handed_over,
    thread_variables,
    visible_gpus,
)
from hpcdi.run.placement import (
    Place,
    communicators,
    learner_groups,
    learners_for,
    niceness_of,
    relay_for,
    share_of_host,
    threads_of,
)
from hpcdi.run.private_folder import TEMPORARY_VARIABLE, own_temporary_folder
from hpcdi.run.request import RunRequest
from hpcdi.run.run_start import RunStart
from hpcdi.run.shared_memory import check_shared_memory
from hpcdi.run.signals import SignalFlag
from hpcdi.run.solver_ranks import (
    RankPlan,
    become_solver_rank,
    expect_solvers,
    experiment_of,
    has_solvers,
    is_solver,
    leave_limit_of,
    let_first_refuse,
    let_solvers_end,
    plan_ranks,
)
from hpcdi.run.start_guard import START_TIMEOUT_S, StartGuard
from hpcdi.utils.watchdog import heed_suspensions

if TYPE_CHECKING:
    from hpcdi.comm.world import World

_OTHER_COMMAND = (
    "rank {rank} (host {host}) was started with another command line than rank 0, whose settings "
    "all ranks take: give all the same CONFIG, settings and options (in each line of `srun "
    "--multi-prog`, on both sides of mpirun's `:`)"
)
_SWITCH_INTERVAL_S = 1e-3
"""Python's thread switch interval, shortened for the communication thread."""


def run_rank(
    request: RunRequest, launched: LaunchEnvironment, guard: StartGuard, chosen_by_user: set[str]
) -> int:
    """Start MPI and run this rank's role; returns the exit code.

    Args:
        request: the command line of `hpcdi train`.
        launched: how this process was started.
        guard: watches over this rank's start.
        chosen_by_user: see `limit_threads`; a learner may get more threads than one.
    """
    flag, plan = SignalFlag(), None
    try:
        flag.install()
        heed_suspensions()
        if all_ranks_are_here(os.environ):
            os.environ.setdefault(*WITHOUT_NETWORK)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        handed_over = take_handed_over(os.environ)
        settings = _settings(request, handed_over)
        guard.limit(_start_timeout_s(settings))
        check_shared_memory(os.environ)
        if has_solvers(settings):
            config = experiment_of(request, handed_over)
            check_world_size(launched, launched.tasks)
            plan = plan_ranks(launched.tasks, config)
            if is_solver(plan):
                guard.over()
                return become_solver_rank(plan, request, config)
    except HpcdiError as error:
        if plan is not None:
            let_first_refuse(plan)
        if plan is not None or is_first(os.environ):  # else all ranks say the same
            sys.stderr.write(f"hpcdi: {error}\n")
        return _refusal(error.exit_code)
    return _run_role(request, launched, guard, BeforeMpi(flag, handed_over, plan, chosen_by_user))


@dataclass(frozen=True)
class BeforeMpi:
    """What a rank with a role knows before MPI starts.

    Attributes:
        flag: notes what signals ask for.
        handed_over: the experiment, if this job's launcher has checked it.
        plan: which ranks are solvers'; None: none is.
        chosen_by_user: see `limit_threads`.
    """

    flag: SignalFlag
    handed_over: Mapping[str, Any] | None
    plan: RankPlan | None
    chosen_by_user: set[str]


def _run_role(
    request: RunRequest, launched: LaunchEnvironment, guard: StartGuard, before: BeforeMpi
) -> int:
    """Start MPI and run this rank's role; returns the exit code."""
    from hpcdi.comm.failure import abort_job, describe, headline, leave_alone, leave_job
    from hpcdi.comm.world import open_world

    try:
        world = open_world(None if before.plan is None else before.plan.own)
        before.flag.install_again()
        check_world_size(launched, world.size)
    except HpcdiError as error:  # the ranks cannot talk to each other
        if words := own_words(error, launched, os.environ):
            sys.stderr.write(f"hpcdi: {words}\n")
        guard.over()
        return leave_alone(error.exit_code)
    asked = request.checksums(platform.node(), os.environ.get(TEMPORARY_VARIABLE, ""))
    try:
        with ExitStack() as stack:
            stack.enter_context(own_temporary_folder())
            if before.plan is not None:
                stack.callback(let_solvers_end, before.plan, world.rank)
            start = _begin(request, asked, before.handed_over, world, stack)
            if start.error:
                guard.over()
                exit_code = EXIT_DONE
                if world.rank == 0:  # whose exit code is the only one that counts
                    sys.stderr.write(f"hpcdi: {start.error}\n")
                    exit_code = _refusal(start.exit_code)
            else:
                exit_code = _play(start, world, guard, before)
        return leave_job(exit_code, leave_limit_of(before.plan, world.rank))
    except BaseException as error:  # any error must end the whole job, with its traceback
        failure = describe(error, "starting")
        sys.stderr.write(headline(failure, world.rank) + "\n")
        guard.over()
        abort_job(failure.exit_code)
    return failure.exit_code


def _refusal(exit_code: int) -> int:
    """Returns the exit code of a rank that does not begin, as its launcher understands it."""
    is_ours = LAUNCHER_VARIABLE in os.environ or REFUSED_VARIABLE in os.environ
    return REFUSED if is_ours and exit_code == EXIT_FAILED else exit_code


def _settings(request: RunRequest, handed_over: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns the settings, unchecked; rank 0 reports later what is wrong with them."""
    if handed_over:
        return handed_over
    from hpcdi.config.load import read_mapping
    from hpcdi.run import resume

    for overrides in (request.overrides, ()):  # where they are wrong, solvers still are solvers
        with suppress(HpcdiError):
            return read_mapping(resume.config_of(request), overrides)
    return {}


def _start_timeout_s(settings: Mapping[str, Any]) -> float:
    """Returns how long the start may take."""
    try:
        return float(settings["system"]["coordinator"]["start_timeout_s"])
    except (KeyError, TypeError, ValueError):
        return START_TIMEOUT_S


def _begin(
    request: RunRequest,
    asked: tuple[int, int],
    handed_over: Mapping[str, Any] | None,
    world: World,
    stack: ExitStack,
) -> RunStart:
    """Lets rank 0 prepare the experiment and its run folder; returns them on all ranks.

    Args:
        request: the command line.
        asked: its checksums.
        handed_over: see `BeforeMpi`.
        world: all ranks.
        stack: what is entered there is left when the run has ended.
    """
    place = Place(
        platform.node(),
        visible_gpus(os.environ),
        job_component(os.environ),
        tuple(sorted(os.sched_getaffinity(0))),
        world.local_rank,
        os.getpid(),
    )
    told = world.collect((place, asked))
    if world.rank == 0:
        from hpcdi.run.prepare import prepare

        places, of_all = zip(*told, strict=True)
        other = next((n for n, own in enumerate(of_all) if not set(own) & set(asked)), None)
        if other is not None:
            error = _OTHER_COMMAND.format(rank=other, host=places[other].host)
            return world.share(RunStart({}, "", (), error=error, exit_code=EXIT_USAGE))
        return world.share(prepare(request, handed_over, list(places), stack))
    return world.share(RunStart({}, "", ()))


def _play(start: RunStart, world: World, guard: StartGuard, before: BeforeMpi) -> int:
    """Build this rank's role and run it."""
    from hpcdi.comm.failure import die_if_it_exits
    from hpcdi.roles.context import WorkerContext, role_seed
    from hpcdi.roles.fault import FAULTS
    from hpcdi.store.atomic import stay_in
    from hpcdi.store.layout import RunLayout
    from hpcdi.transport import open_transport
    from hpcdi.utils.log import close_log, open_log

    place = start.placement[world.rank]
    os.nice(niceness_of(place.role, share_of_host(place, start.placement)))
    config = restore_config(start.experiment)
    solvers = 0
    if before.plan is not None and all_ranks_are_here(os.environ):  # else nobody knows where
        solvers = before.plan.world - before.plan.own
    share = share_of_host(place, start.placement, solvers)
    threads = thread_variables(threads_of(place.role, share, config.policy))  # before torch
    os.environ.update({k: v for k, v in threads.items() if k not in before.chosen_by_user})
    layout = RunLayout(Path(start.run_dir))
    stay_in(layout.root)
    open_log(layout.log_file(world.rank), world.rank, place.role, start.restarts)
    FAULTS.arm(config.fault, world.rank, place.role, start.restarts)
    roles = [other.role for other in start.placement]
    groups = learner_groups(roles, config)
    link = world.open_link()
    context = WorkerContext(
        config,
        layout,
        link,
        role_seed(
            config.seed,
            place.role,
            world.rank,
            0 if config.system.deterministic else start.restarts,
        ),
        {name: learners_for(world.rank, roles, ranks) for name, ranks in groups.items()},
        world.split(communicators(groups)),
        before.flag.take,
        start.restarts,
        transport=open_transport(
            config.system,
            layout,
            lends=not config.system.deterministic,
            is_on_one_node=link.is_on_one_node,
        ),
        relay=relay_for(world.rank, start.placement, config),
    )
    guard.over()  # from here on the link reports dead ranks, and rank 0 silent ones
    die_if_it_exits()
    try:
        if place.role == "coordinator":
            from hpcdi.run.coordinate import coordinate

            exit_code = coordinate(context, start.placement, start.ends_at)
        else:
            from hpcdi.run.work import work  # with it torch

            if before.plan is not None:
                expect_solvers(before.plan, world.rank, config, layout)
            exit_code = work(place, context)
    finally:
        close_log()
    return EXIT_DONE if LAUNCHER_VARIABLE in os.environ else exit_code
