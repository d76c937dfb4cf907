"""Every manager keeps one contract; single environments that fail are replaced, or retired."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from fakes.env_managers import (
    CHILDREN,
    COUNT,
    LENGTH,
    SYNC,
    count_rows,
    live_rows,
    made,
    running,
    seen,
    stepped,
    steps_of,
    vector_manager,
    waiting,
)
from fakes.environments import (
    BadStart,
    CrashingEnv,
    Drifts,
    FragileEnv,
    HeldEnv,
    InfoEnv,
    LateEnv,
    NaNEnv,
    NeverEnv,
    SlowResetEnv,
)
from hpcdi.env.counters import FailureRecord
from hpcdi.env.create import create_env_manager, make_env_manager
from hpcdi.env.gymnasium import GymnasiumEnv
from hpcdi.env.in_process import SingleEnvs
from hpcdi.env.manager import EnvManager, ResetParam
from hpcdi.env.toy import CountEnv
from hpcdi.env.vector import VectorEnvs
from hpcdi.errors import ConfigError, EnvError
from hpcdi.worker.dict_envs import DictManager

pytestmark = pytest.mark.usefixtures("env_helpers")
EVERY = (*SYNC, "pool", "forkserver")
"""Children that are spawned are others only in how they begin: they give the same data, below."""
CARTPOLE = partial(gymnasium.make, "CartPole-v1")


@pytest.mark.parametrize("form", EVERY)
class TestContract:
    """What a collector relies on, whatever steps the environments."""

    def test_transitions_of_a_known_environment(self, form: str) -> None:
        with running(form, [COUNT] * 2) as manager:
            taken = steps_of(manager, 3 * (LENGTH + 1))
            for env in range(2):
                assert live_rows(taken, env)[: 3 * LENGTH] == count_rows(3)
            assert not any(step.failed is not None and step.failed.any() for _, step in taken)
            _, returns, lengths, _ = manager.take_episodes()
        assert set(returns.tolist()) == {6.0}
        assert set(lengths.tolist()) == {LENGTH}

    def test_life(self, form: str) -> None:
        manager = made(form, [COUNT] * 2, 2)
        assert manager.closed
        manager.launch()
        with pytest.raises(EnvError, match=r"close\(\) them before launch"):
            manager.launch()
        assert not manager.closed
        for _ in range(2):
            while not manager.done:
                steps_of(manager, 1)
            assert not manager.ready.any()
            assert manager.take_episodes().lengths.tolist() == [LENGTH] * 4
            assert not manager.take_episodes().lengths.size, "they are told once"
            manager.restart_count()
        assert waiting(manager) == {0, 1}
        assert (manager.facts.action_space.n, manager.facts.observation_space.shape) == (2, (2,))
        manager.close()
        manager.close()
        assert manager.closed
        manager.launch()
        assert waiting(manager) == {0, 1}
        manager.close()

    def test_one_environment_is_reset_and_its_episode_dropped(self, form: str) -> None:
        with running(form, [COUNT] * 2) as manager:
            steps_of(manager, 2)
            manager.reset({1: None})
            assert seen(manager).tolist() == [[2, 0], [0, 1]]
            steps_of(manager, 1)
            assert manager.take_episodes().returns.tolist() == [6.0]
            with pytest.raises(EnvError, match=r"reset_param of environment 0 has .'sead'"):
                manager.reset({0: {"sead": 1}})
            with pytest.raises(EnvError, match=r"there are no environments \[2\]"):
                manager.reset({2: None})

    def test_given_seeds_and_static_seeds(self, form: str) -> None:
        with running(form, [CARTPOLE] * 2) as manager:
            manager.reset({0: {"seed": 7}, 1: {"seed": 7}})
            assert seen(manager)[0].tolist() == seen(manager)[1].tolist()
            manager.seeds.seed([3, 3], dynamic_seed=False)
            first = []
            for _ in range(2):
                manager.reset()
                first += seen(manager).tolist()
            assert all(one == first[0] for one in first)
            manager.seeds.seed([3, 4], None)
            manager.reset()
            assert seen(manager)[0].tolist() != seen(manager)[1].tolist()

    def test_random_actions_follow_the_seed(self, form: str) -> None:
        drawn = []
        with running(form, [COUNT] * 2) as rows:
            manager = DictManager(rows)
            for _ in range(2):
                manager.seed(5)
                drawn.append([manager.random_action() for _ in range(20)])
        assert drawn[0] == drawn[1]
        assert {a for actions in drawn[0] for a in actions.values()} == {0, 1}

    def test_those_who_draw_actions_for_the_same_environments_draw_others(self, form: str) -> None:
        with running(form, [COUNT] * 2) as rows:
            one, other = DictManager(rows), DictManager(rows)
            assert [one.random_action() for _ in range(20)] != [
                other.random_action() for _ in range(20)
            ]

    def test_pictures_shaping_and_saving(self, form: str) -> None:
        fns = [partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")] * 2
        with running(form, fns) as rows:
            manager = DictManager(rows)
            pictures = manager.ready_imgs()
            assert [(p.shape, p.dtype) for p in pictures] == [((400, 600, 3), np.uint8)] * 2
            assert manager.reward_shaping(0, [{"reward": 1}]) == [{"reward": 1}]
            with pytest.raises(EnvError, match="environment 1 has no enable_save_figure"):
                manager.enable_save_figure(1, "there")
        with running(form, [COUNT]) as manager, pytest.raises(EnvError, match="render"):
            DictManager(manager).ready_imgs()


def walk(form: str, steps: int = 60) -> list[Any]:
    """Live rows of three CartPoles under given actions."""
    actions = [[], [], []]  # type: list[list[int]]
    rng = [np.random.default_rng(env) for env in range(3)]
    with running(form, [CARTPOLE] * 3, seed=11) as manager:
        taken, count = [], np.zeros(3, dtype=int)
        while count.min() < steps:
            act = np.zeros(3, dtype=np.int64)
            for env in waiting(manager):  # an environment's n-th action, whenever it comes
                if len(actions[env]) == count[env]:
                    actions[env].append(int(rng[env].integers(2)))
                act[env] = actions[env][count[env]]
            taken.append((seen(manager).copy(), stepped(manager, act)))
            count += taken[-1][1].live
    return [live_rows(taken, env)[:steps] for env in range(3)]


def test_all_managers_give_the_same_data_bit_by_bit() -> None:
    wanted = walk("next_step")
    assert wanted[0] != wanted[1]
    for form in ("same_step", "pool", "late", *CHILDREN):
        assert walk(form) == wanted, form


def test_the_type_takes_the_vectorised_form_where_there_is_one() -> None:
    def backend(**cfg: Any) -> Any:
        seed = np.random.SeedSequence(0)
        return create_env_manager({"type": "gymnasium", **cfg}, evaluate=False, seed=seed)._backend

    counts = {"env_id": "hpcdi/Count-v0", "import_names": ["hpcdi.env.toy"]}
    assert isinstance(backend(env_id="CartPole-v1"), VectorEnvs)
    assert isinstance(backend(**counts, vectorization="sync"), VectorEnvs)
    assert isinstance(backend(**counts), SingleEnvs)
    child = {"manager": {"type": "subprocess"}}
    assert isinstance(backend(env_id="CartPole-v1", **child), SingleEnvs)
    with pytest.raises(ConfigError, match=r"env.vectorization: must be 'auto'"):
        backend(env_id="CartPole-v1", vectorization="sync", **child)
    with pytest.raises(ConfigError, match=r"env.manager.auto_reset: cannot be false"):
        backend(env_id="CartPole-v1", manager={"auto_reset": False})


@pytest.mark.parametrize("key", ["step_timeout", "reset_timeout"])
def test_time_limits_need_child_processes(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"manager.{key}: .*set env.manager.type: subprocess"):
        GymnasiumEnv.parse_config({"env_id": "CartPole-v1", "manager": {key: 1.0}})
    GymnasiumEnv.parse_config(
        {"env_id": "CartPole-v1", "manager": {key: 1.0, "type": "subprocess"}}
    )


@pytest.mark.parametrize("form", ["pool", "forkserver"])
def test_without_auto_reset_an_ended_environment_waits(form: str) -> None:
    with running(form, [partial(CountEnv, 1), partial(CountEnv, 3)], auto_reset=False) as manager:
        (_, step), *_ = steps_of(manager, 1)
        assert step.terminated.tolist() == [True, False]
        assert waiting(manager) == {1}
        (_, step), *_ = steps_of(manager, 1)
        assert step.live.tolist() == [False, True]
        manager.reset({0: None})
        assert waiting(manager) == {0, 1}


@pytest.mark.parametrize("form", ["pool", "forkserver", *SYNC])
def test_the_per_environment_form_has_the_environments_info(form: str) -> None:
    with running(form, [InfoEnv] * 2) as rows:
        manager = DictManager(rows)
        first = manager.step({0: 0, 1: 0})
        assert [first[env].info["from_step"] for env in (0, 1)] == [1, 1]
        last = manager.step({0: 0, 1: 0})
        assert last[0].done
        assert last[0].info["from_step"] == 2


@pytest.mark.parametrize("form", ["pool", "forkserver"])
@pytest.mark.parametrize("which", [None, {0: None}])
def test_the_per_environment_form_forgets_the_return_of_an_episode_that_a_reset_drops(
    form: str, which: ResetParam | None
) -> None:
    with running(form, [COUNT] * 2) as rows:
        manager, returns = DictManager(rows), {}
        whole = [manager.step({0: 0, 1: 0}) for _ in range(LENGTH)][-1][0].info
        manager.step({0: 0, 1: 0})
        manager.reset(which)
        for _ in range(LENGTH):
            ended = {e: one for e, one in manager.step({0: 0, 1: 0}).items() if one.done}
            returns |= {env: one.info["eval_episode_return"] for env, one in ended.items()}
        assert returns == dict.fromkeys((0, 1), whole["eval_episode_return"])


# --------------------------------------------------------------- steps that others do not wait for


def test_a_slow_environment_holds_nobody_up_and_loses_nothing(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with running("late", [partial(HeldEnv, str(pipe), 2), COUNT, COUNT], wait_num=2) as manager:
        taken: list[Any] = []
        while not live_rows(taken, 0):  # its first step is not held, and may be over late
            taken += steps_of(manager, 1)
        taken += steps_of(manager, 10)
        assert min(len(live_rows(taken, env)) for env in (1, 2)) >= 9
        assert len(live_rows(taken, 0)) == 1
        assert manager.ready.tolist() == [False, True, True]
        assert waiting(manager) == {1, 2}
        with pytest.raises(EnvError, match=r"reward_shaping\(\) of environment 0 .* in a step"):
            DictManager(manager).reward_shaping(0, [])
        pipe.write_text("go on")
        while len(live_rows(taken, 0)) < 6:
            taken += steps_of(manager, 1)
        for env in range(3):
            rows = live_rows(taken, env)
            assert rows == count_rows(1 + len(rows) // 3)[: len(rows)]
        manager.reset()  # waits for those under way
        assert manager.ready.all()
        assert seen(manager)[:, 0].tolist() == [0, 0, 0]


def test_who_was_to_stop_after_a_step_that_is_under_way_goes_on_when_counted_anew(
    tmp_path: Path,
) -> None:
    """It stood still for the whole task: it was told that no episode follows, and none began."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fns = [partial(HeldEnv, str(pipe), 2 * LENGTH), partial(CountEnv, 100_000)]
    with running("late", fns, 2, wait_num=1) as manager:
        taken: list[Any] = []
        while len(live_rows(taken, 0)) < 2 * LENGTH - 1:
            taken += steps_of(manager, 1)
        taken += steps_of(manager, 2)  # its last step is under way, and held
        assert not manager.ready[0]
        assert not manager.restart_count(), "both were open"
        pipe.write_text("go on")
        while len(live_rows(taken, 0)) < 2 * LENGTH:
            taken += steps_of(manager, 1)
        assert manager.ready[0]
        assert seen(manager)[0].tolist() == [0, 2], "at the beginning of its third episode"


