"""The seeds' path of an evaluator; see `evaluation`."""

from hpcdi.worker.collector.evaluation import (
    BattleInteractionSerialEvaluator,
)

__all__ = ["BattleInteractionSerialEvaluator"]
