"""Parallel collectors over a checking port, by policies of columns and of dicts."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes.collectors import ENVS, LENGTH, Port, collector, column_of, do, registered_probes
from hpcdi.config.compat import ConfigDict
from hpcdi.env.toy import CountEnv
from hpcdi.errors import CommError, ConfigError, EnvError, UnknownTypeError
from hpcdi.policy.create import create_policy
from hpcdi.roles.collector import base_parallel_collector as parallel
from hpcdi.roles.collector.base_parallel_collector import CollectorTask
from hpcdi.types import Lockstep
from hpcdi.utils.registry import PARALLEL_COLLECTOR_REGISTRY
from hpcdi.worker.collector import (
    BaseParallelCollector,
    ZerglingParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
)

# ------- the zergling collector over a port that checks what it is given, in both forms of stepping


FORMS = pytest.mark.parametrize("policy", ["test_columnar", "test_foreign"])


@pytest.fixture(autouse=True, scope="module")
def _probes() -> Iterator[None]:
    with registered_probes():
        yield


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not make cuts of its own."""
    monkeypatch.setattr(parallel, "PROGRESS_S", float("inf"))


@FORMS
def test_every_transition_is_delivered_once_in_order_and_counted(policy: str) -> None:
    port = Port()
    with collector(policy, port, collector_episode_num=15) as made:
        result = do(made, port, "task")
    steps = 15 * LENGTH
    counted = [[step % LENGTH, step // LENGTH] for step in range(steps)]
    for env in range(ENVS):
        assert column_of(port, env, "observation") == counted
        assert column_of(port, env, "reward") == [step % LENGTH + 1.0 for step in range(steps)]
    assert result.env_steps == ENVS * steps
    assert sum(int(np.count_nonzero(segment.ended)) for segment in port.segments) == 15 * ENVS
    assert result.episode_returns.tolist() == [15.0] * 15 * ENVS
    assert result.episode_lengths.tolist() == [LENGTH] * 15 * ENVS
    told = np.concatenate([told.episode_returns for told in port.progress])
    assert told.tolist() == result.episode_returns.tolist()
    assert (result.task_id, result.eval_flag, result.policy_version) == ("task", False, 0)
    assert len(port.segments) > 1


@FORMS
def test_the_policy_changes_only_between_cuts_and_its_version_is_stated(policy: str) -> None:
    port = Port(versions=[3, 4, None, 9])
    with collector(policy, port, collector_episode_num=40) as made:
        result = do(made, port, "task")
    for segment in port.segments:
        for item in segment.items:
            rows = slice(item["item_start"], item["item_start"] + item["item_len"])
            assert set(segment.columns["acted_by"][rows]) == {item["policy_version"]}
    versions = [segment.items["policy_version"][0] for segment in port.segments]
    assert versions[:4] == [3, 4, 4, 9]
    assert set(versions[4:]) == {9}
    assert result.policy_version == 9
    assert not any(port.asked_newest), "collecting does not wait for the newest policy"


@FORMS
def test_in_lockstep_a_task_is_one_piece_by_one_version(policy: str) -> None:
    port = Port(versions=[3, 4, None, None, 9])
    with collector(policy, port) as made:
        for number, version in enumerate((4, 9, 9), start=1):
            port.task_id = "task"
            lockstep = Lockstep(number, version, begins_anew=False)
            made.begin(CollectorTask("task", lockstep=lockstep))
            made.start()
            assert len(port.segments) == number
            assert set(port.segments[-1].items["policy_version"]) == {version}
    assert all(port.asked_newest)
    seen = column_of(port, 0, "observation")
    expected = [[step % LENGTH, step // LENGTH] for step in range(len(seen))]
    assert seen == expected, "episodes go on in the next one"


@FORMS
def test_settings_change_while_a_task_runs(policy: str) -> None:
    port = Port()
    with collector(policy, port, collector_episode_num=40) as made:

        def change() -> None:
            made.task.setting = {"eps": 0.5}

        port.after_segment = change
        do(made, port, "task", eps=0.75)
    eps = column_of(port, 0, "eps")
    changed = eps.index(0.5)
    assert changed > 0
    assert set(eps[:changed]) == {0.75}
    assert set(eps[changed:]) == {0.5}


@FORMS
def test_episodes_go_on_in_the_next_task(policy: str) -> None:
    port = Port()
    with collector(policy, port) as made:
        port.after_segment = made.stop
        results = [do(made, port, f"task {k}") for k in range(3)]
    rows = column_of(port, 1, "observation")
    assert rows == [[step % LENGTH, step // LENGTH] for step in range(len(rows))]
    assert sum(result.env_steps for result in results) == ENVS * len(rows)
    assert [result.task_id for result in results] == ["task 0", "task 1", "task 2"]
    assert all(result.env_steps > 0 for result in results)
    ids = np.concatenate([s.items["episode_id"] for s in port.segments])
    envs = np.concatenate([s.items["env_id"] for s in port.segments])
    episodes = [item[1] for item in column_heads(port)]
    assert (ids // ENVS).tolist() == episodes, "one number for one episode, over all cuts"
    assert (ids % ENVS).tolist() == envs.tolist()


def column_heads(port: Port) -> list[list[float]]:
    """First observation of each item."""
    return [
        segment.columns["observation"][item["item_start"]].tolist()
        for segment in port.segments
        for item in segment.items
    ]


@FORMS
def test_a_task_after_one_that_did_all_its_episodes_does_them_anew(policy: str) -> None:
    port = Port()
    with collector(policy, port, collector_episode_num=2) as made:
        counts = [do(made, port, f"task {k}").env_steps for k in range(3)]
    assert counts == [ENVS * 2 * LENGTH] * 3


def test_episodes_that_a_reset_between_tasks_drops_share_no_number_with_later_ones() -> None:
    port = Port()
    with collector("test_columnar", port) as made:
        port.after_segment = made.stop
        do(made, port, "first")
        before = {n for s in port.segments for n in s.items["episode_id"].tolist()}
        first = len(port.segments)
        made.env_manager._episodes.left[0] = 0  # one has done its number: all begin anew
        do(made, port, "second")
        tables = [segment.items for segment in port.segments[first:]]
        assert not before & {number for items in tables for number in items["episode_id"].tolist()}
        heads = column_heads(port)[-len(tables[-1]) :]
        assert [step for step, _ in heads] == [0] * len(heads)


@pytest.mark.parametrize(("ranks", "often"), [(2, True), (10**9, False)])
def test_many_collectors_report_less_often(
    ranks: int, often: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "PROGRESS_S", 1e-4)
    port = Port()
    with collector("test_columnar", port, number=(1, ranks)) as made:
        port.task_id = "task"
        made.begin(CollectorTask("task"))
        for _ in range(20):
            time.sleep(2e-4)
            made.turn()
        assert (len(port.progress) > 10) is often


@FORMS
def test_what_is_kept_of_a_long_task_is_bounded(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "MAX_EPISODES", 4)
    monkeypatch.setattr(parallel, "PROGRESS_S", 0.0)
    port = Port()
    with collector(policy, port, collector_episode_num=6) as made:
        result = do(made, port, "task")
        info = made.get_finish_info()
    assert result.episode_lengths.tolist() == [LENGTH] * 4
    assert info["real_episode_count"] == 6 * ENVS
    assert sum(len(told.episode_returns) for told in port.progress) == 6 * ENVS


@FORMS
def test_an_evaluation_is_complete_or_says_that_it_is_not(policy: str) -> None:
    port = Port()
    with collector(policy, port, evaluate=True) as made:
        assert do(made, port, "whole").is_complete
        made._env_manager.step = _stopping(made, made._env_manager.step)
        assert not do(made, port, "cut short").is_complete


def _stopping(made: Any, step_all: Any) -> Any:
    """A step during which the collector is told to stop."""

    def step(actions: Any) -> Any:
        made.stop()
        return step_all(actions)

    return step


@FORMS
def test_each_task_does_its_number_of_episodes_also_after_one_that_was_closed(policy: str) -> None:
    port = Port()
    with collector(policy, port, collector_episode_num=10) as made:
        port.after_segment = made.stop
        closed = do(made, port, "closed")
        assert 0 < len(closed.episode_returns) < 10 * ENVS
        port.after_segment = lambda: None
        assert len(do(made, port, "whole").episode_returns) == 10 * ENVS


@FORMS
def test_an_evaluation_keeps_nothing_and_does_exactly_its_episodes(policy: str) -> None:
    port = Port(versions=[4, 6, None])
    with collector(policy, port, evaluate=True, evaluator_episode_num=3) as made:
        results = [do(made, port, f"task {k}") for k in range(3)]
        assert made.policy.reset.__self__.resets == 3, "nothing is remembered from before"
    for result, version in zip(results, [4, 6, 6], strict=True):
        assert result.episode_returns.tolist() == [15.0] * 6
        assert result.episode_lengths.tolist() == [LENGTH] * 6
        assert result.env_steps == 6 * LENGTH
        assert (result.eval_flag, result.policy_version) == (True, version)
    assert port.segments == []
    assert port.progress == []
    assert port.asked_newest == [True] * 3, "the newest policy, once, before the first step"


@FORMS
def test_a_stopped_evaluation_is_followed_by_fresh_episodes(policy: str) -> None:
    port = Port()
    with collector(policy, port, evaluate=True) as made:
        made.begin(CollectorTask("task"))
        made.env_manager.step({"action": np.zeros(2, dtype=np.int64)})  # an episode is under way
        made.stop()
        made.start()
        assert made.result().env_steps == 0
        assert do(made, port, "task").episode_lengths.tolist() == [LENGTH] * 2


class Ends(CountEnv):
    """It fails from its third episode on: at its beginning, or in its second step."""

    def __init__(self, at_once: bool) -> None:
        super().__init__(LENGTH)
        self._at_once = at_once

    def _begin(self) -> None:
        super()._begin()
        if self._episode > 1 and self._at_once:
            raise RuntimeError("broken")

    def step(self, action: Any) -> Any:
        if self._episode > 1 and self._steps:
            raise RuntimeError("broken")
        return super().step(action)


@FORMS
@pytest.mark.parametrize("at_once", [True, False])
def test_what_has_ended_is_delivered_before_the_last_environment_s_failure(
    policy: str, at_once: bool
) -> None:
    port = Port()
    env = {"env_id": f"{__name__}:Ends", "kwargs": {"at_once": at_once}, "seeds": "0..9"}
    settings = {"max_retry": 1, "retry_type": "reset"}
    with collector(policy, port, **env, collector_env_num=1, manager=settings) as made:
        with pytest.raises(EnvError, match="all 1 environments are retired"):
            do(made, port, "task")
        assert made.task.episodes == 2
    assert column_of(port, 0, "reward") == [1, 2, 3, 4, 5] * 2
    assert [length for told in port.progress for length in told.episode_lengths] == [LENGTH] * 2


def test_without_a_policy_it_waits_until_one_comes() -> None:
    port = Port(versions=[None, None, 5])
    with collector("test_columnar", port, collector_episode_num=1) as made:
        do(made, port, "task")
    assert set(column_of(port, 0, "acted_by")) == {5}


def test_stop_ends_the_wait_for_the_first_policy() -> None:
    class LatePort(Port):
        def get_policy_update_info(self, *args: Any, **kwargs: Any) -> None:
            super().get_policy_update_info(*args, **kwargs)
            if len(self.asked_newest) == 3:
                made.stop()

    port = LatePort(versions=[])
    with collector("test_columnar", port) as made:
        assert do(made, port, "task").env_steps == 0
    assert port.segments == []


@FORMS
def test_a_pause_holds_the_steps_back_and_goes_on_or_ends(policy: str) -> None:
    asked = []

    class PausedPort(Port):
        """Waits for four questions after the third step, twice; then the task is closed."""

        @property
        def is_paused(self) -> bool:
            steps = made.task.env_steps
            asked.append(steps)
            if len(asked) > 40:
                made.stop()
            return steps >= 6 and (asked.count(steps) < 5 or steps > 8)

        @is_paused.setter
        def is_paused(self, _value: bool) -> None:
            pass

    port = PausedPort()
    with collector(policy, port) as made:
        result = do(made, port, "task")
    assert asked.count(6) >= 5, "it waited"
    assert result.env_steps > 8, "and went on"
    assert len(asked) > 40, "until it was closed"
    assert port.meter.shares()["wait"] > 0


def test_a_learner_that_sends_no_policy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "POLICY_PATIENCE_S", 0.0)
    port = Port(versions=[])
    with (
        collector("test_columnar", port) as made,
        pytest.raises(CommError, match="no policy has come from the learner within 0 s"),
    ):
        do(made, port, "task")


@FORMS
def test_slow_environments_do_not_hold_data_back(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After PROGRESS_S whatever there is is counted, after ROLLOUT_S it goes out."""
    monkeypatch.setattr(parallel, "PROGRESS_S", 0.0)
    monkeypatch.setattr(parallel, "ROLLOUT_S", 0.0)
    port = Port()
    with collector(policy, port, collector_episode_num=1) as made:
        do(made, port, "task")
    assert [len(segment.items) for segment in port.segments] == [ENVS] * LENGTH
    assert [len(told.episode_returns) for told in port.progress] == [0] * 4 + [ENVS, 0]


# ----- what every parallel collector promises beside its loop: settings, results, building, closing


COUNT = {"type": "gymnasium", "import_names": ["hpcdi.env.toy"], "env_id": "hpcdi/Count-v0"}
DQN = {
    "type": "dqn",
    "model": {"obs_shape": 2, "action_shape": 2, "encoder_hidden_size_list": [4]},
}


def test_finish_info_has_the_seeds_keys() -> None:
    port = Port(versions=[8])
    with collector("test_foreign", port, evaluate=True, evaluator_episode_num=2) as made:
        do(made, port, "task", eval_flag=True)
        info = made.get_finish_info()
    expected = {
        "eval_flag": True,
        "env_num": 2,
        "train_iter": 8,
        "collector_done": True,
        "predefined_episode_count": 4,
        "real_episode_count": 4,
        "step_count": 4 * LENGTH,
        "sample_count": 0,
        "avg_step_per_episode": LENGTH,
        "avg_sample_per_episode": 0,
        "reward_mean": 15.0,
        "reward_std": 0.0,
        "reward_raw": [15.0] * 4,
    }
    assert {key: info[key] for key in expected} == expected
    times = {"duration", "avg_time_per_episode", "avg_time_per_step", "finish_time",
             "avg_time_per_train_sample"}  # fmt: skip
    assert info.keys() == expected.keys() | times
    assert info["avg_time_per_step"] == info["duration"] / (4 * LENGTH)


def test_finish_info_before_anything_was_done() -> None:
    with collector("test_columnar", Port()) as made:
        info = made.get_finish_info()
    assert (info["step_count"], info["real_episode_count"], info["reward_raw"]) == (0, 0, [])
    assert (info["reward_mean"], info["avg_time_per_step"]) == (0.0, info["duration"])
    assert (info["collector_done"], info["train_iter"]) == (False, -1)


@FORMS
def test_samples_of_a_collect_task_are_its_steps(policy: str) -> None:
    port = Port()
    with collector(policy, port, collector_episode_num=1) as made:
        do(made, port, "task")
        info = made.get_finish_info()
    assert info["sample_count"] == info["step_count"] == ENVS * LENGTH
    assert (info["avg_sample_per_episode"], info["predefined_episode_count"]) == (LENGTH, ENVS)
    assert info["avg_time_per_train_sample"] == info["duration"] / (ENVS * LENGTH)


@pytest.mark.parametrize("port", [Port(), None])
def test_samples_of_a_policy_of_dicts_are_what_it_makes_of_steps(port: Port | None) -> None:
    with collector("test_foreign", port, collector_episode_num=1) as made:
        made._loop.recorder.of[0]._make_samples = lambda piece: [{"first": piece[0]["observation"]}]
        made.begin(CollectorTask(""))
        made.start()
        info = made.get_finish_info()
    assert (info["sample_count"], info["step_count"]) == (ENVS, ENVS * LENGTH)


@pytest.mark.parametrize("setting", [{}, {"eps": 0.5}])
def test_finish_info_of_a_task_without_an_end_says_how_it_collects(setting: Any) -> None:
    with collector("test_columnar", Port()) as made:
        made.begin(CollectorTask("task", setting))
        info = made.get_finish_info()
    assert (info["predefined_episode_count"], info["collect_setting"]) == (math.inf, setting)


class OfCfg(ZerglingParallelCollector):
    """Has the constructor that DI-engine documents."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.given = cfg


@pytest.mark.parametrize("port", [None, Port()])
def test_a_constructor_may_take_the_settings_alone(
    port: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARALLEL_COLLECTOR_REGISTRY._classes, "of_cfg", OfCfg)
    cfg = ConfigDict(type="of_cfg", env=COUNT, policy=DQN)
    with create_parallel_collector(cfg, port) as made:
        assert (type(made), made.port) == (OfCfg, port)
        assert made.given is cfg
    cfg.parallel_collector_type = cfg.pop("type")
    assert get_parallel_collector_cls(cfg) is OfCfg, "by the key of DI-engine's documents, too"
    for name in ("marine", "zergling"):
        by_key = get_parallel_collector_cls({"parallel_collector_type": name})
        assert by_key is get_parallel_collector_cls({"type": name})


def test_a_class_in_the_registry_of_di_engine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = SimpleNamespace(PARALLEL_COLLECTOR_REGISTRY={"theirs": OfCfg})
    monkeypatch.setitem(sys.modules, "ding.utils", theirs)
    assert get_parallel_collector_cls({"type": "theirs"}) is OfCfg


@pytest.mark.parametrize("evaluate", [False, True])
def test_dqn_is_built_from_mappings_and_runs_without_a_port(evaluate: bool) -> None:
    cfg = {
        "type": "zergling",
        "env": {**COUNT, "collector_episode_num": 2, "collector_env_num": 2},
        "policy": DQN,
        "eval_flag": evaluate,
        "collect_setting": {} if evaluate else {"eps": 0.5},
        "seed": np.random.SeedSequence(1),
    }
    with create_parallel_collector(cfg) as made:
        assert (made.evaluates, made.policy_version) == (evaluate, -1)
        made.start()
        result = made.result()
    assert result.episode_lengths.tolist() == [5] * (5 if evaluate else 4)


class DQNPort(Port):
    """Gives the parameters of a DQN that was built elsewhere."""

    def get_policy_update_info(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        info = super().get_policy_update_info(*args, **kwargs)
        learner = create_policy(DQN, ["learn"], seed=np.random.SeedSequence(9)).learn_mode
        return None if info is None else {**info, "model": learner.state_dict()["model"]}


def actions_of(seed: int, eps: float) -> list[Any]:
    port = DQNPort()
    cfg = {
        "type": "zergling", "policy": DQN, "seed": np.random.SeedSequence(seed),
        "env": {**COUNT, "collector_episode_num": 8, "collector_env_num": ENVS},
    }  # fmt: skip
    with create_parallel_collector(cfg, port) as made:
        do(made, port, "task", eps=eps)
    return [column_of(port, env, "action") for env in range(ENVS)]


def test_the_same_seed_explores_alike() -> None:
    assert actions_of(0, eps=1.0) == actions_of(0, eps=1.0)
    assert actions_of(0, eps=1.0) != actions_of(1, eps=1.0)
    assert actions_of(0, eps=0.0) == actions_of(1, eps=0.0), "the learner's network, not its own"


def test_unknown_types_and_settings() -> None:
    with pytest.raises(UnknownTypeError, match=r"no parallel collector of type 'zerglin'.*mean"):
        create_parallel_collector({"type": "zerglin"})
    with pytest.raises(ConfigError, match=r"update_policy_secnd: unknown key; did you mean"):
        create_parallel_collector(
            {"type": "zergling", "env": COUNT, "policy": DQN, "update_policy_secnd": 1}
        )
    with pytest.raises(ConfigError, match="no module 'no_such_module'"):
        get_parallel_collector_cls({"type": "zergling", "import_names": ["no_such_module"]})
    assert get_parallel_collector_cls({"type": "zergling"}) is ZerglingParallelCollector


def test_default_config_is_the_seeds_mapping() -> None:
    cfg = ZerglingParallelCollector.default_config()
    assert cfg.cfg_type == "ZerglingParallelCollectorDict"
    assert (cfg.type, cfg.update_policy_second, cfg.collector_num) == ("zergling", 3.0, 2)


def test_close_stops_it_and_closes_the_environments_once() -> None:
    made = collector("test_columnar", Port())
    manager = made.env_manager
    made.close()
    made.close()
    assert made.env_manager is None
    manager.launch()  # would be refused while running
    manager.close()


def test_policy_and_environments_can_be_replaced() -> None:
    with collector("test_columnar", Port()) as made, collector("test_foreign", Port()) as other:
        policy, manager = made.policy, made.env_manager
        made.policy, made.env_manager = other.policy, other.env_manager
        assert (made.policy, made.env_manager) == (other.policy, other.env_manager)
        made.policy, made.env_manager = policy, manager


def test_a_collector_says_what_it_is_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    with collector("test_columnar", Port()) as made, caplog.at_level("DEBUG", logger="hpcdi"):
        made.begin(CollectorTask("task 7"))
        assert repr(made) == "ZerglingParallelCollector(task='task 7', evaluates=False)"
        for level in ("info", "debug", "error"):
            getattr(made, level)(f"a line of {level}")
    assert [r.getMessage() for r in caplog.records] == [
        "a line of info", "a line of debug", "a line of error"
    ]  # fmt: skip


def test_the_base_class_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        BaseParallelCollector({})  # type: ignore[abstract]
