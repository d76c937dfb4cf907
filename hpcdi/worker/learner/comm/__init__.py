"""The message side of a learner: blocks and batches in, policies and priorities out."""

from hpcdi.worker.learner.comm.base_comm_learner import BaseCommLearner, create_comm_learner
from hpcdi.worker.learner.comm.mpi_fs_learner import (
    FlaskFileSystemLearner,
    LearnerSlave,
    MPIFileSystemLearner,
)

__all__ = [
    "BaseCommLearner",
    "FlaskFileSystemLearner",
    "LearnerSlave",
    "MPIFileSystemLearner",
    "create_comm_learner",
]
