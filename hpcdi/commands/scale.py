"""`hpcdi scale`: changes how many collectors of a running run work, by a file in its folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdi.commands.options import add_run, at_least, make_parser
from hpcdi.commands.run_state import RunStatus, find_run, status_of
from hpcdi.config.load import load
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, LaunchError
from hpcdi.run.placement import learner_count, least_collectors
from hpcdi.run.run_folder import short
from hpcdi.run.signals import LOOK_S
from hpcdi.run.slurm_queue import nobody
from hpcdi.run.solver_ranks import world_of
from hpcdi.store.atomic import write_json
from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.metrics import counted

HELP = """\
Change how many collectors of a running run work; the others wait, without environments, until they
are needed. The run must have been started with that many collector ranks: --collectors-max, or -n.

  hpcdi train configs/cartpole_dqn.yaml --collectors-max 6    2 work (collector_num), 4 wait
  hpcdi scale runs/cartpole_dqn/latest 5                      3 more begin
  hpcdi scale runs/cartpole_dqn/latest 1                      4 end their tasks, and wait

It works from any host that sees the run folder, and holds until the run is started with another
number of ranks. Each player of a league that learns keeps a collector, whatever is asked. Ranks
cannot be added to a running MPI job: a step that is started beside it (srun --overlap) is a world
of its own. For more ranks, stop the run and resume it: hpcdi train --resume RUN -n N, or
hpcdi submit --resume RUN.
"""
EXIT_CODES = """\
exit codes: 0 N collectors work, all that are left, or as many as the run needs; 1 rank 0 has not
answered; 2 the run is not running, or cannot have that many
"""
_ANSWER_S = 30.0
_READ_S = 3 * LOOK_S
"""A status that is so much newer than what was asked is of a rank 0 that has read it."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        LaunchError: the run is not running, or cannot have that many collectors.
    """
    parser = make_parser("scale", HELP, EXIT_CODES)
    add_run(parser)
    parser.add_argument("collectors", type=at_least(1), metavar="N", help="collectors to work")
    options = parser.parse_args(arguments)
    layout = RunLayout(find_run(options.run))
    status = status_of(layout.root)
    of, needed = _check(status, options.collectors)
    before = _collectors(status).get("wanted")
    write_json(layout.scale_file, {"collectors": options.collectors, "of": of}, fsync=False)
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        collectors = _collectors(status_of(layout.root, nobody))
        wanted = collectors.get("wanted")
        if _is_answer(layout, wanted, options.collectors, before, needed):
            more = f", not {options.collectors}: each player that learns needs one"
            sys.stdout.write(
                f"{collectors['working']} of {collectors['there']} collectors work"
                f"{'' if wanted == options.collectors else more}\n"
                f"  hpcdi status {short(layout.root)}\n"
            )
            return EXIT_DONE
        wait_s(0.2)
    sys.stderr.write(
        f"hpcdi scale: rank 0 has not answered for {_ANSWER_S:.0f} s; see hpcdi status "
        f"{short(layout.root)}\n"
    )
    return EXIT_FAILED


def _collectors(status: RunStatus) -> Mapping[str, Any]:
    """Returns how many collectors rank 0 says that there are, work and are wanted."""
    return dict(status.progress.get("collectors", {}))


def _is_answer(
    layout: RunLayout, wanted: int | None, asked: int, before: int | None, needed: int
) -> bool:
    """Returns whether rank 0 has granted what was asked, or raised it to what the run needs.

    Args:
        layout: the run folder.
        wanted: collectors that work by rank 0's status.
        asked: by this command.
        before: what was wanted before that.
        needed: fewest collectors, while every player has its learners.
    """
    if wanted is None or wanted <= asked:
        return wanted == asked
    if wanted > needed:
        return False
    newer_s = layout.status_file.stat().st_mtime - layout.scale_file.stat().st_mtime
    return wanted != before or newer_s > _READ_S


def _check(status: RunStatus, wanted: int) -> tuple[int, int]:
    """Check that a run can have `wanted` collectors.

    Returns:
        How many ranks collect or wait, and the fewest collectors that rank 0 lets work.

    Raises:
        LaunchError: it cannot.
    """
    run = short(status.layout.root)
    if status.is_over or not status.progress:
        raise LaunchError(
            f"{run} is {status.state}, and only a running run can be scaled; the next start takes "
            f"any number of ranks: hpcdi train --resume {run} -n N"
        )
    config = load(str(status.layout.config_file)).config
    if config.system.deterministic:
        raise LaunchError(f"{run} is deterministic: its collectors cannot change")
    needed = least_collectors(config)
    if config.policy.on_policy and wanted < needed:
        raise LaunchError(f"{run} learns on-policy: each of {needed} learners needs a collector")
    ranks: int = sum(place["role"] == "collector" for place in status.facts["placement"])
    if wanted > ranks:
        own = 1 + learner_count(config) + wanted
        raise LaunchError(
            f"{run} has {counted(ranks, 'collector rank')}, and none can be added while it runs; "
            f"stop it and resume it with more: hpcdi train --resume {run} "
            f"-n {world_of(own, config)}"
        )
    return ranks, needed
