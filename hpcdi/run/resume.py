"""Resuming a run: what its folder must hold, and which settings may change."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdi.config.compiled import FREE_OF_ENV, repeats_as
from hpcdi.config.fields import to_mapping
from hpcdi.config.league import why_other_league
from hpcdi.config.load import load, read_mapping
from hpcdi.config.schema import ExperimentConfig, offline_iterations
from hpcdi.dataclass import dataclass
from hpcdi.errors import CheckpointError, ConfigError, LaunchError, NoProgressError
from hpcdi.run import run_folder, run_lock
from hpcdi.run.placement import RankPlace
from hpcdi.run.request import RunRequest
from hpcdi.store.atomic import read_json, sweep_temporary
from hpcdi.store.checkpoints import checkpoint_names, newest_checkpoint
from hpcdi.store.disk_full import or_refuse, or_warn
from hpcdi.store.files import names_in, patiently
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import drop_points_after
from hpcdi.utils.log import LOGGER, say
from hpcdi.utils.nested import dotted

if TYPE_CHECKING:
    from hpcdi.roles.coordinator.snapshots import Resumed
    from hpcdi.store.checkpoints import Checkpoint

BINDING = (
    "env",  # weights and stored data belong to its observations, actions and rewards
    "policy.type",
    "policy.model",  # the shapes of the weights
    "policy.players",  # of a team: who acts by which policy
    "policy.numbers",
    "policy.normalize",  # its statistics are among them
    "policy.learn.critics",
    "policy.exploration_bonus.type",
    "policy.exploration_bonus.features",
    "policy.on_policy",
    "policy.nstep",  # how an item of the replay buffer was made
    "policy.collect.unroll_len",
    "policy.collect.stride",
    "policy.discount_factor",  # the meaning of the learnt values
    "policy.learn.rescale",
    "policy.priority",  # the content of the buffer's index
    "policy.other.replay_buffer.type",
    "policy.other.replay_buffer.replay_buffer_size",
    "policy.other.replay_buffer.frames",
    "policy.other.commander.type",
    "policy.learn.learner.type",
    "data",  # read when the run began
)
"""Keys that must keep their values, with everything below them."""

FREE = tuple(f"env.{name}" for name in FREE_OF_ENV)
"""Exceptions: keys below `BINDING` that may change."""

SHAPES = (
    "policy.type",
    "policy.model",
    "policy.normalize",
    "policy.learn.critics",
    "policy.exploration_bonus.type",
    "policy.exploration_bonus.features",
)
"""Keys without whose values no snapshot can be loaded, even if the command line changes them."""

OF_A_START = ("slurm", "fault", "system.auto_resume", "system.import_path")
"""Keys that say how and from where a run is started, and nothing of what it is."""

COLLECTORS = tuple(f"policy.collect.collector.collector_{which}" for which in ("num", "max"))
"""Keys that say how many ranks collect."""

SAME = ("exp_name", "seed")
"""Keys that must keep their values, too, where a new start finds a run in its folder."""

_ABSENT = "nothing"
_OTHER_MEANING = ": what was learnt and collected so far was for the other one"
_CHECK_EVERY_S = 1.0
_FACTS = {"train_iter": int, "env_steps": int, "saved_at": float, "learners": list}
"""Facts that a snapshot's manifest must have, so that a run can be resumed from it."""


class StartMode(Enum):
    """The way in which a run begins."""

    NEW = "in a folder of its own"
    RESUME = "from the newest snapshot of its folder"
    RESTART = "in the folder of a run without a snapshot"
    DONE = "not at all: it is done already"


