"""A rank that learns: its device and its role. With it torch is imported."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hpcdi.config.roles import LearnerConfig
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.learner.role import Learner, make_training
from hpcdi.roles.message_side import MessageSide
from hpcdi.run.placement import RankPlace


def take_device(place: RankPlace) -> None:
    """Compute on this rank's GPU, if it has one."""
    if place.gpu:
        device = place.gpus.index(place.gpu)
        if device < torch.cuda.device_count():  # else the policy says why not
            torch.cuda.set_device(device)


def make_learner_rank(context: WorkerContext) -> MessageSide:
    """Returns the learner of a rank."""
    side, settings = context.config.system.comm_learner, context.config.policy.learn.learner
    if side.type not in ("mpi_fs", "flask_fs"):
        from hpcdi.worker.learner.comm import create_comm_learner

        return create_comm_learner(side, context)
    if not _names_ding(settings):
        return Learner(context, training=make_training)
    from hpcdi.worker.learner.base_learner import make_learner

    return Learner(context, training=make_learner)


def _names_ding(settings: LearnerConfig) -> bool:
    """Returns whether settings of a learner name what only DI-engine's has.

    That is a learner of the user's, hooks of its form, or its files of checkpoints.
    """
    has_hooks = any(isinstance(hook, Mapping) for hook in settings.hook.values())
    loads_file = str(settings.hook.get("load_ckpt_before_run")).endswith(".tar")
    return settings.type != "base" or has_hooks or loads_file or settings.ckpt_format == "pth.tar"
