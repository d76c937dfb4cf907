"""The run folder: one run claims it and records its state in `run.json`; opening, closing lines."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpcdi
from hpcdi.config import words
from hpcdi.errors import LaunchError, NoProgressError
from hpcdi.run import latest, run_lock, slurm_queue
from hpcdi.run.environment import LAUNCHER_VARIABLE, own_job, slurm_job_of
from hpcdi.store.atomic import load_json, of_types, read_json, write_bytes
from hpcdi.store.checkpoints import checkpoint_names
from hpcdi.store.disk_full import or_refuse, or_warn
from hpcdi.store.files import is_unreadable, patiently
from hpcdi.store.layout import RunLayout, of_run
from hpcdi.store.sealed import (
    change_of,
    load_sealed_json,
    rewritten_files,
    write_sealed,
    write_sealed_json,
)
from hpcdi.types import MOST_RESTARTS, RESTART_NUMBERS
from hpcdi.utils.metrics import human_count
from hpcdi.utils.progress import USUAL_PATIENCE
from hpcdi.utils.trackers import seen_in

if TYPE_CHECKING:
    from hpcdi.config.schema import ExperimentConfig
    from hpcdi.roles.coordinator.scheduler import Outcome

_RESTARTS = ("restarts", "restarts_without_progress", "restarted_at")
_COSTS = ("elapsed_s", "core_s", "data_bytes")
_RESERVED_BYTES = 1 << 16
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("state", "reason", "exp_name", "host", "launcher", "started", "ended"), str),
    **dict.fromkeys(("pid", "exit_code", "restarts", "restarts_without_progress"), int),
    **dict.fromkeys(("versions", "figures", "slurm", "files", "earlier", "before"), dict),
    "restarted_at": dict,
    "placement": list,
}
_PLACE_TYPES = {"rank": int, "role": str, "host": str, "cores": list}
_JOB_VARIABLES = (
    "SLURM_JOB",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "PBS_JOBID",
    "LSB_JOBID",
)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"
_PACKAGES = ("torch", "numpy", "h5py", "mpi4py", "gymnasium", "safetensors", "tensorboard")


def choose(exp_name: str, run_dir: str | None) -> Path:
    """Returns the folder of a new run: `run_dir`, or ``runs/<exp_name>/<time>``, made empty.

    Raises:
        LaunchError: it holds another run, or anything else; or it cannot be made.
    """
    if run_dir is not None:
        check_free(Path(run_dir))
        return of_run(Path(run_dir).absolute())
    base = default_place(exp_name)
    path, number = base, 2
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError as error:  # another run of the same second
            if Path(error.filename) != path:
                why = f"{error.filename} is a link to nowhere"
                raise LaunchError(f"the run folder {path} cannot be made: {why}") from None
            path, number = base.with_name(f"{base.name}-{number}"), number + 1
        except OSError as error:
            raise LaunchError(f"the run folder {path} cannot be made: {error.strerror}") from error
        else:
            return path


def default_place(exp_name: str) -> Path:
    """Returns where a run that begins now has its folder, if no other has it."""
    return Path("runs").absolute() / exp_name / time.strftime("%Y%m%d-%H%M%S")


def check_free(path: Path, option: str = "--run-dir") -> None:
    """Check that nothing would be overwritten.

    Args:
        path: the folder.
        option: of the command, by which another one is chosen.

    Raises:
        LaunchError: the folder is in use, holds a run, or other files, or is none; or another job
            is to fill it.
    """
    try:
        entries = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        if path.is_symlink():
            raise LaunchError(
                f"{path} cannot be the run folder: it is a link to nowhere ({path.readlink()}). "
                f"Choose another {option}"
            ) from None
        above = next(parent for parent in path.absolute().parents if parent.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            raise LaunchError(
                f"the run folder {path} cannot be made: {above} is not writable. Choose another "
                f"{option}"
            ) from None
        return
    except OSError as error:
        raise LaunchError(
            f"{path} cannot be the run folder: {error.strerror}. Choose another {option}"
        ) from error
    layout = RunLayout(path)
    if layout.lock_file.name in entries:
        run_lock.check(layout)
        entries.remove(layout.lock_file.name)  # a run that never began has left it
    if layout.run_file.name in entries:
        raise LaunchError(
            f"the run folder {path} holds another run (state {read_state(path)!r}); nothing was "
            f"changed. Choose another {option}, or leave it out to get a new one; "
            "system.auto_resume=true goes on with that run"
        )
    _check_not_awaited(layout)
    # of a job that is to fill it, of its solvers, which begin before it, and of who starts it
    if entries - {layout.submit_dir.name, layout.solvers_dir.name, layout.code_dir.name}:
        raise LaunchError(
            f"the run folder {path} is not empty and holds no run; nothing was changed. Choose "
            f"another {option}"
        )


def _check_not_awaited(layout: RunLayout) -> None:
    """Check that no job that waits, or has just begun, is to fill the folder, but this one.

    Raises:
        LaunchError: one is.
    """
    me = own_job(os.environ)
    own = {slurm_job_of(me), me.get("SLURM_JOB_ID", "")}
    for file in (layout.submit_file, layout.next_job_file):
        job_id = slurm_job_of(slurm_queue.texts_of(read_json(file).get("job")))
        job = slurm_queue.ask(job_id) if job_id and job_id not in own else None
        if job is not None and (job.waits or job.is_on):
            raise LaunchError(awaited(job, layout.root, ", or name another --run-dir"))


def awaited(job: slurm_queue.QueueJob, folder: Path, otherwise: str = "") -> str:
    """Returns why a folder is not taken: a job is to start its run."""
    return (
        f"{job.said} for the run folder {short(folder)}, whose experiment it reads; nothing was "
        f"changed. scancel {job.job_id} first{otherwise}"
    )


def claim(
    path: Path,
    config: Mapping[str, Any],
    placement: list[dict[str, Any]],
    *,
    mpi: str,
    past: Mapping[str, Any] | None = None,
) -> RunLayout:
    """Make the folder a run's own; writes ``config.yaml`` and ``run.json``.

    Args:
        path: the folder.
        config: the compiled experiment.
        placement: of each rank: role, host, cores, process id.
        mpi: version of the MPI library.
        past: restarts of an earlier run without a snapshot, see `count_restart`; None: no such run.

    Raises:
        LaunchError: another run was faster, or the folder cannot be written.
    """
    layout = RunLayout(path)
    facts = {
        "exp_name": config["exp_name"],
        "state": "running",
        "started": now_text(),
        "command": sys.argv,
        "host": platform.node(),
        "pid": os.getpid(),
        "launcher": os.environ.get(LAUNCHER_VARIABLE, ""),
        "python": platform.python_version(),
        "versions": {**versions(), "mpi": mpi},
        "git_commit": git_commit(Path(hpcdi.__file__).parent.parent),
        "slurm": _slurm(),
        "placement": placement,
        **(past or {}),
    }
    with or_refuse(f"the run folder {path}"):
        try:
            path.mkdir(parents=True, exist_ok=True)
            layout.run_file.touch(exist_ok=past is not None)  # of two processes one succeeds
        except FileExistsError:
            raise LaunchError(f"the run folder {path} has just been taken by another run") from None
        keep_config(layout, config)
        _reserve(layout)
        write_sealed_json(layout.run_file, facts)
    if path.parent.parent.name == "runs":
        latest.point_to(layout)
    return layout


def end(
    layout: RunLayout,
    state: str,
    reason: str,
    exit_code: int,
    figures: Mapping[str, Any],
    *,
    is_last: bool = True,
) -> None:
    """Write into ``run.json`` how the run ended: the mark that scripts look for.

    Args:
        layout: the run folder.
        state: as `state_after` names it.
        reason: in words.
        exit_code: of the command.
        figures: what the run has reached.
        is_last: no other rank writes after this. Where one may (a learner still publishes), the
            checksums of its files are not recorded, as they would call a newer policy a wrong one.

    Raises:
        StoreError, OSError: it cannot be read or written, or is gone. ValueError: it is damaged.
    """
    facts = _without_checksum(patiently(partial(load_json, layout.run_file), layout.run_file))
    layout.reserve_file.unlink(missing_ok=True)
    facts.pop("before", None)
    ended: dict[str, Any] = {
        "state": state,
        "reason": reason,
        "exit_code": exit_code,
        "ended": now_text(),
        "figures": figures,
    }
    if is_last:
        with contextlib.suppress(OSError):  # how the run ended is worth more
            ended["files"] = rewritten_files(layout)
    write_sealed_json(layout.run_file, {**facts, **ended})
    latest.keep_up(layout, is_over=True)


def _reserve(layout: RunLayout) -> None:
    """Reserve space, freed by `end`, so that a full disk does not hide how a run ended."""
    write_bytes(layout.reserve_file, os.urandom(_RESERVED_BYTES))  # what no disk can compress


def read(path: Path) -> dict[str, Any]:
    """Returns ``run.json`` to be shown: as `load`; empty, too, where it cannot be read now."""
    return _as_written(read_json(RunLayout(path).run_file))


def load(path: Path) -> dict[str, Any]:
    """Returns ``run.json``, without what is damaged in it; empty where there is none.

    Raises:
        StoreError: the file system fails: what the run is cannot be known.
    """
    file = RunLayout(path).run_file
    try:
        return _as_written(patiently(partial(load_json, file), file))
    except (OSError, ValueError):
        return {}


def _as_written(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts of ``run.json`` without what is damaged."""
    facts = of_types(_without_checksum(facts), _TYPES)
    places = facts.get("placement", [])
    if not all(isinstance(p, dict) and of_types(p, _PLACE_TYPES) == p for p in places):
        del facts["placement"]
    return facts


