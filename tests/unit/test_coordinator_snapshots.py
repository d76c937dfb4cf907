"""Snapshots of a run over ranks: when they are taken, what is in them, what is gone on with."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from fakes.failing_files import FailingFiles
from fakes.replay import admitted, block, demand, make_groups
from fakes.scheduler import TIMEOUTS, experiment
from fakes.store import write_shard
from hpcdi.comm.failure import exit_code_of
from hpcdi.comm.messages import (
    Batches,
    BlockReady,
    LearnTask,
    Message,
    RankLost,
    SnapshotPart,
    Stop,
    StopRequest,
    TakeSnapshot,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.errors import CheckpointError, SnapshotError, StoreError
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.scheduler import Outcome, Scheduler
from hpcdi.roles.coordinator.snapshots import (
    Resumed,
    SnapshotClock,
    SnapshotKeeper,
    SnapshotResult,
    resume_from,
    unannounced,
)
from hpcdi.roles.coordinator.workers import Order, Workers
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import checkpoint_names, open_checkpoint, write_files
from hpcdi.store.layout import RunLayout, split_name
from hpcdi.store.shards import Appender
from hpcdi.store.state_file import save_state
from hpcdi.types import BLOCK_ID_BITS, FIRST_GUEST, GIVEN, ITEM_DTYPE, RESTART_NUMBERS
from hpcdi.worker.coordinator import Coordinator

EVERY_S = 60.0


class Run:
    """A scheduler with two learners and a collector, in which blocks have come."""

    def __init__(self, every_s: float = EVERY_S, resume: str = "") -> None:
        self.number = 0
        self.clock = SnapshotClock(every_s, self.new)
        self.clock.resume = resume
        self.groups = make_groups(2)
        self.main = self.groups.main
        self.scheduler = Scheduler(
            Commander(experiment(), self.groups),
            self.clock,
            Workers([1, 2, 3], self.groups, timeouts=TIMEOUTS),
        )
        self.orders: list[Order] = []
        for rank in (1, 2, 3):
            role = "collector" if rank == 3 else "learner"
            self.hear(rank, WorkerReady(role, "host", rank))

    def new(self) -> tuple[str, str]:
        self.number += 1
        return f"snapshot_{self.number:06d}", f"snapshots/.aside-{self.number}"

    def hear(self, rank: int, message: Any, now: float = 0.0) -> list[Order]:
        orders = self.scheduler.handle(message, rank, now)
        self.orders += orders
        return orders

    def collected(self) -> None:
        self.main.env_steps = 500


def snapshots(orders: list[Order]) -> list[tuple[int, str]]:
    return [(o.rank, o.message.name) for o in orders if isinstance(o.message, TakeSnapshot)]


# ---------------------------------------------------------------------------------------- the clock


def test_snapshots_are_due_from_the_start_of_learning() -> None:
    run = Run()
    assert snapshots(run.scheduler.tick(EVERY_S)) == [], "nothing has been collected"
    run.collected()
    assert snapshots(run.scheduler.tick(EVERY_S - 0.1)) == []
    first = run.scheduler.tick(EVERY_S)
    assert snapshots(first) == [(1, "snapshot_000001"), (2, "snapshot_000001")]
    assert snapshots(run.scheduler.tick(3 * EVERY_S)) == [], "one at a time"
    for rank in (1, 2):
        run.hear(rank, SnapshotPart("snapshot_000001", {}, 7, 0.0))
    assert [s.name for s in run.clock.take_complete()] == ["snapshot_000001"]
    assert run.clock.take_complete() == []
    assert len(snapshots(run.scheduler.tick(3 * EVERY_S))) == 2


def test_all_learners_are_told_between_the_same_batches() -> None:
    run = Run()
    run.collected()
    replay = run.main.replay
    served = {1: 0, 2: 0}
    at_snapshot = {}
    for number in range(40):
        for rank, order in replay.assign(block(number, [9])):
            run.hear(rank, admitted(order.block_id))
        for rank in (1, 2) if number % 3 else (2,):
            run.hear(rank, demand(1 + number % 2, 4), float(number))
        run.orders += run.scheduler.tick(2.5 * number)
    for order in run.orders:
        if isinstance(order.message, Batches):
            served[order.rank] += len(order.message.rows)
        if isinstance(order.message, TakeSnapshot):
            at_snapshot[order.rank] = served[order.rank]
    assert at_snapshot[1] == at_snapshot[2] > 0
    assert served[1] > at_snapshot[1], "and it went on"


def test_a_run_that_ends_in_order_takes_a_last_one() -> None:
    run = Run()
    run.collected()
    orders = run.hear(0, StopRequest("received SIGTERM", 85), 5.0)
    kinds = [type(order.message) for order in orders]
    assert kinds[:2] == [TakeSnapshot, TakeSnapshot]
    assert set(kinds[2:]) == {Stop}, "and nothing else comes before the end"
    assert snapshots(run.scheduler.stop(Outcome("stopped", "again", 0), 6.0)) == []


def test_a_run_that_fails_takes_none() -> None:
    run = Run()
    run.collected()
    assert snapshots(run.hear(3, WorkerFailed("collector", "host", "E", "T"), 5.0)) == []


def test_without_a_folder_there_are_none() -> None:
    clock = SnapshotClock(0.0)
    assert clock.take([1], 5.0) is None


def test_learners_go_on_from_a_snapshot_once() -> None:
    run = Run(math.inf, resume="snapshots/snapshot_000004")
    tasks = [o.message for o in run.orders if isinstance(o.message, LearnTask)]
    assert [task.resume for task in tasks] == ["snapshots/snapshot_000004"] * 2
    assert run.clock.resume == ""


# --------------------------------------------------------------------------------------- the keeper


def state_with(*waiting: str, announced: Mapping[str, int] = MappingProxyType({})) -> Any:
    """Rank 0's state, in which blocks wait for learners."""
    groups = make_groups().state_dict()
    groups["main"]["replay"]["waiting"] = list(waiting)
    return {"announced": dict(announced), "groups": groups, "plan": {}, "commander": {}}


