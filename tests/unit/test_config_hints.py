"""What is said about keys of the whole experiment that stand in the wrong place."""

from __future__ import annotations

from typing import Any

import pytest

import hpcdi.worker  # noqa: F401  (registers the built-in components)
from hpcdi.config.load import compile_config
from hpcdi.errors import ConfigError

ENV = {"env": {"env_id": "CartPole-v1"}}


def problems_of(mapping: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        compile_config({**ENV, **mapping}, "x.yaml")
    assert caught.value.source == "x.yaml"
    return {problem.path: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("mapping", "path", "message"),
    [
        ({"polcy": {}}, "polcy", "unknown key; did you mean 'policy'?"),
        ({"policy": {"lern": {}}}, "policy.lern", "unknown key; did you mean 'learn'?"),
        (
            {"policy": {"learn": {"batchsize": 3}}},
            "policy.learn.batchsize",
            "unknown key; did you mean 'batch_size'?",
        ),
    ],
)
def test_close_keys(mapping: dict[str, Any], path: str, message: str) -> None:
    assert problems_of(mapping) == {path: message}


@pytest.mark.parametrize(
    ("mapping", "path", "place"),
    [
        ({"batch_size": 3}, "batch_size", "policy.learn.batch_size"),
        ({"policy": {"batch_size": 3}}, "policy.batch_size", "policy.learn.batch_size"),
        # 'learn' is like it, but the key itself stands elsewhere
        ({"policy": {"learner": {}}}, "policy.learner", "policy.learn.learner"),
        ({"policy": {"collector": {}}}, "policy.collector", "policy.collect.collector"),
        (
            {"system": {"replay_buffer_size": 5}},
            "system.replay_buffer_size",
            "policy.other.replay_buffer.replay_buffer_size",
        ),
        ({"fsync": False}, "fsync", "system.storage.fsync"),
    ],
)
def test_keys_that_belong_elsewhere(mapping: dict[str, Any], path: str, place: str) -> None:
    assert problems_of(mapping) == {path: f"unknown key; did you mean {place}?"}


def test_a_key_that_stands_everywhere_is_no_hint() -> None:
    assert problems_of({"type": "dqn"}) == {
        "type": "unknown key; known here: env, exp_name, fault, policy, seed, slurm, system"
    }


def test_problems_of_all_parts_come_together() -> None:
    found = problems_of(
        {
            "seed": -1,
            "exp_nam": "x",
            "env": {"env_id": 3, "collector_env_num": 0},
            "policy": {"learn": {"batch_size": "big"}, "model": {"obs_shape": "x"}},
            "system": {"storage": {"block_bytes": 1}, "transport": "mpi"},
        }
    )
    assert set(found) == {
        "seed",
        "exp_nam",
        "env.env_id",
        "env.collector_env_num",
        "policy.learn.batch_size",
        "policy.model.obs_shape",
        "system.storage.block_bytes",
        "system.transport",
    }
    assert found["env.env_id"] == "must be a text, not 3 (an integer)"  # and not: is required


def test_keys_of_the_predecessor_are_noted() -> None:
    compiled = compile_config(
        {
            **ENV,
            "system": {
                "communication_mode": "auto",
                "learner_gpu_num": 1,
                "coordinator": {"host": "auto", "port": "auto", "operator_server": {}},
            },
        }
    )
    assert [note.partition(" ")[0] for note in compiled.notes] == [
        "system.communication_mode",
        "system.learner_gpu_num",
        "system.coordinator.host",
        "system.coordinator.port",
        "system.coordinator.operator_server",
    ]


@pytest.mark.parametrize("kind", ["dqn", "dqn_command"])
def test_an_unknown_policy_type_is_told_before_its_settings(kind: str) -> None:
    found = problems_of({"policy": {"type": f"{kind}n", "learn": {"batch_size": -1}}})
    assert list(found) == ["policy.type"]
    assert f"did you mean '{kind}'?" in found["policy.type"]


# ------------------------------------------------------------------------- rules between components


def test_a_batch_cannot_be_larger_than_the_buffer() -> None:
    found = problems_of({"policy": {"learn": {"batch_size": 5000}}})
    assert found == {
        "policy.learn.batch_size": "a batch of 5000 cannot be drawn from a replay buffer of 4096 "
        "(policy.other.replay_buffer.replay_buffer_size)"
    }


@pytest.mark.parametrize(("size", "is_enough"), [(131, False), (132, True)])
def test_a_buffer_holds_four_of_the_smallest_blocks(size: int, is_enough: bool) -> None:
    mapping = {"policy": {"other": {"replay_buffer": {"replay_buffer_size": size}}}}
    if is_enough:
        compile_config({**ENV, **mapping})
    else:
        found = problems_of(mapping)
        path = "policy.other.replay_buffer.replay_buffer_size"
        assert found == {path: "must be at least 132, 4 x (policy.collect.n_sample + 1), not 131"}


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "/abs"])
def test_the_name_is_a_plain_folder_name(name: str) -> None:
    assert problems_of({"exp_name": name}) == {
        "exp_name": f"must be a plain folder name, not {name!r}"
    }


def test_rules_wait_until_every_part_is_right() -> None:
    """Else they would judge the defaults that stand in for wrong values."""
    found = problems_of({"exp_name": "a/b", "policy": {"learn": {"batch_size": -5}}})
    assert list(found) == ["policy.learn.batch_size"]
