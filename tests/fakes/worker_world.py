"""A world of threads around one worker: the test plays the coordinator, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpcdi.comm.link import LocalWorld
from hpcdi.comm.messages import Goodbye, Leave, Message, Stop
from hpcdi.config.compiled import compile_config
from hpcdi.roles.context import WorkerContext
from hpcdi.store.layout import RunLayout
from hpcdi.types import MAIN
from hpcdi.utils.threads import BackgroundThread

M = TypeVar("M", bound=Message)

COORDINATOR, LEARNER, COLLECTOR = 0, 1, 2
LIMIT_S = 30.0  # nothing here takes long; a wait that lasts so long has failed
LENGTH = 5  # of an episode


def experiment(**sections: Mapping[str, Any]) -> Any:
    """A small DQN experiment on `CountEnv`; `sections` are merged over ``env, policy, system``."""
    env = {
        "type": "gymnasium", "import_names": ["hpcdi.env.toy"], "env_id": "hpcdi/Count-v0",
        "kwargs": {"length": LENGTH}, "collector_env_num": 2, "evaluator_env_num": 3,
    }  # fmt: skip
    policy = {
        "type": "dqn",
        "model": {"obs_shape": 2, "action_shape": 2, "encoder_hidden_size_list": [4]},
        "learn": {"batch_size": 4},
        "collect": {"n_sample": 5, "collector": {"update_policy_second": 0.0}},
        "other": {"replay_buffer": {"replay_buffer_size": 400}},
    }
    parts = {
        "env": {**env, **sections.get("env", {})},
        "policy": {**policy, **sections.get("policy", {})},
        "system": sections.get("system", {}),
    }
    return compile_config({"exp_name": "test", **parts}).config


def end(worker: Any) -> None:
    """Stop the thread and the watchdog of a worker that has not closed: it failed, or never ran."""
    worker.pump.close()
    worker._watchdog.close()


class Script:
    """The other ranks of a worker's world.

    Args:
        root: becomes the run folder.
        config: the experiment.
        rank: the worker's.
    """

    def __init__(self, root: Path, config: Any, rank: int) -> None:
        self.world = LocalWorld(3)
        self.rank = rank
        self.layout = RunLayout(root)
        self.context = WorkerContext(
            config,
            self.layout,
            self.world.link(rank),
            np.random.SeedSequence(0),
            {MAIN: (LEARNER,)},
        )
        self.log: list[Message] = []  # all that came to rank 0, in order
        self._awaited = 0  # so many of them have been looked at by `hear`
        self.answer: Callable[[], None] = lambda: None

    def tell(self, message: Message, sender: int = COORDINATOR) -> None:
        """Send the worker a message."""
        self.world.link(sender).send(self.rank, message)

    def hear(self, kind: type[M], worker: BackgroundThread | None = None) -> M:
        """The next message of a class to rank 0; passes over others before it."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            while self._awaited < len(self.log):
                message = self.log[self._awaited]
                self._awaited += 1
                if isinstance(message, kind):
                    return message
            self.look()
            if worker is not None:
                worker.check()
        raise AssertionError(f"rank {self.rank} has sent no {kind.__name__}")

    def until(self, is_so: Callable[[], bool], worker: BackgroundThread) -> None:
        """Play on until something is so."""
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < deadline, "it has not come to be so"
            self.look()
            worker.check()

    def look(self) -> None:
        """Take what has come to rank 0; `answer` plays the third rank."""
        self.answer()
        arrived = self.world.link(COORDINATOR).receive(0.01)
        assert all(sender == self.rank for sender, _ in arrived)
        self.log += [message for _, message in arrived]

    def all_of(self, kind: type[M]) -> list[M]:
        """All messages of a class that have come to rank 0."""
        return [message for message in self.log if isinstance(message, kind)]

    @contextmanager
    def running(self, worker: Any) -> Iterator[BackgroundThread]:
        """`worker.run()` on its own thread; at the end it is told to leave, whatever happened."""
        thread = BackgroundThread(worker.run, "worker")
        try:
            yield thread
        finally:
            self.tell(Stop("the test ends"))
            deadline = time.monotonic() + LIMIT_S
            has_left = False
            while thread.is_alive and time.monotonic() < deadline:
                self.look()
                if not has_left and self.all_of(Goodbye):
                    self.tell(Leave(1))
                    has_left = True
            end(worker)
        assert not thread.is_alive, "the worker did not leave"
