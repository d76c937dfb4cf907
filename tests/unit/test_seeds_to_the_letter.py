"""What DI-engine's callers find in states and errors: key for key, type for type."""

from __future__ import annotations

import abc
import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import hpcdi.worker as ding
from fakes.serial_parts import Actor, Manager
from hpcdi.config.compat import ConfigDict as EasyDict
from hpcdi.errors import ConfigError

pytestmark = pytest.mark.usefixtures("one_torch_thread")

KEYS = ["data", "tail", "valid_count", "push_count"]
OF_ADVANCED = ["use_count", "max_priority", "anneal_step", "beta", "head", "next_unique_id"]
OF_ADVANCED += ["sum_tree", "min_tree"]


def item(number: int, **more: Any) -> dict[str, Any]:
    return {"obs": np.full(2, number, np.float32), "number": number, **more}


def advanced(**cfg: Any) -> ding.AdvancedReplayBuffer:
    return ding.AdvancedReplayBuffer({"replay_buffer_size": 4, **cfg})


def test_a_state_is_iterated_by_di_engines_keys() -> None:
    naive = ding.NaiveReplayBuffer({"replay_buffer_size": 3})
    naive.push([item(k) for k in range(4)], 0)
    state = naive.state_dict()
    assert isinstance(state, dict)
    assert [*state] == [*state.keys()] == [*dict(state)] == KEYS
    assert ([*state.values()][1:], len(state)) == ([1, 3, 4], 4)
    assert [one["number"] for one in dict(state.items())["data"]] == [3, 1, 2]
    assert {*advanced().state_dict()} == {*KEYS, *OF_ADVANCED}


def test_a_copy_of_a_state_is_loaded_whatever_way_it_was_made() -> None:
    buffer = advanced(max_use=9)
    buffer.push([item(k, priority=float(k + 1), collect_iter=k) for k in range(6)], 0)
    buffer.sample(3, 5)
    state = buffer.state_dict()
    uses = state["use_count"].tolist()
    copies = (
        state,
        copy.deepcopy(state),
        pickle.loads(pickle.dumps(state)),
        dict(state),
        {**state},
    )
    for one in copies:
        other = advanced(max_use=9)
        other.load_state_dict(one)
        found = other.state_dict()
        assert sorted(each["number"] for each in found["data"]) == [2, 3, 4, 5]
        assert sorted(found["use_count"].tolist()) == sorted(uses)
        assert (found["valid_count"], found["push_count"], other.push_count) == (4, 6, 6)
        assert (other.beta, found["max_priority"]) == (buffer.beta, pytest.approx(6))
        newest = other.sample(1, 7, slice(-1, None))
        assert newest is not None
        assert (newest[0]["priority"], newest[0]["staleness"]) == (pytest.approx(6), 2)


def test_a_state_of_episodes_has_episodes() -> None:
    buffer = ding.EpisodeReplayBuffer({"replay_buffer_size": 3})
    buffer.push([[item(k)] * (k + 1) for k in range(4)], 0)
    state = dict(buffer.state_dict())
    assert [[one["number"] for one in each] for each in state["data"]] == [
        [3] * 4,
        [1] * 2,
        [2] * 3,
    ]
    assert (state["tail"], state["valid_count"], state["push_count"]) == (1, 3, 4)
    other = ding.EpisodeReplayBuffer({"replay_buffer_size": 3})
    other.load_state_dict(state)
    assert (other.count(), other.push_count) == (3, 4)
    assert (buffer.episode_len, other.episode_len) == ([4, 2, 3], [2, 3, 4])


def test_an_advanced_buffer_counts_on_when_it_is_cleared() -> None:
    buffer, naive = advanced(anneal_step=10), ding.NaiveReplayBuffer({})
    for one in (buffer, naive):
        one.push([item(k) for k in range(3)], 0)
    buffer.sample(2, 0)
    buffer.alpha, before = 0.3, buffer.beta
    for one in (buffer, naive):
        one.clear()
    assert (buffer.push_count, naive.push_count) == (3, 0)
    assert (buffer.beta, buffer.alpha) == (before, 0.3)
    assert before > 0.4


@pytest.mark.parametrize("prioritized", [True, False])
def test_alpha_can_be_set(prioritized: bool) -> None:
    cfg = {"replay_buffer_size": 4, "alpha": 1.0}
    buffer = ding.AdvancedReplayBuffer(cfg, prioritized=prioritized)
    buffer.push([item(0, priority=1.0), item(1, priority=8.0)], 0)
    buffer.alpha = 1 / 3
    buffer.push(item(2, priority=27.0), 0)
    assert buffer.alpha == 1 / 3
    state = buffer.state_dict()
    if prioritized:
        assert state["sum_tree"].tolist() == pytest.approx([1, 2, 3, 0])
        assert [one["priority"] for one in state["data"][:3]] == pytest.approx([1, 8, 27])
    other = ding.AdvancedReplayBuffer(cfg, prioritized=prioritized)
    other.load_state_dict(state)
    assert other.alpha == 1.0, "it is no part of the state; priorities are"
    assert [one["priority"] for one in other._data[:3]] == pytest.approx(
        [1, 8, 27] if prioritized else [1, 1, 1]
    )


@pytest.mark.parametrize(
    "make", [ding.build_learner_hook_by_cfg, lambda hook: ding.BaseLearner({"hook": hook})]
)
def test_an_unknown_type_of_hooks_is_a_key_error(make: Any) -> None:
    hook = {"name": "x", "type": "no_such", "priority": 5, "position": "after_run"}
    with pytest.raises(KeyError) as error:
        make(EasyDict(x=hook))
    assert isinstance(error.value, ConfigError)
    assert str(error.value).startswith("the configuration"), "as text, not its repr"


def test_compile_config_knows_an_evaluator() -> None:
    """DI-engine's asks whether it is one of its own, and only then fills in its settings."""

    class InteractionSerialEvaluator(abc.ABC):  # noqa: B024
        __module__ = "ding.worker.collector.evaluator"

    class BattleInteractionSerialEvaluator(InteractionSerialEvaluator):
        __module__ = "ding.worker.collector.evaluator"

    known = [InteractionSerialEvaluator, BattleInteractionSerialEvaluator]
    assert ding.InteractionSerialEvaluator in known
    assert ding.BattleInteractionSerialEvaluator in known
    assert ding.InteractionSerialEvaluator != BattleInteractionSerialEvaluator

    class Own(ding.InteractionSerialEvaluator):
        pass

    assert Own not in known
    assert {ding.InteractionSerialEvaluator: 1}[ding.InteractionSerialEvaluator] == 1


@pytest.mark.parametrize("stated", [torch.ones(2), np.ones(2)])
def test_a_return_of_two_elements_is_an_error_of_torch_and_of_numpy(stated: Any) -> None:
    class Envs(Manager):
        def step(self, actions: Any) -> Any:
            steps = super().step(actions)
            for one in steps.values():
                one.info["eval_episode_return"] = stated
            return steps

    for kind in (RuntimeError, ValueError):
        with pytest.raises(kind, match="must be one number"):
            ding.SampleSerialCollector({}, Envs([1]), Actor().mode).collect(2)
        with pytest.raises(kind, match="must be one number"):
            ding.VectorEvalMonitor(1, 1).update_reward(0, stated)
