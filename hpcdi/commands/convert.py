"""`hpcdi convert`: DI-engine's configuration files as experiments of hpcdi."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hpcdi.commands.options import make_parser
from hpcdi.commands.output_file import write_output
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.run.start import yaml_of

HELP = """\
Write a configuration of DI-engine (Python with main_config and create_config) as an experiment of
hpcdi, in YAML. The file is Python code, which runs with your rights.

  hpcdi convert cartpole_dqn_config.py                        print it
  hpcdi convert cartpole_dqn_config.py -o cartpole.yaml       keep it, for hpcdi train cartpole.yaml
  hpcdi train cartpole_dqn_config.py -n 4                     or train at once, as if converted

Settings of the policy and of the environment stay as they are, below policy.ding and env.ding, for
DI-engine's own classes, which run in hpcdi's collectors and learners: DI-engine must be installed
beside hpcdi. Every key that is renamed, rounded or dropped is reported.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = make_parser("convert", HELP)
    parser.add_argument("file", metavar="CONFIG.py", help="configuration of DI-engine")
    parser.add_argument("-o", "--output", metavar="FILE.yaml", help="write it here; default: print")
    options = parser.parse_args(arguments)
    if Path(options.file).suffix != ".py":
        raise LaunchError(f"{options.file} is no Python file (x.py) of DI-engine's")
    text = yaml_of(Path(options.file))
    if options.output is None:
        sys.stdout.write(text)
    else:
        write_output(Path(options.output), text)
    return EXIT_DONE
