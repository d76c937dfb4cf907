"""Commanders: which tasks there are, and when the goal is reached."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.scheduler import EVERY_S, STOP_VALUE, experiment
from hpcdi.comm.messages import CollectResult, CollectTask, LearnTask
from hpcdi.config.compat import ConfigDict
from hpcdi.errors import ConfigError, UnknownTypeError
from hpcdi.roles.coordinator.groups import create_groups
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY
from hpcdi.worker.coordinator import (
    SoloCommander,
    create_parallel_commander,
    get_parallel_commander_cls,
)
from hpcdi.worker.coordinator.commanders import BaseCommander, NaiveCommander


def as_mapping(**commander: Any) -> dict[str, Any]:
    """An experiment as the seeds' callers write it: only what is asked for."""
    return {
        "env": {"env_id": "CartPole-v1", "stop_value": STOP_VALUE},
        "policy": {"type": "dqn", "other": {"commander": {"type": "solo", **commander}}},
    }


def solo(**settings: Any) -> Any:
    return create_parallel_commander(experiment(**settings))


def naive(**settings: Any) -> Any:
    return create_parallel_commander(as_mapping(**{"type": "naive", **settings}))


def learning(commander: Any, now: float = 0.0) -> Any:
    """The same commander, whose main player's learners have begun their task."""
    commander.groups.main.learners.begin(commander.get_learner_task(now), now)
    return commander


def counted(commander: Any, env_steps: int, train_iter: int) -> str:
    """The main player's counters are these: the reason to end the run."""
    main = commander.groups.main
    main.env_steps, main.train_iter = env_steps, train_iter
    reason: str = commander.limit_reached()
    return reason


def result(task: Any, *returns: float) -> CollectResult:
    lengths = np.ones(len(returns), np.int64)
    return CollectResult(task.task_id, task.eval_flag, 1, 9, 1.0, np.array(returns), lengths)


def evaluation(commander: Any, now: float) -> CollectTask:
    """The evaluation task that is due at a time; the commander has learnt something."""
    counted(commander, 0, 10)
    task: CollectTask = commander.get_collector_task(now)
    assert task.eval_flag
    return task


# ------------------------------------------------------------------------------------- making one


def test_from_an_experiment_and_from_mappings() -> None:
    assert isinstance(create_parallel_commander(experiment()), SoloCommander)
    assert isinstance(create_parallel_commander(as_mapping()), SoloCommander)
    assert isinstance(create_parallel_commander(ConfigDict(as_mapping())), SoloCommander)
    assert isinstance(naive(), NaiveCommander)


def test_classes_by_type() -> None:
    assert get_parallel_commander_cls({"type": "solo"}) is SoloCommander
    assert get_parallel_commander_cls(NaiveCommander.Config()) is NaiveCommander
    assert get_parallel_commander_cls(experiment().policy.other.commander) is SoloCommander


def test_an_unknown_type_is_an_error_of_both_kinds() -> None:
    with pytest.raises(UnknownTypeError, match="did you mean 'solo'"):
        get_parallel_commander_cls({"type": "sol"})
    with pytest.raises(KeyError):
        get_parallel_commander_cls({"type": "one_vs_none"})
    with pytest.raises(ConfigError, match="did you mean 'one_vs_one'"):
        create_parallel_commander(as_mapping(type="one_vs_none"))


