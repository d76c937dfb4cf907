"""Lines that every run prints at its start and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hpcdi
from hpcdi.launch.run_folder import short
from hpcdi.store.checkpoints import names
from hpcdi.store.layout import RunLayout

if TYPE_CHECKING:
    from hpcdi.worker.coordinator.scheduler import Outcome


def opening(title: str, layout: RunLayout) -> list[str]:
    """Returns the first lines: the run, its folder, and how to watch it."""
    return [f"hpcdi {hpcdi.__version__}: {title}", folder_line(layout), tensorboard_line(layout)]


def verdict(state: str, reason: str) -> str:
    """Returns a line about how the run ended."""
    word = {"done": "done", "failed": "FAILED", "stopped": "stopped"}[state]
    if state == "done" and reason.startswith("stop value"):
        word = "solved"
    return f"\n{word}: {reason}"


def closing(command: str, outcome: Outcome, summary: list[str], layout: RunLayout) -> list[str]:
    """Returns the last lines: how the run ended, what it has done, and what to do next.

    Args:
        command: that goes on with it.
        outcome: how it ended.
        summary: what was done.
        layout: the run folder.
    """
    lines = [verdict(outcome.state, outcome.reason), *summary]
    lines += [folder_line(layout), tensorboard_line(layout)]
    if outcome.state != "done" and names(layout.snapshots_dir):
        lines.append(hint(command, layout))
    if layout.data_dir.exists():
        lines.append(
            f"  data         {short(layout.data_dir)} (hpcdi inspect {short(layout.root)})"
        )
    return lines + policy_lines(layout)


def hint(command: str, layout: RunLayout) -> str:
    """Returns the line that says how to go on."""
    return f"  go on with   {command} --resume {short(layout.root)}"


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
