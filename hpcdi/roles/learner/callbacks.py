"""Callbacks of a training that a configuration names, and those by which a rank talks to others.

A new one is a `TrainingCallback` here with a line in `CALLBACKS`. Hooks of DI-engine's form, which
are whole mappings in a configuration, are callbacks too: `HOOK_REGISTRY` has their types.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from hpcdi.config.compat import ConfigDict, SettingError
from hpcdi.config.fields import convert
from hpcdi.errors import Problem, UnknownTypeError
from hpcdi.roles.learner.checkpointing import FINAL, path_problem
from hpcdi.roles.learner.training import Log, Training, TrainingCallback
from hpcdi.store.atomic import make_folders, written_aside
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import CHART, CurveWriter, split_charts
from hpcdi.utils.nested import as_array, is_like_tensor
from hpcdi.utils.registry import HOOK_REGISTRY

LOG_EVERY_S = 1.0


class Periodic(TrainingCallback):
    """Acts every so many iterations.

    Args:
        every: iterations; 0: never, but perhaps at the start or the end.

    Attributes:
        every_s: acts after so many seconds as well, for long iterations.
    """

    every_s: float = float("inf")

    def __init__(self, every: int) -> None:
        self.every = every
        self._acted = time.monotonic()

    def is_due(self, train_iter: int) -> bool:
        """Returns whether it is time; that counts as having acted."""
        now = time.monotonic()
        if not self.every or (train_iter % self.every and now - self._acted < self.every_s):
            return False
        self._acted = now
        return True

    def on_update(self, training: Training, log: Log) -> None:  # noqa: ARG002
        """Act if it is time."""
        if self.is_due(training.train_iter):
            self.act(training)

    @abstractmethod
    def act(self, training: Training) -> None:
        """Do its work."""


class LogPolicy(TrainingCallback):
    """Logs the policy's description, once."""

    priority = 0

    def on_start(self, training: Training) -> None:
        """Log it, on a learner that shows a log."""
        if training.shows_log:
            describe = getattr(training.policy, "info", None)
            description = describe() if callable(describe) else repr(training.policy)
            LOGGER.info("policy: %s", description)


class LogReduce(Periodic):
    """Averages the monitors' scalars over the learners of a group.

    All learners act at the same iterations, never by time, since each waits for the others. Keys
    with the prefix ``noreduce_`` stay a learner's own; a mean is over the learners that have the
    key. Scalars since the last exchange are the first learner's own.
    """

    priority = 10
    needs_monitor = True

    def act(self, training: Training) -> None:
        """Exchange the means since the last exchange."""
        monitor = training.monitor
        if training.world_size == 1 or monitor is None:
            return
        from hpcdi.comm.group import gather_objects

        sums = monitor.take_sums()
        shared = {name: pair for name, pair in sums.items() if not _stays(name)}
        for name, pair in sums.items():
            if _stays(name):
                monitor.put(name, *pair)
        gathered = gather_objects(shared)
        for name in dict.fromkeys(name for of_one in gathered for name in of_one):
            totals, counts = zip(*(one[name] for one in gathered if name in one), strict=True)
            count = sums[name][1] if name in sums else 1  # as much as it was weighs what comes next
            monitor.put(name, count * sum(totals) / sum(counts), count)


def _stays(name: str) -> bool:
    """Returns whether a scalar stays its learner's own."""
    return any(part.startswith("noreduce_") for part in name.removeprefix(CHART).split("/"))


