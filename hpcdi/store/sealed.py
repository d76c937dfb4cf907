"""Texts of a run with a checksum over every byte: config.yaml, run.json, manifests.

Of YAML the last line, a comment, has the checksum of all above it. A JSON file has it under the key
``crc32``, and is written in one way only: a file that holds the same in other bytes was changed.

A checksum of its own does not tell an old copy of a file that a run writes again and again under
one name from the newest one. So run.json has the checksums that they have when the run ends.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdi.store.atomic import json_bytes, json_mapping, write_bytes, write_text
from hpcdi.store.checksum import crc32_of, crc32_of_file
from hpcdi.store.files import open_file
from hpcdi.store.layout import RunLayout
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


def write_sealed_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Publish a JSON file with its checksum; see `jsonable` for what JSON does not know."""
    write_text(path, _sealed(jsonable(facts)))


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


def rewritten_files(layout: RunLayout) -> dict[str, int]:
    """Returns the checksums of config.yaml and the policies, by path relative to the run folder."""
    sums = {}
    for path in (layout.config_file, *layout.policy_files()):
        with contextlib.suppress(OSError), open_file(path) as file:
            sums[str(path.relative_to(layout.root))] = crc32_of_file(file)
    return sums


def other_files(layout: RunLayout, recorded: Mapping[str, object]) -> Iterator[str]:
    """Yields a line for each file that is not the one that the run wrote last.

    Args:
        layout: the run folder.
        recorded: what `rewritten_files` returned when the run ended.
    """
    there = rewritten_files(layout)
    for name, crc32 in recorded.items():
        if there.get(name) != crc32:
            how = "is an older copy, or another file" if name in there else "is gone"
            yield f"{layout.root / name}: is not what the run wrote last: it {how}"
