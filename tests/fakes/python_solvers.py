"""Solvers in Python for `solver_job`."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces


class Counter:
    """Of nothing: {sum of actions, step, seed, ranks}, as ``solvers/counter.c``.

    Args:
        at: the step at which something goes wrong; -1: none.
        how: what.
        culprit: the rank of the group where it does.
        only: the environment where it does; -1: in all.
        length: steps of an episode.
        index: number of the environment.
        once: a file that is made where something goes wrong; once it is there, nothing does.
        after: episodes in which nothing goes wrong.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,))
    action_space = spaces.Box(-1, 1, (2,))

    def __init__(
        self, at: int = -1, how: str = "", culprit: int = 0, length: int = 1_000_000,
        index: int = -1, only: int = -1, once: str = "", after: int = 0,
    ) -> None:  # fmt: skip
        how = how if only in (-1, index) else ""
        self._right = after + 1
        self._once = Path(once) if once and how else None
        self._at, self._how, self._culprit, self._length = at, how, culprit, length
        self._sum, self._steps, self._seed = 0.0, 0, 0
        print(f"environment {index} on {os.environ.get('SLURMD_NODENAME')}", flush=True)

    def reset(self, seed: int, comm: Any, state: str = "") -> Any:
        """Begin an episode."""
        self._sum, self._steps, self._seed = 0.0, 0, seed
        self._right -= 1
        print(f"episode {seed} {state}", flush=True)
        return self._seen(comm), {}

    def step(self, action: Any, comm: Any) -> Any:
        """Add up."""
        self._steps += 1
        is_due = self._steps == self._at and self._right <= 0
        if is_due and comm.Get_rank() == self._culprit:
            self._go_wrong(comm)
        self._sum += comm.allreduce(float(action.sum()) / comm.Get_size())
        return self._seen(comm), -self._steps, False, self._steps >= self._length, {
            "steps": self._steps, "text": "no number",
        }  # fmt: skip

    def close(self, comm: Any) -> None:
        """Say so."""
        print(f"closed on {comm.Get_size()} ranks", flush=True)

    def _seen(self, comm: Any) -> Any:
        return np.array([self._sum, self._steps, self._seed, comm.Get_size()])

    def _go_wrong(self, comm: Any) -> None:
        if self._once is not None:
            if self._once.exists():
                return
            self._once.touch()
        _WRONG[self._how](self, comm)


def _raise(_solver: Counter, _comm: Any) -> None:
    raise RuntimeError("the grid is torn")


def _exit(_solver: Counter, _comm: Any) -> None:
    raise SystemExit(5)


def _abort_world(_solver: Counter, _comm: Any) -> None:
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(3)


def _nan(solver: Counter, _comm: Any) -> None:
    solver._sum = np.nan


_WRONG: dict[str, Callable[[Counter, Any], None]] = {
    "": lambda *_: None, "raise": _raise, "exit": _exit, "nan": _nan, "abort world": _abort_world,
    "abort": lambda _, comm: comm.Abort(3),
    "abort part": lambda _, comm: comm.Split(0).Abort(3),
    "os._exit": lambda *_: os._exit(5),
    "exit in C": lambda *_: ctypes.CDLL(None).exit(5),
    "kill": lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda *_: time.sleep(3600),
}  # fmt: skip


class Wide(Counter):
    """Its actions are beyond MPI's eager limit; no rank waits for another, and rank 0 returns."""

    action_space = spaces.Box(-1, 1, (3000,))

    def step(self, action: Any, comm: Any) -> Any:
        """Count."""
        self._steps += 1
        if self._steps == self._at and comm.Get_rank() == self._culprit:
            self._go_wrong(comm)
        if comm.Get_rank() != 0:
            return None
        return self._seen(comm), 1.0, False, False, {f"x={k}/drag": k for k in range(300)}


class Parts(Counter):
    """The same, with the observation assembled from all ranks: two numbers of each."""

    assembled = True

    def _seen(self, comm: Any) -> Any:
        return np.array([comm.Get_rank(), self._steps])


class Controlled:
    """Discrete and nested spaces."""

    observation_space = spaces.Dict(
        {"speed": spaces.Box(-1, 1, (2, 2), np.float32), "gear": spaces.Discrete(5, start=-1)}
    )
    action_space = spaces.Dict(
        {"gear": spaces.Discrete(5, start=-1), "jets": spaces.Box(-1, 1, (2,))}
    )

    def reset(self, seed: int, comm: Any) -> Any:
        """Begin an episode."""
        return {"speed": np.zeros((2, 2)), "gear": -1}, {}

    def step(self, action: Any, comm: Any) -> Any:
        """Shift."""
        speed = np.full((2, 2), action["jets"].sum())
        return {"speed": speed, "gear": action["gear"]}, 1.0, False, False, {}


class Controller:
    """What ``solvers/coupled.c`` couples itself to."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Box(-1e9, 1e9, (2,))

    def reset(self, seed: int, comm: Any) -> Any:
        """Begin anew."""
        return self._asked(5, comm), {}

    def step(self, action: Any, comm: Any) -> Any:
        """Act."""
        seen = self._asked(3, comm, np.asarray(action, float))
        return seen, float(seen[0]), False, False, {}

    def close(self, comm: Any) -> None:
        """Let it end."""
        comm.Ssend(np.zeros(1, np.int32), 1, 1)

    def _asked(self, code: int, comm: Any, action: Any = None) -> Any:
        comm.Ssend(np.full(1, code, np.int32), 1, 1)
        if action is not None:
            comm.Ssend(action, 1, 3)
        seen = np.empty(2)
        comm.Probe(1, 4)
        comm.Recv(seen, 1, 4)
        return seen