def write_weights(path: Path) -> None:
    path.write_bytes(b"weights")


class Keeping:
    """A keeper, and a learner that writes its part; shards that nobody needs are removed."""

    def __init__(self, root: Path, keep: int = 2) -> None:
        self.layout = RunLayout(root)
        self.keeper = SnapshotKeeper(self.layout, keep, keep_data=False)
        self.clock = SnapshotClock(math.inf, self.keeper.new)
        self.results: list[SnapshotResult] = []

    def begin(self, *paths: str, learners: tuple[int, ...] = (1,)) -> TakeSnapshot:
        """Rank 0's part of the next one, which names some shards."""
        order = self.clock.take(learners, 0.0)
        assert order is not None
        for path in paths:
            self.write(path)
        self.keeper.begin(order, state_with(*paths), {"env_steps": 3, "learners": list(learners)})
        return order

    def take(self, *paths: str, train_iter: int = 5) -> str:
        order = self.begin(*paths)
        aside = self.layout.inside(order.folder)
        files = write_files(aside, {"learner.pt": write_weights})
        self.clock.part(1, SnapshotPart(order.name, files, train_iter, 0.25))
        self.tend()
        return order.name

    def tend(self) -> None:
        self.results += self.keeper.complete(self.clock.take_complete())

    def write(self, path: str) -> None:
        self.layout.inside(path).parent.mkdir(exist_ok=True)
        self.layout.inside(path).touch()

    @property
    def shards(self) -> list[str]:
        return sorted(path.stem for path in (self.layout.root / "data").iterdir())

    def end(self) -> None:
        self.keeper.close()
        self.tend()

    def resumed(self, name: str, *later: BlockReady) -> Resumed:
        """From a snapshot, after which some blocks were published."""
        published = {ready.shard.path: ready for ready in later}
        return Resumed(name, "", {}, {}, published, frozenset(published))


