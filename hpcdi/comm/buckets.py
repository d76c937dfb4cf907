"""Many tensors as few flat ones, so that one message carries what many would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

ALIGNMENT_BYTES = 64  # of each tensor within a bucket, as the vector instructions like it


@dataclass(frozen=True)
class Flat:
    """One bucket.

    Attributes:
        memory: one dimension; holds the views, gaps of zeros between them, and at the end one spare
            element.
        tensors: whose sizes, strides and dtype the views have.
        views: parts of `memory`, one for each tensor.
    """

    memory: torch.Tensor
    tensors: tuple[torch.Tensor, ...]
    views: tuple[torch.Tensor, ...]


def pack(tensors: Sequence[torch.Tensor], bucket_bytes: int) -> list[Flat]:
    """Buckets of at most `bucket_bytes` for tensors of one dtype and device each, in order.

    A tensor that is larger has a bucket of its own. A bucket comes where its last tensor comes in
    `tensors`: if tensors are made one after the other, buckets are full one after the other. All
    values are zero.
    """
    filling: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    filled_bytes: dict[tuple[torch.dtype, torch.device], int] = {}
    full: list[list[int]] = []
    for position, tensor in enumerate(tensors):
        key = (tensor.dtype, tensor.device)
        size = _aligned(tensor) * tensor.element_size()
        if key in filling and filled_bytes[key] + size > bucket_bytes:
            full.append(filling.pop(key))
        filling.setdefault(key, []).append(position)
        filled_bytes[key] = size + (filled_bytes[key] if len(filling[key]) > 1 else 0)
    chosen = sorted([*full, *filling.values()], key=lambda positions: positions[-1])
    return [_flat([tensors[position] for position in positions]) for positions in chosen]


def layout(tensors: Iterable[torch.Tensor]) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of each tensor: what members of a group must agree in."""
    return [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]


def _aligned(tensor: torch.Tensor) -> int:
    """Elements that a tensor takes up in a bucket."""
    step = max(ALIGNMENT_BYTES // tensor.element_size(), 1)
    return -(-tensor.numel() // step) * step


def _flat(tensors: list[torch.Tensor]) -> Flat:
    first = tensors[0]
    length = sum(map(_aligned, tensors)) + 1
    memory = torch.zeros(length, dtype=first.dtype, device=first.device)
    views, offset = [], 0
    for tensor in tensors:
        strides = torch.empty_like(tensor, device="meta").stride()  # those of its gradients
        views.append(memory.as_strided(tensor.shape, strides, offset))
        offset += _aligned(tensor)
    return Flat(memory, tuple(tensors), tuple(views))
