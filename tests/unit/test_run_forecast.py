"""How fast a run will be, by what its parts cost."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcdi import cli
from hpcdi.config.fields import replaced
from hpcdi.config.roles import NaiveCommanderConfig
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import LaunchError
from hpcdi.run.experiment import load_experiment
from hpcdi.run.forecast import Costs, Forecast, forecast
from hpcdi.run.measure import measure
from hpcdi.types import Spaces
from hpcdi.utils.trackers import TRACKERS

CONFIGS = Path(__file__).parents[2] / "configs"
APART, IN_TURNS = 1.4, 1.2
"""Times as long as in one process an update takes over ranks, and where collectors wait for it."""
COSTS = Costs(step_s=1e-4, step_cpu_s=1e-4, update_s=1e-3 / APART, updates_per_step=0.1)
"""Of a collector 10,000 steps a second, of a learner 1,000 updates, which are 10,000 steps, too."""
IN_TURN_S = 1e-4 / APART * IN_TURNS
"""Learning from a step, where collectors wait for it."""


def loaded(name: str, *overrides: str) -> tuple[ExperimentConfig, Spaces]:
    compiled, spaces = load_experiment(str(CONFIGS / f"{name}.yaml"), overrides, over_ranks=False)
    return compiled.config, spaces


def of(
    name: str, *overrides: str, costs: Costs = COSTS, collectors: int = 2, learners: int = 1,
    cores: float = math.inf,
) -> Forecast:  # fmt: skip
    config, _ = loaded(name, *overrides)
    return forecast(config, costs, 40, collectors=collectors, learners=learners, cores=cores)


RATIO = "policy.learn.replay_ratio=8"


@pytest.mark.parametrize(
    ("collectors", "cores", "steps_per_s", "held_by"),
    [
        (1, math.inf, 10_000, "collectors"),
        (4, math.inf, 10_000, "the learner"),
        (4, 1.0, 5_000 / 1.15, "the cores"),
    ],
)
def test_with_a_replay_ratio_the_slowest_part_holds_all(
    collectors: int, cores: float, steps_per_s: float, held_by: str
) -> None:
    costs = COSTS if collectors > 1 else dataclasses.replace(COSTS, update_s=5e-4 / APART)
    shown = of(
        "cartpole_dqn", RATIO, "policy.learn.update_per_collect=null",
        costs=costs, collectors=collectors, cores=cores,
    )  # fmt: skip
    assert (shown.steps_per_s, shown.held_by) == (pytest.approx(steps_per_s), held_by)
    assert shown.updates_per_s == pytest.approx(0.1 * steps_per_s)


def test_environments_that_sleep_need_no_core() -> None:
    asleep = dataclasses.replace(COSTS, step_cpu_s=1e-6, update_s=1e-6)
    assert of("cartpole_ppo", costs=asleep, collectors=8, cores=1).steps_per_s > 40_000
    assert of("cartpole_ppo", collectors=8, cores=1).steps_per_s < 6_000


def test_ranks_that_share_a_core_slow_what_computes_not_what_sleeps() -> None:
    asleep = dataclasses.replace(COSTS, step_cpu_s=1e-6, update_s=1e-6)
    settings = (RATIO, "policy.learn.update_per_collect=null")
    alone, crowded = (
        of("cartpole_dqn", *settings, costs=asleep, collectors=8, cores=cores)
        for cores in (math.inf, 1)
    )
    assert 0.98 * alone.steps_per_s < crowded.steps_per_s < alone.steps_per_s
    assert crowded.held_by == "collectors"


def test_on_policy_collecting_and_learning_take_turns() -> None:
    shown = of("cartpole_ppo")
    assert shown.steps_per_s == pytest.approx(1 / (1e-4 / 2 + IN_TURN_S))
    assert shown.held_by == "both in turns"
    assert of("cartpole_impala").steps_per_s == pytest.approx(10_000), "which corrects for it"


def test_learners_share_what_is_learnt_from_for_a_step() -> None:
    """A replay ratio counts the samples of all: two learners hold a run half as much as one."""
    shown = of("cartpole_dqn", RATIO, "policy.learn.update_per_collect=null", collectors=4,
               learners=2)  # fmt: skip
    assert (shown.steps_per_s, shown.held_by) == (pytest.approx(20_000), "the learner")
    assert shown.updates_per_s == pytest.approx(1_000)
    shown = of("cartpole_ppo", collectors=4, learners=2)  # each learns from two rollouts of four
    assert shown.steps_per_s == pytest.approx(1 / (1e-4 / 4 + IN_TURN_S / 2))
    assert shown.updates_per_s == pytest.approx(0.1 / 4 * shown.steps_per_s)


def test_updates_after_each_collecting_hold_no_run_over_ranks() -> None:
    """There collectors and learners go on freely, but in a deterministic run."""
    per_round = ("policy.learn.replay_ratio=paper", "policy.learn.update_per_collect=4")
    free = of("cartpole_dqn", *per_round, collectors=4)
    assert (free.steps_per_s, free.updates_per_s) == (pytest.approx(40_000), pytest.approx(1_000))
    tied = of("cartpole_dqn", *per_round, "system.deterministic=true", collectors=4)
    assert (tied.steps_per_s, tied.held_by) == (pytest.approx(10_000), "the learner")
    both = of("cartpole_dqn", *per_round, "system.deterministic=true", collectors=4, learners=2)
    assert both.steps_per_s == tied.steps_per_s, "each learner makes all updates of a round"


def test_of_thousands_of_collectors_rank_0_holds() -> None:
    quick = dataclasses.replace(COSTS, updates_per_step=0.0)
    shown = of("cartpole_dqn", RATIO, "policy.learn.update_per_collect=null", costs=quick,
               collectors=40_000)  # fmt: skip
    assert (shown.held_by, shown.coordinator) == ("rank 0", 1.0)


def test_an_experiment_is_measured_and_leaves_its_costs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("hpcdi.run.measure._SETTLED_S", 0.1)
    now = SimpleNamespace(time=lambda: 1.8e9)  # a loaded machine takes seconds for what follows
    monkeypatch.setattr("hpcdi.run.kept_costs.time", now)
    experiment = str(CONFIGS / "cartpole_ppo.yaml")
    assert cli.main(["plan", experiment, "--measure", "--seconds", "0.3", "-n", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("measured here: ")]
    assert "a train iteration a learner" in lines[at]
    assert lines[at + 2].split() == [
        "ranks",
        "cores",
        "steps/s",
        "iterations/s",
        "rank",
        "0",
        "held",
        "by",
    ]
    rows = [line.split(maxsplit=3) for line in lines[at + 3 :]]
    assert [row[0] for row in rows[:2]] == ["4", "4"], "on this host's cores, then each on its own"
    assert all(row[-1].endswith("both in turns") for row in rows)
    assert not list((tmp_path / "tmp").iterdir())
    assert len([path for path in (tmp_path / "cache").rglob("*") if path.is_file()]) == 1
    # shown again, also for a run that costs the same; and for no other
    again = ["plan", experiment, "-n", "4", "seed=7", "policy.other.commander.max_env_step=9"]
    assert cli.main(again) == 0
    shown = capsys.readouterr().out.splitlines()
    (at_again,) = [number for number, line in enumerate(shown) if line.startswith("measured on")]
    assert shown[at_again].startswith("measured on such a machine 0s ago (--measure does it again)")
    assert shown[at_again + 1 :] == lines[at + 1 :]
    assert cli.main(["plan", experiment, "-n", "4", "env.collector_env_num=2"]) == 0
    assert "measured" not in capsys.readouterr().out
    # a file of the cache that is torn is none
    (of,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    of.write_text(of.read_text()[:20])
    assert cli.main(again) == 0
    assert "measured" not in capsys.readouterr().out


def test_what_cannot_be_measured_is_said() -> None:
    config, spaces = loaded("cartpole_bc")
    with pytest.raises(LaunchError, match="whose data are given is not measured"):
        measure(config, spaces, 0.1)


def test_a_commander_without_limits_may_end_before_it_is_measured() -> None:
    config, spaces = loaded("cartpole_dqn")
    config = replaced(config, {"policy.other.commander": NaiveCommanderConfig()})
    with pytest.raises(LaunchError, match="nothing could be measured: 2 collect tasks are done"):
        measure(config, spaces, 60.0)


def test_no_tracker_hears_of_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run of no use came to stand among those at W&B."""
    opened: list[Any] = []
    monkeypatch.setitem(TRACKERS, "mine", lambda *given: opened.append(given))
    monkeypatch.setattr("hpcdi.run.measure._SETTLED_S", 0.05)
    config, spaces = loaded("cartpole_ppo")
    measure(replaced(config, {"system.loggers": ("mine",)}), spaces, 0.1)
    assert opened == []


def test_what_an_iteration_takes_is_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdi.run.measure._SETTLED_S", 0.05)
    costs = measure(*loaded("cartpole_ppo"), 0.3)
    rollout = 64 * 8  # steps, of which those that begin an episode anew are none
    assert 0.95 * rollout < 1 / costs.updates_per_step <= rollout
