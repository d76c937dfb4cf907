"""`hpcdi inspect`: lists what a file or a run folder holds and verifies every checksum."""

from __future__ import annotations

import contextlib
import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hpcdi.commands.options import make_parser, print_lines
from hpcdi.data import read_episodes
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, ConfigError, StoreError
from hpcdi.run.run_folder import from_here
from hpcdi.store.atomic import read_json
from hpcdi.store.checkpoints import MANIFEST, checkpoint_names
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import absent
from hpcdi.utils.console import escaped
from hpcdi.utils.metrics import counted

HELP = """\
List what a shard, a policy, a snapshot or a whole run folder holds, checkpoints included, and
verify every checksum.

  hpcdi inspect runs/cartpole_dqn/latest
  hpcdi inspect runs/cartpole_dqn/latest/policies/best.safetensors shard.h5
"""
EXIT_CODES = """\
exit codes: 0 done, all is right; 1 something is damaged, or blocks are gone that a snapshot needs,
or a frozen player of a league; 2 no such file, or no run in a folder
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = make_parser("inspect", HELP, EXIT_CODES)
    parser.add_argument("path", nargs="+", metavar="FILE|RUN", help="file or run folder")
    is_damaged = is_absent = False
    for name in parser.parse_args(arguments).path:
        layout = RunLayout(Path(name))
        path = from_here(layout.root)  # of `latest` the run
        report = inspect(path)
        report.lines[2:2] = episodes_of(layout)  # after its data
        report.errors += [*lost_shards(layout), *lost_players(layout)]
        print_lines(report.lines)
        for error in report.errors:
            sys.stderr.write(f"hpcdi inspect: {escaped(error)}\n")
        if is_there(path):
            is_damaged |= bool(report.errors)
        else:
            is_absent = True
    return EXIT_FAILED if is_damaged else EXIT_USAGE if is_absent else EXIT_DONE


def is_there(path: Path) -> bool:
    """Returns whether there is a file, or anything of a run or a checkpoint."""
    if not path.is_dir():
        return os.path.lexists(path)
    layout = RunLayout(path)
    parts = (path / MANIFEST, layout.run_file, layout.data_dir, layout.snapshots_dir)
    return any(map(os.path.lexists, parts))


def episodes_of(layout: RunLayout) -> Iterator[str]:
    """Yields a line about the whole episodes of a run, if it has collected data.

    Of damaged shards it says nothing: `inspect` does.
    """
    returns, steps = array("d"), 0
    with contextlib.suppress(StoreError, ConfigError):  # it is no run, or has no transitions
        for episode in read_episodes(layout.root, columns=(), left_out=None):
            returns.append(episode.total)
            steps += len(episode)
    if returns:
        mean, std = np.mean(returns), np.std(returns)
        yield (
            f"  episodes: {counted(len(returns), 'whole one')} of {steps} transitions, "
            f"return {mean:.6g} ± {std:.3g}, {min(returns):.6g} to {max(returns):.6g}"
        )


def lost_shards(layout: RunLayout) -> Iterator[str]:
    """Yields a line for each snapshot of a run that needs blocks which are gone."""
    snapshots = checkpoint_names(layout.snapshots_dir)
    if not snapshots:
        return
    from hpcdi.roles.coordinator.snapshots import blocks_in

    for folder in (layout.snapshots_dir / name for name in snapshots):
        needed: list[str] = []
        with contextlib.suppress(StoreError):  # torn, as `inspect` has said, or of an older version
            needed = blocks_in(folder)
        gone = absent(layout, needed)
        if gone and folder.is_dir():  # a running run may have removed both
            are = "is" if len(gone) == 1 else "are"
            lost = f"{counted(len(gone), 'block')} that it needs {are} gone"
            yield f"{folder}: {lost}, {gone[0]} first"


def lost_players(layout: RunLayout) -> Iterator[str]:
    """Yields a line if policies of frozen players are gone, of a run that is a league."""
    shown = read_json(layout.league_file)
    if not shown:
        return
    from hpcdi.league.view import absent_copies

    try:
        copies = [p["name"] for p in shown["players"] if p["role"] == "historical"]
        gone = absent_copies(layout.root, copies)
    except (LookupError, TypeError) as error:
        yield f"{layout.league_file}: is damaged: {error!r}"
        return
    if gone:
        others = f", and {len(gone) - 1} more" if gone[1:] else ""
        yield f"{layout.root / gone[0]}: a frozen player of the league is gone{others}"