def test_a_whole_snapshot_gets_its_name_and_the_oldest_goes(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path)
    assert [keeping.take(f"data/{n}.h5", train_iter=ord(n)) for n in "abc"][-1] == "snapshot_000003"
    keeping.end()
    assert checkpoint_names(keeping.layout.snapshots_dir) == ["snapshot_000002", "snapshot_000003"]
    newest = open_checkpoint(keeping.layout.snapshots_dir / "snapshot_000003")
    assert newest.facts.pop("saved_at") > 0
    assert newest.facts == {"env_steps": 3, "learners": [1], "train_iter": ord("c")}
    assert newest.file("learner.pt").read_bytes() == b"weights"
    assert keeping.shards == ["b", "c"]
    assert [result.error for result in keeping.results] == ["", "", ""]
    assert "the learner stood still for 250 ms" in str(keeping.results[0])
    assert keeping.keeper.last_took_s == keeping.results[-1].took_s
    assert not list(tmp_path.rglob(".*")), "nothing is left aside"


def test_numbers_go_on_and_shards_of_kept_snapshots_are_needed(tmp_path: Path) -> None:
    first = Keeping(tmp_path)
    for name in "ab":
        first.take(f"data/{name}.h5")
    first.end()
    again = Keeping(tmp_path)
    again.keeper.adopt(again.resumed("snapshot_000002"))
    assert again.take("data/c.h5") == "snapshot_000003"
    again.end()
    assert again.shards == ["b", "c"]


def test_a_folder_of_another_s_has_no_number(tmp_path: Path) -> None:
    (RunLayout(tmp_path).snapshots_dir / "snapshot_000002²").mkdir(parents=True)
    (RunLayout(tmp_path).snapshots_dir / "snapshot_²").mkdir()
    assert Keeping(tmp_path).keeper.new()[0] == "snapshot_000001"


def test_a_torn_snapshot_takes_the_place_of_none(tmp_path: Path) -> None:
    first = Keeping(tmp_path)
    whole = first.take("data/a.h5")
    first.take("data/b.h5")
    first.end()
    again = Keeping(tmp_path)
    again.keeper.adopt(again.resumed(whole))  # the second is torn
    assert again.take("data/c.h5") == "snapshot_000003"
    again.end()
    assert checkpoint_names(again.layout.snapshots_dir) == [whole, "snapshot_000003"]
    assert again.shards == ["a", "c"]


def test_a_snapshot_counts_although_older_ones_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("hpcdi.roles.coordinator.snapshots.remove_others", refuse)
    keeping = Keeping(tmp_path, keep=1)
    keeping.take("data/a.h5")
    keeping.take("data/b.h5")
    keeping.end()
    assert [(result.error, result.removed) for result in keeping.results] == [("", ())] * 2
    assert "no older snapshot could be removed: [Errno 116]" in caplog.text
    assert checkpoint_names(tmp_path / "snapshots") == ["snapshot_000001", "snapshot_000002"]
    assert keeping.shards == ["a", "b"], "both are whole"


def test_a_part_that_is_missing_leaves_the_one_before(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path)
    keeping.take("data/a.h5")
    keeping.begin("data/b.h5", learners=(1, 2))
    keeping.end()
    assert checkpoint_names(keeping.layout.snapshots_dir) == ["snapshot_000001"]
    assert keeping.results[-1].error == "a learner's part was missing at the end"
    assert keeping.shards == ["a"]
    assert not list(tmp_path.rglob(".*"))


def test_a_part_that_failed_is_told(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path)
    order = keeping.begin()
    keeping.clock.part(1, SnapshotPart(order.name, {}, 5, 0.0, "No space left on device"))
    keeping.tend()
    keeping.end()
    (result,) = keeping.results
    assert result.error == "No space left on device"
    assert checkpoint_names(keeping.layout.snapshots_dir) == []


def test_a_block_stays_until_it_is_dropped_and_a_snapshot_has_counted_it(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path)
    for name in "ab":
        keeping.write(f"data/{name}.h5")
        keeping.keeper.published(f"data/{name}.h5")
    keeping.keeper.drop(["data/a.h5"])
    assert keeping.shards == ["a", "b"], "nothing has counted its steps"
    keeping.begin(learners=(1, 2))
    keeping.clock.lose(2)
    while not keeping.results:
        keeping.tend()
    assert keeping.results[0].error == "rank 2 died before its part was written"
    assert keeping.shards == ["a", "b"], "the snapshot that would have counted them has failed"
    keeping.take()
    keeping.end()
    assert keeping.shards == ["b"], "the replay buffer holds it still"


