"""`dataclass` as the standard library's, where a frozen class costs little until it is used.

The standard library compiles six functions for each frozen class, 0.8 ms. A rank imports 170 such
classes before its first message, and makes objects of few of them. Here an ``__init__`` is compiled
when someone first asks for it, and nothing else is compiled: 0.1 ms.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, **options):
        """Make a class a dataclass, as `dataclasses.dataclass` does (a frozen one: no options)."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, **options)
        return _frozen(cls, **options) if frozen else dataclasses.dataclass(**options)(cls)


_PARAMS: Any = vars(dataclasses.make_dataclass("Frozen", (), frozen=True))["__dataclass_params__"]
"""What marks a frozen class, so that one of the standard library may derive from it."""


class _Init:
    """An ``__init__`` that takes its own place when someone first asks for it."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type) -> Any:
        cls: Any = self._cls
        compiled = dataclasses.make_dataclass(
            cls.__name__,
            [(each.name, each.type, each) for each in dataclasses.fields(cls)],
            namespace={n: getattr(cls, n) for n in ("__post_init__",) if hasattr(cls, n)},
            eq=False,
            repr=False,
            frozen=True,
        )
        init: Any = vars(compiled)["__init__"]
        cls.__init__ = init
        return init.__get__(instance, owner)


def _frozen(cls: Any) -> Any:
    inherited = {
        name: field
        for base in reversed(cls.__mro__[1:])
        for name, field in base.__dict__.get("__dataclass_fields__", {}).items()
    }
    own = _own_fields(cls)
    for name, field in own.items():
        if isinstance(cls.__dict__.get(name), dataclasses.Field):
            if field.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, field.default)
    cls.__dataclass_fields__ = {**inherited, **own}
    cls.__dataclass_params__ = _PARAMS
    names = [each.name for each in dataclasses.fields(cls)]
    for name, method in {"__init__": _Init(cls), **_methods(names)}.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    return cls


def _own_fields(cls: type) -> dict[str, Any]:
    """Returns the fields that a class adds to those of its bases, or changes."""
    notes = inspect.get_annotations(cls)
    values = {name: cls.__dict__[name] for name in notes if name in cls.__dict__}
    alone = type(cls.__name__, (), {**values, "__annotations__": notes, "__doc__": "."})
    alone.__module__ = cls.__module__
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(alone)
    return dict(made.__dataclass_fields__)


def _methods(names: list[str]) -> dict[str, Any]:
    """Returns the methods of a frozen class with these fields."""
    get = operator.attrgetter(*names, "__class__")  # a tuple, also of one field or none

    def equal(self: object, other: object) -> bool:
        return NotImplemented if other.__class__ is not self.__class__ else get(self) == get(other)

    def represent(self: object) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return {
        "__eq__": equal,
        "__hash__": lambda self: hash(get(self)),
        "__repr__": represent,
        "__setattr__": _no_assignment,
        "__delattr__": _no_deletion,
        "__match_args__": tuple(names),
    }


def _no_assignment(_: object, name: str, __: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_deletion(_: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
