"""`latest` beside the runs: links to all that the newest run has, but its curves.

TensorBoard walks every folder below its ``--logdir`` and follows links: a link to the run itself
would show the run twice. So `latest` points to a folder that links to the run's entries::

    runs/x/latest -> .latest/20261121-233854
    runs/x/.latest/20261121-233854/run.json -> ../../20261121-233854/run.json
    runs/x/.latest/20261121-233854/data -> ../../20261121-233854/data

Whoever opens a run by it gets the run's own folder, see `RunLayout`: no link is ever replaced.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hpcdi.store.layout import VIEWS, RunLayout

_README = "README"
_TEXT = """\
The newest run: links into ../../{name}, without its curves in tb/, so that
`tensorboard --logdir runs` shows it once. Every hpcdi command takes this folder for the run.
To see curves, and to copy or to remove the run, take the run folder itself: ../../{name}
"""


def point_to(layout: RunLayout) -> None:
    """Point ``latest`` beside the run to it, where the file system has links."""
    latest, view = layout.root.parent / "latest", _view_of(layout)
    aside = latest.with_name(f"{VIEWS}-{os.getpid()}")
    needless = latest.resolve()
    try:
        aside.unlink(missing_ok=True)
        aside.symlink_to(view.relative_to(latest.parent))
        _show(layout, layout.names())
        aside.replace(latest)
    except OSError:  # no links on this file system, or a folder of that name
        needless = view
    if needless.parent == view.parent and needless != latest.resolve():
        _remove(needless)
    with contextlib.suppress(OSError):
        aside.unlink(missing_ok=True)


def keep_up(layout: RunLayout, *, is_over: bool) -> None:
    """Let ``latest``, if it shows this run, show what the run may have from now on.

    Args:
        layout: the run folder.
        is_over: the run ends: from now on it has what it has, and there are no links to nothing.
    """
    goes = {layout.lock_file.name, layout.guests_dir.name}
    with contextlib.suppress(OSError):  # a full disk: it goes on to show what it did
        if _view_of(layout).is_dir():
            there = {path.name for path in layout.root.iterdir()}
            _show(layout, there - goes if is_over else layout.names())


def show(path: Path) -> None:
    """Let ``latest`` show what has been written into its run at a path in there; see `of_run`."""
    for entry, view in zip((path, *path.parents), path.parents, strict=False):
        if view.parent.name == VIEWS:
            with contextlib.suppress(OSError):  # it does already
                entry.symlink_to(Path("..", "..", view.name, entry.name))


def _view_of(layout: RunLayout) -> Path:
    return layout.root.parent / VIEWS / layout.root.name


def _show(layout: RunLayout, names: set[str]) -> None:
    """Make the links of a view; raises `OSError` where they cannot be made."""
    view, hidden = _view_of(layout), layout.tensorboard_dir.name
    wanted = {name for name in names if name != hidden and not name.startswith(".")}
    view.mkdir(parents=True, exist_ok=True)
    for path in view.iterdir():
        if path.is_symlink() and path.name not in wanted:
            path.unlink()
    (view / _README).write_text(_TEXT.format(name=view.name))
    for name in wanted:
        with contextlib.suppress(FileExistsError):
            (view / name).symlink_to(Path("..", "..", view.name, name))


def _remove(view: Path) -> None:
    """Remove a view; what somebody has put into it stays."""
    with contextlib.suppress(OSError):
        for path in view.iterdir():
            if path.is_symlink() or path.name == _README:
                path.unlink()
        view.rmdir()
        view.parent.rmdir()
