"""Single environments: the back-end that steps them together, and those that live in this process.

Each environment has a worker, which is asked for something and answers later, so that environments
in child processes (`hpcdi.env.child_process`) work at the same time::

    for worker in workers: worker.ask(command)
    for worker in workers: worker.answer()

Observations, actions and results lie side by side in arrays (`SharedArrays`), a row for each player
of each environment: ``player * environments + environment``. Of observations there are two sets, by
turns: a step writes to one, while a collector still has the other.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from types import MappingProxyType
from typing import Any, Protocol, Self

import gymnasium
import numpy as np

from hpcdi.config.schedule import Scheduled
from hpcdi.dataclass import dataclass
from hpcdi.env.arguments import arguments_in, figures_of, set_attributes
from hpcdi.env.base import (
    BackendStep,
    EnvFacts,
    EnvFailure,
    EnvFn,
    EpisodeStart,
    StepReply,
    envs_of,
    rows_of,
)
from hpcdi.env.contract import (
    Origin,
    Put,
    Results,
    Space,
    as_dtype,
    copy_of_info,
    number_in,
    numbers_in,
    parts_of_reset,
    parts_of_step,
    truth_of,
    with_ordered_masks,
)
from hpcdi.env.old_gym import as_gymnasium
from hpcdi.env.pettingzoo import as_battle, space_of_players, teams_of
from hpcdi.env.process_state import (
    SignalGuard,
    TakesTooLongError,
    at_most,
    exits_are_failures,
    seed_libraries,
)
from hpcdi.env.wrappers import rewarded
from hpcdi.errors import ConfigError, EnvError, EnvValueError
from hpcdi.types import INFO, Array, Columns
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.nested import under
from hpcdi.utils.truths import all_of

Command = tuple[Any, ...]
"""The name of a method of `LocalWorker`, and its arguments."""

CLOSE_S = 10.0
"""How long an environment may take to close before it is given up: one of this process alone, those
with processes of their own together, which are then killed."""
CLOSE_AGAIN_S = 1.0
"""How long later ones of its kind may take."""
_ALIGNMENT = 64
TIMED_EVERY = 17
"""Every so many-th step of an environment is timed: a prime, since episodes may be equally long."""


# ------------------------------------------------------------------------------------------- arrays


@dataclass(frozen=True)
class Layout:
    """What the arrays are: name -> shape and dtype.

    Attributes:
        env_num, seats: environments, and players of each.
        arrays: ``0/``, ``1/`` and ``final/`` before the names of an observation's columns, an
            action's columns, and the results of a step; ``info/`` before the names of `kept`.
        origin: see `Space.of_observations`.
    """

    env_num: int
    seats: int
    arrays: tuple[tuple[str, tuple[int, ...], str], ...]
    origin: Origin

    @classmethod
    def of(cls, env_num: int, facts: EnvFacts, origin: Origin, kept: Sequence[str] = ()) -> Self:
        """Returns the layout for environments, of whose infos some numbers are kept.

        Raises:
            EnvError: their observations or actions are no arrays.
        """
        rows = env_num * facts.players
        seen = Space.of_observations(facts.observation_space).zeros(rows)
        acts = Space.of_actions(facts.action_space).zeros(rows)
        columns = {f"{part}/{n}": c for part in ("0", "1", "final") for n, c in seen.items()}
        arrays = [(n, c.shape, c.dtype.str) for n, c in {**columns, **acts}.items()]
        arrays += [(name, (rows,), dtype) for name, dtype in Results.LAYOUT]
        arrays += [(f"{INFO}/{name}", (rows,), "float64") for name in kept]
        arrays.append(("step_times", (2, env_num), "float64"))
        return cls(env_num, facts.players, tuple(arrays), origin)


class SharedArrays(Closing):
    """Arrays that processes share which hold the descriptor, a row for each player.

    They lie in anonymous memory (a memfd): it has no name, so that nothing can be left
    behind, and is freed with the last process that holds it, however that ends.

    Args:
        layout: sizes.
        fd: of the memory; -1: memory of this process only.

    Attributes:
        slots: two sets of observations: of one the policy acts on next.
        final: the last observation of the episode that ended last.
        action: of the next step.
        results: of the last step.
        infos: numbers of its infos that are kept, by name.
        step_times: see `Backend.step_times`.
    """

    def __init__(self, layout: Layout, fd: int) -> None:
        self.layout, self.fd = layout, fd
        places, size = [], 0
        for _, shape, dtype in layout.arrays:
            places.append(size)
            size += -(-math.prod(shape) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
        if fd >= 0:
            os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)  # unmapped with the last array on it
        arrays = {
            name: np.frombuffer(memory, dtype, math.prod(shape), place).reshape(shape)
            for place, (name, shape, dtype) in zip(places, layout.arrays, strict=True)
        }
        self.slots = (_below("0/", arrays), _below("1/", arrays))
        self.final = _below("final/", arrays)
        self.action = under(arrays, "action")
        self.results = Results(arrays)
        self.infos = _below(f"{INFO}/", arrays)
        self.step_times = arrays["step_times"]

    def close(self) -> None:
        """Close the descriptor; the arrays stay. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _below(prefix: str, arrays: Columns) -> Columns:
    return {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}


