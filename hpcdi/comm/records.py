"""Records: the compact form of frequent messages, which rank 0 sees thousands of a second.

A record has the numbers of all fields at fixed places, and refers to what is alike in many messages
(a block's schema, an array's dtype, names of figures) by a text, the template, that is parsed once.
The template travels with each message, so nobody has to remember what was sent to whom: ranks may
die, come and go::

    record  form | numbers | sizes | template | texts | rest: JSON | bytes, figures, arrays

Like a dataclass's `__init__`, the functions are written for each class, as source: they take half
the time of loops over the fields.

A message whose values are not quite what its fields say (an integer of numpy's, a very large one)
has no record: `codec` gives it the form of any value, so that it comes out as it went in.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.types import Array, BlockSchema

ALIGNMENT = 16
"""Of an array's bytes within a head."""
_TEMPLATES_KEPT = 4096
_SIZE = struct.Struct("<IQ")
_PADS = tuple(bytes(count) for count in range(ALIGNMENT))
_CODES = {int: "q", float: "d", bool: "?"}
_FLOATS = frozenset((float,))
_SHARED, _BYTES, _ARRAY, _FIGURES, _REST = range(5)
_WITH_BYTES = (_BYTES, _ARRAY, _FIGURES)
"""Kinds of fields that have bytes of their own at a record's end."""


class RecordForm:
    """How messages of a class become records, and records messages.

    Args:
        number: of the form: the first byte of its records, below 32.
        cls: a dataclass. Fields that are dataclasses, too, become part of the record, but for a
            `BlockSchema`, which is a part of the template.
        write: value -> JSON, as bytes; None where it holds arrays.
        read: makes the value again.
        dtype_to: dtype -> plain data.
        dtype_of: makes the dtype again.

    Attributes:
        encode: (message, bytes that an array may have) -> head, or None: it has no record.
        decode: head -> message, whose arrays are views of the head. Its errors are those of damaged
            bytes.
    """

    encode: Callable[[Any, int], bytearray | None]
    decode: Callable[[memoryview], Any]

    def __init__(
        self,
        number: int,
        cls: type,
        write: Callable[[Any], bytes | None],
        read: Callable[[bytes], Any],
        dtype_to: Callable[[np.dtype[Any]], Any],
        dtype_of: Callable[[Any], np.dtype[Any]],
    ) -> None:
        self._write, self._read = write, read
        self._dtype_to, self._dtype_of = dtype_to, dtype_of
        self._written: dict[tuple[Any, ...], tuple[bytes, list[Any]]] = {}
        self._parsed: dict[bytes, list[Any]] = {}
        fields = _Fields.of(cls)
        self._kinds = [_kind_of(hint) for _, hint in fields.others]
        blobs = sum(kind in _WITH_BYTES for kind in self._kinds)
        codes = "".join(_CODES[hint] for _, hint in fields.numbers)
        # the head's prefix, as `codec` has it, then the record
        fixed = struct.Struct(f"<IQB{codes}{'I' * (3 + blobs)}")
        names: dict[str, Any] = {
            "PADS": _PADS, "FLOATS": _FLOATS, "doubles": _doubles, "array": np.ndarray,
            "frombuffer": np.frombuffer, "pack": fixed.pack, "unpack": fixed.unpack_from,
            "damage": struct.error, "written": self._written, "parsed": self._parsed,
            "template_of": self._new_template, "parse": self._parse, "write": write, "read": read,
            "new": object.__new__, "set_all": object.__setattr__, "pack_size": _SIZE.pack_into,
            **{f"class{place}": one for place, (_, one) in enumerate(fields.objects)},
        }  # fmt: skip
        source = [
            *_encoding(number, fields, self._kinds),
            *_decoding(fixed.size, fields, self._kinds),
        ]
        exec("\n".join(source), names)  # noqa: S102 (of names of fields alone)
        self.encode, self.decode = names["encode"], names["decode"]

    def _new_template(
        self, key: tuple[Any, ...], values: tuple[Any, ...]
    ) -> tuple[bytes, list[Any]] | None:
        """Returns a template, and the objects whose identity is a part of its key."""
        described: list[Any] = []
        for kind, part, value in zip(self._kinds, key, values, strict=True):
            if kind == _ARRAY:
                dtype, shape, is_writeable = part
                if dtype.hasobject or not dtype.itemsize:
                    return None
                described.append([self._dtype_to(dtype), shape, is_writeable])
            elif kind == _SHARED:
                if type(value) is not BlockSchema:
                    return None
                described.append(value)
            elif kind == _FIGURES and part and not all(type(name) is str for name in part):
                return None
            else:
                described.append(part)
        text = self._write(described)
        if text is None:
            return None
        if len(self._written) >= _TEMPLATES_KEPT:
            self._written.clear()
        made = self._written[key] = text, [one for one in values if type(one) is BlockSchema]
        return made

    def _parse(self, text: bytes) -> list[Any]:
        """Returns what a template says of each field that is no number and no text."""
        parsed: list[Any] = []
        for kind, described in zip(self._kinds, self._read(text), strict=True):
            if kind == _ARRAY:
                dtype, shape, is_writeable = described
                parsed.append((self._dtype_of(dtype), shape, is_writeable))
            elif kind == _SHARED and type(described) is not BlockSchema:
                raise TypeError(f"a {type(described).__name__} is no schema")
            else:
                parsed.append(described)
        if len(self._parsed) >= _TEMPLATES_KEPT:
            self._parsed.clear()
        self._parsed[text] = parsed
        return parsed


