"""What the replay buffer's limits and reports do in a run over several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.replay import (
    CAPACITY,
    OF_RANK_3,
    admitted,
    block,
    demand,
    give,
    make_partition,
    make_replay,
    serve,
)
from fakes.scheduler import Run
from hpcdi.comm.messages import AdmitBlock, Batches
from hpcdi.config.compiled import compile_config
from hpcdi.errors import ConfigError, StoreError
from hpcdi.replay.manager import create_replay
from hpcdi.store.layout import RunLayout
from hpcdi.store.retention import Retention
from hpcdi.worker.coordinator.coordinator import ItemBuffers, as_experiment
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer


def limited(**rate: float) -> dict[str, Any]:
    return {"thruput_controller": {"push_sample_rate_limit": rate}}


def experiment(**buffer: Any) -> dict[str, Any]:
    return {
        "env": {"env_id": "CartPole-v1"},
        "policy": {"other": {"replay_buffer": buffer}},
    }


# ------------------------------------------------------------------------------------------ limits


def test_blocks_wait_while_the_learner_draws_too_little() -> None:
    partition = make_partition(**limited(max=0.5))
    give(partition, block(OF_RANK_3 + 1, [8]))
    partition.demand(demand(1, 4))
    assert serve(partition) is not None  # 8 pushed, 4 drawn: 2 for one
    assert partition.offer(block(OF_RANK_3 + 2, [8])) == []
    assert "blocks wait: 9 items pushed for 4 drawn" in partition.blocked
    for _ in range(8):
        partition.demand(demand(1, 4))
        assert serve(partition) is not None
    assert [order.block_id for order in partition.orders()] == [OF_RANK_3 + 2]
    assert partition.blocked == ""


def test_a_learner_gets_its_batches_before_the_blocks_that_waited_for_them() -> None:
    """It does what it is told in order: a block that it reads may overwrite a batch's rows."""
    run = Run(1)
    partitions = run.main.replay.partitions
    partitions[1] = make_partition(**limited(max=0.5))
    partition = partitions[1]
    give(partition, block(OF_RANK_3 + 1, [8]))
    assert run.ask(1)
    assert partition.offer(block(OF_RANK_3 + 2, [8])) == []
    kinds: list[type] = []
    while not any(kind is AdmitBlock for kind in kinds):
        kinds = [type(order.message) for order in run.ask(1)]
    assert kinds == [Batches, AdmitBlock]


def test_a_learner_waits_while_data_come_too_slowly_and_it_is_said() -> None:
    replay = make_replay(**limited(min=0.5))
    replay.open(1)
    replay.assign(block(1, [8]))
    replay.admit(1, admitted(1))
    partition = replay.partitions[1]
    partition.demand(demand(4, 8))  # 32 of 8 is too much at once, one batch of 8 is not
    batches = serve(partition)
    assert batches is not None
    assert batches.rows.shape == (1, 8)
    assert serve(partition) is not None
    assert serve(partition) is None
    assert "learner waits: 8 items pushed for 24 drawn" in replay.blocked
    assert "data come too slowly" in replay.blocked
    replay.assign(block(2, [8]))
    replay.admit(1, admitted(2))
    assert serve(partition) is not None
    assert replay.blocked == ""


def test_a_draw_that_was_allowed_is_not_refused_a_moment_later() -> None:
    """What was pushed leaves the window between the two: the run ended by it."""
    partition, now = make_partition(**limited(min=0.5)), [0.0]
    partition.buffer._limits._traffic._clock = lambda: now[0]
    give(partition, block(OF_RANK_3 + 1, [8]))
    partition.demand(demand(2, 4))
    assert partition.ready((), {}) == 2
    now[0] = 31.0
    assert partition.serve(2, 0).rows.shape == (2, 4)
    partition.demand(demand(1, 4))
    assert partition.ready((), {}) == 0
    assert "0 items pushed for 12 drawn" in partition.blocked


def test_a_learner_that_waits_for_the_first_items_says_so() -> None:
    partition = make_partition(min_fill=20)
    give(partition, block(1, [8]))
    partition.demand(demand(1, 4))
    assert serve(partition) is None
    assert partition.blocked.startswith("learner waits: 8 items are here, drawing begins at 20")


# -------------------------------------------------------------------------------- files and rules


def item_buffers(**settings: Any) -> ItemBuffers:
    cfg = {"replay_buffer_size": CAPACITY, **settings}
    return ItemBuffers(
        lambda name: AdvancedReplayBuffer(cfg, None, "test", name, rng=np.random.default_rng(0))
    )


def tracking() -> ItemBuffers:
    return item_buffers(replay_buffer_size=2, enable_track_used_data=True)


def push(items: ItemBuffers, name: str, data_id: str) -> None:
    items.push(name, data_id, {"policy_iter": 0})


