"""The user's callbacks on a learner, as one callback of its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcdi.comm.messages import Message, StopRequest
from hpcdi.errors import EXIT_DONE
from hpcdi.policy.base import owner_of
from hpcdi.roles.callbacks import LEARNER, Callbacks, Context
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.learner.training import Log, Training, TrainingCallback
from hpcdi.utils.metrics import as_scalar


class UserCallbacks(TrainingCallback):
    """Calls `hpcdi.roles.callbacks` that run on learners.

    Args:
        place: the learner's place in the run.
        send: sends a message to rank 0.
    """

    priority = 15  # before the log is shown
    needs_monitor = True

    def __init__(self, place: WorkerContext, send: Callable[[Message], None]) -> None:
        context = Context(place.config, place.link.rank, LEARNER, place.layout.root)
        self._training: Training | None = None
        self._send = send
        self._callbacks = Callbacks(context, self._add_scalar)

    def _add_scalar(self, name: str, value: float) -> None:
        if self._training is not None and self._training.monitor is not None:
            self._training.monitor.put(name, value, 1)

    def _know(self, training: Training) -> None:
        context, self._training = self._callbacks.context, training
        context.train_iter = context.step = training.train_iter
        context.env_steps = training.env_steps
        if context.policy is not training.policy:
            context.policy = training.policy
            context.network = getattr(owner_of(training.policy), "_model", None)

    def _call(self, training: Training, method: str, *arguments: Any) -> None:
        self._know(training)
        self._callbacks.call(method, *arguments)
        if reason := self._callbacks.take_stop():
            self._send(StopRequest(reason, EXIT_DONE))

    def on_start(self, training: Training) -> None:
        """See `TrainingCallback.on_start`; and so on."""
        training.load_named()  # later it would undo what they do
        self._call(training, "on_start")

    def on_batch(self, training: Training) -> None:
        """Before an update."""
        self._call(training, "on_batch")

    def on_update(self, training: Training, log: Log) -> None:
        """After an update."""
        numbers = {name: as_scalar(value) for name, value in log.items()}
        scalars = {name: number for name, number in numbers.items() if number is not None}
        self._call(training, "on_update", scalars)

    def on_snapshot(self, training: Training) -> None:
        """Before a snapshot."""
        self._call(training, "on_snapshot")

    def on_end(self, training: Training) -> None:
        """After the last update."""
        self._call(training, "on_end")

    def state_dict(self) -> dict[str, Any]:
        """The states of all of them."""
        return self._callbacks.state_dict() if len(self._callbacks) else {}

    def load_state_dict(self, training: Training, state: Mapping[str, Any]) -> None:
        """Restore them, and what they have set."""
        self._know(training)
        self._callbacks.load_state_dict(state)

    def close(self) -> None:
        """Write out what they have logged."""
        self._callbacks.close()
