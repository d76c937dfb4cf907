"""What environments do to their process: they end it, take its signals, use its generators."""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import json
import logging
import logging.config
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes.env_managers import SYNC, made, running, seen, steps_of
from fakes.environments import Breaking, Drawing, Ending
from hpcdi.config.env import ChildConfig, GymnasiumConfig
from hpcdi.env import in_process, process_state
from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.manager import EnvManager
from hpcdi.env.probe import look_at
from hpcdi.env.process_state import SignalGuard, in_their_modes, seed_libraries
from hpcdi.env.toy import CountEnv
from hpcdi.errors import ConfigError, EnvError
from hpcdi.utils.console import forget
from hpcdi.utils.host import open_files
from hpcdi.utils.log import LOGGER, close_log, open_log

pytestmark = pytest.mark.usefixtures("env_helpers")
FORMS = ("pool", "forkserver", *SYNC)


# ------------------------------------------------------------------------------------------ ending


@pytest.fixture
def _as_in_a_run() -> Iterator[None]:
    """There Control-C sets a flag, and raises nothing."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_as_in_a_run")
@pytest.mark.parametrize(
    ("form", "where", "how"),
    [
        *itertools.product(["pool", *SYNC], ["make", "step", "reset"], ["exit", "interrupt"]),
        ("forkserver", "make", "exit"), ("forkserver", "step", "interrupt"),
        ("pool", "step", "cancel"), ("pool", "make", "cancel"), (SYNC[0], "reset", "cancel"),
        ("pool", "step", "speechless"),
    ],
)  # fmt: skip
def test_it_is_the_environment_s_failure_with_its_text(
    form: str, where: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    word = {
        "exit": "SystemExit: licence lost", "interrupt": "KeyboardInterrupt: licence lost",
        "cancel": "CancelledError: licence lost", "speechless": "Speechless",
    }[how]  # fmt: skip
    manager = made(form, [partial(Ending, how, where)] * 2, max_retry=0)
    with caplog.at_level(logging.WARNING, "hpcdi"), manager:
        said = ""
        try:
            manager.launch()
            steps_of(manager, 2)
            manager.reset()
        except EnvError as error:
            said = str(error)
        assert word in said + caplog.text


@pytest.fixture
def _as_at_a_terminal() -> Iterator[None]:
    """There Control-C raises; in a shell's background nobody hears it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_as_at_a_terminal")
def test_a_person_s_interrupt_goes_through() -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        running("pool", [partial(Ending, "interrupt", "step")]) as m,
    ):
        steps_of(m, 4)


class OfConfiguration(gymnasium.Env[Any, Any]):
    def __init__(self, how: str) -> None:
        if how == "exit":
            sys.exit("no licence")
        if how == "key":
            raise KeyError("scene")
        len(how, how)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("exit", EnvError, r"cannot be made: SystemExit: no licence \(.*line \d+"),
        ("key", EnvError, r"cannot be made: KeyError: 'scene' \(.*test_env_process.py, line \d+"),
        ("type", EnvError, r"cannot be made: TypeError: len.* \(.*test_env_process.py, line \d+"),
    ],
)
def test_one_that_cannot_be_made_says_where(how: str, error: Any, said: str) -> None:
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:OfConfiguration", "kwargs": {"how": how}}
    with pytest.raises(error, match=said):
        look_at(get_env_cls(cfg).parse_config(cfg))


def test_a_wrong_argument_is_the_configuration_s() -> None:
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:OfConfiguration", "kwargs": {"who": 1}}
    with pytest.raises(ConfigError, match=r"env.kwargs"):
        look_at(get_env_cls(cfg).parse_config(cfg))


# ----------------------------------------------------------------------------------------- signals


