"""The command line: parses, and hands on."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from hpcdi import __version__
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, HpcdiError

_DESCRIPTION = """\
Distributed reinforcement learning as one MPI program: rank 0 coordinates, some ranks learn, the
others collect.

  hpcdi plan configs/cartpole_dqn.yaml        what a run would do to this machine
  hpcdi train configs/cartpole_dqn.yaml       do it, with 4 ranks
  hpcdi serial configs/cartpole_dqn.yaml      do it in one process
  hpcdi inspect runs/cartpole_dqn/latest      what it has left, checksums verified
  hpcdi doctor                                whether this machine and its MPI are fit for it
"""

_EXIT_CODES = """\
exit codes: 0 done, 1 a rank failed, 2 wrong configuration or command, 130 Ctrl-C, 143 SIGTERM
"""

_TRAIN = """\
Train an experiment. Without a launcher it starts mpirun on this machine; under srun or mpirun it
takes the role that its rank has:

  hpcdi train configs/cartpole_dqn.yaml                   here, with as many ranks as asked for
  hpcdi train configs/cartpole_dqn.yaml -n 6 seed=3       with 4 collectors, and another seed
  srun --mpi=pmix python -m hpcdi train configs/cartpole_dqn.yaml       on a Slurm cluster

Settings of the file are overridden by their path: policy.learn.batch_size=128
env.collector_env_num=16. Wrong keys and values are told before anything starts.
"""

_SERIAL = """\
Train an experiment in one process: no MPI, no other ranks. The same file as for `hpcdi train`, the
same policy, environments, replay buffer and learner; a debugger can be attached.

  hpcdi serial configs/cartpole_dqn.yaml                       to the same stop value
  hpcdi serial configs/cartpole_ppo.yaml seed=3                another algorithm, another seed
  hpcdi serial --resume runs/cartpole_dqn/latest               go on from its newest checkpoint

Settings that are changed with --resume hold for that time.
"""

_PLAN = """\
Say what a run would do, without MPI and without starting it: each rank's role, device, threads,
environments and memory, bytes and files a second.

  hpcdi plan configs/cartpole_dqn.yaml                               as many ranks as asked for
  hpcdi plan configs/cartpole_dqn.yaml -n 64 env.collector_env_num=16         before asking Slurm
"""

_INSPECT = """\
Say what a shard, a policy, a snapshot or a whole run folder holds, and verify every checksum. The
exit code is 1 if something is damaged.

  hpcdi inspect runs/cartpole_dqn/latest
  hpcdi inspect runs/cartpole_dqn/latest/policies/best.safetensors shard.h5
"""

_DOCTOR = """\
Say whether this machine, its MPI and its file system are fit for a run, and what to do where they
are not. Without a launcher it starts mpirun on this machine; under srun or mpirun every rank takes
part and rank 0 prints:

  hpcdi doctor                                        here, with 3 ranks; runs go to ./runs
  hpcdi doctor $SCRATCH/runs -n 8                     with 8 ranks; runs go to that folder
  hpcdi doctor runs/cartpole_dqn/latest --cuda        where a run lies; there must be GPUs
  srun --mpi=pmix python -m hpcdi doctor --json       on the nodes of a Slurm job, for a program

It looks at launcher, versions, messages, process groups, files and locks, cores, memory, clocks
and GPUs, in about a minute, and leaves nothing behind. Quotas are not asked for. The exit code is
1 if a check fails; warnings do not count.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="hpcdi", description=_DESCRIPTION, epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"hpcdi {__version__}")
    parser.add_argument("command", choices=_COMMANDS, help="what to do; each has its own --help")
    if not arguments:
        parser.print_help()
        return EXIT_USAGE
    known = parser.parse_args(arguments[:1])
    try:
        return _COMMANDS[known.command](arguments[1:])
    except HpcdiError as error:
        sys.stderr.write(f"hpcdi {known.command}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _train(arguments: Sequence[str]) -> int:
    from hpcdi.launch.entry import TrainArguments, run_rank
    from hpcdi.launch.environment import detect

    parser = _parser("train", _TRAIN)
    _add_experiment(parser)
    parser.add_argument(
        "--run-dir", metavar="DIR", help="run folder (default: runs/<exp_name>/<time>)"
    )
    given = parser.parse_intermixed_args(arguments)
    train = TrainArguments(given.config, tuple(given.override), given.ranks, given.run_dir)
    launched = detect(os.environ)
    if launched.is_world:
        return run_rank(train, launched)
    from hpcdi.launch.local import train as train_here

    return train_here(train)


def _serial(arguments: Sequence[str]) -> int:
    from hpcdi.launch.serial import SerialArguments, serial

    parser = _parser("serial", _SERIAL)
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="YAML file of the experiment")
    parser.add_argument(
        "override", nargs="*", default=[], metavar="key=value", help="settings to change"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--run-dir", metavar="DIR", help="run folder (default: runs/<exp_name>/<time>)"
    )
    where.add_argument("--resume", metavar="RUN", help="run folder of a serial run, to go on with")
    given = parser.parse_intermixed_args(arguments)
    config, overrides = given.config, list(given.override)
    if given.resume is not None and config is not None:  # its own configuration, settings changed
        config, overrides = None, [config, *overrides]
    return serial(SerialArguments(config, tuple(overrides), given.run_dir, given.resume))


def _plan(arguments: Sequence[str]) -> int:
    from hpcdi.launch.experiment import load_experiment
    from hpcdi.launch.plan import plan
    from hpcdi.launch.topology import default_world_size

    parser = _parser("plan", _PLAN)
    _add_experiment(parser)
    given = parser.parse_intermixed_args(arguments)
    compiled, spaces = load_experiment(given.config, given.override)
    ranks = given.ranks if given.ranks is not None else default_world_size(compiled.config)
    _print([*plan(compiled.config, spaces, ranks), *(f"note: {n}" for n in compiled.notes)])
    return EXIT_DONE


def _inspect(arguments: Sequence[str]) -> int:
    from hpcdi.store.inspect import inspect

    parser = _parser("inspect", _INSPECT)
    parser.add_argument("path", nargs="+", metavar="FILE|RUN", help="file or run folder")
    is_damaged = False
    for path in parser.parse_args(arguments).path:
        report = inspect(path)
        _print(report.lines)
        for error in report.errors:
            sys.stderr.write(f"hpcdi inspect: {error}\n")
        is_damaged |= bool(report.errors)
    return EXIT_FAILED if is_damaged else EXIT_DONE


def _doctor(arguments: Sequence[str]) -> int:
    from hpcdi.launch.doctor import DoctorArguments, doctor
    from hpcdi.launch.environment import detect

    parser = _parser("doctor", _DOCTOR)
    parser.add_argument(
        "folder", nargs="?", metavar="DIR|RUN", help="where runs go (default: ./runs)"
    )
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="number of ranks (default: 3)")
    parser.add_argument("--cuda", action="store_true", help="fail where learners see no GPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    asked = DoctorArguments(given.folder, given.ranks, given.cuda, given.json)
    return doctor(asked, detect(os.environ))


def _parser(command: str, about: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"hpcdi {command}", description=about, epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="YAML file of the experiment")
    parser.add_argument(
        "override", nargs="*", default=[], metavar="key=value", help="settings to change"
    )
    parser.add_argument(
        "-n", "--ranks", type=int, metavar="N",
        help="number of ranks (default: 1 + learner_num + collector_num)",
    )  # fmt: skip


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()  # here, where `main` sees that nobody reads it


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": _train,
    "serial": _serial,
    "plan": _plan,
    "inspect": _inspect,
    "doctor": _doctor,
}
