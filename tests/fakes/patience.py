"""How long a test waits before it calls something hung, on cores that others may use, too."""

from __future__ import annotations

import os

LIMIT_S = 120.0
"""On idle cores a job, or anything that one waits for, takes some seconds."""


def stretched(idle_s: float = LIMIT_S) -> float:
    """Seconds in which this machine does now what idle cores do in so many.

    Where ten processes share a core, each has a tenth of it: a start that takes 4 s took 50 s with
    a load of 35 on two cores. A limit in plain seconds would test the machine's other users.
    """
    return idle_s * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
