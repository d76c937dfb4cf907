"""A learner rank: messages by MPI, data through the shared file system."""

from __future__ import annotations

import contextlib
import os
import queue
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BeginAnew,
    GroupAddress,
    LearnInfo,
    LearnResult,
    LearnTask,
    PolicyRequest,
    Regroup,
    Stop,
    TakeSnapshot,
)
from hpcdi.comm.pump import LinkPump
from hpcdi.config.compat import component_class
from hpcdi.config.roles import CommLearnerConfig
from hpcdi.errors import CommError, GroupBrokenError
from hpcdi.policy.create import create_policy
from hpcdi.roles.context import COORDINATOR_RANK, WorkerContext
from hpcdi.roles.fault import FAULTS
from hpcdi.roles.learner.base_learner import BaseLearner, LearnerPort, create_learner
from hpcdi.roles.learner.checkpointing import (
    SnapshotPartWriter,
    copied,
    load_learner,
)
from hpcdi.roles.learner.data_feed import (
    Batch,
    DataFeed,
    Mark,
    batch_of_blocks,
    stage_for,
    takes_columns,
)
from hpcdi.roles.learner.group import LearnerGroup
from hpcdi.roles.learner.learner_hook import (
    LearnerHook,
    LogShowHook,
    SendLearnInfoHook,
    SendPolicyHook,
)
from hpcdi.roles.learner.policy_publisher import PolicyFile, PolicyPublisher
from hpcdi.roles.message_side import MessageSide
from hpcdi.store.checkpoints import POLICY_FILE, of_agent
from hpcdi.transport import open_transport
from hpcdi.transport.files import load_block
from hpcdi.utils.log import LOGGER
from hpcdi.utils.registry import COMM_LEARNER_REGISTRY

_REPORT_EVERY = 100
"""Iterations between two progress reports to rank 0, where no log asks for another number."""


class BaseCommLearner(MessageSide, LearnerPort):
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
        place = self._context
        learner = create_learner(
            task_info["learner_cfg"],
            dist_info=(self._group.rank, self._group.size),
            exp_name=task_info.get("exp_name", "default_experiment"),
            port=self,
            ckpt_dir=place.layout.checkpoints_of(place.agent) if place is not None else None,
        )
        policy = create_policy(task_info["policy"], ["learn"], seed=task_info.get("seed"))
        learner.policy = policy.learn_mode
        learner.setup_dataloader()
        return learner


