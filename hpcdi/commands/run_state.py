"""The state of a run, judged by its folder and the queue.

The run itself is not asked. There are three sources: run.json, which a start writes when
it takes the folder and when it ends; the lock, which a living run touches; and the queue, which
knows of starts that have not come to the folder yet. `judge` has every pair of what they say.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from hpcdi.commands.logs import first_error, logs_of
from hpcdi.dataclass import dataclass
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_REQUEUE, HpcdiError, LaunchError
from hpcdi.run import run_folder, run_lock, slurm_queue
from hpcdi.run.environment import slurm_job_of
from hpcdi.run.slurm_queue import NO_ANSWER, QueueJob
from hpcdi.store.atomic import clock_of, of_types, read_json
from hpcdi.store.files import check_entry, check_file
from hpcdi.store.layout import RunLayout
from hpcdi.utils.host import count_in
from hpcdi.utils.nested import dotted

QUIET_S = 30.0
"""A run writes status.json every second; after so long without it, it may hang."""
_PROGRESS_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("limits", "players", "idle", "lost", "buffer", "collectors", "figures"), dict),
    **dict.fromkeys(("evaluation", "best_evaluation", "guests", "env_memory"), dict),
    **dict.fromkeys(("pid", "evaluations"), int),
    "phase": str,
}
SWEEP_FILE = "sweep.json"
"""Manifest of a sweep, in the folder above its runs' folders."""
GOES_WELL = ("pending", "starting", "running", "done")

_OFFLINE = "policy.other.commander.offline_iterations"


@dataclass(frozen=True)
class SignsOfLife:
    """Signs of life of a run, beside what its own files say.

    Attributes:
        age_s: seconds since it last wrote its status, by the file system's clock; None: never.
        beat_s: seconds since its process touched the lock; None: there is no lock.
        is_process: whether that process exists, and holds this folder; None: it is on another host.
        is_retaken: whether a living process that run.json does not name has the lock.
        job: its job in the queue; None: it has none, or there is no queue here.
        original: the folder of the run of which this one is a copy with its lock; empty: of none.
    """

    age_s: float | None = None
    beat_s: float | None = None
    is_process: bool | None = None
    is_retaken: bool = False
    job: QueueJob | None = None
    original: str = ""


@dataclass(frozen=True)
class RunStatus:
    """The state of a run.

    Attributes:
        layout: its folder.
        state: "pending", "starting", "running", "done", "failed", "stopped" or "dead".
        why: the reason for that state, or how the run ended.
        facts: run.json; empty before the run's first start.
        progress: status.json; empty before rank 0 has written it.
        signs: see there.
        error: the last one: ``rank``, ``role``, ``host``, ``error``, ``traceback``.
        damage: what is wrong with run.json, see `run_folder.damage_of`; empty: nothing.
    """

    layout: RunLayout
    state: str
    why: str
    facts: dict[str, Any]
    progress: dict[str, Any]
    signs: SignsOfLife
    error: dict[str, Any] = field(default_factory=dict)
    damage: str = ""

    @property
    def is_over(self) -> bool:
        """True if the run has ended: it will not continue by itself."""
        return self.state not in ("pending", "starting", "running")

    @property
    def exit_code(self) -> int:
        """0 for a run that is well, the run's own exit code if that says so, else 1."""
        if self.state in GOES_WELL:
            return EXIT_DONE
        is_its_own = self.facts.get("state") == self.state
        return int(self.facts.get("exit_code", EXIT_FAILED)) if is_its_own else EXIT_FAILED

    @property
    def placement(self) -> list[dict[str, Any]]:
        """Where each rank is, or was at the end; empty where the next start will choose."""
        is_past = self.state == "pending" or _is_new_start(self.facts, self.signs)
        return [] if is_past else self.facts.get("placement", [])

    @property
    def snapshot(self) -> Path | None:
        """The newest snapshot of the run."""
        from hpcdi.store.checkpoints import checkpoint_names

        snapshots = checkpoint_names(self.layout.snapshots_dir)
        return self.layout.snapshots_dir / snapshots[-1] if snapshots else None

    @property
    def job_output(self) -> Path | None:
        """The output file of its job, if there is one."""
        job = self.signs.job
        if job is None:
            return None
        submitted = self.layout.submit_dir / f"slurm-{job.job_id}.out"
        return next((p for p in (Path(job.output or submitted), submitted) if p.is_file()), None)