# ------------------------------------------------------------------------------------------ workers


class EnvWorker(Protocol):
    """One environment, which does one command after the other."""

    def ask(self, command: Command) -> None:
        """Begin a command; a failure shows in `answer`."""
        ...

    def answer(self) -> Any:
        """Wait for the command, and return its result.

        Raises:
            EnvFailure: it failed, or took too long.
        """
        ...

    def attach(self, arrays: SharedArrays, env: int) -> None:
        """Use the rows of an environment."""
        ...

    def begin_close(self) -> None:
        """Ask the environment to close."""
        ...

    def close(self, patience_s: float) -> bool:
        """Close it, within `patience_s` where it has a process of its own. Idempotent.

        Returns:
            False: it took longer, and its process was killed.
        """
        ...


class LocalWorker:
    """An environment in this process; it does a command when it is asked.

    Args:
        make: makes the environment.
        is_battle: whether several players play in it.
        is_alone: nothing else is in this process.
        on_reset: called with the reply when a step is over and the next episode's reset begins.
    """

    def __init__(
        self,
        make: EnvFn,
        *,
        is_battle: bool = False,
        is_alone: bool = False,
        on_reset: Callable[[StepReply], None] = lambda _reply: None,
    ) -> None:
        self._make_env, self._is_battle, self._on_reset = make, is_battle, on_reset
        self._is_alone, self._signals = is_alone, SignalGuard(keeps_output=not is_alone)
        self._env: Any = None
        self._rows: list[int] = []  # of its players
        self._arrays: Any = None
        # of each of its players: writes an observation to one of both sets, and to the final ones
        self._put_shown: Sequence[Sequence[Put]] = ()
        self._put_final: Sequence[Put] = ()
        self._actions: Sequence[Callable[[], Any]] = ()
        self._infos: Columns = {}
        self._result: Any = None
        self._failure: EnvFailure | None = None
        self._ended: StepReply | None = None  # of the step whose reset is under way
        self._scheduled: Scheduled = {}  # values for episodes that begin
        self._played_with: Scheduled = {}  # values in the running episode
        self._figures: dict[str, float] = {}  # numbers that stand for these values in infos
        self._arguments: Mapping[str, Any] = {}  # of the schedule, with which it was made
        self._steps = 0
        self._attached: tuple[Any, Any] = (None, None)  # spaces of the rows

    def do(self, command: Command) -> Any:
        """Do a command, and return its result; some steps are timed."""
        verb, *arguments = command
        self._ended = None
        self._steps += verb == "step"
        if verb != "step" or self._steps % TIMED_EVERY:
            return getattr(self, verb)(*arguments)
        began = time.perf_counter()
        result = getattr(self, verb)(*arguments)
        self._arrays.step_times[:, self._rows[0]] += time.perf_counter() - began, 1.0
        return result

    # the commands

    def make(self, seed: int | None = None, scheduled: Scheduled | None = None) -> EnvFacts:
        """Create the environment, in place of the one there was.

        Args:
            seed: of the libraries that have one generator for the process; None: they go on.
            scheduled: see `schedule`.
        """
        self._scheduled, self._played_with = scheduled or {}, {}
        return self._make_anew(seed)

    def _make_anew(self, seed: int | None) -> EnvFacts:
        """Create the environment with the schedule's arguments, in place of the one there was."""
        self.shut()
        self._seed(seed)
        arguments = self._arguments = arguments_in(self._scheduled)
        with self._signals:
            raw = self._make_env(kwargs=arguments) if arguments else self._make_env()
        for name in ("reset", "step"):
            if not callable(getattr(raw, name, None)):
                raise EnvError(f"{raw!r} is no environment: it has no {name}()")
        env = self._env = as_battle(raw) if self._is_battle else as_gymnasium(raw)
        if self._is_battle:
            return EnvFacts(*self._spaces(), int(env.agents), teams_of(env))
        return EnvFacts(*self._spaces())

    def reset(self, slot: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begin an episode.

        Args:
            slot: number of the observations to write to.
            seed: None: the environment's generator goes on.
            options: for its reset.
        """
        self._apply_schedule(seed)
        self._seed(seed)
        with self._signals:
            if self._is_battle:
                first = self._env.reset(seed=seed, **({"options": options} if options else {}))
                _check_turns(first)
            else:
                first = [parts_of_reset(self._env.reset(seed=seed, options=options))[0]]
        self._write_observations(slot, first)

    def schedule(self, values: Scheduled) -> None:
        """Play episodes that begin from now on with these values."""
        self._scheduled = values

    def _apply_schedule(self, seed: int | None) -> None:
        """Give the environment the values of the schedule, before an episode begins.

        Args:
            seed: of the episode; by it an environment is made anew, too.

        Raises:
            EnvValueError: with another argument it has other spaces, or it has no such attribute.
        """
        is_there = self._env is not None  # else the last try to make it anew has failed
        if is_there and self._scheduled == self._played_with:
            return
        if not is_there or arguments_in(self._scheduled) != self._arguments:
            self._make_anew(seed)
            if self._spaces() != self._attached:
                raise EnvValueError(
                    f"env.schedule: with {self._arguments} it has other spaces, {self._spaces()}, "
                    f"than before, {self._attached}"
                )
        set_attributes(self._env, self._scheduled)
        self._played_with, self._figures = self._scheduled, figures_of(self._scheduled)

    def _spaces(self) -> tuple[Any, Any]:
        """The observation and action space of a player."""
        env = self._env
        observation, action = space_of_players(env) if self._is_battle else (
            getattr(env, "observation_space", None), getattr(env, "action_space", None)
        )  # fmt: skip
        return with_ordered_masks(observation, action), action

    def _numbers_at_end(self, info: object) -> dict[str, float]:
        """The numbers of an info at an episode's end, and those of the schedule."""
        numbers = numbers_in(info)
        return {**self._figures, **numbers} if self._figures else numbers

    def _seed(self, seed: int | None) -> None:
        if seed is not None:
            seed_libraries(seed, with_torch=self._is_alone)

    def step(
        self, slot: int, next_seed: int | None, goes_on: bool, keeps_info: bool
    ) -> StepReply | None:
        """Act as the arrays say, and begin the next episode where one ended.

        Args:
            slot: number of the observations to write to.
            next_seed: for the episode that begins; None: the environment's generator goes on.
            goes_on: begin it.
            keeps_info: return the info.

        Returns:
            None: no episode has ended, and no info is kept.
        """
        if self._is_battle:
            return self._play(slot, next_seed, goes_on, keeps_info)
        row, results = self._rows[0], self._arrays.results
        result = self._env.step(self._actions[0]())
        if result.__class__ is not tuple or len(result) != 5:
            result = parts_of_step(result)
        observation, reward, terminated, truncated, info = result
        is_over = results.put(row, reward, terminated, truncated)
        for name, column in self._infos.items():
            column[row] = number_in(info, name)
        kept = copy_of_info(info) if keeps_info else None
        if is_over:
            self._put_final[0](observation)
            results.acts[row] = goes_on
            reply = StepReply([self._numbers_at_end(info)], kept)
            if goes_on:
                observation, _ = parts_of_reset(self._begin_next(reply, next_seed))
        self._put_shown[slot][0](observation)
        if is_over:
            return reply
        return StepReply([], kept) if keeps_info else None

    def _begin_next(self, reply: StepReply, seed: int | None) -> Any:
        """Reset the environment after a step that has been written; returns what that returned."""
        self._ended = reply
        self._on_reset(reply)
        self._apply_schedule(seed)
        self._seed(seed)
        with self._signals:
            return self._env.reset(seed=seed)

    def _play(
        self, slot: int, next_seed: int | None, goes_on: bool, keeps_info: bool
    ) -> StepReply | None:
        """`step` of a battle: the players act whose turn it is."""
        env, results = self._env, self._arrays.results
        actions = [
            action() if results.acts[row] else None
            for row, action in zip(self._rows, self._actions, strict=True)
        ]
        observations, rewards, over, infos = env.step(actions)
        is_over = truth_of(over, "the end of a game")
        numbers = [self._numbers_at_end(info) for info in infos] if is_over else []
        for seat, (reward, info) in enumerate(zip(rewards, infos, strict=True)):
            is_cut = is_over and truth_of(info.get("truncated", False), "truncated")
            has_ended = truth_of(info.get("terminated", False), "terminated") if is_cut else is_over
            with _of_player(seat):
                results.put(self._rows[seat], reward, has_ended, is_cut)
            for name, column in self._infos.items():
                column[self._rows[seat]] = number_in(info, name)
        if is_over:
            for seat, observation in enumerate(observations):
                if observation is not None:
                    with _of_player(seat):
                        self._put_final[seat](observation)
            observations = [None] * len(self._rows)
        kept = copy_of_info(infos) if keeps_info else None
        reply = StepReply(numbers, kept)
        if is_over and goes_on:
            observations = self._begin_next(reply, next_seed)
        if goes_on or not is_over:
            _check_turns(observations)
        self._write_observations(slot, observations)
        return reply if is_over or keeps_info else None

    def _write_observations(self, slot: int, observations: Sequence[Any]) -> None:
        """Write what players see whose turn it is; others keep what they saw last."""
        slots, acts = self._arrays.slots, self._arrays.results.acts
        for seat, (row, observation) in enumerate(zip(self._rows, observations, strict=True)):
            acts[row] = is_shown = observation is not None or not self._is_battle
            if is_shown:
                with _of_player(seat if self._is_battle else None):
                    self._put_shown[slot][seat](observation)
            else:
                for name, column in slots[slot].items():
                    column[row] = slots[1 - slot][name][row]

    def call(self, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call the environment's method; see `call_method`."""
        return call_method(self._env, name, args)

    def shut(self) -> None:
        """Close the environment. Idempotent."""
        env, self._env = self._env, None
        close_or_warn(env, is_alone=self._is_alone)

    # the contract of workers

    def ask(self, command: Command) -> None:
        """Do a command at once."""
        try:
            self._result = self.do(command)
        except ConfigError:  # no retry would help
            raise
        except BaseException as error:  # whatever an environment raises is its failure
            failure = EnvFailure.of(error)
            failure.__cause__ = error
            if self._ended is None:
                self._failure = failure
            else:
                self._result = self._ended._replace(failure=failure)

    def answer(self) -> Any:
        """Returns the command's result, or raises its failure."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self._result

    def attach(self, arrays: SharedArrays, env: int) -> None:
        """Use the rows of an environment."""
        layout, self._arrays, self._infos = arrays.layout, arrays, arrays.infos
        self._rows = [seat * layout.env_num + env for seat in range(layout.seats)]
        observation, action = self._attached = self._spaces()
        seen = Space.of_observations(observation, origin=layout.origin)
        self._put_shown = [[seen.into(slot, row) for row in self._rows] for slot in arrays.slots]
        self._put_final = [seen.into(arrays.final, row) for row in self._rows]
        acts = Space.of_actions(action)
        self._actions = [acts.out_of(arrays.action, row) for row in self._rows]

    def begin_close(self) -> None:
        """Nothing to do before `close`."""

    def close(self, _patience_s: float) -> bool:
        """Close the environment; see `close_or_warn`, which gives up by itself."""
        self.shut()
        self._arrays, self._put_shown, self._put_final, self._actions = None, (), (), ()
        self._infos = {}
        return True


def _check_turns(observations: Sequence[Any]) -> None:
    """Refuses a game that goes on, and waits for nobody."""
    if all(observation is None for observation in observations):
        raise EnvValueError(
            "no player has an observation, and the game goes on: return one for each who acts next"
        )


@contextlib.contextmanager
def _of_player(seat: int | None) -> Iterator[None]:
    """Name the player in the error of a wrong value; None: there is but one."""
    try:
        yield
    except EnvValueError as error:
        raise error if seat is None else EnvValueError(f"player {seat}: {error}") from error


_GIVEN_UP: set[type] = set()
"""Kinds of environments, or of workers for other processes: one has taken too long to close."""


def close_or_warn(env: Any, *, is_alone: bool = False) -> None:
    """Close an environment, if it has a ``close``; whatever that raises is a warning.

    So is that it ends the process, or takes longer than `CLOSE_S`.

    Args:
        env: it; None: there is none.
        is_alone: nothing else is in its process, which may end by that; others watch over it.
    """
    kind = type(env)
    try:
        close = getattr(env, "close", None)
        if close is None:
            return
        with contextlib.suppress(Exception):  # a wrapper may refuse to say
            kind = type(env.unwrapped)
        with contextlib.ExitStack() as stack:
            if not is_alone:
                stack.enter_context(exits_are_failures())
                stack.enter_context(at_most(CLOSE_AGAIN_S if kind in _GIVEN_UP else CLOSE_S))
            close()
    except BaseException as error:
        failure = EnvFailure.of(error)
        if isinstance(error, TakesTooLongError):
            _GIVEN_UP.add(kind)
        LOGGER.warning(
            "close() of an environment %s (%s)",
            f"is given up: {kind.__module__}.{kind.__qualname__}"
            if isinstance(error, TakesTooLongError) else "failed", failure.cause,
            extra={"detail": failure.detail, "once": f"close() failed ({failure.cause})"},
        )  # fmt: skip


def method_of(env: object, name: str) -> Any:
    """Returns a method of an environment, looking through wrappers; None: it has none."""
    return getattr(_owner_of(env, name), name, None)


def _owner_of(env: object, name: str) -> object:
    """Returns the outermost of an environment and what it wraps that has a method; None: none."""
    while getattr(env, name, None) is None and isinstance(env, gymnasium.Wrapper):
        env = env.env  # gymnasium's wrappers have no methods but their own
    return env if getattr(env, name, None) is not None else getattr(env, "unwrapped", None)


def call_method(env: object, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
    """Call a method of an environment, see `method_of`, with copies of arrays.

    Returns:
        Whether the environment has the method, and what that returned.
    """
    if (method := method_of(env, name)) is None:
        return False, None
    try:
        copies = [each.copy() if isinstance(each, np.ndarray) else each for each in args]
        result = method(*copies)
    except NotImplementedError:  # gymnasium.Env names methods that an environment has not
        return False, None
    is_reward = name == "compute_reward"
    return True, rewarded(env, result, _owner_of(env, name)) if is_reward else result


# ----------------------------------------------------------------------------------------- back-end


class SingleEnvs:
    """Back-end of single environments with a worker each; see `hpcdi.env.base.Backend`.

    Args:
        workers: one for each environment.
        is_shared: whether workers are other processes, which share the arrays.
        wait_num: steps that are waited for; None: all. Needs workers that are other processes.
    """

    fails_as_one = False
    resets_alone = True
    keeps_infos = False
    kept: Sequence[str] = ()
    origin: Origin = MappingProxyType({})

    def __init__(
        self,
        workers: Sequence[EnvWorker],
        *,
        is_shared: bool = False,
        wait_num: int | None = None,
    ) -> None:
        self.workers, self.env_num = workers, len(workers)
        self.facts: EnvFacts | None = None
        self.wait_num = wait_num
        self.acts = np.zeros(self.env_num, dtype=bool)
        self._all = self._none = self.acts
        self.observation: Columns = {}
        self.infos: dict[int, Any] = {}
        self._is_shared = is_shared
        self._arrays: Any = None
        self._sets: Sequence[Columns] = ()  # of observations; the policy acts on them by turns
        self._landing: Columns | None = None  # where workers write, with `wait_num`
        self._slot = 0  # number of the set that the policy acts on next
        self._under_way: dict[int, None] = {}  # environments in a step; a set in order
        self._scheduled: Scheduled = {}
        self._without_schedule: set[int] = set()  # environments that it was not sent to yet

    @property
    def is_taken(self) -> bool:
        """See `Backend.is_taken`."""
        return False

    def seed_taken(self, env: int, seed: int | None, *, is_later: bool) -> int | None:  # noqa: ARG002
        """See `Backend.seed_taken`."""
        return seed

    def schedule(self, values: Scheduled) -> None:
        """See `Backend.schedule`; environments in a step are told after it."""
        self._scheduled, self._without_schedule = dict(values), set(range(self.env_num))
        self._send_schedule()

    def _send_schedule(self) -> None:
        """Send the schedule to environments that are in no step; new ones are made with it."""
        idle = [env for env in self._without_schedule if env not in self._under_way]
        if self.facts is not None:
            self._perform(dict.fromkeys(idle, ("schedule", self._scheduled)))
        self._without_schedule.difference_update(idle)

    def start(self, starts: Mapping[int, EpisodeStart]) -> dict[int, EnvFailure]:
        """Create environments that do not exist, and reset all of `starts`."""
        for env in [env for env in starts if env in self._under_way]:
            self._finish(env)
        if self._without_schedule:
            self._send_schedule()
        anew = {e: ("make", s.seed, self._scheduled) for e, s in starts.items() if not s.exists}
        self._close(anew)
        made, failed = self._perform(anew)
        for env, facts in made.items():
            self._admit(env, facts)
        into = self._slot if self._landing is None else 0
        firsts, not_reset = self._perform(
            {e: ("reset", into, s.seed, s.options) for e, s in starts.items() if e not in failed}
        )
        if firsts:
            begun = rows_of(firsts, self.env_num, len(self.acts) // self.env_num)
            self.acts = np.where(begun, self._arrays.results.acts, self.acts)
            for name, column in (self._landing or {}).items():
                self.observation[name][begun] = column[begun]
        return failed | not_reset

    def step(
        self, action: Columns, began: Array, seeds: Sequence[int | None], goes_on: Sequence[bool]
    ) -> BackendStep:
        """Step the environments in which a row begins one.

        With `wait_num` it returns when so many steps are over of all that are under way, some of
        which have begun in earlier calls.
        """
        arrays, seats = self._arrays, len(began) // self.env_num
        all_begin = all_of(began)
        for name, column in action.items():  # other rows may not have read theirs yet
            rows = ... if all_begin else began
            shared = arrays.action[name]
            shared[rows] = as_dtype(column[rows], shared.dtype)
        if self._without_schedule:
            self._send_schedule()
        into = 1 - self._slot if self._landing is None else 0
        workers, under_way = self.workers, self._under_way
        for env in range(self.env_num) if all_begin else envs_of(began, self.env_num):
            workers[env].ask(("step", into, seeds[env], goes_on[env], self.keeps_infos))
            under_way[env] = None
        answered = self._answered()
        ends, failed, not_begun = self._take_replies(answered)
        all_stepped = len(answered) == self.env_num and not failed
        over = self._all
        if not all_stepped:
            over = rows_of((e for e in answered if e not in failed), self.env_num, seats)
        self._switch_sets(over, all_stepped=all_stepped)
        results, reward = arrays.results, arrays.results.reward.copy()
        if not all_stepped:
            reward[~over] = 0.0
        if not (all_begin and all_stepped):
            self.acts = np.where(over, results.acts, self.acts & ~began)
        elif ends or seats > 1:
            self.acts = results.acts.copy()
        terminated = truncated = ended = self._none
        successor = self.observation
        if ends:
            terminated, truncated = results.terminated & over, results.truncated & over
            ended = terminated | truncated
            successor = {name: column.copy() for name, column in self.observation.items()}
            for name, column in successor.items():
                column[ended] = arrays.final[name][ended]
        infos = {f"{INFO}/{name}": column.copy() for name, column in arrays.infos.items()}
        return BackendStep(
            successor, reward, terminated, truncated, ended, over, ends, failed, infos, not_begun
        )

    def _take_replies(
        self, answered: Iterable[int]
    ) -> tuple[
        dict[int, Sequence[Mapping[str, float]]], dict[int, EnvFailure], dict[int, EnvFailure]
    ]:
        """Returns `ends`, `failed` and `not_begun` of a `BackendStep`; keeps the infos."""
        ends, failed, not_begun, self.infos = {}, {}, {}, {}
        workers, under_way = self.workers, self._under_way
        for env in answered:
            del under_way[env]
            try:
                reply = workers[env].answer()
            except EnvFailure as failure:
                failed[env] = failure
                continue
            if reply is not None:
                numbers, self.infos[env], failure_to_begin = reply
                if numbers:
                    ends[env] = numbers
                if failure_to_begin is not None:
                    not_begun[env] = failure_to_begin
        return ends, failed, not_begun

    def _switch_sets(self, over: Array, *, all_stepped: bool = False) -> None:
        """Have the policy act on the other set of observations next.

        Args:
            over: rows that are new in it, bool [rows]; others are copied from the set before.
            all_stepped: whether these are all rows.
        """
        before, self._slot = self.observation, 1 - self._slot
        self.observation = self._sets[self._slot]
        if self._landing is None and all_stepped:
            return
        for name, column in self.observation.items():
            column[~over] = before[name][~over]
            if self._landing is not None:
                column[over] = self._landing[name][over]

    @property
    def step_times(self) -> Array:
        """See `Backend.step_times`."""
        none = np.zeros((2, self.env_num))
        return none if self._arrays is None else np.asarray(self._arrays.step_times)

    def turn_over(self) -> None:
        """See `Backend.turn_over`."""
        self._switch_sets(np.zeros(len(self.acts), dtype=bool))

    def _answered(self) -> list[int]:
        """Wait for `wait_num` of the steps under way; returns whose are over.

        Without it all are returned at once: `_take_replies` waits for them.
        """
        if self.wait_num is None:
            return list(self._under_way)
        workers: dict[int, Any] = {env: self.workers[env] for env in self._under_way}
        wanted = min(self.wait_num, len(workers))
        while True:
            answered = [env for env, worker in workers.items() if worker.has_answer()]
            if len(answered) >= wanted:
                return answered
            silent = [worker for env, worker in workers.items() if env not in answered]
            left_s = min(worker.left_s for worker in silent)
            wait(
                [worker.connection for worker in silent],
                timeout=None if left_s == math.inf else left_s,
            )

    def _finish(self, env: int) -> None:
        """Wait for the step of an environment that is to be reset, whatever becomes of it."""
        with contextlib.suppress(EnvFailure):
            self.workers[env].answer()
        del self._under_way[env]

    def _perform(
        self, commands: Mapping[int, Command]
    ) -> tuple[dict[int, Any], dict[int, EnvFailure]]:
        """Returns results of commands that environments do at the same time, and the failures."""
        for env, command in commands.items():
            self.workers[env].ask(command)
        self._wait_for(commands)
        results, failed = {}, {}
        for env in commands:
            try:
                results[env] = self.workers[env].answer()
            except EnvFailure as failure:
                failed[env] = failure
        return results, failed

    def _wait_for(self, commands: Mapping[int, Command]) -> None:
        """Wait for commands that go on only while somebody looks at them; none does here."""

    def call(self, env: int, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call an environment's method; returns whether it has one, and what that returned.

        Raises:
            EnvFailure: the method failed; or a step of the environment is under way.
        """
        if env in self._under_way:
            raise EnvFailure("it is in a step (env.manager.wait_num)")
        self.workers[env].ask(("call", name, args))
        called: tuple[bool, Any] = self.workers[env].answer()
        return called

    def render(self, live: Array) -> list[Any]:
        """Returns a picture of each environment; None where it draws none, or is not live."""
        return [
            self.call(env, "render", ())[1] if is_live else None for env, is_live in enumerate(live)
        ]

    def retire(self, env: int) -> None:
        """Close an environment that has failed too often."""
        self._close([env])

    def _close(self, envs: Collection[int]) -> None:
        """Close environments, where they are; in other processes within `CLOSE_S`."""
        workers = [self.workers[env] for env in envs]
        limit_s = CLOSE_AGAIN_S if _GIVEN_UP.intersection(map(type, workers)) else CLOSE_S
        for worker in workers:
            worker.begin_close()
        deadline = time.monotonic() + limit_s
        closed = [worker.close(max(0.0, deadline - time.monotonic())) for worker in workers]
        if not all(closed):
            _GIVEN_UP.update(map(type, workers))
            LOGGER.warning(
                "close() is given up of %d of %d environments, which took longer than %g s: their "
                "processes are killed, with what those have started", closed.count(False),
                len(closed), limit_s, extra={"once": "close() is given up"},
            )  # fmt: skip

    def close(self) -> None:
        """Close all environments. Idempotent."""
        self.facts = None
        self._under_way.clear()
        self._close(range(self.env_num))
        self.observation, self._sets, self._landing = {}, (), None
        if self._arrays is not None:
            self._arrays.close()
            self._arrays = None

    def _admit(self, env: int, facts: EnvFacts) -> None:
        """Attach a new environment to its rows of the arrays, after a look at its spaces."""
        if self.facts is None:
            layout = Layout.of(self.env_num, facts, self.origin, self.kept)
            self.facts, self.acts = facts, np.zeros(self.env_num * facts.players, dtype=bool)
            self._all, self._none = ~self.acts, np.zeros_like(self.acts)
            self._all.flags.writeable = self._none.flags.writeable = False
            fd = os.memfd_create("hpcdi-env") if self._is_shared else -1
            self._arrays = SharedArrays(layout, fd)
            self._sets, self._slot = self._arrays.slots, 0
            if self.wait_num is not None:
                self._landing = self._arrays.slots[0]
                self._sets = [{n: c.copy() for n, c in self._landing.items()} for _ in range(2)]
            self.observation = self._sets[0]
        elif facts != self.facts:
            raise EnvError(
                f"environment {env} is of another kind than the first: {facts} against "
                f"{self.facts}; the environments of one manager must have the same spaces"
            )
        self.workers[env].attach(self._arrays, env)
