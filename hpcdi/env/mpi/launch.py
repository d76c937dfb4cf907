"""What a rank becomes that is a solver's: another program, by exec, or a loop in Python.

This happens before MPI starts, since a process starts MPI once: nothing here imports mpi4py, and
the rank is read from the variables that launchers set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdi.comm.solver_protocol import SolverPlace
from hpcdi.env.mpi import build
from hpcdi.errors import LaunchError

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Of Open MPI, PMIx (srun --mpi=pmix), MPICH and Slurm, the more exact first."""
_SOURCES = (".c", ".cpp", ".cc", ".cxx", ".f90", ".F90", ".f", ".F")


def rank_of(variables: Mapping[str, str] = os.environ) -> int | None:
    """Returns this process's rank in the job, without MPI; None: no launcher says."""
    for name in _RANK_VARIABLES:
        if variables.get(name, "").isdigit():
            return int(variables[name])
    return None


@dataclass(frozen=True)
class Program:
    """What the ranks of an environment run: a command, or a class.

    Attributes:
        command: program and arguments, with ``{index}`` and ``{folder}`` in them for the number and
            the folder of the environment. A source (C, C++, Fortran) is compiled first.
        python: ``module:Class``, instead; see `python_solver`.
        kwargs: of the class; ``{index}`` and ``{folder}`` in texts, too.
        flags: for the compiler.
        variables: added to the environment of its processes.
        is_unmodified: it knows nothing of hpcdi: a library gives it a world of its own.
        has_collector: that world has the collector, as its rank 0, for a program that couples
            itself to a controller by MPI (application number `appnum`).
        appnum: MPI_APPNUM in the world of an unmodified program.
    """

    command: tuple[str, ...] = ()
    python: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    is_unmodified: bool = False
    has_collector: bool = False
    appnum: int | None = None

    def prepare(self) -> Program:
        """Returns it with its source compiled, and checked as far as a process alone can.

        Raises:
            LaunchError: it cannot be run.
        """
        if self.python:
            return self
        program = Path(self.command[0])
        if program.suffix in _SOURCES:
            program = build.compiled([program.absolute()], self.flags)
        if self.is_unmodified:
            build.check_program(program)
            build.preload_library()
        return Program(
            (str(program), *self.command[1:]), "", {}, (), self.variables, self.is_unmodified,
            self.has_collector, self.appnum,
        )  # fmt: skip


def log_path(folder: Path, number: int) -> Path:
    """Returns the file with what a rank of an environment prints, by its number in the group."""
    return folder / f"rank{number:05d}.log"


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
    words = {"index": str(place.environment), "folder": str(folder)}
    variables = {**place.variables(), **program.variables}
    if program.python:
        from hpcdi.env.mpi.python_solver import find_class, serve

        make = find_class(program.python)  # it may lie in the present folder
        os.environ.update(variables)
        _move_to(folder, place.ranks.index(rank))
        return serve(place, make(**{k: _filled(v, words) for k, v in program.kwargs.items()}))
    variables |= _preloading(program)
    command = [_filled(word, words) for word in program.command]
    command[0] = str(Path(command[0]).absolute()) if "/" in command[0] else command[0]
    _move_to(folder, place.ranks.index(rank))
    try:
        os.execvpe(command[0], command, {**os.environ, **variables})  # noqa: S606 (no shell)
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be run: {error.strerror}") from error


def _preloading(program: Program) -> dict[str, str]:
    """Variables that have the library preloaded; a killed program's last words are kept, too."""
    made = {"GFORTRAN_UNBUFFERED_PRECONNECTED": "y"}
    if program.is_unmodified:
        others = os.environ.get("LD_PRELOAD")
        made["LD_PRELOAD"] = ":".join(filter(None, [str(build.preload_library()), others]))
        made["HPCDI_SOLVER_WORLD"] = "pair" if program.has_collector else "group"
        if program.appnum is not None:
            made["HPCDI_SOLVER_APPNUM"] = str(program.appnum)
    return made


def _move_to(folder: Path, number: int) -> None:
    """Work in the folder, and print to the log there."""
    log = os.open(log_path(folder, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(folder)


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    """Returns a text with ``{index}`` and ``{folder}`` replaced; other values as they are."""
    if isinstance(value, str):
        for name, word in words.items():
            value = value.replace(f"{{{name}}}", word)
    return value
