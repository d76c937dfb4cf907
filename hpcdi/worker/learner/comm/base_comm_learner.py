"""DI-engine's base class of what stands between a learner and whoever has its data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, overload

from hpcdi.config.fields import to_mapping
from hpcdi.policy.create import create_policy
from hpcdi.roles.context import WorkerContext, get_task_uid
from hpcdi.utils.registry import COMM_LEARNER_REGISTRY
from hpcdi.utils.timer import EasyTimer
from hpcdi.worker.learner.base_learner import BaseLearner, create_learner
from hpcdi.worker.slave import CommSide, ConfigForPrograms, comm_side

if TYPE_CHECKING:
    from hpcdi.worker.learner.comm.mpi_fs_learner import MPIFileSystemLearner


class _ForPrograms(ConfigForPrograms):
    OF_RUNS = "MPIFileSystemLearner"


class BaseCommLearner(CommSide):
    """Stands between a learner and whoever has its data and takes its policies.

    It is for programs of a user's own, which call it; a rank of a run is a `MPIFileSystemLearner`.

    Args:
        cfg: settings, which are also attributes; any keys. ``multi_gpu``: join the process group of
            all learners, see `hpcdi.worker.dist.dist_init`.

    Raises:
        CommError: ``multi_gpu``, and there is no such group to join.
    """

    Config: ClassVar[type] = _ForPrograms
    LENT = ("get_data", "send_policy", "send_learn_info")

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._learner_uid = get_task_uid()
        self._timer = EasyTimer()
        self._multi_gpu = bool(self._cfg.get("multi_gpu", False))
        self._rank, self._world_size = 0, 1
        if self._multi_gpu:
            from hpcdi.worker.dist import dist_init

            self._rank, self._world_size = dist_init()

    @abstractmethod
    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publish a policy.

        Args:
            state_dict: ``model``, name -> tensor, and ``iter``, its train iteration.
        """

    @abstractmethod
    def get_data(self, batch_size: int) -> Any:
        """Returns the next batch: a list of samples, or of functions that load one; None: the end.

        Args:
            batch_size: number of samples.
        """

    @abstractmethod
    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Report progress.

        Args:
            learn_info: as `BaseLearner.learn_info` has it.
        """

    @property
    @abstractmethod
    def hooks4call(self) -> list[Any]:
        """Hooks by which a learner talks to it; whoever makes the learner registers them."""

    def close(self) -> None:
        """Accept no more tasks, and leave the process group. Idempotent."""
        super().close()
        if self._multi_gpu:
            from hpcdi.worker.dist import dist_finalize

            dist_finalize()

    @property
    def learner_uid(self) -> str:
        """Name of this learner, unique on its host."""
        return self._learner_uid

    def _create_learner(self, task_info: Mapping[str, Any]) -> BaseLearner:
        """Returns the learner of a task: with its policy, its loader, and the methods of this.

        The learner's ``get_data, send_policy`` and ``send_learn_info`` are those of this object.

        Args:
            task_info: ``learner_cfg``, with ``exp_name``; ``policy``; maybe a ``seed``.

        Raises:
            UnknownTypeError: there is no such learner or policy. ConfigError: a setting is wrong.
        """
        settings = to_mapping(task_info["learner_cfg"])
        exp_name = settings.pop("exp_name", task_info.get("exp_name", "default_experiment"))
        learner = create_learner(
            {"type": "base", **settings},
            dist_info=self._dist_info,
            exp_name=exp_name,
            **self._learner_arguments(),
        )
        self._lend_methods(learner)
        policy = create_policy(task_info["policy"], ["learn"], seed=task_info.get("seed"))
        learner.policy = policy.learn_mode
        learner.setup_dataloader()
        return learner

    @property
    def _dist_info(self) -> tuple[int, int]:
        """Rank in the learners' group, and its size."""
        return self._rank, self._world_size

    def _learner_arguments(self) -> dict[str, Any]:
        """Returns more arguments of a learner's constructor."""
        return {}


@overload
def create_comm_learner(cfg: Any) -> BaseCommLearner: ...
@overload
def create_comm_learner(cfg: Any, context: WorkerContext) -> MPIFileSystemLearner: ...
def create_comm_learner(cfg: Any, context: WorkerContext | None = None) -> Any:
    """Returns the message side that ``cfg.type`` names.

    Args:
        cfg: ``type``, modules to import first in ``import_names``, and its settings.
        context: a rank's place in a run; None: it is for a program of the caller's own.

    Raises:
        UnknownTypeError: no comm learner has that type (it is a KeyError).
        CommError: it is made without a place in a run, and needs one.
    """
    from hpcdi.worker.learner.comm.flask_fs_learner import FlaskFileSystemLearner
    from hpcdi.worker.learner.comm.mpi_fs_learner import MPIFileSystemLearner

    of_runs = MPIFileSystemLearner
    return comm_side(COMM_LEARNER_REGISTRY, cfg, context, of_runs, FlaskFileSystemLearner)
