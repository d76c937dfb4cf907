"""What every parallel collector promises beside its loop: settings, results, building, closing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fakes.collectors import ENVS, LENGTH, Port, collector, column_of, do, registered_probes
from hpcdi.errors import ConfigError, UnknownTypeError
from hpcdi.policy.create import create_policy
from hpcdi.worker.collector import (
    BaseParallelCollector,
    ZerglingParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
)
from hpcdi.worker.collector.base_parallel_collector import CollectorTask

COUNT = {"type": "gymnasium", "import_names": ["hpcdi.env.toy"], "env_id": "hpcdi/Count-v0"}
DQN = {
    "type": "dqn",
    "model": {"obs_shape": 2, "action_shape": 2, "encoder_hidden_size_list": [4]},
}


@pytest.fixture(autouse=True, scope="module")
def _probes() -> Iterator[None]:
    with registered_probes():
        yield


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
        "real_episode_count": 4,
        "step_count": 4 * LENGTH,
        "sample_count": 0,
        "avg_step_per_episode": LENGTH,
        "reward_mean": 15.0,
        "reward_std": 0.0,
        "reward_raw": [15.0] * 4,
    }
    assert {key: info[key] for key in expected} == expected
    times = {"duration", "avg_time_per_episode", "avg_time_per_step", "finish_time"}
    assert info.keys() == expected.keys() | times
    assert info["avg_time_per_step"] == info["duration"] / (4 * LENGTH)


def test_finish_info_before_anything_was_done() -> None:
    with collector("test_columnar", Port()) as made:
        info = made.get_finish_info()
    assert (info["step_count"], info["real_episode_count"], info["reward_raw"]) == (0, 0, [])
    assert (info["reward_mean"], info["avg_time_per_step"]) == (0.0, info["duration"])
    assert (info["collector_done"], info["train_iter"]) == (False, -1)


def test_samples_of_a_collect_task_are_its_steps() -> None:
    port = Port()
    with collector("test_columnar", port, collector_episode_num=1) as made:
        do(made, port, "task")
        info = made.get_finish_info()
    assert info["sample_count"] == info["step_count"] == ENVS * LENGTH


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
