"""Counters of a run are those of its shards, after whatever kills, ends and resumes."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase as Stage
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.mortal_world import MortalWorld
from hpcdi.comm.messages import (
    AdmitBlock,
    BlockAdmitted,
    BlockReady,
    Goodbye,
    Message,
    SnapshotPart,
    Stop,
    StopRequest,
    TakeSnapshot,
    WorkerReady,
)
from hpcdi.config.compiled import compile_config
from hpcdi.league.league import frozen_file, name_of_frozen
from hpcdi.roles.collector.channels import DataPublisher
from hpcdi.roles.coordinator.scheduler import Phase
from hpcdi.roles.coordinator.snapshots import resume_from
from hpcdi.run.resume import newest_snapshot
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.store.segment import Segment
from hpcdi.types import ITEM_DTYPE
from hpcdi.worker.coordinator import Coordinator

LEARNER, COLLECTORS = 1, (2, 3, 4)
PATIENCE_S = 20.0
SNAPSHOT_S = 1.0
"""By a clock that events move."""


def experiment(policy: str) -> Any:
    """A buffer that a few blocks fill, and shards that go when nobody needs them."""
    other = {
        "replay_buffer": {"replay_buffer_size": 40},
        "commander": {"type": "one_vs_one"},
    }
    collect = {"n_sample": 4, "collector": {"collector_num": 3}}
    storage = {"keep_data": False, "fsync": False, "seal_seconds": 3600.0}
    return compile_config(
        {
            "env": {"env_id": "CartPole-v1", "collector_env_num": 2},
            "policy": {
                "type": policy,
                "other": other,
                "collect": collect,
                "learn": {"batch_size": 8},
            },
            "system": {"storage": storage, "snapshot_s": SNAPSHOT_S},
        }
    ).config


def segment(ended: list[bool]) -> Segment:
    """Items of three transitions and one row more; which of them end with their episode, won."""
    items = np.zeros(len(ended), ITEM_DTYPE)
    items["item_start"], items["item_len"] = 4 * np.arange(len(ended)), 3
    columns = {"value": np.zeros(4 * len(ended), np.float32)}
    games = [(("main", "other", 1, 0, 0),) if is_end else () for is_end in ended]
    return Segment(columns, items, tail_rows=1, ended=np.array(ended), games=games)


class History:
    """A run with its restarts: rank 0 and collectors are real, and so are all files.

    `steps` and `episodes` are the truth: what was ever in a shard.
    """

    def __init__(self, root: Path, policy: str) -> None:
        self.config, self.layout = experiment(policy), RunLayout(root)
        self.steps = self.episodes = 0
        self.restarts = -1
        self.begin()

    def begin(self) -> None:
        """A new run, or the next part of it."""
        self.restarts += 1
        resumed = None
        if self.restarts:
            resumed = resume_from(self.layout, newest_snapshot(self.layout))
        self.world, self.now = MortalWorld(5), 0.0
        link = self.world.link(0)
        link.ranks_may_die = True
        self.coordinator = Coordinator(self.config, link, self.layout)
        if resumed is not None:
            self.coordinator.resume(resumed)
            self.check()
        self.coordinator.begin()
        self.links = {rank: self.world.link(rank) for rank in (LEARNER, *COLLECTORS)}
        self.silent: set[int] = set()  # collectors that will die before they announce anything
        self.heard: list[tuple[int, BlockReady]] = []
        self.publishers = {
            rank: DataPublisher(
                self.config, self.layout, rank,
                lambda ready, rank=rank: self.published(rank, ready), restarts=self.restarts,
            )  # type: ignore[misc]
            for rank in COLLECTORS
        }  # fmt: skip
        for rank in (LEARNER, *COLLECTORS):
            role = "learner" if rank == LEARNER else "collector"
            self.say(rank, WorkerReady(role, "host", rank))
        for publisher in self.publishers.values():
            publisher.begin("task")

    def published(self, rank: int, ready: BlockReady) -> None:
        self.steps += ready.transitions
        self.episodes += ready.episodes
        if rank not in self.silent:
            self.heard.append((rank, ready))

    def say(self, rank: int, message: Message) -> None:
        """Rank 0 hears it and does what follows."""
        self.links[rank].send(0, message)
        self.turn()

    def turn(self, request: Message | None = None) -> None:
        """Turns of rank 0, and of a learner that answers at once, until it has nothing to do."""
        self.goes_on = self.coordinator.turn(self.now, request)
        orders = [m for _, m in self.links[LEARNER].receive(0.0)]
        for order in orders:
            if isinstance(order, AdmitBlock):
                self.links[LEARNER].send(0, BlockAdmitted(order.block_id, 0.0))
            if isinstance(order, TakeSnapshot):
                self.links[LEARNER].send(0, SnapshotPart(order.name, {}, 0, 0.0))
        if orders:
            self.turn()

    def hear(self) -> None:
        """What collectors have announced comes to rank 0."""
        while self.heard:
            self.say(*self.heard.pop(0))
        if not self.silent:
            self.check()

    def check(self) -> None:
        figures = self.coordinator.figures()
        assert (figures["env_steps"], figures["episodes"]) == (self.steps, self.episodes)
        league: Any = self.coordinator._scheduler.league
        assert league.payoff.games("main", "other") == (self.episodes, 0, 0)

    # ---------------------------------------------------------------------------------- events

    def collect(self, rank: int, number: int) -> None:
        if rank in self.publishers:
            self.publishers[rank].put(segment([k % 3 == 0 for k in range(number)]))
            self.publishers[rank]._writer.flush()  # blocks that are full; the open one is not
            self.hear()

    def publish(self, rank: int, _number: int) -> None:
        if rank in self.publishers:
            self.publishers[rank].flush()
            self.hear()

    def snapshot(self, _rank: int, _number: int) -> None:
        """Time passes; the files of a snapshot, if it is due, are written by another thread."""
        before, deadline = self.coordinator.snapshot_s, time.monotonic() + PATIENCE_S
        self.now += SNAPSHOT_S
        self.turn()
        while self.steps and self.coordinator.snapshot_s == before:
            self.turn()
            assert time.monotonic() < deadline

    def die(self, rank: int, number: int) -> None:
        """A collector dies, perhaps between a shard's name and its announcement."""
        if rank not in self.publishers or len(self.publishers) == 1:
            return
        if number % 2:
            self.publishers[rank].flush()
            self.hear()
        self.silent.add(rank)
        if number % 3:
            self.publishers[rank].flush()
        self.drop(rank)
        self.world.kill(rank)
        self.turn()
        self.silent.discard(rank)
        self.check()

    def kill(self, _rank: int, number: int) -> None:
        """Everything dies; what was not published is lost, some of it was but nobody heard."""
        if number % 2:
            self.silent.update(self.publishers)
            for publisher in self.publishers.values():
                publisher.flush()
        self.close()
        self.begin()

    def close(self) -> None:
        """All processes are gone, rank 0 without a last snapshot."""
        for rank in list(self.publishers):
            self.drop(rank)
        self.coordinator._scheduler.phase = Phase.FINISHED
        self.coordinator.close()

    def end(self, _rank: int, _number: int) -> None:
        """A signal: all is published and kept."""
        self.turn(StopRequest("SIGTERM", 85))
        for rank, publisher in self.publishers.items():
            publisher.close()
            self.hear()
            assert any(isinstance(m, Stop) for _, m in self.links[rank].receive(0.0))
            self.say(rank, Goodbye())
        self.say(LEARNER, Goodbye())
        assert not self.goes_on
        self.check()
        self.coordinator.end()
        self.coordinator.close()
        self.begin()

    def drop(self, rank: int) -> None:
        """A collector is gone with what it had not sealed."""
        publisher = self.publishers.pop(rank)
        publisher._builder.seal()
        publisher.close()


