"""DI-engine's public documents of `ding.worker`, line by line: each name, called as documented.

The documents are the API pages of the package, of `coordinator.coordinator`, `collector.comm` and
`learner.comm`, and the source of `learner.comm.base_comm_learner`. Signatures are in
`test_public_api`; here are the calls and what they lead to. What differs on purpose is the list in
hpcdi/worker/README.md, "What differs", and nowhere else: `DIFFERENCES` has a proof of each.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

import hpcdi.worker as ding
from hpcdi.config.compat import ConfigDict as EasyDict
from hpcdi.config.load import compile_config
from hpcdi.errors import ConfigError
from hpcdi.utils.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY
from hpcdi.worker.slave import Slave, TaskFail

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ENVS, LENGTH = 2, 5
ENV = {
    "type": "gymnasium", "import_names": ["hpcdi.env.toy"], "env_id": "hpcdi/Count-v0",
    "kwargs": {"length": LENGTH}, "collector_env_num": ENVS, "collector_episode_num": 2,
}  # fmt: skip
DQN = {"type": "dqn", "model": {"obs_shape": 2, "action_shape": 2, "encoder_hidden_size_list": [4]}}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def documented(path: str, *names: str) -> None:
    """Names are importable at a documented path, and the same as in `hpcdi.worker`."""
    module = importlib.import_module(f"hpcdi.worker.{path}")
    for name in names:
        assert getattr(module, name) is getattr(ding, name, getattr(module, name)), name


# --------------------------------------------------- learner.comm.base_comm_learner, by its source


def sample(number: int = 0) -> dict[str, Any]:
    """A transition as DI-engine's policies and environments have it."""
    return {
        "obs": torch.full((2,), float(number)), "next_obs": torch.ones(2), "done": False,
        "action": torch.tensor([number % 2]), "reward": torch.zeros(1),
    }  # fmt: skip


class CommLearner(ding.BaseCommLearner):
    """What the document has a subclass define."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.sent: list[tuple[str, Any]] = []

    def send_policy(self, state_dict: Any) -> None:
        self.sent.append(("policy", state_dict))

    def get_data(self, batch_size: int) -> list[Any]:
        self.sent.append(("data", batch_size))
        return [lambda k=k: sample(k) for k in range(batch_size)]

    def send_learn_info(self, learn_info: Any) -> None:
        self.sent.append(("info", learn_info))

    @property
    def hooks4call(self) -> list[Any]:
        return []


def learner_task(**learner_cfg: Any) -> dict[str, Any]:
    cfg = {"type": "base", "train_iterations": 3, "exp_name": "my_exp", "log_policy": False}
    policy = {**DQN, "learn": {"batch_size": 4}}
    return {
        "task_id": "task", "buffer_id": "buffer", "policy_id": "policies/main",
        "learner_cfg": {**cfg, **learner_cfg}, "policy": policy,
    }  # fmt: skip


def test_base_comm_learner_constructor_start_close() -> None:
    documented("learner.comm.base_comm_learner", "BaseCommLearner", "create_comm_learner")
    with pytest.raises(TypeError, match="abstract"):
        ding.BaseCommLearner(EasyDict(multi_gpu=False))  # type: ignore[abstract]
    learner = CommLearner(EasyDict(multi_gpu=False, queue_maxsize=8))
    assert learner._cfg.queue_maxsize == 8
    assert isinstance(learner._learner_uid, str)
    assert (learner._rank, learner._world_size, learner._multi_gpu) == (0, 1, False)
    with learner._timer:
        pass
    assert learner._timer.value >= 0
    assert learner._end_flag is True
    assert learner.start() is None
    assert learner._end_flag is False
    assert learner.close() is None
    assert learner._end_flag is True


def test_base_comm_learner_multi_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls dist_init, and dist_finalize when it closes."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_PORT", 0)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    learner = CommLearner(EasyDict(multi_gpu=True))
    assert torch.distributed.is_initialized()
    assert (learner._rank, learner._world_size) == (0, 1)
    learner.start()
    learner.close()
    assert not torch.distributed.is_initialized()
    learner.close()


def test_base_comm_learner_creates_a_learner() -> None:
    comm = CommLearner(EasyDict(multi_gpu=False))
    learner = comm._create_learner(learner_task())
    assert isinstance(learner, ding.BaseLearner)
    assert (learner.exp_name, learner.rank, learner.world_size) == ("my_exp", 0, 1)
    for item in ("get_data", "send_policy", "send_learn_info"):
        assert getattr(learner, item) == getattr(comm, item), item
    assert learner.policy.get_attribute("batch_size") == 4
    from hpcdi.worker.learner.comm.flask_fs_learner import SendLearnInfoHook, SendPolicyHook

    learner.register_hook(SendPolicyHook("send_policy", 100, position="before_run", ext_args={}))
    ext_args = {"freq": 1}
    learner.register_hook(SendLearnInfoHook("info", 10, position="after_iter", ext_args=ext_args))
    learner.start()
    assert learner.last_iter.val == 3
    assert [kind for kind, _ in comm.sent] == [
        "policy",
        "data",
        "info",
        "data",
        "info",
        "data",
        "info",
    ]
    infos = [told for kind, told in comm.sent if kind == "info"]
    assert [told["learner_step"] for told in infos] == [1, 2, 3]
    assert [told["learner_done"] for told in infos] == [False, False, True]
    (policy,) = [told for kind, told in comm.sent if kind == "policy"]
    assert policy["iter"] == 0
    assert all(isinstance(tensor, torch.Tensor) for tensor in policy["model"].values())
    learner.send_policy({"model": {}})  # a hook of the user's calls it so
    assert comm.sent[-1] == ("policy", {"model": {}})


@pytest.fixture
def _registered() -> Iterator[None]:
    COMM_LEARNER_REGISTRY.register("seed_learner")(CommLearner)
    COMM_COLLECTOR_REGISTRY.register("seed_collector")(CommCollector)
    yield
    COMM_LEARNER_REGISTRY._classes.pop("seed_learner")
    COMM_COLLECTOR_REGISTRY._classes.pop("seed_collector")


@pytest.mark.usefixtures("_registered")
def test_create_comm_learner() -> None:
    cfg = EasyDict(type="seed_learner", import_names=[], multi_gpu=False, path_data="./data")
    assert isinstance(ding.create_comm_learner(cfg), CommLearner)
    with pytest.raises(KeyError):
        ding.create_comm_learner(EasyDict(type="no_such", import_names=[]))
    given = {"env": ENV, "policy": DQN, "system": {"comm_learner": {"type": "seed_learner"}}}
    with pytest.raises(ConfigError, match="'seed_learner' is for programs of your own"):
        compile_config(given)  # a run over ranks refuses it before it starts


# --------------------------------------------------------------------- collector.comm


class CommCollector(ding.BaseCommCollector):
    """What the document has a subclass define."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.sent: list[tuple[str, Any]] = []
        self.policy: Any = None

    def get_policy_update_info(self, path: str) -> Any:
        self.sent.append(("asked", path))
        return self.policy

    def send_metadata(self, metadata: Any) -> None:
        self.sent.append(("metadata", metadata))

    def send_stepdata(self, path: str, stepdata: Any) -> None:
        self.sent.append((path, stepdata))


