"""`hpcdi doctor`: whether this machine and its MPI are fit for a run, found out in a minute.

Every rank gives facts, rank 0 judges them and prints. Nothing is left behind.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdi.commands.doctor.report import (
    FAIL,
    Finding,
    Row,
    as_json,
    is_fit,
    table_head,
    table_row,
    verdict,
)
from hpcdi.commands.options import make_parser
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, LaunchError
from hpcdi.launch.environment import LaunchEnvironment, detect, is_first
from hpcdi.launch.local import is_one_host, mpirun_command, rank_environment
from hpcdi.launch.mpi_folders import mpi_folders
from hpcdi.launch.topology import thread_variables

DEFAULT_RANKS = 3
_PARENT_VARIABLE = "HPCDI_DOCTOR_PARENT"
_LAST_WORD = "hpcdi doctor ends with "  # to the parent, which gives the exit code
_START_LIMIT_S = 120.0
_TOTAL_LIMIT_S = 900.0


HELP = """\
Check whether this machine, its MPI and its file system are fit for a run, and say what to do where
they are not. Without a launcher it starts mpirun on this machine; under srun or mpirun every rank
takes part and rank 0 prints:

  hpcdi doctor                                        here, with 3 ranks; runs go to ./runs
  hpcdi doctor $SCRATCH/runs -n 8                     with 8 ranks; runs go to that folder
  hpcdi doctor runs/cartpole_dqn/latest --cuda        where a run lies; there must be GPUs
  srun --mpi=pmix python -m hpcdi doctor --json       on the nodes of a Slurm job, for a program

It checks launcher, versions, messages, process groups, files and locks, cores, memory, clocks and
GPUs, in seconds on one host, and leaves nothing behind. Quotas come from `quota` or, on Lustre,
`lfs quota`; for other file systems ask your cluster's own command. The exit code is
1 if a check fails; warnings do not count.
"""


@dataclass(frozen=True)
class DoctorArguments:
    """What the command line says."""

    folder: str | None = None
    ranks: int | None = None
    cuda: bool = False
    json: bool = False

    def words(self) -> list[str]:
        """The same, for the ranks."""
        options = ["--cuda"] * self.cuda + ["--json"] * self.json
        return [*([self.folder] if self.folder is not None else []), *options]


class Report:
    """Rows, shown to people as they come or to a program at the end."""

    def __init__(self, is_json: bool) -> None:
        self.rows: list[Row] = []
        self._is_json = is_json
        self._is_begun = False

    def add(self, name: str, finding: Finding) -> None:
        """Take a row, and show it."""
        self.rows.append(Row(name, finding))
        if self._is_json:
            return
        if not self._is_begun:
            self._is_begun = True
            _print(*table_head())
        _print(*table_row(self.rows[-1]))

    def finish(self) -> int:
        """Show the verdict; gives the exit code."""
        code = EXIT_DONE if is_fit(self.rows) else EXIT_FAILED
        _print(*([as_json(self.rows)] if self._is_json else ["", verdict(self.rows)]))
        if _PARENT_VARIABLE in os.environ:
            _print(f"{_LAST_WORD}{code}")
        return code


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = make_parser("doctor", HELP)
    parser.add_argument(
        "folder", nargs="?", metavar="DIR|RUN", help="where runs go (default: ./runs)"
    )
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="number of ranks (default: 3)")
    parser.add_argument("--cuda", action="store_true", help="fail where learners see no GPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    asked = DoctorArguments(given.folder, given.ranks, given.cuda, given.json)
    return doctor(asked, detect(os.environ))


def doctor(arguments: DoctorArguments, launched: LaunchEnvironment) -> int:
    """Be one of the ranks, or start some here; gives the exit code.

    Raises:
        LaunchError: the arguments cannot be met.
    """
    target = Path("runs" if arguments.folder is None else arguments.folder).absolute()
    if target.exists() and not target.is_dir():
        raise LaunchError(f"{target} is a file; give the folder that runs are to be written to")
    if launched.is_world:
        if arguments.ranks is not None:
            raise LaunchError("-n is for a doctor without a launcher; here that has said how many")
        code = _rank(arguments, launched, target)
        return EXIT_DONE if _PARENT_VARIABLE in os.environ else code  # which has read it
    ranks = DEFAULT_RANKS if arguments.ranks is None else arguments.ranks
    if ranks < 1:
        raise LaunchError(f"-n must be at least 1, not {ranks}")
    if int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) > 1:
        sys.stderr.write(
            f"hpcdi doctor: {ranks} ranks, which may not be on all hosts of this allocation; "
            "on all:\n  srun --mpi=pmix python -m hpcdi doctor\n"
        )
    return _start_here([*mpirun_command(ranks), sys.executable, "-m", "hpcdi", "doctor",
                        *arguments.words()])  # fmt: skip


def _start_here(command: list[str]) -> int:
    """Start the ranks, pass on what they print; gives the exit code that rank 0 has named."""
    code: int | None = None
    deadline = time.monotonic() + _TOTAL_LIMIT_S
    with mpi_folders(is_one_host()) as folders:
        environment = {**rank_environment({**folders, **os.environ}), _PARENT_VARIABLE: "1"}
        with subprocess.Popen(  # noqa: S603 (our own command line)
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as job:
            try:
                for line in _lines(job, deadline):
                    if line.startswith(_LAST_WORD):
                        code = int(line.removeprefix(_LAST_WORD))
                    else:
                        _print(line)
            except BaseException:  # Ctrl-C, or nobody reads any more
                job.terminate()
                raise
    if code is not None:
        return code
    sys.stderr.write(
        f"hpcdi doctor: the ranks ended without a verdict (mpirun: {job.returncode})\n"
    )
    return EXIT_FAILED


def _lines(job: subprocess.Popen[bytes], deadline: float) -> Any:
    """Lines of a job's output, until it ends or is ended."""
    output: Any = job.stdout
    rest = b""
    while True:
        left_s = deadline - time.monotonic()
        if left_s < 0 or not select.select([output], [], [], left_s)[0]:
            sys.stderr.write(f"hpcdi doctor: no end within {_TOTAL_LIMIT_S:.0f} s, killed\n")
            job.kill()
            return
        read = os.read(output.fileno(), 1 << 16)
        *lines, rest = (rest + read).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        if not read:
            return


