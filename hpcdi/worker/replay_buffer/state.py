"""A buffer's state in memory, which also answers to DI-engine's keys."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import islice
from typing import Any, Self

import numpy as np

from hpcdi.replay.index import annealed_beta
from hpcdi.worker.replay_buffer.ring import Ring


class BufferState(dict[str, Any]):
    """State of a buffer by DI-engine's keys, whose values are made when they are first asked for.

    ``data`` (items by slot, None where there is none), ``tail``, ``valid_count``, ``push_count``;
    of a prioritized buffer also ``use_count``, ``max_priority``, ``anneal_step``, ``beta``,
    ``head``, ``next_unique_id`` and ``sum_tree``, ``min_tree``: the leaves of either tree, by slot.
    Pickled or copied as it is, it stays complete. Once a key is set or removed, or a value that was
    asked for has changed (an item in ``data``), it holds the values themselves, and is loaded as
    DI-engine's.

    Args:
        own: state of the buffer, see `RingBuffer.load_state_dict`.
        name: of a prioritized buffer, which begins its items' ``replay_unique_id``.
    """

    def __init__(self, own: dict[str, Any], name: str = "") -> None:
        super().__init__(dict.fromkeys((*_KEYS, *(_OF_PRIORITIZED if "index" in own else ()))))
        self._own: Any = own
        self.name = name
        self._computed: set[str] = set()  # keys whose values it holds already

    @property
    def own(self) -> Any:
        """State of the buffer; None where it holds the values themselves."""
        if self._own is not None:
            pairs = ((self[key], self._compute(key)) for key in self._computed)
            if not all(_are_equal(held, anew, surely=True) for held, anew in pairs):
                self._hold_values()
        return self._own

    def __getitem__(self, key: str) -> Any:
        if self._own is not None and key in self and key not in self._computed:
            super().__setitem__(key, self._compute(key))
            self._computed.add(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._hold_values()
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._hold_values()
        super().__delitem__(key)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __ior__(self, other: Any) -> Self:  # type: ignore[override]
        self.update(other)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and _are_equal(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def update(self, *args: Any, **kwargs: Any) -> None:
        """See `dict.update`."""
        self._hold_values()
        super().update(*args, **kwargs)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """See `dict.setdefault`."""
        if key in self:
            return self[key]
        self._hold_values()
        return super().setdefault(key, default)

    def pop(self, *args: Any) -> Any:
        """See `dict.pop`."""
        if args and args[0] in self:
            self._hold_values()
        return super().pop(*args)

    def popitem(self) -> tuple[str, Any]:
        """See `dict.popitem`."""
        self._hold_values()
        return super().popitem()

    def clear(self) -> None:
        """See `dict.clear`."""
        self._hold_values()
        super().clear()

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()  # `dict` asks for values, too, where this is not its own

    def get(self, key: str, default: Any = None) -> Any:
        """See `dict.get`."""
        return self[key] if key in self else default  # noqa: SIM401 (it is what it says)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """See `dict.values`."""
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """See `dict.items`."""
        return ItemsView(self)

    def copy(self) -> dict[str, Any]:
        """See `dict.copy`."""
        return dict(self)

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[Any, ...]]:
        own = self.own
        return (dict, (dict(self),)) if own is None else (BufferState, (own, self.name))

    def __repr__(self) -> str:
        own = self.own
        return super().__repr__() if own is None else f"BufferState({own!r})"

    def _compute(self, key: str) -> Any:
        return getattr(self, f"_{key}")()

    def _hold_values(self) -> None:
        """Hold the values themselves from now on: one is about to change, or has."""
        if self._own is not None:
            values = dict(self)
            self._own = None
            super().update(values)

    def _ring(self) -> Ring:
        saved = self._own["ring"]
        ring = Ring(int(saved["capacity"]), frames=tuple(saved["items"].get("framed", ())))
        ring.load_state_dict(saved)
        return ring

    def _numbers(self) -> Mapping[str, Any]:
        """Numbers of the items: ``pushed, origin``, and ``first`` where they are no episodes."""
        numbers: Mapping[str, Any] = self._own.get("numbers", self._own["ring"]["ids"])
        return numbers

    def _data(self) -> list[Any]:
        ring = self._ring()
        here = ring.store.read(ring.slots()) if ring.store is not None else []
        if "lengths" in self._own:
            rows = iter(here)
            here = [list(islice(rows, int(length))) for length in self._own["lengths"]]
        items: list[Any] = [None] * int(self._own["capacity"])
        end = self._next_unique_id()
        for number, item in enumerate(here, end - len(here)):
            items[number % len(items)] = item
        return self._marked(items, ring) if "index" in self._own else items

    def _marked(self, items: list[Any], ring: Ring) -> list[Any]:
        """Items of a prioritized buffer as it marks them; None where one is dropped."""
        mass, ids = self._sum_tree(), np.zeros(len(items), np.int64)
        alpha = float(self._own["index"]["alpha"])
        slots = ring.slots()
        ids[slots] = np.arange(ring.first, ring.pushed)
        for slot in slots.tolist():
            if not mass[slot]:
                items[slot] = None
            elif items[slot] is not None:
                items[slot] |= {
                    "replay_unique_id": generate_id(self.name, ids[slot]),
                    "replay_buffer_idx": slot,
                    "priority": float(mass[slot] ** (1 / alpha)) if alpha else 1.0,
                }
        return items

    def _tail(self) -> int:
        return self._next_unique_id() % int(self._own["capacity"])

    def _head(self) -> int:
        return int(self._numbers()["first"]) % int(self._own["capacity"])

    def _valid_count(self) -> int:
        if "index" in self._own:
            return int(np.count_nonzero(self._own["index"]["mass"]))
        if "lengths" in self._own:
            return len(self._own["lengths"])
        return self._next_unique_id() - int(self._numbers()["first"])

    def _push_count(self) -> int:
        return self._next_unique_id() - int(self._numbers()["origin"])

    def _next_unique_id(self) -> int:
        return int(self._numbers()["pushed"])

    def _by_slot(self, name: str) -> Any:
        values = np.zeros(int(self._own["capacity"]))
        values[self._ring().slots()] = self._own["index"][name]
        return values

    def _use_count(self) -> Any:
        return self._by_slot("use").astype(np.int64)

    def _max_priority(self) -> float:
        return float(self._own["index"]["max_priority"])

    def _anneal_step(self) -> int:
        return int(self._own["annealing"]["steps"])

    def _beta(self) -> float:
        return float(annealed_beta(**self._own["annealing"]))

    def _sum_tree(self) -> Any:
        return self._by_slot("mass")

    def _min_tree(self) -> Any:
        mass = self._by_slot("mass")
        return np.where(mass > 0, mass, np.inf)


def generate_id(name: str, data_id: int) -> str:
    """The ``replay_unique_id`` of the item of a buffer's name that has this unique id."""
    return f"{name}_{data_id}"


