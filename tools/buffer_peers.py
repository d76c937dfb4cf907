"""Replay buffers of other libraries behind one interface, for `bench_buffers.py`.

Each is used the way its documentation shows, with its own fast path for many transitions at once.
A library that is not installed is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

Columns = dict[str, np.ndarray]

ALPHA, BETA = 0.6, 0.4


@dataclass(frozen=True)
class Task:
    """What is stored: transitions of observations, how many, stacks or whole."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    capacity: int

    def rows(self, count: int, first_step: int = 0) -> Columns:
        """Transitions of one stream, as columns [count, ...]; stacks slide by one frame."""
        steps = np.arange(first_step, first_step + count + 1)
        if len(self.shape) == 1:
            wave = np.sin(steps[:, None] * np.arange(1, self.shape[0] + 1)).astype(self.dtype)
            obs, next_obs = wave[:-1], wave[1:]
        else:
            frames = _frames(first_step, count + self.shape[0], self.shape[1:])
            stacks = np.stack([frames[k : k + count + 1] for k in range(self.shape[0])], axis=1)
            obs, next_obs = stacks[:-1], stacks[1:]
        return {
            "obs": np.ascontiguousarray(obs), "next_obs": np.ascontiguousarray(next_obs),
            "action": steps[:-1] % 2, "reward": np.ones(count, np.float32),
            "done": steps[:-1] % 500 == 499,
        }  # fmt: skip


