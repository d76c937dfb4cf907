"""The file that names the newest of several runs."""

from __future__ import annotations

from pathlib import Path

LATEST = "latest"
"""A file beside runs that has the name of the newest. A link to it would be a second run for
whatever follows links, as TensorBoard does."""


def newest(path: Path) -> Path:
    """Returns a path on which `LATEST`, where it is such a file, is the run that it names."""
    for part in (path, *path.parents):
        if part.name == LATEST and part.is_file():
            name = part.read_text(errors="replace").strip()
            is_name = bool(name) and name == Path(name).name and not name.startswith(".")
            if is_name and (part.parent / name).is_dir():
                return part.parent / name / path.relative_to(part)
    return path
