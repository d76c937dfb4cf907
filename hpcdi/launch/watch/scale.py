"""`hpcdi scale`: how many collectors work, changed while a run is on, by a file in its folder."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcdi.comm.messages import ScaleCollectors
from hpcdi.config.load import load
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, LaunchError
from hpcdi.launch.flags import at_least
from hpcdi.launch.run_folder import short
from hpcdi.launch.slurm_queue import nobody
from hpcdi.launch.topology import learner_count
from hpcdi.launch.watch.commands import find
from hpcdi.launch.watch.status import RunStatus, status_of
from hpcdi.store.atomic import read_json, write_json
from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.log import LOGGER

SCALE_HELP = """\
Say how many collectors of a running run work; the others wait, without environments, until they are
wanted. The run must have been started with that many collector ranks: --collectors-max, or -n.

  hpcdi train configs/cartpole_dqn.yaml --collectors-max 6    2 work (collector_num), 4 wait
  hpcdi scale runs/cartpole_dqn/latest 5                      3 more begin
  hpcdi scale runs/cartpole_dqn/latest 1                      4 end their tasks, and wait

It works from any host that sees the run folder, and holds until the run is started with another
number of ranks. Ranks cannot be added to a running MPI job: a step that is started beside it
(srun --overlap) is a world of its own. For more ranks, stop the run and go on with it:
hpcdi train --resume RUN -n N, or hpcdi submit --resume RUN.
"""
SCALE_CODES = """\
exit codes: 0 so many work, or all that are left; 1 rank 0 has not answered; 2 the run is not
running, or cannot have so many
"""
LOOK_S = 1.0
"""Rank 0 looks so often."""
_ANSWER_S = 30.0


def scale(arguments: Sequence[str]) -> int:
    """`hpcdi scale`; gives the exit code.

    Raises:
        LaunchError: the run is not running, or cannot have so many.
    """
    parser = argparse.ArgumentParser(
        prog="hpcdi scale", description=SCALE_HELP, epilog=SCALE_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("run", metavar="RUN|JOB", help="run folder, or number of a Slurm job")
    parser.add_argument("collectors", type=at_least(1), metavar="N", help="that are to work")
    given = parser.parse_args(arguments)
    layout = RunLayout(find(given.run))
    of = _check(status_of(layout.root), given.collectors)
    write_json(layout.scale_file, {"collectors": given.collectors, "of": of}, fsync=False)
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        told = dict(status_of(layout.root, nobody).progress.get("collectors", {}))
        if told.get("wanted") == given.collectors:
            sys.stdout.write(
                f"{told['working']} of {told['there']} collectors work\n"
                f"  hpcdi status {short(layout.root)}\n"
            )
            return EXIT_DONE
        wait_s(0.2)
    sys.stderr.write(
        f"hpcdi scale: rank 0 has not answered for {_ANSWER_S:.0f} s; see hpcdi status "
        f"{short(layout.root)}\n"
    )
    return EXIT_FAILED


def _check(status: RunStatus, wanted: int) -> int:
    """See that a run can have so many collectors; gives how many ranks collect or wait."""
    run = short(status.layout.root)
    if status.is_over or not status.progress:
        raise LaunchError(
            f"{run} is {status.state}, and only a running run can be scaled; the next start takes "
            f"any number of ranks: hpcdi train --resume {run} -n N"
        )
    config = load(str(status.layout.config_file)).config
    if config.system.deterministic:
        raise LaunchError(f"{run} is deterministic: it has the same collectors from start to end")
    needed = learner_count(config) if config.policy.on_policy else 1
    if wanted < needed:
        raise LaunchError(f"{run} learns on-policy: each of {needed} learners needs a collector")
    ranks: int = sum(place["role"] == "collector" for place in status.facts["placement"])
    if wanted > ranks:
        raise LaunchError(
            f"{run} has {ranks} collector ranks, and none can be added while it runs; stop it, and "
            f"go on with more: hpcdi train --resume {run} "
            f"-n {len(status.facts['placement']) + wanted - ranks}"
        )
    return ranks


class ScaleFile:
    """Rank 0's side: what people have written, once each time that it changes.

    Args:
        layout: the run folder.
        ranks: that collect, or wait; what was wanted of another number is forgotten.
        ask: what else may be asked for, e.g. by a signal; it comes first.
    """

    def __init__(self, layout: RunLayout, ranks: int, ask: Callable[[], Any]) -> None:
        self._path, self._ranks, self._ask = layout.scale_file, ranks, ask
        self._due, self._seen = float("-inf"), 0

    def take(self) -> Any:
        """What is asked for, or how many collectors should work; None: nothing new."""
        asked, now = self._ask(), time.monotonic()
        if asked is not None or now < self._due:
            return asked
        self._due = now + LOOK_S
        try:
            changed = self._path.stat().st_mtime_ns
        except OSError:  # nobody has written one
            return None
        if changed == self._seen:
            return None
        self._seen = changed
        told = read_json(self._path)
        count = told.get("collectors")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            LOGGER.warning("%s does not say how many collectors are wanted: ignored", self._path)
            return None
        if told.get("of") != self._ranks:
            return None
        LOGGER.info("%d collectors are wanted", count)
        return ScaleCollectors(count)