def config_of(request: RunRequest) -> str:
    """Returns the path of the configuration: the one of the command line, or the run folder's.

    Raises:
        LaunchError: the command line names none, or the folder holds no run.
        StoreError: the file system fails.
    """
    if request.resume is not None:
        folder = Path(request.resume)
        layout, name = RunLayout(folder), run_folder.short(folder)
        if not run_folder.load(folder).get("placement"):
            if layout.submit_file.exists():
                raise LaunchError(
                    f"the run in {name} has not begun: `hpcdi status {name}` says how its job is; "
                    f"sbatch {run_folder.short(layout.submit_dir / 'job.sbatch')} submits another "
                    "one"
                )
            damage = run_folder.damage_of(layout)
            if damage:
                raise LaunchError(f"{layout.run_file} {damage}")
            raise LaunchError(
                f"{request.resume} holds no run: --resume takes the run folder of an `hpcdi train` "
                f"or `hpcdi serial`{'' if folder.is_dir() else f'; there is no folder {name}'}"
            )
        change = run_folder.change_of_config(layout) if request.config is None else ""
        if change:
            raise LaunchError(
                f"{layout.config_file} is not as the run wrote it: {change}. If you have changed "
                f"it, name it: --resume {name} {run_folder.short(layout.config_file)}; else "
                f"--resume {name} FILE, with the experiment that the run was started with"
            )
        return request.config or str(layout.config_file)
    if request.config is None:
        raise LaunchError("name an experiment's YAML file, or a run folder by --resume")
    return request.config


def overrides_of(request: RunRequest) -> list[str]:
    """Returns the settings of the command line, and those of the run that goes on which stay.

    They are what was subtracted from its observations (`env.origin`), whatever an environment shows
    first now; and what it took of ``latest``, data or policies, whatever run that is now.
    """
    overrides = list(request.overrides)
    folder = request.resume or request.run_dir
    if folder is None or request.config is None:  # it goes on with the run's own, which has them
        return overrides
    file = RunLayout(Path(folder)).config_file
    if not file.is_file():
        return overrides
    try:
        before, now = read_mapping(file), read_mapping(request.config, overrides)
    except ConfigError:  # who loads it says so
        return overrides
    env_then, env_now = before.get("env") or {}, now.get("env") or {}
    if not isinstance(env_then, Mapping) or not isinstance(env_now, Mapping):  # so, too
        return overrides
    is_alike = env_then.get("env_id") == env_now.get("env_id")
    if is_alike and env_now.get("origin") is None and env_then.get("origin") is not None:
        overrides.append(f"env.origin={json.dumps(env_then['origin'])}")
    then = dict(dotted(before))
    for key, value in dotted(now):
        kept = _kept(then.get(key), value, Path(request.config).parent)
        # not by escapes: a letter beyond U+FFFF is two in JSON, which YAML takes for two
        overrides += [f"{key}={json.dumps(kept, ensure_ascii=False)}"] * (kept != value)
    return overrides


def _kept(then: object, now: object, folder: Path) -> object:
    """Returns a setting's value, where it names ``latest`` what that has been when a run began.

    Args:
        then: its value then, with the run's own path; None: there was none.
        now: its value.
        folder: of the experiment's file, beside which it may lie.
    """
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [_kept(*both, folder) for both in zip(then, now, strict=True)]
    if not isinstance(then, str) or not isinstance(now, str) or "latest" not in Path(now).parts:
        return now
    for place in (Path(now).expanduser().absolute(), folder.absolute() / now):
        link = next(above for above in (place, *place.parents) if above.name == "latest")
        runs, path = link.parent.resolve(), Path(then)
        if path.is_relative_to(runs) and (
            path.relative_to(runs).parts[1:] == place.relative_to(link).parts
        ):
            return then
    return now


def start_mode(
    request: RunRequest, config: ExperimentConfig, variables: Mapping[str, str]
) -> StartMode:
    """Returns how a run begins.

    Args:
        request: the command line.
        config: the experiment.
        variables: environment variables.

    Raises:
        LaunchError: the run of the folder has another configuration, or its snapshots do not fit
            the settings.
        StoreError, OSError: the file system fails.
    """
    if request.resume is not None:
        if request.config is not None:
            _check_fits(request, request.resume, config)
        _check_snapshots(request.resume, config)
        return StartMode.RESUME
    auto = config.system.auto_resume
    is_wanted = "SLURM_JOB_ID" in variables if auto is None else auto
    if request.run_dir is None or not is_wanted:
        return StartMode.NEW
    layout = RunLayout(Path(request.run_dir))
    if layout.run_file.name not in names_in(layout.root):
        return StartMode.NEW
    facts = run_folder.load(layout.root)
    if not facts and has_snapshot(layout):  # to begin anew would remove what is whole
        raise LaunchError(
            f"{layout.run_file} {run_folder.damage_of(layout)}; nothing was changed. "
            "Put it right, or choose another --run-dir"
        )
    if not facts:  # the run was killed while it took the folder
        return StartMode.RESTART
    _check_same(layout, config)
    if facts.get("state") == "done":
        _check_done(layout, config)
        return StartMode.DONE
    _check_snapshots(str(layout.root), config)
    return StartMode.RESUME if has_snapshot(layout) else StartMode.RESTART