class Taking(CountEnv):
    """Takes signals, by Python or in C, when it is made or at each reset."""

    def __init__(self, way: str, where: str) -> None:
        super().__init__(3)
        self._way, self._where = way, where
        self._take("make")

    def _take(self, where: str) -> None:
        if where != self._where:
            return
        for number in (signal.SIGTERM, signal.SIGUSR2):
            if self._way == "C":
                ctypes.CDLL(None).signal(int(number), ctypes.c_void_p(1))
            else:
                signal.signal(number, signal.SIG_DFL)

    def reset(self, **given: Any) -> Any:
        self._take("reset")
        return super().reset(**given)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Signals that this process hears."""
    numbers: list[int] = []
    kept = {
        number: signal.signal(number, lambda n, _frame: numbers.append(n))
        for number in (signal.SIGTERM, signal.SIGUSR2)
    }
    yield numbers
    for number, handler in kept.items():
        signal.signal(number, handler)


def of_config(form: str, name: str, **kwargs: Any) -> EnvManager:
    """A manager of two environments of a class of this module, as a configuration has them."""
    together = {"vectorization": "sync", "autoreset": form} if form in SYNC else {}
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:{name}", "collector_env_num": 2}
    return create_env_manager(
        {**cfg, **together, "kwargs": kwargs, "manager": {"type": "base"}},
        evaluate=False, seed=np.random.SeedSequence(0),
    )  # fmt: skip


@pytest.mark.parametrize("way", ["C", "Python"])
@pytest.mark.parametrize("where", ["make", "reset"])
@pytest.mark.parametrize("form", ["pool", *SYNC])
def test_signals_that_an_environment_takes_are_put_back(
    form: str, where: str, way: str, heard: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "hpcdi"),
        of_config(form, "Taking", way=way, where=where) as manager,
    ):
        manager.launch()
        manager.reset()
        steps_of(manager, 7)  # they reset within their steps
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR2)
        assert heard == [signal.SIGTERM, signal.SIGUSR2]
    assert "takes SIGUSR2, SIGTERM: the handlers are put back" in caplog.text


@pytest.mark.parametrize("way", ["C", "Python"])
def test_signals_that_a_vector_environment_takes_are_put_back(way: str, heard: list[int]) -> None:
    """One of one's own, which is reset after a step."""
    with running("disabled", [partial(Taking, way, "reset")] * 2) as manager:
        steps_of(manager, 7)
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("imports", [True, False])
@pytest.mark.parametrize(
    ("number", "library"), [(signal.SIGHUP, "mpi4py.MPI"), (signal.SIGQUIT, "pygame")]
)
def test_what_a_library_takes_by_itself_is_put_back_in_silence(
    number: signal.Signals,
    library: str,
    imports: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Open MPI when a coupling, say, imports mpi4py; pygame when a game is made."""
    monkeypatch.delitem(sys.modules, library, raising=False)
    before = signal.getsignal(number)
    with caplog.at_level(logging.WARNING, "hpcdi"), SignalGuard():
        signal.signal(number, lambda _number, _frame: None)  # a shell's job ignores SIGQUIT already
        if imports:
            monkeypatch.setitem(sys.modules, library, ModuleType(library))
    assert signal.getsignal(number) is before
    assert (f"takes {number.name}" in caplog.text) != imports


def test_its_own_alarm_stays_its_own(heard: list[int]) -> None:
    before = signal.getsignal(signal.SIGALRM)
    try:
        with SignalGuard():
            signal.signal(signal.SIGALRM, lambda number, _frame: heard.append(number))
        signal.raise_signal(signal.SIGALRM)
        assert heard == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------------------------- output and logs


class Silencing(CountEnv):
    """Silences its process once, when it is made, reset or stepped."""

    def __init__(self, way: str, where: str) -> None:
        super().__init__(3)
        self._way, self._where = way, where
        self._silence("make")

    def _silence(self, where: str) -> None:
        if where != self._where:
            return
        self._where = ""
        if self._way == "streams":
            sys.stdout = sys.stderr = io.StringIO()
        if self._way == "descriptors":
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.close(null)
        if self._way == "closed":
            with contextlib.suppress(OSError):  # another one has closed it
                os.close(1)
        if self._way == "config":
            logging.config.dictConfig({"version": 1})
        if self._way == "disable":
            logging.disable(logging.CRITICAL)

    def reset(self, **given: Any) -> Any:
        self._silence("reset")
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self._silence("step")
        return super().step(action)


def silencing(way: str) -> Any:
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:Silencing"}
    return get_env_cls(cfg).parse_config({**cfg, "kwargs": {"way": way, "where": "make"}})


def outputs() -> list[Any]:
    """Where this process writes to."""
    files = [os.fstat(number) for number in (1, 2)]
    return [sys.stdout, sys.stderr, *((file.st_dev, file.st_ino) for file in files)]


@pytest.fixture
def _same_outputs() -> Iterator[None]:
    streams, copies = (sys.stdout, sys.stderr), [os.dup(1), os.dup(2)]
    yield
    sys.stdout, sys.stderr = streams
    for number, copy in enumerate(copies, 1):
        os.dup2(copy, number)
        os.close(copy)


@pytest.mark.usefixtures("_same_outputs")
@pytest.mark.parametrize(
    ("way", "names"),
    [("streams", "stdout and stderr"), ("descriptors", "stdout and stderr"), ("closed", "stdout")],
)
@pytest.mark.parametrize("where", ["make", "reset"])
@pytest.mark.parametrize("form", ["pool", *SYNC])
def test_output_that_an_environment_takes_is_put_back(
    form: str, where: str, way: str, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, files = outputs(), open_files()
    with (
        caplog.at_level(logging.WARNING, "hpcdi"),
        running(form, [partial(Silencing, way, where)] * 2) as manager,
    ):
        manager.reset()
        assert outputs() == before
    assert f"takes {names}: put back after" in caplog.text
    assert open_files() == files


@pytest.mark.usefixtures("_same_outputs")
@pytest.mark.parametrize("way", ["streams", "descriptors"])
def test_a_look_at_one_leaves_the_output(way: str) -> None:
    before = outputs()
    look_at(silencing(way))
    assert outputs() == before


@pytest.mark.usefixtures("_same_outputs")
def test_output_that_nobody_reads_any_more_stays_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """We forget it where a write fails, be it of an environment."""
    ours, theirs = os.pipe()
    os.dup2(theirs, 1)
    os.close(theirs)
    with caplog.at_level(logging.WARNING, "hpcdi"), SignalGuard():
        os.close(ours)
        forget(1)
    assert os.path.samestat(os.fstat(1), Path(os.devnull).stat())
    assert caplog.text == ""


@pytest.fixture
def _same_logs() -> Iterator[None]:
    """`logging.config` disables all loggers, and forgets their handlers."""
    loggers = [
        each for each in logging.root.manager.loggerDict.values() if hasattr(each, "disabled")
    ]
    disabled, handlers = [each.disabled for each in loggers], logging._handlerList[:]
    yield
    logging.disable(logging.NOTSET)
    logging._handlerList[:] = handlers
    for logger, is_disabled in zip(loggers, disabled, strict=True):
        logger.disabled = is_disabled


@pytest.mark.usefixtures("_same_logs")
@pytest.mark.parametrize("way", ["config", "disable"])
@pytest.mark.parametrize("where", ["make", "reset", "step", "look"])
@pytest.mark.parametrize("form", ["pool", *SYNC])
def test_logs_go_on_after_one_that_switches_logging_off(
    form: str, where: str, way: str, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    open_log(log, 0, "collector")
    try:
        if where == "look":
            look_at(silencing(way))
        else:
            with running(form, [partial(Silencing, way, where)] * 2) as manager:
                steps_of(manager, 2)
                LOGGER.warning("environment 0 failed")
        LOGGER.info("the end")
    finally:
        close_log()
    said = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    assert said == (["the end"] if where == "look" else ["environment 0 failed", "the end"])


@pytest.mark.usefixtures("_same_logs")
def test_a_warning_of_signals_is_heard_from_one_that_switches_logging_off(
    caplog: pytest.LogCaptureFixture, heard: list[int]
) -> None:
    with caplog.at_level(logging.WARNING, "hpcdi"), SignalGuard():
        logging.disable(logging.CRITICAL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert "takes SIGTERM" in caplog.text
    assert heard == []


# -------------------------------------------------------------------------------------- generators


class Wandering(CountEnv):
    """Goes into a folder when it is made."""

    def __init__(self, length: int = 3) -> None:
        os.chdir("inner")
        super().__init__(length)


def test_a_look_at_one_does_not_change_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path)
    cfg = GymnasiumConfig(
        env_id=f"{__name__}:Wandering", eval_kwargs={"length": 5}, manager=ChildConfig()
    )
    look_at(cfg, trains=True, seed=0)  # makes two, one after the other
    assert Path.cwd() == tmp_path


def drawn(form: str, seed: int) -> Any:
    with running(form, [Drawing] * 2, seed=seed) as manager:
        first = seen(manager).copy()
        taken = steps_of(manager, 2)
        return np.stack([first, *(step.successor["observation"] for _, step in taken)])


@pytest.mark.parametrize("form", FORMS)
def test_what_they_draw_differs_by_environment_and_repeats_by_seed(form: str) -> None:
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        one = drawn(form, 1)
        np.testing.assert_array_equal(one, drawn(form, 1))
        assert not np.isin(one, drawn(form, 2)).any()
        steps = one[..., 1:]
        assert np.unique(steps).size == steps.size
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def of_drawing(*, evaluate: bool) -> EnvManager:
    """Evaluations begin by the same seed."""
    cfg = {
        "type": "gymnasium", "env_id": "fakes.environments:Drawing", "collector_env_num": 2,
        "evaluator_env_num": 1, "eval_seeds": [7], "manager": {"type": "base"},
    }  # fmt: skip
    return create_env_manager(cfg, evaluate=evaluate, seed=np.random.SeedSequence(0))


@pytest.mark.parametrize("how", ["step", "call"])
def test_what_they_draw_is_the_same_whatever_is_evaluated_between(how: str) -> None:
    """After each evaluation they drew the same numbers again."""
    state, numpy_state = random.getstate(), np.random.get_state()
    drawn: dict[bool, list[Any]] = {True: [], False: []}
    try:
        for evaluates, into in drawn.items():
            with of_drawing(evaluate=False) as collecting:
                collecting.launch()
                for _ in range(4):
                    if evaluates:
                        with of_drawing(evaluate=True) as evaluating:
                            evaluating.launch()
                            steps_of(evaluating, 2)
                    if how == "step":
                        steps_of(collecting, 1)
                        into.append(seen(collecting).tolist())
                    else:
                        into.append(collecting.call(0, "_drawn")[1].tolist())
        assert drawn[True] == drawn[False]
        assert drawn[True][0] != drawn[True][1]
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


@pytest.mark.parametrize("with_torch", [True, False])
def test_torch_is_seeded_where_no_policy_draws_from_it(
    with_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(manual_seed=seeds.append))
    state, numpy_state = random.getstate(), np.random.get_state()
    for seed in (1, 1, 2):
        seed_libraries(seed, with_torch=with_torch)
    random.setstate(state)
    np.random.set_state(numpy_state)
    assert len(set(seeds)) == (2 if with_torch else 0)


class OfDoubles(gymnasium.Env[Any, Any]):
    """Sets torch's modes once, when it is made or in its first step, and needs them in each."""

    observation_space = spaces.Box(-9, 9, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, where: str, threads: int) -> None:
        self._where, self._threads = where, threads
        self._set("make")

    def _set(self, where: str) -> None:
        if where == self._where:
            self._where = ""
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
            torch.set_num_threads(self._threads)
            torch.set_default_device("meta")

    def reset(self, **_given: Any) -> Any:
        self._set("reset")
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._set("step")
        assert modes() == (torch.float64, False, self._threads, "meta")
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        assert modes() == (torch.float64, False, self._threads, "meta")


def modes() -> tuple[Any, ...]:
    device = torch.get_default_device().type
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), device


