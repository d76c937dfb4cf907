"""Signals, in processes of their own: the first sets a flag, the second ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from signal import SIGINT, SIGTERM

import pytest

from hpcdi.comm.messages import StopRequest
from hpcdi.launch.signals import SignalFlag

# It says what the flag holds whenever a line comes in; signals come while it waits for one.
CHILD = """
import sys
from hpcdi.launch.signals import SignalFlag

flag = SignalFlag()
flag.install()
print("ready", flush=True)
for line in sys.stdin:
    print(flag.take(), flush=True)
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def ask(process: subprocess.Popen[str]) -> str:
    """What the child's flag gives now."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.parametrize(
    ("first", "second", "request_", "exit_code"),
    [
        (SIGINT, SIGINT, StopRequest("received SIGINT", 130), 130),
        (SIGTERM, SIGTERM, StopRequest("received SIGTERM", 143), 143),
        (SIGINT, SIGTERM, StopRequest("received SIGINT", 130), 143),
        (SIGTERM, SIGINT, StopRequest("received SIGTERM", 143), 130),
    ],
)
def test_the_first_signal_asks_and_the_second_ends(
    child: subprocess.Popen[str],
    first: signal.Signals,
    second: signal.Signals,
    request_: StopRequest,
    exit_code: int,
) -> None:
    assert ask(child) == "None"
    child.send_signal(first)
    assert ask(child) == str(request_)
    assert ask(child) == "None"  # it is said once
    child.send_signal(second)
    assert child.wait(timeout=30) == exit_code


def test_without_a_signal_nothing_is_asked() -> None:
    assert SignalFlag().take() is None


def test_only_two_signals_are_taken_over() -> None:
    old = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        SignalFlag().install()
        changed = {number for number in old if signal.getsignal(number) != old[number]}
    finally:
        for number in (SIGINT, SIGTERM):
            signal.signal(number, old[number])
    assert changed == {SIGINT, SIGTERM}
