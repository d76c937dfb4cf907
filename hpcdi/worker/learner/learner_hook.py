"""Hooks of a learner in DI-engine's form: callables with a position, called with the learner.

A hook is a callback of a training (`hpcdi.roles.learner.training.TrainingCallback`) that acts at
one position. The built-in ones do what the callbacks in `hpcdi.roles.learner.callbacks` do. A new
hook is a class in a module of the user's, registered by `register_learner_hook`.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections import UserDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hpcdi.roles.learner import callbacks
from hpcdi.roles.learner.callbacks import CALLBACKS, MakeCallback, callbacks_of
from hpcdi.roles.learner.training import Log, Training, TrainingCallback
from hpcdi.utils.registry import HOOK_REGISTRY
from hpcdi.worker.errors import HookError

POSITIONS = ("before_run", "after_run", "before_iter", "after_iter")
Hooks = dict[str, list["LearnerHook"]]


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
        """Act on the engine."""


class LearnerHook(Hook, TrainingCallback):  # type: ignore[override] # its priority is read-only
    """A hook of a learner.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: one of `POSITIONS`.

    Raises:
        HookError: there is no such position, or the priority is below 0.
        TypeError: the priority is no number.
    """

    positions: ClassVar[list[str]] = list(POSITIONS)

    def __init__(self, name: str, priority: float = 100, *, position: str, **kwargs: Any) -> None:
        super().__init__(name, priority, **kwargs)
        if position not in POSITIONS:
            raise HookError(f"a hook's position is one of {POSITIONS}, not {position!r}")
        given: object = priority
        if isinstance(given, bool) or not isinstance(given, numbers.Real):
            raise TypeError(f"a hook's priority is a number, not {priority!r}")
        if priority < 0:
            raise HookError(f"a hook's priority is at least 0, not {priority!r}")
        self._position = position

    @property
    def position(self) -> str:
        """One of `POSITIONS`."""
        return self._position

    def on_start(self, training: Training) -> None:
        """See `TrainingCallback.on_start`."""
        self._act_at("before_run", training)

    def on_end(self, training: Training) -> None:
        """See `TrainingCallback.on_end`."""
        self._act_at("after_run", training)

    def on_batch(self, training: Training) -> None:
        """See `TrainingCallback.on_batch`."""
        self._act_at("before_iter", training)

    def on_update(self, training: Training, log: Log) -> None:  # noqa: ARG002 (the engine has it)
        """See `TrainingCallback.on_update`."""
        self._act_at("after_iter", training)

    def _act_at(self, position: str, engine: Training) -> None:
        if self.position == position:
            self(engine)


def no_hooks() -> Hooks:
    """Returns positions without hooks."""
    return {position: [] for position in POSITIONS}


def add_learner_hook(hooks: Hooks, hook: LearnerHook) -> None:
    """Add a hook after those of its position with the same or a lower priority value.

    Raises:
        HookError: it is none.
    """
    if not isinstance(hook, LearnerHook):
        raise HookError(f"{hook!r} is no LearnerHook")
    others = hooks.setdefault(hook.position, [])
    after = [k for k, other in enumerate(others) if other.priority > hook.priority]
    others.insert(after[0] if after else len(others), hook)


def merge_hooks(hooks1: Hooks, hooks2: Hooks) -> Hooks:
    """Returns the hooks of both by priority; of equal priority, those of `hooks1` first.

    Raises:
        HookError: they have different positions.
    """
    if hooks1.keys() != hooks2.keys():
        raise HookError(f"hooks of {list(hooks1)} and of {list(hooks2)} have different positions")
    return {
        position: sorted([*hooks, *hooks2[position]], key=lambda hook: hook.priority)
        for position, hooks in hooks1.items()
    }


def show_hooks(hooks: Hooks) -> None:
    """Print the hooks in the order of their calls."""
    for position in POSITIONS:
        names = ", ".join(f"{hook.name}({hook.priority:g})" for hook in hooks[position])
        print(f"{position}: {names}")


# ----------------------------------------------------------------------------------- built-in hooks


class CallbackHook(LearnerHook):
    """A hook that does what a callback of the core does.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: where it is called.
        ext_args: arguments of the callback.
        callback: the callback, where it has been made already.

    Raises:
        ValueError: it is not for that position, or knows no such argument.
    """

    usual_name: ClassVar[str]
    usual_position: ClassVar[str] = "after_iter"
    arguments: ClassVar[tuple[str, ...]] = ("freq",)

    def __init__(
        self,
        name: str | None = None,
        priority: float | None = None,
        *,
        position: str | None = None,
        ext_args: Mapping[str, Any] | None = None,
        callback: TrainingCallback | None = None,
    ) -> None:
        position = self.usual_position if position is None else position
        arguments = dict(ext_args or {})
        unknown = sorted(arguments.keys() - set(self.arguments))
        if unknown:
            names = ", ".join(self.arguments) or "none"
            raise ValueError(f"unknown argument {unknown[0]!r}; it has {names}")
        if position not in self.positions:
            raise ValueError(f"its position is one of {self.positions}, not {position!r}")
        self.callback = self.make(position, arguments) if callback is None else callback
        self.needs_monitor, self.loads = self.callback.needs_monitor, self.callback.loads
        super().__init__(
            self.usual_name if name is None else name,
            self.callback.priority if priority is None else priority,
            position=position,
        )

    @abstractmethod
    def make(self, position: str, arguments: Mapping[str, Any]) -> TrainingCallback:
        """Returns the callback that acts at a position.

        Raises:
            ValueError: an argument is out of range. TypeError: one is of another type.
        """

    def __call__(self, engine: Any) -> None:
        """Act; what acts every so many iterations, if it is time."""
        if self.position == "before_run":
            self.callback.on_start(engine)
        elif self.position == "after_run":
            self.callback.on_end(engine)
        else:
            self.callback.on_update(engine, {})

    def problem(self) -> str:
        """See `TrainingCallback.problem`."""
        return self.callback.problem()

    def close(self) -> None:
        """Release resources when the engine closes."""
        self.callback.close()


class LogPolicyHook(CallbackHook):
    """Logs the policy's description, once."""

    usual_name = "log_policy"
    usual_position = "before_run"
    arguments = ()

    def make(self, position: str, arguments: Mapping[str, Any]) -> TrainingCallback:  # noqa: ARG002
        """See `CallbackHook.make`."""
        return callbacks.LogPolicy()


