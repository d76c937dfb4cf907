"""A run that is resumed: its best policy stays, and its numbers are of the whole run."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from fakes.replay import (
    BLOCK_BYTES,
    OF_RANK_3,
    block,
    demand,
    make_buffer,
    make_groups,
    make_replay,
    read_all,
)
from fakes.scheduler import EVERY_S, Shown, experiment
from hpcdi.comm.messages import BlockAdmitted, BlockReady
from hpcdi.config.compiled import compile_config
from hpcdi.config.fields import setting
from hpcdi.config.load import load
from hpcdi.dataclass import dataclass
from hpcdi.replay.manager import ReplayManager
from hpcdi.roles.coordinator.coordinator import Coordinator
from hpcdi.roles.coordinator.groups import Groups, create_groups
from hpcdi.roles.coordinator.snapshots import STATE_KIND, STATE_VERSION, Resumed
from hpcdi.roles.coordinator.view import RunView, summary
from hpcdi.roles.evaluations import evaluates_as
from hpcdi.store.checkpoints import BEST_CHECKPOINT, save_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.store.state_file import load_state, save_state
from hpcdi.store.status import StatusFile, best_evaluation, best_return
from hpcdi.types import SequenceRule
from hpcdi.utils.progress import Evaluation, Status
from hpcdi.worker.coordinator import Coordinator as WorkerCoordinator

INF = float("inf")
REPORT = {"role": "coordinator", "cpu": 0.0, "shares": {}}


def evaluation(mean: float, version: int = 7) -> Evaluation:
    return Evaluation(mean, 1.0, mean - 1, mean + 1, 20, version, 1000, 0.5, {"episode/r": mean})


def write_best(layout: RunLayout, mean: float, name: str = BEST_CHECKPOINT, **more: str) -> Path:
    """As a collector does that has evaluated."""

    def write(path: Path) -> None:
        path.write_bytes(b"weights")

    facts = {"train_iter": 453, "reward_mean": mean, **more}
    files = {"policy.safetensors": write}
    return save_checkpoint(layout.checkpoints_dir, name, files, facts, keep=None)


def write_status(layout: RunLayout, *evaluations: Evaluation, **more: str) -> None:
    status = Status((5, 2.5), (3, 1.0), [], None, ([], []))
    file = StatusFile(layout.status_file, (INF, INF), 195.0, **more)
    file.refresh(lambda: status, evaluations, 0.0)


# ---------------------------------------------------------------------------------- the best policy


def resumed_in(layout: RunLayout, *, best: float | None) -> Coordinator:
    """A run that is resumed from a snapshot in which this is the best."""
    coordinator = WorkerCoordinator(experiment(), layout=layout, workers=[])
    state = coordinator.state_dict()
    state["groups"]["main"]["best"] = best
    coordinator.resume(Resumed("snapshot_000001", "", {"env_steps": 0, "train_iter": 0}, state))
    return coordinator


@pytest.mark.parametrize(
    ("in_snapshot", "in_folder", "best"),
    [(None, 261.6, 261.6), (9.5, 261.6, 261.6), (300.0, 261.6, 300.0), (9.5, None, 9.5)],
)
def test_what_the_next_evaluation_has_to_beat_is_the_best_in_the_run_folder(
    in_snapshot: float | None, in_folder: float | None, best: float, tmp_path: Path
) -> None:
    layout = RunLayout(tmp_path)
    if in_folder is not None:
        write_best(layout, in_folder)
    with resumed_in(layout, best=in_snapshot) as coordinator:
        group = coordinator.groups.main
        assert group.best == best
        group.reach(5)
        commander = coordinator._scheduler.commander
        group.evaluation.make_due()
        assert commander.begin_last_evaluation()
        task = commander.evaluation_task(EVERY_S)
        assert task is not None
        assert task.publish_above == best


CONFIGS = Path(__file__).parents[2] / "configs"
AGAINST = "policy.other.commander.evaluate_against=fakes.battles:first_legal"


@pytest.mark.parametrize(
    ("name", "settings", "is_kept"),
    [
        ("cartpole_ppo", ("env.evaluator_episode_num=99", "env.stop_value=2", "seed=9"), True),
        ("cartpole_ppo", ("env.keep_infos=[x]", "env.seeds='0..9'"), True),
        ("cartpole_ppo", ("env.schedule={gravity: {env_steps: {0: 1.0, 9: 2.0}}}",), True),
        ("cartpole_ppo", ("env.wrappers=[{type: ClipReward, max_reward: 1}]",), True),
        ("cartpole_ppo", ("env.wrappers=[{type: TimeLimit, max_episode_steps: 9}]",), False),
        ("cartpole_ppo", ("env.kwargs={x: 1}",), False),
        ("cartpole_ppo", ("env.eval_kwargs={x: 1}",), False),
        ("cartpole_ppo", ("policy.eval.sample=true",), False),
        ("cartpole_ppo", ("policy.eval.max_steps=3",), False),
        ("tictactoe_league", (AGAINST,), False),
    ],
)
def test_the_best_of_other_evaluations_has_not_to_be_beaten(
    name: str,
    settings: tuple[str, ...],
    is_kept: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The best against random moves stayed the best policy when an opponent was harder to beat.

    Also where a snapshot came before the first evaluation of the new kind.
    """
    layout = RunLayout(tmp_path)
    before, now = (load(CONFIGS / f"{name}.yaml", given).config for given in ((), settings))
    of_before = {"evaluates_as": evaluates_as(before)}
    write_best(layout, 0.9, **of_before)
    write_status(layout, evaluation(0.9), **of_before)
    groups = create_groups(before)
    groups.main.recall(0.8, evaluation(0.8))
    state, best = groups.state_dict(), 0.9 if is_kept else -INF
    for _ in range(2):
        coordinator = WorkerCoordinator(now, layout=layout, workers=[])
        with coordinator:
            whole = {**coordinator.state_dict(), "groups": state}
            facts = {"env_steps": 0, "train_iter": 0}
            coordinator.resume(Resumed("snapshot_000001", "", facts, whole))
            main = coordinator.groups.main
            assert (main.best, main.best_evaluation) == (best, evaluation(0.9) if is_kept else None)
            state = coordinator.groups.state_dict()
    said = "the best one so far, of mean return 0.8, is not compared with them"
    assert (said in caplog.text) != is_kept


