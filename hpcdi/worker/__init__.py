"""The roles: coordinator, collectors, learners, and the replay buffers.

Owns: everything that the predecessor's ``ding.worker`` had, under the same names. May import:
`policy`, `env`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: roles meet by
messages and files only; coordinator, collector and learner never import each other.
"""

from hpcdi.worker.collector import (
    BaseCommCollector,
    BaseParallelCollector,
    FlaskFileSystemCollector,
    MPIFileSystemCollector,
    NaiveCollector,
    ZerglingParallelCollector,
    create_comm_collector,
    create_parallel_collector,
    get_parallel_collector_cls,
)
from hpcdi.worker.coordinator import (
    Coordinator,
    create_parallel_commander,
    get_parallel_commander_cls,
)
from hpcdi.worker.learner import (
    BaseCommLearner,
    BaseLearner,
    FlaskFileSystemLearner,
    LearnerHook,
    MPIFileSystemLearner,
    add_learner_hook,
    build_learner_hook_by_cfg,
    create_comm_learner,
    create_learner,
    merge_hooks,
    register_learner_hook,
)
from hpcdi.worker.replay_buffer import (
    AdvancedReplayBuffer,
    ElasticReplayBuffer,
    EpisodeReplayBuffer,
    IBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
    create_buffer,
    get_buffer_cls,
)

__all__ = [
    "AdvancedReplayBuffer",
    "BaseCommCollector",
    "BaseCommLearner",
    "BaseLearner",
    "BaseParallelCollector",
    "Coordinator",
    "ElasticReplayBuffer",
    "EpisodeReplayBuffer",
    "FlaskFileSystemCollector",
    "FlaskFileSystemLearner",
    "IBuffer",
    "LearnerHook",
    "MPIFileSystemCollector",
    "MPIFileSystemLearner",
    "NaiveCollector",
    "NaiveReplayBuffer",
    "SequenceReplayBuffer",
    "ZerglingParallelCollector",
    "add_learner_hook",
    "build_learner_hook_by_cfg",
    "create_buffer",
    "create_comm_collector",
    "create_comm_learner",
    "create_learner",
    "create_parallel_collector",
    "create_parallel_commander",
    "get_buffer_cls",
    "get_parallel_collector_cls",
    "get_parallel_commander_cls",
    "merge_hooks",
    "register_learner_hook",
]
