"""Command lines of this Python that do not import what happens to lie in the present folder."""

from __future__ import annotations

import importlib.machinery
import os
import sys

SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
"""Environment variable by which a Python that is started leaves out the present folder."""


def python_command(*words: str) -> list[str]:
    """Returns the command ``python -m ...``, without the present folder on its path.

    There, ``random.py`` would take the place of the standard library's, and a module of somebody
    else that of an optional package. Only where hpcdi itself is found nowhere else (a checkout that
    is not installed), Python searches it; `leave_present_folder` sees to the rest.
    """
    return [sys.executable, *(["-P"] if _is_found_elsewhere() else []), "-m", *words]


def leave_present_folder() -> None:
    """Take from the path what ``python -m`` has put first; a checkout that is used comes last.

    And what an empty entry of PYTHONPATH stands for, here and in what this process starts:
    ``PYTHONPATH=$PYTHONPATH:/x`` has one where the variable was unset, and nobody means it.
    """
    if is_spawned_child():
        return  # it has its parent's path, experiments' folders included
    named = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if os.pathsep in os.environ.get("PYTHONPATH", "") and _present() not in named:
        os.environ["PYTHONPATH"] = os.pathsep.join(named)
        first = 0 if sys.flags.safe_path else 1
        sys.path[first:] = [x for x in sys.path[first:] if x not in ("", _present())]
    if sys.flags.safe_path or not sys.path or sys.path[0] not in ("", _present()):
        return
    del sys.path[0]
    if not _is_found_elsewhere():
        sys.path.append(_present())


def is_spawned_child() -> bool:
    """Returns whether this is a child of `multiprocessing` that imports its parent's program."""
    processes = sys.modules.get("multiprocessing.process")
    return bool(processes and getattr(processes.current_process(), "_inheriting", False))


def _is_found_elsewhere() -> bool:
    path = [folder for folder in sys.path if folder not in ("", _present())]
    if importlib.machinery.PathFinder.find_spec("hpcdi", path) is not None:
        return True
    from importlib import metadata  # not before the present folder has left: it imports much

    try:
        files = metadata.distribution("hpcdi").files or ()
    except metadata.PackageNotFoundError:
        return False
    return any(file.suffix in (".pth", ".py") for file in files)  # an editable installation


def _present() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 (before anything is imported)
    except FileNotFoundError:
        return ""
