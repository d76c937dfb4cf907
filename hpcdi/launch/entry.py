"""The composition root: one rank's program, from MPI's start to its exit code."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdi.errors import EXIT_DONE, EXIT_FAILED, HpcdiError, LaunchError
from hpcdi.launch import resume, run_folder
from hpcdi.launch.environment import LaunchEnvironment, check_world_size
from hpcdi.launch.signals import SignalFlag
from hpcdi.launch.topology import (
    check_world,
    learner_of,
    niceness_of,
    role_of,
    thread_variables,
    threads_of,
)

_SWITCH_INTERVAL_S = 1e-3
"""Python's time slice: shorter than the default, so that the communication thread gets its turn."""


@dataclass(frozen=True)
class TrainArguments:
    """What the command line says."""

    config: str | None
    overrides: tuple[str, ...] = ()
    ranks: int | None = None
    run_dir: str | None = None
    resume: str | None = None
    """Run folder to go on with; its configuration is taken, `config` is not."""
    time_limit: str | None = None
    """How long the run may last, as Slurm spells it; by default what the queue says."""


@dataclass(frozen=True)
class Agreement:
    """What rank 0 has found, told to every rank; `error` is a message that ends them all."""

    experiment: Mapping[str, Any]
    run_dir: str
    placement: list[dict[str, Any]]
    restarts: int = 0
    ends_at: float = float("inf")
    error: str = ""
    exit_code: int = EXIT_DONE


def run_rank(arguments: TrainArguments, launched: LaunchEnvironment) -> int:
    """Play this rank's role in an MPI world; gives the exit code."""
    flag = SignalFlag()
    try:
        flag.install()
    except LaunchError as error:
        sys.stderr.write(f"hpcdi: {error}\n")
        return error.exit_code
    chosen_by_user = set(thread_variables(1)) & os.environ.keys()
    for name, value in thread_variables(1).items():  # before numpy; a learner gets more below
        os.environ.setdefault(name, value)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    from hpcdi.comm.failure import abort_job, describe, headline
    from hpcdi.comm.world import open_world

    try:
        world = open_world()
        check_world_size(launched, world.size)
    except HpcdiError as error:  # the ranks do not know of each other; one word is enough
        if os.environ.get("SLURM_PROCID", "0") == "0":
            sys.stderr.write(f"hpcdi: {error}\n")
        return error.exit_code
    try:
        agreement = _agree(arguments, world)
        if agreement.error:
            if world.rank == 0:
                sys.stderr.write(f"hpcdi: {agreement.error}\n")
            return agreement.exit_code
        return _play(agreement, world, flag, chosen_by_user)
    except BaseException as error:  # whatever it is, it must end the whole job, with its traceback
        sys.stderr.write(headline(describe(error, "starting"), world.rank) + "\n")
        abort_job(EXIT_FAILED)
    return EXIT_FAILED


