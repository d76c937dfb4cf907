"""A sweep as a population (`--pbt`): its runs train to a mark, are compared, and the worst copy.

::

    run to the mark ─► compare newest evaluations ─► population.json: the decision ─┐
        ▲                                             settings and snapshots of the copies
        └── the next mark in experiments/*.yaml ◄── generation + 1 ◄────────────────┘

A mark is a number of environment steps, the same for all, and the limit of each run until there:
what waits for the others takes no core. All state is in files: a decision is written before it is
carried out, and carried out before a run of the next generation begins, so a kill at any moment
only repeats a part. A copy is a new snapshot of the run that copies: its own counters and replay
buffer, with weights, target networks and optimizer of the donor's newest snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.options import print_lines
from hpcdi.commands.run_state import RunStatus
from hpcdi.commands.sweep.pbt import Copy, Member, Space, decide, parsed_number
from hpcdi.commands.sweep.runs import PAUSED, Population, Sweep, look, read
from hpcdi.config.compiled import compile_config
from hpcdi.config.load import load
from hpcdi.config.roles import SoloCommanderConfig
from hpcdi.config.schema import offline_iterations
from hpcdi.config.words import dump
from hpcdi.dataclass import dataclass
from hpcdi.errors import ConfigError, LaunchError
from hpcdi.run import resume
from hpcdi.run.run_folder import short
from hpcdi.run.run_lock import RunLock
from hpcdi.store.atomic import read_json, write_json, write_text
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import RunLayout
from hpcdi.utils.metrics import human_count, human_return
from hpcdi.utils.nested import dotted

_FORMAT = 1
_LIMIT = "policy.other.commander.max_env_step"
_FIXED = (*resume.BINDING, "policy.learn.optimizer", "exp_name")
"""Keys without which a run cannot continue from another one: its optimizer is copied, too."""


def population_of(
    sweep: Sweep, experiments: Sequence[Mapping[str, Any]], every: int, share: float
) -> Population:
    """Returns how the runs of a new sweep are compared.

    Args:
        sweep: that was made.
        experiments: of its runs.
        every: environment steps between two comparisons.
        share: see `Population`.

    Raises:
        LaunchError: the runs have no common limit, or one could not continue from another.
    """
    values: dict[str, list[str]] = {}
    for element in sweep.elements:
        for key, value in element.settings.items():
            if value not in values.setdefault(key, []):
                values[key].append(value)
    fixed = [
        key
        for key in values
        if resume.is_below(resume.of_policy(key), _FIXED)
        and not resume.is_below(resume.of_policy(key), resume.FREE)
    ]
    if fixed:
        raise LaunchError(
            f"--pbt: the runs differ in {', '.join(fixed)}: none could continue from the weights, "
            "the data or the optimizer of another. Make a population for each value"
        )
    configs = [compile_config(e).config for e in experiments]
    if any(math.isinf(offline_iterations(config)) for config in configs):
        raise LaunchError(
            "--pbt compares runs at environment steps, and a run that learns from its data alone "
            "makes none (policy.other.commander.offline_iterations)"
        )
    commanders = [config.policy.other.commander for config in configs]
    limits = {
        commander.max_env_step if isinstance(commander, SoloCommanderConfig) else math.inf
        for commander in commanders
    }
    limit = min(limits)
    if len(limits) > 1 or math.isinf(limit) or limit <= every:
        raise LaunchError(
            f"--pbt {every} needs one {_LIMIT}, the end of all runs, larger than {every}; it is "
            f"{', '.join(f'{each:g}' for each in sorted(limits))}"
        )
    compiled = [dict(dotted(experiment)) for experiment in experiments]
    types = {key: {type(each.get(key)) for each in compiled} for key in values}
    spaces = tuple(
        Space(key, tuple(_as_typed(text, types[key]) for text in listed))
        for key, listed in values.items()
        if key != "seed"
    )
    return Population(every, int(limit), share, int(experiments[0]["seed"]), spaces)


def _as_typed(text: str, types: set[type]) -> str:
    """Returns a setting's text; a number's reads as what the setting is, whole or not.

    Args:
        text: as it was typed: 1e2 also where the setting is an integer, 1 where it is not.
        types: of the setting in all experiments.
    """
    number, kind = parsed_number(text), float if float in types else int
    if number is None or not types <= {int, float} or isinstance(number, kind):
        return text
    return str(kind(number))


@dataclass(frozen=True)
class Decision:
    """A decision at a mark.

    Attributes:
        env_steps: the mark.
        members: as they were compared.
        copies: what followed from it.
        next_mark: to which the runs train next: more steps than any of them has, which may have
            passed several marks in one rollout.
    """

    env_steps: int
    members: tuple[Member, ...]
    copies: tuple[Copy, ...]
    next_mark: int


@dataclass(frozen=True)
class History:
    """The decisions of a population: the content of ``population.json``.

    Attributes:
        decisions: by generation.
        generation: that runs now; one less than the decisions while the last is carried out.
    """

    decisions: tuple[Decision, ...] = ()
    generation: int = 0

    @classmethod
    def read(cls, sweep: Sweep) -> History:
        """Returns the history of a sweep; an empty one before the first decision.

        Raises:
            LaunchError: the file is damaged.
        """
        path = path_of(sweep)
        if not path.exists():
            return cls()
        record = read_json(path)
        try:
            decisions = tuple(
                Decision(
                    int(decision["env_steps"]),
                    tuple(Member(**member) for member in decision["members"]),
                    tuple(Copy(**copy) for copy in decision["copies"]),
                    int(decision.get("next_mark", 0)),
                )
                for decision in record["decisions"]
            )
            return cls(decisions, int(record["generation"]))
        except (KeyError, TypeError, ValueError) as error:
            raise LaunchError(f"{path} is damaged: {error!r}") from error

    def save(self, sweep: Sweep) -> None:
        """Write the file."""
        write_json(path_of(sweep), {"format": _FORMAT, **asdict(self)})

    def mark(self, population: Population) -> int:
        """Returns the environment steps to which the present generation trains."""
        marks = [decision.next_mark for decision in self.decisions[: self.generation]]
        return max([population.mark(self.generation), *marks])

    def lineage(self, index: int) -> list[tuple[int, int]]:
        """Returns mark and donor of each copy that a run has made, the oldest first."""
        return [
            (decision.env_steps, copy.donor)
            for decision in self.decisions
            for copy in decision.copies
            if copy.index == index
        ]


def path_of(sweep: Sweep) -> Path:
    """Returns the path of a population's history."""
    return sweep.root / "population.json"


