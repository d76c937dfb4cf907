"""Rank 0's program, and the lines that it prints for people."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpcdi.comm.failure import abort_job, describe, headline
from hpcdi.comm.link import Link
from hpcdi.config.schema import why_no_guests
from hpcdi.errors import state_after
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.fault import FAULTS
from hpcdi.run import resume, run_folder, run_lock
from hpcdi.run.environment import TERMINAL_VARIABLE, allocation
from hpcdi.run.guest import welcome
from hpcdi.run.job_end import EndTime
from hpcdi.run.placement import (
    RankPlace,
    collector_count,
    learner_count,
    shared_cores,
    table,
    working_collectors,
)
from hpcdi.run.signals import Request, ScaleFile, TimeLimit
from hpcdi.run.solver_ranks import lines_of, plan_ranks, world_of
from hpcdi.store.atomic import sweep_temporary
from hpcdi.store.disk_full import or_warn
from hpcdi.store.layout import RunLayout
from hpcdi.transport.guests import GuestHost
from hpcdi.utils.log import LOGGER, say
from hpcdi.utils.metrics import counted
from hpcdi.utils.threads import wake_this_thread_soon
from hpcdi.utils.watchdog import Watchdog

if TYPE_CHECKING:
    from hpcdi.roles.coordinator.coordinator import Coordinator
    from hpcdi.roles.coordinator.scheduler import Outcome


def coordinate(context: WorkerContext, placement: Sequence[RankPlace], ends_at: EndTime) -> int:
    """Run rank 0 from start to end; returns the exit code.

    Args:
        context: rank 0's place in the run.
        placement: where each rank is.
        ends_at: when the time limit ends the job.
    """
    layout, config = context.layout, context.config
    watchdog = Watchdog(config.system.survival.worker_timeout_s)
    settings = resume.NewSettings(layout, config)
    begun: Coordinator | None = None
    for line in _opening(context, placement):
        say(line)
    try:
        # slow: after the first lines
        from hpcdi.roles.coordinator.coordinator import Coordinator, look_seldom_for_cycles
        from hpcdi.roles.coordinator.scheduler import FAILURE_GRACE_S
        from hpcdi.run.parts import make_commander

        resumed = resume.take_up(config, layout)
        with (
            _with_guests(context) as link,
            Coordinator(
                config,
                link,
                layout,
                make_commander=make_commander,
                is_terminal=os.environ.get(TERMINAL_VARIABLE) == "1",
                cores=shared_cores(placement),
            ) as coordinator,
        ):
            begun = coordinator
            limit = TimeLimit(ends_at, context.stop_request, lambda: coordinator.snapshot_s)
            requests = ScaleFile(layout, collector_count(context.link.size, config), limit.take)
            if resumed is not None:
                coordinator.resume(resumed)
                say(f"  resumed      {resumed}")
            ask = _watched(requests.take, watchdog, settings)
            look_seldom_for_cycles()
            wake_this_thread_soon()
            outcome = coordinator.run(ask).without(coordinator.silent)
            watchdog.close()
            summary = coordinator.summary()
            _keep(layout, outcome, coordinator, settings)
            coordinator.close()  # the lines say what trackers have written
            for line in run_folder.closing("hpcdi train", outcome, summary, layout):
                say(line)
            if coordinator.silent:
                stop_s = config.system.coordinator.stop_timeout_s
                within = (
                    f"{stop_s:g} s of the order (system.coordinator.stop_timeout_s)"
                    if outcome.failure is None
                    else f"{FAILURE_GRACE_S:g} s of the failure"
                )
                sys.stderr.write(
                    f"hpcdi: ranks {list(coordinator.silent)} did not end within {within}; what "
                    "they had not published is lost. Ending the job\n"
                )
                run_lock.remove(layout)
                abort_job(outcome.exit_code)
    except BaseException as error:  # without rank 0 the others cannot shut down in order
        failure = describe(error, "coordinator")
        sys.stderr.write(headline(failure, context.link.rank) + "\n")
        LOGGER.info("this rank failed", exc_info=True)
        try:
            code = failure.exit_code
            end = partial(run_folder.end, layout, state_after(code), failure.error, code)
            end({}, is_last=False)
            if begun is not None:  # after the end itself, should they be what failed
                end(begun.figures(), is_last=False)
        finally:  # also where that cannot be written
            run_lock.remove(layout)
            abort_job(failure.exit_code)
    return int(outcome.exit_code)


@contextlib.contextmanager
def _with_guests(context: WorkerContext) -> Iterator[Link]:
    """Rank 0's link, which carries the messages of guests, too, where the run takes them."""
    why_not = why_no_guests(context.config)
    if why_not:
        yield context.link
        return
    with GuestHost(context.link, context.layout, context.config.system.guests.timeout_s) as host:
        welcome(context)
        yield host


def _watched(
    take: Callable[[], Request | None], watchdog: Watchdog, settings: resume.NewSettings
) -> Callable[[], Request | None]:
    """Returns what rank 0 asks before each turn; a watchdog kills it where turns stop."""
    began = time.monotonic()

    def ask() -> Request | None:
        now = time.monotonic()
        watchdog.look(now)
        settings.look(now)
        FAULTS.reach(int(now - began), "coordinator")
        return take()

    return ask


def _keep(
    layout: RunLayout, outcome: Outcome, coordinator: Coordinator, settings: resume.NewSettings
) -> None:
    """Write how the run ended; a full disk is a warning: what the run has reached is not lost."""
    settings.look(time.monotonic(), at_once=True)
    if coordinator.lost:
        sweep_temporary(layout.root)  # they may have been writing
    end = partial(run_folder.end, layout, outcome.state, outcome.reason, outcome.exit_code)
    is_last = not coordinator.silent
    or_warn("end of the run", partial(end, coordinator.figures(), is_last=is_last))


def _opening(context: WorkerContext, placement: Sequence[RankPlace]) -> list[str]:
    config, size = context.config, context.link.size
    learners, collectors = learner_count(config), collector_count(size, config)
    spare = collectors - working_collectors(size, config)
    waiting = f" ({spare} of them wait until they are needed)" if spare else ""
    title = (
        f"{config.exp_name}, {size} ranks: 1 coordinator, "
        f"{counted(learners, 'learner')}, {counted(collectors, 'collector')} "
        f"of {counted(config.env.collector_env_num, 'environment')}{waiting}"
        f"{f', restart {context.restarts}' if context.restarts else ''}"
    )
    plan = plan_ranks(world_of(size, config), config)
    return [
        *run_folder.opening(
            title, context.layout, run_folder.ends_of(config, config.env.stop_value)
        ),
        *_where(placement),
        *lines_of(plan, context.layout),
    ]


def _where(placement: Sequence[RankPlace]) -> list[str]:
    """Returns lines about the batch job and, on several hosts or with GPUs, where each rank is."""
    job = allocation(os.environ)
    lines = [f"  job          {job}"] if job is not None else []
    rows = table(placement)
    LOGGER.info("which rank is where", extra={"table": rows})
    if len({place.host for place in placement}) > 1 or any(place.gpu for place in placement):
        lines += rows
    return lines
