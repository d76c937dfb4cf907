"""Environments that are MPI programs, as a collector steps them: asked, and answering later.

Several of them work at the same time::

    for solver, action in ...: solver.ask_step(action, next_seed)
    wait(solvers, len(solvers))
    for solver in solvers: solver.answer()

A solver outlives its group: when a rank of that dies, hangs, or its program ends, `answer` raises
an `EnvFailure`, and `begin` gives it the next spare ranks, where there are any. Where a job
does not survive the death of a rank, it raises a `CommError`: the run ends, and resumes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from enum import Enum
from pathlib import Path
from typing import Protocol

import numpy as np

from hpcdi.comm.doorbell import Doorbell, Waiting
from hpcdi.comm.solver_protocol import Kind, SolverLost, SolverMessage
from hpcdi.dataclass import dataclass
from hpcdi.env.base import EnvFailure, RanksLost
from hpcdi.env.mpi.launch import last_words, log_path, why_ended
from hpcdi.errors import CommError, EnvError, EnvValueError
from hpcdi.types import Array
from hpcdi.utils.backoff import probed
from hpcdi.utils.log import LOGGER
from hpcdi.utils.watchdog import WAITING

_LOOK_S = 20e-3
"""From one look for deaths to the next."""


class SolverRaised(SolverLost):
    """What speaks with its program has raised: that is no death."""


class RankGroup(Protocol):
    """The ranks; see `hpcdi.comm.solver_group.SolverGroup`."""

    @property
    def rings(self) -> bool:
        """True if all ranks can ring this process's doorbell."""
        ...

    @property
    def is_busy(self) -> bool:
        """True from an order to the end of `take`."""
        ...

    @property
    def dead(self) -> Sequence[int]:
        """Those, by their numbers in it, whose death has made it a lost one."""
        ...

    def meet(self) -> bool:
        """Returns whether all ranks have come, and it can be given orders."""
        ...

    def order(self, message: SolverMessage, deadline: float) -> None:
        """Give an order; one that waits for what comes of it waits until `deadline`."""
        ...

    def has_news(self) -> bool:
        """Returns whether `take` returns, or raises, at once."""
        ...

    def take(self) -> SolverMessage:
        """Returns the answer, or raises `SolverLost`."""
        ...

    def look_for_deaths(self) -> None:
        """Notice ranks that have died."""
        ...

    def give_up(self, reason: str) -> None:
        """Kill it."""
        ...

    def release(self) -> None:
        """Let it end in order. Idempotent."""
        ...

    def is_flushed(self) -> bool:
        """Returns whether all that it was sent has left."""
        ...


@dataclass(frozen=True)
class SolverLimits:
    """Seconds that things may take; None: any number.

    Attributes:
        start_s: until all ranks have come; also added to the first reset, and to the first step
            after it: a program may build its tables, or compile, then.
        reset_s: of a reset.
        step_s: of a step.
    """

    start_s: float | None = 300.0
    reset_s: float | None = None
    step_s: float | None = None


@dataclass(frozen=True)
class Answer:
    """What an order has led to.

    Attributes:
        observation: float64 [n]; of a step that ended the episode, its last one.
        first: of the next episode, where one ended and a seed for it was given; else None.
        reward: of the step.
        terminated: the task has ended.
        truncated: the episode was cut.
        numbers: of its info.
        failure: the next episode has not begun.
    """

    observation: Array
    first: Array | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    numbers: dict[str, float] = field(default_factory=dict)
    failure: EnvFailure | None = None


_WRONG = f"{EnvValueError.__name__}: "
"""How a rank's last words begin that ends since it was given what no retry can put right."""


class _Phase(Enum):
    """What is waited for."""

    NOTHING = "nothing"
    DRAIN = "step that was under way"
    START = "start"
    RESET = "reset"
    STEP = "step"


