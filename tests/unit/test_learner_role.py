"""A learner rank, turn by turn: blocks and batches in, policies and reports out, in one thread."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
import torch

import hpcdi
from fakes.clock import Clock
from fakes.store import write_shard
from fakes.worker_world import COLLECTOR, COORDINATOR, LEARNER, LIMIT_S, Script, experiment
from hpcdi.comm.link import LocalWorld
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BeginAnew,
    BlockAdmitted,
    DataDemand,
    Goodbye,
    GroupAddress,
    LearnInfo,
    LearnResult,
    LearnTask,
    Leave,
    Message,
    PolicyFiles,
    PolicyRequest,
    PolicyUpdate,
    Regroup,
    SnapshotPart,
    Stop,
    TakeSnapshot,
    WorkerReady,
)
from hpcdi.comm.pump import LocalPump
from hpcdi.config.schema import SurvivalConfig
from hpcdi.errors import CommError, GroupBrokenError
from hpcdi.policy.gradient_step import GradientStep
from hpcdi.roles.callbacks import Context
from hpcdi.roles.context import WorkerContext, role_seed
from hpcdi.roles.learner import group as membership
from hpcdi.roles.learner.checkpointing import copied
from hpcdi.roles.learner.role import Learner, MakeTraining, make_training
from hpcdi.roles.learner.training import Batch
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import checkpoint_names, open_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, read_policy
from hpcdi.types import ITEM_DTYPE, MAIN, RowView
from hpcdi.utils.threads import BackgroundThread
from hpcdi.worker.learner import LearnerHook, register_learner_hook
from hpcdi.worker.learner.base_learner import make_learner

pytestmark = pytest.mark.usefixtures("one_torch_thread")

M = TypeVar("M", bound=Message)
ROWS, BATCH = 12, 4


def block(layout: RunLayout) -> AdmitBlock:
    """The order to admit the block that all batches are of."""
    rng = np.random.default_rng(0)
    items = np.zeros(1, dtype=ITEM_DTYPE)
    items["item_len"] = ROWS - 1
    columns = {
        "observation": rng.standard_normal((ROWS, 2), dtype=np.float32),
        "action": rng.integers(0, 2, ROWS),
        "n_step_return": np.ones(ROWS, dtype=np.float32),
        "bootstrap_discount": np.full(ROWS, 0.5, dtype=np.float32),
        "bootstrap_offset": np.ones(ROWS, dtype=np.uint16),
    }
    view = RowView("next_observation", "observation", "bootstrap_offset")
    rows = Block(columns, items, views=(view,), tail_rows=1)
    ref = write_shard(layout, "data/1.h5", rows, fsync=False)
    return AdmitBlock(1, 0, 2 * ROWS, ref, time.time())


def batches(count: int) -> Batches:
    """Some batches of that block."""
    rows = np.arange(count * BATCH).reshape(-1, BATCH) % (ROWS - 1)
    return Batches(rows, 100 + rows, np.ones(rows.shape, dtype=np.float32), env_steps=900)


def on_policy_batch(seed: int) -> Batch:
    """What PPO learns from: twelve rows."""
    rng = np.random.default_rng(seed)
    names = ("log_prob", "value", "advantage", "return")
    columns = {name: torch.from_numpy(rng.random(ROWS, np.float32)) for name in names}
    columns["observation"] = torch.from_numpy(rng.random((ROWS, 2), np.float32))
    columns["action"] = torch.from_numpy(rng.integers(0, 2, ROWS))
    return Batch(columns, [], 0, lambda _priorities: None)


def settings(learner: dict[str, Any] | None = None, **policy: Any) -> Any:
    learn = {"batch_size": BATCH, "learner": learner or {}}
    return experiment(policy={"learn": learn, **policy}, system={"prefetch": 2})


class Stepped:
    """A learner that a test steps; the test plays rank 0 and a collector.

    Args:
        root: becomes the run folder.
        config: the experiment.
        group: name of its group.
        training: makes what updates the policy.
        restarts: how often the run was resumed.
    """

    def __init__(
        self,
        root: Path,
        config: Any,
        group: str = MAIN,
        training: MakeTraining = make_training,
        restarts: int = 0,
    ) -> None:
        self.world = LocalWorld(3)
        self.layout = RunLayout(root)
        groups = {group: (LEARNER,)} if group == MAIN else {MAIN: (9,), group: (LEARNER,)}
        context = WorkerContext(
            config,
            self.layout,
            self.world.link(LEARNER),
            role_seed(0, "learner", LEARNER, restarts),
            groups,
            make_pump=LocalPump,
        )
        self.learner = Learner(context, training=training)
        self.log: list[Message] = []  # all that came to rank 0
        self.policies: list[PolicyUpdate] = []  # that came to the collector
        self.served = 0
        self.learner.start()

    def tell(self, *messages: Message, sender: int = COORDINATOR) -> None:
        """Send the learner messages."""
        for message in messages:
            self.world.link(sender).send(LEARNER, message)

    def turn(self, count: int = 1) -> bool:
        """Take turns; returns whether the learner goes on."""
        goes_on = True
        for _ in range(count):
            goes_on = self.learner.turn(time.monotonic())
        self.log += [message for _, message in self.world.link(COORDINATOR).receive(0.0)]
        arrived = [message for _, message in self.world.link(COLLECTOR).receive(0.0)]
        self.policies += [message for message in arrived if isinstance(message, PolicyUpdate)]
        return goes_on

    def begin(self) -> None:
        """Send the task and a block, and take the turn in which the task begins."""
        self.tell(LearnTask("task"), block(self.layout))
        self.turn()

    def serve(self, in_all: int = 10**6) -> None:
        """Send the batches that were asked for, `in_all` since the beginning."""
        asked = sum(demand.batches for demand in self.all_of(DataDemand))
        missing = min(asked, in_all) - self.served
        if missing > 0:
            self.served += missing
            self.tell(batches(missing))

    def learn(self, iterations: int) -> None:
        """Serve until so many iterations are done, and no more."""
        while self.learner.train_iter < iterations:
            self.serve(iterations)
            self.turn()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Take turns until something is so that another thread does."""
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < deadline
            self.turn()
            self.learner.wait()

    def all_of(self, kind: type[M]) -> list[M]:
        """All messages of a class that have come to rank 0."""
        return [message for message in self.log if isinstance(message, kind)]


