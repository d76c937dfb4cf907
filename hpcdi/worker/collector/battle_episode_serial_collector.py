"""The seeds' path of the collector of a battle's episodes; see `serial_collectors`."""

from hpcdi.worker.collector.serial_collectors import BattleEpisodeSerialCollector

__all__ = ["BattleEpisodeSerialCollector"]
