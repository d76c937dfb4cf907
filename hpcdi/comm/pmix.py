"""A fence of the launcher's, without a message of MPI's: all ranks have left ``MPI_Init``.

Open MPI ends a rank by a segmentation fault where a message on the world's communicator comes while
that rank is still inside ``MPI_Init`` (``mca_pml_ob1_recv_frag_callback_match``, ompi issue 12495).
Its own fences are to prevent that, but under Slurm's PMIx plugin ranks now and then leave the last
one while one of another node is in the first (Slurm 22.05, Open MPI 5.0.11). It was seen where
messages follow within ``MPI_Init`` itself, see `probe.start_mpi`, one start of some 50; with one
more fence before hpcdi's first message it was not.
"""

from __future__ import annotations

import ctypes
import os

from hpcdi.utils.processes import mapped_files

_SUCCESS = 0
_LONGEST_NAMESPACE = 255


class _Process(ctypes.Structure):
    """``pmix_proc_t`` of the PMIx standard."""

    _fields_ = (("namespace", ctypes.c_char * (_LONGEST_NAMESPACE + 1)), ("rank", ctypes.c_uint32))


def fence(ranks: int, size: int) -> bool:
    """Wait until the first `ranks` of the job's `size` ranks have called this.

    Returns:
        Whether they have: False where MPI was not started by PMIx, such as MPICH by Hydra, and
        where PMIx does not do it; then nothing is waited for.
    """
    library, namespace = _library(), os.environ.get("PMIX_NAMESPACE", "")
    if library is None or not namespace:
        return False
    some = (_Process * ranks)(*(_Process(namespace.encode(), rank) for rank in range(ranks)))
    everybody = ranks == size
    waited: int = library.PMIx_Fence(
        None if everybody else some, ctypes.c_size_t(0 if everybody else ranks),
        None, ctypes.c_size_t(0),
    )  # fmt: skip
    return waited == _SUCCESS


def _library() -> ctypes.CDLL | None:
    """Returns the PMIx library that this process's MPI has loaded."""
    paths = (path for path in mapped_files() if path.name.startswith("libpmix.so"))
    return next((ctypes.CDLL(str(path)) for path in paths), None)
