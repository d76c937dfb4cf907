"""The program of a learner or collector rank."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

import torch

from hpcdi.comm.failure import abort_job, describe, die_alone, headline
from hpcdi.comm.group import dist_finalize
from hpcdi.comm.pump import LinkPump
from hpcdi.config.roles import LearnerConfig
from hpcdi.roles.collector.mpi_fs_collector import create_comm_collector
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.learner.role import Learner, make_training
from hpcdi.roles.message_side import MessageSide
from hpcdi.run.placement import RankPlace
from hpcdi.utils.log import LOGGER
from hpcdi.worker.dict_policy import columnar_policy
from hpcdi.worker.learner.base_learner import make_learner
from hpcdi.worker.learner.comm import create_comm_learner


def work(place: RankPlace, context: WorkerContext) -> int:
    """Run a learner or collector; returns its exit code."""
    worker: MessageSide | None = None
    context = dataclasses.replace(context, make_policy=columnar_policy)
    if place.gpu:
        device = place.gpus.index(place.gpu)
        if device < torch.cuda.device_count():  # else the policy says why not
            torch.cuda.set_device(device)
    try:
        if place.role == "learner":
            worker = make_learner_rank(context)
        else:
            worker = create_comm_collector(context.config.system.comm_collector, context)
        worker.run()
    except BaseException as error:  # reported to rank 0, which shuts down the run
        failure = describe(error, place.role)
        LOGGER.info("this rank failed", exc_info=True)
        pump = worker.pump if worker is not None else None
        if not isinstance(pump, LinkPump) or not pump.is_alive:
            pump = LinkPump(context.link)
        # the learners of a group wait for this one's gradients until it has left
        release = dist_finalize if context.learners_comm is not None else lambda: None
        leave = pump.report_failure(failure, release=release)
        if leave is None:  # rank 0 does not answer: print it here and end the job
            sys.stderr.write(headline(failure, context.link.rank) + "\n")
            abort_job(failure.exit_code)
            return failure.exit_code
        if leave.alone:
            die_alone()
        return leave.exit_code
    return worker.exit_code


def make_learner_rank(context: WorkerContext) -> MessageSide:
    """Returns the learner of a rank."""
    side, settings = context.config.system.comm_learner, context.config.policy.learn.learner
    if side.type not in ("mpi_fs", "flask_fs"):
        return create_comm_learner(side, context)
    training = make_learner if _names_ding(settings) else make_training
    return Learner(context, training=training)


def _names_ding(settings: LearnerConfig) -> bool:
    """Returns whether settings of a learner name what only DI-engine's has.

    That is a learner of the user's, hooks of its form, or its files of checkpoints.
    """
    has_hooks = any(isinstance(hook, Mapping) for hook in settings.hook.values())
    loads_file = str(settings.hook.get("load_ckpt_before_run")).endswith(".tar")
    return settings.type != "base" or has_hooks or loads_file or settings.ckpt_format == "pth.tar"
