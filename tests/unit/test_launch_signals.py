"""Signals, in processes of their own: the first sets a flag, the second ends the process."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU

import pytest

from hpcdi.comm.messages import StopRequest
from hpcdi.errors import LaunchError
from hpcdi.run.signals import SECOND_S, SignalFlag, Signals, preempt_signals

# It says what the flag holds whenever a line comes in, which says how much later it is by then;
# signals come while it waits for one.
CHILD = """
import signal, sys
from types import SimpleNamespace
from hpcdi.run import signals

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
now = 0.0
signals.time = SimpleNamespace(monotonic=lambda: now)
flag = signals.SignalFlag()
flag.install()
print("ready", flush=True)
for line in sys.stdin:
    now += float(line)
    print(flag.take(), flush=True)
"""


@contextlib.contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is ready for signals."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    with running(CHILD) as process:
        yield process


def ask(process: subprocess.Popen[str], later_s: float = 0.0) -> str:
    """What the child's flag gives now."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{later_s}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def first_wish(process: subprocess.Popen[str]) -> str:
    """What the child's flag gives once it has heard a signal.

    While one waits for the child's main thread, Linux gives the next, or both, to a thread of
    numpy's: a line may be faster.
    """
    until = time.monotonic() + 30.0
    while (said := ask(process)) == "None" and time.monotonic() < until:
        pass
    return said


@pytest.mark.parametrize(
    ("first", "second", "request_", "exit_code"),
    [
        (SIGINT, SIGINT, StopRequest("received SIGINT", 130), 130),
        (SIGTERM, SIGTERM, StopRequest("received SIGTERM", 85), 143),
        (SIGINT, SIGTERM, StopRequest("received SIGINT", 130), 143),
        (SIGTERM, SIGINT, StopRequest("received SIGTERM", 85), 130),
        (SIGUSR2, None, StopRequest("received SIGUSR2", 85), 0),
        (SIGXCPU, None, StopRequest("received SIGXCPU", 85), 0),
        (SIGHUP, None, StopRequest("received SIGHUP", 85), 0),
    ],
)
def test_the_first_signal_asks_and_the_second_ends(
    child: subprocess.Popen[str],
    first: signal.Signals,
    second: signal.Signals | None,
    request_: StopRequest,
    exit_code: int,
) -> None:
    assert ask(child) == "None"
    child.send_signal(first)
    assert ask(child) == str(request_)
    assert ask(child, SECOND_S) == "None"  # it is said once
    if second is None:
        return
    child.send_signal(second)
    assert child.wait(timeout=30) == exit_code


def test_a_notebook_survives_the_second() -> None:
    prompt = "import signal, sys; sys.ps1 = '>>> '; signal.signal(2, signal.default_int_handler)"
    at_a_prompt = CHILD.replace("import signal, sys", prompt)  # a shell's job may ignore SIGINT
    program = f"""
try:
{textwrap.indent(at_a_prompt, "    ")}
except KeyboardInterrupt:
    flag.remove()
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        child.send_signal(SIGINT)
        assert ask(child) == str(StopRequest("received SIGINT", 130))
        assert ask(child, SECOND_S) == "None"
        child.send_signal(SIGINT)
        assert child.stdout.readline() == "True\n"


def test_a_preemption_is_not_the_first_of_two_that_end(child: subprocess.Popen[str]) -> None:
    """The queue says USR2 first and TERM when time is up: the snapshot is being written then."""
    child.send_signal(SIGUSR2)
    assert ask(child) == str(StopRequest("received SIGUSR2", 85))
    for _ in range(2):
        child.send_signal(SIGUSR2)
    child.send_signal(SIGTERM)
    assert ask(child) == "None"
    assert ask(child, SECOND_S) == "None"
    child.send_signal(SIGTERM)
    assert child.wait(timeout=30) == 143


def test_a_library_that_takes_the_signals_does_not_keep_them() -> None:
    program = CHILD.replace(
        "for line in",
        "import signal\n"
        "for number in (signal.SIGTERM, signal.SIGUSR2):\n"
        "    signal.signal(number, signal.SIG_DFL)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n"
        "for line in",
    )
    with running(program) as process:
        assert ask(process) == "None"
        process.send_signal(SIGUSR2)
        process.send_signal(SIGTERM)
        assert first_wish(process) == str(StopRequest("received SIGUSR2", 85))


def test_a_library_that_takes_the_signals_in_c_does_not_keep_them() -> None:
    """As Open MPI 5.0.11 takes SIGHUP: Python's own table shows its old handler."""
    program = CHILD.replace(
        "for line in",
        "import ctypes\n"
        "ctypes.CDLL(None).signal(int(signal.SIGHUP), ctypes.c_void_p(1))  # SIG_IGN\n"
        "flag.install_again()\n"
        "for line in",
    )
    with running(program) as process:
        assert ask(process) == "None"
        process.send_signal(SIGHUP)
        assert ask(process) == str(StopRequest("received SIGHUP", 85))


