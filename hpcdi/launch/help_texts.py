"""What `hpcdi --help` and `hpcdi COMMAND --help` teach, with examples that are right."""

from __future__ import annotations

DESCRIPTION = """\
Distributed reinforcement learning as one MPI program: rank 0 coordinates, some ranks learn, the
others collect.

  hpcdi doctor                                whether this machine and its MPI are fit for a run
  hpcdi plan configs/cartpole_dqn.yaml        what a run would do to this machine
  hpcdi train configs/cartpole_dqn.yaml       do it, with 4 ranks
  hpcdi serial configs/cartpole_dqn.yaml      do it in one process
  hpcdi submit configs/cartpole_dqn.yaml      do it as a job of a Slurm cluster
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..4 --local      several settings, a run each
  hpcdi status runs/cartpole_dqn/latest       how it stands: from any host, without a port
  hpcdi tail runs/cartpole_dqn/latest -f      what its ranks say
  hpcdi scale runs/cartpole_dqn/latest 4      how many collectors work, while it runs
  hpcdi inspect runs/cartpole_dqn/latest      what it has left, checksums verified
  hpcdi eval runs/cartpole_dqn/latest         what its policy is worth; --video films it
  hpcdi export runs/cartpole_dqn/latest       its policy as a file for PyTorch or ONNX
"""

EXIT_CODES = """\
exit codes: 0 done, 1 failed, 2 wrong configuration or command, 85 a snapshot is taken and the run
can be gone on with (time limit, SIGTERM, SIGUSR2), 130 Ctrl-C, 143 a second SIGTERM
"""

TRAIN = """\
Train an experiment. Without a launcher it starts mpirun on this machine; under srun or mpirun it
takes the role that its rank has:

  hpcdi train configs/cartpole_dqn.yaml                   here, with as many ranks as asked for
  hpcdi train configs/cartpole_dqn.yaml -n 6 seed=3       with 4 collectors, and another seed
  hpcdi train configs/cartpole_dqn.yaml policy.learn.learner.learner_num=2      with 2 learners
  hpcdi train configs/cartpole_dqn.yaml --collectors-max 6              4 more that wait, see scale
  srun --mpi=pmix python -m hpcdi train configs/cartpole_dqn.yaml       on a Slurm cluster
  hpcdi train --resume runs/cartpole_dqn/latest           go on from its newest snapshot
  hpcdi train --resume runs/cartpole_dqn/latest -n 8 env.stop_value=475      with more collectors

A run takes a snapshot of itself at its beginning, every system.snapshot_s seconds, and at its
end: also by Ctrl-C, SIGTERM, SIGUSR2, or when the time limit is near. With --resume the
settings are those of the run folder; others can be named, or a file, whose settings must fit the
snapshots. Inside Slurm (system.auto_resume) --run-dir goes on with the run that the folder holds,
if it is the same one.

Settings of the file are overridden by their path: policy.learn.batch_size=128
env.collector_env_num=16. Wrong keys and values are told before anything starts. A run folder's
config.yaml has every setting there is, with its value.
"""

SERIAL = """\
Train an experiment in one process: no MPI, no other ranks. The same file as for `hpcdi train`, the
same policy, environments, replay buffer and learner; a debugger can be attached.

  hpcdi serial configs/cartpole_dqn.yaml                       to the same stop value
  hpcdi serial configs/cartpole_ppo.yaml seed=3                another algorithm, another seed
  hpcdi serial --resume runs/cartpole_dqn/latest               go on from its newest snapshot

Settings that are changed with --resume hold for that time.
"""

PLAN = """\
Say what a run would do, without MPI and without starting it: each rank's role, device, threads,
environments and memory, bytes and files a second.

  hpcdi plan configs/cartpole_dqn.yaml                               as many ranks as asked for
  hpcdi plan configs/cartpole_dqn.yaml -n 64 env.collector_env_num=16         before asking Slurm
"""

INSPECT = """\
Say what a shard, a policy, a snapshot or a whole run folder holds, its checkpoints included, and
verify every checksum. The exit code is 1 if something is damaged.

  hpcdi inspect runs/cartpole_dqn/latest
  hpcdi inspect runs/cartpole_dqn/latest/policies/best.safetensors shard.h5
"""

EVAL = """\
Say what a policy is worth: mean return, its spread, and whether the stop value is reached. It plays
in this process, without exploration, in as many environments as the run evaluated by; nothing is
written but films.

  hpcdi eval runs/cartpole_dqn/latest                          the best policy of a run
  hpcdi eval runs/cartpole_dqn/latest --policy latest --episodes 100 --seed 7
  hpcdi eval runs/cartpole_dqn/latest --video                  a film of one episode, too
  hpcdi eval best.safetensors --config configs/cartpole_dqn.yaml --json

Without --episodes there are as many as the experiment evaluates by, but at least 20
(policy.eval.evaluator.n_episode, else env.evaluator_env_num x evaluator_episode_num). Settings are
overridden as for `hpcdi train`: env.evaluator_env_num=4. The same seed gives the same figures.
"""

EXPORT = """\
Write a policy as a file that acts without hpcdi: observations float32 [batch, ...] in, the greedy
actions out, with the values that it knows. The file is read back and must act as the policy does.

  hpcdi export runs/cartpole_dqn/latest                        cartpole_dqn.pt2, for torch.export
  hpcdi export runs/cartpole_dqn/latest -o policy.onnx         for ONNX
  hpcdi export runs/cartpole_dqn/latest --policy latest --batch 1 -o policy.pt2

ONNX needs the packages onnx and onnxscript: pip install 'hpcdi[onnx]'
"""

DOCTOR = """\
Say whether this machine, its MPI and its file system are fit for a run, and what to do where they
are not. Without a launcher it starts mpirun on this machine; under srun or mpirun every rank takes
part and rank 0 prints:

  hpcdi doctor                                        here, with 3 ranks; runs go to ./runs
  hpcdi doctor $SCRATCH/runs -n 8                     with 8 ranks; runs go to that folder
  hpcdi doctor runs/cartpole_dqn/latest --cuda        where a run lies; there must be GPUs
  srun --mpi=pmix python -m hpcdi doctor --json       on the nodes of a Slurm job, for a program

It looks at launcher, versions, messages, process groups, files and locks, cores, memory, clocks and
GPUs, in seconds on one host, and leaves nothing behind. Quotas are those that `quota` or, on
Lustre, `lfs quota` tells; for other file systems ask your cluster's own command. The exit code is
1 if a check fails; warnings do not count.
"""
