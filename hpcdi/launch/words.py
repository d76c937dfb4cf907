"""What every run says to people at its start and at its end, over ranks or in one process."""

from __future__ import annotations

import hpcdi
from hpcdi.launch.run_folder import short
from hpcdi.store.layout import RunLayout


def opening(title: str, layout: RunLayout) -> list[str]:
    """First lines: which run this is, where it is kept, and how to watch it."""
    return [f"hpcdi {hpcdi.__version__}: {title}", folder_line(layout), tensorboard_line(layout)]


def verdict(state: str, reason: str) -> str:
    """How the run ended, in a line."""
    word = {"done": "done", "failed": "FAILED", "stopped": "stopped"}[state]
    if state == "done" and reason.startswith("stop value"):
        word = "solved"
    return f"\n{word}: {reason}"


def folder_line(layout: RunLayout) -> str:
    """Where the run is kept."""
    return f"  run folder   {short(layout.root)}"


def tensorboard_line(layout: RunLayout) -> str:
    """How to see its curves."""
    return f"  TensorBoard  tensorboard --logdir {short(layout.root)}"


def policy_lines(layout: RunLayout) -> list[str]:
    """Where the best policy is, or else the latest; nothing where there is none yet."""
    policies = [path for path in (layout.best_policy, layout.latest_policy) if path.exists()]
    return [f"  policy       {short(path)}" for path in policies[:1]]
