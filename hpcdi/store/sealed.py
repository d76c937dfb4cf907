"""A run's config.yaml: text whose last line, a comment, has the checksum of all above it."""

from __future__ import annotations

from pathlib import Path

from hpcdi.store.atomic import write_bytes
from hpcdi.store.checksum import crc32_of
from hpcdi.store.files import open_file

_SEAL = b"# checksum of the lines above: "
_LARGEST_BYTES = 16 << 20


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
        return "its checksum is wrong"
    return ""
