"""Networks as programs that run without their Python code: `torch.export`, and ONNX."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from hpcdi.dataclass import dataclass
from hpcdi.errors import PolicyError
from hpcdi.policy.networks import Greedy
from hpcdi.types import ACTION_MASK, Array

Act: TypeAlias = Callable[[Mapping[str, Array]], dict[str, Array]]
_INPUT = "observation"
_NAMES = "names.json"
_EXAMPLES = 2
"""Batch that is traced where a program takes any number of observations; 1 would become fixed."""


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        data: its file's bytes.
        signature: name, and dtype and shape in words, of its input and of each output.
    """

    data: bytes
    signature: tuple[tuple[str, str], ...]


class TorchProgram:
    """An archive that `torch.export.load` reads."""

    def trace(self, module: nn.Module, obs_shape: Sequence[int], batch: int | None) -> Program:
        """Make a program.

        Args:
            module: see `hpcdi.policy.networks.Greedy`, which says what it takes and returns.
            obs_shape: of one observation, where the module is another and does not say.
            batch: observations at a time; None: any number.

        Raises:
            PolicyError: the module cannot be turned into one.
        """
        example, free = _example(module, obs_shape, batch)
        with exporting(module):
            exported = torch.export.export(module, tuple(example.values()), dynamic_shapes=free)
            file = io.BytesIO()
            names = json.dumps({"inputs": list(example), "outputs": output_names(module)})
            torch.export.save(exported, file, extra_files={_NAMES: names})
        return Program(file.getvalue(), _signature(module, example, batch))

    def load(self, data: bytes) -> Act:
        """The program as a function: name -> float32 [batch, ...] to name -> [batch, ...]."""
        extra = {_NAMES: ""}
        module = torch.export.load(io.BytesIO(data), extra_files=extra).module()
        names = json.loads(extra[_NAMES])

        def act(inputs: Mapping[str, Array]) -> dict[str, Array]:
            with torch.no_grad():
                tensors = [torch.from_numpy(inputs[name]) for name in names["inputs"]]
                outputs = _outputs(module(*tensors))
            return dict(zip(names["outputs"], [part.numpy() for part in outputs], strict=True))

        return act


class OnnxProgram:
    """An ONNX model; read back by onnxruntime, or else by ONNX's own reference in numpy."""

    def trace(self, module: nn.Module, obs_shape: Sequence[int], batch: int | None) -> Program:
        """See `TorchProgram.trace`."""
        example, free = _example(module, obs_shape, batch)
        with exporting(module):
            program = torch.onnx.export(
                module,
                tuple(example.values()),
                dynamo=True,
                dynamic_shapes=free,
                verbose=False,
                input_names=list(example),
                output_names=list(output_names(module)),
            )
            data: bytes = program.model_proto.SerializeToString()  # type: ignore[union-attr]
        return Program(data, _signature(module, example, batch))

    def load(self, data: bytes) -> Act:
        """See `TorchProgram.load`."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        model = onnx.load_model_from_string(data)
        onnx.checker.check_model(model)
        if importlib.util.find_spec("onnxruntime") is not None:
            return _by_onnxruntime(data)
        evaluator = ReferenceEvaluator(model)

        def act(inputs: Mapping[str, Array]) -> dict[str, Array]:
            outputs = map(np.asarray, evaluator.run(None, dict(inputs)))
            return dict(zip(evaluator.output_names, outputs, strict=True))

        return act


def _by_onnxruntime(data: bytes) -> Act:
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, dict(inputs)), strict=True))


PROGRAMS: dict[str, TorchProgram | OnnxProgram] = {"torch": TorchProgram(), "onnx": OnnxProgram()}


def _example(
    module: nn.Module, obs_shape: Sequence[int], batch: int | None
) -> tuple[dict[str, Tensor], Any]:
    """Inputs by name, and which of their axes are free."""
    inputs = getattr(module, "inputs", {}) or {_INPUT: tuple(obs_shape)}
    far = getattr(module, "far", {})
    example = {
        name: torch.zeros(
            batch or _EXAMPLES, *shape, dtype=torch.float64 if name in far else torch.float32
        )
        for name, shape in inputs.items()
    }
    if isinstance(module, Greedy):
        for name in module.inputs:
            example[name] += module.first(name)
        if module.logits:
            example[ACTION_MASK] = torch.ones_like(example[ACTION_MASK], dtype=torch.bool)
    if batch:
        return example, None
    free = tuple({0: torch.export.Dim("batch", min=1)} for _ in example)
    return example, (free,) if isinstance(module, Greedy) else free


def output_names(module: nn.Module) -> tuple[str, ...]:
    """Names of what a module returns, see `hpcdi.policy.networks.Greedy`; by default an action."""
    return getattr(module, "output_names", ("action",))


def _outputs(outputs: object) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _signature(
    module: nn.Module, example: Mapping[str, Tensor], batch: int | None
) -> tuple[tuple[str, str], ...]:
    with torch.no_grad():
        outputs = _outputs(module(*example.values()))
    first = "batch" if batch is None else str(batch)
    return tuple(
        (
            name,
            f"{str(t.dtype).removeprefix('torch.')} [{', '.join([first, *map(str, t.shape[1:])])}]",
        )
        for name, t in zip(
            (*example, *output_names(module)), (*example.values(), *outputs), strict=True
        )
    )


@contextlib.contextmanager
def exporting(module: nn.Module) -> Iterator[None]:
    """Silence torch's exporters, and turn all their errors into one."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        stderr = contextlib.redirect_stderr(io.StringIO())
        with warnings.catch_warnings(), torch.no_grad(), stderr:
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # they raise almost any of them
        cause: BaseException = error
        while cause.__cause__ is not None:  # torch.onnx's own first line says nothing
            cause = cause.__cause__
        first, *_ = str(cause).strip().splitlines() or [type(cause).__name__]
        network = type(getattr(module, "network", module)).__name__
        raise PolicyError(
            f"{network} cannot be exported: torch.export cannot trace it ({first.strip()}); write "
            "its forward by torch's operations alone, without if and loops that depend on values"
        ) from error
    finally:
        log.setLevel(level)
