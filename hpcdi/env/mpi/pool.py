"""The solvers that this rank has: collecting and evaluating share them, and they outlive both.

A collector's rank opens `SOLVERS` when MPI has started, and closes it when nothing more is wanted;
managers take solvers from it (`hpcdi.env.mpi.manager`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from hpcdi.comm.doorbell import Doorbell
from hpcdi.comm.solver_protocol import Sizes, SolverPlace
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.env.base import EnvFacts
from hpcdi.env.mpi.coupled import CoupledGroup
from hpcdi.env.mpi.environment import NO_RANKS, facts_of, sizes_of
from hpcdi.env.mpi.python_solver import find_class
from hpcdi.env.mpi.solvers import RankGroup, Solver, SolverLimits
from hpcdi.env.numbering import make_numbered, numbered
from hpcdi.errors import ConfigError, LaunchError, Problem
from hpcdi.utils.backoff import wait_s

_FLUSH_S, _LOOK_S = 2.0, 1e-3
"""For the last messages to leave: where ranks may die, nobody calls MPI_Finalize."""


class SolverPool:
    """Solvers by their number at this collector; see the module's docstring."""

    def __init__(self) -> None:
        self.facts = EnvFacts(None, None)
        self.bell: Doorbell | None = None
        self.is_closed = False
        self._solvers: list[Solver] = []
        self._places: Sequence[SolverPlace] = ()
        self._spares: list[SolverPlace] = []
        self._sizes = Sizes()
        self._cfg, self._limits = MpiEnvConfig(), SolverLimits()
        self._folder_of: Mapping[int, Path] = {}
        self._folders: dict[object, Path] = {}  # of groups

    def open(
        self, cfg: MpiEnvConfig, places: Sequence[SolverPlace], folders: Mapping[int, Path]
    ) -> None:
        """Expect the ranks of some groups; starts MPI where it has not been started.

        Args:
            cfg: of the environment.
            places: the groups of this collector, spare ones (with an assigner), too.
            folders: of each group, by its environment's number at the start.

        Raises:
            LaunchError: MPI lets only one thread make calls.
        """
        from hpcdi.comm.failure import ranks_may_die
        from hpcdi.comm.world import thread_level

        if thread_level() != "MULTIPLE":
            raise LaunchError(
                f"environments of type 'mpi' need MPI's level of threads MULTIPLE; it is "
                f"{thread_level()}"
            )
        self.facts = facts_of(cfg)
        self._sizes = sizes_of(self.facts)
        self.bell = Doorbell()
        self._spares = [place for place in places if place.assigner is not None]
        self._folder_of = folders
        manager = cfg.manager
        self._cfg = cfg
        self._limits = SolverLimits(cfg.start_timeout, manager.reset_timeout, manager.step_timeout)
        for place in places:
            if place.assigner is None:
                group = self._group(place, place.environment)
                solver = Solver(
                    group, self._limits, folder_of=self._folders.get,
                    next_group=partial(self._next_group, place), states=cfg.states,
                    may_die=ranks_may_die(), bell=self.bell,
                )  # fmt: skip
                self._solvers.append(solver)

    def take(self, count: int) -> list[Solver]:
        """Returns so many solvers, those first whose ranks live.

        Raises:
            ConfigError: this process has none.
        """
        if self.bell is None:
            raise ConfigError([Problem("env.type", NO_RANKS)])
        if count > len(self._solvers):
            message = f"{count} environments, and this process has ranks for {len(self._solvers)}"
            raise ConfigError([Problem("env.collector_env_num", message)])
        return sorted(self._solvers, key=lambda solver: solver.is_lost)[:count]

    def close(self, places: Sequence[SolverPlace]) -> None:
        """Let all programs end, also those that nobody has needed. Idempotent.

        Args:
            places: the groups of this collector, for one that never opened it.
        """
        from hpcdi.comm import solver_group

        if self.is_closed:
            return
        self.is_closed = True
        if self.bell is None:
            for place in places:
                solver_group.dismiss(place)
            return
        for solver in self._solvers:
            solver.close()
        for spare in self._spares:
            solver_group.dismiss(spare)
        deadline = time.monotonic() + _FLUSH_S
        while time.monotonic() < deadline and not all(
            solver.group.is_flushed() for solver in self._solvers
        ):
            wait_s(_LOOK_S)

    def _group(self, place: SolverPlace, number: int) -> RankGroup:
        from hpcdi.comm.solver_group import SolverGroup

        made: RankGroup
        if self._cfg.coupling:
            found = find_class(self._cfg.coupling, "env.coupling")
            controller = make_numbered(lambda: found(**numbered(self._cfg.kwargs)), number)
            group = SolverGroup(place, Sizes(), self.bell, is_coupled=True)
            made = CoupledGroup(group, controller, self.facts)
        else:
            made = SolverGroup(place, self._sizes, self.bell)
        self._folders[made] = self._folder_of[number]
        return made

    def _next_group(self, lost: SolverPlace) -> RankGroup | None:
        """Have spare ranks become a lost environment's."""
        from hpcdi.comm.solver_group import assign

        if not self._spares:
            return None
        spare = self._spares.pop(0)
        return self._group(assign(spare, lost.environment, lost.collector), spare.environment)


SOLVERS = SolverPool()
"""Those of this process."""