# --------------------------------------------------------------------------------- finding the run


def axis_of(settings: Mapping[str, Any]) -> str:
    """Returns what the steps of a run's curves are: iterations, if it begins offline.

    Args:
        settings: of its config.yaml, by dotted name.
    """
    is_offline = settings.get("data") and settings.get(_OFFLINE) != 0
    return "train iteration" if is_offline else "env step"


def settings_of(layout: RunLayout) -> dict[str, Any]:
    """Returns the settings of a run's config.yaml, by dotted name; none where it is damaged."""
    from hpcdi.config.load import read_mapping

    try:
        return dict(dotted(read_mapping(check_file(layout.config_file))))
    except (HpcdiError, OSError):
        return {}


def find_run(name: str) -> Path:
    """Returns the run folder that a name stands for.

    Args:
        name: a folder, or a job's number: its run lies below ``runs`` here or where the job was
            submitted.

    Raises:
        LaunchError: there is none, or the folder holds several. OSError: it cannot be read: it is
            somebody else's.
    """
    root = _named_folder(name)
    if _is_run(root) or RunLayout(root).submit_file.is_file():
        return root
    if (root / SWEEP_FILE).is_file():
        raise LaunchError(f"{name} is a sweep: hpcdi sweep status {run_folder.short(root)}")
    if (newest := newest_below(root)) is not None:
        raise LaunchError(
            f"{name} is no run, but holds some: name one, such as {run_folder.short(newest)}"
        )
    return root


def _named_folder(name: str) -> Path:
    """Returns the folder of a name, a run's or not; see `find_run`."""
    path = Path(name)
    check_entry(path)  # or it would be said to be no run
    if path.is_dir():
        root = RunLayout(path.resolve()).root
        if not root.is_dir():  # of `latest`, whose links lead to it
            raise LaunchError(f"there is no {root}: it was moved or removed; name the run folder")
        return root
    is_of_sweep = (path.parent / SWEEP_FILE).is_file()
    if is_of_sweep and not slurm_queue.is_job_id(name):
        shown = run_folder.short(path.parent)
        raise LaunchError(
            f"there is no {name}: no such run of this sweep has begun; hpcdi sweep status {shown}"
        )
    if not slurm_queue.is_job_id(name):
        what = f"{name} is no folder" if path.exists() else f"there is no {name}"
        raise LaunchError(f"{what}; name a run folder, or a Slurm job's number")
    job = slurm_queue.ask(name)
    places = [Path.cwd()] + ([Path(job.folder)] if job is not None and job.folder else [])
    places = list(dict.fromkeys(places))
    tasks: list[str] = []
    for run in [
        *_folders_near_output(job),
        *(run for place in places for run in _runs_in_default_place(place)),
    ]:
        layout = RunLayout(run)
        jobs = jobs_of(layout, run_folder.read(run))
        if (sweep := _packed_sweep_of(run, name)) is not None:
            shown = run_folder.short(sweep)
            raise LaunchError(
                f"job {name} does all runs of a sweep: hpcdi sweep status {shown}; or name one of "
                f"them, such as {run_folder.short(sweep / '000')}"
            )
        if name in jobs or (job is not None and job.het_job in jobs):
            return layout.root.resolve()
        tasks += [job_id for job_id in jobs if job_id.startswith(f"{name}_")]
    if tasks:
        raise LaunchError(f"job {name} is an array: name one, such as {min(tasks)}, or its folder")
    in_queue = "no queue knows it"
    if job is not None:
        is_silent = job.state == NO_ANSWER
        said = f"Slurm says {' '.join(filter(None, (job.state, job.reason)))}"
        in_queue = "Slurm does not answer" if is_silent else said
    searched = " and ".join(str(place / "runs") for place in places)
    raise LaunchError(
        f"no run in {searched} belongs to job {name}; {in_queue}. Name the run folder"
    )


def _packed_sweep_of(run: Path, job: str) -> Path | None:
    """Returns the sweep, here or above a run, that a job does, or is to do; None: there is none."""
    return next((folder for folder in (run, run.parent) if _is_packed_into(folder, job)), None)


