"""The curriculum: which values ``env.schedule`` has now, by a run's steps and by what is reached.

Rank 0 decides for all collectors, by the counters of the run, so that a resumed run goes on where
it was. An episode says what it was played with (`FIGURE`), and only episodes of the present value
count for the next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.comm.messages import CollectProgress
from hpcdi.config.schedule import CALLBACK, EVALUATION, FIGURE, Course, Value
from hpcdi.types import Array
from hpcdi.utils.log import LOGGER


class Stage:
    """Where a course by a metric is.

    Args:
        course: by a metric.

    Attributes:
        number: of the present value.
    """

    def __init__(self, course: Course) -> None:
        self.number, self._course = 0, course
        self._looks: list[tuple[int, float]] = []  # episodes and their sum, of each of the newest
        self._new: list[float] = []  # that have come since the last look

    @property
    def value(self) -> tuple[Value, float]:
        """The present value, and the number that stands for it."""
        return self._course.stage(self.number)

    def hear(self, progress: CollectProgress) -> None:
        """Note the episodes of the present value."""
        played_with = progress.episode_figures.get(f"{FIGURE}{self._course.name}")
        found = _of_episodes(self._course.metric, progress)
        if played_with is not None and found is not None:
            chosen = found[(played_with == self.value[1]) & np.isfinite(found)]
            self._new += chosen.tolist()

    def evaluated(self, mean: float) -> None:
        """Note the mean return of an evaluation."""
        if self._course.metric == EVALUATION:
            self._new = [mean]

    def choose(self, value: Value) -> None:
        """Take a value from now on.

        Raises:
            KeyError: a callback does not choose it. ValueError: it is none of the values.
        """
        if self._course.metric != CALLBACK:
            raise KeyError(self._course.name)
        self.number = self._course.values.index(value)

    def look(self) -> bool:
        """Go on to the next value where its condition is met; returns whether it did.

        All that came since a look counts, or none of it: the order in which ranks report is that
        of a run's luck. So the mean is of `Course.episodes` episodes, or of somewhat more.
        """
        if self._new:
            self._looks.append((len(self._new), math.fsum(self._new)))
            self._new = []
        count, episodes = sum(count for count, _ in self._looks), self._course.episodes
        while self._looks and count - self._looks[0][0] >= episodes:
            count -= self._looks.pop(0)[0]
        if self.number + 1 == len(self._course.values) or count < episodes:
            return False
        mean = math.fsum(total for _, total in self._looks) / count
        if not self._course.is_met(mean):
            return False
        self.number, self._looks = self.number + 1, []
        LOGGER.info(
            "env.schedule: %s is %s from now on, %d of %d: %s was %.4g",
            self._course.name, self.value[0], self.number + 1, len(self._course.values),
            self._course.metric, mean,
        )  # fmt: skip
        return True

    def state(self) -> dict[str, Any]:
        """Returns what `restore` takes."""
        of = {"metric": self._course.metric, "value": self.value[0]}
        looks = [[count, total] for count, total in self._looks]
        return {"number": self.number, "looks": looks, "new": sorted(self._new), **of}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`: with its value where that is still there, else with its number.

        What was noted with another value, or of another metric, says nothing of these.
        """
        values = self._course.values
        self.number = min(int(state["number"]), len(values) - 1)
        value = state["value"]
        if values[self.number] != value and value in values:
            self.number = values.index(value)
        self._looks, self._new = [], []
        if (state["metric"], value) == (self._course.metric, values[self.number]):
            self._looks = [(int(count), float(total)) for count, total in state["looks"]]
            self._new = [float(each) for each in state["new"]]


def _of_episodes(metric: str, progress: CollectProgress) -> Array | None:
    """Returns a metric of each episode; None: they do not have it."""
    if metric == "return":
        return progress.episode_returns
    if metric == "length":
        return progress.episode_lengths
    return progress.episode_figures.get(metric)


class Curriculum:
    """The values of a schedule.

    Args:
        courses: what changes.
    """

    def __init__(self, courses: Sequence[Course]) -> None:
        self._courses = courses
        self._stages = {course.name: Stage(course) for course in courses if course.metric}

    def hear(self, progress: CollectProgress) -> None:
        """Note episodes of collectors."""
        for stage in self._stages.values():
            stage.hear(progress)

    def evaluated(self, mean: float) -> None:
        """Note an evaluation's mean return."""
        for stage in self._stages.values():
            stage.evaluated(mean)

    def choose(self, name: str, value: Value) -> None:
        """Take one of the values of a schedule from now on; see `Stage.choose`."""
        self._stages[name].choose(value)

    def values(self, env_steps: int) -> dict[str, tuple[Value, float]]:
        """Returns the value of each name after so many steps of the run's environments."""
        for stage in self._stages.values():
            stage.look()
        return {
            course.name: self._stages[course.name].value if course.metric else course.at(env_steps)
            for course in self._courses
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a snapshot, plain data."""
        return {name: stage.state() for name, stage in self._stages.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; what is new begins anew."""
        for name, stage in self._stages.items():
            if name in state:
                stage.restore(state[name])
