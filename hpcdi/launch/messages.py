"""Lines that every run prints at its start and its end."""

from __future__ import annotations

import hpcdi
from hpcdi.launch.run_folder import short
from hpcdi.store.layout import RunLayout


def opening(title: str, layout: RunLayout) -> list[str]:
    """Returns the first lines: the run, its folder, and how to watch it."""
    return [f"hpcdi {hpcdi.__version__}: {title}", folder_line(layout), tensorboard_line(layout)]


def verdict(state: str, reason: str) -> str:
    """Returns a line about how the run ended."""
    word = {"done": "done", "failed": "FAILED", "stopped": "stopped"}[state]
    if state == "done" and reason.startswith("stop value"):
        word = "solved"
    return f"\n{word}: {reason}"


def folder_line(layout: RunLayout) -> str:
    """Returns the line with the run folder."""
    return f"  run folder   {short(layout.root)}"


def tensorboard_line(layout: RunLayout) -> str:
    """Returns the line with the TensorBoard command."""
    return f"  TensorBoard  tensorboard --logdir {short(layout.root)}"


def policy_lines(layout: RunLayout) -> list[str]:
    """Returns a line with the best policy, or else the latest; no line if there is none."""
    policies = [path for path in (layout.best_policy, layout.latest_policy) if path.exists()]
    return [f"  policy       {short(path)}" for path in policies[:1]]
