"""Faults of `hpcdi.worker` that programs of DI-engine's form ran into, by their smallest cases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes.battle_envs import RockPaperScissors
from fakes.serial_parts import Battle
from hpcdi.env.create import make_env_manager
from hpcdi.errors import BufferContractError, ConfigError, EnvError, PolicyError
from hpcdi.utils.nested import to_tensors
from hpcdi.worker import (
    AdvancedReplayBuffer,
    BaseLearner,
    BattleSampleSerialCollector,
    Coordinator,
    InteractionSerialEvaluator,
    NaiveReplayBuffer,
    SampleSerialCollector,
    SequenceReplayBuffer,
    create_buffer,
    to_tensor_transitions,
)
from hpcdi.worker.collector.base_serial_collector import CachePool
from hpcdi.worker.dict_envs import DictManager
from hpcdi.worker.dict_form import columns_of_samples
from hpcdi.worker.ding.convert import converted
from hpcdi.worker.ding.reader import read

# -------------------------------------------------------------------------------- replay buffers


@pytest.mark.parametrize("kind", ["naive", "advanced"])
@pytest.mark.parametrize("names", [["obs"], ["obs", "next_obs"]])
def test_shared_frames_survive_a_file_of_a_ring_that_has_wrapped(
    kind: str, names: list[str], tmp_path: Path
) -> None:
    cfg = {"type": kind, "replay_buffer_size": 8, "frames": names}
    items: list[dict[str, Any]] = []

    def push(buffer: Any, count: int) -> None:
        for first in range(len(items), len(items) + count):
            frames = np.arange(first, first + 5, dtype=np.uint8).reshape(5, 1, 1)
            items.append({"obs": frames[:4], "next_obs": frames[1:], "number": first})
            buffer.push(items[-1], 0)

    buffer = create_buffer(cfg)
    push(buffer, 13)
    buffer.save_data(tmp_path / "b.h5")
    buffer = create_buffer(cfg)
    buffer.load_data(tmp_path / "b.h5")
    push(buffer, 4)
    for item in buffer.sample(8, 0) or []:
        assert np.array_equal(item["obs"], items[item["number"]]["obs"])
        assert np.array_equal(item["next_obs"], items[item["number"]]["next_obs"])


@pytest.mark.parametrize("first", [np.float32(1), 1.0])
def test_one_item_beyond_its_column_is_refused_as_a_list_of_it_is(first: Any) -> None:
    buffer = NaiveReplayBuffer({})
    buffer.push({"reward": first}, 0)
    if isinstance(first, float) and type(first) is float:
        buffer.push({"reward": 1e39}, 0)  # a column of doubles
        assert buffer.count() == 2
        return
    with pytest.raises(BufferContractError, match="more than float32 holds"):
        buffer.push({"reward": 1e39}, 0)
    for fine in (np.inf, -3e38, np.float64(3e38), 7):
        buffer.push({"reward": fine}, 0)
    assert buffer.count() == 5


def test_a_key_keeps_the_kind_of_its_first_number() -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": 2})
    buffer.push({"reward": 0}, 0)
    with pytest.raises(BufferContractError, match=r"a reward 0\.0 instead of 0"):
        buffer.push({"reward": 0.5}, 0)
    buffer.push({"reward": True}, 0)
    assert buffer._data == [{"reward": 0}, {"reward": 1}]
    assert not isinstance(buffer._data[1]["reward"], bool)


def test_a_state_by_dingine_keys_is_of_one_size_and_keeps_its_ids() -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 4})
    buffer.push([{"o": float(number)} for number in range(6)], 0)
    state = dict(buffer.state_dict())
    with pytest.raises(BufferContractError, match="replay_buffer_size"):
        AdvancedReplayBuffer({"replay_buffer_size": 3}).load_state_dict(state)
    other = AdvancedReplayBuffer({"replay_buffer_size": 4})
    other.load_state_dict(state)
    other.update({"replay_unique_id": ["buffer_3"], "priority": [9.0]})
    assert [item["o"] for item in other._data if item["priority"] > 8] == [3.0]
    for key in ("next_unique_id", "tail", "push_count"):
        assert other.state_dict()[key] == state[key]


def test_ids_of_such_a_state_go_on_over_dropped_items() -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 4})
    buffer.push([{"o": float(number)} for number in range(6)], 0)
    state = dict(buffer.state_dict())
    state["data"] = [None if item["o"] in (2.0, 4.0) else item for item in state["data"]]
    state["use_count"] = np.array([4, 5, 2, 3])  # by slot: of the items 4, 5, 2, 3
    other = AdvancedReplayBuffer({"replay_buffer_size": 4})
    other.load_state_dict(state)
    left = {item["replay_unique_id"]: item["o"] for item in other._data if item is not None}
    assert left == {"buffer_3": 3.0, "buffer_5": 5.0}
    assert other.count() == 2
    assert [other._use_count[slot] for slot in (3, 1)] == [3, 5]


def test_columns_have_no_priorities_as_items_have_none() -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 8})
    buffer.push({"o": np.zeros(3), "priority": np.full(3, 5.0)}, 0, columns=True)
    buffer.push({"o": 0.0, "priority": 2.0}, 0)
    batch = buffer.sample_batch(1, 0)
    assert batch is not None
    assert "priority" not in batch.columns
    assert sorted(item["priority"] for item in buffer._data[:4]) == pytest.approx([2, 5, 5, 5])


@pytest.mark.parametrize(
    "marks", [[3, 2], (3, 2), np.array([3, 2]), torch.tensor([3, 2]), np.int64(2), torch.tensor(2)]
)
def test_a_sequence_is_as_old_as_its_oldest_transition(marks: Any) -> None:
    buffer = AdvancedReplayBuffer({})
    buffer.push({"o": [0.0, 1.0], "collect_iter": marks}, 0)
    (item,) = buffer.sample(1, 7) or []
    assert item["staleness"] == 5


def test_the_end_of_an_episode_of_objects_may_be_a_tensor() -> None:
    buffer = SequenceReplayBuffer({"replay_buffer_size": 4})
    buffer.push([{"n": n, "text": "", "done": torch.tensor([n == 1])} for n in range(4)])
    runs = buffer.sample(2, 2, 0)
    assert sorted(run[0]["n"] for run in runs or []) == [0, 2]


def test_priorities_may_have_a_graph_and_an_info_needs_ids() -> None:
    buffer = AdvancedReplayBuffer({})
    buffer.push([{"o": 1.0}] * 2, 0)
    with_graph = torch.full((1,), 3.0, requires_grad=True)
    buffer.update({"replay_unique_id": ["buffer_0"], "priority": with_graph})
    buffer.update({"unique_ids": np.array([1]), "priority": with_graph})
    assert [item["priority"] for item in buffer._data[:2]] == pytest.approx([3, 3])
    with pytest.raises(BufferContractError, match="no 'replay_unique_id'"):
        buffer.update({"priority": [1.0]})
    with pytest.raises(BufferContractError, match="no 'priority'"):
        buffer.update({"unique_ids": np.array([1])})
    with pytest.raises(BufferContractError, match="'collect_iter' is no number"):
        buffer.push({"o": 1.0, "collect_iter": "new"}, 0)
    deque = create_buffer({"type": "deque", "priority": True})
    with pytest.raises(BufferContractError, match="no 'priority'"):
        deque.update({"replay_unique_id": ["buffer_0"]})


# ------------------------------------------------------------------------- collectors, evaluators


class Player:
    """A policy that marks its transitions with its name."""

    def __init__(self, name: str, collect_data: bool = True) -> None:
        self.name, self.attributes = name, {"collect_data": collect_data, "unroll_len": 1}

    def forward(self, data: Mapping[int, Any], **_setting: Any) -> dict[int, Any]:
        return {env: {"action": torch.tensor(0)} for env in data}

    def process_transition(self, obs: Any, _output: Any, timestep: Any) -> dict[str, Any]:
        return {"obs": obs, "next_obs": timestep.obs, "by": self.name}

    def get_train_sample(self, transitions: list[Any]) -> list[Any]:
        return transitions

    def reset(self, _data_id: Any = None) -> None:
        pass

    def get_attribute(self, name: str) -> Any:
        return self.attributes[name]


def names_of(collector: BattleSampleSerialCollector) -> list[set[str]]:
    return [{sample["by"] for sample in of_player} for of_player in collector.collect(4)[0]]


def test_a_battle_collects_whom_its_policies_say_now() -> None:
    first = [Player("a"), Player("b", False)]
    collector = BattleSampleSerialCollector({}, Battle([5, 3]), first)
    assert names_of(collector) == [{"a"}, set()]
    first[0].attributes["collect_data"], first[1].attributes["collect_data"] = False, True
    assert names_of(collector) == [set(), {"b"}], "as the attributes are now"
    collector.reset_policy([Player("c"), Player("d", False)])
    assert names_of(collector) == [{"c"}, set()], "sides are traded"
    collector.reset_policy([Player("e"), Player("f")])
    assert names_of(collector) == [{"c", "e"}, {"f"}], "trajectories of whom is kept go on"
    collector.reset_policy([Player("g")] * 3)
    with pytest.raises(EnvError, match="2 players, and there are 3 policies"):
        collector.collect(4)
    collector.reset_policy([Player("h"), Player("i")])
    assert names_of(collector) == [{"h"}, {"i"}]


class Observed(gym.Env[Any, Any]):
    """Observations of a space, for three steps."""

    def __init__(self, observation_space: Any, action_space: Any = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps >= 3, False, {}


BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    "parts", [(spaces.Discrete(3), BOX), (BOX, spaces.Discrete(3))], ids=["number", "array"]
)
def test_observations_may_be_tuples(parts: Any) -> None:
    def envs() -> Any:
        return make_env_manager({"type": "base"}, [lambda: Observed(spaces.Tuple(parts))] * 2)

    for cfg in ({}, {"transform_obs": True}):
        with SampleSerialCollector(cfg, envs(), Player("a")) as collector:
            seen = collector.collect(4)[0]["obs"]
        assert [np.shape(part) for part in seen] == [np.shape(part.sample()) for part in parts]
    with InteractionSerialEvaluator({"n_episode": 2}, envs(), Player("a")) as evaluator:
        _, info = evaluator.eval()
    assert info["eval_episode_return"] == [3.0, 3.0]


class Pair(NamedTuple):
    """Two values."""

    one: Any
    two: Any


def test_trees_become_tensors_in_both_forms() -> None:
    backwards, foreign = np.arange(3.0)[::-1], np.arange(3).astype(">f4")
    whole = to_tensors({"a": backwards, "b": (1, foreign), "c": [1, 2.5], "d": Pair(1, 2)})
    assert whole["a"].tolist() == [2, 1, 0]
    assert [part.tolist() for part in whole["b"]] == [1, [0, 1, 2]]
    assert whole["c"].tolist() == [1, 2.5]
    assert isinstance(whole["d"], Pair)
    leaves = [whole["a"], *whole["b"], whole["c"], *whole["d"]]
    assert {leaf.dtype for leaf in leaves} == {torch.float32}
    texts = np.array(["a", None], object)
    (kept,) = to_tensor_transitions(
        [{"a": backwards, "b": (1, foreign), "c": (1, 2), "d": "text", "e": texts, "f": ">f8"}]
    )
    assert kept["a"].tolist() == [2, 1, 0]
    assert kept["a"].dtype == torch.float32, "doubles are halved"
    assert (kept["b"][0], kept["b"][1].tolist()) == (1, [0, 1, 2])
    assert kept["c"].tolist() == [1, 2]
    assert (kept["d"], kept["e"]) == ("text", texts)
    (far,) = to_tensor_transitions([{"a": np.ones(1, ">f8")}])
    assert far["a"].dtype == torch.float32


@pytest.mark.parametrize("value", ["go", None, True])
@pytest.mark.parametrize("is_nested", [False, True])
def test_texts_truths_and_none_stay_beside_tensors(value: Any, is_nested: bool) -> None:
    given = {"seen": np.ones(1), "mission": [{"a": value}] if is_nested else value}
    shown = to_tensors(given)
    assert shown["seen"].dtype == torch.float32
    assert shown["mission"] == given["mission"]
    told = shown["mission"][0]["a"] if is_nested else shown["mission"]
    assert type(told) is type(value)


@pytest.mark.parametrize("value", [np.array(["a", 1], object), object()])
def test_what_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(EnvError, match=r"in 'seen/mission\[1\]'"):
        to_tensors({"seen": {"mission": [1.0, value]}})


def test_a_pool_of_several_players_keeps_their_places() -> None:
    pool = CachePool("obs", 1)
    pool.update([{0: "a0"}, {0: "b0"}])
    before = pool[0]
    for turn in range(3):
        pool.update([{}, {0: f"b{turn}"}])
    assert (before, pool[0]) == (["a0", "b0"], ["a0", "b2"])
    pool.reset(0)
    pool.update([{}, {0: "b"}])
    assert pool[0] == [None, "b"]


def test_single_numbers_of_samples_may_be_arrays_of_one() -> None:
    numbers = {"reward": 1.0, "done": False, "value_gamma": 0.5, "IS": 2.0, "adv": 3.0}
    bare = [{"obs": np.zeros(4), **numbers, "done": end} for end in (False, True)]
    for kind in (np.array, torch.tensor):
        samples = [{k: kind([v]) if k in numbers else v for k, v in s.items()} for s in bare]
        columns, expected = (columns_of_samples(each, 0.9) for each in (samples, bare))
        for name, column in expected.items():
            np.testing.assert_array_equal(columns[name], column, strict=True)


class Unsaid(RockPaperScissors):
    """A game of two rounds; its infos say nothing."""

    rounds = 0

    def step(self, actions: Any) -> Any:
        self.rounds += 1
        obs, reward, _, _ = super().step(actions)
        return obs, reward, self.rounds == 2, [{}, {}]


def test_infos_of_each_player_say_how_a_game_ended() -> None:
    with make_env_manager(None, [Unsaid], battle=True) as rows:
        rows.launch()
        manager = DictManager(rows)
        first, last = (manager.step({0: [1, 0]})[0].info for _ in range(2))
    assert first == [{"terminated": False, "truncated": False}] * 2
    ended = {"terminated": True, "truncated": False}
    assert last == [{**ended, "eval_episode_return": total} for total in (2.0, -2.0)]


def test_an_action_of_another_shape_is_named() -> None:
    class Wide(Player):
        def forward(self, data: Mapping[int, Any], **_setting: Any) -> dict[int, Any]:
            return {env: {"action": torch.ones(2 + env)} for env in data}

    envs = make_env_manager({"type": "base"}, [lambda: Observed(BOX, BOX)] * 2)
    collector = SampleSerialCollector({}, envs, Wide("a"))
    with pytest.raises(PolicyError, match=r"environment 1 is array.*its space is Box"):
        collector.collect(2)
    collector.close()


@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 2, 3), (1, 6)])
def test_numbers_of_an_action_do_not_change_places(shape: tuple[int, ...]) -> None:
    """An array of another shape with as many numbers is no action; a flat one is."""

    class Turned(Player):
        def forward(self, data: Mapping[int, Any], **_setting: Any) -> dict[int, Any]:
            return {env: {"action": torch.arange(6.0).reshape(shape)} for env in data}

    table = spaces.Box(0, 9, (2, 3), np.float32)
    envs = make_env_manager({"type": "base"}, [lambda: Observed(BOX, table)])
    with SampleSerialCollector({}, envs, Turned("a")) as collector:
        if shape == (3, 2):
            with pytest.raises(PolicyError, match="environment 0 is array"):
                collector.collect(1)
        else:
            assert len(collector.collect(1)) == 1


# --------------------------------------------------------------------------- learner, coordinator


class Writer:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.scalars = self.flushes = self.closes = 0

    def add_scalar(self, *_point: Any) -> None:
        self.scalars += 1

    def flush(self) -> None:
        self.flushes += 1

    def close(self) -> None:
        self.closes += 1


def learner_of(logs: Any, cfg: Mapping[str, Any], writer: Any = None) -> Any:
    policy = SimpleNamespace(
        forward=lambda data, **_setting: logs,
        reset=lambda *_ids: None,
        info=lambda: "a policy",
        get_attribute={"batch_size": 1, "device": "cpu"}.__getitem__,
        state_dict=lambda: {"model": {}},
    )
    learner: Any = BaseLearner({"train_iterations": 2, **cfg}, policy, writer)
    learner.get_data = lambda size: [{}] * size
    return learner


def test_a_second_start_draws_curves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writer = Writer()
    learner = learner_of({"total_loss": 1.0}, {"hook": {"log_show_after_iter": 1}}, writer)
    learner.start()
    drawn = writer.scalars
    learner.start()
    assert (learner.train_iter, writer.scalars) == (4, 2 * drawn)
    assert (writer.flushes, writer.closes) == (2, 0)
    learner.close()
    learner.close()
    assert writer.closes == 1


def test_priorities_of_tasks_are_no_scalars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logs = [{"total_loss": 1.0, "priority": [1.0]}, {"total_loss": 2.0, "priority": [1.0]}]
    learner = learner_of(logs, {"is_multitask_pipeline": True})
    learner.train([[{"replay_unique_id": f"b_{task}"}] for task in range(2)])
    assert learner.log_buffer["scalar"] == {"task0/total_loss": 1.0, "task1/total_loss": 2.0}
    assert learner.priority_info["task1"]["priority"] == [1.0]


def test_a_finished_task_may_have_returns_of_any_form() -> None:
    env = {"type": "gymnasium", "env_id": "CartPole-v1", "stop_value": 10}
    coordinator = Coordinator({"main": {"exp_name": "x", "env": env, "policy": {"type": "dqn"}}})
    returns = [torch.tensor(11.0), np.array([12.0]), 13]
    task = {"eval_flag": True, "reward_raw": returns, "train_iter": None, "duration": None}
    coordinator.deal_with_collector_finish_task("task", task)
    coordinator.deal_with_collector_finish_task("task", {"reward_raw": None})
    coordinator.close()


# ------------------------------------------------------------------ configurations of DI-engine

MAIN: dict[str, Any] = {
    "env": {"collector_env_num": 2, "evaluator_env_num": 2},
    "policy": {"on_policy": False, "collect": {"n_sample": 8}, "learn": {"batch_size": 8}},
}
CREATE: dict[str, Any] = {"env": {"type": "a:Env"}, "policy": {"type": "a:Policy"}}


def conversion(part: str, key: str, value: Any) -> dict[str, Any]:
    """What `MAIN` becomes with another value in a part of it."""
    main: dict[str, Any] = {name: {**settings} for name, settings in MAIN.items()}
    node = main
    for name in filter(None, part.split(".")):
        node[name] = {**node.get(name, {})}
        node = node[name]
    node[key] = value
    policy = {**CREATE["policy"], **(main["policy"] if isinstance(main["policy"], dict) else {})}
    return converted(main, CREATE, policy)[0]


@pytest.mark.parametrize(
    ("part", "key"),
    [
        *(("env", key) for key in ("n_evaluator_episode", "stop_value", "manager")),
        *(("policy", key) for key in ("learn", "eval", "other", "random_collect_size")),
        *(("policy.learn", key) for key in ("batch_size", "update_per_collect", "learner")),
        ("policy.collect", "unroll_len"),
        ("policy.eval.evaluator", "eval_freq"),
        ("policy.other.replay_buffer", "max_staleness"),
        ("", "exp_name"),
    ],
)
def test_none_is_as_if_it_were_not_there(part: str, key: str) -> None:
    experiment = conversion(part, key, None)
    if part in ("env", "policy"):
        assert experiment[part]["ding"][key] is None, "settings of DI-engine's stay whole"
    del experiment["env"]["ding"], experiment["policy"]["ding"]
    usual = converted(MAIN, CREATE, {**CREATE["policy"], **MAIN["policy"]})[0]
    del usual["env"]["ding"], usual["policy"]["ding"]
    if key in ("learn", "batch_size"):
        usual["policy"]["learn"]["batch_size"] = 64
    assert experiment == usual


@pytest.mark.parametrize(
    ("part", "key", "value", "said"),
    [
        ("env", "collector_env_num", 0, "not below 1, not 0"),
        ("env", "evaluator_env_num", "eight", "not below 1, not 'eight'"),
        ("env", "n_evaluator_episode", math.inf, "not below 1, not inf"),
        ("env", "stop_value", [1], r"a number, not \[1\]"),
        ("env", "manager", [1], "must be a dict"),
        ("policy", "random_collect_size", -1, "not below 0"),
        ("policy", "on_policy", None, "neither in the configuration nor"),
        ("policy.learn", "learner", "fast", "must be a dict"),
        ("", "env", None, "is required"),
        ("", "policy", [1], "must be a dict"),
    ],
)
def test_what_cannot_be_is_a_problem_at_its_path(
    part: str, key: str, value: Any, said: str
) -> None:
    path = f"{part}.{key}" if part else key
    with pytest.raises(ConfigError, match=said) as caught:
        conversion(part, key, value)
    assert caught.value.problems[0].path.removeprefix("main_config.") == path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("main_config['env']['rewards'] = {0: 1.0}", "has the key 0; keys"),
        ("main_config['policy']['on'] = {True: 1.0}", "has the key True; keys"),
        ("import sys; sys.exit(0)", r"ends by sys\.exit\(0\)"),
        ("main_config['env'] = None", "main_config.env: is required"),
    ],
)
def test_a_file_that_is_no_configuration_says_why(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "a_config.py"
    path.write_text(f"main_config = {MAIN!r}\ncreate_config = {CREATE!r}\n{line}\n")
    with pytest.raises(ConfigError, match=said):
        read(path)