def of_env(kind: str, **settings: Any) -> str:
    env = {"type": kind, "env_id": "module:Class", **settings}
    return evaluates_as(compile_config({"env": env}).config)


def test_what_no_evaluation_sees_is_no_reason_to_forget_the_best() -> None:
    one = of_env("gymnasium", kwargs={"level": 1, "x": 2}, eval_kwargs={"level": 9})
    assert of_env("gymnasium", kwargs={"level": 9, "x": 2}) == one
    assert of_env("gymnasium", kwargs={"level": 8, "x": 2}) != one
    places = {"spares": 1, "start_timeout": 9, "gpus_per_rank": 1, "ranks": 2}
    assert of_env("mpi", **places) == of_env("mpi") != of_env("mpi", states=["a"])


def test_a_wrapper_of_one_s_own_makes_those_of_rewards_no_reason() -> None:
    def of(scale: float) -> str:
        scaled = {"type": "ScaleReward", "scale": scale}
        return of_env("gymnasium", wrappers=["my:Own", scaled])

    assert of(0.1) == of(0.2)
    assert of(0.1) != of_env("gymnasium", wrappers=[{"type": "ScaleReward", "scale": 0.1}])


def test_a_setting_that_a_later_version_has_is_no_reason_either() -> None:
    config = compile_config({"env": {"env_id": "x", "eval_seeds": "0..9"}}).config

    @dataclass(frozen=True)
    class Later(type(config.env)):  # type: ignore[misc]
        """As it may be one day."""

        fog: float = setting(0.0, "how dense it is")

    same = dataclasses.asdict(config.env) | {"manager": config.env.manager}
    clear, foggy = Later(**same), Later(**same, fog=0.5)
    later = [evaluates_as(dataclasses.replace(config, env=env)) for env in (clear, foggy)]
    assert later[0] == evaluates_as(config) != later[1]


