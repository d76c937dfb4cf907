"""A collector rank in a world of threads: tasks in, shards, progress and results out."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.clock import Clock
from fakes.serial_runs import DQN, LIMIT, serial_run, train
from fakes.worker_world import COLLECTOR, COORDINATOR, LEARNER, LENGTH, Script, end, experiment
from hpcdi.comm.messages import (
    BlockReady,
    CloseTask,
    CollectPause,
    CollectProgress,
    CollectResult,
    CollectSetting,
    CollectTask,
    Goodbye,
    Leave,
    PolicyRequest,
    RankLost,
    Stop,
    TaskReturned,
    WorkerReady,
)
from hpcdi.errors import CommError, ConfigError, UnknownTypeError
from hpcdi.policy.create import create_policy
from hpcdi.roles.collector import channels
from hpcdi.roles.evaluations import evaluates_as
from hpcdi.roles.learner.publisher import PolicyFile, PolicyPublisher
from hpcdi.roles.learner.role import Learner
from hpcdi.store.checkpoints import BEST_CHECKPOINT, open_checkpoint
from hpcdi.store.policies import read_policy
from hpcdi.store.shards import read_shard
from hpcdi.types import MAIN, Lockstep
from hpcdi.utils.threads import BackgroundThread
from hpcdi.worker.collector.comm import MPIFileSystemCollector, create_comm_collector

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class CollectorScript(Script):
    """The coordinator is the test; the learner has a policy and answers requests for it."""

    def __init__(self, root: Path, version: int = 3, **sections: Any) -> None:
        config = experiment(**sections)
        super().__init__(root, config, COLLECTOR)
        link = self.world.link(LEARNER)
        self.publisher = PolicyPublisher(link.send, PolicyFile(self.layout.latest_policy, 3600.0))
        self.model = create_policy(config.policy, ["learn"]).learn_mode.state_dict()["model"]
        if version >= 0:
            self.publisher.publish(self.model, version)
        self.answer = self._answer_requests

    def _answer_requests(self) -> None:
        for sender, message in self.world.link(LEARNER).receive(0.0):
            assert isinstance(message, PolicyRequest)
            self.publisher.request(sender, message)


def collect(task_id: str = "task", **kwargs: Any) -> CollectTask:
    given = {"eval_flag": False, "setting": {"eps": 0.5}, **kwargs}
    return CollectTask(task_id, **given)


@pytest.fixture
def script(tmp_path: Path) -> CollectorScript:
    return CollectorScript(tmp_path)


def test_a_run_from_the_first_word_to_the_last(script: CollectorScript) -> None:
    worker = MPIFileSystemCollector({}, script.context)
    with script.running(worker) as thread:
        ready = script.hear(WorkerReady, thread)
        assert (ready.role, ready.gpus) == ("collector", 0)
        assert ready.cpus >= 1
        script.tell(collect())
        script.hear(CollectProgress, thread)
        task = worker._collectors[False].task
        script.tell(CollectSetting("task", {"eps": 0.25}))
        script.until(lambda: task.setting == {"eps": 0.25}, thread)
        script.tell(CloseTask("task"))
        result = script.hear(CollectResult, thread)
        script.tell(Stop("enough"))
        goodbye = script.hear(Goodbye, thread)
        script.tell(Leave(7))
        thread.join()
    assert {progress.policy_version for progress in script.all_of(CollectProgress)} == {3}
    assert (result.task_id, result.eval_flag, result.policy_version) == ("task", False, 3)
    assert set(result.episode_lengths.tolist()) == {LENGTH}
    assert (goodbye.report["role"], goodbye.report["waited_for_disk_s"] >= 0) == ("collector", True)
    assert goodbye.report["blocks"] == len(script.all_of(BlockReady)) > 0
    assert {"env", "policy", "record", "wait"} <= goodbye.report["shares"].keys()
    assert worker.exit_code == 7


def test_every_step_lies_in_an_announced_shard(script: CollectorScript) -> None:
    worker = MPIFileSystemCollector({}, script.context)
    with script.running(worker) as thread:
        script.tell(collect("first"))
        script.hear(CollectProgress, thread)
        script.tell(CloseTask("first"))
        script.hear(CollectResult, thread)
        script.tell(collect("second"))
        script.until(lambda: "second" in {r.task_id for r in script.all_of(BlockReady)}, thread)
        script.tell(Stop("enough"))
        script.hear(Goodbye, thread)
    steps = sum(result.env_steps for result in script.all_of(CollectResult))
    blocks = script.all_of(BlockReady)
    transitions = 0
    for ready in blocks:
        columns = read_shard(script.layout, ready.shard)
        assert {"observation", "action", "n_step_return", "bootstrap_offset"} <= columns.keys()
        for item in ready.items:
            observed = columns["observation"][item["item_start"] :][: item["item_len"] + 1]
            assert (np.diff(observed[:, 0]) == 1).all(), "one step after the other"
            assert len(set(observed[:, 1])) == 1, "of one episode"
        transitions += int(ready.items["item_len"].sum())
    assert transitions == steps > 0
    assert {ready.task_id for ready in blocks} == {"first", "second"}


def test_an_evaluation_uses_the_present_policy_and_publishes_the_best(tmp_path: Path) -> None:
    script = CollectorScript(tmp_path, env={"evaluator_episode_num": 2})
    with script.running(MPIFileSystemCollector({}, script.context)) as thread:
        results = []
        for version, publish_above in ((3, 100.0), (5, 14.0), (8, 15.0)):
            script.publisher.publish(script.model, version)
            script.tell(
                collect(f"e{version}", eval_flag=True, setting={}, publish_above=publish_above)
            )
            results.append(script.hear(CollectResult, thread))
    assert script.all_of(BlockReady) == script.all_of(CollectProgress) == []
    assert [result.policy_version for result in results] == [3, 5, 8]
    assert all(result.eval_flag for result in results)
    assert all(result.episode_returns.tolist() == [15.0] * 6 for result in results)
    best = read_policy(script.layout.best_policy)
    assert best.version == 5, "15 is better than 14, and not better than 15 or 100"
    facts = open_checkpoint(script.layout.checkpoints_dir / BEST_CHECKPOINT).facts
    assert (facts["train_iter"], facts["reward_mean"]) == (5, 15.0)
    assert facts["evaluates_as"] == evaluates_as(script.context.config)
    for name, tensor in best.state_dict().items():
        assert torch.equal(tensor, script.model[name])


def test_a_task_that_was_closed_before_it_began(script: CollectorScript) -> None:
    """Both words can arrive while another task runs."""
    with script.running(MPIFileSystemCollector({}, script.context)) as thread:
        script.tell(CloseTask("early"))
        script.tell(collect("early"))
        result = script.hear(CollectResult, thread)
    assert (result.task_id, result.env_steps) == ("early", 0)


def test_a_setting_for_another_task_is_not_taken(
    script: CollectorScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, told = MPIFileSystemCollector({}, script.context), list[CollectSetting]()
    with script.running(worker) as thread:
        script.tell(collect())
        script.hear(CollectProgress, thread)
        collector = worker._collectors[False]
        tell = collector.tell
        monkeypatch.setattr(collector, "tell", lambda one: (tell(one), told.append(one)))
        script.tell(CollectSetting("another", {"eps": 0.0}))
        # until a turn has looked at it
        script.until(lambda: bool(told) and not collector._new_settings, thread)
        script.tell(CloseTask("task"))
        script.hear(CollectResult, thread)
        assert collector.task.setting == {"eps": 0.5}


@pytest.mark.usefixtures("env_helpers")
def test_environments_in_child_processes_are_told_of_a_schedule_between_steps(
    tmp_path: Path,
) -> None:
    """The thread that hears of it asked them itself, and took answers that the step waited for."""
    schedule = {"_length": {"values": [LENGTH, LENGTH + 1], "when": "callback"}}
    script = CollectorScript(
        tmp_path, env={"schedule": schedule, "manager": {"type": "subprocess"}}
    )
    with script.running(MPIFileSystemCollector({}, script.context)) as thread:
        script.tell(collect(scheduled={"_length": (LENGTH, LENGTH)}))
        script.hear(CollectProgress, thread)
        for turn in range(300):
            length = LENGTH + turn % 2
            script.tell(CollectSetting("task", {"eps": 0.5}, {"_length": (length, length)}))
            script.look()
        script.tell(CloseTask("task"))
        script.hear(CollectResult, thread)
    lengths = [n for told in script.all_of(CollectProgress) for n in told.episode_lengths.tolist()]
    assert set(lengths) == {LENGTH, LENGTH + 1}


def test_an_evaluation_waits_for_a_learner_as_long_as_its_update_may_take(
    script: CollectorScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback of the user's that took more than a minute ended the run."""
    limit_s = script.context.config.system.survival.worker_timeout_s
    worker, clock = MPIFileSystemCollector({}, script.context), Clock()
    monkeypatch.setattr(channels, "time", clock)
    policies = worker._policies[MAIN]
    assert policies.newest() is None
    clock.now += limit_s
    assert policies.newest() is None, "until then the learner is alive"
    clock.now += limit_s
    with pytest.raises(CommError, match="the learner has not sent its policy within 960 s"):
        policies.newest()
    worker.release()
    end(worker)


