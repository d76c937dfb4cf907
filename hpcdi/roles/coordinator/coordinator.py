"""The coordinator: it carries out the scheduler's decisions, shows the run, and keeps its files."""

from __future__ import annotations

import gc
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from hpcdi.comm.failure import kill_frozen
from hpcdi.comm.link import Link
from hpcdi.comm.messages import (
    BlockReady,
    BlockStored,
    Goodbye,
    Heartbeat,
    KillFrozen,
    Message,
    RankLost,
    Stop,
    TakeSnapshot,
    WorkerFailed,
)
from hpcdi.config.compiled import repeats_as
from hpcdi.config.schema import ExperimentConfig, blocks_are_stored
from hpcdi.errors import StoreError
from hpcdi.roles.context import HEARTBEAT_S
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.groups import Groups, create_groups
from hpcdi.roles.coordinator.plans import create_plan
from hpcdi.roles.coordinator.scheduler import Outcome, Scheduler
from hpcdi.roles.coordinator.snapshots import (
    Resumed,
    SnapshotClock,
    SnapshotKeeper,
    unannounced,
)
from hpcdi.roles.coordinator.user_callbacks import UserCallbacks
from hpcdi.roles.coordinator.view import RunView
from hpcdi.roles.coordinator.workers import (
    FaultPolicy,
    GuestRules,
    Notice,
    Order,
    Timeouts,
    Worker,
    Workers,
)
from hpcdi.store.checkpoints import of_agent
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import read_policy
from hpcdi.store.status import best_evaluation, best_return
from hpcdi.types import GIVEN, is_guest
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.processes import born_of, pid_space

MakeCommander: TypeAlias = Callable[[ExperimentConfig, Groups], Commander]
"""Makes an experiment's commander, of the records of its groups."""

_SENT_S = 0.5
"""Seconds for messages that MPI has taken to arrive, where the rank ends without MPI_Finalize."""

_LONGEST_TURN_S = 10.0
"""What a turn takes beyond that, such as a suspension of the job, is no silence of the workers."""
_YOUNG_OBJECTS = 50_000
"""New ones after which Python looks for cycles among them; a turn with many ranks makes thousands,
and nearly all are gone after it."""
_LOOK_S = 1.0
"""Seconds between two looks for processes that are gone."""


