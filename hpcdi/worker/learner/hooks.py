"""The built-in hooks of a learner."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from hpcdi.utils.log import LOGGER
from hpcdi.worker.learner.learner_hook import (
    LearnerHook,
    register_learner_hook,
    simplified_hook_mapping,
)

_LOG_EVERY_S = 1.0


class PeriodicHook(LearnerHook):
    """After iterations it acts at each `freq`-th one; before and after a run, always.

    One with `every_s` acts after so many seconds too: iterations can be long.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: where it is called.
        ext_args: the number of iterations, under the hook's `freq_key`.

    Raises:
        ValueError: that number is not positive.
    """

    usual_name: ClassVar[str]
    usual_priority: ClassVar[float] = 100
    freq_key: ClassVar[str] = "freq"
    usual_freq: ClassVar[int] = 1
    every_s: ClassVar[float] = float("inf")

    def __init__(
        self,
        name: str | None = None,
        priority: float | None = None,
        *,
        position: str = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            self.usual_name if name is None else name,
            self.usual_priority if priority is None else priority,
            position=position,
        )
        self._freq = int((ext_args or {}).get(self.freq_key, self.usual_freq))
        if self._freq < 1:
            raise ValueError(f"{self.freq_key} must be at least 1, not {self._freq}")
        self._acted = time.monotonic()

    def __call__(self, engine: Any) -> None:
        """Act, if it is time."""
        if (
            self.position not in ("before_iter", "after_iter")
            or engine.train_iter % self._freq == 0
            or time.monotonic() - self._acted >= self.every_s
        ):
            self._acted = time.monotonic()
            self.act(engine)

    @abstractmethod
    def act(self, engine: Any) -> None:
        """What the hook is there for."""


class LogShowHook(PeriodicHook):
    """Averages the scalars of the last iterations: to TensorBoard if given, and to the log.

    The log has a line a second at the most: a day of a fast learner must not fill a disk.
    """

    _logged = float("-inf")
    usual_name = "log_show"
    every_s = _LOG_EVERY_S
    usual_priority = 20

    def act(self, engine: Any) -> None:
        """Look at what has come since the last look."""
        scalars = engine.monitor.take_means()
        if not scalars:
            return
        engine.log_buffer.update(scalars)
        now = time.monotonic()
        if now - self._logged >= _LOG_EVERY_S or self.position != "after_iter":
            self._logged = now
            LOGGER.info("train", extra={"train_iter": engine.train_iter, "scalars": scalars})
        if engine.tb_logger is not None:
            for name, value in scalars.items():
                tag = f"{engine.instance_name}_iter/{name}"
                engine.tb_logger.add_scalar(tag, value, engine.train_iter)
                if engine.collector_envstep > 0:
                    tag = f"{engine.instance_name}_step/{name}"
                    engine.tb_logger.add_scalar(tag, value, engine.collector_envstep)


class SendPolicyHook(PeriodicHook):
    """Offers the policy to collectors."""

    usual_name = "send_policy"
    freq_key = "send_policy_freq"

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


register_learner_hook("log_show", LogShowHook)
register_learner_hook("send_policy", SendPolicyHook)
register_learner_hook("send_learn_info", SendLearnInfoHook)
simplified_hook_mapping["log_show_after_iter"] = lambda freq: (
    LogShowHook(ext_args={"freq": freq}) if freq > 0 else None
)