@pytest.mark.parametrize("ask_between", [True, False])
def test_signals_that_come_together_are_one_wish(
    child: subprocess.Popen[str], *, ask_between: bool
) -> None:
    """All processes of a job get SIGTERM, and hand it on; or SIGINT comes with it."""
    child.send_signal(SIGINT)
    if ask_between:
        assert ask(child) == str(StopRequest("received SIGINT", 130))
    for _ in range(3):
        child.send_signal(SIGTERM)
    assert ask(child) == str(StopRequest("received SIGTERM", 85))
    child.send_signal(SIGINT)
    assert ask(child) == "None"
    assert ask(child, SECOND_S) == "None"
    child.send_signal(SIGTERM)
    assert child.wait(timeout=30) == 143


@pytest.mark.parametrize(
    ("received", "meanings"),
    [
        ([(SIGTERM, 0.0), (SIGTERM, 0.9), (SIGTERM, 1.0)], "STOP NOTHING NOW"),
        ([(SIGINT, 0.0), (SIGTERM, 0.001), (SIGINT, 0.002)], "STOP REQUEUE NOTHING"),
        ([(SIGTERM, 0.0), (SIGINT, 0.001), (SIGINT, 5.0)], "STOP NOTHING NOW"),
        ([(SIGUSR2, 0.0), (SIGTERM, 9.0), (SIGTERM, 9.5)], "STOP NOTHING NOTHING"),
        ([(SIGINT, 0.0), (SIGUSR2, 0.5), (SIGUSR2, 5.0)], "STOP REQUEUE NOTHING"),
        ([(SIGINT, 0.0), (SIGUSR2, 5.0)], "STOP NOTHING"),
    ],
)
def test_what_signals_mean_one_after_the_other(
    received: list[tuple[signal.Signals, float]], meanings: str
) -> None:
    signals = Signals()
    assert [signals.receive(n, now).name for n, now in received] == meanings.split()


def test_usr1_shows_what_all_threads_do(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGUSR1)
    assert ask(child) == "None"
    child.kill()
    assert child.stderr
    assert "most recent call first" in child.stderr.read()


@pytest.mark.parametrize(
    ("said", "number"), [("USR1", SIGUSR1), ("sigusr1", SIGUSR1), ("TERM", SIGUSR2)]
)
def test_the_queue_may_have_a_signal_of_its_own(
    monkeypatch: pytest.MonkeyPatch, said: str, number: signal.Signals
) -> None:
    monkeypatch.setenv("HPCDI_PREEMPT_SIGNAL", said)
    assert preempt_signals() == sorted({SIGUSR2, SIGXCPU, number})


@pytest.mark.parametrize("said", ["INT", "KILL", "STOP", "CHLD", "SEGV", "NOSUCH", "12", "DFL"])
def test_a_signal_that_cannot_be_it_is_refused(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("HPCDI_PREEMPT_SIGNAL", said)
    with pytest.raises(LaunchError, match=f"HPCDI_PREEMPT_SIGNAL={said} is not a usable signal"):
        SignalFlag().install()


def test_without_a_signal_nothing_is_asked() -> None:
    assert SignalFlag().take() is None


def test_a_handler_of_the_user_s_for_sigusr1_is_back_afterwards() -> None:
    """submitit has one, by which a job is requeued: it was dead after `hpcdi.train`."""
    called: list[int] = []
    before = signal.signal(SIGUSR1, lambda number, _frame: called.append(number))
    flag = SignalFlag()
    try:
        flag.install()
        flag.remove()
        flag.remove()
        signal.raise_signal(SIGUSR1)
        assert called == [SIGUSR1]
    finally:
        signal.signal(SIGUSR1, before)


def test_stacks_that_the_user_has_shown_are_shown_afterwards_too() -> None:
    """The signal killed the process: its own disposition was back."""
    faulthandler.register(SIGUSR1, file=2)
    flag = SignalFlag()
    try:
        flag.install()
        flag.remove()
    finally:
        is_shown = faulthandler.unregister(SIGUSR1)
    assert is_shown


def test_only_these_signals_are_taken_over() -> None:
    old = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        SignalFlag().install()
        changed = {number for number in old if signal.getsignal(number) != old[number]}
    finally:
        faulthandler.unregister(SIGUSR1)
        for number in (SIGINT, SIGTERM, SIGUSR2, SIGXCPU, SIGHUP):
            signal.signal(number, old[number])
    ignored = {SIGHUP} if old[SIGHUP] is signal.SIG_IGN else set()
    assert changed == {SIGINT, SIGTERM, SIGUSR2, SIGXCPU, SIGHUP} - ignored