def folder_of(request: RunRequest, mode: StartMode, exp_name: str) -> Path:
    """Returns the run folder.

    Raises:
        LaunchError: it cannot be the folder of a new run, or is in use.
    """
    if mode is StartMode.NEW:
        return run_folder.choose(exp_name, request.run_dir)
    folder = Path(request.resume or request.run_dir or "").resolve()
    layout = RunLayout(folder)  # ``latest`` is a view of it
    if mode is not StartMode.DONE:
        run_lock.check(layout)
    return layout.root


def _check_fits(request: RunRequest, path: str, config: ExperimentConfig) -> None:
    """Check that a run can be resumed with another file; keys on the command line may differ."""
    layout = RunLayout(Path(path))
    overrides = (*request.overrides, *_submitted_overrides(request, layout))
    overridden = [text.partition("=")[0] for text in overrides]
    differ = [
        each
        for each in differences(_config_in(layout), to_mapping(config))
        if not is_below(each.key, overridden)
    ]
    _refuse_if(
        f"{request.config} does not fit the snapshots of {path}",
        differ,
        "Leave the file out to resume with the run's own configuration, or change single "
        "settings on the command line: key=value",
    )


def _submitted_overrides(request: RunRequest, layout: RunLayout) -> list[str]:
    """Returns the settings of the `hpcdi submit --resume` that wrote the request's file, if any."""
    if Path(request.config or "").resolve().parent != layout.submit_dir.resolve():
        return []
    overrides = read_json(layout.submit_file).get("overrides")
    return list(map(str, overrides)) if isinstance(overrides, list) else []


def _check_snapshots(path: str, config: ExperimentConfig) -> None:
    """Check that a run's snapshots, if there are any, can be loaded, and that it can go on by them.

    Their networks must be those of the settings, their league's players the same; and see
    `_check_given`.

    Args:
        path: the run folder, as messages name it.
        config: the experiment.
    """
    layout = RunLayout(Path(path))
    if not has_snapshot(layout):
        return
    before = load(layout.config_file).config
    old, new = to_mapping(before), to_mapping(config)
    _refuse_if(
        f"the snapshots of {path} are of other networks",
        differences(old, new, SHAPES),
        "Leave these settings as they were, or begin a new run",
    )
    leagues = (each["policy"]["other"]["commander"].get("league") or {} for each in (old, new))
    _refuse_if(
        f"the snapshots of {path} are of another league",
        why_other_league(*leagues),
        "Put these settings right, or begin a new run: its "
        "policy.learn.learner.hook.load_ckpt_before_run takes "
        f"{path}/policies/latest.safetensors, its league.fixed the frozen players in "
        f"{Path(path).absolute() / 'league'}",
    )
    _check_given(path, before, config)


def _check_given(path: str, before: ExperimentConfig, config: ExperimentConfig) -> None:
    """Check that a run's curves keep their axis, and that it is given nothing new.

    Curves are over train iterations where it has begun offline, else over environment steps.
    """
    if new := [name for name in config.data if name not in before.data]:
        why = f"the run in {path} has begun: `data` are read when a run begins, so {', '.join(new)}"
        raise LaunchError(f"{why} would not be learnt from. Begin a new run, or leave them out")
    was_offline, is_offline = (offline_iterations(each) > 0 for each in (before, config))
    if was_offline is is_offline:
        return
    key = "policy.other.commander.offline_iterations"
    if was_offline:
        why = "has begun offline, with curves over train iterations"
        advice = f"keep its `data`, and say {key}=1 to collect from now on"
    else:
        why = "has begun by collecting, with curves over environment steps"
        advice = f"leave {key} as it was, or begin a new run with data=[{path}]"
    raise LaunchError(f"the run in {path} {why}, which would be lost: {advice}")