def test_blocks_that_a_resumed_run_counts_anew_stay_until_a_snapshot_has(tmp_path: Path) -> None:
    first = Keeping(tmp_path)
    first.take()
    first.end()
    again, ready = Keeping(tmp_path), block(1, [4])
    object.__setattr__(ready.shard, "path", "data/a.h5")
    again.write("data/a.h5")
    again.keeper.adopt(again.resumed("snapshot_000001", ready))
    again.keeper.drop(["data/a.h5"])
    assert again.shards == ["a"]
    again.take()
    again.end()
    assert again.shards == []


def test_the_newest_shard_of_a_collector_that_has_ended_goes_when_it_is_dropped(
    tmp_path: Path,
) -> None:
    keeping, shard = Keeping(tmp_path), "data/rank00002/hour/000007.h5"
    (tmp_path / shard).parent.mkdir(parents=True)
    keeping.write(shard)
    keeping.keeper.published(shard)
    keeping.take()
    keeping.end()
    keeping.keeper.ended(2)
    assert (tmp_path / shard).exists(), "the replay buffer holds it still"
    keeping.keeper.drop([shard])
    assert not (tmp_path / shard).exists()


def test_no_shard_of_an_earlier_start_stays_because_it_is_the_newest(tmp_path: Path) -> None:
    """Nobody appends to it: its collector may not even be there any more."""
    shard = "data/rank00002/hour/000007.h5"
    (tmp_path / shard).parent.mkdir(parents=True)
    first = Keeping(tmp_path)
    first.take(shard)
    first.end()
    again = Keeping(tmp_path, keep=1)
    again.keeper.adopt(again.resumed("snapshot_000001"))
    again.take()
    again.end()
    assert not (tmp_path / shard).exists()


def test_a_path_that_leads_out_of_the_run_folder_is_refused(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path)
    with pytest.raises(StoreError, match=r"\.\./elsewhere\.h5: leads out of the run folder"):
        keeping.keeper.published("../elsewhere.h5")
    keeping.end()


# ------------------------------------------------------------------------------------------- resume


def made(rank: int, number: int, rows: int = 4, **more: str) -> Block:
    items = np.zeros(1, dtype=ITEM_DTYPE)
    items["item_len"] = rows
    block_id = (rank << BLOCK_ID_BITS) + number
    facts = {"task_id": "t", "block_id": block_id, "sealed_at": 1000.0 + number, **more}
    return Block({"obs": np.arange(rows, dtype=np.float32)}, items, facts)


def publish(layout: RunLayout, rank: int, number: int, **more: str) -> str:
    path = layout.shard_path(rank, number, 0.0)
    return write_shard(layout, path, made(rank, number, **more), fsync=False).path


def snapshot_of(
    layout: RunLayout, waiting: list[str], announced: dict[str, int], env_steps: int = 3
) -> Any:
    keeping = Keeping(layout.root)
    order = keeping.clock.take([1], 0.0)
    assert order is not None
    state = state_with(*waiting, announced=announced)
    state["groups"]["main"]["env_steps"] = env_steps
    keeping.keeper.begin(order, state, {"env_steps": 3, "learners": [1]})
    keeping.clock.part(1, SnapshotPart(order.name, {}, 9, 0.0))
    keeping.keeper.complete(keeping.clock.take_complete())
    keeping.keeper.close()
    return open_checkpoint(layout.snapshots_dir / order.name)