@pytest.mark.parametrize("form", EVERY)
def test_the_slowest_environment_is_known(form: str) -> None:
    with running(form, [COUNT, partial(LateEnv, LENGTH), COUNT]) as manager:
        assert manager.slowest == {}, "too few steps were timed"
        steps_of(manager, 20)
        slowest = manager.slowest
    assert slowest["env"] == 1
    assert slowest["step_s"] > 0.005 > slowest["others_s"] > 0


def test_one_that_hangs_while_others_step_is_replaced() -> None:
    fns = [COUNT, partial(CountEnv, LENGTH, hang_at=2)]
    with running("late", fns, step_timeout=1.0) as manager:
        taken: list[Any] = []
        while not manager.failures:
            taken = steps_of(manager, 1)
        assert taken[0][1].failed.tolist() == [False, True]
        assert manager.health["episodes_dropped"] == 1
        assert manager.ready[1]
        assert seen(manager)[1].tolist() == [0, 0]


def test_evaluations_and_battles_wait_for_all() -> None:
    cfg = {"type": "gymnasium", "env_id": "CartPole-v1"}
    child = {"manager": {"type": "subprocess", "wait_num": 2}}
    seed = np.random.SeedSequence(0)
    found = [
        create_env_manager({**cfg, **child}, evaluate=evaluate, seed=seed).wait_num
        for evaluate in (False, True)
    ]
    assert found == [2, None]
    with pytest.raises(ConfigError, match=r"env.manager.wait_num: is for environments of one"):
        make_env_manager(child["manager"], [COUNT], battle=True)


