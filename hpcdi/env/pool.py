"""Single environments that are stepped together, and replaced when they fail.

The life of one of them::

    make ──► (attach) ──► reset ──► step ──► step ...
      ▲                     ▲         │
      └── hung, dead, renew └─ raised ┘──► retired: too many failures (`FailureRecord`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcdi.env.base import ManagerConfig
from hpcdi.env.board import Board, Layout
from hpcdi.env.record import FailureRecord
from hpcdi.env.runner import Facts
from hpcdi.env.seat import EnvFailure, Memory, Seat
from hpcdi.env.seeds import SeedStreams
from hpcdi.errors import EnvError
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER

CLOSE_S = 1.0
"""How long environments may take to close, all together, before their processes are killed."""


@dataclass(frozen=True)
class Start:
    """How an environment is to begin an episode."""

    seed: int | None = None
    options: dict[str, Any] | None = None
    is_made: bool = False  # it need not be made first


class Pool(Closing):
    """Environments in their seats.

    Args:
        seats: one for each environment.
        settings: of failures.
        streams: of seeds.
        memory: makes the board for a layout; None: environments give and take objects.
        retires: go on without one that fails too often; else that is an error.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        settings: ManagerConfig,
        streams: SeedStreams,
        memory: Callable[[Layout], Memory] | None,
        *,
        retires: bool = False,
    ) -> None:
        self.seats, self.settings, self.streams = seats, settings, streams
        self.retires = retires
        self.facts: Facts | None = None
        self.record = FailureRecord(len(seats), settings.max_retry, settings.retry_window_s)
        self._make_memory = memory
        self._memory: Memory | None = None

    @property
    def board(self) -> Board:
        """Rows of the environments."""
        if self._memory is None:
            raise EnvError("the environments are not running; launch() them first")
        return self._memory.board()

    def start(self, starts: Mapping[int, Start]) -> dict[int, Any]:
        """Have environments begin an episode.

        Returns:
            What their resets gave: the first observations where these are objects, else None.

        Raises:
            EnvError: one failed too often, and may not be retired, or is the last one.
        """
        firsts: dict[int, Any] = {}
        while starts:
            failed = self._attempt(starts, firsts)
            again = {}
            for env, failure in failed.items():
                if self._bears(env, failure, "beginning an episode"):
                    self._note(env, failure, "tried again")
                    again[env] = self._restart(starts[env], env, failure)
            if again:
                wait_s(self.settings.retry_waiting_time)
            starts = again
        return firsts

    def collect(self, envs: Iterable[int]) -> tuple[dict[int, Any], dict[int, EnvFailure]]:
        """Answers of environments that were asked, and the failures of those that failed."""
        answers, failed = {}, {}
        for env in envs:
            try:
                answers[env] = self.seats[env].answer()
            except EnvFailure as failure:
                failed[env] = failure
        return answers, failed

    def recover(self, failed: Mapping[int, EnvFailure], stepped: Iterable[int]) -> dict[int, Any]:
        """Have environments that failed in a step begin anew; gives what `start` gives.

        Args:
            failed: what failed, and how.
            stepped: environments whose step was good.

        Raises:
            EnvError: one failed too often, and may not be retired, or is the last one.
        """
        self.record.good(stepped)
        starts = {}
        for env, failure in failed.items():
            self.record.dropped += 1
            if self._bears(env, failure, "stepping"):
                starts[env] = self._restart(Start(is_made=True), env, failure)
                self._note(env, failure, "reset" if starts[env].is_made else "made anew")
        return self.start(starts)

    def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
        """``(whether the environment has the method, what it gave)``.

        Raises:
            EnvError: the method failed.
        """
        self.seats[env].ask(("call", name, args))
        try:
            has_it, value = self.seats[env].answer()
        except EnvFailure as failure:
            raise EnvError(_story(env, failure, f"in {name}()")) from failure
        return has_it, value

    def close(self) -> None:
        """Close all environments within `CLOSE_S`; again: nothing."""
        self.facts = None
        for seat in self.seats:
            seat.begin_close()
        deadline = time.monotonic() + CLOSE_S
        for seat in self.seats:
            seat.close(max(0.0, deadline - time.monotonic()))
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _attempt(
        self, starts: Mapping[int, Start], firsts: dict[int, Any]
    ) -> dict[int, EnvFailure]:
        """Make and reset once, all at the same time; gives the failures."""
        new = [env for env, start in starts.items() if not start.is_made]
        for env in new:
            self.seats[env].ask(("make",))
        made, failed = self.collect(new)
        for env, facts in made.items():
            self._admit(env, facts)
        ready = [env for env in starts if env not in failed]
        for env in ready:
            self.seats[env].ask(("reset", starts[env].seed, starts[env].options))
        begun, fallen = self.collect(ready)
        firsts.update(begun)
        return {**failed, **fallen}

    def _admit(self, env: int, facts: Facts) -> None:
        """Give a new environment its row of the board, after a look at its spaces."""
        if self.facts is None:
            self.facts = facts
            if self._make_memory is not None:
                layout = Layout.of(len(self.seats), facts.observation_space, facts.action_space)
                if layout is None:
                    raise EnvError(
                        f"observations are {facts.observation_space}, actions are "
                        f"{facts.action_space}; hpcdi needs a Box, and a Box or Discrete: wrap it"
                    )
                self._memory = self._make_memory(layout)
        elif facts != self.facts:
            raise EnvError(
                f"environment {env} is of another kind than the first: {facts} against "
                f"{self.facts}; the environments of one manager must have the same spaces"
            )
        if self._memory is not None:
            self.seats[env].attach(self._memory, env)

    def _restart(self, start: Start, env: int, failure: EnvFailure) -> Start:
        """How to begin after a failure: a new environment takes the next seed of its stream."""
        renews = failure.is_gone or self.settings.retry_type == "renew" or not start.is_made
        if not renews:
            return start
        return replace(start, is_made=False, seed=self.streams.one(env))

    def _note(self, env: int, failure: EnvFailure, done: str) -> None:
        LOGGER.warning(
            "environment %d failed (%s) and is %s; what it had of an episode is dropped",
            env, failure.cause, done, extra={"env_id": env, "detail": failure.detail},
        )  # fmt: skip

    def _bears(self, env: int, failure: EnvFailure, activity: str) -> bool:
        """Whether an environment that has failed is to be tried again; if not, it is retired."""
        too_often = self.record.add(env, time.monotonic())
        if not too_often:
            return True
        error = EnvError(
            _story(env, failure, f"{activity}, {too_often}")
            + "\nmend it, or raise env.manager.max_retry or the time-outs of env.manager"
        )
        error.__cause__ = failure
        if not self.retires or self.facts is None:
            raise error
        self.record.retired.add(env)
        self.seats[env].retire()
        left = len(self.seats) - len(self.record.retired)
        if not left:
            raise EnvError(f"all {len(self.seats)} environments are retired; the last {error}")
        LOGGER.warning(
            "environment %d failed %s (%s, %s) and is retired; %d of %d environments go on",
            env, activity, failure.cause, too_often, left, len(self.seats),
            extra={"env_id": env, "detail": failure.detail},
        )  # fmt: skip
        return False


def _story(env: int, failure: EnvFailure, when: str) -> str:
    detail = f"\n{failure.detail}" if failure.detail else ""
    return f"environment {env} failed {when}: {failure.cause}{detail}"
