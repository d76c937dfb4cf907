"""Reads what trackers have written; tests that need one are left out where it is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BLOCK, HEADER = 32_768, 7
"""Of a .wandb file: records lie in blocks, each after its checksum, length and type."""


def records(file: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data, place, parts = file.read_bytes(), HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if kind in (1, 4):  # whole, or a last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def needs(package: str) -> pytest.MarkDecorator:
    is_here = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not is_here, reason=f"NO {package}: not tested here")
