"""A process that hangs shows its threads and is killed, whatever it hangs in."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from hpcdi.utils import watchdog as module
from hpcdi.utils.watchdog import KillTimer, Watchdog

FOREVER_S, SOON_S = 1000.0, 500.0
SLEEPS = "time.sleep(600)"
HOLDS_THE_INTERPRETER = "ctypes.PyDLL(None).sleep(600)"


@pytest.fixture
def dog() -> Iterator[Watchdog]:
    made = Watchdog(FOREVER_S)
    yield made
    made.close()


def test_it_is_killed_by_a_signal_after_its_stacks_are_shown() -> None:
    """Whatever it hangs in; another thread goes on looking, at what moves no more."""
    programs = [
        f"""
import ctypes, threading, time
from hpcdi.utils import watchdog
watchdog._ARM_EVERY_S = 0.0
dog = watchdog.Watchdog(2.0)
look = lambda: [(dog.look(1), time.sleep(0.01)) for _ in range(10**6)]
threading.Thread(target=look, daemon=True).start()
{work}
"""
        for work in (SLEEPS, HOLDS_THE_INTERPRETER)
    ]
    hanging = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        for program in programs
    ]
    for process in hanging:
        _, shown = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, shown
        assert "Timeout" in shown
        assert "most recent call first" in shown


def test_a_suspension_that_is_announced_kills_nobody_and_progress_arms_again() -> None:
    """Slurm sends SIGTSTP first; what hangs after the suspension is killed."""
    program = """
import time
from hpcdi.utils import watchdog
watchdog._ARM_EVERY_S = watchdog._HELD_S = 0.0
watchdog.heed_suspensions()
dog = watchdog.Watchdog(1.0)
for turn in range(4):
    dog.look(turn)
    print(flush=True)
    time.sleep(0.3)
time.sleep(600)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTSTP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2.0)
        process.send_signal(signal.SIGCONT)
        turns, shown = process.communicate(timeout=60)
    assert turns.count(b"\n") == 3, "it has gone on"
    assert (process.returncode, shown.count(b"most recent call first")) == (-signal.SIGKILL, 1)


def test_only_a_move_puts_the_end_off_at_most_once_a_second(
    dog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    dog.look(1)
    assert dog.left_s > SOON_S
    assert dog._timer is not None
    dog._timer.set(SOON_S)
    for later_s, moved, is_put_off in ((0.5, 2, False), (1.5, 1, False), (1.5, 2, True)):
        now[0] = 100.0 + later_s
        dog.look(moved)
        assert (dog.left_s > SOON_S) is is_put_off


@pytest.mark.parametrize("has_looked", [True, False])
def test_a_closed_one_lets_it_live_whoever_still_looks(dog: Watchdog, has_looked: bool) -> None:
    """Its communication thread looks until it has ended, which is after the close."""
    if has_looked:
        dog.look(1)
        assert dog.left_s > 0
    dog.close()
    assert dog.left_s == 0.0
    dog.look(2)
    assert dog.left_s == 0.0


def test_a_close_in_the_middle_of_a_look(dog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look has decided to arm the timer, and does so when the close has come."""
    looks, has_closed = threading.Event(), threading.Event()

    class Slow(KillTimer):
        def set(self, seconds: float) -> None:
            if seconds:
                looks.set()
                has_closed.wait(0.1)
            super().set(seconds)

    monkeypatch.setattr(module, "KillTimer", Slow)
    looking = threading.Thread(target=dog.look, args=(1,))
    looking.start()
    assert looks.wait(30)
    dog.close()
    has_closed.set()
    looking.join()
    assert dog.left_s == 0.0


def test_without_a_limit_nothing_is_armed() -> None:
    unlimited = Watchdog(float("inf"))
    unlimited.look(1)
    assert unlimited.left_s == 0.0
    unlimited.close()


def test_it_leaves_alarms_to_environments(dog: Watchdog) -> None:
    """A step that limits itself by SIGALRM, or a library that takes the signal, disarms nothing."""
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: heard.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        dog.look(1)
        while not heard:
            signal.pause()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert dog.left_s > SOON_S
