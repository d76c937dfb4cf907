"""Batches on their way to the device, ahead of time.

Who gathers a batch (the communication thread) also starts its way to a GPU: into page-locked
memory, and from there by a stream of its own, beside whatever is computed meanwhile. Who computes
makes its stream wait for the copy, not itself. Without a GPU nothing is done, and nothing costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcdi.types import Array, Columns
from hpcdi.utils.nested import share_tensors, split_columns


class HostStage:
    """Batches stay where they are.

    Attributes:
        as_columns: return tensors; else a list of dicts.
    """

    def __init__(self, *, as_columns: bool = True) -> None:
        self.as_columns = as_columns

    def split(self, columns: Columns, weights: Array) -> Iterator[Any]:
        """Batches that stand one after the other, each on its way; what `take` takes.

        Args:
            columns: name -> [batches x batch, ...]; not written to any more.
            weights: importance weights, float32 [batches, batch].
        """
        size = weights.shape[1]
        for k in range(len(weights)):
            yield {name: column[k * size : (k + 1) * size] for name, column in columns.items()}

    def take(self, staged: Any, weights: Array) -> Any:
        """A batch as a policy takes it, see `for_policy` (on the thread that computes)."""
        return for_policy(staged, weights, as_columns=self.as_columns)


@dataclass(frozen=True)
class _Staged:
    """A batch that is being copied.

    Attributes:
        tensors: name -> [batch, ...] on the GPU, ``weight`` among them.
        copied: CUDA event: they are there.
    """

    tensors: dict[str, Any]
    copied: Any


class CudaStage(HostStage):
    """Batches go to a GPU by page-locked memory and a stream of their own.

    Args:
        device: CUDA device with its number.
    """

    def __init__(self, device: Any) -> None:
        import torch

        super().__init__()
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def split(self, columns: Columns, weights: Array) -> Iterator[Any]:
        """See `HostStage.split`; all batches are copied together, a column at a time."""
        if not self.as_columns:
            yield from super().split(columns, weights)
            return
        import torch

        # a thread's present device is its own: this one may never have chosen
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            weighed = {**columns, "weight": weights.reshape(-1)}
            pinned = share_tensors(weighed, pin_memory=True)  # torch keeps it until it is copied
            there = {n: t.to(self._device, non_blocking=True) for n, t in pinned.items()}
            copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        for part in super().split(there, weights):
            yield _Staged(part, copied)

    def take(self, staged: Any, weights: Array) -> Any:
        """See `HostStage.take`; what is computed next waits for the copy, this thread does not."""
        if not isinstance(staged, _Staged):
            return super().take(staged, weights)
        import torch

        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(staged.copied)
        for tensor in staged.tensors.values():
            tensor.record_stream(stream)  # else their memory is used again when this thread lets go
        return staged.tensors


def stage_for(policy: Any, *, pin_memory: bool) -> HostStage:
    """Where a policy's batches are to go (asked on the thread that computes).

    Args:
        policy: a learn mode; its attribute ``device`` is "cpu", "cuda" or "cuda:<number>".
        pin_memory: copy to a GPU ahead of time.
    """
    try:
        name = str(policy.get_attribute("device"))
    except (AttributeError, NotImplementedError):
        return HostStage()
    if not pin_memory or not name.startswith("cuda"):
        return HostStage()
    import torch

    if name == "cuda":
        name = f"cuda:{torch.cuda.current_device()}"
    return CudaStage(torch.device(name))


def for_policy(columns: Columns, weights: Array, *, as_columns: bool) -> Any:
    """A batch as a policy takes it.

    Args:
        columns: name -> [batch, ...].
        weights: importance weights, float32 [batch].
        as_columns: name -> tensor [batch, ...], ``weight`` among them; else a list of dicts of
            tensors, one a sample, ``IS`` among them.
    """
    import torch

    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    if not as_columns:
        return split_columns({**tensors, "IS": weights.tolist()})
    return {**tensors, "weight": torch.from_numpy(weights)}


def takes_columns(policy: Any) -> bool:
    """True for a learn mode that takes tensors by column."""
    try:
        return bool(policy.get_attribute("columnar"))
    except (NotImplementedError, AttributeError):
        return False
