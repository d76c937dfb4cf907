"""A collector rank: MPI for messages, the shared file system for data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from hpcdi.comm.messages import (
    BlockReady,
    BlockStored,
    CloseTask,
    CollectPause,
    CollectSetting,
    CollectTask,
    Message,
    PolicyRequest,
    PolicyUpdate,
    RowsRequest,
    Stop,
    StopRequest,
    TaskReturned,
)
from hpcdi.config.compat import component_class
from hpcdi.config.fields import to_mapping
from hpcdi.config.roles import CommConfig
from hpcdi.errors import EXIT_REQUEUE, EnvError, EnvRanksLost, EnvValueError
from hpcdi.roles.collector.base_parallel_collector import (
    BaseParallelCollector,
    CollectorPort,
    CollectorTask,
    of_class,
)
from hpcdi.roles.collector.channels import DataPublisher, PolicyRelay, PolicySubscriber
from hpcdi.roles.collector.user_callbacks import UserCallbacks
from hpcdi.roles.context import COORDINATOR_RANK, WorkerContext, task_seed
from hpcdi.roles.evaluations import evaluates_as
from hpcdi.roles.fault import FAULTS, tear
from hpcdi.roles.message_side import MessageSide
from hpcdi.store.checkpoints import BEST_CHECKPOINT, POLICY_FILE, save_checkpoint
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.store.segment import Segment
from hpcdi.types import MAIN, RELABELLED, Array
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.log import LOGGER
from hpcdi.utils.registry import COMM_COLLECTOR_REGISTRY, PARALLEL_COLLECTOR_REGISTRY

_MAX_CLOSED = 64
"""Ids of tasks to end that are remembered, since an order may come before its task."""
_WAIT_S = 0.2
"""Seconds between two looks for a task."""
_LOOK_S = 0.002
"""Seconds between two looks whether rank 0's last message has come."""
_HELD_S = 0.02
"""Longest sleep of what may make no step: a message ends it, such as a policy, or rank 0's leave to
go on; what is due by the clock comes so much late."""
_SHORT_S = 0.001
"""A collector that hands a block over and waits for less does not wait for the disk."""


