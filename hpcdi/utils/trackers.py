"""Curves of a run as a run of Weights & Biases or MLflow.

Each writes to a folder, without a network: on a login node, or in a job on a cluster without
internet; it is uploaded or looked at elsewhere. The same code serves a run that goes on
(`system.loggers`) and one that is over (`hpcdi curves --to`).
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from hpcdi.dataclass import dataclass
from hpcdi.utils.curves import Curves
from hpcdi.utils.disk import rewrite

_STEP = "env_step"
_AT_ONCE = 1000  # metrics that MLflow takes at once
_ANSWERS_S = 30.0  # within which the server of wandb answers, where it is not offline
_PARAMS_AT_ONCE, _PARAM_LENGTH = 100, 500
_NAME_LENGTH = 250
_FORBIDDEN = re.compile(r"[^\w.\- /]")
"""Characters of which MLflow takes none in a name."""


@dataclass(frozen=True)
class TrackedRun:
    """A run, as a tracker is told of it.

    Attributes:
        folder: of the run.
        project: the experiment that it belongs to.
        settings: by dotted name.
        id_file: keeps the tracker's own name of the run, by which a later part of the same run is
            added to it; None: each time it is a new one.
    """

    folder: Path
    project: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    id_file: Path | None = None

    @property
    def known_id(self) -> str | None:
        """The tracker's own name of the run; None: it is not there yet."""
        if self.id_file is None or not self.id_file.is_file():
            return None
        return self.id_file.read_text().strip() or None  # empty: the power was cut

    def keep_id(self, name: str) -> None:
        """Remember the tracker's own name of the run."""
        if self.id_file is not None:
            self.id_file.parent.mkdir(parents=True, exist_ok=True)
            rewrite(self.id_file, f"{name}\n".encode())


class Tracker(Protocol):
    """A run of a tracker's, which takes curves until it is closed."""

    def log(self, curves: Curves) -> None:
        """Add points to curves, by name."""
        ...

    def close(self, state: str) -> None:
        """End it as the run has ended: "done", "failed", "dead", "stopped", or another word."""
        ...

    def where(self, shown: Callable[[Path], str]) -> str:
        """Where it lies, and how to see it; `shown` is how paths are written."""
        ...


class WandbTracker:
    """A run of Weights & Biases, offline unless WANDB_MODE says otherwise.

    Args:
        run: what it is told of.
        folder: in which it makes a folder ``wandb``.
    """

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._mode = str(mode)
        known = run.known_id
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=run.project,
            name=run.folder.name,
            dir=folder,
            config=dict(run.settings),
            mode=mode,
            id=known,
            resume="allow" if known else None,
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, init_timeout=_ANSWERS_S
            ),
            reinit="create_new",
        )
        run.keep_id(self._run.id)
        self._place = Path(self._run.dir).parent
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def log(self, curves: Curves) -> None:
        """Add points to curves; those that are not finite are left out."""
        for step, values in _by_step(curves):
            self._run.log({**values, _STEP: step})

    def close(self, state: str) -> None:
        """End it."""
        self._run.finish(exit_code=int(state in ("failed", "dead")))

    def where(self, shown: Callable[[Path], str]) -> str:
        """Where it lies, and how to see it."""
        if self._mode != "offline":
            return str(self._run.url or self._mode)
        return f"{shown(self._place)}; {_sync(shown(self._place))} uploads it"


