"""Hooks, which a learner calls before and after a run and each iteration: contract and built-in.

A new hook is a class here, named in the tables at the end; or one in a user's module, registered by
`register_learner_hook`.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from hpcdi.config.compat import ConfigDict
from hpcdi.errors import ConfigError, Problem
from hpcdi.roles.learner.checkpointing import FINAL, load_learner, path_problem
from hpcdi.store.atomic import temporary_beside
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import CHART, split_charts

POSITIONS = ("before_run", "after_run", "before_iter", "after_iter")
Hooks = dict[str, list["LearnerHook"]]
_WHOLE = ("name", "type", "priority", "position", "ext_args")
_LOG_EVERY_S = 1.0


class Hook(ABC):
    """A callable with a name and a priority, called with the engine that it is registered in.

    Args:
        name: for people.
        priority: the lower, the earlier.
    """

    def __init__(self, name: str, priority: float, **_kwargs: Any) -> None:
        self._name, self._priority = name, priority

    @property
    def name(self) -> str:
        """For people."""
        return self._name

    @property
    def priority(self) -> float:
        """The lower, the earlier."""
        return self._priority

    @abstractmethod
    def __call__(self, engine: Any) -> None:
        """Acts on the engine."""

    def close(self) -> None:  # noqa: B027
        """Releases resources when the engine closes."""


class LearnerHook(Hook):
    """A hook of a learner.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: one of `POSITIONS`.

    Raises:
        ValueError: there is no such position.
        TypeError: the priority is no number.
    """

    positions: ClassVar[list[str]] = list(POSITIONS)
    needs_monitor: ClassVar[bool] = False
    """It needs the monitor of every learner of a group, not only of the first."""

    def __init__(self, name: str, priority: float = 100, *, position: str, **kwargs: Any) -> None:
        super().__init__(name, priority, **kwargs)
        if position not in POSITIONS:
            raise ValueError(f"a hook's position is one of {POSITIONS}, not {position!r}")
        if isinstance(priority, bool) or not isinstance(priority, int | float):
            raise TypeError(f"a hook's priority is a number, not {priority!r}")
        self._position = position

    @property
    def position(self) -> str:
        """Position at which it is called."""
        return self._position


def no_hooks() -> Hooks:
    """Returns positions without hooks."""
    return {position: [] for position in POSITIONS}


def add_learner_hook(hooks: Hooks, hook: LearnerHook) -> None:
    """Adds a hook after those of its position with the same or a lower priority value."""
    there = hooks.setdefault(hook.position, [])
    after = [k for k, other in enumerate(there) if other.priority > hook.priority]
    there.insert(after[0] if after else len(there), hook)


def merge_hooks(hooks1: Hooks, hooks2: Hooks) -> Hooks:
    """Returns the hooks of both by priority; of equal priority, those of `hooks1` first."""
    merged = no_hooks()
    for position in POSITIONS:
        both = [*hooks1.get(position, []), *hooks2.get(position, [])]
        merged[position] = sorted(both, key=lambda hook: hook.priority)
    return merged


def show_hooks(hooks: Hooks) -> str:
    """Returns the hooks in the order of their calls, as text."""
    return "\n".join(
        f"{position}: " + ", ".join(f"{hook.name}({hook.priority:g})" for hook in hooks[position])
        for position in POSITIONS
    )


# ----------------------------------------------------------------------------------- built-in hooks


class BuiltinHook(LearnerHook):
    """A hook with a name, a priority, positions and arguments of its own.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: where it is called.
        ext_args: its arguments.

    Raises:
        ValueError: it is not for that position, or knows no such argument.
    """

    usual_name: ClassVar[str]
    usual_priority: ClassVar[float] = 100
    usual_position: ClassVar[str] = "after_iter"
    positions: ClassVar[list[str]] = LearnerHook.positions
    args: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        name: str | None = None,
        priority: float | None = None,
        *,
        position: str | None = None,
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            self.usual_name if name is None else name,
            self.usual_priority if priority is None else priority,
            position=self.usual_position if position is None else position,
        )
        if self.position not in self.positions:
            raise ValueError(f"its position is one of {self.positions}, not {self.position!r}")
        args = dict(ext_args or {})
        unknown = sorted(args.keys() - set(self.args))
        if unknown:
            known = ", ".join(self.args) or "none"
            raise ValueError(f"unknown argument {unknown[0]!r}; it has {known}")
        self.configure(args)

    def configure(self, args: Mapping[str, Any]) -> None:
        """Takes the hook's own arguments, all of which are in `args` of the class.

        Raises:
            ValueError: one is out of range. TypeError: one is of another type.
        """


class PeriodicHook(BuiltinHook):
    """Acts every `freq` iterations; before and after a run, always.

    One with `every_s` also acts after that many seconds, for long iterations. Its one argument is
    the number of iterations, at least 1, under the hook's `freq_key`.
    """

    freq_key: ClassVar[str] = "freq"
    args = ("freq",)
    usual_freq: ClassVar[int] = 1
    every_s: ClassVar[float] = float("inf")

    def configure(self, args: Mapping[str, Any]) -> None:
        """Takes the number of iterations."""
        self._freq = int(args.get(self.freq_key, self.usual_freq))
        if self._freq < 1:
            raise ValueError(f"{self.freq_key} must be at least 1, not {self._freq}")
        self._acted = time.monotonic()

    def __call__(self, engine: Any) -> None:
        """Acts if it is due."""
        if (
            self.position not in ("before_iter", "after_iter")
            or engine.train_iter % self._freq == 0
            or time.monotonic() - self._acted >= self.every_s
        ):
            self._acted = time.monotonic()
            self.act(engine)

    @abstractmethod
    def act(self, engine: Any) -> None:
        """Does the hook's work."""


