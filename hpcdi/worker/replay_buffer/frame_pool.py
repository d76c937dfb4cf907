"""Frames of several users, in numbered places."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdi.types import Array

NOWHERE = -1
_GROWTH = 1024


class FramePool:
    """Frames in numbered places; memory is used as they are written.

    Args:
        shape: of a frame.
        dtype: of its values.
        size: frames that it has room for; it grows when they do not suffice.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, size: int = 0) -> None:
        self.frames = np.empty((size, *shape), dtype)
        self._users = np.full(size + 1, NOWHERE, np.int32)  # of each place: slot of the last item
        self._taken = 0  # places that were taken so far
        self._free: list[int] = []  # of them, those that are free again

    @property
    def used(self) -> int:
        """Frames that are here."""
        return self._taken - len(self._free)

    def add(self, frames: Array) -> list[int]:
        """Store frames [m, ...]; gives their places."""
        count = len(frames)
        left = max(0, len(self._free) - count)
        places, self._free = self._free[left:], self._free[:left]
        taken, self._taken = self._taken, self._taken + count - len(places)
        places += range(taken, self._taken)
        if self._taken > len(self.frames):
            more = self._taken + max(_GROWTH, self._taken // 8)
            new = np.full(more - len(self.frames), NOWHERE, np.int32)
            self._users = np.concatenate([self._users, new])
            self.frames.resize((more, *self.frames.shape[1:]), refcheck=False)
        if count == 1:
            self.frames[places[0]] = frames[0]
        else:
            self.frames[places] = frames
        return places

    def load(self, frames: Array, users: Array) -> None:
        """Take frames [m, ...] and their users [m], instead of what is here."""
        count, size = len(frames), max(len(self.frames), len(frames))
        self.frames = np.empty((size, *frames.shape[1:]), frames.dtype)
        self.frames[:count] = frames
        self._users = np.full(size + 1, NOWHERE, np.int32)
        self._users[:count] = users
        self._taken, self._free = count, []

    def use(self, places: Array, slots: Any) -> None:
        """Frames are of the items in slots, one each or one for all; the last is the newest."""
        self._users[places] = slots

    def release(self, places: Array, slots: Any) -> None:
        """Items in slots go; of their frames, those that no newer item uses go, too."""
        gone = places[self._users[places] == slots]
        self._free += dict.fromkeys(gone.tolist())
