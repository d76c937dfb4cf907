"""The state of a run, from its folder and the queue.

Nothing is asked of the run itself: it may be pending, hang, or be dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdi.commands.logs import first_error, logs_of
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_REQUEUE, LaunchError
from hpcdi.launch import run_folder, run_lock, slurm_queue
from hpcdi.launch.slurm_queue import QueueJob
from hpcdi.store.atomic import clock_of, read_json
from hpcdi.store.layout import RunLayout

QUIET_S = 30.0
"""A run writes status.json every second; after so long without it, it may hang."""
GOES_WELL = ("pending", "starting", "running", "done")


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
        """Whether it will not go on by itself."""
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
    return sorted({file.parent for file in [*begun, *waiting]}, key=_changed, reverse=True)


def _changed(path: Path) -> float:
    return path.stat().st_mtime


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
    progress, holder = _progress(layout, facts), run_lock.holder_of(layout)
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
    error = _error(layout, state, facts, progress)
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


def _progress(layout: RunLayout, facts: dict[str, Any]) -> dict[str, Any]:
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


def _error(
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
