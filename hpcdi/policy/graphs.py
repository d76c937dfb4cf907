"""Updates on a GPU as CUDA graphs.

A small network's update is a hundred kernels, and launching them one by one takes longer than
computing them. Recorded once and replayed as a graph, they take one launch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from hpcdi.comm.group import get_world_size
from hpcdi.policy.gradient_step import GradientStep
from hpcdi.utils.log import LOGGER

Compute: TypeAlias = Callable[..., tuple[Tensor, ...]]
"""Columns, numbers -> tensors: gradient steps, and what is told of them."""
_Signature: TypeAlias = tuple[tuple[str, torch.Size, torch.dtype] | float, ...]

_FIRST_CALLS = 3
"""Calls that are launched one by one: libraries set themselves up, optimizers make their states."""
_MOST_GRAPHS = 4
"""Each keeps its memory: batches of further sizes are launched one by one."""


class Replayed:
    """A function of columns that is recorded at its fourth call, and replayed from then on.

    There is a recording for each set of shapes and dtypes, and of numbers. It says only what
    kernels do, and to which memory, so the function

    - reads and writes the columns and what stays where it is: parameters, optimizers' states,
    - has all random numbers among its columns,
    - neither waits for the GPU nor does anything in Python that would have to be done again.

    A function that cannot be recorded is launched one by one, with one warning; so is one that is
    given up; and so are all while there are several learners, who wait for each other within it.

    Args:
        compute: the function.
        steps: that it makes.
        device: a GPU.
    """

    def __init__(
        self, compute: Compute, steps: Sequence[GradientStep], device: torch.device
    ) -> None:
        self.graphs: dict[_Signature, _Graph] = {}
        self._compute = compute
        self._steps = steps
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._calls: dict[_Signature, int] = {}
        self._is_recordable = True

    def __call__(self, columns: Mapping[str, Tensor], *numbers: float) -> tuple[Tensor, ...]:
        """Compute. What is returned is overwritten by the next call."""
        shapes = ((name, tensor.shape, tensor.dtype) for name, tensor in columns.items())
        signature: _Signature = (*shapes, *numbers)
        graph = self.graphs.get(signature)
        if graph is not None and get_world_size() == 1:
            return graph.replay(columns)
        if not self._is_recordable or get_world_size() > 1 or len(self.graphs) == _MOST_GRAPHS:
            return self._compute(columns, *numbers)
        calls = self._calls[signature] = self._calls.get(signature, 0) + 1
        if calls <= _FIRST_CALLS:
            return self._launched(columns, *numbers)
        try:
            graph = _Graph(self._compute, self._steps, columns, numbers, self._stream)
        except RuntimeError as error:
            LOGGER.warning(
                "an update cannot be recorded as a CUDA graph, and its kernels are launched one by "
                "one; policy.learn.cuda_graphs=false says so from the start: %s",
                str(error).strip().splitlines()[0],
            )
            self._is_recordable = False
            return self._compute(columns, *numbers)
        self.graphs[signature] = graph
        return graph.replay(columns)

    def forget(self) -> None:
        """Drop the recordings: optimizers have been given other states."""
        self.graphs.clear()
        self._calls.clear()

    def give_up(self) -> None:
        """Record nothing more: what the function does in Python is no longer the same each time."""
        self._is_recordable = False
        self.forget()

    def _launched(self, columns: Mapping[str, Tensor], *numbers: float) -> tuple[Tensor, ...]:
        """Compute as usual, on the stream that will be recorded."""
        present = torch.cuda.current_stream()
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            found = self._compute(columns, *numbers)
        present.wait_stream(self._stream)
        return found


class _Graph:
    """One recording.

    Args:
        compute: what is recorded; it is not computed yet.
        steps: that it makes.
        columns: as those that it will be replayed with.
        numbers: those that it will be replayed with.
        stream: where it is recorded.
    """

    def __init__(
        self,
        compute: Compute,
        steps: Sequence[GradientStep],
        columns: Mapping[str, Tensor],
        numbers: Sequence[float],
        stream: torch.cuda.Stream,
    ) -> None:
        self._columns = {name: tensor.clone() for name, tensor in columns.items()}
        self._graph = torch.cuda.CUDAGraph()
        with contextlib.ExitStack() as recording:
            for step in steps:
                recording.enter_context(step.recording())
            # other threads, which stage batches meanwhile, are no part of it
            graph = torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local")
            recording.enter_context(graph)
            self._found = compute(self._columns, *numbers)

    def replay(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Compute with these columns."""
        torch._foreach_copy_(list(self._columns.values()), list(columns.values()))
        self._graph.replay()
        return self._found
