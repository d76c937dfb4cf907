"""The user's callbacks on rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.comm.messages import CollectProgress, LearnInfo, Message, StopRequest
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import EXIT_DONE
from hpcdi.roles.callbacks import COORDINATOR, Callbacks, Context
from hpcdi.roles.coordinator.scheduler import Scheduler
from hpcdi.roles.coordinator.workers import Notice
from hpcdi.store.layout import RunLayout
from hpcdi.types import MAIN, ScalarWriter
from hpcdi.utils.lifetime import Closing


class OfUser(Closing):
    """Calls `hpcdi.roles.callbacks` that run on rank 0, of the main group's players.

    Args:
        config: the experiment.
        layout: the run folder.
        curves: takes what they log.
        run: the scheduler.
    """

    def __init__(
        self, config: ExperimentConfig, layout: RunLayout, curves: ScalarWriter, run: Scheduler
    ) -> None:
        self._run, self._curves, self._evaluations = run, curves, 0
        context = self._context = Context(config, 0, COORDINATOR, layout.root)
        choose = getattr(getattr(run.commander, "curriculum", None), "choose", None)
        self._callbacks = Callbacks(context, self._add_scalar, choose)

    def begin(self) -> None:
        """The run begins."""
        self._call("on_start")

    def observe(self, message: Message | Notice) -> None:
        """A message is about to be handled: episodes, and reports of updates."""
        match message:
            case CollectProgress() if message.player == MAIN:
                for info in message.episodes():
                    self._call("on_episode", info)
            case LearnInfo() if message.player == MAIN:
                self._call("on_update", message.scalars)

    def look(self) -> StopRequest | None:
        """Tell them of new evaluations; returns the end that one asks for."""
        evaluations = self._run.groups.main.evaluations
        for evaluation in evaluations[self._evaluations :]:
            self._call("on_evaluation", evaluation)
        self._evaluations = len(evaluations)
        reason = self._callbacks.take_stop()
        return StopRequest(reason, EXIT_DONE) if reason else None

    def end(self) -> None:
        """The run has ended in order."""
        self._call("on_end")

    def snapshot(self) -> dict[str, Any]:
        """Returns their states for a snapshot."""
        self._call("on_snapshot")
        return self._callbacks.state_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `snapshot` returned."""
        self._callbacks.load_state_dict(state)

    def close(self) -> None:
        """Write out what they have logged. Idempotent."""
        self._callbacks.close()

    def _add_scalar(self, name: str, value: float) -> None:
        self._curves.add_scalar(name, value, self._context.env_steps)

    def _call(self, method: str, *arguments: Any) -> None:
        if len(self._callbacks):
            groups = self._run.groups
            self._context.env_steps = groups.env_steps
            self._context.train_iter = groups.main.train_iter
            self._callbacks.call(method, *arguments)
