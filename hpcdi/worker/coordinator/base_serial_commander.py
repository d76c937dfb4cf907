"""The commander of a serial run: the policy's settings for collecting, as the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcdi.config.compat import Configurable
from hpcdi.config.fields import ComponentConfig
from hpcdi.types import Settings


class BaseSerialCommander(Configurable):
    """Asks the policy's command mode what collectors are to do.

    Args:
        cfg: settings, a mapping or an instance of `Config`; it has none of its own.
        learner: has ``learn_info``.
        collector: has ``envstep``.
        evaluator: for commanders that derive from this one.
        replay_buffer: for commanders that derive from this one.
        policy: a command mode; may be set later. Without one, collectors get no settings.
    """

    @dataclass(frozen=True)
    class Config(ComponentConfig):
        """It has no settings of its own."""

        type: str = "serial"

    def __init__(
        self,
        cfg: Any,
        learner: Any,
        collector: Any,
        evaluator: Any,
        replay_buffer: Any,
        policy: Any = None,
    ) -> None:
        self._cfg = self.parse_config(cfg)
        self._learner, self._collector = learner, collector
        self._evaluator, self._replay_buffer = evaluator, replay_buffer
        self._policy = policy

    def step(self) -> Settings:
        """Keyword arguments of the collect mode's forward, e.g. ``{"eps": 0.3}``.

        They follow from the learner's ``learn_info`` and the collector's ``envstep``.
        """
        if self._policy is None:
            return {}
        told = self._learner.learn_info
        known: Mapping[str, Any] = {**told, "envstep": self._collector.envstep}
        setting: Settings = self._policy.get_setting_collect(known)
        return setting

    @property
    def policy(self) -> Any:
        """The policy's command mode."""
        return self._policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        self._policy = policy
