"""The commander of a league: opponents in settings, frozen copies by evaluations, results."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hpcdi.comm.messages import BlockReady, CollectResult, CollectTask
from hpcdi.types import ITEM_DTYPE, GameCounts, ShardRef
from hpcdi.worker.coordinator import OneVsOneCommander, create_parallel_commander


def commander(**league: Any) -> Any:
    made = create_parallel_commander(
        {
            "env": {"env_id": "x"},
            "policy": {
                "type": "dqn",
                "other": {
                    "commander": {
                        "type": "one_vs_one", "collector_task_space": None,
                        "league": {"freeze_steps": 100, **league},
                    },
                },
            },
        }
    )  # fmt: skip
    assert isinstance(made, OneVsOneCommander)
    made.groups.main.learners.begin(made.get_learner_task(0.0), 0.0)
    return made


def opponents(made: Any) -> Any:
    return made.get_setting_collect(made.groups.main)["opponents"]


def counted(made: Any, env_steps: int, train_iter: int) -> None:
    made.groups.main.env_steps, made.groups.main.train_iter = env_steps, train_iter
    made.update_progress(made.groups.main)


def result(task: CollectTask, *, is_complete: bool = True) -> CollectResult:
    returns, lengths = np.zeros(2), np.ones(2, np.int64)
    return CollectResult(task.task_id, True, 42, 9, 1.0, returns, lengths, is_complete)


def block(*games: GameCounts) -> BlockReady:
    items = np.zeros(1, dtype=ITEM_DTYPE)
    return BlockReady("t", 1, ShardRef.of("x", 1, 1, 0, ()), items, 1, 0.0, games=games)


def test_the_seeds_defaults() -> None:
    config = OneVsOneCommander.default_config()
    assert config.collector_task_space == 2
    assert config.learner_task_space == 1
    assert config.eval_interval == 60


def test_an_evaluation_freezes_a_copy_that_then_is_an_opponent() -> None:
    made = commander(self_play=0.25)
    assert opponents(made) == {"main": [1.0, ""]}
    counted(made, 120, 43)
    assert made.evaluation_is_due(1.0), "long before the interval is over"
    task = made.get_collector_task(1.0)
    assert task.eval_flag
    assert task.freeze == "league/main_000001.safetensors"
    assert task.setting == {"learner": "main", "opponents": {"against": [1.0, "random"]}}
    assert not made.evaluation_is_due(1.0)
    made.finish_collector_task(task.task_id, result(task))
    frozen = made.league.players["main_000001"]
    assert (frozen.version, frozen.source, frozen.steps) == (42, task.freeze, 120)
    assert opponents(made) == {"main": [0.25, ""], "main_000001": [0.75, task.freeze]}
    assert not made.evaluation_is_due(2.0)


def test_a_copy_joins_only_when_its_file_is_whole() -> None:
    made = commander()
    counted(made, 120, 43)
    lost = made.get_collector_task(1.0)
    made.notify_fail_collector_task(lost)
    cut_short = made.get_collector_task(2.0)
    assert cut_short.freeze == lost.freeze
    made.finish_collector_task(cut_short.task_id, result(cut_short, is_complete=False))
    assert set(made.league.players) == {"main"}
    assert made.evaluation_is_due(3.0)


def test_results_of_blocks_are_in_the_state() -> None:
    made = commander()
    made.count_block(block(("main", "main_000001", 2, 0, 1)))
    made.count_block(block(("main", "main_000001", 1, 1, 0), ("main", "main", 4, 0, 0)))
    other = commander()
    other.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert other.league.payoff.games("main", "main_000001") == (3, 1, 1)
    assert other.league.payoff.games("main", "main") == (4, 0, 0)
    assert set(other.league.players) == {"main", "main_000001"}