def _refuse_if(what: str, differ: Sequence[object], advice: str) -> None:
    """Refuse a run if something differs: list it, a line each, and say what to do.

    Raises:
        LaunchError: something does.
    """
    if differ:
        raise LaunchError("\n  - ".join([f"{what}:", *map(str, differ)]) + f"\n  {advice}")


def changes(request: RunRequest, config: ExperimentConfig) -> list[str]:
    """Returns a line for each setting that differs from the run that is resumed, and its damage.

    Args:
        request: the command line.
        config: the experiment.
    """
    if request.resume is None:
        return []
    layout = RunLayout(Path(request.resume))
    old, new = _config_in(layout), to_mapping(config)
    binding = {each.key for each in differences(old, new)}
    damage = run_folder.damage_of(layout)
    return [f"{layout.run_file} {damage}; it is written anew"] * bool(damage) + [
        f"resumed with {each}" + _OTHER_MEANING * (each.key in binding)
        for each in _changed(old, new)
    ]


def _check_same(layout: RunLayout, config: ExperimentConfig) -> None:
    """Check that the run of a folder is the experiment that is asked for."""
    path = run_folder.short(layout.root)
    _refuse_if(
        f"{path} holds a run of another experiment",
        differences(_config_in(layout), to_mapping(config), (*SAME, *BINDING)),
        "Choose another --run-dir, or resume that run, with changes if you want some: "
        f"--resume {path} key=value",
    )