def damage_of(layout: RunLayout) -> str:
    """Returns what is wrong with ``run.json``, to follow its name; empty: nothing, or it is absent.

    A run that has just taken its folder has an empty one.
    """
    try:
        load_sealed_json(layout.run_file)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        kind = "cannot be read" if is_unreadable(error) else "is damaged"
        return f"{kind}: {getattr(error, 'strerror', None) or error}"
    return ""


def _without_checksum(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "crc32"}


def read_state(path: Path) -> str:
    """Returns the state of a run: "running", "done", "failed", "stopped", or "unknown"."""
    return str(read(path).get("state", "unknown"))


def count_restart(layout: RunLayout, reached: Mapping[str, int], limit: int) -> dict[str, Any]:
    """Returns what to record of a restart: how many there were, and how many without progress.

    Args:
        layout: the run folder.
        reached: ``train_iter`` and ``env_steps`` of the newest snapshot.
        limit: how often in a row a restart may find no newer snapshot.

    Raises:
        NoProgressError: that has happened more often.
        LaunchError: the run was restarted as often as one can be.
        StoreError: the file system fails.
    """
    facts = load(layout.root)
    before = _numbers(facts.get("restarted_at", {}))
    has_advanced = any(reached[name] > before.get(name, 0) for name in reached)
    in_vain = 0 if has_advanced else facts.get("restarts_without_progress", 0) + 1
    if in_vain > limit:
        raise NoProgressError(
            f"the run in {layout.root} was restarted {in_vain - 1} times in a row without a newer "
            f"snapshot than that of train iteration {reached['train_iter']}. See "
            f"{layout.log_dir} for what ends it; to try again, raise "
            "system.max_restarts_without_progress"
        )
    restarts = max(facts.get("restarts", 0), _last_start_in(layout)) + 1
    if restarts > MOST_RESTARTS:
        raise LaunchError(
            f"the run in {layout.root} was restarted {MOST_RESTARTS} times, and cannot be once "
            "more: there are no numbers left for its blocks. Begin a new run; its "
            "policy.learn.learner.hook.load_ckpt_before_run takes "
            f"{layout.latest_policy}, and off-policy its `data` this folder"
        )
    return dict(zip(_RESTARTS, (restarts, in_vain, dict(reached)), strict=True))


