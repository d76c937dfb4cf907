"""What environments do to their process: they end it, take its signals, use its generators."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import os
import random
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes.env_managers import SYNC, made, running, seen, steps_of
from hpcdi.config.env import ChildConfig, GymnasiumConfig
from hpcdi.env import process_state
from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.probe import get_spaces, look_at
from hpcdi.env.process_state import SignalGuard, TorchOfEnvironments, seed_libraries
from hpcdi.env.toy import CountEnv
from hpcdi.errors import ConfigError, EnvError

pytestmark = pytest.mark.usefixtures("env_helpers")
FORMS = ("pool", "forkserver", *SYNC)


# ------------------------------------------------------------------------------------------ ending


class Speechless(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError


class Ending(CountEnv):
    """Ends its process by an exception once it has made some steps, or when it is made or reset."""

    def __init__(self, how: str, where: str) -> None:
        super().__init__(9)
        self._how, self._where = how, where
        self._steps = self._resets = 0
        self._end("make")

    def _end(self, where: str) -> None:
        if where == self._where:
            if self._how == "exit":
                sys.exit("licence lost")
            if self._how == "cancel":
                raise asyncio.CancelledError("licence lost")
            if self._how == "speechless":
                raise Speechless
            raise KeyboardInterrupt("licence lost")

    def reset(self, **given: Any) -> Any:
        self._resets += 1
        if self._resets > 1:
            self._end("reset")
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps >= 2:
            self._end("step")
        return super().step(action)


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
        get_spaces(get_env_cls(cfg).parse_config(cfg))


def test_a_wrong_argument_is_the_configuration_s() -> None:
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:OfConfiguration", "kwargs": {"who": 1}}
    with pytest.raises(ConfigError, match=r"env.kwargs"):
        get_spaces(get_env_cls(cfg).parse_config(cfg))


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


@pytest.mark.parametrize("way", ["C", "Python"])
@pytest.mark.parametrize("where", ["make", "reset"])
@pytest.mark.parametrize("form", ["pool", *SYNC])
def test_signals_that_an_environment_takes_are_put_back(
    form: str, where: str, way: str, heard: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "hpcdi"),
        running(form, [partial(Taking, way, where)] * 2) as manager,
    ):
        manager.reset()
        if form == "pool":  # it resets within its steps
            steps_of(manager, 7)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR2)
        assert heard == [signal.SIGTERM, signal.SIGUSR2]
    assert "takes SIGUSR2, SIGTERM: the handlers are put back" in caplog.text


def test_its_own_alarm_stays_its_own(heard: list[int]) -> None:
    before = signal.getsignal(signal.SIGALRM)
    try:
        with SignalGuard():
            signal.signal(signal.SIGALRM, lambda number, _frame: heard.append(number))
        signal.raise_signal(signal.SIGALRM)
        assert heard == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


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


class Drawing(gymnasium.Env[Any, Any]):
    """Observes what it draws from the process's generators, also when it is made."""

    observation_space = spaces.Box(0, 1, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._first = np.random.random()

    def _drawn(self) -> Any:
        return np.array([self._first, np.random.random(), random.random()])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._drawn(), {}

    def step(self, action: Any) -> Any:
        return self._drawn(), 0.0, False, False, {}


def drawn(form: str, seed: int) -> Any:
    with running(form, [Drawing] * 2, seed=seed) as manager:
        first = seen(manager).copy()
        taken = steps_of(manager, 2)
        columns = 4 if form == "forkserver" else 3  # torch is the policy's in this process
        return np.stack([first, *(step.successor["observation"] for _, step in taken)])[
            ..., :columns
        ]


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

    def reset(self, **_given: Any) -> Any:
        self._set("reset")
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._set("step")
        assert modes() == (torch.float64, False, self._threads)
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        assert modes() == (torch.float64, False, self._threads)


def modes() -> tuple[Any, ...]:
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()


@pytest.mark.parametrize("where", ["make", "reset", "step"])
@pytest.mark.parametrize("form", ["pool", *SYNC])
def test_modes_of_torch_are_an_environment_s_own(
    form: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_state, "_TORCH_OF_ENVS", {})
    before = modes()
    with running(form, [partial(OfDoubles, where, before[-1] + 1)], max_retry=0) as manager:
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
    with running("pool", [partial(OfOthers, before[-1] + 1)], max_retry=0) as manager:
        for _ in range(3):
            steps_of(manager, 1)
            assert modes() == before


def test_modes_of_a_torch_that_an_environment_imports_are_torch_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_state, "_TORCH_OF_ENVS", {})
    monkeypatch.delitem(sys.modules, "torch")
    before = modes()
    with TorchOfEnvironments():
        monkeypatch.setitem(sys.modules, "torch", torch)
        torch.set_default_dtype(torch.float64)
    assert modes() == before


class Breaking(Drawing):
    def step(self, action: Any) -> Any:
        raise ValueError("broken")


def test_one_that_is_made_anew_draws_other_numbers() -> None:
    with running("forkserver", [Breaking], retry_type="renew") as manager:
        first = seen(manager).copy()
        steps_of(manager, 1)
        assert manager.failures == 1
        assert not np.isin(seen(manager), first).any()


def test_environments_of_gymnasium_s_processes_draw_other_numbers() -> None:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:Drawing", "vectorization": "sync",
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