@pytest.fixture
def step(tmp_path: Path) -> Iterator[Callable[..., Stepped]]:
    made: list[Stepped] = []

    def make(config: Any = None, **kwargs: Any) -> Stepped:
        made.append(Stepped(tmp_path, config if config is not None else settings(), **kwargs))
        return made[-1]

    yield make
    for stepped in made:
        stepped.learner.close()


# ------------------------------------------------------------------------------------------- life


@pytest.mark.parametrize("training", [make_training, make_learner])
def test_a_run_from_the_first_message_to_the_last(
    step: Callable[..., Stepped], training: MakeTraining
) -> None:
    hook = {"log_show_after_iter": 5}
    config = settings({"train_iterations": 22, "hook": hook}, priority=True)
    run = step(config, training=training)
    assert run.turn(), "it waits for a task"
    (ready,) = run.all_of(WorkerReady)
    assert (ready.role, ready.gpus) == ("learner", 0)
    run.begin()
    (admitted,) = run.all_of(BlockAdmitted)
    assert (admitted.block_id, admitted.error) == (1, "")
    assert read_policy(run.layout.latest_policy).version == 0
    run.learn(22)
    (result,) = run.all_of(LearnResult)
    assert (result.task_id, result.train_iter) == ("task", 22)
    reports = run.all_of(LearnInfo)
    assert [info.train_iter for info in reports] == [5, 10, 15, 20, 22]
    assert all({"total_loss", "q_value", "cur_lr"} <= info.scalars.keys() for info in reports)
    run.tell(Stop("enough"))
    assert run.turn(3), "it waits for rank 0 to let it go"
    (goodbye,) = run.all_of(Goodbye)
    assert (goodbye.report["role"], goodbye.report["train_iter"]) == ("learner", 22)
    assert {"start", "train", "wait"} <= goodbye.report["shares"].keys()
    run.tell(Leave(7))
    assert not run.turn()
    assert run.learner.exit_code == 7
    assert read_policy(run.layout.latest_policy).version == 22, "the last one is kept"
    assert checkpoint_names(run.layout.checkpoints_dir) == ["ckpt_final"]
    facts = open_checkpoint(run.layout.checkpoints_dir / "ckpt_final").facts
    assert (facts["train_iter"], facts["collector_envstep"]) == (22, 900)


