"""The message side of learners of `ding.worker`."""

from hpcdi.worker.learner.comm.mpi_fs_learner import (
    BaseCommLearner,
    FlaskFileSystemLearner,
    LearnerSlave,
    MPIFileSystemLearner,
    create_comm_learner,
)

__all__ = [
    "BaseCommLearner",
    "FlaskFileSystemLearner",
    "LearnerSlave",
    "MPIFileSystemLearner",
    "create_comm_learner",
]