@dataclass(frozen=True)
class _Fields:
    """Path and type of each field of a record, by how it is kept.

    And path and class of each object that has them: first the message.
    """

    objects: list[tuple[str, type]]
    numbers: list[tuple[str, Any]]
    texts: list[tuple[str, Any]]
    others: list[tuple[str, Any]]

    @classmethod
    def of(cls, message: type) -> _Fields:
        """Returns those of a class."""
        objects: list[tuple[str, type]] = [("message", message)]
        found = list(_fields_of(message, "message", objects))
        return cls(
            objects,
            [one for one in found if one[1] in _CODES],
            [one for one in found if one[1] is str],
            [one for one in found if one[1] is not str and one[1] not in _CODES],
        )


def _encoding(number: int, fields: _Fields, kinds: list[int]) -> Iterator[str]:
    """Returns the source of `RecordForm.encode`."""
    yield "def encode(message, inline_bytes):"
    yield "    rest = []"
    for place, (path, _) in enumerate(fields.objects[1:], 1):
        yield f"    {_name(path)} = {_split(path)}"
        yield f"    if type({_name(path)}) is not class{place}: return None"
    for path, hint in [*fields.numbers, *fields.texts]:
        yield f"    {_name(path)} = {_split(path)}"
        yield f"    if type({_name(path)}) is not {hint.__name__}: return None"
    keys, blobs = [], []
    for place, ((path, _), kind) in enumerate(zip(fields.others, kinds, strict=True)):
        value, key, blob = _name(path), f"k{place}", f"b{place}"
        yield f"    {value} = {_split(path)}"
        yield from (f"    {line.format(v=value, k=key, b=blob)}" for line in _TO_BYTES[kind])
        keys.append(key)
        if kind in _WITH_BYTES:
            blobs.append((blob, kind))
    values = "".join(f"{_name(path)}, " for path, _ in fields.others)
    yield f"    key = ({''.join(f'{key}, ' for key in keys)})"
    yield "    template = written.get(key)"
    yield "    if template is None:"
    yield f"        template = template_of(key, ({values}))"
    yield "        if template is None: return None"
    yield "    text = template[0]"
    texts = "\\0".join(f"{{{_name(path)}}}" for path, _ in fields.texts)
    yield f"    texts = f'{texts}'.encode('utf-8', 'surrogatepass')"
    yield f"    if texts.count(0) != {max(len(fields.texts) - 1, 0)}: return None"
    yield "    rested = write(rest) if rest else b''"
    yield "    if rested is None: return None"
    numbers = "".join(f"{_name(path)}, " for path, _ in fields.numbers)
    sizes = "".join(f", len({blob})" for blob, _ in blobs)
    yield "    try:"
    sizes = f"len(text), len(texts), len(rested){sizes}"
    yield f"        fixed = pack(0, 0, {number}, {numbers}{sizes})"
    yield "    except damage: return None"
    yield "    head = bytearray().join((fixed, text, texts, rested))"
    for blob, kind in blobs:
        if kind == _ARRAY:
            yield f"    head += PADS[-len(head) % {ALIGNMENT}]"
        yield f"    head += {blob}"
    yield "    pack_size(head, 0, 0, len(head) - 12)"
    yield "    return head"


