"""`hpcdi serial`: the roles of a run in one process, where they take turns.

They are those of a run over ranks, with another link, pump and transport: messages are handed over
without being encoded, and a learner reads rows of blocks that are still open. Collecting and
learning take turns (`LockstepPlan`).
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcdi.comm.failure import exit_code_of
from hpcdi.comm.link import LocalWorld
from hpcdi.comm.messages import StopRequest
from hpcdi.comm.pump import LocalPump
from hpcdi.config.fields import replaced
from hpcdi.config.league import OneVsOneCommanderConfig
from hpcdi.config.policy import PolicyConfig
from hpcdi.config.schema import ExperimentConfig, learners_of
from hpcdi.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    HpcdiError,
    StoreError,
    state_after,
)
from hpcdi.policy.networks import learner_device
from hpcdi.roles.collector.mpi_fs_collector import create_comm_collector
from hpcdi.roles.context import ROLES, WorkerContext, role_seed
from hpcdi.roles.coordinator.coordinator import Coordinator
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.roles.fault import FAULTS
from hpcdi.roles.message_side import MessageSide
from hpcdi.run import resume, run_folder
from hpcdi.run.experiment import evaluation_goal
from hpcdi.run.job_end import EndTime
from hpcdi.run.parts import columnar_policy, make_commander, make_learner_rank
from hpcdi.run.placement import RankPlace, useful_threads
from hpcdi.run.private_folder import own_temporary_folder
from hpcdi.run.request import Ended
from hpcdi.run.run_lock import RunLock
from hpcdi.run.signals import SignalFlag, TimeLimit
from hpcdi.store.atomic import leave, stay_in
from hpcdi.store.disk_full import or_warn
from hpcdi.store.layout import RunLayout
from hpcdi.transport.memory import MemoryTransport
from hpcdi.types import Spaces
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER, close_log, open_log, say
from hpcdi.utils.metrics import counted

_MOMENT_S = 0.05
"""Seconds that a role may go on before the others have their turns, and signals are handled."""
_REST_S = 0.001
"""Seconds of rest if no role has anything to do, e.g. while environments step in processes."""


def serial(
    config: ExperimentConfig, spaces: Spaces, mode: resume.StartMode, path: Path, ends_at: EndTime
) -> Ended:
    """Train in this process; its signal handlers are put back afterwards.

    Args:
        config: the experiment, checked.
        spaces: its environment's.
        mode: how the run begins.
        path: the run folder.
        ends_at: when the time limit ends it.

    Raises:
        LaunchError: the run folder cannot be used.
        PolicyError: there is no GPU, and policy.cuda is true.
    """
    flag = SignalFlag("shutting down; press Ctrl-C again to end at once")
    set_threads(config.policy, spaces)
    learner_device(cuda=config.policy.cuda)  # raises without a GPU, before a folder is made
    layout = RunLayout(path)
    with ExitStack() as stack:
        stack.callback(flag.remove)
        flag.install()
        stack.enter_context(own_temporary_folder())
        stack.callback(leave)
        stack.enter_context(RunLock(layout))
        stay_in(layout.root)
        placement = [RankPlace(platform.node(), pid=os.getpid(), role="serial")]
        restarts = resume.take(layout, mode, config, placement, mpi="none")
        open_log(layout.log_file(0), 0, "serial", restarts)
        try:
            again = f", restart {restarts}" if restarts else ""
            ends = run_folder.ends_of(config, evaluation_goal(config)[1])
            envs = counted(config.env.collector_env_num, "environment")
            title = f"{config.exp_name}, one process with {envs}{again}"
            for line in run_folder.opening(title, layout, ends):
                say(line)
            return _train(config, layout, mode, restarts, flag.take, ends_at)
        finally:
            close_log()


def _train(
    config: ExperimentConfig,
    layout: RunLayout,
    mode: resume.StartMode,
    restarts: int,
    take_signal: Callable[[], StopRequest | None],
    ends_at: EndTime,
) -> Ended:
    """Run the roles, print how the run ended."""
    FAULTS.arm(config.fault, 0, "serial", restarts, counts="collector")
    settings = resume.NewSettings(layout, config)
    run: LocalRun | None = None
    limit = TimeLimit(
        ends_at, take_signal, lambda: run.coordinator.snapshot_s if run is not None else 0.0
    )

    def ask() -> StopRequest | None:
        settings.look(time.monotonic())
        return limit.take()

    raised: BaseException | None = None
    try:
        resumed = resume.take_up(within_a_process(config), layout)
        with LocalRun(config, layout, restarts, limit.take) as run:
            if resumed is not None:
                run.coordinator.resume(resumed)
                say(f"  resumed      {resumed}")
            outcome = run.play(ask)
    except BaseException as error:
        has_begun = run is not None and run.has_begun
        is_of_files = isinstance(error, StoreError | OSError)
        is_resumed = mode is resume.StartMode.RESUME
        if is_resumed and is_of_files and not has_begun:  # nothing has changed
            run_folder.leave(layout)
            raise
        LOGGER.info("the run failed", exc_info=True)
        raised = error
        if isinstance(error, KeyboardInterrupt):  # see `Signals`
            outcome = Outcome("stopped", "interrupted at once", EXIT_INTERRUPTED)
        else:
            if not isinstance(error, HpcdiError):
                traceback.print_exc()
            code = exit_code_of(error)
            outcome = Outcome(state_after(code), f"{type(error).__name__}: {error}", code)
    settings.look(time.monotonic(), at_once=True)
    figures = run.coordinator.figures() if run is not None else {}
    end = partial(run_folder.end, layout, outcome.state, outcome.reason, outcome.exit_code, figures)
    or_warn("end of the run", end)
    stream = sys.stdout if outcome.exit_code == EXIT_DONE else sys.stderr
    summary = run.coordinator.summary() if run is not None else []
    for line in run_folder.closing("hpcdi serial", outcome, summary, layout):
        stream.write(line + "\n")
    stream.flush()
    return Ended(layout.root, outcome.exit_code, raised)


class LocalRun(Closing):
    """All roles of a run in this process: rank 0, a learner for each group, one collector.

    Args:
        config: the experiment.
        layout: the run folder.
        restarts: how often the run was resumed; each time has other random numbers.
        take_stop: returns, once, what a signal asked for; called while the disk is full, too.

    Attributes:
        config: the experiment, as it is in one process.
        coordinator, collector: roles.
        learners: roles, in the order of their groups.
        has_begun: whether anything was collected; until then a resumed run has not changed.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        layout: RunLayout,
        restarts: int = 0,
        take_stop: Callable[[], StopRequest | None] = lambda: None,
    ) -> None:
        self.config = config = within_a_process(config)
        self.has_begun = False
        seeds = np.random.SeedSequence(config.seed, spawn_key=(len(ROLES), 0, restarts))
        torch.manual_seed(int(seeds.generate_state(1)[0]))  # some policies use its random numbers
        groups = {name: (rank,) for rank, name in enumerate(learners_of(config), 1)}
        self._world = LocalWorld(2 + len(groups), encodes=False)
        transport = MemoryTransport(layout, config.system.storage)

        def context(rank: int, role: str) -> WorkerContext:
            return WorkerContext(
                config,
                layout,
                self._world.link(rank),
                role_seed(config.seed, role, rank, 0 if config.system.deterministic else restarts),
                groups,
                stop_request=take_stop,
                restarts=restarts,
                make_policy=partial(columnar_policy, gets_weights=True),
                transport=transport,
                make_pump=LocalPump,
                in_turns=True,
            )

        self.coordinator = Coordinator(
            config,
            self._world.link(0),
            layout,
            make_commander=make_commander,
            in_turns=True,
            store=self._store,
            is_terminal=os.isatty(1) and sys.stdout.isatty(),
        )
        try:
            self.learners = [
                make_learner_rank(context(rank, "learner")) for (rank,) in groups.values()
            ]
            self.collector = create_comm_collector(
                config.system.comm_collector, context(self._world.size - 1, "collector")
            )
        except BaseException:
            self.coordinator.close()
            raise
        self._workers: list[MessageSide] = [*self.learners, self.collector]
        self._playing = list(self._workers)

    def play(self, ask: Callable[[], StopRequest | None] = lambda: None) -> Outcome:
        """Let the roles take turns until the run is over; returns how it ended.

        Args:
            ask: returns, once, what a signal asks for.
        """
        for worker in self._workers:
            worker.start()
        outcome = self.coordinator.run(ask, self._turn)
        while self._playing:
            self._turn()
        self._take_back()
        return outcome

    def _store(self) -> None:
        """Write all that was announced to disk, before a snapshot."""
        self.collector.store()
        self._take_back()

    def _take_back(self) -> None:
        """Count what was announced, and then was not written to the disk, no longer."""
        for lost in self.collector.take_lost():
            group = self.coordinator.groups.of(lost)
            group.env_steps -= lost.env_steps
            group.episodes -= lost.episodes

    def _turn(self) -> None:
        """Give each role but rank 0 turns while it has something to do, for a moment."""
        has_rested = True
        for worker in list(self._playing):
            until = time.monotonic() + _MOMENT_S
            while worker.turn(now := time.monotonic()):
                if worker.is_waiting:
                    break
                has_rested = False
                self.has_begun |= worker is self.collector
                if now > until:
                    break
            else:
                self._playing.remove(worker)
        if has_rested and not any(self._world.inboxes):
            wait_s(_REST_S)

    def close(self) -> None:
        """Publish what was collected, and close everything. Idempotent."""
        with ExitStack() as stack:  # the others, too, where the disk takes no more of the collector
            stack.callback(self.coordinator.close)
            for worker in reversed(self._workers):
                stack.callback(worker.close)
            stack.callback(self._take_back)
            self.collector.release()