class LogShow(Periodic):
    """Averages the scalars of the last iterations for the log and for TensorBoard.

    Charts and histograms go to TensorBoard as such, see `ScalarMonitor`; elsewhere a chart's curves
    are scalars, and there are no histograms. The log gets at most one line a second, so that a fast
    learner does not fill a disk. In a group only the first learner shows a log, unless
    ``only_monitor_rank0`` is false. What is left at the end is shown then.
    """

    priority = 20
    every_s = LOG_EVERY_S

    def __init__(self, every: int) -> None:
        super().__init__(every)
        self._logged = float("-inf")

    def act(self, training: Training) -> None:
        """Show the scalars since the last time."""
        self.show(training, is_last=False)

    def on_end(self, training: Training) -> None:
        """Show the rest."""
        self.show(training, is_last=True)

    def show(self, training: Training, *, is_last: bool) -> None:
        """Show the scalars since the last time; those of the end in any case have a line."""
        monitor = training.monitor
        if monitor is None:
            return
        means, arrays = monitor.take_means(), monitor.take_arrays()
        if not means and not arrays:
            return
        scalars = {name.removeprefix(CHART): value for name, value in means.items()}
        training.scalars.update(scalars)
        if not training.shows_log:
            return
        now = time.monotonic()
        if scalars and (is_last or now - self._logged >= LOG_EVERY_S):
            self._logged = now
            LOGGER.info("train", extra={"train_iter": training.train_iter, "scalars": scalars})
        if training.curves is None:
            return
        for axis, step in (("iter", training.train_iter), ("step", training.env_steps)):
            if step > 0:
                name = f"{training.name}_{axis}"
                draw(training.curves, name, step, means, training.MEAN_SUFFIX)
        for name, array in arrays.items():  # once, as the predecessor does
            values = as_array(array) if is_like_tensor(array) else array
            training.curves.add_histogram(f"{training.name}/{name}", values, training.train_iter)


def draw(
    curves: CurveWriter, prefix: str, step: int, means: Mapping[str, float], mean_suffix: str
) -> None:
    """Add a point to each curve over one axis."""
    single, charts = split_charts(means)
    for name, value in single.items():
        curves.add_scalar(f"{prefix}/{name}{mean_suffix}", value, step)
    for name, values in charts.items():
        curves.add_scalars(f"{prefix}/{name}", values, step)


class PublishPolicy(Periodic):
    """Offers the policy to collectors; before and after a run, whether one waits for it or not.

    Args:
        offer: publishes the policy if a collector waits for it, or in any case with ``force``.
        every: iterations between two offers.
    """

    def __init__(self, offer: Callable[[Any, bool], None], every: int = 1) -> None:
        super().__init__(every)
        self._offer = offer

    def on_start(self, training: Training) -> None:
        """Publish it."""
        self._offer(training, True)

    def act(self, training: Training) -> None:
        """Offer it."""
        self._offer(training, False)

    def on_end(self, training: Training) -> None:
        """Publish it."""
        self._offer(training, True)


class Report(Periodic):
    """Reports progress, at least once a second where iterations are long, and at the end.

    Args:
        report: sends the report.
        every: iterations between two reports.
    """

    every_s = LOG_EVERY_S

    def __init__(self, report: Callable[[Any], None], every: int) -> None:
        super().__init__(every)
        self._report = report

    def act(self, training: Training) -> None:
        """Report."""
        self._report(training)

    def on_end(self, training: Training) -> None:
        """Report."""
        self._report(training)


class LoadCheckpoint(TrainingCallback):
    """Loads a checkpoint or a policy, once, see `checkpointing.load_learner`.

    A learner that has done iterations is left as it is: it comes from a resumed run, which is ahead
    of the checkpoint that it began with.

    Args:
        path: of the checkpoint.
        load_last_iter: false: weights alone; see `checkpointing.load_learner`.
    """

    priority, loads = 20, True

    def __init__(self, path: Path, load_last_iter: bool | None = None) -> None:
        self.path, self._load_last_iter, self._has_loaded = path, load_last_iter, False

    def problem(self) -> str:
        """See `TrainingCallback.problem`: there is nothing to load."""
        return path_problem(self.path)

    def on_start(self, training: Training) -> None:
        """Load, unless it has loaded, or the learner has done iterations."""
        if training.train_iter == 0 and not self._has_loaded:
            self.load(training)

    def load(self, training: Training) -> None:
        """Load, whatever the learner has done."""
        self._has_loaded = True
        training.load_checkpoint(self.path, load_last_iter=self._load_last_iter)
        LOGGER.info("loaded %s, train iteration %d", self.path, training.train_iter)


