"""The predecessor's path of a learner's message side; see `mpi_fs_learner`."""

from hpcdi.worker.learner.comm.mpi_fs_learner import FlaskFileSystemLearner, LearnerSlave

__all__ = ["FlaskFileSystemLearner", "LearnerSlave"]
