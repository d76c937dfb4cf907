"""Observations, actions and results of many environments, side by side in arrays.

Where environments live in child processes, the arrays lie in one piece of anonymous shared memory
(a memfd): it has no name, so nothing can be left behind; it is gone with the last process that
holds it, however that ends.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from typing import Any, Self

import gymnasium
import numpy as np

from hpcdi.types import Array
from hpcdi.utils.lifetime import Closing

_ALIGNMENT = 64


@dataclass(frozen=True)
class Layout:
    """Sizes of a board; dtypes in numpy's spelling."""

    env_num: int
    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str

    @classmethod
    def of(cls, env_num: int, observation: Any, action: Any) -> Self | None:
        """Layout for two gymnasium spaces; None where these are not arrays."""
        known = gymnasium.spaces.Discrete | gymnasium.spaces.Box | gymnasium.spaces.MultiDiscrete
        if not isinstance(observation, gymnasium.spaces.Box) or not isinstance(action, known):
            return None
        dtype, acts = stored_dtype(observation.dtype), str(np.dtype(action.dtype))
        return cls(env_num, observation.shape, dtype, action.shape or (), acts)

    def columns(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each array of a board."""
        row = (self.env_num,)
        observation = ((*row, *self.obs_shape), np.dtype(self.obs_dtype))
        return {
            "observation": observation,
            "final": observation,
            "action": ((*row, *self.action_shape), np.dtype(self.action_dtype)),
            "reward": (row, np.dtype(np.float32)),
            "terminated": (row, np.dtype(bool)),
            "truncated": (row, np.dtype(bool)),
        }


@dataclass
class Board:
    """One row for each environment.

    Attributes:
        observation: what is acted on next.
        final: the last observation of the episode that ended last.
        action: what to do next.
        reward, terminated, truncated: of the last step.
    """

    observation: Array
    final: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array

    @classmethod
    def local(cls, layout: Layout) -> Self:
        """A board of this process."""
        return cls(**{n: np.zeros(shape, dtype) for n, (shape, dtype) in layout.columns().items()})


class SharedMemory(Closing):
    """Memory for a board that several processes use.

    Args:
        layout: of the board.
        fd: of the memory that another process made; None: make it.
    """

    def __init__(self, layout: Layout, fd: int | None = None) -> None:
        self._places: dict[str, int] = {}
        size = 0
        for name, (shape, dtype) in layout.columns().items():
            self._places[name] = size
            n_bytes = math.prod(shape) * dtype.itemsize
            size += -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        if fd is None:
            fd = os.memfd_create("hpcdi-env")
            os.ftruncate(fd, max(size, 1))
        self.fd = fd
        self.layout = layout
        self._map = mmap.mmap(fd, max(size, 1))
        self._board: Board | None = None

    def board(self) -> Board:
        """Arrays that lie in this memory; the memory stays mapped as long as one of them lives."""
        if self._board is None:
            self._board = self._lay_out()
        return self._board

    def _lay_out(self) -> Board:
        return Board(
            **{
                name: np.frombuffer(
                    self._map, dtype=dtype, count=math.prod(shape), offset=self._places[name]
                ).reshape(shape)
                for name, (shape, dtype) in self.layout.columns().items()
            }
        )

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the last array on it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._board = None
            del self._map


def stored_dtype(dtype: Any) -> str:
    """Dtype in which observations are stored: float64 becomes float32, others stay."""
    return "float32" if np.dtype(dtype) == np.float64 else str(np.dtype(dtype))
