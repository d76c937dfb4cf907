"""The contracts of environments: with collectors above, with a manager's back-end below."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from hpcdi.config.compat import Configurable
from hpcdi.config.env import ChildConfig
from hpcdi.config.schedule import Scheduled
from hpcdi.env.arguments import make_numbered
from hpcdi.errors import ConfigError, EnvValueError
from hpcdi.types import Array, Columns, Episodes, Step

RETURNS = "returns_of_players"
"""Method of a team: numbers for the info of an episode that is cut from outside."""
EnvFn = Callable[..., Any]
"""Makes one environment; called without arguments, or by a schedule's with ``kwargs``."""


class EnvType(Configurable):
    """What ``env.type`` names: it makes the environments that a configuration names.

    It is never instantiated; a type has `make_single`, `make_vector`, or both.

    Attributes:
        is_battle: several players play against each other in them.
        is_of_one_process: a process can make several.
    """

    is_battle = False
    is_of_one_process = True
    make_single: ClassVar[Any]
    make_vector: ClassVar[Any]

    @classmethod
    def has_single(cls, _cfg: Any) -> bool:
        """Decides whether there are single environments, and not vectors alone."""
        return hasattr(cls, "make_single")

    @classmethod
    def has_vector(cls, _cfg: Any) -> bool:
        """Decides whether to step a vector environment, and not single ones."""
        return False

    @classmethod
    def is_vector(cls, cfg: Any, *, evaluate: bool = False) -> bool:
        """Decides whether a collector, or an evaluation, steps a vector, and not single ones."""
        seeds, manager = cfg.scenarios(evaluate=evaluate), cfg.manager
        is_single = bool(seeds or cfg.schedule or manager.folder or manager.renewal)
        is_single |= isinstance(manager, ChildConfig) or cls.is_battle
        return not is_single and cls.has_vector(cfg)

    @classmethod
    def probe(cls, cfg: Any) -> Any:
        """Returns an environment as a run has it: one, or a vector environment of one.

        Of vectors that have a number of environments of their own, or take some numbers alone, it
        is one as collectors have it.

        Raises:
            ConfigError: it cannot be made.
        """
        if not cls.is_vector(cfg):
            return make_numbered(partial(cls.make_single, cfg), 0, cfg.manager.folder)
        others = {cfg.evaluator_env_num} if cls.is_vector(cfg, evaluate=True) else set()
        others.discard(cfg.collector_env_num)
        try:
            return cls.make_vector(cfg, 1)
        except Exception as error:  # whatever a vector raises
            if 1 in {cfg.collector_env_num, *others}:  # a run has it so
                raise
            of_one = error
        from hpcdi.env.in_process import close_or_warn  # which knows this module

        try:
            for env_num in others:
                close_or_warn(cls.make_vector(cfg, env_num))
            return cls.make_vector(cfg, cfg.collector_env_num)
        except ConfigError:
            raise of_one from None


# ---------------------------------------------------------------------------------- with collectors


class Envs(Protocol):
    """Environments, stepped together, as the stepping loop of collectors sees them."""

    @property
    def env_num(self) -> int:
        """Environments."""
        ...

    @property
    def seats(self) -> int:
        """Players of each."""
        ...

    @property
    def rows(self) -> int:
        """Players of all environments."""
        ...

    @property
    def wait_num(self) -> int | None:
        """Steps that a step waits for, of those under way; None: all, so that none outlasts it."""
        ...

    @property
    def stepped(self) -> int:
        """Environments that made a step in the last one."""
        ...

    @property
    def observation(self) -> Columns:
        """Observations to act on next, each [rows, ...]; written over in the next step but one."""
        ...

    @property
    def ready(self) -> Array:
        """Rows that take an action in the next step, bool [rows]."""
        ...

    @property
    def done(self) -> bool:
        """True if every environment has done its number of episodes."""
        ...

    def step(self, action: Columns) -> Step:
        """Step by the actions of the rows that are ready, each column [rows, ...]."""
        ...

    def reset(self, *, quota: int | Sequence[int] | None = None) -> None:
        """Begin new episodes in all environments, and count them from zero.

        Args:
            quota: episodes of each, one number or one for each; None: as before.
        """
        ...

    def take_episodes(self) -> Episodes:
        """Returns the episodes that ended since the last call."""
        ...


