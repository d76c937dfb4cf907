"""Items of any kind, as they are."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcdi.types import Array


class ObjectStore:
    """Items in a list of slots.

    Args:
        capacity: slots.
        copies: copy items deeply as they come and go; else they are shared with the caller, but
            that a dict's top level is the caller's own.
    """

    kind = "objects"

    def __init__(self, capacity: int, copies: bool) -> None:
        self._items: list[Any] = [None] * capacity
        self._own = copy.deepcopy if copies else _shallow

    def put_one(self, item: Any, slot: int) -> bool:
        """Put an item into a slot: anything fits."""
        self._items[slot] = self._own(item)
        return True

    def prepare(self, items: Sequence[Any]) -> list[Any]:
        """Items in the form that `put` takes."""
        return [self._own(item) for item in items]

    def put(self, start: int, stop: int, prepared: list[Any], offset: int) -> None:
        """Put prepared items, from number `offset`, into slots [start, stop)."""
        self._items[start:stop] = prepared[offset : offset + stop - start]

    def drop(self, slots: Array) -> None:
        """Let items [m] go."""
        for slot in slots:
            self._items[slot] = None

    def peek(self, slot: int) -> Any:
        """The item of a slot itself, no copy."""
        return self._items[slot]

    def read(self, slots: Array) -> list[Any]:
        """Items of slots [m]."""
        return [self._own(self._items[slot]) for slot in slots.tolist()]

    def state_of(self, spans: Iterable[Any], shared: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """Items of spans of slots, in order; copies."""
        items = [item for span in spans for item in self._items[span.start : span.stop]]
        return {"objects": copy.deepcopy(items)}

    def restore(
        self,
        state: Mapping[str, Any],
        spans: Iterable[Any],
        shared: bool = False,  # noqa: ARG002
        spare: Any = None,  # noqa: ARG002
    ) -> None:
        """Put the items of a `state_of` into spans of slots."""
        items = copy.deepcopy(state["objects"])
        for span in spans:
            self.put(span.start, span.stop, items, span.offset)


def _shallow(item: Any) -> Any:
    return dict(item) if isinstance(item, Mapping) else item
