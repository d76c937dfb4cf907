"""Starts a run, in this process or over ranks: for the command line and for `hpcdi.train`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

from hpcdi.comm.failure import requeued_if_machine_fails, said_if_it_exits
from hpcdi.config.compiled import compile_config, show_notes
from hpcdi.config.words import dump
from hpcdi.errors import EXIT_DONE, ConfigError
from hpcdi.run import resume
from hpcdi.run.environment import is_outside_allocation
from hpcdi.run.experiment import check_data, load_experiment
from hpcdi.run.local import ranks_of, train
from hpcdi.run.private_folder import own_folder
from hpcdi.run.request import Ended, RunRequest
from hpcdi.run.signals import end_of, limit_of
from hpcdi.run.sizes import does_not_fit
from hpcdi.utils.log import say


def start(request: RunRequest, *, over_ranks: bool) -> Ended:
    """Check an experiment, and run it to its end.

    Args:
        request: what is asked for.
        over_ranks: by mpirun, which is started here; else in this process.

    Raises:
        ConfigError: the experiment is wrong. LaunchError: it cannot be started.
        PolicyError: there is no GPU, and policy.cuda is true.
    """
    if request.time_limit is not None:
        limit_of(request.time_limit)  # refused before anything is made
    with requeued_if_machine_fails(), as_yaml(request.config) as file:
        request = dataclasses.replace(request, config=file)
        source, overrides = resume.config_of(request), resume.overrides_of(request)
        compiled, spaces = load_experiment(source, overrides, over_ranks=over_ranks)
        config = compiled.config
        is_here = not over_ranks or is_outside_allocation()
        if is_here and (problems := does_not_fit(config, spaces)):
            raise ConfigError(problems)
        ranks = ranks_of(request, config) if over_ranks else 1
        mode = resume.start_mode(request, config, os.environ)
        path = resume.folder_of(request, mode, config.exp_name)
        try:
            if mode is resume.StartMode.DONE:
                say(f"hpcdi: {resume.done_line(path)}")
                return Ended(path, EXIT_DONE)
            if mode is not resume.StartMode.RESUME:
                check_data(config, spaces)
            show_notes([*compiled.notes, *resume.changes(request, config)])
            where = f"{ranks} ranks" if over_ranks else "one process"
            say(f"hpcdi: {config.exp_name} is starting, {where}")
            if over_ranks:
                return train(request, config, ranks, path)
            from hpcdi.run.serial import serial  # with it torch

            with said_if_it_exits():
                ends_at = end_of(request.time_limit, os.environ, time.time())
                return serial(config, spaces, mode, path, ends_at)
        finally:
            with contextlib.suppress(OSError):  # removes only an empty folder
                path.rmdir()


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
    with own_folder() as folder:
        path = folder / f"{Path(config).stem}.yaml"
        path.write_text(yaml_of(Path(config)), encoding="utf-8")
        yield str(path)
