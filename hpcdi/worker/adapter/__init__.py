"""Between the coordinator and a group of learners: many that are seen as one.

Owns: `LearnerAggregator`. May import: `comm.messages`, `utils`, `types`, `errors`. Why so: rank 0
gives tasks to one learner, however many ranks share the work.
"""

from hpcdi.worker.adapter.learner_aggregator import LearnerAggregator

__all__ = ["LearnerAggregator"]
