"""The runs that settings make, and the folder that holds them.

::

    runs/<exp_name>/sweeps/<time>/
      sweep.json             manifest: index -> overrides, run folder, job, state
      population.json        with --pbt: what was decided, see `population`
      trials/003.json        of a search: settings, state and score of each run, see `trials`
      optuna.journal         with --optuna: Optuna's study
      experiments/003.yaml   the compiled experiment of each run
      output/003.out         its output; of Slurm job 12: slurm-12_3.out
      submit/job.sbatch      the script of the Slurm job, where there is one
      003/                   its run folder
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from hpcdi.commands.run_state import (
    GOES_WELL,
    SWEEP_FILE,
    RunStatus,
    jobs_of,
    status_of,
)
from hpcdi.commands.sweep.pbt import Space
from hpcdi.commands.sweep.scores import SCORES, Point
from hpcdi.config.fields import to_mapping
from hpcdi.config.load import load, misplaced
from hpcdi.config.schema import ExperimentConfig
from hpcdi.config.words import dump
from hpcdi.dataclass import dataclass
from hpcdi.errors import LaunchError
from hpcdi.run import resume, run_folder, slurm_queue
from hpcdi.run.environment import own_job, slurm_job_of
from hpcdi.search import Dimension
from hpcdi.store.atomic import read_json, write_json, write_text
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import RunLayout
from hpcdi.utils.nested import dotted

WAITING = "waiting"
"""State of a run that has not been started yet."""
REFUSED = "refused"
"""State of a run that was refused at its start: its output says why."""
PAUSED = "paused"
"""State of a run of a population that has reached its mark, and waits for the others."""
PRUNED, FAILED, RUNNING = "pruned", "failed", "running"
"""States of a search's trial, beside "done"."""
_FORMAT = 1
_MOST = 10_000
_RANGE = re.compile(r"(?=.*\d)[-.\d]*\.\.[-.\d]*")
"""Of whole numbers; also what is almost one, as ``0..``."""
_OPENING, _CLOSING = "[{(", "]})"
_SIGN = re.compile(r"""'[^']*'?|"(?:\\.|[^"\\])*"?|.""", re.DOTALL)
"""All that is within quotes, or one letter."""


@dataclass(frozen=True)
class Element:
    """One run of a sweep.

    Attributes:
        index: from 0; index of the array job.
        overrides: ``key=value`` of each key that has several values.
        job: Slurm job id; empty: it has none.
        state: at the last `look`: `WAITING`, `REFUSED`, or a state of `RunStatus`.
    """

    index: int
    overrides: tuple[str, ...]
    job: str = ""
    state: str = WAITING

    @property
    def settings(self) -> dict[str, str]:
        """The overrides' values by their keys."""
        return dict(text.split("=", 1) for text in self.overrides)

    @property
    def title(self) -> str:
        """What people read of it: its number, and its settings."""
        return f"run {self.index} ({' '.join(self.overrides)})"


@dataclass(frozen=True)
class Population:
    """The rule by which runs of a sweep are compared and copied (`--pbt`); see `population`.

    Attributes:
        every: environment steps between two comparisons.
        limit: environment steps at which runs end.
        share: of the population that copies, and that is copied.
        seed: of the decisions' random numbers.
        spaces: settings that are explored.
    """

    every: int
    limit: int
    share: float
    seed: int
    spaces: tuple[Space, ...]

    def mark(self, passed: int) -> int:
        """Returns the environment steps at which runs that have passed so many marks pause next."""
        return min((passed + 1) * self.every, self.limit)

    def pauses(self, progress: Mapping[str, Any]) -> bool:
        """Returns whether a run that is done has only reached its mark, and is to go on later.

        Args:
            progress: its status.json.
        """
        limits, best = progress.get("limits", {}), progress.get("best_evaluation")
        mark, stop_value = limits.get("env_steps"), limits.get("stop_value")
        if mark is None or not mark <= progress["env_steps"] < self.limit:
            return False
        return best is None or stop_value is None or best["mean"] < stop_value


