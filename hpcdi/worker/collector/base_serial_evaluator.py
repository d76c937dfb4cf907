"""The seeds' path of the evaluators' interface; see `evaluation`."""

from hpcdi.worker.collector.evaluation import (
    ISerialEvaluator,
    VectorEvalMonitor,
    create_serial_evaluator,
)

__all__ = ["ISerialEvaluator", "VectorEvalMonitor", "create_serial_evaluator"]
