"""One rank's program, from MPI's start to its exit code: builds its role and runs it."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdi.config.load import compile_config, read_mapping, show_notes
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_REQUEUE, HpcdiError, LaunchError
from hpcdi.run import resume
from hpcdi.run.environment import (
    LAUNCHER_VARIABLE,
    REFUSED,
    WITHOUT_NETWORK,
    LaunchEnvironment,
    all_ranks_are_here,
    check_world_size,
    component,
    thread_variables,
    visible_gpus,
)
from hpcdi.run.placement import (
    Place,
    check_gpus,
    communicators,
    gpu_names,
    learner_groups,
    learners_for,
    niceness_of,
    roles_of,
    share_of_host,
    threads_of,
)
from hpcdi.run.private_folder import own_temporary_folder
from hpcdi.run.requests import SignalFlag
from hpcdi.run.run_lock import RunLock
from hpcdi.run.start_guard import START_TIMEOUT_S, StartGuard

_SWITCH_INTERVAL_S = 1e-3
"""Python's thread switch interval, shortened for the communication thread."""


@dataclass(frozen=True)
class Agreement:
    """Start-up facts that rank 0 sends to every rank; all ranks end if `error` is not empty."""

    experiment: Mapping[str, Any]
    run_dir: str
    placement: list[dict[str, Any]]
    restarts: int = 0
    ends_at: float = float("inf")
    error: str = ""
    exit_code: int = EXIT_DONE


def run_rank(
    arguments: Namespace, launched: LaunchEnvironment, guard: StartGuard, chosen_by_user: set[str]
) -> int:
    """Start MPI and run this rank's role; returns the exit code.

    Args:
        arguments: ``config``, ``overrides``, ``ranks``, ``run_dir``, ``resume`` and ``time_limit``
            of `hpcdi train`.
        launched: how this process was started.
        guard: of this rank's start.
        chosen_by_user: see `limit_threads`; a learner may get more threads than one.
    """
    flag = SignalFlag()
    try:
        flag.install()
    except LaunchError as error:
        sys.stderr.write(f"hpcdi: {error}\n")
        return error.exit_code
    if all_ranks_are_here(os.environ):
        os.environ.setdefault(*WITHOUT_NETWORK)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    guard.limit(_start_timeout_s(arguments))
    from hpcdi.comm.failure import abort_job, describe, headline, leave_job
    from hpcdi.comm.world import open_world

    try:
        world = open_world()
        check_world_size(launched, world.size)
    except HpcdiError as error:  # the ranks cannot talk to each other: one prints it
        if os.environ.get("SLURM_PROCID", "0") == "0":
            sys.stderr.write(f"hpcdi: {error}\n")
        from hpcdi.comm.failure import forget_world

        forget_world()
        return error.exit_code
    try:
        with ExitStack() as held:
            held.enter_context(own_temporary_folder())
            agreement = _agree(arguments, world, held)
            if agreement.error:
                guard.over()
                exit_code = _refuse(agreement) if world.rank == 0 else EXIT_DONE
            else:
                exit_code = _play(agreement, world, flag, guard, chosen_by_user)
        return leave_job(exit_code)
    except BaseException as error:  # any error must end the whole job, with its traceback
        failure = describe(error, "starting")
        sys.stderr.write(headline(failure, world.rank) + "\n")
        guard.over()
        abort_job(failure.exit_code)
    return failure.exit_code


def _refuse(agreement: Agreement) -> int:
    """Say why the run does not begin; returns rank 0's exit code, the only one that counts."""
    sys.stderr.write(f"hpcdi: {agreement.error}\n")
    is_ours = LAUNCHER_VARIABLE in os.environ
    return REFUSED if is_ours and agreement.exit_code == EXIT_FAILED else agreement.exit_code


def _start_timeout_s(arguments: Namespace) -> float:
    """Returns how long the start may take; rank 0 says later what is wrong with the settings."""
    try:
        settings = read_mapping(resume.config_of(arguments), arguments.overrides)
        return float(settings["system"]["coordinator"]["start_timeout_s"])
    except (HpcdiError, KeyError, TypeError, ValueError):
        return START_TIMEOUT_S


