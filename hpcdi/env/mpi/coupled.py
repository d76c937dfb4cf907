"""Solvers that are not changed: a class in the collector speaks with them, in their own protocol.

::

    class Controller:                                  # env.coupling: "my_module:Controller"
        observation_space, action_space = ...

        def reset(self, seed, comm): ...               # comm: the collector is rank 0 in it
            return observation, {}

        def step(self, action, comm): ...
            return observation, reward, terminated, truncated, {}

        def close(self, comm): ...                     # tells the program to end

The program finds the same communicator as its MPI_COMM_WORLD. Waits of the class for it end by the
time-outs of other solvers. Environments of one collector do not step at the same time: each class
waits for its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from hpcdi.comm.solver_protocol import Kind, SolverLost, SolverMessage
from hpcdi.env.base import EnvFacts
from hpcdi.env.contract import Space, number_of, numbers_in, truth_of
from hpcdi.env.mpi.python_solver import PythonSolver
from hpcdi.env.mpi.solvers import RankGroup
from hpcdi.env.mpi.vectors import put_vector, unrounded, vector_of

_CLOSE_S = 10.0


class Coupled(RankGroup, Protocol):
    """A group with a communicator of its program's own protocol."""

    coupled: Any


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
        """
        comm, is_reset = self._group.coupled, message.kind is Kind.RESET
        comm.deadline = deadline
        try:
            if is_reset:
                observation, info = self._controller.reset(message.seed, comm)
                reward, terminated, truncated = 0.0, False, False
            else:
                put_vector(self._acts, self._action, 0, message.values)
                action = self._acts.value(self._action, 0)
                observation, reward, terminated, truncated, info = self._controller.step(
                    action, comm
                )
            self._seen.put(self._observation, 0, observation)
            reward = number_of(reward)
            terminated = truth_of(terminated, "terminated")
            truncated = truth_of(truncated, "truncated")
        except Exception as error:  # whatever it is: nobody knows what the program waits for
            self._group.look_for_deaths()
            reason = str(error) if isinstance(error, SolverLost) else f"its coupling: {error!r}"
            self._group.give_up(reason)
            raise SolverLost(reason) from error
        self._answer = SolverMessage(
            Kind.OBSERVATION, values=vector_of(self._seen, self._observation, 0),
            reward=reward, terminated=terminated, truncated=truncated,
            lines={name: repr(number) for name, number in numbers_in(info).items()},
        )  # fmt: skip

    def release(self) -> None:
        """Let the program end: by the class's ``close(comm)``, or it is killed."""
        comm = self._group.coupled
        close = getattr(self._controller, "close", None)
        if comm is not None and close is None:
            self._group.give_up("it is not needed any more")
        elif comm is not None and close is not None:
            comm.deadline = time.monotonic() + _CLOSE_S
            try:
                close(comm)
            except Exception as error:  # the job ends all the same
                self._group.give_up(f"its coupling: {error!r}")
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
