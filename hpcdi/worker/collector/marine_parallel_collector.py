"""The predecessor's path of the collector of battles over workers."""

from hpcdi.utils.absent import Absent

__all__ = ["MarineParallelCollector"]


class MarineParallelCollector(Absent):
    """It collected battles of two policies."""

    instead = "battles over ranks are not built; use BattleSampleSerialCollector in one process"
