"""Settings of environments and their managers: `env` in an experiment."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Self

from hpcdi.config.fields import ComponentConfig, component, setting
from hpcdi.config.schedule import Course, courses_of
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.utils.registry import ENV_MANAGER_REGISTRY

AUTORESET = ("next_step", "same_step", "disabled")
"""Modes of gymnasium's vector environments, by which an episode follows the one that ended."""
_MOST_SEEDS = 10_000_000
"""In a range; more would take the memory of the machine."""


@dataclass(frozen=True)
class ManagerConfig(ComponentConfig):
    """Settings that every manager has."""

    type: str = "base"
    episode_num: float | None = setting(
        None, "episodes of each environment; empty or .inf: no limit", minimum=1
    )
    max_retry: int = setting(
        5,
        "failures of an environment that are tolerated within retry_window_s, and in a row; one "
        "more retires it, and collecting ends when all are retired",
        minimum=0,
    )
    retry_window_s: float = setting(
        300.0, "seconds after which a failure does not count any more", above=0
    )
    retry_type: str = setting(
        "reset",
        "what happens to an environment that raised: it is reset, or re-created (renew)",
        choices=("reset", "renew"),
    )
    auto_reset: bool = setting(True, "begin the next episode where one has ended")
    step_timeout: float | None = setting(
        None, "seconds until a step counts as hung; needs child processes", above=0
    )
    reset_timeout: float | None = setting(
        None,
        "seconds until a reset counts as hung; creating has a minute more; needs child processes",
        above=0,
    )
    folder: str = setting(
        "",
        "a folder in which each environment has one of its own, named by its number: "
        "HPCDI_ENV_FOLDER while it is made, {folder} in kwargs, and the present folder of its "
        "process where it has one; empty: none",
    )
    renew_after: str | None = setting(
        None,
        "when an environment is closed and made anew, at the end of an episode: '1000 episodes', "
        "or '500 MiB' that its process has grown by, which needs child processes; empty: never",
    )
    retry_waiting_time: float = setting(0.1, "seconds before the next retry", minimum=0)

    def problems(self) -> Iterator[Problem]:
        """Refuses time-outs: an environment of this process cannot be interrupted."""
        yield from self._problems_of_renewal()
        if self.renewal and self.renewal[1] == "MiB":
            yield Problem("renew_after", "MiB are those of a child process: set type: subprocess")
        for name in ("step_timeout", "reset_timeout"):
            if getattr(self, name) is not None:
                yield Problem(
                    name,
                    f"cannot be kept with type {self.type!r}: nothing interrupts an environment of "
                    "this process; set env.manager.type: subprocess",
                )

    @property
    def renewal(self) -> tuple[float, str] | None:
        """`renew_after` as a number above 0 and its unit; None: never, or it is no such text."""
        found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(episodes|MiB)", self.renew_after or "")
        return (float(found[1]), found[2]) if found and float(found[1]) > 0 else None

    def _problems_of_renewal(self) -> Iterator[Problem]:
        if self.renew_after is not None and self.renewal is None:
            said = "is a number above 0 and one of episodes, MiB, such as '1000 episodes'"
            yield Problem("renew_after", f"{said}, not {self.renew_after!r}")

    @property
    def episodes(self) -> int | None:
        """`episode_num`; None: no limit."""
        number = self.episode_num
        return None if number is None or number == float("inf") else int(number)


@dataclass(frozen=True)
class OverlappingConfig(ManagerConfig):
    """Settings of managers whose environments step at the same time, in processes of their own."""

    wait_num: int | None = setting(
        None,
        "environments whose steps a collector waits for: the policy acts for them while slower "
        "ones are still in theirs; empty: all",
        minimum=1,
    )

    def problems(self) -> Iterator[Problem]:
        """Allows time-outs."""
        yield from self._problems_of_renewal()


@dataclass(frozen=True)
class ChildConfig(OverlappingConfig):
    """Settings of managers that keep each environment in a child process."""

    type: str = "subprocess"
    start_method: str = setting(
        "forkserver",
        "how child processes start: forkserver is quicker, spawn shares nothing at all",
        choices=("forkserver", "spawn"),
    )