_TO_BYTES = {
    _ARRAY: (
        "if type({v}) is not array or {v}.nbytes > inline_bytes: return None",
        "{k} = {v}.dtype, None if {v}.ndim == 1 else {v}.shape, {v}.flags.writeable",
        "{b} = {v}.tobytes()",
    ),
    _SHARED: ("{k} = id({v})",),
    _BYTES: ("if type({v}) is not bytes: return None", "{k}, {b} = None, {v}"),
    _FIGURES: (
        "if type({v}) is dict and FLOATS.issuperset(map(type, {v}.values())):",
        "    {k}, {b} = tuple({v}), doubles(len({v})).pack(*{v}.values())",
        "else:",
        "    {k}, {b} = None, b''",
        "    rest.append({v})",
    ),
    _REST: (
        "if type({v}) is tuple and not {v}:",
        "    {k} = ()",
        "else:",
        "    {k} = None",
        "    rest.append({v})",
    ),
}
"""Lines that make of a value {v} its part of the template's key {k}, and its bytes {b}."""


def _decoding(fixed: int, fields: _Fields, kinds: list[int]) -> Iterator[str]:
    """Returns the source of `RecordForm.decode`."""
    blobs = [place for place, kind in enumerate(kinds) if kind in _WITH_BYTES]
    numbers = "".join(f"{_name(path)}, " for path, _ in fields.numbers)
    sizes = "".join(f", s{place}" for place in blobs)
    yield "def decode(view):"
    yield f"    _, _, _, {numbers}text_size, texts_size, rest_size{sizes} = unpack(view)"
    yield f"    at = {fixed} + text_size + texts_size"
    yield f"    texts = view[{fixed}:at].tobytes()"
    yield "    text = texts[:text_size]"
    yield "    template = parsed.get(text)"
    yield "    if template is None: template = parse(text)"
    if fields.texts:
        texts = "".join(f"{_name(path)}, " for path, _ in fields.texts)
        yield "    texts = texts[text_size:].decode('utf-8', 'surrogatepass')"
        yield f"    {texts}= texts.split('\\0')"
    yield "    rest = read(view[at:at + rest_size].tobytes()) if rest_size else []"
    yield "    at += rest_size"
    for place, ((path, _), kind) in enumerate(zip(fields.others, kinds, strict=True)):
        names = {"v": _name(path), "t": f"template[{place}]", "s": f"s{place}"}
        yield from (f"    {line.format(**names)}" for line in _FROM_BYTES[kind])
        if place in blobs:
            yield f"    at += s{place}"
    yield "    if at > len(view): raise ValueError(f'{len(view)} of {at} bytes')"
    for place, (path, cls) in reversed(list(enumerate(fields.objects))):
        each = [field.name for field in dataclasses.fields(cls)]
        values = ", ".join(f"'{name}': {_name(f'{path}.{name}')}" for name in each)
        yield f"    {_name(path)} = new(class{place})"
        yield f"    set_all({_name(path)}, '__dict__', {{{values}}})"
    yield "    return message"


_FROM_BYTES = {
    _ARRAY: (
        f"at += -at % {ALIGNMENT}",
        "dtype, shape, is_writeable = {t}",
        "{v} = frombuffer(view[at:at + {s}] if {s} else b'', dtype)",
        "if shape is not None: {v} = {v}.reshape(shape)",
        "if not {s} and is_writeable: {v} = {v}.copy()",
        "if not is_writeable: {v}.flags.writeable = False",
    ),
    _SHARED: ("{v} = {t}",),
    _BYTES: ("{v} = view[at:at + {s}].tobytes()",),
    _FIGURES: (
        "if {t}: {v} = dict(zip({t}, doubles({s} >> 3).unpack_from(view, at), strict=True))",
        "else: {v} = rest.pop(0) if {t} is None else {{}}",
    ),
    _REST: ("{v} = rest.pop(0) if {t} is None else ()",),
}
"""Lines that make a value {v} of its part of the template {t} and its {s} bytes."""


def _name(path: str) -> str:
    """Returns the variable that holds a field, or an object."""
    return path.replace(".", "_0_")


def _split(path: str) -> str:
    """Returns the expression of a field, by its object's variable."""
    owner, _, name = path.rpartition(".")
    return f"{_name(owner)}.{name}"


def _fields_of(cls: Any, before: str, objects: list[tuple[str, type]]) -> Iterator[tuple[str, Any]]:
    """Returns path and type of each field of a record; appends the objects that it has."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint, path = hints[field.name], f"{before}.{field.name}"
        if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint is not BlockSchema:
            objects.append((path, hint))
            yield from _fields_of(hint, path, objects)
        else:
            yield path, hint


def _kind_of(hint: Any) -> int:
    """Returns how a field that is no number and no text is kept."""
    if hint is BlockSchema:
        return _SHARED
    if hint is bytes:
        return _BYTES
    if hint == Array:
        return _ARRAY
    return _FIGURES if typing.get_origin(hint) is dict else _REST


@lru_cache(maxsize=1024)
def _doubles(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}d")