# ------------------------------------------------------------------------ with a manager's back-end


class EnvFailure(Exception):
    """An environment failed; its manager handles it.

    Args:
        cause: one line.
        detail: the traceback, where there is one.
        is_gone: whether the environment must be re-created.
        wrong_row: set where it returned what its spaces do not have, so that no retry helps: the
            row of a vector environment, else -1.
        kind: the cause without numbers of environments and steps: alike ones are said once.
        is_final: the environment cannot be re-created; the cause ends with what to do.
    """

    def __init__(
        self,
        cause: str,
        detail: str = "",
        is_gone: bool = False,
        wrong_row: int | None = None,
        kind: str = "",
        is_final: bool = False,
    ) -> None:
        super().__init__(cause)
        self.cause, self.detail, self.is_gone = cause, detail, is_gone
        self.wrong_row, self.kind, self.is_final = wrong_row, kind or cause, is_final

    @property
    def fields(self) -> tuple[str, str, bool, int | None]:
        """Its first arguments, which make it again in another process: a child knows no others."""
        return self.cause, self.detail, self.is_gone, self.wrong_row

    @classmethod
    def of(cls, error: BaseException) -> EnvFailure:
        """Returns the failure that an exception of the environment is, of whatever kind.

        So are sys.exit() in it, and what libraries of coroutines raise to cancel one.

        Its traceback begins where hpcdi calls the environment.

        Raises:
            BaseException: it is not the environment's but a person's: Control-C where that raises
                KeyboardInterrupt, which it does not in a run.
        """
        if (
            isinstance(error, KeyboardInterrupt)
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            raise error
        if isinstance(error, EnvValueError):
            return cls(str(error), wrong_row=-1 if error.row is None else error.row)
        try:
            text = str(error).partition("\n")[0]
        except Exception:  # it cannot say what it is
            text = ""
        cause = f"{type(error).__name__}: {text}" if text else type(error).__name__
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and _is_ours(trace):
            trace = trace.tb_next
        return cls(cause, "".join(traceback.format_exception(type(error), error, trace)).rstrip())


class RanksLost(EnvFailure):
    """Ranks have died, hung or ended, by no exception of theirs: those of another job may live."""


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).startswith("hpcdi.")


def rows_of(envs: Iterable[int], env_num: int, seats: int) -> Array:
    """Returns the rows of some environments, which have as many seats each, bool [rows]."""
    chosen = [False] * env_num
    for env in envs:
        chosen[env] = True
    return np.array(chosen * seats)


def envs_of(rows: Array, env_num: int) -> list[int]:
    """Returns the environments of rows, bool [rows], in order."""
    numbers = rows.nonzero()[0]
    envs: list[int] = (numbers if len(rows) == env_num else np.unique(numbers % env_num)).tolist()
    return envs


class EnvFacts(NamedTuple):
    """Description of an environment.

    Attributes:
        observation_space, action_space: gymnasium's, of each player.
        teams: the players of each team, by their numbers; one who plays alone is a team.
    """

    observation_space: Any
    action_space: Any
    players: int = 1
    teams: tuple[tuple[int, ...], ...] = ((0,),)


class EpisodeStart(NamedTuple):
    """Start of an episode; an environment that does not exist is created first.

    Attributes:
        seed: None: its generator goes on.
        options: for its reset.
        exists: whether it does.
        keeps_seed: whether it is tried again by the same seed, where it fails.
    """

    seed: int | None = None
    options: dict[str, Any] | None = None
    exists: bool = False
    keeps_seed: bool = False


