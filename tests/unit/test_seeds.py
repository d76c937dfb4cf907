"""DI-engine's public documents of `ding.worker`, line by line: each name, called as documented.

The documents are the API pages of the package, of `coordinator.coordinator`, `collector.comm` and
`learner.comm`, and the source of `learner.comm.base_comm_learner`. Signatures are in
`test_public_api`; here are the calls and what they lead to. What differs on purpose is the list in
hpcdi/worker/README.md, "What differs", and nowhere else: `DIFFERENCES` has a proof of each.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest
import torch
import torch.distributed

import hpcdi.worker as ding
from fakes.evaluator_parts import Accuracy, BattleManager, DuckPolicy, ParityPolicy
from fakes.evaluator_parts import Manager as EvaluatorManager
from fakes.serial_parts import Actor, Battle, Manager
from hpcdi.comm import group
from hpcdi.config.compat import ConfigDict as EasyDict
from hpcdi.config.compiled import compile_config
from hpcdi.env.create import make_env_manager
from hpcdi.errors import (
    BufferContractError,
    CommError,
    ConfigError,
    EnvError,
    PolicyFileError,
    SnapshotError,
)
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.utils.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY, HOOK_REGISTRY
from hpcdi.worker.collector.comm import CollectorSlave
from hpcdi.worker.dict_envs import to_items
from hpcdi.worker.ding.convert import oldest_kept, problems_of
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
    by_document = EasyDict(comm_learner_type="seed_learner", import_names=[])
    assert isinstance(ding.create_comm_learner(by_document), CommLearner)
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


def test_samples_are_announced_with_their_reference_and_counted() -> None:
    """Of a policy whose samples are sequences, there are fewer samples than steps."""

    class Storing(CommCollector):
        def send_stepdata(self, path: str, stepdata: Any) -> Any:
            super().send_stepdata(path, stepdata)
            return None if len(self.sent) % 2 else f"ref-{path}"

    comm = Storing(EasyDict())
    with comm._create_collector(collector_task()) as collector:
        recorder = collector._loop.recorder.of[0]
        recorder._make_samples = lambda piece: [{"first": piece[0]["obs"]}]
        collector.start()
        info = collector.get_finish_info()
    told = [given for kind, given in comm.sent if kind == "metadata" and "data_id" in given]
    assert 0 < info["sample_count"] == len(told) == told[-1]["cur_sample"] < info["step_count"]
    assert info["avg_sample_per_episode"] == len(told) / info["real_episode_count"]
    stored = {given["data_id"]: given.get("object_ref") for given in told}
    assert all(reference in (None, f"ref-{path}") for path, reference in stored.items())
    assert any(stored.values())


@pytest.mark.usefixtures("_registered")
def test_create_comm_collector() -> None:
    cfg = EasyDict(type="seed_collector", import_names=[], host="0.0.0.0", port=8000)
    assert isinstance(ding.create_comm_collector(cfg), CommCollector)
    by_document = EasyDict(comm_collector_type="seed_collector", import_names=[])
    assert isinstance(ding.create_comm_collector(by_document), CommCollector)
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
    assert closed == {"from": "collector_close", "task_id": "t"}
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


def test_a_policys_file_is_read_where_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that waits asks for it every few milliseconds."""
    module = importlib.import_module("hpcdi.worker.collector.comm.flask_fs_collector")
    reads: list[Any] = []
    read = module.read_policy
    monkeypatch.setattr(module, "read_policy", lambda file: reads.append(file) or read(file))
    weights = {"w": torch.zeros(2)}
    with ding.FlaskFileSystemCollector(EasyDict(path_policy="policy")) as collector:
        for version in range(3):
            image = PolicyImage.of({**weights, "v": torch.full((1,), float(version))}, version)
            publish_policy(Path("policy/main"), image)
            for _ in range(3):
                info = collector.get_policy_update_info("main")
                assert (info["iter"], info["model"]["v"].item()) == (version, version)
                info["model"].clear()
        assert len(reads) == 3
        publish_policy(Path("policy/other"), PolicyImage.of(weights, 9))
        assert collector.get_policy_update_info("other")["iter"] == 9
        assert collector.get_policy_update_info("main")["iter"] == 2
        Path("policy/main").write_bytes(b"torn")
        for _ in range(2):
            with pytest.raises(PolicyFileError):
                collector.get_policy_update_info("main")


@pytest.mark.parametrize(("every_s", "looks"), [(1000, 1), (0, 2)])
def test_a_newer_policy_is_looked_for_every_so_often(every_s: float, looks: int) -> None:
    comm = CommCollector(EasyDict())
    with comm._create_collector(collector_task(update_policy_second=every_s)) as collector:
        collector.start()
    assert comm.sent.count(("asked", "policies/main")) == looks, "of two rollouts"


def test_on_policy_each_rollout_looks_for_a_newer_policy() -> None:
    model = {**DQN["model"], "action_space": "discrete"}
    task = {**collector_task(), "policy": {"type": "ppo", "model": model}}
    with CommCollector(EasyDict())._create_collector(task) as collector:
        assert collector.port.every_s == 0


def test_tasks_of_one_name_write_files_of_their_own() -> None:
    """Metadata of the first may lie in a buffer for long."""
    data_ids: list[set[str]] = []
    for _ in range(2):
        with ding.FlaskFileSystemCollector(EasyDict(path_data="data", path_policy=".")) as files:
            files.deal_with_collector_start(collector_task())
            data_ids.append(set())
            while not (told := files.deal_with_collector_data())["collector_done"]:
                data_ids[-1].add(told["data_id"])
    assert not data_ids[0] & data_ids[1]
    assert {path.name for path in Path("data").iterdir()} == data_ids[0] | data_ids[1]


def test_an_evaluation_by_a_flask_fs_collector() -> None:
    env = {**ENV, "evaluator_env_num": 1, "evaluator_episode_num": 2}
    with ding.FlaskFileSystemCollector(EasyDict(path_data="data", path_policy=".")) as collector:
        collector.deal_with_collector_start(collector_task(eval_flag=True, env=env))
        (told, nothing) = (collector.deal_with_collector_data() for _ in range(2))
        info = collector.deal_with_collector_close()
    assert (told["collector_done"], told["eval_flag"], told["cur_episode"]) == (True, True, 2)
    assert nothing == {}
    assert (info["eval_flag"], info["real_episode_count"], len(info["reward_raw"])) == (True, 2, 2)
    assert not Path("data").exists()


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
    assert slave._process_task({"name": "resource"}) == {"from": "resource"}
    told = {**info, "policy_id": "p", "learner_cfg": {}}
    started = slave._process_task({"name": "learner_start_task", "task_info": told})
    assert started == {"message": "learner task has started"}
    demand = slave._process_task({"name": "learner_get_data_task"})
    assert demand == {"from": "get_data", **info}
    learnt = slave._process_task({"name": "learner_learn_task", "data": [1]})
    assert learnt == {"info": {"from": "learner_learn"}, **info}
    assert slave._process_task({"name": "learner_close_task"}) == info
    assert log == [("resource",), ("learner_start", told), ("get_data",), ("learner_learn", [1]),
                   ("learner_close",)]  # fmt: skip
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


def test_the_info_of_a_batch_is_that_of_its_last_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = [{"total_loss": 1.0}] * 3
    mode = SimpleNamespace(
        forward=lambda _data: passes, state_dict=lambda: {"model": {}}, get_attribute=lambda _: 1
    )
    made = "hpcdi.worker.learner.comm.base_comm_learner.create_policy"
    monkeypatch.setattr(made, lambda *_args, **_kwargs: SimpleNamespace(learn_mode=mode))
    ding.FlaskFileSystemCollector(EasyDict(path_data=".")).send_stepdata("a", [sample()])
    with ding.FlaskFileSystemLearner(EasyDict(path_policy=".")) as learner:
        learner.deal_with_learner_start(learner_task())
        for batch in (1, 2, 3):
            assert learner.deal_with_get_data()["cur_learner_iter"] == 3 * (batch - 1)
            info = learner.deal_with_learner_learn([{"data_id": "a"}])
            assert (info["learner_step"], info["learner_done"]) == (3 * batch, batch == 3)


