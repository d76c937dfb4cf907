"""`hpcdi curves --to wandb|mlflow`: runs that are over, or go on, as those of a tracker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcdi.config.load import read_mapping
from hpcdi.errors import LaunchError
from hpcdi.run import run_folder
from hpcdi.run.run_folder import short
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import Curves
from hpcdi.utils.nested import dotted
from hpcdi.utils.trackers import TRACKERS, TrackedRun


def write(kind: str, runs: Mapping[Path, Curves], folder: Path) -> Iterator[str]:
    """Write runs, each as one of a tracker's; yields what is to be told.

    Args:
        kind: a key of `TRACKERS`.
        runs: folder -> curves by name.
        folder: in which the tracker makes its own.

    Raises:
        LaunchError: the folder cannot be written, or the tracker fails. ConfigError: a run's
            settings are damaged.
    """
    for run, curves in runs.items():
        state = run_folder.read_state(run)
        tracked = _tracked(run, state)
        try:
            made = TRACKERS[kind](tracked, folder)
            made.log(curves)
            made.close(state)
            yield f"{short(run)}: {made.where(short)}"
        except OSError as error:
            why = error.strerror or error
            raise LaunchError(f"{short(folder)} cannot be written: {why}") from error
        except Exception as error:  # the tracker's own, of which each has others
            raise LaunchError(f"{short(run)}: {kind} fails: {error}") from error


def _tracked(run: Path, state: str) -> TrackedRun:
    """The run with its settings, ``policy.learn.batch_size`` and so on, and its state."""
    layout = RunLayout(run)
    settings = dict(
        dotted(read_mapping(layout.config_file) if layout.config_file.is_file() else {})
    )
    project = str(settings.get("exp_name") or run.parent.name)
    return TrackedRun(run, project, {**settings, "run.state": state})
