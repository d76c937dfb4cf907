"""Names of a run's curves, and what environments say of their episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.scheduler import Shown
from hpcdi.roles.coordinator.run_curves import FIRST, DingCurves, RunCurves, player_of, shown_name
from hpcdi.types import FIGURES_KEPT, FIGURES_SENT, Episodes
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.utils.progress import Evaluation


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("collector_step/reward_mean", "curves/collect_return"),
        ("collector_iter/reward_mean", None),
        ("bot_2_evaluator_step/reward_mean", "curves/evaluation_return/bot_2"),
        ("collector_step/info/is_success", "curves/collect_success"),
        ("evaluator_step/info/success", "curves/evaluation_success"),
        ("evaluator_step/info/goal/distance", "info/evaluation_goal/distance"),
        ("bot_collector_step/info/lives", "info/lives/bot"),
        ("bot_learner_step/grad_norm", "detail/learner/bot/grad_norm"),
        ("perf/policy_lag", "curves/staleness"),
        ("perf/idle_frac/rank3", "detail/perf/idle_frac/rank3"),
        ("buffer_rank1_iter/use_avg", "detail/buffer_rank1/use_avg"),
        ("callbacks/per_iter/lr", "detail/callbacks/per_iter/lr"),
        ("learner_step/callbacks/lr", "detail/learner/callbacks/lr"),
        ("collector_step/info/a_learner_iter/x", "info/a_learner_iter/x"),
    ],
)
def test_a_curve_is_shown_once(tag: str, name: str | None) -> None:
    assert shown_name(tag) == name


@pytest.mark.parametrize(
    ("tag", "player"),
    [
        ("collector_step/reward_mean", "main"),
        ("bot_2_evaluator_step/reward_mean", "bot_2"),
        ("evaluator_step/info/goal/distance", "main"),
        ("bot_collector_step/info/lives", "bot"),
        ("learner_step/grad/norm", "main"),
        ("bot_learner_step/grad_norm", "bot"),
        ("perf/env_steps_per_s", None),
        ("perf/idle_frac/rank3", None),
        ("league/elo_bot", None),
    ],
)
def test_a_curve_is_drawn_over_its_player_s_steps_by_either_name(
    tag: str, player: str | None
) -> None:
    for name in (tag, shown_name(tag)):
        assert name is not None
        assert player_of(name, ("main", "bot", "bot_2")) == player


def test_what_is_first_is_little_and_begins_with_the_return() -> None:
    names = sorted(set(FIRST.values()))
    assert names[0] == "collect_return"
    assert len(names) <= 11


def test_all_are_over_environment_steps(tmp_path: Path) -> None:
    """Seconds were taken for environment steps, and moved other curves to them."""
    writer = TensorBoardWriter(tmp_path)
    curves = RunCurves(writer)
    curves.add_scalar("buffer_rank1_iter/use_avg", 1.0, 7)  # of a restart: nobody knows where
    curves.add_scalar("perf/policy_lag", 2.0, 500)
    curves.add_scalar("buffer_rank1_sec/push_count", 7.0, 3600)
    curves.add_scalar("buffer_rank1_iter/use_avg", 3.0, 8)
    curves.add_scalar("evaluator_step/info/per_iter/x", 4.0, 400)
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    points = [(p.step, p.value) for p in events.Scalars("detail/buffer_rank1/use_avg")]
    assert points == [(500, 3.0)]
    assert [p.step for p in events.Scalars("detail/buffer_rank1/push_count")] == [500]
    (point,) = events.Scalars("info/evaluation_per_iter/x")
    assert (point.step, point.value) == (400, 4.0)


def test_means_of_learners_have_di_engines_tags(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    curves, own = DingCurves(writer), ("collector_iter/reward_mean", "learner_iter/grad/norm")
    for tag in (*own, "learner_iter/total_loss", "bot_2_learner_step/q_value"):
        curves.add_scalar(tag, 1.0, 1)
    writer.close()
    tags = EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]
    means = {"learner_iter/total_loss_avg", "bot_2_learner_step/q_value_avg"}
    assert set(tags) == {*own, *means}


# ---------------------------------------------------------------------- figures of environments


def episodes(*infos: dict[str, float]) -> Episodes:
    count = len(infos)
    return Episodes(np.arange(count), np.ones(count), np.ones(count, np.int64), infos)


def test_numbers_of_infos_are_columns() -> None:
    ended = episodes(
        {"is_success": 1.0, "eval_episode_return": 5.0, "_seat": 1.0}, {"episode/r": 3.0}
    )
    figures = ended.figures
    assert figures.keys() == {"is_success", "episode/r"}
    np.testing.assert_array_equal(figures["is_success"], [1.0, np.nan])
    assert episodes().figures == {}
    many = episodes({f"n{number}": 0.0 for number in range(2000)})
    assert [*many.figures] == [f"n{number}" for number in range(FIGURES_SENT)]
    assert FIGURES_SENT > 10 * FIGURES_KEPT, "what a curriculum or a callback waits for"


def test_they_become_curves_and_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    run = Shown()
    run.collected(500, 10.0, 30.0, figures={"is_success": [1.0, 0.0], "distance": [np.nan, 4.0]})
    run.collected(500, 10.0, figures={"is_success": [0.0]})
    run.evaluated(100.0, version=3, figures={"is_success": [1.0], "broken": [np.inf]})
    run.look(1000.0)
    assert run.curves.of("collector_step/info/is_success")[-1] == (pytest.approx(1 / 3), 1000)
    assert run.curves.of("collector_step/info/distance")[-1] == (4.0, 1000)
    assert run.curves.of("evaluator_step/info/is_success") == [(1.0, 1000)]
    assert run.curves.of("evaluator_step/info/broken") == []
    (evaluation,) = run.scheduler.groups.main.evaluations
    assert "episodes), success 100%, policy" in str(evaluation)
    assert "success" not in str(Evaluation(**{**vars(evaluation), "figures": {}}))
