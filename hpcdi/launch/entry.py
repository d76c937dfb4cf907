"""The composition root: one rank's program, from MPI's start to its exit code."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdi.errors import EXIT_DONE, EXIT_FAILED, HpcdiError, LaunchError, StoreError
from hpcdi.launch import run_folder, words
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

TERMINAL_VARIABLE = "HPCDI_TERMINAL"
"""Set to 1 where a person watches: ranks see a pipe, not the terminal."""

_SWITCH_INTERVAL_S = 1e-3
"""Python's time slice: shorter than the default, so that the communication thread gets its turn."""


@dataclass(frozen=True)
class TrainArguments:
    """What the command line says."""

    config: str
    overrides: tuple[str, ...] = ()
    ranks: int | None = None
    run_dir: str | None = None


@dataclass(frozen=True)
class Agreement:
    """What rank 0 has found, told to every rank; `error` is a message that ends them all."""

    experiment: Mapping[str, Any]
    run_dir: str
    placement: list[dict[str, Any]]
    error: str = ""
    exit_code: int = EXIT_DONE


def run_rank(arguments: TrainArguments, launched: LaunchEnvironment) -> int:
    """Play this rank's role in an MPI world; gives the exit code."""
    flag = SignalFlag()
    flag.install()
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

    try:
        compiled, _ = load_experiment(arguments.config, arguments.overrides)
        config, mapping = compiled.config, compiled.to_mapping()
        check_world(len(placement), config)
        if arguments.ranks not in (None, len(placement)):
            raise LaunchError(
                f"-n {arguments.ranks} was asked for, but the launcher has started "
                f"{len(placement)} ranks; the number of ranks is the launcher's to say"
            )
        for rank, place in enumerate(placement):
            place["rank"], place["role"] = rank, role_of(rank, len(placement), config)
        path = run_folder.choose(config.exp_name, arguments.run_dir)
        run_folder.claim(path, mapping, placement, mpi=library_version())
    except HpcdiError as error:
        return Agreement({}, "", placement, str(error), error.exit_code)
    for note in compiled.notes:
        sys.stderr.write(f"hpcdi: note: {note}\n")
    return Agreement(mapping, str(path), placement)


def _play(agreement: Agreement, world: Any, flag: SignalFlag, chosen_by_user: set[str]) -> int:
    """Build this rank's role and run it."""
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
        config, layout, world.open_link(), role_seed(config.seed, role, world.rank),
        learner_of(world.rank, config), group, flag.take,
    )  # fmt: skip
    try:
        exit_code = _coordinate(context) if role == "coordinator" else _work(role, context)
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


def _coordinate(context: Any) -> int:
    """The coordinator's program, and what it says to people."""
    from hpcdi.comm.failure import abort_job, describe, headline
    from hpcdi.utils.log import LOGGER, say
    from hpcdi.worker.coordinator import Coordinator

    layout, config = context.layout, context.config
    is_terminal = os.environ.get(TERMINAL_VARIABLE) == "1"
    for line in _opening(context):
        say(line)
    try:
        with Coordinator(
            config, context.link, layout, stop_request=context.stop_request, is_terminal=is_terminal
        ) as coordinator:
            outcome = coordinator.run()
            if coordinator.silent and outcome.exit_code == EXIT_DONE:
                reason = f"{outcome.reason}; but ranks {coordinator.silent} did not end in order"
                outcome = dataclasses.replace(
                    outcome, state="failed", reason=reason, exit_code=EXIT_FAILED
                )
            for line in _closing(outcome, coordinator.summary(), layout):
                say(line)
            _keep(layout, outcome, coordinator)
            if coordinator.silent:
                sys.stderr.write(
                    f"hpcdi: ranks {coordinator.silent} did not end within "
                    f"{config.system.coordinator.stop_timeout_s:g} s of being told "
                    "(system.coordinator.stop_timeout_s); what they had not published is lost. "
                    "Ending the job\n"
                )
                abort_job(outcome.exit_code)
    except BaseException as error:  # without rank 0 there is no order to end in
        failure = describe(error, "coordinator")
        sys.stderr.write(headline(failure, context.link.rank) + "\n")
        LOGGER.info("this rank failed", exc_info=True)
        try:
            run_folder.end(layout, "failed", failure.error, failure.exit_code, {})
        finally:  # also where that cannot be written
            abort_job(failure.exit_code)
    return outcome.exit_code


def _keep(layout: Any, outcome: Any, coordinator: Any) -> None:
    """Write how the run ended; a disk that is full is said, and no new failure.

    The run is over: what it has reached must not be lost to a file that cannot be written.
    """
    try:
        run_folder.end(
            layout, outcome.state, outcome.reason, outcome.exit_code, coordinator.figures()
        )
    except (StoreError, OSError) as error:
        sys.stderr.write(
            f"hpcdi: warning: the end of the run could not be written: {error}. Free some space, "
            "or choose another --run-dir next time\n"
        )


def _opening(context: Any) -> list[str]:
    config, size = context.config, context.link.size
    learners = config.policy.learn.learner.learner_num
    collectors = size - 1 - learners
    title = (
        f"{config.exp_name}, {size} ranks: 1 coordinator, "
        f"{learners} learner{'s' * (learners > 1)}, {collectors} collector{'s' * (collectors > 1)} "
        f"of {config.env.collector_env_num} environments"
    )
    return words.opening(title, context.layout)


def _closing(outcome: Any, summary: list[str], layout: Any) -> list[str]:
    lines = [words.verdict(outcome.state, outcome.reason), *summary]
    lines += [words.folder_line(layout), words.tensorboard_line(layout)]
    if layout.data_dir.exists():
        inspect = f"hpcdi inspect {run_folder.short(layout.root)}"
        lines.append(f"  data         {run_folder.short(layout.data_dir)} ({inspect})")
    return lines + words.policy_lines(layout)
