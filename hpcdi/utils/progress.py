"""Progress of a run on the terminal: one status line, and a line per evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from hpcdi.dataclass import dataclass
from hpcdi.utils.log import say
from hpcdi.utils.metrics import human_count, human_return, human_time

TERMINAL_EVERY_S = 0.5
SUCCESS = ("is_success", "success")
"""Names under which environments say at an episode's end whether its task was done."""
USUAL_PATIENCE = 10
"""Evaluations in a row that are no better, after which the callback early_stop ends a run."""
_INFINITE = float("inf")
_FAR_APART = 10.0


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: its returns, its policy, the env step at which it was made, its seconds.

    `figures` are means of what environments said of its episodes, by name; see `Episodes.figures`.
    """

    mean: float
    std: float
    lowest: float
    highest: float
    episodes: int
    policy_version: int
    env_steps: int
    took_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        scale = max(abs(self.lowest), abs(self.highest))
        mean, std = (human_return(value, scale) for value in (self.mean, self.std))
        are_apart = self.highest - self.lowest >= _FAR_APART
        lowest, highest = (
            _bound(value, scale, is_whole=are_apart) for value in (self.lowest, self.highest)
        )
        return (
            f"mean return {mean} ± {std} ({lowest} to {highest}, "
            f"{self.episodes} episodes){self._success()}, policy of "
            f"iteration {self.policy_version}, env step {human_count(self.env_steps)}"
        )

    def _success(self) -> str:
        rates = [self.figures[name] for name in SUCCESS if name in self.figures]
        return f", success {rates[0]:.0%}" if rates else ""


def best_of(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """The evaluation of the highest mean return, which NaN never is; None where there is none."""
    return max(evaluations, key=lambda one: (one.mean == one.mean, one.mean), default=None)


@dataclass(frozen=True)
class Status:
    """State of a run.

    Attributes:
        env_steps: environment steps so far, and per second.
        train_iter: train iterations so far, and per second.
        returns: of the last collected episodes.
        evaluation: mean return of the last evaluation; None before the first.
        parts: more texts for the line, before and after the returns.
        facts: more data for programs, by name.
    """

    env_steps: tuple[int, float]
    train_iter: tuple[int, float]
    returns: Sequence[float]
    evaluation: float | None
    parts: tuple[Sequence[str], Sequence[str]]
    facts: Mapping[str, Any] = field(default_factory=dict)


class StatusLine:
    """One moving line on a terminal; one plain line per interval in a log.

    Args:
        is_terminal: whether the output is a terminal.
        interval_s: seconds between plain lines.
        limits: environment steps and train iterations at which the run ends; may be infinite.
        started: time at which the run started, by the clock of `refresh`.
        evaluated_before: evaluations of earlier starts of the run.
    """

    def __init__(
        self,
        *,
        is_terminal: bool,
        interval_s: float,
        limits: tuple[float, float],
        started: float,
        evaluated_before: int = 0,
    ) -> None:
        self._is_terminal = is_terminal
        self._interval_s = TERMINAL_EVERY_S if is_terminal else interval_s
        self._limits = limits
        self._started = started
        self._shown = started
        self._evaluations_shown, self._evaluated_before = 0, evaluated_before

    def refresh(
        self, status: Callable[[], Status], evaluations: Sequence[Evaluation], now: float
    ) -> None:
        """Print the line if it is due, and a line for each new evaluation at once."""
        for evaluation in evaluations[self._evaluations_shown :]:
            self._evaluations_shown += 1
            clock = _clock(now - self._started)
            number = self._evaluated_before + self._evaluations_shown
            self.say(f"{clock} evaluation {number}: {evaluation}")
        if now - self._shown >= self._interval_s:
            self._shown = now
            self._write(self.text(status(), now))

    def text(self, status: Status, now: float) -> str:
        """Returns the line's text."""
        (env_steps, steps_per_s), (train_iter, iters_per_s) = status.env_steps, status.train_iter
        parts = [
            f"env {human_count(env_steps)} ({human_count(steps_per_s)}/s)",
            f"train {human_count(train_iter)} ({human_count(iters_per_s)}/s)",
            *status.parts[0],
        ]
        if status.returns:
            mean = sum(status.returns) / len(status.returns)
            parts.append(f"return {human_return(mean, max(map(abs, status.returns)))}")
        if status.evaluation is not None:
            parts.append(f"eval {human_return(status.evaluation)}")
        eta_s = min(
            _eta(self._limits[0], env_steps, steps_per_s),
            _eta(self._limits[1], train_iter, iters_per_s),
        )
        if eta_s < _INFINITE:
            parts.append(f"ETA {human_time(eta_s)}")
        return f"{_clock(now - self._started)} " + " | ".join([*parts, *status.parts[1]])

    def say(self, text: str) -> None:
        """Print a separate line above the moving one."""
        erase = "\r\x1b[K" if self._is_terminal else ""
        say(f"{erase}{text}")

    def _write(self, text: str) -> None:
        if self._is_terminal:
            say(f"\r\x1b[K{text}", end="")
        else:
            say(text)


def _bound(value: float, scale: float, *, is_whole: bool) -> str:
    """The lowest or highest of returns of this size: with the mean's decimals, or whole.

    Args:
        value: it.
        scale: of the returns.
        is_whole: they lie so far apart that decimals say nothing.
    """
    text = f"{value:.0f}" if is_whole or value % 1 == 0 else human_return(value, scale)
    return "0" if text == "-0" else text


def _eta(limit: float, count: float, per_s: float) -> float:
    if limit == _INFINITE or per_s <= 0:
        return _INFINITE
    return max(0.0, limit - count) / per_s


def _clock(elapsed_s: float) -> str:
    hours, rest = divmod(int(elapsed_s), 3600)
    return f"[{f'{hours}:' if hours else ''}{rest // 60:02d}:{rest % 60:02d}]"
