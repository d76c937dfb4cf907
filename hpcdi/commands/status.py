"""`hpcdi status`: the state of a run, by its folder and the queue, as lines for people or as JSON.

Nothing is asked of the run itself: it may be pending, hang, or be dead.
"""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdi.commands.options import add_run, make_parser, seconds_from
from hpcdi.commands.run_state import SWEEP_FILE, RunStatus, find_run, settings_of, status_of
from hpcdi.errors import LaunchError
from hpcdi.run import run_folder
from hpcdi.run.environment import slurm_job_of
from hpcdi.run.job_end import END_VARIABLE
from hpcdi.run.run_folder import short
from hpcdi.run.slurm_queue import texts_of
from hpcdi.store.atomic import read_json
from hpcdi.store.checkpoints import MANIFEST
from hpcdi.store.layout import RunLayout
from hpcdi.types import is_guest
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.console import escaped
from hpcdi.utils.curves import read_curves
from hpcdi.utils.metrics import counted, human_bytes, human_count, human_return, human_time
from hpcdi.utils.progress import Evaluation
from hpcdi.utils.sparkline import sparkline

HELP = """\
Print the state of a run: pending, starting, running, done, failed, stopped or dead; its job, speed,
returns, last evaluation, idle ranks, newest snapshot, last error, and what to type next. It reads
the run folder and asks the queue, if there is one: no port, nothing of the run itself, so it works
from a login node, and when the run hangs or is gone.

  hpcdi status runs/cartpole_dqn/latest              a run, by its folder
  hpcdi status 123456                                by its Slurm job, also 123456_7 of an array
  hpcdi status runs/cartpole_dqn/latest --watch 5    repeat every 5 s until its end, with curves
  hpcdi status runs/cartpole_dqn/latest --json       for a program

A run is dead if its run.json says running, but its process or job is gone, or it has been silent
for a minute where neither can be seen.
"""
EXIT_CODES = """\
exit codes: 0 it is pending, starting, running or done; 1 it has failed, or is dead; 2 there is no
such run; 85, 130, 143 it was stopped (time limit or signal; Ctrl-C; a second SIGTERM)
"""
_RETURN = re.compile(
    r"curves/(evaluation|collect)_return(/.*)?|(.*_)?(evaluator|collector)_step/reward_mean"
)
_TRACE_LINES = 6
_IDLE_NAMED = 3
_HOSTS_NAMED = 4
_FIGURES_SHOWN = 6
_COUNTED = (
    ("env_steps", "env_steps_per_s", "env steps"),
    ("train_iter", "train_iters_per_s", "train iterations"),
)


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = make_parser("status", HELP, EXIT_CODES)
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--watch",
        nargs="?",
        const=2.0,
        type=seconds_from(0.1),
        metavar="SECONDS",
        help="repeat (default: every 2 s) until the run is over",
    )
    options = parser.parse_args(arguments)
    run = find_run(options.run)
    clear = "\x1b[H\x1b[2J" if options.watch is not None and sys.stdout.isatty() else ""
    while True:
        status = status_of(run)
        if options.json:
            lines = [json.dumps(data_of(status), indent=2)]
        else:
            lines = lines_of(status)
            lines[1:1] = curves_of(status.layout) if options.watch is not None else []
        text = "\n".join(lines if options.json else map(escaped, lines))
        sys.stdout.write(f"{clear}{text}\n")
        sys.stdout.flush()
        if options.watch is None or status.is_over:
            return status.exit_code
        wait_s(options.watch)  # until the run is over, or Ctrl-C


def lines_of(status: RunStatus) -> list[str]:
    """Returns the state of a run as lines for people."""
    facts = status.facts
    lines = [_headline(status), _line("run folder", short(status.layout.root))]
    lines += _job(status)
    try:
        lines += _counts(status)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        lines.append(_line("progress", f"{status.layout.status_file.name} is damaged: {error!r}"))
    snapshot, now = status.snapshot, time.time()
    if snapshot is not None:
        age = human_time(max(0.0, now - saved_at(snapshot)))
        lines.append(_line("snapshot", f"{snapshot.name}, {age} old"))
    if status.signs.age_s is not None and not status.is_over:
        lines.append(_line("last status", f"{status.signs.age_s:.1f} s ago"))
    if facts.get("restarts"):
        lines.append(_line("restarts", str(facts["restarts"])))
    if status.damage:
        lines.append(_line("damaged", f"{status.layout.run_file.name} {status.damage}"))
    lines += _error(status.error)
    return lines + [_line("next" if not i else "", step) for i, step in enumerate(steps(status))]


