"""The base of all replay buffers: contract, settings, ring, lock, saved state."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hpcdi.config.compat import Configurable
from hpcdi.config.replay import BufferConfig
from hpcdi.errors import BufferContractError, CommError, SnapshotError
from hpcdi.replay.index import Drawn
from hpcdi.store.state_file import load_state, save_state
from hpcdi.types import Array
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.metrics import PartCurves
from hpcdi.utils.nested import share_tensors, unflatten
from hpcdi.utils.registry import BUFFER_REGISTRY
from hpcdi.worker.errors import NoFileError
from hpcdi.worker.registered import class_of
from hpcdi.worker.replay_buffer.items import ItemStore
from hpcdi.worker.replay_buffer.ring import Ring, UsedData
from hpcdi.worker.replay_buffer.state import STATE_KEYS, BufferState

STATE_VERSION = 6
"""Of saved states."""


class IBuffer(Configurable, ABC):
    """Holds data items and samples from them."""

    UNUSED: ClassVar[Mapping[str, Any]] = {"max_reuse": None, "name": None, "sliced": None}

    @abstractmethod
    def push(self, data: Any, cur_collector_envstep: int) -> None:
        """Add one item, or a list of items; the oldest are overwritten when the buffer is full.

        Args:
            data: an item, or a list of items.
            cur_collector_envstep: environment steps of the run so far.
        """

    @abstractmethod
    def update(self, info: Mapping[str, Any]) -> None:
        """Update what is known of items, e.g. their priorities."""

    @abstractmethod
    def sample(self, batch_size: int, cur_learner_iter: int) -> list[Any] | None:
        """Draw `batch_size` items; None where there are not enough.

        Args:
            batch_size: number of items.
            cur_learner_iter: the learner's current train iteration.
        """

    @abstractmethod
    def clear(self) -> None:
        """Drop all items and reset the counters."""

    @abstractmethod
    def count(self) -> int:
        """Items that can be drawn."""

    @abstractmethod
    def state_dict(self) -> BufferState:
        """Everything needed to continue identically; copies, not references."""

    @abstractmethod
    def load_state_dict(self, _state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""

    @abstractmethod
    def save_data(self, file_name: str | Path) -> None:
        """Write the state to a file that appears whole."""

    @abstractmethod
    def load_data(self, file_name: str | Path) -> None:
        """Restore the state from a file."""


def create_buffer(cfg: Any, *args: Any, **kwargs: Any) -> IBuffer:
    """The buffer that ``cfg.type`` names; other arguments go to its constructor.

    Raises:
        UnknownTypeError: no buffer has that type.
    """
    buffer: IBuffer = get_buffer_cls(cfg)(cfg, *args, **kwargs)
    return buffer


def get_buffer_cls(cfg: Any) -> Any:
    """The class that ``cfg.type`` names."""
    return class_of(BUFFER_REGISTRY, cfg)


def _seeded_by_numpy(name: str) -> np.random.Generator:
    """A generator that depends on the state of numpy's own, and on a buffer's name."""
    state = np.random.get_state(legacy=False)
    key, position = state["state"]["key"], state["state"]["pos"]
    return np.random.default_rng([*key[:8].tolist(), position, *name.encode()])


class _SeededLater:
    """A generator that is made when it is first used, see `RingBuffer`'s argument `rng`.

    Args:
        name: of the buffer.
    """

    _generator: Any = None

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # what copying and pickling look for
            raise AttributeError(attribute)
        if self._generator is None:
            self._generator = _seeded_by_numpy(self._name)
        return getattr(self._generator, attribute)


class Sample(NamedTuple):
    """Items that were drawn: their columns, and the buffer's bookkeeping of them."""

    columns: dict[str, Any]
    """Arrays, or torch tensors, [m, ...]; nested as the items are."""
    drawn: Drawn

    @property
    def unique_ids(self) -> Array:
        """Ids of the items, int64 [m]; a learner returns them with the priorities."""
        return self.drawn.unique_ids


