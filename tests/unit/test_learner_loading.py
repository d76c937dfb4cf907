"""Samples that are still to be loaded: functions in a batch, called here or by threads."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from hpcdi.errors import ConfigError
from hpcdi.worker.learner import BaseLearner
from hpcdi.worker.learner.base_learner import SampleLoader

QUIET = {"log_show_after_iter": 0, "save_ckpt_after_iter": 0, "save_ckpt_after_run": False}
WORKERS = pytest.mark.parametrize("workers", [0, 3])


def load(number: int, seen: list[str] | None = None) -> dict[str, int]:
    if seen is not None:
        seen.append(threading.current_thread().name)
    return {"n": number}


class Port:
    """Gives two batches of functions."""

    def __init__(self) -> None:
        self.left = 2
        self.seen: list[str] = []

    def get_data(self, batch_size: int) -> Any:
        self.left -= 1
        if self.left < 0:
            return None
        return [partial(load, 10 * self.left + k, self.seen) for k in range(batch_size)]


class Policy:
    """Keeps what it learns from."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def forward(self, data: Any) -> dict[str, float]:
        self.given.append(data)
        return {"total_loss": 0.0}

    def get_attribute(self, name: str) -> int:
        return 3


@WORKERS
def test_a_learner_loads_its_samples_and_ends_its_threads(workers: int) -> None:
    port, policy, before = Port(), Policy(), threading.active_count()
    cfg = {"hook": QUIET, "dataloader": {"num_workers": workers}}
    learner = BaseLearner(cfg, policy, port=port)
    learner.start()
    assert policy.given == [[{"n": 10}, {"n": 11}, {"n": 12}], [{"n": 0}, {"n": 1}, {"n": 2}]]
    here = threading.current_thread().name
    assert len(port.seen) == 6
    assert all((name == here) is (workers == 0) for name in port.seen)
    assert threading.active_count() == before
    port.left = 1
    learner.start()
    assert len(policy.given) == 3, "it can be started again"
    assert threading.active_count() == before
    learner.close()


@WORKERS
def test_what_loading_raises_ends_the_learner_and_its_threads(workers: int) -> None:
    def torn() -> None:
        raise OSError("planted: torn sample")

    class TornPort(Port):
        def get_data(self, batch_size: int) -> Any:
            return [partial(load, 1), torn, partial(load, 2)]

    before = threading.active_count()
    cfg = {"hook": QUIET, "dataloader": {"num_workers": workers}}
    learner = BaseLearner(cfg, Policy(), port=TornPort())
    with pytest.raises(OSError, match="planted: torn sample"):
        learner.start()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"x": 1}, {"x": 1}),
        ([{"x": 1}], [{"x": 1}]),
        (lambda: {"x": 1}, {"x": 1}),
        (lambda: [partial(load, 2)], [{"n": 2}]),
        ([{"x": 1}, partial(load, 2)], [{"x": 1}, {"n": 2}]),
        ([], []),
    ],
)
@WORKERS
def test_what_is_no_function_is_left(batch: Any, expected: Any, workers: int) -> None:
    batches = [batch]
    loader = SampleLoader(lambda: batches.pop() if batches else None, workers)
    assert list(loader) == [expected]
    loader.close()
    loader.close()


def test_the_number_of_threads_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"dataloader\.num_workers: must be at least 0, not -1"):
        BaseLearner({"dataloader": {"num_workers": -1}})
