"""Shards of version 1, as earlier versions wrote them: a file for each block."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np

from fakes.store import image_of
from hpcdi import __version__
from hpcdi.errors import ShardError
from hpcdi.store.block import FORMAT, Block, check, checksum
from hpcdi.store.checksum import crc32_of
from hpcdi.store.image import Image
from hpcdi.store.layout import RunLayout
from hpcdi.types import Columns, ColumnSpec, ShardRef

SCHEMA_VERSION = 1
_HEADER_CRC = "header_crc32"


def write_old_shard(layout: RunLayout, path: str, block: Block) -> ShardRef:
    """Write one at `path`, relative to the run folder."""
    image, ref = encode(block, path)
    final = layout.inside(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    final.write_bytes(bytes(image))
    return ref


def encode(block: Block, path: str) -> tuple[Image, ShardRef]:
    """HDF5 image of a block and the reference that announces it under `path`.

    Raises:
        ShardError: columns differ in length or hold no numbers, or HDF5 cannot store a name or a
            fact.
    """
    check(block, path)
    datasets = block.datasets()
    crc32 = checksum(datasets)
    try:
        image, specs = _image(block, datasets, crc32)
    except (TypeError, ValueError) as error:
        raise ShardError(path, f"cannot be stored as HDF5: {error}") from error
    return image, ShardRef(path, image.size, block.rows, crc32, specs, block.views)


def _image(block: Block, datasets: Columns, crc32: int) -> tuple[Image, tuple[ColumnSpec, ...]]:
    header = {
        **block.facts,
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "hpcdi_version": __version__,
        "rows_used": block.rows,
        "tail_rows": block.tail_rows,
        "crc32": crc32,
        "columns": json.dumps(list(datasets)),
        "views": json.dumps([dataclasses.asdict(view) for view in block.views]),
    }
    image = image_of(datasets, {**header, _HEADER_CRC: _header_crc(header)})
    specs = [
        ColumnSpec(name, array.dtype.str, array.shape, image.offsets[name])
        for name, array in datasets.items()
    ]
    return image, tuple(specs)


def map_datasets(image: bytes | memoryview, ref: ShardRef) -> Columns:
    """All arrays of an image, as views of its bytes (no copy), by the reference's offsets."""
    arrays = {}
    for spec in ref.columns:
        count = math.prod(spec.shape)
        flat = np.frombuffer(image, np.dtype(spec.dtype), count, spec.offset)
        arrays[spec.name] = flat.reshape(spec.shape)
    return arrays


def _header_crc(header: dict[str, Any]) -> int:
    return crc32_of(json.dumps(header, sort_keys=True).encode())
