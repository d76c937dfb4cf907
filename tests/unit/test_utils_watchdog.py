"""A process that hangs shows its threads and is killed, whatever it hangs in."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from hpcdi.utils.watchdog import Watchdog

LIMIT_S = 2.0

SLEEPS = "time.sleep(600)"
HOLDS_THE_INTERPRETER = "ctypes.PyDLL(None).sleep(600)"


def child(work: str) -> subprocess.CompletedProcess[str]:
    """A process with a watchdog that moves for a while, then hangs."""
    program = f"""
import ctypes, threading, time
from hpcdi.utils.watchdog import Watchdog
watchdog = Watchdog({LIMIT_S})
stop = time.monotonic() + {LIMIT_S + 1.0}
while time.monotonic() < stop:  # longer than the limit
    watchdog.look(time.monotonic())
    time.sleep(0.05)
print("moved", flush=True)
moved = time.monotonic()
threading.Thread(target=lambda: [(watchdog.look(moved), time.sleep(0.05)) for _ in range(10**6)],
                 daemon=True).start()
{work}
"""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("work", [SLEEPS, HOLDS_THE_INTERPRETER], ids=["sleeps", "holds the GIL"])
def test_it_is_killed_by_a_signal_after_its_stacks_are_shown(work: str) -> None:
    ended = child(work)
    assert "moved" in ended.stdout, ended.stderr
    assert ended.returncode == -signal.SIGALRM
    assert "Timeout" in ended.stderr
    assert "most recent call first" in ended.stderr


def test_a_closed_one_lets_it_live() -> None:
    watchdog = Watchdog(0.2)
    watchdog.look(1)
    watchdog.close()
    watchdog.look(2)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    time.sleep(0.3)


def test_without_a_limit_nothing_is_armed() -> None:
    watchdog = Watchdog(float("inf"))
    watchdog.look(1)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    watchdog.close()
