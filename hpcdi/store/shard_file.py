"""A shard: an append log that is also a valid HDF5 file. One process adds blocks until it is full.

::

    HDF5's structure │ layout │ table of blocks │ column │ column │ ... │ columns of the item table
                                 ▲ a record of each block, written last     (sparse, at full size)

The file is laid out at its full size when it is created. To append a block, its bytes are written
to their places in every column and forced to disk, and only then its record is written, its first
byte last: a block without an intact record does not exist, so a kill or a full disk costs at most
the block that was being written.
Last, HDF5's structure gets the new number of rows, for common tools; hpcdi itself reads layout and
records, each with its own checksum. The layout has the file's name: a copy in another shard's place
is no shard of the run.

`item_start` counts from the file's first row here, so that the file can be read as one table;
everywhere else it counts from the block's first row.

Only the process that created a file appends to it. A block with other columns, or one for which
there is no room, begins a new file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from hpcdi import __version__
from hpcdi.dataclass import dataclass
from hpcdi.errors import ShardError
from hpcdi.store.atomic import published, refuse_if_full
from hpcdi.store.block import Block, check_items, checksum, row_bytes, row_columns
from hpcdi.store.checksum import crc32_of
from hpcdi.store.files import check_file, open_descriptor, open_file
from hpcdi.store.hdf5 import DAMAGE, dataset_of, other_format, read_attributes
from hpcdi.store.layout import block_name, shard_place
from hpcdi.store.structure import (
    ALIGNMENT,
    LARGEST_CHUNK_BYTES,
    GrowingStructure,
    Piece,
    aligned,
    bytes_of,
)
from hpcdi.types import (
    ITEM_DTYPE,
    ITEM_NAMES,
    NUMBERS,
    Array,
    Columns,
    ColumnSpec,
    RowView,
    ShardRef,
)
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.log import LOGGER
from hpcdi.utils.nested import parse_json, under

KIND, FORMAT = "hpcdi-block", 3
"""HDF5 attributes ``format`` and ``schema_version`` of a shard."""
SLOTS = 4096
"""Blocks that a shard has room for."""
SMALLEST_BYTES = 4 << 20
"""Size of a collector's first shard; each next one has room for twice what the one before held."""

_SLOT_BYTES = 512
_MARK = b"hpcdi-shard "
_HEAD_BYTES = 1 << 20  # in which the layout lies
_LAYOUT, _TABLE = "hpcdi/layout", "hpcdi/blocks"
_ANY_OFFSET = 10**18
_WRITING = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC  # a link leads to somebody else's file
_LARGEST_TABLE_BYTES = 64 << 20  # a layout that states more is damaged
_PAUSES_S = (0.005, 0.02, 0.05)  # from one look at a structure that seems damaged to the next


@dataclass(frozen=True)
class Record:
    """A line of a shard's table of blocks.

    Attributes:
        first_row, rows: where its rows are in every column.
        first_item, items: where its items are.
        crc32: checksum of all its bytes, column after column, as they are in the file.
        items_crc32: checksum of the bytes of its items alone.
        facts: see `Block`.
    """

    first_row: int
    rows: int
    first_item: int
    items: int
    crc32: int
    items_crc32: int
    facts: dict[str, Any]

    @property
    def ends(self) -> tuple[int, int]:
        """Rows and items of the shard up to the end of this block."""
        return self.first_row + self.rows, self.first_item + self.items


