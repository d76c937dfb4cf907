"""Curves of a run as a run of an experiment tracker: Weights & Biases or MLflow.

Both write to a folder, without a network: it is made on a login node, or on a cluster without
internet, and uploaded or looked at elsewhere.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdi.config.load import read_mapping
from hpcdi.errors import LaunchError
from hpcdi.run import run_folder
from hpcdi.run.run_folder import short
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurvePoint
from hpcdi.utils.nested import dotted

Curves = Mapping[str, Sequence[CurvePoint]]
_STEP = "env_step"
_AT_ONCE = 1000  # metrics that MLflow takes at once


def write(kind: str, runs: Mapping[Path, Curves], folder: Path) -> Iterator[str]:
    """Write runs, each as one of a tracker's; yields what is to be told.

    Args:
        kind: a key of `TRACKERS`.
        runs: folder -> curves by name.
        folder: in which the tracker makes its own.

    Raises:
        LaunchError: the tracker's package is missing, or the folder cannot be written.
    """
    if importlib.util.find_spec(kind) is None:
        raise LaunchError(f"--to {kind} needs the package {kind}: pip install {kind}")
    for run, curves in runs.items():
        try:
            yield TRACKERS[kind](run, curves, folder)
        except OSError as error:
            why = error.strerror or error
            raise LaunchError(f"{short(folder)} cannot be written: {why}") from error


def _write_wandb(run: Path, curves: Curves, folder: Path) -> str:
    import wandb

    os.environ.setdefault("WANDB_MODE", "offline")
    settings = _settings_of(run)
    made = wandb.init(
        project=_project(run, settings),
        name=run.name,
        dir=folder,
        config=settings,
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        reinit="create_new",
    )
    made.define_metric(_STEP)
    made.define_metric("*", step_metric=_STEP)
    for step, values in _by_step(curves):
        made.log({**values, _STEP: step})
    place = Path(made.dir).parent
    made.finish()
    if os.environ["WANDB_MODE"] != "offline":
        return f"{short(run)}: {made.url or os.environ['WANDB_MODE']}"
    return f"{short(run)}: {short(place)}; wandb sync {short(place)} uploads it"


def _write_mlflow(run: Path, curves: Curves, folder: Path) -> str:
    # from 3.7 on MLflow wants to be told that a folder without a database is meant
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # there may be no network
    import mlflow
    from mlflow.entities import Metric, Param

    place = folder.absolute() / "mlruns"
    client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or place.as_uri())
    settings = _settings_of(run)
    project = _project(run, settings)
    experiment = client.get_experiment_by_name(project)
    number = client.create_experiment(project) if experiment is None else experiment.experiment_id
    made = client.create_run(number, run_name=run.name)
    params = [Param(name, str(value)[:500]) for name, value in settings.items()]
    for start in range(0, len(params), 100):
        client.log_batch(made.info.run_id, params=params[start : start + 100])
    metrics = [
        Metric(name, point.value, round(1000 * point.time), point.step)
        for name, points in curves.items()
        for point in points
    ]
    for start in range(0, len(metrics), _AT_ONCE):
        client.log_batch(made.info.run_id, metrics=metrics[start : start + _AT_ONCE])
    client.set_terminated(made.info.run_id)
    if "MLFLOW_TRACKING_URI" in os.environ:
        return f"{short(run)}: {os.environ['MLFLOW_TRACKING_URI']}, run {made.info.run_id}"
    return f"{short(run)}: {short(place)}; mlflow ui --backend-store-uri {place.as_uri()} shows it"


TRACKERS: dict[str, Callable[[Path, Curves, Path], str]] = {
    "wandb": _write_wandb,
    "mlflow": _write_mlflow,
}


def _project(run: Path, settings: Mapping[str, Any]) -> str:
    """Name of the experiment: the settings have it."""
    return str(settings.get("exp_name") or run.parent.name)


def _settings_of(run: Path) -> dict[str, Any]:
    """The run's settings, ``policy.learn.batch_size`` and so on, and what is known of its end."""
    layout = RunLayout(run)
    settings = read_mapping(layout.config_file) if layout.config_file.is_file() else {}
    return {**dict(dotted(settings)), "run.state": run_folder.read_state(run)}


def _by_step(curves: Curves) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields the finite values of all curves at each environment step, in order."""
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for name, points in curves.items():
        for point in points:
            if math.isfinite(point.value):
                rows[point.step][name] = point.value
    yield from sorted(rows.items())