@dataclass(frozen=True)
class Search:
    """The rule by which runs of a sweep are proposed, pruned and compared; see `trials`.

    Attributes:
        searcher: "optuna", "random", or a class, ``module:Class``.
        dimensions: what is searched.
        trials: how many runs there are.
        score: what is maximised, of `scores.SCORES`.
        prunes: whether trials may end early.
        seed: of the searcher.
        limit: steps at which a run ends; may be infinite.
        every: steps between two looks of the pruner; None: it has none.
        step: of an evaluation: "env_steps", or "policy_version", the train iteration, offline.
        asked: checksum of the experiment and the dimensions as they are typed; what is found by
            them, such as the run that ``latest`` is, may be another when the same command is typed
            again.
    """

    searcher: str
    dimensions: tuple[Dimension, ...]
    trials: int
    score: str
    prunes: bool
    seed: int
    limit: float = math.inf
    every: int | None = None
    step: str = "env_steps"
    asked: str = ""

    def score_of(self, points: Sequence[Point]) -> float:
        """Returns what a run is worth, by its evaluations."""
        return SCORES[self.score](points, self.limit)


@dataclass(frozen=True)
class Sweep:
    """A sweep: the content of its manifest.

    Attributes:
        root: its folder.
        exp_name: of the experiment.
        elements: runs by index.
        ranks: of each run; 0: one process (`hpcdi serial`).
        parallel: runs at a time; 0: no limit.
        started: time and command line of its start.
        job: the Slurm job that runs all of it (`--pack`); empty: none.
        population: None: every run is for itself.
        search: None: its runs are known from the start.
    """

    root: Path
    exp_name: str
    elements: tuple[Element, ...]
    ranks: int
    parallel: int
    started: dict[str, Any] = field(default_factory=dict)
    job: str = ""
    population: Population | None = None
    search: Search | None = None

    @property
    def manifest(self) -> Path:
        """Path of the manifest."""
        return self.root / SWEEP_FILE

    def name_of(self, index: int) -> str:
        """Returns the name of a run's folder."""
        return f"{index:03d}"

    def run_dir(self, index: int) -> Path:
        """Returns a run's folder."""
        return self.root / self.name_of(index)

    def experiment(self, index: int) -> Path:
        """Returns the path of a run's compiled experiment."""
        return self.root / "experiments" / f"{self.name_of(index)}.yaml"

    @property
    def experiment_of_all(self) -> Path:
        """Path of the compiled experiment that all trials of a search share."""
        return self.root / "experiments" / "all.yaml"

    def output(self, index: int) -> Path:
        """Returns the path of a run's output, if this machine ran it."""
        return self.root / "output" / f"{self.name_of(index)}.out"

    @property
    def command_to_resume(self) -> str:
        """What is typed to resume it where it was started: here, packed, or as an array job."""
        typed = self.started.get("command") or ()
        places = [option for option in ("--local", "--pack") if option in typed]
        return " ".join(["hpcdi sweep resume", run_folder.short(self.root), *places])

    def save(self) -> None:
        """Write the manifest."""
        runs = [{**asdict(e), "run": self.name_of(e.index)} for e in self.elements]
        record = {
            "format": _FORMAT,
            "exp_name": self.exp_name,
            "ranks": self.ranks,
            "parallel": self.parallel,
            **self.started,
            "job": self.job,
            "population": None if self.population is None else asdict(self.population),
            "search": None if self.search is None else _search_record(self.search),
            "runs": [] if self.search is not None else runs,  # they are in trials/
        }
        write_json(self.manifest, record)

    def with_jobs(self, jobs: dict[int, str]) -> Sweep:
        """Returns the sweep with new jobs of some runs."""
        changed = [replace(e, job=jobs.get(e.index, e.job)) for e in self.elements]
        return replace(self, elements=tuple(changed))


def values_of(text: str) -> list[str]:
    """Returns the values of a key: ``a,b,c``; ``0..2,7`` are 0, 1, 2, 7; ``[64,64],[8]`` two lists.

    Raises:
        LaunchError: a range runs backwards or has no end, or a value is empty.
    """
    values, depth = [""], 0
    for sign in _SIGN.findall(text):
        if sign == "," and depth == 0:
            values.append("")
            continue
        depth += (sign in _OPENING) - (sign in _CLOSING)
        values[-1] += sign
    if len(values) > 1 and "" in values:
        raise LaunchError(f"{text} has an empty value")
    return [one for value in values for one in _in_range(value)]


def _in_range(value: str) -> list[str]:
    """Returns the numbers of a range; of what is none the value itself."""
    if _RANGE.fullmatch(value) is None:
        return [value]
    first, _, last = value.partition("..")
    try:
        numbers = range(int(first), int(last) + 1)
    except ValueError:  # it lacks one of them, or has a point too much
        numbers = range(0)
    if not numbers or numbers[-1] - numbers[0] >= _MOST:
        raise LaunchError(f"{value} is no range: write first..last, at most {_MOST} values")
    return list(map(str, numbers))


