"""Unique names for tasks, policies and buffers."""

from __future__ import annotations

import itertools
import os

_counter = itertools.count()


def get_task_uid() -> str:
    """Returns a name that is unique in this process: process id and a counter.

    Ranks on different hosts may share a process id: names for the whole run come from rank 0 only.
    """
    return f"{os.getpid():d}_{next(_counter):d}"
