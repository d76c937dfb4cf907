"""`hpcdi status`: the state of a run, by its folder and the queue, as lines for people or as JSON.

Nothing is asked of the run itself: it may be pending, hang, or be dead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdi.commands.logs import first_error, logs_of
from hpcdi.commands.options import make_parser
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_REQUEUE, LaunchError
from hpcdi.launch import run_folder, run_lock, slurm_queue
from hpcdi.launch.run_folder import short
from hpcdi.launch.slurm_queue import QueueJob
from hpcdi.store.atomic import clock_of, read_json
from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.metrics import human_count, human_time
from hpcdi.utils.progress import Evaluation

HELP = """\
Print the state of a run: pending, starting, running, done, failed, stopped or dead; its job, speed,
returns, last evaluation, idle ranks, newest snapshot, last error, and what to type next. It reads
the run folder and asks the queue, if there is one: no port, nothing of the run itself, so it works
from a login node, and when the run hangs or is gone.

  hpcdi status runs/cartpole_dqn/latest              a run, by its folder
  hpcdi status 123456                                by its Slurm job, also 123456_7 of an array
  hpcdi status runs/cartpole_dqn/latest --watch 5    repeat every 5 s until it is over
  hpcdi status runs/cartpole_dqn/latest --json       for a program

A run is dead if its run.json says running, but its process or job is gone, or it has been silent
for two minutes where neither can be seen.
"""
EXIT_CODES = """\
exit codes: 0 it is pending, starting, running or done; 1 it has failed, or is dead; 2 there is no
such run; 85, 130, 143 it was stopped (time limit or signal; Ctrl-C; a second SIGTERM)
"""
_TRACE_LINES = 6
_IDLE_NAMED = 3
_HOSTS_NAMED = 4
_COUNTED = (
    ("env_steps", "env_steps_per_s", "env steps"),
    ("train_iter", "train_iters_per_s", "train iterations"),
)
QUIET_S = 30.0
"""A run writes status.json every second; after so long without it, it may hang."""
GOES_WELL = ("pending", "starting", "running", "done")


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = make_parser("status", HELP, EXIT_CODES)
    parser.add_argument("run", metavar="RUN|JOB", help="run folder, or Slurm job id")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--watch", nargs="?", const=2.0, type=_seconds, metavar="SECONDS",
        help="repeat (default: every 2 s) until the run is over",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    run = find(given.run)
    clear = "\x1b[H\x1b[2J" if given.watch is not None and sys.stdout.isatty() else ""
    while True:
        found = status_of(run)
        text = json.dumps(data_of(found), indent=2) if given.json else "\n".join(lines_of(found))
        sys.stdout.write(f"{clear}{text}\n")
        sys.stdout.flush()
        if given.watch is None or found.is_over:
            return found.exit_code
        wait_s(given.watch)  # until the run is over, or Ctrl-C


def lines_of(status: RunStatus) -> list[str]:
    """Returns the state of a run as lines for people."""
    facts, progress = status.facts, status.progress
    lines = [_headline(status), _line("run folder", short(status.layout.root))]
    lines += _job(status)
    if progress:
        lines += [_line("progress", _progress(status)), *_returns(progress), *_waits(status)]
    lines += _collectors(status)
    if progress.get("lost"):
        gone = [f"rank {rank} ({role})" for rank, role in progress["lost"].items()]
        lines.append(_line("lost", f"{', '.join(gone)}: the run goes on without"))
    snapshot, now = status.snapshot, time.time()
    if snapshot is not None:
        age = human_time(max(0.0, now - snapshot.stat().st_mtime))
        lines.append(_line("snapshot", f"{snapshot.name}, {age} old"))
    if status.evidence.age_s is not None and not status.is_over:
        lines.append(_line("last status", f"{status.evidence.age_s:.1f} s ago"))
    if facts.get("restarts"):
        lines.append(_line("restarts", str(facts["restarts"])))
    lines += _error(status.error)
    return lines + [_line("next" if not i else "", step) for i, step in enumerate(steps(status))]


def data_of(status: RunStatus) -> dict[str, Any]:
    """Returns the state of a run as plain data, for programs."""
    job, snapshot = status.evidence.job, status.snapshot
    return {
        "run": str(status.layout.root),
        "exp_name": status.facts.get("exp_name"),
        "state": status.state,
        "why": status.why,
        "exit_code": status.facts.get("exit_code"),
        "job": vars(job) if job is not None else None,
        "time_left_s": _left_s(status),
        "ranks": len(status.facts.get("placement", [])),
        "hosts": list(_hosts(status.facts)),
        "restarts": int(status.facts.get("restarts", 0)),
        "age_s": status.evidence.age_s,
        "snapshot": str(snapshot) if snapshot is not None else None,
        "error": status.error or None,
        "progress": status.progress or None,
        "next": steps(status),
    }


def steps(status: RunStatus) -> list[str]:
    """Returns the commands to type next."""
    run = short(status.layout.root)
    if status.state == "pending":
        return [f"hpcdi status {run} --watch"]
    if not status.is_over:
        return [f"hpcdi tail {run} -f", f"tensorboard --logdir {run}"]
    if status.state == "done":
        return [f"hpcdi eval {run}"]
    look = [f"hpcdi tail {run}"] if status.state != "stopped" else []
    if not status.snapshot:
        return look
    return [*look, f"{_command(status)} --resume {run}"]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds < 0.1:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.1, not {text!r}")
    return seconds


def _headline(status: RunStatus) -> str:
    facts = status.facts
    hosts, ranks = _hosts(facts), len(facts.get("placement", []))
    name = facts.get("exp_name", status.layout.root.name)
    why = f"; {status.why}" if status.why else ""
    if not ranks:
        return f"{name}: {status.state}{why}"
    where = ", ".join(hosts) if len(hosts) <= _HOSTS_NAMED else f"{len(hosts)} hosts"
    return f"{name}, {ranks} rank{'s' * (ranks != 1)} on {where}: {status.state}{why}"


def _command(status: RunStatus) -> str:
    """Returns the command that starts such a run."""
    roles = [place.get("role") for place in status.facts.get("placement", [])]
    if roles == ["serial"]:
        return "hpcdi serial"
    return "hpcdi submit" if status.layout.submit_file.exists() else "hpcdi train"


def _hosts(facts: dict[str, Any]) -> Counter[str]:
    return Counter(str(place.get("host")) for place in facts.get("placement", []))


def _job(status: RunStatus) -> list[str]:
    job, left_s = status.evidence.job, _left_s(status)
    left = f"{human_time(left_s)} left" if left_s is not None and not status.is_over else ""
    if job is None:
        known = status.progress.get("job", {}).get("SLURM_JOB_ID", "")
        return [_line("job", ", ".join(filter(None, [known, left])))] if known or left else []
    reason = f" ({job.reason})" if job.reason else ""
    nodes = f"on {job.nodes}" if job.nodes else ""
    restarts = f"requeued {job.restarts} times by Slurm" if job.restarts else ""
    parts = [f"{job.job_id} {job.state}{reason}", nodes, left, restarts]
    return [_line("job", ", ".join(filter(None, parts)))]


def _left_s(status: RunStatus) -> float | None:
    """Returns the seconds until the queue ends the job; None: unknown, or it is over."""
    job = status.evidence.job
    ends_at = job.ends_at if job is not None and job.is_on else None
    if ends_at is None:
        said = status.progress.get("job", {}).get("SLURM_JOB_END_TIME", "")
        ends_at = float(said) if said.isdigit() and int(said) else None
    return max(0.0, ends_at - time.time()) if ends_at is not None and not status.is_over else None


def _progress(status: RunStatus) -> str:
    progress, limits = status.progress, status.progress.get("limits", {})
    counts, etas = [], []
    for name, per_s_name, what in _COUNTED:
        count, per_s, limit = progress[name], progress[per_s_name], limits.get(name)
        of = f" of {human_count(limit)}" if limit is not None else ""
        speed = f" ({human_count(per_s)}/s)" if not status.is_over else ""
        counts.append(f"{human_count(count)}{of} {what}{speed}")
        if limit is not None and per_s > 0:
            etas.append(max(0.0, limit - count) / per_s)
    lasted = f"in {human_time(progress['written_at'] - progress['started_at'])}"
    eta = f"; at most {human_time(min(etas))} to go" if etas and not status.is_over else ""
    return f"{', '.join(counts)} {lasted}{eta}"


def _returns(progress: dict[str, Any]) -> list[str]:
    lines = []
    mean, stop = progress.get("return_mean"), progress.get("limits", {}).get("stop_value")
    goal = f", stop value {stop:g}" if stop is not None else ""
    if mean is not None:
        lines.append(_line("returns", f"mean {mean:.1f} of the last episodes{goal}"))
    if progress.get("evaluation"):
        last, best = progress["evaluation"], progress["best_evaluation"]
        text = f"{progress['evaluations']}: {Evaluation(**last)}"
        lines.append(_line("evaluation", text))
        if best != last:
            lines.append(_line("", f"best: {Evaluation(**best)}"))
    return lines


def _waits(status: RunStatus) -> list[str]:
    """Returns lines about the replay buffer, staleness and idle ranks."""
    progress, lines = status.progress, []
    buffer = progress.get("buffer")
    if buffer:
        text = f"{human_count(buffer['held'])} of {human_count(buffer['capacity'])}"
        if "staleness" in progress and not status.is_over:
            text += f"; oldest policy {progress['staleness']} iterations behind"
        if buffer["blocked"] and not status.is_over:
            text += f"; {buffer['blocked']}"
        lines.append(_line("buffer", text))
    roles = {str(p.get("rank")): p.get("role") for p in status.facts.get("placement", [])}
    idle: dict[str, dict[str, float]] = {}
    for rank, share in progress.get("idle", {}).items():
        idle.setdefault(str(roles.get(rank, "rank")), {})[rank] = share
    parts = [_idle(role, shares) for role, shares in sorted(idle.items())]
    return [*lines, _line("idle", "; ".join(parts))] if parts else lines


def _collectors(status: RunStatus) -> list[str]:
    """Returns a line about the collectors, unless all work."""
    ranks = sum(place.get("role") == "collector" for place in status.facts.get("placement", []))
    seen = status.progress.get("collectors")
    if seen is None or status.is_over or seen["working"] == ranks:
        return []
    waiting = seen["there"] - seen["working"]
    parts = [f"{seen['working']} of {ranks} work"]
    if waiting:
        parts.append(f"{waiting} wait{'s' * (waiting == 1)} until wanted")
    return [_line("collectors", ", ".join(parts))]


def _idle(role: str, shares: dict[str, float]) -> str:
    """Returns the ranks of a role that wait most, and their share of idle time."""
    most = sorted(shares, key=lambda rank: -shares[rank])[:_IDLE_NAMED]
    named = ", ".join(f"rank {rank} {shares[rank]:.0%}" for rank in most)
    if len(shares) <= _IDLE_NAMED:
        return f"{role} {named}"
    return f"{len(shares)} {role}s {statistics.median(shares.values()):.0%} (most {named})"


def _error(error: dict[str, Any]) -> list[str]:
    if not error:
        return []
    who = f"rank {error['rank']} ({error['role']}, host {error['host']})"
    trace = str(error.get("traceback") or "").splitlines()
    cut = ["    ..."] if len(trace) > _TRACE_LINES else []
    shown = [f"    {line}" for line in trace[-_TRACE_LINES:]]
    return [_line("error", f"{who}: {error['error']}"), *cut, *shown]


def _line(name: str, text: str | Path) -> str:
    return f"  {name:<12} {text}"


# -------------------------------------------------------------------------------- judging the state


@dataclass(frozen=True)
class Evidence:
    """Signs of life of a run, beside what its own files say.

    Attributes:
        age_s: seconds since it last wrote its status, by the file system's clock; None: never.
        beat_s: seconds since its process touched the lock; None: there is no lock.
        is_process: whether that process exists; None: it is on another host.
        job: its job in the queue; None: it has none, or the queue does not answer.
    """

    age_s: float | None = None
    beat_s: float | None = None
    is_process: bool | None = None
    job: QueueJob | None = None


@dataclass(frozen=True)
class RunStatus:
    """The state of a run.

    Attributes:
        layout: its folder.
        state: "pending", "starting", "running", "done", "failed", "stopped" or "dead".
        why: the reason for that state, or how the run ended.
        facts: run.json; empty before the run's first start.
        progress: status.json; empty before rank 0 has written it.
        evidence: see there.
        error: the last one: ``rank``, ``role``, ``host``, ``error``, ``traceback``.
    """

    layout: RunLayout
    state: str
    why: str
    facts: dict[str, Any]
    progress: dict[str, Any]
    evidence: Evidence
    error: dict[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended: it will not continue by itself."""
        return self.state not in ("pending", "starting", "running")

    @property
    def exit_code(self) -> int:
        """0 for a run that is well, 1 for a dead one, else the run's own exit code."""
        if self.state in GOES_WELL:
            return EXIT_DONE
        return int(self.facts.get("exit_code", EXIT_FAILED)) if self.state != "dead" else 1

    @property
    def snapshot(self) -> Path | None:
        """The newest snapshot of the run."""
        from hpcdi.store.checkpoints import names

        there = names(self.layout.snapshots_dir)
        return self.layout.snapshots_dir / there[-1] if there else None


