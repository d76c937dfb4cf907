"""The user's callbacks on a collector."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hpcdi.comm.messages import CollectProgress, Message, StopRequest
from hpcdi.errors import EXIT_DONE
from hpcdi.roles.callbacks import COLLECTOR, Callbacks, Context
from hpcdi.roles.context import WorkerContext
from hpcdi.store.atomic import read_json, write_json
from hpcdi.store.disk_full import or_warn
from hpcdi.types import MAIN
from hpcdi.utils.lifetime import Closing

_WRITE_S = 5.0


class UserCallbacks(Closing):
    """Calls `hpcdi.roles.callbacks` that run on collectors, of the main player's episodes.

    A collector is no part of snapshots: its callbacks' states are in a file of its rank, some
    seconds old at most, which a resumed run begins with.

    Args:
        place: the collector's place in the run.
        send: sends a message to rank 0.
    """

    def __init__(self, place: WorkerContext, send: Callable[[Message], None]) -> None:
        rank = place.link.rank
        context = Context(place.config, rank, COLLECTOR, place.layout.root)
        self._callbacks = Callbacks(context, context.add_scalar)
        self._send, self._file = send, place.layout.callbacks_file(rank)
        self._is_resumed, self._is_begun, self._written_at = place.restarts > 0, False, 0.0

    def begin(self) -> None:
        """The rank is ready."""
        if self._callbacks and self._is_resumed and self._file.is_file():
            held = read_json(self._file)
            self._callbacks.load_state_dict(held)
            self._callbacks.context.env_steps = int(held["env_steps"])
        self._is_begun = True
        self._call("on_start")

    def observe(self, message: Message) -> None:
        """A report goes to rank 0: call them for its episodes."""
        if not self._callbacks or not isinstance(message, CollectProgress):
            return
        if message.player != MAIN:
            return
        context = self._callbacks.context
        context.train_iter = context.step = message.policy_version
        for info in message.episodes():
            context.env_steps += int(info["length"])
            self._call("on_episode", info)
        if time.monotonic() - self._written_at > _WRITE_S:
            self._write()

    def end(self) -> None:
        """The run ends in order. Idempotent."""
        if self._is_begun:
            self._is_begun = False
            self._call("on_end")
            self._write()

    def close(self) -> None:
        """Write out what they have logged. Idempotent."""
        self._callbacks.close()

    def _call(self, method: str, *arguments: Any) -> None:
        self._callbacks.call(method, *arguments)
        if reason := self._callbacks.take_stop():
            self._send(StopRequest(reason, EXIT_DONE))

    def _write(self) -> None:
        """Write their states; a full disk is only a warning.

        Raises:
            CallbackError: a callback's state holds what is no plain data.
        """
        if not self._callbacks:
            return
        context = self._callbacks.context
        states = {**self._callbacks.state_dict(), "env_steps": context.env_steps}
        or_warn("state of callbacks", lambda: write_json(self._file, states))
        self._written_at = time.monotonic()
