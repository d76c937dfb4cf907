"""The roles: coordinator, collectors, learners, and the replay buffers.

Owns: everything that DI-engine's ``ding.worker`` has, under the same names: each package's
`__all__`, in one; import paths, and names that nothing here uses, are in `ding_names`. May import:
`transport`, `policy`, `env`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: roles
meet by messages and files only; coordinator, collector and learner never import each other.
"""

from hpcdi.worker import collector, coordinator, ding_names, learner, replay_buffer
from hpcdi.worker.collector import *  # noqa: F403
from hpcdi.worker.coordinator import *  # noqa: F403
from hpcdi.worker.ding_names import LearnerAggregator as LearnerAggregator
from hpcdi.worker.ding_names import NaiveCollector as NaiveCollector
from hpcdi.worker.learner import *  # noqa: F403
from hpcdi.worker.replay_buffer import *  # noqa: F403

__all__ = ["LearnerAggregator", "NaiveCollector"]
__all__ += collector.__all__
__all__ += coordinator.__all__
__all__ += learner.__all__
__all__ += replay_buffer.__all__

ding_names.register(__name__)
