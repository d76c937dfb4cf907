"""Stacks of frames whose frames are stored once.

An observation of four frames shares three with the one before, and a transition's next observation
is the observation of the next transition: of the eight frames of a transition one is new. Which
frames are the same is found by comparing their bytes with those of the item before, so what is read
is always what was pushed: an order of items that shares nothing costs memory, never truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.types import Array, Columns
from hpcdi.utils.gather import gather
from hpcdi.utils.recycle import Recycler

_NOWHERE = -1
_GROWTH = 1024
_ROWS_AT_ONCE = 64
_ONE_ENV = np.zeros(1, np.int64)


class FramePool:
    """Frames in numbered places; memory is used as they are written.

    Args:
        shape: of a frame.
        dtype: of its values.
        size: frames that it has room for; it grows when they do not suffice.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, size: int = 0) -> None:
        self.frames = np.empty((size, *shape), dtype)
        self._users: list[int] = []  # of each place taken so far: slot of the last item
        self._free: list[int] = []  # places that were taken

    @property
    def used(self) -> int:
        """Frames that are here."""
        return len(self._users) - len(self._free)

    def add(self, frame: Array) -> int:
        """Store a frame; gives its place."""
        if self._free:
            place = self._free.pop()
        else:
            place = len(self._users)
            self._users.append(_NOWHERE)
            if place == len(self.frames):
                more = place + max(_GROWTH, place // 8)
                self.frames.resize((more, *self.frames.shape[1:]), refcheck=False)
        self.frames[place] = frame
        return place

    def load(self, frames: Array, users: list[int]) -> None:
        """Take frames [m, ...] and their users [m], instead of what is here."""
        self.frames = np.empty(
            (max(len(self.frames), len(frames)), *frames.shape[1:]), frames.dtype
        )
        self.frames[: len(frames)] = frames
        self._users, self._free = users, []

    def use(self, places: list[int], slot: int) -> None:
        """Frames are of the item in `slot`, which is newer than their other users."""
        for place in places:
            self._users[place] = slot

    def release(self, places: list[int], slot: int) -> None:
        """The item in `slot` goes; frames that no newer item uses go with it."""
        for place in set(places):
            if place != _NOWHERE and self._users[place] == slot:
                self._users[place] = _NOWHERE
                self._free.append(place)


class FrameStore:
    """Columns [m, stack, *frame] in slots: an observation's, and perhaps the next observation's.

    Items of one environment follow each other; those of several are told apart by ``env_id``.

    Args:
        capacity: slots; items come to them in turn.
        names: one or two columns; of two, the second one is later than the first one.
    """

    def __init__(self, capacity: int, names: tuple[str, ...]) -> None:
        self.names = names
        self._capacity = capacity
        self._stack = 0  # frames of an observation
        self._pool = FramePool((), np.uint8)
        self._places = np.zeros((0, 0), np.int32)  # [slot, frame of its item]: where in the pool
        self._latest: dict[int, tuple[int, int]] = {}  # environment -> its last item: count, slot
        self._count = 0
        self._recycler = Recycler()

    @property
    def n_bytes(self) -> int:
        """Bytes of all frames, and of where they lie."""
        frames = self._pool.frames
        n_bytes = self._pool.used * frames.itemsize * math.prod(frames.shape[1:])
        return int(n_bytes) + self._places.nbytes

    @property
    def _room(self) -> int:
        """Frames of long episodes: one an item, and some at each beginning."""
        return self._capacity + self._capacity // 16 + 64

    def declare(self, columns: Mapping[str, Array]) -> None:
        """Take shapes and dtypes from the first columns.

        Raises:
            BufferContractError: a column is missing, is no stack, or the two differ; or ``env_id``
                is no whole number.
        """
        for name in self.names:
            if name not in columns or columns[name].ndim < 3:
                what = f"of shape {columns[name].shape[1:]}" if name in columns else "missing"
                raise BufferContractError(f"{name!r} should be a stack of frames, it is {what}")
        like = columns[self.names[0]]
        kinds = {(columns[name].dtype, columns[name].shape[1:]) for name in self.names}
        if len(kinds) > 1:
            raise BufferContractError(f"{' and '.join(self.names)} differ in shape or dtype")
        envs = columns.get("env_id", _ONE_ENV)
        if envs.dtype.kind not in "iub" or math.prod(envs.shape[1:]) != 1:
            raise BufferContractError(f"'env_id' is {envs.dtype}{envs.shape[1:]}, no whole number")
        self._stack = like.shape[1]
        self._pool = FramePool(like.shape[2:], like.dtype, self._room)
        n_frames = self._stack * len(self.names)
        self._places = np.full((self._capacity, n_frames), _NOWHERE, np.int32)

    def put(self, start: int, stop: int, columns: Columns, first_row: int) -> None:
        """Put rows of columns, from `first_row`, into slots [start, stop)."""
        rows: dict[int, int] = {}  # slot -> row of these columns
        given = [np.asarray(columns[name], self._pool.frames.dtype) for name in self.names]
        envs = columns["env_id"].reshape(-1) if "env_id" in columns else None
        for row, slot in enumerate(range(start, stop), first_row):
            stacks = [column[row] for column in given]
            env = 0 if envs is None else int(envs[row])
            count, before = self._latest.get(env, (-self._capacity, _NOWHERE))
            self._pool.release(self._places[slot].tolist(), slot)
            if before == slot or self._count - count >= self._capacity:  # the one before has gone
                places = self._place(stacks, None, [])
            else:
                where = self._places[before]
                if before in rows:
                    earlier = [column[rows[before]] for column in given]
                else:
                    earlier = list(self._pool.frames[where.reshape(len(self.names), -1)])
                places = self._place(stacks, earlier, where.tolist())
            self._places[slot] = places
            self._pool.use(places, slot)
            if len(self._latest) > self._capacity:  # environments that have gone for good
                self._latest = {
                    env: last
                    for env, last in self._latest.items()
                    if self._count - last[0] < self._capacity
                }
            self._latest[env] = (self._count, slot)
            self._count += 1
            rows[slot] = row

    def read(self, slots: Array) -> Columns:
        """Columns at slots of any shape: arrays of the caller's own."""
        frames, count = self._pool.frames, slots.size
        places = self._places.take(slots.reshape(-1), axis=0)
        places = places.reshape(count, len(self.names), self._stack)
        shape = (count, self._stack, *frames.shape[1:])
        found = [self._recycler.empty(shape, frames.dtype) for _ in self.names]
        for start in range(0, count, _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            for k, out in enumerate(found):  # the second finds its frames in the cache
                gather(frames, places[rows, k], out[rows])
        shape = (*slots.shape, *shape[1:])
        return {n: out.reshape(shape) for n, out in zip(self.names, found, strict=True)}

    def state_of(self, slots: Array) -> dict[str, Array]:
        """Frames of the items in slots [m], each once, and which are whose; copies."""
        used, places = np.unique(self._places[slots], return_inverse=True)
        places = places.reshape(-1, self._places.shape[1]).astype(np.int32)
        return {"frames": self._pool.frames[used], "places": places}

    def restore(self, state: Mapping[str, Array], slots: Array) -> None:
        """Put the items of a `state_of` into slots [m]."""
        frames, places = state["frames"], np.asarray(state["places"])
        self._stack = places.shape[1] // len(self.names)
        self._places = np.full((self._capacity, places.shape[1]), _NOWHERE, np.int32)
        self._places[slots] = places
        users = np.full(len(frames), _NOWHERE)
        users[places.reshape(-1)] = np.repeat(slots, places.shape[1])  # the last one counts
        self._pool = FramePool(frames.shape[1:], frames.dtype, self._room)
        self._pool.load(frames, users.tolist())
        self._latest, self._count = {}, 0

    def _place(
        self, stacks: list[Array], earlier: list[Array] | None, where: list[int]
    ) -> list[int]:
        """Places of an item's frames: those of the item before, if they are the same, or new ones.

        Args:
            stacks: its one or two stacks.
            earlier: those of the item before.
            where: the places of their frames.
        """
        size, found = self._stack, [_NOWHERE] * (self._stack * len(stacks))
        if earlier is not None and len(stacks) == 2:
            _share(found, 0, stacks[0], earlier[1], where[size:], 0)
        if earlier is not None and _NOWHERE in found[:size]:
            _share(found, 0, stacks[0], earlier[0], where, 1)
        self._add_missing(found, 0, stacks[0])
        if len(stacks) == 2:
            _share(found, size, stacks[1], stacks[0], found, 1)
            if earlier is not None and _NOWHERE in found[size:-1]:
                _share(found, size, stacks[1], earlier[1], where[size:], 1)
            self._add_missing(found, size, stacks[1])
        return found

    def _add_missing(self, found: list[int], first: int, stack: Array) -> None:
        for k, frame in enumerate(stack):
            if found[first + k] == _NOWHERE:
                padded = k > 0 and _same(frame, stack[k - 1])
                found[first + k] = found[first + k - 1] if padded else self._pool.add(frame)


def _same(left: Array, right: Array) -> bool:
    if left.dtype.kind in "fc":  # equal floats may differ in bits: 0.0 and -0.0
        return left.tobytes() == right.tobytes()
    return bool((left == right).all())


def _share(
    found: list[int], first: int, stack: Array, other: Array, where: list[int], shift: int
) -> None:
    """Where ``stack[k]`` is ``other[k + shift]``, set ``found[first + k]`` to its place."""
    count = len(stack) - shift
    whole = _same(stack[:count], other[shift:])
    for k in range(count):
        if found[first + k] == _NOWHERE and (whole or _same(stack[k], other[k + shift])):
            found[first + k] = where[k + shift]