def spent(facts: Mapping[str, Any], progress: Mapping[str, Any]) -> dict[str, float]:
    """Returns what all starts of a run have taken: ``elapsed_s``, ``core_s``, ``data_bytes``.

    A start that goes on, or left no end, counts up to its last status. What nothing is known of is
    left out.

    Args:
        facts: run.json.
        progress: status.json.
    """
    here, earlier = _numbers(facts.get("figures", {})), _numbers(facts.get("earlier", {}))
    if "elapsed_s" not in here:
        here = _numbers(progress)
        if here.get("started_at", -math.inf) < earlier.get("until", 0.0):  # of the start before
            here = {}
        elif "written_at" in here:
            here["elapsed_s"] = here["written_at"] - here["started_at"]
    if "elapsed_s" in here and facts.get("placement"):
        here["core_s"] = here["elapsed_s"] * cores_of(facts["placement"])
    return {n: earlier.get(n, 0) + here.get(n, 0) for n in _COSTS if n in earlier or n in here}


def cores_of(placement: Iterable[Mapping[str, Any]]) -> int:
    """Returns the cores that ranks may use, each once; one whose cores are not known has one."""
    known = {(p.get("host"), str(core)) for p in placement for core in p.get("cores") or ()}
    return len(known) + sum(not p.get("cores") for p in placement)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {n: v for n, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}