def saved_at(snapshot: Path) -> float:
    """Returns when a snapshot was taken, in seconds since the epoch; a copy has another mtime."""
    facts = read_json(snapshot / MANIFEST).get("facts")
    at = facts.get("saved_at") if isinstance(facts, dict) else None
    return at if isinstance(at, float) else snapshot.stat().st_mtime


def curves_of(layout: RunLayout) -> list[str]:
    """Returns lines with the curves of a run's return, of evaluating and of collecting."""
    curves, lines = read_curves(layout.curve_files()), []
    for name in sorted(name for name in curves if _RETURN.fullmatch(name)):
        values = [point.value for point in curves[name]]
        what = name.removeprefix("curves/").replace("_return", "")
        lines.append(_line("return", f"{sparkline(values)} {values[-1]:.4g}, {what}"))
    return lines


def _counts(status: RunStatus) -> list[str]:
    """Returns lines about what status.json says."""
    progress, lines = status.progress, []
    if progress:
        lines += [_line("progress", _progress(status)), *_returns(progress), *_waits(status)]
    lines += [*_players(progress), *_memory(progress), *_collectors(status), *_guests(status)]
    lines += [_line("advice", text) for text in progress.get("advice", [])]
    if progress.get("lost"):
        gone = [f"rank {rank} ({role})" for rank, role in progress["lost"].items()]
        goes_on = "" if status.is_over else ": the run goes on"
        lines.append(_line("lost", f"{', '.join(gone)}{goes_on}"))
    return lines


def data_of(status: RunStatus) -> dict[str, Any]:
    """Returns the state of a run as plain data, for programs."""
    job, snapshot = status.signs.job, status.snapshot
    return {
        "run": str(status.layout.root),
        "exp_name": status.facts.get("exp_name"),
        "state": status.state,
        "why": status.why,
        "exit_code": status.facts.get("exit_code"),
        "job": vars(job) if job is not None else None,
        "time_left_s": _left_s(status),
        "ranks": len(status.facts.get("placement", [])),
        "hosts": _hosts(status),
        "restarts": int(status.facts.get("restarts", 0)),
        "age_s": status.signs.age_s,
        "snapshot": str(snapshot) if snapshot is not None else None,
        "error": status.error or None,
        "progress": status.progress or None,
        "next": steps(status),
    }


def steps(status: RunStatus) -> list[str]:
    """Returns the commands to type next."""
    run = short(status.layout.root)
    job = status.signs.job
    if job is not None and job.is_held:
        output = [f"less {short(status.job_output)}"] if status.job_output is not None else []
        return [*output, f"scontrol release {job.job_id}"]
    if status.state == "pending":
        return [f"hpcdi status {run} --watch"]
    if not status.is_over:
        return [f"hpcdi tail {run} -f", f"tensorboard --logdir {run}"]
    if status.state == "done":
        has_own_ranks = settings_of(status.layout).get("env.type") == "mpi"  # eval has none
        return [f"hpcdi {'curves' if has_own_ranks else 'eval'} {run}"]
    look = [f"hpcdi tail {run}"] if status.facts and status.state != "stopped" else []
    if status.state != "stopped" and status.job_output is not None:
        look.append(f"less {short(status.job_output)}")
    if not status.snapshot:
        return look
    return [*look, _to_resume(status)]


def _headline(status: RunStatus) -> str:
    facts = status.facts
    hosts, ranks = _hosts(status), len(facts.get("placement", []))
    name = facts.get("exp_name", status.layout.root.name)
    size = f", {counted(ranks, 'rank')}" if ranks else ""
    where = f" on {', '.join(hosts) if len(hosts) <= _HOSTS_NAMED else f'{len(hosts)} hosts'}"
    why = f"; {status.why}" if status.why else ""
    return f"{name}{size}{where if hosts else ''}: {status.state}{why}"