# ------------------------------------------------------------------------------------------ faults

FAULTS = {
    "fail_at": "RuntimeError: planted failure at step 5",
    "exit_at": "its process exited with code 7",
    "hang_at": "step took longer than 1 s",
}


@pytest.mark.parametrize(
    ("form", "fault", "retry_type"),
    [
        *itertools.product(["pool"], ["fail_at"], ["reset", "renew"]),
        *itertools.product(["forkserver"], FAULTS, ["reset", "renew"]),
        ("spawn", "hang_at", "renew"),  # else the start method makes no difference
    ],
)
def test_a_failed_environment_is_replaced_and_the_others_go_on(
    form: str, fault: str, retry_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"step_timeout": 1.0} if fault == "hang_at" else {}
    fns = [COUNT, partial(CountEnv, LENGTH, **{fault: 5})]
    with (
        caplog.at_level(logging.WARNING, "hpcdi"),
        running(form, fns, retry_type=retry_type, **settings) as manager,
    ):
        taken = [step for _, step in steps_of(manager, 9)]
        failed = taken[4]
        assert failed.failed is not None
        assert failed.failed.tolist() == [False, True]
        assert failed.live.tolist() == [True, False]
        kept = fault == "fail_at" and retry_type == "reset"  # the same object goes on
        again = [] if kept else [8]  # a new one fails at the same step of its life
        bad = [t for t, step in enumerate(taken) if step.failed is not None]
        assert bad == [4] if kept else bad[:1] == [4] and set(bad) <= {4, 9, *again}
        assert taken[5].reward.tolist() == [3.0, 1.0]
        lengths = manager.take_episodes().lengths
        assert set(lengths.tolist()) == {LENGTH}, "an unfinished episode must not count"
        assert manager.failures == len(bad)
    assert len(caplog.records) == len(bad)
    assert "environment 1 failed" in caplog.text
    assert FAULTS[fault] in caplog.text


