"""A buffer's state in memory, which also answers to DI-engine's keys."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import islice
from typing import Any, Self

import numpy as np

from hpcdi.replay.index import annealed_beta
from hpcdi.worker.replay_buffer.ring import Ring


class BufferState(dict[str, Any]):
    """State of a buffer by DI-engine's keys, whose values are made when they are asked for.

    ``data`` (items by slot, None where there is none), ``tail``, ``valid_count``, ``push_count``;
    of a prioritized buffer also ``use_count``, ``max_priority``, ``anneal_step``, ``beta``,
    ``head``, ``next_unique_id`` and ``sum_tree``, ``min_tree``: the leaves of either tree, by slot.
    Pickled or copied as it is, it stays complete. Once a key is set or removed, it holds the values
    themselves, and is loaded as DI-engine's.

    Args:
        own: state of the buffer, see `RingBuffer.load_state_dict`.
        name: of a prioritized buffer, which begins its items' ``replay_unique_id``.

    Attributes:
        own: see above; None where it holds the values themselves.
    """

    own: Any

    def __init__(self, own: dict[str, Any], name: str = "") -> None:
        super().__init__(dict.fromkeys((*_KEYS, *(_OF_PRIORITIZED if "index" in own else ()))))
        self.own, self.name = own, name

    def __getitem__(self, key: str) -> Any:
        if self.own is None:
            return super().__getitem__(key)
        if key not in self:
            raise KeyError(key)
        return getattr(self, f"_{key}")()

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
        return (dict, (dict(self),)) if self.own is None else (BufferState, (self.own, self.name))

    def __repr__(self) -> str:
        return super().__repr__() if self.own is None else f"BufferState({self.own!r})"

    def _hold_values(self) -> None:
        """Hold the values themselves from now on: one is about to change."""
        if self.own is not None:
            values = dict(self)
            self.own = None
            super().update(values)

    def _ring(self) -> Ring:
        saved = self.own["ring"]
        ring = Ring(int(saved["capacity"]), frames=tuple(saved["items"].get("framed", ())))
        ring.load_state_dict(saved)
        return ring

    def _numbers(self) -> Mapping[str, Any]:
        """Numbers of the items: ``pushed, origin``, and ``first`` where they are no episodes."""
        numbers: Mapping[str, Any] = self.own.get("numbers", self.own["ring"]["ids"])
        return numbers

    def _data(self) -> list[Any]:
        ring = self._ring()
        here = ring.store.read(ring.slots()) if ring.store is not None else []
        if "lengths" in self.own:
            rows = iter(here)
            here = [list(islice(rows, int(length))) for length in self.own["lengths"]]
        items: list[Any] = [None] * int(self.own["capacity"])
        end = self._next_unique_id()
        for number, item in enumerate(here, end - len(here)):
            items[number % len(items)] = item
        return self._marked(items, ring) if "index" in self.own else items

    def _marked(self, items: list[Any], ring: Ring) -> list[Any]:
        """Items of a prioritized buffer as it marks them; None where one is dropped."""
        mass, ids = self._sum_tree(), np.zeros(len(items), np.int64)
        alpha = float(self.own["index"]["alpha"])
        slots = ring.slots()
        ids[slots] = np.arange(ring.first, ring.pushed)
        for slot in slots.tolist():
            if not mass[slot]:
                items[slot] = None
            elif items[slot] is not None:
                items[slot] |= {
                    "replay_unique_id": f"{self.name}_{ids[slot]}",
                    "replay_buffer_idx": slot,
                    "priority": float(mass[slot] ** (1 / alpha)) if alpha else 1.0,
                }
        return items

    def _tail(self) -> int:
        return self._next_unique_id() % int(self.own["capacity"])

    def _head(self) -> int:
        return int(self._numbers()["first"]) % int(self.own["capacity"])

    def _valid_count(self) -> int:
        if "index" in self.own:
            return int(np.count_nonzero(self.own["index"]["mass"]))
        if "lengths" in self.own:
            return len(self.own["lengths"])
        return self._next_unique_id() - int(self._numbers()["first"])

    def _push_count(self) -> int:
        return self._next_unique_id() - int(self._numbers()["origin"])

    def _next_unique_id(self) -> int:
        return int(self._numbers()["pushed"])

    def _by_slot(self, name: str) -> Any:
        values = np.zeros(int(self.own["capacity"]))
        values[self._ring().slots()] = self.own["index"][name]
        return values

    def _use_count(self) -> Any:
        return self._by_slot("use").astype(np.int64)

    def _max_priority(self) -> float:
        return float(self.own["index"]["max_priority"])

    def _anneal_step(self) -> int:
        return int(self.own["annealing"]["steps"])

    def _beta(self) -> float:
        return float(annealed_beta(**self.own["annealing"]))

    def _sum_tree(self) -> Any:
        return self._by_slot("mass")

    def _min_tree(self) -> Any:
        mass = self._by_slot("mass")
        return np.where(mass > 0, mass, np.inf)


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, arrays in them number by number."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if hasattr(one, "shape") or hasattr(other, "shape"):
        return np.array_equal(one, other)
    return bool(one == other)


_KEYS = ("data", "tail", "valid_count", "push_count")
_OF_PRIORITIZED = (
    *("use_count", "max_priority", "anneal_step", "beta", "head", "next_unique_id"),
    *("sum_tree", "min_tree"),
)
STATE_KEYS = frozenset((*_KEYS, *_OF_PRIORITIZED))