def collector_task(**cfg: Any) -> dict[str, Any]:
    return {
        "task_id": "task", "buffer_id": "buffer", "policy": {**DQN, "collect": {"n_sample": 5}},
        "collector_cfg": {
            "type": "zergling", "env": ENV, "eval_flag": False, "exp_name": "my_exp",
            "policy_update_path": "policies/main", "collect_setting": {"eps": 0.5}, **cfg,
        },
    }  # fmt: skip


def test_base_comm_collector() -> None:
    documented("collector.comm.base_comm_collector", "BaseCommCollector", "create_comm_collector")
    with pytest.raises(TypeError, match="abstract"):
        ding.BaseCommCollector(EasyDict())  # type: ignore[abstract]
    comm = CommCollector(EasyDict(queue_maxsize=8))
    assert isinstance(comm.collector_uid, str)
    assert comm.start() is comm.close() is None


def test_base_comm_collector_creates_a_collector() -> None:
    comm = CommCollector(EasyDict())
    with comm._create_collector(collector_task()) as collector:
        assert isinstance(collector, ding.BaseParallelCollector)
        for item in ("send_metadata", "send_stepdata", "get_policy_update_info"):
            assert getattr(collector, item) == getattr(comm, item), item
        comm.policy = {"model": collector.policy.state_dict()["model"], "iter": 7}
        collector.start()
        info = collector.get_finish_info()
    assert (info["collector_done"], info["step_count"], info["train_iter"]) == (True, 20, 7)
    assert ("asked", "policies/main") in comm.sent
    told = [given for kind, given in comm.sent if kind == "metadata"]
    *announced, last = [given for given in told if "data_id" in given or given["collector_done"]]
    assert (last["collector_done"], last["cur_step"], last["cur_episode"]) == (True, 20, 4)
    data = {path: given for path, given in comm.sent if path not in ("metadata", "asked")}
    assert sum(map(len, data.values())) == len(announced) == 20
    for given in announced:
        one = data[given["data_id"]][given["unroll_split_begin"]]
        assert one.keys() >= {"obs", "next_obs", "action", "reward", "done"}
        assert given["policy_iter"] == 7
    with pytest.raises(ConfigError, match="policy: is required"):
        comm._create_collector({"collector_cfg": {"type": "zergling", "env": ENV}})