def test_an_update_a_turn_and_nothing_without_a_batch(step: Callable[..., Stepped]) -> None:
    run = step()
    run.begin()
    run.turn(5)
    assert [demand.batches for demand in run.all_of(DataDemand)] == [2], "asked for once"
    assert run.learner.train_iter == 0
    run.serve()
    for done in (1, 2, 2):
        run.turn()
        assert run.learner.train_iter == done


def test_stop_comes_after_the_batches_before_it(step: Callable[..., Stepped]) -> None:
    """All learners of a group end at the same batch."""
    run = step()
    run.begin()
    run.serve()
    run.tell(Stop("enough"), batches(2))
    run.turn(6)
    assert run.all_of(LearnResult) == []
    (goodbye,) = run.all_of(Goodbye)
    assert goodbye.report["train_iter"] == 2
    assert read_policy(run.layout.latest_policy).version == 2


def test_stop_before_any_task(step: Callable[..., Stepped]) -> None:
    run = step()
    run.tell(Stop("enough"))
    run.turn(2)
    assert [goodbye.report["train_iter"] for goodbye in run.all_of(Goodbye)] == [0]
    assert not run.layout.latest_policy.exists()


def test_data_before_a_task_are_an_error(step: Callable[..., Stepped]) -> None:
    run = step()
    run.tell(block(run.layout))
    with pytest.raises(CommError, match="rank 0 sent data before a learner task"):
        run.turn()


def test_it_leaves_without_an_answer_after_its_patience(step: Callable[..., Stepped]) -> None:
    run = step()
    run.tell(Stop("enough"))
    run.turn(2)
    assert run.turn()
    assert not run.learner.turn(time.monotonic() + 3600.0)
    assert run.learner.exit_code == 85


class Reads(LearnerHook):
    """A user's hook, which reads DI-engine's learner."""

    read: ClassVar[list[Any]] = []

    def __call__(self, engine: Any) -> None:
        """Note what the learner has."""
        scalars = engine.log_buffer["scalar"]
        self.read.append((engine.last_iter.val, engine.collector_envstep, "total_loss" in scalars))


def test_a_users_hook_finds_the_learner_that_it_knows(step: Callable[..., Stepped]) -> None:
    Reads.read.clear()
    register_learner_hook("reads", Reads)
    hook = {"mine": {"type": "reads", "position": "after_iter"}}
    run = step(settings({"train_iterations": 2, "hook": hook}), training=make_learner)
    run.begin()
    run.learn(2)
    assert Reads.read == [(1, 900, True), (2, 900, True)]


# ------------------------------------------------------------------- orders between two batches


def test_a_snapshot_is_taken_between_the_batches_around_its_order(
    step: Callable[..., Stepped],
) -> None:
    run = step()
    run.begin()
    run.tell(batches(2), TakeSnapshot("snapshot_000001", "snapshots/x"), batches(1))
    run.turn(4)
    assert run.learner.train_iter == 3
    run.until(lambda: bool(run.all_of(SnapshotPart)))
    (part,) = run.all_of(SnapshotPart)
    assert (part.name, part.train_iter, part.error) == ("snapshot_000001", 2, "")
    assert part.files.keys() == {"learner.pt", "policy.safetensors"}


def test_snapshots_are_taken_when_no_more_is_learnt_from(step: Callable[..., Stepped]) -> None:
    run = step(settings({"train_iterations": 1}))
    run.begin()
    run.tell(batches(2), TakeSnapshot("snapshot_000001", "snapshots/x"))
    run.until(lambda: bool(run.all_of(SnapshotPart)))
    assert [part.train_iter for part in run.all_of(SnapshotPart)] == [1]


def test_a_resumed_learner_that_has_done_its_iterations_does_no_more(
    step: Callable[..., Stepped],
) -> None:
    first = step(settings({"train_iterations": 2}))
    first.begin()
    first.learn(2)
    again = step(settings({"train_iterations": 2}))
    again.tell(LearnTask("task", resume="checkpoints/ckpt_final"), block(again.layout))
    again.turn(3)
    assert [result.train_iter for result in again.all_of(LearnResult)] == [2]
    assert not again.all_of(DataDemand)


