"""The contract of a learner's message side, as DI-engine's callers know it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from hpcdi.config.compat import component_class
from hpcdi.policy.create import create_policy
from hpcdi.utils.registry import COMM_LEARNER_REGISTRY
from hpcdi.worker.context import WorkerContext
from hpcdi.worker.learner.base_learner import BaseLearner, create_learner
from hpcdi.worker.learner.group import LearnerGroup
from hpcdi.worker.message_side import MessageSide


class BaseCommLearner(MessageSide):
    """Connects a learner to the other ranks.

    Where the run has several learners it joins their process group, and leaves it in `close`.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        context: this rank's place in a run.
    """

    role = "learner"

    def __init__(self, cfg: Any = None, context: WorkerContext | None = None) -> None:
        self._group = LearnerGroup(  # before the clocks of the base start: others may come late
            context, lambda rank, message: self.pump.send(rank, message), self._is_ending
        )
        super().__init__(cfg, context)

    @abstractmethod
    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publishes a policy; ``state_dict["model"]`` holds its parameters."""

    @abstractmethod
    def get_data(self, batch_size: int) -> Any:
        """Returns the next batch, None at the end of the run."""

    @abstractmethod
    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Reports progress to the coordinator."""

    @property
    @abstractmethod
    def hooks4call(self) -> list[Any]:
        """Hooks through which a learner talks to the other ranks."""

    def _is_ending(self) -> bool:
        """Returns whether the run ends; raises the error of the communication thread, if any."""
        self.pump.check()
        return self._end_flag

    def close(self) -> None:
        """Accepts no more tasks, and leaves the group. Idempotent."""
        super().close()
        self._group.leave()

    @property
    def learner_uid(self) -> str:
        """Name of this learner, unique on its host."""
        return self._uid

    def _create_learner(self, task_info: Mapping[str, Any]) -> BaseLearner:
        """Returns a learner with this as its port.

        Args:
            task_info: ``learner_cfg, policy, exp_name, seed``.
        """
        learner = create_learner(
            task_info["learner_cfg"],
            dist_info=(self._group.rank, self._group.size),
            exp_name=task_info.get("exp_name", "default_experiment"),
            port=self,
            ckpt_dir=self._context.layout.checkpoints_dir if self._context is not None else None,
        )
        policy = create_policy(task_info["policy"], ["learn"], seed=task_info.get("seed"))
        learner.policy = policy.learn_mode
        learner.setup_dataloader()
        return learner


def create_comm_learner(cfg: Any, context: WorkerContext | None = None) -> BaseCommLearner:
    """Returns the message side that ``cfg.type`` names.

    Raises:
        UnknownTypeError: no comm learner has that type.
    """
    learner: BaseCommLearner = component_class(COMM_LEARNER_REGISTRY, cfg)(cfg, context)
    return learner
