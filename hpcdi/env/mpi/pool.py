"""The solvers that this rank has: collecting and evaluating share them, and they outlive both.

A collector's rank opens `SOLVERS` when MPI has started, and closes it when nothing more is wanted;
managers take solvers from it (`hpcdi.env.mpi.manager`).

A program that is not changed has a class in the collector that speaks with it, in the program's own
protocol (`CoupledGroup`)::

    class Controller:                                  # env.coupling: "my_module:Controller"
        observation_space, action_space = ...

        def reset(self, seed, comm): ...               # comm: the collector is rank 0 in it
            return observation, {}

        def step(self, action, comm): ...
            return observation, reward, terminated, truncated, {}

        def close(self, comm): ...                     # tells the program to end

The program finds the same communicator as its MPI_COMM_WORLD. Waits of the class for it end by the
time-outs of other solvers, a rank's death, or the program's end. Environments of one collector do
not step at the same time: each class waits for its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hpcdi.comm.doorbell import Doorbell
from hpcdi.comm.solver_protocol import Kind, Sizes, SolverLost, SolverMessage, SolverPlace
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.env.arguments import ENV_FOLDER, make_numbered, numbered
from hpcdi.env.base import EnvFacts
from hpcdi.env.contract import Space, numbers_in, parts_of_reset, parts_of_step, results_of
from hpcdi.env.mpi.environment import NO_RANKS, facts_of
from hpcdi.env.mpi.python_solver import PythonSolver, failure_to_close, find_class
from hpcdi.env.mpi.solvers import RankGroup, Solver, SolverLimits, SolverRaised
from hpcdi.env.mpi.vectors import put_vector, sizes_of, unrounded, vector_of
from hpcdi.errors import ConfigError, EnvValueError, LaunchError, Problem
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.registry import raised
from hpcdi.utils.variables import variables_set

_FLUSH_S, _LOOK_S = 2.0, 1e-3
"""For the last messages to leave: where ranks may die, nobody calls MPI_Finalize."""
_COUPLING_CLOSE_S = 10.0


class Coupled(RankGroup, Protocol):
    """A group with a communicator of its program's own protocol."""

    coupled: Any
    reason: str


class CoupledGroup:
    """A group whose orders a class does; see `hpcdi.env.mpi.solvers.RankGroup`.

    Args:
        group: the ranks.
        controller: the class's instance.
        facts: its spaces.
    """

    rings = False

    def __init__(self, group: Coupled, controller: PythonSolver, facts: EnvFacts) -> None:
        self._group, self._controller = group, controller
        self._seen = Space.of_observations(facts.observation_space)
        self._acts = Space.of_actions(facts.action_space)
        self._observation, self._action = unrounded(self._seen), self._acts.zeros(1)
        self._answer: SolverMessage | None = None
        self.meet, self.look_for_deaths = group.meet, group.look_for_deaths
        self.give_up, self.is_flushed = group.give_up, group.is_flushed

    @property
    def is_busy(self) -> bool:
        """True from an order to the end of `take`."""
        return self._answer is not None

    @property
    def dead(self) -> Sequence[int]:
        """Of its ranks those that have died."""
        return self._group.dead

    def order(self, message: SolverMessage, deadline: float) -> None:
        """Do an order; what comes of it is there at once.

        Args:
            message: the order.
            deadline: by `time.monotonic`, for each wait of the class.

        Raises:
            SolverLost: a rank has died, the class has waited too long, or has failed.
            EnvValueError: the class returned what its spaces, or gymnasium's API, do not have.
        """
        comm, is_reset = self._group.coupled, message.kind is Kind.RESET
        comm.deadline = deadline
        try:
            if is_reset:
                observation, info = parts_of_reset(self._controller.reset(message.seed, comm))
                reward, terminated, truncated = 0.0, False, False
            else:
                put_vector(self._acts, self._action, 0, message.values)
                action = self._acts.value(self._action, 0)
                observation, reward, terminated, truncated, info = parts_of_step(
                    self._controller.step(action, comm)
                )
            self._seen.put(self._observation, 0, observation)
            reward, terminated, truncated = results_of(reward, terminated, truncated)
        except EnvValueError:
            raise
        except Exception as error:  # whatever it is: nobody knows what the program waits for
            self._group.look_for_deaths()
            said = str(error) if isinstance(error, SolverLost) else f"its coupling {raised(error)}"
            reason = self._group.reason or said
            is_death = bool(self._group.reason) or isinstance(error, SolverLost)
            self._group.give_up(reason)
            raise (SolverLost if is_death else SolverRaised)(reason) from error
        self._answer = SolverMessage(
            Kind.OBSERVATION, values=vector_of(self._seen, self._observation, 0),
            reward=reward, terminated=terminated, truncated=truncated,
            lines={name: repr(number) for name, number in numbers_in(info).items()},
        )  # fmt: skip

    def release(self) -> None:
        """Let the program end: by the class's ``close(comm)``, or it is killed."""
        comm = None if self._group.reason else self._group.coupled  # a reason: it is lost
        if comm is not None and getattr(self._controller, "close", None) is None:
            self._group.give_up("it is not needed any more")
        elif comm is not None:
            comm.deadline = time.monotonic() + _COUPLING_CLOSE_S
            comm.has_ended = lambda: False  # it may, while some of its ranks still send
            if failure := failure_to_close(self._controller, comm, is_coupling=True):
                self._group.give_up(f"its coupling failed to close: {failure}")
        self._group.release()

    def has_news(self) -> bool:
        """Returns True: it is there."""
        return True

    def take(self) -> SolverMessage:
        """Returns what the last order has led to."""
        if self._answer is None:
            raise SolverLost("it was asked for an answer before it was given an order")
        answer, self._answer = self._answer, None
        return answer


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

    def another(self, held: Sequence[Solver]) -> Solver | None:
        """Returns a solver that is not held, and whose ranks live; None: there is none."""
        others = (solver for solver in self._solvers if solver not in held and not solver.is_lost)
        return next(others, None)

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
            solver.group.release()
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
            controller = make_numbered(partial(self._controller, self._folder_of[number]), number)
            group = SolverGroup(place, Sizes(), self.bell, is_coupled=True)
            made = CoupledGroup(group, controller, self.facts)
        else:
            made = SolverGroup(place, self._sizes, self.bell)
        self._folders[made] = self._folder_of[number]
        return made

    def _controller(self, folder: Path) -> PythonSolver:
        cls = find_class(self._cfg.coupling, "env.coupling")
        with variables_set({ENV_FOLDER: str(folder)}):
            made: PythonSolver = cls(**numbered(self._cfg.kwargs))
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
