"""Networks as programs that run without their Python code: `torch.export`, and ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hpcdi.errors import PolicyError
from hpcdi.types import Array

_INPUT = "observation"
_EXAMPLES = 2
"""Observations that an export looks at, where a program is to take any number: 1 would be fixed."""


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        data: its file's bytes.
        signature: name, and dtype and shape in words, of its input and of each output.
    """

    data: bytes
    signature: tuple[tuple[str, str], ...]


class ProgramKind(Protocol):
    """A kind of program."""

    def trace(self, module: nn.Module, obs_shape: Sequence[int], batch: int | None) -> Program:
        """Make a program.

        Args:
            module: see `hpcdi.policy.networks.Greedy`.
            obs_shape: of one observation.
            batch: observations at a time; None: any number.

        Raises:
            PolicyError: the module cannot be turned into one.
        """
        ...

    def load(self, data: bytes) -> Callable[[Array], Array]:
        """The program's actions, as a function of observations float32 [batch, ...]."""
        ...


class TorchProgram:
    """An archive that `torch.export.load` reads."""

    def trace(self, module: nn.Module, obs_shape: Sequence[int], batch: int | None) -> Program:
        """See `ProgramKind.trace`."""
        example, free = _example(obs_shape, batch)
        with _export_of(module):
            exported = torch.export.export(module, (example,), dynamic_shapes=free)
            file = io.BytesIO()
            torch.export.save(exported, file)
        return Program(file.getvalue(), _signature(module, example, batch))

    def load(self, data: bytes) -> Callable[[Array], Array]:
        """See `ProgramKind.load`."""
        module = torch.export.load(io.BytesIO(data)).module()

        def act(observation: Array) -> Array:
            with torch.no_grad():
                actions: Array = _outputs(module(torch.from_numpy(observation)))[0].numpy()
            return actions

        return act


class OnnxProgram:
    """An ONNX model; read back by ONNX's own reference in numpy."""

    def trace(self, module: nn.Module, obs_shape: Sequence[int], batch: int | None) -> Program:
        """See `ProgramKind.trace`."""
        example, free = _example(obs_shape, batch)
        with _export_of(module):
            made = torch.onnx.export(
                module, (example,), dynamo=True, dynamic_shapes=free, verbose=False,
                input_names=[_INPUT], output_names=list(_names(module)),
            )  # fmt: skip
            data: bytes = made.model_proto.SerializeToString()  # type: ignore[union-attr]
        return Program(data, _signature(module, example, batch))

    def load(self, data: bytes) -> Callable[[Array], Array]:
        """See `ProgramKind.load`."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        model = onnx.load_model_from_string(data)
        onnx.checker.check_model(model)
        evaluator = ReferenceEvaluator(model)

        def act(observation: Array) -> Array:
            return np.asarray(evaluator.run(None, {_INPUT: observation})[0])

        return act


PROGRAMS: dict[str, ProgramKind] = {"torch": TorchProgram(), "onnx": OnnxProgram()}


def _example(obs_shape: Sequence[int], batch: int | None) -> tuple[Tensor, Any]:
    """An input, and which of its axes are free."""
    example = torch.zeros(batch or _EXAMPLES, *obs_shape)
    return example, None if batch else ({0: torch.export.Dim("batch", min=1)},)


def _names(module: nn.Module) -> tuple[str, ...]:
    return getattr(module, "output_names", ("action",))


def _outputs(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _signature(
    module: nn.Module, example: Tensor, batch: int | None
) -> tuple[tuple[str, str], ...]:
    with torch.no_grad():
        outputs = _outputs(module(example))
    first = "batch" if batch is None else str(batch)
    return tuple(
        (
            name,
            f"{str(t.dtype).removeprefix('torch.')} [{', '.join([first, *map(str, t.shape[1:])])}]",
        )
        for name, t in zip((_INPUT, *_names(module)), (example, *outputs), strict=True)
    )


@contextlib.contextmanager
def _export_of(module: nn.Module) -> Iterator[None]:
    """Keep torch's exporters from speaking of themselves; what goes wrong in them is one error."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(), torch.no_grad(),
            contextlib.redirect_stderr(io.StringIO()),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # they raise almost any of them
        first, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise PolicyError(f"{type(module).__name__} cannot be exported: {first}") from error
    finally:
        log.setLevel(level)