class SaveCheckpoint(Periodic):
    """Writes checkpoints every so many iterations."""

    priority = 20

    def act(self, training: Training) -> None:
        """Write one; of a group, the first learner does."""
        training.save_checkpoint()


class SaveFinal(TrainingCallback):
    """Writes the checkpoint ``ckpt_final`` after the run."""

    priority = 20

    def on_end(self, training: Training) -> None:
        """Write it; of a group, the first learner does."""
        training.save_checkpoint(FINAL)


class Profile(TrainingCallback):
    """Traces some iterations by torch.profiler, once.

    Every learner of a group writes one, to ``profile/rank<rank>.json`` beside the checkpoints'
    folder; one of a league's other players to ``<player>_learner_rank<rank>.json`` there. A run
    that ends early writes a shorter trace. A process traces one learner at a time.

    Args:
        wait: iterations without a trace, at least 0.
        warmup: iterations that are traced and thrown away, since the first traced ones are slow; at
            least 1.
        active: iterations in the trace, at least 1.
    """

    _traced: ClassVar[list[Profile]] = []

    def __init__(self, wait: int = 10, warmup: int = 1, active: int = 3) -> None:
        limits = (("wait", wait, 0), ("warmup", warmup, 1), ("active", active, 1))
        for name, number, least in limits:
            if number < least:
                raise ValueError(f"{name} must be at least {least}, not {number}")
        self.wait, self._warmup, self._active = wait, warmup, active
        self._iterations = 0
        self._profiler: Any = None

    def on_update(self, training: Training, log: Log) -> None:  # noqa: ARG002
        """Count an iteration; begin, continue or end the trace."""
        self._iterations += 1
        if self._profiler is not None:
            self._profiler.step()
            if self._iterations > self.wait + self._warmup + self._active:
                self.close()
        elif self._iterations == self.wait + 1:
            self._begin(training)

    def close(self) -> None:
        """Write the trace so far, if there is one."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            self._traced.remove(self)
            profiler.stop()

    def _begin(self, training: Training) -> None:
        if self._traced:
            LOGGER.warning("another learner of this process is being profiled; this one is not")
            return
        from torch.profiler import profile, schedule

        prefix = "" if training.name == "learner" else f"{training.name}_"
        path = training.ckpt_dir.parent / "profile" / f"{prefix}rank{training.rank}.json"
        self._profiler = profile(
            schedule=schedule(wait=0, warmup=self._warmup, active=self._active, repeat=1),
            on_trace_ready=lambda profiler: _write(profiler, path),
        )
        self._traced.append(self)
        self._profiler.start()


def _write(profiler: Any, path: Path) -> None:
    """Write a trace; a full disk is a warning, and does not end the run."""
    try:
        make_folders(path.parent)
        with written_aside(path) as aside:
            profiler.export_chrome_trace(str(aside))
    except (OSError, RuntimeError) as error:
        LOGGER.warning("no trace could be written to %s: %s", path, error)


# ----------------------------------------------------------------------------------- configuration


def callbacks_of(hooks: Mapping[str, Any]) -> dict[str, TrainingCallback]:
    """Returns the callbacks of a configuration by its keys.

    Args:
        hooks: keys of `CALLBACKS` with their values, e.g. ``log_show_after_iter: 100``; and names
            of the user's choice with a whole hook: ``{name, type, priority, position, ext_args}``,
            whose type was registered.

    Raises:
        SettingError: a key is neither, a type is not registered, or a value is of the wrong kind;
            all such problems at once.
    """
    read = {key: _read(key, value) for key, value in hooks.items()}
    problems = [Problem(f"hook.{key}", problem) for key, (_, problem) in read.items() if problem]
    if problems:
        raise SettingError(problems)
    return {key: callback for key, (callback, _) in read.items() if callback is not None}


def hook_problems(hooks: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Returns what is wrong with a configuration of hooks, or with what they are to load."""
    problems = []
    for key, value in hooks.items():
        callback, problem = _read(key, value, _checked_hook)
        problem = problem or (callback.problem() if callback is not None else "")
        if problem:
            problems.append(Problem(f"hook.{key}", problem))
    return tuple(problems)


