"""The message side of collectors: receives tasks, publishes blocks, reports results."""

from hpcdi.worker.collector.comm.mpi_fs_collector import (
    BaseCommCollector,
    CollectorSlave,
    FlaskFileSystemCollector,
    MPIFileSystemCollector,
    create_comm_collector,
)

__all__ = [
    "BaseCommCollector",
    "CollectorSlave",
    "FlaskFileSystemCollector",
    "MPIFileSystemCollector",
    "create_comm_collector",
]
