"""The items of a replay buffer, in slots: first in, first out."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcdi.comm.codec import from_bytes, to_bytes
from hpcdi.errors import BufferContractError
from hpcdi.replay.index import Slots
from hpcdi.store.memory import Span, slots_of
from hpcdi.types import Array
from hpcdi.worker.replay_buffer.items import ItemStore, without


class Ring(Slots):
    """Items in slots, the newest ones; a store holds them: columns, or a list for anything else.

    Args:
        capacity: slots.
        first_id: unique id of the first item.
        frames: columns whose leading axis stacks frames; each frame is stored once.
        copies: whether objects are copied as they come and go.
        used: tracks the data files of items that come and go.
    """

    def __init__(
        self,
        capacity: int,
        first_id: int = 0,
        *,
        frames: tuple[str, ...] = (),
        copies: bool = False,
        used: UsedData | None = None,
    ) -> None:
        super().__init__(capacity, first_id)
        self.store: ItemStore | ObjectStore | None = None
        self.used = used
        self._frames, self._copies = frames, copies

    def append(self, item: Any) -> int:
        """Add an item, in the place of the oldest one when full; returns its slot.

        Raises:
            BufferContractError: it differs from the items that are here.
        """
        slot = self.pushed % self.capacity
        if self.used is not None:
            self.extend([item])
            return slot
        if self.store is None or not self.store.put_one(item, slot):
            store: Any = self.store or self._store_for([item])
            prepared = store.prepare([item])
            self.store = store
            store.put(slot, slot + 1, prepared, 0)
        self.take(1)
        return slot

    def extend(self, items: Sequence[Any]) -> range:
        """Add items; returns the ids of those that stay, at most `capacity`, the last ones.

        Raises:
            BufferContractError: one differs from the others or from those that are here; then none
                of them is added.
        """
        store = self.store or self._store_for(items)
        prepared = store.prepare(items)
        if self.used is not None:
            for item in items:
                self.used.arrive(item)
            for item in items[: -self.capacity]:
                self.used.leave(item)
        return self._put(store, prepared, len(items))

    def extend_columns(self, columns: Mapping[str, Any]) -> range:
        """Add items given as columns [m, ...]; returns the ids of those that stay.

        Raises:
            BufferContractError: they differ from the items that are here.
        """
        store = self.store or ItemStore(self.capacity, self._frames)
        if not isinstance(store, ItemStore):
            raise BufferContractError("the buffer holds objects, not columns")
        prepared = store.prepare_columns(columns)
        return self._put(store, prepared, len(next(iter(prepared.values()))))

    def drop(self, slots: Array) -> None:
        """Let the store drop the items of slots [m]; their ids stay."""
        if self.used is not None and isinstance(self.store, ObjectStore):
            for slot in slots.tolist():
                self.used.leave(self.store.peek(slot))
        if self.store is not None:
            self.store.drop(slots)

    def forget(self, before_id: int) -> None:
        """Drop all items whose unique id is below `before_id`."""
        self._overwrite(before_id)
        super().forget(before_id)

    def grow_to(self, capacity: int) -> None:
        """Grow to more slots; the items move to other ones."""
        old, spans, slots = self.store, list(self.spans(self.first, self.pushed)), self.slots()
        self.capacity = capacity
        if isinstance(old, ObjectStore):  # the items themselves, no copies
            items = [old.peek(slot) for slot in slots.tolist()]
            self.store = self._object_store()
            for span in self.spans(self.first, self.pushed):
                self.store.put(span.start, span.stop, items, span.offset)
        elif old is not None:
            self.store = ItemStore(capacity, self._frames)
            self.store.restore(old.state_of(spans), self.spans(self.first, self.pushed))

    def state_dict(self, shared: bool = False) -> dict[str, Any]:
        """The items here and their ids: copies, the oldest first; if `shared`, views, by slot."""
        spans = (self._by_slot if shared else self.spans)(self.first, self.pushed)
        return {
            "capacity": self.capacity,
            "ids": self.ids(),
            "kind": "none" if self.store is None else self.store.kind,
            "by_slot": shared,
            "items": {} if self.store is None else self.store.state_of(spans, shared),
        }

    def load_state_dict(self, state: Mapping[str, Any], shared: bool = False) -> None:
        """Take the items of a `state_dict`, instead of those that are here.

        Args:
            state: the state.
            shared: its arrays may become the ring's own.
        """
        ids, kind = state["ids"], state["kind"]
        first, pushed = int(ids["first"]), int(ids["pushed"])
        self.store = None
        if kind != "none":
            is_columns = kind == ItemStore.kind
            store = ItemStore(self.capacity, self._frames) if is_columns else self._object_store()
            spans = (self._by_slot if state["by_slot"] else self.spans)(first, pushed)
            by_age = slots_of(self.spans(first, pushed))
            store.restore(state["items"], spans, shared, by_age)
            self.store = store
        self.restore(ids)
        if self.used is not None and isinstance(self.store, ObjectStore):
            for slot in self.slots().tolist():
                self.used.arrive(self.store.peek(slot))

    def _by_slot(self, first_id: int, end_id: int) -> Iterator[Span]:
        """Where items lie, as `spans` does, but the first slot first; all slots are one span."""
        spans, offset = sorted(self.spans(first_id, end_id)), 0
        if end_id - first_id == self.capacity:
            spans = [Span(0, self.capacity, 0)]
        for start, stop, _ in spans:
            yield Span(start, stop, offset)
            offset += stop - start

    def _put(self, store: Any, prepared: Any, count: int) -> range:
        self.store = store
        end = self.pushed + count
        first = max(self.pushed, end - self.capacity)
        self._overwrite(end - self.capacity)
        for span in self.spans(first, end):
            store.put(span.start, span.stop, prepared, span.offset + first - self.pushed)
        return self.take(count)

    def _overwrite(self, before_id: int) -> None:
        if self.used is not None and before_id > self.first:
            self.drop(self.slots(self.first, min(before_id, self.pushed)))

    def _store_for(self, items: Sequence[Any]) -> ItemStore | ObjectStore:
        first = items[0]
        names_data = self.used is not None and isinstance(first, Mapping) and "data_id" in first
        if ItemStore.fits(first) and not names_data:
            return ItemStore(self.capacity, self._frames)
        return self._object_store()

    def _object_store(self) -> ObjectStore:
        return ObjectStore(self.capacity, self._copies)


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

    def state_of(self, spans: Iterable[Any], shared: bool = False) -> dict[str, Any]:
        """Items of spans of slots, in order: copies; if `shared`, as bytes for a file.

        Raises:
            CommError: an item holds what cannot be encoded.
        """
        items = [item for span in spans for item in self._items[span.start : span.stop]]
        return {"encoded": to_bytes(items)} if shared else {"objects": copy.deepcopy(items)}

    def restore(
        self,
        state: Mapping[str, Any],
        spans: Iterable[Any],
        shared: bool = False,  # noqa: ARG002
        by_age: Array | None = None,  # noqa: ARG002
    ) -> None:
        """Put the items of a `state_of` into spans of slots."""
        items = from_bytes(state["encoded"]) if "encoded" in state else state["objects"]
        items = copy.deepcopy(items)
        for span in spans:
            self.put(span.start, span.stop, items, span.offset)


class UsedData:
    """Tracks the data files that items refer to by ``data_id``.

    Nothing is removed here: the files' owner asks, and decides.
    """

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._new: dict[str, None] = {}  # in order, which an item has or had since `take_new`
        self._known: set[str] = set()  # returned by `take_new`, and not yet by `take`
        self._unused: list[str] = []

    def arrive(self, item: Any) -> None:
        """Count an item that was added."""
        data_id = item.get("data_id") if isinstance(item, Mapping) else None
        if data_id is not None:
            self._users[str(data_id)] += 1
            if self._users[str(data_id)] == 1:
                self._new[str(data_id)] = None

    def leave(self, item: Any) -> None:
        """Count an item that was dropped or overwritten."""
        data_id = item.get("data_id") if isinstance(item, Mapping) else None
        if data_id is not None:
            self._users[str(data_id)] -= 1
            if self._users[str(data_id)] == 0:
                del self._users[str(data_id)]
                self._unused.append(str(data_id))

    def ids(self) -> list[str]:
        """Data ids that an item has now; each once."""
        return list(self._users)

    def take(self) -> list[str]:
        """Data ids that no item has any more, since the last call; each once."""
        unused = [data_id for data_id in dict.fromkeys(self._unused) if data_id not in self._users]
        self._unused = []
        self._known.difference_update(unused)
        for data_id in unused:
            self._new.pop(data_id, None)
        return unused

    def take_new(self) -> list[str]:
        """Data ids that an item has now, or had in between, and none had at the last call."""
        new = [data_id for data_id in self._new if data_id not in self._known]
        self._new.clear()
        self._known.update(new)
        return new


def _shallow(item: Any) -> Any:
    return without(item) if isinstance(item, Mapping) else item