@dataclass(frozen=True)
class EnvConfig(ComponentConfig):
    """Settings that every environment has."""

    collector_env_num: int = setting(8, "environments of one collector", minimum=1)
    collector_episode_num: int | None = setting(
        None,
        "episodes of each environment in one collect task; empty: until the task is closed",
        minimum=1,
    )
    evaluator_env_num: int = setting(5, "environments of an evaluation", minimum=1)
    evaluator_episode_num: int = setting(
        1, "episodes of each environment in one evaluation", minimum=1
    )
    stop_value: float = setting(
        float("inf"), "an evaluation whose mean return reaches this ends the run"
    )
    seeds: str | tuple[int | str, ...] = setting(
        (),
        "the seeds that episodes begin by, as scenarios, e.g. [7, 12] or 0..99: each environment "
        "plays all of them, in an order of its own, before any comes again; empty: any seed",
    )
    eval_seeds: str | tuple[int | str, ...] = setting(
        (), "those of evaluations, which play them in order, each time the same ones"
    )
    schedule: dict[str, Any] = setting(
        {},
        "a curriculum: attributes, or kwargs.NAME, that change with the run's steps, as in {wind: "
        "{env_steps: {0: 0.0, 200_000: 5.0}}}, or by what is reached, as in {kwargs.level: "
        "{values: [1, 2, 3], when: 'is_success >= 0.8', episodes: 100}}; not in evaluations",
    )
    origin: dict[str, Any] | None = setting(
        None,
        "what is subtracted from observations before they are rounded to float32, by column, e.g. "
        "{observation: [5_400_000, 0]}; empty: a first observation says it, where numbers of "
        "float64 are beyond 100,000, or whole ones beyond float32; {}: nothing",
    )
    keep_infos: tuple[str, ...] = setting(
        (),
        "numbers of each step's info that are stored beside its transition, e.g. [x_position, "
        "episode/r], for read_episodes and hpcdi export: column info/NAME, NaN where an info has "
        "none; learners leave them out",
    )
    manager: ManagerConfig = component(
        ENV_MANAGER_REGISTRY, "base", "how the environments are stepped"
    )

    @property
    def origins(self) -> dict[str, tuple[float, ...]]:
        """`origin` as numbers of each column; none: it is not known, or nothing is subtracted."""
        return {
            name: tuple(map(float, given if isinstance(given, list | tuple) else [given]))
            for name, given in (self.origin or {}).items()
        }

    @property
    def courses(self) -> tuple[Course, ...]:
        """`schedule`, read."""
        return courses_of(self.schedule)

    @property
    def title(self) -> str:
        """Name of the environment for people: its id, or its type."""
        return self.type

    def scenarios(self, *, evaluate: bool) -> tuple[int, ...]:
        """Returns `seeds`, or `eval_seeds`, one by one; none: any seed."""
        return seeds_of(self.eval_seeds if evaluate else self.seeds)

    @property
    def needs_single(self) -> bool:
        """True if each environment is made and reset by itself."""
        needs = (self.seeds, self.eval_seeds, self.schedule, self.manager.folder)
        return any(needs) or self.manager.renewal is not None

    def for_evaluation(self) -> Self:
        """Returns the settings of the environments of evaluations."""
        return self

    def problems(self) -> Iterator[Problem]:
        """Refuses what names no seeds, and what is no schedule."""
        try:
            courses_of(self.schedule)
        except ValueError as error:
            name, said = error.args
            yield Problem(f"schedule.{name}", said)
        for name, given in (self.origin or {}).items():
            numbers = given if isinstance(given, list | tuple) else [given]
            most = sys.float_info.max  # which NaN, infinity and longer integers are not within
            are_numbers = (isinstance(n, float | int) and abs(n) <= most for n in numbers)
            if not numbers or not all(are_numbers):
                yield Problem(f"origin.{name}", "is a number, or one for each component, in a list")
        for name in self.keep_infos:
            parts = name.split("/")
            if name.startswith(".") or "." in parts or not all(parts):
                yield Problem("keep_infos", f"{name!r} is no name of a number in infos")
            if any(other.startswith(f"{name}/") for other in self.keep_infos):
                yield Problem("keep_infos", f"{name!r} holds others of these, and is no number")
        if len(set(self.keep_infos)) < len(self.keep_infos):
            yield Problem("keep_infos", "names a number twice")
        for name in ("seeds", "eval_seeds"):
            try:
                seeds_of(getattr(self, name))
            except ValueError as error:
                yield Problem(name, f"{error}: a list of numbers from 0, or a range such as 0..99")