@pytest.mark.parametrize("form", ["pool", "forkserver"])
def test_a_failure_in_the_per_environment_form(form: str) -> None:
    fns = [COUNT, partial(CountEnv, LENGTH, fail_at=2)]
    with running(form, fns) as rows:
        manager = DictManager(rows)
        manager.step({0: 0, 1: 0})
        steps = manager.step({0: 0, 1: 0})
        assert steps[0].info == {"terminated": False, "truncated": False}
        assert (steps[1].info, steps[1].done, steps[1].reward) == ({"abnormal": True}, False, 0.0)
        assert steps[1].obs.tolist() == [0, 1]
        assert manager.ready_obs[1].tolist() == [0, 1]


@pytest.mark.parametrize("form", ["pool", *SYNC])
@pytest.mark.parametrize("what", ["reward", "observation"])
def test_one_that_returns_nan_is_reset_and_its_episode_dropped(
    form: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "hpcdi"),
        running(form, [COUNT, partial(NaNEnv, what, [])]) as manager,
    ):
        taken = steps_of(manager, 6)
        failed = taken[1][1]
        assert failed.failed is not None
        assert failed.failed.tolist() == [form in SYNC, True], "one of a vector takes all along"
        assert not failed.live[1]
        assert seen(manager).dtype == np.float32
        assert not np.isnan(seen(manager)).any()
        rows = live_rows(taken, 1)
        assert rows[1] == ([0, 0 if form in SYNC else 1], 1.0, False, False, rows[1][4])
        assert not any(np.isnan(row[1]) or np.isnan(row[4]).any() for row in rows)
        assert (manager.failures, manager.health["episodes_dropped"]) == (
            1,
            2 if form in SYNC else 1,
        )
    word = "a reward" if what == "reward" else "an observation"
    assert f"environment 1 returned {word} that is NaN in step 2 of its episode" in caplog.text


