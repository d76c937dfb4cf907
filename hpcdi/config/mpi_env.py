"""Settings of environments that are MPI programs: `env` with ``type: mpi`` in an experiment."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpcdi.config.env import ManagerConfig, NamedEnvConfig, OverlappingConfig
from hpcdi.config.fields import component, section, setting
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.utils.registry import ENV_MANAGER_REGISTRY

_FORTRAN_ENDS = (".f", ".for", ".ftn", ".f90", ".f95", ".f03", ".f08")
FORTRAN = (*_FORTRAN_ENDS, *(end.upper() for end in _FORTRAN_ENDS))
CPP = (".cpp", ".cc", ".cxx", ".cp", ".c++", ".C", ".CPP")
SOURCES = (".c", *CPP, *FORTRAN)
"""Ends of the names of sources, which are compiled: those that the compilers know."""


@dataclass(frozen=True)
class SolverManagerConfig(OverlappingConfig):
    """Settings of the manager of solvers: each is a group of ranks."""

    type: str = "mpi"
    step_timeout: float | None = setting(
        600.0,
        "seconds until a step counts as hung: its ranks are killed; empty: never",
        above=0,
    )
    reset_timeout: float | None = setting(
        600.0, "seconds until a reset counts as hung; empty: never", above=0
    )

    def problems(self) -> Iterator[Problem]:
        """Refuses what solvers have by themselves, or cannot have."""
        if self.folder:
            yield Problem("folder", "solvers have folders of their own, in that of the run")
        if self.renew_after is not None:
            yield Problem(
                "renew_after", "a solver is made once: MPI cannot start twice in a process"
            )


@dataclass(frozen=True)
class SolverSpaceConfig:
    """Numbers that a program sends or gets; a class in Python has gymnasium's spaces instead."""

    size: int = setting(0, "how many real numbers", minimum=0)
    low: float = setting(-math.inf, "the least that they can be")
    high: float = setting(math.inf, "the most that they can be")
    choices: tuple[int, ...] = setting(
        (), "instead of real numbers: how many values each discrete one has, which count from 0"
    )

    @property
    def count(self) -> int:
        """Numbers in one value."""
        return len(self.choices) or self.size

    def problems(self) -> Iterator[Problem]:
        """Refuses spaces that are empty."""
        if min(self.choices, default=1) < 1:
            yield Problem("choices", f"each must be at least 1, not {min(self.choices)}")
        if self.low > self.high:
            yield Problem("low", f"is {self.low:g}, which is above high: {self.high:g}")


@dataclass(frozen=True)
class MpiEnvConfig(NamedEnvConfig):
    """Settings of environments that are MPI programs; see `hpcdi/env/MPI.md`."""

    type: str = "mpi"
    collector_env_num: int = setting(1, "environments of one collector, and of it alone", minimum=1)
    evaluator_env_num: int = setting(
        1,
        "environments of an evaluation: some of the same collector's, which interrupts them",
        minimum=1,
    )
    ranks: int = setting(1, "MPI ranks of each environment", minimum=1)
    arguments: tuple[str | int | float, ...] = setting(
        (), "of the program; {index} and {folder} in them are the environment's number and folder"
    )
    flags: tuple[str, ...] = setting((), "for the compiler, where env_id is a source")
    variables: dict[str, str | int | float] = setting(
        {}, "added to the environment of the program's processes; {index}, {folder} as in arguments"
    )
    observation: SolverSpaceConfig = section(SolverSpaceConfig, "of a program: what it sends")
    action: SolverSpaceConfig = section(SolverSpaceConfig, "of a program: what it gets")
    coupling: str = setting(
        "",
        "module:Class, for a program that is not changed and couples itself to a controller by "
        "MPI: what speaks with it, in the collector",
    )
    states: tuple[str, ...] = setting(
        (), "files of initial states: each reset is told one of them, chosen by its seed"
    )
    start_timeout: float | None = setting(
        300.0,
        "seconds until all ranks must have come; the first reset and the first step may take so "
        "much longer, too; empty: any number",
        above=0,
    )
    spares: int = setting(
        0,
        "groups of ranks that wait at each collector for a group of it to die (with ULFM)",
        minimum=0,
    )
    gpus_per_rank: int = setting(
        0, "GPUs of each rank, taken from those of its host that no learner uses", minimum=0
    )
    manager: ManagerConfig = component(ENV_MANAGER_REGISTRY, "mpi", "how solvers are stepped")

    @property
    def is_class(self) -> bool:
        """Whether the environment is a class in Python."""
        return ":" in self.env_id

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from NamedEnvConfig.problems(self)
        if not isinstance(self.manager, SolverManagerConfig):
            yield Problem("manager.type", f"must be 'mpi', not {self.manager.type!r}")
        if self.evaluator_env_num > self.collector_env_num:
            yield Problem(
                "evaluator_env_num",
                f"is {self.evaluator_env_num}, but a collector has {self.collector_env_num} "
                "environments (collector_env_num), which evaluations share; set "
                "evaluator_episode_num for more episodes",
            )
        for name in ("schedule", "eval_kwargs"):
            if getattr(self, name):
                yield Problem(name, "solvers are made once, and evaluations have the same ones")
        yield from self._problems_of_program()

    def _problems_of_program(self) -> Iterator[Problem]:
        if self.coupling and self.is_class:
            yield Problem("coupling", "is for a program")
        if self.coupling and self.states:
            yield Problem("states", "are not told to a coupling: give it what it needs by kwargs")
        if not self.is_class:
            for name in ("observation", "action"):
                if not (self.coupling or getattr(self, name).count):
                    yield Problem(f"{name}.size", "is required where env_id is a program")
            if self.kwargs and not self.coupling:
                yield Problem("kwargs", "are for a class in Python; set arguments, or variables")
        elif self.arguments or self.flags:
            yield Problem("arguments", "are for a program; set kwargs")
