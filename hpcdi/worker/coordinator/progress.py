"""What a person sees while a run runs, and when it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hpcdi.store.status import StatusFile
from hpcdi.utils.metrics import human_bytes, human_count, human_time
from hpcdi.utils.progress import Status, StatusLine
from hpcdi.worker.coordinator.records import RunRecord
from hpcdi.worker.coordinator.scheduler import Scheduler


class ProgressLine:
    """The line of a run over ranks; see `StatusLine` for the arguments.

    Args:
        file: is to say the same to programs, and to those who do not see the line.
    """

    def __init__(
        self,
        *,
        is_terminal: bool,
        interval_s: float,
        limits: tuple[float, float],
        started: float,
        file: StatusFile | None = None,
    ) -> None:
        self._line = StatusLine(
            is_terminal=is_terminal, interval_s=interval_s, limits=limits, started=started
        )
        self._file = file

    def refresh(self, scheduler: Scheduler, record: RunRecord, now: float) -> None:
        """Show the line if it is due; an evaluation gets a line of its own at once."""

        def status() -> Status:
            return _status(scheduler, record)

        self._line.refresh(status, record.evaluations, now)
        if self._file is not None:
            self._file.refresh(status, record.evaluations, now, at_once=scheduler.finished)

    def line(self, scheduler: Scheduler, record: RunRecord, now: float) -> str:
        """Text of the line."""
        return self._line.text(_status(scheduler, record), now)

    def say(self, text: str) -> None:
        """Print a line of its own, above the moving one."""
        self._line.say(text)


def _status(scheduler: Scheduler, record: RunRecord) -> Status:
    counters, replay, traffic = scheduler.counters, scheduler.replay, record.traffic
    before = [
        f"buffer {human_count(replay.count())}/{human_count(replay.capacity())}",
        f"staleness {record.staleness(scheduler)}",
    ]
    after = [] if scheduler.is_on else ["ending"]
    if scheduler.is_on and (blocked := replay.blocked):
        after.append(blocked)
    return Status(
        (counters.env_steps, traffic.env_steps.per_second()),
        (counters.train_iter, traffic.train_iters.per_second()),
        record.returns,
        record.evaluations[-1].mean if record.evaluations else None,
        (before, after),
        _facts(scheduler, record),
    )


def _facts(scheduler: Scheduler, record: RunRecord) -> dict[str, Any]:
    """What programs may want to know beside the line's numbers."""
    replay, outcome = scheduler.replay, scheduler.outcome
    facts: dict[str, Any] = {
        "phase": scheduler.phase.value,
        "episodes": scheduler.counters.episodes,
        "buffer": {
            "held": replay.count(),
            "capacity": replay.capacity(),
            "blocked": replay.blocked,
        },
        "staleness": record.staleness(scheduler),
        "idle": {
            rank: shares.get("wait", 0.0)
            for rank, shares in record.shares.items()
            if rank not in scheduler.workers.lost
        },
        "lost": dict(scheduler.workers.lost),
        "collectors": scheduler.collectors,
    }
    if outcome is not None and outcome.failure is not None:
        rank, failure = outcome.failure
        facts["error"] = {"rank": rank, **vars(failure)}
    return facts


def summary(
    scheduler: Scheduler, record: RunRecord, elapsed_s: float, own_report: dict[str, Any]
) -> list[str]:
    """Closing lines: what was done, how fast, and who waited."""
    counters, replay, traffic = scheduler.counters, scheduler.replay, record.traffic
    learnable = (
        f"; from a full block to learnable p50 {1e3 * traffic.latency.percentile(50):.0f} ms"
        if traffic.latency
        else ""
    )
    lines = [
        f"  {human_count(counters.env_steps)} env steps and {human_count(counters.train_iter)} "
        f"train iterations in {human_time(elapsed_s)}; {counters.episodes} episodes; "
        f"{replay.samples_drawn() / max(replay.items_admitted, 1):.2f} samples drawn per "
        "transition",
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
    if replay.blocks_lost:
        lines.append(f"  {_count(replay.blocks_lost, 'block')} could not be read; the log says why")
    if replay.blocks_skipped:
        lines.append(
            f"  {_count(replay.blocks_skipped, 'block')} skipped: they came faster than the "
            "learner reads them"
        )
    lines += _health(scheduler.workers.reports.values())
    for rank, report in {0: own_report, **scheduler.workers.reports}.items():
        lines.append(f"  rank {rank:<4} {_activity(report)}")
    return lines


def _health(reports: Iterable[dict[str, Any]]) -> list[str]:
    """What was wrong with environments and with the collectors' disk; nothing where nothing was."""
    told = Counter[str]()
    for report in reports:
        names = ("env_failures", "episodes_dropped", "envs_retired", "blocks_lost")
        told.update({name: int(report.get(name, 0)) for name in names})
    lines = []
    if told["env_failures"]:
        lines.append(
            f"  {_count(told['env_failures'], 'environment failure')}: "
            f"{_count(told['episodes_dropped'], 'unfinished episode')} dropped, "
            f"{_count(told['envs_retired'], 'environment')} retired"
        )
    if told["blocks_lost"]:
        lines.append(f"  {_count(told['blocks_lost'], 'block')} found no room on the disk")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _activity(report: dict[str, Any]) -> str:
    shares = sorted(report.get("shares", {}).items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
    return f"{report.get('role', '?'):<10} cpu {report.get('cpu', 0.0):4.0%}  {told}"