@pytest.mark.parametrize("where", ["make", "reset", "step"])
@pytest.mark.parametrize("form", ["pool", *SYNC])
def test_modes_of_torch_are_an_environment_s_own(
    form: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_state, "_TORCH_OF_ENVS", {})
    before = modes()
    with running(form, [partial(OfDoubles, where, before[2] + 1)], max_retry=0) as manager:
        for _ in range(3):
            steps_of(manager, 1)
            assert modes() == before
        manager.reset()
        manager.call(0, "render")
        assert modes() == before


class OfOthers(OfDoubles):
    """Steps environments that set torch's modes, by a manager of its own."""

    def __init__(self, threads: int) -> None:
        super().__init__("", threads)
        self._others = made("pool", [partial(OfDoubles, "step", threads)], max_retry=0)
        self._others.launch()

    def step(self, action: Any) -> Any:
        steps_of(self._others, 1)
        return super().step(action)


def test_modes_of_torch_are_kept_for_environments_in_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_state, "_TORCH_OF_ENVS", {})
    before = modes()
    with running("pool", [partial(OfOthers, before[2] + 1)], max_retry=0) as manager:
        for _ in range(3):
            steps_of(manager, 1)
            assert modes() == before


def test_modes_of_a_torch_that_an_environment_imports_are_torch_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_state, "_TORCH_OF_ENVS", {})
    monkeypatch.delitem(sys.modules, "torch")
    before = modes()

    def import_it() -> None:
        monkeypatch.setitem(sys.modules, "torch", torch)
        torch.set_default_dtype(torch.float64)

    in_their_modes(import_it)
    assert modes() == before


