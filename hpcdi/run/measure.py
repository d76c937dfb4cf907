"""Measures what a run's parts cost, by a short run in one process, see `hpcdi.run.forecast`."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from hpcdi.comm.messages import StopRequest
from hpcdi.config.fields import replaced
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.run.forecast import Costs
from hpcdi.run.private_folder import own_folder
from hpcdi.run.serial import LocalRun, set_threads
from hpcdi.store.layout import RunLayout
from hpcdi.types import Spaces

_SETTLED_S = 1.0
"""Seconds of learning before it is measured: what is made at first use is made then."""
_LONGEST_START_S = 60.0


def measure(config: ExperimentConfig, spaces: Spaces, seconds: float) -> Costs:
    """Run an experiment for a while in one process, and return what its parts cost.

    Nothing is left of the run.

    Args:
        config: the experiment.
        spaces: its environment's.
        seconds: of learning that are measured.

    Raises:
        LaunchError: its environments are MPI programs, or its data are given; learning has not
            begun after a minute, or the run has failed.
    """
    if isinstance(config.env, MpiEnvConfig) or config.data:
        what = "data are given" if config.data else "environments are MPI programs"
        raise LaunchError(f"an experiment whose {what} is not measured: look at a short run of it")
    commander = config.policy.other.commander
    limits = [name for name in ("max_env_step", "max_train_iter") if hasattr(commander, name)]
    endless = {
        "env.stop_value": math.inf,
        "policy.eval.every": "1e9 seconds",
        **{f"policy.other.commander.{name}": math.inf for name in limits},
        "callbacks": (),
        "system.loggers": (),
    }
    set_threads(config.policy, spaces)
    with own_folder() as folder:
        layout = RunLayout(folder / "run")
        layout.root.mkdir()
        with (
            Path(os.devnull).open("w") as nothing,
            contextlib.redirect_stdout(nothing),
            LocalRun(replaced(config, endless), layout) as run,
        ):
            watch = _Watch(run, seconds)
            outcome = run.play(watch.look)
        if watch.costs is None:
            raise LaunchError(f"nothing could be measured: {outcome.reason}")
        return watch.costs


class _Watch:
    """Looks at a run, and ends it when it has been seen for long enough.

    Its turns are timed. It is seen from one train iteration to another: what each of them takes is
    counted whole.
    """

    def __init__(self, run: LocalRun, seconds: float) -> None:
        self.costs: Costs | None = None
        self._run, self._seconds, self._begun = run, seconds, time.monotonic()
        self._before: dict[str, float] | None = None
        self._since, self._updates = math.inf, 0.0
        self._collecting, self._learning = Timed(run.collector.turn), Timed(run.learners[0].turn)
        setattr(run.collector, "turn", self._collecting)  # noqa: B010 (a method, for once)
        setattr(run.learners[0], "turn", self._learning)  # noqa: B010

    def look(self) -> StopRequest | None:
        """Called between turns; returns, once it is measured, that the run shall end."""
        now = time.monotonic()
        if self.costs is not None:
            return None
        counts = self._counts()
        if not counts["updates"]:
            if now - self._begun > _LONGEST_START_S:
                return StopRequest("learning has not begun after a minute", EXIT_DONE)
            return None
        if counts["updates"] == self._updates:
            return None
        self._updates = counts["updates"]
        if self._since == math.inf:
            self._since = now
        if self._before is None and now - self._since > _SETTLED_S:
            self._before, self._since = counts, now
        if self._before is None or now - self._since < self._seconds:
            return None
        spent = {name: count - self._before[name] for name, count in counts.items()}
        if spent["steps"] <= 0:
            return None
        self.costs = Costs(
            max(spent["collecting_s"], spent["collecting_cpu_s"]) / spent["steps"],
            spent["collecting_cpu_s"] / spent["steps"],
            spent["learning_cpu_s"] / spent["updates"],
            spent["updates"] / spent["steps"],
        )
        return StopRequest("it is measured", EXIT_DONE)

    def _counts(self) -> dict[str, float]:
        groups, used = self._run.coordinator.groups, self._run.collector.meter.seconds
        return {
            "steps": groups.env_steps,
            "updates": groups.main.train_iter,
            "collecting_s": math.fsum(used.get(name, 0.0) for name in ("env", "policy", "record")),
            "collecting_cpu_s": self._collecting.cpu_s,
            "learning_cpu_s": self._learning.cpu_s,
        }


class Timed:
    """A role's turn, whose time on a core is added up.

    Attributes:
        cpu_s: seconds so far.
    """

    def __init__(self, turn: Callable[[float], bool]) -> None:
        self._turn, self.cpu_s = turn, 0.0

    def __call__(self, now: float) -> bool:
        """Let the role have its turn."""
        began = time.thread_time()
        try:
            return self._turn(now)
        finally:
            self.cpu_s += time.thread_time() - began
