"""What DI-engine's evaluators have, by its names, for subclasses with an `eval` of their own.

Such subclasses are e.g. dizoo's `TradingSerialEvaluator`; nothing here asks for these names.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from hpcdi.config.roles import InteractionEvaluatorConfig, RenderConfig
from hpcdi.utils.metrics import Curves
from hpcdi.utils.timer import EasyTimer
from hpcdi.worker.log import TableLog


class OwnEval:
    """Parts of an evaluator that an `eval` uses, beside ``_env`` and ``_policy``."""

    _cfg: InteractionEvaluatorConfig
    _curves: Curves
    _exp_name: str
    best: Any

    @cached_property
    def _timer(self) -> EasyTimer:
        return EasyTimer()

    @cached_property
    def _logger(self) -> TableLog:
        return TableLog()

    @property
    def _tb_logger(self) -> Any:
        """The TensorBoard writer; made in ``<exp_name>/log`` where there is none."""
        if self._curves.writer is None:
            from hpcdi.utils.event_file import TensorBoardWriter

            self._curves.writer = TensorBoardWriter(f"{self._exp_name}/log/{self._instance_name}")
        return self._curves.writer

    @property
    def _instance_name(self) -> str:
        return self._curves.name

    @property
    def _default_n_episode(self) -> int | None:
        return self._cfg.n_episode

    @property
    def _stop_value(self) -> Any:
        return self._cfg.stop_value

    @property
    def _render(self) -> RenderConfig:
        return self._cfg.render

    @property
    def _max_episode_return(self) -> float:
        return float("-inf") if self.best is None else float(self.best)

    @_max_episode_return.setter
    def _max_episode_return(self, value: float) -> None:
        self.best = value
