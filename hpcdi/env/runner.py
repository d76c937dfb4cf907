"""What happens beside one environment, be it in this process or in a child of it.

A runner does one command after the other: a verb and its arguments, as `Seat.ask` gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcdi.env.battle import as_battle
from hpcdi.env.board import Board
from hpcdi.errors import EnvError

Command = tuple[Any, ...]
"""A verb (the name of a runner's method) and its arguments."""


class Facts(NamedTuple):
    """What an environment says of itself when it is made."""

    observation_space: Any
    action_space: Any
    players: int


class Outcome(NamedTuple):
    """A step whose values are objects; `first` is the next episode's first observation."""

    obs: Any
    reward: Any
    done: bool
    info: Any
    first: Any


class Runner:
    """One environment of gymnasium's kind, whose observation and action are a row of a board.

    Args:
        make: makes the environment.
        on_reset: called when a step is over and the reset at an episode's end begins.
    """

    def __init__(self, make: Callable[[], Any], on_reset: Callable[[], None]) -> None:
        self._make, self._on_reset = make, on_reset
        self._env: Any = None
        self._board: Board | None = None
        self._row = 0

    def make(self) -> Facts:
        """Make the environment, in place of the one there was."""
        self.shut()
        self._env = self._make()
        for name in ("reset", "step"):
            if not callable(getattr(self._env, name, None)):
                raise EnvError(f"{self._env!r} is no environment: it has no {name}()")
        env = self._env
        observation = getattr(env, "observation_space", None)
        return Facts(observation, getattr(env, "action_space", None), self._players())

    def attach(self, board: Board, row: int) -> None:
        """Use row `row` of `board`."""
        self._board, self._row = board, row

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Begin an episode; its first observation is in the board."""
        observation, _ = self._env.reset(seed=seed, options=options)
        self._seen().observation[self._row] = observation

    def step(self, next_seed: int | None, auto_reset: bool, wants_info: bool) -> Any:
        """Act as the board says, and begin the next episode where one ended.

        The board's marks of an end are set where there is one; who reads them clears them.

        Args:
            next_seed: for the episode that begins; None: the environment's generator goes on.
            auto_reset: begin it.
            wants_info: give the environment's info back.
        """
        board, row = self._seen(), self._row
        action = board.action[row]
        if action.ndim:  # a view of memory that the next action is written to
            action = action.copy()
        observation, board.reward[row], terminated, truncated, info = self._env.step(action)
        if terminated or truncated:
            board.terminated[row], board.truncated[row] = terminated, truncated
            board.final[row] = observation
            if auto_reset:
                self._on_reset()
                observation, _ = self._env.reset(seed=next_seed)
        board.observation[row] = observation
        return info if wants_info else None

    def call(self, name: str, args: tuple[Any, ...]) -> Any:
        """``(whether the environment has the method, what it gave)``."""
        return call_method(self._env, name, args)

    def shut(self) -> None:
        """Close the environment."""
        env, self._env = self._env, None
        if hasattr(env, "close"):
            env.close()

    def _players(self) -> int:
        return 1

    def _seen(self) -> Board:
        if self._board is None:
            raise EnvError("the environment has no row of a board")
        return self._board


class ObjectRunner(Runner):
    """One battle environment; what it gives are objects, of any kind."""

    def make(self) -> Facts:
        """Make the environment, in place of the one there was."""
        make = self._make
        self._make = lambda: as_battle(make())
        try:
            return super().make()
        finally:
            self._make = make

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Begin an episode; gives the observation of each player."""
        return self._env.reset(seed=seed, **({"options": options} if options else {}))

    def step(self, next_seed: int | None, auto_reset: bool, wants_info: Any) -> Outcome:
        """Let the players act; `wants_info` holds their actions."""
        obs, reward, done, info = self._env.step(wants_info)
        first = None
        if done and auto_reset:
            self._on_reset()
            first = self._env.reset(seed=next_seed)
        return Outcome(list(obs), np.asarray(reward, dtype=np.float32), bool(done), info, first)

    def _players(self) -> int:
        return int(self._env.agents)


def call_method(env: Any, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
    """``(whether the environment has the method, what it gave)``; wrappers are looked through."""
    method = getattr(env, name, None) or getattr(getattr(env, "unwrapped", None), name, None)
    if method is None:
        return False, None
    try:
        return True, method(*args)
    except NotImplementedError:  # gymnasium.Env names methods that an environment has not
        return False, None