def look_seldom_for_cycles() -> None:
    """Let Python look seldom for cycles of dead objects in this process, and at none made so far.

    For a process that is rank 0 and nothing else: with its usual 700 new objects between two looks,
    a tenth of the time of one that hears thousands of messages a second goes into them.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)


class Coordinator(Closing):
    """Rank 0: hands messages to the scheduler, and sends its orders.

    Args:
        config: the experiment.
        link: to the workers.
        layout: the run folder; None: nothing is written.
        workers: ranks that take part; None: all others in the link's world.
        make_commander: makes the commander.
        in_turns: collecting and learning take turns, in one process.
        store: called before a snapshot is taken; writes announced blocks to disk that are not yet.
        is_terminal: whether a person watches the progress line.
        cores: that all ranks have together on their host; None: they are on several.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        link: Link,
        layout: RunLayout | None = None,
        workers: Sequence[int] | None = None,
        *,
        make_commander: MakeCommander = Commander,
        in_turns: bool = False,
        store: Callable[[], None] = lambda: None,
        is_terminal: bool = False,
        cores: int | None = None,
    ) -> None:
        self._link, self._layout, self._store = link, layout, store
        self._view = RunView(
            config, layout, is_terminal=is_terminal, cores=cores, in_turns=in_turns
        )
        self._keeper: SnapshotKeeper | None = None
        if layout is not None:
            keep, keep_data = config.system.keep_snapshots, config.system.storage.keep_data
            same = repeats_as(config, 1 if in_turns else link.size)
            self._keeper = SnapshotKeeper(layout, keep, keep_data=keep_data, repeats_as=same)
        ranks = range(1, link.size) if workers is None else workers
        groups = create_groups(config, self._view.curves, len(ranks), in_turns=in_turns)
        faults = FaultPolicy.of(config, is_possible=link.ranks_may_die)
        self._scheduler = Scheduler(
            make_commander(config, groups),
            SnapshotClock(
                config.system.snapshot_s, self._keeper.new if self._keeper is not None else None
            ),
            Workers(ranks, groups, faults, Timeouts.of(config), (platform.node(), pid_space())),
            create_plan(config, in_turns=in_turns),
            self._observe,
            GuestRules.of(config),
            stores=blocks_are_stored(config),
        )
        collector = config.policy.collect.collector
        if collector.collector_max is not None:
            self._scheduler.want_collectors(collector.collector_num)
        self._callbacks: UserCallbacks | None = None
        if config.callbacks and layout is not None:
            self._callbacks = UserCallbacks(config, layout, self._view.curves, self._scheduler)
        self._unheard = UnheardDeaths((platform.node(), pid_space()))
        self._arrived: list[tuple[int, Message]] = []
        self._orders: deque[Order] = deque()  # orders that were not sent yet
        self._heartbeat_at = 0.0
        self._now = float("inf")  # of the last turn

    # ---------------------------------------------------------------------------------------- life

    def run(
        self,
        ask: Callable[[], Message | None] = lambda: None,
        wait: Callable[[], None] | None = None,
    ) -> Outcome:
        """Take turns until the run is over.

        Args:
            ask: called before each turn; returns what a signal or a user asks for, once.
            wait: called after each turn; None: `wait` of this object.
        """
        self.begin()
        while self.turn(time.monotonic(), ask()):
            (wait or self.wait)()
        return self.end()

    def begin(self) -> None:
        """Take the first snapshot of a new run, before its first turn; and the data it is given.

        A run that is resumed has them among its blocks.
        """
        if self._callbacks is not None:
            self._callbacks.begin()
        if self._keeper is None or self._layout is None:
            return
        self._keeper.keep_beginning(self.state_dict)
        announced = self._scheduler.announced.get(GIVEN, 0)
        for ready in unannounced(self._layout, GIVEN, announced):
            self._scheduler.take_given(ready)

    def turn(self, now: float, request: Message | None = None) -> bool:
        """Handle the messages that have come, send the orders that follow, and refresh the view.

        Args:
            now: seconds on any clock that does not go back.
            request: what a signal or a user asks for.

        Returns:
            Whether the run goes on.
        """
        scheduler, meter = self._scheduler, self._view.meter
        meter.mark("wait")  # since its last turn
        suspended_s, self._now = now - self._now - _LONGEST_TURN_S, now
        if suspended_s > 0.0:
            scheduler.excuse(suspended_s, now)
        arrived, self._arrived = self._arrived or self._link.receive(0.0), []
        if self._link.ranks_may_die:
            silent = (w for w in scheduler.workers if not (w.has_ended or w.is_guest))
            arrived += [(rank, RankLost()) for rank in self._unheard.look(silent, now)]
        self._handle(arrived, now)
        if request is not None:
            self._orders += scheduler.request(request, now)
        self._orders += scheduler.tick(now)
        if self._callbacks is not None and (reason := self._callbacks.take_stop()):
            self._orders += scheduler.end(reason, now)
        if now - self._heartbeat_at >= HEARTBEAT_S:  # shows workers that rank 0 lives
            self._heartbeat_at = now
            workers = scheduler.workers
            self._orders += [Order(rank, Heartbeat()) for rank in workers.not_ended]
        self._send_orders()
        meter.mark("schedule")
        self._tend_files()
        self._view.look(scheduler)
        meter.mark("show")
        return not scheduler.finished

    def wait(self) -> None:
        """Wait until a message has come, at most `Scheduler.patience_s`."""
        self._arrived += self._link.receive(self._scheduler.patience_s)

    def end(self) -> Outcome:
        """Send all messages and complete all snapshots, after the last turn."""
        # what guests have left: they did not end in order
        left = [(rank, message) for rank, message in self._link.receive(0.0) if is_guest(rank)]
        self._handle(left, time.monotonic())
        deadline = time.monotonic() + 1.0
        while self._link.unsent() and time.monotonic() < deadline:
            self._link.receive(0.01)
        if self._link.ranks_may_die:
            self._link.receive(_SENT_S)
        self._tend_files()
        if self._keeper is not None:
            self._keeper.close()
        self._tend_files()
        outcome = self._scheduler.outcome or Outcome("stopped", "closed", 0)
        if self._callbacks is not None and outcome.failure is None:
            self._callbacks.end()
        return outcome

    def close(self) -> None:
        """End the run, if it goes on, and close files. Idempotent."""
        self._orders += self._scheduler.stop(Outcome("stopped", "closed", 0), time.monotonic())
        self._send_orders()
        if self._keeper is not None:
            self._keeper.close()
        if self._callbacks is not None:
            self._callbacks.close()
        self._view.close(self._scheduler)

    # ----------------------------------------------------------------------------------- questions

    @property
    def silent(self) -> dict[int, str]:
        """Role of each rank that has not said goodbye."""
        workers = self._scheduler.workers
        return {rank: workers[rank].role for rank in workers.not_ended if not is_guest(rank)}

    @property
    def groups(self) -> Groups:
        """Records of the groups that learn."""
        return self._scheduler.groups

    @property
    def lost(self) -> dict[int, str]:
        """Role of each rank that has died while the run went on."""
        return self._scheduler.workers.lost

    @property
    def snapshot_s(self) -> float:
        """Seconds that the last snapshot took."""
        return self._keeper.last_took_s if self._keeper is not None else 0.0

    def summary(self) -> list[str]:
        """Closing lines for people."""
        return self._view.summary(self._scheduler)

    def figures(self) -> dict[str, Any]:
        """Closing figures for programs: plain data."""
        return self._view.figures(self._scheduler)

    # --------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Rank 0's part of a snapshot: plain data and arrays."""
        # callbacks act before the state is taken: what they choose is in it
        callbacks = {} if self._callbacks is None else {"callbacks": self._callbacks.snapshot()}
        return {**self._scheduler.state_dict(), **callbacks}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, except for blocks that learners must read again first."""
        self._scheduler.load_state_dict(state_dict)

    def resume(self, resumed: Resumed) -> None:
        """Resume from a snapshot of the run, before its first turn."""
        self._scheduler.resume(resumed)
        if self._layout is not None:  # after the snapshot there may have been a better one
            main, layout = self.groups.main, self._layout
            best = best_return(layout, main.evaluates_as)
            main.recall(best, best_evaluation(layout, main.evaluates_as))
            if self._scheduler.league is not None:
                self._scheduler.league.learn_versions(partial(_version_of, self._layout))
        blocks = (ready.block_id for ready in resumed.published.values())
        self._view.resumed(self._scheduler, blocks)
        if self._callbacks is not None:
            self._callbacks.restore(resumed.state.get("callbacks", {}))
        if self._keeper is not None:
            self._keeper.adopt(resumed)

    # ----------------------------------------------------------------------------------- internals

    def _handle(self, arrived: Iterable[tuple[int, Message]], now: float) -> None:
        """Let the scheduler handle messages."""
        self._orders += self._scheduler.handle_all(self._with_unannounced(arrived), now)

    def _with_unannounced(
        self, arrived: Iterable[tuple[int, Message]]
    ) -> Iterator[tuple[int, Message]]:
        """Yields messages; before a death, the blocks that the rank has not announced."""
        announced = self._scheduler.announced
        for rank, message in arrived:
            if _is_death(rank, message) and self._layout is not None:
                for ready in unannounced(self._layout, rank, announced.get(rank, 0)):
                    yield rank, ready
            yield rank, message

    def _observe(self, rank: int, message: Message | Notice) -> None:
        if self._keeper is not None:
            match message:
                case BlockStored() | BlockReady(capacity=0):
                    self._keeper.published(message.shard.path)
                case _ if isinstance(message, Goodbye) or _is_death(rank, message):
                    self._keeper.ended(rank)
        self._view.observe(rank, message)
        if self._callbacks is not None:
            self._callbacks.observe(message)

    def _send_orders(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order.message, TakeSnapshot):
                self._take_part(order.message)
            self._send(order)

    def _send(self, order: Order) -> None:
        if isinstance(order.message, KillFrozen) and order.rank == self._link.rank:
            kill_frozen(order.message)
        else:
            self._link.send(order.rank, order.message)

    def _take_part(self, order: TakeSnapshot) -> None:
        """Take rank 0's part of a snapshot, before the first learner gets the order."""
        if self._keeper is None or self._keeper.has_begun(order.name):
            return
        self._store()
        self._catch_up()
        groups = self._scheduler.groups
        facts = {"env_steps": groups.env_steps, "learners": sorted(groups.partitions)}
        lost = [of_agent(n, "") for n, group in enumerate(groups) if not group.learners.size]
        self._keeper.begin(order, self.state_dict(), facts, lost)

    def _catch_up(self) -> None:
        """Handle what has arrived, and send the orders that follow before those of a snapshot.

        Rank 0's part knows their decisions, and so must the learners'; a snapshot's orders are the
        last ones of a turn. Only the end of the run waits for it.
        """
        behind, self._orders = self._orders, deque()
        self._handle(self._link.receive(0.0), self._now)
        if any(isinstance(order.message, Stop) for order in self._orders):
            self._orders = behind + self._orders
            return
        decided, self._orders = self._orders, behind
        for order in decided:
            self._send(order)

    def _tend_files(self) -> None:
        """Finish snapshots, and remove shards that nobody needs."""
        if self._keeper is None:
            return
        for group in self._scheduler.groups:
            self._keeper.drop(group.replay.take_freed())
        for result in self._keeper.complete(self._scheduler.snapshots.take_complete()):
            self._view.snapshot(result, self._scheduler)


