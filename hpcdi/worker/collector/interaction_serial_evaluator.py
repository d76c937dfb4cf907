"""The seeds' path of an evaluator; see `evaluation`."""

from hpcdi.worker.collector.evaluation import (
    InteractionSerialEvaluator,
)

__all__ = ["InteractionSerialEvaluator"]