KINDS = ["collect"] * 6 + ["publish"] * 5 + ["snapshot", "snapshot", "die", "kill", "end"]
events = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(COLLECTORS), st.integers(1, 12)),
    min_size=15, max_size=40,
)  # fmt: skip


@pytest.mark.parametrize("policy", ["dqn", "ppo"])
@settings(  # to shrink what fails would take minutes
    max_examples=3, deadline=None, phases=(Stage.explicit, Stage.reuse, Stage.generate)
)
@given(events=events)
@example(events=[*20 * [("collect", 2, 3), ("publish", 2, 1)], ("kill", 2, 2)])  # shards had to go
@example(
    events=[
        ("collect", 2, 3),
        ("publish", 2, 1),
        ("kill", 2, 2),
        ("collect", 3, 2),
        ("publish", 3, 1),
        ("snapshot", 2, 1),
        ("kill", 2, 2),
    ]
)  # the first rank publishes nothing after its restart
@example(events=[("collect", 2, 2), ("die", 2, 4)])  # it dies with a shard that nobody has heard of
@pytest.mark.slow
def test_counters_are_what_was_published(
    policy: str, events: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """To the unit, also where shards are gone by now, or were found when their writer had died."""
    root = tmp_path_factory.mktemp("run")
    history = History(root, policy)
    for kind, rank, number in events:
        getattr(history, kind)(rank, number)
    history.kill(0, 1)
    history.close()
    shutil.rmtree(root)


def test_a_copy_frozen_after_the_snapshot_has_its_files_version(tmp_path: Path) -> None:
    history = History(tmp_path, "dqn")
    history.collect(2, 3)
    history.publish(2, 0)
    history.snapshot(0, 0)
    layout = history.layout
    layout.league_dir.mkdir(exist_ok=True)
    copy, lost = frozen_file("main_000001"), frozen_file("main_000002")
    publish_policy(layout.root / copy, PolicyImage.of({"x": torch.zeros(1)}, 42))
    games = [((name, "main", 0, 0, 1),) for name in map(name_of_frozen, (copy, lost))]
    history.publishers[2].put(dataclasses.replace(segment([False, False]), games=games))
    history.publish(2, 0)
    history.kill(0, 0)
    league: Any = history.coordinator._scheduler.league
    versions = [league.players[name].version for name in ("main_000001", "main_000002")]
    assert versions == [42, -1]
    history.close()


def test_the_simulation_removes_shards_and_still_counts_them(tmp_path: Path) -> None:
    history = History(tmp_path, "dqn")
    for number in range(30):
        history.collect(2, 3)
        history.publish(2, 0)
        if number % 5 == 4:
            history.snapshot(0, 0)
    assert history.steps == 30 * 9
    assert len(history.layout.shard_numbers()) < 30, "of sixty"
    history.kill(0, 0)
    history.kill(0, 0)
    history.close()