class LogPolicyHook(BuiltinHook):
    """Logs the policy's description, once."""

    usual_name = "log_policy"
    usual_priority = 0
    usual_position = "before_run"

    def __call__(self, engine: Any) -> None:
        """Logs it, on a learner that shows a log."""
        if engine.shows_log:
            say = getattr(engine.policy, "info", None)
            engine.info(f"policy: {say() if callable(say) else repr(engine.policy)}")


class LogReduceHook(PeriodicHook):
    """Averages the monitors' scalars over the learners of a group.

    All learners act at the same iterations, never by time, since each waits for the others. Keys
    with the prefix ``noreduce_`` stay a learner's own; a mean is over the learners that have the
    key. Scalars since the last exchange are the first learner's own.
    """

    usual_name = "log_reduce"
    usual_priority = 10
    usual_freq = 100
    positions: ClassVar[list[str]] = ["after_iter"]
    needs_monitor = True

    def act(self, engine: Any) -> None:
        """Exchanges the means since the last exchange."""
        if engine.world_size == 1:
            return
        from hpcdi.comm.dist import gather_objects

        own = engine.monitor.take_sums()
        sums = gather_objects({name: pair for name, pair in own.items() if not _is_own(name)})
        for name, pair in own.items():
            if _is_own(name):
                engine.monitor.put(name, *pair)
        for name in dict.fromkeys(name for of_one in sums for name in of_one):
            totals, counts = zip(*(of_one[name] for of_one in sums if name in of_one), strict=True)
            count = own[name][1] if name in own else 1  # as much as it was weighs what comes next
            engine.monitor.put(name, count * sum(totals) / sum(counts), count)


