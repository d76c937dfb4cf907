"""A solver whose module imports mpi4py at once, as most of them do."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from fakes.python_solvers import Wide


class WithMpi(Wide):
    """The same."""

    def reset(self, seed: int, comm: Any) -> Any:
        """Begin an episode."""
        assert MPI.COMM_WORLD.Get_size() > comm.Get_size()
        return super().reset(seed, comm)
