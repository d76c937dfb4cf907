"""`hpcdi join`: collect for a running run, from outside of its job."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdi.commands.options import add_run, make_parser, seconds_from
from hpcdi.run.environment import limit_threads

HELP = """\
Collect for a run that is on, as its guest: a collector that is no rank of the run's job. It may be
of another partition, an array of short jobs that are preempted, another MPI or none; it needs the
run folder, and no port. It joins at any time, and may be killed at any time: what it loses is at
most the block that is not full yet, and the run goes on without it.

  hpcdi join runs/cartpole_dqn/latest                      one guest, until the run is done
  hpcdi submit runs/cartpole_dqn/latest --guests 0-31 --partition preempt --time 1:00:00
                                                           32 of them, in Slurm's queue

A guest takes its policies from policies/, where learners write one every system.guests.policy_s
seconds; system.guests.max_policy_lag says how many iterations it may be behind. It evaluates
nothing. SIGTERM, SIGUSR2 and a time limit that is near end it in order. Where the run is stopped to
be resumed it waits, and joins the next start. On-policy and deterministic runs take no guests, nor
does one of environments that are MPI programs, or one in one process (hpcdi serial).
"""
EXIT_CODES = """\
exit codes: 0 the run is over, or has been away for too long; 1 the guest failed; 2 the run takes no
guests; 85 to be joined again (SIGTERM, SIGUSR2, time limit, or the run has given it up); 130 Ctrl-C
"""
_PATIENCE_S = 600.0


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        LaunchError: there is no such run, or it takes no guests.
    """
    parser = make_parser("join", HELP, EXIT_CODES)
    add_run(parser)
    parser.add_argument(
        "--wait",
        type=seconds_from(0),
        default=_PATIENCE_S,
        metavar="SECONDS",
        help="how long to wait for a run that is not on, or not on any more (default: %(default)g)",
    )
    parser.add_argument(
        "--time-limit",
        metavar="TIME",
        help="end in order (exit code 85) before TIME is over, see hpcdi train (default: the "
        "job's, from Slurm, PBS or LSF)",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import the modules that a run of somebody else names: they run as you",
    )
    options = parser.parse_args(arguments)
    limit_threads()  # before numpy is imported
    from hpcdi.commands.run_state import find_run, status_of
    from hpcdi.commands.saved_policy import check_trusted
    from hpcdi.run.guest import join
    from hpcdi.run.slurm_queue import nobody

    run = find_run(options.run)
    return join(
        run,
        lambda: status_of(run, nobody).state in ("starting", "running"),
        options.wait,
        options.time_limit,
        (lambda _config: None) if options.trust else check_trusted,
    )