def _is_packed_into(sweep: Path, job: str) -> bool:
    """Returns whether a job, or the array of which it is a task, does all runs of a sweep."""
    packed = read_json(sweep / SWEEP_FILE).get("job")
    jobs = {packed, *jobs_of(RunLayout(sweep), {})} if packed else ()
    return job in jobs or job.partition("_")[0] in jobs


def _gives_up(run: Path, facts: Mapping[str, Any], job: str) -> bool:
    """Returns whether a sweep's job starts a run no more: a trial that is over, or one that failed.

    What has failed is started by one into which the sweep was packed anew, not by the job of its
    last start, or the next of that. A job of the run's own starts either.
    """
    sweep = run.parent
    is_over = read_json(sweep / "trials" / f"{run.name}.json").get("state", "running") != "running"
    if not (is_over or facts.get("state") == "failed") or not _is_packed_into(sweep, job):
        return False
    if is_over:
        return True
    last = slurm_job_of(slurm_queue.texts_of(facts.get("slurm"))).partition("_")[0]
    return job.partition("_")[0] == last or job in jobs_of(RunLayout(sweep), {})


def runs_of(names: Iterable[str]) -> list[Path]:
    """Returns the runs that names stand for, each once.

    Args:
        names: see `find_run`; a folder that is no run stands for the runs that lie in it, or in
            the folders in it, as in an experiment's ``sweeps``.

    Raises:
        LaunchError: a name stands for none.
    """
    return list(dict.fromkeys(run for name in names for run in _runs_in(name)))


def _runs_in(name: str) -> list[Path]:
    folder = _named_folder(name)
    runs = [folder] if _is_run(folder) else _runs_below(folder)
    if not runs:
        damage = run_folder.damage_of(RunLayout(folder))
        why = f"'s run.json {damage}" if damage else " is no run folder, and holds none"
        raise LaunchError(f"{name}{why}")
    return runs


def _runs_below(folder: Path) -> list[Path]:
    """Returns the runs that lie in a folder, or else in the folders in it, by name."""
    for pattern in ("*/", "*/*/"):
        below = sorted({RunLayout(path).root for path in folder.glob(pattern) if _is_run(path)})
        if below:
            return below
    return []


def newest_below(folder: Path) -> Path | None:
    """Returns the run in a folder, or in the folders in it, that began or ended last."""

    def changed_at(run: Path) -> float:
        file = RunLayout(run).run_file
        return file.stat().st_mtime if file.is_file() else 0.0

    return max(_runs_below(folder), key=changed_at, default=None)


def _is_run(folder: Path) -> bool:
    """Returns whether a folder has a run's record, or its curves, whatever else it lacks."""
    return bool(run_folder.read(folder)) or RunLayout(folder).curves_file.exists()


def _folders_near_output(job: QueueJob | None) -> list[Path]:
    """Returns run folders that a job may belong to, by the place of its output file."""
    if job is None or not job.output:
        return []
    above = Path(job.output).parent.parent  # of RUN/submit/slurm-12.out, SWEEP/output/...
    return [above, *sorted(above.glob("[0-9]*"))]


def _runs_in_default_place(place: Path) -> list[Path]:
    """Returns run folders below ``runs``, the newest first."""
    begun = [*place.glob("runs/*/*/run.json"), *place.glob("runs/*/sweeps/*/*/run.json")]
    waiting = [file.parent for file in place.glob("runs/*/*/submit/submit.json")]
    return sorted({file.parent for file in [*begun, *waiting]}, key=os.path.getmtime, reverse=True)


def read_progress(layout: RunLayout) -> dict[str, Any]:
    """Returns ``status.json``, without what is damaged in it; empty where there is none.

    An evaluation is left out, too, whose mean return is no number: JSON has no NaN.
    """
    progress = of_types(read_json(layout.status_file), _PROGRESS_TYPES)
    for name in ("evaluation", "best_evaluation"):
        if name in progress and None in (progress[name].get("mean"), *progress[name].values()):
            del progress[name]
    return progress


