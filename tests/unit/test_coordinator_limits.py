"""What the replay buffer's limits and reports do in a run over several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.replay import admitted, block, demand, give, make_desk, make_partition, serve
from hpcdi.comm.messages import ItemReady
from hpcdi.config.load import compile_config
from hpcdi.errors import ConfigError, StoreError
from hpcdi.store.layout import RunLayout
from hpcdi.store.retention import Retention
from hpcdi.worker.coordinator.assembly import as_experiment
from hpcdi.worker.coordinator.assembly import make_desk as desk_of
from hpcdi.worker.coordinator.replay_desk import ReplayDesk


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
    give(partition, block(1, [8]))
    partition.demand(demand(1, 4))
    assert serve(partition) is not None  # 8 pushed, 4 drawn: 2 for one
    assert partition.offer(block(2, [8])) == []
    assert "blocks wait: 9 items pushed for 4 drawn" in partition.blocked
    for _ in range(8):
        partition.demand(demand(1, 4))
        assert serve(partition) is not None
    assert [order.block_id for order in partition.orders()] == [2]
    assert partition.blocked == ""


def test_a_learner_waits_while_data_come_too_slowly_and_it_is_said() -> None:
    desk = make_desk(**limited(min=0.5))
    desk.open(1)
    desk.assign(block(1, [8]))
    desk.admit(1, admitted(1))
    partition = desk.partitions[1]
    partition.demand(demand(4, 8))  # 32 of 8 is too much at once, one batch of 8 is not
    batches = serve(partition)
    assert batches is not None
    assert batches.rows.shape == (1, 8)
    assert serve(partition) is not None
    assert serve(partition) is None
    assert "learner waits: 8 items pushed for 24 drawn" in desk.blocked
    assert "data come too slowly" in desk.blocked
    desk.assign(block(2, [8]))
    desk.admit(1, admitted(2))
    assert serve(partition) is not None
    assert desk.blocked == ""


def test_a_learner_that_waits_for_the_first_items_says_so() -> None:
    partition = make_partition(min_fill=20)
    give(partition, block(1, [8]))
    partition.demand(demand(1, 4))
    assert serve(partition) is None
    assert partition.blocked.startswith("learner waits: 8 items are here, drawing begins at 20")


# -------------------------------------------------------------------------------- files and rules


def tracking() -> ReplayDesk:
    return make_desk(replay_buffer_size=2, enable_track_used_data=True)


def push(desk: ReplayDesk, name: str, data_id: str) -> None:
    desk.named.push(ItemReady("task", name, data_id, {"policy_iter": 0}))


def test_a_file_goes_when_no_item_of_any_buffer_needs_it(tmp_path: Path) -> None:
    desk, retention = tracking(), Retention(RunLayout(tmp_path), keep_data=False)

    def look() -> set[str]:
        for path in desk.named.take_needed():
            retention.need(path)
        retention.release(desk.take_freed())
        return {path.name for path in tmp_path.iterdir()}

    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    for name in ("one", "two"):
        push(desk, name, "a")
    push(desk, "one", "a")
    assert look() == {"a", "b", "c"}
    push(desk, "one", "b")
    push(desk, "one", "c")
    assert look() == {"a", "b", "c"}  # the second buffer has an item of a still
    push(desk, "two", "c")
    push(desk, "two", "c")
    assert look() == {"b", "c"}


def test_a_file_outside_of_the_run_folder_is_not_touched(tmp_path: Path) -> None:
    desk, retention = tracking(), Retention(RunLayout(tmp_path / "run"), keep_data=False)
    push(desk, "one", "../victim")
    with pytest.raises(StoreError, match="leads out of the run folder"):
        retention.need(desk.named.take_needed()[0])


def test_without_tracking_files_are_nobodys_business() -> None:
    """Wherever they lie: they are neither counted nor kept in mind."""
    desk = make_desk(replay_buffer_size=2)
    for k in range(9):
        push(desk, "one", f"/elsewhere/{k}")
    assert desk.named.take_needed() == desk.take_freed() == []


def test_a_file_that_comes_back_is_counted_once() -> None:
    desk = tracking()
    for data_id in ("a", "b", "c", "a"):
        push(desk, "one", data_id)
    assert desk.named.take_needed() == ["a", "b", "c"]
    assert desk.take_freed() == ["b"]
    for data_id in ("d", "a", "d", "a"):  # a goes and comes between two looks
        push(desk, "one", data_id)
    assert desk.named.take_needed() == ["d"]
    assert desk.take_freed() == ["c"]


def test_files_are_needed_again_after_a_load() -> None:
    desk, again = tracking(), tracking()
    push(desk, "one", "a")
    again.load_state_dict(desk.state_dict())
    assert again.named.take_needed() == ["a"]
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
    desk = desk_of(compile_config(mapping, "test").config)
    desk.open(1)
    desk.assign(block(1, [8]))
    desk.admit(1, admitted(1))
    desk.partitions[1].demand(demand(1, 4, train_iter=0))
    assert serve(desk.partitions[1]) is not None


# ----------------------------------------------------------------------------------------- reports


def test_buffers_report_into_the_curves_of_the_run() -> None:
    points: list[tuple[str, float, int]] = []

    class Curves:
        def add_scalar(self, tag: str, value: float, global_step: int) -> None:
            points.append((tag, value, global_step))

    watched = {"monitor": {"sampled_data_attr": {"print_freq": 2, "average_range": 1}}}
    mapping = experiment(replay_buffer_size=400, **watched)
    desk = desk_of(compile_config(mapping, "test").config, Curves())
    desk.open(1)
    desk.assign(block(1, [8]))
    desk.admit(1, admitted(1))
    for train_iter in (5, 6):
        desk.partitions[1].demand(demand(1, 4, train_iter=train_iter))
        assert serve(desk.partitions[1]) is not None
    tags = {tag: (value, step) for tag, value, step in points}
    version = int(block(1, [8]).items["policy_version"][0])
    assert tags["buffer_rank1_iter/staleness_max"] == (6.0 - version, 6)
    assert {"buffer_rank1_iter/use_avg", "buffer_rank1_iter/priority_min"} <= tags.keys()
