"""Common to all HDF5 files of a run: their attributes, and the errors of damaged ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

LIBVER = ("v110", "v110")
"""File format with checksums on HDF5's own structures: damage there is seen instead of followed.
Every HDF5 since 1.10 (2016) reads it."""

DAMAGE = (OSError, KeyError, TypeError, ValueError, RuntimeError)
"""Errors that h5py raises for damaged files; parsing their content raises these too."""


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


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value
