"""`hpcdi train`: one rank of a run, or the start of all of them on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpcdi.commands.options import parse_run
from hpcdi.run.environment import detect, limit_threads
from hpcdi.run.request import RunRequest

HELP = """\
Train an experiment. Without a launcher it starts mpirun on this machine; under srun or mpirun it
takes the role that its rank has:

  hpcdi train configs/cartpole_dqn.yaml                   here, with as many ranks as asked for
  hpcdi train configs/cartpole_dqn.yaml -n 6 seed=3       with 4 collectors, and another seed
  hpcdi train configs/cartpole_dqn.yaml policy.learn.learner.learner_num=2      with 2 learners
  hpcdi train configs/cartpole_dqn.yaml --collectors-max 6              4 more that wait, see scale
  srun --mpi=pmix python -m hpcdi train configs/cartpole_dqn.yaml       on a Slurm cluster
  hpcdi train --resume runs/cartpole_dqn/latest           resume from its newest snapshot
  hpcdi train --resume runs/cartpole_dqn/latest -n 8 env.stop_value=475      with more collectors

A run takes a snapshot of itself at its beginning, every system.snapshot_s seconds, and at its
end: also by Ctrl-C, SIGTERM, SIGUSR2, SIGXCPU, or when the time limit is near. With --resume the
settings are those of the run folder; others can be named, or a file, whose settings must fit the
snapshots. Inside Slurm (system.auto_resume) --run-dir resumes the run that the folder holds,
if it is the same one.

Settings of the file are overridden by their path: policy.learn.batch_size=128
env.collector_env_num=16. Wrong keys and values are reported before anything starts. A run folder's
config.yaml has every setting there is, with its value. CONFIG may be one of DI-engine, in Python:
see hpcdi convert; under srun or mpirun, convert it first.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    launched = detect(os.environ)
    if not launched.is_world:
        from hpcdi.run.start import start

        return start(_parse(arguments), over_ranks=True).exit_code
    from hpcdi.run.start_guard import StartGuard

    with StartGuard() as guard:  # before anything heavy is imported
        chosen_by_user = limit_threads()  # before numpy is
        from hpcdi.run.rank import run_rank

        return run_rank(_parse(arguments), launched, guard, chosen_by_user)


def _parse(arguments: Sequence[str]) -> RunRequest:
    return parse_run("train", HELP, arguments, over_ranks=True)