def _to_resume(status: RunStatus) -> str:
    """Returns the command that resumes a run, or the sweep of which it is one.

    A search does not resume a trial that is over for it: pruned, or failed.
    """
    above = status.layout.root.parent
    if (above / SWEEP_FILE).exists():
        from hpcdi.commands.sweep.runs import RUNNING, read

        with contextlib.suppress(LaunchError):  # it is damaged
            sweep = read(above)
            trials = sweep.elements if sweep.search is not None else ()
            over = {sweep.name_of(trial.index) for trial in trials if trial.state != RUNNING}
            if status.layout.root.name not in over:
                return sweep.command_to_resume
    return f"{_command(status)} --resume {short(status.layout.root)}"


def _command(status: RunStatus) -> str:
    """Returns the command that starts such a run."""
    roles = [place.get("role") for place in status.facts.get("placement", [])]
    if roles == ["serial"]:
        return "hpcdi serial"
    return "hpcdi submit" if status.layout.submit_file.exists() else "hpcdi train"


def _hosts(status: RunStatus) -> list[str]:
    return list(dict.fromkeys(str(place.get("host")) for place in status.placement))


def _job(status: RunStatus) -> list[str]:
    job, left_s = status.signs.job, _left_s(status)
    time_left = f"{human_time(left_s)} left" if left_s is not None and not status.is_over else ""
    if job is None:
        job_id = slurm_job_of(texts_of(status.facts.get("slurm")))
        return (
            [_line("job", ", ".join(filter(None, [job_id, time_left])))]
            if job_id or time_left
            else []
        )
    reason = f" ({job.reason})" if job.reason else ""
    nodes = f"on {job.nodes}" if job.nodes else ""
    restarts = f"requeued {counted(job.restarts, 'time')} by Slurm" if job.restarts else ""
    parts = [f"{job.job_id} {job.state}{reason}", nodes, time_left, restarts]
    lines = [_line("job", ", ".join(filter(None, parts)))]
    if status.is_over and status.state != "done" and status.job_output is not None:
        lines.append(_line("output", short(status.job_output)))
    return lines


def _left_s(status: RunStatus) -> float | None:
    """Returns the seconds until the queue ends the job; None: unknown, or it is over."""
    job = status.signs.job
    ends_at = job.ends_at if job is not None and job.is_on else None
    if ends_at is None:
        end_time = texts_of(status.facts.get("slurm")).get(END_VARIABLE, "")
        ends_at = float(end_time) if end_time.isdigit() and int(end_time) else None
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
    lasted = f"in {human_time(run_folder.spent(status.facts, progress)['elapsed_s'])}"
    eta = f"; at most {human_time(min(etas))} to go" if etas and not status.is_over else ""
    return f"{', '.join(counts)} {lasted}{eta}"


def _returns(progress: dict[str, Any]) -> list[str]:
    lines = []
    mean, stop = progress.get("return_mean"), progress.get("limits", {}).get("stop_value")
    goal = f", stop value {stop:g}" if stop is not None else ""
    if mean is not None:
        lines.append(_line("returns", f"mean {human_return(mean)} of the last episodes{goal}"))
    figures = [(n, v) for n, v in progress.get("figures", {}).items() if isinstance(v, float)]
    if figures:
        shown = ", ".join(f"{name} {value:.3g}" for name, value in figures[:_FIGURES_SHOWN])
        more = f" and {len(figures) - _FIGURES_SHOWN} more" if figures[_FIGURES_SHOWN:] else ""
        lines.append(_line("figures", f"{shown}{more}, means of the last episodes"))
    if last := progress.get("evaluation"):
        best = progress.get("best_evaluation", last)
        text = f"{progress['evaluations']}: {Evaluation(**last)}"
        lines.append(_line("evaluation", text))
        if best != last:
            lines.append(_line("", f"best: {Evaluation(**best)}"))
    return lines


