"""A policy as source code in C or Fortran that needs no library: for programs in production.

What a policy computes from an observation to its greedy action is traced (`torch.export`), computed
beforehand where it hangs on weights alone, and written out, in double precision. That is so for
layers of numbers, with all that is around them: normalisation, activations, squashing, the best of
discrete actions. Convolutions and memories have no such form.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcdi.dataclass import dataclass
from hpcdi.errors import PolicyError
from hpcdi.policy.programs import exporting, output_names
from hpcdi.types import Array

_ROOM = 1 << 32
"""A number is buffer * _ROOM + place, so that torch itself can move numbers around."""
_PER_LINE = 4
_PER_STATEMENT = 1000  # numbers: a statement of Fortran has at most 255 lines that continue it
_NAME = r"[A-Za-z]\w*"
_NO_FORM = "has no form in C or Fortran: export it to torch or ONNX"

_MOVES = (
    *("view", "_unsafe_view", "reshape", "permute", "squeeze", "unsqueeze", "expand", "clone"),
    *("alias", "detach", "slice", "select", "split_with_sizes", "cat", "_to_copy", "getitem"),
    "index",
)
_FIGURES = ("sum", "amax", "argmax")
_EACH: dict[str, tuple[str, str]] = {
    "add": ("{0} + {1}", "{0} + {1}"),
    "sub": ("{0} - {1}", "{0} - {1}"),
    "mul": ("{0} * {1}", "{0} * {1}"),
    "div": ("{0} / {1}", "{0} / {1}"),
    "minimum": (
        "isnan({0}) || {0} < {1} ? {0} : {1}",
        "merge({0}, {1}, &\n            {0} /= {0} .or. {0} < {1})",
    ),
    "maximum": (
        "isnan({0}) || {0} > {1} ? {0} : {1}",
        "merge({0}, {1}, &\n            {0} /= {0} .or. {0} > {1})",
    ),
    "neg": ("-{0}", "-{0}"),
    "abs": ("fabs({0})", "abs({0})"),
    "exp": ("exp({0})", "exp({0})"),
    "log": ("log({0})", "log({0})"),
    "sqrt": ("sqrt({0})", "sqrt({0})"),
    "tanh": ("tanh({0})", "tanh({0})"),
    "round": (  # halves to the even number
        "rint({0})",
        "merge(2 * anint({0} / 2), anint({0}), &\n            abs({0} - aint({0})) == 0.5_dp)",
    ),
    "relu": ("{0} < 0.0 ? 0.0 : {0}", "merge(0.0_dp, {0}, {0} < 0)"),
    "sigmoid": ("1.0 / (1.0 + exp(-{0}))", "1.0_dp / (1.0_dp + exp(-{0}))"),
    "elu": (
        "{0} > 0.0 ? {0} : expm1({0})",
        "merge({0}, exp(merge(0.0_dp, {0}, {0} > 0)) - 1.0_dp, {0} > 0)",
    ),
    "gelu": (
        "0.5 * {0} * (1.0 + erf({0} * 0.7071067811865476))",
        "0.5_dp * {0} * (1.0_dp + erf({0} * 0.7071067811865476_dp))",
    ),
}
"""Of numbers one by one: name -> in C, in Fortran; of NaN, which `fmin` and `min` drop, NaN."""
_C_NUMBERS = ("", "INFINITY", "-INFINITY", "NAN")
_FORTRAN_NUMBERS = ("_dp", "infinity", "minus_infinity", "nan")
"""End of a number; names of the infinite ones, and of none."""
_FORTRAN_BITS = {
    "infinity": "7FF0000000000000",
    "minus_infinity": "FFF0000000000000",
    "nan": "7FF8000000000000",
}
_FORTRAN_WORDS = (
    *("dp", "observation", "action", "kind", "int", "transfer", "selected_int_kind"),
    *("matmul", "reshape", "sum", "maxval", "maxloc", "any", "real", *_FORTRAN_BITS),
    *{word for _, text in _EACH.values() for word in re.findall(r"[a-z]\w+", text)},
)


@dataclass(frozen=True)
class _Computed:
    """A value that hangs on the observation: where each of its numbers lies, int64 [...]."""

    codes: Tensor


@dataclass(frozen=True)
class Operand:
    """What a statement reads: a buffer or an array of constants, by its name; or one constant."""

    name: str = ""
    number: float = 0.0


def as_source(
    module: nn.Module, language: str, name: str = "policy", title: str = ""
) -> dict[str, str]:
    """Returns a policy's greedy actions as source files: file name -> text.

    Args:
        module: float32 [1, ...], one or more -> the action, or several parts of one, first; see
            `hpcdi.policy.networks.Greedy`.
        language: "c" or "fortran".
        name: of files and functions.
        title: what it is, for a comment.

    Raises:
        PolicyError: it computes something that has no such form; or the name is none.
    """
    if language not in LANGUAGES:
        raise PolicyError(f"there is no language {language!r}; there are {', '.join(LANGUAGES)}")
    if refusal := why_no_name(name, language):
        raise PolicyError(refusal)
    return _Translation(module, LANGUAGES[language]()).files(name, title or name)


def why_no_name(name: str, language: str) -> str:
    """Returns why a policy's functions cannot have a name; empty: they can."""
    kind = LANGUAGES[language]
    what = f"{name!r} names {language.capitalize()} functions"
    if not re.fullmatch(_NAME, name, re.ASCII):
        return f"{what}: a letter from a to z, then letters, digits and _"
    if len(name) > kind.longest:
        return f"{what}: {kind.longest} letters at most"
    if re.fullmatch(kind.own, name, re.IGNORECASE):
        return f"{what}, and the file has that name already: choose another one"
    return ""


