"""Searching for settings: what is searched (`Dimension`), and who proposes (`Searcher`).

`hpcdi sweep --optuna` and ``--search`` run the trials: they `ask` for settings, `report` how a
trial goes, and `tell` what became of it. A searcher of your own is a class of a module:

    from hpcdi.search import Searcher

    class Halving(Searcher):
        def ask(self, number):
            return {d.key: max(d.low, d.high // 2**number) for d in self.dimensions}

    hpcdi sweep x.yaml --search my_module:Halving --space "policy.nstep=int(1,8)"

Scores are maximised. What is told is in files: a search that is resumed asks a new object for no
trial that has its settings, and tells it all that has ended, in the order of their numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.errors import LaunchError
from hpcdi.utils.disk import cut_torn_line

if TYPE_CHECKING:
    from optuna import Study, Trial

__all__ = ["Dimension", "OptunaSearcher", "RandomSearcher", "Searcher", "Value"]

Value = float | int | str
"""A setting's value; a text is one as it stands on a command line: ``[64,64]``, ``relu``."""


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched.

    Attributes:
        key: dotted path.
        low: smallest value of a number.
        high: largest value, included.
        is_log: whether equal ratios are equally likely, not equal differences.
        is_whole: whether its values are integers.
        choices: its values, if it is no number.
    """

    key: str
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    is_whole: bool = False
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As it is typed."""
        if self.choices:
            return f"{self.key}={','.join(self.choices)}"
        kind = "log" * self.is_log + "int" * self.is_whole or "float"
        return f"{self.key}={kind}({self.low:g},{self.high:g})"

    def draw(self, rng: np.random.Generator) -> Value:
        """Returns a random value."""
        if self.choices:
            return self.choices[int(rng.integers(len(self.choices)))]
        # a whole number is one of equally wide intervals
        low, high = (self.low - 0.5, self.high + 0.5) if self.is_whole else (self.low, self.high)
        if self.is_log:
            number = math.exp(rng.uniform(math.log(low), math.log(high)))
        else:
            number = float(rng.uniform(low, high))
        if self.is_whole:
            return round(min(max(number, self.low), self.high))
        # six digits are enough to read, and to find; of a narrow range, six of its width
        size = min(abs(number), self.high - self.low) or self.high - self.low
        number = round(number, 5 - math.floor(math.log10(size)))
        return min(max(number, self.low), self.high)

    def corners(self) -> tuple[Value, ...]:
        """Returns the values at its ends, or all choices."""
        if self.choices:
            return self.choices
        return (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)


class Searcher:
    """Proposes settings; one object, in the process that starts the trials.

    Args:
        dimensions: what is searched.
        seed: of its random numbers.
        folder: of the sweep, for what it keeps.
    """

    def __init__(self, dimensions: Sequence[Dimension], seed: int, folder: Path) -> None:
        self.dimensions, self.seed, self.folder = dimensions, seed, folder

    def ask(self, number: int) -> Mapping[str, Value]:
        """Returns the settings of a new trial, by key.

        Args:
            number: of the trial, from 0. It may be asked for again, after the process was killed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method ask(number)")

    def report(self, number: int, step: int, value: float) -> bool:
        """Hears how a trial goes; returns whether to end it. This one ends none.

        Args:
            number: of the trial.
            step: a multiple of an interval that is the same for all trials.
            value: mean return of its evaluation there, higher is better.
        """
        del number, step, value
        return False

    def tell(
        self, number: int, settings: Mapping[str, Value], score: float | None, *, is_pruned: bool
    ) -> None:
        """Hears how a trial has ended; after a restart, of all that had ended before.

        Args:
            number: of the trial.
            settings: that it had.
            score: higher is better; None: it failed, or it was pruned.
            is_pruned: whether `report` has ended it.
        """


class RandomSearcher(Searcher):
    """Draws each value by itself. Needs no library, and prunes nothing."""

    def ask(self, number: int) -> dict[str, Value]:
        """See `Searcher.ask`; a trial's settings depend on seed and number alone."""
        rng = np.random.default_rng([self.seed, number])
        return {dimension.key: dimension.draw(rng) for dimension in self.dimensions}