def _agree(arguments: TrainArguments, world: Any) -> Agreement:
    """Rank 0 reads the experiment and takes the run folder; everybody learns what came of it."""
    facts = {
        "host": platform.node(),
        "local_rank": world.local_rank,
        "pid": os.getpid(),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    placement = world.collect(facts)
    agreement = _prepare(arguments, placement) if world.rank == 0 else None
    shared: Agreement = world.share(agreement)
    return shared


def _prepare(arguments: TrainArguments, placement: list[dict[str, Any]]) -> Agreement:
    from hpcdi.comm.world import library_version
    from hpcdi.launch.experiment import load_experiment
    from hpcdi.launch.time_limit import end_of

    try:
        ends_at = end_of(arguments.time_limit, os.environ, time.time())
        compiled, _ = load_experiment(config_file(arguments), arguments.overrides)
        config, mapping = compiled.config, compiled.to_mapping()
        check_world(len(placement), config)
        if arguments.ranks not in (None, len(placement)):
            raise LaunchError(
                f"-n {arguments.ranks} was asked for, but the launcher has started "
                f"{len(placement)} ranks; the number of ranks is the launcher's to say"
            )
        for rank, place in enumerate(placement):
            place["rank"], place["role"] = rank, role_of(rank, len(placement), config)
        if arguments.resume is not None:
            path, restarts = _take_up(Path(arguments.resume).absolute(), placement)
        else:
            path, restarts = run_folder.choose(config.exp_name, arguments.run_dir), 0
            run_folder.claim(path, mapping, placement, mpi=library_version())
    except HpcdiError as error:
        return Agreement({}, "", placement, error=str(error), exit_code=error.exit_code)
    for note in compiled.notes:
        sys.stderr.write(f"hpcdi: note: {note}\n")
    return Agreement(mapping, str(path), placement, restarts, ends_at)


def config_file(arguments: TrainArguments) -> str:
    """The experiment that is asked for.

    Raises:
        LaunchError: none is, or the run to go on with has none.
    """
    if arguments.resume is not None:
        return resume.config_of(arguments.resume, "coordinator", arguments.config)
    if arguments.config is None:
        raise LaunchError("name an experiment's YAML file, or a run folder by --resume")
    return arguments.config


def _take_up(path: Path, placement: list[dict[str, Any]]) -> tuple[Path, int]:
    """Make a run folder this run's own again; gives it, and how often that has been done."""
    from hpcdi.store.atomic import sweep_temporary
    from hpcdi.store.layout import RunLayout

    layout = RunLayout(path)
    resume.newest_snapshot(layout)
    restarts = run_folder.reopen(layout, placement)
    sweep_temporary(path)  # whoever wrote them is gone
    return path, restarts


def _play(agreement: Agreement, world: Any, flag: SignalFlag, chosen_by_user: set[str]) -> int:
    """Build this rank's role and run it."""
    from hpcdi.launch.coordinate import coordinate
    from hpcdi.launch.experiment import from_mapping
    from hpcdi.store.layout import RunLayout
    from hpcdi.utils.log import close_log, open_log
    from hpcdi.worker.context import WorkerContext, role_seed

    place = agreement.placement[world.rank]
    role = place["role"]
    share = _share_of_host(place, agreement.placement)
    os.nice(niceness_of(role, **share))
    threads = thread_variables(threads_of(role, **share))  # before torch
    os.environ.update({k: v for k, v in threads.items() if k not in chosen_by_user})
    config = from_mapping(agreement.experiment)
    layout = RunLayout(Path(agreement.run_dir))
    open_log(layout.log_file(world.rank), world.rank, role)
    learners = [p["rank"] for p in agreement.placement if p["role"] == "learner"]
    group = world.subgroup(role == "learner") if len(learners) > 1 else None
    context = WorkerContext(
        config, layout, world.open_link(),
        role_seed(config.seed, role, world.rank, agreement.restarts),
        learner_of(world.rank, config), group, flag.take, agreement.restarts,
    )  # fmt: skip
    try:
        exit_code = (
            coordinate(context, agreement.ends_at)
            if role == "coordinator"
            else _work(role, context)
        )
    finally:
        close_log()
    return EXIT_DONE if run_folder.LAUNCHER_VARIABLE in os.environ else exit_code


def _share_of_host(place: Mapping[str, Any], placement: list[dict[str, Any]]) -> dict[str, Any]:
    """A rank's cores, and with whom it shares them: the arguments of `threads_of`."""
    neighbours = [p for p in placement if p["host"] == place["host"]]
    is_bound = all(p is place or not set(p["cores"]) & set(place["cores"]) for p in neighbours)
    learners = sum(p["role"] == "learner" for p in neighbours)
    return {
        "cores": len(place["cores"]),
        "others": len(neighbours) - learners,
        "learners": learners,
        "is_bound": is_bound,
    }


def _work(role: str, context: Any) -> int:
    """A learner's or a collector's program."""
    from hpcdi.comm.failure import abort_job, describe, headline
    from hpcdi.comm.pump import LinkPump
    from hpcdi.utils.log import LOGGER
    from hpcdi.worker.collector.comm import create_comm_collector
    from hpcdi.worker.context import Worker
    from hpcdi.worker.learner.comm import create_comm_learner

    system = context.config.system
    worker: Worker | None = None
    try:
        if role == "learner":
            worker = create_comm_learner(system.comm_learner, context)
        else:
            worker = create_comm_collector(system.comm_collector, context)
        worker.run()
    except BaseException as error:  # told to rank 0, which ends the run in order
        failure = describe(error, role)
        LOGGER.info("this rank failed", exc_info=True)
        pump = worker.pump if worker is not None and worker.pump.is_alive else None
        leave = (pump or LinkPump(context.link)).report_failure(failure, release=_leaver(context))
        if leave is None:  # rank 0 does not answer: say it here, and end the job
            sys.stderr.write(headline(failure, context.link.rank) + "\n")
            abort_job(failure.exit_code)
        return leave.exit_code if leave is not None else failure.exit_code
    return worker.exit_code


def _leaver(context: Any) -> Callable[[], None]:
    """How a rank that has failed leaves the other learners, who wait for its gradients."""
    if context.group is None:
        return lambda: None
    from hpcdi.comm.dist import dist_finalize

    return dist_finalize
