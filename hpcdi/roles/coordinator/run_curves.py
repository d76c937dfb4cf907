"""Names of a run's curves: for people, or the predecessor's, which only TensorBoard may show.

A run says what it has to say under the predecessor's tags (``collector_step/reward_mean``), each
over train iterations and over environment steps. People are shown about ten curves first, each
once, all over environment steps: those of `FIRST`, in TensorBoard's first group. What environments
say of their episodes is in the group ``info``; everything else is below ``detail``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from hpcdi.types import MAIN, ScalarWriter
from hpcdi.utils.progress import SUCCESS

FIRST: Mapping[str, str] = {
    "collector_step/reward_mean": "collect_return",
    "collector_step/avg_step_per_episode": "episode_length",
    "evaluator_step/reward_mean": "evaluation_return",
    "learner_step/total_loss": "loss",
    "perf/train_iters_per_s": "iterations_per_s",
    "perf/learner_idle": "learner_idle",
    "perf/sample_insert_ratio": "samples_per_transition",
    "perf/policy_lag": "staleness",
    "perf/env_steps_per_s": "steps_per_s",
    **{f"collector_step/info/{name}": "collect_success" for name in SUCCESS},
    **{f"evaluator_step/info/{name}": "evaluation_success" for name in SUCCESS},
}
"""Tag of the predecessor's -> name of a curve that is shown first."""

OVERVIEW: Mapping[str, Sequence[str]] = {
    "mean return over env steps": [
        "(.*_)?evaluator_step/reward_mean",
        "(.*_)?collector_step/reward_mean",
    ],
    "loss": ["(.*_)?learner_step/total_loss_avg"],
    "environment steps a second": ["perf/env_steps_per_s"],
    "train iterations a second": ["perf/train_iters_per_s"],
    "waiting, share of a rank's time": ["perf/idle_frac/.*"],
    "staleness: versions between a sample's policy and the newest": ["perf/policy_lag"],
    "samples drawn for each transition": ["perf/sample_insert_ratio"],
    "blocks that were lost or left out": ["health/blocks_.*"],
}
"""With the predecessor's tags, a page of TensorBoard's: titles of charts, and their curves."""

_PART = re.compile(
    r"(?:(?P<group>[^/]+)_)?(?P<part>collector|evaluator|learner)_(?P<axis>iter|step)/"
)
_OVER_OTHERS = re.compile(r"^([^/]+)_(?:iter|sec)/")  # train iterations, or seconds
_OF_PLAYERS = {f"curves/{name}" for tag, name in FIRST.items() if _PART.match(tag)}
_PARTS = ("collector", "evaluator", "learner")


class DingCurves:
    """Writes a run's curves under the predecessor's tags, by which means of learners end in _avg.

    Args:
        writer: takes them.
    """

    def __init__(self, writer: ScalarWriter) -> None:
        self._writer = writer

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to a curve."""
        part = _PART.match(tag)
        is_mean = part is not None and part["part"] == "learner" and "/" not in tag[part.end() :]
        self._writer.add_scalar(f"{tag}_avg" if is_mean else tag, value, step)


class RunCurves:
    """Takes a run's curves under the predecessor's tags, and writes them under those of people.

    Curves over train iterations or seconds alone are drawn over the environment steps of that time,
    as soon as these are known; of those over both, the one over environment steps.

    Args:
        writer: takes them.
    """

    def __init__(self, writer: ScalarWriter) -> None:
        self._writer = writer
        self._env_steps: int | None = None

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to a curve."""
        name = shown_name(tag)
        if name is None:
            return
        if not _OVER_OTHERS.search(tag):
            self._env_steps = max(self._env_steps or 0, step)
        elif self._env_steps is None:
            return
        else:
            step = self._env_steps
        self._writer.add_scalar(name, value, step)


def shown_name(tag: str) -> str | None:
    """The name under which a curve is shown; None: it is shown under another tag."""
    part = _PART.match(tag)
    if part is None:
        first = FIRST.get(tag)
        return f"curves/{first}" if first else "detail/" + _OVER_OTHERS.sub(r"\1/", tag)
    if part["axis"] == "iter":
        return None
    group, name = part["group"], tag[part.end() :]
    of_group = f"/{group}" if group else ""
    first = FIRST.get(f"{part['part']}_step/{name}")
    if first:
        return f"curves/{first}{of_group}"
    kind, _, figure = name.partition("/")
    if kind == "info":
        return f"info/{'evaluation_' * (part['part'] == 'evaluator')}{figure}{of_group}"
    return f"detail/{part['part']}{of_group}/{name}"


def player_of(name: str, players: Collection[str]) -> str | None:
    """Returns the player over whose environment steps a curve is drawn; None: over all players'.

    Args:
        name: of the curve: as people are shown it, or the predecessor's tag.
        players: that learn.
    """
    if part := _PART.match(name):
        return part["group"] or MAIN
    first, *others = name.split("/")
    if first == "detail" and others[:1] and others[0] in _PARTS:
        return others[1] if others[1:] and others[1] in players else MAIN
    if first == "info" or "/".join([first, *others[:1]]) in _OF_PLAYERS:
        return others[-1] if others and others[-1] in players else MAIN
    return None