class MPIFileSystemLearner(BaseCommLearner):
    """Runs learner tasks: feeds a learner with batches and publishes its policies.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        context: this rank's place in a run.
    """

    Config = CommLearnerConfig

    def __init__(self, cfg: Any = None, context: WorkerContext | None = None) -> None:
        super().__init__(cfg, context)
        if context is None:  # as DI-engine's callers make it; `start` says what to do
            return
        place = self._place
        self._transport = open_transport(place.config.system, place.layout)
        self._learner: BaseLearner | None = None
        self._feed: DataFeed | None = None
        self._is_stopping = False
        self._at_start: dict[str, Any] = {}  # the policy's state before its first batch
        handlers: dict[type, Callable[[int, Any], None]] = {
            **self._handlers(),
            AdmitBlock: lambda rank, order: self._the_feed().admit(rank, order),
            Batches: lambda rank, order: self._the_feed().fill(rank, order),
            PolicyRequest: lambda rank, request: self._publisher.request(rank, request),
            TakeSnapshot: lambda _rank, order: self._the_feed().mark(order),
            BeginAnew: lambda _rank, order: self._the_feed().mark(order),
            Stop: lambda _rank, _message: self._stop(),
            LearnTask: lambda _rank, task: self._open_feed(task),
            Regroup: lambda rank, order: self._group.order(rank, order),
            GroupAddress: lambda rank, address: self._group.meet_at(rank, address),
        }
        self._tasks: queue.SimpleQueue[LearnTask] = queue.SimpleQueue()
        self._publisher = PolicyPublisher(
            lambda rank, update: self.pump.send(rank, update),
            self._policy_file(),
        )
        self.pump = LinkPump(place.link, handlers, self.ask, self.listen)
        self._snapshots = SnapshotPartWriter(
            place.layout, lambda part: self.pump.send(COORDINATOR_RANK, part), place.group
        )

    # ---------------------------------------------------------------------------------------- life

    def run(self) -> None:
        """Runs tasks until the run ends."""
        self.start()
        while (task := self._next_task()) is not None:
            self.deal_with_learner_start(task)
            if not self._is_stopping:
                self.pump.send(COORDINATOR_RANK, LearnResult(task.task_id, self._train_iter()))
        self.close()

    def start(self) -> None:
        """Reports ready to rank 0."""
        super().start()
        self._announce_itself(self.deal_with_resource())

    def close(self) -> None:
        """Writes the last policy and shuts down together with the other ranks. Idempotent."""
        if self._end_flag:
            return
        super().close()
        self._snapshots.close()
        self._publisher.write_file()
        report = {"train_iter": self._train_iter(), "policies_sent": self._publisher.published}
        self._shut_down({**self.meter.report(), **report})
        if self._feed is not None:  # nothing is gathered any more
            self._feed.stage.close()

    # ------------------------------------------------------------------------------ learner tasks

    def deal_with_resource(self) -> dict[str, int]:
        """Returns the numbers of GPUs and cores of this rank."""
        return {
            "gpu": int(bool(self._place.config.policy.cuda)),
            "cpu": len(os.sched_getaffinity(0)),
        }

    def deal_with_learner_start(self, task_info: LearnTask) -> None:
        """Does a task; returns at its end."""
        config = self._place.config
        self._learner = self._create_learner(
            {
                "learner_cfg": config.policy.learn.learner,
                "policy": config.policy,
                "exp_name": config.exp_name,
                "seed": self._place.seed,
            },
        )
        for hook in self.hooks4call:
            self._learner.register_hook(hook)
        pin_memory = config.policy.learn.learner.pin_memory
        self._the_feed().stage = stage_for(self._learner.policy, pin_memory=pin_memory)
        if self._place.agent:  # the main group never begins anew
            self._at_start = copied(self._learner.state_to_share()["policy"])
        if task_info.resume:
            self._resume(self._learner, self._place.layout.inside(task_info.resume))
        self.meter.mark("start")
        self._learner.start()
        self._drain()

    def deal_with_get_data(self) -> dict[str, Any]:
        """Returns the task's id (empty before the first), batch size and train iteration."""
        return {
            "task_id": self._task_id(),
            "batch_size": self._place.config.policy.learn.batch_size,
            "cur_learner_iter": self._train_iter(),
        }

    def deal_with_learner_learn(self, data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Does one iteration on the transitions of shards; returns the learner's info.

        Args:
            data: metadata of each shard: ``data_id``, its path in the run folder, and what else the
                policy is to find beside each of its transitions.
        """
        if self._learner is None:
            raise CommError("there is no learner task to learn for")
        as_columns = takes_columns(self._learner.policy)
        self._learner.train(batch_of_blocks(self._transport, data, as_columns=as_columns))
        return self._learner.learn_info

    def deal_with_learner_close(self) -> None:
        """Ends the present task."""
        self._stop()

    # -------------------------------------------------------------------------- the learner's port

    def get_data(self, batch_size: int) -> Batch | None:  # noqa: ARG002 (the feed knows it)
        """Returns the next batch, None at the end of the run."""
        self.meter.mark("train")
        FAULTS.reach(self._train_iter())
        if self._feed is None and self._is_stopping:
            return None
        if self._group.is_stale:
            self.regroup()
        batch = self._the_feed().next(self._train_iter(), self._idle, self._carry_out)
        self._group.taken += 1
        self.meter.mark("wait")
        return batch

    def regroup(self, broken: GroupBrokenError | None = None) -> bool:
        """See `LearnerPort.regroup`; without an error the learner is between two batches."""
        is_again = self._group.regroup(self._learner, broken)
        self._publisher.file = self._policy_file()
        return is_again

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publishes a policy; its version is the present train iteration."""
        self._publisher.publish(state_dict["model"], self._train_iter())

    def wants_policy(self, train_iter: int) -> bool:
        """Returns whether a collector waits for a policy newer than the last."""
        return self._publisher.is_wanted(train_iter)

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Reports progress to the coordinator."""
        scalars = learn_info["scalars"]
        self.pump.send(
            COORDINATOR_RANK,
            LearnInfo(self._task_id(), learn_info["learner_step"], scalars, self.meter.shares()),
        )

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

    def _policy_file(self) -> PolicyFile | None:
        """Returns the policy file, which the first member of a group writes for all."""
        storage = self._place.config.system.storage
        if self._group.rank > 0:
            return None
        path = self._place.layout.latest_policy_of(self._place.group)
        return PolicyFile(path, storage.policy_file_s, fsync=storage.fsync)

    @property
    def hooks4call(self) -> list[LearnerHook]:
        """Hooks that offer the policy and report progress."""
        cfg = self._place.config.policy.learn.learner
        freq = {"send_policy_freq": cfg.send_policy_freq}
        shown = cfg.hook.get("log_show_after_iter", 0)
        info = {"freq": shown if shown > 0 else _REPORT_EVERY}
        return [
            SendPolicyHook(position="before_run", ext_args=freq),
            SendPolicyHook(position="after_iter", ext_args=freq),
            SendPolicyHook(position="after_run", ext_args=freq),
            SendLearnInfoHook(position="after_iter", ext_args=info),
            LogShowHook(position="after_run"),  # of a run shorter than its logging interval too
            SendLearnInfoHook(position="after_run"),
        ]

    # ----------------------------------------------------------------------------------- internals

    def _resume(self, learner: BaseLearner, snapshot: Path) -> None:
        """Loads this learner's part of a snapshot; a group that had none yet begins anew."""
        agent = self._place.agent
        if not agent or (snapshot / of_agent(agent, POLICY_FILE)).exists():
            load_learner(learner, snapshot, agent=agent)
        else:
            LOGGER.warning("%s begins anew: %s is without it", self._place.group, snapshot.name)

    def _task_id(self) -> str:
        return self._feed.task_id if self._feed is not None else ""

    def _train_iter(self) -> int:
        return self._learner.train_iter if self._learner is not None else 0

    def _open_feed(self, task: LearnTask) -> None:
        """Takes a task (on the communication thread), whose blocks may follow at once."""
        config = self._place.config
        # on-policy, a batch is all that the present policy collected: no prefetching
        size, ahead = config.policy.learn.batch_size, config.system.prefetch
        # (where staleness is corrected, the next one is gathered meanwhile)
        if config.policy.on_policy:
            size, ahead = 0, 1 + config.policy.CORRECTS_STALENESS
        ahead = 1 if config.system.deterministic else ahead  # as many at a time, each time
        self._feed = DataFeed(
            self._transport,
            lambda message: self.pump.send(COORDINATOR_RANK, message),
            task.task_id, size, ahead, config.policy.sequence.length,
        )  # fmt: skip
        self._tasks.put(task)

    def _the_feed(self) -> DataFeed:
        if self._feed is None:
            raise CommError("rank 0 sent data before a learner task")
        return self._feed

    def _next_task(self) -> LearnTask | None:
        while not (self._is_stopping and self._tasks.empty()):
            self.pump.check()
            self.meter.mark("wait")
            if self._tasks.empty():
                self._drain()
            with contextlib.suppress(queue.Empty):
                return self._tasks.get(timeout=0.05)
        self._drain()
        return None

    def _drain(self) -> None:
        """Takes the snapshots that were ordered while nothing was learnt."""
        if self._feed is not None:
            self._feed.drain(self._carry_out)

    def _idle(self) -> None:
        """Serves requests while no batch is ready."""
        self.meter.mark("wait")
        self.pump.check()
        if self._group.is_stale:
            self.regroup()
        if self._learner is not None:
            self._learner.offer_policy(force=False)

    def _is_ending(self) -> bool:
        return super()._is_ending() or self._is_stopping

    def _lost(self, rank: int) -> None:
        """Handles a rank's death (on the communication thread)."""
        super()._lost(rank)
        self._publisher.forget(rank)

    def _carry_out(self, order: Mark) -> None:
        """Carries out an order that stands between two batches."""
        if self._learner is None:  # none is given before its task
            return
        if isinstance(order, TakeSnapshot):
            self._snapshots.keep(self._learner, order, self._place.agent)
        else:
            self._learner.policy.load_state_dict(copied(self._at_start))
            LOGGER.info("%s begins anew", order.player)

    def _stop(self) -> None:
        """Ends after the batches that are there: all learners of a group end at the same one."""
        self._is_stopping = True
        if self._feed is not None:
            self._feed.end()


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
        """Does a task: ``resource``, or ``learner_*_task`` of ``start, get_data, learn, close``.

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