def test_a_short_time_out_of_ranks_is_none_of_policies(tmp_path: Path) -> None:
    """On-policy, where others collect slowly, a rollout counted as lost that was under way."""
    survival = {"survival": {"worker_timeout_s": 20.0}}
    assert CollectorScript(tmp_path, system=survival).context.policy_patience_s == 300.0


@pytest.mark.parametrize("eval_flag", [False, True])
def test_stop_while_it_waits_for_a_policy(tmp_path: Path, eval_flag: bool) -> None:
    script = CollectorScript(tmp_path, version=-1)
    script.answer = lambda: None  # nobody asks the learner; its requests stay unread
    with script.running(MPIFileSystemCollector({}, script.context)) as thread:
        script.tell(collect(eval_flag=eval_flag))
        while not script.world.link(LEARNER).receive(0.01):
            thread.check()
        script.tell(Stop("enough"))
        result = script.hear(CollectResult, thread)
        script.hear(Goodbye, thread)
    assert (result.env_steps, result.policy_version) == (0, -1)


def test_in_the_place_of_a_dead_learner_it_asks_another(tmp_path: Path) -> None:
    script = CollectorScript(tmp_path, version=-1)
    script.answer = lambda: None
    learners = (LEARNER, COORDINATOR)  # whose messages the test reads
    worker = MPIFileSystemCollector(
        {}, dataclasses.replace(script.context, groups={MAIN: learners})
    )
    with script.running(worker) as thread:
        script.tell(collect())
        while not script.world.link(LEARNER).receive(0.01):
            thread.check()
        script.tell(RankLost(), LEARNER)
        script.hear(PolicyRequest, thread)