def _rank(arguments: DoctorArguments, launched: LaunchEnvironment, target: Path) -> int:
    """One rank's part; gives the exit code."""
    variables = dict(os.environ)  # as the user has left them
    for name, value in thread_variables(1).items():  # before numpy
        os.environ.setdefault(name, value)
    # a start of MPI that hangs holds Python's lock: no thread of ours could say so
    faulthandler.dump_traceback_later(_START_LIMIT_S, exit=True)
    from hpcdi.comm.failure import abort_job, describe, headline
    from hpcdi.comm.probe_start import begin_mpi

    begun = begin_mpi()
    faulthandler.cancel_dump_traceback_later()
    from hpcdi.comm.world import open_world
    from hpcdi.commands.doctor.rounds import LAUNCHER, Rounds
    from hpcdi.commands.doctor.world import judge_launcher

    report = Report(arguments.json)
    try:
        world = open_world()
    except LaunchError as error:
        return _alone(report, "mpi", Finding(FAIL, str(error)), variables)
    if world.size == 1 and launched.tasks > 1:
        finding = judge_launcher(launched, 1, [platform.node()])
        return _alone(report, LAUNCHER, finding, variables)
    try:
        return Rounds(world, begun, report).run(launched, target, arguments.cuda, variables)
    except BaseException as error:  # the others must not wait for this rank
        sys.stderr.write(headline(describe(error, "doctor"), world.rank) + "\n")
        abort_job(EXIT_FAILED)
    return EXIT_FAILED


def _alone(report: Report, name: str, finding: Finding, variables: Mapping[str, str]) -> int:
    """The ranks cannot speak with each other: the launcher's first one speaks."""
    if not is_first(variables):
        return EXIT_FAILED
    report.add(name, finding)
    return report.finish()


def _print(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