def test_what_was_published_after_a_snapshot_is_found(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    known = publish(layout, 2, 7, buffer_id="b")  # which shards had once
    evicted = publish(layout, 2, 6)
    later = [publish(layout, 2, 8), publish(layout, 3, 1), publish(layout, 2, RESTART_NUMBERS + 1)]
    resumed = resume_from(layout, snapshot_of(layout, [known], {"2": 7}))
    assert list(resumed.published) == [later[1], known, later[0], later[2]], "the oldest first"
    assert evicted not in resumed.published
    assert (resumed.later, resumed.lost) == (12, 0)
    ready = resumed.published[known]
    assert (ready.block_id, ready.shard.rows) == ((2 << BLOCK_ID_BITS) + 7, 4)
    assert resumed.folder == "snapshots/snapshot_000001"
    assert resumed.facts["train_iter"] == 9


def test_what_was_published_after_a_snapshot_counts_as_collected(tmp_path: Path) -> None:
    """For the limits of a run, and for its exploration."""
    layout = RunLayout(tmp_path)
    known, *later = (publish(layout, 2, number) for number in (7, 8, 9))
    resumed = resume_from(layout, snapshot_of(layout, [known], {"2": 7}, env_steps=100))
    assert resumed.later == 4 * len(later)
    with Coordinator(experiment()) as after:
        after.resume(resumed)
        figures = after.figures()
        assert (figures["env_steps"], figures["train_iter"]) == (108, 9)
        scheduler = after._scheduler
        setting = scheduler.commander.get_setting_collect(scheduler.groups.main)
        assert setting == {"eps": pytest.approx(0.892)}


def test_the_beginning_of_a_run_is_a_snapshot_that_no_learner_has_a_part_in(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)

    def run_once() -> None:
        with Coordinator(experiment(), layout=layout, workers=[]) as coordinator:
            coordinator.start()

    run_once()
    (first,) = checkpoint_names(layout.snapshots_dir)
    later = publish(layout, 2, 8)
    resumed = resume_from(layout, open_checkpoint(layout.snapshots_dir / first))
    assert resumed.folder == "", "learners begin anew"
    assert list(resumed.published) == [later]
    assert (resumed.later, resumed.facts["train_iter"]) == (4, 0)
    run_once()
    assert checkpoint_names(layout.snapshots_dir) == [first], "it has begun already"


def test_blocks_of_one_shard_are_told_apart(tmp_path: Path) -> None:
    """Known ones and later ones in one file, behind shards of one block; some are taken back."""
    layout, appender = RunLayout(tmp_path), Appender(RunLayout(tmp_path), 1 << 20, fsync=False)
    old = [write_shard(layout, layout.shard_path(2, n, 0.0), made(2, n)).path for n in (5, 6)]
    new = [appender.write(layout.shard_path(2, n, 0.0), made(2, n)).path for n in (7, 8, 9)]
    assert len(layout.shard_numbers()) == 3
    snapshot = snapshot_of(layout, [old[1], new[0]], {"2": 7})
    resumed = resume_from(layout, snapshot)
    assert list(resumed.published) == [old[1], *new]
    assert (resumed.after, resumed.later, resumed.lost) == (set(new[1:]), 8, 0)
    assert [ready.shard.path for ready in unannounced(layout, 2, 8)] == new[2:]
    assert list(resume_from(layout, snapshot, repeats=True).published) == [old[1], new[0]]
    assert list(resume_from(layout, snapshot).published) == [old[1], new[0]], "taken back"
    assert unannounced(layout, 2, 5)[-1].shard.path == new[0]


@pytest.mark.parametrize(
    "end",
    [RankLost(), WorkerFailed("collector", "h", "e", "t")],
    ids=lambda end: type(end).__name__,
)
def test_what_a_guest_that_dies_has_not_announced_counts(end: Message, tmp_path: Path) -> None:
    """Also where it dies of an error, which is its last message."""
    layout, guest = RunLayout(tmp_path), FIRST_GUEST + 1
    with Coordinator(experiment(), layout=layout, workers=[]) as coordinator:
        coordinator.begin()
        coordinator._handle([(guest, WorkerReady("collector", "elsewhere", 7))], 0.0)
        publish(layout, guest, 1)
        coordinator._handle([(guest, end)], 1.0)
        assert coordinator.figures()["env_steps"] == 4
        assert coordinator._keeper is not None
        assert guest not in coordinator._keeper._retention._newest, "it appends to no shard"


@pytest.mark.parametrize("now", [0.0, 7200.0])
def test_a_copy_of_a_shard_is_no_new_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, now: float
) -> None:
    layout = RunLayout(tmp_path)
    name = write_shard(layout, layout.shard_path(2, 7, 3600.0), made(2, 7), fsync=False).path
    copy = layout.root / layout.shard_path(2, 7, now)
    copy.parent.mkdir()
    shutil.copy(layout.root / split_name(name)[0], copy)
    for announced in (0, 7):
        resumed = resume_from(
            layout, snapshot_of(layout, [name] * bool(announced), {"2": announced})
        )
        assert (list(resumed.published), resumed.lost) == ([name], 0)
    assert f"{copy.relative_to(layout.root)}: is another shard's file" in caplog.text


