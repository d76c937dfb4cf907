"""Starting MPI so that it says how it connects the ranks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator

from hpcdi.comm.probe_facts import Begun

_DISPLAY = "OMPI_MCA_ompi_display_comm"
_METHOD = re.compile(r"^\s*(on|off)-host:\s+(?:all connections are )?(.+?)\s*$", re.MULTILINE)
_TABLE = re.compile(r"^Host 0 \[.*?^\s*off-host:[^\n]*\n", re.MULTILINE | re.DOTALL)


def begin_mpi() -> Begun:
    """Start MPI by importing it; a library that has been started already tells no transports."""
    chosen = os.environ.get(_DISPLAY)
    os.environ.setdefault(_DISPLAY, "mpi_init")
    start = time.perf_counter()
    try:
        with _standard_output() as printed:
            from hpcdi.comm.world import library_version, thread_level
    finally:
        if chosen is None:
            del os.environ[_DISPLAY]
    start_s = time.perf_counter() - start
    text = "".join(printed)
    if rest := _TABLE.sub("", text).strip():  # what else the library has to say is for people
        sys.stderr.write(rest + "\n")
    return Begun(library_version(), thread_level(), parse_transports(text), start_s)


def parse_transports(text: str) -> dict[str, str]:
    """What Open MPI's connection summary says: "on"/"off" the host -> transport.

    Connections that there are none of are left out.
    """
    return {where: method for where, method in _METHOD.findall(text) if method != "n/a"}


@contextlib.contextmanager
def _standard_output() -> Iterator[list[str]]:
    """Catch what C code prints; it is in the list when the block has ended."""
    printed: list[str] = []
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with tempfile.TemporaryFile() as caught:
            os.dup2(caught.fileno(), 1)
            try:
                yield printed
            finally:
                ctypes.CDLL(None).fflush(None)
                os.dup2(kept, 1)
            caught.seek(0)
            printed.append(caught.read().decode(errors="replace").replace("\0", ""))
    finally:
        os.close(kept)
