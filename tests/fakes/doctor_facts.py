"""A healthy folder, as the doctor sees it."""

from __future__ import annotations

import stat

from hpcdi.commands.doctor.files import Folder
from hpcdi.store.probe import Space

GIB = 1 << 30
ROOM = Space(500 * GIB, 1000 * GIB, 10**7, 10**8)
FOLDER = Folder("/scratch/me", "lustre", "/scratch", ROOM, 0o022, stat.S_IFDIR | 0o755, "")
