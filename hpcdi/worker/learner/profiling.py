"""Where a learner's time goes: a trace of some iterations, for chrome://tracing or Perfetto."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from hpcdi.store.atomic import temporary_beside
from hpcdi.utils.log import LOGGER
from hpcdi.worker.learner.builtin_hook import BuiltinHook
from hpcdi.worker.learner.learner_hook import (
    LearnerHook,
    register_learner_hook,
    simplified_hook_mapping,
)


class ProfilerHook(BuiltinHook):
    """Traces some iterations by torch.profiler, once.

    Every learner of a group writes one, to ``profile/rank<rank>.json`` beside the checkpoints'
    folder: what a run does not get to is left out of it. One process traces one thing at a time.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: after iterations.
        ext_args: iterations: ``wait`` without a trace, then ``warmup`` (traced, and thrown away:
            the first ones are slow by it), then ``active`` in the trace.

    Raises:
        ValueError: a number of iterations is too small.
    """

    usual_name = "profiler"
    positions: ClassVar[list[str]] = ["after_iter"]
    args = ("wait", "warmup", "active")
    _busy: ClassVar[list[ProfilerHook]] = []

    def __init__(
        self,
        name: str | None = None,
        priority: float | None = None,
        *,
        position: str | None = None,
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position=position, ext_args=ext_args)
        given = {"wait": 10, "warmup": 1, "active": 3, **(ext_args or {})}
        self._wait, self._warmup, self._active = (int(given[arg]) for arg in self.args)
        for arg, least in (("wait", 0), ("warmup", 1), ("active", 1)):
            if int(given[arg]) < least:
                raise ValueError(f"{arg} must be at least {least}, not {given[arg]}")
        self._seen = 0
        self._profiler: Any = None

    def __call__(self, engine: Any) -> None:
        """An iteration has ended."""
        self._seen += 1
        if self._profiler is not None:
            self._profiler.step()
            if self._seen > self._wait + self._warmup + self._active:
                self.close()
        elif self._seen == self._wait + 1:
            self._begin(engine)

    def close(self) -> None:
        """Write what has been traced, if it has begun and not ended."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            self._busy.remove(self)
            profiler.stop()

    def _begin(self, engine: Any) -> None:
        if self._busy:
            LOGGER.warning("another learner of this process is being profiled; this one is not")
            return
        from torch.profiler import profile, schedule

        instance = "" if engine.instance_name == "learner" else f"{engine.instance_name}_"
        path = engine.ckpt_dir.parent / "profile" / f"{instance}rank{engine.rank}.json"
        self._profiler = profile(
            schedule=schedule(wait=0, warmup=self._warmup, active=self._active, repeat=1),
            on_trace_ready=lambda profiler: _write(profiler, path),
        )
        self._busy.append(self)
        self._profiler.start()


def _write(profiler: Any, path: Path) -> None:
    """Write a trace; a disk that is full is told, and does not end the run."""
    aside = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(aside))
        aside.replace(path)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        LOGGER.warning("no trace could be written to %s: %s", path, error)


def _after(value: Any) -> LearnerHook | None:
    """A profiler that waits for so many iterations; true: for the usual number."""
    if not value:
        return None
    if not isinstance(value, int):
        raise TypeError(f"must be a number of iterations to wait, or false, not {value!r}")
    return ProfilerHook(ext_args={} if value is True else {"wait": value})


register_learner_hook("profiler", ProfilerHook)
simplified_hook_mapping["profile_after_iter"] = _after
