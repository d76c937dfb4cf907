"""One contract for all serial evaluators, whatever they judge by."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset

from fakes.evaluator_parts import Accuracy, BattleManager, DuckPolicy, Manager, ParityPolicy
from hpcdi.errors import ConfigError, EnvError, PolicyError, UnknownTypeError
from hpcdi.utils.curves import TensorBoardWriter
from hpcdi.worker import (
    BattleInteractionSerialEvaluator,
    InteractionSerialEvaluator,
    ISerialEvaluator,
    MetricSerialEvaluator,
    create_serial_evaluator,
)

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
        return create_serial_evaluator({"type": self.kind, **(cfg or {})}, **given)


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

    def test_the_first_time_is_always_right_and_no_iteration_twice(self, bench: Bench) -> None:
        with bench.make({"eval_freq": 10}) as evaluator:
            asked = [0, 0, 1, 9, 10, 10, 15, 19, 20, 45, 54, 55]
            answers = [evaluator.should_eval(train_iter) for train_iter in asked]
            assert [a for a, yes in zip(asked, answers, strict=True) if yes] == [0, 10, 20, 45, 55]
            evaluator.reset()
            assert evaluator.should_eval(55)

    @pytest.mark.parametrize("first", [0, 3, 1234])
    def test_the_first_time_may_be_any_iteration(self, bench: Bench, first: int) -> None:
        with bench.make({"eval_freq": 1000}) as evaluator:
            assert evaluator.should_eval(first)
            assert not evaluator.should_eval(first)
            assert not evaluator.should_eval(first + 999)
            assert evaluator.should_eval(first + 1000)

    def test_a_count_that_begins_anew_is_evaluated(self, bench: Bench) -> None:
        with bench.make({"eval_freq": 10}) as evaluator:
            assert evaluator.should_eval(500)
            assert evaluator.should_eval(20)
            assert not evaluator.should_eval(25)

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
            bench.make({"eval_freq": 0, "stop_valeu": 1})
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
            assert (first.is_launched, second.is_launched) == (False, True)
            evaluator.reset_env(first)
            assert (first.is_launched, second.is_launched) == (True, False)
            evaluator.reset_env(first)  # reset, not launched again
            evaluator.eval()
        assert not first.is_launched

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
        return float(result["reward_mean"][0])
    if kind == "metric":
        return float(result["acc"])
    returns = [info["eval_episode_return"] for info in result[0]]
    return sum(returns) / len(returns)
