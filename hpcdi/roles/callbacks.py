"""Callbacks: what you have called while a run goes on, in one process and over ranks alike.

    class StopAt(hpcdi.Callback):                       # my_callbacks.py
        def on_evaluation(self, context, result):
            if result.mean > 400:
                context.stop(f"mean return {result.mean:.0f}")

    callbacks: [{type: "my_callbacks:StopAt"}]          # in the YAML, with arguments beside type
    hpcdi.train(..., callbacks=[StopAt, {"type": "early_stop", "evaluations": 5}])

An instance is made on rank 0, on each learner or on each collector, as its class says (`runs_on`).
The learner's hooks, DI-engine's among them, are called by the same training around the same
updates. What a callback raises ends the run with exit code 1, and names it and its rank.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import CallbackError, ConfigError, Problem
from hpcdi.policy.base import owner_of
from hpcdi.roles.evaluations import evaluates_as
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurveFile
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.nested import as_array
from hpcdi.utils.progress import USUAL_PATIENCE, Evaluation
from hpcdi.utils.registry import named_in_module, raised

COORDINATOR, LEARNER, COLLECTOR = "coordinator", "learner", "collector"
_CALLED = {
    COORDINATOR: ("start", "update", "episode", "evaluation", "snapshot", "end"),
    LEARNER: ("start", "batch", "update", "snapshot", "end"),
    COLLECTOR: ("start", "episode", "end"),
}
"""Which methods ``on_<name>`` a callback of a role is called by."""


class Callback:
    """What a run calls: subclasses have the methods that they need.

    Attributes:
        runs_on: ``"coordinator"`` (rank 0), ``"learner"`` (each learner rank) or ``"collector"``
            (each rank that collects).
    """

    runs_on: ClassVar[str] = COORDINATOR

    def on_start(self, context: Context) -> None:
        """Act before the first update, also of a resumed run: after `load_state_dict`."""

    def on_batch(self, context: Context) -> None:
        """Act before each update; on learners."""

    def on_update(self, context: Context, scalars: Mapping[str, float]) -> None:
        """Act after each train iteration on a learner; on rank 0 after a report of one.

        Args:
            context: of the run.
            scalars: what the policy has logged; on rank 0 means since the last report.
        """

    def on_episode(self, context: Context, info: Mapping[str, float]) -> None:
        """Act after an episode of a collector: on rank 0 of all, on a collector of its own.

        Args:
            context: of the run.
            info: ``return``, ``length``, and the numbers of the environment's last info.
        """

    def on_evaluation(self, context: Context, result: Evaluation) -> None:
        """Act after an evaluation, of `mean`, `std`, `episodes`, `env_steps` ...; on rank 0."""

    def on_snapshot(self, context: Context) -> None:
        """Act before its state is taken into a snapshot."""

    def on_end(self, context: Context) -> None:
        """Act after the last update; not where an error ended the run."""

    def state_dict(self) -> dict[str, Any]:
        """Returns its state for snapshots: numbers, texts, and lists, tuples and dicts of these.

        On learners it may also have arrays and tensors; these come back on the CPU.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, equal to what it was; a number of numpy is one of Python."""


class Context:
    """What a callback knows of its run, and may ask of it.

    Args:
        config: the experiment.
        rank: of this process; in one process that which the role would have.
        role: ``"coordinator"``, ``"learner"`` or ``"collector"``.
        folder: the run folder; None: there is none.

    Attributes:
        env_steps, train_iter: of the run so far, as far as this rank knows: a collector its own
            steps in whole episodes, and the iteration of its policy.
        step: where a point of a curve is drawn now: env steps on rank 0, but train iterations in a
            run that begins offline, and on other ranks.
        policy: on a learner its learn mode.
        network: on a learner the policy's `nn.Module`, where it has one.
    """

    def __init__(self, config: ExperimentConfig, rank: int, role: str, folder: Path | None) -> None:
        self.config, self.rank, self.role, self.folder = config, rank, role, folder
        self.env_steps = self.train_iter = self.step = 0
        self.policy: Any = None
        self.network: Any = None
        self.asks: list[str] = []
        """Reasons of `stop` that nobody has taken."""
        self.set_values: dict[str, Any] = {}
        """What `set` has changed, for snapshots."""
        self.configured: dict[str, Any] = {}
        """What is configured in the place of each of `set_values`."""
        self._scalars: Callable[[str, float], None] = lambda _name, _value: None
        self._curves: CurveFile | None = None
        self._pictures: Any = None
        self._choose: Callable[[str, Any], None] | None = None
        self._name = ""

    def log(self, name: str, value: object) -> None:
        """Add to the curve ``detail/callbacks/NAME``, or to TensorBoard alone what is no number.

        A learner's curves are ``detail/learner/callbacks/NAME``, means of its last iterations; a
        collector's end in ``_rank`` and its number.

        Args:
            name: of the curve.
            value: a number; an array or tensor of more dimensions than 0: its histogram; uint8
                [height, width, 3] or [frames, height, width, 3]: a picture, or a video.
        """
        array = as_array(value)
        if array.ndim == 0:
            self._scalars(f"callbacks/{name}", float(array))
            return
        if self.folder is None:
            return
        tag = f"callbacks_{'step' if self.role == COORDINATOR else 'iter'}/{name}"
        if array.dtype == np.uint8 and array.ndim in (3, 4) and array.shape[-1] in (1, 3):
            frames = array if array.ndim == 4 else array[None]
            self._own_pictures(self.folder).add_video(
                tag, frames.transpose(0, 3, 1, 2)[None], self.step
            )
        else:
            self._own_pictures(self.folder).add_histogram(tag, array, self.step)

    def add_scalar(self, name: str, value: float) -> None:
        """Add to a curve of this rank's own, over train iterations."""
        if self.folder is not None:
            tag = f"detail/{name}_rank{self.rank}"
            self._own_pictures(self.folder).add_scalar(tag, value, self.train_iter)
            if self._curves is None:
                self._curves = CurveFile(RunLayout(self.folder).callbacks_curves(self.rank))
            self._curves.add_scalar(tag, value, self.train_iter)

    def _own_pictures(self, folder: Path) -> Any:
        if self._pictures is None:
            from hpcdi.utils.event_file import RANK_FOLDER, TensorBoardWriter

            place = RunLayout(folder).tensorboard_dir / f"{RANK_FOLDER}{self.rank}"
            self._pictures = TensorBoardWriter(place)
        return self._pictures

    def stop(self, reason: str) -> None:
        """End the run in order, with exit code 0: "stopped by NAME: reason".

        The newest policy is evaluated before, and a snapshot taken.
        """
        self.asks.append(f"stopped by {self._name}: {reason}")

    def set(self, key: str, value: float) -> None:
        """Change a setting from now on; on a learner.

        Args:
            key: ``policy.learn.learning_rate``, or another one that may have a schedule; of one of
                a team's policies ``policy.policies.NAME.learn.learning_rate``.
            value: its new value, in snapshots too, until the setting is configured differently.

        Raises:
            CallbackError: it cannot be changed, or not here.
        """
        owner = owner_of(self.policy)
        if not hasattr(owner, "set_setting"):
            raise CallbackError(f"set({key!r}): settings are changed on learners of a TorchPolicy")
        owner.set_setting(key, value)
        self.set_values.pop(key, None)  # the last comes last: a team's policies share some settings
        self.set_values[key], self.configured[key] = value, _configured(owner, key)

    def set_env(self, **values: Any) -> None:
        """Have episodes that begin from now on played with these values; on rank 0.

        Args:
            values: attributes, or with ``kwargs_NAME`` keyword arguments, of ``env.schedule``,
                which names all values: ``level: {values: [1, 2, 3], when: callback}``.

        Raises:
            CallbackError: it is no such value, or this is not rank 0.
        """
        if self._choose is None:
            raise CallbackError("set_env is rank 0's: runs_on = 'coordinator'")
        for name, value in values.items():
            path = f"kwargs.{name.removeprefix('kwargs_')}" if name.startswith("kwargs_") else name
            try:
                self._choose(path, value)
            except (KeyError, ValueError):
                raise CallbackError(
                    f"set_env({name}={value!r}): env.schedule.{path} must name it, as in "
                    f"{{values: [..., {value!r}], when: callback}}"
                ) from None


