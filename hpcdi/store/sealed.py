"""Texts of a run with a checksum over every byte: config.yaml, run.json, manifests.

Of YAML the last line, a comment, has the checksum of all above it. A JSON file has it under the key
``crc32``, and is written in one way only: a file that holds the same in other bytes was changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdi.store.atomic import json_bytes, json_mapping, write_bytes, write_text
from hpcdi.store.checksum import crc32_of
from hpcdi.store.files import open_file
from hpcdi.utils.nested import jsonable

_SEAL = b"# checksum of the lines above: "
_KEY = "crc32"
_LARGEST_BYTES = 16 << 20
_NO_CHECKSUM, _WRONG_CHECKSUM = "it lacks its checksum", "its checksum is wrong"


def write_sealed(path: Path, text: str) -> None:
    """Publish a text with its checksum."""
    body = text.encode()
    write_bytes(path, body + _SEAL + f"{crc32_of(body):08x}\n".encode())


def change_of(path: Path) -> str:
    """Returns how a text differs from what `write_sealed` wrote; empty: it does not.

    Raises:
        OSError: it cannot be read.
    """
    with open_file(path, _LARGEST_BYTES) as file:
        body, seal, stated = file.read().rpartition(_SEAL)
    if not seal:
        return "it lacks its last line, the checksum"
    if stated != f"{crc32_of(body):08x}\n".encode():
        return _WRONG_CHECKSUM
    return ""


def write_sealed_json(path: Path, facts: Mapping[str, Any], *, fsync: bool = True) -> None:
    """Publish a JSON file with its checksum; see `jsonable` for what JSON does not know."""
    write_text(path, _sealed(jsonable(facts)), fsync=fsync)


def load_sealed_json(path: Path) -> dict[str, Any]:
    """Returns what `write_sealed_json` wrote, without the checksum.

    Raises:
        OSError: it cannot be read. ValueError: it was changed.
    """
    content = json_bytes(path)
    facts = json_mapping(content)
    if facts.pop(_KEY, None) is None:
        raise ValueError(_NO_CHECKSUM)
    if _sealed(facts).encode() != content:
        raise ValueError(_WRONG_CHECKSUM)
    return facts


def _sealed(facts: Mapping[str, Any]) -> str:
    crc32 = crc32_of(json.dumps(facts).encode())
    return json.dumps({**facts, _KEY: crc32}, indent=2) + "\n"
