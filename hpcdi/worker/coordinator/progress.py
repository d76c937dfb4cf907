"""What a person sees while a run runs, and when it is over."""

from __future__ import annotations

from typing import Any

from hpcdi.utils.metrics import human_bytes, human_count, human_time
from hpcdi.utils.progress import Status, StatusLine
from hpcdi.worker.coordinator.records import RunRecord
from hpcdi.worker.coordinator.scheduler import Scheduler


class ProgressLine:
    """The line of a run over ranks; see `StatusLine` for the arguments."""

    def __init__(
        self, *, is_terminal: bool, interval_s: float, limits: tuple[float, float], started: float
    ) -> None:
        self._line = StatusLine(
            is_terminal=is_terminal, interval_s=interval_s, limits=limits, started=started
        )

    def refresh(self, scheduler: Scheduler, record: RunRecord, now: float) -> None:
        """Show the line if it is due; an evaluation gets a line of its own at once."""
        self._line.refresh(lambda: _status(scheduler, record), record.evaluations, now)

    def line(self, scheduler: Scheduler, record: RunRecord, now: float) -> str:
        """Text of the line."""
        return self._line.text(_status(scheduler, record), now)

    def say(self, text: str) -> None:
        """Print a line of its own, above the moving one."""
        self._line.say(text)


def _status(scheduler: Scheduler, record: RunRecord) -> Status:
    counters, desk, traffic = scheduler.counters, scheduler.desk, record.traffic
    before = [
        f"buffer {human_count(desk.count())}/{human_count(desk.capacity())}",
        f"staleness {record.staleness(scheduler)}",
    ]
    after = [] if scheduler.life.is_on else ["ending"]
    if scheduler.life.is_on and (blocked := desk.blocked):
        after.append(blocked)
    return Status(
        (counters.env_steps, traffic.env_steps.per_second()),
        (counters.train_iter, traffic.train_iters.per_second()),
        record.returns,
        record.evaluations[-1].mean if record.evaluations else None,
        (before, after),
    )


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