def _frames(first: int, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Frames that differ from each other: noise that scrolls."""
    noise = np.random.default_rng(0).integers(0, 255, (256, *shape), dtype=np.uint8)
    frames = noise[np.arange(first, first + count) % 256].copy()
    frames[:, 0, :4] = np.arange(first, first + count).astype("<u4").view(np.uint8).reshape(-1, 4)
    return frames


class Peer:
    """One buffer. Actions: `push` rows, `sample` to tensors, `round` of sample and update."""

    name = ""
    compact = False  # frames are stored once
    rows_at_once = 64

    def __init__(self, task: Task, prioritized: bool) -> None:
        self.task, self.prioritized = task, prioritized
        self.rng = np.random.default_rng(1)

    def laid_out(self, rows: Columns) -> Columns:
        """Rows in the layout that the library wants; before anything is measured."""
        return rows

    def push_one(self, rows: Columns, k: int) -> None:
        """Add row k of rows."""
        raise NotImplementedError

    def push_rows(self, rows: Columns) -> None:
        """Add all rows, as many as `rows_at_once`."""
        raise NotImplementedError

    def sample(self, size: int) -> Any:
        """Draw a batch of torch tensors."""
        raise NotImplementedError

    def round(self, size: int) -> None:
        """Draw a batch by priority, and give the items of it new priorities."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Write everything to a file."""
        raise NotImplementedError

    def load(self, path: Path) -> None:
        """Read it back."""
        raise NotImplementedError


class Hpcdi(Peer):
    """This project's buffers."""

    name = "hpcdi"

    def __init__(self, task: Task, prioritized: bool, frames: tuple[str, ...] = ()) -> None:
        super().__init__(task, prioritized)
        from hpcdi.worker import AdvancedReplayBuffer, NaiveReplayBuffer

        cfg = {"replay_buffer_size": task.capacity, "frames": list(frames)}
        cls = AdvancedReplayBuffer if prioritized else NaiveReplayBuffer
        extra = {"alpha": ALPHA, "beta": BETA} if prioritized else {}
        self.buffer: Any = cls({**cfg, **extra})
        self.how: dict[str, Any] = {"tensors": True} | ({} if prioritized else {"replace": True})

    def push_one(self, rows: Columns, k: int) -> None:
        self.buffer.push({
            "obs": rows["obs"][k], "next_obs": rows["next_obs"][k], "action": rows["action"][k],
            "reward": rows["reward"][k], "done": rows["done"][k],
        })  # fmt: skip

    def push_rows(self, rows: Columns) -> None:
        self.buffer.push(rows, columns=True)

    def sample(self, size: int) -> Any:
        return self.buffer.sample_batch(size, 0, **self.how)

    def round(self, size: int) -> None:
        sample = self.buffer.sample_batch(size, 0, **self.how)
        self.buffer.update_priorities(sample.drawn.unique_ids, self.rng.random(size))

    def save(self, path: Path) -> None:
        self.buffer.save_data(path, fsync=False)

    def save_forced(self, path: Path) -> None:
        """So that it survives a power cut; no other library does."""
        self.buffer.save_data(path)

    def load(self, path: Path) -> None:
        self.buffer.load_data(path)


class HpcdiNumpy(Hpcdi):
    """With numpy's inner loops, where compiled ones would be used."""

    name = "hpcdi, no numba"

    def __init__(self, task: Task, prioritized: bool) -> None:
        from hpcdi.replay import tree as priority_tree

        if not prioritized or priority_tree.njit is None:
            raise NotImplementedError("it would be the same")
        with patch.object(priority_tree, "new_tree", priority_tree.PriorityTree):
            super().__init__(task, prioritized)


class HpcdiCompact(Hpcdi):
    """With frames stored once."""

    name = "hpcdi, frames once"
    compact = True

    def __init__(self, task: Task, prioritized: bool) -> None:
        super().__init__(task, prioritized, ("obs", "next_obs"))


class Cpprb(Peer):
    """cpprb's buffers, written in C++."""

    name = "cpprb"

    def __init__(self, task: Task, prioritized: bool) -> None:
        super().__init__(task, prioritized)
        import cpprb

        columns: dict[str, Any] = {
            "obs": {"shape": task.shape, "dtype": task.dtype}, "action": {"dtype": np.int64},
            "reward": {"dtype": np.float32}, "done": {"dtype": bool},
        }  # fmt: skip
        extra: dict[str, Any] = {}
        if self.compact:
            extra = {"next_of": "obs", "stack_compress": "obs"}
        else:
            columns["next_obs"] = columns["obs"]
        if prioritized:
            self.buffer = cpprb.PrioritizedReplayBuffer(
                task.capacity, columns, alpha=ALPHA, **extra
            )
        else:
            self.buffer = cpprb.ReplayBuffer(task.capacity, columns, **extra)

    def push_one(self, rows: Columns, k: int) -> None:
        self.buffer.add(**{name: column[k] for name, column in rows.items()})

    def push_rows(self, rows: Columns) -> None:
        self.buffer.add(**rows)

    def sample(self, size: int) -> Any:
        import torch

        batch = self.buffer.sample(size)
        return {name: torch.from_numpy(column) for name, column in batch.items()}

    def round(self, size: int) -> None:
        import torch

        batch = self.buffer.sample(size, beta=BETA)
        tensors = {name: torch.from_numpy(column) for name, column in batch.items()}
        self.buffer.update_priorities(tensors["indexes"].numpy(), self.rng.random(size))

    def save(self, path: Path) -> None:
        self.buffer.save_transitions(str(path.with_suffix(".npz")))

    def load(self, path: Path) -> None:
        self.buffer.load_transitions(str(path.with_suffix(".npz")))


class CpprbCompact(Cpprb):
    """With stack_compress and next_of; it wants the frames of a stack in the last axis."""

    name = "cpprb, stack_compress"
    compact = True

    def __init__(self, task: Task, prioritized: bool) -> None:
        stack, *frame = task.shape
        super().__init__(dataclasses.replace(task, shape=(*frame, stack)), prioritized)

    def laid_out(self, rows: Columns) -> Columns:
        return {
            name: np.ascontiguousarray(np.moveaxis(column, 1, -1)) if column.ndim > 1 else column
            for name, column in rows.items()
        }


class StableBaselines(Peer):
    """stable-baselines3's uniform buffer; it has no prioritized one."""

    name = "stable-baselines3"

    def __init__(self, task: Task, prioritized: bool) -> None:
        super().__init__(task, prioritized)
        if prioritized:
            raise NotImplementedError("no prioritized buffer")
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        ends = (-np.inf, np.inf) if len(task.shape) == 1 else (0, 255)
        space = Box(*ends, task.shape, task.dtype)

        def make(envs: int) -> Any:
            return ReplayBuffer(task.capacity, space, Discrete(2), n_envs=envs)

        self.buffer, self.single = make(self.rows_at_once), None
        self.make = make

    def push_one(self, rows: Columns, k: int) -> None:
        if self.single is None:
            self.single = self.make(1)
        self.single.add(
            rows["obs"][k], rows["next_obs"][k], rows["action"][k], rows["reward"][k],
            rows["done"][k], [{}],
        )  # fmt: skip

    def push_rows(self, rows: Columns) -> None:
        self.buffer.add(
            rows["obs"], rows["next_obs"], rows["action"], rows["reward"], rows["done"],
            [{}] * len(rows["done"]),
        )  # fmt: skip

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def save(self, path: Path) -> None:
        from stable_baselines3.common.save_util import save_to_pkl

        save_to_pkl(path.with_suffix(".pkl"), self.buffer)

    def load(self, path: Path) -> None:
        from stable_baselines3.common.save_util import load_from_pkl

        load_from_pkl(path.with_suffix(".pkl"))


class Tianshou(Peer):
    """tianshou's buffers, of eight environments."""

    name = "tianshou"
    rows_at_once = 8

    def __init__(self, task: Task, prioritized: bool) -> None:
        super().__init__(task, prioritized)
        from tianshou import data

        extra: dict[str, Any] = {}
        if self.compact:
            extra = {
                "stack_num": task.shape[0],
                "save_only_last_obs": True,
                "ignore_obs_next": True,
            }
        if prioritized:
            self.buffer = data.PrioritizedVectorReplayBuffer(
                task.capacity, 8, alpha=ALPHA, beta=BETA, **extra
            )
        else:
            self.buffer = data.VectorReplayBuffer(task.capacity, 8, **extra)
        self.data, self.one = data, np.zeros(1, np.int64)

    def batch(self, rows: Columns) -> Any:
        return self.data.Batch(
            obs=rows["obs"], obs_next=rows["next_obs"], act=rows["action"], rew=rows["reward"],
            terminated=rows["done"], truncated=np.zeros_like(rows["done"]), done=rows["done"],
            info={},
        )  # fmt: skip

    def push_one(self, rows: Columns, k: int) -> None:
        row = {name: column[k : k + 1] for name, column in rows.items()}
        self.buffer.add(self.batch(row), buffer_ids=self.one)

    def push_rows(self, rows: Columns) -> None:
        self.buffer.add(self.batch(rows))

    def tensors(self, batch: Any) -> Any:
        import torch

        columns = (batch.obs, batch.obs_next, batch.act, batch.rew, batch.terminated)
        return [torch.from_numpy(column) for column in columns]

    def sample(self, size: int) -> Any:
        batch, _ = self.buffer.sample(size)
        return self.tensors(batch)

    def round(self, size: int) -> None:
        batch, indices = self.buffer.sample(size)
        self.tensors(batch)
        self.buffer.update_weight(indices, self.rng.random(size))

    def save(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.buffer.save_hdf5(str(path))

    def load(self, path: Path) -> None:
        type(self.buffer).load_hdf5(str(path))


class TianshouCompact(Tianshou):
    """With save_only_last_obs and stack_num."""

    name = "tianshou, last frame only"
    compact = True


class TorchRL(Peer):
    """torchrl's buffers over a contiguous tensordict in memory."""

    name = "torchrl"

    def __init__(self, task: Task, prioritized: bool) -> None:
        super().__init__(task, prioritized)
        flags = sys.getdlopenflags()
        sys.setdlopenflags(os.RTLD_LAZY)  # its C++ part names symbols that this torch lacks
        import torch
        import torchrl  # noqa: F401
        from tensordict import TensorDict
        from torchrl import data

        sys.setdlopenflags(flags)
        self.torch, self.tensordict = torch, TensorDict
        storage = data.LazyTensorStorage(task.capacity)
        if prioritized:
            self.buffer = data.TensorDictPrioritizedReplayBuffer(
                alpha=ALPHA, beta=BETA, storage=storage, priority_key="td", batch_size=64
            )
        else:
            self.buffer = data.TensorDictReplayBuffer(storage=storage, batch_size=64)

    def dict_of(self, rows: Columns, shape: list[int]) -> Any:
        tensors = {name: self.torch.as_tensor(column) for name, column in rows.items()}
        return self.tensordict(tensors, shape)

    def push_one(self, rows: Columns, k: int) -> None:
        self.buffer.add(self.dict_of({name: column[k] for name, column in rows.items()}, []))

    def push_rows(self, rows: Columns) -> None:
        self.buffer.extend(self.dict_of(rows, [len(rows["done"])]))

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def round(self, size: int) -> None:
        batch = self.buffer.sample(size)
        priority = self.torch.from_numpy(self.rng.random(size, np.float32))
        self.buffer.update_priority(batch["index"], priority)

    def save(self, path: Path) -> None:
        self.buffer.dumps(path.with_suffix(".torchrl"))

    def load(self, path: Path) -> None:
        self.buffer.loads(path.with_suffix(".torchrl"))


PEERS: tuple[type[Peer], ...] = (
    Hpcdi, HpcdiNumpy, Cpprb, StableBaselines, Tianshou, TorchRL,
    HpcdiCompact, CpprbCompact, TianshouCompact,
)  # fmt: skip


def makers(task: Task, prioritized: bool, compact: bool) -> Iterator[functools.partial[Peer]]:
    """What makes each buffer; it fails where a library is missing, or has no such buffer."""
    if compact and len(task.shape) == 1:
        return
    for cls in PEERS:
        if cls.compact == compact:
            yield functools.partial(cls, task, prioritized)
