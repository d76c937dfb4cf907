"""The predecessor's path of the commander of battles."""

from hpcdi.utils.absent import Absent

__all__ = ["OneVsOneCommander"]


class OneVsOneCommander(Absent):
    """It set the tasks of battles over workers."""

    instead = "battles over ranks are not built; `hpcdi serial` trains both players in one process"
