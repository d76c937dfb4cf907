"""`hpcdi curves --to wandb|mlflow`: runs of experiment trackers, without a network.

Neither is among the developers' tools: each brings dozens of packages. CI installs both; to run
these tests: pip install wandb mlflow-skinny
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.trackers import needs, records
from hpcdi.commands.curves import main
from hpcdi.errors import ConfigError, LaunchError
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurveFile
from hpcdi.utils.trackers import TRACKERS, TrackedRun, Tracker, _experiment_in, mlflow_name

POINTS = {100: 20.0, 200: 35.5, 300: float("nan"), 400: 195.0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    layout = RunLayout(tmp_path / "poles" / "first")
    layout.root.mkdir(parents=True)
    layout.config_file.write_text(yaml.safe_dump({"exp_name": "poles", "policy": {"nstep": 3}}))
    with CurveFile(layout.curves_file) as curves:
        for step, value in POINTS.items():
            curves.add_scalar("curves/return", value, step)
            curves.add_scalar("curves/loss", 1 / step, step)
    return layout.root


@needs("mlflow")
def test_mlflow_reads_the_curves_and_the_settings(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    assert main([str(run), "--to", "mlflow", "-o", str(tmp_path / "out")]) == 0
    client = mlflow.MlflowClient((tmp_path / "out" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("poles")
    (made,) = client.search_runs([experiment.experiment_id])
    assert (made.info.run_name, made.info.status) == ("first", "FINISHED")
    assert made.data.params["policy.nstep"] == "3"
    points = client.get_metric_history(made.info.run_id, "curves/return")
    assert [str(point.value) for point in points] == [str(value) for value in POINTS.values()]
    assert [point.step for point in points] == list(POINTS)


@needs("mlflow")
@pytest.mark.parametrize(
    ("state", "expected"), [("dead", "FAILED"), ("stopped", "KILLED"), ("done", "FINISHED")]
)
def test_mlflow_knows_how_a_run_has_ended(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, expected: str
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    process = {"host": platform.node(), "pid": 2**22}  # numbers of processes are below this
    facts = {"state": "running", "processes": [process]} if state == "dead" else {"state": state}
    RunLayout(run).run_file.write_text(json.dumps(facts))
    assert main([str(run), "--to", "mlflow", "-o", str(tmp_path / "out")]) == 0
    client = mlflow.MlflowClient((tmp_path / "out" / "mlruns").as_uri())
    (made,) = client.search_runs([client.get_experiment_by_name("poles").experiment_id])
    assert made.info.status == expected


@needs("wandb")
def test_wandb_has_an_offline_run(run: Path, tmp_path: Path) -> None:
    """Written by the command itself, as its service outlives what has used it."""
    subprocess.run(
        [sys.executable, "-m", "hpcdi", "curves", str(run), "--to", "wandb", "-o", str(tmp_path)],
        check=True,
        capture_output=True,
        env={name: value for name, value in os.environ.items() if name != "WANDB_MODE"},
    )
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows, settings = [], {}
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            items = {item.nested_key[0]: item.value_json for item in record.history.item}
            rows.append({name: json.loads(value) for name, value in items.items()})
        if record.WhichOneof("record_type") == "run":
            settings = {item.key: item.value_json for item in record.run.config.update}
            assert (record.run.project, record.run.display_name) == ("poles", "first")
    assert {row["env_step"]: row.get("curves/return") for row in rows} == {
        step: value if value == value else None for step, value in POINTS.items()
    }
    assert settings["policy.nstep"] == "3"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("curves/return", "curves/return"),
        ("curves/collect_return/main", "curves/collect_return.main"),
        ("info/success (%)", "info/success ___"),
        ("policy.nstep", "policy.nstep"),
        ("x" * 300, "x" * 250),
    ],
)
def test_mlflow_takes_the_name_of_every_curve(name: str, expected: str) -> None:
    assert mlflow_name(name) == expected


def test_a_name_that_was_not_written_is_none(tmp_path: Path) -> None:
    """The power was cut between the file and what stands in it."""
    run = TrackedRun(tmp_path, "poles", id_file=tmp_path / "loggers" / "mlflow_run")
    assert run.known_id is None
    run.keep_id("")
    assert run.known_id is None
    run.keep_id("a1b2")
    assert run.known_id == "a1b2"


@needs("mlflow")
def test_mlflow_takes_curves_of_players_and_of_any_info(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes a file of each curve, and forbids letters."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    names = ("curves/return/main", "info/success (%)", "info/success [%]")
    with CurveFile(RunLayout(run).curves_file) as curves:
        for name in names:
            curves.add_scalar(name, 1.0, 100)
    assert main([str(run), "--to", "mlflow", "--name", "*", "-o", str(tmp_path / "out")]) == 0
    (folder,) = tmp_path.glob("out/mlruns/*/*/metrics")
    written = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    second = f"info/success ___.{zlib.crc32(names[2].encode()):08x}"  # else two curves were one
    assert written == {"curves/return", "curves/loss", *map(mlflow_name, names), second}


@needs("mlflow")
def test_runs_that_start_together_make_one_experiment_of_mlflow(tmp_path: Path) -> None:
    import mlflow

    class Late(mlflow.MlflowClient):
        """Its first answer was true a moment ago."""

        asked = 0

        def get_experiment_by_name(self, name: str) -> Any:
            self.asked += 1
            return super().get_experiment_by_name(name) if self.asked > 1 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        known = mlflow.MlflowClient((tmp_path / "mlruns").as_uri()).create_experiment("poles")
        assert _experiment_in(Late((tmp_path / "mlruns").as_uri()), "poles") == known


def test_a_tracker_that_fails_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Tracker:
        raise ZeroDivisionError("its own")

    monkeypatch.setitem(TRACKERS, "mlflow", fail)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: True)
    with pytest.raises(LaunchError, match="first: mlflow fails: its own"):
        main([str(run), "--to", "mlflow"])
    RunLayout(run).config_file.write_text("policy: [")  # which is no fault of the tracker
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        main([str(run), "--to", "mlflow"])


def test_a_package_that_is_missing_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(LaunchError, match="--to wandb needs the package wandb: pip install wandb"):
        main(["--to", "wandb", str(run)])
    with pytest.raises(LaunchError, match=r"needs the package pyarrow: pip install 'hpcdi\[parq"):
        main(["--to", "parquet", str(run)])