class LogShowHook(PeriodicHook):
    """Averages the scalars of the last iterations for the log and for TensorBoard.

    Charts and histograms go to TensorBoard as such, see `ScalarMonitor`; elsewhere a chart's curves
    are scalars, and there are no histograms. The log gets at most one line a second, so that a fast
    learner does not fill a disk. In a group only the first learner shows a log, unless
    ``only_monitor_rank0`` is false.
    """

    _logged = float("-inf")
    usual_name = "log_show"
    every_s = _LOG_EVERY_S
    usual_priority = 20

    def act(self, engine: Any) -> None:
        """Logs the scalars since the last call."""
        if engine.monitor is None:
            return
        means, arrays = engine.monitor.take_means(), engine.monitor.take_arrays()
        if not means and not arrays:
            return
        scalars = {name.removeprefix(CHART): value for name, value in means.items()}
        engine.log_buffer.update(scalars)
        if not engine.shows_log:
            return
        now = time.monotonic()
        if scalars and (now - self._logged >= _LOG_EVERY_S or self.position != "after_iter"):
            self._logged = now
            LOGGER.info("train", extra={"train_iter": engine.train_iter, "scalars": scalars})
        if engine.tb_logger is not None:
            _draw(engine, f"{engine.instance_name}_iter", engine.train_iter, means, arrays)
            if engine.collector_envstep > 0:
                step = engine.collector_envstep
                _draw(engine, f"{engine.instance_name}_step", step, means, arrays)


class SendPolicyHook(PeriodicHook):
    """Offers the policy to collectors."""

    usual_name = "send_policy"
    freq_key = "send_policy_freq"
    args = ("send_policy_freq",)

    def act(self, engine: Any) -> None:
        """Offers it; before and after a run, whether a collector waits for it or not."""
        engine.offer_policy(force=self.position != "after_iter")


class SendLearnInfoHook(PeriodicHook):
    """Reports the learner's progress to the coordinator."""

    usual_name = "send_learn_info"
    every_s = _LOG_EVERY_S
    usual_freq = 10

    def act(self, engine: Any) -> None:
        """Reports it."""
        engine.send_learn_info(engine.learn_info)


class LoadCkptHook(BuiltinHook):
    """Loads a checkpoint or a policy, see `checkpointing.load_learner`.

    A learner that has done iterations is left as it is: it comes from a resumed run, which is ahead
    of the checkpoint that it began with.

    Arguments: ``load_path``, where there must be something to load; ``load_last_iter: false`` takes
    weights alone.
    """

    usual_name = "load_ckpt"
    usual_priority = 20
    usual_position = "before_run"
    positions: ClassVar[list[str]] = ["before_run"]
    args = ("load_path", "load_last_iter")

    def configure(self, args: Mapping[str, Any]) -> None:
        """Takes the path; what it names is looked for when it is loaded."""
        path, self._load_last_iter = args.get("load_path"), args.get("load_last_iter")
        if not isinstance(path, str | Path):
            raise TypeError(f"load_path must be the path of a checkpoint, not {path!r}")
        if self._load_last_iter not in (None, True, False):
            raise TypeError(f"load_last_iter is true or false, not {self._load_last_iter!r}")
        self._path = Path(path).expanduser() if str(path) else None

    def problem(self) -> str:
        """Returns why there is nothing to load; empty where there is, or where nothing is to be."""
        return "" if self._path is None else path_problem(self._path)

    def __call__(self, engine: Any) -> None:
        """Loads, unless the learner has done iterations."""
        if self._path is not None and engine.train_iter == 0:
            load_learner(engine, self._path, load_last_iter=self._load_last_iter)
            engine.info(f"loaded {self._path}, train iteration {engine.train_iter}")


class SaveCkptHook(PeriodicHook):
    """Writes checkpoints: every `freq` iterations, and ``ckpt_final`` after the run."""

    usual_name = "save_ckpt"
    usual_priority = 20
    usual_freq = 10_000
    positions: ClassVar[list[str]] = ["after_iter", "after_run"]

    def act(self, engine: Any) -> None:
        """Writes it; of a group, the first learner does."""
        engine.save_checkpoint(FINAL if self.position == "after_run" else None)


