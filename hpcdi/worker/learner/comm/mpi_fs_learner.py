"""DI-engine's message side of a learner, over the learner rank of `hpcdi.roles.learner.role`."""

from __future__ import annotations

import dataclasses
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdi.comm.messages import LearnInfo, LearnTask, Stop
from hpcdi.config.compat import component_class
from hpcdi.config.roles import CommLearnerConfig
from hpcdi.errors import CommError
from hpcdi.policy.create import create_policy
from hpcdi.roles.context import COORDINATOR_RANK, WorkerContext
from hpcdi.roles.learner.feed import Staged
from hpcdi.roles.learner.role import Learner
from hpcdi.roles.learner.training import Batch
from hpcdi.roles.message_side import MessageSide
from hpcdi.transport import open_transport
from hpcdi.transport.files import load_block
from hpcdi.utils.registry import COMM_LEARNER_REGISTRY
from hpcdi.worker.dict_policy import columnar_policy
from hpcdi.worker.learner.base_learner import BaseLearner, create_learner, make_learner
from hpcdi.worker.learner.learner_hook import LearnerHook, SendLearnInfoHook, SendPolicyHook
from hpcdi.worker.learner.loading import batch_of_blocks, takes_columns


class BaseCommLearner(Learner):
    """Connects a learner to the other ranks.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        context: this rank's place in a run; None, as DI-engine's callers make it: `start` says what
            to do.
    """

    def __init__(self, cfg: Any = None, context: WorkerContext | None = None) -> None:
        if context is None:
            MessageSide.__init__(self, cfg)
        else:
            context = dataclasses.replace(context, make_policy=columnar_policy)
            super().__init__(context, training=make_learner)

    @abstractmethod
    def get_data(self, batch_size: int) -> Any:
        """Returns the next batch, None at the end of the run."""

    @abstractmethod
    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publish a policy."""

    @abstractmethod
    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Report progress to the coordinator."""

    @property
    @abstractmethod
    def hooks4call(self) -> list[Any]:
        """Hooks through which a learner talks to the other ranks."""

    @property
    def learner_uid(self) -> str:
        """Name of this learner, unique on its host."""
        return self._uid

    def _create_learner(self, task_info: Mapping[str, Any]) -> BaseLearner:
        """Returns a learner with this as its port.

        Args:
            task_info: ``learner_cfg, policy, exp_name, seed``.
        """
        place = self._place
        learner = create_learner(
            task_info["learner_cfg"],
            dist_info=(self._group.rank, self._group.size),
            exp_name=task_info.get("exp_name", "default_experiment"),
            port=self,
            ckpt_dir=place.layout.checkpoints_of(place.agent),
        )
        policy = create_policy(task_info["policy"], ["learn"], seed=task_info.get("seed"))
        learner.policy = policy.learn_mode
        learner.setup_dataloader()
        return learner


