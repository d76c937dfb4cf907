"""Collectors in one process: their contract, and what all of them share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdi.config.compat import Configurable, component_class
from hpcdi.config.fields import ComponentConfig, setting
from hpcdi.errors import ConfigError, EnvError, PolicyError, Problem
from hpcdi.types import Transition
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.nested import to_tensors
from hpcdi.utils.registry import SERIAL_COLLECTOR_REGISTRY
from hpcdi.worker.collector.caches import CachePool, TrajBuffer, to_tensor_transitions
from hpcdi.worker.collector.rollout import RolloutForm, TransitionForm
from hpcdi.worker.collector.stats import CollectReport
from hpcdi.worker.collector.trajectory import TransitionRecorder

MakeSamples = Callable[[list[Transition]], list[Transition]]

__all__ = [
    "CachePool",
    "ISerialCollector",
    "SerialCollector",
    "TrajBuffer",
    "create_serial_collector",
    "get_serial_collector_cls",
    "to_tensor_transitions",
]


class ISerialCollector(Configurable, ABC):
    """Steps environments by a policy until there is as much data as was asked for."""

    @abstractmethod
    def reset_env(self, _env: Any = None) -> None:
        """Begin new episodes, in other environments if some are given."""

    @abstractmethod
    def reset_policy(self, _policy: Any = None) -> None:
        """Forget what the policy remembers of episodes; take another policy if one is given."""

    @abstractmethod
    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """`reset_env` and `reset_policy`; unfinished trajectories and all counters go."""

    @abstractmethod
    def collect(self, per_collect_target: Any) -> Any:
        """Collect, and give what was collected; see the class at hand for its target."""

    @property
    @abstractmethod
    def envstep(self) -> int:
        """Environment steps so far."""


@dataclass(frozen=True)
class SerialCollectorConfig(ComponentConfig):
    """Settings that all serial collectors share."""

    deepcopy_obs: bool = setting(
        False, "copy observations, for environments that write each over the one before"
    )
    transform_obs: bool = setting(False, "give the policy float32 tensors, not arrays")
    collect_print_freq: int = setting(
        100, "train iterations between two reports of collecting", minimum=1
    )


class SerialCollector(Closing, ISerialCollector):
    """What the serial collectors share: environments, policies, counters, and the way to step.

    A collector differs from the others by the form in which it steps (`_make_form`) and by what it
    waits for (`collect`).

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        env: an environment manager; may be set later, by `reset_env`.
        policy: a collect mode, or a list of them for a battle; may be set later.
        tb_logger: TensorBoard writer, which is closed with it; None: no curves.
        exp_name: name of the experiment.
        instance_name: prefix of TensorBoard's tags.
    """

    Config = SerialCollectorConfig

    def __init__(
        self,
        cfg: Any,
        env: Any = None,
        policy: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "collector",
    ) -> None:
        self._cfg = self.parse_config(cfg)
        self._exp_name = exp_name
        self._report = CollectReport(tb_logger, instance_name, self._cfg.collect_print_freq)
        self._env: Any = None
        self._policy: Any = None
        self._form: Any = None
        if env is not None or policy is not None:
            self.reset(policy, env)

    def reset_env(self, _env: Any = None) -> None:
        """Begin new episodes; in `_env`, an environment manager, if it is given."""
        if _env is not None:
            self._env = _env
            if getattr(_env, "closed", True):
                _env.launch()
            else:
                _env.reset()
        elif self._env is not None:
            self._env.reset()
        self._form = None

    def reset_policy(self, _policy: Any = None) -> None:
        """Forget what the policy remembers; take `_policy` if it is given."""
        if _policy is not None:
            self._policy = self._checked_policy(_policy)
        for policy in self._policies():
            policy.reset()
        self._form = None

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """`reset_env` and `reset_policy`; unfinished trajectories and all counters go."""
        if _env is not None or self._env is not None:
            self.reset_env(_env)
        if _policy is not None or self._policy is not None:
            self.reset_policy(_policy)
        self._report.clear()

    def close(self) -> None:
        """Close the environments and the TensorBoard writer; again: nothing."""
        env, self._env = self._env, None
        if env is not None:
            env.close()
        self._report.close()

    @property
    def envstep(self) -> int:
        """Environment steps so far; can be set, e.g. when a run is resumed."""
        return self._report.totals["envstep"]

    @envstep.setter
    def envstep(self, value: int) -> None:
        self._report.totals["envstep"] = value

    @property
    def totals(self) -> dict[str, int]:
        """All counts so far; can be set, when a run is resumed."""
        return dict(self._report.totals)

    @totals.setter
    def totals(self, value: Mapping[str, int]) -> None:
        self._report.totals.update(value)

    @property
    def recent_returns(self) -> list[float]:
        """Of the last hundred episodes; in a battle, the first player's."""
        return list(self._report.recent)

    @property
    def policy(self) -> Any:
        """The collect mode, or a battle's list of them."""
        return self._policy

    @abstractmethod
    def _make_form(self) -> RolloutForm:
        """How these environments are stepped by these policies."""

    def _checked_policy(self, policy: Any) -> Any:
        """A policy as this collector takes it.

        Raises:
            PolicyError: it is not of that kind.
        """
        if isinstance(policy, list | tuple) and not hasattr(policy, "forward"):
            raise PolicyError(
                f"{type(self).__name__} takes one policy, not a list of {len(policy)}"
            )
        return policy

    def _policies(self) -> Sequence[Any]:
        if self._policy is None:
            return ()
        return self._policy if isinstance(self._policy, list) else (self._policy,)

    def _the_form(self) -> Any:
        """The form, made when it is first needed."""
        self._demand_both()
        if self._form is None:
            self._form = self._make_form()
        return self._form

    def _demand_both(self) -> None:
        if self._env is None:
            raise EnvError("the collector has no environments; give it some by reset_env(manager)")
        if self._policy is None:
            raise PolicyError("the collector has no policy; give it one by reset_policy(mode)")

    def _target(self, given: int | None, name: str) -> int:
        """How much to collect: what was asked for, or the policy's attribute of that name."""
        self._demand_both()
        policy = next(iter(self._policies()))
        target = given if given is not None else attribute_of(policy, name, None)
        if target is None or target < 1:
            problem = f"must be at least 1, not {target}"
            raise ConfigError([Problem(name, problem)], f"{type(self).__name__}.collect")
        return int(target)

    def _recorder(
        self, policy: Any, length: float, make_samples: MakeSamples
    ) -> TransitionRecorder:
        """Keeps a policy's transitions; see `TransitionRecorder` for the length and the samples."""
        env_num: int = self._env.env_num
        return TransitionRecorder(env_num, length, policy.process_transition, make_samples)

    def _transition_form(self, recorder: TransitionRecorder) -> TransitionForm:
        return TransitionForm(
            self._env, self._policy, recorder, present=self._present(),
            deepcopy=self._cfg.deepcopy_obs,
        )  # fmt: skip

    def _present(self) -> Any:
        """What policies get for observations."""
        return to_tensors if self._cfg.transform_obs else None


