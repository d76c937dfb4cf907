"""A collector rank: MPI for messages, the shared file system for data."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpcdi.comm.messages import (
    BlockReady,
    CloseTask,
    CollectSetting,
    CollectTask,
    Message,
    PolicyUpdate,
    RankLost,
    Stop,
    TaskReturned,
)
from hpcdi.comm.pump import LinkPump
from hpcdi.config.fields import ComponentConfig
from hpcdi.errors import CommError, EnvError
from hpcdi.store.builder import Segment
from hpcdi.utils.log import LOGGER
from hpcdi.utils.registry import COMM_COLLECTOR_REGISTRY
from hpcdi.worker.collector.base_parallel_collector import CollectorTask
from hpcdi.worker.collector.comm.base_comm_collector import BaseCommCollector
from hpcdi.worker.collector.comm.best import publish_best
from hpcdi.worker.collector.comm.channels import DataOutlet, PolicyInlet
from hpcdi.worker.collector.comm.ends import Ends
from hpcdi.worker.collector.comm.slave import task_message
from hpcdi.worker.context import (
    COORDINATOR_RANK,
    WorkerContext,
    abort_orphaned,
    announce,
    shutdown,
    task_seed,
)
from hpcdi.worker.fault import FAULTS, tear


@COMM_COLLECTOR_REGISTRY.register("mpi_fs", "flask_fs")
class MPIFileSystemCollector(BaseCommCollector):
    """Takes tasks, lets a parallel collector do them, publishes what it makes.

    The parallel collectors (one that collects, one that evaluates) live as long as the rank: their
    environments are made once.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        context: this rank's place in a run.
    """

    @dataclass(frozen=True)
    class Config(ComponentConfig):
        """It has no settings of its own."""

        type: str = "mpi_fs"

    def __init__(self, cfg: Any = None, context: WorkerContext | None = None) -> None:
        super().__init__(cfg, context)
        if context is None:
            raise CommError("a collector's message side needs its place in a run (context=)")
        self._place = context
        self._collectors = _Made()
        self._task = CollectTask("", "", "", eval_flag=False, setting={})
        self._stops = Ends(
            context.link.rank, context.config.system.storage.disk_patience_s,
            lambda message: self.pump.send(COORDINATOR_RANK, message),
            lambda: self.meter.mark("disk"),
        )  # fmt: skip
        self._announced: deque[Message] = deque(maxlen=8)
        handlers: dict[type, Callable[[int, Any], None]] = {
            PolicyUpdate: lambda _rank, message: self._inlet.take(message),
            CollectSetting: lambda _rank, message: self._take_setting(message),
            CloseTask: lambda _rank, message: self._close_task(message),
            Stop: lambda _rank, _message: self._stop(),
            RankLost: lambda rank, _message: self._lost(rank),
        }
        self.pump = LinkPump(context.link, handlers, self._vigil.ask)
        config = context.config
        self._inlet = PolicyInlet(
            lambda rank, request: self.pump.send(rank, request),
            context.learners,
            0.0
            if config.policy.on_policy  # each piece is made by the newest
            else config.policy.collect.collector.update_policy_second,
        )
        self._outlet = DataOutlet(
            config, context.layout, context.link.rank, self._announce,
            restarts=context.restarts, patience=self._stops.patience,
        )  # fmt: skip

    # ---------------------------------------------------------------------------------------- life

    def run(self) -> None:
        """The role: tasks until the run ends."""
        self.start()
        while (task := self._next_task()) is not None:
            try:
                self.deal_with_collector_start(task)
            except EnvError as error:
                self._give_back(task, error)
            else:
                self.send_metadata(self._collectors[task.eval_flag].result())
        self.close()

    def start(self) -> None:
        """Say that this rank is ready."""
        super().start()
        announce(self.pump, "collector", self.deal_with_resource())

    def close(self) -> None:
        """Publish what is open, say goodbye, wait until everybody may leave; again: nothing."""
        if self._end_flag:
            return
        super().close()
        for eval_flag in list(self._collectors):
            self._collectors.discard(eval_flag)
        self._outlet.close()
        report = {**self.meter.report(), **self._outlet.report(), **self._collectors.health}
        self.exit_code = shutdown(self._place, self.pump, report)

    # ------------------------------------------------------------------------------ what tasks call

    def deal_with_resource(self) -> dict[str, int]:
        """GPUs and cores that this collector has."""
        return {"gpu": 0, "cpu": len(os.sched_getaffinity(0))}

    def deal_with_collector_start(self, task_info: CollectTask | Mapping[str, Any]) -> None:
        """Do a task; returns when it has ended."""
        task = task_info if isinstance(task_info, CollectTask) else task_message(task_info)
        self._task = task
        self._outlet.begin(task.task_id, task.buffer_id)
        if task.lockstep is not None and task.lockstep.begins_anew and not self._stops.everything:
            self._collectors.discard(task.eval_flag)
        collector = self._collector_for(task.eval_flag)
        collector.begin(CollectorTask(task.task_id, task.setting, lockstep=task.lockstep))
        if not self._stops.concern(task.task_id):
            collector.start()
        if task.lockstep is not None:  # rank 0 waits for all of it, and then for the result
            self._outlet.flush()
        if task.eval_flag:
            self._publish_if_best(task)

    def deal_with_collector_data(self) -> dict[str, Any]:
        """The oldest announcement that nobody has taken yet, of the last eight; empty: none."""
        return vars(self._announced.popleft()) if self._announced else {}

    def deal_with_collector_close(self) -> dict[str, Any]:
        """End the present task; its result under the seeds' keys. Without a task: empty."""
        collector = self._collectors.get(self._task.eval_flag)
        if collector is None:
            return {}
        collector.stop()
        return {**collector.get_finish_info(), "task_id": self._task.task_id}

    # --------------------------------------------------------------------- what the collector calls

    def get_policy_update_info(
        self,
        path: str,  # noqa: ARG002
        have_version: int = -1,
        *,
        newest: bool = False,
    ) -> dict[str, Any] | None:
        """See `CollectorPort.get_policy_update_info`; policies come by message, not from `path`."""
        if newest:
            image = self._inlet.newest(self._gives_up)
        else:
            image = self._inlet.newer_than(have_version)
        if image is None or image.version <= have_version:
            self.pump.check()
            return None
        return {"model": image.state_dict(), "iter": image.version}

    def send_stepdata(self, path: str, stepdata: Segment) -> None:  # noqa: ARG002
        """Take a segment; blocks get their own paths when they are sealed."""
        self._outlet.put(stepdata)

    def send_metadata(self, metadata: Message) -> None:
        """Tell the coordinator."""
        self.pump.check()
        self.pump.send(COORDINATOR_RANK, metadata)

    # ----------------------------------------------------------------------------------- internals

    def _next_task(self) -> CollectTask | None:
        while not self._stops.everything:
            arrived = self.pump.receive(0.2)
            self.meter.mark("wait")
            for _, message in arrived:
                if isinstance(message, CollectTask):
                    return message
        return None

    def _give_back(self, task: CollectTask, error: EnvError) -> None:
        """This rank has no environments left: what it has is published, others do its work."""
        LOGGER.info("no environments are left, the task goes back", exc_info=error)
        self._outlet.seal()
        self._collectors.discard(task.eval_flag)
        self.send_metadata(TaskReturned(task.task_id, str(error)))

    def _collector_for(self, eval_flag: bool) -> Any:
        if eval_flag not in self._collectors:
            config = self._place.config
            cfg = {
                "collector": config.policy.collect.collector,
                "env": config.env,
                "policy": config.policy,
                "eval_flag": eval_flag,
                "exp_name": config.exp_name,
                "seed": task_seed(self._place.seed, self._task),
            }
            self._collectors[eval_flag] = self._create_collector({"collector_cfg": cfg})
            self.meter.mark("start")
        return self._collectors[eval_flag]

    def _gives_up(self) -> bool:
        """While a policy is waited for: whether the run ends; errors of the other side come up."""
        self.meter.mark("wait")
        self.pump.check()
        return self._stops.everything

    def _announce(self, ready: BlockReady) -> None:
        if FAULTS.takes("torn_shard"):
            tear(self._place.layout.inside(ready.shard.path))
        self._announced.append(ready)
        self.pump.send(COORDINATOR_RANK, ready)

    def _publish_if_best(self, task: CollectTask) -> None:
        result = self._collectors[True].result()
        image = self._inlet.evaluated
        if image is None or not result.is_evaluation:
            return
        mean = float(result.episode_returns.mean())
        if mean > task.publish_above:
            fsync = self._place.config.system.storage.fsync
            write = partial(publish_best, self._place.layout, image, mean, fsync=fsync)
            self._stops.patience.write(write)

    def _take_setting(self, message: CollectSetting) -> None:
        collector = self._collectors.get(False)
        if collector is not None and collector.task.task_id == message.task_id:
            collector.task.setting = message.setting

    def _close_task(self, message: CloseTask) -> None:
        self._stops.end_task(message.task_id)
        for collector in list(self._collectors.values()):
            if collector.task.task_id == message.task_id:
                collector.stop()

    def _lost(self, rank: int) -> None:
        """A rank has died; in a learner's place another is asked."""
        if rank == COORDINATOR_RANK and not self._end_flag:  # else it may just have left first
            abort_orphaned(self._place)
        self._inlet.lose(rank)

    def _stop(self) -> None:
        self._stops.end_run()
        for collector in list(self._collectors.values()):
            collector.stop()


class _Made(dict[bool, Any]):
    """Parallel collectors, by whether they evaluate; `health`: what is counted of closed ones."""

    def __init__(self) -> None:
        super().__init__()
        self.health = Counter[str]()

    def discard(self, eval_flag: bool) -> None:
        """Close one; the next task that needs one makes its environments anew."""
        collector = self.pop(eval_flag, None)
        if collector is not None:
            self.health.update(collector.health)
            collector.close()


FlaskFileSystemCollector = MPIFileSystemCollector
