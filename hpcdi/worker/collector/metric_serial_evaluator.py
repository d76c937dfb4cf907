"""Evaluation by a metric over labelled data: supervised learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from hpcdi.config.fields import setting
from hpcdi.config.roles import EvaluatorConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import EnvError
from hpcdi.utils.nested import to_tensors
from hpcdi.utils.timer import EasyTimer
from hpcdi.worker.collectives import from_all_ranks
from hpcdi.worker.collector.evaluation import SerialEvaluator


class IMetric(ABC):
    """Says how good outputs are, and which of two results is better."""

    @abstractmethod
    def eval(self, inputs: Any, label: Any) -> Any:
        """Result of one batch: a dict of numbers, or a number.

        Args:
            inputs: the policy's outputs.
            label: what they should be.
        """

    @abstractmethod
    def reduce_mean(self, inputs: list[Any]) -> Any:
        """One result of those of all batches, of the same form."""

    @abstractmethod
    def gt(self, metric1: Any, metric2: Any) -> bool:
        """Returns whether `metric1` is not worse than `metric2`; true where `metric2` is None."""


class MetricSerialEvaluator(SerialEvaluator):
    """Evaluates a policy on labelled data; see `SerialEvaluator` for the other arguments.

    `env` is a pair: a loader that yields batches ``(inputs, label)`` each time it is iterated
    over, whose arrays and numbers become tensors (doubles float32 ones), and an `IMetric`. Where
    learners form a process group, each has its own loader, all of the results are gathered, and
    `IMetric.reduce_mean` is called once on each rank, over all of them: every rank needs its loader
    and its policy.
    """

    @dataclass(frozen=True)
    class Config(EvaluatorConfig):
        """Settings of an evaluation by a metric."""

        type: str = "metric"
        multi_gpu: bool = setting(
            False, "several learners; results are gathered wherever there is a process group"
        )

    _cfg: Config

    def reset_env(self, _env: Any = None) -> None:
        """Take other data and another metric.

        Args:
            _env: loader and metric; None: nothing to do, a loader restarts by itself.

        Raises:
            EnvError: it is not a loader and a metric.
        """
        if _env is None:
            self._demand_env()
            return
        is_pair = isinstance(_env, tuple | list) and len(_env) == 2
        if not is_pair or not all(hasattr(_env[1], m) for m in ("eval", "reduce_mean", "gt")):
            raise EnvError(
                f"{self._name()} takes env=(loader, metric), a DataLoader and an IMetric, not "
                f"{_env!r:.200}"
            )
        self._env = tuple(_env)

    def eval(
        self,
        save_ckpt_fn: Callable[[str], Any] | None = None,
        train_iter: int = -1,
        envstep: int = -1,
    ) -> tuple[bool, Any]:
        """Evaluate all batches; collective where learners form a process group.

        Args:
            save_ckpt_fn: called on rank 0 with ``"ckpt_best.pth.tar"`` where no result was better.
            train_iter: train iterations so far; the run is not ended before the first.
            envstep: environment steps so far.

        Returns:
            Whether the run can end, and the result of `IMetric.reduce_mean`, the same on all ranks.

        Raises:
            EnvError: there are no data, or batches are no pairs.
            PolicyError: there is no policy.
        """
        with EasyTimer() as timer:
            parts = from_all_ranks(self._results)
        results = [result for part in parts for result in part]
        if not results:
            raise EnvError(f"{self._name()}: the loader returned no batch")
        metric = self._demand_env()[1].reduce_mean(results)
        named = dict(metric) if isinstance(metric, Mapping) else {"metric": metric}
        scalars = {name: _number_in(value) for name, value in named.items()}
        line = ", ".join(f"{name} {value}" for name, value in scalars.items())
        batches = len(results)
        scalars |= {
            "evaluate_time": timer.value,
            "data_length": batches,
            "avg_time_per_data": timer.value / batches,
        }
        stop = self._conclude(metric, scalars, line, (train_iter, envstep), save_ckpt_fn)
        return stop, metric

    def _results(self) -> list[Any]:
        """The metric of each batch of this rank's loader."""
        loader, metric = self._demand_env()
        policy = self._demand_policy()
        policy.reset()
        results = []
        for batch in loader:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise EnvError(
                    f"{self._name()}: the loader must return pairs (inputs, label), not a "
                    f"{type(batch).__name__}"
                )
            inputs, label = (_tensors(one) for one in batch)
            results.append(metric.eval(policy.forward(inputs), label))
        return results

    def _close_env(self, env: Any) -> None:
        """A loader closes by itself."""

    def _is_better(self, result: Any, best: Any) -> bool:
        return best is None or bool(self._demand_env()[1].gt(result, best))

    def _is_enough(self, result: Any) -> bool:
        stop_value = self._cfg.stop_value
        # where less is better, everything would reach infinity
        if stop_value is None or stop_value == float("inf"):
            return False
        return bool(self._demand_env()[1].gt(result, stop_value))


def _tensors(tree: Any) -> Any:
    """Arrays and single numbers of a batch as tensors; see `to_tensors`. Truths stay, as texts."""
    if isinstance(tree, Mapping):
        return {key: _tensors(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not all(isinstance(one, Real) for one in tree):
        values = [_tensors(value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else values
    is_number = isinstance(tree, Real) and not isinstance(tree, bool)
    return to_tensors(np.asarray(tree) if is_number else tree, as_floats=False)


def _number_in(value: Any) -> Any:
    """A number of an array or tensor of one element; the rest stays."""
    count = value.numel() if hasattr(value, "numel") else getattr(value, "size", 0)
    return value.item() if count == 1 else value
