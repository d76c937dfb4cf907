"""Notes where the main thread of each process is, until its first update; see `bench_start.py`.

Python imports this module at its start where ``HPCDI_START_WATCH`` names a folder.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

EVERY_S = 5e-3
FIRST_UPDATE = ("hpcdi.roles.learner.training", "update")
MACHINERY = ("importlib", "importlib._bootstrap", "importlib._bootstrap_external", "")
LONGEST_S = 120.0


def place_of(frame: FrameType | None) -> tuple[str, bool]:
    """Returns what a stack of calls does, in a word, and whether it is an update."""
    stack = []
    while frame is not None:
        stack.append((str(frame.f_globals.get("__name__", "")), frame.f_code.co_name))
        frame = frame.f_back
    is_update = FIRST_UPDATE in stack
    imported = ""
    for module, function in stack:  # from the innermost call
        package = module.partition(".")[0]
        if package == "hpcdi" and function != "<module>":
            return imported or f"{module}.{function}", is_update
        if function == "<module>" and module not in (*MACHINERY, "__main__"):
            # at last the outermost package that is not our own
            imported = f"import {package}" if package != "hpcdi" or not imported else imported
    return imported or "import: the interpreter's own", is_update


def watch(file: Path, main: int) -> None:
    """Write a line a sample: the time, the place."""
    ends = time.monotonic() + LONGEST_S
    with file.open("w", buffering=1) as log:
        while time.monotonic() < ends:
            place, is_update = place_of(sys._current_frames().get(main))
            log.write(f"{time.time():.4f} {place}\n")
            if is_update:
                log.write(f"{time.time():.4f} updates\n")
                return
            time.sleep(EVERY_S)


folder = os.environ.get("HPCDI_START_WATCH", "")
if folder:
    own = Path(folder) / f"{os.getpid()}.txt"
    arguments = (own, threading.get_ident())
    threading.Thread(target=watch, args=arguments, daemon=True).start()