class LogReduceHook(CallbackHook):
    """Averages the monitors' scalars over the learners of a group."""

    usual_name = "log_reduce"
    positions: ClassVar[list[str]] = ["after_iter"]

    def make(self, position: str, arguments: Mapping[str, Any]) -> TrainingCallback:  # noqa: ARG002
        """See `CallbackHook.make`."""
        return callbacks.LogReduce(_iterations(arguments, "freq", 1))


class LogShowHook(CallbackHook):
    """Averages the scalars of the last iterations for the log and for TensorBoard."""

    usual_name = "log_show"

    def make(self, position: str, arguments: Mapping[str, Any]) -> TrainingCallback:  # noqa: ARG002
        """See `CallbackHook.make`."""
        return callbacks.LogShow(_iterations(arguments, "freq", 1))


class SendPolicyHook(CallbackHook):
    """Offers the policy to collectors; before and after a run, whether one waits for it or not."""

    usual_name = "send_policy"
    arguments = ("send_policy_freq",)

    def make(self, position: str, arguments: Mapping[str, Any]) -> TrainingCallback:  # noqa: ARG002
        """See `CallbackHook.make`."""
        return callbacks.PublishPolicy(
            lambda engine, force: engine.offer_policy(force=force),
            _iterations(arguments, "send_policy_freq", 1),
        )


class SendLearnInfoHook(CallbackHook):
    """Reports the learner's progress to the coordinator."""

    usual_name = "send_learn_info"

    def make(self, position: str, arguments: Mapping[str, Any]) -> TrainingCallback:  # noqa: ARG002
        """See `CallbackHook.make`."""
        return callbacks.Report(
            lambda engine: engine.send_learn_info(engine.learn_info),
            _iterations(arguments, "freq", 10),
        )


class LoadCkptHook(CallbackHook):
    """Loads a checkpoint or a policy; in a run, only into a learner that has done no iterations.

    Arguments: ``load_path``, where there must be something to load; ``load_last_iter: false`` takes
    weights alone.
    """

    usual_name = "load_ckpt"
    usual_position = "before_run"
    positions: ClassVar[list[str]] = ["before_run"]
    arguments = ("load_path", "load_last_iter")

    def make(self, position: str, arguments: Mapping[str, Any]) -> TrainingCallback:  # noqa: ARG002
        """See `CallbackHook.make`."""
        path, load_last_iter = arguments.get("load_path"), arguments.get("load_last_iter")
        if not isinstance(path, str | Path):
            raise TypeError(f"load_path must be the path of a checkpoint, not {path!r}")
        if load_last_iter not in (None, True, False):
            raise TypeError(f"load_last_iter is true or false, not {load_last_iter!r}")
        if not str(path):
            return TrainingCallback()
        return callbacks.LoadCheckpoint(Path(path).expanduser(), load_last_iter)

    def __call__(self, engine: Any) -> None:
        """Load; a run's learner that has done iterations may be resumed and is left as it is."""
        is_of_run = getattr(engine, "is_of_run", True)
        if isinstance(self.callback, callbacks.LoadCheckpoint) and not is_of_run:
            self.callback.load(engine)
        else:
            super().__call__(engine)