@pytest.mark.parametrize("form", ["pool", "forkserver"])
def test_an_observation_that_its_space_does_not_have_is_named(form: str) -> None:
    with pytest.raises(EnvError) as caught, running(form, [partial(Drifts, "longer")]) as manager:
        steps_of(manager, 99)
    said = (
        "environment 0, step 3 of its episode: observation: float32 [3], the space says float32 [2]"
    )
    assert said in str(caught.value)


def test_one_number_is_not_spread_over_an_observation_and_fractions_are_kept() -> None:
    with (
        running("pool", [partial(Drifts, "one")]) as manager,
        pytest.raises(EnvError, match=r"float32 \[1\], the space says float32 \[2\]"),
    ):
        steps_of(manager, 99)
    space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    fraction = partial(gymnasium.wrappers.TransformObservation, COUNT(), lambda x: x / 255, space)
    with pytest.raises(EnvError, match=r"float32 \[2\], the space says uint8 \[2\]"):
        made("pool", [fraction]).launch()


@pytest.mark.parametrize("form", ["pool", "forkserver"])
def test_a_first_observation_that_is_no_number_fails_its_reset(form: str) -> None:
    with running(form, [partial(Drifts, "NaN from the start")], max_retry=0) as manager:
        manager.reset()
        manager.reset()
        with pytest.raises(EnvError, match="environment 0 returned a first observation that is N"):
            manager.reset()


@pytest.mark.parametrize("form", ["pool", "forkserver"])
@pytest.mark.parametrize("max_retry", [0, 2])
def test_one_that_cannot_be_reset_ends_the_run_with_its_traceback(
    form: str, max_retry: int
) -> None:
    manager = made(form, [COUNT, NeverEnv], max_retry=max_retry)
    with pytest.raises(EnvError, match=rf"environment 1 failed .* {max_retry + 1} times") as caught:
        manager.launch()
    text = str(caught.value)
    assert "ValueError: no such level" in text
    assert 'raise ValueError("no such level")' in text
    assert "hpcdi/env" not in text, "it begins where hpcdi calls the environment"
    assert "max_retry" in text
    assert manager.closed


def test_a_reset_that_hangs_is_given_up() -> None:
    manager = made("forkserver", [partial(NeverEnv, True)], max_retry=0, reset_timeout=0.2)
    with pytest.raises(EnvError, match=r"reset took longer than 0.2 s"):
        manager.launch()


