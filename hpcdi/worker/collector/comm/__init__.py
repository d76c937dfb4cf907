"""The message side of collectors of `ding.worker`."""

from hpcdi.roles.collector.mpi_fs_collector import MPIFileSystemCollector
from hpcdi.worker.collector.comm.base_comm_collector import (
    BaseCommCollector,
    create_comm_collector,
)
from hpcdi.worker.collector.comm.flask_fs_collector import CollectorSlave, FlaskFileSystemCollector
from hpcdi.worker.slave import NaiveCollector

__all__ = [
    "BaseCommCollector",
    "CollectorSlave",
    "FlaskFileSystemCollector",
    "MPIFileSystemCollector",
    "NaiveCollector",
    "create_comm_collector",
]
