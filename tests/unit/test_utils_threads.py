"""Threads, waiting, life times, timers, unique names."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.roles.context import get_task_uid
from hpcdi.utils import backoff
from hpcdi.utils.backoff import Backoff, wait_s
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.threads import BackgroundThread, JobThread
from hpcdi.utils.timer import EasyTimer, RoleMeter, TimeLedger, cpu_seconds

# ---------------------------------------------------------------------------------------- threads


def test_a_thread_runs_its_function_under_its_name() -> None:
    seen: list[threading.Thread] = []
    thread = BackgroundThread(lambda: seen.append(threading.current_thread()), "my-thread")
    thread.join()
    thread.check()
    assert [t.name for t in seen] == ["my-thread"]
    assert seen[0].daemon  # else it would keep a failed MPI job alive
    assert not thread.is_alive


def test_a_failure_is_kept_and_raised_once() -> None:
    def fail() -> None:
        raise KeyError("planted")

    thread = BackgroundThread(fail, "failing")
    thread.join()
    with pytest.raises(KeyError, match="planted") as caught:
        thread.check()
    assert caught.traceback[-1].name == "fail"
    thread.check()


def test_a_thread_that_can_end_does_so_before_the_program() -> None:
    script = """
import threading
from hpcdi.utils.threads import BackgroundThread
ends = threading.Event()
def run():
    ends.wait()
    print("ended")
BackgroundThread(run, "ending", at_exit=ends.set)
BackgroundThread(threading.Event().wait, "never ending")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ended\n", b"")


def test_on_failure_is_called_after_the_failure_can_be_seen() -> None:
    order: list[str] = []
    thread: list[BackgroundThread] = []
    made = threading.Event()

    def fail() -> None:
        made.wait(10)
        raise SystemExit(3)  # not even this is lost

    def on_failure() -> None:
        with pytest.raises(SystemExit):
            thread[0].check()
        order.append("told")

    thread.append(BackgroundThread(fail, "failing", on_failure))
    made.set()
    thread[0].join()
    assert order == ["told"]


def test_on_failure_is_not_called_after_a_good_end() -> None:
    called: list[str] = []
    BackgroundThread(lambda: None, "good", lambda: called.append("x")).join()
    assert called == []


def test_a_thread_that_joins_itself_goes_on() -> None:
    thread: list[BackgroundThread] = []
    made, done = threading.Event(), threading.Event()

    def join_myself() -> None:
        made.wait(10)
        thread[0].join()
        done.set()

    thread.append(BackgroundThread(join_myself, "selfish"))
    assert thread[0].is_alive
    made.set()
    thread[0].join()
    thread[0].check()
    assert done.is_set()


# ---------------------------------------------------------------------------------------- waiting


class Naps:
    """An event's place for `Backoff`: it is asked how long to wait, and never waits."""

    def __init__(self) -> None:
        self.lengths: list[float] = []
        self.is_set = False

    def wait(self, timeout: float) -> bool:
        assert timeout >= 0
        self.lengths.append(timeout)
        return self.is_set


def test_naps_grow_by_half_up_to_the_longest() -> None:
    naps = Naps()
    waiting = Backoff(1.0, 3.0, naps)  # type: ignore[arg-type]
    for _ in range(5):
        waiting.nap()
    assert naps.lengths == [1.0, 1.5, 2.25, 3.0, 3.0]
    waiting.reset()
    waiting.nap()
    assert naps.lengths[-1] == 1.0


def test_being_woken_makes_naps_short_again() -> None:
    naps = Naps()
    waiting = Backoff(1.0, 3.0, naps)  # type: ignore[arg-type]
    waiting.nap()
    naps.is_set = True
    waiting.nap()
    naps.is_set = False
    waiting.nap()
    assert naps.lengths == [1.0, 1.5, 1.0]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-5.0, 5.0), max_size=20))
def test_no_nap_is_longer_than_it_may_be(limits: list[float]) -> None:
    naps = Naps()
    waiting = Backoff(0.5, 2.0, naps)  # type: ignore[arg-type]
    for limit in limits:
        waiting.nap(limit)
        assert naps.lengths[-1] <= max(limit, 0.0)


def test_without_an_event_a_nap_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(backoff.time, "sleep", slept.append)
    Backoff(0.25).nap()
    Backoff(0.25).nap(at_most_s=0.125)
    Backoff(0.25).nap(at_most_s=-1.0)
    wait_s(0.5)
    assert slept == [0.25, 0.125, 0.0, 0.5]


def test_an_event_ends_a_nap_early() -> None:
    wake = threading.Event()
    wake.set()
    start = time.monotonic()
    Backoff(60.0, 60.0, wake).nap()
    assert time.monotonic() - start < 30.0


# -------------------------------------------------------------------------------------- life times


class Thing(Closing):
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_with_block_closes_after_an_error_too() -> None:
    thing = Thing()
    with thing as same:
        assert same is thing
    assert thing.closed == 1
    with pytest.raises(ValueError, match="planted"), thing:
        int("planted")
    assert thing.closed == 2


def test_a_forgotten_thing_is_closed() -> None:
    closed: list[int] = []

    class Forgotten(Closing):
        def close(self) -> None:
            closed.append(1)

    Forgotten()
    assert closed == [1]