def jobs_of(layout: RunLayout, facts: Mapping[str, Any]) -> list[str]:
    """Returns the ids of a run's jobs: that of its last start, and those that were to go on.

    Args:
        layout: the run folder.
        facts: run.json.
    """
    submitted = read_json(layout.submit_file), read_json(layout.next_job_file)
    variables = (
        slurm_queue.texts_of(facts.get("slurm")),
        *(slurm_queue.texts_of(s.get("job")) for s in submitted),
    )
    return list(dict.fromkeys(filter(None, map(slurm_job_of, variables))))


def job_to_come(layout: RunLayout) -> QueueJob | None:
    """Returns a job that is yet to start the run of a folder, or to resume it; None: none is.

    It waits; or it is on and has not come to the folder yet, or has a script that requeues it.
    """
    facts, submitted = run_folder.read(layout.root), jobs_of(layout, {})
    beat_s = _age_s(layout.lock_file) or 0.0
    if run_lock.original_of(layout, run_lock.holder_of(layout), beat_s):
        return None  # they are its original's
    is_over = facts.get("state", "running") != "running" and not _is_to_resume(facts)
    last = slurm_job_of(slurm_queue.texts_of(facts.get("slurm")))
    for job_id in jobs_of(layout, facts):
        if _gives_up(layout.root, facts, job_id):
            continue
        job = slurm_queue.ask(job_id)
        starts_again = job_id in submitted and not (job_id == last and is_over)
        if job is not None and (job.waits or (job.is_on and starts_again)):
            return job
    return None


def _is_to_resume(facts: Mapping[str, Any]) -> bool:
    """Returns whether a run has stopped so that its job's script requeues it."""
    return facts.get("state") == "stopped" and facts.get("exit_code") == EXIT_REQUEUE


def status_of(
    run: Path, ask: Callable[[str], QueueJob | None] = slurm_queue.ask, job_id: str = ""
) -> RunStatus:
    """Returns the state of the run in a folder.

    Args:
        run: the folder.
        ask: returns a job of the queue.
        job_id: a job that is known to be the run's; empty: what its folder says.

    Raises:
        LaunchError: it holds no run.
    """
    layout = RunLayout(run.absolute())
    facts = run_folder.read(run)
    status = _status(layout, facts, ask, job_id)
    if status.state == "dead" and facts != (later := run_folder.read(run)):
        return _status(layout, later, ask, job_id)  # it has ended in between
    return status


def end_of(
    run: Path, ask: Callable[[str], QueueJob | None] = slurm_queue.nobody
) -> tuple[str, str]:
    """Returns a run's state and the reason for it.

    They are what run.json says, but of a run that it says is running, or is to be resumed: as that
    one lives. The state is "unknown" where there is no run.json.

    Args:
        run: the folder.
        ask: returns a job of the queue; asked of a run that is not over alone.
    """
    facts = run_folder.read(run)
    if not _may_go_on(facts):
        return str(facts.get("state", "unknown")), str(facts.get("reason", ""))
    status = status_of(run, ask)
    return status.state, status.why


def _may_go_on(facts: Mapping[str, Any]) -> bool:
    """Returns whether a run is on, or to be resumed, by its run.json."""
    return facts.get("state") == "running" or _is_to_resume(facts)


def asked_at_once(runs: Iterable[Path]) -> Callable[[str], QueueJob | None]:
    """Returns for `end_of` what knows the jobs of runs, by one call of squeue for all of them.

    A job that is on is asked about once more: whether it has a script only scontrol says.

    Args:
        runs: their folders.
    """
    layouts = ((RunLayout(run.absolute()), run_folder.read(run)) for run in runs)
    jobs = slurm_queue.ask_all(
        job for layout, facts in layouts if _may_go_on(facts) for job in jobs_of(layout, facts)
    )

    @functools.cache
    def ask(job_id: str) -> QueueJob | None:
        job = jobs.get(job_id)
        is_on = job is not None and job.is_on and job.state != NO_ANSWER
        return slurm_queue.ask(job_id) if is_on else job

    return ask


