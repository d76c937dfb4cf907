"""The memory through which the ranks of a host exchange messages: files in /dev/shm.

In a container /dev/shm may be so small that no MPI library can start. Then Open MPI says so in 60
lines, and MPICH breaks by a signal, as if a rank had been killed; but no new start of the job can
mend it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from hpcdi.errors import LaunchError
from hpcdi.utils.metrics import human_bytes

BACKING_VARIABLE = "OMPI_MCA_btl_sm_backing_directory"
"""Of Open MPI: its folder instead of /dev/shm."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (MPI's own place)
_LEAST_BYTES = 32 << 20
"""Of all of it. With 4 and 8 ranks Open MPI 5 does not start with 16 MB, and MPICH 5 with 24 MB."""


def check_shared_memory(variables: Mapping[str, str], folder: Path = SHARED_MEMORY) -> None:
    """Check that the ranks of this host can have shared memory.

    What is in use is not looked at: others may free it.

    Args:
        variables: of this rank's environment.
        folder: of shared memory.

    Raises:
        LaunchError: there is too little in all.
    """
    if BACKING_VARIABLE in variables and "OMPI_COMM_WORLD_SIZE" in variables:
        return
    with contextlib.suppress(OSError):  # there is none
        state = os.statvfs(folder)
        size = state.f_blocks * state.f_frsize
        if size < _LEAST_BYTES:
            raise LaunchError(
                f"{folder} has {human_bytes(size)} in all on this host; ranks exchange messages "
                f"through it, and no MPI library starts with less than {human_bytes(_LEAST_BYTES)}."
                " In a container: --shm-size=1g, or bind the host's"
            )