def test_what_is_alive_at_the_end_of_a_script_holds_nothing_up() -> None:
    """A thread that is started then never begins, and its starter would wait for it."""
    script = """
import threading
from hpcdi.utils.lifetime import Closing
class Kept(Closing):
    def close(self):
        threading.Thread(target=print, daemon=True).start()
kept = Kept()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_half_built_thing_goes_in_silence() -> None:
    """Its close() finds no attributes; pytest would turn an error in __del__ into a failure."""

    class HalfBuilt(Closing):
        def __init__(self) -> None:
            raise ValueError("planted")

        def close(self) -> None:
            self.file.close()  # type: ignore[attr-defined]

    with pytest.raises(ValueError, match="planted"):
        HalfBuilt()


def test_close_must_be_written() -> None:
    class Lazy(Closing):
        def __del__(self) -> None: ...

    with pytest.raises(NotImplementedError):
        Lazy().close()


# ------------------------------------------------------------------------------------------ timers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that timers see: a list of one number."""
    now = [100.0]
    monkeypatch.setattr("hpcdi.utils.timer.time.perf_counter", lambda: now[0])
    return now


def test_the_stop_watch_keeps_the_last_time(clock: list[float]) -> None:
    timer = EasyTimer()
    assert timer.value == 0.0
    for seconds in (2.0, 0.5):
        with timer as same:
            clock[0] += seconds
        assert same is timer
        assert timer.value == seconds


def test_the_ledger_books_the_time_since_the_last_mark(clock: list[float]) -> None:
    ledger = TimeLedger()
    for activity, seconds in (("env", 3.0), ("wait", 1.0), ("env", 2.0)):
        clock[0] += seconds
        ledger.mark(activity)
    assert ledger.seconds == {"env": 5.0, "wait": 1.0}
    clock[0] += 4.0  # booked nowhere yet
    assert ledger.shares() == {"env": 0.5, "wait": 0.1}


def test_a_ledger_that_was_just_opened_has_no_shares(clock: list[float]) -> None:
    assert TimeLedger().shares() == {}


def test_a_rank_reports_shares_cores_and_memory(clock: list[float]) -> None:
    meter = RoleMeter("learner")
    clock[0] += 1.0
    meter.mark("train")
    report = meter.report()
    assert report["role"] == "learner"
    assert report["shares"] == {"train": 1.0}
    assert report["cpu"] >= 0.0
    assert report["memory_bytes"] > 1 << 20


def test_cpu_seconds_only_grow() -> None:
    before = cpu_seconds()
    sum(range(100_000))
    assert cpu_seconds() >= before > 0.0


def test_task_uids_are_unique() -> None:
    uids = [get_task_uid() for _ in range(100)]
    assert len(set(uids)) == 100
    assert all(uid.replace("_", "").isdigit() for uid in uids)


def test_jobs_are_done_in_order_and_all_of_them() -> None:
    done: list[int] = []
    with JobThread("jobs") as jobs:
        for number in range(50):
            jobs.submit(lambda number=number: done.append(number))
    assert done == list(range(50))
    jobs.close()
    jobs.submit(lambda: done.append(50))  # another thread
    jobs.close()
    assert done[-1] == 50


def test_a_job_that_fails_is_told_to_whoever_comes_next() -> None:
    def fail() -> None:
        raise OSError("planted")

    jobs = JobThread("jobs")
    jobs.submit(fail)
    with pytest.raises(OSError, match="planted"):
        jobs.close()


def test_without_jobs_there_is_no_thread() -> None:
    before = threading.active_count()
    with JobThread("jobs"):
        assert threading.active_count() == before


def test_after_a_failure_nobody_waits_for_jobs_that_are_not_done() -> None:
    def fail() -> None:
        raise OSError("planted")

    jobs = JobThread("jobs")
    jobs.submit(fail)
    with pytest.raises(OSError, match="planted"):
        jobs.wait()
    jobs.wait()  # its thread is dead: it hung here
    jobs.close()


SLICE = """
import os
from pathlib import Path
from hpcdi.utils.threads import BackgroundThread, wake_this_thread_soon

def slice_ns():
    lines = Path("/proc/self/sched").read_text().splitlines()
    return next(line.split()[-1] for line in lines if line.startswith("se.slice"))

os.nice(3)
nice, before = os.nice(0), slice_ns()
BackgroundThread(wake_this_thread_soon, "another").join()
assert slice_ns() == before, "it is this thread's that was asked for"
wake_this_thread_soon()
print(slice_ns(), os.nice(0) - nice)
"""


def _shows_slices() -> bool:
    """True if Linux shows a thread's slice, and takes one."""
    major, minor = platform.release().split(".")[:2]
    return Path("/proc/self/sched").exists() and (int(major), int(minor)) >= (6, 12)


@pytest.mark.skipif(not _shows_slices(), reason="Linux takes a thread's slice since 6.12")
def test_a_thread_that_is_to_wake_soon_asks_for_the_shortest_slice() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLICE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("100000 0\n", "")


LATE = """
import gc
import sys
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.utils.threads import BackgroundThread, JobThread

class Held:
    def __del__(self):
        assert sys.is_finalizing()
        self.jobs.submit(print)
        self.jobs.wait()
        self.jobs.close()
        self.thread.join()
        self.writer.add_scalar("a", 1.0, 1)
        self.writer.flush()
        self.writer.close()
        sys.stderr.write("closed late\\n")

import threading
held = Held()
held.writer, held.jobs = TensorBoardWriter(sys.argv[1]), JobThread("jobs")
held.jobs.submit(print)
held.thread = BackgroundThread(threading.Event().wait, "for ever")
gc.disable()
held.itself = held  # as what a traceback holds
del held
"""


def test_a_thread_that_stands_still_at_the_end_is_not_waited_for(tmp_path: Path) -> None:
    """Of a daemon thread nothing runs while the interpreter ends, and it never dies."""
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(tmp_path)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "closed late\n")
