"""The lock of a run folder: one holder at a time, and no stale one for ever."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.failing_files import FailingFiles
from hpcdi.errors import LaunchError, StoreError
from hpcdi.run import run_lock
from hpcdi.run.run_lock import SILENT_S, LockHolder, RunLock, check, this_process
from hpcdi.store.layout import RunLayout
from hpcdi.utils.processes import born_of

ME = this_process({})
ELSEWHERE = dataclasses.replace(ME, host="node9", machine="another", job="")


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


def plant(layout: RunLayout, holder: LockHolder | str, age_s: float = 0.0) -> None:
    """A lock that somebody has left."""
    layout.root.mkdir(exist_ok=True)
    text = holder if isinstance(holder, str) else json.dumps(dataclasses.asdict(holder))
    layout.lock_file.write_text(text)
    then = layout.lock_file.stat().st_mtime - age_s
    os.utime(layout.lock_file, (then, then))


def files(layout: RunLayout) -> list[str]:
    return sorted(path.name for path in layout.root.iterdir())


def test_a_lock_without_its_folder_names_its_process(layout: RunLayout) -> None:
    held = dataclasses.asdict(ME)
    plant(
        layout, json.dumps({name: held[name] for name in held if name not in ("folder", "inode")})
    )
    with pytest.raises(LaunchError, match=f"in use: by process {os.getpid()} on host"):
        check(layout)


def test_what_to_type_is_said_by_where_its_process_is(layout: RunLayout) -> None:
    plant(layout, ME)
    with pytest.raises(LaunchError, match=rf"end it \(kill {ME.pid}\); or .* --run-dir$"):
        check(layout)
    plant(layout, ELSEWHERE)
    with pytest.raises(LaunchError, match=r"\(kill it there\); .* --run-dir\. If it is gone"):
        check(layout)


def test_a_lock_of_another_version_names_its_process(layout: RunLayout) -> None:
    """One that is younger may say more of it."""
    plant(layout, json.dumps({**dataclasses.asdict(ME), "cluster": "a", "steps": [1]}))
    with pytest.raises(LaunchError, match=f"in use: by process {os.getpid()} on host"):
        check(layout)
    plant(layout, json.dumps({**dataclasses.asdict(ME), "pid": 2**22 + 1, "cluster": "a"}))
    check(layout)


def test_a_run_holds_its_folder_until_its_end(layout: RunLayout) -> None:
    with RunLock(layout) as lock:
        assert files(layout) == ["run.lock"]
        held = json.loads(layout.lock_file.read_text())
        assert (held["host"], held["pid"]) == (ME.host, os.getpid())
        with pytest.raises(LaunchError, match=f"in use: by process {os.getpid()} on host"):
            RunLock(layout)
        assert files(layout) == ["run.lock"]
    assert files(layout) == []
    lock.close()


def test_a_lock_that_cannot_be_read_is_not_taken_for_none(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLock(layout):
        FailingFiles(monkeypatch, "run.lock", 2)
        with pytest.raises(LaunchError, match="in use"):
            check(layout)
        FailingFiles(monkeypatch, "run.lock", 99)
        with pytest.raises(StoreError, match="cannot be read"):
            check(layout)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_process_that_ends_while_it_is_looked_at_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_path: Path) -> str:
        raise ProcessLookupError

    monkeypatch.setattr(Path, "read_text", read)
    assert born_of(os.getpid()) == ""


def test_a_process_is_known_by_its_number_and_its_birth(
    layout: RunLayout, other: subprocess.Popen[bytes]
) -> None:
    born = born_of(other.pid)
    assert int(born) > int(ME.born)
    plant(layout, dataclasses.replace(ME, pid=other.pid, born=born), age_s=1e6)
    with pytest.raises(LaunchError, match=f"process {other.pid}.*it is suspended"):
        check(layout)
    plant(layout, dataclasses.replace(ME, pid=other.pid, born=ME.born))
    check(layout)  # the number has come again
    plant(layout, dataclasses.replace(ME, pid=other.pid, born=born))
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet collected
    check(layout)


@pytest.mark.parametrize("holder", [ELSEWHERE, "", "{", "[]", '{"host": "x"}'])
def test_one_who_cannot_be_asked_must_be_silent_for_long(
    layout: RunLayout, holder: LockHolder | str
) -> None:
    plant(layout, holder, age_s=SILENT_S - 10)
    before = layout.lock_file.read_bytes()
    with pytest.raises(LaunchError, match=r"sign of life is 50 s old"):
        RunLock(layout)
    assert layout.lock_file.read_bytes() == before
    plant(layout, holder, age_s=SILENT_S + 10)
    with RunLock(layout):
        assert json.loads(layout.lock_file.read_text())["pid"] == os.getpid()
    assert files(layout) == []


@pytest.mark.parametrize(
    ("job", "restarts", "is_free"), [("7", "2", True), ("7", "1", False), ("8", "2", False)]
)
def test_a_job_that_was_requeued_knows_its_own_lock(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, job: str, restarts: str, is_free: bool
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    plant(layout, dataclasses.replace(ELSEWHERE, job="7", job_restarts=1))
    if is_free:
        RunLock(layout).close()
        return
    with pytest.raises(LaunchError, match=r"Slurm job 7, .*\(scancel 7\)"):
        check(layout)


@pytest.mark.parametrize(
    ("squeue", "is_free"),
    [
        ("echo RUNNING", False),
        ("echo COMPLETING", False),
        ("echo PENDING", True),
        ("true", True),
        ("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", True),
        ("echo slurm_load_jobs error: Unable to contact controller >&2; exit 1", False),
        ("exit 127", False),
    ],
)
def test_slurm_is_asked_for_the_job(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, squeue: str, is_free: bool
) -> None:
    program = layout.root.parent / "squeue"
    program.write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "--noheader --jobs 7" ] || exit 0\n{squeue}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    plant(layout, dataclasses.replace(ELSEWHERE, job="7"))
    if is_free:
        check(layout)
        return
    with pytest.raises(LaunchError, match="Slurm job 7"):
        check(layout)


def test_the_holder_touches_it(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "BEAT_S", 0.01)
    with RunLock(layout):
        os.utime(layout.lock_file, (1, 1))
        deadline = time.monotonic() + 30
        while layout.lock_file.stat().st_mtime == 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_holder_that_slept_sees_that_the_folder_is_another_s(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "BEAT_S", 0.01)
    lost, is_lost = [], threading.Event()

    def on_lost(holder: LockHolder) -> None:
        lost.append(holder)
        is_lost.set()

    with RunLock(layout, on_lost):
        plant(layout, ELSEWHERE)
        assert is_lost.wait(30)
    assert lost == [ELSEWHERE]
    assert files(layout) == ["run.lock"], "it is not ours to remove"


@pytest.mark.parametrize(
    ("launcher", "is_removed"), [("here:1", True), ("here:2", False), ("", False)]
)
def test_a_launcher_removes_what_its_rank_0_left(
    layout: RunLayout, launcher: str, is_removed: bool
) -> None:
    plant(layout, dataclasses.replace(ELSEWHERE, launcher="here:1"))
    run_lock.remove(layout, launcher)
    assert layout.lock_file.exists() != is_removed


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="cannot be written: Not a directory"):
        RunLock(RunLayout(tmp_path / "file" / "run"))


def test_a_copy_of_a_folder_in_use_is_free(layout: RunLayout) -> None:
    """Its process holds the other one; who does not see it must be told so by its silence."""
    with RunLock(layout):
        held = json.loads(layout.lock_file.read_text())
        copy = RunLayout(layout.root.with_name("copy"))
        shutil.copytree(layout.root, copy.root)
        check(copy)
        for same in ({"folder": str(copy.root)}, {"inode": copy.root.stat().st_ino}):
            plant(copy, LockHolder(**{**held, **same}))  # on a host that names it otherwise
            with pytest.raises(LaunchError, match="in use"):
                check(copy)
        plant(copy, LockHolder(**{**held, "host": "node9"}))
        with pytest.raises(LaunchError, match="in use"):
            check(copy)
        plant(copy, LockHolder(**held))
        RunLock(copy).close()
        with pytest.raises(LaunchError, match="in use"):
            check(layout)


RACER = """
import sys
from pathlib import Path
from hpcdi.errors import LaunchError
from hpcdi.run.run_lock import RunLock
from hpcdi.store.layout import RunLayout

