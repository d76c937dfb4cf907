"""Common to all HDF5 files of a run: their attributes, and the errors of damaged ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from hpcdi.utils.nested import PARSE_ERRORS

LIBVER = ("v110", "v110")
"""File format with checksums on HDF5's own structures: damage there is seen instead of followed.
Every HDF5 since 1.10 (2016) reads it."""

DAMAGE = (OSError, *PARSE_ERRORS)
"""Errors that h5py raises for damaged files; parsing their content raises these too."""

_LARGEST_RATIO = 1100
"""Of a dataset to its bytes in the file; zlib, with which other tools may have repacked it, comes
to 1032. A larger one is declared, but not there."""


def other_format(what: str, number: object, read: int) -> str:
    """Why a file of another format is refused."""
    return f"is {what} of format {number}; this hpcdi reads format {read}"


def write_attributes(file: h5py.File, attributes: Mapping[str, Any]) -> None:
    """Write attributes; texts in place, not in HDF5's heap, which has no checksum.

    Raises:
        TypeError: a value is neither a text nor a number.
    """
    for name, value in attributes.items():
        file.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value


def read_attributes(file: h5py.File) -> dict[str, Any]:
    """All attributes as Python's texts and numbers."""
    return {name: _plain(value) for name, value in file.attrs.items()}


def dataset_of(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset whose bytes lie in this file, and are not many more than the file has.

    Raises:
        KeyError: there is none of that name. ValueError: it is a group; it, or a group around it,
            is a link; its bytes are in another file; or it declares more than the file holds.
    """
    parts = name.split("/")
    for depth in range(1, len(parts) + 1):
        path = "/".join(parts[:depth])
        kind = file.get(path, getclass=True, getlink=True)
        if kind is None:
            raise KeyError(f"there is no {path!r}")
        if kind is not h5py.HardLink:
            raise ValueError(f"{path!r} is a link, which is not followed")
    if file.get(name, getclass=True) is not h5py.Dataset:
        raise ValueError(f"{name!r} is no dataset")
    dataset = file[name]
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"the bytes of {name!r} are in another file, which is not read")
    stored = dataset.id.get_storage_size()
    if stored > file.id.get_filesize() or dataset.nbytes > _LARGEST_RATIO * stored:
        raise ValueError(f"{name!r} declares {dataset.nbytes} bytes, which the file does not hold")
    return dataset


def _plain(value: object) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value