class MPIFileSystemCollector(MessageSide, CollectorPort):
    """Receives tasks, runs them by a parallel collector, publishes the data.

    The two parallel collectors (collecting, evaluating) live as long as the rank, so that their
    environments are made once.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        context: this rank's place in a run.
    """

    Config = CommConfig
    role = "collector"

    def __init__(self, cfg: object = None, context: WorkerContext | None = None) -> None:
        super().__init__(cfg, context)
        place = self._place
        self._collectors: dict[bool, BaseParallelCollector] = {}  # by whether they evaluate
        self._health = Counter[str]()  # failures counted by collectors that were closed
        self._is_stopping = False
        self._env_steps = 0  # handed on
        # numbers of episodes: the first of the present collector, and the first not used so far
        self._first_episode = self._next_episode = 0
        self._waits_from = math.inf  # so many: rank 0 lets it wait for learners
        self._closed: dict[str, None] = {}  # ids of tasks to end, in order; the values say nothing
        self._task = CollectTask("", eval_flag=False, setting={})
        self._collecting: BaseParallelCollector | None = None  # while the task is under way
        self._arrived: list[CollectTask] = []
        self._patience = DiskPatience(
            place.config.system.storage.disk_patience_s,
            self._ask_to_end,
            self._look_while_disk_is_full,
        )
        transport = place.open_transport()
        handlers: dict[type, Callable[[int, Any], None]] = {
            **self._handlers(),
            PolicyUpdate: self._take_policy,
            PolicyRequest: lambda rank, message: self._relays[message.player].request(
                rank, message
            ),
            RowsRequest: lambda rank, message: self.pump.send(rank, transport.answer(message)),
            CollectSetting: lambda _rank, message: self._take_setting(message),
            CollectPause: lambda _rank, message: self._pause(message),
            CloseTask: lambda _rank, message: self._close_task(message),
            Stop: lambda _rank, _message: self._stop(),
        }
        self.pump = place.make_pump(place.link, handlers, self.ask, self.listen, begins=False)
        config = place.config
        every_s = config.policy.collect.collector.update_policy_second
        if config.policy.on_policy:  # each rollout needs the newest
            every_s = 0.0
        self._policies = {
            group: PolicySubscriber(
                self.pump.send,
                learners,
                every_s,
                place.policy_patience_s,
                relay=place.relay,
                player=group,
            )
            for group, learners in place.groups.items()
        }
        self._relays = {
            group: PolicyRelay(policies, self.pump.send, group)
            for group, policies in self._policies.items()
        }
        self._data = DataPublisher(
            config,
            place.layout,
            place.link.rank,
            self._announce,
            transport=transport,
            restarts=place.restarts,
            patience=self._patience,
        )
        self._callbacks = UserCallbacks(place, partial(self.pump.send, COORDINATOR_RANK))

    # ---------------------------------------------------------------------------------------- life

    def turn(self, now: float) -> bool:
        """Do one thing, such as a step of all environments; see `MessageSide.turn`."""
        self.pump.check()
        self.is_waiting = True
        if self._is_leaving:
            return not self._may_leave(now)
        if self._collecting is None:
            self._take_task()
        if self._collecting is not None:
            self._go_on(self._collecting)
        elif self._is_stopping:
            self._leave()
        else:
            self.meter.mark("wait")
        return True

    def wait(self) -> None:
        """See `MessageSide.wait`."""
        if not self.is_waiting:
            return
        if self._is_leaving:
            wait_s(_LOOK_S)
        elif self._collecting is not None:
            self.pump.wait(_HELD_S)
        elif not (self._arrived or self._is_stopping):
            self._receive(_WAIT_S)

    def start(self) -> None:
        """See `MessageSide.start`."""
        super().start()
        self._callbacks.begin()

    def store(self) -> None:
        """Publish everything collected, the unfinished rollout included, and write it to disk."""
        if self._collecting is not None and not self._task.eval_flag:
            self._collecting.cut()
        self._data.store()

    def take_lost(self) -> list[BlockReady]:
        """See `DataPublisher.take_lost`."""
        return self._data.take_lost()

    def release(self) -> None:
        """Publish open data and close the environments, without telling rank 0. Idempotent."""
        super().close()
        self._collecting = None  # one that an error has stopped has nothing more to store
        for eval_flag in list(self._collectors):
            self._discard(eval_flag)
        self._data.close()
        self._callbacks.close()

    # ----------------------------------------------------------------- called by the collector

    def get_policy_update_info(
        self,
        path: str,
        have_version: int = -1,
        *,
        newest: bool = False,
        as_arrays: bool = False,
    ) -> dict[str, Any] | None:
        """See `CollectorPort.get_policy_update_info`; policies come by message."""
        policies = self._policies.get(path, self._policies[MAIN])
        image = policies.newest() if newest else policies.newer_than(have_version)
        if image is None or image.version <= have_version:
            self.pump.check()
            return None
        return {"model": image.state_dict(as_arrays=as_arrays), "iter": image.version}

    def awaits_policy(self, path: str) -> bool:
        """See `CollectorPort.awaits_policy`."""
        return self._policies.get(path, self._policies[MAIN]).awaits_newest

    @property
    def is_paused(self) -> bool:
        """See `CollectorPort.is_paused`."""
        self.pump.check()
        return self._env_steps >= self._waits_from

    def send_stepdata(self, path: str, stepdata: Segment) -> None:  # noqa: ARG002
        """Queue a segment for publishing; blocks get their own paths when sealed."""
        waited_s = self._data.waited_s
        self._env_steps += stepdata.all_env_steps
        self._number_episodes(stepdata.items)
        self._data.put(stepdata)
        if self._data.waited_s > waited_s + _SHORT_S:
            self.meter.mark("disk")

    def _number_episodes(self, items: Array) -> None:
        """Number episodes behind those of collectors before, which were closed: each counts from 0.

        Args:
            items: table of a segment.
        """
        numbers = items["episode_id"]
        numbers[numbers != RELABELLED] += self._first_episode
        self._next_episode = max(self._next_episode, 1 + int(numbers.max(initial=RELABELLED)))

    def send_metadata(self, metadata: Message) -> None:
        """Send a message to the coordinator."""
        self.pump.check()
        self.pump.send(COORDINATOR_RANK, metadata)
        self._callbacks.observe(metadata)

    # ----------------------------------------------------------------------------------- internals

    def _receive(self, timeout_s: float) -> None:
        arrived = (message for _, message in self.pump.receive(timeout_s))
        self._arrived += [message for message in arrived if isinstance(message, CollectTask)]

    def _take_task(self) -> None:
        """Begin the next task, if there is one."""
        self._receive(0.0)
        if not self._arrived or self._is_stopping:
            return
        task = self._arrived.pop(0)
        try:
            self._collecting = self._begin(task)
        except EnvError as error:
            self._give_back(task, error)

    def _begin(self, task: CollectTask) -> BaseParallelCollector:
        """Have a collector begin a task."""
        self._task = task
        self._data.begin(task.task_id, task.player)
        if task.lockstep is not None and task.lockstep.begins_anew and not self._is_stopping:
            self._discard(task.eval_flag)
        collector = self._collector_for(task.eval_flag)
        collector.begin(
            CollectorTask(
                task.task_id,
                task.setting,
                lockstep=task.lockstep,
                player=task.player,
                scheduled=task.scheduled,
            ),
        )
        for policies in self._policies.values():
            policies.give_up()
        if self._is_stopping or task.task_id in self._closed:
            collector.stop()
        return collector

    def _go_on(self, collector: BaseParallelCollector) -> None:
        """Make the next step of the task under way, or end it."""
        try:
            is_on = collector.turn()
            self.is_waiting = is_on and collector.is_waiting
            if self.is_waiting and self.is_paused:
                self._data.rest()
            if is_on:
                return
            self._end_task(collector)
        except EnvError as error:
            self._give_back(self._task, error)
        else:
            self.send_metadata(collector.result())
        self._collecting = None

    def _end_task(self, collector: BaseParallelCollector) -> None:
        """Hand on what a task has produced: its last data, or the policy that it evaluated."""
        # rank 0 waits for all data, then for the result
        if self._task.lockstep is not None or not self._task.eval_flag:
            self._data.flush()
        if self._task.eval_flag:
            self._publish_if_best(self._task, collector)

    def _leave(self) -> None:
        """Publish open data, and tell rank 0 that this rank is done."""
        self._callbacks.end()
        self.release()
        self._say_goodbye({**self.meter.report(), **self._data.report(), **self._health})

    def _give_back(self, task: CollectTask, error: EnvError) -> None:
        """Publish the data and return a task to rank 0, since all environments have failed.

        Raises:
            EnvError: other ranks would fail alike, or there are none, in one process.
        """
        if self._place.in_turns or isinstance(error, EnvValueError):
            raise error
        LOGGER.info("no environments are left, the task is returned", exc_info=error)
        self._data.seal()
        if task.lockstep is not None:  # rank 0 begins the next round at once
            self._data.flush()
        self._discard(task.eval_flag)
        with_ranks = isinstance(error, EnvRanksLost)
        self.send_metadata(TaskReturned(task.task_id, str(error), with_ranks))

    def _discard(self, eval_flag: bool) -> None:
        """Close a parallel collector; the next task that needs it makes new environments."""
        collector = self._collectors.pop(eval_flag, None)
        if collector is not None:
            self._health.update(collector.health)
            collector.close()
            if not eval_flag:
                self._first_episode = self._next_episode

    def _collector_for(self, eval_flag: bool) -> BaseParallelCollector:
        if eval_flag not in self._collectors:
            place, config = self._place, self._place.config
            cfg = {
                **to_mapping(config.policy.collect.collector),
                "make_policy": place.make_policy,
                "number": place.collector_number,
                "env": config.env,
                "policy": config.policy,
                "eval_flag": eval_flag,
                "exp_name": config.exp_name,
                "policy_update_path": str(place.layout.root),  # of frozen policies
                "seed": task_seed(place.seed, self._task),
                "scheduled": self._task.scheduled,
                "policy_patience_s": place.policy_patience_s,
                "own_process": not place.in_turns,
            }
            cls = component_class(PARALLEL_COLLECTOR_REGISTRY, cfg)
            self._collectors[eval_flag] = of_class(cls, cfg, self)
            self.meter.mark("start")
        return self._collectors[eval_flag]

    def _look_while_disk_is_full(self) -> None:
        """Look for signals, and keep the clock of activities, while the rank waits for space."""
        self.meter.mark("disk")
        request = self._place.stop_request()
        if request is not None:
            self.pump.send(COORDINATOR_RANK, request)
            self._patience.hurry()

    def ask(self) -> Message | None:
        """See `MessageSide.ask`."""
        for relay in self._relays.values():
            relay.look()
        return super().ask()

    def _take_policy(self, rank: int, update: PolicyUpdate) -> None:
        self._policies[update.player].take(rank, update)
        self._relays[update.player].look()

    def _announce(self, ready: BlockReady | BlockStored) -> None:
        is_open = isinstance(ready, BlockReady) and ready.is_open
        if not is_open and FAULTS.requests("torn_shard"):
            tear(self._place.layout.inside(ready.shard.path), ready.shard)
        self.pump.send(COORDINATOR_RANK, ready)
        self.pump.give_way()

    def _publish_if_best(self, task: CollectTask, collector: BaseParallelCollector) -> None:
        result = collector.result()
        image = self._policies[task.player].evaluated
        if image is None or not result.is_evaluation:
            return
        if task.freeze:
            file = self._place.layout.inside(task.freeze)
            self._patience.write(partial(publish_policy, file, image))
        mean = float(result.episode_returns.mean())
        if mean > task.publish_above:
            self._patience.write(partial(self._publish_best, image, mean))

    def _publish_best(self, image: PolicyImage, mean: float) -> None:
        """Write the best policy's file, and its checkpoint, which holds the weights alone."""
        layout, fsync = self._place.layout, self._place.config.system.storage.fsync
        publish_policy(layout.best_policy, image, fsync=fsync)
        writers = {POLICY_FILE: partial(publish_policy, image=image)}
        facts = {
            "train_iter": image.version,
            "reward_mean": mean,
            "evaluates_as": evaluates_as(self._place.config),
        }
        folder = layout.checkpoints_dir
        save_checkpoint(folder, BEST_CHECKPOINT, writers, facts, keep=None)

    def _take_setting(self, message: CollectSetting) -> None:
        collector = self._collectors.get(False)  # not the one that evaluates
        if collector is not None:
            collector.tell(message)

    def _pause(self, message: CollectPause) -> None:
        self._waits_from = self._env_steps + message.after if message.waits else math.inf

    def _close_task(self, message: CloseTask) -> None:
        self._closed[message.task_id] = None
        if len(self._closed) > _MAX_CLOSED:
            del self._closed[next(iter(self._closed))]
        for collector in list(self._collectors.values()):
            if collector.task.task_id == message.task_id:
                collector.stop()

    def _lost(self, rank: int) -> None:
        """Handle a rank's death: subscribe to another learner, or abort without rank 0."""
        super()._lost(rank)
        for group, policies in self._policies.items():
            policies.lose(rank)
            self._relays[group].forget(rank)

    def _ask_to_end(self, reason: str) -> None:
        """Ask rank 0 to end the run: the disk has been full for too long."""
        request = StopRequest(f"rank {self._place.link.rank}: {reason}", EXIT_REQUEUE)
        self.pump.send(COORDINATOR_RANK, request)
        if self._place.in_turns:  # rank 0 hears of it when this role no longer waits for the disk
            self._patience.hurry()

    def _stop(self) -> None:
        self._is_stopping = True
        self._patience.hurry()
        for collector in list(self._collectors.values()):
            collector.stop()


def create_comm_collector(cfg: object, context: WorkerContext) -> MPIFileSystemCollector:
    """Make the message side that ``cfg.type`` names.

    Raises:
        UnknownTypeError: no comm collector has that type.
    """
    collector: MPIFileSystemCollector = component_class(COMM_COLLECTOR_REGISTRY, cfg)(cfg, context)
    return collector