def _agree(arguments: Namespace, world: Any, held: ExitStack) -> Agreement:
    """Returns what rank 0 has prepared, on all ranks: the experiment and its run folder."""
    facts = {
        "host": platform.node(),
        "local_rank": world.local_rank,
        "pid": os.getpid(),
        "cores": sorted(os.sched_getaffinity(0)),
        "gpus": visible_gpus(os.environ),
        "component": component(os.environ),
    }
    placement = world.collect(facts)
    agreement = _prepare(arguments, placement, held) if world.rank == 0 else None
    return Agreement(**world.share(agreement and dataclasses.asdict(agreement)))


def _prepare(arguments: Namespace, placement: list[dict[str, Any]], held: ExitStack) -> Agreement:
    from hpcdi.comm.failure import is_of_the_machine
    from hpcdi.comm.world import library_version
    from hpcdi.run.experiment import load_experiment
    from hpcdi.run.requests import end_of
    from hpcdi.store.layout import RunLayout

    try:
        ends_at = end_of(arguments.time_limit, os.environ, time.time())
        source = resume.config_of(arguments)
        compiled, _ = load_experiment(source, arguments.overrides)
        config, mapping = compiled.config, compiled.to_mapping()
        _assign(placement, config)
        if arguments.ranks not in (None, len(placement)):
            raise LaunchError(
                f"-n {arguments.ranks} was given, but the launcher has started {len(placement)} "
                "ranks; set the number of ranks there"
            )
        mode = resume.start_mode(arguments, compiled, os.environ)
        path = resume.folder_of(arguments, mode, config.exp_name)
        if mode is resume.StartMode.DONE:
            return Agreement({}, "", placement, error=resume.done_line(path))
        held.enter_context(RunLock(RunLayout(path)))
        restarts = resume.take(RunLayout(path), mode, mapping, placement, mpi=library_version())
    except HpcdiError as error:  # a full disk at a restart is not the user's error
        code = EXIT_REQUEUE if is_of_the_machine(error) else error.exit_code
        return Agreement({}, "", placement, error=str(error), exit_code=code)
    show_notes(compiled.notes)
    return Agreement(mapping, str(path), placement, restarts, ends_at)


def _assign(placement: list[dict[str, Any]], config: Any) -> None:
    """Add each rank's number, role, GPU and perhaps player to its entry of `placement`.

    Raises:
        LaunchError: the world is too small for the experiment, or has no GPU for its learners.
    """
    places = [Place(place["host"], tuple(place["gpus"]), place["component"]) for place in placement]
    check_gpus(places, cuda=config.policy.cuda)
    roles = roles_of(places, config)
    names = gpu_names(places, roles, cuda=config.policy.cuda)
    for rank, (place, role, name) in enumerate(zip(placement, roles, names, strict=True)):
        place.update(rank=rank, role=role, gpu=name)
    for player, ranks in list(learner_groups(roles, config).items())[1:]:
        for rank in ranks:
            placement[rank]["player"] = player


def _play(
    agreement: Agreement,
    world: Any,
    flag: SignalFlag,
    guard: StartGuard,
    chosen_by_user: set[str],
) -> int:
    """Build this rank's role and run it."""
    from hpcdi.roles.context import WorkerContext, role_seed
    from hpcdi.roles.fault import FAULTS
    from hpcdi.run.coordinate import coordinate
    from hpcdi.store.atomic import stay_in
    from hpcdi.store.layout import RunLayout
    from hpcdi.utils.log import close_log, open_log

    place = agreement.placement[world.rank]
    role = place["role"]
    share = share_of_host(place, agreement.placement)
    os.nice(niceness_of(role, **share))
    threads = thread_variables(threads_of(role, **share))  # before torch
    os.environ.update({k: v for k, v in threads.items() if k not in chosen_by_user})
    config = compile_config(agreement.experiment).config
    layout = RunLayout(Path(agreement.run_dir))
    stay_in(layout.root)
    open_log(layout.log_file(world.rank), world.rank, role, agreement.restarts)
    FAULTS.arm(config.fault, world.rank, role, agreement.restarts)
    roles = [p["role"] for p in agreement.placement]
    groups = learner_groups(roles, config)
    context = WorkerContext(
        config, layout, world.open_link(),
        role_seed(
            config.seed, role, world.rank,
            0 if config.system.deterministic else agreement.restarts,
        ),
        {name: learners_for(world.rank, roles, ranks) for name, ranks in groups.items()},
        world.split(communicators(groups)),
        flag.take, agreement.restarts,
    )  # fmt: skip
    guard.over()  # from here on the link reports dead ranks, and rank 0 silent ones
    try:
        exit_code = (
            coordinate(context, agreement.ends_at)
            if role == "coordinator"
            else _work(role, context, _device_of(place))
        )
    finally:
        close_log()
    return EXIT_DONE if LAUNCHER_VARIABLE in os.environ else exit_code