def _configured(policy: Any, key: str) -> dict[str, Any] | None:
    """Returns what is configured for a setting; None: the policy does not say."""
    return policy.configured(key) if hasattr(policy, "configured") else None


class Callbacks(Closing):
    """The callbacks of an experiment that run on a role.

    Args:
        context: theirs.
        scalars: takes a name and a number for the curves.
        choose: see `Context.set_env`; None: it is not for this role.
    """

    def __init__(
        self,
        context: Context,
        scalars: Callable[[str, float], None],
        choose: Callable[[str, Any], None] | None = None,
    ) -> None:
        self.context = context
        context._scalars, context._choose = scalars, choose
        self._callbacks = [
            (name, make())
            for name, role, make in makers(context.config.callbacks)
            if role == context.role
        ]

    def __len__(self) -> int:
        """Returns how many there are."""
        return len(self._callbacks)

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of each, in their order.

        Raises:
            CallbackError: one has raised; names it and its rank.
        """
        for name, callback in self._callbacks:
            with self._named(name, method):
                getattr(callback, method)(self.context, *arguments)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of all, and what they have set, as any file can hold it.

        Raises:
            CallbackError: a state holds what is no plain data; says where in it.
        """
        context, states = self.context, []
        for name, callback in self._callbacks:
            with self._named(name, "state_dict"):
                state = _packed(callback.state_dict(), "state", arrays=context.role == LEARNER)
                states.append({"name": name, "state": state})
        of_set = {"set": context.set_values, "configured": context.configured}
        return {"states": states, **_packed(of_set, "settings")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; callbacks that are new since then begin anew.

        A setting that is configured differently by now is as it is configured, whatever was set.
        """
        left = list(state.get("states", ()))
        for name, callback in self._callbacks:
            of_it = next((one for one in left if one["name"] == name), None)
            if of_it is not None:
                left.remove(of_it)
                with self._named(name, "load_state_dict"):
                    callback.load_state_dict(_unpacked(of_it["state"]))
        configured = _unpacked(state.get("configured", {}))
        for key, value in _unpacked(state.get("set", {})).items():
            before = configured.get(key)
            now = _configured(owner_of(self.context.policy), key)
            if before is None or now is None or before == now:
                self.context.set(key, value)
            else:
                LOGGER.warning(
                    "%s, which a callback had set to %s, is %s as configured now",
                    key,
                    value,
                    now["value"],
                )

    def take_stop(self) -> str:
        """Returns why one of them wants the run to end; empty: none does."""
        asks, self.context.asks = self.context.asks, []
        return asks[0] if asks else ""

    def close(self) -> None:
        """Write out what they have logged. Idempotent."""
        for file in (self.context._curves, self.context._pictures):
            if file is not None:
                file.close()

    @contextlib.contextmanager
    def _named(self, name: str, method: str) -> Iterator[None]:
        self.context._name = name
        try:
            yield
        except Exception as error:
            said, places = repr(error), list(traceback.extract_tb(error.__traceback__))
            if isinstance(error, CallbackError):  # this file has refused what the user's asks
                said = str(error)
                places = [place for place in places if place.filename != __file__]
            of_last = [f" ({Path(p.filename).name}, line {p.lineno})" for p in places[-1:]]
            raise CallbackError(
                f"callback {name}.{method} on rank {self.context.rank} ({self.context.role}): "
                f"{said}{''.join(of_last)}"
            ) from error


_KIND, _OF = "is a", "of"
"""Keys of what JSON cannot say: a tuple, a dict by other keys than texts, a number not finite."""


def _packed(value: Any, name: str, *, arrays: bool = False) -> Any:
    """Returns a state as JSON, HDF5 and torch hold it alike; `_unpacked` returns the state.

    Args:
        value: the state, or a part of it.
        name: of this part, for the error.
        arrays: leave arrays and tensors as they are: torch holds them.

    Raises:
        CallbackError: a part is no plain data.
    """
    if getattr(value, "ndim", None) == 0:  # a number of numpy, or of torch
        value = value.item()
    if arrays and (hasattr(value, "detach") or isinstance(value, np.ndarray)):
        return value
    packed = partial(_packed, arrays=arrays)
    if isinstance(value, Mapping):
        items = [(key, packed(item, f"{name}[{key!r}]")) for key, item in value.items()]
        if all(type(key) is str for key, _ in items) and _KIND not in value:
            return dict(items)
        pairs = [[packed(key, f"{name}, key {key!r},"), item] for key, item in items]
        return {_KIND: "dict", _OF: pairs}
    if isinstance(value, list | tuple):
        parts = [packed(item, f"{name}[{number}]") for number, item in enumerate(value)]
        return parts if isinstance(value, list) else {_KIND: "tuple", _OF: parts}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_KIND: "float", _OF: repr(float(value))}
    if value is None or type(value) in (bool, int, str):
        return value
    raise CallbackError(
        f"{name} is a {type(value).__name__}; a state has numbers, texts, and lists, tuples and "
        "dicts of these; on learners arrays and tensors, too"
    )


def _unpacked(value: Any) -> Any:
    """Returns what `_packed` was given."""
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if _KIND not in value:
        return {key: _unpacked(item) for key, item in value.items()}
    if value[_KIND] == "float":
        return float(value[_OF])
    parts = _unpacked(value[_OF])
    return tuple(parts) if value[_KIND] == "tuple" else dict(parts)


# ---------------------------------------------------------------------------------------- shipped


class EarlyStop(Callback):
    """Ends a run whose evaluations do not get better.

    A run that is resumed after that has as many evaluations again; where evaluations are of other
    settings since then, it is as if there had been none.

    Args:
        evaluations: that many in a row.
        least: by which the mean return must exceed the best so far, to be better.
        after_rise: count only once an evaluation was better than the first episodes collected,
            20 at most, by more than two standard errors of their difference: what has learnt
            nothing yet goes on. Where none were collected before it, the first evaluation is taken.
    """

    _EPISODES = 20

    def __init__(
        self, evaluations: int = USUAL_PATIENCE, least: float = 0.0, *, after_rise: bool = False
    ) -> None:
        self._patience, self._least, self._after_rise = evaluations, least, after_rise
        self._evaluates_as = ""
        self._forget()

    def _forget(self) -> None:
        self._best, self._in_vain, self._has_risen = -math.inf, 0, not self._after_rise
        self._untrained: list[float] = []  # returns
        self._first: tuple[float, float] | None = None  # mean, and its squared standard error

    def on_start(self, context: Context) -> None:
        """Forget the returns before a restart that is with other evaluations."""
        before, self._evaluates_as = self._evaluates_as, evaluates_as(context.config)
        if before not in ("", self._evaluates_as):
            self._forget()

    def on_episode(self, context: Context, info: Mapping[str, float]) -> None:  # noqa: ARG002
        """Keep the return of one of the first."""
        if self._first is None and len(self._untrained) < self._EPISODES:
            self._untrained.append(float(info["return"]))

    def on_evaluation(self, context: Context, result: Evaluation) -> None:
        """Count."""
        squared, before = result.std**2 / max(result.episodes, 1), self._untrained
        if self._first is None and before:
            self._first = (float(np.mean(before)), float(np.var(before)) / len(before))
        mean, its_squared = self._first = self._first or (result.mean, squared)
        self._has_risen |= result.mean - mean > 2 * math.sqrt(its_squared + squared)
        is_better = result.mean > self._best + self._least or not self._has_risen
        self._in_vain = 0 if is_better else self._in_vain + 1
        self._best = max(self._best, result.mean)
        if self._in_vain >= self._patience:
            context.stop(f"no better evaluation than {self._best:.4g} in {self._in_vain}")
            self._in_vain = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns what was first, the best mean, and the evaluations since then."""
        return {
            "best": self._best,
            "in_vain": self._in_vain,
            "first": self._first,
            "untrained": [*self._untrained],
            "has_risen": self._has_risen,
            "evaluates_as": self._evaluates_as,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._best, self._in_vain = state["best"], state["in_vain"]
        self._first, self._untrained = state["first"], [*state["untrained"]]
        self._has_risen |= state["has_risen"]
        self._evaluates_as = state["evaluates_as"]


class Histograms(Callback):
    """Draws histograms of the network's weights, and of their last gradients.

    Args:
        every: train iterations between two.
    """

    runs_on = LEARNER

    def __init__(self, every: int = 1000) -> None:
        self._every = every

    def on_update(self, context: Context, scalars: Mapping[str, float]) -> None:  # noqa: ARG002
        """Draw them if it is time; of a group each learner does, its own gradients among them."""
        if context.network is None or context.train_iter % self._every:
            return
        for name, parameter in context.network.named_parameters():
            context.log(f"weights/{name}", parameter.reshape(-1))
            if parameter.grad is not None:
                context.log(f"gradients/{name}", parameter.grad.reshape(-1))


class Video(Callback):
    """Films an episode, greedy, while the run goes on: by `hpcdi eval --video` in another process.

    The film is of the newest policy on disk, the best or the last snapshot's, in the run folder's
    ``videos``; where the last film is not done yet, or fails, the run goes on.

    Args:
        every: evaluations between two films.
        policy: ``latest`` or ``best``.
        wait_s: for the last film, when the run has ended.
    """

    def __init__(self, every: int = 10, policy: str = "latest", wait_s: float = 60.0) -> None:
        if every < 1 or policy not in ("latest", "best"):
            raise ValueError(
                f"every must be 1 or more, not {every!r}; policy latest or best, not {policy!r}"
            )
        self._every, self._policy, self._wait_s = every, policy, wait_s
        self._evaluations = self._filmed = 0  # how many there were, at all and at the last film
        self._filming: subprocess.Popen[str] | None = None

    def on_evaluation(self, context: Context, result: Evaluation) -> None:  # noqa: ARG002
        """Begin a film if it is time."""
        self._evaluations += 1
        if self._evaluations % self._every == 0 and self._is_done():
            self._begin(context)

    def on_end(self, context: Context) -> None:
        """Film the policy that the run ends with, if there is no film of it yet."""
        if self._evaluations > self._filmed and self._is_done(self._wait_s):
            self._begin(context)
        self._is_done(self._wait_s)

    def state_dict(self) -> dict[str, Any]:
        """Returns how many evaluations there have been."""
        return {"evaluations": self._evaluations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self._evaluations = int(state["evaluations"])
        self._filmed = self._evaluations - self._evaluations % self._every

    def _begin(self, context: Context) -> None:
        if context.folder is None:
            return
        from hpcdi.env.child_process import variables_of_a_child  # imports gymnasium

        layout = RunLayout(context.folder)
        files = {"best": layout.best_policy}
        if self._policy == "latest":  # of which the newest on disk may be a better one
            files["latest"] = layout.latest_policy
        written = {name: file.stat().st_mtime for name, file in files.items() if file.is_file()}
        if not written:
            return
        self._filmed = self._evaluations
        newest = max(written, key=lambda name: written[name])
        command = [sys.executable, "-m", "hpcdi", "eval", str(layout.root), "--policy"]
        command += [newest, "--episodes", "1", "--video"]
        with variables_of_a_child():
            self._filming = subprocess.Popen(  # noqa: S603 - this Python, and a folder
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def _is_done(self, wait_s: float = 0.0) -> bool:
        """Whether no film is being made, after so many seconds at most; says it if one failed."""
        if self._filming is None:
            return True
        try:
            _, said = self._filming.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            if wait_s:
                self._filming.kill()
                self._filming.communicate()
                self._filming = None
                LOGGER.warning("the film is not done after %g s, and is given up", wait_s)
            return False
        if self._filming.returncode:
            LOGGER.warning("there is no film: %s", said.strip().rpartition(chr(10))[2])
        self._filming = None
        return True


SHIPPED: Mapping[str, type[Callback]] = {
    "early_stop": EarlyStop,
    "histograms": Histograms,
    "video": Video,
}


# ---------------------------------------------------------------------------------- configuration


def makers(
    given: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, str, Callable[[], Callback]]]:
    """Yields the name of each callback of a configuration, its role, and what makes it.

    Raises:
        ConfigError: there is no such class.
    """
    for number, entry in enumerate(given):
        path = f"callbacks.{number}"
        arguments = {key: value for key, value in entry.items() if key != "type"}
        name = str(entry.get("type", ""))
        kind = SHIPPED.get(name)
        if kind is None:
            if ":" not in name:
                known = ", ".join(sorted(SHIPPED))
                message = f"is {name!r}: neither one of {known} nor 'my_module:Class'"
                raise ConfigError([Problem(f"{path}.type", message)])
            kind = named_in_module(name, f"{path}.type")
        make = partial(_make, kind, arguments, path)
        yield name.rpartition(":")[2], getattr(kind, "runs_on", ""), make


def _make(kind: Any, arguments: Mapping[str, Any], path: str) -> Callback:
    """Returns a callback of a class.

    Raises:
        ConfigError: it is none, cannot be made, or has a method that would never be called.
    """
    try:
        callback = kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(path, str(error))]) from error
    except Exception as error:  # whatever a class of the user's raises
        raise ConfigError([Problem(path, f"{kind.__name__} {raised(error)}")]) from error
    role = getattr(kind, "runs_on", "")
    if not isinstance(callback, Callback) or callback.runs_on != role or role not in [*_CALLED]:
        said = "name a class, and derive it from hpcdi.Callback; the class's runs_on is"
        raise ConfigError([Problem(path, f"is {callback!r}: {said} {', '.join(_CALLED)}")])
    if problems := [Problem(path, said) for said in _never_called(callback)]:
        raise ConfigError(problems)
    return callback


def _never_called(callback: Callback) -> Iterator[str]:
    """Yields what is said of its methods that no run would call."""
    kind, role = type(callback), callback.runs_on
    called = [f"on_{name}" for name in _CALLED[role]]
    for name in dir(kind):
        is_own = getattr(kind, name) is not getattr(Callback, name, None)
        if not name.startswith("on_") or not is_own or name in called:
            continue
        if hasattr(Callback, name):
            roles = " or ".join(
                repr(r) for r, of in _CALLED.items() if name.removeprefix("on_") in of
            )
            yield f"{kind.__name__}.{name} is not called on a {role}: runs_on = {roles}"
        else:
            near = difflib.get_close_matches(name, called, n=1)
            guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(called)}"
            yield f"{kind.__name__}.{name} is never called; {guess}"


def problems_of(given: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Returns what is wrong with the callbacks of a configuration: each is made once."""
    try:
        for _, _, make in makers(given):
            make()
    except ConfigError as error:
        return list(error.problems)
    return []