def _check_done(layout: RunLayout, config: ExperimentConfig) -> None:
    """Check that a run that is done is what is asked for, in each setting: nothing is started."""
    path = run_folder.short(layout.root)
    _refuse_if(
        f"{path} holds a run that is done, with other settings",
        _changed(_config_in(layout), to_mapping(config)),
        f"Choose another --run-dir, or train that run on: --resume {path} key=value",
    )


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Returns the settings that differ, but for those of `OF_A_START`."""
    return differences(old, new, {*old, *new}, free=OF_A_START)


def done_line(path: Path) -> str:
    """Returns the line that is printed instead of starting a run that is done."""
    reason = run_folder.read(path).get("reason", "")
    return (
        f"the run in {run_folder.short(path)} is done already ({reason}); nothing is started. To "
        f"train on, name it by --resume, with another limit"
    )


def take(
    layout: RunLayout,
    mode: StartMode,
    config: ExperimentConfig,
    placement: Sequence[RankPlace],
    *,
    mpi: str,
) -> int:
    """Take a run folder whose lock is held; returns how often the run was resumed.

    The results of an earlier run without a snapshot are removed, but not its logs.

    Args:
        layout: the run folder.
        mode: any but `StartMode.DONE`.
        config: the experiment.
        placement: where each rank is.
        mpi: version of the MPI library.

    Raises:
        LaunchError: another run took it first, or it cannot be restarted once more.
        CheckpointError: there is no intact snapshot.
        NoProgressError: the run was restarted too often without progress.
    """
    mapping, places = to_mapping(config), [place.facts() for place in placement]
    from hpcdi.transport.guests import send_away  # with it h5py

    send_away(layout)  # guests of an earlier start write no more
    if mode is StartMode.NEW:
        run_folder.claim(layout.root, mapping, places, mpi=mpi)
        return 0
    reached = {"train_iter": 0, "env_steps": 0}
    if mode is StartMode.RESUME:
        snapshot = newest_snapshot(layout)
        reached = {name: int(snapshot.facts[name]) for name in reached}
    limit = config.system.max_restarts_without_progress
    try:
        restarts = run_folder.count_restart(layout, reached, limit)
    except NoProgressError as error:
        figures = run_folder.read(layout.root).get("figures", {})
        run_folder.end(layout, "failed", str(error), error.exit_code, figures)
        raise
    if mode is StartMode.RESUME:
        with or_refuse(f"the run folder {layout.root}", if_full="Free some space and try again"):
            run_folder.reopen(layout, restarts, places)
    else:
        facts, progress = run_folder.load(layout.root), read_json(layout.status_file)
        restarts["earlier"] = {**run_folder.spent(facts, progress), "until": time.time()}
        for path in layout.results:
            if path.is_file():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
        run_folder.claim(layout.root, mapping, places, mpi=mpi, past=restarts)
    sweep_temporary(layout.root)  # their writers have ended
    return int(restarts["restarts"])


def ranks_of(path: str, overrides: Sequence[str], config: ExperimentConfig) -> int | None:
    """Returns how many ranks a run goes on with where nobody says it: as many as it had.

    None: what the experiment asks for, since the run was in one process, or its number of
    collectors is said on the command line, or is another one now.

    Args:
        path: the run folder.
        overrides: ``key=value`` of the command line.
        config: the experiment.
    """
    layout = RunLayout(Path(path))
    ranks = len(run_folder.load(layout.root).get("placement", []))
    is_said = any(each.partition("=")[0] in COLLECTORS for each in overrides)
    if ranks < 2 or is_said or differences(_config_in(layout), to_mapping(config), COLLECTORS):
        return None
    return ranks


def newest_snapshot(layout: RunLayout) -> Checkpoint:
    """Returns the newest intact snapshot of a run; logs and skips torn ones.

    Raises:
        CheckpointError: there is none; it says what is wrong with each, and what to do.
        StoreError: the file system fails.
    """
    snapshot, torn = newest_checkpoint(layout.snapshots_dir, _FACTS)
    if snapshot is None:
        why = "\n  - ".join(["there is no whole snapshot to resume from", *map(str, torn)])
        if not torn:
            config = run_folder.short(layout.config_file)
            why += (
                ": the run ended before its first one, and has to begin anew. Give its experiment "
                f"in place of --resume: {config}; with --run-dir {run_folder.short(layout.root)} "
                "system.auto_resume=true it begins in the same folder"
            )
        raise CheckpointError(layout.snapshots_dir, why)
    for error in torn:
        LOGGER.warning("%s; the one before it is taken", error)
    return snapshot


def take_up(config: ExperimentConfig, layout: RunLayout) -> Resumed | None:
    """Read the newest snapshot of a run, or write the data that a new one is given.

    Raises:
        StoreError: no snapshot is whole, or it cannot be read; there are no such data, or they do
            not fit the policy, or the present settings of a run that is resumed.
    """
    run = run_folder.load(layout.root)
    resumed = read_newest(
        layout,
        same=repeats_as(config, len(run.get("placement", []))),
        over_iterations=offline_iterations(config) > 0,
        start=int(run.get("restarts", 0)),
    )
    if config.data:
        from hpcdi.run import given  # with it gymnasium

        if resumed is None:
            say(f"  data         {given.fill(config, layout)}")
        else:
            given.check_resumed(config, resumed.published.values(), resumed.facts["train_iter"])
    return resumed


def read_newest(
    layout: RunLayout, *, same: str = "", over_iterations: bool = False, start: int = 0
) -> Resumed | None:
    """Read the newest snapshot of a run, before anything is written; None without a snapshot.

    Points of curves after it are removed.

    Args:
        layout: the run folder.
        same: see `repeats_as`: where the snapshot has the same, the run will repeat what came
            after it, see `resume_from`.
        over_iterations: curves are drawn over train iterations.
        start: how often the run has been resumed, this time included, see `Lockstep.start`.

    Raises:
        StoreError: no snapshot is whole, or it cannot be read.
    """
    from hpcdi.roles.coordinator.run_curves import player_of
    from hpcdi.roles.coordinator.snapshots import resume_from
    from hpcdi.utils.event_file import drop_events_after

    if not has_snapshot(layout):
        return None
    snapshot = newest_snapshot(layout)
    facts = snapshot.facts
    repeats = bool(same) and facts.get("repeats_as") == same
    resumed = resume_from(layout, snapshot, repeats=repeats)
    if not repeats:  # rounds after it were played, and count: none is played again with their seeds
        plan = {**resumed.state.get("plan", {}), "start": start}
        resumed = dataclasses.replace(resumed, state={**resumed.state, "plan": plan})
    train_iter = facts["train_iter"]
    env_steps = {name: int(group["env_steps"]) for name, group in resumed.state["groups"].items()}
    of_players = resumed.iterations if over_iterations else env_steps
    of_run = train_iter if over_iterations else facts["env_steps"]

    def step(curve: str) -> int:
        player = player_of(curve, of_players)
        return int(of_run if player is None else of_players.get(player, of_run))

    def shorten_curves() -> None:
        drop_events_after(layout.tensorboard_dir, step, train_iter, resumed.iterations)
        for file in layout.curve_files():
            drop_points_after(file, step if file == layout.curves_file else train_iter)

    or_warn("shortened curves", shorten_curves)
    return resumed


def has_snapshot(layout: RunLayout) -> bool:
    """True if a run can be resumed.

    Raises:
        StoreError: the file system fails.
    """
    folder = layout.snapshots_dir
    return bool(patiently(partial(checkpoint_names, folder), folder))


def _config_in(layout: RunLayout) -> dict[str, Any]:
    """Returns the configuration in a run folder."""
    return load(layout.config_file).to_mapping()


class NewSettings:
    """Rewrites ``config.yaml`` after the first snapshot that was taken with the new settings.

    Until then a restart uses the settings of the existing snapshots, so that a setting with which
    the run cannot start does not stay.

    Args:
        layout: the run folder, before anything is written there.
        config: the new settings.
    """

    def __init__(self, layout: RunLayout, config: ExperimentConfig) -> None:
        self._layout, self._config = layout, config
        self._newest = checkpoint_names(layout.snapshots_dir)[-1:]
        self._is_due = bool(self._newest)  # else run and config.yaml are new
        self._looked_at = 0.0

    def look(self, now: float, *, at_once: bool = False) -> None:
        """Check for a new snapshot, at most once a second.

        Args:
            now: seconds of a monotonic clock.
            at_once: check in any case.
        """
        if not self._is_due or (now - self._looked_at < _CHECK_EVERY_S and not at_once):
            return
        self._looked_at = now
        with contextlib.suppress(OSError):  # it is looked again
            if checkpoint_names(self._layout.snapshots_dir)[-1:] != self._newest:
                self._is_due = False
                write = partial(run_folder.keep_config, self._layout, to_mapping(self._config))
                or_warn("config.yaml", write)


# ------------------------------------------------------------ settings that snapshots depend on


@dataclass(frozen=True)
class Difference:
    """A setting whose value has changed."""

    key: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.key}: {self.old} in the run, {self.new} now"


def differences(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    keys: Collection[str] = BINDING,
    free: Collection[str] = FREE,
) -> list[Difference]:
    """Returns the settings below `keys`, and not below `free`, that differ between two experiments.

    Args:
        old: the run's experiment as a nested mapping.
        new: the requested one.
        keys: dotted paths.
        free: dotted paths of exceptions.
    """
    olds, news = dict(dotted(old)), dict(dotted(new))
    return [
        Difference(key, olds.get(key, _ABSENT), news.get(key, _ABSENT))
        for key in dict.fromkeys([*olds, *news])
        if is_below(of_policy(key), keys)
        and not is_below(of_policy(key), free)
        and olds.get(key, _ABSENT) != news.get(key, _ABSENT)
    ]


def of_policy(key: str) -> str:
    """Returns the path of a setting of one of a team's policies as if there were one policy."""
    return re.sub(r"^policy\.policies\.[^.]+\.", "policy.", key)


def is_below(key: str, keys: Iterable[str]) -> bool:
    """Returns whether a dotted path is one of `keys` or below one of them."""
    return any(key == above or key.startswith(f"{above}.") for above in keys)