def test_a_best_checkpoint_of_an_infinite_return_says_nothing(tmp_path: Path) -> None:
    """A run that had one could not be resumed."""
    layout = RunLayout(tmp_path)
    write_best(layout, INF)
    assert best_return(layout) == -INF


def test_a_best_checkpoint_that_is_torn_says_nothing_and_one_that_a_kill_left_does(
    tmp_path: Path,
) -> None:
    layout = RunLayout(tmp_path)
    assert best_return(layout) == -INF
    (write_best(layout, 300.0) / "policy.safetensors").write_bytes(b"torn")
    assert best_return(layout) == -INF
    write_best(layout, 20.0, f"{BEST_CHECKPOINT}.before")
    write_best(layout, 500.0, "iteration_000000001")
    assert best_return(layout) == 20.0


# --------------------------------------------------------------------------- the best evaluation


@pytest.mark.parametrize("best", [INF, -INF])
def test_an_infinite_best_evaluation_is_restored(best: float, tmp_path: Path) -> None:
    groups, again = make_groups(), make_groups()
    groups.main.recall(best, evaluation(best))
    save_state(tmp_path / "x.h5", STATE_KIND, STATE_VERSION, groups.state_dict())
    again.load_state_dict(load_state(tmp_path / "x.h5", STATE_KIND, STATE_VERSION))
    assert again.main.best_evaluation == evaluation(best)
    assert again.main.best == best


def test_the_best_evaluation_is_restored_as_it_was(tmp_path: Path) -> None:
    groups, again = make_groups(), make_groups()
    groups.main.recall(261.6, evaluation(261.6))
    save_state(tmp_path / "x.h5", STATE_KIND, STATE_VERSION, groups.state_dict())
    again.load_state_dict(load_state(tmp_path / "x.h5", STATE_KIND, STATE_VERSION))
    assert again.main.best_evaluation == evaluation(261.6)
    again.main.recall(9.5, evaluation(9.5))
    again.main.recall(math.nan, evaluation(math.nan))
    assert (again.main.best, again.main.best_evaluation) == (261.6, evaluation(261.6))