def _status(
    layout: RunLayout, facts: dict[str, Any], ask: Callable[[str], QueueJob | None], job_id: str
) -> RunStatus:
    progress, holder = read_progress(layout), run_lock.holder_of(layout)
    job_ids = jobs_of(layout, facts)
    if job_id and job_id not in job_ids:
        job_ids.append(job_id)
    damage = run_folder.damage_of(layout)
    if not facts and not job_ids:
        raise LaunchError(
            f"{layout.run_file} {damage}"
            if damage
            else f"{layout.root} holds no run: there is no {layout.run_file.name} in it"
        )
    beat_s = _age_s(layout.lock_file)
    original = run_lock.original_of(layout, holder, beat_s or 0.0)
    is_process = False if original else holder.is_there() if holder is not None else None
    is_alive = is_process or (is_process is None and (beat_s or 0.0) < run_lock.SILENT_S)
    is_another = holder is not None and (holder.pid, holder.host) != (
        facts.get("pid"),
        facts.get("host"),
    )
    job_ids = [job for job in job_ids if not _gives_up(layout.root, facts, job)]
    signs = SignsOfLife(
        age_s=_age_s(layout.status_file, layout.run_file),
        beat_s=beat_s,
        is_process=is_process,
        is_retaken="pid" in facts and is_alive and is_another,
        job=None if original else _job_of(job_ids, ask),
        original=original,
    )
    state, why = judge(facts, progress, signs)
    progress = _current_progress(progress, facts, state)
    error = _last_error(layout, state, facts, progress)
    return RunStatus(layout, state, why, facts, progress, signs, error, damage)


def _job_of(job_ids: list[str], ask: Callable[[str], QueueJob | None]) -> QueueJob | None:
    """Returns the first job that waits or is on, or else the first that the queue knows."""
    first_known = None
    for job_id in job_ids:
        job = ask(job_id)
        if job is not None and (job.waits or job.is_on):
            return job
        first_known = first_known or job
    return first_known


# -------------------------------------------------------------------------------- judging the state


def judge(
    facts: Mapping[str, Any], progress: Mapping[str, Any], signs: SignsOfLife
) -> tuple[str, str]:
    """Returns the state of a run, and the reason for it.

    ===================  ============  ==========  ===============  =============
    run.json             no job        job waits   job is on        job has ended
    ===================  ============  ==========  ===============  =============
    none                 dead          pending     starting         dead
    running              as it lives   pending     as it lives [1]  dead [2]
    stopped, 85          stopped       pending     pending [1]      stopped
    stopped, or failed   that          pending     that             that
    done                 done          done        done             done
    of an earlier start  --            pending     starting         failed [3]
    ===================  ============  ==========  ===============  =============

    [1] A dead or stopped run is pending while its job's script can requeue it, or may have done so
    (COMPLETING, unless by its time limit); `salloc` has none.
    [2] Unless its process is seen on this host. [3] Cancelled: what run.json says.
    Where a new process has the lock of a run that has ended, it is starting. Where Slurm does not
    answer, what would be pending if the job waited, by the folder alone, is pending.

    Args:
        facts: run.json.
        progress: status.json.
        signs: its signs of life.
    """
    job, by_folder = signs.job, _by_folder(facts, progress, signs)
    if job is None or by_folder[0] == "done" or (signs.is_retaken and by_folder[0] == "starting"):
        return by_folder
    if job.state != NO_ANSWER:
        return _by_queue(by_folder, facts, signs, job)
    if by_folder[0] != "dead" and not _is_to_resume(facts):
        return by_folder
    return "pending", f"{by_folder[1]}; {job.said}" if facts else job.said  # it may be requeued


def _by_folder(
    facts: Mapping[str, Any], progress: Mapping[str, Any], signs: SignsOfLife
) -> tuple[str, str]:
    """Returns the state of a run as its folder shows it."""
    if not facts:
        return (
            "dead",
            "it never began" if signs.job else "it never began: no queue knows its job",
        )
    if facts.get("state") == "running":
        return _by_signs_of_life(facts, progress, signs)
    if signs.is_retaken:
        return "starting", "a process has taken the run folder to resume the run"
    return str(facts.get("state")), str(facts.get("reason", ""))