def test_a_subclass_loads_by_the_seeds_signature() -> None:
    class Loads(ding.FlaskFileSystemLearner):
        @staticmethod
        def load_data_fn(path, meta: dict[str, Any], decompressor: Any) -> Any:  # type: ignore[no-untyped-def, override]
            return {**decompressor(sample(7)), "path": str(path), **meta}

    with Loads(EasyDict(path_data="data", path_policy="policy")) as learner:
        learner.deal_with_learner_start(learner_task(train_iterations=1))
        learner.deal_with_get_data()
        info = learner.deal_with_learner_learn([{"data_id": "a", "IS": 0.5}] * 4)
        assert (info["learner_step"], info["learner_done"]) == (1, True)


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


# ------------------------------------------------------------------ ding.worker: serial collectors


class Writer:
    """A TensorBoard writer."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.is_closed = False

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.tags.append(tag)

    def flush(self) -> None:
        assert not self.is_closed

    def close(self) -> None:
        self.is_closed = True


SERIAL = ("SampleSerialCollector", "EpisodeSerialCollector")
BATTLES = ("BattleSampleSerialCollector", "BattleEpisodeSerialCollector")


@pytest.mark.parametrize("name", [*SERIAL, *BATTLES])
def test_serial_collector(name: str) -> None:
    cls: Any = getattr(ding, name)
    is_battle, is_sample = name in BATTLES, "Sample" in name
    assert issubclass(cls, ding.ISerialCollector)
    cfg = cls.default_config()
    assert cfg.cfg_type == f"{name}Dict"
    policies = [Actor(player) for player in range(2)]
    modes = [policy.mode for policy in policies] if is_battle else policies[0].mode
    envs = Battle([2, 3]) if is_battle else Manager([2, 3])
    writer = Writer()
    collector = cls(
        cfg, env=envs, policy=modes, tb_logger=writer, exp_name="exp", instance_name="mine"
    )
    assert collector.envstep == 0
    found = collector.collect(4, train_iter=7, policy_kwargs={"eps": 0.5})
    data, info = found if is_battle else ([found], [[]])
    assert all(len(own) == 4 for own in data)
    first = data[0][0] if is_sample else data[0][0][0]
    assert first["collect_iter"] == 7
    assert first.keys() >= {"obs", "next_obs", "action", "reward", "done"}
    assert policies[0].settings[0] == {"eps": 0.5}
    assert not is_battle or len(info) == 2
    kept = collector._traj_buffer.values()
    assert is_sample or {sum(map(len, own)) for own in kept} == {0}, "whole episodes"
    assert collector.envstep > 0
    assert {tag.partition("/")[0] for tag in writer.tags} <= {"mine_iter", "mine_step"}
    collector.envstep = 1000
    assert collector.envstep == 1000
    resets = len(policies[0].resets)
    collector.reset_policy(None)
    assert policies[0].resets[resets] is None
    collector.reset_env(None)
    others = Battle([1, 1]) if is_battle else Manager([1, 1])
    collector.reset_env(others)
    assert others.launches == 1
    collector.reset(modes, others)
    assert collector.envstep == 0
    assert collector.close() is None
    assert others.closed
    assert writer.is_closed
    collector.close()
    collector.__del__()


def test_sample_collector_arguments() -> None:
    collector = ding.SampleSerialCollector({}, Manager([2, 3]), Actor(n_sample=2).mode)
    assert len(collector.collect()) == 2, "the policy's n_sample"
    assert len(collector.collect(3, drop_extra=False)) >= 3
    assert len(collector.collect(3, drop_extra=True)) == 3
    before = collector.envstep
    collector.collect(4, random_collect=True, record_random_collect=False)
    assert collector.envstep > before
    seeds = torch.tensor([5, 6])
    for given in (seeds, {0: 5, 1: 6}, [5, 6]):
        collector.reset()
        samples = collector.collect(4, level_seeds=given)
        assert {(int(one["obs"][0]), int(one["seed"])) for one in samples} == {(0, 5), (1, 6)}


def test_collectors_that_are_asked_for_nothing() -> None:
    assert ding.SampleSerialCollector({}, Manager([2, 3]), Actor().mode).collect(0) == []
    modes = [Actor(player).mode for player in range(2)]
    battle = ding.BattleSampleSerialCollector({}, Battle([2, 3]), modes)
    assert battle.collect(0) == ([[], []], [[], []])
    with pytest.raises(AssertionError):
        ding.EpisodeSerialCollector({}, Manager([2, 3]), Actor().mode).collect(0)


def test_a_policy_without_a_usual_number_makes_samples_of_whole_episodes() -> None:
    """Its attribute is None; else a piece is an environment's share."""
    for n_sample, lengths in ((None, [3, 4]), (4, [2, 2])):
        made: list[int] = []

        class Policy(Actor):
            def get_train_sample(self, data: Any, made: list[int] = made) -> Any:
                made.append(len(data))
                return super().get_train_sample(data)

        policy = Policy(n_sample=n_sample)
        ding.SampleSerialCollector({}, Manager([3, 4]), policy.mode).collect(4)
        assert made == lengths


@pytest.mark.parametrize(
    "form", [np.float32, lambda n: np.full(1, n, np.float32), torch.tensor, float]
)
def test_rewards_of_a_battle_are_as_the_environments_give_them(form: Any) -> None:
    class Envs(Battle):
        def step(self, actions: Any) -> Any:
            steps = super().step(actions)
            return {
                e: s._replace(reward=[form(float(r)) for r in s.reward]) for e, s in steps.items()
            }

    modes = [Actor(player).mode for player in range(2)]
    data, _ = ding.BattleEpisodeSerialCollector({}, Envs([2, 3]), modes).collect(2)
    like = form(1.0)
    for one in data[1][0]:
        own = one["reward"]
        if isinstance(like, np.ndarray | torch.Tensor):
            assert (tuple(own.shape), own.dtype) == (tuple(like.shape), torch.float32)
        else:
            assert type(own) is type(like)


def test_episode_collector_arguments() -> None:
    envs, policy = Manager([2, 3]), Actor(n_episode=2).mode
    episodes = ding.EpisodeSerialCollector({}, envs, policy).collect(train_iter=1)
    assert len(episodes) == 2
    samples = ding.EpisodeSerialCollector(
        {"get_train_sample": True}, Manager([2, 3]), policy
    ).collect(2)
    assert {len(samples)} == {sum(map(len, episodes))}


def test_ngu_gets_the_environment() -> None:
    class NGU(Actor):
        def process_transition(self, obs: Any, *rest: Any) -> Any:  # a decorated one looks so
            return {
                **super().process_transition(obs, *rest[:2]),
                "of": rest[2] if rest[2:] else None,
            }

    cfg = EasyDict(type="ngu_command")
    samples = ding.SampleSerialCollector({}, Manager([2, 3]), NGU(cfg=cfg).mode).collect(4)
    assert all(one["of"] == int(one["obs"][0]) for one in samples)
    (sample,) = ding.SampleSerialCollector({}, Manager([2]), NGU().mode).collect(1)
    assert sample["of"] is None


