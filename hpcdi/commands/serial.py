"""`hpcdi serial`: a run in one process."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdi.commands.options import parse_run
from hpcdi.run.start import start

HELP = """\
Train an experiment in one process: no MPI. The same file and the same roles as for `hpcdi train`,
which take turns: leagues, memories and snapshots included; a debugger can be attached.

  hpcdi serial configs/cartpole_dqn.yaml                       to the same stop value
  hpcdi serial configs/cartpole_ppo.yaml seed=3                another algorithm, another seed
  hpcdi serial --resume runs/cartpole_dqn/latest               resume from its newest snapshot

CONFIG may be one of DI-engine, in Python: see hpcdi convert.

It leaves the same run folder as `hpcdi train`, shards and snapshots included: each resumes a run
of the other. Settings that are changed with --resume are listed; from the next snapshot on they are
the run's own (config.yaml).
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    request = parse_run("serial", HELP, arguments, over_ranks=False)
    return start(request, over_ranks=False).exit_code