def test_a_learner_of_another_group_has_its_own_files_and_may_begin_anew(
    step: Callable[..., Stepped],
) -> None:
    run = step(group="exploiter")
    run.turn()
    assert [ready.player for ready in run.all_of(WorkerReady)] == ["exploiter"]
    run.tell(PolicyRequest(-1), sender=COLLECTOR)
    run.begin()
    run.learn(6)
    run.tell(BeginAnew("exploiter"), TakeSnapshot("snapshot_000001", "snapshots/x"))
    run.until(lambda: bool(run.all_of(SnapshotPart)))
    (part,) = run.all_of(SnapshotPart)
    assert (part.player, part.train_iter, part.error) == ("exploiter", 6, "")
    assert part.files.keys() == {"agent1_learner.pt", "agent1_policy.safetensors"}
    first = PolicyImage(0, run.policies[0].data.tobytes()).state_dict()
    again = read_policy(run.layout.inside("snapshots/x") / "agent1_policy.safetensors")
    assert all(torch.equal(tensor, first[name]) for name, tensor in again.state_dict().items())
    run.tell(Stop("enough"))
    run.turn(2)
    assert checkpoint_names(run.layout.checkpoints_of(1)) == ["ckpt_final"]
    assert not run.layout.latest_policy.exists()
    assert read_policy(run.layout.latest_policy_of("exploiter")).version == 6


@pytest.mark.parametrize("training", [make_training, make_learner])
def test_schedules_by_steps_begin_anew_too(
    step: Callable[..., Stepped], training: MakeTraining
) -> None:
    """An exploiter that began anew kept the rate of the one before: after all steps, 0."""
    rule = {"key": "learning_rate", "end": 0.0, "env_steps": 900}
    learn = {
        "batch_size": BATCH, "learning_rate": 0.1, "schedule": rule,
        "learner": {"hook": {"log_show_after_iter": 1}},
    }  # fmt: skip
    run = step(experiment(policy={"learn": learn}, system={"prefetch": 2}), training=training)
    run.begin()
    for began_at in (0, 450, 900):  # of the 900 steps of the run
        run.tell(dataclasses.replace(batches(1), began_at=began_at))
        run.turn()
    rates = [info.scalars["cur_lr"] for info in run.all_of(LearnInfo)]
    assert rates == pytest.approx([0.0, 0.05, 0.1])
    assert run.learner._training is not None
    assert run.learner._training.env_steps == 900, "curves are over all of them"


def test_a_learner_that_begins_anew_begins_with_the_checkpoint_that_is_named(
    step: Callable[..., Stepped],
) -> None:
    """It went back to weights drawn at random, which the run never had."""
    first = step()
    first.begin()
    first.learn(2)
    first.tell(Stop("enough"))
    first.turn(2)
    named = first.layout.latest_policy
    hook = {"load_ckpt_before_run": str(named)}
    run = step(settings({"train_iterations": 8, "hook": hook}), group="exploiter")
    run.turn()
    run.begin()
    run.learn(6)
    run.tell(BeginAnew("exploiter"), TakeSnapshot("snapshot_000001", "snapshots/x"))
    run.until(lambda: bool(run.all_of(SnapshotPart)))
    again = read_policy(run.layout.inside("snapshots/x") / "agent1_policy.safetensors")
    expected = read_policy(named).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state_dict().items())


def test_who_has_begun_anew_is_ahead_of_who_has_not(step: Callable[..., Stepped]) -> None:
    """Survivors of another learner's death went on from different parameters."""
    run = step(group="exploiter")
    run.begin()
    run.learn(2)
    group = run.learner._group
    assert group.begun == 2
    run.tell(BeginAnew("exploiter"))
    run.turn()
    assert group.begun == 3
    run.tell(TakeSnapshot("snapshot_000001", "snapshots/x"))
    run.turn()
    assert group.begun == 3


