"""A coordinator's state as 8d39647 wrote it: later code resumes from it and draws the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.replay import admitted, block, demand
from hpcdi.config.load import compile_config
from hpcdi.errors import CheckpointError
from hpcdi.run.resume import newest
from hpcdi.store.checkpoints import save_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.worker.coordinator import Coordinator

DRAWN = [[0, 2], [1, 4]]
WEIGHTS = [[1.0, 0.84674323], [0.84674323, 1.0]]
"""Of the next two batches, as 8d39647 itself drew them."""
RNG_PARTITION = (75029017290483034281619263781546851408, 261532556053153268744419616746448030929)
RNG_ITEMS = (28889114000603789912070379709160031085, 222262412560555325795584300934303183487)


def rng(numbers: tuple[int, int]) -> dict[str, Any]:
    inner = {"state": numbers[0], "inc": numbers[1]}
    return {"state": {"bit_generator": "PCG64", "state": inner, "has_uint32": 0, "uinteger": 0}}


def index(mass: list[float], use: list[int], made_at: list[int], largest: float) -> dict[str, Any]:
    return {
        "mass": np.array(mass, "<f4"), "use": np.array(use, "u1"),
        "made_at": np.array(made_at, "u1"), "max_priority": largest,
    }  # fmt: skip


def state() -> dict[str, Any]:
    """Rank 1 learns, and has read blocks 1 and 2 of 3; a caller has pushed an item to "mine"."""
    rows = np.array([0, 1, 2, 4, 5], "<i4")
    columns = {"columns": {"row": rows}, "order": ["row"], "framed": [], "tensors": []}
    objects = {"objects": [{"policy_iter": 1, "data_id": "d0"}]}
    partition = {
        "buffer": {
            "capacity": 8,
            "ring": {
                "capacity": 8, "ids": {"first": 0, "pushed": 5, "origin": 0}, "kind": "columns",
                "by_slot": False, "items": columns,
            },
            "rng": rng(RNG_PARTITION),
            "index": index(
                [1.0, 1.515716552734375, 1.515716552734375, 1.0, 1.0], [1, 0, 1, 0, 0],
                [1, 1, 1, 2, 2], 2.0,
            ),
            "beta": {"start": 0.4, "draws": 1},
        },
        "ring": {"capacity": 15, "head": 12},
        "blocks": [
            {"block_id": 1, "path": "data/1.h5", "rows": 4, "crc32": 1, "first_row": 0,
             "first_id": 0, "end_id": 3},
            {"block_id": 2, "path": "data/2.h5", "rows": 3, "crc32": 2, "first_row": 4,
             "first_id": 3, "end_id": 5},
            {"block_id": 3, "path": "data/3.h5", "rows": 5, "crc32": 3, "first_row": 7,
             "first_id": -1, "end_id": -1},
        ],
        "samples_drawn": 2, "waiting": [], "offered": 12,
    }  # fmt: skip
    mine = {
        "capacity": 8,
        "ring": {
            "capacity": 8, "ids": {"first": 0, "pushed": 1, "origin": 0}, "kind": "objects",
            "by_slot": False, "items": objects,
        },
        "rng": rng(RNG_ITEMS),
        "index": index([1.0], [0], [1], 1.0),
        "beta": {"start": 0.4, "draws": 0},
    }  # fmt: skip
    counters = {
        "env_steps": 9, "train_iter": 5, "episodes": 1, "priorities_stale": 0, "rounds": 0,
        "evaluated_at": 0,
    }  # fmt: skip
    return {
        "commander": {"env_steps": 9, "train_iter": 5, "best_evaluation": None},
        "counters": counters,
        "tasks": {"collect": 1795442326.25},
        "replay": {
            "partitions": {"rank1": partition}, "named": {"mine": mine}, "waiting": [],
            "newest": {"0": 3},
        },
    }  # fmt: skip


def experiment() -> Any:
    other = {"replay_buffer": {"replay_buffer_size": 8}}
    policy = {
        "priority": True, "learn": {"batch_size": 2}, "collect": {"n_sample": 1}, "other": other,
    }  # fmt: skip
    return compile_config({"env": {"env_id": "CartPole-v1"}, "policy": policy, "seed": 3}).config


def test_it_is_resumed() -> None:
    with Coordinator(experiment()) as coordinator:
        coordinator.load_state_dict(state())
        taken = coordinator.state_dict()
        assert taken["counters"].pop("evaluated_steps") == 0, "later versions have it"
        assert taken["counters"].pop("steps_of") == {"main": 9}, "there was one player"
        assert taken["counters"].pop("iterations_of") == {"main": 5}
        assert {k: taken[k] for k in ("commander", "counters", "tasks")} == {
            k: state()[k] for k in ("commander", "counters", "tasks")
        }
        items = coordinator.deal_with_learner_get_data("learn", "mine", 1, 3) or []
        assert [(item["data_id"], item["staleness"]) for item in items] == [("d0", 2)]
        replay = coordinator._scheduler.replay.of["main"]
        published = [block(1, [3], version=1), block(2, [2], version=2)]
        replay.load_state_dict(state()["replay"], {b.shard.path: b for b in published})
        orders = replay.open(4)
        assert [(order.block_id, order.first_row) for _, order in orders] == [(1, 0), (2, 4)]
        for _, order in orders:
            replay.admit(4, admitted(order.block_id))
        replay.partitions[4].demand(demand(2, 2, train_iter=6))
        ((_, batches),) = replay.serve(9, [])
    assert batches.rows.tolist() == DRAWN
    assert np.allclose(batches.weights, WEIGHTS, atol=1e-6)


def test_a_snapshot_of_an_old_serial_run_is_refused_and_says_how_to_go_on(tmp_path: Path) -> None:
    """It had a format of its own, without a part of rank 0."""
    layout = RunLayout(tmp_path)
    facts = {"train_iter": 5, "env_steps": 80, "saved_at": 0.0}
    name = "iteration_000000005_step_000000000080"
    writers = {"learner0.pt": lambda path: path.write_bytes(b"")}
    save_checkpoint(layout.snapshots_dir, name, writers, facts, keep=None)
    with pytest.raises(CheckpointError, match=r"of an older hpcdi.*load_ckpt_before_run="):
        newest(layout)