class SaveCkptHook(CallbackHook):
    """Writes checkpoints: every `freq` iterations, and ``ckpt_final`` after the run.

    See `BaseLearner.save_checkpoint` for the names of DI-engine's files beside them.
    """

    usual_name = "save_ckpt"
    positions: ClassVar[list[str]] = ["after_iter", "after_run"]

    def make(self, position: str, arguments: Mapping[str, Any]) -> TrainingCallback:
        """See `CallbackHook.make`."""
        every = _iterations(arguments, "freq", 1)
        is_final = position == "after_run"
        return callbacks.SaveFinal() if is_final else callbacks.SaveCheckpoint(every)


class ProfilerHook(CallbackHook):
    """Traces some iterations by torch.profiler, once; see `hpcdi.roles.learner.callbacks.Profile`.

    Arguments are numbers of iterations: ``wait, warmup, active``.
    """

    usual_name = "profiler"
    positions: ClassVar[list[str]] = ["after_iter"]
    arguments = ("wait", "warmup", "active")

    def make(self, position: str, arguments: Mapping[str, Any]) -> TrainingCallback:  # noqa: ARG002
        """See `CallbackHook.make`."""
        return callbacks.Profile(**{name: int(number) for name, number in arguments.items()})


def _iterations(arguments: Mapping[str, Any], name: str, default: int) -> int:
    """Returns a number of iterations among a hook's arguments, at least 1."""
    number = int(arguments.get(name, default))
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
    return number


# ----------------------------------------------------------------------------------- configuration


_HOOK_TYPES: dict[type[TrainingCallback], type[CallbackHook]] = {
    callbacks.LoadCheckpoint: LoadCkptHook,
    callbacks.LogReduce: LogReduceHook,
    callbacks.LogShow: LogShowHook,
    callbacks.Profile: ProfilerHook,
    callbacks.SaveCheckpoint: SaveCkptHook,
    callbacks.SaveFinal: SaveCkptHook,
}
_SHORT_NAMES = {"load_ckpt_before_run": "load_ckpt", "log_show_after_iter": "log_show"}
"""Names of hooks that DI-engine does not name by their keys."""
hook_mapping: dict[str, type[LearnerHook]] = HOOK_REGISTRY._classes
"""Hook types by name, for configurations; the registry's own table, so that entries count."""


def register_learner_hook(name: str, hook_type: type) -> None:
    """Register a hook type for configurations; it replaces another one of that name.

    Raises:
        AssertionError: it is not a `LearnerHook`.
    """
    if not issubclass(hook_type, LearnerHook):
        raise AssertionError(f"{hook_type!r} is not a subclass of LearnerHook")  # noqa: TRY004
    hook_mapping[name] = hook_type


for _hook_type in (
    LogPolicyHook,
    LogReduceHook,
    LogShowHook,
    SendPolicyHook,
    SendLearnInfoHook,
    LoadCkptHook,
    SaveCkptHook,
    ProfilerHook,
):
    register_learner_hook(_hook_type.usual_name, _hook_type)


def build_learner_hook_by_cfg(cfg: Mapping[str, Any]) -> Hooks:
    """Returns the hooks of a configuration; see `hpcdi.roles.learner.callbacks.callbacks_of`.

    Raises:
        ConfigError: something is wrong with it.
    """
    hooks = no_hooks()
    for key, callback in callbacks_of(cfg).items():
        hook = callback if isinstance(callback, LearnerHook) else _around(key, callback)
        add_learner_hook(hooks, hook)
    return hooks


def _around(key: str, callback: TrainingCallback) -> LearnerHook:
    """Returns the hook of a callback, at the position with which its key ends."""
    position = next(position for position in POSITIONS if key.endswith(position))
    name = _SHORT_NAMES.get(key, key)
    return _HOOK_TYPES[type(callback)](name, position=position, callback=callback)


def _simplified(key: str, make: MakeCallback, value: Any) -> LearnerHook | None:
    callback = make(value)
    return None if callback is None else _around(key, callback)


class _SimplifiedHooks(UserDict[str, Callable[[Any], LearnerHook | None]]):
    """Keys of hooks; those that are put in are keys of configurations, too."""

    def __init__(self) -> None:
        super().__init__()
        self.data = {key: partial(_simplified, key, make) for key, make in CALLBACKS.items()}

    def __setitem__(self, key: str, make: Callable[[Any], LearnerHook | None]) -> None:
        super().__setitem__(key, make)
        CALLBACKS[key] = make

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        del CALLBACKS[key]


simplified_hook_mapping = _SimplifiedHooks()
"""Configuration key -> function that makes the hook of the key's value, or None for no hook."""


def find_char(s: str, flag: str, num: int, reverse: bool = False) -> int:
    """Returns where a text has a character for the `num`-th time, from its end if `reverse`; or -1.

    Raises:
        HookError: `num` is below 1.
    """
    if num < 1:
        raise HookError(f"num must be at least 1, not {num}")
    places = [place for place, char in enumerate(s) if char == flag]
    if num > len(places):
        return -1
    return places[-num] if reverse else places[num - 1]