class ProfilerHook(BuiltinHook):
    """Traces some iterations by torch.profiler, once.

    Every learner of a group writes one, to ``profile/rank<rank>.json`` beside the checkpoints'
    folder. A run that ends early writes a shorter trace. A process traces one learner at a time.

    Arguments are numbers of iterations: ``wait`` (at least 0) without a trace, then ``warmup`` (at
    least 1; traced, thrown away: the first traced ones are slow), then ``active`` (at least 1) in
    the trace.
    """

    usual_name = "profiler"
    positions: ClassVar[list[str]] = ["after_iter"]
    args = ("wait", "warmup", "active")
    _busy: ClassVar[list[ProfilerHook]] = []

    def configure(self, args: Mapping[str, Any]) -> None:
        """Takes the numbers of iterations."""
        given = {"wait": 10, "warmup": 1, "active": 3, **args}
        self._wait, self._warmup, self._active = (int(given[arg]) for arg in self.args)
        for arg, least in (("wait", 0), ("warmup", 1), ("active", 1)):
            if int(given[arg]) < least:
                raise ValueError(f"{arg} must be at least {least}, not {given[arg]}")
        self._seen = 0
        self._profiler: Any = None

    def __call__(self, engine: Any) -> None:
        """Counts an iteration; begins, continues or ends the trace."""
        self._seen += 1
        if self._profiler is not None:
            self._profiler.step()
            if self._seen > self._wait + self._warmup + self._active:
                self.close()
        elif self._seen == self._wait + 1:
            self._begin(engine)

    def close(self) -> None:
        """Writes the trace so far, if there is one."""
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
    """Writes a trace; a full disk is a warning, and does not end the run."""
    aside = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(aside))
        aside.replace(path)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        LOGGER.warning("no trace could be written to %s: %s", path, error)


def _draw(
    engine: Any, prefix: str, step: int, means: Mapping[str, float], arrays: Mapping[str, Any]
) -> None:
    """Adds a point to each curve over one axis of TensorBoard."""
    curves, charts = split_charts(means)
    for name, value in curves.items():
        engine.tb_logger.add_scalar(f"{prefix}/{name}", value, step)
    for name, values in charts.items():
        engine.tb_logger.add_scalars(f"{prefix}/{name}", values, step)
    for name, array in arrays.items():
        if hasattr(array, "detach"):  # a tensor, of a GPU perhaps
            array = array.detach().cpu()
        engine.tb_logger.add_histogram(f"{prefix}/{name}", array, step)


def _is_own(name: str) -> bool:
    return any(part.startswith("noreduce_") for part in name.removeprefix(CHART).split("/"))


# ----------------------------------------------------------------------------------- configuration


def register_learner_hook(name: str, hook_type: type) -> None:
    """Registers a hook type for configurations.

    Raises:
        AssertionError: it is not a `LearnerHook`.
    """
    if not issubclass(hook_type, LearnerHook):
        raise AssertionError(f"{hook_type!r} is not a subclass of LearnerHook")  # noqa: TRY004
    hook_mapping[name] = hook_type


def find_char(s: str, flag: str, num: int, reverse: bool = False) -> int:
    """Returns where a text has a character for the `num`-th time, from its end if `reverse`; or -1.

    Raises:
        ValueError: `num` is below 1.
    """
    if num < 1:
        raise ValueError(f"num must be at least 1, not {num}")
    found = [place for place, char in enumerate(s) if char == flag]
    if num > len(found):
        return -1
    return found[-num] if reverse else found[num - 1]