def _last_start_in(layout: RunLayout) -> int:
    """Returns how often a run had been restarted when its last shard began: none is overwritten.

    Raises:
        StoreError: the file system fails.
    """
    numbers = [number for _, number in patiently(layout.shard_numbers, layout.data_dir).values()]
    return max(numbers, default=0) // RESTART_NUMBERS


def reopen(layout: RunLayout, restarts: Mapping[str, Any], placement: list[dict[str, Any]]) -> None:
    """Record that a run continues; the caller holds its lock.

    Args:
        layout: the run folder.
        restarts: see `count_restart`.
        placement: of each rank, as it is now.

    Raises:
        StoreError: the file system fails.
    """
    facts = load(layout.root)
    taken = {
        "state": "running",
        "pid": os.getpid(),
        "host": platform.node(),
        "launcher": os.environ.get(LAUNCHER_VARIABLE, ""),
        "slurm": _slurm(),
        "placement": placement,
        "earlier": {**spent(facts, read_json(layout.status_file)), "until": time.time()},
        **restarts,
    }
    past = {*taken, "reason", "exit_code", "ended", "figures", "files"}
    before = {name: facts[name] for name in past if name in facts}
    unchanged = {name: value for name, value in facts.items() if name not in before}
    _reserve(layout)
    write_sealed_json(layout.run_file, {**unchanged, **taken, "before": before})
    latest.keep_up(layout, is_over=False)


def keep_config(layout: RunLayout, config: Mapping[str, Any]) -> None:
    """Write the compiled experiment."""
    write_sealed(layout.config_file, words.dump(config))


def change_of_config(layout: RunLayout) -> str:
    """Returns how a run's config.yaml differs from what the run wrote; empty: it does not.

    Raises:
        StoreError: the file system fails: whether it differs cannot be known.
    """
    try:
        return patiently(partial(change_of, layout.config_file), layout.config_file)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def leave(layout: RunLayout) -> None:
    """Undo `reopen`, because the run could not be resumed."""

    def write() -> None:
        facts = load(layout.root)
        before = facts.pop("before", {})
        for name in (*_RESTARTS, "earlier"):  # absent from `before` if this was the first time
            facts.pop(name, None)
        write_sealed_json(layout.run_file, {**facts, **before})

    or_warn("state of the run", write)


def _slurm() -> dict[str, str]:
    """Returns the variables of the batch job that this process belongs to, most often Slurm's."""
    return {k: v for k, v in own_job(os.environ).items() if k.startswith(_JOB_VARIABLES)}


def now_text() -> str:
    """Returns the time as run folders spell it."""
    return time.strftime(_TIME_FORMAT)


