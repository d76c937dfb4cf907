"""Options that several commands share."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Callable, Iterable, Sequence

from hpcdi.run.request import RunRequest
from hpcdi.utils.console import escaped

EXIT_CODES = """\
exit codes: 0 done, 1 failed, 2 wrong configuration or command, 130 Ctrl-C
"""
OF_A_RUN = """\
exit codes: 0 done, 1 failed, 2 wrong configuration or command, 85 to be resumed (time limit,
SIGTERM, SIGUSR2, a rank or node that was lost), 130 Ctrl-C, 143 a second SIGTERM
"""


def make_parser(command: str, about: str, exit_codes: str = EXIT_CODES) -> argparse.ArgumentParser:
    """Returns the parser of ``hpcdi COMMAND``, which prints `about` and `exit_codes`."""
    return argparse.ArgumentParser(
        prog=f"hpcdi {command}",
        description=about,
        epilog=exit_codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def guess_of(word: str, known: Iterable[str]) -> str:
    """Returns the part of a message that names the nearest known word; empty: none is near."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def at_least(minimum: int) -> Callable[[str], int]:
    """Returns an argparse type: an integer that is not below `minimum`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer from {minimum}, not {text!r}")
        return int(text)

    return read


def seconds_from(minimum: float) -> Callable[[str], float]:
    """Returns an argparse type: a finite number of seconds that is not below `minimum`."""
    wanted = f"a number of seconds from {minimum:g}"
    return number(wanted, lambda seconds: minimum <= seconds < math.inf)


def number(wanted: str, is_wanted: Callable[[float], bool]) -> Callable[[str], float]:
    """Returns an argparse type: a number for which `is_wanted`; what is none is asked as NaN.

    Args:
        wanted: which numbers these are, for the message.
        is_wanted: returns whether a number is one of them.
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not is_wanted(value):
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
        return value

    return read


def add_experiment(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Add the experiment's file and settings, ``config`` and ``override``."""
    parser.add_argument(
        "config",
        nargs="?" if is_optional else None,
        metavar="CONFIG",
        help="YAML file of the experiment",
    )
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser, about: str = "settings to change") -> None:
    """Add the settings that override those of a file, ``override``."""
    parser.add_argument("override", nargs="*", default=[], metavar="key=value", help=about)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a run; see `run_state.find_run`."""
    parser.add_argument("run", metavar="RUN|JOB", help="run folder, or Slurm job id")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names several runs; see `add_run`."""
    parser.add_argument("runs", metavar="RUN|JOB", nargs="+", help="run folders, or Slurm job ids")


def add_ranks(parser: argparse.ArgumentParser, *, resumes: bool = False) -> None:
    """Add the number of ranks, and the short settings of a run over ranks.

    Args:
        parser: of a command.
        resumes: whether the command has ``--resume``.
    """
    of_resumed = "; with --resume: as many as the run had" if resumes else ""
    parser.add_argument(
        "-n",
        "--ranks",
        type=int,
        metavar="N",
        help="number of ranks (default: 1 + learner_num + collector_num, or collector_max"
        f"{of_resumed})",
    )
    add_short_settings(parser)


def add_short_settings(parser: argparse.ArgumentParser) -> None:
    """Add options that set one setting each; ``short`` has them as ``key=value``."""
    parser.add_argument(
        "--collectors-max",
        metavar="N",
        dest="short",
        action="append",
        default=[],
        type=lambda text: f"policy.collect.collector.collector_max={at_least(1)(text)}",
        help="start N collector ranks; collector_num of them work, the others wait until one is "
        "lost or `hpcdi scale` asks for more (policy.collect.collector.collector_max)",
    )
    parser.add_argument(
        "--survive",
        dest="short",
        action="append_const",
        const="system.survival.on_worker_error=continue",
        help="continue without a learner or collector that raises (Open MPI 5); short for "
        "system.survival.on_worker_error=continue",
    )


def add_run_folder(parser: argparse.ArgumentParser) -> None:
    """Add where the run is kept: a new folder, or that of a run to resume."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--run-dir", metavar="DIR", help="run folder (default: runs/<exp_name>/<time>)"
    )
    where.add_argument("--resume", metavar="RUN", help="resume a run from its run folder")


def add_time_limit(parser: argparse.ArgumentParser) -> None:
    """Add the time limit of a run, ``time_limit``."""
    parser.add_argument(
        "--time-limit",
        metavar="TIME",
        help="take a last snapshot and end (exit code 85) before TIME is over: 90 minutes, "
        "1:30:00, 2-12:00:00, UNLIMITED (default: the job's, from Slurm, PBS or LSF)",
    )


def request_of(options: argparse.Namespace) -> RunRequest:
    """Returns what the command line of a run asks for.

    With ``--resume`` the file may be left out: what looks like a setting is one.
    """
    others = vars(options)
    config, overrides = options.config, (*options.override, *others.get("short", ()))
    if options.resume is not None and config is not None and "=" in config:
        config, overrides = None, (config, *overrides)
    return RunRequest(
        config,
        overrides,
        options.run_dir,
        options.resume,
        others.get("ranks"),
        others.get("time_limit"),
    )


def parse_run(
    command: str, about: str, arguments: Sequence[str], *, over_ranks: bool
) -> RunRequest:
    """Returns what the command line of ``hpcdi train`` or ``hpcdi serial`` asks for.

    Args:
        command: which of them.
        about: what its ``--help`` says.
        arguments: of the command line.
        over_ranks: it has the options of a run over ranks, too.
    """
    parser = make_parser(command, about, OF_A_RUN)
    add_experiment(parser, is_optional=True)
    if over_ranks:
        add_ranks(parser, resumes=True)
    add_run_folder(parser)
    add_time_limit(parser)
    return request_of(parser.parse_intermixed_args(arguments))


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add which saved policy: ``policy``, ``override``, ``which``, ``config``, ``trust``."""
    parser.add_argument(
        "policy",
        metavar="RUN|CHECKPOINT|FILE",
        help="run folder, checkpoint folder, or .safetensors file of a policy",
    )
    add_settings(parser)
    parser.add_argument(
        "--policy",
        dest="which",
        choices=("best", "latest"),
        help="which of the run's policies (default: best, or latest if there is no best)",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="the experiment (default: config.yaml of the policy's run)"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import the modules that a run of somebody else names (import_names, module:name): "
        "they run as you. Your own runs do not need it",
    )


def print_lines(lines: Iterable[str]) -> None:
    """Print lines and flush, so that `hpcdi.cli.main` sees a closed pipe.

    Control characters, which files of others may hold, are shown escaped.
    """
    for line in lines:
        sys.stdout.write(escaped(line) + "\n")
    sys.stdout.flush()


def in_columns(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Returns the lines of a table.

    Args:
        rows: of cells, the heads first.
        left: columns that begin at their left; the others end at their right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
