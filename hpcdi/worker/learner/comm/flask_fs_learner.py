"""The predecessor's path of a learner's message side; see `mpi_fs_learner`."""

from hpcdi.worker.learner.comm.mpi_fs_learner import FlaskFileSystemLearner, LearnerSlave
from hpcdi.worker.learner.learner_hook import SendLearnInfoHook, SendPolicyHook

__all__ = ["FlaskFileSystemLearner", "LearnerSlave", "SendLearnInfoHook", "SendPolicyHook"]
