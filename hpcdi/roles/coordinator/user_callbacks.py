"""The user's callbacks on rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.comm.messages import CollectProgress, LearnInfo, Message
from hpcdi.config.schema import ExperimentConfig
from hpcdi.roles.callbacks import COORDINATOR, Callbacks, Context
from hpcdi.roles.coordinator.scheduler import Scheduler
from hpcdi.roles.coordinator.view import RunRecord
from hpcdi.roles.coordinator.workers import Evaluated, Notice
from hpcdi.store.layout import RunLayout
from hpcdi.types import MAIN
from hpcdi.utils.lifetime import Closing


class UserCallbacks(Closing):
    """Calls `hpcdi.roles.callbacks` that run on rank 0, of the main group's players.

    Args:
        config: the experiment.
        layout: the run folder.
        curves: takes what they log.
        run: the scheduler.
    """

    def __init__(
        self, config: ExperimentConfig, layout: RunLayout, curves: RunRecord, run: Scheduler
    ) -> None:
        self._run, self._curves = run, curves
        context = self._context = Context(config, 0, COORDINATOR, layout.root)
        self._callbacks = Callbacks(context, self._add_scalar, run.commander.curriculum.choose)

    def begin(self) -> None:
        """The run begins."""
        self._call("on_start")

    def observe(self, message: Message | Notice) -> None:
        """Tell them of episodes, updates and evaluations, before anything follows from these.

        So the tasks that follow have what a callback sets.
        """
        match message:
            case Evaluated():
                self._call("on_evaluation", message.evaluation)
            case CollectProgress() if message.player == MAIN:
                for info in message.episodes():
                    self._call("on_episode", info)
            case LearnInfo() if message.player == MAIN:
                self._call("on_update", message.scalars)

    def take_stop(self) -> str:
        """Returns why one of them wants the run to end; empty: none does."""
        return self._callbacks.take_stop()

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
        self._curves.add_scalar(name, value, self._context.step)

    def _call(self, method: str, *arguments: Any) -> None:
        if len(self._callbacks):
            context, groups = self._context, self._run.groups
            context.env_steps, context.train_iter = groups.env_steps, groups.main.train_iter
            context.step = self._curves.axis(context.train_iter, context.env_steps)
            self._callbacks.call(method, *arguments)
