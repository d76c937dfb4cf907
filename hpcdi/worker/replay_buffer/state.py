"""A buffer's state in memory, which also answers to DI-engine's keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdi.replay.index import annealed_beta
from hpcdi.worker.replay_buffer.ring import Ring


class BufferState(dict[str, Any]):
    """State of a buffer, with DI-engine's keys beside its own: made when they are asked for.

    ``data`` (items by slot, None where there is none), ``tail``, ``head``, ``valid_count``,
    ``push_count``, ``next_unique_id``; of a prioritized buffer also ``use_count``,
    ``max_priority``, ``anneal_step``, ``beta`` and ``sum_tree``, ``min_tree``: the leaves of
    either tree, by slot. They are not iterated over, and are not saved.

    Args:
        state: of the buffer.
        name: of a prioritized buffer, which begins its items' ``replay_unique_id``.
        alpha: its exponent of priorities.
    """

    def __init__(self, state: dict[str, Any], name: str = "", alpha: float = 1.0) -> None:
        super().__init__(state)
        self.name, self.alpha = name, alpha

    def __missing__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, f"_{key}")()

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        return key in _KEYS or (key in _OF_PRIORITIZED and super().__contains__("index"))

    def get(self, key: str, default: Any = None) -> Any:
        """See `dict.get`."""
        return self[key] if key in self else default  # noqa: SIM401 (it is what it says)

    def _ring(self) -> Ring:
        ring = Ring(
            int(self["ring"]["capacity"]), frames=tuple(self["ring"]["items"].get("framed", ()))
        )
        ring.load_state_dict(self["ring"])
        return ring

    def _data(self) -> list[Any]:
        ring, items = self._ring(), [None] * int(self["ring"]["capacity"])
        slots = ring.slots()
        values = ring.store.read(slots) if ring.store is not None else ()
        for slot, item in zip(slots.tolist(), values, strict=True):
            items[slot] = item
        return self._marked(items, ring) if "index" in self else items

    def _marked(self, items: list[Any], ring: Ring) -> list[Any]:
        """Items of a prioritized buffer as it marks them; None where one is dropped."""
        mass, ids = self._sum_tree(), np.zeros(len(items), np.int64)
        slots = ring.slots()
        ids[slots] = np.arange(ring.first, ring.pushed)
        for slot in slots.tolist():
            if not mass[slot]:
                items[slot] = None
            elif items[slot] is not None:
                items[slot] |= {
                    "replay_unique_id": f"{self.name}_{ids[slot]}",
                    "replay_buffer_idx": slot,
                    "priority": float(mass[slot] ** (1 / self.alpha)) if self.alpha else 1.0,
                }
        return items

    def _tail(self) -> int:
        return int(self["ring"]["ids"]["pushed"] % self["ring"]["capacity"])

    def _head(self) -> int:
        return int(self["ring"]["ids"]["first"] % self["ring"]["capacity"])

    def _valid_count(self) -> int:
        if "index" in self:
            return int(np.count_nonzero(self["index"]["mass"]))
        return self._next_unique_id() - int(self["ring"]["ids"]["first"])

    def _push_count(self) -> int:
        return self._next_unique_id() - int(self["ring"]["ids"]["origin"])

    def _next_unique_id(self) -> int:
        return int(self["ring"]["ids"]["pushed"])

    def _by_slot(self, name: str) -> Any:
        values = np.zeros(int(self["ring"]["capacity"]))
        values[self._ring().slots()] = self["index"][name]
        return values

    def _use_count(self) -> Any:
        return self._by_slot("use").astype(np.int64)

    def _max_priority(self) -> float:
        return float(self["index"]["max_priority"])

    def _anneal_step(self) -> int:
        return int(self["annealing"]["steps"])

    def _beta(self) -> float:
        return float(annealed_beta(**self["annealing"]))

    def _sum_tree(self) -> Any:
        return self._by_slot("mass")

    def _min_tree(self) -> Any:
        mass = self._by_slot("mass")
        return np.where(mass > 0, mass, np.inf)


_KEYS = ("data", "tail", "head", "valid_count", "push_count", "next_unique_id")
_OF_PRIORITIZED = ("use_count", "max_priority", "anneal_step", "beta", "sum_tree", "min_tree")
STATE_KEYS = frozenset((*_KEYS, *_OF_PRIORITIZED))