def test_dreamer_gets_its_state() -> None:
    class Dreamer(Actor):
        def forward(self, data: Any, **setting: Any) -> Any:
            outputs = super().forward(data, **setting)
            return {env: {**one, "state": (env, self.calls)} for env, one in outputs.items()}

    policy = Dreamer(cfg=EasyDict(type="dreamer_command"))
    collector = ding.SampleSerialCollector({}, Manager([2, 3]), policy.mode)
    collector.collect(6, policy_kwargs={"envstep": 0})
    first, *rest = policy.settings
    assert (first["state"], first["envstep"]) == (None, 0)
    assert [given["state"] for given in rest[:2]] == [[(0, k), (1, k)] for k in (1, 2)]
    assert [given["reset"].tolist() for given in rest[:2]] == [[0, 0], [1, 0]], "of two steps"
    assert {given["reset"].dtype for given in rest} == {np.dtype(bool)}
    policy.settings.clear()
    collector.collect(2, random_collect=True)
    assert "state" not in policy.settings[0]


def test_factories_of_collectors_and_evaluators() -> None:
    cfg = EasyDict(type="sample", import_names=[])
    made = ding.create_serial_collector(cfg, env=Manager([2]), policy=Actor().mode)
    assert isinstance(made, ding.SampleSerialCollector)
    assert ding.get_serial_collector_cls(cfg) is ding.SampleSerialCollector
    evaluator = ding.create_serial_evaluator(EasyDict(n_episode=2, stop_value=1))
    assert isinstance(evaluator, ding.InteractionSerialEvaluator)
    for create in (ding.create_serial_collector, ding.create_serial_evaluator):
        with pytest.raises(KeyError):
            create(EasyDict(type="no_such"))


def test_to_tensor_transitions() -> None:
    data = [{"obs": np.zeros(2), "next_obs": np.ones(2), "done": False, "text": "a"}] * 2
    shared = ding.to_tensor_transitions(data)
    assert shared[0]["next_obs"] is shared[1]["obs"]
    assert shared[1]["next_obs"].tolist() == [1, 1], "of the last it is its own"
    apart = ding.to_tensor_transitions(data, shallow_copy_next_obs=False)
    assert apart[0]["next_obs"].tolist() == [1, 1]
    assert (apart[0]["obs"].dtype, apart[0]["done"], apart[0]["text"]) == (
        torch.float32,
        False,
        "a",
    )


# ------------------------------------------------------------------------ ding.worker: evaluators


def test_vector_eval_monitor() -> None:
    monitor = ding.VectorEvalMonitor(env_num=2, n_episode=3)
    assert monitor.is_finished() is False
    for env_id, reward in ((0, 1.0), (0, torch.tensor([2.0])), (0, 9.0), (1, np.float32(3.0))):
        monitor.update_video({env: np.full((4, 4, 3), env, np.uint8) for env in range(2)})
        monitor.update_info(env_id, {"eval_episode_return": reward})
        monitor.update_reward(env_id, reward)
    assert monitor.is_finished() is True
    assert sorted(monitor.get_episode_return()) == [1, 2, 3], "9 is one more than its quota"
    assert (monitor.get_latest_reward(0), monitor.get_current_episode()) == (2, 3)
    assert set(monitor.get_episode_info() or {}) >= {"eval_episode_return"}
    assert ding.VectorEvalMonitor(1, 1).get_episode_info() is None
    assert monitor.get_video().ndim == 5


def test_what_an_evaluation_says() -> None:
    """As with DI-engine: of arrays there is no mean, and of a battle there are single numbers."""
    cfg = {"n_episode": 2, "stop_value": 9.0}

    class Envs(EvaluatorManager):
        def ended(self, env_id: int, total: float) -> Any:
            more = {"number": 1, "array": np.arange(2), "truth": True, "nothing": None}
            return {"eval_episode_return": np.array([total], np.float32), "episode_info": more}

    with ding.InteractionSerialEvaluator(cfg, Envs([[(2, 1.0)], [(3, 5.0)]]), DuckPolicy()) as one:
        _, info = one.eval()
    assert info == {
        "eval_episode_return": [[1.0], [5.0]], "number": [1.0, 1.0], "number_mean": 1.0,
        "array": [[0.0, 1.0]] * 2, "truth": [True, True], "truth_mean": 1.0,
        "nothing": [None, None],
    }  # fmt: skip
    assert one.scalars["reward_mean"] == 3
    battle = {"eval_episode_return": np.array([2.0]), "one": [torch.ones(1)], "two": np.ones(2)}
    assert to_items(battle) == {"eval_episode_return": 2.0, "one": 1.0}
    with pytest.raises(AssertionError, match="n_episode"):
        ding.InteractionSerialEvaluator({}, Envs([[(2, 1.0)]]), DuckPolicy()).eval()
    with pytest.raises(KeyError):
        ding.VectorEvalMonitor(2, 2).get_latest_reward(-1)


def test_a_policy_is_reset_before_it_gets_the_next_environments_transition() -> None:
    calls: list[Any] = []

    class Policy(Actor):
        def process_transition(self, obs: Any, *rest: Any) -> Any:
            calls.append(int(obs[0]))
            return super().process_transition(obs, *rest)

        def get_train_sample(self, data: Any) -> Any:
            calls.append("samples")
            return super().get_train_sample(data)

        def reset(self, data_id: Any = None) -> None:
            calls.append(data_id)
            super().reset(data_id)

    cfg = {"get_train_sample": True}
    ding.EpisodeSerialCollector(cfg, Manager([1, 1]), Policy().mode).collect(2)
    assert calls[-6:] == [0, "samples", [0], 1, "samples", [1]]


def test_interaction_evaluator() -> None:
    cls = ding.InteractionSerialEvaluator
    cfg = cls.default_config()
    cfg.update(n_episode=2, stop_value=4.0, eval_freq=10)
    envs = EvaluatorManager([[(2, 1.0)], [(3, 5.0)]])
    saved: list[str] = []
    policy = DuckPolicy()
    evaluator = cls(cfg, envs, policy, None, "exp", "evaluator")
    assert evaluator.should_eval(0) is True
    assert evaluator.should_eval(5) is False
    assert evaluator.should_eval(10) is True
    stop, info = evaluator.eval(saved.append, train_iter=1, envstep=7, n_episode=2)
    assert stop is False
    assert sorted(map(float, info["eval_episode_return"])) == [1, 5]
    assert info["eval_episode_return_mean"] == 3
    assert saved == ["ckpt_best.pth.tar"]
    envs = EvaluatorManager([[(2, 6.0)], [(3, 6.0)]])
    evaluator.reset_env(envs)
    assert evaluator.eval(train_iter=2, force_render=False, policy_kwargs={})[0] is True
    evaluator.reset_policy(policy)
    evaluator.reset(policy, envs)
    evaluator.close()
    evaluator.__del__()
    assert not envs.is_launched


def test_an_evaluator_with_an_eval_of_its_own() -> None:
    """It uses the parts that dizoo's `TradingSerialEvaluator` uses."""

    class Own(ding.InteractionSerialEvaluator):
        def eval(self, save_ckpt_fn: Any = None, train_iter: int = -1, *_more: Any) -> Any:  # type: ignore[override]
            monitor = ding.VectorEvalMonitor(self._env.env_num, self._default_n_episode or 0)
            with self._timer:
                assert self._should_render(0, train_iter) is False
            self._logger.info(self._logger.get_tabulate_vars_hor({"reward_mean": 2.0}))
            tag = f"{self._instance_name}_{self._render.mode}/reward_mean"
            self._tb_logger.add_scalar(tag, 2.0, train_iter)
            is_best, self._max_episode_return = self._max_episode_return < 2.0, 2.0
            return monitor.is_finished(), is_best, self._stop_value <= 2.0, self._timer.value > 0

    cfg = {"n_episode": 2, "stop_value": 2.0}
    evaluator = Own(cfg, EvaluatorManager([[(2, 1.0)], [(3, 5.0)]]), DuckPolicy(), None, "exp")
    assert evaluator.eval(None, 1) == (False, True, True, True)
    assert evaluator.eval(None, 2) == (False, False, True, True)
    evaluator.close()
    assert list(Path("exp/log/evaluator").glob("events*"))