def test_it_waits_for_learners_as_long_as_it_is_told(script: CollectorScript) -> None:
    worker = MPIFileSystemCollector({}, script.context)
    with script.running(worker) as thread:
        for waits in (True, False):
            script.tell(CollectPause(waits))
            script.until(lambda waits=waits: worker.is_paused is waits, thread)  # type: ignore[misc]


def test_it_makes_its_share_before_it_waits(script: CollectorScript) -> None:
    worker = MPIFileSystemCollector({}, script.context)
    with script.running(worker) as thread:
        script.tell(CollectPause(True, after=50))
        script.tell(collect())
        script.until(lambda: worker.is_paused, thread)
        time.sleep(0.05)
        script.tell(Stop("enough"))
        script.hear(Goodbye, thread)
    made = sum(ready.env_steps for ready in script.all_of(BlockReady))
    config = script.context.config
    rollout = config.policy.collect.n_sample * config.env.collector_env_num
    assert 50 <= made < 50 + 2 * rollout


def test_while_it_waits_learners_have_all_that_it_has_recorded(tmp_path: Path) -> None:
    buffer = {"replay_buffer": {"replay_buffer_size": 10_000_000}}
    storage = {"seal_seconds": 3600.0, "block_bytes": 100_000_000, "fsync": False}
    script = CollectorScript(tmp_path, system={"storage": storage}, policy={"other": buffer})
    worker = MPIFileSystemCollector({}, script.context)
    with script.running(worker) as thread:
        script.tell(collect())
        script.hear(CollectProgress, thread)
        assert not script.all_of(BlockReady)
        script.tell(CollectPause(True))
        ready = script.hear(BlockReady, thread)
        script.tell(Stop("enough"))
        script.hear(Goodbye, thread)
    assert ready.env_steps > 0


