"""Saved state: a tree of arrays and scalars in one HDF5 file that appears whole.

A `state_dict` is a nested dict whose leaves are numpy arrays, numbers, texts, None, or lists of
plain data. Arrays become datasets with a crc32 each, everything else one JSON text. The file says
what `kind` of state it holds and under which schema version, and is refused where either differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from hpcdi import __version__
from hpcdi.errors import SnapshotError
from hpcdi.store.atomic import published
from hpcdi.store.checksum import crc32_of, crc32_of_array
from hpcdi.store.hdf5 import DAMAGE, dataset_of, other_format, read_attributes
from hpcdi.store.image import THREADS, Draft, read_arrays, write_pieces
from hpcdi.utils.nested import flatten, parse_json, unflatten

KIND = "hpcdi-state"
"""What the HDF5 attribute ``format`` says."""


def save_state(
    path: str | Path, kind: str, version: int, state: Mapping[str, Any], *, fsync: bool = True
) -> None:
    """Write the state of a component.

    Args:
        path: file to write; an older one is replaced only when the new one is whole.
        kind: what the state is of, e.g. ``"coordinator"``.
        version: version of the kind's schema.
        state: the tree.
        fsync: force it to disk before it gets its name.

    Raises:
        SnapshotError: the tree holds something that is neither an array nor JSON, or the file
            system refuses the file.
    """
    try:
        with published(path, fsync=fsync) as file:
            _write(file, kind, version, state)
    except (TypeError, ValueError) as error:
        raise SnapshotError(path, f"state of {kind!r} cannot be stored: {error}") from error
    except OSError as error:
        raise SnapshotError(path, f"cannot be written: {error.strerror or error}") from error


def load_state(path: str | Path, kind: str, version: int, *, lent: bool = False) -> dict[str, Any]:
    """Read and verify the state of a component.

    Args:
        path: file to read.
        kind: what the state must be of.
        version: of the kind's schema.
        lent: its arrays may be the file's own pages, read-only: for who copies them at once.

    Raises:
        SnapshotError: missing, torn, of another kind or of another schema version.
    """
    found_kind, found_version, state = read_state(path, lent)
    if found_kind != kind:
        raise SnapshotError(path, f"holds the state of {found_kind!r}, not of {kind!r}")
    if found_version != version:
        raise SnapshotError(path, other_format(f"a saved {kind}", found_version, version))
    return state


def read_state(path: str | Path, lent: bool = False) -> tuple[str, int, dict[str, Any]]:
    """Kind, schema version and tree of any state file, verified; see `load_state`.

    Raises:
        SnapshotError: missing, torn, or not a state file.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            attributes = read_attributes(file)
            if attributes.get("format") != KIND:
                raise SnapshotError(path, "is an HDF5 file, but not saved state of hpcdi")
            text = bytes(dataset_of(file, "text")[()])
            if crc32_of(text) != attributes["text_crc32"]:
                raise SnapshotError(path, "checksum of its text is wrong: the file is torn")
            header = parse_json(text)
            datasets = {name: dataset_of(file, f"arrays/{name}") for name in header["checksums"]}
            arrays, found = read_arrays(path, datasets, lent)
            wrong = [name for name, crc32 in header["checksums"].items() if found[name] != crc32]
            if wrong:
                raise SnapshotError(path, f"checksum of {wrong[0]!r} is wrong: the file is torn")
            state = unflatten({**arrays, **header["plain"]})
            return str(header["kind"]), int(header["version"]), state
    except DAMAGE as error:
        raise SnapshotError(path, f"cannot be read: {error}") from error


def _write(file: IO[bytes], kind: str, version: int, state: Mapping[str, Any]) -> None:
    """Write a state; checksums are taken while the arrays are on their way."""
    flat = flatten(state, keep_empty=True)
    arrays = {n: np.asarray(v, order="C") for n, v in flat.items() if isinstance(v, np.ndarray)}
    header = {
        "kind": kind,
        "version": version,
        "plain": {n: _plain(v) for n, v in flat.items() if n not in arrays},
    }
    with ThreadPoolExecutor(THREADS) as pool, Draft() as draft:
        checksums = pool.map(crc32_of_array, arrays.values())
        draft.add({f"arrays/{name}": array for name, array in arrays.items()})
        write_pieces(file, draft.pending())
        header["checksums"] = dict(zip(arrays, checksums, strict=True))
        text = json.dumps(header).encode()
        draft.add({"text": np.array(text)})
        attributes = {"format": KIND, "kind": kind, "hpcdi_version": __version__}
        draft.finish({**attributes, "text_crc32": crc32_of(text)}).write_to(file)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
