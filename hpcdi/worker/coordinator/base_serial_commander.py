"""The serial commander, at the path that the seeds' callers import."""

from hpcdi.worker.coordinator.commanders import BaseSerialCommander

__all__ = ["BaseSerialCommander"]
