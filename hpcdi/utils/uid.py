"""Unique names for tasks, policies and buffers."""

from __future__ import annotations

import itertools
import os

_counter = itertools.count()


def get_task_uid() -> str:
    """Name that is unique within a run: process id and a counter, no clock and no randomness.

    Ranks on different hosts may share a process id, so whoever names things for the whole run is
    rank 0 alone.
    """
    return f"{os.getpid():d}_{next(_counter):d}"
