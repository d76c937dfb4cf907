"""Labelled data put to a policy, through a real DataLoader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fakes.evaluator_parts import Accuracy, DuckPolicy, ParityPolicy
from hpcdi.errors import EnvError
from hpcdi.worker import IMetric, MetricSerialEvaluator


def loader(right: int = 6, batch_size: int = 4) -> DataLoader[Any]:
    """Eight numbers, `right` of which are labelled rightly odd or even."""
    numbers = torch.arange(8)
    labels = torch.where(numbers < right, numbers % 2, 1 - numbers % 2)
    return DataLoader(TensorDataset(numbers, labels), batch_size, shuffle=True)


class Loss(IMetric):
    """Less is better; a plain number."""

    def eval(self, inputs: Any, label: Any) -> float:
        return float((inputs != label).float().sum())

    def reduce_mean(self, inputs: list[Any]) -> Any:
        return np.float64(sum(inputs) / 8)

    def gt(self, metric1: Any, metric2: Any) -> bool:
        return metric2 is None or metric1 <= metric2


def test_all_batches_are_reduced_once() -> None:
    metric = Accuracy()
    with MetricSerialEvaluator({}, (loader(), metric), ParityPolicy()) as evaluator:
        stop, result = evaluator.eval(train_iter=1)
    assert stop is False
    assert result == {"acc": 0.75, "count": 8.0}
    assert metric.reduced == [2]


@pytest.mark.parametrize(
    ("stop_value", "stops"), [(0.8, False), (0.75, True), ({"acc": 0.5}, True)]
)
def test_the_metric_says_what_is_enough(stop_value: Any, stops: bool) -> None:
    cfg = {"stop_value": stop_value}
    with MetricSerialEvaluator(cfg, (loader(), Accuracy()), ParityPolicy()) as evaluator:
        assert evaluator.eval(train_iter=1)[0] is stops


def test_the_metric_says_what_is_better() -> None:
    saved: list[str] = []
    with MetricSerialEvaluator({}, (loader(4), Loss()), ParityPolicy()) as evaluator:
        for right in (4, 2, 8):
            evaluator.reset_env((loader(right), Loss()))
            stop, _ = evaluator.eval(saved.append, train_iter=1)
            assert stop is False, "no loss is above infinity, but none is to end the run either"
        assert evaluator.best == 0.0
    assert len(saved) == 2


def test_the_policy_is_reset_before() -> None:
    policy = ParityPolicy()
    with MetricSerialEvaluator({}, (loader(), Accuracy()), policy) as evaluator:
        policy.resets.clear()
        evaluator.eval()
        evaluator.reset_env()
    assert policy.resets == [None]


@pytest.mark.parametrize("env", [Accuracy(), (loader(), None), (loader(),), loader()])
def test_what_is_no_loader_and_metric(env: Any) -> None:
    with pytest.raises(EnvError, match=r"takes env=\(loader, metric\)"):
        MetricSerialEvaluator({}, env, ParityPolicy())


@pytest.mark.parametrize("numbers", [np.arange(4), np.arange(4.0), [0, 1, 2, 3]])
def test_arrays_become_tensors(numbers: Any) -> None:
    batches = [({"x": numbers}, np.array([0, 1, 0, 1], np.int64))]

    class Parity(ParityPolicy):
        def forward(self, data: Any, **kwargs: Any) -> Any:
            assert data["x"].dtype in (torch.int64, torch.float32)
            return data["x"] % 2

    with MetricSerialEvaluator({}, (batches, Accuracy()), Parity()) as evaluator:
        assert evaluator.eval()[1]["acc"] == 1.0


def test_numbers_become_tensors() -> None:
    """Of a loader without a collating function; as with DI-engine truths and texts stay."""
    batch = {
        "a": np.ones(1),
        "number": 3,
        "real": 1.5,
        "is": True,
        "text": "x",
        "list": [[1, 2], 4],
    }
    given: list[Any] = []

    class Noting(Loss):
        def eval(self, inputs: Any, label: Any) -> float:
            given.extend((inputs, label))
            return 0.0

    policy = ParityPolicy()
    policy.forward = lambda inputs: inputs  # type: ignore[method-assign]
    MetricSerialEvaluator({}, ([(batch, 4)], Noting()), policy).eval()
    inputs, label = given
    assert (label.dtype, label.item()) == (torch.int64, 4)
    assert (inputs["number"].dtype, inputs["real"].dtype) == (torch.int64, torch.float32)
    assert (inputs["is"], inputs["text"]) == (True, "x")
    assert [one.tolist() for one in inputs["list"]] == [[1, 2], 4]


def test_batches_that_are_no_pairs() -> None:
    data = DataLoader(TensorDataset(torch.arange(4)), 2)
    with (
        MetricSerialEvaluator({}, (data, Accuracy()), ParityPolicy()) as evaluator,
        pytest.raises(EnvError, match=r"must return pairs \(inputs, label\), not a list"),
    ):
        evaluator.eval()


def test_no_data() -> None:
    with (
        MetricSerialEvaluator({}, ([], Accuracy()), DuckPolicy()) as evaluator,
        pytest.raises(EnvError, match="the loader returned no batch"),
    ):
        evaluator.eval()


def test_curves_of_numbers_only() -> None:
    class Mixed(Accuracy):
        def reduce_mean(self, inputs: list[Any]) -> Any:
            return {"acc": torch.tensor(0.5), "one": np.ones(1), "per_class": np.ones(3), "n": 2}

    points: dict[str, float] = {}

    class Writer:
        def add_scalar(self, tag: str, value: float, step: int) -> None:
            points[tag] = value

        def flush(self) -> None: ...

        def close(self) -> None: ...

    env = (loader(), Mixed())
    with MetricSerialEvaluator({"multi_gpu": True}, env, ParityPolicy(), Writer()) as evaluator:
        evaluator.eval(train_iter=1)
    numbers = {tag.split("/")[1]: value for tag, value in points.items()}
    batches, seconds = numbers["data_length"], numbers.pop("evaluate_time")
    assert numbers.pop("avg_time_per_data") == seconds / batches > 0
    assert numbers == {"acc": 0.5, "one": 1.0, "n": 2, "data_length": len(list(loader()))}
