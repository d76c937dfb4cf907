"""DQN that writes down when it updates; for `learner_runs`, imported by the ranks of its runs."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdi.policy.dqn import DQNPolicy
from hpcdi.utils.registry import POLICY_REGISTRY

FOLDER_VARIABLE = "TIMED_POLICY_FOLDER"
ROW = struct.Struct("dddd")
"""Of an update: when it began and ended, seconds in which it was at the mean gradient, and seconds
before it in which the learner waited for its batch."""


@POLICY_REGISTRY.register("timed_dqn")
class TimedDQN(DQNPolicy):
    """Writes a `ROW` an update to ``learner<n>`` in the folder that the variable names."""

    @dataclass(frozen=True)
    class Config(DQNPolicy.Config):
        """No settings of its own."""

        type: str = "timed_dqn"

    def _init_learn(self) -> None:
        from hpcdi.comm.gradients import GradientSync
        from hpcdi.comm.group import get_rank
        from hpcdi.roles.learner.role import Learner

        super()._init_learn()
        self._file = (Path(os.environ[FOLDER_VARIABLE]) / f"learner{get_rank()}").open("ab")
        self._spent: dict[str, float] = {}
        GradientSync.finish = self._timed("together", GradientSync.finish)
        Learner.wait = self._timed("waiting", Learner.wait)

    def _timed(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method that books its seconds."""

        def timed(*given: Any) -> Any:
            start = time.perf_counter()
            result = method(*given)
            self._spent[what] = self._spent.get(what, 0.0) + time.perf_counter() - start
            return result

        return timed

    def _forward_learn(self, data: Any, **kwargs: Any) -> dict[str, Any]:
        start = time.perf_counter()
        info = super()._forward_learn(data, **kwargs)
        spent = [self._spent.pop(what, 0.0) for what in ("together", "waiting")]
        self._file.write(ROW.pack(start, time.perf_counter(), *spent))
        self._file.flush()
        return info
