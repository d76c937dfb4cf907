"""The message side of learners: rows and batches in, policies and priorities out."""

from hpcdi.worker.learner.comm.base_comm_learner import BaseCommLearner, create_comm_learner
from hpcdi.worker.learner.comm.mpi_fs_learner import (
    FlaskFileSystemLearner,
    MPIFileSystemLearner,
)
from hpcdi.worker.learner.comm.slave import LearnerSlave

__all__ = [
    "BaseCommLearner",
    "FlaskFileSystemLearner",
    "LearnerSlave",
    "MPIFileSystemLearner",
    "create_comm_learner",
]
