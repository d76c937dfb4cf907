"""A learner rank: it takes what rank 0 orders, one thing a turn, and updates a policy.

Messages whose order matters go through one queue: the task, batches, snapshots between two batches,
the end. Those that may come at any time (a policy request, the order to regroup) are noted as they
arrive, and every turn looks at the notes.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BeginAnew,
    GroupAddress,
    LearnInfo,
    LearnResult,
    LearnTask,
    Message,
    PolicyFiles,
    PolicyRequest,
    Regroup,
    Rows,
    Stop,
    TakeSnapshot,
)
from hpcdi.errors import GroupBrokenError
from hpcdi.policy.base import LearnMode
from hpcdi.roles.context import COORDINATOR_RANK, WorkerContext, seed_at_start
from hpcdi.roles.fault import FAULTS
from hpcdi.roles.learner.callbacks import (
    LogPolicy,
    LogShow,
    PublishPolicy,
    Report,
    callbacks_of,
)
from hpcdi.roles.learner.checkpointing import SnapshotPartWriter, copied
from hpcdi.roles.learner.feed import Feed, Staged, stage_for
from hpcdi.roles.learner.group import Membership
from hpcdi.roles.learner.publisher import PolicyFile, PolicyPublisher
from hpcdi.roles.learner.training import Batch, Training
from hpcdi.roles.learner.user_callbacks import UserCallbacks
from hpcdi.roles.message_side import MessageSide
from hpcdi.store.checkpoints import POLICY_FILE, of_agent
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.log import LOGGER

_REPORT_EVERY = 100
"""Iterations between two progress reports to rank 0, unless the log's interval is set."""
_WAIT_S = 0.02
"""Seconds between two looks at policy requests, while there is no order."""
_LEAVE_S = 0.005
"""Seconds between two looks for rank 0's last message."""
_Order: TypeAlias = LearnTask | Staged | TakeSnapshot | BeginAnew | Stop


MakeTraining: TypeAlias = Callable[[WorkerContext, LearnMode, tuple[int, int]], Training]
"""Makes what updates a policy, see `make_training`."""


def make_training(context: WorkerContext, policy: LearnMode, group: tuple[int, int]) -> Training:
    """Returns a training with the callbacks that the configuration names.

    Args:
        context: the learner's place in the run.
        policy: what it updates.
        group: rank in the group of learners, and its size.
    """
    cfg = context.config.policy.learn.learner
    callbacks = [*([LogPolicy()] if cfg.log_policy else []), *callbacks_of(cfg.hook).values()]
    ckpt_dir = context.layout.checkpoints_of(context.agent)
    name = context.learner_name
    return Training(cfg, policy, callbacks=callbacks, group=group, ckpt_dir=ckpt_dir, name=name)


