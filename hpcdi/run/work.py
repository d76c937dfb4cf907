"""The program of a learner or collector rank."""

from __future__ import annotations

import sys

import torch

from hpcdi.comm.dist import dist_finalize
from hpcdi.comm.failure import abort_job, describe, die_alone, headline
from hpcdi.comm.pump import LinkPump
from hpcdi.roles.collector.mpi_fs_collector import create_comm_collector
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.learner.mpi_fs_learner import create_comm_learner
from hpcdi.roles.message_side import MessageSide
from hpcdi.run.placement import RankPlace
from hpcdi.utils.log import LOGGER


def work(place: RankPlace, context: WorkerContext) -> int:
    """Run a learner or collector; returns its exit code."""
    system = context.config.system
    worker: MessageSide | None = None
    if place.gpu:
        device = place.gpus.index(place.gpu)
        if device < torch.cuda.device_count():  # else the policy says why not
            torch.cuda.set_device(device)
    if place.role == "learner":
        # the first optimizer imports torch's compiler: a watchdog would take that for a hang
        torch.optim.SGD([torch.zeros(1)])
    try:
        if place.role == "learner":
            worker = create_comm_learner(system.comm_learner, context)
        else:
            worker = create_comm_collector(system.comm_collector, context)
        worker.run()
    except BaseException as error:  # reported to rank 0, which shuts down the run
        failure = describe(error, place.role)
        LOGGER.info("this rank failed", exc_info=True)
        pump = worker.pump if worker is not None and worker.pump.is_alive else None
        # the learners of a group wait for this one's gradients until it has left
        release = dist_finalize if context.learners_comm is not None else lambda: None
        leave = (pump or LinkPump(context.link)).report_failure(failure, release=release)
        if leave is None:  # rank 0 does not answer: print it here and end the job
            sys.stderr.write(headline(failure, context.link.rank) + "\n")
            abort_job(failure.exit_code)
            return failure.exit_code
        if leave.alone:
            die_alone()
        return leave.exit_code
    return worker.exit_code
