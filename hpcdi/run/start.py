"""Starts a run, in this process or over ranks: for the command line and for `hpcdi.train`."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcdi.config.compiled import compile_config, show_notes
from hpcdi.config.load import dump
from hpcdi.run.private_folder import own_folder
from hpcdi.run.request import Ended, RunRequest


def start(request: RunRequest, *, over_ranks: bool) -> Ended:
    """Run an experiment to its end.

    Args:
        request: what is asked for.
        over_ranks: by mpirun, which is started here; else in this process.

    Raises:
        ConfigError: the experiment is wrong. LaunchError: it cannot be started.
    """
    with as_yaml(request.config) as config:
        request = dataclasses.replace(request, config=config)
        if over_ranks:
            from hpcdi.run.local import train

            return train(request)
        from hpcdi.comm.failure import said_if_it_exits
        from hpcdi.run.serial import serial  # with it torch

        with said_if_it_exits():
            return serial(request)


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