def grid(settings: Sequence[str]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Returns the settings that all runs share, and those of each; the last key changes fastest.

    Args:
        settings: ``key=value`` or ``key=value,value``.

    Raises:
        LaunchError: a setting is malformed, no key has several values, one that has them comes
            again, or there are too many runs.
    """
    shared, axes = [], dict[str, list[str]]()
    for text in settings:
        key, sign, values = text.partition("=")
        if not sign or not key:
            why = f"is not of the form key=value or key=value,value{misplaced(text)}"
            raise LaunchError(f"{text!r} {why}")
        if key in axes:
            raise LaunchError(
                f"{key} has several values twice, or one after them: write all together, a,b,c"
            )
        several = values_of(values)
        if len(several) == 1:
            shared.append(f"{key}={several[0]}")
        else:
            axes[key] = [f"{key}={value}" for value in several]
    if not axes:
        raise LaunchError(
            "no setting has several values: write key=a,b,c or seed=0..4; for one run there is "
            "`hpcdi train`"
        )
    count = math.prod(map(len, axes.values()))
    if count > _MOST:
        raise LaunchError(f"these are {count} runs; at most {_MOST} are taken")
    return shared, list(itertools.product(*axes.values()))


def make(
    config: str,
    settings: Sequence[str],
    ranks: int | None,
    parallel: int,
    *,
    serial: bool,
    several: Sequence[Sequence[str]] | None = None,
) -> tuple[Sweep, list[dict[str, Any]]]:
    """Compile all runs of a sweep that has no folder yet; returns it, and their experiments.

    Args:
        config: the YAML file.
        settings: see `grid`.
        ranks: of each run; None: as many as the experiment needs.
        parallel: see `Sweep`.
        serial: each run is one process.
        several: settings of each run, beside `settings`, which all then share; None: see `grid`.

    Raises:
        ConfigError: an experiment is wrong. LaunchError: settings are, two runs are the same, or
            runs need different numbers of ranks.
    """
    from hpcdi.run.solver_ranks import default_ranks, plan_ranks

    shared: Sequence[str] = settings
    if several is None:
        shared, several = grid(settings)
    runs = compiled_alike(config, [[*shared, *overrides] for overrides in several], serial=serial)
    worlds = set()
    for run in runs:
        needed = default_ranks(run) if ranks is None else ranks
        if not serial:
            plan_ranks(needed, run)
        worlds.add(needed)
    experiments: list[dict[str, Any]] = [to_mapping(run) for run in runs]
    if len(worlds) > 1 and not serial:
        raise LaunchError(
            f"these runs need different numbers of ranks ({sorted(worlds)}): choose one by -n, or "
            "make a sweep for each"
        )
    elements = tuple(Element(i, tuple(overrides)) for i, overrides in enumerate(several))
    first: dict[str, Element] = {}
    for element, experiment in zip(elements, experiments, strict=True):
        same = first.setdefault(repr(experiment), element)
        if same is not element:  # it would count as another seed, and cost as much
            raise LaunchError(
                f"{element.title} has the same experiment as {same.title}: write each value once"
            )
    started = {"command": sys.argv, "started": run_folder.now_text()}
    name = str(experiments[0]["exp_name"])
    root = Path("runs", name, "sweeps", "TIME")
    return Sweep(root, name, elements, 0 if serial else max(worlds), parallel, started), experiments


def compiled_alike(
    config: str, several: Sequence[Sequence[str]], *, serial: bool
) -> list[ExperimentConfig]:
    """Returns the experiments of runs that are compared, whenever and wherever these are started.

    Runs of one environment have one `env.origin`, that of the first of them, whose environment is
    made once for this; all have the data that there are now.

    Args:
        config: the YAML file.
        several: ``key=value`` of each run.
        serial: each run is one process.

    Raises:
        ConfigError: an experiment is wrong.
    """
    from hpcdi.run.experiment import load_experiment, with_whole_paths

    experiments: list[ExperimentConfig] = []
    origins: dict[str, dict[str, Any] | None] = {}
    for settings in several:
        # a run that was stopped or has failed is resumed, however it is started again
        overrides = ["system.auto_resume=true", *settings]
        run = with_whole_paths(load(config, overrides).config, config)
        same = repr([kept for kept in dotted(to_mapping(run)) if decides_origin(kept[0])])
        if same not in origins:
            first, _ = load_experiment(config, overrides, over_ranks=not serial)
            origins[same] = first.config.env.origin
        env = replace(run.env, origin=origins[same])
        experiments.append(replace(run, env=env))
    return experiments


def decides_origin(key: str) -> bool:
    """Returns whether runs that differ in a setting may differ in `env.origin` beyond the seed."""
    is_of_env = resume.is_below(key, ("env",)) and not resume.is_below(key, resume.FREE)
    return is_of_env or key == "policy.other.replay_buffer.frames"


def keep(sweep: Sweep, experiments: Sequence[Mapping[str, Any]]) -> None:
    """Write a new sweep's folder: the experiments, then the manifest.

    Args:
        sweep: a new one.
        experiments: of its runs; of a search the one that all trials share.

    Raises:
        LaunchError: the folder cannot be written.
    """
    files = list(map(sweep.experiment, range(len(experiments))))
    if sweep.search is not None:
        files = [sweep.experiment_of_all]
    with or_refuse(str(sweep.root)):
        sweep.output(0).parent.mkdir(parents=True, exist_ok=True)
        for file, experiment in zip(files, experiments, strict=True):
            write_text(file, dump(experiment), fsync=False)
        sweep.save()


def read(root: Path) -> Sweep:
    """Returns the sweep of a folder.

    Raises:
        LaunchError: it holds none.
    """
    record = read_json(root / SWEEP_FILE)
    if record.get("format") != _FORMAT:
        others = sorted([*root.glob(f"*/{SWEEP_FILE}"), *root.glob(f"sweeps/*/{SWEEP_FILE}")])
        hint = f"; name one, such as {run_folder.short(others[-1].parent)}" if others else ""
        raise LaunchError(
            f"{root} holds no sweep: there is no {SWEEP_FILE} of this version in it{hint}"
        )
    try:
        elements = tuple(
            Element(run["index"], tuple(run["overrides"]), run["job"], run["state"])
            for run in record["runs"]
        )
        search = _search(record.get("search"))
        started = {name: record.get(name) for name in ("command", "started")}
        return Sweep(
            root.absolute(),
            record["exp_name"],
            elements if search is None else _trials(root),
            record["ranks"],
            record["parallel"],
            started,
            record.get("job", ""),
            _population(record.get("population")),
            search,
        )
    except (KeyError, TypeError) as error:
        raise LaunchError(f"{root / SWEEP_FILE} is damaged: {error!r}") from error


def _population(record: Any) -> Population | None:
    """Returns the population of a manifest.

    Raises:
        KeyError, TypeError: it is damaged.
    """
    if record is None:
        return None
    spaces = tuple(Space(space["key"], tuple(space["values"])) for space in record["spaces"])
    return Population(record["every"], record["limit"], record["share"], record["seed"], spaces)


def _search_record(search: Search) -> dict[str, Any]:
    """Returns a search for the manifest, without infinity, which JSON has not."""
    return {**asdict(search), "limit": None if math.isinf(search.limit) else search.limit}


def _search(record: Any) -> Search | None:
    """Returns the search of a manifest.

    Raises:
        KeyError, TypeError: it is damaged.
    """
    if record is None:
        return None
    dimensions = tuple(
        Dimension(**{**each, "choices": tuple(each["choices"])}) for each in record["dimensions"]
    )
    limit = math.inf if record["limit"] is None else record["limit"]
    return Search(**{**record, "dimensions": dimensions, "limit": limit})


def search_of(sweep: Sweep) -> Search:
    """Returns how the runs of a sweep are proposed.

    Raises:
        LaunchError: it is no search.
    """
    if sweep.search is None:
        raise LaunchError(f"{run_folder.short(sweep.root)} holds a sweep, but no search")
    return sweep.search


def trial_file(root: Path, index: int) -> Path:
    """Returns the path of a trial: who makes it has taken the trial."""
    return root / "trials" / f"{index:03d}.json"


def read_trial(root: Path, index: int) -> dict[str, Any]:
    """Returns what a trial's file says: at first who has taken it, without settings."""
    return read_json(trial_file(root, index))


def _trials(root: Path) -> tuple[Element, ...]:
    """Returns the trials of a search so far."""
    count = len(list((root / "trials").glob("*.json")))
    records = [read_trial(root, number) for number in range(count)]
    return tuple(
        Element(number, tuple(record.get("overrides", ())), "", record.get("state", RUNNING))
        for number, record in enumerate(records)
    )


def look(
    sweep: Sweep, packed: slurm_queue.QueueJob | None = None
) -> tuple[Sweep, list[RunStatus | None]]:
    """Returns the sweep with the present state of each run, and each run's status; None: not begun.

    States that have changed are written into the manifest, where that is possible: the sweep of
    somebody else can be looked at, too.

    Args:
        sweep: as its folder has it.
        packed: the job that does all of it; while it is on, each run's folder says how it is.
    """
    statuses: list[RunStatus | None] = []
    elements, jobs, over = [], _queued_jobs(sweep), _jobs_that_left(sweep)
    of_all = packed.job_id if packed is not None and packed.waits else ""
    if packed is not None and of_all:
        jobs[of_all] = packed
    for element in sweep.elements:
        run_dir = sweep.run_dir(element.index)
        has_begun = bool(run_folder.read(run_dir))
        is_known = has_begun or element.job in jobs
        known = jobs | over.get(element.index, {})
        status = status_of(run_dir, known.get, element.job or of_all) if is_known else None
        statuses.append(status if has_begun else None)
        not_begun = REFUSED if element.state == REFUSED else WAITING
        state = "pending" if element.job else not_begun
        if status is not None:
            state = status.state
        if status is not None and state == "done" and sweep.population is not None:
            state = PAUSED if sweep.population.pauses(status.progress) else state
        if sweep.search is not None and element.state != RUNNING:
            state = element.state  # the trial is over, whatever its run says
        elements.append(replace(element, state=state))
    changed = replace(sweep, elements=tuple(elements))
    if changed != sweep and sweep.search is None:
        _save_states(changed)
    return changed, statuses


def refuse(sweep: Sweep, index: int) -> Sweep:
    """Note in the manifest that a run was refused at its start; returns the sweep with it."""
    elements = [replace(e, state=REFUSED) if e.index == index else e for e in sweep.elements]
    changed = replace(sweep, elements=tuple(elements))
    _save_states(changed)
    return changed


def _queued_jobs(sweep: Sweep) -> dict[str, slurm_queue.QueueJob]:
    """Returns the jobs in the queue, by id, that are or will be on with runs of a sweep."""
    submitted = [element for element in sweep.elements if element.job]
    array_jobs, next_jobs, last_jobs = {e.job for e in submitted}, set[str](), set[str]()
    for element in submitted:  # its task cannot be requeued everywhere: it may go on in others
        layout = RunLayout(sweep.run_dir(element.index))
        next_jobs.update(jobs_of(layout, {}))
        last_jobs.update(jobs_of(layout, run_folder.read(layout.root)))
    # one that is on, and is no next job, may be an allocation whose shell has started the run
    return {
        job_id: job
        for job_id, job in slurm_queue.ask_all(array_jobs | last_jobs).items()
        if job_id in array_jobs or job.waits or (job.is_on and job_id in next_jobs)
    }


def _jobs_that_left(sweep: Sweep) -> dict[int, dict[str, slurm_queue.QueueJob]]:
    """Returns the jobs that are over, by id, by the packed runs that are on in them, as these say.

    So a run whose job was killed is dead before its lock is old.
    """
    began, own = dict[int, str](), slurm_job_of(own_job(os.environ))
    for element in sweep.elements:
        facts = {} if element.job else run_folder.read(sweep.run_dir(element.index))
        job = slurm_job_of(slurm_queue.texts_of(facts.get("slurm")))
        if job not in ("", own) and facts.get("state") == "running":
            began[element.index] = job
    jobs = slurm_queue.ask_all(began.values())
    over = {name: job for name, job in jobs.items() if not (job.is_on or job.waits)}
    return {index: {job: over[job]} for index, job in began.items() if job in over}


def _save_states(seen: Sweep) -> None:
    """Write the states into the manifest as it is now, where that is possible.

    Others may have submitted runs since; whoever reads the sweep looks again.
    """
    states = {(element.index, element.job): element.state for element in seen.elements}
    now = read(seen.root)
    elements = [replace(e, state=states.get((e.index, e.job), e.state)) for e in now.elements]
    with contextlib.suppress(OSError):
        replace(now, elements=tuple(elements)).save()


def to_start(sweep: Sweep) -> list[int]:
    """Returns the runs that are neither over for good, nor pending, nor running."""
    over = GOES_WELL if sweep.search is None else (*GOES_WELL, PRUNED, FAILED)
    return [element.index for element in sweep.elements if element.state not in over]
