"""`hpcdi inspect`: lists what a file or a run folder holds and verifies every checksum."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcdi.commands.options import make_parser, print_lines
from hpcdi.errors import EXIT_DONE, EXIT_FAILED
from hpcdi.store.inspect import inspect

HELP = """\
List what a shard, a policy, a snapshot or a whole run folder holds, checkpoints included, and
verify every checksum. The exit code is 1 if something is damaged.

  hpcdi inspect runs/cartpole_dqn/latest
  hpcdi inspect runs/cartpole_dqn/latest/policies/best.safetensors shard.h5
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = make_parser("inspect", HELP)
    parser.add_argument("path", nargs="+", metavar="FILE|RUN", help="file or run folder")
    is_damaged = False
    for path in parser.parse_args(arguments).path:
        report = inspect(path)
        print_lines(report.lines)
        for error in report.errors:
            sys.stderr.write(f"hpcdi inspect: {error}\n")
        is_damaged |= bool(report.errors)
    return EXIT_FAILED if is_damaged else EXIT_DONE
