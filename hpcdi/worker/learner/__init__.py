"""Learners and hooks of `ding.worker`."""

from hpcdi.worker.learner.base_learner import BaseLearner, create_learner
from hpcdi.worker.learner.comm import (
    BaseCommLearner,
    FlaskFileSystemLearner,
    MPIFileSystemLearner,
    create_comm_learner,
)
from hpcdi.worker.learner.learner_hook import (
    LearnerHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
    merge_hooks,
    register_learner_hook,
)

__all__ = [
    "BaseCommLearner",
    "BaseLearner",
    "FlaskFileSystemLearner",
    "LearnerHook",
    "MPIFileSystemLearner",
    "add_learner_hook",
    "build_learner_hook_by_cfg",
    "create_comm_learner",
    "create_learner",
    "merge_hooks",
    "register_learner_hook",
]
