"""Run pytest on every rank of an MPI job: ``python tests/run_mpi.py -n 4 -m mpi tests/mpi``.

Rank 0 reports; the others report only what they have to say of failures.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hpcdi.run.environment import TERMINAL_VARIABLE
from hpcdi.run.local import mpirun_command, rank_environment


def main() -> int:
    """Start the job, or be one of its ranks."""
    arguments = sys.argv[1:]
    if "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ:
        return rank_main(arguments)
    from fakes.patience import stretched  # not in ranks: pytest is to rewrite what it imports

    parser = argparse.ArgumentParser(description=__doc__, epilog="Other arguments are pytest's.")
    parser.add_argument("-n", metavar="RANKS", type=int, required=True, help="of the job")
    options, arguments = parser.parse_known_args(arguments)
    command = [*mpirun_command(options.n), sys.executable, "-m", "mpi4py", __file__, *arguments]
    limit_s = stretched(300.0)
    try:
        return subprocess.run(
            command, env=rank_environment(os.environ), timeout=limit_s, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"the collective tests did not end within {limit_s:.0f} s\n")
        return 1


def rank_main(arguments: list[str]) -> int:
    """Pytest on this rank."""
    import pytest
    from mpi4py import MPI

    color = "yes" if os.environ.get(TERMINAL_VARIABLE) == "1" else "no"
    arguments = ["--capture=sys", "-p", "no:cacheprovider", f"--color={color}", *arguments]
    with contextlib.ExitStack() as stack:
        # where several pytests remove old folders side by side, one of them may fail at its end
        folder = tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = stack.enter_context(folder)
        if MPI.COMM_WORLD.rank:
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        code = int(pytest.main(arguments))
    # the first rank to exit with an error ends them all: not before everything is reported
    return max(MPI.COMM_WORLD.allgather(code))


if __name__ == "__main__":
    sys.exit(main())