def find(name: str) -> Path:
    """Returns the run folder that a name stands for.

    Args:
        name: a folder, or a job's number: its run lies below ``runs`` here or where the job was
            submitted.

    Raises:
        LaunchError: there is none.
    """
    path = Path(name)
    if path.is_dir():
        return path.resolve()
    if not slurm_queue.is_job_id(name):
        raise LaunchError(f"there is no {name}; name a run folder, or a Slurm job's number")
    job = slurm_queue.ask(name)
    places = [Path.cwd()] + ([Path(job.folder)] if job is not None and job.folder else [])
    places = list(dict.fromkeys(places))
    for run in [*_printed_by(job), *(run for place in places for run in _runs_below(place))]:
        layout = RunLayout(run)
        files = (layout.run_file, layout.status_file, layout.submit_file)
        if job_of(*map(read_json, files)) == name:
            return layout.root.resolve()
    known = f"Slurm says {job.state} {job.reason}" if job is not None else "no queue knows it"
    searched = " and ".join(str(place / "runs") for place in places)
    raise LaunchError(f"no run in {searched} belongs to job {name}; {known}. Name the run folder")


def _printed_by(job: QueueJob | None) -> list[Path]:
    """Returns run folders that a job may belong to, by its output file."""
    if job is None or not job.output:
        return []
    above = Path(job.output).parent.parent  # of RUN/submit/slurm-12.out, SWEEP/output/...
    return [above, *sorted(above.glob("[0-9]*"))]