@dataclass(frozen=True)
class ShardLayout:
    """Where everything lies in a shard.

    Attributes:
        columns: row columns, then the columns of the item table, at their full length.
        views, tail_rows: see `Block`.
        table: offset of the table of blocks.
        slots: records that it has room for.
        slot_bytes: bytes of one record.
        name: path of the file in its run folder.
    """

    columns: tuple[ColumnSpec, ...]
    views: tuple[RowView, ...]
    tail_rows: int
    table: int
    slots: int
    slot_bytes: int
    name: str

    def ref(self, name: str, record: Record) -> ShardRef:
        """The reference to a block, under its name."""
        specs = []
        for spec in self.columns:
            is_item = spec.name in ITEM_NAMES
            first, count = (
                (record.first_item, record.items) if is_item else (record.first_row, record.rows)
            )
            shape = (count, *spec.shape[1:])
            offset = spec.offset + first * spec.row_bytes if math.prod(shape) else 0
            specs.append(ColumnSpec(spec.name, spec.dtype, shape, offset))
        n_bytes = sum(spec.n_bytes for spec in specs)
        return ShardRef.of(name, n_bytes, record.rows, record.crc32, tuple(specs), self.views)

    def capacity(self) -> tuple[int, int]:
        """Rows and items that there is room for."""
        rows = [spec.shape[0] for spec in self.columns if spec.name not in ITEM_NAMES]
        return min(rows, default=0), self.columns[-1].shape[0]

    def lengths(self, blocks: int, rows: int, items: int) -> dict[str, int]:
        """Returns the length of each of the file's arrays when it holds this many of each."""
        columns = {s.name: items if s.name in ITEM_NAMES else rows for s in self.columns}
        return {_LAYOUT: 1, _TABLE: blocks, **columns}

    def end(self) -> int:
        """Returns the fewest bytes that the file can have."""
        ends = [spec.offset + spec.n_bytes for spec in self.columns]
        return max(*ends, self.table + self.slots * self.slot_bytes)

    def attributes(self) -> dict[str, Any]:
        """Returns the file's HDF5 attributes, by which other tools know it."""
        return {
            "format": KIND,
            "schema_version": FORMAT,
            "tail_rows": self.tail_rows,
            "views": json.dumps([dataclasses.asdict(view) for view in self.views]),
        }

    def encoded(self) -> bytes:
        """Returns it as bytes for the file, with a checksum."""
        return _MARK + _sealed({"schema_version": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def decoded(cls, text: bytes, size: int) -> Self:
        """Reads the layout of a file of `size` bytes.

        Raises:
            ValueError, LookupError, TypeError: it is damaged.
        """
        fields = _unsealed(text)
        if fields["schema_version"] != FORMAT:
            raise ValueError(other_format("a shard", fields["schema_version"], FORMAT))
        columns = tuple(
            ColumnSpec(**{**spec, "shape": tuple(map(int, spec["shape"]))})
            for spec in fields["columns"]
        )
        views = tuple(RowView(**view) for view in fields["views"])
        numbers = {n: int(fields[n]) for n in ("tail_rows", "table", "slots", "slot_bytes")}
        layout = cls(columns, views, **numbers, name=str(fields["name"]))
        sizes = [*numbers.values(), *(n for spec in columns for n in (*spec.shape, spec.offset))]
        names = tuple(spec.name for spec in columns)[-len(ITEM_NAMES) :]
        if (
            min(sizes) < 0
            or layout.end() > size
            or layout.slots * layout.slot_bytes > _LARGEST_TABLE_BYTES
            or names != ITEM_NAMES
            or any(np.dtype(spec.dtype).kind not in NUMBERS for spec in columns)
        ):
            raise ValueError("names places that the file does not have")
        return layout


class GrowingShard:
    """The shard that this process appends to.

    Args:
        path: path of the file.
        name: the same, relative to the run folder.
        like: the first block; later ones must have the same columns.
        n_bytes: bytes of rows that it has room for, or fewer, where a column would be larger than
            HDF5 allows; 0: for the first block alone.
        fsync: force every block to disk before its record is written.

    Raises:
        ShardError: the block's columns cannot be stored.
    """

    def __init__(self, path: Path, name: str, like: Block, n_bytes: int, *, fsync: bool) -> None:
        self.path, self._name, self._fsync = path, name, fsync
        self._slot = self._first_row = self._first_item = 0  # of the next block
        self._row_bytes = row_bytes(like.columns)
        try:
            self._lay_out(like, n_bytes)
        except (TypeError, ValueError) as error:
            raise ShardError(path, f"cannot be stored as HDF5: {error}") from error

    def _lay_out(self, like: Block, n_bytes: int) -> None:
        datasets = like.datasets()
        largest = max(row_bytes({name: array}) for name, array in datasets.items())
        most = LARGEST_CHUNK_BYTES // largest  # rows, and items, of which there are not more
        rows = max(like.rows, min(most, n_bytes // max(1, self._row_bytes)))
        # blocks may have up to twice as many items a row as the first one
        items = -(-2 * rows * len(like.items) // max(1, like.rows))
        items = max(min(rows, items), len(like.items))
        slots = SLOTS if n_bytes else 1
        # a record has facts and six numbers; other blocks' facts may be somewhat longer
        record = _sealed({**like.facts, "": [_ANY_OFFSET] * 6})
        slot_bytes = max(_SLOT_BYTES, 1 << (2 * len(record)).bit_length())
        lengths = {name: items if name in ITEM_NAMES else rows for name in datasets}
        specs = tuple(
            ColumnSpec(name, array.dtype.str, (lengths[name], *array.shape[1:]), _ANY_OFFSET)
            for name, array in datasets.items()
        )
        draft = ShardLayout(
            specs, like.views, like.tail_rows, _ANY_OFFSET, slots, slot_bytes, self._name
        )
        self._structure = GrowingStructure(
            {
                _LAYOUT: (np.dtype(f"S{len(draft.encoded())}"), (1,)),
                _TABLE: (np.dtype(f"S{slot_bytes}"), (slots,)),
                **{spec.name: (np.dtype(spec.dtype), spec.shape) for spec in specs},
            },
            {**draft.attributes(), "hpcdi_version": __version__},
        )
        offsets = self._structure.offsets
        self._layout = dataclasses.replace(
            draft,
            columns=tuple(dataclasses.replace(s, offset=offsets[s.name]) for s in specs),
            table=offsets[_TABLE],
        )
        self._layout_piece = (offsets[_LAYOUT], self._layout.encoded())
        if offsets[_LAYOUT] + len(self._layout_piece[1]) > _HEAD_BYTES:
            raise ValueError("has too many columns")

    @property
    def used_bytes(self) -> int:
        """Bytes of the rows that it holds."""
        return self._first_row * self._row_bytes

    def takes(self, block: Block) -> bool:
        """Returns whether it has the same columns as a block, and room for it."""
        layout = self._layout
        rows, items = layout.capacity()
        specs = [(name, a.dtype.str, a.shape[1:]) for name, a in block.datasets().items()]
        return (
            self._slot < layout.slots
            and self._first_row + block.rows <= rows
            and self._first_item + len(block.items) <= items
            and (block.views, block.tail_rows) == (layout.views, layout.tail_rows)
            and specs == [(s.name, s.dtype, s.shape[1:]) for s in layout.columns]
        )

    def create(self, block: Block) -> ShardRef:
        """Write the file with a first block; it gets its name when it is complete.

        Raises:
            OSError: the file system refuses it. ShardError: see `append`.
        """
        record, pieces, record_piece = self._prepared(block)
        with published(self.path, fsync=self._fsync) as file:
            file.truncate(self._structure.size)
            _write(file.fileno(), [self._shape(record), self._layout_piece, *pieces, record_piece])
        return self._advance(record)

    def append(self, block: Block) -> ShardRef:
        """Write a block that it `takes`; where that fails, the file holds what it held.

        The file is opened and closed each time: network file systems show others what was written
        when it is closed.

        Raises:
            OSError: the file system refuses it. ShardError: its facts cannot be stored.
        """
        refuse_if_full(self.path)
        record, pieces, record_piece = self._prepared(block)
        file = os.open(self.path, _WRITING)
        try:
            _write(file, pieces)
            if self._fsync:
                os.fsync(file)
            _write_record(file, record_piece)
            _write(file, [self._shape(record)])
        finally:
            os.close(file)
        return self._advance(record)

    def _prepared(self, block: Block) -> tuple[Record, list[Piece], Piece]:
        """Returns a block's record, the pieces of its columns, and the piece with the record."""
        datasets = block.datasets()
        datasets["item_start"] = datasets["item_start"] + np.int32(self._first_row)
        items = {name: datasets[name] for name in ITEM_NAMES}
        counts = self._first_row, block.rows, self._first_item, len(block.items)
        record = Record(*counts, checksum(datasets), checksum(items), block.facts)
        try:
            text = _sealed(dataclasses.asdict(record))
        except (TypeError, ValueError) as error:
            raise ShardError(self.path, f"facts of a block cannot be stored: {error}") from error
        if len(text) > self._layout.slot_bytes:
            raise ShardError(self.path, f"facts of a block take {len(text)} bytes, too many")
        ref = self._layout.ref("", record)
        pieces: list[Piece] = [
            (spec.offset, bytes_of(datasets[spec.name])) for spec in ref.columns if spec.n_bytes
        ]
        slot_bytes = self._layout.slot_bytes
        at = self._layout.table + self._slot * slot_bytes
        return record, pieces, (at, text.ljust(slot_bytes, b"\0"))

    def _shape(self, record: Record) -> Piece:
        """Returns the HDF5 structure with which tools see the rows up to the end of a block."""
        return self._structure.resized(self._layout.lengths(self._slot + 1, *record.ends))

    def _advance(self, record: Record) -> ShardRef:
        """Returns a reference to the block that was written; the next one goes behind it."""
        ref = self._layout.ref(block_name(self._name, self._slot), record)
        self._slot += 1
        self._first_row, self._first_item = record.ends
        return ref


class ShardReader:
    """The table of blocks of a shard.

    Args:
        path: the file.
        name: its path in references.

    Attributes:
        layout: where everything lies.
        disk_bytes: bytes that it takes on its disk, without holes.

    Raises:
        ShardError: it is missing, no shard, of another format, in another shard's place, or its
            layout is damaged.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        try:
            with open_file(path) as file:
                head, state = file.read(_HEAD_BYTES), os.fstat(file.fileno())
                size, self.disk_bytes = state.st_size, 512 * state.st_blocks
                self._head, mark, text = head.partition(_MARK)
                if not mark:
                    raise ShardError(path, _why_no_layout(path))
                self.layout = ShardLayout.decoded(text, size)
                file.seek(self.layout.table)
                self._table = file.read(self.layout.slots * self.layout.slot_bytes)
        except OSError as error:
            raise ShardError(path, f"cannot be read: {error.strerror or error}") from error
        except DAMAGE as error:
            raise ShardError(path, f"its layout cannot be read: {error}") from error
        self._size = size
        self._check_place()

    def _check_place(self) -> None:
        """Check that it is in no other shard's place, where its data would count twice.

        A copy in any other place is read like the file itself.

        Raises:
            ShardError: it is.
        """
        # the name where it has folders: the path does not show a link that was followed
        place = Path(self.name) if "/" in self.name else self.path
        written = Path(self.layout.name)  # of no place: it was not written by a run
        is_there = place.parts[-3:] == written.parts[-3:]  # rank, hour, number
        if shard_place(written) and shard_place(place) and not is_there:
            raise ShardError(place, f"is another shard's file: it was written as {written}")

    def check_structure(self) -> None:
        """Check that by HDF5's structure common tools read the same rows as hpcdi.

        The structure may lack the last block, if the process was killed while it wrote it. Where
        the shard grows, it may be seen while it changes, and is looked at again.

        Raises:
            ShardError: tools read other rows, or none.
        """
        for pause_s in _PAUSES_S:
            with contextlib.suppress(ShardError):
                self._check_structure()
                return
            wait_s(pause_s)
        self._check_structure()

    def _check_structure(self) -> None:
        """Check the structure as it is now, against the blocks that are there then."""
        try:
            if self._size > self.layout.end() + ALIGNMENT:
                raise ValueError(f"{self._size - self.layout.end()} bytes follow its last column")
            with h5py.File(check_file(self.path), "r", locking=False) as file:
                attributes = read_attributes(file)
                for name, value in self.layout.attributes().items():
                    if attributes.get(name) != value:
                        raise ValueError(f"its attribute {name} is {attributes.get(name)!r}")
                lengths = self._lengths_in(file)
            now = ShardReader(self.path, self.name)  # later: a block is in the table first
            ends = [(slot + 1, *r.ends) for slot, r in now.records() if isinstance(r, Record)]
        except DAMAGE as error:
            raise ShardError(self.path, f"common tools do not read it: {error}") from error
        if ends and not any(lengths.items() <= self.layout.lengths(*e).items() for e in ends):
            raise ShardError(self.path, f"common tools read other rows of it: {lengths}")

    def _lengths_in(self, file: h5py.File) -> dict[str, int]:
        """Lengths of all arrays by HDF5's structure.

        Raises:
            LookupError, OSError, TypeError, ValueError: one is not where, or what, it should be.
        """
        places = {
            _LAYOUT: (len(self._head), None, ()),
            _TABLE: (self.layout.table, None, ()),
            **{s.name: (s.offset, np.dtype(s.dtype), s.shape[1:]) for s in self.layout.columns},
        }
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if _is_dataset(item) else None)
        if sorted(names) != sorted(places):
            raise ValueError(f"it holds {sorted(set(names) ^ set(places))}")
        lengths = {}
        for name, (offset, dtype, shape) in places.items():
            dataset = dataset_of(file, name)
            properties = dataset.id.get_create_plist()
            if dtype is not None and (dataset.dtype, dataset.shape[1:]) != (dtype, shape):
                raise ValueError(f"{name!r} is of another type or shape")
            if properties.get_nfilters():
                raise ValueError(f"{name!r} is filtered")
            if properties.get_layout() == h5py.h5d.CHUNKED and dataset.size:
                piece = dataset.id.get_chunk_info(0)
                if dataset.id.get_num_chunks() != 1 or piece.byte_offset != offset:
                    raise ValueError(f"{name!r} lies elsewhere")
            if dataset.nbytes or not dataset.shape[0]:  # others have their full length
                lengths[name] = dataset.shape[0]
        return lengths

    def records(self) -> Iterator[tuple[int, Record | ShardError]]:
        """Yields the number of each block, and its record, or why it has no intact one."""
        n_bytes = self.layout.slot_bytes
        empty = bytes(n_bytes)  # as most slots are; comparing is far quicker than stripping
        for slot in range(self.layout.slots):
            written = self._table[slot * n_bytes : (slot + 1) * n_bytes]
            if written != empty and written[0]:  # else it was not finished
                yield slot, self._record(slot, written.rstrip(b"\0"))

    def _record(self, slot: int, text: bytes) -> Record | ShardError:
        rows, items = self.layout.capacity()
        try:
            record = Record(**_unsealed(text))
            if (
                min(record.first_row, record.rows, record.first_item, record.items) < 0
                or record.ends[0] > rows
                or record.ends[1] > items
            ):
                raise ValueError("it names rows that the file does not have")
        except DAMAGE as error:
            return ShardError(self.path, f"the record of block {slot} is damaged: {error}")
        return record

    def survey(self, slot: int, record: Record) -> tuple[ShardRef, Block]:
        """Returns a reference to a block, and the block without its rows, which are not read.

        Raises:
            ShardError: its items are damaged.
        """
        ref = self.layout.ref(block_name(self.name, slot), record)
        items = self._arrays(ref.columns[-len(ITEM_NAMES) :])
        if checksum(items) != record.items_crc32:
            raise ShardError(self.path, f"checksum of the items of block {slot} is wrong")
        return ref, self._block(record, {}, items)

    def read(self, slot: int, record: Record) -> Block:
        """Returns a block, its checksum verified.

        Raises:
            ShardError: it is damaged.
        """
        ref = self.layout.ref(block_name(self.name, slot), record)
        datasets = self._arrays(ref.columns)
        if checksum(datasets) != record.crc32:
            raise ShardError(self.path, f"checksum of block {slot} is wrong: the file is torn")
        return self._block(record, row_columns(datasets), datasets)

    def read_columns(self, slot: int, record: Record, names: Collection[str]) -> Block:
        """Returns a block with some of its row columns, which are not verified, and some views.

        Args:
            slot: number of the block.
            record: its record.
            names: names of columns and views, or what several begin with: ``observation``.

        Raises:
            ShardError: its items are damaged, or it cannot be read.
        """
        ref, block = self.survey(slot, record)
        specs = {spec.name: spec for spec in ref.columns[: -len(ITEM_NAMES)]}
        views = {view.name: view for view in self.layout.views}
        seen = {n: view for name in names for n, view in under(views, name).items()}
        for view in [*seen.values()]:  # one may be of another
            if view.column in views:
                seen[view.column] = views[view.column]
        sources = [name for view in seen.values() for name in (view.column, view.offset)]
        wanted = {n: spec for name in (*names, *sources) for n, spec in under(specs, name).items()}
        columns = self._arrays([*wanted.values()])
        return dataclasses.replace(block, columns=columns, views=tuple(seen.values()))

    def _arrays(self, specs: Sequence[ColumnSpec]) -> Columns:
        try:
            return read_ranges(self.path, specs)
        except OSError as error:
            raise ShardError(self.path, f"cannot be read: {error}") from error

    def _block(self, record: Record, columns: Columns, items: Columns) -> Block:
        table = np.empty(record.items, ITEM_DTYPE)
        for name in ITEM_NAMES:
            table[name] = items[name]
        table["item_start"] -= record.first_row
        block = Block(columns, table, record.facts, self.layout.views, self.layout.tail_rows)
        check_items(block, record.rows, self.path)
        return block

    def withdraw(self, slot: int) -> None:
        """Remove this block and those after it from the table.

        For a run that repeats itself; the process that wrote the file must be dead.

        Raises:
            OSError: the file cannot be changed.
        """
        ends = [r.ends for s, r in self.records() if s < slot and isinstance(r, Record)]
        if not ends:
            self.path.unlink()
            return
        layout = self.layout
        withdrawn = [number for number, _ in self.records() if number >= slot]
        empty = bytes(layout.slot_bytes)
        pieces: list[Piece] = [(layout.table + s * layout.slot_bytes, empty) for s in withdrawn]
        rows, items = map(max, zip(*ends, strict=True))
        try:
            names = [_TABLE, *(spec.name for spec in layout.columns if spec.n_bytes)]
            structure = GrowingStructure.read(self._head, self._size, names)
            pieces.append(structure.resized(layout.lengths(slot, rows, items)))
        except DAMAGE as error:
            LOGGER.warning("%s: other tools see rows that were withdrawn: %s", self.path, error)
        file = os.open(self.path, _WRITING)
        try:
            _write(file, pieces)
            os.fsync(file)
        finally:
            os.close(file)


def _is_dataset(item: object) -> bool:
    return isinstance(item, h5py.Dataset)


def _why_no_layout(path: Path) -> str:
    """Returns what is wrong with a file that has no layout, by its HDF5 attributes.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with h5py.File(check_file(path), "r", locking=False) as file:
            attributes = read_attributes(file)
    except DAMAGE as error:
        return f"cannot be read as HDF5: {error}"
    if attributes.get("format") != KIND:
        return "is an HDF5 file, but not a shard of hpcdi"
    if attributes.get("schema_version") != FORMAT:
        return other_format("a shard", attributes.get("schema_version"), FORMAT)
    return "has no layout of its blocks any more: the file is torn"


def read_ranges(path: Path, specs: Sequence[ColumnSpec]) -> Columns:
    """Reads arrays by name from their places in a file; they are views of one buffer.

    Raises:
        OSError: the file is missing, cannot be read, or ends too early.
    """
    starts = list(itertools.accumulate((aligned(spec.n_bytes) for spec in specs), initial=0))
    buffer, arrays = np.empty(starts[-1], np.uint8), {}
    file = open_descriptor(path)
    try:
        for spec, start in zip(specs, starts, strict=False):
            part = buffer[start : start + spec.n_bytes]
            _fill(file, part, spec.offset)
            arrays[spec.name] = part.view(spec.dtype).reshape(spec.shape)
    finally:
        os.close(file)
    return arrays


def _fill(file: int, part: Array, offset: int) -> None:
    view = part.data
    while view:
        count = os.preadv(file, [view], offset)
        if not count:
            raise OSError(f"ends at byte {os.fstat(file).st_size}, before what it should hold")
        view, offset = view[count:], offset + count


def _write(file: int, pieces: Sequence[Piece]) -> None:
    for offset, piece in pieces:
        view = memoryview(piece)
        while view:
            count = os.pwrite(file, view, offset)
            view, offset = view[count:], offset + count


def _write_record(file: int, piece: Piece) -> None:
    """Write a record, first byte last: where a disk takes a part of a record alone, it is none."""
    offset, text = piece
    _write(file, [(offset + 1, text[1:]), (offset, text[:1])])


def _sealed(value: Mapping[str, Any]) -> bytes:
    """Returns a mapping as JSON behind its checksum."""
    text = json.dumps(value).encode()
    return f"{crc32_of(text):08x} ".encode() + text


def _unsealed(text: bytes) -> dict[str, Any]:
    """Returns the mapping that `_sealed` wrote, from text that may go on after a zero byte.

    Raises:
        ValueError: it is damaged.
    """
    crc32, _, sealed = text.partition(b" ")
    json_text, _, _ = sealed.partition(b"\0")
    if f"{crc32_of(json_text):08x}".encode() != crc32:
        raise ValueError("its checksum is wrong")
    value = parse_json(json_text)
    if not isinstance(value, dict):
        raise ValueError("it is no mapping")  # noqa: TRY004 (a file, not an argument)
    return value