class MlflowTracker:
    """A run of MLflow's, in a folder unless MLFLOW_TRACKING_URI says otherwise.

    Args:
        run: what it is told of.
        folder: in which it makes a folder ``mlruns``.
    """

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        # from 3.7 on MLflow wants to be told that a folder without a database is meant
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # there may be no network
        import mlflow
        from mlflow.entities import Param

        self._place = folder.absolute() / "mlruns"
        self._uri = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = client = mlflow.MlflowClient(self._uri or self._place.as_uri())
        self._curves: dict[str, str] = {}  # by MLflow's names of them
        known = run.known_id
        if known is not None:
            self._id = known
            client.update_run(known, status="RUNNING")
            return
        number = _experiment_in(client, run.project)
        self._id = client.create_run(number, run_name=run.folder.name).info.run_id
        run.keep_id(self._id)
        taken: dict[str, str] = {}
        params = [
            Param(_free_name(name, taken), str(value)[:_PARAM_LENGTH])
            for name, value in run.settings.items()
        ]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            client.log_batch(self._id, params=params[start : start + _PARAMS_AT_ONCE])

    def log(self, curves: Curves) -> None:
        """Add points to curves."""
        from mlflow.entities import Metric

        metrics = [
            Metric(its_name, point.value, round(1000 * point.time), point.step)
            for name, points in curves.items()
            for its_name in [_free_name(name, self._curves)]
            for point in points
        ]
        for start in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self._id, metrics=metrics[start : start + _AT_ONCE])

    def close(self, state: str) -> None:
        """End it."""
        ends = {"failed": "FAILED", "dead": "FAILED", "stopped": "KILLED"}
        self._client.set_terminated(self._id, ends.get(state, "FINISHED"))

    def where(self, shown: Callable[[Path], str]) -> str:
        """Where it lies, and how to see it."""
        if self._uri:
            return f"{self._uri}, run {self._id}"
        return f"{shown(self._place)}; {_ui(self._place)} shows it"


def mlflow_name(name: str) -> str:
    """Returns MLflow's name of a curve or a setting: ``curves/collect_return.main``.

    Characters that MLflow forbids become ``_``. After the first ``/`` others become a ``.``: MLflow
    makes a file of each curve, and none can be a file and the folder of others.
    """
    group, slash, rest = _FORBIDDEN.sub("_", name).partition("/")
    return f"{group}{slash}{rest.replace('/', '.')}"[:_NAME_LENGTH]


def _free_name(name: str, taken: dict[str, str]) -> str:
    """Returns `mlflow_name`; if that is another's already, with a checksum of the name at its end.

    Args:
        name: of a curve or a setting.
        taken: names of others by MLflow's of them; gets this one.
    """
    known = mlflow_name(name)
    if taken.setdefault(known, name) != name:
        checksum = f".{zlib.crc32(name.encode()):08x}"
        known = f"{known[: _NAME_LENGTH - len(checksum)]}{checksum}"
    return known


def _experiment_in(client: Any, name: str) -> str:
    """Returns MLflow's number of an experiment, which is made where there is none."""
    from mlflow.exceptions import MlflowException

    if client.get_experiment_by_name(name) is None:
        try:
            client.create_experiment(name)
        except MlflowException as error:  # another run, which began together with this one, made it
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
    # in a folder two may have made one: each run asks which is the first
    return str(client.get_experiment_by_name(name).experiment_id)


TRACKERS: dict[str, Callable[[TrackedRun, Path], Tracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}
"""Trackers, by the name of the package that each needs."""


def seen_in(folder: Path, shown: Callable[[Path], str]) -> list[tuple[str, str]]:
    """What trackers have made in a folder, and how to see it: pairs of name and text."""
    lines = []
    if any(folder.glob("wandb/offline-run-*")):
        lines.append(("wandb", _sync(f"{shown(folder)}/wandb/offline-run-*")))
    if (folder / "mlruns").is_dir():
        lines.append(("MLflow", _ui(folder / "mlruns")))
    return lines


def _sync(place: str) -> str:
    return f"wandb sync {place}"


def _ui(place: Path) -> str:
    return f"mlflow ui --backend-store-uri {place.absolute().as_uri()}"


def _by_step(curves: Curves) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields the finite values of all curves at each environment step, in order."""
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for name, points in curves.items():
        for point in points:
            if math.isfinite(point.value):
                rows[point.step][name] = point.value
    yield from sorted(rows.items())
