"""The program of a learner or collector rank."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial

from hpcdi.comm.failure import abort_job, describe, die_alone, headline
from hpcdi.comm.pump import LinkPump
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.message_side import MessageSide
from hpcdi.run.parts import columnar_policy, make_learner_rank
from hpcdi.run.placement import RankPlace
from hpcdi.utils.log import LOGGER


def work(place: RankPlace, context: WorkerContext) -> int:
    """Run a learner or collector; returns its exit code."""
    worker: MessageSide | None = None
    make_policy = partial(columnar_policy, gets_weights=True)
    context = dataclasses.replace(context, make_policy=make_policy)
    try:
        # a rank imports what its role needs: a learner torch, a collector environments
        if place.role == "learner":
            _take_device(place)
            worker = make_learner_rank(context)
        else:
            from hpcdi.roles.collector.mpi_fs_collector import create_comm_collector

            worker = create_comm_collector(context.config.system.comm_collector, context)
        worker.run()
    except BaseException as error:  # reported to rank 0, which shuts down the run
        failure = describe(error, place.role)
        LOGGER.info("this rank failed", exc_info=True)
        pump = worker.pump if worker is not None else None
        if not isinstance(pump, LinkPump) or not pump.is_alive:
            pump = LinkPump(context.link)
        # the learners of a group wait for this one's gradients until it has left
        release = leave_learners if context.learners_comm is not None else lambda: None
        leave = pump.report_failure(failure, release=release)
        if leave is None:  # rank 0 does not answer: print it here and end the job
            sys.stderr.write(headline(failure, context.link.rank) + "\n")
            abort_job(failure.exit_code)
            return failure.exit_code
        if leave.alone:
            die_alone()
        return leave.exit_code
    return worker.exit_code


def _take_device(place: RankPlace) -> None:
    """Compute on this learner's GPU, if it has one."""
    if place.gpu:
        import torch

        device = place.gpus.index(place.gpu)
        if device < torch.cuda.device_count():  # else the policy says why not
            torch.cuda.set_device(device)


def leave_learners() -> None:
    """Leave the group of learners."""
    from hpcdi.comm.group import dist_finalize

    dist_finalize()
