"""The seeds' path of the collector of samples; see `serial_collectors`."""

from hpcdi.worker.collector.serial_collectors import SampleSerialCollector

__all__ = ["SampleSerialCollector"]