def _by_signs_of_life(
    facts: Mapping[str, Any], progress: Mapping[str, Any], signs: SignsOfLife
) -> tuple[str, str]:
    """Returns the state of a run whose run.json says running."""
    age_s, beat_s, job = signs.age_s, signs.beat_s, signs.job
    last = "it never wrote its status" if age_s is None else f"its last status is {age_s:.0f} s old"
    where = f"process {facts.get('pid')} on {facts.get('host')}"
    if signs.original:
        return "dead", f"it is a copy of {signs.original}, made before that run had ended; {last}"
    if signs.is_process is False or beat_s is None:  # who ends in order says so, then unlocks
        return "dead", f"{where} is gone; {last}"
    is_seen = signs.is_process or (job is not None and job.is_on and job.state != NO_ANSWER)
    if beat_s > run_lock.SILENT_S and not is_seen:
        return "dead", f"{where} has given no sign of life for {beat_s:.0f} s; {last}"
    is_of_this_start = progress.get("pid") in (None, facts.get("pid"))
    is_up = is_of_this_start and progress.get("phase", "starting") != "starting"
    state, is_quiet = "running" if is_up else "starting", age_s is not None and age_s > QUIET_S
    if job is not None and job.state == "SUSPENDED":
        return state, f"{job.said}; {last}"
    return state, f"{last}: does it hang?" if is_quiet else ""


def _by_queue(
    by_folder: tuple[str, str], facts: Mapping[str, Any], signs: SignsOfLife, job: QueueJob
) -> tuple[str, str]:
    """Returns the state of a run that has a job; `by_folder` is what its folder shows."""
    (state, why), is_new_start = by_folder, _is_new_start(facts, signs)
    job_state = f"job {job.job_id} is {job.state}{f' ({job.reason})' if job.reason else ''}"
    is_to_resume = _is_to_resume(facts)
    if job.waits or (job.is_on and (is_new_start or not facts)):
        again = "; it will resume from its newest snapshot" if facts else ""
        is_pending = job.waits or job.state == "COMPLETING"  # what was requeued is cleaned up first
        return "pending" if is_pending else "starting", job_state + again
    if job.is_on:
        is_for_its_script = job.has_script and (state == "dead" or is_to_resume)
        if job.state == "COMPLETING" and is_for_its_script:
            if job.reason == "TimeLimit":  # Slurm has ended the script, too
                return state, f"{why}; {job_state}"
            return "pending", f"{why}; {job_state}: Slurm does not say yet whether it is requeued"
        if is_for_its_script:
            return "pending", f"{why}; {job_state} still, and its script has it requeued"
        return by_folder
    if state in ("starting", "running"):
        return ("dead", job_state) if signs.is_process is None else by_folder
    if is_new_start and job.has_failed:
        return "failed", f"{job_state}: it was to resume the run, and did not begin"
    is_worth_saying = state == "dead" or is_to_resume or is_new_start
    return state, "; ".join(filter(None, [why, job_state])) if is_worth_saying else why


def _is_new_start(facts: Mapping[str, Any], signs: SignsOfLife) -> bool:
    """Returns whether the job has been started, or is to be, since run.json was written."""
    job, recorded = signs.job, slurm_queue.texts_of(facts.get("slurm"))
    if job is None or not recorded:
        return False
    restarts = count_in(recorded, "SLURM_RESTART_COUNT")
    return (
        job.job_id not in (slurm_job_of(recorded), recorded.get("SLURM_JOB_ID"))
        or job.restarts > restarts
    )


def _current_progress(
    progress: dict[str, Any], facts: Mapping[str, Any], state: str
) -> dict[str, Any]:
    """Returns status.json as it holds now: with the final counts, or without what is past."""
    if not progress:
        return {}
    is_past = facts.get("state") == "running" and progress.get("pid") != facts.get("pid")
    if is_past or state in ("pending", "starting"):
        earlier = {"phase": "starting", "env_steps_per_s": 0.0, "train_iters_per_s": 0.0}
        return {**progress, **earlier, "error": None, "idle": {}, "lost": {}}
    figures = facts.get("figures", {})
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
    first = first_error(logs_of(layout.log_dir), int(facts.get("restarts", 0)))
    if first is None:
        return {}
    raised = first.traceback.splitlines()[-1:] or [str(first.entry.get("message", ""))]
    return {
        "rank": first.rank,
        "role": first.entry.get("role"),
        "host": first.entry.get("host"),
        "error": raised[0],
        "traceback": first.traceback,
    }