def test_one_that_is_made_anew_draws_other_numbers() -> None:
    with running("forkserver", [Breaking], retry_type="renew") as manager:
        first = seen(manager).copy()
        steps_of(manager, 1)
        assert manager.failures == 1
        assert not np.isin(seen(manager), first).any()


def test_environments_that_gymnasium_steps_together_draw_other_numbers() -> None:
    cfg = {
        "type": "gymnasium", "env_id": "fakes.environments:Drawing", "vectorization": "sync",
        "collector_env_num": 3,
    }  # fmt: skip
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
        envs.launch()
        observation = envs.observation["observation"]
        assert np.unique(observation[:, 1:3]).size == 6


@pytest.mark.parametrize("form", ["pool", "next_step"])
def test_one_that_fails_to_close_is_a_warning(form: str, caplog: pytest.LogCaptureFixture) -> None:
    class Env(CountEnv):
        def close(self) -> None:
            sys.exit("licence lost")

    with caplog.at_level(logging.WARNING, "hpcdi"), running(form, [partial(Env, 9)]) as envs:
        steps_of(envs, 1)
    assert "close() of an environment failed (SystemExit: licence lost)" in caplog.text


class Quitting(CountEnv):
    """Ends its process by `os._exit`, or waits for ever, when it is made or closed."""

    def __init__(self, how: str, where: str) -> None:
        super().__init__(9)
        self._how, self._where = how, where
        self._quit("make")

    def _quit(self, where: str) -> None:
        while where == self._where:
            if self._how == "exit":
                os._exit(0)
            with contextlib.suppress(Exception):
                threading.Event().wait()

    def close(self) -> None:
        self._quit("close")


