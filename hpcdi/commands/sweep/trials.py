"""A sweep as a search (`--optuna`, `--search`): trials are proposed, run, pruned and told of.

::

    ask ──► trials/003.json ──► experiments/003.yaml ──► a run ──► its evaluations at each interval
     ▲                                                    │ ended      │ report
     └──────────────── tell: done, pruned, failed ◄───────┴── SIGTERM ◄┘ (pruned)

A trial is taken by making its file, which one process alone can do, so that several processes
(tasks of an array job) search together. All state is in files: who goes on asks for no trial
again, and a run of it that still lives, because only its sweep was killed, is watched further.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from hpcdi.commands.options import print_lines
from hpcdi.commands.run_state import RunStatus, axis_of, status_of
from hpcdi.commands.sweep.runs import (
    FAILED,
    PRUNED,
    RUNNING,
    Search,
    Sweep,
    decides_origin,
    make,
    read,
    read_trial,
    search_of,
    trial_file,
    values_of,
)
from hpcdi.commands.sweep.scores import Point, points_of, value_at
from hpcdi.config import words
from hpcdi.config.fields import to_mapping
from hpcdi.config.load import load
from hpcdi.config.roles import SoloCommanderConfig
from hpcdi.config.words import dump
from hpcdi.errors import ConfigError, LaunchError
from hpcdi.run import run_folder, slurm_queue
from hpcdi.run.resume import is_below
from hpcdi.run.run_folder import short
from hpcdi.search import Dimension, OptunaSearcher, RandomSearcher, Searcher, Value
from hpcdi.store.atomic import write_json, write_text
from hpcdi.utils.metrics import human_return
from hpcdi.utils.nested import dotted
from hpcdi.utils.registry import named_in_module

_LOOK_S = 1.0
"""Runs write their status so often."""
_RUNGS = 10
"""Intervals of pruning before the limit, unless said."""
_VAIN = 3
"""Trials that fail at the beginning, without one that does not, before the search ends."""
_PATHS = (
    "data", "env.env_id", "env.states", "policy.other.commander.evaluate_against",
    "policy.other.commander.league.fixed",
)  # fmt: skip
"""Settings that name files; see `with_whole_paths`."""
_NUMBER = r"\s*([-+.\deE]+)\s*"
_RANGE = re.compile(rf"(log|float|int|logint)\({_NUMBER},{_NUMBER}\)")


def dimensions_of(texts: Sequence[str]) -> tuple[Dimension, ...]:
    """Returns what is searched: ``key=log(1e-5,1e-2)``, ``key=int(1,8)``, ``key=a,b``.

    Args:
        texts: each of one setting, or of several with blanks between them.

    Raises:
        LaunchError: a text is malformed, or a key is there twice.
    """
    dimensions = tuple(
        _dimension(part) for text in texts for part in re.split(r"\s+(?=[\w.]+=)", text)
    )
    keys = [dimension.key for dimension in dimensions]
    if len(set(keys)) < len(keys):
        raise LaunchError(f"a setting is searched twice: {', '.join(keys)}")
    return dimensions


def _dimension(text: str) -> Dimension:
    key, sign, values = text.strip().partition("=")
    if not sign or not key:
        raise LaunchError(f"{text!r} is not of the form key=log(1e-5,1e-2), or key=a,b,c")
    match = _RANGE.fullmatch(values.strip())
    if match is None:
        if (choices := values_of(values)) and len(choices) > 1 and "(" not in values:
            return Dimension(key, choices=tuple(choices))
        raise LaunchError(
            f"{text!r} says no values: write log(low,high), float(low,high), int(low,high), "
            "logint(low,high), several values a,b,c, or 0..4"
        )
    kind = match[1]
    try:
        low, high = float(match[2]), float(match[3])
    except ValueError as error:
        raise LaunchError(f"{text!r}: {error}") from error
    is_log, is_whole = kind.startswith("log"), kind.endswith("int")
    if low >= high or (is_log and low <= 0) or (is_whole and (low % 1 or high % 1)):
        raise LaunchError(
            f"{text!r}: the first number must be the smaller one"
            + ", and above 0" * is_log
            + ", both without decimals" * is_whole
        )
    return Dimension(key, low, high, is_log=is_log, is_whole=is_whole)


def overrides_of(settings: Mapping[str, Value]) -> tuple[str, ...]:
    """Returns settings as ``key=value``, which read as the very same numbers."""
    return tuple(
        f"{key}={repr(float(value)).removesuffix('.0') if isinstance(value, float) else value}"
        for key, value in settings.items()
    )


def make_search(
    config: str,
    settings: Sequence[str],
    ranks: int | None,
    search: Search,
    every: int | None,
    *,
    serial: bool,
) -> tuple[Sweep, dict[str, Any]]:
    """Compile a search that has no folder yet; returns it, and the experiment of all trials.

    Args:
        config: the YAML file.
        settings: of all trials.
        ranks: of each run; None: as many as the experiment needs.
        search: what is searched, and how; its limit and interval are found here.
        every: environment steps between two looks of the pruner; None: a tenth of the limit.
        serial: each run is one process.

    Raises:
        ConfigError: the experiment is wrong at an end of what is searched. LaunchError: a setting
            has several values, or is searched, too; a choice is there twice; or trials need
            different numbers of ranks.
    """
    several = [text for text in settings if len(values_of(text.partition("=")[2])) > 1]
    if several:
        raise LaunchError(
            f"{several[0]} has several values: of a search, all trials share the settings. To "
            f"search it: --space {several[0]!r}"
        )
    searched = {dimension.key for dimension in search.dimensions}
    fixed = [text for text in settings if text.partition("=")[0] in searched]
    if fixed:
        raise LaunchError(
            f"{fixed[0]} has one value, but its key is searched: leave one of them out"
        )
    from hpcdi.run.experiment import with_whole_paths

    corners = {dimension.key: dimension.corners() for dimension in search.dimensions}
    extremes = [  # settings in which each dimension has each of its ends, or choices, once
        overrides_of({key: values[min(n, len(values) - 1)] for key, values in corners.items()})
        for n in range(max(map(len, corners.values())))
    ]
    sweep, experiments = make(config, settings, ranks, 0, serial=serial, several=extremes)
    for key, count in ((each.key, len(each.choices)) for each in search.dimensions):
        values = [dict(dotted(e)).get(key, n) for n, e in enumerate(experiments[:count])]
        if len(set(map(repr, values))) < count:
            raise LaunchError(f"--space: {key} has a choice twice, {values}: write each once")
    compiled = load(config, ["system.auto_resume=true", *settings])
    typed = compiled.to_mapping()
    base = with_whole_paths(compiled.config, config)
    if not any(map(decides_origin, corners)):
        base = replace(base, env=replace(base.env, origin=experiments[0]["env"]["origin"]))
    is_offline = axis_of(dict(dotted(typed))) == "train iteration"
    commander = base.policy.other.commander
    limit = math.inf
    if isinstance(commander, SoloCommanderConfig):
        limit = commander.max_train_iter if is_offline else commander.max_env_step
    if search.prunes and every is None and math.isfinite(limit):
        every = max(1, int(limit) // _RUNGS)
    if search.prunes and every is None:
        sys.stderr.write(
            "hpcdi sweep: nothing is pruned: the experiment has no limit "
            "(policy.other.commander.max_env_step), and there is no --prune-every\n"
        )
    step = "policy_version" if is_offline else "env_steps"
    search = replace(
        search,
        limit=limit,
        every=every if search.prunes else None,
        step=step,
        asked=f"{zlib.crc32(repr((typed, search.dimensions)).encode()):08x}",
        dimensions=tuple(_with_whole_paths(each, experiments) for each in search.dimensions),
    )
    return replace(sweep, elements=(), search=search), to_mapping(base)


def _with_whole_paths(dimension: Dimension, experiments: Sequence[Mapping[str, Any]]) -> Dimension:
    """Returns a dimension whose choices find their files from anywhere; `latest` is one run.

    Args:
        dimension: what is searched.
        experiments: of its choices, in their order, with whole paths.
    """
    if not is_below(dimension.key, _PATHS):
        return dimension
    values = [reduce(getitem, dimension.key.split("."), each) for each in experiments]
    choices = (
        text if words.read(text) == value else json.dumps(words.literal(value))
        for text, value in zip(dimension.choices, values, strict=False)
    )
    return replace(dimension, choices=tuple(choices))


def as_asked(search: Search) -> Search:
    """Returns a search by which the same command is known, typed again, also with more trials."""
    return replace(search, trials=0, dimensions=())


def same_search(sweep: Sweep, other: Sweep) -> bool:
    """Returns whether the search in a folder is this one, but for its number of trials."""
    if sweep.search is None or other.search is None:
        return False
    return as_asked(sweep.search) == as_asked(other.search)


def searcher_class(name: str) -> type[Searcher]:
    """Returns the class of a searcher: "optuna", "random" or ``module:Class``.

    Raises:
        ConfigError: there is no such class. LaunchError: Optuna is not installed, or the class is
            no searcher.
    """
    if name == "optuna":
        OptunaSearcher.library()
    built_in: dict[str, type[Searcher]] = {"optuna": OptunaSearcher, "random": RandomSearcher}
    if name in built_in:
        return built_in[name]
    if ":" not in name:
        raise LaunchError(f"--search {name}: write random, optuna, or module:Class")
    sys.path.insert(0, str(Path.cwd()))
    cls = named_in_module(name, "--search")
    if not (isinstance(cls, type) and issubclass(cls, Searcher)):
        raise LaunchError(f"--search {name}: it is no class below hpcdi.search.Searcher")
    return cls


def hand_out(root: Path, tasks: int) -> None:
    """Give trials that are not over to tasks of a new array job; no job of the search is alive."""
    for element in read(root).elements:
        record = read_trial(root, element.index)
        if record.get("state", RUNNING) == RUNNING:
            worker = int(record.get("worker") or element.index) % tasks
            write_json(trial_file(root, element.index), record | {"worker": str(worker)})


class Trials:
    """The trials of a search that this process runs; see `here.Supply`.

    Args:
        root: folder of the sweep.
        worker: task of an array job; empty: this process is the only one.
        searcher: who proposes.
    """

    def __init__(self, root: Path, worker: str, searcher: Searcher) -> None:
        sweep = read(root)
        self._root, self._worker, self._searcher = root, worker, searcher
        self._search = search_of(sweep)
        self._points: dict[int, list[Point]] = {}  # evaluations, by trial
        self._rungs: dict[int, int] = {}  # trial -> intervals of `every` steps reported so far
        self._pruned: set[int] = set()
        self._due = float("-inf")  # when to look next, on a monotonic clock
        self._all_failed = False  # all trials so far: more would be in vain
        self._unfinished: list[int] = []  # trials that this worker has begun before
        for element in sweep.elements:
            record = read_trial(root, element.index)
            if record.get("state", RUNNING) != RUNNING:
                self._tell(element.index, record)
            elif self.owns(element.index):
                self._unfinished.append(element.index)

    # ------------------------------------------------------------------------------- their start

    def more(self, running: Sequence[int]) -> Sequence[int]:
        """Returns the next trial to run; none, if all have been taken."""
        del running
        while self._unfinished:
            number = self._unfinished.pop(0)
            if self._prepare(number):
                return [number]
        while not self._all_failed and (taken := self._take()) is not None:
            if self._prepare(taken):
                return [taken]
        return []

    @property
    def has_more(self) -> bool:
        """See `Supply.has_more`."""
        is_left = bool(self._unfinished) or len(read(self._root).elements) < self._search.trials
        return is_left and not self._all_failed

    def owns(self, index: int) -> bool:
        """Returns whether a trial is this task's, where several search together."""
        return self._worker in ("", read_trial(self._root, index).get("worker", ""))

    def _take(self) -> int | None:
        """Returns a trial that nobody else has; None: there are enough."""
        folder = self._root / "trials"
        folder.mkdir(exist_ok=True)
        taken = len(list(folder.glob("*.json")))
        while taken < self._search.trials:
            try:
                with trial_file(self._root, taken).open("x") as file:
                    json.dump({"worker": self._worker}, file)  # it may be killed while it asks
            except FileExistsError:
                taken += 1
            else:
                return taken
        return None

    def _prepare(self, number: int) -> bool:
        """Write a trial's experiment, by settings that are asked for unless it has some.

        Returns False if these settings do not go together: the trial has failed.
        """
        sweep, record = read(self._root), read_trial(self._root, number)
        if "settings" not in record:
            settings = dict(self._searcher.ask(number))
            record |= {"settings": settings, "overrides": [*overrides_of(settings)]}
        record |= {"state": RUNNING, "worker": self._worker}
        try:
            compiled = load(sweep.experiment_of_all, record["overrides"])
        except ConfigError as error:
            self._end(number, record, FAILED, None, str(error))
            return False
        write_text(sweep.experiment(number), dump(compiled.to_mapping()), fsync=False)
        write_json(trial_file(self._root, number), record)
        return True

    # --------------------------------------------------------------------------- while they run

    def early(self, running: Sequence[int]) -> Sequence[int]:
        """Returns runs that are to end early, each once."""
        now = time.monotonic()
        if now < self._due or self._search.every is None:
            return []
        self._due = now + _LOOK_S
        ending = [n for n in running if n not in self._pruned and self._ends_early(n)]
        self._pruned.update(ending)
        for number in ending:
            step = self._rungs[number] * self._search.every
            value = human_return(value_at(self._points[number], step))
            print_lines([f"run {number} is pruned at {step} steps: mean return {value}"])
        return ending

    def _ends_early(self, number: int) -> bool:
        """Reports the intervals that a run has passed; returns whether the searcher ends it."""
        run_dir = read(self._root).run_dir(number)
        if not run_folder.read(run_dir):
            return False
        status = status_of(run_dir, slurm_queue.nobody)
        if status.is_over:
            return False
        points = self._points.get(number)
        if points is None:  # what was evaluated before this process began to look
            points = self._points[number] = points_of(status.layout)
        evaluation = status.progress.get("evaluation")
        if evaluation and (not points or evaluation[self._search.step] > points[-1][0]):
            points.append((evaluation[self._search.step], evaluation["mean"]))
        return bool(points) and self._report(number, points[-1][0])

    def _report(self, number: int, until: float) -> bool:
        """Reports a run's value at each interval to a step; returns whether to end it."""
        every = self._search.every
        while every and (step := (self._rungs.get(number, 0) + 1) * every) <= until:
            self._rungs[number] = step // every
            if self._searcher.report(number, step, value_at(self._points[number], step)):
                return True
        return False

    # --------------------------------------------------------------------------------- their end

    def ended(self, number: int, status: RunStatus | None, *, is_refused: bool) -> bool:
        """Hears that a run has ended; returns whether its trial is over."""
        record = read_trial(self._root, number)
        if is_refused:
            output = read(self._root).output(number)
            self._end(number, record, FAILED, None, f"it did not begin: see {short(output)}")
            return True
        if status is not None and status.state == "done":
            points = self._points[number] = points_of(status.layout)
            if not points:
                self._end(number, record, FAILED, None, "it was never evaluated")
                return True
            limit = self._search.limit
            # a run that was solved before the limit stays as good as it was until there
            end = limit if math.isfinite(limit) else points[-1][0]
            while self._report(number, end):
                pass  # it is over; others are compared with it at every interval
            score = self._search.score_of(points)
            self._end(number, record, "done", score, status.why)
            return True
        if number in self._pruned:
            points = points_of(status.layout) if status is not None else []
            seen = replace(self._search, limit=math.inf)  # it might have become better, or worse
            value = seen.score_of(points) if points else None
            self._end(number, record, PRUNED, value, "worse than the others at that step")
            return True
        if status is not None and status.state == "failed":
            self._end(number, record, FAILED, None, status.why)
            return True
        return False

    def _end(
        self, number: int, record: dict[str, Any], state: str, score: float | None, why: str
    ) -> None:
        record |= {"state": state, "score": score, "why": why}
        write_json(trial_file(self._root, number), record)
        self._tell(number, record)
        if state == FAILED:
            elements = read(self._root).elements
            states = [e.state for e in elements if e.state not in (RUNNING, "")]
            self._all_failed = len(states) >= _VAIN and set(states) == {FAILED}
            sys.stderr.write(f"hpcdi sweep: trial {number} failed: {why}\n")
            if self._all_failed:
                sys.stderr.write(f"hpcdi sweep: all {len(states)} trials have failed: no more\n")

    def _tell(self, number: int, record: Mapping[str, Any]) -> None:
        score = record.get("score") if record.get("state") == "done" else None
        self._searcher.tell(
            number, record.get("settings", {}), score, is_pruned=record.get("state") == PRUNED
        )
