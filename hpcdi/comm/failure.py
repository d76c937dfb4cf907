"""An error on one rank ends the whole job, with that rank's traceback."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import traceback

from hpcdi.comm.messages import WorkerFailed
from hpcdi.errors import EXIT_FAILED, HpcdiError
from hpcdi.utils.backoff import wait_s

_LAST_WORDS_S = 0.2
"""The launcher forwards what this rank said, and its own word of the abort must not come first."""


def describe(error: BaseException, role: str) -> WorkerFailed:
    """Report of an error, with its traceback, for the coordinator."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    code = error.exit_code if isinstance(error, HpcdiError) else EXIT_FAILED
    summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return WorkerFailed(role, platform.node(), summary, "".join(lines).rstrip(), code)


def headline(failure: WorkerFailed, rank: int) -> str:
    """What a person reads first: who, where, and the whole traceback."""
    who = f"rank {rank} ({failure.role}, host {failure.host})"
    return f"hpcdi: {who} failed\n{failure.traceback}"


def abort_job(exit_code: int = EXIT_FAILED) -> None:
    """End every process of the MPI job at once; does not return.

    Open MPI exits with `exit_code` and kills the other ranks within a second.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it may be gone already
            stream.flush()
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            wait_s(_LAST_WORDS_S)
            MPI.COMM_WORLD.Abort(exit_code)
    os._exit(exit_code)