class Learner(MessageSide):
    """Learns from batches that rank 0 draws, and publishes policies.

    Life: waiting ──LearnTask──► training ──iterations done, or Stop──► waiting ──Stop──► leaving.

    Args:
        context: this rank's place in a run.
        training: makes what updates the policy.
    """

    role = "learner"

    def __init__(self, context: WorkerContext, *, training: MakeTraining = make_training) -> None:
        # first: it waits for the others, and no clock may run meanwhile
        self._group = Membership(context, self._send, self._is_ending)
        super().__init__(None, context)
        self._make_training = training
        self._training: Training | None = None  # of the latest task
        self._learning: Training | None = None  # the same, while its task is under way
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._next: _Order | None = None  # taken from the queue by `wait`
        self._feed = self._make_feed(context)
        self._is_stopping = False  # rank 0's Stop has arrived
        self._is_over = False  # and was carried out, after the batches that came before it
        self._at_start: dict[str, Any] = {}  # the policy's state before its first batch
        self._of_before = 0  # batches that are left out: a policy made them that is gone
        self._publisher = PolicyPublisher(self._send, self._policy_file(), context.group)
        self.pump = context.make_pump(
            context.link, self._handlers(), self.ask, self.listen, begins=False
        )
        self._snapshots = SnapshotPartWriter(context.layout, self._tell, context.group)

    def _handlers(self) -> dict[type, Callable[[int, Any], None]]:
        """Returns the handlers of messages, which run on the communication thread."""

        def put(_rank: int, order: TakeSnapshot | BeginAnew) -> None:
            self._orders.put(order)

        return {
            **super()._handlers(),
            LearnTask: lambda _rank, task: self._take_task(task),
            AdmitBlock: lambda _rank, order: self._feed.admit(order),
            Rows: lambda _rank, rows: self._feed.take(rows),
            Batches: lambda _rank, order: self._feed.fill(order),
            TakeSnapshot: put,
            BeginAnew: put,
            Stop: lambda _rank, order: self._take_stop(order),
            PolicyRequest: self._publisher.request,
            PolicyFiles: lambda _rank, order: self._publisher.write_every(order.every_s),
            Regroup: lambda _rank, order: self._group.order(order),
            GroupAddress: lambda _rank, address: self._group.meet_at(address),
        }

    # ---------------------------------------------------------------------------------------- life

    def run(self) -> None:
        """See `MessageSide.run`."""
        try:
            super().run()
        finally:
            if self._training is not None:
                self._training.close()

    def turn(self, now: float) -> bool:
        """Do one thing, such as an update; see `MessageSide.turn`.

        Raises:
            GroupBrokenError: another learner has died, and the run does not survive it.
        """
        self.pump.check()
        if self._is_leaving:
            self.is_waiting = True
            if not self._may_leave(now):
                return True
            self._feed.stage.close()  # nothing is gathered any more
            return False
        if self._learning is not None:
            FAULTS.reach(self._learning.train_iter, self.role)
            if self._group.is_stale:
                self._regroup(self._learning)
        order = self._take_order()
        self.is_waiting = order is None
        if order is not None:
            self._carry_out(order, now)
        elif self._is_over:
            self._leave()
        else:
            self._idle()
        return True

    def wait(self) -> None:
        """See `MessageSide.wait`."""
        if self._is_leaving:
            wait_s(_LEAVE_S)
        elif self._next is None and not self._is_over:
            with contextlib.suppress(queue.Empty):
                self._next = self._orders.get(timeout=_WAIT_S)

    def close(self) -> None:
        """Release files, threads and the group without telling rank 0. Idempotent."""
        self._release()

    def resource(self) -> dict[str, int]:
        """See `MessageSide.resource`."""
        return {**super().resource(), "gpu": int(self._place.config.policy.cuda)}

    @property
    def train_iter(self) -> int:
        """Iterations that are done."""
        return self._training.train_iter if self._training is not None else 0

    # -------------------------------------------------------------------------------- in its turns

    def _make_feed(self, context: WorkerContext) -> Feed:
        config = context.config
        is_in_turns = context.in_turns or config.system.deterministic
        size, ahead = config.policy.learn.batch_size, config.system.prefetch
        if config.policy.on_policy:
            # a batch is all that the present policy collected: nothing to prefetch, except where
            # staleness is corrected; there the next batch is gathered during an update
            size, ahead = 0, 1 + config.policy.CORRECTS_STALENESS
        # batches that wait grow old: for at most half of the iterations for which an item is kept
        ahead = int(min(ahead, 1 + config.policy.buffer.max_staleness / 2))
        return Feed(
            context.open_transport(),
            self._send,
            self._orders.put,
            batch_size=size,
            prefetch=1 if is_in_turns else ahead,
            sequence=config.policy.sequence.rows,
        )

    def _take_order(self) -> _Order | None:
        order, self._next = self._next, None
        if order is None:
            with contextlib.suppress(queue.Empty):
                order = self._orders.get_nowait()
        return order

    def _carry_out(self, order: _Order, now: float) -> None:
        training = self._learning
        match order:
            case Staged() if training is not None:
                self._learn(training, self._feed.batch(order, now))
            case Staged():
                pass  # requested before the task ended
            case LearnTask():
                self._begin(order)
            case TakeSnapshot() | BeginAnew():
                if self._training is not None:  # none is ordered before its task
                    self._between_batches(self._training, order)
            case Stop():
                self._end_task()
                self._is_over = True

    def _idle(self) -> None:
        """Serve requests while there is no order."""
        self.meter.mark("wait")
        if self._learning is not None:
            self._offer_policy(self._learning, False)
            self._feed.ask(self._learning.train_iter, time.monotonic(), is_idle=True)

    def _begin(self, task: LearnTask) -> None:
        """Begin a task: make the policy and what updates it, or resume both from a snapshot."""
        context, cfg = self._place, self._place.config.policy.learn.learner
        seed = context.seed
        if context.agent and self._group.rank == 0:  # the whole group takes its network from it
            seed = seed_at_start(seed)  # to which it goes back when it begins anew
        policy: LearnMode = context.make_policy(
            context.config.policy, ["learn"], seed=seed
        ).learn_mode
        group = self._group.rank, self._group.size
        training = self._training = self._make_training(context, policy, group)
        for callback in (
            PublishPolicy(self._offer_policy, cfg.send_policy_freq),
            Report(self._report, self._report_every),
            LogShow(0),  # logs the end, also of a run that is shorter than its logging interval
        ):
            training.add(callback)
        if context.config.callbacks:
            training.add(UserCallbacks(context, self._tell))
        self._feed.stage = stage_for(policy, pin_memory=cfg.pin_memory)
        if context.agent:  # the main group never begins anew
            training.load_named()
            self._at_start = copied(training.shared_state()["policy"])
        if task.resume:
            self._resume(training, context.layout.inside(task.resume))
        self._learning = training
        self.meter.mark("start")
        training.begin()
        self._go_on(training)

    def _resume(self, training: Training, snapshot: Path) -> None:
        """Load this learner's part of a snapshot; a group that had none yet begins anew."""
        agent = self._place.agent
        if not agent or (snapshot / of_agent(agent, POLICY_FILE)).exists():
            training.load_checkpoint(snapshot, agent=agent)
        else:
            LOGGER.warning("%s begins anew: %s is without it", self._place.group, snapshot.name)

    def _learn(self, training: Training, batch: Batch) -> None:
        """Learn from a batch; repeat it if a learner died within it and no other has finished it.

        On-policy an update has many gradient steps: those made before the death are undone first,
        from a copy of the policy's state that costs a thousandth of the update. With a replay
        buffer there are one or two steps: the copy would cost a tenth of them, so they stay.
        """
        self.meter.mark("wait")
        self._group.begun += 1
        if self._of_before:  # it counts, so that collectors take the policy that has begun anew
            self._of_before -= 1
            training.train_iter += 1
            self._offer_policy(training, False)
            self._go_on(training)
            return
        policy, link = self._place.config.policy, self._place.link
        may_repeat = self._group.size > 1 and link.ranks_may_die and not policy.cuda
        backup = copied(training.policy.state_dict()) if may_repeat and policy.on_policy else None
        while True:
            try:
                training.update(batch)
            except GroupBrokenError as broken:
                if backup is not None:
                    training.policy.load_state_dict(copied(backup))
                if self._regroup(training, broken):
                    continue
            break
        self.meter.mark("train")
        self._go_on(training)

    def _go_on(self, training: Training) -> None:
        """Ask for the next batch, or end the task where all its iterations are done."""
        if self._publisher.is_awaited(training.train_iter):  # however seldom it is offered
            self._offer_policy(training, True)
        learner = self._place.config.policy.learn.learner
        if training.train_iter >= learner.train_iterations:
            self._end_task()
            self._tell(LearnResult(self._feed.task_id, training.train_iter))
        else:
            self._feed.ask(training.train_iter, time.monotonic())

    def _regroup(self, training: Training, broken: GroupBrokenError | None = None) -> bool:
        """Form a new group of the living learners; returns whether to repeat the batch."""
        must_repeat = self._group.regroup(training, broken)
        self._publisher.write_to(self._policy_file())
        return must_repeat

    def _between_batches(self, training: Training, order: TakeSnapshot | BeginAnew) -> None:
        """Carry out an order that stands between the same two batches for all learners."""
        if isinstance(order, TakeSnapshot):
            training.snapshot()
            self._snapshots.keep(training, order, self._place.agent)
        else:
            self._group.begun += 1  # who has begun anew is ahead of who has not: see Membership
            training.policy.load_state_dict(copied(self._at_start))
            policy = self._place.config.policy
            if policy.on_policy and not policy.CORRECTS_STALENESS:
                self._of_before = 1 + policy.buffer.staleness_bound
            LOGGER.info("%s begins anew", order.player)

    def _end_task(self) -> None:
        training, self._learning = self._learning, None
        if training is not None:
            training.end()
            training.close()

    def _leave(self) -> None:
        """Finish all writing, and tell rank 0 that this rank is done."""
        self._release()
        report = {"train_iter": self.train_iter, "policies_sent": self._publisher.published}
        self._say_goodbye({**self.meter.report(), **report})

    def _release(self) -> None:
        super().close()
        if self._training is not None:
            self._training.close()
        self._group.leave()
        self._snapshots.close()
        self._publisher.write_file()

    # -------------------------------------------------------------------- what it tells the others

    def _offer_policy(self, training: Training, force: bool) -> None:
        """Publish the policy if a collector waits for it, or in any case with `force`."""
        if force or self._publisher.is_wanted(training.train_iter):
            self._publisher.publish(training.policy.state_dict()["model"], training.train_iter)

    def _report(self, training: Training) -> None:
        info = LearnInfo(
            self._feed.task_id,
            training.train_iter,
            dict(training.scalars),
            self.meter.shares(),
            cpu=self.meter.cpu(),
        )
        self._tell(info)

    def _send(self, rank: int, message: Message) -> None:
        self.pump.send(rank, message)

    def _tell(self, message: Message) -> None:
        self.pump.send(COORDINATOR_RANK, message)

    @property
    def _report_every(self) -> int:
        """Iterations between two reports: as many as between two logs."""
        every = self._place.config.policy.learn.learner.hook.get("log_show_after_iter", 0)
        return every if isinstance(every, int) and every > 0 else _REPORT_EVERY

    def _policy_file(self) -> PolicyFile | None:
        """Returns the policy file, which the first member of a group writes for all."""
        storage = self._place.config.system.storage
        if self._group.rank > 0:
            return None
        path = self._place.layout.latest_policy_of(self._place.group)
        return PolicyFile(path, storage.policy_file_s, fsync=storage.fsync)

    # ------------------------------------------------------------------ on the communication thread

    def ask(self) -> Message | None:
        """See `MessageSide.ask`."""
        self._feed.look(time.monotonic())
        return super().ask()

    def _take_task(self, task: LearnTask) -> None:
        """Take a task, whose blocks may follow at once."""
        self._feed.open(task.task_id)
        self._orders.put(task)

    def _take_stop(self, order: Stop) -> None:
        """End after the batches that came before: all learners of a group have the same ones."""
        self._is_stopping = True
        self._orders.put(order)

    def _lost(self, rank: int) -> None:
        """Handle a rank's death."""
        super()._lost(rank)
        self._publisher.forget(rank)
        self._feed.lose(rank)

    def _is_ending(self) -> bool:
        """Returns whether rank 0 has sent Stop; takes messages meanwhile."""
        self.pump.check()
        return self._is_stopping