@pytest.mark.parametrize("bound", [0, 1])
def test_who_has_begun_anew_learns_from_no_rollout_of_the_policy_before(
    bound: int, step: Callable[..., Stepped]
) -> None:
    buffer = {"max_staleness": bound} if bound else {}
    model = {"obs_shape": 2, "action_shape": 2, "action_space": "discrete"}
    config = settings(type="ppo", model=model, other={"replay_buffer": buffer})
    run = step(config, group="exploiter")
    run.tell(LearnTask("task"))
    run.turn()
    learner, training = run.learner, run.learner._learning
    assert training is not None
    learner._learn(training, on_policy_batch(0))
    run.tell(BeginAnew("exploiter"))
    run.turn()
    moved = []
    for number in range(1, 3 + bound):
        before = copied(training.policy.state_dict()["model"])
        learner._learn(training, on_policy_batch(number))
        after = training.policy.state_dict()["model"]
        moved.append(not all(torch.equal(tensor, after[name]) for name, tensor in before.items()))
        assert training.train_iter == 1 + number
    assert moved == [False] * (1 + bound) + [True]


@pytest.mark.parametrize(("group", "is_same"), [("exploiter", True), (MAIN, False)])
def test_a_learner_of_a_resumed_run_begins_anew_with_the_parameters_of_the_start(
    step: Callable[..., Stepped], group: str, is_same: bool
) -> None:
    """It went back to weights drawn at random, which the run never had."""
    models = []
    for restarts in (0, 2):
        run = step(group=group, restarts=restarts)
        run.begin()
        models.append(copied(run.learner._training.policy.state_dict()["model"]))
    one, other = models
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items()) == is_same


def test_policies_are_written_as_often_for_guests_after_another_learner_s_death(
    step: Callable[..., Stepped],
) -> None:
    run = step()
    run.world.link(LEARNER).ranks_may_die = True
    run.begin()
    run.tell(PolicyFiles(0.0), Regroup(1, (LEARNER,), ("host",)))
    run.turn()
    for iteration in (1, 2):
        run.learn(iteration)
        run.turn()
        assert read_policy(run.layout.latest_policy).version == iteration


