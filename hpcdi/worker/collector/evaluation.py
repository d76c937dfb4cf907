"""What all serial evaluators share: when it is time, and what becomes of the result.

Life of an evaluator::

    made ──reset_env: launch──► ready ──eval──► env.reset, policy.reset, episodes ──► ready
                                  │                                                     │
                                  └────────────────────── close ◄───────────────────────┘

Among several learners (torch.distributed) rank 0 evaluates, and tells the others: all end together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hpcdi.errors import EnvError, PolicyError
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.worker.collector.base_serial_evaluator import ISerialEvaluator
from hpcdi.worker.collector.learners_group import group_rank

BEST_CHECKPOINT = "ckpt_best.pth.tar"


class Every:
    """Is it time again? At first, and when a count has grown by `step`.

    Args:
        step: how much; 0 or less: whenever the count is another.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._last: int | None = None

    def is_due(self, count: int) -> bool:
        """Whether it is time; then the next time is counted from here."""
        last = self._last
        # a count below the last one has begun anew, from a checkpoint perhaps
        due = last is None or (count != last and not 0 < count - last < self._step)
        self._last = count if due else last
        return due

    def restart(self) -> None:
        """The next count is the first."""
        self._last = None


class Report:
    """Where results go: TensorBoard, and the log.

    Args:
        tb_logger: has ``add_scalar(tag, value, step)``; None: nothing is written.
        exp_name: folder of the experiment.
        instance_name: name of the evaluator, in tags and log lines.
    """

    def __init__(self, tb_logger: Any, exp_name: str, instance_name: str) -> None:
        self.tb_logger = tb_logger
        self.exp_name, self.instance_name = exp_name, instance_name

    def add(self, scalars: Mapping[str, Any], train_iter: int, envstep: int) -> None:
        """Curves on both axes, under the predecessor's tags; what is no number is passed over."""
        for name, value in scalars.items():
            if self.tb_logger is not None and isinstance(value, int | float):
                self.tb_logger.add_scalar(f"{self.instance_name}_iter/{name}", value, train_iter)
                self.tb_logger.add_scalar(f"{self.instance_name}_step/{name}", value, envstep)

    def close(self) -> None:
        """Flush and close the writer."""
        tb_logger, self.tb_logger = self.tb_logger, None
        if tb_logger is not None:
            tb_logger.flush()
            tb_logger.close()


class SerialEvaluator(Closing, ISerialEvaluator):
    """Base of serial evaluators; one that derives from it says how it plays (`eval`).

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        env: manager of the environments, which it launches and closes; None: comes by `reset_env`.
            Ranks of a process group other than 0 need none.
        policy: an eval mode; None: comes by `reset_policy`.
        tb_logger: takes curves and videos, and is closed with it; None: nothing is written.
        exp_name: folder of the experiment.
        instance_name: name in tags, log lines and messages.

    Raises:
        ConfigError: a setting is wrong; all problems at once.
    """

    def __init__(
        self,
        cfg: Any,
        env: Any = None,
        policy: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "evaluator",
    ) -> None:
        self._env: Any = None
        self._policy: Any = None
        self._best: Any = None
        self.scalars: dict[str, Any] = {}
        """What the last evaluation had to say, as TensorBoard got it."""
        self._report = Report(tb_logger, exp_name, instance_name)
        self._cfg = self.parse_config(cfg)
        self._due = Every(self._cfg.eval_freq)
        self.reset(policy, env)

    @property
    def env(self) -> Any:
        """Manager of the environments, None where there is none."""
        return self._env

    @property
    def policy(self) -> Any:
        """The policy that is evaluated, None where there is none."""
        return self._policy

    @property
    def best(self) -> Any:
        """Best result since the last `reset`; None before the first. Can be set, to go on."""
        return self._best

    @best.setter
    def best(self, result: Any) -> None:
        self._best = result

    @property
    def stop_value(self) -> Any:
        """Result that ends the run."""
        return self._cfg.stop_value

    def reset_env(self, _env: Any = None) -> None:
        """See `ISerialEvaluator.reset_env`."""
        if _env is None or _env is self._env:
            self._demand_env().reset()
            return
        if self._env is not None:
            self._env.close()
        self._env = _env
        _env.launch()

    def reset_policy(self, _policy: Any = None) -> None:
        """See `ISerialEvaluator.reset_policy`."""
        if _policy is not None:
            self._policy = _policy
        self._demand_policy().reset()

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """See `ISerialEvaluator.reset`; what there is none of is left out."""
        if _env is not None or self._env is not None:
            self.reset_env(_env)
        if _policy is not None or self._policy is not None:
            self.reset_policy(_policy)
        self._best = None
        self._due.restart()

    def close(self) -> None:
        """See `ISerialEvaluator.close`; `reset_env` opens it again."""
        env, self._env = self._env, None
        if env is not None:
            self._close_env(env)
        self._report.close()

    def should_eval(self, train_iter: int) -> bool:
        """See `ISerialEvaluator.should_eval`."""
        return self._due.is_due(train_iter)

    # For those who derive from it.

    def _close_env(self, env: Any) -> None:
        env.close()

    def _is_better(self, result: Any, best: Any) -> bool:
        """Whether a result is the best so far; `best` is None at first."""
        return not math.isnan(result) and (best is None or result > best)

    def _is_enough(self, result: Any) -> bool:
        """Whether the run can end by a result."""
        return bool(result >= self._cfg.stop_value)

    def _conclude(
        self,
        result: Any,
        scalars: Mapping[str, Any],
        line: str,
        when: tuple[int, int],
        save_ckpt_fn: Callable[[str], Any] | None,
    ) -> bool:
        """Report a result, keep the best; whether the run can end.

        Args:
            result: mean return, or metric; the same on all ranks.
            scalars: for TensorBoard.
            line: for the log.
            when: train iterations and environment steps so far.
            save_ckpt_fn: saves the policy of the best result, on rank 0.
        """
        train_iter, envstep = when
        is_first = group_rank() == 0
        self.scalars = dict(scalars)
        if is_first:
            LOGGER.info(
                "%s: %s, train iteration %d, env step %d",
                self._report.instance_name, line, train_iter, envstep,
                extra={"evaluation": dict(scalars)},
            )  # fmt: skip
            self._report.add(scalars, train_iter, envstep)
        if self._is_better(result, self._best):
            self._best = result
            if is_first and save_ckpt_fn is not None:
                save_ckpt_fn(BEST_CHECKPOINT)
        stop = train_iter > 0 and self._is_enough(result)
        if stop and is_first:
            LOGGER.info(
                "%s: %s reaches the stop value %s: training can end",
                self._report.instance_name, line, self._cfg.stop_value,
            )  # fmt: skip
        return stop

    def _demand_env(self) -> Any:
        if self._env is None:
            raise EnvError(f"{self._name()} has no environment; give it one by reset_env(env)")
        return self._env

    def _demand_policy(self) -> Any:
        if self._policy is None:
            raise PolicyError(f"{self._name()} has no policy; give it one by reset_policy(policy)")
        return self._policy

    def _name(self) -> str:
        return f"{type(self).__name__} {self._report.instance_name!r}"