def test_a_file_goes_when_no_item_of_any_buffer_needs_it(tmp_path: Path) -> None:
    items, retention = tracking(), Retention(RunLayout(tmp_path), keep_data=False)

    def look() -> set[str]:
        for path in items.take_needed():
            retention.need(path)
        retention.release(items.take_freed())
        return {path.name for path in tmp_path.iterdir()}

    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    for name in ("one", "two"):
        push(items, name, "a")
    push(items, "one", "a")
    assert look() == {"a", "b", "c"}
    push(items, "one", "b")
    push(items, "one", "c")
    assert look() == {"a", "b", "c"}  # the second buffer has an item of a still
    push(items, "two", "c")
    push(items, "two", "c")
    assert look() == {"b", "c"}


def test_a_file_outside_of_the_run_folder_is_not_touched(tmp_path: Path) -> None:
    items, retention = tracking(), Retention(RunLayout(tmp_path / "run"), keep_data=False)
    push(items, "one", "../victim")
    with pytest.raises(StoreError, match="leads out of the run folder"):
        retention.need(items.take_needed()[0])


def test_without_tracking_files_are_nobodys_business() -> None:
    """Wherever they lie: they are neither counted nor kept in mind."""
    items = item_buffers(replay_buffer_size=2)
    for k in range(9):
        push(items, "one", f"/elsewhere/{k}")
    assert items.take_needed() == items.take_freed() == []


def test_a_file_that_comes_back_is_counted_once() -> None:
    items = tracking()
    for data_id in ("a", "b", "c", "a"):
        push(items, "one", data_id)
    assert items.take_needed() == ["a", "b", "c"]
    assert items.take_freed() == ["b"]
    for data_id in ("d", "a", "d", "a"):  # a goes and comes between two looks
        push(items, "one", data_id)
    assert items.take_needed() == ["d"]
    assert items.take_freed() == ["c"]


def test_files_are_needed_again_after_a_load() -> None:
    items, again = tracking(), tracking()
    push(items, "one", "a")
    again.load_state_dict(items.state_dict())
    assert again.take_needed() == ["a"]
    push(again, "one", "b")
    push(again, "one", "c")
    assert again.take_freed() == ["a"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"type": "naive"}, "needs an 'advanced' buffer, not 'naive'"),
        (limited(min=2.0, max=1.0), "is above max"),
    ],
)
def test_settings_that_a_run_over_ranks_cannot_follow(setting: Any, words: str) -> None:
    mapping = experiment(replay_buffer_size=4000, **setting)
    with pytest.raises(ConfigError, match=words):
        as_experiment({"main": mapping})


def test_frames_that_are_stored_once_do_not_concern_the_index() -> None:
    """It holds row numbers; shards and learners' rings hold the frames."""
    mapping = experiment(replay_buffer_size=400, frames=["observation"])
    replay = create_replay(compile_config(mapping, "test").config)
    replay.open(1)
    replay.assign(block(1, [8]))
    replay.admit(1, admitted(1))
    replay.partitions[1].demand(demand(1, 4, train_iter=0))
    assert serve(replay.partitions[1]) is not None


# ----------------------------------------------------------------------------------------- reports


@pytest.mark.parametrize(("player", "of_player"), [("main", ""), ("bot", "bot_")])
def test_buffers_report_into_the_curves_of_the_run(player: str, of_player: str) -> None:
    points: list[tuple[str, float, int]] = []

    class Curves:
        def add_scalar(self, tag: str, value: float, global_step: int) -> None:
            points.append((tag, value, global_step))

    watched = {"monitor": {"sampled_data_attr": {"print_freq": 2, "average_range": 1}}}
    mapping = experiment(replay_buffer_size=400, **watched)
    replay = create_replay(compile_config(mapping, "test").config, Curves(), player=player)
    replay.open(1)
    replay.assign(block(1, [8]))
    replay.admit(1, admitted(1))
    for train_iter in (5, 6):
        replay.partitions[1].demand(demand(1, 4, train_iter=train_iter))
        assert serve(replay.partitions[1]) is not None
    tags = {tag: (value, step) for tag, value, step in points}
    version = int(block(1, [8]).items["policy_version"][0])
    name = f"{of_player}buffer_rank1_iter"
    assert tags[f"{name}/staleness_max"] == (6.0 - version, 6)
    assert {f"{name}/use_avg", f"{name}/priority_min"} <= tags.keys()


# ----------------------------------------------------------------------------------- item buffers


def test_items_are_drawn_by_priority_from_the_buffer_of_their_name() -> None:
    items = item_buffers()
    assert items.sample("task", "mine", 1, 0) is None
    items.update("mine", {"replay_unique_id": ["mine_0"], "priority": [1.0]})
    for n in range(3):
        items.push("mine", f"d{n}", {"policy_iter": n, "priority": None})
    drawn = items.sample("task", "mine", 3, 10) or []
    assert {d["staleness"] for d in drawn} <= {10, 9, 8}
    assert {d["data_id"] for d in drawn} <= {"d0", "d1", "d2"}
    items.update("mine", {**{k: [drawn[0][k]] for k in drawn[0]}, "priority": [9.0]})
    name = drawn[0]["replay_unique_id"]
    again = [d for _ in range(9) for d in items.sample("task", "mine", 3, 10) or []]
    assert {round(d["priority"], 5) for d in again if d["replay_unique_id"] == name} == {9.0}
    items.close("task")
    items.close("never there")
    assert items.sample("task", "mine", 1, 0) is None
