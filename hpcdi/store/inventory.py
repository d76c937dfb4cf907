"""Files that a run writes again and again under one name: which of them was the last.

A checksum of its own does not tell an old copy of such a file from the newest one. So run.json has
the checksums that they have when the run ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcdi.store.checksum import crc32_of_file
from hpcdi.store.files import open_file
from hpcdi.store.layout import RunLayout


def rewritten_files(layout: RunLayout) -> dict[str, int]:
    """Returns the checksums of config.yaml and the policies, by path relative to the run folder."""
    paths = [layout.config_file, *layout.policy_files()]
    sums = ((path, _crc32_of(path)) for path in paths)
    return {str(path.relative_to(layout.root)): crc32 for path, crc32 in sums if crc32 is not None}


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


def _crc32_of(path: Path) -> int | None:
    """Returns the checksum of a file; None: it cannot be read."""
    try:
        with open_file(path) as file:
            return crc32_of_file(file)
    except OSError:
        return None