@pytest.mark.usefixtures("_registered")
def test_create_comm_collector() -> None:
    cfg = EasyDict(type="seed_collector", import_names=[], host="0.0.0.0", port=8000)
    assert isinstance(ding.create_comm_collector(cfg), CommCollector)
    with pytest.raises(KeyError):
        ding.create_comm_collector(EasyDict(type="no_such", import_names=[]))
    given = {"env": ENV, "policy": DQN, "system": {"comm_collector": {"type": "seed_collector"}}}
    with pytest.raises(ConfigError, match="'seed_collector' is for programs of your own"):
        compile_config(given)


def callbacks(log: list[Any], *names: str) -> dict[str, Any]:
    return {f"deal_with_{name}": lambda *given, name=name: log.append((name, *given)) or
            {"from": name} for name in names}  # fmt: skip


def test_collector_slave() -> None:
    log: list[Any] = []
    names = ("resource", "collector_start", "collector_data", "collector_close")
    slave = importlib.import_module(
        "hpcdi.worker.collector.comm.flask_fs_collector"
    ).CollectorSlave("0.0.0.0", 8000, callback_fn=callbacks(log, *names))
    assert slave._process_task({"name": "resource"}) == {"from": "resource"}
    info = {"task_id": "t", "buffer_id": "b"}
    slave._process_task({"name": "collector_start_task", "task_info": info})
    data = slave._process_task({"name": "collector_data_task"})
    assert data == {"from": "collector_data", "task_id": "t", "buffer_id": "b"}
    closed = slave._process_task({"name": "collector_close_task"})
    assert closed == {"from": "collector_close"}
    assert log == [("resource",), ("collector_start", info), ("collector_data",),
                   ("collector_close",)]  # fmt: skip
    with pytest.raises(TaskFail) as failed:
        slave._process_task({"name": "no_such"})
    assert failed.value.result == {"message": "task name error"}


def test_flask_fs_collector() -> None:
    documented("collector.comm.flask_fs_collector", "FlaskFileSystemCollector")
    cfg = EasyDict(type="flask_fs", host="0.0.0.0", port=1, path_data="data", path_policy="policy")
    with ding.FlaskFileSystemCollector(cfg) as collector:
        assert isinstance(collector, ding.BaseCommCollector)
        assert set(collector.deal_with_resource()) == {"gpu", "cpu"}
        assert collector.start() is None
        assert collector.get_policy_update_info("none") is None
        collector.send_stepdata("some/where", [sample(), sample(1)])
        assert Path("data/some/where").is_file()
        collector.send_metadata({"data_id": "some/where"})
        assert collector.deal_with_collector_data() == {"data_id": "some/where"}
        assert collector.deal_with_collector_data() == {}, "nobody collects"
        assert collector.deal_with_collector_close() == {}
        collector.deal_with_collector_start(collector_task())
        told = [collector.deal_with_collector_data()]
        while not told[-1]["collector_done"]:
            told.append(collector.deal_with_collector_data())
        info = collector.deal_with_collector_close()
    assert info["step_count"] == len(told) - 1 == 20
    assert Path("data", told[0]["data_id"]).is_file()


def test_naive_collector() -> None:
    documented("collector.comm.utils", "NaiveCollector")
    documented("collector.comm", "NaiveCollector")
    naive = ding.NaiveCollector("0.0.0.0", 8000, prefix="p")
    assert isinstance(naive, Slave)
    naive.start()
    info = {"task_id": "t", "buffer_id": "b"}
    naive._process_task({"name": "collector_start_task", "task_info": info})
    data = naive._process_task({"name": "collector_data_task"})
    assert (data["task_id"], data["buffer_id"], data["collector_done"]) == ("t", "b", False)
    assert all(isinstance(step, dict) for step in naive._get_timestep())
    with pytest.raises(TaskFail):
        naive._process_task({"name": "no_such"})
    naive.close()


# ------------------------------------------------------------------------------------ learner.comm


