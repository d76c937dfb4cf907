"""Removing shards that nobody needs, and only those."""

from __future__ import annotations

from collections.abc import Iterable

from hpcdi.store.layout import RunLayout
from hpcdi.utils.log import LOGGER


class Retention:
    """Counts who needs which shard; a shard goes when its last user lets go.

    Paths come from messages, so each is resolved inside the run folder and refused elsewhere.

    Args:
        layout: the run folder.
        keep_data: never remove anything.
    """

    def __init__(self, layout: RunLayout, *, keep_data: bool) -> None:
        self.removed = 0
        self._layout, self._keep_data = layout, keep_data
        self._users: dict[str, int] = {}

    def need(self, path: str) -> None:
        """One more user of the shard at `path` (relative to the run folder)."""
        self._layout.inside(path)
        self._users[path] = self._users.get(path, 0) + 1

    def release(self, paths: Iterable[str]) -> None:
        """One user less of each shard; unlinks those that have none left."""
        for path in paths:
            self._users[path] -= 1
            if self._users[path] == 0:
                del self._users[path]
                if not self._keep_data:
                    self._remove(path)

    def _remove(self, path: str) -> None:
        try:
            self._layout.inside(path).unlink(missing_ok=True)
            self.removed += 1
        except OSError as error:  # it costs space, not the run
            LOGGER.warning("shard %s cannot be removed: %s", path, error.strerror or error)
