"""The message side of collectors: receives tasks, publishes blocks, reports results."""

from hpcdi.worker.collector.comm.mpi_fs_collector import (
    BaseCommCollector,
    CollectorSlave,
    FlaskFileSystemCollector,
    MPIFileSystemCollector,
    create_comm_collector,
)
from hpcdi.worker.collector.comm.utils import NaiveCollector

__all__ = [
    "BaseCommCollector",
    "CollectorSlave",
    "FlaskFileSystemCollector",
    "MPIFileSystemCollector",
    "NaiveCollector",
    "create_comm_collector",
]