class OptunaSearcher(Searcher):
    """Optuna's TPE (Bergstra et al. 2011) and median pruner, over a journal file.

    The study "hpcdi" in ``optuna.journal`` of the sweep's folder: several processes and hosts
    may search in it at a time, and Optuna's own tools read it. Its lock is a symbolic link, which
    is safe on NFS. A trial is pruned if its best value so far is below the median of the others'
    values at that step, five of which must have ended: one that was good once is not pruned.

    Raises:
        LaunchError: Optuna is not installed.
    """

    _STARTUP = 10
    """Trials drawn at random before the model of them counts."""

    def __init__(self, dimensions: Sequence[Dimension], seed: int, folder: Path) -> None:
        optuna = self.library()
        super().__init__(dimensions, seed, folder)
        self._study = _study_in(folder / "optuna.journal")
        self._sampler = optuna.samplers.TPESampler

    @staticmethod
    def library() -> ModuleType:
        """Returns Optuna.

        Raises:
            LaunchError: it is not installed.
        """
        try:
            import optuna
        except ImportError as error:
            raise LaunchError(
                "--optuna needs Optuna, which is not installed: pip install 'hpcdi[optuna]'; "
                "without it there is --search random"
            ) from error
        return optuna

    def ask(self, number: int) -> dict[str, Value]:
        """See `Searcher.ask`."""
        with _quiet():
            trial = self._trial(number)
            if trial is None:
                self._study.sampler = self._sampler(
                    # a process that begins later must not draw the same again
                    seed=(self.seed * 1_000_003 + number) % 2**32,
                    n_startup_trials=self._STARTUP,
                    constant_liar=True,  # trials that run: others are proposed elsewhere
                )
                trial = self._study.ask()
                trial.set_user_attr("hpcdi", number)
            return {d.key: _suggested(trial, d) for d in self.dimensions}

    def report(self, number: int, step: int, value: float) -> bool:
        """See `Searcher.report`."""
        trial = self._trial(number)
        if trial is None:
            return False
        with _quiet():  # of what was reported before a restart
            trial.report(value, step)
            return trial.should_prune()

    def tell(
        self, number: int, settings: Mapping[str, Value], score: float | None, *, is_pruned: bool
    ) -> None:
        """See `Searcher.tell`."""
        from optuna.trial import TrialState

        del settings  # the study has them
        trial = self._trial(number)
        if trial is not None and score is not None:
            self._study.tell(trial.number, score, skip_if_finished=True)
        elif trial is not None:
            state = TrialState.PRUNED if is_pruned else TrialState.FAIL
            self._study.tell(trial.number, state=state, skip_if_finished=True)

    def _trial(self, number: int) -> Trial | None:
        """Returns Optuna's trial of one of ours."""
        from optuna.trial import Trial

        for found in reversed(self._study.get_trials(deepcopy=False)):
            if found.user_attrs.get("hpcdi") == number:
                return Trial(self._study, found._trial_id)
        return None


def _suggested(trial: Trial, dimension: Dimension) -> Value:
    if dimension.choices:
        return str(trial.suggest_categorical(dimension.key, dimension.choices))
    low, high, is_log = dimension.low, dimension.high, dimension.is_log
    if dimension.is_whole:
        return trial.suggest_int(dimension.key, int(low), int(high), log=is_log)
    return trial.suggest_float(dimension.key, low, high, log=is_log)


def _study_in(path: Path) -> Study:
    """Returns the study in a journal file, or where a link leads; it is made if there is none."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    path = path.resolve()

    class MendingLock(JournalFileSymlinkLock):
        """A journal's lock that drops a last line which a killed process has not written whole.

        Optuna would append to it, and could not read the file any more.
        """

        def acquire(self) -> bool:
            is_taken = super().acquire()
            cut_torn_line(path)
            return is_taken

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with _quiet():
        backend = JournalFileBackend(str(path), lock_obj=MendingLock(str(path)))
        return optuna.create_study(
            storage=JournalStorage(backend),
            study_name="hpcdi",
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        )


def _quiet() -> Any:
    """Returns a context without Optuna's warnings of what is experimental, or said twice."""
    return warnings.catch_warnings(action="ignore")