@pytest.mark.parametrize("is_in_run", [False, True])
def test_a_constructor_may_take_the_experiment_alone(
    is_in_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run it is handed the groups, too."""

    class OfCfg(SoloCommander):
        def __init__(self, cfg: Any, *more: Any) -> None:
            super().__init__(cfg, *more)
            self.more = more

    monkeypatch.setitem(PARALLEL_COMMANDER_REGISTRY._classes, "of_cfg", OfCfg)
    groups = create_groups(experiment()) if is_in_run else None
    commander: Any = create_parallel_commander(as_mapping(type="of_cfg"), groups)
    assert commander.more == ((groups,) if is_in_run else ())


def test_a_type_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`import_names` names the module that registers it."""
    name = "my_commander_of_a_test"
    (tmp_path / f"{name}.py").write_text(
        "from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY\n"
        "from hpcdi.worker.coordinator.commanders import NaiveCommander\n"
        "@PARALLEL_COMMANDER_REGISTRY.register('mine')\n"
        "class Mine(NaiveCommander): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        cls = get_parallel_commander_cls({"type": "mine", "import_names": [name]})
        assert cls is sys.modules[name].Mine
    finally:
        PARALLEL_COMMANDER_REGISTRY._classes.pop("mine", None)
        sys.modules.pop(name, None)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        create_parallel_commander(as_mapping(eval_interval=0, max_env_stp=1))
    problems = {problem.path: problem.message for problem in caught.value.problems}
    assert problems == {
        "policy.other.commander.eval_interval": "must be above 0, not 0",
        "policy.other.commander.max_env_stp": "unknown key; did you mean 'max_env_step'?",
    }


def test_default_config() -> None:
    config = SoloCommander.default_config()
    assert (config.type, config.eval_interval, config.learner_task_space) == ("solo", 60, 1)
    assert config.cfg_type == "SoloCommanderDict"
    assert NaiveCommander.default_config().collector_task_space == 2


# -------------------------------------------------------------------------------------------- solo


def test_one_learner_task() -> None:
    commander = learning(solo())
    learners = commander.groups.main.learners
    task = learners.task
    assert isinstance(task, LearnTask)
    assert commander.get_learner_task(0.0) is None
    learners.end_task()
    again = commander.get_learner_task(0.0)
    assert again.task_id != task.task_id


def test_collect_tasks_need_a_learner() -> None:
    commander = solo()
    assert commander.get_collector_task(0.0) is None
    task = learning(commander).get_collector_task(0.0)
    assert not task.eval_flag


def test_task_space() -> None:
    commander = learning(solo(collector_task_space=2))
    tasks = [commander.get_collector_task(0.0) for _ in range(3)]
    assert [task is None for task in tasks] == [False, False, True]
    commander.notify_fail_collector_task(tasks[0])
    assert commander.get_collector_task(0.0) is not None
    commander.increase_collector_task_space()
    assert commander.get_collector_task(0.0) is not None
    assert commander.get_collector_task(0.0) is None
    for _ in range(5):
        commander.decrease_collector_task_space()
    commander.finish_collector_task(tasks[1].task_id, result(tasks[1]))
    assert commander.get_collector_task(0.0) is None
    commander.increase_collector_task_space()  # space for one, and two are running
    assert commander.get_collector_task(0.0) is None


@pytest.mark.parametrize("change", ["increase", "decrease"])
def test_space_for_every_collector_stays_so(change: str) -> None:
    commander = learning(solo())
    getattr(commander, f"{change}_collector_task_space")()
    assert all(commander.get_collector_task(0.0) is not None for _ in range(5))


def test_evaluations() -> None:
    commander = solo()
    assert not commander.evaluation_is_due(1e9)
    learning(commander, 100.0)
    assert not commander.evaluation_is_due(1e9)  # nothing is learnt yet
    counted(commander, 50, 2)
    assert not commander.evaluation_is_due(100.0 + EVERY_S - 0.1)
    assert commander.evaluation_is_due(100.0 + EVERY_S)
    task = commander.get_collector_task(200.0)
    assert (task.eval_flag, task.setting, task.publish_above) == (True, {}, float("-inf"))
    assert not commander.evaluation_is_due(1e9)  # one at a time
    assert not commander.get_collector_task(1e9).eval_flag
    assert not commander.finish_collector_task(task.task_id, result(task, 1.0, 2.0))
    assert not commander.evaluation_is_due(200.0 + EVERY_S - 0.1)
    assert commander.evaluation_is_due(200.0 + EVERY_S)
    counted(commander, 50, 1)
    assert not commander.evaluation_is_due(1e9), "it was of iteration 1"


@pytest.mark.parametrize(("unit", "steps"), [("env_steps", (100, 1)), ("iterations", (1, 100))])
def test_evaluations_by_count(unit: str, steps: tuple[int, int]) -> None:
    cfg = as_mapping()
    cfg["policy"]["eval"] = {"every": f"100 {unit}"}
    commander = learning(create_parallel_commander(cfg), 5.0)
    counted(commander, 99, 99)
    assert not commander.evaluation_is_due(1e9)
    counted(commander, *(2 * count for count in steps))
    task = commander.get_collector_task(6.0)
    assert task.eval_flag
    commander.finish_collector_task(task.task_id, result(task, 1.0))
    assert not commander.evaluation_is_due(1e9)
    counted(commander, *(3 * count for count in steps))
    assert commander.evaluation_is_due(6.0)


def test_the_best_evaluation_is_what_the_next_has_to_beat() -> None:
    commander = learning(solo())
    best = []
    for k, returns in enumerate([(10.0, 20.0), (5.0,), (), (float("nan"),), (40.0,), (0.0,)]):
        task = evaluation(commander, (k + 1) * EVERY_S)
        best.append(task.publish_above)
        commander.finish_collector_task(task.task_id, result(task, *returns))
    assert best == [float("-inf"), 15.0, 15.0, 15.0, 15.0, 40.0]


@pytest.mark.parametrize(
    ("returns", "reached"),
    [((194.0, 196.0), True), ((194.9,), False), ((), False), ((1000.0, float("nan")), False)],
)
def test_the_goal_is_a_mean_return(returns: tuple[float, ...], reached: bool) -> None:
    commander = learning(solo())
    task = evaluation(commander, EVERY_S)
    assert commander.finish_collector_task(task.task_id, result(task, *returns)) is reached


def test_exploration_falls_with_the_steps_of_the_run() -> None:
    commander = learning(solo())
    rates = []
    for steps in (0, 100, 500, 1000, 5000):
        counted(commander, steps, 0)
        rates.append(commander.get_setting_collect(commander.groups.main)["eps"])
        assert commander.get_collector_task(0.0).setting == {"eps": rates[-1]}
    assert rates == pytest.approx([1.0, 0.9, 0.5, 0.0, 0.0])


def test_limits() -> None:
    commander = solo(max_env_step=1000, max_train_iter=50)
    assert counted(commander, 999, 49) == ""
    assert counted(commander, 1000, 49) == "max_env_step reached: 1000 of 1000"
    assert counted(commander, 1, 60) == "max_train_iter reached: 60 of 50"
    assert counted(solo(), 10**15, 10**15) == ""


@pytest.mark.parametrize("returns", [(), (12.0, 14.0)])
def test_state_round_trip(returns: tuple[float, ...]) -> None:
    commander, again = learning(solo(max_env_step=10**6)), solo(max_env_step=10**6)
    task = evaluation(commander, EVERY_S)
    commander.finish_collector_task(task.task_id, result(task, *returns))
    counted(commander, 400, 30)
    state = commander.groups.state_dict()
    assert state["main"]["best"] == (13.0 if returns else None)
    again.groups.load_state_dict(state)
    assert again.groups.state_dict() == state
    learning(again)
    main = again.groups.main
    assert again.get_setting_collect(main) == commander.get_setting_collect(commander.groups.main)
    assert not again.evaluation_is_due(EVERY_S - 0.1)
    assert again.evaluation_is_due(EVERY_S)


@pytest.mark.parametrize("unit", ["env_steps", "iterations"])
def test_an_interval_of_evaluations_goes_on_where_a_run_is_resumed(unit: str) -> None:
    cfg = as_mapping()
    cfg["policy"]["eval"] = {"every": f"100 {unit}"}
    commander, again = learning(create_parallel_commander(cfg)), create_parallel_commander(cfg)
    counted(commander, 120, 120)
    task = commander.get_collector_task(0.0)
    commander.finish_collector_task(task.task_id, result(task, 1.0))
    counted(commander, 190, 190)
    again.groups.load_state_dict(commander.groups.state_dict())
    assert not learning(again).evaluation_is_due(0.0)
    counted(again, 220, 220)
    assert again.evaluation_is_due(0.0)


# ------------------------------------------------------------------------------------------- naive


def test_naive_tasks_are_numbered() -> None:
    commander = naive()
    tasks = [commander.get_collector_task(0.0) for _ in range(3)]
    assert [task and task.task_id for task in tasks] == [
        "collector_task_id1", "collector_task_id2", None,
    ]  # fmt: skip
    assert commander.get_learner_task(0.0) == LearnTask("learner_task_id1")
    assert commander.get_learner_task(0.0) is None


def test_naive_reaches_its_goal_by_counting() -> None:
    commander = naive(collector_task_count=3)
    tasks = [commander.get_collector_task(0.0) for _ in range(2)]
    ended = [commander.finish_collector_task(t.task_id, result(t)) for t in tasks]
    assert ended == [False, False]
    last = commander.get_collector_task(0.0)
    assert commander.finish_collector_task(last.task_id, result(last))


def test_naive_space() -> None:
    commander = naive(collector_task_space=1)
    task = commander.get_collector_task(0.0)
    assert commander.get_collector_task(0.0) is None
    commander.notify_fail_collector_task(task)
    assert commander.get_collector_task(0.0) is not None
    unlimited = naive(collector_task_space=None)
    assert all(unlimited.get_collector_task(0.0) is not None for _ in range(5))
    assert commander.get_learner_task(0.0) is not None
    assert commander.get_learner_task(0.0) is None
    commander.finish_learner_task("any", None)
    assert commander.get_learner_task(0.0) is not None


def test_who_says_that_a_task_has_ended() -> None:
    for commander in (naive(), solo()):
        assert isinstance(commander, BaseCommander)
        assert commander.judge_collector_finish("t", {"collector_done": True}) is True
        assert commander.judge_collector_finish("t", {}) is False
        assert commander.judge_learner_finish("t", {"learner_done": True}) is True
        assert commander.judge_learner_finish("t", {"learner_done": False}) is False


def test_an_evaluation_that_was_cut_short_reaches_no_goal() -> None:
    commander = learning(solo())
    task = evaluation(commander, 1e6)
    cut_short = dataclasses.replace(result(task, 1e9), is_complete=False)
    assert not commander.finish_collector_task(task.task_id, cut_short)
    assert commander.groups.main.best == float("-inf")
    task = evaluation(commander, 2e6)
    assert commander.finish_collector_task(task.task_id, result(task, 1e9))


def test_di_engines_dicts_are_taken_as_well() -> None:
    commander = learning(solo())
    task = evaluation(commander, 1e6)
    assert not commander.get_collector_task(1e6).eval_flag, "the evaluation is under way"
    commander.notify_fail_collector_task({"task_id": task.task_id})
    task = commander.get_collector_task(1e6)
    assert task.eval_flag, "it has failed, and is due again"
    done = {"eval_flag": True, "train_iter": 10, "reward_mean": STOP_VALUE - 1}
    assert commander.finish_collector_task(task.task_id, done) is False
    assert commander.finish_collector_task("another", {**done, "reward_mean": STOP_VALUE}) is True
    assert [one.mean for one in commander.groups.main.evaluations] == [STOP_VALUE - 1, STOP_VALUE]
    commander.notify_fail_collector_task({})
