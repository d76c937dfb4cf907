"""Learners: batches in, gradient steps, policies out.

Owns: the training loop (`base_learner`), hooks (`learner_hook`),
checkpoints (`checkpointing`), the source of batches and their way to the device (`data_feed`), the
group of several learners (`group`), the message side (`comm`). May import: `transport`, `policy`,
`store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: a learner knows rows and weights; who
sampled them, and who collected them, it does not know.

Life of a learner rank::

    start ──WorkerReady──► waiting ──LearnTask──► before_run ──► ┌ before_iter          ┐
                              │                                  │ policy.forward(batch)│ iterations
                              │                                  └ after_iter           ┘
                    Stop ─────┴──► Goodbye ──► Leave     after_run ◄── Stop, or all done
"""

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
