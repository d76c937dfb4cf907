"""`system.loggers`: where a run's curves go beside its event file, while it goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.trackers import needs, records
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import ConfigError
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.coordinator.loggers import LiveTracker, RunWriter
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.run.coordinate import coordinate
from hpcdi.run.experiment import load_experiment
from hpcdi.run.job_end import EndTime
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import read_curves
from hpcdi.utils.trackers import Curves

CONFIG = Path(__file__).parents[2] / "configs" / "cartpole_dqn.yaml"


def experiment(*loggers: str) -> ExperimentConfig:
    config = ExperimentConfig(exp_name="poles")
    return dataclasses.replace(config, system=dataclasses.replace(config.system, loggers=loggers))


def play(folder: Path, logger: str, steps: range, state: str) -> None:
    """A part of a run, whose return is a tenth of the step."""
    writer = RunWriter(experiment("tensorboard", logger), RunLayout(folder))
    for step in steps:
        writer.add_scalar("curves/return", step / 10, step)
    writer.close(state)


class Failing:
    """A tracker whose second call fails."""

    def __init__(self) -> None:
        self.calls = 0

    def log(self, _curves: Curves) -> None:
        self.calls += 1
        if self.calls > 1:
            raise ZeroDivisionError("its own")

    def close(self, _state: str) -> None:
        raise AssertionError("it has been dropped")

    def where(self, _shown: Callable[[Path], str]) -> str:
        return ""


@pytest.mark.parametrize("failing_at", ["opened", "used"])
def test_a_tracker_that_fails_is_said_once_and_dropped(
    failing_at: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hpcdi.roles.coordinator.loggers._EVERY_S", -1.0)
    made = Failing()

    def open_tracker() -> Failing:
        if failing_at == "opened":
            raise OSError(28, "No space left on device")
        return made

    tracker = LiveTracker("wandb", open_tracker)
    with caplog.at_level(logging.WARNING, "hpcdi"):
        for step in range(5):
            tracker.add_scalar("curves/return", 1.0, step)
        tracker.close("done")
        tracker.close("done")
    (record,) = caplog.records
    assert record.getMessage().startswith("wandb failed and is no longer written: ")
    assert "the run goes on" in record.getMessage()
    assert made.calls == (2 if failing_at == "used" else 0)


@pytest.mark.parametrize("tags", ["plain", "ding"])
def test_the_record_has_the_names_of_people_whatever_tensorboard_shows(
    tags: str, tmp_path: Path
) -> None:
    layout, config = (
        RunLayout(tmp_path),
        load_experiment(str(CONFIG), [f"system.tensorboard.tags={tags}"])[0].config,
    )
    writer = RunWriter(config, layout)
    for tag in ("evaluator_iter/reward_mean", "evaluator_step/reward_mean"):
        writer.by_tag.add_scalar(tag, 9.5, 100)
    writer.add_scalar("league/elo", 1200.0, 100)
    writer.close("done")
    assert sorted(read_curves(layout.curve_files())) == ["curves/evaluation_return", "league/elo"]
    shown = EventAccumulator(str(layout.tensorboard_dir)).Reload().Tags()["scalars"]
    return_tags = {
        "plain": ["curves/evaluation_return"],
        "ding": ["evaluator_iter/reward_mean", "evaluator_step/reward_mean"],
    }
    assert shown == [*return_tags[tags], "league/elo"]


@needs("mlflow")
def test_a_resumed_run_is_the_same_one_of_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    client = mlflow.MlflowClient((RunLayout(tmp_path).loggers_dir / "mlruns").as_uri())

    def the_run() -> Any:
        (made,) = client.search_runs([client.get_experiment_by_name("poles").experiment_id])
        return made

    play(tmp_path, "mlflow", range(3), "stopped")
    assert the_run().info.status == "KILLED"
    play(tmp_path, "mlflow", range(3, 5), "done")
    assert the_run().info.status == "FINISHED"
    assert the_run().data.params["policy.type"] == "dqn"
    points = client.get_metric_history(the_run().info.run_id, "curves/return")
    assert [(point.step, point.value) for point in points] == [(n, n / 10) for n in range(5)]


@needs("wandb")
def test_a_resumed_run_is_the_same_one_of_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part in a process of its own, as wandb's service outlives what has used it."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for steps, state in (("range(3)", "stopped"), ("range(3, 5)", "done")):
        code = (
            "import sys; from pathlib import Path; from test_coordinator_loggers import play; "
            f"play(Path(sys.argv[1]), 'wandb', {steps}, {state!r})"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        paths = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
        environment = {**os.environ, "PYTHONPATH": paths}
        subprocess.run(command, check=True, capture_output=True, env=environment)
    files = sorted(tmp_path.glob("loggers/wandb/offline-run-*/*.wandb"))
    made = [record for file in files for record in records(file)]
    runs = {r.run.run_id for r in made if r.WhichOneof("record_type") == "run"}
    rows = [r.history.item for r in made if r.WhichOneof("record_type") == "history"]
    values = [{i.nested_key[0]: i.value_json for i in row}["curves/return"] for row in rows]
    assert (len(files), len(runs)) == (2, 1)
    assert [float(value) for value in values] == [n / 10 for n in range(5)]


@pytest.mark.parametrize("over_ranks", [True, False])
def test_a_missing_package_is_refused_before_anything_starts(
    *, over_ranks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    missing = ("wandb", "mlflow")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )
    with pytest.raises(ConfigError) as raised:
        load_experiment(str(CONFIG), ["system.loggers=[wandb,mlflow,csv]"], over_ranks=over_ranks)
    assert [problem.message for problem in raised.value.problems] == [
        f"{name} needs the package {name}: pip install {name}" for name in missing
    ]


def test_a_logger_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"system.loggers: must be some of .*, not 'wanb'"):
        load_experiment(str(CONFIG), ["system.loggers=[wanb]"])


def test_what_a_tracker_writes_at_the_very_end_is_in_the_closing_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first points of a short run over ranks are written when rank 0 closes its files."""
    layout = RunLayout(tmp_path)

    class Rank0(contextlib.ExitStack):
        silent: ClassVar[dict[int, str]] = {}
        lost = silent

        def __init__(self, *_args: object, **_settings: object) -> None:
            super().__init__()
            self.callback((layout.loggers_dir / "mlruns").mkdir, parents=True, exist_ok=True)

        def run(self, _ask: object) -> Outcome:
            return Outcome("done", "max_train_iter reached: 5 of 5", 0)

        def summary(self) -> list[str]:
            assert not layout.loggers_dir.exists(), "its seconds are those of the run"
            return []

        def figures(self) -> dict[str, Any]:
            return {}

    monkeypatch.setattr("hpcdi.roles.coordinator.coordinator.Coordinator", Rank0)
    monkeypatch.setattr("hpcdi.run.coordinate._opening", lambda *_: [])
    config = experiment()
    system = dataclasses.replace(config.system, deterministic=True)  # without guests
    config = dataclasses.replace(config, system=system)
    link: Any = SimpleNamespace(size=3, rank=0)
    context = WorkerContext(config, layout, link, np.random.SeedSequence(0), {})
    assert coordinate(context, [], EndTime()) == 0
    assert "mlflow ui --backend-store-uri" in capsys.readouterr().out
