"""What a rank becomes that is a solver's: another program, by exec, or a loop in Python.

This happens before MPI starts, since a process starts MPI once: nothing here imports mpi4py, and
the rank is read from the variables that launchers set.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from hpcdi.comm.solver_protocol import LAST_LINE, SolverPlace
from hpcdi.config.env import EnvConfig
from hpcdi.config.mpi_env import SOURCES, MpiEnvConfig
from hpcdi.dataclass import dataclass
from hpcdi.env.arguments import ENV_FOLDER, ENV_INDEX, numbered
from hpcdi.env.mpi import build
from hpcdi.env.process_state import SENT_TO_ALL
from hpcdi.errors import ConfigError, LaunchError, Problem, StoreError
from hpcdi.utils.backoff import let_idle_threads_spin
from hpcdi.utils.disk import open_to_append

_LAST_LINES, _LAST_BYTES = 20, 4096
_ANEW = "hpcdi: --------- the run goes on, and this rank begins ---------\n"
"""Stands in a rank's log between what it printed before a run was resumed and after."""
_PROGRAMS_LAST_LINE = re.compile(r"hpcdi: rank \d+ of environment \d+ \(process \d+\): (.*)")
"""What ``hpcdi.c`` prints last."""


@dataclass(frozen=True)
class Program:
    """What the ranks of an environment run: a command, or a class.

    Attributes:
        command: program and arguments, with ``{index}`` and ``{folder}`` in them for the number and
            the folder of the environment. A source (C, C++, Fortran) is compiled first.
        python: ``module:Class``, instead; see `python_solver`.
        kwargs: of the class; ``{index}`` and ``{folder}`` in texts, too.
        flags: for the compiler.
        variables: added to the environment of its processes; ``{index}`` and ``{folder}``, too.
        is_unmodified: it knows nothing of hpcdi: a library gives it a world of its own.
        has_collector: that world has the collector, as its rank 0, for a program that couples
            itself to a controller by MPI.
    """

    command: tuple[str, ...] = ()
    python: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    is_unmodified: bool = False
    has_collector: bool = False

    @classmethod
    def of(cls, cfg: MpiEnvConfig) -> Program:
        """Returns what the ranks of an experiment's environments run."""
        variables = {name: str(value) for name, value in cfg.variables.items()}
        if cfg.is_class:
            return cls(python=cfg.env_id, kwargs=cfg.kwargs, variables=variables)
        is_coupled = bool(cfg.coupling)
        return cls(
            (cfg.env_id, *map(str, cfg.arguments)), flags=cfg.flags, variables=variables,
            is_unmodified=is_coupled, has_collector=is_coupled,
        )  # fmt: skip

    def prepare(self) -> Program:
        """Returns it with its source compiled, and checked as far as a process alone can.

        Raises:
            LaunchError: it cannot be run. ConfigError: there is no such class.
        """
        if self.python:
            from hpcdi.env.mpi.python_solver import find_class

            find_class(self.python)
            return self
        program = Path(self.command[0])
        if program.suffix in SOURCES:
            if not program.is_file():
                raise LaunchError(f"env.env_id: there is no source {program}")
            program = build.compiled([program.absolute()], self.flags)
        elif shutil.which(program) is None:
            raise LaunchError(f"env.env_id: there is no program {program} that can be run")
        if self.is_unmodified:
            build.check_program(program)
            build.preload_library()
        return dataclasses.replace(self, command=(str(program), *self.command[1:]), flags=())


def located(cfg: EnvConfig, folder: Path) -> EnvConfig:
    """Returns the settings with the whole paths of the program and of initial states.

    Args:
        cfg: of the environment.
        folder: where they lie that are not in the present one: that of the experiment's file.

    Raises:
        ConfigError: an initial state is in neither.
    """
    if not isinstance(cfg, MpiEnvConfig):
        return cfg
    states = [_found(state, folder) for state in cfg.states]
    problems = [
        Problem(
            "env.states",
            f"there is no file {state}, neither in the present folder nor in {folder.absolute()}",
        )
        for state, found in zip(cfg.states, states, strict=True)
        if found is None
    ]
    if problems:
        raise ConfigError(problems)
    env_id = None if cfg.is_class else _found(cfg.env_id, folder)
    return dataclasses.replace(cfg, env_id=env_id or cfg.env_id, states=tuple(map(str, states)))


