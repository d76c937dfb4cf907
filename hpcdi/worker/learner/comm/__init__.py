"""The message side of a learner: blocks and batches in, policies and priorities out."""

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