def test_learner_slave() -> None:
    module = importlib.import_module("hpcdi.worker.learner.comm.flask_fs_learner")
    log: list[Any] = []
    names = ("resource", "learner_start", "get_data", "learner_learn", "learner_close")
    slave = module.LearnerSlave("0.0.0.0", 8000, callback_fn=callbacks(log, *names))
    info = {"task_id": "t", "buffer_id": "b"}
    slave._process_task({"name": "learner_start_task", "task_info": info})
    demand = slave._process_task({"name": "learner_get_data_task"})
    assert demand == {"from": "get_data", **info}
    learnt = slave._process_task({"name": "learner_learn_task", "data": [1]})
    assert learnt == {"info": {"from": "learner_learn"}, **info}
    assert slave._process_task({"name": "learner_close_task"}) == info
    assert log[:3] == [("learner_start", info), ("get_data",), ("learner_learn", [1])]
    with pytest.raises(TaskFail):
        slave._process_task({"name": "no_such"})


def test_flask_fs_learner_learns_what_a_collector_wrote() -> None:
    documented("learner.comm.flask_fs_learner", "FlaskFileSystemLearner")
    documented("learner.comm", "NaiveLearner")
    folders = {"path_data": "data", "path_policy": "policy"}
    files = ding.FlaskFileSystemCollector(EasyDict(folders))
    files.send_stepdata("a", [sample(k) for k in range(3)])
    files.send_stepdata("b", [sample(7)])
    cfg = EasyDict(type="flask_fs", host="0.0.0.0", port=1, multi_gpu=False, send_policy_freq=2,
                   aggregator=False, **folders)  # fmt: skip
    learner = ding.create_comm_learner(cfg)
    assert isinstance(learner, ding.FlaskFileSystemLearner)
    with learner:
        assert learner.deal_with_resource() == {"gpu": 1}
        assert [hook.position for hook in learner.hooks4call] == [
            "before_run", "after_iter", "after_iter",
        ]  # fmt: skip
        learner.send_learn_info({"learner_step": 1})
        learner.start()
        learner.deal_with_learner_start(learner_task())
        metas = [{"data_id": "a", "unroll_split_begin": k, "IS": 0.5} for k in range(3)]
        metas.append({"data_id": "b", "unroll_split_begin": 0, "IS": 1.0})
        for step in (1, 2, 3):
            demand = learner.deal_with_get_data()
            assert demand == {"batch_size": 4, "cur_learner_iter": step - 1}
            info = learner.deal_with_learner_learn(metas)
            assert (info["learner_step"], info["learner_done"]) == (step, step == 3)
        assert learner.deal_with_get_data() == {}, "its task has ended"
        policy = files.get_policy_update_info("policies/main")
        assert policy is not None
        assert policy["iter"] == 2, "every second one"
        loaded = learner.load_data_fn(Path("data/a"), metas[1], lambda read: read)
        assert loaded["obs"].tolist() == [1.0, 1.0]
        assert (loaded["data_id"], loaded["IS"]) == ("a", 0.5)
    learner.__del__()


def test_an_error_of_a_learner_is_raised_where_its_coordinator_calls() -> None:
    with ding.FlaskFileSystemLearner(EasyDict(path_data="none", path_policy="p")) as learner:
        learner.deal_with_learner_start(learner_task())
        learner.deal_with_get_data()
        with pytest.raises(Exception, match="none/a: cannot be read"):
            learner.deal_with_learner_learn([{"data_id": "a"}] * 4)


# ---------------------------------------------------------------------- coordinator.coordinator

FORM = {"type": "fakes.ding_form:Policy", "model": {"obs_shape": 3, "action_shape": 2}}