def quitting(how: str, where: str) -> Any:
    kwargs = {"how": how, "where": where}
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:Quitting", "kwargs": kwargs}
    return get_env_cls(cfg).parse_config(cfg)


def test_one_that_ends_its_process_cannot_be_made() -> None:
    before = os._exit
    with pytest.raises(EnvError, match=r"SystemExit: os._exit\(0\) was called"):
        look_at(quitting("exit", "make"))
    assert os._exit is before


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit", "failed (SystemExit: os._exit(0) was called)"),
        ("wait", f"is given up: {__name__}.Quitting (TakesTooLongError: it took longer than 0.1 s"),
    ],
)
def test_one_that_quits_or_hangs_when_it_is_closed_is_a_warning(
    how: str, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "CLOSE_S", 0.1)
    monkeypatch.setattr(in_process, "CLOSE_AGAIN_S", 0.1)
    handlers = process_state.handlers_of_signals()
    with caplog.at_level(logging.WARNING, "hpcdi"):
        look_at(quitting(how, "close"))
        with running("pool", [partial(Quitting, how, "close")]) as envs:
            steps_of(envs, 1)
    assert caplog.text.count(f"close() of an environment {said}") == 2
    assert process_state.handlers_of_signals() == handlers


class Strict(OfDoubles):
    """Has numpy raise errors, and returns numbers that are none in float32.

    Its child process has torch, as this module does.
    """

    observation_space = spaces.Box(-9, 9, (1,), np.float64)

    def _set(self, where: str) -> None:
        if where == "make":
            np.seterr(all="raise")

    def reset(self, **_given: Any) -> Any:
        return np.full(1, 1e-50), {}

    def step(self, action: Any) -> Any:
        assert set(np.geterr().values()) == {"raise"}
        return np.full(1, 1e-50), np.float64(1e-50), False, False, {}


@pytest.mark.parametrize("form", ["pool", "forkserver", *SYNC])
def test_numpy_s_errors_are_an_environment_s_own(form: str) -> None:
    before = np.geterr()
    with running(form, [partial(Strict, "", 1)], max_retry=0) as manager:
        steps_of(manager, 2)
        assert np.geterr() == before


