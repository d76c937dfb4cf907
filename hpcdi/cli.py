"""The command line: ``hpcdi COMMAND ...`` runs `main` of ``hpcdi.commands.COMMAND``."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from hpcdi import __version__
from hpcdi.commands.options import OF_A_RUN, guess_of
from hpcdi.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, HpcdiError, LaunchError
from hpcdi.run.environment import detect, is_first, need_home
from hpcdi.utils import console, early
from hpcdi.utils.backoff import idle_threads_sleep

_RUNS = ("train", "serial", "join", "sweep")
"""Commands that go on where nobody reads their output any more."""
_ONCE = {"submit": "submit a run of its own", "sweep": "start a sweep of its own"}
"""What each task of a launcher would do, where the command is no ranks'."""
_READ = {("sweep", "status")}
"""Those of them that start nothing."""
DESCRIPTION = """\
Distributed reinforcement learning as one MPI program: rank 0 coordinates, some ranks learn, the
others collect.

  hpcdi doctor                                check this machine, its MPI and its file system
  hpcdi plan configs/cartpole_dqn.yaml        what a run would take of this machine
  hpcdi rehearse configs/cartpole_dqn.yaml    play its environments for a minute: what will go wrong
  hpcdi train configs/cartpole_dqn.yaml       train, with 4 ranks
  hpcdi serial configs/cartpole_dqn.yaml      train in one process
  hpcdi submit configs/cartpole_dqn.yaml      train as a Slurm job
  hpcdi join runs/cartpole_dqn/latest         collect for a run, from outside of its job
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..4 --local      several settings, a run each
  hpcdi status runs/cartpole_dqn/latest       state of a run, from any host, without a port
  hpcdi tail runs/cartpole_dqn/latest -f      logs of all ranks
  hpcdi curves runs/cartpole_dqn/latest       its curves: terminal, CSV, wandb, MLflow
  hpcdi plot runs/cartpole_dqn/latest         one of them as a picture: terminal, or an SVG file
  hpcdi report runs/cartpole_dqn/*            runs as one HTML file, which opens without a network
  hpcdi scale runs/cartpole_dqn/latest 4      change the number of collectors of a running run
  hpcdi inspect runs/cartpole_dqn/latest      list its files, verify their checksums
  hpcdi eval runs/cartpole_dqn/latest         evaluate its policy; --video films it
  hpcdi league runs/tictactoe_league/latest   players of a league, their ratings and results
  hpcdi export runs/cartpole_dqn/latest       write its policy as a file for PyTorch or ONNX
  hpcdi new policy my_a2c                     an algorithm, or an environment, to begin from
  hpcdi convert cartpole_dqn_config.py        a configuration of DI-engine as YAML
"""
COMMANDS = tuple(dict.fromkeys(re.findall(r"^  hpcdi (\w+)", DESCRIPTION, re.MULTILINE)))
"""Those that the description shows."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = [_at_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    parser = argparse.ArgumentParser(
        prog="hpcdi",
        description=DESCRIPTION,
        epilog=OF_A_RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hpcdi {__version__}")
    parser.add_argument("command", type=_known, choices=COMMANDS, help="each has its own --help")
    if not arguments:
        parser.print_help()
        return EXIT_USAGE
    command = parser.parse_args(arguments[:1]).command
    console.prepare(is_run=command in _RUNS)
    need_home()
    try:
        _check_tasks(arguments)
        with idle_threads_sleep():
            module = import_module(f"hpcdi.commands.{command}")
            early.give_back(signal.SIGINT)
            return int(module.main(arguments[1:]))
    except HpcdiError as error:
        lines = map(console.escaped, str(error).split("\n"))
        sys.stderr.write(f"hpcdi {command}: " + "\n".join(lines) + "\n")
        return error.exit_code
    except KeyboardInterrupt as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
        sys.stderr.write(f"hpcdi {command}: interrupted{where}\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        console.forget(sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        code, is_named = EXIT_FAILED, isinstance(error.filename, str | bytes)
        if is_named and isinstance(error, PermissionError):
            said = _denied(error)
        elif is_named and error.errno == errno.ENAMETOOLONG:
            code, said = EXIT_USAGE, f"{Path(os.fsdecode(error.filename))}: {error.strerror}"
        elif error.errno in console.FULL and error.filename is None:
            console.forget(sys.stdout.fileno())
            said = f"it cannot write any more: {error.strerror}"
        else:
            raise
        sys.stderr.write(f"hpcdi {command}: {console.escaped(said)}\n")
        return code


def _known(word: str) -> str:
    """An argparse type: one of `COMMANDS`."""
    if word not in COMMANDS:
        raise argparse.ArgumentTypeError(f"there is no {word!r}{guess_of(word, COMMANDS)}")
    return word


def _denied(error: PermissionError) -> str:
    """Returns what may not be read or written, and whose it is, for somebody who is not its owner.

    Of a path below a folder that may not be entered, that folder is it.
    """
    path = Path(os.fsdecode(error.filename)).absolute()
    at = next(one for one in (path, *path.parents) if os.access(one, os.F_OK))
    state = at.stat()
    try:
        owner = at.owner()
    except KeyError:  # this host does not know its name
        owner = f"user {state.st_uid}"
    return (
        f"{path}: {error.strerror}: {at} belongs to {owner} and has mode "
        f"{state.st_mode & 0o7777:03o}; have its owner allow it (chmod), or take another path"
    )


def _at_home(word: str) -> str:
    """Returns an option with the home folder in its path: bash expands ``~`` only after a space.

    As bash does, it leaves the name of nobody as it is.
    """
    option, equals, value = word.partition("=")
    if option.startswith("-") and value.startswith("~"):
        with contextlib.suppress(RuntimeError):
            return f"{option}{equals}{Path(value).expanduser()}"
    return word


def _check_tasks(arguments: Sequence[str]) -> None:
    """Check that a command that is no ranks' has not been started by each of several tasks.

    Serial runs may be: `seed=$SLURM_PROCID` makes different ones of them. The first one says it.

    Args:
        arguments: the command, and what follows it.

    Raises:
        LaunchError: each task would submit, or start, the whole.
    """
    command, launched = arguments[0], detect(os.environ)
    if launched.tasks == 1 or tuple(arguments[:2]) in _READ:
        return
    tasks = f"{launched.tasks} tasks of {launched.launcher}"
    if command in _ONCE:
        raise LaunchError(
            f"{tasks} would each {_ONCE[command]}: start it without {launched.launcher}"
        )
    if command == "serial" and is_first(os.environ):
        sys.stderr.write(
            f"hpcdi serial: {tasks} each train the whole experiment, with the seed that it has; "
            "hpcdi train is one run over all of them\n"
        )
