"""Saved state: a tree of arrays and plain data in one HDF5 file that appears whole.

A `state_dict` is a nested dict whose leaves are numpy arrays, numbers, texts, None, or lists of
plain data. Arrays become datasets with a crc32 each, everything else one JSON text. The file says
what `kind` of state it holds, of which format, and is refused where either differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from hpcdi import __version__
from hpcdi.errors import SnapshotError
from hpcdi.store.atomic import published
from hpcdi.store.checksum import crc32_of, crc32_of_array
from hpcdi.store.files import check_file
from hpcdi.store.hdf5 import DAMAGE, dataset_of, other_format, read_attributes
from hpcdi.store.structure import write_arrays
from hpcdi.utils.nested import flatten, parse_json, unflatten

KIND = "hpcdi-state"
"""What the HDF5 attribute ``format`` says."""
_HICKLE = (
    "was written by hickle, which may run what it reads: call hickle.load yourself, where you "
    "trust the file, and give what it returns to load_state_dict"
)


def save_state(
    path: str | Path, kind: str, version: int, state: Mapping[str, Any], *, fsync: bool = True
) -> None:
    """Write the state of a component.

    Args:
        path: file to write; an older one is replaced only when the new one is whole.
        kind: what the state is of, e.g. ``"coordinator"``.
        version: number of the kind's format.
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


def load_state(path: str | Path, kind: str, version: int) -> dict[str, Any]:
    """Read and verify the state of a component.

    Args:
        path: file to read.
        kind: what the state must be of.
        version: number of the kind's format.

    Raises:
        SnapshotError: missing, torn, of another kind or of another format.
    """
    stored_kind, stored_version, state = read_state(path)
    if stored_kind != kind:
        raise SnapshotError(path, f"holds the state of {stored_kind!r}, not of {kind!r}")
    if stored_version != version:
        raise SnapshotError(path, other_format(f"a saved {kind}", stored_version, version))
    return state


def read_state(path: str | Path) -> tuple[str, int, dict[str, Any]]:
    """Kind, format and tree of any state file, verified; see `load_state`.

    Raises:
        SnapshotError: missing, torn, or not a state file.
    """
    try:
        with h5py.File(check_file(path), "r", locking=False) as file:
            attributes = read_attributes(file)
            if "HICKLE_VERSION" in attributes:
                raise SnapshotError(path, _HICKLE)
            if attributes.get("format") != KIND:
                raise SnapshotError(path, "is an HDF5 file, but not saved state of hpcdi")
            text = bytes(dataset_of(file, "text")[()])
            if crc32_of(text) != attributes["text_crc32"]:
                raise SnapshotError(path, "checksum of its text is wrong: the file is torn")
            header, leaves = parse_json(text), {}
            for name, crc32 in header["checksums"].items():
                dataset = dataset_of(file, f"arrays/{name}")
                leaves[name] = np.asarray(dataset[()], dataset.dtype)
                if crc32_of_array(leaves[name]) != crc32:
                    raise SnapshotError(path, f"checksum of {name!r} is wrong: the file is torn")
            state = unflatten({**leaves, **header["plain"]})
            return str(header["kind"]), int(header["version"]), state
    except DAMAGE as error:
        raise SnapshotError(path, f"cannot be read: {error}") from error


def _write(file: IO[bytes], kind: str, version: int, state: Mapping[str, Any]) -> None:
    flat = flatten(state, keep_empty=True)
    arrays = {name: leaf for name, leaf in flat.items() if isinstance(leaf, np.ndarray)}
    header = {
        "kind": kind,
        "version": version,
        "plain": {
            name: leaf.item() if isinstance(leaf, np.generic) else leaf
            for name, leaf in flat.items()
            if name not in arrays
        },
        "checksums": {name: crc32_of_array(array) for name, array in arrays.items()},
    }
    text = json.dumps(header).encode()
    attributes = {"format": KIND, "kind": kind, "hpcdi_version": __version__}
    write_arrays(
        file,
        {"text": np.array(text)} | {f"arrays/{name}": array for name, array in arrays.items()},
        {**attributes, "text_crc32": crc32_of(text)},
    )
