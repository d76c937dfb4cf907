"""The lock of a run folder: a file that names its process, touched for as long as the run lives.

A process that was killed leaves its lock behind. It is recognised as stale where

- it was of this host, and the process is gone;
- it was of an earlier start of this same Slurm job, which has been requeued since;
- it was of a Slurm job that has ended, or waits in the queue again;
- it was copied together with the folder of a run: its process holds, or held, the other one;
- no process has touched it for `SILENT_S`, by the file system's clock: those of hosts may differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

from hpcdi.comm.failure import abort_job
from hpcdi.dataclass import dataclass
from hpcdi.errors import EXIT_FAILED, LaunchError
from hpcdi.run import slurm_queue
from hpcdi.run.environment import LAUNCHER_VARIABLE, own_job
from hpcdi.store.atomic import TEMPORARY_MARK, clock_of, is_gone, load_json
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.files import patiently
from hpcdi.store.layout import RunLayout
from hpcdi.utils.host import count_in
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.processes import born_of, pid_space
from hpcdi.utils.threads import BackgroundThread

BEAT_S = 5.0
"""Seconds from one touch of the lock to the next."""
SILENT_S = 60.0
"""A lock that has not been touched for so long is stale."""


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock: all that identifies it."""

    host: str
    machine: str
    """The running kernel and its process numbers: a host of equal name may be another."""
    pid: int
    born: str
    """Start of the process: the kernel reuses process numbers."""
    job: str = ""
    """Slurm job; empty: none."""
    job_restarts: int = 0
    launcher: str = ""
    since: str = ""
    folder: str = ""
    """The run folder, as its host names it."""
    inode: int = 0
    """The folder's number in its file system, which is the same on all hosts of most of them."""

    def is_there(self) -> bool | None:
        """Returns whether the process runs; None: this machine cannot see it."""
        if (self.host, self.machine) != (platform.node(), pid_space()):
            return None
        return born_of(self.pid) == self.born

    def is_process_of(self, other: LockHolder) -> bool:
        """Returns whether both are the same process."""
        mine = (self.host, self.machine, self.pid, self.born)
        return mine == (other.host, other.machine, other.pid, other.born)

    def __str__(self) -> str:
        job = f", Slurm job {self.job}" if self.job else ""
        return f"process {self.pid} on host {self.host}{job}, since {self.since}"


def this_process(variables: Mapping[str, str] | None = None) -> LockHolder:
    """Returns this process as the holder of a lock."""
    environment = own_job(os.environ if variables is None else variables)
    return LockHolder(
        platform.node(),
        pid_space(),
        os.getpid(),
        born_of(os.getpid()),
        environment.get("SLURM_JOB_ID", ""),
        count_in(environment, "SLURM_RESTART_COUNT"),
        environment.get(LAUNCHER_VARIABLE, ""),
        time.strftime("%Y-%m-%d %H:%M:%S"),
    )


class RunLock(Closing):
    """Holds a run folder for this process, from now until `close`.

    Args:
        layout: the run folder; it is made.
        on_lost: called with the process that has taken the folder, or None where the folder itself
            has been moved or removed; by default the job ends at once.

    Raises:
        LaunchError: the folder is in use, or cannot be written.
    """

    def __init__(
        self, layout: RunLayout, on_lost: Callable[[LockHolder | None], None] | None = None
    ) -> None:
        self._layout, self._on_lost = layout, on_lost or _end_at_once
        self._me = this_process()
        self._closed = threading.Event()
        with or_refuse(f"the run folder {layout.root}"):
            layout.root.mkdir(parents=True, exist_ok=True)
            folder, inode = _identity(layout.root)
            self._me = replace(self._me, folder=folder, inode=inode)
            _take(layout, self._me)
        self._thread = BackgroundThread(self._beat, "run lock")

    def close(self) -> None:
        """Release the folder. Idempotent: this process may have taken it anew meanwhile."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        remove(self._layout)

    def _beat(self) -> None:
        looks_gone = 0
        while not self._closed.wait(BEAT_S):
            looks_gone = looks_gone + 1 if self._is_moved() else 0
            if looks_gone > 1:  # a mount may have been away for a moment
                self._on_lost(None)
                return
            with contextlib.suppress(OSError):  # the disk is full, or away for a while
                holder = _read(self._layout.lock_file)
                if holder is not None and not holder.is_process_of(self._me):
                    self._on_lost(holder)
                    return
                os.utime(self._layout.lock_file)

    def _is_moved(self) -> bool:
        """Returns whether the folder is elsewhere or gone, or a link to a copy has its place."""
        if is_gone(self._layout.root):
            return True
        with contextlib.suppress(OSError):  # its file system is away for a while
            return bool(original_of(self._layout, self._me, 0.0))
        return False


def remove(layout: RunLayout, launcher: str = "") -> None:
    """Remove a lock that is this process's, or of a process that `launcher` has started."""
    with contextlib.suppress(OSError):
        holder = _read(layout.lock_file)
        if holder is None:
            return
        if holder.is_process_of(this_process()) or (launcher and holder.launcher == launcher):
            layout.lock_file.unlink(missing_ok=True)


def holder_of(layout: RunLayout) -> LockHolder | None:
    """Returns the process, dead or alive, that holds a run folder; None: none, or unreadable."""
    try:
        return _read(layout.lock_file)
    except OSError:
        return None