def _read(
    key: str, value: object, make: Callable[[str, Any], TrainingCallback | None] | None = None
) -> tuple[TrainingCallback | None, str]:
    """Returns the callback of an entry, or None for none; and what is wrong with the entry."""
    try:
        if key in CALLBACKS and not isinstance(value, Mapping):
            return CALLBACKS[key](value), ""
        return (make or _registered_hook)(key, value), ""
    except (TypeError, ValueError) as error:
        return None, str(error)


def _registered_hook(key: str, value: Any) -> TrainingCallback:
    """Returns a hook of DI-engine's form.

    Args:
        key: its name, unless it has one.
        value: ``{name, type, priority, position, ext_args}``.

    Raises:
        ValueError: it has no such type or key. TypeError: an entry is of the wrong kind.
    """
    hook: TrainingCallback = _hook_class(value)(
        value.get("name", key),
        value.get("priority", 100),
        position=value.get("position", ""),
        ext_args=ConfigDict(value.get("ext_args") or {}),
    )
    return hook


def _checked_hook(key: str, value: Any) -> TrainingCallback | None:
    """Returns what `_registered_hook` does, but None where the constructor is the user's own.

    It is not called: what it opens would stay open, since nobody has the instance.
    """
    hook_class = _hook_class(value)
    if hook_class.__init__.__module__.startswith("hpcdi."):
        return _registered_hook(key, value)
    position, positions = value.get("position"), getattr(hook_class, "positions", ())
    if position and position not in positions:
        raise ValueError(f"its position is one of {positions}, not {position!r}")
    return None


def _hook_class(value: Any) -> Any:
    """Returns the class that an entry's type names; see `_registered_hook` for what it raises."""
    try:
        hook_class = HOOK_REGISTRY.get(value.get("type", "") if isinstance(value, Mapping) else "")
    except UnknownTypeError:
        keys, types = ", ".join(sorted(CALLBACKS)), ", ".join(sorted(HOOK_REGISTRY))
        raise ValueError(f"is neither one of {keys} nor a hook of type {types}") from None
    unknown = sorted(value.keys() - _HOOK_KEYS)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; a hook has {', '.join(_HOOK_KEYS)}")
    return hook_class


_HOOK_KEYS = ("name", "type", "priority", "position", "ext_args")


def _number(value: object, default: int, what: str = "iterations") -> int | None:
    """Returns a number of iterations; True: the default; 0 or less, or nothing: None."""
    if not value or (isinstance(value, int | float) and value < 0):
        return None
    try:
        number: int = convert(value, bool | int)
    except (TypeError, ValueError):
        raise TypeError(f"must be a number of {what}, or false, not {value!r}") from None
    return default if number is True else number if number > 0 else None


def _every(kind: type[Periodic], default: int) -> MakeCallback:
    def make(value: object) -> TrainingCallback | None:
        every = _number(value, default)
        return None if every is None else kind(every)

    return make


def _load(value: object) -> TrainingCallback | None:
    if not value:
        return None
    if not isinstance(value, str | Path):
        raise TypeError(f"must be the path of a checkpoint, not {value!r}")
    return LoadCheckpoint(Path(value).expanduser())


def _save_final(value: object) -> TrainingCallback | None:
    if value not in (True, False, None, "", 0, 1):
        raise TypeError(f"must be true or false, not {value!r}")
    return SaveFinal() if value else None


def _profile(value: object) -> TrainingCallback | None:
    wait = _number(value, 10, "iterations to wait")
    return None if wait is None else Profile(wait)


MakeCallback: TypeAlias = Callable[[Any], TrainingCallback | None]

CALLBACKS: dict[str, MakeCallback] = {
    "load_ckpt_before_run": _load,
    "log_reduce_after_iter": _every(LogReduce, 100),
    "log_show_after_iter": _every(LogShow, 1),
    "profile_after_iter": _profile,
    "save_ckpt_after_iter": _every(SaveCheckpoint, 10_000),
    "save_ckpt_after_run": _save_final,
}
"""Configuration key -> function that returns the callback of the key's value, or None for none.

It raises TypeError or ValueError where the value is of the wrong kind.
"""
