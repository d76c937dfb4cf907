"""The message side of collectors of `ding.worker`."""

from hpcdi.roles.collector.mpi_fs_collector import (
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
