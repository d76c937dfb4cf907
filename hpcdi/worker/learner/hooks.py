"""The built-in hooks of a learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.utils.log import LOGGER
from hpcdi.worker.learner.learner_hook import (
    LearnerHook,
    register_learner_hook,
    simplified_hook_mapping,
)


class LogShowHook(LearnerHook):
    """Averages the scalars of the last iterations: to the log, and to TensorBoard if given.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: where it is called.
        ext_args: ``freq``: iterations between two looks.
    """

    def __init__(
        self,
        name: str = "log_show",
        priority: float = 20,
        *,
        position: str = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position=position)
        self._freq = _every(ext_args, "freq", 1)

    def __call__(self, engine: Any) -> None:
        """Look, if it is time."""
        if engine.train_iter % self._freq:
            return
        scalars = engine.monitor.take_means()
        if not scalars:
            return
        engine.log_buffer.update(scalars)
        LOGGER.info("train", extra={"train_iter": engine.train_iter, "scalars": scalars})
        if engine.tb_logger is not None:
            for name, value in scalars.items():
                tag = f"{engine.instance_name}_iter/{name}"
                engine.tb_logger.add_scalar(tag, value, engine.train_iter)


class SendPolicyHook(LearnerHook):
    """Offers the policy to collectors.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: where it is called.
        ext_args: ``send_policy_freq``: iterations between two offers.
    """

    def __init__(
        self,
        name: str = "send_policy",
        priority: float = 100,
        *,
        position: str = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position=position)
        self._freq = _every(ext_args, "send_policy_freq", 1)

    def __call__(self, engine: Any) -> None:
        """Offer it, if it is time."""
        if self.position != "after_iter" or engine.train_iter % self._freq == 0:
            engine.offer_policy(force=self.position != "after_iter")


class SendLearnInfoHook(LearnerHook):
    """Tells the coordinator what the learner says of itself.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: where it is called.
        ext_args: ``freq``: iterations between two words.
    """

    def __init__(
        self,
        name: str = "send_learn_info",
        priority: float = 100,
        *,
        position: str = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position=position)
        self._freq = _every(ext_args, "freq", 10)

    def __call__(self, engine: Any) -> None:
        """Tell, if it is time."""
        if engine.train_iter % self._freq == 0:
            engine.send_learn_info(engine.learn_info)


def _every(ext_args: Mapping[str, Any] | None, key: str, default: int) -> int:
    """A number of iterations.

    Raises:
        ValueError: it is not positive.
    """
    count = int((ext_args or {}).get(key, default))
    if count < 1:
        raise ValueError(f"{key} must be at least 1, not {count}")
    return count


register_learner_hook("log_show", LogShowHook)
register_learner_hook("send_policy", SendPolicyHook)
register_learner_hook("send_learn_info", SendLearnInfoHook)
simplified_hook_mapping["log_show_after_iter"] = lambda freq: (
    LogShowHook(ext_args={"freq": freq}) if freq > 0 else None
)