def build_learner_hook_by_cfg(cfg: Mapping[str, Any]) -> Hooks:
    """Returns the hooks of a configuration.

    Each entry is either a simplified key with its value, e.g. ``log_show_after_iter: 100``, or a
    name of your choice with a whole hook: ``{name, type, priority, position, ext_args}``, whose
    type was registered.

    Raises:
        ConfigError: a key is neither, a type is not registered, or a value is of the wrong kind;
            all such problems at once.
    """
    hooks, problems = no_hooks(), []
    for key, value in cfg.items():
        hook, problem = _built(key, value)
        if problem:
            problems.append(Problem(f"hook.{key}", problem))
        elif hook is not None:
            add_learner_hook(hooks, hook)
    if problems:
        raise ConfigError(problems)
    return hooks


def hook_problems(cfg: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Returns what is wrong with a configuration of hooks, or with what they are to load."""
    problems = []
    for key, value in cfg.items():
        hook, problem = _built(key, value)
        if isinstance(hook, LoadCkptHook):
            problem = hook.problem()
        if problem:
            problems.append(Problem(f"hook.{key}", problem))
    return tuple(problems)


def _built(key: str, value: Any) -> tuple[LearnerHook | None, str]:
    """Returns the hook of an entry, or None for no hook; and what is wrong with the entry."""
    try:
        return _build(key, value), ""
    except (TypeError, ValueError) as error:
        return None, str(error)


def _build(key: str, value: Any) -> LearnerHook | None:
    if key in simplified_hook_mapping and not isinstance(value, Mapping):
        hook: LearnerHook | None = simplified_hook_mapping[key](value)
        return hook
    if isinstance(value, Mapping) and value.get("type") in hook_mapping:
        unknown = sorted(value.keys() - _WHOLE)
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}; a hook has {', '.join(_WHOLE)}")
        return hook_mapping[value["type"]](
            value.get("name", key), value.get("priority", 100),
            position=value.get("position", ""), ext_args=ConfigDict(value.get("ext_args") or {}),
        )  # fmt: skip
    known = ", ".join(sorted(simplified_hook_mapping))
    types = ", ".join(sorted(hook_mapping))
    raise ValueError(f"is neither one of {known} nor a hook of type {types}")


def every(hook: type[PeriodicHook], value: Any) -> PeriodicHook | None:
    """Returns a hook for a number of iterations; True: the usual number; 0 or less: no hook."""
    if not value or (isinstance(value, int | float) and value < 0):
        return None
    if value is True:
        return hook()
    if not isinstance(value, int):
        raise TypeError(f"must be a number of iterations, or false, not {value!r}")
    return hook(ext_args={"freq": value})


def _at_the_end(value: Any) -> LearnerHook | None:
    if value not in (True, False, None, "", 0, 1):
        raise TypeError(f"must be true or false, not {value!r}")
    return SaveCkptHook(position="after_run") if value else None


def _after(value: Any) -> LearnerHook | None:
    """Returns a profiler that waits for so many iterations; True: for the usual number."""
    if not value:
        return None
    if not isinstance(value, int):
        raise TypeError(f"must be a number of iterations to wait, or false, not {value!r}")
    return ProfilerHook(ext_args={} if value is True else {"wait": value})


def _load(path: Any) -> LearnerHook | None:
    return LoadCkptHook(ext_args={"load_path": path}) if path else None


hook_mapping: dict[str, type[LearnerHook]] = {
    hook.usual_name: hook
    for hook in (
        LogPolicyHook, LogReduceHook, LogShowHook, SendPolicyHook, SendLearnInfoHook, LoadCkptHook,
        SaveCkptHook, ProfilerHook,
    )
}  # fmt: skip
"""Hook types by name, for configurations."""

simplified_hook_mapping: dict[str, Any] = {
    "load_ckpt_before_run": _load,
    "log_reduce_after_iter": lambda freq: every(LogReduceHook, freq),
    "log_show_after_iter": lambda freq: every(LogShowHook, freq),
    "profile_after_iter": _after,
    "save_ckpt_after_iter": lambda freq: every(SaveCkptHook, freq),
    "save_ckpt_after_run": _at_the_end,
}
"""Configuration key -> function that makes the hook of the key's value, or None for no hook."""
