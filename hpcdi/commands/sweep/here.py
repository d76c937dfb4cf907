"""The runs of a sweep as child processes: on this machine, or in an allocation."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from hpcdi.commands.batch_script import IN_VAIN_S, LEAST_TIME_LEFT_S, MOST_IN_VAIN
from hpcdi.commands.options import print_lines
from hpcdi.commands.run_state import RunStatus, status_of
from hpcdi.commands.sweep.runs import PAUSED, Sweep, look, read, refuse, to_start
from hpcdi.dataclass import dataclass
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_REQUEUE, EXIT_USAGE, StoreError
from hpcdi.run import run_folder, run_lock, slurm_queue
from hpcdi.run.job_end import END_VARIABLE, Deadline, job_end
from hpcdi.run.resume import has_snapshot
from hpcdi.run.run_folder import short
from hpcdi.run.shares import Share
from hpcdi.run.signals import ENDING, Meaning, Signals, ending_signals
from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.disk import open_to_append
from hpcdi.utils.metrics import human_time
from hpcdi.utils.python import python_command

_LOOK_S = 0.1


def command_of(sweep: Sweep, index: int) -> list[str]:
    """Returns the command that starts a run of a sweep, or resumes it."""
    what, ranks = ("train", ["-n", str(sweep.ranks)]) if sweep.ranks else ("serial", [])
    run_dir = sweep.run_dir(index)
    # of a population, also a run that is done is resumed, to its next mark
    is_resumed = sweep.population is not None and has_snapshot(RunLayout(run_dir))
    return [
        *python_command("hpcdi", what),
        str(sweep.experiment(index)),
        "--resume" if is_resumed else "--run-dir",
        str(run_dir),
        *ranks,
    ]


class Supply(Protocol):
    """Which runs of a sweep are started, and which end early: those that are named, and none."""

    def more(self, running: Sequence[int]) -> Sequence[int]:
        """Returns runs to start; asked where there is room for one, and none waits."""

    @property
    def has_more(self) -> bool:
        """Whether there are runs to start that the sweep itself does not name yet."""
        return False

    def owns(self, index: int) -> bool:  # noqa: ARG002
        """Returns whether a run of the sweep is started here, and by no other process."""
        return True

    def early(self, running: Sequence[int]) -> Sequence[int]:  # noqa: ARG002
        """Returns runs that are to end now, each once."""
        return ()

    def ended(self, index: int, status: RunStatus | None, *, is_refused: bool) -> bool:  # noqa: ARG002
        """Hears that a run has ended; returns whether it is over, whatever its exit code says.

        Args:
            index: of the run.
            status: of the run; None: it has never begun.
            is_refused: whether it was refused at its start, and has never begun.
        """
        return False


class Rounds(Supply):
    """Runs that are known; the next round is asked for when all runs of a round have ended.

    Args:
        rounds: runs by round.
    """

    def __init__(self, rounds: Iterator[Sequence[int]]) -> None:
        self._rounds = rounds

    def more(self, running: Sequence[int]) -> Sequence[int]:
        """See `Supply.more`."""
        return () if running else next(self._rounds, ())


class Adopted:
    """The living process of a run whose sweep was killed.

    Args:
        status: of the run.
    """

    def __init__(self, status: RunStatus) -> None:
        self._run, self._pid = status.layout.root, int(status.facts["pid"])

    def poll(self) -> int | None:
        """Returns the exit code that the run has left; None: it is still on."""
        status = status_of(self._run, slurm_queue.nobody)
        if not status.is_over:
            return None
        is_dead = status.state == "dead"
        return EXIT_REQUEUE if is_dead else int(status.facts.get("exit_code", EXIT_REQUEUE))

    def wait(self) -> int:
        """Returns the exit code; it may still be ending."""
        return self.poll() or 0

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int, /) -> None:
        """Sends it a signal, while it lives."""
        if self.poll() is None:
            os.kill(self._pid, sig)


@dataclass(frozen=True)
class _Started:
    """A run that is on.

    Attributes:
        process: its process, or that of srun.
        began: on a monotonic clock.
        place: its share of the allocation; None: anywhere on this machine.
        before: content of run.json before its start.
    """

    process: subprocess.Popen[bytes] | Adopted
    began: float
    place: Share | None
    before: bytes

    @property
    def is_step(self) -> bool:
        """Whether srun has started it."""
        return self.place is not None and bool(self.place.host)

    def end(self, number: int, *, is_first: bool = True) -> None:
        """Passes on a signal that asks for an end, in order the first time.

        By SIGINT and SIGTERM srun kills its step, and SIGHUP it keeps to itself; of those that it
        passes on, USR2 asks for an end.
        """
        if self.is_step and number in (*ENDING, signal.SIGHUP):
            number = signal.SIGUSR2 if is_first else signal.SIGTERM
        self.process.send_signal(number)

    def has_failed_by_machine(
        self, code: int, status: RunStatus | None, *, has_begun: bool
    ) -> bool:
        """Returns whether the run is to be started again: its exit code is not of its own making.

        A run that was killed (for its memory, say) left no verdict in its run.json, or that it is
        to be requeued; srun says 0 of one that it has lost with its host. Of a run that has not
        begun, 1 may be srun's (its controller is away for a while), and 2 is no verdict while the
        folder is in use: its process may have been lost with its host.

        Args:
            code: the exit code.
            status: of the run; None: it has never begun.
            has_begun: whether this start has.
        """
        if _was_killed(code) or (code == EXIT_DONE and has_begun and status is not None):
            verdict = status.facts.get("exit_code") if status is not None and has_begun else None
            return verdict in (None, EXIT_REQUEUE)
        if has_begun or code == EXIT_REQUEUE:
            return code == EXIT_REQUEUE
        is_in_use = code == EXIT_USAGE and status is not None and not status.is_over
        return is_in_use or (code == EXIT_FAILED and self.is_step)


def _was_killed(code: int) -> bool:
    """Returns whether an exit code says that a signal has ended a process that nobody asked to end.

    Args:
        code: of a process, negative where it is its own; or as a shell, srun and mpirun say it.
    """
    code = 128 - code if code < 0 else code
    return code > 128 and code not in ENDING.values()


def _pause_s(status: RunStatus | None, *, has_begun: bool) -> float:
    """Returns the seconds until a run that has ended may start again.

    Args:
        status: of the run; None: it has never begun.
        has_begun: whether this start has.
    """
    if has_begun and (status is None or status.is_over):
        return 0.0
    # who was killed on another host holds its folder until it has been silent for so long
    is_unseen = has_begun and status is not None and status.signs.is_process is None
    return run_lock.SILENT_S if is_unseen else IN_VAIN_S


class LocalRuns:
    """Runs of a sweep as child processes; one that the machine has failed is started again.

    Args:
        root: folder of the sweep.
        supply: which of its runs, in order.
        places: for each run at a time, its share of an allocation; None: anywhere on this machine.
    """

    def __init__(self, root: Path, supply: Supply, places: Sequence[Share | None]) -> None:
        self._sweep, self._supply, self._free = read(root), supply, deque(places)
        self._waiting = deque[int]()
        self._running: dict[int, _Started] = {}
        self._in_vain = Counter[int]()  # starts in a row in which a run did not begin
        self._not_before: dict[int, float] = {}  # of the next start of such a run
        self._not_done: dict[int, bool] = {}  # runs that were given up: whether the machine failed
        self._exit_codes = ending_signals()
        self._deadline = Deadline(job_end(os.environ, time.time()))
        self._end_signal: int | None = None  # number of the last one that came
        self._signals = Signals()

    def run(self) -> int:
        """Run them; returns the exit code: 0 if all runs of the sweep are done."""
        before = {number: signal.signal(number, self._on_signal) for number in self._exit_codes}
        try:
            while self._running or self._may_start_next():
                while self._free and self._may_start_next():
                    index = self._next_due()
                    if index is None:
                        break
                    self._waiting.remove(index)
                    self._start(index, self._free.popleft())
                wait_s(_LOOK_S)  # until a run ends, or a signal asks for the end
                self._deadline.is_near(LEAST_TIME_LEFT_S)  # asks the queue before a run ends
                for index in self._supply.early(list(self._running)):
                    self._running[index].end(signal.SIGTERM)
                self._pass_on_again()
                self._collect()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for started in self._running.values():
                started.process.kill()
                started.process.wait()
        sweep, _ = look(read(self._sweep.root))
        # to_start takes those whose folder a lost host still holds for another process's
        own = filter(self._supply.owns, to_start(sweep))
        waiting = sorted({*own, *self._not_done, *self._waiting})
        is_cut = not self._may_start and self._supply.has_more
        if waiting or is_cut:
            names = ", ".join(map(str, waiting))
            runs = f"run {names} is" if len(waiting) == 1 else f"runs {names or 'to come'} are"
            sys.stderr.write(
                f"hpcdi sweep: {runs} not done; to go on, type\n  {sweep.command_to_resume}\n"
            )
        if self._end_signal is not None:
            return self._exit_codes[signal.Signals(self._end_signal)]
        if waiting or is_cut:
            return EXIT_FAILED if self._may_start and not self._has_machine_failed else EXIT_REQUEUE
        return EXIT_DONE

    def _may_start_next(self) -> bool:
        """Returns whether a run waits and may be started; where none waits, asks for more."""
        if not self._may_start:
            return False
        is_asked = not (self._waiting or self._has_machine_failed)  # others wait for that run
        if is_asked and (more := self._supply.more(list(self._running))):
            self._waiting.extend(more)
            self._sweep = read(self._sweep.root)  # its settings may be others now
            for index in more:
                self._in_vain[index] = 0
        return bool(self._waiting) and self._may_start  # the searcher may have thought for long

    def _next_due(self) -> int | None:
        """Returns the first run that waits, and not for its last start's trouble to pass."""
        now = time.monotonic()
        return next((i for i in self._waiting if self._not_before.get(i, now) <= now), None)

    @property
    def _has_machine_failed(self) -> bool:
        """Whether a run was given up that the machine has failed again and again."""
        return any(self._not_done.values())

    @property
    def _may_start(self) -> bool:
        return self._end_signal is None and not self._deadline.is_near(LEAST_TIME_LEFT_S)

    def _start(self, index: int, place: Share | None) -> None:
        self._not_done.pop(index, None)
        living = self._living(index)
        before = self._run_file(index)
        if living is not None:
            adopted = Adopted(living)
            self._running[index] = _Started(adopted, time.monotonic(), place, before)
            self._pass_on(index)
            self._say(index, f"is still on (process {living.facts['pid']})")
            return
        ends_at = self._deadline.ends_at
        known = {END_VARIABLE: str(int(ends_at))} if math.isfinite(ends_at) else {}
        path, command = self._sweep.output(index), command_of(self._sweep, index)
        try:
            path.parent.mkdir(exist_ok=True)
            output = open_to_append(path)
        except OSError as error:
            raise StoreError(path, f"cannot be written: {error.strerror}") from error
        with os.fdopen(output, "ab"):
            process = subprocess.Popen(  # noqa: S603 (our own command line)
                command if place is None else place.command(command),
                env=None if place is None else place.environment(os.environ | known),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        self._running[index] = _Started(process, time.monotonic(), place, before)
        self._pass_on(index)
        self._say(index, f"started; it prints to {short(path)}")

    def _run_file(self, index: int) -> bytes:
        """Returns the content of a run's run.json, which each of its starts changes."""
        file = RunLayout(self._sweep.run_dir(index)).run_file
        return file.read_bytes() if file.is_file() else b""

    def _pass_on(self, index: int) -> None:
        """Passes on a signal that came while a run was started."""
        if self._end_signal is not None:
            self._running[index].end(self._end_signal)

    def _pass_on_again(self) -> None:
        """Passes a signal on to steps in which no run has begun: srun loses it while it makes one.

        A run takes it for the same wish, however often it comes.
        """
        for index, started in self._running.items():
            if started.is_step and self._run_file(index) == started.before:
                self._pass_on(index)

    def _living(self, index: int) -> RunStatus | None:
        """Returns the status of a run that lives here, though its sweep was killed."""
        run_dir = self._sweep.run_dir(index)
        status = status_of(run_dir, slurm_queue.nobody) if run_folder.read(run_dir) else None
        return status if status and not status.is_over and status.signs.is_process else None

    def _collect(self) -> None:
        """Report the runs that have ended."""
        for index, started in list(self._running.items()):
            code = started.process.poll()
            if code is None:
                continue
            del self._running[index]
            self._free.append(started.place)
            lasted = human_time(time.monotonic() - started.began)
            sweep, statuses = look(read(self._sweep.root))
            status = statuses[index]
            has_begun = self._run_file(index) != started.before
            by_machine = started.has_failed_by_machine(code, status, has_begun=has_begun)
            is_verdict = code in (EXIT_FAILED, EXIT_USAGE) and not by_machine
            is_refused = status is None and is_verdict
            is_over = self._supply.ended(index, status, is_refused=is_refused)
            if is_over:
                sweep, _ = look(read(sweep.root))  # what became of it
            elif is_refused:
                sweep = refuse(sweep, index)
            self._sweep = sweep
            why = f": see {short(sweep.output(index))}" if is_refused else ""
            why = f": {status.why}" if status is not None and status.why else why
            is_known = is_refused or status is not None
            state = sweep.elements[index].state if is_known else "it has not begun"
            self._in_vain[index] = 0 if has_begun else self._in_vain[index] + 1
            self._not_before[index] = time.monotonic() + _pause_s(status, has_begun=has_begun)
            may_start = self._in_vain[index] < MOST_IN_VAIN and self._may_start
            starts_again = by_machine and may_start and not is_over
            if starts_again:
                self._waiting.appendleft(index)
            elif code != EXIT_DONE and not is_over and state not in ("done", PAUSED):
                self._not_done[index] = by_machine
            again = "; it is started again" * starts_again
            self._say(index, f"{state} after {lasted} (exit code {code}){why}{again}")

    def _say(self, index: int, text: str) -> None:
        print_lines([f"{self._sweep.elements[index].title} {text}"])

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Passes the signal on to the runs; a second one ends them at once."""
        self._end_signal = number
        is_first = self._signals.receive(number, time.monotonic()) is not Meaning.NOW
        for started in list(self._running.values()):
            started.end(number, is_first=is_first)
