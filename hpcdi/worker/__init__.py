"""The seeds' package: everything that DI-engine's ``ding.worker`` has, under the same names.

Owns: collectors and evaluators of one process (`collector`), learners with hooks (`learner`),
buffers of items (`replay_buffer`), policies and environments of dicts as ones of columns
(`dict_policy`, `dict_samples`, `dict_envs`) and the other way round (`dict_form`, `dict_envs`),
names and import paths of other parts (`names`), the helper for several learners (`dist`),
DI-engine's policies, environments and configurations (`ding`). May import: `roles` and everything
below. Why so: dicts of observations and of transitions are known here and nowhere else.
"""

from hpcdi.worker import collector, coordinator, dict_form, learner, names, replay_buffer
from hpcdi.worker.collector import *  # noqa: F403
from hpcdi.worker.coordinator import *  # noqa: F403
from hpcdi.worker.learner import *  # noqa: F403
from hpcdi.worker.names import LearnerAggregator as LearnerAggregator
from hpcdi.worker.replay_buffer import *  # noqa: F403
from hpcdi.worker.slave import NaiveCollector as NaiveCollector

__all__ = ["LearnerAggregator", "NaiveCollector"]
__all__ += collector.__all__
__all__ += coordinator.__all__
__all__ += learner.__all__
__all__ += replay_buffer.__all__

names.register(__name__)
dict_form.install()