def seeds_of(given: str | Sequence[int | str]) -> tuple[int, ...]:
    """Returns the seeds that numbers and ranges name.

    Raises:
        ValueError: something is neither, or a range is empty.
    """
    seeds: list[int] = []
    for each in [given] * bool(given) if isinstance(given, str) else given:
        first, *more = str(each).split("..", 1)
        last = more[0] if more else first
        if not first.strip().isdecimal() or not last.strip().isdecimal():
            raise ValueError(f"is {each!r}")
        if int(last) < int(first):
            raise ValueError(f"is {each!r}, which runs backwards")
        if int(last) - int(first) >= _MOST_SEEDS:
            raise ValueError(f"is {each!r}, more than {_MOST_SEEDS:,} seeds")
        seeds += range(int(first), int(last) + 1)
    return tuple(seeds)


@dataclass(frozen=True)
class NamedEnvConfig(EnvConfig):
    """Settings of an environment that a library makes by its id."""

    env_id: str = setting(
        "",
        "its id, e.g. CartPole-v1 or classic.connect_four_v3; or a class of yours, module:Class",
    )
    kwargs: dict[str, Any] = setting({}, "keyword arguments of the environment")
    eval_kwargs: dict[str, Any] = setting(
        {}, "those that are others in evaluations; the spaces must be the same"
    )

    @property
    def title(self) -> str:
        """Its id."""
        return self.env_id

    def for_evaluation(self) -> Self:
        """Returns the settings of the environments of evaluations: with `eval_kwargs`."""
        if not self.eval_kwargs:
            return self
        return dataclasses.replace(self, kwargs={**self.kwargs, **self.eval_kwargs}, eval_kwargs={})

    def problems(self) -> Iterator[Problem]:
        """Demands the id."""
        yield from EnvConfig.problems(self)
        if not self.env_id:
            yield Problem("env_id", f"is required: the id of a {self.type} environment")


@dataclass(frozen=True)
class GymnasiumConfig(NamedEnvConfig):
    """Settings of a gymnasium environment."""

    type: str = "gymnasium"
    vectorization: str = setting(
        "auto",
        "'auto' takes the environment's own vectorised form where it has one",
        choices=("auto", "sync", "vector_entry_point"),
    )
    autoreset: str | None = setting(
        None, "autoreset mode of 'sync'; others state their own", choices=(None, *AUTORESET)
    )
    wrappers: tuple[str | dict[str, Any], ...] = setting(
        (), "wrappers by name, or with arguments as {type: name, ...}; the innermost first"
    )
    action_mask: str = setting(
        "",
        "where masks of legal actions are: 'info' or a key of observations; empty: in the "
        "key action_mask of observations, where there is one",
    )

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from NamedEnvConfig.problems(self)
        if self.needs_single and self.vectorization != "auto":
            said = "must be 'auto' where there are seeds, a schedule, folders or renewals"
            yield Problem("vectorization", said)
        if self.action_mask and self.vectorization == "vector_entry_point":
            yield Problem("action_mask", "needs single environments: set vectorization: sync")
        if self.autoreset is not None and self.vectorization != "sync":
            yield Problem("autoreset", "can be chosen only with vectorization: sync")
        if self.wrappers and self.vectorization == "vector_entry_point":
            yield Problem("wrappers", "need single environments: set vectorization: sync")


@dataclass(frozen=True)
class PettingZooConfig(NamedEnvConfig):
    """Settings of a PettingZoo environment."""

    type: str = "pettingzoo"
    api: str = setting(
        "auto",
        "all players act at once, or in turns (aec); auto: at once where there is a choice",
        choices=("auto", "parallel", "aec"),
    )
    teams: dict[str, Any] = setting(
        {},
        "who plays together: team -> its players, by the environment's names or by numbers "
        "from 0, e.g. {red: [first_0, third_0], blue: [second_0, fourth_0]}; one policy acts "
        "for a team, whose result is its players' mean return; empty: each plays for itself",
    )


@dataclass(frozen=True)
class TeamEnvConfig(NamedEnvConfig):
    """Settings of an environment whose players all learn at once; see `hpcdi.env.team`."""

    type: str = "team"


@dataclass(frozen=True)
class EnvPoolConfig(NamedEnvConfig):
    """Settings of EnvPool's environments."""

    type: str = "envpool"

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from NamedEnvConfig.problems(self)
        if self.needs_single:
            said = "seeds, schedule, manager.folder and renew_after are for single environments"
            yield Problem("", f"{said}, and EnvPool has none")
        if self.manager.type not in ("base", "gym"):
            yield Problem(
                "manager.type",
                f"must be 'base' with envpool, not {self.manager.type!r}: its environments "
                "live in threads of one library",
            )
        if self.keep_infos:
            yield Problem("keep_infos", "must be empty: infos of EnvPool are not read")
