"""The seeds' path of the collector of a battle's samples; see `serial_collectors`."""

from hpcdi.worker.collector.serial_collectors import BattleSampleSerialCollector

__all__ = ["BattleSampleSerialCollector"]