def test_a_reset_at_an_episodes_end_has_the_time_of_resets() -> None:
    with running(
        "forkserver", [partial(SlowResetEnv, 1)], step_timeout=30.0, reset_timeout=0.3
    ) as manager:
        begun = time.monotonic()
        (_, step), *_ = steps_of(manager, 1)
        assert time.monotonic() - begun < 20.0  # not the time of steps
        assert manager.failures == 1
        assert step.failed is None  # it is complete
        assert step.live.all()
        assert step.ended.all()


@pytest.mark.parametrize(
    ("form", "how"),
    [
        *itertools.product(["pool", "forkserver", "disabled"], ["raises", "nan"]),
        ("same_step", "nan"), ("next_step", "nan"),
    ],
)  # fmt: skip
def test_an_episode_is_complete_whatever_the_next_one_begins_with(form: str, how: str) -> None:
    with running(form, [partial(BadStart, how)]) as manager:
        taken = steps_of(manager, 2 * LENGTH + (form == "next_step"))
        assert manager.failures >= 1
        assert manager.take_episodes().lengths.tolist() == [LENGTH, LENGTH]
        assert manager.health["episodes_dropped"] == 0
        assert sum(step.ended[0] for _, step in taken if step.live[0]) == 2
        if form in ("pool", "forkserver"):  # each reset counts
            assert [step.seeds[0, 1] for _, step in taken] == [0] * LENGTH + [2] * LENGTH


@pytest.mark.parametrize("form", ["pool", "forkserver"])
def test_an_environment_whose_steps_all_fail_ends_the_run(form: str) -> None:
    with (
        running(form, [partial(CountEnv, fail_at=1)], retry_type="renew") as manager,
        pytest.raises(EnvError, match=r"environment 0 failed stepping, 6 times in a row"),
    ):
        steps_of(manager, 20)


def test_a_process_that_is_killed_from_outside() -> None:
    with running("forkserver", [COUNT] * 2) as manager:
        steps_of(manager, 2)
        pids = manager.child_pids
        os.kill(pids[0], signal.SIGKILL)
        (_, step), (_, after) = steps_of(manager, 2)
        assert step.failed is not None
        assert step.failed.tolist() == [True, False]
        assert after.failed is None
        assert after.live.all()
        assert not Path(f"/proc/{pids[0]}").exists()
        assert manager.failures == 1


def test_after_a_renewal_the_seeds_go_on_and_are_those_of_the_process_free_form() -> None:
    found = []
    for form in ("pool", "forkserver"):
        with running(form, [FragileEnv] * 2, retry_type="renew") as manager:
            steps_of(manager, 4)
            found.append(seen(manager).tolist())
    assert found[0] == found[1]
    assert len({*map(tuple, found[0])}) == 2


HEALTHY = {"env_failures": 0, "episodes_dropped": 0, "envs_retired": 0}


def launched(form: str, fns: list[object], **settings: object) -> EnvManager:
    """A manager that goes on without an environment that fails too often."""
    manager = made(form, fns, **settings)  # type: ignore[arg-type]
    manager.retires = True
    manager.launch()
    return manager


# ----------------------------------------------------------------------------------------- counting


def test_one_fault_a_day_never_adds_up() -> None:
    record = FailureRecord(2, max_retry=1, window_s=60.0)
    for day in range(1000):
        assert record.add(0, 86400.0 * day) == ""
        record.good([0, 1])
    assert record.failures == 1000


def test_too_many_within_the_window() -> None:
    record = FailureRecord(2, max_retry=2, window_s=60.0)
    told = []
    for now in (0.0, 50.0, 55.0, 58.0):
        record.good([0, 1])
        told.append(record.add(0, now))
    assert told == ["", "", "3 times within 60 s", "4 times within 60 s"]
    assert record.add(1, 59.0) == "", "each environment has a count of its own"
    record.good([0])
    assert record.add(0, 118.5) == "", "those that are older do not count"


def test_too_many_in_a_row_however_slow() -> None:
    record = FailureRecord(1, max_retry=2, window_s=60.0)
    assert [record.add(0, 100.0 * n) for n in range(3)] == ["", "", "3 times in a row"]


# ----------------------------------------------------------------------------------- real processes


