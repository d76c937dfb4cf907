"""The seeds' path of the collector of episodes; see `serial_collectors`."""

from hpcdi.worker.collector.serial_collectors import EpisodeSerialCollector

__all__ = ["EpisodeSerialCollector"]