def _runs_below(place: Path) -> list[Path]:
    """Returns run folders in the default place, the newest first."""
    begun = [*place.glob("runs/*/*/run.json"), *place.glob("runs/*/sweeps/*/*/run.json")]
    waiting = [file.parent for file in place.glob("runs/*/*/submit/submit.json")]
    return sorted({file.parent for file in [*begun, *waiting]}, key=os.path.getmtime, reverse=True)


def status_of(run: Path, ask: Callable[[str], QueueJob | None] = slurm_queue.ask) -> RunStatus:
    """Returns the state of the run in a folder.

    Args:
        run: the folder.
        ask: returns a job of the queue.

    Raises:
        LaunchError: it holds no run.
    """
    layout = RunLayout(run.absolute())
    facts = run_folder.read(run)
    found = _status(layout, facts, ask)
    if found.state == "dead" and facts != (later := run_folder.read(run)):
        return _status(layout, later, ask)  # it has ended in between
    return found


def _status(
    layout: RunLayout, facts: dict[str, Any], ask: Callable[[str], QueueJob | None]
) -> RunStatus:
    progress, holder = _read_progress(layout, facts), run_lock.holder_of(layout)
    job_id = job_of(facts, progress, read_json(layout.submit_file))
    if not facts and not job_id:
        raise LaunchError(f"{layout.root} holds no run: there is no {layout.run_file.name} in it")
    evidence = Evidence(
        _age_s(layout.status_file, layout.run_file),
        _age_s(layout.lock_file),
        holder.is_there() if holder is not None else None,
        ask(job_id) if job_id else None,
    )
    state, why = judge(facts, progress, evidence)
    error = _last_error(layout, state, facts, progress)
    return RunStatus(layout, state, why, facts, progress, evidence, error)