def compiled() -> dict[str, Any]:
    """As DI-engine's compile_config_parallel makes it, with a policy that needs no DI-engine."""
    worker = {"type": "flask_fs", "host": "0.0.0.0", "port": 1, "path_data": "./x/data",
              "path_policy": "./x/policy"}  # fmt: skip
    policy = {
        **FORM, "cuda": False, "multi_gpu": False, "on_policy": False, "priority": True,
        "bp_update_sync": True, "traj_len_inf": False, "cfg_type": "DQNCommandModePolicyDict",
        "learn": {"learner": {"type": "base", "learner_num": 1, "send_policy_freq": 1,
                              "cfg_type": "BaseLearnerDict", "train_iterations": 1000},
                  "batch_size": 4, "rate": 0.1, "ignore_done": False},
        "collect": {"collector": {"type": "zergling", "collector_num": 2, "compressor": "lz4"},
                    "n_sample": 16, "unroll_len": 1, "env_num": 8},
        "eval": {"evaluator": {"eval_freq": 50}, "env_num": 5},
        "other": {"replay_buffer": {"type": "advanced", "replay_buffer_size": 100,
                                    "cfg_type": "AdvancedReplayBufferDict", "deepcopy": False},
                  "eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10000},
                  "commander": {"type": "solo", "collector_task_space": 2, "eval_interval": 5,
                                "learner_task_space": 1, "path_policy": "./x/policy",
                                "import_names": ["ding.worker.coordinator"]}},
    }  # fmt: skip
    env = {"type": "fakes.ding_form:Env", "manager": {"type": "base", "cfg_type": "Dict"},
           "stop_value": 195, "n_evaluator_episode": 4, "collector_env_num": 8, "length": 7,
           "collector_episode_num": 2, "evaluator_env_num": 5,
           "evaluator_episode_num": 1}  # fmt: skip
    coordinator = {
        "host": "0.0.0.0", "port": 1, "cfg_type": "CoordinatorDict", "collector_task_timeout": 30,
        "learner_task_timeout": 600, "operator_server": {},
        "learner": {"learner0": ["learner0", "0.0.0.0", 2]},
        "collector": {"collector0": ["collector0", "0.0.0.0", 3]},
    }  # fmt: skip
    learner = {**worker, "multi_gpu": False, "gpu_num": 1, "aggregator": False}
    system = {"coordinator": coordinator, "collector0": worker, "learner0": learner}
    return {"main": {"exp_name": "x", "env": env, "policy": policy}, "system": system, "seed": 0}


def finished(**said: Any) -> dict[str, Any]:
    returns = [100.0] * 5
    return {"eval_flag": True, "reward_raw": returns, "reward": returns, "step_count": 100,
            "avg_step_per_episode": 20, "train_iter": 3, **said}  # fmt: skip


def test_task_state() -> None:
    documented("coordinator.coordinator", "Coordinator", "TaskState")
    state = ding.TaskState("task")
    assert state.task_id == "task"
    assert abs(state.start_time - time.time()) < 5


@pytest.mark.parametrize("given", [compiled(), EasyDict(compiled())], ids=["dict", "EasyDict"])
def test_coordinator(given: Any) -> None:
    with ding.Coordinator(given) as coordinator:
        assert coordinator.system_shutdown_flag is False
        assert coordinator.start() is None
        tasks = ("collect", "buffer")
        for number in range(16):
            data = {"data_id": f"d{number}", "unroll_len": 1, "priority": 1.0}
            assert coordinator.deal_with_collector_send_data(*tasks, f"d{number}", data) is None
        assert coordinator.deal_with_learner_get_data("learn", "none", 8, 0) is None, "no such one"
        drawn = coordinator.deal_with_learner_get_data("learn", "buffer", 8, 0)
        assert drawn is not None
        assert len(drawn) == 8
        assert drawn[0].keys() >= {"data_id", "replay_unique_id", "replay_buffer_idx", "priority"}
        names = ("replay_unique_id", "replay_buffer_idx")
        priorities = {name: [one[name] for one in drawn] for name in names} | {
            "priority": [9.0] * 8
        }
        info = {"learner_step": 1, "priority_info": priorities, "learner_done": False}
        assert coordinator.deal_with_learner_send_info("learn", "buffer", info) is None
        again = coordinator.deal_with_learner_get_data("learn", "buffer", 16, 1)
        assert max(one["priority"] for one in again or ()) == pytest.approx(9.0)
        coordinator.deal_with_learner_send_info("learn", "buffer", {"learner_step": 2})
        coordinator.deal_with_increase_collector()
        coordinator.deal_with_decrease_collector()
        assert coordinator.info("a line") is coordinator.error("a line") is None
        assert coordinator.load_state_dict({}) is None
        assert coordinator.deal_with_learner_get_data("learn", "buffer", 8, 1) is not None
        coordinator.load_state_dict(coordinator.state_dict())
        done = {"task_id": "learn", "buffer_id": "buffer", "learner_cfg": {}}
        assert coordinator.deal_with_learner_finish_task("learn", done) is None
        assert coordinator.deal_with_learner_get_data("learn", "buffer", 8, 1) is None, "closed"
    coordinator.close()
    coordinator.__del__()
    assert coordinator.system_shutdown_flag is True


def test_coordinator_ends_with_the_goal() -> None:
    with ding.Coordinator(compiled()) as coordinator:
        coordinator.deal_with_collector_finish_task("a", finished())
        assert coordinator.system_shutdown_flag is False
        assert coordinator.deal_with_collector_judge_finish("a", {"collector_done": True}) is True
        assert coordinator.deal_with_learner_judge_finish("b", {"learner_done": False}) is False
        coordinator.deal_with_collector_finish_task("b", finished(reward_raw=[200.0] * 5))
        assert coordinator.system_shutdown_flag is True
