"""The predecessor's path of the client of a Kubernetes operator."""

from hpcdi.utils.absent import Absent

__all__ = ["OperatorServer"]


class OperatorServer(Absent):
    """It asked an operator for more workers."""

    instead = "MPI starts all ranks; `hpcdi scale <run> <collectors>` lets more or fewer work"