class UnheardDeaths:
    """Looks for workers of rank 0's host whose process has ended without MPI noticing it.

    A simulator may call ``_exit`` in C. A worker counts as dead when two looks, one a second, have
    missed it: what it sent before has arrived then, and so has MPI's own word, where it noticed.

    Args:
        home: rank 0's, see `Worker.home`; of others it knows nothing.
        is_there: decides whether a process lives.
    """

    def __init__(
        self, home: tuple[str, str], is_there: Callable[[int], bool] = lambda n: born_of(n) != ""
    ) -> None:
        self._home, self._is_there = home, is_there
        self._next, self._missed = 0.0, set[int]()

    def look(self, workers: Iterable[Worker], now: float) -> list[int]:
        """Returns the ranks that have died, each once.

        Args:
            workers: that have not ended, as far as is known.
            now: seconds on any clock.
        """
        if now < self._next:
            return []
        self._next = now + _LOOK_S
        missing = {
            worker.rank
            for worker in workers
            if worker.pid and worker.home == self._home and not self._is_there(worker.pid)
        }
        dead, self._missed = missing & self._missed, missing
        return sorted(dead)


def _is_death(rank: int, message: Message | Notice) -> bool:
    """Whether a rank has died, and sends nothing more: a guest's error is its last message."""
    return isinstance(message, RankLost) or (is_guest(rank) and isinstance(message, WorkerFailed))


def _version_of(layout: RunLayout, source: str) -> int:
    """Returns the train iteration of a policy file in the run folder; -1: it cannot be read."""
    try:
        return read_policy(layout.inside(source)).version
    except StoreError as error:
        LOGGER.info("a frozen copy's version stays unknown: %s", error)
        return -1
