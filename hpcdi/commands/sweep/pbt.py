"""Decisions of population based training: who copies whom, and by which settings it goes on.

Jaderberg et al. 2017, *Population Based Training of Neural Networks* (arXiv:1711.09846), with the
truncation selection of its section 4.1.1: at each interval the worst share of the population copies
weights and settings of members drawn from the best share (exploit), then each copied setting is
perturbed or drawn anew (explore). No files, no clock: results and random numbers are arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from hpcdi.dataclass import dataclass

FACTORS = (0.8, 1.2)
"""One of them multiplies a copied number."""
RESAMPLE = 0.25
"""Probability that a copied setting is drawn from the listed values instead."""


@dataclass(frozen=True)
class Space:
    """A setting that is explored.

    Attributes:
        key: dotted path.
        values: listed on the command line; the lowest and the highest number are bounds, too.
    """

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """A run of the population when a decision is made.

    Attributes:
        index: of the run.
        score: mean return of its newest evaluation; None: it failed, or was not evaluated.
        settings: key -> value, as text, of each explored setting.
        is_over: it is done for good: others copy it, but it copies nobody.
    """

    index: int
    score: float | None
    settings: Mapping[str, str]
    is_over: bool = False


@dataclass(frozen=True)
class Copy:
    """An order: run `index` continues from the policy of run `donor`, by these settings."""

    index: int
    donor: int
    settings: Mapping[str, str]


def decide(
    members: Sequence[Member], spaces: Sequence[Space], share: float, rng: np.random.Generator
) -> list[Copy]:
    """Returns who copies whom, by index.

    A member copies if it has no score, or is among the worst `share` of those that have one; the
    donor is drawn from the best `share` of these, and must have a higher score.

    Args:
        members: the population.
        spaces: the explored settings.
        share: at most 0.5; at least one member on each side.
        rng: random numbers.
    """
    scored = sorted((m for m in members if _score(m) > -math.inf), key=_score)
    count = max(1, math.floor(share * len(scored)))
    worst, best = scored[:count], scored[-count:]
    copies = []
    for member in members:
        may_copy = not member.is_over and (member in worst or member not in scored)
        donors = [donor for donor in best if _score(donor) > _score(member)]
        if may_copy and donors:
            donor = donors[int(rng.integers(len(donors)))]
            settings = {s.key: explored(donor.settings[s.key], s, rng) for s in spaces}
            copies.append(Copy(member.index, donor.index, settings))
    return copies


def explored(value: str, space: Space, rng: np.random.Generator) -> str:
    """Returns a setting near `value`, or one of the listed ones.

    Numbers are multiplied by one of `FACTORS` and stay between the lowest and the highest listed
    one; whole numbers stay whole, and change by 1 at least. Other values are kept or drawn anew.
    """
    numbers = [parsed_number(text) for text in space.values]
    number = parsed_number(value)
    finite = [listed for listed in numbers if listed is not None]
    if rng.random() < RESAMPLE:
        return space.values[int(rng.integers(len(space.values)))]
    factor = FACTORS[int(rng.integers(len(FACTORS)))]
    if number is None or len(finite) < len(numbers):
        return value
    moved = number * factor
    is_whole = all(isinstance(listed, int) for listed in finite)
    if is_whole and number == 0:  # no factor moves it
        moved = 1 if factor > 1 else -1
    elif is_whole:
        moved = math.ceil(moved) if moved > number else math.floor(moved)
    else:
        moved = float(f"{moved:.6g}")
    moved = min(max(moved, min(finite)), max(finite))
    return str(moved).removesuffix(".0")


def parsed_number(text: str) -> int | float | None:
    """Returns the number that a text stands for; None: it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else number


def _score(member: Member) -> float:
    """Returns a member's score; -inf if it has none."""
    return -math.inf if member.score is None or math.isnan(member.score) else member.score
