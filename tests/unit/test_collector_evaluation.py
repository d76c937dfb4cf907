"""Serial evaluators: one contract for all, one policy, several policies, quotas of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset

import hpcdi.env.toy  # noqa: F401  (registers hpcdi/Count-v0)
from fakes.evaluator_parts import Accuracy, BattleManager, DuckPolicy, Manager, ParityPolicy, Step
from fakes.serial_parts import ColumnarActor
from hpcdi.env.create import create_env_manager, make_env_manager
from hpcdi.env.toy import CountEnv
from hpcdi.errors import ConfigError, EnvError, PolicyError, UnknownTypeError
from hpcdi.policy.base import EvalMode
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.worker import (
    BattleInteractionSerialEvaluator,
    InteractionSerialEvaluator,
    ISerialEvaluator,
    MetricSerialEvaluator,
    VectorEvalMonitor,
    create_serial_evaluator,
    dict_envs,
)
from hpcdi.worker.collector.evaluation import play_episodes
from hpcdi.worker.errors import QuotaError

# ----------------------------------- one contract for all serial evaluators, whatever they judge by


KINDS: dict[str, Any] = {
    "interaction": InteractionSerialEvaluator,
    "battle_interaction": BattleInteractionSerialEvaluator,
    "metric": MetricSerialEvaluator,
}
CURVES = {
    "interaction": "reward_mean",
    "battle_interaction": "reward_mean",
    "metric": "acc",
}


class Bench:
    """An evaluator of some kind, whose next result is `set` (0 to 1, in quarters)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.labels = torch.zeros(8, dtype=torch.int64)
        self.episodes = [[(2, 0.5)], [(3, 0.5)]]

    def set(self, result: float) -> None:
        self.episodes[:] = [[(2, result)], [(3, result)]]
        numbers = torch.arange(8) % 2
        right = int(8 * result)
        self.labels[:] = torch.where(torch.arange(8) < right, numbers, 1 - numbers)

    def env(self) -> Any:
        if self.kind == "metric":
            return DataLoader(TensorDataset(torch.arange(8), self.labels), 4), Accuracy()
        return (BattleManager if self.kind == "battle_interaction" else Manager)(self.episodes)

    def policy(self) -> Any:
        if self.kind == "battle_interaction":
            return [DuckPolicy(10), DuckPolicy(11)]
        return ParityPolicy() if self.kind == "metric" else DuckPolicy()

    def make(self, cfg: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        given = {"env": self.env(), "policy": self.policy()} | kwargs
        quota = {} if self.kind == "metric" else {"n_episode": 2}
        return create_serial_evaluator({"type": self.kind, **quota, **(cfg or {})}, **given)


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


class TestContract:
    def test_the_type_chooses_the_class(self, bench: Bench) -> None:
        with bench.make() as evaluator:
            assert type(evaluator) is KINDS[bench.kind]
            assert isinstance(evaluator, ISerialEvaluator)

    def test_a_result_is_given_and_kept(self, bench: Bench) -> None:
        with bench.make() as evaluator:
            assert evaluator.best is None
            bench.set(0.75)
            stop, result = evaluator.eval(train_iter=1)
            assert stop is False
            assert result_of(bench.kind, result) == 0.75
            best = evaluator.best
            assert (best["acc"] if bench.kind == "metric" else best) == 0.75

    def test_iteration_0_is_always_right_and_none_twice(self, bench: Bench) -> None:
        with bench.make({"eval_freq": 10}) as evaluator:
            asked = [0, 0, 1, 9, 10, 10, 15, 19, 20, 45, 54, 55]
            answers = [evaluator.should_eval(train_iter) for train_iter in asked]
            due = [a for a, yes in zip(asked, answers, strict=True) if yes]
            assert due == [0] * (bench.kind == "battle_interaction") + [0, 10, 20, 45, 55]
            evaluator.reset()
            assert evaluator.should_eval(55)

    @pytest.mark.parametrize("first", [0, 999, 1234])
    def test_the_first_time_comes_after_as_many_iterations_as_others(
        self, bench: Bench, first: int
    ) -> None:
        is_battle = bench.kind == "battle_interaction"
        first += is_battle and first > 0  # DI-engine's battles count from 0, others from -1
        with bench.make({"eval_freq": 1000}) as evaluator:
            assert not evaluator.should_eval(3)
            assert evaluator.should_eval(first)
            assert evaluator.should_eval(first) is (is_battle and first == 0)
            assert not evaluator.should_eval(first + 999)
            assert evaluator.should_eval(first + 1000)

    def test_a_count_that_begins_anew_is_evaluated_at_0(self, bench: Bench) -> None:
        with bench.make({"eval_freq": 10}) as evaluator:
            assert evaluator.should_eval(500)
            assert [evaluator.should_eval(k) for k in (20, 0, 9, 10)] == [False, True, False, True]

    @pytest.mark.parametrize(
        ("result", "train_iter", "stops"),
        [(0.5, 7, True), (0.75, 7, True), (0.25, 7, False), (0.75, 0, False), (0.75, -1, False)],
    )
    def test_it_ends_when_the_value_is_reached_after_some_training(
        self, bench: Bench, result: float, train_iter: int, stops: bool
    ) -> None:
        with bench.make({"stop_value": 0.5}) as evaluator:
            bench.set(result)
            assert evaluator.eval(train_iter=train_iter)[0] is stops

    def test_without_a_stop_value_it_never_ends(self, bench: Bench) -> None:
        with bench.make() as evaluator:
            bench.set(1.0)
            assert evaluator.eval(train_iter=10**9)[0] is False

    def test_the_best_policy_is_saved(self, bench: Bench) -> None:
        saved: list[tuple[int, str]] = []
        with bench.make() as evaluator:
            for turn, result in enumerate([0.25, 0.75, 0.5, 1.0, 0.0]):
                bench.set(result)
                evaluator.eval(lambda name, turn=turn: saved.append((turn, name)), train_iter=turn)
            assert saved == [(turn, "ckpt_best.pth.tar") for turn in (0, 1, 3)]
            best = evaluator.best
            evaluator.reset()
            evaluator.eval(lambda name: saved.append((9, name)))
            assert saved[-1][0] == 9, "a reset forgets the best"
            evaluator.best = best  # as a run does that goes on from its snapshot
            bench.set(0.75)
            evaluator.eval(lambda name: saved.append((10, name)))
            assert saved[-1][0] == 9

    def test_curves_have_a_point_on_both_axes(self, bench: Bench, tmp_path: Path) -> None:
        writer = TensorBoardWriter(tmp_path)
        with bench.make(tb_logger=writer, instance_name="judge") as evaluator:
            for turn, result in enumerate([0.25, 0.75]):
                bench.set(result)
                evaluator.eval(train_iter=10 * turn, envstep=1000 * turn)
        events = EventAccumulator(str(tmp_path)).Reload()
        for axis, step in (("iter", 10), ("step", 1000)):
            points = events.Scalars(f"judge_{axis}/{CURVES[bench.kind]}")
            assert [(p.step, p.value) for p in points] == [(0, 0.25), (step, 0.75)]
            assert len(events.Scalars(f"judge_{axis}/evaluate_time")) == 2

    def test_without_a_writer_nothing_is_written(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with bench.make() as evaluator:
            evaluator.eval(train_iter=1)
        assert list(tmp_path.iterdir()) == []

    def test_it_says_what_it_found(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "hpcdi")
        with bench.make({"stop_value": 0.5}, instance_name="judge") as evaluator:
            evaluator.eval(train_iter=3, envstep=4)
            bench.set(1.0)
            evaluator.eval(train_iter=5, envstep=6)
        lines = [record.message for record in caplog.records]
        assert lines[-2].startswith("judge: ")
        assert lines[-2].endswith("train iteration 5, env step 6")
        assert "reaches the stop value 0.5" in lines[-1]

    def test_closing_closes_the_writer_once(self, bench: Bench) -> None:
        calls: list[str] = []

        class Writer:
            def add_scalar(self, *_: Any) -> None: ...

            def flush(self) -> None:
                calls.append("flush")

            def close(self) -> None:
                calls.append("close")

        evaluator = bench.make(tb_logger=Writer())
        evaluator.close()
        evaluator.close()
        assert calls == ["flush", "close"]
        assert evaluator.env is None

    def test_closed_it_says_so_and_opens_with_another_environment(self, bench: Bench) -> None:
        evaluator = bench.make()
        evaluator.close()
        with pytest.raises(EnvError, match=r"has no environment; give it one by reset_env"):
            evaluator.eval()
        with pytest.raises(EnvError, match=r"has no environment"):
            evaluator.reset_env()
        evaluator.reset(_env=bench.env())
        evaluator.eval()
        evaluator.close()

    def test_environment_and_policy_may_come_later(self, bench: Bench) -> None:
        with bench.make(env=None, policy=None) as evaluator:
            env, policy = bench.env(), bench.policy()
            evaluator.reset_env(env)
            with pytest.raises(PolicyError, match=r"has no policy; give it one by reset_policy"):
                evaluator.eval()
            with pytest.raises(PolicyError, match=r"has no policy"):
                evaluator.reset_policy()
            evaluator.reset_policy(policy)
            evaluator.eval()
            assert evaluator.policy == policy

    def test_evaluating_again_gives_the_same(self, bench: Bench) -> None:
        with bench.make() as evaluator:
            bench.set(0.25)
            results = [result_of(bench.kind, evaluator.eval()[1]) for _ in range(3)]
            assert results == [0.25] * 3

    def test_wrong_settings_are_told_all_at_once(self, bench: Bench) -> None:
        with pytest.raises(ConfigError) as caught:
            bench.make({"eval_freq": "often", "stop_valeu": 1})
        assert [p.path for p in caught.value.problems] == ["eval_freq", "stop_valeu"]
        assert "did you mean 'stop_value'" in str(caught.value)

    def test_its_default_configuration_is_taken(self, bench: Bench) -> None:
        cfg = KINDS[bench.kind].default_config()
        cfg.eval_freq = 3
        with bench.make(cfg) as evaluator:
            assert [evaluator.should_eval(i) for i in range(4)] == [True, False, False, True]
        with pytest.raises(FrozenInstanceError):
            KINDS[bench.kind].Config().eval_freq = 1

    @pytest.mark.filterwarnings("error")
    def test_dropping_it_closes_it(self, bench: Bench) -> None:
        evaluator = bench.make()
        env = evaluator.env
        evaluator.__del__()
        assert evaluator.env is None
        assert bench.kind == "metric" or not env.is_launched


@pytest.mark.parametrize("kind", ["interaction", "battle_interaction"])
class TestManagers:
    """What the evaluators that play do with managers."""

    def test_another_environment_takes_the_place_and_back(self, kind: str) -> None:
        bench = Bench(kind)
        first, second = bench.env(), bench.env()
        with bench.make(env=first) as evaluator:
            assert first.is_launched
            evaluator.reset_env(second)
            assert second.is_launched
            for _ in range(2):
                evaluator.reset_env(first)  # reset, not launched again
            evaluator.eval()
        assert (first.is_launched, second.is_launched) == (False, True), "its owner's to close"

    def test_each_environment_has_its_share(self, kind: str) -> None:
        bench = Bench(kind)
        bench.episodes[:] = [[(1, 0.0)], [(50, 1.0)]]
        with bench.make({"n_episode": 4}) as evaluator:
            assert result_of(kind, evaluator.eval()[1]) == 0.5
            _, result = evaluator.eval(n_episode=6)
            assert result_of(kind, result) == 0.5
            for few in (0, 1):
                with pytest.raises(ConfigError, match=f"{few} episodes are too few for 2 env"):
                    evaluator.eval(n_episode=few)

    def test_who_is_as_good_as_the_best_is_not_saved(self, kind: str) -> None:
        saved: list[str] = []
        bench = Bench(kind)
        with bench.make() as evaluator:
            for _ in range(2):
                evaluator.eval(saved.append)
        assert len(saved) == 1

    def test_policies_are_reset_before_and_at_each_end(self, kind: str) -> None:
        bench = Bench(kind)
        with bench.make() as evaluator:
            policies = evaluator.policy if kind == "battle_interaction" else [evaluator.policy]
            for policy in policies:
                policy.resets.clear()
            evaluator.eval()
            for policy in policies:
                assert policy.resets == [None, [0], [1]]


def test_no_type_means_interaction() -> None:
    with create_serial_evaluator({}) as evaluator:  # type: ignore[attr-defined]
        assert type(evaluator) is InteractionSerialEvaluator
    with create_serial_evaluator(MetricSerialEvaluator.Config()) as evaluator:  # type: ignore[attr-defined]
        assert type(evaluator) is MetricSerialEvaluator


def test_a_type_that_there_is_not() -> None:
    with pytest.raises(UnknownTypeError, match=r"serial evaluator .*did you mean 'metric'"):
        create_serial_evaluator({"type": "metrics"})


def result_of(kind: str, result: Any) -> float:
    """Mean return, or the metric."""
    if kind == "interaction":
        return float(result["eval_episode_return_mean"])
    if kind == "metric":
        return float(result["acc"])
    returns = [info["eval_episode_return"] for info in result[0]]
    return sum(returns) / len(returns)


# -------------------------------------------- one policy, some environments: ours, and foreign ones


def count_manager(length: int = 5, env_num: int = 3, **changes: Any) -> Any:
    cfg = {"env_id": "hpcdi/Count-v0", "kwargs": {"length": length}, "evaluator_env_num": env_num}
    cfg = {"type": "gymnasium", "vectorization": "sync", **cfg, **changes}
    return create_env_manager(cfg, evaluate=True, seed=np.random.SeedSequence(1))


def evaluate(env: Any, policy: Any = None, cfg: Any = None, **kwargs: Any) -> dict[str, list[Any]]:
    settings = {"n_episode": env.env_num, **(cfg or {})}
    with InteractionSerialEvaluator(settings, env, policy or DuckPolicy()) as evaluator:
        stop, info = evaluator.eval(**kwargs)
        assert stop is False
        return info | {name: [number] for name, number in evaluator.scalars.items()}


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("length", [1, 5])
def test_the_return_of_counting_is_known(autoreset: str, length: int) -> None:
    manager = count_manager(length, autoreset=autoreset, evaluator_episode_num=3)
    info = evaluate(manager, n_episode=7)
    assert info["eval_episode_return"] == [length * (length + 1) / 2] * 7
    assert info["reward_mean"] == info["reward_max"] == info["reward_min"]
    assert info["reward_std"] == [0.0]
    assert info["episode_count"] == [7]
    assert info["evaluate_time"][0] > 0


def test_our_managers_can_evaluate_again_and_again_as_many_episodes_as_are_asked_for() -> None:
    manager = count_manager(evaluator_episode_num=1)
    with InteractionSerialEvaluator({}, manager, DuckPolicy()) as evaluator:
        for count in (3, 4, 3):
            returns = evaluator.eval(n_episode=count)[1]["eval_episode_return"]
            assert returns == [15.0] * count


class Ctrl(CountEnv):
    """Its infos have a reward and parts of it, as MuJoCo's walkers have."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(2)
        self._names = names

    def step(self, action: Any) -> Any:
        *step, _ = super().step(action)
        return (*step, dict.fromkeys(self._names, 1.0))


@pytest.mark.parametrize("names", [("reward", "reward/ctrl"), ("reward/ctrl", "reward")])
def test_infos_may_have_a_number_and_parts_of_it(names: tuple[str, str]) -> None:
    env = make_env_manager(None, [partial(Ctrl, names)])
    env.launch()
    monitor = VectorEvalMonitor(1, 1)
    ((info,),) = play_episodes(env, ColumnarActor().mode, monitor)
    assert {name: info[name] for name in names} == dict.fromkeys(names, 1.0)
    env.close()


def test_a_mode_of_a_policy() -> None:
    duck = DuckPolicy()
    mode = EvalMode(duck.forward, duck.reset, None, None, None, None)
    assert evaluate(count_manager(), mode)["reward_mean"] == [15.0]
    assert sorted(env for reset in duck.resets if reset for env in reset) == [0, 1, 2]


def test_the_number_of_episodes_is_an_argument_or_a_setting() -> None:
    manager = Manager([[(2, 1.0)]] * 3)
    with InteractionSerialEvaluator({"n_episode": 4}, manager, DuckPolicy()) as evaluator:
        assert len(evaluator.eval(n_episode=8)[1]["eval_episode_return"]) == 8
        assert len(evaluator.eval()[1]["eval_episode_return"]) == 4
    with pytest.raises(QuotaError, match="n_episode: is neither"):
        evaluate(manager, cfg={"n_episode": None})


def test_actions_of_torch_become_arrays() -> None:
    manager = Manager([[(2, 1.0)]])
    evaluate(manager, DuckPolicy(torch.tensor([1.5], requires_grad=True)))
    for actions in manager.actions:
        assert isinstance(actions[0], np.ndarray)
        assert actions[0].tolist() == [1.5]
    manager = Manager([[(1, 1.0)]])
    nested = {"move": torch.tensor(2), "args": (torch.tensor([1.0]), "left")}
    evaluate(manager, DuckPolicy(nested))
    action = manager.actions[0][0]
    assert isinstance(action["move"], np.ndarray)
    assert isinstance(action["args"][0], np.ndarray)
    assert action["args"][1] == "left"
    assert evaluate(count_manager(), DuckPolicy(torch.tensor(1)))["reward_mean"] == [15.0]


@pytest.mark.parametrize(
    "action", [3, 2.5, np.int64(3), [1, 2.5], (1, 2), torch.tensor(3), np.ones(2)]
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_foreign_environments_get_arrays(action: Any, is_nested: bool) -> None:
    manager = Manager([[(1, 1.0)]])
    evaluate(manager, DuckPolicy({"move": [action, "left", None]} if is_nested else action))
    got = manager.actions[0][0]
    if is_nested:
        got, *more = got["move"]
        assert more == ["left", None]
    assert type(got) is np.ndarray
    asked = action.numpy() if isinstance(action, torch.Tensor) else np.array(action)
    assert (got.dtype, got.shape, got.tolist()) == (asked.dtype, asked.shape, asked.tolist())


@pytest.mark.parametrize("action", [True, "left", None])
def test_what_is_no_number_stays_as_it_is(action: Any) -> None:
    manager = Manager([[(1, 1.0)]])
    evaluate(manager, DuckPolicy(action))
    assert manager.actions[0][0] is action


@pytest.mark.parametrize("more", [{"mission": "go left"}, {"mask": None}])
def test_observations_may_have_texts_and_nothing(more: dict[str, Any]) -> None:
    class Saying(Manager):
        def observation(self, env_id: int) -> Any:
            return {"seen": super().observation(env_id), **more}

    class Reading(DuckPolicy):
        def forward(self, data: dict[int, Any], **kwargs: Any) -> dict[int, Any]:
            assert all({**obs, **more} == obs for obs in data.values())
            return super().forward({env: obs["seen"] for env, obs in data.items()}, **kwargs)

    assert evaluate(Saying([[(2, 1.0)]]), Reading())["reward_mean"] == [1.0]


def test_settings_of_the_policy_are_handed_on() -> None:
    policy = DuckPolicy()
    evaluate(Manager([[(2, 1.0)]]), policy, policy_kwargs={"temperature": 0.5})
    assert policy.kwargs == [{"temperature": 0.5}] * 2


def test_what_environments_say_of_episodes_is_given() -> None:
    info = evaluate(Manager([[(2, 1.0), (4, 3.0)], [(3, 5.0)]]), n_episode=3)
    assert info["eval_episode_return"] == [1.0, 3.0, 5.0]
    assert info["length"] == [2, 4, 3]
    assert info["episode"] == [0, 1, 0]
    numbers = [info[f"reward_{name}"] for name in ("mean", "std", "max", "min")]
    assert numbers == [[3.0], [pytest.approx((8 / 3) ** 0.5)], [5.0], [1.0]]
    assert info["episode_count"] == [3]


@pytest.mark.parametrize("form", [lambda x: np.array([x]), lambda x: torch.tensor([x])])
def test_returns_may_be_arrays_or_tensors(form: Any) -> None:
    class Wrapped(Manager):
        def ended(self, env_id: int, total: float) -> Any:
            return {"eval_episode_return": form(total)}

    info = evaluate(Wrapped([[(1, 2.5)]]))
    assert info["eval_episode_return"] == [[2.5]]
    assert info["reward_mean"] == [2.5]


# --------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("together", [None, 1, 2])
def test_an_episode_that_failed_does_not_count(renews: bool, together: int | None) -> None:
    """Episode 0 of environment 1 fails at its step 2; the next one takes its place."""
    episodes = [[(2, 1.0), (2, 2.0)], [(3, 10.0), (3, 20.0), (3, 30.0)]]
    manager = Manager(episodes, together=together, failing={1: [2, 4]}, renews=renews)
    policy = DuckPolicy()
    info = evaluate(manager, policy, n_episode=4)
    assert info["eval_episode_return"] == [1.0, 2.0, 30.0, 10.0]
    assert manager.resets == ([] if renews else [1, 1]), "who resets itself is not reset again"
    ended = [reset[0] for reset in policy.resets if reset]
    assert ended.count(1) == 4, "two failures, two ends"


def test_an_environment_that_always_fails_is_given_up() -> None:
    manager = Manager([[(3, 1.0)]], failing={0: range(10_000)})
    with pytest.raises(EnvError, match=r"failed 101 times in one evaluation, environment 0 last"):
        evaluate(manager)


def test_a_manager_that_is_done_too_early() -> None:
    class Finite(Manager):
        @property
        def ready_obs(self) -> dict[int, Any]:
            return {} if self.done else super().ready_obs

        @property
        def done(self) -> bool:
            return self.begun[0] >= 2

    with pytest.raises(EnvError, match=r"done after 2 episodes .*episode_num is too low"):
        evaluate(Finite([[(2, 1.0)]]), n_episode=3)


def test_a_manager_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Manager):
        ready_obs = {}  # noqa: RUF012

        def step(self, actions: Any) -> dict[int, Step]:
            return {}

    monkeypatch.setattr(dict_envs, "_PATIENCE_S", 0.05)
    with pytest.raises(EnvError, match="no environment has stepped for 0 s; do they hang"):
        evaluate(Hanging([[(1, 1.0)]]))


def test_an_episode_without_its_return() -> None:
    class Silent(Manager):
        def ended(self, env_id: int, total: float) -> Any:
            return {"TimeLimit": True}

    with pytest.raises(EnvError, match=r"environment 0 .*without info\['eval_episode_return'\]"):
        evaluate(Silent([[(1, 1.0)]]))


@pytest.mark.parametrize("outputs", [{}, {0: {}}, {0: {"action": 1}}, None, {0: 1, 1: 1}], ids=repr)
def test_a_policy_that_does_not_say_what_to_do(outputs: Any) -> None:
    policy = DuckPolicy()
    policy.forward = lambda data, **kwargs: outputs  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match=r"asked about environments \[0, 1\] and must return"):
        evaluate(Manager([[(1, 1.0)]] * 2), policy)


def test_a_policys_own_error_is_not_dressed_up() -> None:
    policy = DuckPolicy()
    policy.forward = lambda data: {}  # type: ignore[method-assign]
    with pytest.raises(TypeError, match="unexpected keyword"):
        evaluate(Manager([[(1, 1.0)]]), policy, policy_kwargs={"eps": 1})


def test_a_mean_that_is_no_number_is_not_the_best() -> None:
    saved: list[str] = []
    episodes = [[(1, float("nan"))]]
    cfg = {"stop_value": 0, "n_episode": 1}
    with InteractionSerialEvaluator(cfg, Manager(episodes), DuckPolicy()) as judge:
        assert judge.eval(saved.append, train_iter=1)[0] is False
        episodes[0][0] = (1, -5.0)
        judge.eval(saved.append, train_iter=2)
        episodes[0][0] = (1, float("nan"))
        judge.eval(saved.append, train_iter=3)
        assert judge.best == -5.0
    assert len(saved) == 1


# ------------------------------------------- several policies at one table; the first one is judged


BATTLE_EPISODES = [[(4, 1.0), (2, 3.0)], [(3, -5.0)]]


def play(env: Any, policies: Any = None, cfg: Any = None, **kwargs: Any) -> Any:
    policies = policies or [DuckPolicy(10), DuckPolicy(11)]
    settings = {"n_episode": env.env_num, **(cfg or {})}
    with BattleInteractionSerialEvaluator(settings, env, policies) as evaluator:
        return evaluator.eval(**kwargs)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("one_info", [False, True])
@pytest.mark.parametrize("together", [None, 1])
def test_each_policy_gets_its_own_returns(
    turns: bool, one_info: bool, together: int | None
) -> None:
    env = BattleManager(BATTLE_EPISODES, turns=turns, one_info=one_info, together=together)
    stop, infos = play(env, n_episode=3)
    assert stop is False
    first, second = ([info["eval_episode_return"] for info in of_one] for of_one in infos)
    assert sorted(first) == [-5.0, 1.0, 3.0]
    assert second == [-value for value in first]
    assert all(info["level"] == 3 for of_one in infos for info in of_one)


def test_a_player_without_a_turn_has_what_the_game_paid() -> None:
    """The first move ends it."""
    infos = play(BattleManager([[(1, 2.0)]], turns=True), n_episode=1)[1]
    assert [[info["eval_episode_return"] for info in of_one] for of_one in infos] == [[2.0], [-2.0]]


def test_means_of_what_environments_say_are_curves() -> None:
    class Saying(BattleManager):
        def ended(self, env_id: int, total: float) -> Any:
            both = super().ended(env_id, total)
            return [{**one, "episode_info": {"won": total > 0, "w": total}} for one in both]

    env = Saying(BATTLE_EPISODES)
    with BattleInteractionSerialEvaluator({}, env, [DuckPolicy(10), DuckPolicy(11)]) as evaluator:
        evaluator.eval(n_episode=2)
        assert evaluator.scalars["w_mean"] == evaluator.scalars["reward_mean"] == -2.0


def test_policy_0_decides() -> None:
    good = BattleManager([[(2, 9.0)]])
    assert play(good, cfg={"stop_value": 5}, train_iter=1)[0] is True
    bad = BattleManager([[(2, -9.0)]])  # policy 1 has 9
    assert play(bad, cfg={"stop_value": 5}, train_iter=1)[0] is False


def test_who_is_not_to_act_is_not_asked() -> None:
    seats = [DuckPolicy(10), DuckPolicy(11)]
    asked: list[list[int]] = [[], []]
    for seat, policy in enumerate(seats):
        forward = policy.forward

        def noted(data: Any, seat: int = seat, forward: Any = forward) -> Any:
            asked[seat] += [int(obs[0]) for obs in data.values()]
            return forward(data)

        policy.forward = noted  # type: ignore[method-assign]
    play(BattleManager([[(5, 1.0)]], turns=True), seats)
    assert asked == [[0] * 3, [1] * 2]


def test_tensors_become_arrays() -> None:
    env = BattleManager([[(2, 1.0)]], turns=True)
    play(env, [DuckPolicy(torch.tensor(10)), DuckPolicy(torch.tensor(11))])
    assert [type(a).__name__ for a in env.actions[0][0]] == ["ndarray", "NoneType"]


@pytest.mark.parametrize("renews", [False, True])
def test_an_episode_that_failed_counts_for_nobody(renews: bool) -> None:
    env = BattleManager([[(3, 1.0), (3, 2.0)]], failing={0: [2]}, renews=renews)
    policies = [DuckPolicy(10), DuckPolicy(11)]
    _, infos = play(env, policies)
    assert [info["eval_episode_return"] for info in infos[1]] == [-2.0]
    for policy in policies:
        assert policy.resets == [None, None, [0], [0]]
    assert env.resets == ([] if renews else [0])


def test_one_info_a_player_may_say_that_it_failed() -> None:
    class Each(BattleManager):
        def step(self, actions: Any) -> Any:
            steps = super().step(actions)
            return {
                i: s._replace(info=[{}, s.info]) if s.info == {"abnormal": True} else s
                for i, s in steps.items()
            }

    _, infos = play(Each([[(3, 1.0), (3, 2.0)]], failing={0: [2]}))
    assert [info["eval_episode_return"] for info in infos[0]] == [2.0]


def test_one_policy_cannot_battle() -> None:
    env = BattleManager([[(2, 1.0)]])
    duck = DuckPolicy()
    mode = EvalMode(duck.forward, duck.reset, None, None, None, None)
    for alone in (duck, mode, [duck]):
        with pytest.raises(PolicyError, match=r"two or more policies, one a player, not 1"):
            BattleInteractionSerialEvaluator({}, env, alone)


def test_more_policies_than_players() -> None:
    with pytest.raises(EnvError, match="observations for 2 players, and there are 3 policies"):
        play(BattleManager([[(2, 1.0)]]), [DuckPolicy(10 + seat) for seat in range(3)])


@pytest.mark.parametrize("returns", [1.0, torch.tensor(1.0), [1.0], [1.0, 2.0, 3.0]])
def test_each_player_needs_its_return(returns: Any) -> None:
    class Odd(BattleManager):
        def ended(self, env_id: int, total: float) -> Any:
            return {"eval_episode_return": returns}

    with pytest.raises(EnvError, match=r"episode of 2 players with \d returns"):
        play(Odd([[(2, 1.0)]]))


@pytest.mark.parametrize("form", [torch.tensor, list, lambda x: [torch.tensor([v]) for v in x]])
def test_returns_of_players_in_many_forms(form: Any) -> None:
    class Formed(BattleManager):
        def ended(self, env_id: int, total: float) -> Any:
            return {"eval_episode_return": form([total, -total])}

    _, infos = play(Formed([[(2, 1.5)]]))
    assert [info[0]["eval_episode_return"] for info in infos] == [1.5, -1.5]


def test_without_a_return() -> None:
    class Silent(BattleManager):
        def ended(self, env_id: int, total: float) -> Any:
            return [{"level": 1}, {"level": 1}]

    with pytest.raises(EnvError, match=r"environment 0 .*without info\['eval_episode_return'\]"):
        play(Silent([[(2, 1.0)]]))


# ---------------------------------- a fixed number of episodes of each environment, and their films


EPISODES = st.lists(
    st.lists(st.tuples(st.integers(1, 7), st.integers(-9, 9)), min_size=1, max_size=3),
    min_size=1,
    max_size=5,
)


def picture(value: int, height: int = 2, width: int = 3) -> Any:
    return np.full((height, width, 3), value, np.uint8)


@given(env_num=st.integers(1, 20), extra=st.integers(0, 50))
def test_every_environment_gets_its_share(env_num: int, extra: int) -> None:
    monitor = VectorEvalMonitor(env_num, env_num + extra)
    shares = [0] * env_num
    while not monitor.is_finished():
        for env_id in range(env_num):
            if monitor.is_open(env_id):
                monitor.update_reward(env_id, 0.0)
                shares[env_id] += 1
    assert sum(shares) == env_num + extra == monitor.get_current_episode()
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


@settings(max_examples=60, deadline=None)
@given(
    episodes=EPISODES,
    extra=st.integers(0, 9),
    together=st.integers(1, 5),
    renews=st.booleans(),
    data=st.data(),
)
def test_the_mean_does_not_depend_on_how_long_episodes_are(
    episodes: Any, extra: int, together: int, renews: bool, data: st.DataObject
) -> None:
    """Nor on who answers when: each environment's first episodes count, and nothing else."""
    n_episode = len(episodes) + extra
    manager = Manager(episodes, together=together, renews=renews)
    with InteractionSerialEvaluator({}, manager, DuckPolicy()) as evaluator:
        _, info = evaluator.eval(n_episode=n_episode)
    expected = []
    for env_id, mine in enumerate(episodes):
        share = len(range(env_id, n_episode, len(episodes)))
        expected += [float(mine[k % len(mine)][1]) for k in range(share)]
    assert info["eval_episode_return"] == expected
    assert info["eval_episode_return_mean"] == pytest.approx(np.mean(expected))


def test_what_is_played_beyond_is_ignored() -> None:
    monitor = VectorEvalMonitor(2, 3)
    for number in range(5):
        monitor.update_info(1, {"number": number})
        monitor.update_reward(1, number)
    assert not monitor.is_finished()
    monitor.update_reward(0, 7.0)
    monitor.update_reward(0, 8.0)
    assert monitor.is_finished()
    assert monitor.get_episode_return() == [7.0, 8.0, 0.0]
    assert (monitor.get_latest_reward(0), monitor.get_latest_reward(1)) == (8.0, 0.0)
    assert monitor.get_episode_info() == {"number": [0], "number_mean": 0.0}


@pytest.mark.parametrize("is_info_first", [True, False])
def test_an_info_may_come_after_its_return(is_info_first: bool) -> None:
    monitor = VectorEvalMonitor(1, 2)
    for number in range(3):
        if is_info_first:
            monitor.update_info(0, {"number": number})
        monitor.update_reward(0, number)
        if not is_info_first:
            monitor.update_info(0, {"number": number})
    assert monitor.get_episode_return() == [0.0, 1.0]
    assert (monitor.get_episode_info() or {})["number"] == [0.0, 1.0]


@pytest.mark.parametrize(
    "reward", [2.5, np.float32(2.5), np.array([2.5]), np.array(2.5), torch.tensor([2.5]), [2.5]]
)
def test_returns_come_in_many_forms(reward: Any) -> None:
    monitor = VectorEvalMonitor(1, 1)
    monitor.update_reward(0, reward)
    assert monitor.get_episode_return() == [2.5]


@pytest.mark.parametrize("reward", [np.zeros(2), torch.zeros(2), "much", None])
def test_what_is_not_one_number_is_no_return(reward: Any) -> None:
    with pytest.raises(EnvError, match="must be one number, not"):
        VectorEvalMonitor(1, 1).update_reward(0, reward)


def test_infos_are_lists_of_one_length() -> None:
    monitor = VectorEvalMonitor(2, 2)
    monitor.update_info(1, {"a": 1, "b": 2})
    monitor.update_info(0, {"b": 3})
    info = monitor.get_episode_info() or {}
    assert info == {"a": [None, 1], "b": [3, 2], "b_mean": 2.5}
    monitor.update_reward(0, 7)
    assert {type(one) for one in (*info["b"], monitor.get_latest_reward(0))} == {int}


@pytest.mark.parametrize(("env_num", "n_episode"), [(3, 2), (0, 4), (1, 0)])
def test_too_few_episodes(env_num: int, n_episode: int) -> None:
    with pytest.raises(ConfigError, match=f"{n_episode} episodes are too few for {env_num}"):
        VectorEvalMonitor(env_num, n_episode)


def test_no_episode_yet() -> None:
    monitor = VectorEvalMonitor(1, 1)
    assert (monitor.get_current_episode(), monitor.get_episode_info()) == (0, None)
    with pytest.raises(EnvError, match="environment 0 has not ended an episode"):
        monitor.get_latest_reward(0)
    with pytest.raises(EnvError, match="no episode has ended"):
        monitor.get_video()


# ---------------------------------------------------------------------------------------- films


def film(monitor: VectorEvalMonitor, env_id: int, values: list[int], total: float) -> None:
    for value in values:
        monitor.update_video({env_id: picture(value)})
    monitor.update_reward(env_id, total)


def test_worst_median_and_best_stand_still_at_their_end() -> None:
    monitor = VectorEvalMonitor(2, 5)
    film(monitor, 0, [10, 11, 12], 3.0)
    film(monitor, 1, [20], -1.0)
    film(monitor, 0, [30, 31], 9.0)
    film(monitor, 1, [40], 4.0)
    film(monitor, 0, [50], 0.0)
    video = monitor.get_video()
    assert (video.dtype, video.shape) == (np.uint8, (3, 3, 3, 2, 3))
    assert video[:, :, 0, 0, 0].tolist() == [[20, 20, 20], [10, 11, 12], [30, 31, 31]]


def test_one_episode_is_worst_median_and_best() -> None:
    monitor = VectorEvalMonitor(1, 1)
    film(monitor, 0, [1, 2], 0.0)
    assert monitor.get_video()[:, :, 0, 0, 0].tolist() == [[1, 2]] * 3


def test_pictures_of_all_environments_as_a_list() -> None:
    monitor = VectorEvalMonitor(2, 3)
    monitor.update_video([picture(1), picture(2)])
    monitor.update_reward(1, 5.0)
    monitor.update_video([picture(3), picture(99)])  # 1 has its share
    monitor.update_reward(0, 4.0)
    monitor.update_video([picture(6), picture(99)])
    monitor.update_reward(0, 6.0)
    assert monitor.get_video()[:, :, 0, 0, 0].tolist() == [[1, 3], [2, 2], [6, 6]]


def test_an_episode_that_failed_leaves_no_picture() -> None:
    monitor = VectorEvalMonitor(1, 1)
    monitor.update_video([picture(1)])
    monitor.drop_episode(0)
    film(monitor, 0, [7], 0.0)
    assert monitor.get_video()[:, :, 0, 0, 0].tolist() == [[7]] * 3


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    room=st.integers(6, 80),
    dropped=st.integers(0, 20),
)
def test_films_get_coarser_not_shorter_where_memory_is_short(
    lengths: list[int], room: int, dropped: int
) -> None:
    size = picture(0).nbytes
    monitor = VectorEvalMonitor(len(lengths), len(lengths), max_video_bytes=room * size)
    for k in range(dropped):
        monitor.update_video({0: picture(k)})
    monitor.drop_episode(0)
    for env_id, length in enumerate(lengths):
        film(monitor, env_id, list(range(length)), float(env_id))
        held = sum(len(f) for ended in monitor._videos._ended for f in ended)
        assert held <= max(room, len(lengths))
    stride = monitor.video_stride
    assert stride == 1 or sum(lengths) + dropped > room
    last = monitor.get_video()[2, :, 0, 0, 0].tolist()
    true = list(range(0, lengths[-1], stride))
    assert last[: len(true)] == true
    assert set(last[len(true) :]) <= {true[-1]}


def test_dropped_episodes_take_no_room() -> None:
    monitor = VectorEvalMonitor(1, 1, max_video_bytes=4 * picture(0).nbytes)
    for _ in range(10):
        monitor.update_video([picture(1)])
        monitor.drop_episode(0)
    film(monitor, 0, [1, 2, 3, 4], 0.0)
    assert monitor.video_stride == 1


def test_pictures_of_different_sizes() -> None:
    monitor = VectorEvalMonitor(2, 2)
    monitor.update_video([picture(1), picture(1, height=9)])
    monitor.update_reward(0, 1.0)
    monitor.update_reward(1, 1.0)
    with pytest.raises(EnvError, match=r"sizes \[\(2, 3, 3\), \(9, 3, 3\)\]; update_video"):
        monitor.get_video()


def test_an_episode_without_pictures() -> None:
    monitor = VectorEvalMonitor(2, 2)
    film(monitor, 0, [1], 0.0)
    monitor.update_reward(1, 1.0)
    with pytest.raises(EnvError, match=r"they have \[1, 1, 0\] pictures"):
        monitor.get_video()
