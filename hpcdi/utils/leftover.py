"""The end of a program in which others, a simulator say, have left threads that go on for ever.

Python waits for all that are no daemons, and so would a batch job's nodes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time

from hpcdi.utils.threads import BackgroundThread

_PATIENCE_S = 10.0
"""For a thread that has something to finish; a pool's ends by itself."""
_LOOK_S = 0.1


def end_in_spite_of_threads(exit_code: int) -> None:
    """Have this process exit with a code even if threads stay; its last call before it ends.

    Functions of `atexit` run before: they close what others wait for. MPI has ended already.
    """
    if _left():
        BackgroundThread(lambda: _watch(exit_code), "ending")


def _left() -> list[threading.Thread]:  # noqa: TID251 (starts none)
    """Threads for which Python waits when it ends."""
    own = (threading.main_thread(), threading.current_thread())
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in own]


def _watch(exit_code: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while left := _left():
        if time.monotonic() >= deadline:
            break
        left[0].join(_LOOK_S)
    else:
        return
    names = ", ".join(thread.name for thread in left)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(
            f"hpcdi: threads of the environment, or of a library, have not ended: {names}; they "
            "are left behind\n"
        )
    BackgroundThread(_end_in_order, "ending-functions").join(_PATIENCE_S)
    os._exit(exit_code)


def _end_in_order() -> None:
    """What Python and C do last; for ever where a thread that stays holds a stream."""
    try:
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the reader may be gone already
                stream.flush()
        ctypes.CDLL(None).fflush(None)
