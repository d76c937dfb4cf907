"""The built-in hooks of a learner that speak: to the log, to TensorBoard, to the other ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import CHART, split_charts
from hpcdi.worker.learner.builtin_hook import BuiltinHook, PeriodicHook, every
from hpcdi.worker.learner.learner_hook import (
    LearnerHook,
    register_learner_hook,
    simplified_hook_mapping,
)

_LOG_EVERY_S = 1.0
_TELL_EVERY = 100
"""Iterations between two words to rank 0, where no log asks for another number."""


class LogPolicyHook(BuiltinHook):
    """Logs what the policy says of itself, once."""

    usual_name = "log_policy"
    usual_priority = 0
    usual_position = "before_run"

    def __call__(self, engine: Any) -> None:
        """Log it, on a learner that keeps a log."""
        if engine.shows_log:
            say = getattr(engine.policy, "info", None)
            engine.info(f"policy: {say() if callable(say) else repr(engine.policy)}")


class LogReduceHook(PeriodicHook):
    """Gives each learner of a group the means over all of them of what their monitors hold.

    All of them act at the same iterations, never by time: each waits for the others. What a key
    with ``noreduce_`` before its name says stays a learner's own; a mean is over those that have
    the key. What is shown of iterations since the last exchange is the first learner's own.
    """

    usual_name = "log_reduce"
    usual_priority = 10
    usual_freq = 100
    positions: ClassVar[list[str]] = ["after_iter"]
    needs_monitor = True

    def act(self, engine: Any) -> None:
        """Exchange the means since the last look."""
        if engine.world_size == 1:
            return
        from hpcdi.comm.dist import gather_objects

        own = engine.monitor.take_sums()
        told = gather_objects({name: pair for name, pair in own.items() if not _is_own(name)})
        for name, pair in own.items():
            if _is_own(name):
                engine.monitor.put(name, *pair)
        for name in dict.fromkeys(name for sums in told for name in sums):
            totals, counts = zip(*(sums[name] for sums in told if name in sums), strict=True)
            count = own[name][1] if name in own else 1  # as much as it was weighs what comes next
            engine.monitor.put(name, count * sum(totals) / sum(counts), count)


class LogShowHook(PeriodicHook):
    """Averages the scalars of the last iterations: to TensorBoard if given, and to the log.

    Charts and histograms go to TensorBoard as such, see `ScalarMonitor`; elsewhere a chart's curves
    are scalars, and there are no histograms. The log has a line a second at the most: a day of a
    fast learner must not fill a disk. In a group only the first learner shows a log, unless
    ``only_monitor_rank0`` is false.
    """

    _logged = float("-inf")
    usual_name = "log_show"
    every_s = _LOG_EVERY_S
    usual_priority = 20

    def act(self, engine: Any) -> None:
        """Look at what has come since the last look."""
        if engine.monitor is None:
            return
        means, arrays = engine.monitor.take_means(), engine.monitor.take_arrays()
        if not means and not arrays:
            return
        scalars = {name.removeprefix(CHART): value for name, value in means.items()}
        engine.log_buffer.update(scalars)
        if not engine.shows_log:
            return
        now = time.monotonic()
        if scalars and (now - self._logged >= _LOG_EVERY_S or self.position != "after_iter"):
            self._logged = now
            LOGGER.info("train", extra={"train_iter": engine.train_iter, "scalars": scalars})
        if engine.tb_logger is not None:
            _draw(engine, f"{engine.instance_name}_iter", engine.train_iter, means, arrays)
            if engine.collector_envstep > 0:
                step = engine.collector_envstep
                _draw(engine, f"{engine.instance_name}_step", step, means, arrays)


class SendPolicyHook(PeriodicHook):
    """Offers the policy to collectors."""

    usual_name = "send_policy"
    freq_key = "send_policy_freq"
    args = ("send_policy_freq",)

    def act(self, engine: Any) -> None:
        """Offer it; before and after a run, whether somebody waits for it or not."""
        engine.offer_policy(force=self.position != "after_iter")


class SendLearnInfoHook(PeriodicHook):
    """Tells the coordinator what the learner says of itself."""

    usual_name = "send_learn_info"
    every_s = _LOG_EVERY_S
    usual_freq = 10

    def act(self, engine: Any) -> None:
        """Tell."""
        engine.send_learn_info(engine.learn_info)


def hooks_to_others(cfg: Any) -> list[LearnerHook]:
    """Hooks of a learner in a parallel run: they offer the policy and tell the coordinator."""
    freq = {"send_policy_freq": cfg.send_policy_freq}
    shown = cfg.hook.get("log_show_after_iter", 0)
    info = {"freq": shown if shown > 0 else _TELL_EVERY}
    return [
        SendPolicyHook(position="before_run", ext_args=freq),
        SendPolicyHook(position="after_iter", ext_args=freq),
        SendPolicyHook(position="after_run", ext_args=freq),
        SendLearnInfoHook(position="after_iter", ext_args=info),
        LogShowHook(position="after_run"),  # of a run shorter than its logging interval too
        SendLearnInfoHook(position="after_run"),
    ]


def _draw(
    engine: Any, prefix: str, step: int, means: Mapping[str, float], arrays: Mapping[str, Any]
) -> None:
    """Points of all curves over one axis, in TensorBoard."""
    curves, charts = split_charts(means)
    for name, value in curves.items():
        engine.tb_logger.add_scalar(f"{prefix}/{name}", value, step)
    for name, values in charts.items():
        engine.tb_logger.add_scalars(f"{prefix}/{name}", values, step)
    for name, array in arrays.items():
        if hasattr(array, "detach"):  # a tensor, of a GPU perhaps
            array = array.detach().cpu()
        engine.tb_logger.add_histogram(f"{prefix}/{name}", array, step)


def _is_own(name: str) -> bool:
    return any(part.startswith("noreduce_") for part in name.removeprefix(CHART).split("/"))


for _hook in (LogPolicyHook, LogReduceHook, LogShowHook, SendPolicyHook, SendLearnInfoHook):
    register_learner_hook(_hook.usual_name, _hook)
simplified_hook_mapping["log_reduce_after_iter"] = lambda freq: every(LogReduceHook, freq)
simplified_hook_mapping["log_show_after_iter"] = lambda freq: every(LogShowHook, freq)