def test_should_eval_counts_from_iteration_minus_1() -> None:
    evaluator = ding.InteractionSerialEvaluator({"eval_freq": 3})
    assert [evaluator.should_eval(k) for k in (-1, 1, 2, 2, 4, 5, 0, 0)] == [
        False, False, True, False, False, True, True, False,
    ]  # fmt: skip


def test_battle_evaluator() -> None:
    cls = ding.BattleInteractionSerialEvaluator
    envs = BattleManager([[(2, 1.0)], [(3, 5.0)]])
    cfg = {**cls.default_config(), "n_episode": 2, "stop_value": 2.0}
    evaluator = cls(cfg, envs, [DuckPolicy(10), DuckPolicy(11)])
    assert evaluator.should_eval(0) is True
    stop, info = evaluator.eval(train_iter=3, envstep=4, n_episode=2)
    assert stop is True
    assert len(info) == 2, "for each policy"
    evaluator.reset([DuckPolicy(10), DuckPolicy(11)], envs)
    evaluator.close()


def test_metric_evaluator_and_metric() -> None:
    assert Accuracy().gt(1.0, None) is True, "whatever is better than nothing"
    with pytest.raises(TypeError, match="abstract"):
        ding.IMetric()  # type: ignore[abstract]
    data = [(torch.arange(4), torch.arange(4) % 2)]
    cfg = {**ding.MetricSerialEvaluator.default_config(), "stop_value": 0.5}
    with ding.MetricSerialEvaluator(cfg, (data, Accuracy()), ParityPolicy()) as evaluator:
        assert evaluator.should_eval(0) is True
        stop, metric = evaluator.eval(train_iter=1, envstep=1)
        evaluator.reset(ParityPolicy(), (data, Accuracy()))
    assert (stop, metric["acc"]) == (True, 1.0)


# ------------------------------------------------------------- ding.worker: parallel collectors


@pytest.mark.parametrize("name", ["ZerglingParallelCollector", "MarineParallelCollector"])
def test_parallel_collector(name: str) -> None:
    cls: Any = getattr(ding, name)
    assert issubclass(cls, ding.BaseParallelCollector)
    with pytest.raises(TypeError, match="abstract"):
        ding.BaseParallelCollector(EasyDict())  # type: ignore[abstract]
    cfg = {**cls.default_config(), "env": ENV, "policy": DQN, "eval_flag": False,
           "collect_setting": {"eps": 0.1}, "exp_name": "x", "policy_update_path": "p"}  # fmt: skip
    if name == "MarineParallelCollector":
        with pytest.raises(ConfigError, match="several players"):
            cls(cfg)
        return
    with cls(cfg) as collector:
        collector.info("a line")
        collector.debug("a line")
        collector.error("a line")
        collector.start()
        assert collector.get_finish_info()["step_count"] == 20
        collector.policy, collector.env_manager = collector.policy, collector.env_manager
    assert ding.get_parallel_collector_cls({"type": "zergling"}) is cls
    made = ding.create_parallel_collector(cfg)
    assert isinstance(made, ding.BaseParallelCollector)
    made.close()


# -------------------------------------------------------------------------- ding.worker: learner