def test_a_run_that_repeats_itself_has_no_use_for_what_came_later(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    known, evicted, later = (publish(layout, 2, number) for number in (7, 6, 8))
    resumed = resume_from(layout, snapshot_of(layout, [known], {"2": 7}), repeats=True)
    assert list(resumed.published) == [known]
    assert (resumed.later, resumed.lost) == (0, 0)
    assert sorted(layout.shard_numbers()) == [split_name(name)[0] for name in (evicted, known)]
    assert not layout.inside(later).exists()


def test_what_is_missing_or_damaged_is_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layout = RunLayout(tmp_path)
    known = [publish(layout, 2, number) for number in (1, 2, 3, 4, 5)]
    snapshot = snapshot_of(layout, known, {"2": 5})
    layout.inside(known[0]).unlink()
    for name, target in ((known[3], "000004.h5"), (known[4], "/etc/passwd")):
        layout.inside(name).unlink()
        (tmp_path / split_name(name)[0]).symlink_to(target)
    layout.inside(known[1]).write_bytes(b"torn")
    (tmp_path / "data" / "rank00002" / "x").mkdir()
    (tmp_path / "data" / "rank00002" / "x" / "000009.h5").write_bytes(b"foreign")
    resumed = resume_from(layout, snapshot)
    assert list(resumed.published) == [known[2]]
    assert (resumed.later, resumed.lost) == (0, 4)
    told = [record.getMessage() for record in caplog.records]
    assert sum("it is left out" in line for line in told) == 4
    assert sum("1 blocks of the snapshot are missing" in line for line in told) == 1


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("where", ["000007.h5", "data/rank00002", "/data"])
def test_what_cannot_be_read_for_a_moment_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    layout = RunLayout(tmp_path)
    known, later = publish(layout, 2, 7), publish(layout, 2, 8)
    snapshot = snapshot_of(layout, [known], {"2": 7})
    failing = FailingFiles(monkeypatch, where, 3, number)
    resumed = resume_from(layout, snapshot)
    assert (list(resumed.published), resumed.lost, failing.left) == ([known, later], 0, 0)
    failing.left = 99
    for look in (lambda: resume_from(layout, snapshot), lambda: unannounced(layout, 2, 6)):
        with pytest.raises(StoreError, match=r"cannot be read: .*(Stale|Input)") as caught:
            look()
        assert exit_code_of(caught.value) == 85
    failing.left = 0
    assert list(resume_from(layout, snapshot).published) == [known, later], "nothing has changed"


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_a_run_that_lacks_a_block_cannot_repeat_itself(tmp_path: Path, damage: str) -> None:
    layout = RunLayout(tmp_path)
    known, other, later = (publish(layout, 2, number) for number in (6, 7, 8))
    snapshot = snapshot_of(layout, [known, other], {"2": 7})
    if damage == "torn":
        layout.inside(other).write_bytes(b"torn")
    else:
        layout.inside(other).unlink()
    with pytest.raises(SnapshotError, match=f"1 of its blocks .* {other} .*deterministic=false"):
        resume_from(layout, snapshot, repeats=True)
    assert list(resume_from(layout, snapshot).published) == [known, later], "none was taken back"


def test_a_run_that_repeats_itself_from_its_beginning_keeps_what_it_was_given(
    tmp_path: Path,
) -> None:
    layout = RunLayout(tmp_path)
    data, own = publish(layout, GIVEN, 1), publish(layout, 2, 1)
    resumed = resume_from(layout, snapshot_of(layout, [], {}), repeats=True)
    assert (list(resumed.published), resumed.after, resumed.withdrawn) == ([data], {data}, 1)
    assert not layout.inside(own).exists()


def test_a_snapshot_of_another_version_is_refused(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    snapshot = snapshot_of(layout, [], {})
    save_state(snapshot.file("coordinator.h5"), "coordinator", 2, state_with())
    with pytest.raises(CheckpointError, match=r"coordinator\.h5 is not what was written"):
        open_checkpoint(snapshot.folder)
    with pytest.raises(SnapshotError, match="a saved coordinator of format 2; this hpcdi reads"):
        resume_from(layout, snapshot)