def from_here(path: Path) -> Path:
    """Returns a path from the current folder, if it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def short(path: Path) -> str:
    """Returns a path as a person would type it from here, in a shell: for messages alone."""
    return shlex.quote(str(from_here(path)))


def versions() -> dict[str, str]:
    """Returns the versions of hpcdi and of the packages that results depend on."""
    from importlib.metadata import PackageNotFoundError, version  # slow: with it email

    packages = {"hpcdi": hpcdi.__version__}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return packages


def git_commit(folder: Path) -> str | None:
    """Returns the commit of a checkout, by its files (a rank must not fork); None: no checkout."""
    git = folder / ".git"
    try:
        if git.is_file():  # a second working tree, or a submodule
            git = folder / git.read_text().removeprefix("gitdir: ").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        elsewhere = git / "commondir"
        common = git / elsewhere.read_text().strip() if elsewhere.is_file() else git
        loose = common / name
        if loose.is_file():
            return loose.read_text().strip()
        for line in (common / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split()[0]
    except OSError:
        return None
    return None


# ------------------------------------------------- lines that a run prints at its start and its end


def opening(title: str, layout: RunLayout, ends: str) -> list[str]:
    """Returns the first lines: the run, its folder, how to watch it, and when it ends."""
    return [f"hpcdi {hpcdi.__version__}: {title}", *_place(layout), f"  ends         {ends}"]


def ends_of(config: ExperimentConfig, goal: float) -> str:
    """Returns when a run ends by itself, as a person reads it; `goal`: its stop value."""
    commander = config.policy.other.commander
    limits = [
        (human_count(getattr(commander, name, math.inf)), what)
        for name, what in (("max_env_step", "env steps"), ("max_train_iter", "train iterations"))
        if math.isfinite(getattr(commander, name, math.inf))
    ]
    ends = [f"at a mean return of {goal:g}"] if math.isfinite(goal) else []
    ends += [f"after {count} {what}" for count, what in limits]
    for entry in config.callbacks:
        if entry.get("type") == "early_stop":
            patience = entry.get("evaluations", USUAL_PATIENCE)
            ends.append(f"once {patience} evaluations in a row are no better than the best one")
    return ", or ".join(ends) or "when you stop it (Ctrl-C): no limit and no stop value is set"


def closing(command: str, outcome: Outcome, summary: list[str], layout: RunLayout) -> list[str]:
    """Returns the last lines: how the run ended, what it has done, and what to do next.

    Args:
        command: that resumes it.
        outcome: how it ended.
        summary: what was done.
        layout: the run folder.
    """
    word = "FAILED" if outcome.state == "failed" else outcome.state
    if outcome.state == "done" and outcome.reason.startswith("stop value"):
        word = "solved"
    lines = [f"\n{word}: {outcome.reason}", *summary, *_place(layout)]
    with contextlib.suppress(OSError):  # a file system that fails hides what is there
        lines.extend(_there_is(command, outcome, layout))
    return lines


def _there_is(command: str, outcome: Outcome, layout: RunLayout) -> Iterator[str]:
    """Yields the lines about what the run folder holds; see `closing`."""
    if outcome.state != "done" and checkpoint_names(layout.snapshots_dir):
        yield hint(command, layout)
    for name, how in seen_in(layout.loggers_dir, short):
        yield f"  {name:12} {how}"
    if layout.data_dir.exists():
        yield f"  data         {short(layout.data_dir)} (hpcdi inspect {short(layout.root)})"
    policies = [path for path in (layout.best_policy, layout.latest_policy) if path.exists()]
    yield from (f"  policy       {short(path)}" for path in policies[:1])


def hint(command: str, layout: RunLayout) -> str:
    """Returns the line that says how to resume the run."""
    return f"  resume with  {command} --resume {short(layout.root)}"


def _place(layout: RunLayout) -> list[str]:
    run = short(layout.root)
    return [f"  run folder   {run}", f"  TensorBoard  tensorboard --logdir {run}"]
