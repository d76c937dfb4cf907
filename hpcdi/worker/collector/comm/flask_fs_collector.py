"""The predecessor's path of a collector's message side; see `mpi_fs_collector`."""

from hpcdi.worker.collector.comm.mpi_fs_collector import FlaskFileSystemCollector
from hpcdi.worker.collector.comm.slave import CollectorSlave

__all__ = ["CollectorSlave", "FlaskFileSystemCollector"]
