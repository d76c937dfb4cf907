"""The command `hpcdi doctor`: be one of the ranks, or start some here. Nothing is left behind."""

from __future__ import annotations

import argparse
import faulthandler
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcdi.commands.options import make_parser, print_lines
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, LaunchError
from hpcdi.run.environment import (
    LaunchEnvironment,
    detect,
    if_inherited,
    is_first,
    is_outside_allocation,
    limit_threads,
    own_words,
)
from hpcdi.run.local import mpi_folders, mpirun_command, rank_environment
from hpcdi.utils.host import count_in
from hpcdi.utils.python import python_command

DEFAULT_RANKS = 3
_PARENT_VARIABLE = "HPCDI_DOCTOR_PARENT"
_LAST_WORD = "hpcdi doctor ends with "  # to the parent, which returns the exit code
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


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        LaunchError: the arguments do not fit this machine.
    """
    parser = make_parser("doctor", HELP)
    parser.add_argument(
        "folder", nargs="?", metavar="DIR|RUN", help="where runs go (default: ./runs)"
    )
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="number of ranks (default: 3)")
    parser.add_argument("--cuda", action="store_true", help="fail where learners see no GPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    launched = detect(os.environ)
    target = Path("runs" if options.folder is None else options.folder).absolute()
    if target.exists() and not target.is_dir():
        raise LaunchError(f"{target} is a file; name the folder that runs are to be written to")
    if launched.is_world:
        if options.ranks is not None:
            raise LaunchError(
                "-n is for a doctor without a launcher; here the launcher has set the number. "
                f"{if_inherited(os.environ)}"
            )
        code = _rank(options, launched, target)
        return EXIT_DONE if _PARENT_VARIABLE in os.environ else code  # which has read it
    ranks = DEFAULT_RANKS if options.ranks is None else options.ranks
    if ranks < 1:
        raise LaunchError(f"-n must be at least 1, not {ranks}")
    if count_in(os.environ, "SLURM_JOB_NUM_NODES") > 1:
        sys.stderr.write(
            f"hpcdi doctor: {ranks} ranks, which may not be on all hosts of this allocation; "
            "on all:\n  srun --mpi=pmix python -m hpcdi doctor\n"
        )
    words = [options.folder] * (options.folder is not None)
    words += ["--cuda"] * options.cuda + ["--json"] * options.json
    return _start_here([*mpirun_command(ranks), *python_command("hpcdi", "doctor"), *words])


def _start_here(command: list[str]) -> int:
    """Start the ranks and print their output; returns the exit code that rank 0 has printed."""
    code: int | None = None
    deadline = time.monotonic() + _TOTAL_LIMIT_S
    with mpi_folders(is_outside_allocation()) as folders:
        environment = {**rank_environment({**folders, **os.environ}), _PARENT_VARIABLE: "1"}
        with subprocess.Popen(  # noqa: S603 (our own command line)
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as job:
            try:
                for line in _lines(job, deadline):
                    if line.startswith(_LAST_WORD):
                        code = int(line.removeprefix(_LAST_WORD))
                    else:
                        print_lines([line])
            except BaseException:  # Ctrl-C, or nobody reads any more
                job.terminate()
                raise
    if code is not None:
        return code
    sys.stderr.write(
        f"hpcdi doctor: the ranks ended without a verdict (mpirun: {job.returncode})\n"
    )
    return EXIT_FAILED


def _lines(job: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """Yields the lines of a job's output, until it ends or its time is over."""
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


def _rank(options: argparse.Namespace, launched: LaunchEnvironment, target: Path) -> int:
    """Run the checks as one rank; returns the exit code."""
    variables = dict(os.environ)  # as the user has set them
    limit_threads()
    # a start of MPI that hangs holds Python's lock: no thread of ours could say so
    faulthandler.dump_traceback_later(_START_LIMIT_S, exit=True)
    from hpcdi.comm.failure import abort_job, describe, headline, leave_alone
    from hpcdi.comm.probe import start_mpi

    start_s, transports = start_mpi(asks_transports=launched.launcher != "srun")
    faulthandler.cancel_dump_traceback_later()
    from hpcdi.comm.world import library_version, open_world, thread_level
    from hpcdi.commands.doctor.checks import check_launcher
    from hpcdi.commands.doctor.examine import examine
    from hpcdi.commands.doctor.facts import Facts
    from hpcdi.commands.findings import FAIL, Finding, ResultTable, together

    report = ResultTable(
        is_json=options.json, last_word=_LAST_WORD * (_PARENT_VARIABLE in os.environ)
    )
    rank_facts = Facts(
        platform.node(),
        library=library_version(),
        thread_level=thread_level(),
        transports=transports,
        start_s=start_s,
    )

    def refuse(name: str, finding: Finding) -> int:
        """The ranks cannot talk to each other: one says it."""
        if not is_first(variables):
            if words := own_words(LaunchError(finding.found), launched, variables):
                sys.stderr.write(f"hpcdi doctor: {words}\n")
            return EXIT_FAILED
        report.add(name, finding)
        return report.finish()

    try:
        world = open_world()
    except LaunchError as error:
        return refuse("mpi", Finding(FAIL, str(error)))
    if world.size == 1 and launched.tasks > 1:
        code = refuse("launcher", together(check_launcher([rank_facts], launched)))
        return leave_alone(EXIT_DONE if _PARENT_VARIABLE in os.environ else code)
    try:
        return examine(world, rank_facts, launched, target, variables, report, cuda=options.cuda)
    except BaseException as error:  # the others must not wait for this rank
        sys.stderr.write(headline(describe(error, "doctor"), world.rank) + "\n")
        abort_job(EXIT_FAILED)
    return EXIT_FAILED
