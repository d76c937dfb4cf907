"""Several learners behind the interface of one.

Owns: `LearnerAggregator`. May import: `worker.coordinator.workers`, `comm.messages`, `errors`. Why
so: a public name of the seeds; the coordinator does not know it.
"""

from hpcdi.worker.adapter.learner_aggregator import LearnerAggregator

__all__ = ["LearnerAggregator"]
