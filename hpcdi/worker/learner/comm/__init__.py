"""The message side of learners of `ding.worker`."""

from hpcdi.worker.learner.comm.base_comm_learner import BaseCommLearner, create_comm_learner
from hpcdi.worker.learner.comm.flask_fs_learner import FlaskFileSystemLearner, LearnerSlave
from hpcdi.worker.learner.comm.mpi_fs_learner import MPIFileSystemLearner
from hpcdi.worker.slave import NaiveLearner

__all__ = [
    "BaseCommLearner",
    "FlaskFileSystemLearner",
    "LearnerSlave",
    "MPIFileSystemLearner",
    "NaiveLearner",
    "create_comm_learner",
]
