"""The roles: coordinator, collectors, learners, and the replay buffers.

Owns: everything that the predecessor's ``ding.worker`` had, under the same names: each package's
`__all__`, in one; modules that are elsewhere here are in `old_paths`. May import: `transport`,
`policy`, `env`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: roles meet by
messages and files only; coordinator, collector and learner never import each other.
"""

from hpcdi.worker import adapter, collector, coordinator, learner, old_paths, replay_buffer
from hpcdi.worker.adapter import *  # noqa: F403
from hpcdi.worker.collector import *  # noqa: F403
from hpcdi.worker.coordinator import *  # noqa: F403
from hpcdi.worker.learner import *  # noqa: F403
from hpcdi.worker.replay_buffer import *  # noqa: F403

__all__: list[str] = []
__all__ += adapter.__all__
__all__ += collector.__all__
__all__ += coordinator.__all__
__all__ += learner.__all__
__all__ += replay_buffer.__all__

old_paths.register(__name__)
