"""What a person sees while a run runs, and when it is over."""

from __future__ import annotations

import sys
from typing import Any

from hpcdi.utils.metrics import human_bytes, human_count, human_time
from hpcdi.worker.coordinator.records import RunRecord
from hpcdi.worker.coordinator.scheduler import Scheduler

TERMINAL_EVERY_S = 0.5


class ProgressLine:
    """One line that moves on a terminal; one plain line per interval in a log.

    Args:
        is_terminal: whether a person is looking.
        interval_s: seconds between plain lines.
        limits: environment steps and train iterations at which the run ends; may be infinite.
        started: when the run started.
    """

    def __init__(
        self, *, is_terminal: bool, interval_s: float, limits: tuple[float, float], started: float
    ) -> None:
        self._is_terminal = is_terminal
        self._interval_s = TERMINAL_EVERY_S if is_terminal else interval_s
        self._limits = limits
        self._started = started
        self._shown = started
        self._evaluations_shown = 0

    def refresh(self, scheduler: Scheduler, record: RunRecord, now: float) -> None:
        """Show the line if it is due; an evaluation gets a line of its own at once."""
        for evaluation in record.evaluations[self._evaluations_shown :]:
            self._evaluations_shown += 1
            self.say(
                f"{_clock(now - self._started)} evaluation {self._evaluations_shown}: mean return "
                f"{evaluation.mean:.1f} ± {evaluation.std:.1f} ({evaluation.lowest:.0f} to "
                f"{evaluation.highest:.0f}, {evaluation.episodes} episodes), policy of iteration "
                f"{evaluation.policy_version}, env step {human_count(evaluation.env_steps)}"
            )
        if now - self._shown >= self._interval_s:
            self._shown = now
            self._write(self.line(scheduler, record, now))

    def line(self, scheduler: Scheduler, record: RunRecord, now: float) -> str:
        """Text of the line."""
        counters, desk, traffic = scheduler.counters, scheduler.desk, record.traffic
        steps_per_s, iters_per_s = traffic.env_steps.per_second(), traffic.train_iters.per_second()
        parts = [
            f"env {human_count(counters.env_steps)} ({human_count(steps_per_s)}/s)",
            f"train {human_count(counters.train_iter)} ({human_count(iters_per_s)}/s)",
            f"buffer {human_count(desk.count())}/{human_count(desk.capacity())}",
            f"staleness {record.staleness(scheduler)}",
        ]
        returns = record.returns
        if returns:
            parts.append(f"return {sum(returns) / len(returns):.1f}")
        if record.evaluations:
            parts.append(f"eval {record.evaluations[-1].mean:.1f}")
        eta_s = min(
            _eta(self._limits[0], counters.env_steps, steps_per_s),
            _eta(self._limits[1], counters.train_iter, iters_per_s),
        )
        if eta_s < float("inf"):
            parts.append(f"ETA {human_time(eta_s)}")
        if not scheduler.life.is_on:
            parts.append("ending")
        elif blocked := desk.blocked:
            parts.append(blocked)
        return f"{_clock(now - self._started)} " + " | ".join(parts)

    def say(self, text: str) -> None:
        """Print a line of its own, above the moving one."""
        erase = "\r\x1b[K" if self._is_terminal else ""
        sys.stdout.write(f"{erase}{text}\n")
        sys.stdout.flush()

    def _write(self, text: str) -> None:
        sys.stdout.write(f"\r\x1b[K{text}" if self._is_terminal else f"{text}\n")
        sys.stdout.flush()


def summary(
    scheduler: Scheduler, record: RunRecord, elapsed_s: float, own_report: dict[str, Any]
) -> list[str]:
    """Closing lines: what was done, how fast, and who waited."""
    counters, desk, traffic = scheduler.counters, scheduler.desk, record.traffic
    learnable = (
        f"; from a full block to learnable p50 {1e3 * traffic.latency.percentile(50):.0f} ms"
        if traffic.latency
        else ""
    )
    lines = [
        f"  {human_count(counters.env_steps)} env steps and {human_count(counters.train_iter)} "
        f"train iterations in {human_time(elapsed_s)}; {counters.episodes} episodes; "
        f"{desk.samples_drawn() / max(desk.items_admitted, 1):.2f} samples drawn per transition",
        f"  data: {_count(traffic.blocks, 'shard')}, {human_bytes(traffic.data_bytes)}{learnable}",
    ]
    if counters.train_iter == 0:
        lines.append("  nothing was learnt: the run ended before the first train iteration")
    if record.evaluations:
        best = max(record.evaluations, key=lambda evaluation: evaluation.mean)
        lines.append(
            f"  best evaluation: mean return {best.mean:.1f} at env step "
            f"{human_count(best.env_steps)}, policy of iteration {best.policy_version}"
        )
    if desk.blocks_lost:
        lines.append(f"  {_count(desk.blocks_lost, 'block')} could not be read; the log says why")
    if desk.blocks_skipped:
        lines.append(
            f"  {_count(desk.blocks_skipped, 'block')} skipped: they came faster than the learner "
            "reads them"
        )
    for rank, report in {0: own_report, **scheduler.life.reports}.items():
        lines.append(f"  rank {rank:<4} {_activity(report)}")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _activity(report: dict[str, Any]) -> str:
    shares = sorted(report.get("shares", {}).items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
    return f"{report.get('role', '?'):<10} cpu {report.get('cpu', 0.0):4.0%}  {told}"


def _eta(limit: float, count: float, per_s: float) -> float:
    if limit == float("inf") or per_s <= 0:
        return float("inf")
    return max(0.0, limit - count) / per_s


def _clock(elapsed_s: float) -> str:
    whole = int(elapsed_s)
    hours, rest = divmod(whole, 3600)
    return (
        f"[{hours}:{rest // 60:02d}:{rest % 60:02d}]"
        if hours
        else f"[{rest // 60:02d}:{rest % 60:02d}]"
    )
