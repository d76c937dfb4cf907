"""Rank 0's side of `hpcdi scale`: a file in the run folder says how many collectors work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hpcdi.comm.messages import ScaleCollectors
from hpcdi.store.atomic import read_json
from hpcdi.store.layout import RunLayout
from hpcdi.utils.log import LOGGER

LOOK_S = 1.0
"""Seconds between two looks at the file."""


class ScaleFile:
    """Reads the number of collectors that a user has written, once per change.

    Args:
        layout: the run folder.
        ranks: that collect or wait; a request for another number of ranks is ignored.
        ask: returns other requests, e.g. of a signal; they come first.
    """

    def __init__(self, layout: RunLayout, ranks: int, ask: Callable[[], Any]) -> None:
        self._path, self._ranks, self._ask = layout.scale_file, ranks, ask
        self._due, self._seen = float("-inf"), 0

    def take(self) -> Any:
        """Returns a request, or how many collectors should work; None: nothing new."""
        asked, now = self._ask(), time.monotonic()
        if asked is not None or now < self._due:
            return asked
        self._due = now + LOOK_S
        try:
            changed = self._path.stat().st_mtime_ns
        except OSError:  # nobody has written one
            return None
        if changed == self._seen:
            return None
        self._seen = changed
        found = read_json(self._path)
        count = found.get("collectors")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            LOGGER.warning("%s does not say how many collectors are wanted: ignored", self._path)
            return None
        if found.get("of") != self._ranks:
            return None
        LOGGER.info("%d collectors are wanted", count)
        return ScaleCollectors(count)