def test_one_after_the_snapshot_is_in_the_status_file(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    write_status(layout, evaluation(20.0), evaluation(200.0, version=8), evaluation(30.0))
    with resumed_in(layout, best=None) as coordinator:
        assert coordinator.groups.main.best_evaluation == evaluation(200.0, version=8)
        assert "  best evaluation: mean return 200.0 at env step 1000, policy of iteration 8" in (
            coordinator.summary()
        )


@pytest.mark.parametrize(
    "held",
    [None, 7, [], {}, {"mean": 1.0}, {**vars(evaluation(1.0)), "std": None},
     {**vars(evaluation(1.0)), "figures": 3}, {**vars(evaluation(1.0)), "more": 1}],
)  # fmt: skip
def test_a_status_file_of_other_contents_says_nothing(held: object, tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert best_evaluation(layout) is None
    layout.status_file.write_text(json.dumps({"best_evaluation": held}))
    assert best_evaluation(layout) is None


def test_the_status_file_holds_the_best_of_the_whole_run_and_a_new_one_at_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "status.json"
    file, before = StatusFile(path, (INF, INF), 195.0), evaluation(200.0)
    now: list[Evaluation] = []

    def refreshed(best: Evaluation, at: float) -> tuple[Any, Any]:
        status = Status((5, 2.5), (3, 1.0), [], None, ([], []))
        file.refresh(lambda: status, now, at, best=best)
        held = json.loads(path.read_text())
        return held["evaluation"] and held["evaluation"]["mean"], held["best_evaluation"]["mean"]

    assert refreshed(before, 0.0) == (None, 200.0)
    now.append(evaluation(30.0))
    assert refreshed(before, 0.1) == (None, 200.0), "it is not due, and no better"
    assert refreshed(before, 100.0) == (30.0, 200.0)
    now.append(evaluation(300.0))
    assert refreshed(now[-1], 100.1) == (300.0, 300.0)


# ------------------------------------------------------------------------- samples per transition


def filled() -> tuple[ReplayManager, dict[str, BlockReady]]:
    replay = make_replay()
    replay.open(1)
    published = {}
    for number in range(4):
        ready = block(number, [5])
        published[ready.shard.path] = ready
        read_all(replay, replay.assign(ready))
    replay.partitions[1].demand(demand(2, 4))
    replay.serve(0, ())
    return replay, published


@pytest.mark.parametrize("learners", [(1,), (1, 2)])
def test_transitions_that_are_read_again_count_once(learners: tuple[int, ...]) -> None:
    replay, published = filled()
    before = replay.figures()
    assert (before.drawn, before.admitted) == (8, 20)
    again = make_replay()
    again.load_state_dict(replay.state_dict(), {**published, "data/9.h5": block(9, [7])})
    assert (again.figures().drawn, again.figures().admitted) == (8, 20), "before learners begin"
    read_all(again, again.open(*learners))
    assert again.count() == 27
    assert (again.figures().drawn, again.figures().admitted) == (8, 27)
    assert again.figures().steps == 27


@pytest.mark.parametrize("rules", [(3, 0), (0, 3)])
def test_blocks_stay_read_whatever_burn_in_a_resumed_run_has(rules: tuple[int, int]) -> None:
    """With less, more sequences begin in them; those of the index keep their priorities."""
    before, after = (
        ReplayManager(make_buffer, BLOCK_BYTES, rule=SequenceRule(4, 2, 1, burn_in))
        for burn_in in rules
    )
    before.open(1)
    blocks = [block(number, [7, 8]) for number in (1, 2, 3)]
    for ready in blocks:
        read_all(before, before.assign(ready))
    after.load_state_dict(before.state_dict(), {ready.shard.path: ready for ready in blocks})
    read_all(after, after.open(1))
    assert after.count() == before.count()
    assert after.figures() == before.figures()


@pytest.mark.parametrize("name", ["admitted", "steps", "counted_before"])
def test_what_a_state_does_not_say_is_not_taken_for_zero(name: str) -> None:
    state = filled()[0].state_dict()
    del state[name]
    with pytest.raises(KeyError, match=name):
        make_replay().load_state_dict(state)


# -------------------------------------------------------------------------------------- the summary


def counted(groups: Groups, env_steps: int, train_iter: int) -> None:
    groups.main.env_steps, groups.main.train_iter = env_steps, train_iter


def test_the_summary_says_what_is_of_this_start_beside_its_time() -> None:
    run, view = Shown(), RunView(experiment(), None, is_terminal=False)
    counted(run.scheduler.groups, 11_100, 80)
    view.resumed(run.scheduler)
    run.main.recall(261.6, evaluation(261.6))
    counted(run.scheduler.groups, 13_200, 94)
    lines = summary(run.scheduler, view._record, 10.0, REPORT)
    assert lines[:2] == [
        "  13.2k env steps (2100 in this start) and 94 train iterations (14) in 10s; 0 episodes; "
        "0.00 samples drawn per transition",
        "  best evaluation: mean return 261.6 at env step 1000, policy of iteration 7",
    ]
    view.resumed(run.scheduler)
    assert summary(run.scheduler, view._record, 0.0, REPORT)[0].startswith(
        "  13.2k env steps (0 in this start) and 94 train iterations (0) in 0s; "
    )


def test_blocks_that_learners_read_again_say_nothing_of_how_soon_one_is_learnable(
    tmp_path: Path,
) -> None:
    """They have waited for the ranks to start: it was seconds instead of milliseconds.

    So have those of data that the run was given.
    """
    layout, old, given = RunLayout(tmp_path), block(OF_RANK_3 + 1, [4]), 1
    with WorkerCoordinator(experiment(), layout=layout, workers=[]) as coordinator:
        state, facts = coordinator.state_dict(), {"env_steps": 0, "train_iter": 0}
        coordinator.resume(Resumed("snapshot_000001", "", facts, state, {old.shard.path: old}))
        admitted = ((old.block_id, 19.0), (given, 19.0), (OF_RANK_3 + 2, 0.01))
        for block_id, latency_s in admitted:
            coordinator._view.observe(1, BlockAdmitted(block_id, latency_s))
        assert coordinator.figures()["block_latency_p99_s"] == 0.01
