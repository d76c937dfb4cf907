"""The manager ``type: mpi``: solvers as the back-end of an environment manager."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.config.env import ManagerConfig
from hpcdi.config.mpi_env import SolverManagerConfig
from hpcdi.env.base import EnvFacts, EnvFailure, StepReply
from hpcdi.env.contract import Space, numbers_in
from hpcdi.env.create import BaseEnvManager, Source
from hpcdi.env.in_process import TIMED_EVERY, Command, SharedArrays, SingleEnvs
from hpcdi.env.mpi.pool import SOLVERS
from hpcdi.env.mpi.solvers import Solver, wait
from hpcdi.env.mpi.vectors import put_vector, vector_of
from hpcdi.errors import EnvValueError


class SolverEnvManager(BaseEnvManager):
    """Each environment a group of ranks; all of them step at the same time."""

    Config = SolverManagerConfig

    @classmethod
    def single_envs(cls, source: Source, settings: ManagerConfig) -> SingleEnvs:
        """Returns a back-end of this collector's solvers.

        Raises:
            ConfigError: this process has none.
        """
        solvers = SOLVERS.take(len(source.env_fns))
        workers: list[SolverWorker] = []

        def another() -> Solver | None:
            return SOLVERS.another([worker.solver for worker in workers])

        workers += [SolverWorker(solver, SOLVERS.facts, another) for solver in solvers]
        return SolverEnvs(workers, wait_num=getattr(settings, "wait_num", None))


class SolverEnvs(SingleEnvs):
    """Back-end of solvers."""

    workers: Sequence[SolverWorker]

    @property
    def is_taken(self) -> bool:
        """See `Backend.is_taken`."""
        return any(worker.is_taken for worker in self.workers)

    def seed_taken(self, env: int, _seed: int | None, *, is_later: bool) -> int | None:  # noqa: ARG002
        """See `Backend.seed_taken`: a solver's every episode has a seed of its own."""
        return self.workers[env].seed

    def _answered(self) -> list[int]:
        """Wait until enough of the steps under way are over; returns whose."""
        under_way = {self.workers[env].solver: env for env in self._under_way}
        wanted = len(under_way) if self.wait_num is None else min(self.wait_num, len(under_way))
        return [under_way[solver] for solver in wait(list(under_way), wanted, SOLVERS.bell)]

    def _wait_for(self, commands: Mapping[int, Command]) -> None:
        """A solver is met, and then told to reset."""
        resetting = [self.workers[env].solver for env in commands if commands[env][0] == "reset"]
        if resetting:
            wait(resetting, len(resetting), SOLVERS.bell)


class SolverWorker:
    """One solver as an environment; see `hpcdi.env.in_process.EnvWorker`.

    Args:
        solver: the environment; another one where that is lost, and there are no spare ranks.
        facts: its spaces.
        another: returns one that lives, and that its manager has not; None: there is none.

    Attributes:
        seed: of the last episode that it was to begin.
    """

    def __init__(
        self,
        solver: Solver,
        facts: EnvFacts,
        another: Callable[[], Solver | None] = lambda: None,
    ) -> None:
        self.solver, self._facts, self._another = solver, facts, another
        self._seen: Any = None
        self._acts = Space.of_actions(facts.action_space)
        self._arrays: Any = None
        self._row = self._steps = 0
        self._asked: Command = ("",)
        self._seeds = np.random.default_rng(0)  # of later episodes
        self.seed, self._following = 0, self._next_seed()
        self._failure: EnvFailure | None = None

    @property
    def is_taken(self) -> bool:
        """Whether another worker has begun the episode that its solver is in."""
        return self._arrays is not None and self.solver.user not in (None, self)

    def ask(self, command: Command) -> None:
        """Begin a command; a failure shows in `answer`."""
        verb, *args = self._asked = command
        try:
            if verb == "make":
                self._begin()
            elif verb == "reset":
                _, seed, _ = args
                if seed is not None:
                    self._seeds = np.random.default_rng(seed)
                self.solver.user = self
                self.seed = self._following if seed is None else seed
                self._following = self._next_seed()
                self.solver.ask_reset(self.seed)
            elif verb == "step":
                _, next_seed, goes_on, _ = args
                seed = self._following if next_seed is None else next_seed
                action = vector_of(self._acts, self._arrays.action, self._row)
                self.solver.ask_step(action, seed if goes_on else None)
        except EnvFailure as failure:
            self._failure = failure

    def _begin(self) -> None:
        """Have a solver that lives: collecting has others than an evaluation.

        Raises:
            EnvFailure: there is none.
        """
        try:
            self.solver.begin()
        except EnvFailure:
            other = self._another()
            if other is None:
                raise
            self.solver = other

    def answer(self) -> Any:
        """Wait for the command's result; see `EnvWorker.answer`."""
        try:
            return self._answer()
        except EnvValueError as error:  # the manager names the environment and the step
            raise EnvFailure.of(error) from error

    def _answer(self) -> Any:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        verb, *args = self._asked
        if verb == "make":
            return self._facts
        if verb == "step" and self.is_taken:
            raise EnvFailure("another has begun an episode in it meanwhile")
        if verb == "call":
            return False, None
        if verb == "reset":
            put_vector(
                self._seen, self._arrays.slots[args[0]], self._row, self.solver.answer().observation
            )
            self._arrays.results.acts[self._row] = True
        return self._stepped(*args) if verb == "step" else None

    def _stepped(
        self, slot: int, next_seed: int | None, goes_on: bool, keeps_info: bool
    ) -> StepReply | None:
        """Write what a step has led to; returns what `LocalWorker.step` does."""
        answer, arrays, row = self.solver.answer(), self._arrays, self._row
        self._steps += 1
        if self._steps % TIMED_EVERY == 0:
            arrays.step_times[:, row] += self.solver.step_s, 1.0
        arrays.results.put(row, answer.reward, answer.terminated, answer.truncated)
        for name, column in arrays.infos.items():
            column[row] = answer.numbers.get(name, math.nan)
        observation, is_over = answer.observation, answer.terminated or answer.truncated
        if is_over:
            put_vector(self._seen, arrays.final, row, observation)
            arrays.results.acts[row] = goes_on
            if goes_on:  # one seed an episode, however many steps it has
                self.seed = self._following if next_seed is None else next_seed
                self._following = self._next_seed()
            observation = observation if answer.first is None else answer.first
        put_vector(self._seen, arrays.slots[slot], row, observation)
        if not (is_over or keeps_info):
            return None
        numbers = [numbers_in(answer.numbers)] if is_over else []
        return StepReply(numbers, answer.numbers, answer.failure)

    def _next_seed(self) -> int:
        return int(self._seeds.integers(2**31))

    def attach(self, arrays: SharedArrays, env: int) -> None:
        """Use the row of an environment."""
        self._arrays, self._row = arrays, env
        space = self._facts.observation_space
        self._seen = Space.of_observations(space, origin=arrays.layout.origin)

    def begin_close(self) -> None:
        """The solver goes on."""

    def close(self, _patience_s: float) -> bool:
        """Forget the arrays: the solver is the pool's, and waits for an evaluation or the end."""
        self._arrays = None
        return True