class BackendStep(NamedTuple):
    """One step of a back-end; arrays are [rows, ...].

    Attributes:
        successor, terminated, truncated, ended: as in `Step`.
        reward: float32; of this step alone.
        over: bool; rows of environments whose step is over, and which have not failed. Elsewhere
            `ended` is false, rewards are 0, and the other arrays are to be ignored.
        ends: the numbers of each player's info, by environment, of the episodes that ended.
        failed: environments that failed.
        infos: see `Step`.
        not_begun: environments whose step is over, and which failed to begin the next episode;
            `acts` and the observation of their rows mean nothing until `start`.
    """

    successor: Columns
    reward: Array
    terminated: Array
    truncated: Array
    ended: Array
    over: Array
    ends: Mapping[int, Sequence[Mapping[str, float]]]
    failed: Mapping[int, EnvFailure]
    infos: Columns = {}  # noqa: RUF012 (of a tuple: nobody writes to it)
    not_begun: Mapping[int, EnvFailure] = {}


class StepReply(NamedTuple):
    """What a worker answers to a step beside the arrays.

    Attributes:
        numbers: of each player's info at an episode's end; else empty.
        info: of the step, if it is kept.
        failure: the step is over, and the next episode has not begun.
    """

    numbers: list[dict[str, float]]
    info: Any
    failure: EnvFailure | None = None


class Backend(Protocol):
    """Creates, resets and steps environments; the manager decides when, and retries failures.

    Attributes:
        env_num: environments.
        facts: of the environments; None: none was created yet.
        fails_as_one: one failing environment takes all others with it; the failure is reported as
            that of environment 0.
        wait_num: steps that a step waits for, of those under way; None: all.
        resets_alone: whether `start` can reset some environments while others go on.
        acts: bool [rows]; who takes an action in the next step; another array after each step.
        observation: each [rows, ...]; the policy acts on it next. A step writes to other arrays,
            the step after it to these.
        keeps_infos: keep the infos of each step.
        kept: names of numbers in infos that each step returns.
        origin: what is subtracted from observations, see `Space.of_observations`.
        infos: of the last step, by environment, in a battle lists of them; where they are kept.
    """

    env_num: int
    facts: EnvFacts | None
    fails_as_one: bool
    wait_num: int | None
    acts: Array
    observation: Columns
    keeps_infos: bool
    kept: Sequence[str]
    origin: Mapping[str, Sequence[float]]
    infos: dict[int, Any]

    @property
    def resets_alone(self) -> bool:
        """See above."""
        ...

    @property
    def step_times(self) -> Array:
        """Of each environment, seconds of the steps that were timed, and their number.

        float64 [2, envs]; zeros where an environment's steps are not timed, or not yet.
        """
        ...

    def seed_taken(self, env: int, seed: int | None, *, is_later: bool) -> int | None:
        """Returns the seed by which an environment's latest episode has begun.

        None: its generator goes on; `NO_SEED`: it has none of its own.

        Args:
            env: number of the environment.
            seed: what it was given.
            is_later: by `step`, else by `start`.
        """
        ...

    def schedule(self, values: Scheduled) -> None:
        """Have episodes that begin from now on be played with these values."""
        ...

    @property
    def is_taken(self) -> bool:
        """Whether others have begun episodes in these environments: the running ones are gone."""
        ...

    def start(self, starts: Mapping[int, EpisodeStart]) -> dict[int, EnvFailure]:
        """Have environments begin an episode, all at the same time; returns those that failed.

        Their observations are written to the arrays that `observation` has now.

        Raises:
            ConfigError, EnvError: no retry would help.
        """
        ...

    def step(
        self, action: Columns, began: Array, seeds: Sequence[int | None], goes_on: Sequence[bool]
    ) -> BackendStep:
        """Step environments, and reset those whose episode ended.

        Args:
            action: each [rows, ...]; empty where nobody acts.
            began: bool [rows]; those that act now.
            seeds: of the episodes that follow; None: the environment's generator goes on.
            goes_on: whether an episode follows.
        """
        ...

    def turn_over(self) -> None:
        """Have `observation` in other arrays, with the same values: the present ones stay."""
        ...

    def call(self, env: int, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call an environment's method; returns whether it has one, and what that returned.

        Raises:
            EnvFailure: the method failed.
        """
        ...

    def render(self, live: Array, /) -> list[Any]:
        """Returns a picture of each environment; None where it draws none, or is not live."""
        ...

    def retire(self, env: int) -> None:
        """Close an environment that has failed too often."""
        ...

    def close(self) -> None:
        """Close all environments; `start` can create them again. Idempotent."""
        ...