class Guard:
    """The lock of a buffer; errors that are raised under it name the buffer.

    Args:
        owner: of the buffer.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._lock.release()
        if isinstance(error, BufferContractError) and not str(error).startswith(self._owner):
            raise BufferContractError(f"{self._owner}: {error}") from error


class RingBuffer(IBuffer, Closing):
    """First in, first out; the n-th item pushed has unique id n.

    Items that are dicts of numbers and arrays, nested as they like, are held in columns, whose
    names, dtypes and shapes the first push declares; others are held as they are. Threads may share
    a buffer: methods take one lock, single numbers are read without it.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        tb_logger: takes reports, by ``add_scalar(tag, value, step)``, and is closed with it; None:
            they go to the log.
        exp_name: name of the experiment, for messages.
        instance_name: name of the buffer, for reports; prefix of ``replay_unique_id``.
        rng: draws; by default seeded, at the first draw or when a state is taken, by the state of
            numpy's own generator, which stays as it is: ``np.random.seed`` makes a run repeatable.
            Buffers of one name would draw alike: give each its `instance_name`.
    """

    kind: ClassVar[str] = "ring_buffer"
    """Of saved states: what another kind of buffer refuses."""
    _cfg: BufferConfig

    def __init__(
        self,
        cfg: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        config: BufferConfig = self.parse_config(cfg)
        self._cfg = config
        self._name = instance_name
        self._curves = PartCurves(tb_logger, instance_name)
        self._monitor = self._new_monitor(tb_logger)
        self._rng: Any = rng if rng is not None else _SeededLater(instance_name)
        self._lock = Guard(f"{exp_name}/{instance_name}")
        self._used = UsedData() if config.enable_track_used_data else None
        self._removes = False
        self._begin(self._new_ring(0))

    def start(self) -> None:
        """Remove data files from now on when no item names them (`enable_track_used_data`).

        Without this call nothing is removed: see `take_used`.
        """
        self._removes = self._used is not None

    def push(self, data: Any, cur_collector_envstep: int = -1, *, columns: bool = False) -> None:  # noqa: ARG002
        """Add an item, a list of items or, if `columns`, items as columns [m, ...].

        Raises:
            BufferContractError: one differs from what the buffer holds. Then none of them is added.
        """
        with self._lock:
            if columns:
                if not isinstance(data, Mapping):
                    raise BufferContractError(f"columns are a mapping, not a {type(data).__name__}")
                pushed = self._push_columns(data)
            elif not isinstance(data, list):
                pushed = self._push_one(data)
            else:
                pushed = self._push_list(data) if data else 0
            self._note(pushed)

    def clear(self) -> None:
        """Drop all items and reset the counters. Ids go on: an old one never names a new item."""
        with self._lock:
            self._ring.forget(self._ring.pushed)
            self._begin(self._new_ring(self._ring.pushed))
            self._remove_used()

    def close(self) -> None:
        """Report the last traffic, close the TensorBoard writer and drop everything. Idempotent."""
        with self._lock:
            self._report()
            if self._ring.store is not None:
                self.clear()
            self._remove_used()
            self._curves.close()

    def count(self) -> int:
        """Items that can be drawn."""
        return len(self._ring)

    @property
    def replay_buffer_size(self) -> int:
        """Items that it can hold."""
        return self._cfg.replay_buffer_size

    @property
    def push_count(self) -> int:
        """Items that were pushed since the last `clear`."""
        return self._ring.pushed - self._ring.origin

    @property
    def n_bytes(self) -> int:
        """Bytes of the columns; 0 where items are held as they are."""
        store = self._ring.store
        return store.n_bytes if isinstance(store, ItemStore) else 0

    def data_ids(self) -> list[str]:
        """Data ids that items have now; see `take_used`."""
        with self._lock:
            return self._used.ids() if self._used is not None else []

    def take_used(self) -> list[str]:
        """Data ids (items' ``data_id``) that no item has any more, since the last call.

        Empty without `enable_track_used_data`; items given as columns name none. Whoever owns the
        files removes them, or not.
        """
        with self._lock:
            return self._used.take() if self._used is not None else []

    def take_new(self) -> list[str]:
        """Data ids that items have now and had not at the last call; see `take_used`.

        A data id that came and went since the last calls is returned by both, if this one is first.
        """
        with self._lock:
            return self._used.take_new() if self._used is not None else []

    def __getattr__(self, name: str) -> Any:
        """What DI-engine's buffers keep by such names (``_data``, ``_tail``, ...): copies."""
        key = name.removeprefix("_")
        if key == name or key not in STATE_KEYS or "_ring" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        state = self.state_dict()
        if key not in state:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return state[key]

    def state_dict(self) -> BufferState:
        """Everything, copied, by DI-engine's keys; see `BufferState`.

        Its attribute `own` is the state as it is saved, the random generator's among it; None once
        a key was set or removed, or a value was changed in place.
        """
        with self._lock:
            return BufferState(self._state())

    def load_state_dict(self, _state_dict: Mapping[str, Any], deepcopy: bool = False) -> None:  # noqa: ARG002
        """Become the buffer of a `state_dict` (always copied).

        One of DI-engine's, with ``data`` and ``tail``, is read as well, and its items keep their
        ids where it has ``next_unique_id``; ``data`` alone is a list of items that are pushed.

        Raises:
            BufferContractError: it was of another capacity (DI-engine's: of a larger one), stores
                frames of other columns, or is none; then the buffer stays as it is.
        """
        with self._lock:
            if isinstance(_state_dict, BufferState):
                _state_dict = _state_dict.own or _state_dict
            if "ring" in _state_dict:
                self._restore(_state_dict)
                return
            if "data" not in _state_dict:
                raise BufferContractError("a buffer's state has a key 'data'")
            items = list(_state_dict["data"])
            if "tail" in _state_dict:
                if len(items) > self.replay_buffer_size:
                    self._check_capacity({"capacity": len(items)})
                tail = int(_state_dict["tail"])
                items = items[tail:] + items[:tail]
            items = [*dropwhile(lambda item: item is None, items)]
            if "tail" in _state_dict:
                self.clear()
                if "next_unique_id" in _state_dict:
                    self._begin_at(max(0, int(_state_dict["next_unique_id"]) - len(items)))
            self._adopt(items, _state_dict)

    def save_data(self, file_name: str | Path, *, fsync: bool = True) -> None:
        """Write the state to an HDF5 file that appears whole, or not at all.

        If `fsync`, it is forced to disk before it gets its name, so a power cut leaves it or the
        older one; a process that is killed leaves either, in any case.

        Columns are not copied for it, so other threads wait until the file is there.

        Raises:
            SnapshotError: an item holds what cannot be stored, or the disk refuses the file.
        """
        with self._lock:
            try:
                state = self._state(shared=True)
            except CommError as error:
                raise SnapshotError(file_name, f"items cannot be stored: {error}") from error
            save_state(file_name, self.kind, STATE_VERSION, state, fsync=fsync)

    def load_data(self, file_name: str | Path) -> None:
        """Become the buffer of a file.

        Raises:
            NoFileError: it is missing.
            SnapshotError: it is torn, of another kind of buffer or schema, or hickle's.
        """
        if not Path(file_name).is_file():
            raise NoFileError(file_name, "there is no such file")
        state = load_state(file_name, self.kind, STATE_VERSION)
        with self._lock:
            self._restore(state, shared=True)

    def _state(self, shared: bool = False) -> dict[str, Any]:
        """See `state_dict`; if `shared`, some of its arrays are the buffer's own memory."""
        return {**self._about_items(), "ring": self._ring.state_dict(shared)}

    def _about_items(self) -> dict[str, Any]:
        """The state without the items themselves."""
        return {
            "capacity": self.replay_buffer_size,
            "rng": {"state": self._rng.bit_generator.state},
        }

    def _restore(self, state: Mapping[str, Any], shared: bool = False) -> None:
        """See `load_state_dict`; if `shared`, arrays may become the buffer's own."""
        self._check_capacity(state)
        ring = self._new_ring(0, int(state["ring"]["capacity"]))
        ring.load_state_dict(state["ring"], shared)
        self._become(ring, state)

    def _adopt(self, items: list[Any], state: Mapping[str, Any]) -> None:
        """Hold items of DI-engine's buffer, the oldest first; `state` is all of its state.

        Args:
            items: the items; None where one was dropped.
            state: of the whole buffer.
        """
        items = [item for item in items if item is not None]
        if items:
            self._note(self._push_list(items))
        if "push_count" in state:
            self._count_pushed(int(state["push_count"]))

    def _begin_at(self, first_id: int) -> None:
        """Let the next item of an empty buffer have an id, `push_count` staying as it is."""
        ids = self._ring.ids()
        self._ring.restore({name: one + first_id - ids["pushed"] for name, one in ids.items()})

    def _count_pushed(self, count: int) -> None:
        """Let `push_count` be a number."""
        self._ring.origin = self._ring.pushed - count

    def _check_capacity(self, state: Mapping[str, Any]) -> None:
        saved, size = state["capacity"], self.replay_buffer_size
        if saved != size:
            raise BufferContractError(
                f"the saved buffer holds {saved} items, this one {size} (replay_buffer_size)"
            )

    def _become(self, ring: Ring, state: Mapping[str, Any]) -> None:
        """Hold the items of `ring`, and be otherwise as `state` says."""
        self._ring.forget(self._ring.pushed)
        self._begin(ring)
        self._rng.bit_generator.state = state["rng"]["state"]

    def _begin(self, ring: Ring) -> None:
        """Hold the items of `ring` from now on."""
        self._ring = ring

    def _new_ring(self, first_id: int, capacity: int = 0) -> Ring:
        return Ring(
            capacity or self.replay_buffer_size,
            first_id,
            frames=self._cfg.frames,
            copies=self._cfg.deepcopy,
            used=self._used,
        )

    def _push_one(self, item: Any) -> int:
        """Add an item; returns 1."""
        self._ring.append(item)
        return 1

    def _push_list(self, items: list[Any]) -> int:
        """Add at least one item; returns how many."""
        self._ring.extend(items)
        return len(items)

    def _push_columns(self, columns: Mapping[str, Any]) -> int:
        """Add items given as columns; returns how many."""
        before = self._ring.pushed
        self._ring.extend_columns(columns)
        return self._ring.pushed - before

    @abstractmethod
    def _new_monitor(self, tb_logger: Any) -> Any:
        """Returns what counts pushed and drawn items, and reports them."""

    @abstractmethod
    def _note(self, pushed: int = 0, drawn: int = 0) -> None:
        """Count pushed and drawn items; report if it is time; see `_remove_used`."""

    @abstractmethod
    def _report(self) -> None:
        """Report what was pushed and drawn since the last time."""

    def _remove_used(self) -> None:
        """Remove the files that no item names any more, after `start`."""
        if self._removes and self._used is not None:
            for data_id in self._used.take():
                Path(data_id).unlink(missing_ok=True)

    @staticmethod
    def _shaped(columns: dict[str, Any], tensors: bool, pin_memory: bool) -> dict[str, Any]:
        """Columns that were read, as the caller wants them: arrays or tensors, nested."""
        if tensors or pin_memory:
            columns = share_tensors(columns, pin_memory=pin_memory)
        return unflatten(columns) if "/" in "".join(columns) else columns
