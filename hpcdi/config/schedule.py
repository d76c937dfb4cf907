"""A schedule of environments (curriculum): what of them changes while a run goes on, and by what.

``env.schedule`` has a mapping for each attribute of the environment, or keyword argument
(``kwargs.NAME``), in one of these forms::

    wind: {env_steps: {0: 0.0, 200_000: 5.0}}       between the points: floats go linearly, others
    kwargs.level: {env_steps: {0: 1, 50_000: 2}}    (whole numbers, texts, truths) by steps
    gap: {values: [1, 2, 4], when: "is_success >= 0.8", episodes: 100}
    gap: {values: [1, 2, 4], when: callback}        `Context.set_env` chooses

`when` names a number of the infos at ends of episodes, ``return``, ``length``, or ``evaluation``,
the mean return of the last evaluation. The next value follows as soon as its mean over the last
`episodes` episodes that were played with the present value, or some more, is there.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

from hpcdi.dataclass import dataclass

Value: TypeAlias = float | int | bool | str
Scheduled: TypeAlias = Mapping[str, tuple[Value, float]]
"""Values by name; each with the number that stands for it in curves."""
KWARGS = "kwargs."
"""Begins the names of keyword arguments; others are attributes."""
FIGURE = "schedule/"
"""Begins the names under which ended episodes say what they were played with."""
EVALUATION = "evaluation"
CALLBACK = "callback"
"""Instead of a condition: a callback says which value comes, see `hpcdi.roles.callbacks`."""
_NUMBER = r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?"
_CONDITION = re.compile(rf"\s*([\w/.-]+)\s*(>=|<=)\s*({_NUMBER})\s*")
_FORMS = (
    "is {env_steps: {0: FIRST, STEPS: NEXT, ...}}, or {values: [FIRST, NEXT, ...], "
    "when: 'NUMBER >= LIMIT', episodes: 100}"
)


@dataclass(frozen=True)
class Course:
    """How one value changes.

    Attributes:
        name: of the attribute, or of the keyword argument after `KWARGS`.
        values: in order.
        steps: of the environments of the run, at which these begin; empty: by a metric.
        metric: what is looked at; of each of `episodes` episodes, or of an evaluation.
        limit: of the metric's mean.
        is_least: the mean must be the limit at least; else at most.
        episodes: see `metric`.
    """

    name: str
    values: tuple[Value, ...]
    steps: tuple[float, ...] = ()
    metric: str = ""
    limit: float = 0.0
    is_least: bool = True
    episodes: int = 100

    @property
    def argument(self) -> str:
        """The keyword argument; empty: it is an attribute."""
        return self.name.removeprefix(KWARGS) if self.name.startswith(KWARGS) else ""

    def at(self, env_steps: float) -> tuple[Value, float]:
        """Returns the value after so many steps, where it goes by them, and its number."""
        place = sum(step <= env_steps for step in self.steps) - 1
        if place < 0 or place == len(self.steps) - 1 or not self.is_linear:
            return self.stage(max(0, place))
        first, last = self.values[place], self.values[place + 1]
        share = (env_steps - self.steps[place]) / (self.steps[place + 1] - self.steps[place])
        value = float(first) + share * (float(last) - float(first))
        return value, value

    def stage(self, number: int) -> tuple[Value, float]:
        """Returns the value of a number, and its number in curves: a text's is its place."""
        value = self.values[number]
        return value, float(number) if isinstance(value, str) else float(value)

    def is_met(self, mean: float) -> bool:
        """Decides whether the next value follows."""
        return mean >= self.limit if self.is_least else mean <= self.limit

    @property
    def is_linear(self) -> bool:
        """True if a value by steps goes linearly from each point to the next."""
        return all(isinstance(value, float) for value in self.values)


def courses_of(given: Mapping[str, Any]) -> tuple[Course, ...]:
    """Returns what ``env.schedule`` says.

    Raises:
        ValueError: its texts are the setting's name and what is wrong with it.
    """
    return tuple(_course(str(name), each) for name, each in given.items())


def _course(name: str, given: Any) -> Course:
    if not all(part.isidentifier() for part in name.split(".")) or name == KWARGS[:-1]:
        raise ValueError(name, "is no attribute's name, nor kwargs.NAME")
    if name.startswith(KWARGS) and name.count(".") > 1:
        raise ValueError(name, "is no keyword argument's name: kwargs.NAME")
    keys = set(given) if isinstance(given, Mapping) else set()
    if keys == {"env_steps"} and isinstance(given["env_steps"], Mapping) and given["env_steps"]:
        return _by_steps(name, given)
    if not ({"values", "when"} <= keys <= {"values", "when", "episodes"}):
        raise ValueError(name, f"{_FORMS}, not {given!r}")
    if given["when"] == CALLBACK:
        return Course(name, _values(name, given["values"]), (), CALLBACK)
    condition = _CONDITION.fullmatch(str(given["when"]))
    if condition is None:
        raise ValueError(name, f"when: is such as 'is_success >= 0.8', not {given['when']!r}")
    episodes = given.get("episodes", 100)
    if not isinstance(episodes, int) or episodes < 1:
        raise ValueError(name, f"episodes: is a whole number from 1, not {episodes!r}")
    metric, sign, limit = condition.groups()
    return Course(
        name, _values(name, given["values"]), (), metric,
        float(limit.replace("_", "")), sign == ">=", 1 if metric == EVALUATION else episodes,
    )  # fmt: skip


def _by_steps(name: str, given: Mapping[str, Any]) -> Course:
    try:
        points = sorted((float(str(at)), value) for at, value in given["env_steps"].items())
    except (TypeError, ValueError):
        raise ValueError(name, f"{_FORMS}, not {given!r}") from None
    steps = tuple(at for at, _ in points)
    if wrong := [at for at in steps if not 0 <= at < math.inf]:
        raise ValueError(name, f"begins at environment steps from 0 on, not at {wrong[0]:g}")
    if twice := [at for at, following in itertools.pairwise(steps) if at == following]:
        raise ValueError(name, f"has two values from {twice[0]:g} steps on")
    course = Course(name, _values(name, [value for _, value in points]), steps)
    if course.is_linear and not all(math.isfinite(float(value)) for value in course.values):
        raise ValueError(name, f"goes between values that are finite, not {[*course.values]}")
    return course


def _is_value(given: object) -> bool:
    """Returns whether something is a text, or a number that curves can show: no NaN."""
    if isinstance(given, int):
        return abs(given) <= sys.float_info.max
    return isinstance(given, str | float) and given == given  # NaN differs from itself


def _values(name: str, given: Any) -> tuple[Value, ...]:
    are_listed = isinstance(given, list | tuple) and bool(given)
    if not are_listed or not all(map(_is_value, given)):
        raise ValueError(name, f"has values that are numbers, truths or texts, not {given!r}")
    for value, following in itertools.pairwise(given):
        if value == following:
            raise ValueError(name, f"has {value!r} twice in a row")
    kinds = {float if isinstance(value, float) else type(value) for value in given}
    return tuple(float(value) for value in given) if kinds == {int, float} else tuple(given)