def test_survivors_wait_for_one_that_is_in_a_long_batch(
    step: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first one did not come within a minute, they ended the run."""
    member, clock = step().learner._group, Clock()
    monkeypatch.setattr(membership, "time", clock)
    limit_s = SurvivalConfig().worker_timeout_s
    comes_at = clock.now + limit_s

    def waits() -> bool:
        clock.now += 10.0
        if clock.now >= comes_at:
            member.meet_at(GroupAddress(1, "host", 5, "key"))
        return False

    monkeypatch.setattr(member, "_is_ending", waits)
    regroup = Regroup(1, (9, LEARNER), ("host", "host"))
    assert member._share_address(regroup, None) == ("host", 5, "key")
    with pytest.raises(GroupBrokenError, match="rank 9 has not opened the new group"):
        member._share_address(dataclasses.replace(regroup, number=2), None)
    assert clock.now >= comes_at + limit_s


@pytest.mark.parametrize("training", [make_training, make_learner])
def test_each_player_s_learner_has_a_profile_of_its_own(
    step: Callable[..., Stepped], training: MakeTraining
) -> None:
    config = settings({"hook": {"profile_after_iter": 1}})
    for group in (MAIN, "exploiter"):
        run = step(config, group=group, training=training)
        run.begin()
        run.learn(7)
        run.learner.close()
    profiles = {path.name for path in run.layout.profile_dir.iterdir()}
    assert profiles == {"rank0.json", "exploiter_learner_rank0.json"}


class Begins(hpcdi.Callback):
    """Notes the iteration at the start, and sets all weights to a half."""

    runs_on = "learner"
    began_at: ClassVar[list[int]] = []

    def on_start(self, context: Context) -> None:
        self.began_at.append(context.train_iter)
        with torch.no_grad():
            for parameter in context.network.parameters():
                parameter.fill_(0.5)


@pytest.mark.parametrize("training", [make_training, make_learner])
@pytest.mark.parametrize("group", [MAIN, "exploiter"])
def test_a_callback_begins_after_the_checkpoint_that_is_named_was_loaded(
    step: Callable[..., Stepped], group: str, training: MakeTraining
) -> None:
    """What it did at the start was overwritten."""
    first = step()
    first.begin()
    first.learn(2)
    first.tell(Stop("enough"))
    first.turn(2)
    hook = {"load_ckpt_before_run": str(first.layout.checkpoints_dir / "ckpt_final")}
    callbacks = ({"type": f"{__name__}:Begins"},)
    config = dataclasses.replace(settings({"hook": hook}), callbacks=callbacks)
    run = step(config, group=group, training=training)
    Begins.began_at.clear()
    run.begin()
    assert Begins.began_at == [2]
    model = run.learner._training.policy.state_dict()["model"]
    assert all((tensor == 0.5).all() for tensor in model.values())


def test_steps_of_an_update_that_a_death_breaks_are_taken_back(
    step: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PPO makes eight here: with those before the third made again it was another policy."""
    model = {"obs_shape": 2, "action_shape": 2, "action_space": "discrete"}
    learn = {"batch_size": 3, "epoch_per_collect": 2}
    config = experiment(policy={"type": "ppo", "model": model, "learn": learn})
    whole, broken = step(config), step(config)
    for run in (whole, broken):
        run.begin()
        run.learner._learn(run.learner._learning, on_policy_batch(0))
    apply, steps = GradientStep.apply, 0

    def breaks(self: GradientStep, **how: bool) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == 3:
            broken.learner._group.order(Regroup(1, (LEARNER,), ("host",)))
            raise GroupBrokenError("a learner has died")
        return apply(self, **how)

    whole.learner._learn(whole.learner._learning, on_policy_batch(1))
    broken.learner._group.size = 2
    broken.world.link(LEARNER).ranks_may_die = True
    with monkeypatch.context() as patch:
        patch.setattr(GradientStep, "apply", breaks)
        broken.learner._learn(broken.learner._learning, on_policy_batch(1))
    one, other = (run.learner._training.policy.state_dict() for run in (whole, broken))
    assert one["updates"] == other["updates"]
    assert one["rng"] == other["rng"]
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name


# ------------------------------------------------------------------------------ what it sends


@pytest.mark.parametrize(
    ("kind", "max_staleness", "batches"),
    [("dqn", 2, 2), ("dqn", 1, 1), ("dqn", 0.5, 1), ("dqn", 100, 16), ("impala", 1, 1),
     ("impala", 2, 2), ("ppo", 9, 1)],
)  # fmt: skip
def test_batches_wait_for_half_of_the_staleness_at_most(
    step: Callable[..., Stepped], kind: str, max_staleness: float, batches: int
) -> None:
    policy: dict[str, Any] = {"other": {"replay_buffer": {"max_staleness": max_staleness}}}
    if kind != "dqn":
        model = {"obs_shape": 2, "action_shape": 2, "action_space": "discrete"}
        collect = {"n_sample": 5, **({"unroll_len": 5} if kind == "impala" else {})}
        policy |= {"type": kind, "model": model, "collect": collect}
    run = step(experiment(policy=policy))
    run.begin()
    run.turn()
    assert [demand.batches for demand in run.all_of(DataDemand)] == [batches]


def test_a_learner_without_a_batch_says_how_far_it_is(step: Callable[..., Stepped]) -> None:
    """It has asked for sixteen, and would ask for the next when a quarter has come."""
    run = step(experiment())
    run.begin()
    run.tell(batches(3))
    run.turn(10)
    asked = [(one.train_iter, one.batches, one.under_way) for one in run.all_of(DataDemand)]
    assert asked == [(0, 16, 16), (3, 0, 13)]


def test_an_update_that_is_no_iteration_is_told_all_the_same(
    step: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy may pass over a batch; rank 0 would wait for it at the end of the run."""
    run = step(experiment())
    run.begin()
    monkeypatch.setattr(run.learner._learning, "update", lambda _batch: [])
    run.tell(batches(3))
    run.turn(10)
    asked = [(one.train_iter, one.batches, one.under_way) for one in run.all_of(DataDemand)]
    assert asked == [(0, 16, 16), (0, 0, 13)]


def test_priorities_go_back_with_the_names_of_their_items(step: Callable[..., Stepped]) -> None:
    run = step(settings({"train_iterations": 8}, priority=True))
    run.begin()
    run.learn(8)
    first, *later = run.all_of(DataDemand)
    assert (first.batches, first.batch_size, first.unique_ids.size) == (2, BATCH, 0)
    assert later
    for demand in later:
        assert len(demand.unique_ids) == len(demand.priorities) > 0
        assert set(demand.unique_ids) <= set(range(100, 100 + ROWS))
        assert (demand.priorities > 0).all()


def test_policies_go_to_those_who_ask_also_while_no_data_come(step: Callable[..., Stepped]) -> None:
    run = step()
    run.begin()
    run.tell(PolicyRequest(-1), sender=COLLECTOR)
    run.turn()
    run.tell(PolicyRequest(0, at_once=True), sender=COLLECTOR)
    run.turn()
    run.learn(2)
    run.tell(PolicyRequest(0), sender=COLLECTOR)  # no iteration will end, which would offer it
    run.turn()
    first, empty, later = run.policies
    assert (first.version, empty.version, empty.data.size) == (0, 0, 0)
    assert later.version == 2
    tensors = PolicyImage(later.version, later.data.tobytes()).state_dict()
    expected = {"encoder.1.weight", "encoder.1.bias", "advantage.weight", "advantage.bias"}
    assert tensors.keys() == expected


def test_who_wants_the_newest_policy_gets_no_older_one_though_few_are_offered(
    step: Callable[..., Stepped],
) -> None:
    """As evaluations do: the last one was of a policy up to `send_policy_freq` iterations old."""
    run = step(settings({"send_policy_freq": 10}))
    run.begin()
    run.learn(3)
    run.serve(20)  # so that it is not idle
    run.tell(PolicyRequest(0, at_once=True), sender=COLLECTOR)
    run.turn()
    assert [update.version for update in run.policies] == [4]


@pytest.mark.parametrize(
    ("hook", "every"),
    [
        ({"log_show_after_iter": 7}, 7),
        ({}, 100),
        ({"log_show_after_iter": 0}, 100),  # no log, and no flood of empty reports either
        ({"show": {"type": "log_show", "position": "after_iter", "ext_args": {"freq": 3}}}, 100),
    ],
)
def test_how_often_progress_is_reported(
    step: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch, hook: dict[str, Any], every: int
) -> None:
    monkeypatch.setattr("hpcdi.roles.learner.callbacks.Report.every_s", float("inf"))
    run = step(settings({"train_iterations": 201, "hook": hook}))
    run.begin()
    run.learn(201)
    reported = [info.train_iter for info in run.all_of(LearnInfo)]
    assert reported == [*range(every, 202, every), 201]
    assert "total_loss" in run.all_of(LearnInfo)[-1].scalars, "the rest is shown at the end"


# ---------------------------------------------------------------------------------- over threads


class LearnerScript(Script):
    """The coordinator serves every demand from one block."""

    def __init__(self, root: Path, config: Any) -> None:
        super().__init__(root, config, LEARNER)
        self.served = 0
        self.answer = self._serve

    def _serve(self) -> None:
        count = sum(demand.batches for demand in self.all_of(DataDemand)) - self.served
        if count > 0 and self.all_of(BlockAdmitted):
            self.served += count
            self.tell(batches(count))


def test_with_a_communication_thread(tmp_path: Path) -> None:
    script = LearnerScript(tmp_path, settings({"train_iterations": 22}))
    learner = Learner(script.context)
    with script.running(learner) as thread:
        script.hear(WorkerReady, thread)
        script.tell(LearnTask("task"))
        script.tell(block(script.layout))
        result = script.hear(LearnResult, thread)
        script.tell(Stop("enough"))
        goodbye = script.hear(Goodbye, thread)
        script.tell(Leave(7))
        thread.join()
    assert (result.task_id, result.train_iter, learner.exit_code) == ("task", 22, 7)
    assert goodbye.report["train_iter"] == 22


def test_an_error_ends_its_program(tmp_path: Path) -> None:
    script = LearnerScript(tmp_path, settings())
    learner = Learner(script.context)
    thread = BackgroundThread(learner.run, "learner")
    script.tell(block(script.layout))
    thread.join()
    with pytest.raises(CommError, match="rank 0 sent data before a learner task"):
        thread.check()
    learner.pump.close()
    learner.close()
