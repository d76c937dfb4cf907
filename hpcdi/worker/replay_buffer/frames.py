"""Stacks of frames whose frames are stored once, in a buffer of items that come one by one.

An observation of four frames shares three with the one before, and a transition's next observation
is the observation of the next transition: of the eight frames of a transition one is new. Shared
frames are found by comparing bytes with those of the item before, so what is read is always what
was pushed: items in an order that shares nothing cost memory, never correctness.

Blocks and learners' rings store frames once by views (`store.frames.share_frames`), whose offsets
stay within an item. That does not do here, where each transition is an item of its own and the next
one shares with it: views take 35,440 bytes for a transition of 84 x 84 stacks, this takes 7,116.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.store.frames import check_stacks, frames_as_words
from hpcdi.store.memory import Recycler
from hpcdi.types import Array, Columns

NOWHERE = -1
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
        self._users = np.full(size + 1, NOWHERE, np.int32)  # of each place: slot of the last item
        self._taken = 0  # places that were taken so far
        self._free: list[int] = []  # of them, those that are free again

    @property
    def used(self) -> int:
        """Frames that are here."""
        return self._taken - len(self._free)

    def add(self, frames: Array) -> list[int]:
        """Store frames [m, ...]; returns their places."""
        count = len(frames)
        unused = max(0, len(self._free) - count)
        places, self._free = self._free[unused:], self._free[:unused]
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

    def load(self, frames: Array) -> None:
        """Take frames [m, ...], which no item uses yet, instead of what is here."""
        count, size = len(frames), max(len(self.frames), len(frames))
        self.frames = np.empty((size, *frames.shape[1:]), frames.dtype)
        self.frames[:count] = frames
        self._users = np.full(size + 1, NOWHERE, np.int32)
        self._taken, self._free = count, []

    def use(self, places: Array, slots: Any) -> None:
        """Note the slots of the items that use frames, one each or one for all; newest last."""
        self._users[places] = slots

    def release(self, places: Array, slots: Any) -> None:
        """Remove items of slots, and those of their frames that no newer item uses."""
        gone = places[self._users[places] == slots]
        self._free += dict.fromkeys(gone.tolist())


class Streams:
    """The last item of each environment, for as long as its slot is not given to another.

    Args:
        capacity: slots.
    """

    def __init__(self, capacity: int) -> None:
        self._put = 0
        self._numbers = np.zeros(capacity, np.int64)  # of each slot: which item is in it, from 1
        self._latest: dict[int, tuple[int, int]] = {}  # environment -> slot, number

    @property
    def n_bytes(self) -> int:
        """Bytes of what is known of all slots."""
        return self._numbers.nbytes

    def take(self, start: int, stop: int) -> None:
        """Note that new items replace those of slots [start, stop)."""
        first, self._put = self._put + 1, self._put + stop - start
        self._numbers[start:stop] = np.arange(first, self._put + 1)

    def last_of(self, env: int) -> int | None:
        """Slot of an environment's last item; None where it has gone, or there was none."""
        slot, number = self._latest.get(env, (0, -1))
        return slot if self._numbers[slot] == number else None

    def follow(self, env: int, slot: int) -> None:
        """The item in a slot is the last one of an environment."""
        self._latest[env] = slot, int(self._numbers[slot])
        if len(self._latest) > len(self._numbers):  # environments that have gone for good
            self._latest = {
                env: last for env, last in self._latest.items() if self._numbers[last[0]] == last[1]
            }


def by_env(envs: Array | None) -> Iterator[tuple[int, Any]]:
    """Yields each environment and its rows, a slice if evenly spaced; None: all rows are of one."""
    numbers = np.zeros(1, np.int64) if envs is None else envs.reshape(-1)
    different = dict.fromkeys(numbers.tolist())
    if len(different) == 1:
        yield int(numbers[0]), slice(None)
        return
    for env in different:
        rows = np.flatnonzero(numbers == env)
        steps = set(np.diff(rows).tolist()) or {1}
        is_even = len(steps) == 1
        yield int(env), slice(rows[0], rows[-1] + 1, steps.pop()) if is_even else rows


