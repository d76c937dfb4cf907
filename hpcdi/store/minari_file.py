"""Episodes in the HDF5 file of a Minari dataset (its format of 0.5: a group an episode).

Minari's own writer makes each array growable, which costs 20 KiB and a millisecond an array; what
is written here is whole, and read by Minari as its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

MINARI_FILE = "main_data.hdf5"


def write_episodes(folder: Path, episodes: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Write episodes into a new dataset's file; returns their number, and their steps.

    Args:
        folder: the dataset's ``data``, which Minari has made.
        episodes: ``observations`` [steps + 1, ...]; ``actions``, ``rewards``, ``terminations``,
            ``truncations`` [steps, ...]; ``infos``. Arrays, or dicts and tuples of them. And
            ``metadata``: what is known of the whole episode, numbers and texts.

    Raises:
        OSError: the disk is full.
    """
    count = steps = 0
    with h5py.File(folder / MINARI_FILE, "w", libver="latest") as file:
        for episode in episodes:
            group = file.create_group(f"episode_{count}")
            group.attrs["id"] = count
            group.attrs["total_steps"] = len(episode["rewards"])
            for name, value in episode["metadata"].items():
                group.attrs[name] = value
            for name, value in episode.items():
                if name != "metadata":
                    _write(group.id, name, value)
            count, steps = count + 1, steps + len(episode["rewards"])
    return count, steps


def _write(group: h5py.h5g.GroupID, name: str, value: object) -> None:
    """Write an array, or a group of them; by HDF5's calls, at a fifth of h5py's cost."""
    if isinstance(value, tuple):
        value = {f"_index_{number}": part for number, part in enumerate(value)}
    if isinstance(value, Mapping):
        inner = h5py.h5g.create(group, name.encode())
        for key, part in value.items():
            _write(inner, str(key), part)
        return
    array = np.ascontiguousarray(value)
    kind = h5py.h5t.py_create(array.dtype, logical=True)
    place = h5py.h5d.create(group, name.encode(), kind, h5py.h5s.create_simple(array.shape))
    place.write(h5py.h5s.ALL, h5py.h5s.ALL, array)
