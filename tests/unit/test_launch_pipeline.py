"""The loop of a serial run: what it does in which order, and what its parts do with data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fakes.serial_runs import BATTLE, DQN, LIMIT, PPO, ROOT, config_of, serial_run, train
from hpcdi.config.load import compile_config
from hpcdi.errors import ConfigError
from hpcdi.policy.exploration import get_epsilon_greedy_fn
from hpcdi.run.serial.pipeline import (
    ColumnPath,
    LearningAgent,
    Parts,
    SamplePath,
    SerialPipeline,
)
from hpcdi.worker import BaseSerialCommander

pytest.importorskip("pettingzoo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("one_torch_thread"),
]


@pytest.fixture
def foreign() -> str:
    """Settings of a policy of somebody else, that knows no columns."""
    return str(ROOT / "tests" / "fakes" / "foreign_policy.yaml")


# --------------------------------------------------------------------------------- the loop, faked


class World:
    """Every part of a run, with one diary."""

    def __init__(self, agents: int = 1, *, per_collect: int = 10, batches: int = 2) -> None:
        self.diary: list[Any] = []
        self.envstep = self.train_iter = 0
        self.per_collect = per_collect
        self.batch_count: int | None = batches
        self.evaluated_at: list[int] = []
        self.mean, self.is_enough, self.stop_value = 5.0, False, 50.0
        made = tuple(self._agent(number) for number in range(agents))
        self.parts = Parts(self, self, made, self, None)  # type: ignore[arg-type]

    def _agent(self, number: int) -> LearningAgent:
        iterations = SimpleNamespace(train_iter=0)

        def learn(batch: Any, envstep: int) -> None:
            iterations.train_iter += 1
            self.diary.append(("train", number, batch, envstep))

        iterations.train = learn
        commander = SimpleNamespace(step=lambda: {"of": number})
        return LearningAgent(None, iterations, None, commander)  # type: ignore[arg-type]

    # The data path.

    def collect(self, train_iter: int, settings: Any) -> int:
        self.diary.append(("collect", train_iter, settings))
        self.envstep += self.per_collect
        return self.per_collect

    def batches(self, updates: int) -> list[Iterator[Any]]:
        self.diary.append(("batches", updates))
        count = updates if self.batch_count is None else self.batch_count
        return [iter([f"batch {k}" for k in range(count)]) for _ in self.parts.agents]

    # The evaluator.

    def should_eval(self, train_iter: int) -> bool:
        return not self.evaluated_at or train_iter >= self.evaluated_at[-1] + 4

    def eval(self, keep: Callable[[str], None], train_iter: int, envstep: int) -> Any:
        self.diary.append(("evaluate", train_iter, envstep))
        self.evaluated_at.append(train_iter)
        keep("best")
        return self.is_enough, {}

    @property
    def scalars(self) -> dict[str, float]:
        return {
            "reward_mean": self.mean, "reward_std": 1.0, "reward_min": 4.0, "reward_max": 6.0,
            "episode_count": 2.0,
        }  # fmt: skip

    def pipeline(self, **policy: Any) -> SerialPipeline:
        cfg = {"env": {"env_id": "CartPole-v1", "stop_value": 50}, "policy": policy}
        return SerialPipeline(compile_config(cfg).config, self.parts, self.diary.append)


FREE: dict[str, Any] = {"learn": {"replay_ratio": None}}


def limits(**given: float) -> dict[str, Any]:
    return {"other": {"commander": given}}


def never() -> None:
    return None


def test_the_order_of_things() -> None:
    world = World()
    reason = world.pipeline(**FREE, **limits(max_train_iter=4)).run(never)
    assert reason == "max_train_iter reached: 4 of 4"
    assert world.diary == [
        ("evaluate", 0, 0), "best",
        ("collect", 0, [{"of": 0}]), ("batches", 1),
        ("train", 0, "batch 0", 10), ("train", 0, "batch 1", 10),
        ("collect", 2, [{"of": 0}]), ("batches", 1),
        ("train", 0, "batch 0", 20), ("train", 0, "batch 1", 20),
        ("evaluate", 4, 20), "best",
    ]  # fmt: skip


def test_agents_learn_from_their_own_batches_as_they_act_by_their_own_settings() -> None:
    world = World(agents=2)
    world.pipeline(**limits(max_train_iter=1)).run(never)
    assert world.diary[2] == ("collect", 0, [{"of": 0}, {"of": 1}])
    learnt = [entry[1:3] for entry in world.diary if entry[0] == "train"]
    assert learnt == [(0, "batch 0"), (0, "batch 1"), (1, "batch 0"), (1, "batch 1")]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, 24), (FREE, 3), ({"learn": {"update_per_collect": 7}}, 7), ({"type": "ppo"}, 1),
        ({"type": "ppo", "learn": {"update_per_collect": 2}}, 2),
    ],
)  # fmt: skip
def test_updates_after_each_collecting(policy: dict[str, Any], expected: int) -> None:
    """DQN draws 8 samples a transition; free, one update for 64; on-policy data are used in one."""
    world = World(per_collect=3 * 64 + 1)
    world.pipeline(**policy, **limits(max_env_step=1)).run(never)
    assert ("batches", expected) in world.diary


def test_updates_keep_a_ratio_from_the_end_of_the_warm_up_on() -> None:
    """80 transitions, 30 of them before learning begins, 2.5 samples each: 15 batches of 8."""
    world = World(per_collect=10)
    world.batch_count = None
    policy = {"random_collect_size": 30, "learn": {"replay_ratio": 2.5, "batch_size": 8}}
    world.pipeline(**policy, **limits(max_env_step=80)).run(never)
    asked = [entry[1] for entry in world.diary if entry[0] == "batches"]
    assert asked == [3, 3, 3, 3, 3]


def test_updates_make_up_for_fractions() -> None:
    world = World(per_collect=10)
    world.batch_count = None
    world.pipeline(learn={"replay_ratio": 1.0, "batch_size": 16}, **limits(max_env_step=80)).run(
        never
    )
    asked = [entry[1] for entry in world.diary if entry[0] == "batches"]
    assert asked == [0, 1, 0, 1, 1, 0, 1, 0], "79 transitions: min_fill is 1"


def test_few_transitions_are_worth_an_update() -> None:
    world = World(per_collect=1)
    world.pipeline(**FREE, **limits(max_env_step=1)).run(never)
    assert ("batches", 1) in world.diary


def test_a_limit_of_environment_steps() -> None:
    world = World()
    assert world.pipeline(**limits(max_env_step=25)).run(never) == (
        "max_env_step reached: 30 of 25"
    )


def test_a_good_policy_ends_the_run() -> None:
    world = World()
    world.mean, world.is_enough = 51.25, True
    pipeline = world.pipeline()
    assert pipeline.run(never) == "stop value reached: mean return 51.2 of 50"
    (evaluation,) = pipeline.evaluations
    assert vars(evaluation) == {
        "mean": 51.25, "std": 1.0, "lowest": 4.0, "highest": 6.0, "episodes": 2,
        "policy_version": 0, "env_steps": 0, "took_s": 0.0,
    }  # fmt: skip
    assert not any(entry[0] == "collect" for entry in world.diary)


def test_stop_is_asked_between_two_turns() -> None:
    world = World()
    answers = iter([None, None, "received SIGINT"])
    assert world.pipeline().run(lambda: next(answers)) == "received SIGINT"
    assert [entry[0] for entry in world.diary].count("collect") == 2


def test_a_buffer_that_gives_nothing_yet_is_filled_on() -> None:
    world = World(batches=0)
    world.pipeline(**limits(max_env_step=30)).run(never)
    assert [entry for entry in world.diary if entry[0] == "collect"] == [
        ("collect", 0, [{"of": 0}])
    ] * 3


# -------------------------------------------------------------------------------------- the warm-up


def test_it_begins_at_random() -> None:
    world = World()
    world.pipeline(random_collect_size=25, **limits(max_env_step=40)).run(never)
    kinds = [entry[2] for entry in world.diary if entry[0] == "collect"]
    assert kinds == [None, None, None, [{"of": 0}]]
    assert world.diary[3] == ("evaluate", 0, 30), "nothing is learnt or judged meanwhile"


def test_a_run_that_goes_on_does_not_begin_anew() -> None:
    world = World()
    world.parts.agents[0].learner.train_iter = 5  # type: ignore[misc]
    world.pipeline(random_collect_size=25, **limits(max_train_iter=6)).run(never)
    assert all(entry[2] is not None for entry in world.diary if entry[0] == "collect")


def test_stop_is_heard_while_it_begins_though_it_is_said_once() -> None:
    world = World()
    answers = iter([None, "received SIGTERM"])
    reason = world.pipeline(random_collect_size=10**6).run(lambda: next(answers, None))
    assert reason == "received SIGTERM"
    assert world.diary == [("collect", 0, None)] * 2


# ---------------------------------------------------------------------------------- with real parts


def test_columns_that_are_collected_at_random(tmp_path: Path) -> None:
    """The policy would always do the same in the same state; eps begins with 0.95 at most."""
    random = "policy.random_collect_size=400"
    greedy = "policy.other.eps.start=0"
    with serial_run(
        tmp_path, "cartpole_dqn", *DQN, random, greedy, f"{LIMIT}.max_env_step=400"
    ) as run:
        assert isinstance(run.pipeline.parts.data, ColumnPath)
        assert train(run) == f"max_env_step reached: {run.pipeline.env_steps} of 400"
        buffer = run.pipeline.parts.agents[0].buffer
        assert buffer.count() == run.pipeline.env_steps >= 400
        actions = buffer.sample_batch(400, 0).columns["action"]
        assert 0.4 < actions.mean() < 0.6
        assert run.pipeline.train_iter == 0


def test_collecting_at_random_keeps_to_the_limits(tmp_path: Path) -> None:
    more = ("policy.random_collect_size=100000", f"{LIMIT}.max_env_step=200")
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *more) as run:
        assert train(run).startswith("max_env_step reached")
        assert 200 <= run.pipeline.env_steps < 400


def test_samples_that_are_collected_at_random(tmp_path: Path, foreign: str) -> None:
    random = "policy.random_collect_size=400"
    with serial_run(tmp_path, foreign, random, f"{LIMIT}.max_env_step=400") as run:
        parts = run.pipeline.parts
        assert isinstance(parts.data, SamplePath)

        def never_asked(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("the policy acts")

        parts.collector._policy = parts.collector._policy._replace(forward=never_asked)
        train(run)
        items = parts.agents[0].buffer.sample(400, 0)
        assert 0.4 < np.mean([int(item["action"]) for item in items]) < 0.6
        assert parts.agents[0].buffer.count() >= 400


def test_battles_that_are_collected_at_random(tmp_path: Path) -> None:
    name, small = BATTLE
    random = "policy.random_collect_size=200"
    with serial_run(
        tmp_path, name, *small, random, f"{LIMIT}.max_train_iter=4",
        "policy.other.replay_buffer.min_fill=1",
    ) as run:  # fmt: skip
        parts, seen = run.pipeline.parts, []
        modes = list(parts.collector.policy)
        collect = parts.collector.collect

        def watched(*args: Any, **kwargs: Any) -> Any:
            seen.append(
                ([type(p).__name__ for p in parts.collector.policy], run.pipeline.train_iter)
            )
            return collect(*args, **kwargs)

        parts.collector.collect = watched
        train(run)
        by_random = [names for names, _ in seen if names == ["RandomPolicy"] * 2]
        assert len(by_random) >= 2
        assert seen[: len(by_random)] == [(["RandomPolicy"] * 2, 0)] * len(by_random)
        assert len(seen) > len(by_random)
        assert list(parts.collector.policy) == modes


def test_random_data_on_policy_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy\.random_collect_size: fills a replay buffer"):
        config_of("cartpole_ppo", "policy.random_collect_size=100")


def test_updates_follow_from_transitions(tmp_path: Path) -> None:
    """64 transitions are collected each time, and a few more; 32 must be there."""
    with serial_run(tmp_path, "cartpole_dqn", *DQN, f"{LIMIT}.max_train_iter=20") as run:
        assert train(run) == "max_train_iter reached: 20 of 20"
        assert 20 * 64 <= run.pipeline.env_steps <= 20 * (64 + 8)


def test_as_many_updates_as_are_asked_for(tmp_path: Path) -> None:
    more = "policy.learn.update_per_collect=5"
    with serial_run(tmp_path, "cartpole_dqn", *DQN, more, f"{LIMIT}.max_train_iter=18") as run:
        train(run)
        assert run.pipeline.train_iter == 20
        assert run.pipeline.env_steps < 5 * (64 + 8)


def test_a_policy_is_evaluated_when_it_is_time(tmp_path: Path) -> None:
    often = "policy.eval.every=null", "policy.eval.evaluator.eval_freq=4"
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *often, f"{LIMIT}.max_train_iter=9") as run:
        train(run)
        evaluations = run.pipeline.evaluations
    # what was learnt since the last time is evaluated at the end
    assert [evaluation.policy_version for evaluation in evaluations] == [0, 4, 8, 9]
    assert [evaluation.episodes for evaluation in evaluations] == [2] * 4
    steps = [evaluation.env_steps for evaluation in evaluations]
    assert steps[0] == 0 < steps[1] < steps[2]
    assert (tmp_path / "policies" / "best.safetensors").exists()


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("policy.eval.every=4 iterations", [4, 8, 9]),
        ("policy.eval.every=260 env_steps", [5, 9]),  # 64 and a few steps are an iteration
        ("policy.eval.every=1000 seconds", [9]),
    ],
)
def test_one_key_says_how_often(tmp_path: Path, every: str, expected: list[int]) -> None:
    with serial_run(tmp_path, "cartpole_dqn", *DQN, every, f"{LIMIT}.max_train_iter=9") as run:
        train(run)
        evaluations = run.pipeline.evaluations
    assert [evaluation.policy_version for evaluation in evaluations] == expected


def test_the_evaluation_at_the_end_may_reach_the_goal(tmp_path: Path) -> None:
    more = ("policy.eval.every=1000 seconds", "env.stop_value=1", f"{LIMIT}.max_train_iter=9")
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *more) as run:
        assert run.train().reason.startswith("stop value reached")


def test_exploration_follows_the_steps(tmp_path: Path) -> None:
    eps = ("policy.other.eps.type=linear", "policy.other.eps.start=1", "policy.other.eps.end=0",
           "policy.other.eps.decay=500")  # fmt: skip
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *eps, f"{LIMIT}.max_env_step=700") as run:
        collector, told = run.pipeline.parts.collector, []
        act = collector.policy.get_attribute("columnar").act

        def watched(observation: Any, setting: Any, rows: Any = None) -> Any:
            told.append((collector.envstep, setting["eps"]))
            return act(observation, setting, rows)

        collector.policy.get_attribute("columnar").act = watched
        train(run)
    rate = get_epsilon_greedy_fn(1.0, 0.0, 500, "linear")
    assert {eps for _, eps in told} >= {1.0, 0.0}
    assert all(eps == pytest.approx(rate(envstep)) for envstep, eps in told)


def test_a_commander_without_a_policy_gives_no_settings() -> None:
    learner = SimpleNamespace(learn_info={"learner_step": 3, "learner_done": False})
    commander = BaseSerialCommander(None, learner, SimpleNamespace(envstep=40), None, None)
    assert commander.step() == {}
    asked: list[Any] = []
    commander.policy = SimpleNamespace(
        get_setting_collect=lambda info: asked.append(info) or {1: 2}
    )
    assert commander.step() == {1: 2}
    assert asked == [{"learner_step": 3, "learner_done": False, "envstep": 40}]


def test_a_foreign_policy_learns_from_dicts(tmp_path: Path, foreign: str) -> None:
    with serial_run(tmp_path, foreign, f"{LIMIT}.max_train_iter=30") as run:
        (agent,) = run.pipeline.parts.agents
        updates: list[Any] = []
        update = agent.buffer.update
        agent.buffer.update = lambda info: (updates.append(copy.copy(info)), update(info))
        before = copy.deepcopy(agent.policy.state_dict())
        train(run)
        assert agent.learner.train_iter == 30
        assert len(updates) == 30, "new priorities, after each batch"
        assert all(len(info["replay_unique_id"]) == 16 for info in updates)
        assert updates[0]["replay_unique_id"] != updates[1]["replay_unique_id"]
        after = agent.policy.state_dict()
        assert not torch.equal(before["model"]["weight"], after["model"]["weight"])


def test_priorities_come_back(tmp_path: Path) -> None:
    on = ("policy.priority=true", "policy.priority_IS_weight=true")
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *on, f"{LIMIT}.max_train_iter=20") as run:
        (agent,) = run.pipeline.parts.agents
        drawn: list[Any] = []
        told: list[Any] = []
        sample, update = agent.buffer.sample_batch, agent.buffer.update_priorities

        def sample_batch(*args: Any, **kwargs: Any) -> Any:
            made = sample(*args, **kwargs)
            drawn.append(made.drawn.unique_ids.tolist())
            return made

        def update_priorities(ids: Any, priorities: Any) -> int:
            told.append(ids.tolist())
            return int(update(ids, priorities))

        agent.buffer.sample_batch, agent.buffer.update_priorities = (
            sample_batch, update_priorities
        )  # fmt: skip
        train(run)
        assert told == drawn
        assert len(told) == 20
        masses = agent.buffer.state_dict()["index"]["mass"]
        assert len(np.unique(masses[masses > 0])) > 100
        weights = agent.buffer.sample_batch(64, 20).drawn.weights
        assert 0 < weights.min() < weights.max() <= 1


def test_data_that_are_used_once_never_go_to_the_buffer(tmp_path: Path) -> None:
    with serial_run(tmp_path, "cartpole_ppo", *PPO, f"{LIMIT}.max_train_iter=6") as run:
        (agent,) = run.pipeline.parts.agents
        batches: list[Any] = []
        learn = agent.learner.train
        agent.learner.train = lambda batch, envstep: (
            batches.append(batch),
            learn(batch, envstep),
        )
        train(run)
        assert agent.buffer.count() == 0
        assert run.pipeline.train_iter == 6
        rows = [len(batch["observation"]) for batch in batches]
        assert sum(rows) == run.pipeline.env_steps, "every transition once"
        assert all(64 <= count <= 64 + 4 for count in rows)


def test_ppo_transition_by_transition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdi.run.serial.parts.columnar_actor", lambda _policy: None)
    monkeypatch.setattr(
        "hpcdi.worker.collector.base_serial_collector.columnar_actor", lambda _policy: None
    )
    with serial_run(tmp_path, "cartpole_ppo", *PPO, f"{LIMIT}.max_train_iter=3") as run:
        assert isinstance(run.pipeline.parts.data, SamplePath)
        (agent,) = run.pipeline.parts.agents
        batches: list[Any] = []
        learn = agent.learner.train
        agent.learner.train = lambda batch, envstep: (
            batches.append(batch),
            learn(batch, envstep),
        )
        train(run)
    assert agent.buffer.count() == 0
    assert [{item["collect_iter"] for item in batch} for batch in batches] == [{0}, {1}, {2}]


def test_two_agents_of_a_battle(tmp_path: Path) -> None:
    name, small = BATTLE
    with serial_run(tmp_path, name, *small, f"{LIMIT}.max_train_iter=10") as run:
        before = [copy.deepcopy(s.policy.state_dict()["model"]) for s in run.pipeline.parts.agents]
        reason = train(run)
        agents = run.pipeline.parts.agents
        assert reason.startswith("max_train_iter reached: 10")
        assert [agent.learner.train_iter for agent in agents] == [10, 10]
        assert all(agent.buffer.count() >= 32 for agent in agents)
        after = [agent.policy.state_dict()["model"] for agent in agents]
        for old, new in zip(before, after, strict=True):
            assert not all(torch.equal(old[key], new[key]) for key in old)
        assert not all(torch.equal(after[0][key], after[1][key]) for key in after[0])
        own = [{item["obs"]["observation"].tobytes() for item in s.buffer.sample(200, 10)}
               if isinstance(s.buffer.sample(1, 10)[0]["obs"], dict) else set()
               for s in agents]  # fmt: skip
        assert own[0] != own[1] or not own[0], "each sees the board from its own side"
        assert len(run.pipeline.evaluations) >= 1