def judge(facts: dict[str, Any], progress: dict[str, Any], evidence: Evidence) -> tuple[str, str]:
    """Returns the state of a run, and the reason for it.

    Args:
        facts: run.json.
        progress: status.json.
        evidence: its signs of life.
    """
    job, said = evidence.job, str(facts.get("state", ""))
    job_said = "" if job is None else f"job {job.job_id} is {job.state}"
    job_said += f" ({job.reason})" if job is not None and job.reason else ""
    if said in ("done", "failed", "stopped"):
        is_to_go_on = said == "stopped" and facts.get("exit_code") == EXIT_REQUEUE
        if job is not None and is_to_go_on and job.waits:
            return "pending", f"{job_said}; it will resume from its snapshot"
        return said, str(facts.get("reason", ""))
    if job is not None and job.waits:
        again = "; it will resume from its newest snapshot" if facts else ""
        return "pending", job_said + again
    if not facts:
        if job is not None and job.is_on:
            return "starting", job_said
        return "dead", f"it never began: {job_said or 'no queue knows its job'}"
    return _judge_running(progress, evidence, job_said, facts)


def _judge_running(
    progress: dict[str, Any], evidence: Evidence, job_said: str, facts: dict[str, Any]
) -> tuple[str, str]:
    """Returns the state of a run whose run.json says running."""
    age_s, beat_s, job = evidence.age_s, evidence.beat_s, evidence.job
    last = "it never wrote its status" if age_s is None else f"its last status is {age_s:.0f} s old"
    where = f"process {facts.get('pid')} on {facts.get('host')}"
    if (
        evidence.is_process is False or beat_s is None
    ):  # a run that ends in order says so, then unlocks
        return "dead", f"{where} is gone; {last}"
    if evidence.is_process is None:
        if job is not None and not job.is_on:
            return "dead", f"{job_said}; {last}"
        if job is None and beat_s > run_lock.SILENT_S:
            return "dead", f"{where} has given no sign of life for {beat_s:.0f} s; {last}"
    alive = "starting" if progress.get("phase", "starting") == "starting" else "running"
    if age_s is not None and age_s > QUIET_S:
        return alive, f"{last}: does it hang?"
    return alive, ""