def id_in(replay_unique_id: Any, name: str) -> int:
    """The unique id in a `generate_id`; -1, which no item has, where another buffer made it."""
    owner, _, number = str(replay_unique_id).rpartition("_")
    return int(number) if owner == name and number.isdecimal() else -1


def _are_equal(one: Any, other: Any, *, surely: bool = False) -> bool:
    """Whether two values are equal, arrays in them number by number.

    If `surely`, they are of one kind, too (classes, dtypes and shapes), and NaN is NaN; objects of
    which nobody knows what they compare are not.
    """
    if surely and (type(one) is not type(other) or _dtype(one) != _dtype(other)):
        return False
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            _are_equal(one[key], other[key], surely=surely) for key in one
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_are_equal(*pair, surely=surely) for pair in pairs)
    if hasattr(one, "shape") or hasattr(other, "shape"):
        # a tensor's dtype has no kind
        may_be_nan = surely and getattr(one.dtype, "kind", "f") in "fc"
        is_known = not surely or one.dtype != object
        return is_known and np.array_equal(one, other, equal_nan=may_be_nan)
    if surely:
        return isinstance(one, _PLAIN) and repr(one) == repr(other)
    return bool(one == other)


def _dtype(value: Any) -> Any:
    return getattr(value, "dtype", None)


_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_KEYS = ("data", "tail", "valid_count", "push_count")
_OF_PRIORITIZED = (
    *("use_count", "max_priority", "anneal_step", "beta", "head", "next_unique_id"),
    *("sum_tree", "min_tree"),
)
STATE_KEYS = frozenset((*_KEYS, *_OF_PRIORITIZED))
