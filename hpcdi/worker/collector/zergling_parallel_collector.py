"""The seeds' path of the parallel collector; see `base_parallel_collector`."""

from hpcdi.worker.collector.base_parallel_collector import ZerglingParallelCollector

__all__ = ["ZerglingParallelCollector"]