def job_of(
    facts: dict[str, Any], progress: dict[str, Any], submitted: dict[str, Any] | None = None
) -> str:
    """Returns the job id of a run; empty if it has none.

    Args:
        facts: run.json.
        progress: status.json.
        submitted: submit.json, written by `hpcdi submit`; all there is before the first start.
    """
    for held in (progress.get("job", {}), facts.get("slurm", {}), (submitted or {}).get("job", {})):
        array, index = held.get("SLURM_ARRAY_JOB_ID"), held.get("SLURM_ARRAY_TASK_ID")
        if array and index:
            return f"{array}_{index}"
        if held.get("SLURM_JOB_ID"):
            return str(held["SLURM_JOB_ID"])
    return ""


def _read_progress(layout: RunLayout, facts: dict[str, Any]) -> dict[str, Any]:
    """Returns status.json; with the final counts, if the run has ended."""
    progress, figures = read_json(layout.status_file), facts.get("figures", {})
    if not progress:
        return {}
    if facts.get("state") == "running" and progress.get("pid") != facts.get("pid"):
        earlier = {"phase": "starting", "env_steps_per_s": 0.0, "train_iters_per_s": 0.0}
        return {**progress, **earlier, "error": None}  # the run was started again since
    counts = {name: figures[name] for name in ("env_steps", "train_iter") if name in figures}
    return {**progress, **counts}


def _age_s(*paths: Path) -> float | None:
    """Returns the seconds since the newest of some files was written; None: none exists."""
    stamps = [path.stat().st_mtime for path in paths if path.exists()]
    if not stamps:
        return None
    try:
        now = clock_of(paths[0].parent)
    except OSError:  # another user's run; clocks of hosts are never far apart
        now = time.time()
    return max(0.0, now - max(stamps))


def _last_error(
    layout: RunLayout, state: str, facts: dict[str, Any], progress: dict[str, Any]
) -> dict[str, Any]:
    """Returns the error that ended the run, or the last one that rank 0 has reported."""
    last = progress.get("error")
    if isinstance(last, dict):
        return {name: last.get(name) for name in ("rank", "role", "host", "error", "traceback")}
    if state not in ("failed", "dead"):
        return {}
    found = first_error(logs_of(layout.root / "log"), int(facts.get("restarts", 0)))
    if found is None:
        return {}
    raised = found.traceback.splitlines()[-1:] or [str(found.entry.get("message", ""))]
    return {
        "rank": found.rank,
        "role": found.entry.get("role"),
        "host": found.entry.get("host"),
        "error": raised[0],
        "traceback": found.traceback,
    }