def name_from(title: str, language: str) -> str:
    """Returns a name for a policy's functions that is like a title."""
    kind = LANGUAGES[language]
    name = re.sub(r"\W", "_", title, flags=re.ASCII)[: kind.longest]
    return f"policy_{name}"[: kind.longest] if why_no_name(name, language) else name


class _Translation:
    """One module in one language."""

    def __init__(self, module: nn.Module, language: C | Fortran) -> None:
        self._language, self._count = language, 0
        inputs = getattr(module, "inputs", None) or {}
        if others := [name for name in inputs if name.startswith("state/")]:
            raise PolicyError(f"a policy with a memory ({others[0]}) {_NO_FORM}")
        shapes = [tuple(shape) for shape in inputs.values()]
        if not shapes:
            raise PolicyError(f"a module that does not say its inputs {_NO_FORM}")
        example = tuple(torch.zeros(1, *shape) for shape in shapes)
        training = module.training
        with exporting(module):
            self._program = torch.export.export(module.eval(), example).run_decompositions()
        module.train(training)
        self._sizes = [int(np.prod(shape)) for shape in shapes]
        self._names = ["observation"]
        self._values: dict[Any, Any] = self._constants()
        start = 0
        for given, shape, size in zip(
            self._program.graph_signature.user_inputs, shapes, self._sizes, strict=True
        ):
            self._values[given] = _Computed(torch.arange(start, start + size).reshape(1, *shape))
            start += size
        names = output_names(module)
        self._actions = sum(each == "action" or each.startswith("action/") for each in names)

    def _constants(self) -> dict[str, Any]:
        """Parameters and buffers, by the names of their placeholders."""
        signature, program = self._program.graph_signature, self._program
        tensors = {**program.state_dict, **program.constants}
        targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        targets |= signature.inputs_to_lifted_tensor_constants
        return {name: tensors[target].detach() for name, target in targets.items()}

    def files(self, name: str, title: str) -> dict[str, str]:
        """Returns the files."""
        graph = self._program.graph
        output = next(node for node in graph.nodes if node.op == "output")
        parts = [self._value(node) for node in output.args[0][: self._actions]]
        if fixed := [part for part in parts if isinstance(part, Tensor)]:
            raise PolicyError(
                f"an action hangs on no observation: it is always {fixed[0].tolist()}"
            )
        action = torch.cat([part.codes.reshape(-1) for part in parts])
        result = self._whole(action)
        return self._language.text(title, name, (sum(self._sizes), len(action)), result)

    # ---- values

    def _value(self, node: object) -> Any:
        """Returns a node's value: a tensor, a number, or `_Computed`."""
        if isinstance(node, list | tuple):
            return type(node)(map(self._value, node))
        if not isinstance(node, torch.fx.Node):
            return node
        if node.name not in self._values:
            self._values[node.name] = self._called(node)
        return self._values[node.name]

    def _called(self, node: Any) -> Any:
        args = [self._value(arg) for arg in node.args]
        flat = [one for arg in args for one in (arg if isinstance(arg, list | tuple) else [arg])]
        if not any(isinstance(one, _Computed) for one in flat):
            return node.target(*args, **node.kwargs)
        name = "getitem" if node.target is operator.getitem else node.target.overloadpacket.__name__
        if name in _MOVES:
            return self._moved(name, node, args)
        rule: Callable[..., Any] | None
        if name in _FIGURES:
            rule = functools.partial(self._reduced, name)
        else:
            rule = getattr(self, f"_{name.lstrip('_')}", None)
        if rule is not None:
            try:
                inspect.signature(rule).bind(*args, **node.kwargs)
            except TypeError:
                how = [*args[1:], *(f"{key}={value}" for key, value in node.kwargs.items())]
                raise PolicyError(
                    f"a policy that computes {name!r} with {how} {_NO_FORM}"
                ) from None
            return rule(*args, **node.kwargs)
        if name in _EACH:
            return self._each(name, args, node.kwargs)
        raise PolicyError(f"a policy that computes {name!r} {_NO_FORM}")

    def _moved(self, name: str, node: Any, args: list[Any]) -> Any:
        """Have torch move the numbers' places as it moves numbers."""
        if name in ("clone", "alias", "detach"):
            return args[0]
        if name == "_to_copy":
            wanted = node.kwargs.get("dtype")
            if wanted is not None and not wanted.is_floating_point:
                raise PolicyError(f"a policy that sees discrete numbers {_NO_FORM}")
            return args[0]
        if name == "getitem":
            return args[0][args[1]]
        if name == "index" and any(isinstance(one, _Computed) for one in args[1]):
            raise PolicyError(f"a policy that looks numbers up by computed ones {_NO_FORM}")
        if name == "cat":
            args[0] = [self._codes(one) for one in args[0]]
        else:
            args[0] = args[0].codes
        moved = node.target(*args, **node.kwargs)
        return [*map(_Computed, moved)] if isinstance(moved, list | tuple) else _Computed(moved)

    def _codes(self, value: Any) -> Tensor:
        """Places of numbers, which constants get here."""
        if isinstance(value, _Computed):
            return value.codes
        name, size = self._new("c"), value.numel()
        self._language.constant(name, value.double().numpy().ravel())
        return self._placed(name, size).reshape(value.shape)

    def _new(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _placed(self, name: str, size: int) -> Tensor:
        self._names.append(name)
        return torch.arange(size) + _ROOM * (len(self._names) - 1)

    def _made(self, name: str, shape: Sequence[int]) -> _Computed:
        """A new buffer's numbers."""
        size = int(np.prod(shape))
        self._language.buffer(name, size)
        return _Computed(self._placed(name, size).reshape(tuple(shape)))

    def _whole(self, codes: Tensor) -> str:
        """Returns the name of a buffer with just these numbers, in order; copies where need be."""
        flat = codes.reshape(-1).numpy()
        if not len(flat):
            raise PolicyError(
                "an array without numbers has no form in C or Fortran: have no such part in a space"
            )
        owner, first = divmod(int(flat[0]), _ROOM)
        if first == 0 and np.array_equal(flat, np.arange(len(flat)) + flat[0]):
            return self._names[owner]
        name = self._new("h")
        self._language.buffer(name, len(flat))
        at = 0
        while at < len(flat):  # runs of equal steps
            stride = int(flat[at + 1] - flat[at]) if at + 1 < len(flat) else 1
            end = at + 1
            while end < len(flat) and flat[end] - flat[end - 1] == stride:
                end += 1
            owner, first = divmod(int(flat[at]), _ROOM)
            if abs(stride) >= _ROOM // 2:  # the next one lies in another buffer
                stride, end = 1, at + 1
            self._language.gather(name, at, self._names[owner], first, stride, end - at)
            at = end
        return name

    # ---- what is computed

    def _each(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})
    ) -> _Computed:
        count = 2 if "{1}" in _EACH[name][0] else 1
        operands, factors = args[:count], [*args[count:], kwargs.get("alpha", 1)]
        if set(kwargs) - {"alpha"} or any(factor != 1 for factor in factors):
            said = dict(kwargs) or factors[:-1]
            raise PolicyError(f"a policy that computes {name!r} with {said} {_NO_FORM}")
        shape = np.broadcast_shapes(*map(_shape_of, operands))
        given = [self._operand(operand, shape) for operand in operands]
        out = self._new("h")
        made = self._made(out, shape)
        self._language.each(out, int(np.prod(shape)), name, given)
        return made

    def _operand(self, value: object, shape: Sequence[int]) -> Operand:
        if isinstance(value, _Computed):
            return Operand(self._whole(value.codes.expand(tuple(shape))))
        tensor = torch.as_tensor(value).double()
        if tensor.numel() == 1:
            return Operand(number=float(tensor))
        name = self._new("c")
        self._language.constant(name, tensor.expand(tuple(shape)).numpy().ravel())
        return Operand(name)

    def _addmm(self, bias: Any, given: Any, weight: Any) -> _Computed:
        is_linear = isinstance(weight, Tensor) and isinstance(bias, Tensor)
        if not is_linear or bias.numel() not in (1, weight.shape[1]):
            raise PolicyError(f"a policy that multiplies computed matrices {_NO_FORM}")
        size = (weight.shape[1], weight.shape[0])
        names = self._new("w"), self._new("b")
        self._language.constant(names[0], weight.t().double().numpy())
        self._language.constant(names[1], bias.double().flatten().expand(size[0]).numpy())
        rows = []
        for row in given.codes:
            source, out = self._whole(row), self._new("h")
            rows.append(self._made(out, size[:1]).codes)
            self._language.linear(out, source, *names, size)
        return _Computed(torch.stack(rows))

    def _mm(self, given: Any, weight: Any) -> _Computed:
        return self._addmm(torch.zeros(1), given, weight)

    def _clamp(self, value: Any, low: Any = None, high: Any = None) -> _Computed:
        if low is not None:
            value = self._each("maximum", [value, low])
        return value if high is None else self._each("minimum", [value, high])

    def _where(self, condition: Any, value: Any, other: Any) -> _Computed:
        if isinstance(condition, _Computed):
            raise PolicyError(f"a policy that chooses by computed numbers {_NO_FORM}")
        return _Computed(torch.where(condition, self._codes(value), self._codes(other)))

    def _reduced(self, how: str, value: Any, dims: Any = None, keepdim: bool = False) -> _Computed:
        codes = value.codes
        dims = range(codes.ndim) if dims is None or dims == [] else dims  # of all numbers
        dims = sorted(dim % codes.ndim for dim in ([dims] if isinstance(dims, int) else dims))
        kept = [dim for dim in range(codes.ndim) if dim not in dims]
        rows = int(np.prod([codes.shape[dim] for dim in kept]))
        source = self._whole(codes.permute(*kept, *dims))
        shape = [1 if d in dims else n for d, n in enumerate(codes.shape) if keepdim or d in kept]
        out = self._new("h")
        made = self._made(out, shape)
        self._language.reduce(out, source, how, (rows, codes.numel() // rows))
        return made

    def _mean(self, value: Any, dims: Any = None, keepdim: bool = False) -> _Computed:
        total = self._reduced("sum", value, dims, keepdim)
        return self._each("div", [total, value.codes.numel() // total.codes.numel()])

    def _constant_pad_nd(self, given: Any, pad: Sequence[int], value: float = 0.0) -> _Computed:
        number = int(self._codes(torch.tensor([value])))
        places = torch.ones_like(given.codes, dtype=torch.bool)
        is_given = torch.nn.functional.pad(places, list(pad), value=False)
        codes = torch.full(is_given.shape, number)
        codes[is_given] = given.codes.reshape(-1)
        return _Computed(codes)

    def _log_softmax(self, value: object, dim: int, _is_half: bool) -> _Computed:
        above = self._each("sub", [value, self._reduced("amax", value, dim, True)])
        total = self._reduced("sum", self._each("exp", [above]), dim, True)
        return self._each("sub", [above, self._each("log", [total])])

    def _softmax(self, value: object, dim: int, _is_half: bool) -> _Computed:
        above = self._each("sub", [value, self._reduced("amax", value, dim, True)])
        powers = self._each("exp", [above])
        return self._each("div", [powers, self._reduced("sum", powers, dim, True)])

    def _native_layer_norm(
        self, value: Any, shape: Sequence[int], weight: Any, bias: Any, epsilon: float
    ) -> list[Any]:
        dims = list(range(value.codes.ndim - len(shape), value.codes.ndim))
        apart = self._each("sub", [value, self._mean(value, dims, True)])
        squares = self._each("mul", [apart, apart])
        variance = self._mean(squares, dims, True)
        deviation = self._each("sqrt", [self._each("add", [variance, epsilon])])
        scaled = self._each("div", [apart, deviation])
        if weight is not None:
            scaled = self._each("mul", [scaled, weight])
        return [scaled if bias is None else self._each("add", [scaled, bias])]


def _shape_of(value: object) -> tuple[int, ...]:
    if isinstance(value, _Computed):
        return tuple(value.codes.shape)
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _lines(numbers: Sequence[str], indent: str, end: str = "") -> str:
    """Numbers in lines, with commas between."""
    parts = [", ".join(numbers[at : at + _PER_LINE]) for at in range(0, len(numbers), _PER_LINE)]
    return f",{end}\n".join(indent + part for part in parts)


def _number(number: float, end: str, infinity: str, minus_infinity: str, none: str) -> str:
    """Returns a constant as a language writes it."""
    if math.isfinite(number):
        return f"{float(number)!r}{end}"
    return none if math.isnan(number) else infinity if number > 0 else minus_infinity


class C:
    """Writes statements in C99.

    Attributes:
        own: names that its files have already, as a pattern.
        longest: name of a policy.
    """

    own, longest = "(?!)", 200

    def __init__(self) -> None:
        self._constants: list[str] = []
        self._buffers: list[str] = []
        self._body: list[str] = []

    def constant(self, name: str, numbers: Array) -> None:
        """Write an array of constants [n], or a matrix [rows, columns]."""
        text = _lines([_number(number, *_C_NUMBERS) for number in numbers.ravel()], "    ")
        self._constants.append(f"static const double {name}[{numbers.size}] = {{\n{text}}};\n")

    def buffer(self, name: str, size: int) -> None:
        """Write an array of numbers."""
        self._buffers.append(f"{name}[{size}]")

    def linear(self, out: str, given: str, weight: str, bias: str, size: tuple[int, int]) -> None:
        """Write ``out = weight @ given + bias``; size: of the weight."""
        self._body.append(f"    linear({weight}, {bias}, {given}, {out}, {size[0]}, {size[1]});")

    def gather(self, out: str, at: int, given: str, start: int, stride: int, size: int) -> None:
        """Copy numbers of a buffer, in equal steps, to another one from `at` on."""
        self._each_of(size, f"{out}[{at} + i] = {given}[{start} + {stride} * i];")

    def each(self, out: str, size: int, name: str, operands: Sequence[Operand]) -> None:
        """Write an entry of `_EACH`, number by number."""
        words = [
            f"{one.name}[i]" if one.name else f"({_number(one.number, *_C_NUMBERS)})"
            for one in operands
        ]
        self._each_of(size, f"{out}[i] = {_EACH[name][0].format(*words)};")

    def reduce(self, out: str, given: str, how: str, size: tuple[int, int]) -> None:
        """Write one of `_FIGURES` of each row of [rows, columns]; NaN of NaN."""
        rows, columns = size
        self._each_of(rows, f"{out}[i] = {how}(&{given}[{columns} * i], {columns});")

    def _each_of(self, size: int, statement: str) -> None:
        self._body.append(f"    for (int i = 0; i < {size}; i++) {{\n        {statement}\n    }}")

    def text(self, title: str, name: str, sizes: tuple[int, int], result: str) -> dict[str, str]:
        """Returns the files: name -> text."""
        upper = name.upper()
        header = f"""\
/* {title}. Written by hpcdi. */
#ifndef {upper}_H
#define {upper}_H

enum {{ {upper}_OBSERVATIONS = {sizes[0]}, {upper}_ACTIONS = {sizes[1]} }};

/* Write the best action for an observation; discrete ones are numbers from 0. Of an observation
 * with a NaN the action is NaN. Calls at the same time do no harm. Link with -lm. */
#ifdef __cplusplus
extern "C"
#endif
void {name}_act(const double *observation, double *action);

#endif
"""
        self._each_of(sizes[1], f"action[i] = {result}[i];")
        buffers = "".join(f"    double {buffer};\n" for buffer in self._buffers)
        body = "\n".join(self._body)
        used = [text for word, text in _C_HELPERS.items() if f"{word}(" in body]
        head = f'/* {title}. Written by hpcdi. */\n#include "{name}.h"\n\n#include <math.h>\n'
        signature = f"void {name}_act(const double *observation, double *action)"
        definition = f"{{\n{buffers}{body}\n}}\n"
        source = "\n".join([head, *self._constants, *used, signature, definition])
        return {f"{name}.h": header, f"{name}.c": source}


_C_HELPERS = {
    "linear": """\
static void linear(const double *weight, const double *bias, const double *x, double *y, int rows,
                   int columns)
{
    for (int row = 0; row < rows; row++) {
        y[row] = bias[row];
        for (int column = 0; column < columns; column++) {
            y[row] += weight[columns * row + column] * x[column];
        }
    }
}
""",
    "sum": """\
static double sum(const double *x, int size)
{
    double total = 0;
    for (int i = 0; i < size; i++) {
        total += x[i];
    }
    return total;
}
""",
    "amax": """\
static double amax(const double *x, int size)
{
    double best = x[0];
    for (int i = 1; i < size; i++) {
        if (isnan(x[i]) || x[i] > best) {
            best = x[i];
        }
    }
    return best;
}
""",
    "argmax": """\
static double argmax(const double *x, int size)
{
    int best = 0;
    for (int i = 0; i < size; i++) {
        if (isnan(x[i])) {
            return x[i];
        }
        if (x[i] > x[best]) {
            best = i;
        }
    }
    return best;
}
""",
}


class Fortran:
    """Writes Fortran 2008."""

    own = "|".join((r"[bchw]\d+", *_FORTRAN_WORDS))
    longest = 63 - len("_observations")

    def __init__(self) -> None:
        self._constants: list[str] = []
        self._buffers: list[str] = []
        self._body: list[str] = []

    def constant(self, name: str, numbers: Array) -> None:
        """See `C.constant`."""
        shape = ", ".join(map(str, numbers.shape[::-1]))  # the first index is the fastest
        lines = [f"    real(dp) :: {name}({shape})"]
        for row, part in enumerate(np.atleast_2d(numbers)):
            column = "" if numbers.ndim == 1 else f", {row + 1}"
            words = [_number(number, *_FORTRAN_NUMBERS) for number in part]
            for at in range(0, len(words), _PER_STATEMENT):
                some = words[at : at + _PER_STATEMENT]
                place = f"{at + 1}:{at + len(some)}{column}"
                lines.append(f"    data {name}({place}) / &\n{_lines(some, ' ' * 8, ' &')} /")
        self._constants.append("\n".join([*lines, ""]))

    def buffer(self, name: str, size: int) -> None:
        """See `C.buffer`."""
        self._buffers.append(f"{name}({size})")

    def linear(self, out: str, given: str, weight: str, bias: str, size: tuple[int, int]) -> None:
        """See `C.linear`."""
        self._body.append(f"        {out} = {bias} + matmul({given}(:{size[1]}), {weight})")

    def gather(self, out: str, at: int, given: str, start: int, stride: int, size: int) -> None:
        """See `C.gather`."""
        end = start + 1 + stride * (size - 1)
        if stride == 0:
            self._body.append(f"        {out}({at + 1}:{at + size}) = {given}({start + 1})")
            return
        places = f"{start + 1}:{end}:{stride}"
        self._body.append(f"        {out}({at + 1}:{at + size}) = {given}({places})")

    def each(self, out: str, size: int, name: str, operands: Sequence[Operand]) -> None:
        """See `C.each`."""
        words = [
            f"{one.name}(:{size})" if one.name else f"({_number(one.number, *_FORTRAN_NUMBERS)})"
            for one in operands
        ]
        self._body.append(f"        {out} = {_EACH[name][1].format(*words)}")

    def reduce(self, out: str, given: str, how: str, size: tuple[int, int]) -> None:
        """See `C.reduce`."""
        rows, columns = size
        table = f"reshape({given}, [{columns}, {rows}])"
        has_nan = f"any({table} /= {table}, 1)"
        reduced = {
            "sum": f"sum({table}, 1)",
            "amax": f"merge(nan, maxval({table}, 1), &\n            {has_nan})",
            "argmax": f"merge(nan, real(maxloc({table}, 1) - 1, dp), &\n            {has_nan})",
        }
        self._body.append(f"        {out} = {reduced[how]}")

    def text(self, title: str, name: str, sizes: tuple[int, int], result: str) -> dict[str, str]:
        """See `C.text`."""
        buffers = "".join(f"        real(dp) :: {buffer}\n" for buffer in self._buffers)
        body, constants = "\n".join(self._body), "\n".join(self._constants)
        infinite = "".join(
            f"    real(dp), parameter :: {word} = &\n"
            f"        transfer(int(z'{bits}', selected_int_kind(18)), 1.0_dp)\n"
            for word, bits in _FORTRAN_BITS.items()
            if re.search(rf"\b{word}\b", constants + body)
        )
        return {
            f"{name}.f90": f"""\
! {title}. Written by hpcdi.
module {name}
    implicit none
    private
    public :: {name}_act

    integer, parameter :: dp = kind(1.0d0)
    integer, parameter, public :: {name}_observations = {sizes[0]}
    integer, parameter, public :: {name}_actions = {sizes[1]}
{infinite}
{constants}
contains

    ! Write the best action for an observation; discrete ones are numbers from 0. Of an observation
    ! with a NaN the action is NaN.
    subroutine {name}_act(observation, action)
        real(dp), intent(in) :: observation({sizes[0]})
        real(dp), intent(out) :: action({sizes[1]})
{buffers}{body}
        action = {result}(:{sizes[1]})
    end subroutine
end module
"""
        }


LANGUAGES: dict[str, type[C | Fortran]] = {"c": C, "fortran": Fortran}
