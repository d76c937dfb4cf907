"""`hpcdi convert`: DI-engine's configuration files as experiments of hpcdi."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcdi.commands.options import make_parser
from hpcdi.config.compiled import compile_config, show_notes
from hpcdi.config.load import dump
from hpcdi.errors import EXIT_DONE
from hpcdi.run.private_folder import own_folder
from hpcdi.store.atomic import write_text

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
    text = yaml_of(Path(options.file))
    if options.output is None:
        sys.stdout.write(text)
    else:
        write_text(Path(options.output), text)
    return EXIT_DONE


def yaml_of(path: Path) -> str:
    """Returns the experiment as YAML, checked; notes go to standard error.

    Raises:
        ConfigError: the file cannot be run, or hpcdi has no run for it.
    """
    from hpcdi.worker.ding.reader import read  # with it all of ding.worker, and torch

    experiment, notes = read(path)
    compile_config(experiment, str(path))
    show_notes(notes)
    return f"# from {path}\n{dump(experiment)}"


@contextlib.contextmanager
def as_yaml(config: str | None) -> Iterator[str | None]:
    """Yields a YAML file: the same one, or for a Python file its conversion, for so long.

    Raises:
        ConfigError: see `yaml_of`.
    """
    if config is None or not config.endswith(".py"):
        yield config
        return
    with own_folder(Path(tempfile.gettempdir())) as folder:
        path = folder / f"{Path(config).stem}.yaml"
        path.write_text(yaml_of(Path(config)), encoding="utf-8")
        yield str(path)