class LearnMode:
    """A policy's learn mode of DI-engine's form; its settings are nowhere."""

    def __init__(self) -> None:
        self.learnt: list[Any] = []

    def forward(self, data: Any, **kwargs: Any) -> dict[str, Any]:
        self.learnt.append((len(data), kwargs))
        return {"total_loss": 0.5, "priority": [2.0] * len(data), "[histogram]h": [1.0]}

    def info(self) -> str:
        return "a policy"

    def monitor_vars(self) -> list[str]:
        return ["total_loss"]

    def reset(self) -> None:
        """Nothing is kept."""

    def state_dict(self) -> dict[str, Any]:
        return {"model": {"w": torch.ones(1)}, "optimizer": {}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing is kept."""

    def get_attribute(self, name: str) -> Any:
        return {"batch_size": 2, "device": "cpu"}[name]  # KeyError: nothing else is there


def drawn() -> list[dict[str, Any]]:
    return [{"replay_unique_id": f"b_{k}", "replay_buffer_idx": k, "obs": k} for k in range(2)]


def test_base_learner() -> None:
    cfg = ding.BaseLearner.default_config()
    cfg.update(train_iterations=3)
    policy = LearnMode()
    learner = ding.BaseLearner(cfg, None, None, None, "exp", "mine")
    learner.policy = policy
    assert (learner.exp_name, learner.instance_name) == ("exp", "mine")
    assert (learner.rank, learner.world_size) == (0, 1)
    positions: list[str] = []
    for position in ding.LearnerHook.positions:
        learner.register_hook(Note(positions, "note", 10, position=position))
    (log,) = learner.train(drawn(), envstep=17, policy_kwargs={"a": 1})
    assert log.keys() == {"total_loss"}, "priorities are in priority_info"
    with pytest.raises(KeyError):
        learner.call_hook("no_such")
    assert policy.learnt == [(2, {"a": 1})]
    assert positions == ["before_iter", "after_iter"]
    assert (learner.train_iter, learner.last_iter.val, learner.collector_envstep) == (1, 1, 17)
    assert learner.priority_info == {
        "replay_unique_id": ["b_0", "b_1"], "replay_buffer_idx": [0, 1], "priority": [2.0, 2.0],
    }  # fmt: skip
    assert learner.learn_info["learner_step"] == 1
    assert learner.learn_info["priority_info"]["priority"] == [2.0, 2.0]
    assert learner.learn_info["learner_done"] is False
    assert learner.log_buffer == {
        "scalar": {"total_loss": 0.5}, "scalars": {}, "histogram": {"h": [1.0]},
    }  # fmt: skip
    assert learner.monitor is not None
    learner.collector_envstep = 5
    learner.call_hook("before_run")
    assert positions[-1] == "before_run"
    assert learner.info("a line") is learner.debug("a line") is None
    learner.get_data = lambda size: [lambda: drawn()[0]] * size  # type: ignore[attr-defined]
    learner.setup_dataloader()
    learner.start()
    assert learner.train_iter == 1 + 3
    assert positions[-1] == "after_run"
    learner.tb_logger.add_scalar("a", 1.0, 1)  # type: ignore[union-attr]
    learner.close()
    assert any(events.stat().st_size > 60 for events in Path("exp/log/mine").glob("events*"))
    learner.save_checkpoint("ckpt_best.pth.tar")
    state = torch.load("exp/ckpt_mine/ckpt_best.pth.tar", weights_only=False)
    assert (state["last_iter"], state["last_step"]) == (4, 5)
    made = ding.create_learner(EasyDict(type="base", import_names=[]), policy=policy)
    assert isinstance(made, ding.BaseLearner)
    with pytest.raises(KeyError):
        ding.create_learner(EasyDict(type="no_such"))
    by_document = EasyDict(learner_type="base", import_module=[])
    assert isinstance(ding.create_learner(by_document), ding.BaseLearner)


def test_a_hook_in_di_engines_form() -> None:
    """It reads what DI-engine's own hooks read, and lays out tables."""
    lines: list[Any] = []

    class Show(ding.LearnerHook):
        def __call__(self, engine: Any) -> None:
            values = {"loss": 0.5, "name": "x", "a": 1, "b": 2, "c": 3}
            lines.append(engine._collector_envstep)
            for layout in (engine.logger.get_tabulate_vars, engine.logger.get_tabulate_vars_hor):
                lines.append(layout(values).split())
            engine.logger.info(lines[-1])

    learner = ding.BaseLearner({}, LearnMode())
    count = len(learner._hooks["after_iter"])
    ding.add_learner_hook(learner._hooks, Show("show", 30, position="after_iter"))
    assert len(learner._hooks["after_iter"]) == count + 1
    learner.train(drawn(), envstep=17)
    values = ["0.500000", "x", "1.000000", "2.000000", "3.000000"]
    names = ["loss", "name", "a", "b", "c"]
    assert lines == [
        17,
        [text for pair in zip(names, values, strict=True) for text in pair],
        [*names[:4], *values[:4], names[4], values[4]],
    ]


def test_priorities_of_samples_without_ids() -> None:
    learner = ding.BaseLearner({}, LearnMode())
    learner.train([{"obs": k} for k in range(2)])
    unknown = [None, None]
    assert learner.priority_info == {
        "replay_unique_id": unknown, "replay_buffer_idx": unknown, "priority": [2.0, 2.0],
    }  # fmt: skip
    ding.AdvancedReplayBuffer({}).update(learner.priority_info)


def test_a_policy_with_a_state_of_its_own_is_saved_as_a_file() -> None:
    mode = LearnMode()
    mode.state_dict = lambda: {"model": {"actor": {"w": torch.ones(1)}}}  # type: ignore[method-assign]
    learner = ding.BaseLearner({}, mode, exp_name="own")
    learner.save_checkpoint("ckpt_best.pth.tar")
    state = torch.load("own/ckpt/ckpt_best.pth.tar", weights_only=False)
    assert state["model"]["actor"]["w"].tolist() == [1.0]
    assert not Path("own/ckpt/ckpt_best").exists()


def test_classes_in_di_engines_registries_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Collector(ding.SampleSerialCollector):
        pass

    class Learner(ding.BaseLearner):
        pass

    theirs = ModuleType("ding.utils")
    vars(theirs).update(
        SERIAL_COLLECTOR_REGISTRY={"mine": Collector}, LEARNER_REGISTRY={"mine": Learner}
    )
    cfg = EasyDict(type="mine")
    with pytest.raises(KeyError):
        ding.create_learner(cfg)
    monkeypatch.setitem(sys.modules, "ding.utils", theirs)
    assert isinstance(ding.create_learner(cfg), Learner)
    assert ding.get_serial_collector_cls(cfg) is Collector
    with pytest.raises(KeyError):
        ding.get_buffer_cls(cfg)


class Note(ding.LearnerHook):
    """Notes where it was called."""

    def __init__(self, notes: list[str] | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.notes = [] if notes is None else notes

    def __call__(self, engine: Any) -> None:
        self.notes.append(self.position)


class Save(ding.LearnerHook):
    """A user's own way of saving."""

    names: ClassVar[list[str | None]] = []

    def __init__(self, name: str, priority: float, position: str, ext_args: Any = None) -> None:
        super().__init__(name, priority, position=position)

    def __call__(self, engine: Any) -> None:
        self.names.append(engine.ckpt_name)


@pytest.fixture
def _save_hook() -> Iterator[None]:
    ding.register_learner_hook("seed_save", Save)
    yield
    HOOK_REGISTRY._classes.pop("seed_save")


@pytest.mark.usefixtures("_save_hook")
def test_save_checkpoint_calls_the_hook_save_ckpt_after_run() -> None:
    plain = ding.BaseLearner({}, LearnMode())
    plain.save_checkpoint("ckpt_best.pth.tar")
    assert Path("default_experiment/ckpt/ckpt_best").is_dir()
    own = {"name": "save_ckpt_after_run", "type": "seed_save", "priority": 5,
           "position": "after_run", "ext_args": {}}  # fmt: skip
    learner = ding.BaseLearner({"hook": {"save_ckpt_after_run": own}}, LearnMode(), exp_name="own")
    learner.save_checkpoint("ckpt_best.pth.tar")
    learner.save_checkpoint()
    assert Save.names == ["ckpt_best.pth.tar", None]
    assert not Path("own").exists()


def test_hooks() -> None:
    hook = Note(None, "mine", 20, position="after_iter")
    assert (hook.name, hook.priority, hook.position) == ("mine", 20, "after_iter")
    cfg = EasyDict(log_show_after_iter=7, save_ckpt_after_run=True, load_ckpt_before_run="")
    hooks = ding.build_learner_hook_by_cfg(cfg)
    assert sorted(hooks) == sorted(ding.LearnerHook.positions)
    assert [one.name for one in hooks["after_iter"]] == ["log_show"]
    assert [one.name for one in hooks["after_run"]] == ["save_ckpt_after_run"]
    ding.add_learner_hook(hooks, hook)
    ding.add_learner_hook(hooks, Note(None, "first", 1, position="after_iter"))
    names = [one.name for one in hooks["after_iter"]]
    assert names[0] == "first", "the lower, the earlier"
    merged = ding.merge_hooks(hooks, ding.build_learner_hook_by_cfg(EasyDict()))
    assert [one.name for one in merged["after_iter"]] == names
    with pytest.raises(AssertionError):
        ding.register_learner_hook("x", dict)


# --------------------------------------------------------------------------- ding.worker: buffers


def item(number: int = 0, **more: Any) -> dict[str, Any]:
    return {"obs": np.full(2, number, np.float32), "number": number, **more}


BUFFERS = {
    "naive": "NaiveReplayBuffer", "sequence": "SequenceReplayBuffer",
    "episode": "EpisodeReplayBuffer", "advanced": "AdvancedReplayBuffer",
}  # fmt: skip


def test_settings_that_nobody_reads_are_taken() -> None:
    """They are in DI-engine's own configurations."""
    ding.AdvancedReplayBuffer({"name": "policy_buffer", "max_reuse": 5, "sliced": True})
    ding.BaseLearner({"learner_type": "base", "import_module": [], "load_path": ""})
    ding.SampleSerialCollector({"get_train_sample": True})
    collector = {**collector_task()["collector_cfg"], "compressor": "lz4", "print_freq": 5}
    CommCollector({})._create_collector({**collector_task(), "collector_cfg": collector}).close()
    evaluator = ding.InteractionSerialEvaluator({"eval_freq": -1})
    assert [evaluator.should_eval(k) for k in (0, 1, 1, 2)] == [True, True, False, True]


@pytest.mark.parametrize("kind", BUFFERS)
def test_buffer(kind: str) -> None:
    cls: Any = getattr(ding, BUFFERS[kind])
    assert issubclass(cls, ding.IBuffer)
    assert ding.get_buffer_cls(EasyDict(type=kind)) is cls
    cfg = EasyDict({**cls.default_config(), "replay_buffer_size": 8})
    buffer = ding.create_buffer(cfg, tb_logger=None, exp_name="exp", instance_name="mine")
    assert isinstance(buffer, cls)
    buffer.start()
    made = [[item(k)] for k in range(6)] if kind == "episode" else [item(k) for k in range(6)]
    buffer.push([made[0]] if kind == "episode" else made[0], cur_collector_envstep=0)
    assert buffer.count() == 1
    few = (9, 2) if kind == "sequence" else (9,)
    assert buffer.sample(*few, cur_learner_iter=0) is None, "not enough"
    buffer.push(made[1:], 1)
    assert (buffer.count(), buffer.push_count, buffer.replay_buffer_size) == (6, 6, 8)
    if kind == "sequence":
        found = buffer.sample(2, 3, 0)
        assert [len(sequence) for sequence in found] == [3, 3]
    elif kind == "episode":
        assert len(buffer.sample(2, 0)) == 2
        assert buffer.sample(0, 0) == []
        assert len(buffer.episode_len) == 6
        assert min(buffer.episode_len) > 0
    else:
        assert len(buffer.sample(3, 0)) == 3
        assert buffer.sample(0, 0) == []
        newest = buffer.sample(2, 0, sample_range=slice(-2, None))
        assert {one["number"] for one in newest} == {4, 5}
    if kind == "naive":
        assert len(buffer.sample(50, 0, replace=True)) == 50
        assert buffer.update({}) is None
    state = buffer.state_dict()
    assert {"data", "tail", "valid_count", "push_count"} <= {k for k in KEYS if k in state}
    again = cls(cfg, exp_name="exp", instance_name="mine")
    again.load_state_dict(state)
    assert again.count() == 6
    buffer.save_data("saved.h5")
    again.clear()
    assert again.count() == 0
    again.load_data("saved.h5")
    assert again.count() == 6
    for one in (buffer, again):
        one.close()
        one.__del__()


KEYS = ("data", "tail", "valid_count", "push_count", "beta", "max_priority")


def test_advanced_buffer() -> None:
    buffer = ding.AdvancedReplayBuffer({"alpha": 1.0, "beta": 0.5}, instance_name="mine")
    assert (buffer.alpha, buffer.beta) == (1.0, 0.5)
    buffer.beta = 0.75
    assert buffer.beta == 0.75
    as_it_is = ding.AdvancedReplayBuffer({"anneal_step": 0})
    as_it_is.push([item()], 0)
    as_it_is.sample(1, 0)
    assert as_it_is.beta == 0.4, "no annealing"
    buffer.push([item(k) for k in range(4)], 0)
    (one,) = buffer.sample(1, 3) or ()
    assert one.keys() >= {"replay_unique_id", "replay_buffer_idx", "IS", "priority", "number"}
    info = {name: [one[name]] for name in ("replay_unique_id", "replay_buffer_idx")}
    buffer.update({**info, "priority": [1e9]})
    assert {found["number"] for found in buffer.sample(4, 3) or ()} == {one["number"]}
    buffer.load_state_dict(buffer.state_dict(), deepcopy=True)
    assert buffer.count() == 4
    assert buffer.update({}) is None, "the policy returned no priorities"
    buffer.push([item(4, priority=7.0), item(5, priority=None), item(6)], 0)
    buffer.push(item(7, priority=8.0), 0)
    stated = {one["number"]: one["priority"] for one in buffer.sample(4, 0, slice(-4, None)) or ()}
    assert (stated[4], stated[7]) == pytest.approx((7, 8)), "not all items need to have one"
    with pytest.raises(FileNotFoundError):
        buffer.load_data("nowhere.h5")


def test_an_item_is_dropped_at_its_staleness() -> None:
    buffer = ding.AdvancedReplayBuffer({"max_staleness": 5})
    buffer.push([item(k, collect_iter=k) for k in range(2)], 0)
    assert [one["staleness"] for one in buffer.sample(1, 4, slice(0, 1)) or ()] == [4]
    assert buffer.sample(2, 5) is None
    assert [one["number"] for one in buffer.sample(1, 5) or ()] == [1]
    bounds = (5, 5.5, float("inf"))
    assert [oldest_kept(bound) for bound in bounds] == [4, 5, float("inf")], "in runs, too"


def test_a_range_with_fewer_items_is_drawn_from_with_repeats() -> None:
    buffer = ding.AdvancedReplayBuffer({})
    buffer.push([item(k) for k in range(4)], 0)
    assert len(buffer.sample(3, 0, slice(-2, None)) or ()) == 3
    assert buffer.sample(1, 0, slice(4, None)) is None


def test_a_state_has_the_marks_of_its_items() -> None:
    """By DI-engine's keys; a buffer reads them, and has them by its names."""
    buffer: Any = ding.AdvancedReplayBuffer({"replay_buffer_size": 4}, instance_name="mine")
    buffer.push([item(k, priority=float(k + 1)) for k in range(6)], 0)
    data = buffer.state_dict()["data"]
    assert [one["replay_unique_id"] for one in data] == ["mine_4", "mine_5", "mine_2", "mine_3"]
    assert [one["replay_buffer_idx"] for one in data] == [0, 1, 2, 3]
    assert [one["priority"] for one in data] == pytest.approx([5, 6, 3, 4])
    assert (buffer._tail, buffer._head, buffer._valid_count, buffer._next_unique_id) == (2, 2, 4, 6)
    assert [one["number"] for one in buffer._data] == [4, 5, 2, 3]
    again: Any = ding.AdvancedReplayBuffer({"replay_buffer_size": 4}, instance_name="other")
    again.load_state_dict({"data": data})
    assert [one["priority"] for one in again._data] == pytest.approx([5, 6, 3, 4])
    assert (again.count(), again._max_priority) == (4, pytest.approx(6))
    naive: Any = ding.NaiveReplayBuffer({"replay_buffer_size": 3})
    naive.push(item(1), 0)
    assert (naive._tail, naive._data[1:], naive._push_count) == (1, [None, None], 1)


def test_a_buffer_closes_its_writer() -> None:
    writer = Writer()
    buffer = ding.AdvancedReplayBuffer({}, writer)
    buffer.close()
    buffer.close()
    assert writer.is_closed


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_used_data_are_removed(kind: str) -> None:
    files = [Path(f"{number}.h5") for number in range(3)]
    for file in files:
        file.write_text("x")
    cfg = {"type": kind, "replay_buffer_size": 2, "enable_track_used_data": True}
    buffer: Any = ding.create_buffer(EasyDict(cfg))
    buffer.start()
    for number, file in enumerate(files):
        buffer.push(item(number, data_id=str(file)), 0)
    assert [file.exists() for file in files] == [False, True, True]
    buffer.clear()
    assert not any(file.exists() for file in files)
    buffer.close()


# ------------------------------------------------------------- ding.worker: commanders, aggregator


def test_base_serial_commander() -> None:
    class Command:
        def get_setting_collect(self, info: dict[str, Any]) -> dict[str, Any]:
            return {"eps": info["learner_step"] / info["envstep"]}

    parts = (EasyDict(learn_info={"learner_step": 1}), EasyDict(envstep=4), None, None)
    commander = ding.BaseSerialCommander({}, *parts)
    assert commander.step() == {}
    commander.policy = Command()
    assert commander.step() == {"eps": 0.25}
    assert ding.BaseSerialCommander({}, *parts, policy=commander.policy).step() == {"eps": 0.25}


def test_create_parallel_commander() -> None:
    main = {"env": ENV, "policy": {**DQN, "other": {"commander": {"type": "solo"}}}}
    commander = ding.create_parallel_commander(EasyDict(main))
    assert isinstance(commander, ding.SoloCommander)
    assert ding.get_parallel_commander_cls(EasyDict(type="solo")) is ding.SoloCommander
    assert commander.get_collector_task() is None, "nobody learns yet"
    of_di_engine = EasyDict(compiled()["main"])
    assert isinstance(ding.create_parallel_commander(of_di_engine), ding.SoloCommander)
    assert ding.SoloCommander(of_di_engine).get_learner_task() is not None


def test_learner_aggregator() -> None:
    cfg = {"master": {}, "slave": {}, "learner": {"learner0": ("learner0", "0.0.0.0", 1)}}
    aggregator = ding.LearnerAggregator(cfg)
    assert aggregator.start() is aggregator.close() is None
    infos = [{"learner_step": 3, "priority_info": [1]}, {"learner_step": 3, "priority_info": [2]}]
    assert aggregator.merge_info(infos) == {"learner_step": 3, "priority_info": [1, 2]}


# ------------------------------------------------------------------------------------------ errors


def test_errors_are_also_what_di_engine_raises() -> None:
    collector = ding.SampleSerialCollector({}, Manager([2]), Actor().mode)
    with pytest.raises(RuntimeError, match="n_sample"):
        collector.collect()
    with pytest.raises(AssertionError, match="no environments"):
        ding.SampleSerialCollector({}).collect(1)
    with pytest.raises(AssertionError, match="n_episode"):
        ding.EpisodeSerialCollector({}, Manager([2, 2]), Actor().mode).collect(1)
    with pytest.raises(AssertionError, match="at least two"):
        ding.BattleSampleSerialCollector({}, Battle([2]), [Actor().mode])
    three = [Actor(player).mode for player in range(3)]
    with pytest.raises(AssertionError, match="takes two policies, not 3"):
        ding.BattleEpisodeSerialCollector({}, Battle([2], players=3), three)
    with pytest.raises(AssertionError, match="alpha"):
        ding.AdvancedReplayBuffer({"alpha": 2})
    with pytest.raises(AssertionError, match="too few"):
        ding.VectorEvalMonitor(4, 3)
    with pytest.raises(AssertionError, match="two or more"):
        ding.BattleInteractionSerialEvaluator({}, None, [DuckPolicy()])
    with pytest.raises(AssertionError, match="no policy"):
        ding.BaseLearner({}).train([])
    mode = LearnMode()
    mode.forward = lambda data, **kwargs: 3  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(TypeError, match="must return a dict"):
        ding.BaseLearner({}, mode).train(drawn())
    with pytest.raises(AssertionError, match="position"):
        Note(None, "a", 1, position="sometimes")
    with pytest.raises(AssertionError):
        ding.AdvancedReplayBuffer({}).push([3], 0)
    with pytest.raises(AssertionError, match="key 'data'"):
        ding.NaiveReplayBuffer({}).load_state_dict({})


# ------------------------------------------------------------------------------------- differences

README = Path(__file__).parent.parent.parent / "hpcdi" / "worker" / "README.md"


def _state_dict() -> None:
    with ding.Coordinator(compiled()) as coordinator:
        assert coordinator.state_dict() != {}


def _setting() -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        ding.BaseLearner({"no_such": 1})
    with pytest.raises(ConfigError, match="max_use: must be at least 1"):
        ding.AdvancedReplayBuffer({"max_use": 0})

    class Learner(ding.BaseLearner):
        config: ClassVar[dict[str, Any]] = {**ding.BaseLearner.config, "no_such": 1}

    assert Learner({"no_such": 2})._cfg.no_such == 2
    assert {"ckpt_format", "keep_checkpoints"} <= ding.BaseLearner.default_config().keys()
    hooks = ding.build_learner_hook_by_cfg({"save_ckpt_after_run": False})
    assert not any(hooks.values())


def _items() -> None:
    buffer = ding.NaiveReplayBuffer({})
    buffer.push(item(), 0)
    with pytest.raises(BufferContractError):
        buffer.push({"other": 1}, 0)
    np.random.seed(3)
    buffer = ding.NaiveReplayBuffer({})
    state = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    buffer.push([item(k) for k in range(4)], 0)
    buffer.sample(2, 0)
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index, union-attr]
    with pytest.raises(BufferContractError, match="holds 10000 items, this one 8"):
        ding.NaiveReplayBuffer({"replay_buffer_size": 8}).load_state_dict(buffer.state_dict())
    pushed = item(9)
    buffer = ding.AdvancedReplayBuffer({})
    buffer.push([item(0, priority=1e9), pushed], 0)
    assert "replay_unique_id" not in pushed
    both = buffer.sample(2, 0, sample_range=slice(0, 2)) or ()
    assert {one["number"] for one in both} == {0, 9}, "whatever their priorities are"
    buffer.push(item(2), 0)
    (last,) = buffer.sample(1, 0, sample_range=slice(-1, None)) or ()
    assert last["priority"] == pytest.approx(1e9), "the largest so far"
    elastic = ding.ElasticReplayBuffer({"set_buffer_size": lambda _envstep: 2})
    elastic.push([item(k) for k in range(3)], 0)
    assert elastic.count() == 2
    episodes = ding.EpisodeReplayBuffer({})
    episodes.push([{"obs": torch.ones(3, 2)}], 0)
    (episode,) = episodes.sample(1, 0) or ()
    assert [one["obs"].tolist() for one in episode] == [[1, 1]] * 3


def _iterations() -> None:
    seen: list[int] = []
    learner = ding.BaseLearner({}, LearnMode())
    hook = Note(None, "a", 1, position="after_iter")
    hook.notes = EasyDict(append=lambda _position: seen.append(learner.last_iter.val))  # type: ignore[assignment]
    learner.register_hook(hook)
    learner.collector_envstep = 7
    learner.train(drawn())
    assert (seen, learner.collector_envstep) == ([1], 7)
    assert not list(Path().rglob("iteration_0*"))
    learner.policy.forward = lambda _data: [{"priority": [k, k]} for k in (1.0, 2.0)]
    learner.train(drawn())
    assert learner.priority_info["priority"] == [1.0, 1.0, 2.0, 2.0]


def _start() -> None:
    def forward(data: Any, **kwargs: Any) -> dict[str, Any]:
        raise ZeroDivisionError

    mode = LearnMode()
    mode.forward = forward  # type: ignore[method-assign]
    learner = ding.BaseLearner({}, mode, exp_name="failed")
    learner.get_data = lambda size: [lambda: drawn()[0]] * size  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        learner.start()
    assert Path("failed/ckpt/ckpt_exception.pth.tar").is_file()


def _hickle() -> None:
    with h5py.File("theirs.hkl", "w") as file:
        file.attrs["HICKLE_VERSION"] = "5.0.3"
    with pytest.raises(SnapshotError, match=r"hickle.load .*load_state_dict"):
        ding.NaiveReplayBuffer({}).load_data("theirs.hkl")
    buffer = ding.NaiveReplayBuffer({})
    data = [item(0), item(1), None]
    buffer.load_state_dict({"data": data, "tail": 2, "valid_count": 2, "push_count": 2})
    assert buffer.count() == 2


def _threads() -> None:
    names = ("_start_thread", "_join_thread", "_setup_logger", "_setup_timer")
    assert not any(hasattr(ding.BaseParallelCollector, name) for name in names)
    assert {"_may_step", "policy_version"} < ding.BaseParallelCollector.__abstractmethods__


def _private() -> None:
    buffer = ding.AdvancedReplayBuffer({}, instance_name="mine")
    for name in ("_thruput_controller", "_eps", "_lock_type", "_cfgs"):
        assert not hasattr(buffer, name)
    assert not hasattr(ding.NaiveReplayBuffer({}), "_max_priority")


def _base_classes() -> None:
    config: Any = ding.BaseCommCollector.Config(type="mine")
    (problem,) = config.problems()
    assert "derive it from MPIFileSystemCollector" in problem.message
    parameters = inspect.signature(ding.BaseCommCollector.send_stepdata).parameters
    assert list(parameters) == ["self", "path", "stepdata"]
    (_, groups) = inspect.signature(ding.SoloCommander).parameters.values()
    assert groups.name == "groups"
    results: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, ding.Coordinator(compiled()) as coordinator:
        patch.setattr(
            ding.SoloCommander, "finish_collector_task", lambda *said: results.append(said[-1])
        )
        coordinator.deal_with_collector_finish_task("a", finished(reward_raw=[1.0, 3.0]))
    assert [result.episode_returns.mean() for result in results] == [2.0]


def _addresses() -> None:
    slave = CollectorSlave("0.0.0.0", 80, callback_fn=callbacks([], "resource"))
    slave.start()
    assert slave._process_task({"name": "resource"}) == {"from": "resource"}
    module = importlib.import_module("hpcdi.worker.coordinator.comm_coordinator")
    with pytest.raises(CommError, match=r"use hpcdi\.worker\.Coordinator"):
        module.CommCoordinator({}, {}, None)


def _collecting() -> None:
    actor, writer = Actor(n_sample=4), Writer()
    actor.sample = lambda piece: [{"obs": one["obs"]} for one in piece]
    collector = ding.SampleSerialCollector({}, Manager([9]), actor.mode, writer)
    assert {one["collect_iter"] for one in collector.collect(4, train_iter=3)} == {3}
    actor.resets.clear()
    collector.reset_env()
    assert not collector._traj_buffer
    assert actor.resets == [None]
    assert not writer.tags
    collector.collect(9, train_iter=4)
    assert writer.tags, "long before 100 iterations"
    monitor = ding.VectorEvalMonitor(1, 1)
    for reward in (1.0, 2.0):
        monitor.update_reward(0, reward)
    assert monitor.get_episode_return() == [1.0]
    failing = EvaluatorManager([[(3, 1.0), (3, 0.1)]], failing={0: [2]})
    with ding.InteractionSerialEvaluator({"n_episode": 1}, failing, DuckPolicy()) as evaluator:
        assert evaluator.eval()[1]["eval_episode_return"] == [0.1]
    assert failing.resets == [0]
    sent: list[Any] = []
    envs, policies = BattleManager([[(1, 1.0)] * 9, [(9, 2.0)]]), [*map(DuckPolicy, (10, 11))]
    battle = ding.BattleInteractionSerialEvaluator({"n_episode": 2}, envs, policies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "broadcast_object", sent.append)
        _, infos = battle.eval()
    assert [len(of_player) for of_player in infos] == [2, 2], "many more were played"
    assert len(sent) == 1, "to the other ranks"


def _log_files() -> None:
    ding.SampleSerialCollector({}, Manager([2]), Actor().mode).collect(4)
    learner = ding.BaseLearner({}, LearnMode(), exp_name="exp")
    learner.train(drawn())
    assert not list(Path().iterdir())
    assert learner.tb_logger is not None
    learner.close()
    assert list(Path("exp/log/learner").glob("events*"))


def _no_run() -> None:
    create = {"env": {"type": "a"}, "policy": {"type": "bc"}}
    main = {"env": {"collector_env_num": 1, "evaluator_env_num": 1}, "policy": {}}
    assert list(problems_of(main, create))
    with_model = {"reward_model": {}, "env": {"type": "a"}, "policy": {"type": "dqn"}}
    (problem,) = problems_of(main, with_model)
    assert problem.path == "create_config.reward_model"


def _league() -> None:
    league = {"type": "one_vs_one", "league": {"naive_sp_player": {}}}
    with pytest.raises(ConfigError, match="naive_sp_player: unknown key"):
        compile_config({"env": ENV, "policy": {**DQN, "other": {"commander": league}}})


def _lambda() -> None:
    cfg = {"type": "subprocess", "start_method": "spawn"}
    manager = make_env_manager(cfg, [lambda: None], seed=0)  # type: ignore[arg-type,return-value]
    with pytest.raises(EnvError, match="no lambda"):
        manager.launch()


def _names() -> None:
    learner = ding.BaseLearner({}, LearnMode(), exp_name="exp")
    for name in ("mine", "other.pth", "a.b.ckpt"):
        learner.save_checkpoint(name)
    files = {path.name for path in Path("exp/ckpt").iterdir() if path.is_file()}
    assert files == {"mine.pth.tar", "other.pth", "a.b.ckpt"}
    assert Path("exp/ckpt/mine").is_dir()


def _state() -> None:
    mode = LearnMode()
    held = {"seen": Counter("a"), "mean": np.ones(2)}
    mode.state_dict = lambda: {"model": {"w": torch.ones(1)}, **held}  # type: ignore[method-assign]
    ding.BaseLearner({}, mode, exp_name="exp").save_checkpoint("mine.pth.tar")
    read = torch.load("exp/ckpt/mine.pth.tar", weights_only=False)
    assert type(read["seen"]) is dict
    assert type(read["mean"]) is np.ndarray
    held["where"] = Path("x")
    with pytest.raises(TypeError, match=r"where \(a PosixPath\) could not be loaded again"):
        ding.BaseLearner({}, mode, exp_name="exp").save_checkpoint("mine.pth.tar")


def _checkpoints() -> None:
    _start()
    _names()
    _state()


DIFFERENCES: dict[str, Callable[[], None]] = {
    "`Coordinator.state_dict()` is not empty": _state_dict,
    "A setting that nobody knows is refused, and one out of its range, e.g. `max_use: 0`; "
    "`default_config()` has more of them; `save_ckpt_after_run: false` saves nothing": _setting,
    "Buffers copy items, refuse those of other keys or shapes and states of another size, and "
    "draw by a generator of their own, from a `sample_range` uniformly; an elastic one counts what "
    "can be drawn; an episode of columns is drawn as a list of transitions": _items,
    "Buffers do not load files of hickle": _hickle,
    "A hook after an iteration sees how many are done, 1 at the first; there is no `iteration_0`, "
    "`train` without `envstep` leaves `collector_envstep`, and `priority_info` has the priorities "
    "of each pass over a batch, not of the last alone": _iterations,
    "An error in `BaseLearner.start()` is raised, after a checkpoint `ckpt_exception`; signals are "
    "the program's; `save_checkpoint('mine')` writes a folder `mine` and `mine.pth.tar`; a "
    "policy's state that could not be loaded again is refused there, and mappings in it come back "
    "as dicts": _checkpoints,
    "Private attributes are others, but those that subclasses in dizoo use, a learner's hooks and "
    "what a buffer's `state_dict` says": _private,
    "A parallel collector has no thread, timer and logger of its own; one of a user's own steps "
    "columns": _threads,
    "Nothing listens at `host` and `port`; `CommCoordinator` and `OperatorServer` cannot be "
    "made": _addresses,
    "A class of the base classes `BaseCommLearner` and `BaseCommCollector` is no rank; "
    "`send_stepdata` takes `path` before `stepdata`; in a run a commander's constructor gets "
    "`groups`, too; its methods are called with messages for dicts": _base_classes,
    "A collector's `reset_env` drops unfinished trajectories, and what its policy remembers of "
    "them; `collect` marks samples that have no `collect_iter`, and reports the first episode that "
    "ends; `VectorEvalMonitor` keeps the first episodes of a quota, not the latest; an evaluation "
    "resets an environment that says `abnormal`, and leaves numbers in infos as they are; a "
    "battle's returns the infos of its quota alone, and is collective: rank 0 plays": (_collecting),
    "Components write no log files of their own; a learner and an evaluator make a `tb_logger` "
    "when it is first asked for": _log_files,
    "Environments in child processes are made by functions that pickle takes": _lambda,
    "Data sets, experts, reward models and samples that are whole episodes have no run": _no_run,
    "A league has settings of its own": _league,
}
"""What differs on purpose, as hpcdi/worker/README.md says it -> a proof that it does."""


def test_the_list_of_differences_is_exact() -> None:
    """Every line of it is proved, and whoever mends one takes it off the list."""
    text = README.read_text().partition("## What differs")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    listed = [row[0].removeprefix("| ") for row in rows[1:]]
    assert listed == list(DIFFERENCES)
    assert len(listed) <= 15
    assert all(len(row) == 3 for row in rows), "what, why, what to do"


@pytest.mark.usefixtures("env_helpers")
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_difference_is_one(difference: str) -> None:
    DIFFERENCES[difference]()