def test_stop_before_any_task(script: CollectorScript) -> None:
    with script.running(MPIFileSystemCollector({}, script.context)) as thread:
        script.hear(WorkerReady, thread)
        script.tell(Stop("enough"))
        assert script.hear(Goodbye, thread).report["blocks"] == 0


def test_environments_that_fail_too_often_give_the_task_back(tmp_path: Path) -> None:
    env = {"kwargs": {"fail_at": 4}, "vectorization": "sync"}
    script = CollectorScript(tmp_path, env=env)
    with script.running(MPIFileSystemCollector({}, script.context)) as thread:
        script.tell(collect())
        returned = script.hear(TaskReturned, thread)
        assert not script.all_of(Goodbye), "the rank stays until the run ends"
        script.tell(Stop("enough"))
        goodbye = script.hear(Goodbye, thread)
    assert returned.task_id == "task"
    assert "failed stepping, 6 times within 300 s: RuntimeError: planted failure" in returned.reason
    assert not script.all_of(CollectResult)
    told = {name: goodbye.report[name] for name in ("env_failures", "envs_retired")}
    assert told == {"env_failures": 6, "envs_retired": 0}
    assert goodbye.report["episodes_dropped"] == 12


def test_episodes_of_environments_that_are_made_anew_have_other_numbers(
    script: CollectorScript,
) -> None:
    worker = MPIFileSystemCollector({}, script.context)
    with script.running(worker) as thread:
        for number in (1, 2, 3):
            lockstep = Lockstep(number, policy_version=3, begins_anew=number != 2)
            script.tell(collect(f"task {number}", lockstep=lockstep))
            script.hear(CollectResult, thread)
    numbers: dict[str, set[int]] = {}
    for ready in script.all_of(BlockReady):
        numbers.setdefault(ready.task_id, set()).update(ready.items["episode_id"].tolist())
    assert len(numbers) == 3
    assert sorted(n for of_task in numbers.values() for n in of_task) == list(range(6))


def test_environments_that_cannot_be_made_end_the_role(tmp_path: Path) -> None:
    """It is no mishap but a mistake, and everybody's."""
    script = CollectorScript(tmp_path, env={"kwargs": {"nonsense": 1}, "vectorization": "sync"})
    worker = MPIFileSystemCollector({}, script.context)
    thread = BackgroundThread(worker.run, "worker")
    script.tell(collect())
    while thread.is_alive:
        script.look()
    with pytest.raises(ConfigError, match=r"env.kwargs: .*nonsense"):
        thread.check()
    worker._data.close()
    end(worker)


def test_what_cannot_be_built_says_so() -> None:
    with pytest.raises(CommError, match=r"needs its place in a run \(context=\)"):
        create_comm_collector({"type": "mpi_fs"})
    with pytest.raises(UnknownTypeError, match=r"no comm collector of type 'mpi'.*did you mean"):
        create_comm_collector({"type": "mpi"})


@pytest.mark.parametrize("rank", [COLLECTOR, LEARNER])
def test_a_death_that_waits_while_a_role_is_made_finds_it_whole(
    tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of its constructor."""
    script = Script(tmp_path, experiment(), rank)
    script.tell(RankLost(), COLLECTOR if rank == LEARNER else LEARNER)
    made: Any = MPIFileSystemCollector if rank == COLLECTOR else Learner
    set_one = made.__setattr__

    def slowly(role: Any, name: str, value: Any) -> None:
        set_one(role, name, value)
        time.sleep(0.01)

    monkeypatch.setattr(made, "__setattr__", slowly)
    role = made(context=script.context)
    monkeypatch.undo()
    role.start()
    time.sleep(0.1)
    role.pump.check()
    end(role)
    if rank == COLLECTOR:
        role._data.close()


def test_time_that_a_collector_waits_for_a_slow_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _file: time.sleep(0.1))
    # many blocks at once: however slow this machine is, the disk is slower
    many = ("system.storage.block_bytes=4096", "policy.collect.n_sample=400")
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *many, f"{LIMIT}.max_env_step=1000") as run:
        train(run)
        disk = run.collector.meter.seconds["disk"]
        told = run.collector.meter.shares()["disk"]
    assert 0.1 < disk < 20.0
    assert told > 0.05
