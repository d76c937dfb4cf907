"""`hpcdi serial`: a whole run in this process, from its start to its last snapshot.

The same view shows it as a run over ranks, and its snapshots have the same files and name the
shards that hold the buffer's items.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.comm.messages import SnapshotPart, StopRequest
from hpcdi.config.load import show_notes
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    HpcdiError,
    StoreError,
    state_after,
)
from hpcdi.roles.coordinator.groups import EvaluationClock, Group, Groups, Learners
from hpcdi.roles.coordinator.scheduler import Outcome, Phase, RunState
from hpcdi.roles.coordinator.snapshots import Resumed, SnapshotClock, SnapshotKeeper
from hpcdi.roles.coordinator.view import RunView
from hpcdi.roles.coordinator.workers import Workers
from hpcdi.roles.fault import FAULTS
from hpcdi.roles.learner.checkpointing import SnapshotPartWriter, load_learner
from hpcdi.run import resume, run_folder
from hpcdi.run.experiment import load_experiment
from hpcdi.run.placement import RankPlace
from hpcdi.run.private_folder import own_temporary_folder
from hpcdi.run.request import RunRequest
from hpcdi.run.run_lock import RunLock
from hpcdi.run.serial.parts import PartsMaker, set_threads
from hpcdi.run.serial.pipeline import SerialPipeline
from hpcdi.run.signals import SignalFlag
from hpcdi.store.atomic import load_json, stay_in, write_json
from hpcdi.store.disk_full import DiskPatience, or_warn
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.types import MAIN, Interval, Spaces
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER, close_log, open_log, say


def serial(request: RunRequest) -> int:
    """Train in this process; returns the exit code.

    Raises:
        ConfigError: the experiment is wrong. LaunchError: the run folder cannot be used.
        PolicyError: there is no GPU, and policy.cuda is true.
    """
    source = resume.config_of(request)
    compiled, spaces = load_experiment(source, request.overrides, over_ranks=False)
    config = compiled.config
    from hpcdi.policy.networks import learner_device  # late: torch takes a second to import

    set_threads(spaces)
    learner_device(cuda=config.policy.cuda)  # raises where there is none, before a folder is made
    show_notes([*compiled.notes, *resume.changes(request, config)])
    mode = resume.start_mode(request, config, os.environ)
    layout = RunLayout(resume.folder_of(request, mode, config.exp_name))
    if mode is resume.StartMode.DONE:
        sys.stdout.write(f"hpcdi: {resume.done_line(layout.root)}\n")
        return EXIT_DONE
    with own_temporary_folder(), RunLock(layout), ExitStack() as log:
        stay_in(layout.root)
        placement = [RankPlace(platform.node(), pid=os.getpid(), role="serial")]
        restarts = resume.take(layout, mode, config, placement, mpi="none")
        flag = SignalFlag("shutting down; press Ctrl-C again to end at once")
        flag.install()
        open_log(layout.log_file(0), 0, "serial", restarts)
        log.callback(close_log)
        again = f", restart {restarts}" if restarts else ""
        title = f"one process with {config.env.collector_env_num} environments{again}"
        for line in run_folder.opening(f"{config.exp_name}, {title}", layout):
            say(line)
        return _play(config, spaces, layout, flag, restarts)


def _play(
    config: ExperimentConfig, spaces: Spaces, layout: RunLayout, flag: SignalFlag, restarts: int
) -> int:
    """Build the run, train, say how it ended; returns the exit code."""
    run: SerialRun | None = None
    has_begun = False
    try:
        FAULTS.arm(config.fault, 0, "serial", restarts)
        with _or_left(layout):
            resumed = resume.read_newest(layout, repeats=config.system.deterministic)
        run = SerialRun(config, spaces, layout, restarts, flag.take)
        with run:
            if resumed is not None:
                with _or_left(layout):
                    run.resume(resumed)
                say(f"  resumed      {resumed}")
            has_begun = True
            outcome = run.train()
    except BaseException as error:
        if isinstance(error, StoreError) and not has_begun:  # the run is what it was
            raise
        reason = f"{type(error).__name__}: {error}"
        LOGGER.info("the run failed", exc_info=True)
        if not isinstance(error, HpcdiError):
            traceback.print_exc()
        code = error.exit_code if isinstance(error, HpcdiError) else EXIT_FAILED
        outcome = Outcome("failed", reason, code)
    figures = run.figures() if run is not None else {}
    end = partial(run_folder.end, layout, outcome.state, outcome.reason, outcome.exit_code, figures)
    or_warn("end of the run", end)
    stream = sys.stdout if outcome.exit_code == EXIT_DONE else sys.stderr
    summary = run.summary() if run is not None else []
    for line in run_folder.closing("hpcdi serial", outcome, summary, layout):
        stream.write(line + "\n")
    stream.flush()
    return outcome.exit_code


@contextmanager
def _or_left(layout: RunLayout) -> Iterator[None]:
    """Restore ``run.json`` where the run cannot be resumed."""
    try:
        yield
    except BaseException:
        run_folder.leave(layout)
        raise


class SerialRun(Closing):
    """A run in this process, from its parts to its last snapshot.

    Args:
        config: the experiment.
        spaces: of its environment.
        layout: the run folder.
        restarts: how often the run was resumed: random numbers are others each time.
        take_stop: returns, once, the message that a signal asked for.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        spaces: Spaces,
        layout: RunLayout,
        restarts: int,
        take_stop: Callable[[], StopRequest | None] = lambda: None,
    ) -> None:
        self._config, self._layout, self._take_stop = config, layout, take_stop
        self._settings = resume.NewSettings(layout, config)
        self._stopped: StopRequest | None = None
        self._patience = DiskPatience(
            config.system.storage.disk_patience_s, self._give_up, self._ask_for_stop
        )
        self.view = RunView(
            config, layout, is_terminal=os.isatty(1), role="serial",
            returns=lambda: self.pipeline.parts.collector.recent_returns,
        )  # fmt: skip
        try:
            maker = PartsMaker(config, spaces, self.view.writer, layout, restarts)
            parts = maker.make(self._patience)
        except BaseException:
            self.view.close()
            raise
        keep, keep_data = config.system.keep_snapshots, config.system.storage.keep_data
        self._keeper = SnapshotKeeper(layout, keep, keep_data=keep_data)
        clock = SnapshotClock(config.system.snapshot_s, self._keeper.new)
        replay: Any = parts.replay
        self._main = Group(MAIN, replay, EvaluationClock(Interval("iterations", 1)), Learners(0))
        groups = Groups([self._main])
        self.state = RunState(groups, clock, Workers((), groups))
        self.pipeline = SerialPipeline(
            config, parts, self._keep_best, self._main.evaluations, self.view.meter.mark
        )
        self._parts: deque[tuple[int, SnapshotPart]] = deque()  # written by now
        self._writers = [
            SnapshotPartWriter(layout, partial(self._announce, agent))
            for agent in range(len(parts.agents))
        ]

    def train(self) -> Outcome:
        """Train to the end; returns how it ended."""
        agents = self.pipeline.parts.agents
        self._keeper.keep_beginning(self._state_dict)
        self.state.snapshots.start(time.monotonic())
        for agent in agents:
            agent.learner.call_hook("before_run")
        reason = self.pipeline.run(self._turn)
        if self._stopped is None:
            reason = self.pipeline.evaluate_at_end() or reason
        for agent in agents:
            agent.learner.call_hook("after_run")
        self._patience.hurry()
        self.state.phase = Phase.STOPPING
        or_warn("snapshot", self.save)
        for writer in self._writers:
            writer.close()
        self.state.phase = Phase.FINISHED
        self._look()
        self._keeper.close()
        self._tend_files()
        self._settings.look(time.monotonic(), at_once=True)
        if self._stopped is None:
            return Outcome("done", reason, EXIT_DONE)
        self._ask_for_stop()  # SIGTERM may have come right after SIGINT
        code = self._stopped.exit_code
        return Outcome(state_after(code), self._stopped.reason, code)

    def save(self) -> None:
        """Begin a snapshot; threads write its files while the run goes on.

        Raises:
            StoreError: collected data cannot be written.
        """
        learner = self.pipeline.parts.agents[0].learner
        image = PolicyImage.of(learner.policy.state_dict()["model"], learner.train_iter)
        publish_policy(self._layout.latest_policy, image)
        self.pipeline.parts.replay.flush()
        self._look()
        agents = range(len(self._writers))
        order = self.state.snapshots.take(agents, time.monotonic())
        if order is None:
            return
        facts = {"env_steps": self._main.env_steps, "learners": list(agents)}
        self._keeper.begin(order, self._state_dict(), facts)
        for number, agent in enumerate(self.pipeline.parts.agents):
            own = image if number == 0 else None
            self._writers[number].keep(agent.learner, order, number, own)

    def resume(self, resumed: Resumed) -> None:
        """Resume from a snapshot of a serial run or of one over ranks.

        Raises:
            StoreError: it cannot be read, or does not fit the present configuration.
        """
        parts, state = self.pipeline.parts, resumed.state
        if resumed.folder:
            for number, agent in enumerate(parts.agents):
                load_learner(agent.learner, self._layout.inside(resumed.folder), agent=number)
        self.state.load_state_dict(state, resumed.published)
        for path in resumed.after:
            self.state.note_block(resumed.published[path])
        main = self._main
        steps = main.env_steps + resumed.later
        begun = main.evaluation.state_dict() or [0, -1]  # the next evaluation is counted from there
        samples = state.get("serial", {"samples": steps})["samples"]
        parts.collector.totals = {
            "envstep": steps,
            "train_sample": samples,
            "episode": main.episodes + resumed.later_episodes,
        }
        self.pipeline.evaluated_steps, self.pipeline.evaluated_at = begun
        if self.pipeline.evaluated_at >= 0:
            parts.evaluator.should_eval(self.pipeline.evaluated_at)
        # the file of the best policy may be newer than the snapshot
        known = (main.best if np.isfinite(main.best) else None, _read_best(self._best_file))
        parts.evaluator.best = max((best for best in known if best is not None), default=None)
        self._keeper.adopt(resumed)
        self._count()

    def summary(self) -> list[str]:
        """Returns closing lines for people."""
        return self.view.summary(self.state)

    def figures(self) -> dict[str, Any]:
        """Returns closing figures for programs: plain data."""
        self.pipeline.parts.replay.take_published()  # as it was closed
        self._count()
        return self.view.figures(self.state)

    def close(self) -> None:
        """Close environments, buffers and curves. Idempotent."""
        parts = self.pipeline.parts
        for writer in self._writers:
            writer.close()
        for agent in parts.agents:
            agent.learner.close()
        parts.replay.close()
        parts.collector.close()
        parts.evaluator.close()
        self._keeper.close()
        self.view.close()

    def _turn(self) -> str | None:
        """Do what is due between two turns of the loop; returns a reason to end the run."""
        self._look()
        now = time.monotonic()
        self._settings.look(now)
        FAULTS.reach(self.pipeline.env_steps)
        if self.state.snapshots.is_due(now):
            or_warn("snapshot", self.save)
        self._ask_for_stop()
        return self._stopped.reason if self._stopped is not None else None

    def _look(self) -> None:
        """Show the run, and take what threads have written."""
        for ready in self.pipeline.parts.replay.take_published():
            self._keeper.published(ready.shard.path)
            self.state.note_block(ready)
            self.view.observe(0, ready)
        self._count()
        while self._parts:
            self.state.snapshots.part(*self._parts.popleft())
        self._tend_files()
        self.view.look(self.state)

    def _tend_files(self) -> None:
        """Finish snapshots, and remove shards that nobody needs."""
        self._keeper.drop(self._main.replay.take_freed())
        for result in self._keeper.tend(self.state.snapshots.take_complete()):
            self.view.snapshot(result, self.state)

    def _count(self) -> None:
        parts, main = self.pipeline.parts, self._main
        main.env_steps = parts.collector.totals["envstep"] - parts.replay.unpublished
        main.episodes = parts.collector.totals["episode"]
        main.train_iter = self.pipeline.train_iter

    def _ask_for_stop(self) -> None:
        """Keep a signal's request; also called while the disk is full."""
        request = self._take_stop()
        if request is not None and (
            self._stopped is None or self._stopped.exit_code == EXIT_INTERRUPTED
        ):
            self._stopped = request
            self._patience.hurry()

    def _give_up(self, reason: str) -> None:
        if self._stopped is None:
            self._stopped = StopRequest(reason, EXIT_REQUEUE)
        self._patience.hurry()

    def _announce(self, agent: int, part: SnapshotPart) -> None:
        self._parts.append((agent, part))

    def _state_dict(self) -> dict[str, Any]:
        """Returns rank 0's part of a snapshot, as of a run over ranks, and ``serial``."""
        main, pipeline = self._main, self.pipeline
        best = pipeline.parts.evaluator.best
        main.best = float("-inf") if best is None else best
        if pipeline.evaluated_at >= 0:
            main.evaluation.begin(pipeline.evaluated_steps, pipeline.evaluated_at, 0.0)
        main.evaluated_iter = max(pipeline.evaluated_at, 0)
        serial = {"samples": pipeline.parts.collector.totals["train_sample"]}
        return {**self.state.state_dict(), "plan": {}, "commander": {}, "serial": serial}

    def _keep_best(self, name: str) -> None:
        """Keep the policy that is judged, which is the first agent's."""
        learner = self.pipeline.parts.agents[0].learner
        learner.save_checkpoint(name)

        def publish() -> None:
            image = PolicyImage.of(learner.policy.state_dict()["model"], learner.train_iter)
            publish_policy(self._layout.best_policy, image)
            write_json(self._best_file, {"reward_mean": self.pipeline.parts.evaluator.best})

        or_warn("file of the best policy", publish)

    @property
    def _best_file(self) -> Path:
        return self._layout.best_policy.with_suffix(".json")


def _read_best(path: Path) -> float | None:
    """Returns the mean return of the best policy; None: it is not known."""
    try:
        return float(load_json(path)["reward_mean"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