def _players(progress: dict[str, Any]) -> list[str]:
    """Returns a line about each player that learns beside the main one."""
    lines = []
    for name, player in progress.get("players", {}).items():
        parts = [
            f"{human_count(player['env_steps'])} env steps",
            f"{human_count(player['train_iter'])} train iterations",
        ]
        if player["return_mean"] is not None:
            parts.append(f"mean return {human_return(player['return_mean'])}")
        ranks = ", ".join(map(str, player["learners"]))
        parts.append(f"learns on rank {ranks}" if ranks else "has no learner any more")
        lines.append(_line(name, ", ".join(parts)))
    return lines


def _waits(status: RunStatus) -> list[str]:
    """Returns lines about the replay buffer, staleness and idle ranks."""
    progress, lines = status.progress, []
    buffer = progress.get("buffer")
    if buffer:
        text = f"{human_count(buffer['held'])} of {human_count(buffer['capacity'])}"
        if "staleness" in progress and not status.is_over:
            text += f"; oldest policy {counted(progress['staleness'], 'iteration')} behind"
        if buffer["blocked"] and not status.is_over:
            text += f"; {buffer['blocked']}"
        lines.append(_line("buffer", text))
    roles = {str(p.get("rank")): p.get("role") for p in status.facts.get("placement", [])}
    idle: dict[str, dict[str, float]] = {}
    for rank, share in progress.get("idle", {}).items():
        role = roles.get(rank, "guest" if is_guest(int(rank)) else "")
        idle.setdefault(str(role), {})[rank] = share
    parts = [_idle(role, shares) for role, shares in sorted(idle.items())]
    return [*lines, _line("idle", "; ".join(parts))] if parts else lines


def _memory(progress: dict[str, Any]) -> list[str]:
    """Returns a line about the memory of environments; none where nothing is known of it."""
    ranks: dict[str, dict[str, float]] = progress.get("env_memory", {})
    if not ranks:
        return []
    name, most = max(ranks.items(), key=lambda item: (item[1]["bytes_a_step"], item[1]["bytes"]))
    held, growth = human_bytes(most["bytes"]), 1000 * most["bytes_a_step"]
    if growth <= 0:
        return [_line("memory", f"environments hold up to {held} a rank, and do not grow")]
    grow = sum(each["bytes_a_step"] > 0 for each in ranks.values())
    of = f"{counted(grow, 'collector')}: of rank {name} {held}, {human_bytes(growth)} more"
    text = f"environments grow in {of} with each 1,000 steps; env.manager.renew_after"
    return [_line("memory", text)]


def _collectors(status: RunStatus) -> list[str]:
    """Returns a line about the collectors; none where all work, or where they are no ranks."""
    ranks = sum(place.get("role") == "collector" for place in status.facts.get("placement", []))
    counts = status.progress.get("collectors")
    if counts is None or not ranks or status.is_over or counts["working"] == ranks:
        return []
    waiting = counts["there"] - counts["working"]
    parts = [f"{counts['working']} of {ranks} work"]
    if waiting:
        parts.append(f"{waiting} wait{'s' * (waiting == 1)} until needed")
    return [_line("collectors", ", ".join(parts))]


def _guests(status: RunStatus) -> list[str]:
    """Returns a line about the guests that are here, or were; none where none has come."""
    guests = status.progress.get("guests")
    if not guests:
        return []
    here = [] if status.is_over else [(rank, one["host"]) for rank, one in guests["here"].items()]
    named = ", ".join(f"{rank} on {host}" for rank, host in here[:_HOSTS_NAMED])
    parts = [f"{len(here)} here ({named}{', ...' * (len(here) > _HOSTS_NAMED)})"] if here else []
    parts.append(f"{guests['gone'] + len(guests['here']) - len(here)} gone")
    return [_line("guests", f"{', '.join(parts)}; {human_count(guests['env_steps'])} env steps")]


def _idle(role: str, shares: dict[str, float]) -> str:
    """Returns the ranks of a role that wait most, and their share of idle time."""
    most = sorted(shares, key=lambda rank: -shares[rank])[:_IDLE_NAMED]
    named = ", ".join(f"rank {rank} {shares[rank]:.0%}" for rank in most)
    if len(shares) <= _IDLE_NAMED:
        return f"{role} {named}".strip()  # a role of a run in one process is no rank's
    return (
        f"{len(shares)} {role or 'rank'}s {statistics.median(shares.values()):.0%} (most {named})"
    )


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
