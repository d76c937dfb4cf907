"""Importing what imports mpi4py, in a process that is no rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mpi4py


@contextmanager
def without_starting_mpi() -> Iterator[None]:
    """What is imported within does not start MPI; where that runs already, nothing changes."""
    before, mpi4py.rc.initialize = mpi4py.rc.initialize, False
    try:
        yield
    finally:
        mpi4py.rc.initialize = before