def within_a_process(config: ExperimentConfig) -> ExperimentConfig:
    """Returns the experiment with settings for a run in one process.

    Each group has one learner; no role is ever silent, so no time-out applies; number of episodes
    and goal of evaluations are those of the serial evaluator, if it has them.
    """
    n_episode, stop_value = evaluation_goal(config)
    changes: dict[str, Any] = {
        "policy.learn.learner.learner_num": 1,
        "env.stop_value": stop_value,
        "env.evaluator_episode_num": math.ceil(n_episode / config.env.evaluator_env_num),
        "system.survival.worker_timeout_s": math.inf,
        "system.coordinator.stop_timeout_s": math.inf,
    }
    commander = config.policy.other.commander
    if isinstance(commander, OneVsOneCommanderConfig):
        changes["policy.learn.learner.learner_num"] = len(commander.league.players)
        changes["policy.other.commander.league.learners"] = {}
    return replaced(config, changes)


def set_threads(policy: PolicyConfig, spaces: Spaces) -> None:
    """Let torch compute by as many threads as are useful, see `useful_threads`, and at most 8.

    Does nothing if the user has set ``OMP_NUM_THREADS``.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        cores = min(len(os.sched_getaffinity(0)), 8)
        torch.set_num_threads(min(cores, useful_threads(policy, spaces.observation)))