def test_numpy_s_errors_begin_as_the_program_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "_ERRORS_OF_ENVS", {})
    with np.errstate(all="raise"):
        assert set(in_their_modes(np.geterr).values()) == {"raise"}


def test_environments_see_variables_of_the_program_s_context() -> None:
    level = ContextVar("level", default=0)
    seen = [in_their_modes(level.get)]
    for number in (1, 2):
        level.set(number)
        seen.append(in_their_modes(level.get))
    assert seen == [0, 1, 2]


def handlers_in_a_hang() -> dict[str, Any]:
    """Hang in C, which does not end by an interrupt; returns how signals are handled meanwhile."""
    interrupt = {process_state._INTERRUPT}
    with contextlib.suppress(process_state.TakesTooLongError), process_state.at_most(0.05):
        signal.pthread_sigmask(signal.SIG_BLOCK, interrupt)
        time.sleep(0.4)
        within = process_state.handlers_of_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, interrupt)
    return within


def test_a_hang_in_c_has_signals_end_the_process_unless_they_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_state, "_AGAIN_S", 0.05)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = process_state.handlers_of_signals()
    within = handlers_in_a_hang()
    after = process_state.handlers_of_signals()
    signal.signal(signal.SIGHUP, hangup)
    assert after == before
    assert within["SIGHUP"] == before["SIGHUP"]
    assert within["SIGTERM"][1] == bytes(8)  # SIG_DFL


def test_closing_leaves_handlers_in_c_as_they_are() -> None:
    number, handler = process_state._INTERRUPT, process_state._HANDLER
    ctypes.CDLL(None).signal(int(number), ctypes.c_void_p(1))  # SIG_IGN
    action = process_state._action_of(number)[handler]
    with process_state.at_most(9.0):
        assert process_state._action_of(number)[handler] != action
    assert process_state._action_of(number)[handler] == action
    ctypes.CDLL(None).signal(int(number), None)


def test_a_wrapper_that_does_not_say_what_it_wraps_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Closed:
        is_closed = False

        @property
        def unwrapped(self) -> Any:
            raise RuntimeError("private")

        def close(self) -> None:
            self.is_closed = True

    env = Closed()
    in_process.close_or_warn(env)
    assert env.is_closed
    assert not caplog.text


@pytest.mark.parametrize(
    ("within", "code"),
    [
        ("one, two = failures(), failures()\none.__enter__()\ntwo.__enter__()\n"
         "one.__exit__(None, None, None)\ntwo.__exit__(None, None, None)\nos._exit(7)", 7),
        ("early.take_signals(['serial'])\nwith failures():\n"
         "    os.kill(os.getpid(), signal.SIGTERM)", 85),
        ("with failures():\n    pid = os.fork()\n    if pid == 0:\n        os._exit(7)\n"
         "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))", 7),
    ],
)  # fmt: skip
def test_exits_that_are_no_failures(within: str, code: int) -> None:
    program = (
        "import os, signal, sys\nfrom hpcdi.utils import early\n"
        f"from hpcdi.env.process_state import exits_are_failures as failures\n{within}"
    )
    words = [sys.executable, "-c", program]
    assert subprocess.run(words, timeout=60, check=False).returncode == code


FORKED = """
import os
import sys
import numpy as np
import torch
from hpcdi.env.create import create_env_manager

cfg = {
    "type": "gymnasium", "env_id": "fakes.environments:Drawing", "vectorization": "sync",
    "collector_env_num": 2,
}
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
    before = torch.get_rng_state()
    envs.launch()
    print(torch.equal(torch.get_rng_state(), before))
"""


def test_a_policy_s_numbers_are_its_own_in_a_forked_process_too() -> None:
    """Environments that are stepped together set torch's generator there."""
    words, tests = [sys.executable, "-c", FORKED], str(Path(__file__).parents[1])
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": tests}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


class OfWrongSpaces(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        self.observation_space = spaces.Tuple(3)  # type: ignore[arg-type]


def test_what_a_library_raises_in_its_code_is_the_environment_s() -> None:
    """It was said of env.kwargs."""
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:OfWrongSpaces"}
    with pytest.raises(EnvError, match=r"TypeError: .*not iterable .*test_env_process.py, line"):
        look_at(get_env_cls(cfg).parse_config(cfg))
