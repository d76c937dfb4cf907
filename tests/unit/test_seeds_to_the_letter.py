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
from fakes.evaluator_parts import BattleManager, DuckPolicy
from fakes.serial_parts import Actor, Battle, Manager
from hpcdi.config.compat import ConfigDict as EasyDict
from hpcdi.errors import ConfigError
from hpcdi.worker.coordinator.resource_manager import NaiveResourceManager
from hpcdi.worker.dict_envs import infos_of
from hpcdi.worker.replay_buffer.utils import UsedDataRemover

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


@pytest.mark.parametrize("kind", ["sample_1v1", "episode_1v1"])
def test_infos_of_players_may_go_by_number_where_collectors_battle(kind: str) -> None:
    """DI-engine asks for ``info[player]``: of a list, or of a dict."""

    class ByNumber(Battle):
        def info(self, env: int, done: bool) -> Any:
            return {"step": self.at[env], **dict(enumerate(super().info(env, done)))}

    got = []
    for envs in (Battle([2, 3]), ByNumber([2, 3])):
        modes = [Actor(player).mode for player in range(2)]
        collector = ding.create_serial_collector({"type": kind}, env=envs, policy=modes)
        got.append(collector.collect(4)[1])
    assert got[0] == got[1]
    assert [len(infos) for infos in got[0]] == ([1, 1] if kind == "sample_1v1" else [4, 4])


def test_infos_of_players_may_go_by_number_where_they_are_evaluated() -> None:
    class ByNumber(BattleManager):
        def step(self, actions: Any) -> Any:
            steps = super().step(actions)
            by_number = {k: [{}, s.info] if s.info == {"abnormal": True} else s.info
                         for k, s in steps.items()}  # fmt: skip
            return {k: s._replace(info=dict(enumerate(by_number[k]))) for k, s in steps.items()}

    got = []
    for kind in (BattleManager, ByNumber):
        envs, policies = (
            kind([[(3, 1.0), (3, 2.0)]], failing={0: [2]}),
            [*map(DuckPolicy, (10, 11))],
        )
        got.append(ding.BattleInteractionSerialEvaluator({"n_episode": 1}, envs, policies).eval())
        assert envs.resets == [0]
    assert got[0] == got[1]


@pytest.mark.parametrize("players", [1, 2])
def test_numbers_beside_the_return_of_all_are_no_players(players: int) -> None:
    units: Any = {0: {"health": 1}, 1: {"health": 2}}
    for each in infos_of(units, 1, 0, ended=False):
        assert each == units
    returns = [1.0, -1.0][:players]
    told = infos_of({**units, "eval_episode_return": returns}, players, 0, ended=True)
    assert [each["eval_episode_return"] for each in told] == returns


def test_all_players_may_be_abnormal_where_infos_go_by_number() -> None:
    class Fails(BattleManager):
        def step(self, actions: Any) -> Any:
            return {
                k: s._replace(info={0: {}, 1: {}, **s.info} if isinstance(s.info, dict) else s.info)
                for k, s in super().step(actions).items()
            }

    envs = Fails([[(3, 1.0), (3, 2.0)]], failing={0: [2]})
    policies = [*map(DuckPolicy, (10, 11))]
    ding.BattleInteractionSerialEvaluator({"n_episode": 1}, envs, policies).eval()
    assert envs.resets == [0]


def test_an_episode_without_its_return_is_a_key_error() -> None:
    class Envs(Manager):
        def info(self, env: int, done: bool) -> Any:
            return {}

    with pytest.raises(KeyError) as error:
        ding.SampleSerialCollector({}, Envs([1]), Actor().mode).collect(2)
    assert str(error.value).startswith("environment 0 ended"), "as text, not its repr"


def test_priorities_without_ids_are_a_key_error() -> None:
    buffer = advanced()
    buffer.push(item(0), 0)
    for info in ({"priority": [1.0]}, {"replay_unique_id": ["buffer_0"]}):
        with pytest.raises(KeyError, match=r"^buffer\.update: the info has no"):
            buffer.update(info)


@pytest.mark.parametrize("name", ["no_such_module", "no module"])
def test_a_module_that_is_missing_is_an_import_error(name: str) -> None:
    for create in (ding.create_buffer, ding.create_learner, ding.create_serial_collector):
        with pytest.raises(ModuleNotFoundError, match=name) as error:
            create(EasyDict(type="mine", import_names=[name]))
        assert isinstance(error.value, ConfigError)


def test_what_diengine_asserts_of_workers_and_of_used_files() -> None:
    manager = NaiveResourceManager()
    for ask in (manager.have_assigned, manager.delete, lambda *who: manager.update(*who, {})):
        with pytest.raises(AssertionError, match="not 'actor'"):
            ask("actor", "0")
    for data in (None, "a_file", {"priority": 1.0}):
        with pytest.raises(AssertionError, match="data_id"):
            UsedDataRemover().add_used_data(data)


def test_marks_of_a_sample_come_in_diengines_order() -> None:
    collector = ding.SampleSerialCollector({}, Manager([4]), Actor(n_sample=4).mode)
    (sample, *_) = collector.collect(level_seeds=[7])
    assert [key for key in sample if key in ("seed", "collect_iter")] == ["seed", "collect_iter"]