held, won = [], []
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    try:
        held.append(RunLock(RunLayout(Path(sys.argv[1]) / str(number))))
        won.append(number)
    except LaunchError as error:
        assert "is in use" in str(error) or "just been taken" in str(error), error
print(*won, flush=True)
sys.stdin.readline()
for lock in held:
    lock.close()
"""


@pytest.fixture
def racers(tmp_path: Path) -> Iterator[Callable[[int], Any]]:
    started: list[subprocess.Popen[str]] = []

    def start(rounds: int) -> list[subprocess.Popen[str]]:
        for _ in range(3):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", RACER, str(tmp_path), str(rounds)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        return started

    yield start
    for process in started:
        process.kill()


@pytest.mark.parametrize("is_stale", [False, True])
def test_of_several_that_want_a_folder_one_gets_it(
    tmp_path: Path, racers: Callable[[int], Any], is_stale: bool
) -> None:
    rounds = 40
    if is_stale:
        for number in range(rounds):
            plant(RunLayout(tmp_path / str(number)), dataclasses.replace(ME, born="1"))
    started = racers(rounds)
    assert [process.stdout.readline() for process in started] == ["ready\n"] * 3
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [process.stdout.readline().split() for process in started]
    for process in started:  # all have tried all: nobody takes what another gives back
        process.communicate("end\n", timeout=60)
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sorted(int(number) for numbers in won for number in numbers) == list(range(rounds))
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize("has_link", [False, True])
def test_a_holder_whose_folder_was_moved_ends(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, *, has_link: bool
) -> None:
    """Also to another file system, with a link in its place: it is another folder there."""
    monkeypatch.setattr(run_lock, "BEAT_S", 0.01)
    seen: list[object] = []
    told = threading.Event()

    def on_lost(holder: object) -> None:
        seen.append(holder)
        told.set()

    with RunLock(layout, on_lost):
        moved = layout.root.with_name("moved")
        if has_link:
            shutil.copytree(layout.root, moved)
            shutil.rmtree(layout.root)
            layout.root.symlink_to(moved)
        else:
            layout.root.rename(moved)
        assert told.wait(30)
    assert seen == [None]
    assert layout.root.exists() is has_link, "nothing made it anew"


def test_who_has_released_a_folder_leaves_it_to_this_process_s_next(tmp_path: Path) -> None:
    """What is closed is closed again when it is collected, as late as its thread ends."""
    layout = RunLayout(tmp_path)
    first = RunLock(layout)
    first.close()
    with RunLock(layout):
        first.close()
        assert layout.lock_file.exists()