class Generations:
    """Decides what a population runs next; none of its runs may be on meanwhile.

    Args:
        root: folder of the sweep.
        population: how its runs are compared.
    """

    def __init__(self, root: Path, population: Population) -> None:
        self._root, self._population = root, population
        self._tried: set[int] = set()  # in this generation, by this process

    def rounds(self) -> Iterator[list[int]]:
        """Yields the runs to start, whenever all that were started before have ended.

        Raises:
            LaunchError: a run is still on, of an earlier start of the sweep that was killed.
        """
        _, statuses = look(read(self._root))
        for status in statuses:
            if status is not None and not status.is_over and status.signs.is_process:
                raise LaunchError(
                    f"{short(status.layout.root)} is still on (process {status.facts['pid']}): an "
                    "earlier start of this sweep was killed, and this run not. Resume the sweep "
                    "when it has ended"
                )
        while True:
            with or_refuse(f"the population in {short(self._root)}"):
                self._carry_out()
            waiting = self._behind_mark()
            if waiting:
                self._tried.update(waiting)
                yield waiting
            elif not self._decide():
                return

    def _behind_mark(self) -> list[int]:
        """Returns the runs that have not reached the present mark, and were not tried yet."""
        sweep, statuses = look(read(self._root))
        mark = History.read(sweep).mark(self._population)
        waiting = []
        for element, status in zip(sweep.elements, statuses, strict=True):
            is_at_mark = status is not None and status.progress.get("env_steps", 0) >= mark
            has_ended = element.state == "done" or (element.state == PAUSED and is_at_mark)
            if not has_ended and element.index not in self._tried:
                waiting.append(element.index)
        return waiting

    def _decide(self) -> bool:
        """Compare the runs and record who copies whom; returns False at the population's end."""
        sweep, statuses = look(read(self._root))
        population, history = self._population, History.read(sweep)
        mark = history.mark(population)
        members = tuple(
            Member(
                element.index,
                score_of(element.state, status),
                {space.key: element.settings[space.key] for space in population.spaces},
                element.state == "done",
            )
            for element, status in zip(sweep.elements, statuses, strict=True)
        )
        is_alive = any(m.score is not None and not m.is_over for m in members)
        if mark >= population.limit or not is_alive:
            return False
        rng = np.random.default_rng([population.seed, history.generation])
        copies = [
            _that_compiles(sweep, copy, members)
            for copy in decide(members, population.spaces, population.share, rng)
        ]
        trained = max(
            status.progress.get("env_steps", 0)
            for member, status in zip(members, statuses, strict=True)
            if status is not None and not member.is_over
        )
        next_mark = population.mark(trained // population.every)
        decision = Decision(mark, members, tuple(copies), next_mark)
        replace(history, decisions=(*history.decisions, decision)).save(sweep)
        return True

    def _carry_out(self) -> None:
        """Carry out the last decision, where that has not been done; then set all runs' mark.

        The next generation is recorded at the very end: a kill before repeats all of it.
        """
        sweep = read(self._root)
        history, population = History.read(sweep), self._population
        is_due = len(history.decisions) > history.generation
        if is_due:
            decision = history.decisions[-1]
            copies, scores = decision.copies, {m.index: m.score for m in decision.members}
            lines = [
                _copy_line(copy, scores, has_policy=_copy_policy(sweep, copy)) for copy in copies
            ]
            sweep = _with_settings(sweep, copies)
            sweep.save()
            history = replace(history, generation=history.generation + 1)
            at = f"at {human_count(decision.env_steps)} environment steps"
            lines = lines or ["every run continues as it is"]
            print_lines(f"{at} {line}" for line in lines)
        _write_experiments(sweep, history.mark(population))
        if is_due:
            history.save(sweep)
            self._tried.clear()


def _that_compiles(sweep: Sweep, copy: Copy, members: Sequence[Member]) -> Copy:
    """Returns a copy; with the donor's settings where those explored do not go together."""
    try:
        load(
            sweep.experiment(copy.index),
            _with_settings(sweep, [copy]).elements[copy.index].overrides,
        )
    except ConfigError:
        return replace(copy, settings=members[copy.donor].settings)
    return copy


def _copy_line(copy: Copy, scores: Mapping[int, float | None], *, has_policy: bool) -> str:
    """Returns a line about a copy; `has_policy`: the donor's policy was copied, too."""
    settings = "".join(f" {key}={value}" for key, value in copy.settings.items())
    copies = "copies" if has_policy else "has no snapshot, and takes only the settings of"
    runs = {
        index: f"run {index} ({'failed' if score is None else human_return(score)})"
        for index, score in scores.items()
    }
    comma = "," * bool(settings)
    return f"{runs[copy.index]} {copies} {runs[copy.donor]}{comma}{settings}"


def score_of(state: str, status: RunStatus | None) -> float | None:
    """Returns the mean return of a run's newest evaluation; None: it failed, or has none."""
    if status is None or state not in ("done", PAUSED):
        return None
    evaluation = status.progress.get("evaluation")
    return float(evaluation["mean"]) if evaluation else None


def _with_settings(sweep: Sweep, copies: Sequence[Copy]) -> Sweep:
    """Returns the sweep with the settings of those that copy."""
    changed = list(sweep.elements)
    for copy in copies:
        values = changed[copy.index].settings | dict(copy.settings)
        overrides = tuple(f"{key}={value}" for key, value in values.items())
        changed[copy.index] = replace(changed[copy.index], overrides=overrides)
    return replace(sweep, elements=tuple(changed))


def _write_experiments(sweep: Sweep, mark: int) -> None:
    """Write each run's experiment: its settings, and the mark as its limit."""
    for element in sweep.elements:
        path = sweep.experiment(element.index)
        compiled = load(path, [*element.overrides, f"{_LIMIT}={mark}"])
        text = dump(compiled.to_mapping())
        if path.read_text() != text:
            write_text(path, text)


def _copy_policy(sweep: Sweep, copy: Copy) -> bool:
    """Give a run the donor's policy, in a new snapshot; returns False if it has no snapshot itself.

    Raises:
        LaunchError: the run is in use. OSError, StoreError: the file system refuses it.
    """
    from hpcdi.roles.coordinator.snapshots import amend
    from hpcdi.roles.learner.checkpointing import with_policy_of

    layout = RunLayout(sweep.run_dir(copy.index))
    if not resume.has_snapshot(layout):
        return False
    donor = resume.newest_snapshot(RunLayout(sweep.run_dir(copy.donor)))
    with RunLock(layout):
        snapshot = resume.newest_snapshot(layout)
        facts = {
            "learners": snapshot.facts["learners"] or donor.facts["learners"],
            "policy_of": f"{sweep.name_of(copy.donor)}/{donor.folder.name}",
        }
        amend(layout, snapshot, with_policy_of(snapshot, donor), facts)
    return True