class Solver:
    """One environment; it does one order after the other.

    Args:
        group: its ranks.
        limits: how long things may take.
        folder_of: the folder of a group, with its logs; None: it is not known.
        next_group: returns spare ranks that take the place of lost ones; None: there are none.
        states: paths of initial states, one of which is chosen by each reset's seed.
        may_die: whether the job survives the death of a rank (ULFM).
        bell: this process's; None: it sleeps by naps.

    Attributes:
        user: whoever has begun the running episode: collecting and evaluating share solvers.
        step_s: seconds that its last step took.
    """

    def __init__(
        self,
        group: RankGroup,
        limits: SolverLimits,
        *,
        folder_of: Callable[[RankGroup], Path | None] = lambda _: None,
        next_group: Callable[[], RankGroup | None] = lambda: None,
        states: Sequence[str] = (),
        may_die: bool = False,
        bell: Doorbell | None = None,
    ) -> None:
        self.group = group
        self._limits, self._folder_of, self._next_group = limits, folder_of, next_group
        self._states, self._may_die, self._bell = states, may_die, bell
        self.user: object = None
        self.is_lost, self.step_s = False, 0.0
        self._phase, self._since, self._allowed_s = _Phase.NOTHING, 0.0, math.inf
        self._is_fresh = True  # no step of this group is over
        self._seed = 0
        self._next_seed: int | None = None
        self._ended: Answer | None = None  # a step that ended an episode, while it resets
        self._answer: Answer | None = None
        self._failure: EnvFailure | None = None
        self._lost_by = ""
        self._loss: type[EnvFailure] = RanksLost

    # ---- orders

    def begin(self) -> None:
        """Have ranks: those that there are, or spare ones where those are lost.

        Raises:
            EnvFailure: there are no spare ranks.
        """
        if not self.is_lost:
            return
        self.group.release()  # a program that has ended waits for that
        group = self._next_group()
        if group is None:
            raise self._loss(
                f"its ranks are lost ({self._lost_by}), and there are no spare ranks left; "
                "env.spares starts more of them",
                is_gone=True,
                kind="its ranks are lost, and there are no spare ranks left",
                is_final=True,
            )
        self.group, self.is_lost, self._is_fresh = group, False, True

    def ask_reset(self, seed: int) -> None:
        """Begin an episode; a failure shows in `answer`.

        Args:
            seed: from 0.
        """
        self._seed, self._ended, self._answer, self._failure = seed, None, None, None
        if self.group.is_busy:  # with what nobody waits for any more, by the deadline of that
            self._phase = _Phase.DRAIN
        else:
            self._enter(_Phase.START, self._limits.start_s)

    def ask_step(self, action: Array, next_seed: int | None = None) -> None:
        """Act; a failure shows in `answer`.

        Args:
            action: float64 [n].
            next_seed: of the episode that begins at once where one ends; None: none begins.
        """
        self._next_seed, self._ended, self._answer, self._failure = next_seed, None, None, None
        self._enter(_Phase.STEP, self._limits.step_s)
        self._order(SolverMessage(Kind.STEP, values=action))

    @property
    def left_s(self) -> float:
        """Seconds until what is waited for takes too long; infinite: never."""
        if self._phase is _Phase.NOTHING:
            return math.inf
        return max(0.0, self._since + self._allowed_s - time.monotonic())

    @property
    def rings(self) -> bool:
        """True if a doorbell says when there is an answer."""
        orders = (_Phase.DRAIN, _Phase.RESET, _Phase.STEP)
        return self._phase in orders and self.group.rings

    def has_answer(self) -> bool:
        """Returns whether `answer` returns, or raises, at once."""
        if not self._is_settled():
            try:
                self._go_on()
            except SolverLost as error:
                self._lose(str(error), error)
            except EnvValueError as error:  # of a program that does not fit
                self._failure = EnvFailure.of(error)
            if self.left_s == 0.0 and not self._is_settled():
                self._hang()
        return self._is_settled()

    def _is_settled(self) -> bool:
        return self._answer is not None or self._failure is not None

    def answer(self) -> Answer:
        """Wait for the answer, and return it.

        Raises:
            EnvFailure: the ranks are lost; or they have hung, and were killed.
            CommError: the same, where a job does not survive that.
            EnvError: the program does not fit; or it was asked for nothing.
        """
        if not self._is_settled():
            if self._phase is _Phase.NOTHING:
                raise EnvError(
                    "a solver has no answer: it was asked neither for a reset nor for a step"
                )
            wait([self], 1, self._bell)
        self._phase = _Phase.NOTHING
        if self._failure is not None:
            failure, self._failure = self._failure, None
            if not self._may_die and failure.wrong_row is None:
                raise CommError(f"{failure.cause}\n{failure.detail}".rstrip()) from failure
            if self._ended is not None:  # the step is over
                return replace(self._ended, failure=failure)
            raise failure
        answer, self._answer = self._answer, None
        if answer is None:
            raise EnvError("a solver has no answer, and has not failed")
        return answer

    # ---- what comes

    def _enter(self, phase: _Phase, allowed_s: float | None) -> None:
        if self._is_fresh and phase is not _Phase.START and allowed_s is not None:
            allowed_s += self._limits.start_s or math.inf
        self._phase, self._since = phase, time.monotonic()
        self._allowed_s = math.inf if allowed_s is None else allowed_s

    def _go_on(self) -> None:
        """Take what has come, and do what follows.

        Raises:
            SolverLost: the ranks are.
        """
        if self._phase is _Phase.DRAIN and self.group.has_news():
            self.group.take()
            self._enter(_Phase.START, self._limits.start_s)
        if self._phase is _Phase.START:
            if self.group.meet():
                self._enter(_Phase.RESET, self._limits.reset_s)
                self._reset(self._seed)
        elif self._phase in (_Phase.RESET, _Phase.STEP) and self.group.has_news():
            self._take(self.group.take())

    def _reset(self, seed: int) -> None:
        lines = {}
        if self._states:
            chosen = np.random.default_rng(seed).integers(len(self._states))
            lines["state"] = self._states[int(chosen)]
        self._order(SolverMessage(Kind.RESET, seed=seed, lines=lines))

    def _order(self, message: SolverMessage) -> None:
        try:
            self.group.order(message, self._since + self._allowed_s)
        except SolverLost as error:
            self._lose(str(error), error)
        except EnvValueError as error:  # a coupling's: its ranks live
            self._failure = EnvFailure.of(error)

    def _take(self, message: SolverMessage) -> None:
        answer = Answer(
            message.values, None, message.reward, message.terminated, message.truncated,
            message.numbers(),
        )  # fmt: skip
        if self._phase is _Phase.STEP:
            self._is_fresh, self.step_s = False, time.monotonic() - self._since
            if (answer.terminated or answer.truncated) and self._next_seed is not None:
                self._ended = answer
                self._enter(_Phase.RESET, self._limits.reset_s)
                self._reset(self._next_seed)
                return
        elif (ended := self._ended) is not None:
            answer = replace(ended, first=answer.observation)
        self._answer = answer

    def _hang(self) -> None:
        what = "its start" if self._phase is _Phase.START else f"a {self._phase.value}"
        reason = f"{what} took longer than {self._allowed_s:g} s"
        if not self._may_die:  # the launcher ends the job as soon as a rank is killed
            LOGGER.error("a solver hangs: %s\n%s", reason, self._last_words())
        self.group.give_up(reason)
        self._lose(reason)

    def _lose(self, reason: str, error: SolverLost | None = None) -> None:
        self.is_lost, words = True, self._last_words()
        why, is_of_class = why_ended(self._last_words(self.group.dead))
        if not (is_of_class or self.group.dead):  # a program that was given up
            why = ""
        has_raised = isinstance(error, SolverRaised) or bool(is_of_class and self.group.dead)
        self._loss = EnvFailure if has_raised else RanksLost
        self._lost_by = f"{reason}; a log ends with {why}" if why else reason
        wrong = _WRONG if why.startswith(_WRONG) else ""
        self._failure = (
            EnvFailure(why.removeprefix(wrong), words, wrong_row=-1) if wrong
            else self._loss(self._lost_by, words, is_gone=True)
        )  # fmt: skip

    def _last_words(self, numbers: Sequence[int] = ()) -> str:
        """Returns the ends of the logs of these ranks, or of all where there are none."""
        folder = self._folder_of(self.group)
        if folder is None:
            return ""
        logs = [log_path(folder, number) for number in numbers]
        return last_words(logs or sorted(folder.glob("rank*.log")))


def wait(solvers: Sequence[Solver], wanted: int, bell: Doorbell | None = None) -> list[Solver]:
    """Wait until so many solvers have an answer, or more; returns those.

    Args:
        solvers: that were asked something.
        wanted: how many are waited for, at most as many as there are.
        bell: this process's; None: it never sleeps but by naps.
    """
    waiting, looked = Waiting(bell), time.monotonic()
    answered: list[Solver] = []

    def enough() -> list[Solver] | None:
        answered[:] = [solver for solver in solvers if solver.has_answer()]
        return answered if len(answered) >= wanted else None

    while probed(enough) is None:
        others = [solver for solver in solvers if solver not in answered]
        if time.monotonic() - looked > _LOOK_S:
            looked = time.monotonic()
            for solver in others:
                solver.group.look_for_deaths()
        rings = all(solver.rings for solver in others)
        with WAITING:  # they have time-outs of their own; what hangs in MPI above has none
            waiting.pause(rings=rings, at_most_s=min(solver.left_s for solver in others))
    if bell is not None:
        bell.hear()
    return answered