def test_a_segmentation_fault_costs_its_episode(caplog: pytest.LogCaptureFixture) -> None:
    fns = [COUNT, partial(CrashingEnv, 2)]
    with caplog.at_level(logging.WARNING, "hpcdi"), running("forkserver", fns) as manager:
        steps = [step for _, step in steps_of(manager, 3)]
        assert steps[1].failed is not None
        assert steps[1].failed.tolist() == [False, True]
        assert steps[2].live.all()
        assert manager.health == {"env_failures": 1, "episodes_dropped": 1, "envs_retired": 0}
    assert "environment 1 failed (its process was killed by SIGSEGV)" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_stopped_again_and_again_is_retired(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    manager = launched("forkserver", [COUNT] * 2, max_retry=2, step_timeout=1.0)
    with caplog.at_level(logging.WARNING, "hpcdi"), manager:
        for _ in range(3):
            taken = steps_of(manager, 1)
            assert len(manager.child_pids) == 2
            os.kill(manager.child_pids[1], number)
            taken += steps_of(manager, 1)
        assert len(manager.child_pids) == 1
        assert manager.health == {"env_failures": 3, "episodes_dropped": 3, "envs_retired": 1}
        after = steps_of(manager, 2 * LENGTH + 1)
        assert all(step.live.tolist() == [True, False] for _, step in after)
        assert all(step.failed is None for _, step in after)
        assert len(live_rows(after, 0)) == 2 * LENGTH + 1
        assert waiting(manager) == {0}
        manager.restart_count()
        assert seen(manager)[0, 0] > 0, "those that run are not reset for it"
        manager.reset()
        steps_of(manager, LENGTH)
        assert waiting(manager) == {0}
    assert caplog.text.count("and is retired; 1 of 2 environments go on") == 1
    assert "environment 1 failed stepping" in caplog.text


def test_an_evaluation_ends_without_those_that_are_retired() -> None:
    manager = launched(
        "pool", [COUNT, partial(CountEnv, fail_at=2)], episode_num=2, max_retry=1,
        retry_type="renew",
    )  # fmt: skip
    with manager:
        for _ in range(100):
            if manager.done:
                break
            steps_of(manager, 1)
        assert manager.done
        assert manager.take_episodes().lengths.tolist() == [LENGTH] * 2


@pytest.mark.parametrize("form", ["pool", "forkserver"])
def test_when_all_are_retired_it_is_an_error(form: str) -> None:
    manager = launched(form, [partial(CountEnv, fail_at=2)] * 2, max_retry=1, retry_type="renew")
    with manager, pytest.raises(EnvError, match="all 2 environments are retired; the last") as told:
        steps_of(manager, 50)
    assert "RuntimeError: planted failure at step 2" in str(told.value)


def test_one_that_does_not_begin_anew_is_retired() -> None:
    manager = launched("pool", [COUNT, partial(CrashingOnce)], max_retry=2)
    with manager:
        steps_of(manager, 3)
        assert manager.health == {"env_failures": 3, "episodes_dropped": 1, "envs_retired": 1}
        assert waiting(manager) == {0}


class CrashingOnce(CountEnv):
    """Raises in its second step, and at each reset from then on."""

    def __init__(self) -> None:
        super().__init__(LENGTH, fail_at=2)

    def reset(self, **given: object) -> tuple[np.ndarray, dict[str, object]]:  # type: ignore[override]
        if self._life >= 2:
            raise RuntimeError("broken for good")
        return super().reset(**given)  # type: ignore[arg-type]

    def close(self) -> None:
        raise RuntimeError("it cannot even be closed")


# ---------------------------------------------------------------------------------- vectorised ones


@pytest.mark.parametrize("form", ["next_step", "same_step", "disabled"])
def test_a_vector_of_environments_is_made_anew(form: str, caplog: pytest.LogCaptureFixture) -> None:
    fns = [COUNT, partial(CountEnv, LENGTH, fail_at=LENGTH + 2)]
    with caplog.at_level(logging.WARNING, "hpcdi"), running(form, fns) as manager:
        taken = steps_of(manager, 3 * LENGTH)
        failed = [step for _, step in taken if step.failed is not None]
        assert failed
        assert all(step.failed.all() and not step.live.any() for step in failed)  # type: ignore[union-attr]
        assert set(manager.take_episodes().lengths.tolist()) == {LENGTH}
        assert manager.health["env_failures"] == len(failed)
        assert manager.health["episodes_dropped"] >= len(failed)
    assert "an environment failed (RuntimeError: planted failure" in caplog.text
    assert "all 2 are re-created" in caplog.text


def test_a_vector_that_fails_too_often_is_an_error() -> None:
    with (
        running("same_step", [partial(CountEnv, fail_at=1)]) as manager,
        pytest.raises(EnvError, match=r"an environment failed stepping, 6 times in a row") as told,
    ):
        steps_of(manager, 20)
    assert "planted failure at step 1" in str(told.value)
    assert 'raise RuntimeError(f"planted' in str(told.value)


@pytest.mark.parametrize("failing", [2, 100])
def test_a_vector_whose_reset_fails_is_tried_again(failing: int) -> None:
    made_anew = [0]

    def make() -> SyncVectorEnv:
        made_anew[0] += 1
        return SyncVectorEnv([NeverEnv if made_anew[0] <= failing else COUNT])

    manager = vector_manager(make, 1, max_retry=2, retry_waiting_time=0.0)
    with manager:
        if failing == 100:
            with pytest.raises(EnvError, match=r"failed beginning an episode, 3 times in a row"):
                manager.launch()
            assert manager.closed
        else:
            manager.launch()
            assert manager.health["env_failures"] == 2
            assert seen(manager).tolist() == [[0.0, 0.0]]


def test_healthy_ones_say_so() -> None:
    for form in ("same_step", "pool", "forkserver"):
        with running(form, [COUNT] * 2) as manager:
            steps_of(manager, 2 * LENGTH)
            assert manager.health == HEALTHY
            assert len(manager.child_pids) == (2 if form == "forkserver" else 0)


class Drawn(CountEnv):
    """Draws white."""

    def __init__(self, white: Any) -> None:
        super().__init__(LENGTH)
        self._white = white

    def render(self) -> Any:
        if isinstance(self._white, torch.Tensor):
            return self._white.expand(2, 2, 3)
        return np.full((2, 2, 3), self._white)


def test_pictures_are_of_bytes() -> None:
    """Fractions became black films."""
    for white in (np.uint8(255), np.int64(255), torch.tensor(255)):
        with running("pool", [partial(Drawn, white)]) as manager:
            (picture,) = manager.pictures()
            assert picture.dtype == np.uint8
            assert (picture == 255).all()
    for white, said in (
        (1.0, "float64"), (np.int64(256), "int64"), (np.True_, "bool"),
        (torch.tensor(1, dtype=torch.bfloat16), "float32"),
        (torch.ones(()).requires_grad_(), "float32"),
    ):  # fmt: skip
        with (
            running("pool", [partial(Drawn, white)]) as manager,
            pytest.raises(EnvError, match=f"draws pictures of {said}, and must draw .*uint8"),
        ):
            manager.pictures()


def test_a_retired_environment_s_picture_is_black() -> None:
    class Failing(Drawn):
        def step(self, _action: Any) -> Any:
            raise RuntimeError("planted")

    with made("pool", [partial(made_of, 255) for made_of in (Failing, Drawn)], max_retry=0) as envs:
        envs.retires = True
        envs.launch()
        steps_of(envs, 1)
        assert envs.health["envs_retired"] == 1
        assert [int(picture.max()) for picture in envs.pictures()] == [0, 255]
        assert {picture.shape for picture in envs.pictures()} == {(2, 2, 3)}


def test_the_slowest_is_one_of_those_that_live() -> None:
    fns = [partial(LateEnv, LENGTH, fail_at=25), COUNT, COUNT]
    with made("pool", fns, max_retry=0) as manager:
        manager.retires = True
        manager.launch()
        steps_of(manager, 60)
        assert manager.health["envs_retired"] == 1
        assert manager.slowest["env"] in (1, 2)
