"""One call of a serial collector: its steps, and what is to be said of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from hpcdi.errors import EnvError
from hpcdi.types import Array
from hpcdi.worker.collector.rollout import RolloutForm, rollout
from hpcdi.worker.collector.stats import CollectReport


class Session:
    """One call of `collect`: its steps, and what is to be said of it.

    Args:
        env: the environments.
        form: how to step.
        setting: keyword arguments of the policy, or a list of them, one for each policy.
        act: see `rollout`.
    """

    def __init__(self, env: Any, form: RolloutForm, setting: Any = None, act: Any = None) -> None:
        self.env_steps = 0
        self._env, self._form, self._act = env, form, act
        self._setting = setting or {}
        self._began = time.perf_counter()

    def steps(self) -> Iterator[int]:
        """Step without end; gives the transitions of each step.

        Raises:
            EnvError: the environments have done all their episodes, but more is to be collected.
        """
        for count in rollout(self._form, self._setting, self._act):
            self.env_steps += count
            yield count
            if not count and getattr(self._env, "done", False):
                raise EnvError("the environments are done: the manager's episode_num is too low")

    def report(self, report: CollectReport, samples: int, train_iter: int) -> tuple[Array, Array]:
        """Count what was done; gives returns and lengths of the episodes that ended."""
        returns, lengths = self._form.take_episodes()
        counts = {"envstep": self.env_steps, "train_sample": samples, "episode": len(returns)}
        report.add(counts, time.perf_counter() - self._began, returns)
        report.show(train_iter)
        return returns, lengths