def _found(name: str, folder: Path) -> str | None:
    """Returns the whole path of a file in the present folder, or else in another; None: in none."""
    places = (Path(name), folder / name)
    return next((str(place.absolute()) for place in places if place.is_file()), None)


def log_path(folder: Path, number: int) -> Path:
    """Returns the file with what a rank of an environment prints, by its number in the group."""
    return folder / f"rank{number:05d}.log"


def last_words(logs: Iterable[Path]) -> str:
    """Returns the ends of ranks' logs, each after its path; of empty ones nothing.

    What a rank printed before its run was resumed is none of it.
    """
    words = [(path, _end_of(path)) for path in logs]
    return "\n".join(f"{path}:\n{text}" for path, text in words if text)


def why_ended(words: str) -> tuple[str, bool]:
    """Returns why a rank says that it ends, in logs' last words; "" where none does.

    And whether it is a class that has raised.
    """
    for line in reversed(words.splitlines()):
        if line.startswith(LAST_LINE):
            return line.removeprefix(LAST_LINE), True
        if said := _PROGRAMS_LAST_LINE.match(line):
            return said[1], False
    return "", False


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LAST_BYTES))
            text = file.read().decode(errors="replace").rpartition(_ANEW)[2]
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LAST_LINES:])


def become_solver(place: SolverPlace, program: Program, folder: Path, rank: int) -> int:
    """Turn this process into a rank of a solver; returns the exit code of one in Python, if at all.

    Its output goes to a file of its own in `folder`, which is its working folder.

    Args:
        place: whose rank it is.
        program: what it runs.
        folder: of the environment; it is made.
        rank: of MPI_COMM_WORLD.

    Raises:
        LaunchError: the program cannot be run; or MPI has been started already.
    """
    if "mpi4py.MPI" in sys.modules:
        raise LaunchError("this process has started MPI, and cannot become a solver any more")
    program = program.prepare()
    folder.mkdir(parents=True, exist_ok=True)
    let_idle_threads_spin()
    os.environ |= {ENV_INDEX: str(place.environment), ENV_FOLDER: str(folder)}
    os.environ |= place.variables() | {k: str(numbered(v)) for k, v in program.variables.items()}
    for number in SENT_TO_ALL:  # the collector ends a solver; also what it execs ignores them
        signal.signal(number, signal.SIG_IGN)
    if program.python:
        from hpcdi.env.mpi.python_solver import find_class, serve

        kwargs = numbered(program.kwargs)
        log = log_path(folder, place.ranks.index(rank))
        job = os.dup(2)  # where the run prints

        def tell(failure: str) -> None:
            said = f"close() of environment {place.environment} failed ({failure})"
            os.write(job, f"hpcdi: {said}: {log}\n".encode())

        _move_to(folder, place.ranks.index(rank))
        return serve(place, lambda: find_class(program.python)(**kwargs), tell)
    os.environ.update(_preloading(program))
    command = [str(numbered(word)) for word in program.command]
    command[0] = str(Path(command[0]).absolute()) if "/" in command[0] else command[0]
    _move_to(folder, place.ranks.index(rank))
    try:
        os.execvp(command[0], command)  # noqa: S606 (no shell)
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be run: {error.strerror}") from error


def _preloading(program: Program) -> dict[str, str]:
    """Variables that have the library preloaded; a killed program's last words are kept, too."""
    made = {"GFORTRAN_UNBUFFERED_PRECONNECTED": "y"}
    if program.is_unmodified:
        others = os.environ.get("LD_PRELOAD")
        made["LD_PRELOAD"] = ":".join(filter(None, [str(build.preload_library()), others]))
        made["HPCDI_SOLVER_WORLD"] = "pair" if program.has_collector else "group"
    return made


def _move_to(folder: Path, number: int) -> None:
    """Work in the folder, and print to the log there."""
    path = log_path(folder, number)
    try:
        log = open_to_append(path)
    except OSError as error:
        raise StoreError(path, f"cannot be written: {error.strerror}") from error
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fstat(log).st_size:
        os.write(log, _ANEW.encode())
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(folder)