class FrameStore:
    """Columns [m, stack, *frame] in slots: an observation's, and perhaps the next observation's.

    Items of one environment follow each other; ``env_id`` tells environments apart.

    Args:
        capacity: slots; items come to them in turn.
        names: one or two columns; of two, the second one has the later observation.
    """

    def __init__(self, capacity: int, names: tuple[str, ...]) -> None:
        self.names = names
        self._capacity = capacity
        self._stack = 0  # frames of an observation
        self._pool = FramePool((), np.uint8)
        self._places = np.zeros((0, 0), np.int32)  # [slot, frame of its item]: where in the pool
        self._window = np.zeros(0, np.int64)  # a sliding item's frames, from the one before's last
        self._streams = Streams(capacity)
        self._recycler = Recycler()

    @property
    def n_bytes(self) -> int:
        """Bytes of all frames, and of where they lie."""
        frames = self._pool.frames
        n_bytes = self._pool.used * frames.itemsize * math.prod(frames.shape[1:])
        return int(n_bytes) + self._places.nbytes + self._streams.n_bytes

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
        check_stacks(columns, self.names)
        like = columns[self.names[0]]
        envs = columns.get("env_id", _ONE_ENV)
        if envs.dtype.kind not in "iub" or math.prod(envs.shape[1:]) != 1:
            raise BufferContractError(f"'env_id' is {envs.dtype}{envs.shape[1:]}, no whole number")
        self._stack = like.shape[1]
        self._pool = FramePool(like.shape[2:], like.dtype, self._room)
        self._make_places()

    def _make_places(self) -> None:
        frames = np.arange(self._stack)
        self._window = np.concatenate([frames, frames + 1][-len(self.names) :])
        self._places = np.full((self._capacity, len(self._window)), NOWHERE, np.int32)

    def put_one(self, item: Mapping[str, Any], slot: int) -> None:
        """Put an item, whose stacks are arrays of the right shapes and dtypes, into a slot."""
        stacks = [item[name] for name in self.names]
        envs = np.reshape(item["env_id"], 1) if "env_id" in item else _ONE_ENV
        env = int(envs[0])
        before = self._streams.last_of(env)
        where = self._places[before, -self._stack :] if before not in (None, slot) else None
        if where is None or not _follows(stacks, self._pool.frames.take(where, axis=0)):
            columns = {name: stack[None] for name, stack in zip(self.names, stacks, strict=True)}
            self.put(slot, slot + 1, {**columns, "env_id": envs}, 0)
            return
        self._pool.release(self._places[slot], slot)
        self._streams.take(slot, slot + 1)
        self._places[slot] = places = self._slide(where.tolist(), stacks[-1][-1:], self._window)
        self._pool.use(places, slot)
        self._streams.follow(env, slot)

    def put(self, start: int, stop: int, columns: Mapping[str, Any], first_row: int) -> None:
        """Put rows of columns, from `first_row`, into slots [start, stop)."""
        for first in range(start, stop, _ROWS_AT_ONCE):  # what compares them needs memory
            last = min(first + _ROWS_AT_ONCE, stop)
            self._put_rows(first, last, columns, first_row + first - start)

    def _put_rows(self, start: int, stop: int, columns: Mapping[str, Any], first_row: int) -> None:
        rows, slots = slice(first_row, first_row + stop - start), np.arange(start, stop)
        stacks = [np.asarray(columns[name][rows], self._pool.frames.dtype) for name in self.names]
        self._pool.release(self._places[start:stop], slots[:, None])
        self._streams.take(start, stop)
        for env, of_env in by_env(columns["env_id"][rows] if "env_id" in columns else None):
            before = self._streams.last_of(env)
            self._put_stream([column[of_env] for column in stacks], slots[of_env], before)
            self._streams.follow(env, int(slots[of_env][-1]))

    def _put_stream(self, stacks: list[Array], slots: Array, before: int | None) -> None:
        """Put items of one environment, one after the other, into slots [m].

        Most have one new frame, and share the others with the one before: they go in together.
        """
        where = self._places[before].tolist() if before is not None else []
        last = self._pool.frames.take(where[-self._stack :], axis=0) if where else None
        slides, row = _slides(stacks, last), 0
        while row < len(slots):
            stop = row + 1
            if slides[row]:
                while stop < len(slots) and slides[stop]:
                    stop += 1
                windows = np.arange(stop - row)[:, None] + self._window
                places = self._slide(where, stacks[-1][row:stop, -1], windows)
            else:
                earlier = [column[row - 1] for column in stacks]
                if row == 0:
                    earlier = list(self._pool.frames[where].reshape(-1, *stacks[0].shape[1:]))
                item = [column[row] for column in stacks]
                places = np.array([self._place(item, earlier, where)], np.int32)
            self._places[slots[row:stop]] = places
            self._pool.use(places, slots[row:stop, None])
            where, row = places[-1].tolist(), stop

    def _slide(self, where: list[int], frames: Array, windows: Array) -> Array:
        """Places of items that slide: of the frames before them, and new ones [m, ...]."""
        chain = where[-self._stack :] + self._pool.add(frames)
        return np.array(chain, np.int32).take(windows)

    def read(self, slots: Array) -> Columns:
        """Columns at slots of any shape: arrays of the caller's own."""
        frames, count = self._pool.frames, slots.size
        places = self._places.take(slots.reshape(-1), axis=0)
        places = places.reshape(count, len(self.names), self._stack)
        shape = (count, self._stack, *frames.shape[1:])
        results = [self._recycler.empty(shape, frames.dtype) for _ in self.names]
        for start in range(0, count, _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            for k, out in enumerate(results):  # the second finds its frames in the cache
                frames.take(places[rows, k], axis=0, out=out[rows], mode="clip")
        shape = (*slots.shape, *shape[1:])
        return {n: out.reshape(shape) for n, out in zip(self.names, results, strict=True)}

    def state_of(self, slots: Array) -> dict[str, Array]:
        """Frames of the items in slots [m], each once, and which are whose; copies."""
        used, places = np.unique(self._places[slots], return_inverse=True)
        places = places.reshape(-1, self._places.shape[1]).astype(np.int32)
        return {"frames": self._pool.frames[used], "places": places}

    def restore(
        self, state: Mapping[str, Array], slots: Array, by_age: Array | None = None
    ) -> None:
        """Put the items of a `state_of` into slots.

        Args:
            state: the items' frames.
            slots: of the items, int64 [m].
            by_age: the same slots, that of the oldest item first; None: they are in that order.
        """
        frames, places = state["frames"], np.asarray(state["places"])
        self._stack = places.shape[1] // len(self.names)
        self._make_places()
        self._places[slots] = places
        self._pool = FramePool(frames.shape[1:], frames.dtype, self._room)
        self._pool.load(frames)
        by_age = slots if by_age is None else by_age
        self._pool.use(self._places[by_age], by_age[:, None])
        self._streams = Streams(self._capacity)

    def _place(self, stacks: list[Array], earlier: list[Array], where: list[int]) -> list[int]:
        """Places of an item's frames: those of equal frames of the item before, or new ones.

        Args:
            stacks: its one or two stacks.
            earlier: those of the item before; empty: there is none.
            where: the places of their frames.
        """
        frames = [frame.tobytes() for stack in earlier for frame in stack]
        place_of, places = dict(zip(frames, where, strict=True)), []
        for frame in itertools.chain.from_iterable(stacks):
            key = frame.tobytes()
            if key not in place_of:
                place_of[key] = self._pool.add(frame[None])[0]
            places.append(place_of[key])
        return places


def _slides(stacks: list[Array], last: Array | None) -> list[bool]:
    """Of items that follow each other, which have all frames but the last from the one before.

    Args:
        stacks: their one or two stacks [m, stack, ...].
        last: the later stack of the item before the first; None: there is none.
    """
    slides = np.empty(len(stacks[0]), bool)
    slides[0] = last is not None and _follows([column[0] for column in stacks], last)
    if len(slides) > 1:
        *head, tail = [frames_as_words(column, 2) for column in stacks]
        slides[1:] = (tail[1:, :-1] == tail[:-1, 1:]).all(axis=(1, 2))
        for column in head:
            slides[1:] &= (column[1:] == tail[:-1]).all(axis=(1, 2))
        if tail.shape[1] > 1:  # a last frame like the one before it is that one
            slides[1:] &= (tail[1:, -1] != tail[1:, -2]).any(axis=1)
    return list(slides.tolist())


def _follows(stacks: list[Array], last: Array) -> bool:
    """True for an item with one new frame and all others from the stack `last` before it."""
    *head, tail = [frames_as_words(stack, 1) for stack in stacks]
    before = frames_as_words(last, 1)
    return (
        not np.count_nonzero(tail[:-1] != before[1:])
        and not any(np.count_nonzero(stack != before) for stack in head)
        and (len(tail) < 2 or bool(np.count_nonzero(tail[-1] != tail[-2])))
    )
