"""A solver in Python: a class whose methods all ranks of its group call.

::

    class Heat:
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8,))
        action_space = gymnasium.spaces.Box(-1, 1, (2,))

        def reset(self, seed, comm):            # seed: from 0; with env.states: reset(..., state)
            ...
            return observation, {}

        def step(self, action, comm):           # action: the same on all ranks
            ...
            return observation, reward, terminated, truncated, {"energy": ...}

        def close(self, comm): ...              # writes last files; may be missing, or take no comm

`comm` is an mpi4py communicator of this solver's ranks; a library that takes one takes it, too.
What rank 0 returns counts. Where the class says ``assembled = True``, the observation is a vector
that all ranks return parts of, in the order of ranks; rewards are summed, and an episode ends where
a rank says so. An exception on any rank ends the group: the others may wait for that rank.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from hpcdi.comm.probe import without_starting_mpi
from hpcdi.comm.solver_protocol import Kind, SolverMessage, SolverPlace
from hpcdi.env.base import EnvFacts, EnvFailure
from hpcdi.env.contract import (
    Space,
    numbers_in,
    parts_of_reset,
    parts_of_step,
    results_of,
    with_ordered_masks,
)
from hpcdi.env.mpi.vectors import put_vector, size_of, sizes_of, unrounded, vector_of
from hpcdi.env.old_gym import parameters_of
from hpcdi.errors import EXIT_DONE, ConfigError, EnvError, Problem
from hpcdi.types import Array
from hpcdi.utils.registry import named_in_module


class PythonSolver(Protocol):
    """The class; see the module's docstring."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def reset(self, seed: int, comm: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; returns the first observation, and an info."""
        ...

    def step(self, action: Any, comm: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act; returns observation, reward, terminated, truncated, and an info."""
        ...


def find_class(path: str, setting: str = "env.env_id") -> Any:
    """Returns the class that ``module:Class`` names, by this setting.

    Raises:
        ConfigError: it cannot be imported, or has not what a solver needs.
    """
    with without_starting_mpi():  # a launcher looks at it, too
        found = named_in_module(path, setting)
    needed = ("reset", "step")
    if missing := [each for each in needed if not hasattr(found, each)]:
        message = f"{path} is no solver: it has no {', '.join(missing)}"
        raise ConfigError([Problem(setting, message)])
    return found


def serve(
    place: SolverPlace, make: Callable[[], PythonSolver], tell: Callable[[str], object]
) -> int:
    """Do what the collector orders, until it needs no more; returns the exit code.

    Starts MPI. Any error of the solver ends the process by a signal, so that hpcdi sees its death.

    Args:
        place: whose rank this is.
        make: makes what acts, when MPI has started.
        tell: called with what its `close` raises, which ends nothing.
    """
    from hpcdi.comm.failure import die_if_it_exits, leave_job
    from hpcdi.comm.solver_rank import NotNeeded, SolverRank, die, die_if_it_aborts

    die_if_it_exits()
    die_if_it_aborts()
    try:
        solver = make()
        acting = solver.action_space
        facts = EnvFacts(with_ordered_masks(solver.observation_space, acting), acting)
        rank = SolverRank.join(place, sizes_of(facts))
        answering = _Answering(rank, solver, facts)
        while (order := rank.receive()).kind is not Kind.END:
            answering.do(order)
        if failure := failure_to_close(solver, rank.comm):
            tell(failure)
        return leave_job(EXIT_DONE)
    except NotNeeded:
        return leave_job(EXIT_DONE)
    except BaseException as error:  # whatever it is, also sys.exit
        traceback.print_exc()
        die(f"{type(error).__name__}: {error}")


def failure_to_close(solver: PythonSolver, comm: Any, *, is_coupling: bool = False) -> str:
    """Have a solver write its last files; returns what it raised, and prints where; "": nothing.

    The `close` of a coupling is given the communicator wherever it takes anything.
    """
    close = getattr(solver, "close", None)
    if close is None:
        return ""
    try:
        close(comm) if _takes_comm(close, is_coupling) else close()
    except BaseException as error:  # whatever it is, also sys.exit
        traceback.print_exc()
        return EnvFailure.of(error).cause
    return ""


def _takes_comm(close: Callable[..., object], is_coupling: bool) -> bool:
    """Decides whether a `close` is to be given the communicator; others may have arguments, too."""
    arguments = parameters_of(close)
    if arguments is None:  # of a compiled class, which does not say
        return is_coupling
    if is_coupling:
        return bool(arguments)
    return "comm" in arguments or any(
        argument.default is argument.empty and argument.kind is argument.POSITIONAL_OR_KEYWORD
        for argument in arguments.values()
    )


class _Answering:
    """Does orders, on one rank."""

    def __init__(self, rank: Any, solver: PythonSolver, facts: EnvFacts) -> None:
        self._rank, self._solver = rank, solver
        self._seen = Space.of_observations(facts.observation_space)
        self._acts = Space.of_actions(facts.action_space)
        self._observation, self._action = unrounded(self._seen), self._acts.zeros(1)
        self._is_first = rank.comm.Get_rank() == 0
        self._is_assembled = bool(getattr(solver, "assembled", False))

    def do(self, order: SolverMessage) -> None:
        """Reset or step, and answer."""
        comm = self._rank.comm
        if order.kind is Kind.RESET:
            state = order.lines.get("state")
            state_argument = {} if state is None else {"state": state}
            result: Any = self._solver.reset(order.seed, comm, **state_argument)
        else:
            put_vector(self._acts, self._action, 0, order.values)
            result = self._solver.step(self._acts.value(self._action, 0), comm)
        if not (self._is_first or self._is_assembled):
            return  # whatever it is
        if order.kind is Kind.RESET:
            observation, info = parts_of_reset(result)
            self._answer(observation, 0.0, False, False, info)
        else:
            self._answer(*parts_of_step(result))

    def _answer(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> None:
        reward, terminated, truncated = results_of(reward, terminated, truncated)
        if self._is_assembled:
            part = np.ravel(np.asarray(observation, np.float64))
            parts = self._rank.comm.gather((part, reward, terminated, truncated))
            if self._is_first:
                observations, rewards, terminations, truncations = zip(*parts, strict=True)
                observation, reward = np.concatenate(observations), sum(rewards)
                terminated, truncated = any(terminations), any(truncations)
        if self._is_first:
            self._rank.answer(
                self._vector(observation), reward, terminated=terminated,
                truncated=truncated, numbers=numbers_in(info),
            )  # fmt: skip

    def _vector(self, observation: Any) -> Array:
        if not self._is_assembled:
            self._seen.put(self._observation, 0, observation)
            return vector_of(self._seen, self._observation, 0)
        if observation.size != size_of(self._seen):
            raise EnvError(
                f"the parts of an observation have {observation.size} numbers together, and "
                f"observation_space has {size_of(self._seen)}"
            )
        whole: Array = observation
        return whole