def attribute_of(policy: Any, name: str, default: Any) -> Any:
    """A policy's attribute; `default` where it has none."""
    try:
        return policy.get_attribute(name)
    except (NotImplementedError, AttributeError):
        return default


def marked(samples: list[Transition], train_iter: int, **more: int) -> list[Transition]:
    """Samples that say by which policy they were made: ``collect_iter``, its train iteration."""
    return [{**sample, "collect_iter": train_iter, **more} for sample in samples]


def piece_length(policy: Any, target: int, env_num: int) -> float:
    """Transitions that the policy makes samples of together: an environment's share of the target.

    At least its ``unroll_len``; without end, up to whole episodes, where its settings say
    ``traj_len_inf``.
    """
    if getattr(attribute_of(policy, "cfg", None), "traj_len_inf", False):
        return math.inf
    return max(math.ceil(target / env_num), int(attribute_of(policy, "unroll_len", 1)))


def create_serial_collector(cfg: Any, **kwargs: Any) -> ISerialCollector:
    """The collector that ``cfg.type`` names; other arguments go to its constructor.

    Raises:
        UnknownTypeError: no serial collector has that type.
    """
    collector: ISerialCollector = get_serial_collector_cls(cfg)(cfg, **kwargs)
    return collector


def get_serial_collector_cls(cfg: Any) -> Any:
    """The class that ``cfg.type`` names."""
    if isinstance(cfg, Mapping) and "type" not in cfg:
        cfg = {**cfg, "type": "sample"}
    return component_class(SERIAL_COLLECTOR_REGISTRY, cfg)


def enough_episodes(n_episode: int, env_num: int) -> int:
    """`n_episode`, if every environment can give one.

    Raises:
        ConfigError: there are fewer episodes than environments: the shortest ones would be chosen.
    """
    if n_episode < env_num:
        problem = f"must be at least the number of environments, {env_num}, not {n_episode}"
        raise ConfigError([Problem("n_episode", problem)], "collect()")
    return n_episode
