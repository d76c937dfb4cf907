"""Buffers of episodes whose transitions say which they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from fakes.buffers import maker
from hpcdi.types import Array
from hpcdi.worker.replay_buffer import EpisodeReplayBuffer

make = maker(EpisodeReplayBuffer)


def episode(number: int, length: int, **more: Any) -> list[dict[str, Any]]:
    """Transitions that say which episode's they are, and which of it."""
    return [{"e": number, "obs": {"x": np.full(2, t, np.float32)}, **more} for t in range(length)]


def columns(number: int, length: int) -> dict[str, Any]:
    """The same as columns."""
    steps = np.arange(length, dtype=np.float32)
    return {"e": np.full(length, number), "obs": {"x": np.stack([steps, steps], axis=1)}}


def filled(*lengths: int, size: int = 100, **settings: Any) -> Any:
    """Episodes 0, 1, ... of these lengths, one push each, in both forms."""
    buffer = make(size, **settings)
    for number, length in enumerate(lengths):
        both = columns(number, length), [episode(number, length)]
        buffer.push(both[number % 2])
    return buffer


def described(transitions: list[dict[str, Any]]) -> tuple[int, int]:
    """Number and length of a whole episode."""
    assert [t["obs"]["x"].tolist() for t in transitions] == [
        [n, n] for n in range(len(transitions))
    ]
    (number,) = {int(t["e"]) for t in transitions}
    return number, len(transitions)


def held(buffer: Any) -> list[tuple[int, int]]:
    """All episodes, by number and length."""
    return sorted(described(drawn) for drawn in buffer.sample(buffer.count(), 0))


def check_rows(batch: Any) -> None:
    """Every row follows the one before, and is of the episode that it should be of."""
    e, x = np.asarray(batch.columns["e"]), np.asarray(batch.columns["obs"]["x"])
    steps = np.arange(e.shape[1])
    for row, (length, number) in enumerate(zip(batch.lengths, batch.unique_ids, strict=True)):
        assert (e[row, :length] == number).all()
        assert (x[row, :length, 0] == x[row, 0, 0] + steps[:length]).all()
        assert not e[row, length:].any()
        assert not x[row, length:].any()


def slices(batch: Any) -> Array:
    """Episode and first step of each slice, [m, 2]."""
    check_rows(batch)
    found: Array = np.stack([batch.unique_ids, batch.columns["obs"]["x"][:, 0, 0]], axis=1)
    return found
