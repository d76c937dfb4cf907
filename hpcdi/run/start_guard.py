"""Watches over a rank's start, in which MPI waits for ever for a rank that has died.

Open MPI with ULFM, and srun without ``--kill-on-bad-exit``, let the others wait in ``MPI_Init`` for
a rank that was killed, or whose Python failed, before or in it; and no launcher ends the wait for a
rank that never comes. A rank in ``MPI_Init`` cannot watch: it is in C, with the interpreter's lock.
So each rank forks a guard before it imports anything heavy. It ends when the rank says that the
start is over; where the rank dies first, or takes too long, it says so and ends the job::

    rank   ──fork──► guard, which waits at a pipe
    rank   ──"start_timeout_s"──►    ──"over"──► guard exits
    rank dies ──end of file──────────────────────► guard: names it, ends the job
    nothing within start_timeout_s ──────────────► guard: names who is missing, ends the job

A rank that dies before it has a guard is missing among those that its launcher has started on this
host. Of the guards of one host the first to act does so for all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import select
import shutil
import signal
import sys
import time
import traceback
from types import TracebackType

from hpcdi.errors import EXIT_REQUEUE, HpcdiError
from hpcdi.run.environment import has_misplaced_nodes, rank_of, step_of
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.early import NOT_FOR_HANDLERS
from hpcdi.utils.host import local_ranks
from hpcdi.utils.processes import (
    children_of,
    end_mpirun,
    has_ended,
    launcher_of,
    stat_of,
    variables_of,
)

START_TIMEOUT_S = 300.0
"""Until the rank has read system.coordinator.start_timeout_s."""
_OVER = "over"
_LOOK_S = 5.0
"""From one look at the other ranks of this host to the next; those missing in two have died."""
_ORDERLY_S = 0.5
"""A launcher that kills ranks kills their guards, too: so long may that take."""
_LAST_S = 10.0
"""For the launcher to end the job; then the ranks of this host are killed."""
_STATES = {
    "T": "is stopped (SIGSTOP)",
    "t": "is stopped by a debugger",
    "D": "waits for a disk",
    "Z": "has ended",
}
_AGAIN = (
    "The job ends: start it again (a batch script of hpcdi does so). If it happens again, check "
    "that host's memory (OOM), its Python and its file systems: hpcdi doctor"
)
_OUT_OF_ORDER = (
    ". The nodes of this heterogeneous job's components are out of order, which Slurm's PMIx "
    "plugin may not bear: ask for nodes in order, by an #SBATCH --nodelist for each component"
)


class StartGuard:
    """``with StartGuard() as guard:`` around a rank's program, from before its first import."""

    def __init__(self) -> None:
        self._who = f"rank {rank_of(os.environ)} (host {platform.node()}, process {os.getpid()})"
        reading, self._writing = os.pipe()
        guard = _Guard(reading, os.getpid(), self._who)  # before the rank can die
        self._guard = os.fork()
        if self._guard == 0:
            os.close(self._writing)
            try:
                guard.watch()
            except BaseException:  # nothing of the rank's own program may run here
                traceback.print_exc()
            os._exit(0)
        os.close(reading)

    def __enter__(self) -> StartGuard:
        return self

    def limit(self, limit_s: float) -> None:
        """Say how long the start may take, from its beginning."""
        self._say(f"{limit_s}\n")

    def over(self) -> None:
        """Say that the start is over. Idempotent."""
        if self._guard:
            self._say(_OVER)
            os.close(self._writing)
            os.waitpid(self._guard, 0)
            self._guard = 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End the start, too, where the rank leaves in order or refuses to begin.

        All ranks refuse alike (a wrong option, a wrong launcher). Any other error may be this
        rank's alone, such as a package that cannot be read on its host: then the job ends.
        """
        orderly = error is None or isinstance(error, (HpcdiError, SystemExit, KeyboardInterrupt))
        if not self._guard or orderly:
            self.over()
            return
        text = "".join(traceback.format_exception(error)).rstrip()
        sys.stderr.write(f"hpcdi: {self._who} could not start\n{text}\n")
        sys.stderr.flush()
        os._exit(EXIT_REQUEUE)

    def _say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody has killed the guard
            os.write(self._writing, text.encode())


class _Guard:
    """The guard's own process, from `watch` on."""

    def __init__(self, pipe: int, rank: int, who: str) -> None:
        self._pipe, self._rank, self._who = pipe, rank, who
        self._launcher = launcher_of(rank)
        self._step, self._ranks = step_of(os.environ), local_ranks(os.environ)

    def watch(self) -> None:
        """Wait for the end of the start, and end the job where it does not come."""
        # what mpirun forwards to a rank comes here, too
        for number in signal.valid_signals() - NOT_FOR_HANDLERS:
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        began, limit_s = time.monotonic(), START_TIMEOUT_S
        missing = 0
        while True:
            left_s = began + limit_s - time.monotonic()
            if left_s <= 0:
                self._act(
                    f"MPI has not started within {limit_s:g} s (system.coordinator."
                    f"start_timeout_s) on host {platform.node()}:\n{self._table()}"
                )
                return
            if not select.select([self._pipe], [], [], min(left_s, _LOOK_S))[0]:
                before, missing = missing, self._missing()
                if before and missing:
                    self._act(
                        f"{missing} of {self._ranks} ranks of host {platform.node()} died before "
                        f"they had begun; see their output above:\n{self._table()}"
                    )
                    return
                continue
            message = os.read(self._pipe, 4096).decode()
            if _OVER in message:
                return
            if not message:
                wait_s(_ORDERLY_S)
                self._act(
                    f"{self._who} has died before the run had begun: it was killed, or ended by "
                    "the error above. The others would wait for it for ever"
                )
                return
            limit_s = float(message.split()[-1])

    def _act(self, reason: str) -> None:
        """Say why, and end the job, unless another guard of this host does."""
        lock = _lock(self._launcher)
        if lock is None or (self._launcher and has_ended(self._launcher)):
            return  # another one acts, or has acted
        ranks = [*_ranks_below(self._launcher), self._rank]
        hint = _OUT_OF_ORDER if has_misplaced_nodes(os.environ) else ""
        sys.stderr.write(f"hpcdi: {reason}. {_AGAIN}{hint}\n")
        sys.stderr.flush()
        if end_mpirun(self._launcher):
            self._see_launcher_end()
        for rank in ranks:  # that mpirun has left, or whose end a daemon notices
            with contextlib.suppress(OSError):
                os.kill(rank, signal.SIGKILL)
        scancel = shutil.which("scancel")
        if self._step and scancel:  # srun may have no --kill-on-bad-exit
            os.execv(scancel, [scancel, "--signal=KILL", self._step])  # noqa: S606 (no shell)
        self._see_launcher_end()  # meanwhile no guard of a rank killed here names that rank, too

    def _see_launcher_end(self) -> None:
        deadline = time.monotonic() + _LAST_S
        while not has_ended(self._launcher) and time.monotonic() < deadline:
            wait_s(0.1)

    def _missing(self) -> int:
        """Returns how many ranks of this host have died, as far as this can be seen."""
        alive = len(_ranks_below(self._launcher))
        return max(self._ranks - alive, 0) if alive else 0

    def _table(self) -> str:
        """Returns a line for each rank that this host sees."""
        ranks = _ranks_below(self._launcher) or {self._rank: "this one"}
        lines = []
        for pid, number in ranks.items():
            state = _STATES.get(stat_of(pid)[0])
            has_begun = bool(children_of(pid))
            doing = "waits for the others" if has_begun else "has not begun (Python or hpcdi loads)"
            lines.append(f"  rank {number}: process {pid} {state or doing}")
        return "\n".join([*lines, "  ranks of other hosts: see their own lines, if there are any"])


def _ranks_below(launcher: int) -> dict[int, str]:
    """Returns the processes that a launcher has started as ranks of this host, and their ranks."""
    ranks = {}
    for pid in children_of(launcher) if launcher else []:
        with contextlib.suppress(OSError):
            number = rank_of(variables_of(pid))
            if number != "?":
                ranks[pid] = number
    return ranks


def _lock(launcher: int) -> int | None:
    """Returns a lock that one guard of a host holds until it ends; None: it cannot be had."""
    try:
        lock = os.open(f"/proc/{launcher or os.getpid()}/stat", os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return lock
