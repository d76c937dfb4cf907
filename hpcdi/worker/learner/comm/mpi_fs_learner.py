"""DI-engine's message side of a learner, over the learner rank of `hpcdi.roles.learner.role`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.comm.messages import LearnInfo, LearnTask, Stop
from hpcdi.config.roles import CommConfig
from hpcdi.errors import CommError
from hpcdi.policy.base import attribute_of
from hpcdi.roles.context import COORDINATOR_RANK, WorkerContext
from hpcdi.roles.learner.feed import Staged
from hpcdi.roles.learner.role import Learner
from hpcdi.roles.learner.training import Batch
from hpcdi.store.rows import transitions
from hpcdi.transport import open_transport
from hpcdi.transport.base import Transport
from hpcdi.types import Columns
from hpcdi.utils.nested import share_tensors
from hpcdi.worker.dict_policy import columnar_policy
from hpcdi.worker.dict_samples import weighted_samples_of
from hpcdi.worker.learner.base_learner import BaseLearner, make_learner
from hpcdi.worker.learner.comm.base_comm_learner import BaseCommLearner
from hpcdi.worker.learner.comm.flask_fs_learner import FlaskFileSystemLearner
from hpcdi.worker.learner.learner_hook import LearnerHook, SendLearnInfoHook, SendPolicyHook


class MPIFileSystemLearner(Learner, BaseCommLearner):
    """A learner rank with the methods of DI-engine's; see `Learner`.

    A class of a user's own that derives from it, and is registered, is what
    ``system.comm_learner.type`` names.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        context: this rank's place in a run.

    Raises:
        CommError: it has no place in a run.
    """

    Config = CommConfig

    def __init__(self, cfg: Any = None, context: WorkerContext | None = None) -> None:
        self.parse_config(cfg)
        if context is None:
            raise CommError(
                f"{type(self).__name__} needs its place in a run (context=): `hpcdi train` makes "
                "one on each learner rank"
            )
        context = dataclasses.replace(context, make_policy=columnar_policy)
        super().__init__(context, training=make_learner)

    @property
    def learner_uid(self) -> str:
        """Name of this learner, unique on its host."""
        return self._uid

    @property
    def _dist_info(self) -> tuple[int, int]:
        return self._group.rank, self._group.size

    def _learner_arguments(self) -> dict[str, Any]:
        place = self._place
        return {"port": self, "ckpt_dir": place.layout.checkpoints_of(place.agent)}

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

    def deal_with_learner_start(self, task_info: LearnTask | Mapping[str, Any]) -> None:
        """Do a task; returns at its end."""
        if isinstance(task_info, Mapping):
            task_info = LearnTask(str(task_info["task_id"]))
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
        as_columns = bool(attribute_of(learner.policy, "columnar", False))
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
        train_iter, scalars = learn_info["learner_step"], learn_info.get("scalars", {})
        info = LearnInfo(self._feed.task_id, train_iter, scalars, self.meter.shares())
        self.pump.send(COORDINATOR_RANK, info)

    load_data_fn = staticmethod(FlaskFileSystemLearner.load_data_fn)

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


def batch_of_blocks(
    transport: Transport, data: Sequence[Mapping[str, Any]], *, as_columns: bool
) -> Any:
    """Returns one batch of all transitions of some blocks.

    Args:
        transport: fetches the blocks.
        data: metadata of each block, for each of its transitions: ``data_id`` names it, ``IS`` is
            the weight.
        as_columns: name -> tensor; else a list of dicts, in which metadata go over a transition's
            keys.
    """
    blocks: list[tuple[Columns, Mapping[str, Any]]] = [
        (transitions(transport.fetch_named(meta["data_id"])), meta) for meta in data
    ]
    names = list(blocks[0][0])
    columns = {name: np.concatenate([block[name] for block, _ in blocks]) for name in names}
    metas = [meta for block, meta in blocks for _ in range(len(block[names[0]]))]
    weights = np.array([meta.get("IS", 1.0) for meta in metas], dtype=np.float32)
    batch = share_tensors({**columns, "weight": weights})
    if as_columns:
        return batch
    return [{**item, **meta} for item, meta in zip(weighted_samples_of(batch), metas, strict=True)]
