"""The solo commander, at the path that the seeds' callers import."""

from hpcdi.worker.coordinator.commanders import SoloCommander

__all__ = ["SoloCommander"]
