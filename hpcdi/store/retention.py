"""Which shards are still needed: each is removed when nobody needs any of its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpcdi.store.layout import RunLayout, shard_of, shard_place
from hpcdi.utils.log import LOGGER


class Retention:
    """Counts who needs which block; a shard goes when no one needs any block of it.

    The newest shard of each collector stays until that has ended: more blocks may be on their way
    into it.

    Names come from messages, so each shard's is resolved inside the run folder and refused
    elsewhere, when its first block is announced.

    Args:
        layout: the run folder.
        keep_data: never remove anything.
    """

    def __init__(self, layout: RunLayout, *, keep_data: bool) -> None:
        self.removed = 0
        self._layout, self._keep_data = layout, keep_data
        self._users: dict[str, int] = {}
        self._newest: dict[int, tuple[int, str]] = {}  # of the rank of each that collects

    def need(self, name: str, users: int = 1) -> str:
        """More users of a block; returns its shard."""
        path = shard_of(name)
        if path in self._users:
            self._users[path] += users
            return path
        self._layout.inside(name)
        self._users[path] = users
        place = shard_place(Path(path))
        if place is None:  # a file of somebody's own collector
            return path
        rank, number = place
        before = self._newest.get(rank)
        if before is None or number > before[0]:
            self._newest[rank] = number, path
            if before is not None:
                self._remove_if_unneeded(before[1])
        return path

    def end(self, rank: int | None = None) -> None:
        """Note that a collector appends to no shard any more; None: all that are known so far."""
        ended = [*self._newest] if rank is None else self._newest.keys() & {rank}
        for each in ended:
            _, path = self._newest.pop(each)
            self._remove_if_unneeded(path)

    def release(self, names: Iterable[str]) -> None:
        """One user less of each block; unlinks shards that have none left."""
        self.release_users(Counter(map(shard_of, names)))

    def release_users(self, users: Mapping[str, int]) -> None:
        """So many users less of shards; unlinks those that have none left."""
        for path, count in users.items():
            self._users[path] -= count
            if self._users[path] == 0:
                del self._users[path]
                self._remove_if_unneeded(path)

    def _remove_if_unneeded(self, path: str) -> None:
        """Remove a shard if nobody needs it, and nothing is appended to it."""
        rank, _ = shard_place(Path(path)) or (-1, 0)
        _, newest = self._newest.get(rank, (0, ""))
        if not self._keep_data and path not in self._users and path != newest:
            self._remove(path)

    def _remove(self, path: str) -> None:
        try:
            self._layout.inside(path).unlink(missing_ok=True)
            self.removed += 1
        except OSError as error:  # it costs space, not the run
            LOGGER.warning("shard %s cannot be removed: %s", path, error.strerror or error)
