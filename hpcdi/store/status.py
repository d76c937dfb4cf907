"""How a run goes, as one small file that is always whole: what `hpcdi status` reads.

Rank 0 writes it; whoever can read the run folder needs no port and no word from the job.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdi.errors import StoreError
from hpcdi.store.atomic import read_json, write_json
from hpcdi.store.checkpoints import BEST_CHECKPOINT, checkpoint_names, open_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.utils.log import LOGGER
from hpcdi.utils.progress import Evaluation, Status, best_of

FORMAT = 1
EVERY_S = 1.0
_SHARE = 50
"""Writing may take this part of the time at most: on a slow file system it is done less often."""
_EVALUATIONS = ("evaluations", "evaluation", "best_evaluation")


def best_return(layout: RunLayout, evaluates_as: str = "") -> float:
    """Mean return of the policy that a run folder holds as the best; -inf where it holds none.

    Args:
        layout: the run folder.
        evaluates_as: see `hpcdi.roles.evaluations.evaluates_as`: what has another does not count.
    """
    names = checkpoint_names(layout.checkpoints_dir)
    means = [float("-inf")]
    for name in names:
        if name.startswith(BEST_CHECKPOINT):  # a kill may have left the one before it
            with contextlib.suppress(StoreError):  # torn
                facts = open_checkpoint(layout.checkpoints_dir / name).facts
                mean = facts.get("reward_mean")  # null where it is infinite
                if isinstance(mean, int | float) and _is_comparable(facts, evaluates_as):
                    means.append(mean)
    return max(means)


def best_evaluation(layout: RunLayout, evaluates_as: str = "") -> Evaluation | None:
    """The best evaluation of a run as its status file has it; None where it has none.

    Args:
        layout: the run folder.
        evaluates_as: see `best_return`.
    """
    status = read_json(layout.status_file)
    held = status.get("best_evaluation") if _is_comparable(status, evaluates_as) else None
    try:
        evaluation = Evaluation(**held) if isinstance(held, dict) else None
    except TypeError:
        return None
    if evaluation is None or not isinstance(evaluation.figures, dict):
        return None
    numbers = [value for name, value in vars(evaluation).items() if name != "figures"]
    return evaluation if all(isinstance(value, int | float) for value in numbers) else None


def _is_comparable(facts: Mapping[str, Any], evaluates_as: str) -> bool:
    return facts.get("evaluates_as") in (None, "", evaluates_as)


class StatusFile:
    """Writes the file when it is due; a disk that is full ends no run.

    Args:
        path: of the file.
        limits: environment steps and train iterations at which the run ends; may be infinite.
        stop_value: mean return that ends it.
        evaluates_as: see `best_return`.

    Attributes:
        evaluated_before: evaluations of earlier starts of the run.
    """

    def __init__(
        self, path: Path, limits: tuple[float, float], stop_value: float, evaluates_as: str = ""
    ) -> None:
        self._path = path
        self._started_at, self._began = time.time(), time.monotonic()
        self._always = {
            "format": FORMAT,
            "host": platform.node(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "limits": {"env_steps": limits[0], "train_iter": limits[1], "stop_value": stop_value},
            "evaluates_as": evaluates_as,
        }
        earlier = read_json(path)  # of a run that is resumed: it may end before it is evaluated
        self._earlier = {name: earlier[name] for name in _EVALUATIONS if earlier.get(name)}
        if not _is_comparable(earlier, evaluates_as):
            self._earlier.pop("best_evaluation", None)
        count = self._earlier.get("evaluations")
        self.evaluated_before = count if isinstance(count, int) else 0
        self._due = float("-inf")
        self._best: Evaluation | None = None  # as it was written last
        self._is_warned = False

    def refresh(
        self,
        status: Callable[[], Status],
        evaluations: Sequence[Evaluation],
        now: float,
        *,
        best: Evaluation | None = None,
        at_once: bool = False,
    ) -> None:
        """Write how the run stands if that is due, or there is a new best evaluation.

        Args:
            status: returns how it stands.
            evaluations: all of this start of the run so far.
            now: seconds, any origin.
            best: the best of the whole run; None: that of `evaluations`.
            at_once: write it whether it is due or not: in a new phase.
        """
        if now < self._due and best is self._best and not at_once:
            return
        self._best, began = best, time.monotonic()
        try:
            write_json(self._path, self._values(status(), evaluations), fsync=False)
        except (StoreError, OSError) as error:
            if not self._is_warned:
                self._is_warned = True
                LOGGER.warning(
                    "%s could not be written: %s. `hpcdi status` cannot show how the run goes",
                    self._path,
                    error,
                )
        self._due = now + max(EVERY_S, _SHARE * (time.monotonic() - began))

    def _values(self, status: Status, evaluations: Sequence[Evaluation]) -> dict[str, Any]:
        (env_steps, steps_per_s), (train_iter, iters_per_s) = status.env_steps, status.train_iter
        returns = status.returns
        best = self._best if self._best is not None else best_of(evaluations)
        return {
            **self._always,
            # so that the time between both is right where the host's clock was set meanwhile
            "written_at": self._started_at + time.monotonic() - self._began,
            "env_steps": env_steps,
            "env_steps_per_s": steps_per_s,
            "train_iter": train_iter,
            "train_iters_per_s": iters_per_s,
            "return_mean": sum(returns) / len(returns) if returns else None,
            "evaluations": self.evaluated_before + len(evaluations),
            "evaluation": vars(evaluations[-1]) if evaluations else None,
            "best_evaluation": None,
            **({} if evaluations else self._earlier),
            **({} if best is None else {"best_evaluation": vars(best)}),
            **status.facts,
        }