def _device_of(place: Mapping[str, Any]) -> int | None:
    """Returns the number of a learner's GPU among those that it sees; None: it needs none."""
    return place["gpus"].index(place["gpu"]) if place["gpu"] else None


def _work(role: str, context: Any, device: int | None) -> int:
    """Run a learner or collector; returns its exit code."""
    from hpcdi.comm.failure import abort_job, describe, die_alone, headline
    from hpcdi.comm.pump import LinkPump
    from hpcdi.roles.collector.mpi_fs_collector import create_comm_collector
    from hpcdi.roles.message_side import MessageSide
    from hpcdi.utils.log import LOGGER

    system = context.config.system
    worker: MessageSide | None = None
    _import_torch(role, device)
    try:
        if role == "learner":
            worker = _learner(context)
        else:
            worker = create_comm_collector(system.comm_collector, context)
        worker.run()
    except BaseException as error:  # reported to rank 0, which shuts down the run
        failure = describe(error, role)
        LOGGER.info("this rank failed", exc_info=True)
        pump = worker.pump if worker is not None else None
        if not isinstance(pump, LinkPump) or not pump.is_alive:
            pump = LinkPump(context.link)
        leave = pump.report_failure(failure, release=_leaver(context))
        if leave is None:  # rank 0 does not answer: print it here and end the job
            sys.stderr.write(headline(failure, context.link.rank) + "\n")
            abort_job(failure.exit_code)
        if leave is not None and leave.alone:
            die_alone()
        return leave.exit_code if leave is not None else failure.exit_code
    return worker.exit_code


def _learner(context: Any) -> Any:
    """Returns the learner of this rank."""
    from hpcdi.roles.learner.role import Learner, make_training
    from hpcdi.worker.learner.base_learner import make_learner
    from hpcdi.worker.learner.comm.mpi_fs_learner import columnar_policy, create_comm_learner

    system, cfg = context.config.system, context.config.policy.learn.learner
    if system.comm_learner.type not in ("mpi_fs", "flask_fs"):
        return create_comm_learner(system.comm_learner, context)
    training = make_learner if _names_ding(cfg) else make_training
    return Learner(context, training=training, policy=columnar_policy)


def _names_ding(cfg: Any) -> bool:
    """Returns whether settings of a learner name what only DI-engine's has.

    That is a learner of the user's, hooks of its form, or its files of checkpoints.
    """
    has_hooks = any(isinstance(hook, Mapping) for hook in cfg.hook.values())
    loads_file = str(cfg.hook.get("load_ckpt_before_run")).endswith(".tar")
    return cfg.type != "base" or has_hooks or loads_file or cfg.ckpt_format == "pth.tar"


def _import_torch(role: str, device: int | None) -> None:
    """Import what the first task needs: a watchdog would take a slow import for a hang.

    Args:
        role: of this rank.
        device: to compute on, of the GPUs that this rank sees.
    """
    import torch

    if device is not None and device < torch.cuda.device_count():  # else the policy says why not
        torch.cuda.set_device(device)

    if role == "learner":
        torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports torch's compiler


def _leaver(context: Any) -> Callable[[], None]:
    """Returns how a failed rank leaves the group of learners, which wait for its gradients."""
    if context.learners_comm is None:
        return lambda: None
    from hpcdi.comm.group import dist_finalize

    return dist_finalize
