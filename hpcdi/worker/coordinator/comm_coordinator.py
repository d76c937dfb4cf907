"""The predecessor's path of the coordinator's connections."""

from hpcdi.utils.absent import Absent

__all__ = ["CommCoordinator"]


class CommCoordinator(Absent):
    """It connected the coordinator to its workers."""

    instead = "ranks of an MPI program are connected from the start; use hpcdi.worker.Coordinator"