def original_of(layout: RunLayout, holder: LockHolder | None, age_s: float) -> str:
    """Returns the folder that a run holds, or held, where this is a copy with its lock; else empty.

    The host that can see the process decides at once; any other one, on which the same folder may
    have both another path and another number, not before the lock is silent.

    Args:
        layout: the folder in which the lock lies.
        holder: the process that the lock names; None: it is unreadable.
        age_s: seconds since the lock was touched.
    """
    if holder is None or not holder.folder:
        return ""
    folder, inode = _identity(layout.root)
    is_another = folder != holder.folder and inode != holder.inode
    is_sure = holder.is_there() is not None or age_s > SILENT_S
    return holder.folder if is_another and is_sure else ""


def _identity(root: Path) -> tuple[str, int]:
    """Returns a folder's path and number; not its device's, which differs from host to host."""
    return str(root.resolve()), root.stat().st_ino


def check(layout: RunLayout) -> None:
    """Check that no process uses the run folder.

    Raises:
        LaunchError: one does; names it, and what to do.
    """
    lock = layout.lock_file
    try:
        holder = patiently(partial(_read, lock), lock)
    except (FileNotFoundError, NotADirectoryError):  # there is none
        return
    age_s = _age_s(lock)
    if age_s is None or original_of(layout, holder, age_s):
        return
    if not _is_stale(holder, this_process(), age_s):
        raise LaunchError(_in_use(layout.root, holder, age_s))


def _take(layout: RunLayout, me: LockHolder) -> None:
    """Create the lock; of several processes one succeeds."""
    try:
        _create(layout.lock_file, me)
    except FileExistsError:
        check(layout)
        _take_over(layout, me)


def _create(lock: Path, me: LockHolder) -> None:
    file = lock.open("x")
    try:
        with file:
            json.dump(asdict(me), file)
    except OSError:  # the disk is full: an empty lock would stand for a process that starts
        lock.unlink(missing_ok=True)
        raise


def _take_over(layout: RunLayout, me: LockHolder) -> None:
    """Replace a stale lock atomically, one process at a time: a second would replace the first."""
    lock = layout.lock_file
    mine = lock.with_name(f".{lock.name}{TEMPORARY_MARK}next")
    with contextlib.suppress(FileNotFoundError):
        if (_age_s(mine) or 0.0) > SILENT_S:  # its writer was killed right here
            mine.unlink()
    try:
        _create(mine, me)
    except FileExistsError:
        raise _just_taken(layout.root) from None
    try:
        check(layout)
        if not lock.exists():
            raise _just_taken(layout.root)
        mine.replace(lock)
    except (LaunchError, OSError):
        mine.unlink(missing_ok=True)
        raise


def _just_taken(root: Path) -> LaunchError:
    return LaunchError(f"the run folder {root} has just been taken by another run")


def _read(path: Path) -> LockHolder | None:
    """Returns the holder of a lock; None: the file is being written, or torn.

    What another version of hpcdi has written beside its fields is passed over.

    Raises:
        OSError: there is none.
    """
    known = {each.name for each in fields(LockHolder)}
    try:
        return LockHolder(**{k: v for k, v in load_json(path).items() if k in known})
    except (ValueError, TypeError):
        return None


def _age_s(path: Path) -> float | None:
    """Returns the seconds since a file was touched, by the file system's clock; None: no file.

    Raises:
        OSError: nothing can be written beside it.
    """
    now = clock_of(path.parent)
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return None


def _is_stale(holder: LockHolder | None, me: LockHolder, age_s: float) -> bool:
    """Decides whether a lock of this folder is stale; see the module's docstring."""
    if holder is None:
        return age_s > SILENT_S
    is_there = holder.is_there()
    if is_there is not None:
        return not is_there
    if holder.job and holder.job == me.job and holder.job_restarts < me.job_restarts:
        return True
    return age_s > SILENT_S or (holder.job not in ("", me.job) and _has_ended(holder.job))


def _has_ended(job: str) -> bool:
    """Returns whether Slurm says that a job has ended or waits; False where it does not answer."""
    queued = slurm_queue.ask(job) if slurm_queue.is_job_id(job) else None
    return queued is not None and not queued.is_on


def _in_use(root: Path, holder: LockHolder | None, age_s: float) -> str:
    whose = str(holder) if holder is not None else "a process that has not written its name yet"
    is_here = holder is not None and holder.is_there()
    cancel = f"kill {holder.pid}" if holder is not None and is_here else "kill it there"
    if holder is not None and holder.job:
        cancel = f"scancel {holder.job}"
    gone = f". If it is gone already, try again when it has been silent for {SILENT_S:.0f} s"
    if age_s > SILENT_S:  # it is seen on this host, or it would be stale
        gone = ". It lives, and does nothing: it is suspended, stopped, or waits for a file system"
    elif is_here:
        gone = ""
    return (
        f"the run folder {root} is in use: by {whose}; its last sign of life is "
        f"{max(age_s, 0):.0f} s old. Wait for its end, or end it ({cancel}); or choose another "
        f"--run-dir{gone}"
    )


def _end_at_once(holder: LockHolder | None) -> None:
    """End the job: what it would still write would go into another process's run, or nowhere."""
    reason = (
        f"taken over by {holder}: this process had been silent for more than {SILENT_S:.0f} s"
        if holder is not None
        else "moved or removed. Resume the run where it is now"
    )
    sys.stderr.write(f"hpcdi: the run folder has been {reason}. The job ends at once\n")
    abort_job(EXIT_FAILED)