class MPIFileSystemLearner(BaseCommLearner):
    """A learner rank with the methods of DI-engine's; see `Learner`."""

    Config = CommLearnerConfig

    def close(self) -> None:
        """Write the last policy and shut down together with the other ranks. Idempotent."""
        if self._end_flag:
            return
        self._end_task()
        self._leave()
        while self.turn(time.monotonic()):
            self.wait()

    def deal_with_resource(self) -> dict[str, int]:
        """Returns the numbers of GPUs and cores of this rank."""
        return self.resource()

    def deal_with_learner_start(self, task_info: LearnTask) -> None:
        """Do a task; returns at its end."""
        self._begin(task_info)
        while self._learning is not None:
            self.turn(time.monotonic())
            self.wait()

    def deal_with_get_data(self) -> dict[str, Any]:
        """Returns the task's id (empty before the first), batch size and train iteration."""
        return {
            "task_id": self._feed.task_id,
            "batch_size": self._place.config.policy.learn.batch_size,
            "cur_learner_iter": self.train_iter,
        }

    def deal_with_learner_learn(self, data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Do one iteration on the transitions of shards; returns the learner's info.

        Args:
            data: metadata of each shard: ``data_id``, its path in the run folder, and what else the
                policy is to find beside each of its transitions.

        Raises:
            CommError: no task has begun.
        """
        learner = self._training
        if not isinstance(learner, BaseLearner):
            raise CommError("there is no learner task to learn for")
        transport = open_transport(self._place.config.system, self._place.layout)
        as_columns = takes_columns(learner.policy)
        learner.train(batch_of_blocks(transport, data, as_columns=as_columns))
        return learner.learn_info

    def deal_with_learner_close(self) -> None:
        """End the present task."""
        self._take_stop(Stop("the task was closed"))

    def get_data(self, batch_size: int) -> Batch | None:  # noqa: ARG002 (the feed knows it)
        """Returns the next batch, None at the end of the run."""
        while not self._is_over:
            self.pump.check()
            self._feed.ask(self.train_iter, time.monotonic())
            order = self._take_order()
            if isinstance(order, Staged):
                return self._feed.batch(order, time.monotonic())
            if order is not None:
                self._carry_out(order, time.monotonic())
            self.wait()
        return None

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publish a policy; its version is the present train iteration."""
        self._publisher.publish(state_dict["model"], self.train_iter)

    def wants_policy(self, train_iter: int) -> bool:
        """Returns whether a collector waits for a policy newer than the last."""
        return self._publisher.is_wanted(train_iter)

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Report progress to the coordinator."""
        train_iter, scalars = learn_info["learner_step"], learn_info["scalars"]
        info = LearnInfo(self._feed.task_id, train_iter, scalars, self.meter.shares())
        self.pump.send(COORDINATOR_RANK, info)

    @staticmethod
    def load_data_fn(
        path: str | Path,
        meta: Mapping[str, Any],
        decompressor: Callable[[Any], Any] | None = None,
    ) -> dict[str, Any]:
        """Returns a shard's columns with metadata beside them; no transport is needed for a file.

        Args:
            path: the shard, of any run.
            meta: merged over the columns.
            decompressor: applied to the columns first.

        Raises:
            ShardError: the shard is missing, torn, or not one of ours.
        """
        columns: Any = load_block(path).columns
        return {**(decompressor(columns) if decompressor else columns), **meta}

    @property
    def hooks4call(self) -> list[LearnerHook]:
        """Hooks by which a learner with this as its port offers its policy and reports progress."""
        freq = {"send_policy_freq": self._place.config.policy.learn.learner.send_policy_freq}
        return [
            *(
                SendPolicyHook(position=position, ext_args=freq)
                for position in ("before_run", "after_iter", "after_run")
            ),
            SendLearnInfoHook(position="after_iter", ext_args={"freq": self._report_every}),
            SendLearnInfoHook(position="after_run"),
        ]


FlaskFileSystemLearner = MPIFileSystemLearner


def create_comm_learner(cfg: Any, context: WorkerContext | None = None) -> BaseCommLearner:
    """Returns the message side that ``cfg.type`` names.

    Raises:
        UnknownTypeError: no comm learner has that type.
    """
    learner: BaseCommLearner = component_class(COMM_LEARNER_REGISTRY, cfg)(cfg, context)
    return learner


class LearnerSlave:
    """Translates the task dicts of DI-engine's callers into calls of the message side.

    Args:
        callback_fn: ``deal_with_resource, deal_with_learner_start, deal_with_get_data,
            deal_with_learner_learn, deal_with_learner_close``.
    """

    def __init__(self, *_args: Any, callback_fn: Mapping[str, Callable[..., Any]], **_kwargs: Any):
        self._callback_fn = callback_fn
        self._buffer_id: dict[str, str] = {}  # the caller's name of the task's buffer

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Do a task: ``resource``, or ``learner_*_task`` of ``start, get_data, learn, close``.

        Raises:
            CommError: the task is of another name.
        """
        name = task.get("name")
        if name == "resource":
            return dict(self._callback_fn["deal_with_resource"]())
        if name == "learner_start_task":
            info = task["task_info"]
            self._buffer_id = {"buffer_id": info["buffer_id"]}
            self._callback_fn["deal_with_learner_start"](LearnTask(info["task_id"]))
            return {"message": "learner task has started"}
        if name == "learner_get_data_task":
            return {**self._buffer_id, **self._callback_fn["deal_with_get_data"]()}
        if name == "learner_learn_task":
            return {"info": self._callback_fn["deal_with_learner_learn"](task["data"])}
        if name == "learner_close_task":
            self._callback_fn["deal_with_learner_close"]()
            return {"message": "learner task has ended"}
        raise CommError(f"a learner knows no task {name!r}")
