"""Collectors in one process: their interface, and what all of them share."""

from __future__ import annotations

import copy
import itertools
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from hpcdi.config.compat import Configurable
from hpcdi.config.policy import CollectConfig
from hpcdi.config.roles import SerialCollectorConfig
from hpcdi.errors import EnvError, PolicyError, Problem
from hpcdi.policy.base import attribute_of
from hpcdi.roles.collector.loop import Act, Loop, PolicyAgent
from hpcdi.types import Array, Episodes, Transition
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import PartCurves
from hpcdi.utils.nested import to_tensors
from hpcdi.utils.registry import SERIAL_COLLECTOR_REGISTRY
from hpcdi.utils.truths import all_of
from hpcdi.worker.collectives import sum_over_ranks
from hpcdi.worker.dict_envs import ForeignEnvs
from hpcdi.worker.dict_policy import (
    DictActor,
    DictRecorder,
    TrajectoryRecorder,
    columnar_actor,
    trajectory_length,
)
from hpcdi.worker.errors import NoEnvError, NoPolicyError, QuotaError, UnknownAmountError
from hpcdi.worker.names import CachePool, TrajBuffer
from hpcdi.worker.registered import class_of

__all__ = [
    "INF",
    "CachePool",
    "ISerialCollector",
    "SerialCollector",
    "TrajBuffer",
    "create_serial_collector",
    "get_serial_collector_cls",
    "to_tensor_transitions",
]

T = TypeVar("T")
INF = float("inf")
"""Length of trajectories that are whole episodes, for collectors of a user's own."""


class ISerialCollector(Configurable, ABC):
    """Steps environments by a policy until it has collected a given amount of data."""

    # where there is no such setting
    UNUSED: ClassVar[Mapping[str, Any]] = {"get_train_sample": None}

    @abstractmethod
    def reset_env(self, _env: Any = None) -> None:
        """Begin new episodes; in other environments if given."""

    @abstractmethod
    def reset_policy(self, _policy: Any = None) -> None:
        """Reset the policy's memory of episodes; replace the policy if one is given."""

    @abstractmethod
    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """`reset_env` and `reset_policy`; drops unfinished trajectories and all counters."""

    @abstractmethod
    def collect(self, per_collect_target: Any) -> Any:
        """Collect and return data; the classes say what their target counts."""

    @property
    @abstractmethod
    def envstep(self) -> int:
        """Environment steps so far."""


class SerialCollector(Closing, ISerialCollector):
    """Base of the serial collectors: environments, policies, counters and the stepping loop.

    They differ in how much of an episode makes a trajectory (`_recorder`) and when they stop
    (`collect`).

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        env: an environment manager; may be set later, by `reset_env`.
        policy: a collect mode, or a list of them for a battle; may be set later.
        tb_logger: TensorBoard writer, which is closed with it; None: no curves.
        exp_name: name of the experiment.
        instance_name: prefix of TensorBoard's tags.
    """

    Config = SerialCollectorConfig
    _cfg: SerialCollectorConfig
    _sums_ranks: ClassVar[bool] = False
    """Whether counts are those of all ranks of a process group, and `collect` is collective."""

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
        self._collect_print_freq = self._cfg.collect_print_freq
        self._report = CollectReport(
            tb_logger, instance_name, self._collect_print_freq, sums_ranks=self._sums_ranks
        )
        self._env: Any = None
        self._policy: Any = None
        self._loop: Loop | None = None
        self._records: DictRecorder | None = None
        """The loop's, where it is one of dicts."""
        self._resets: Array | None = None
        """Of our manager when the last call began: how often the program has reset each one."""
        if env is not None or policy is not None:
            self.reset(policy, env)

    def reset_env(self, _env: Any = None) -> None:
        """Begin new episodes; in `_env`, an environment manager, if given."""
        if self._loop is not None:
            self._loop.agent.forget()  # its memory is of episodes that end here
        if _env is not None:
            self._env = _env
            if getattr(_env, "closed", True):
                _env.launch()
            else:
                _env.reset()
        elif self._env is not None:
            self._env.reset()
        self._loop = self._records = self._resets = None

    def reset_policy(self, _policy: Any = None) -> None:
        """Reset the policy's memory; replace it by `_policy` if given. Trajectories go on."""
        if _policy is not None:
            self._policy = self._checked_policy(_policy)
        for policy in self._policies():
            policy.reset()

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """`reset_env` and `reset_policy`; drops unfinished trajectories and all counters."""
        if _env is not None or self._env is not None:
            self.reset_env(_env)
        if _policy is not None or self._policy is not None:
            self.reset_policy(_policy)
        self._loop = self._records = self._resets = None
        self._report.clear()

    def close(self) -> None:
        """Close the environments and the TensorBoard writer. Idempotent."""
        env, self._env = self._env, None
        if env is not None:
            env.close()
        self._report.close()

    @property
    def envstep(self) -> int:
        """Environment steps so far; settable, e.g. when a run is resumed."""
        return self._report.totals["envstep"]

    @envstep.setter
    def envstep(self, value: int) -> None:
        self._report.totals["envstep"] = value

    @property
    def policy(self) -> Any:
        """The collect mode, or a battle's list of modes."""
        return self._policy

    @property
    def _traj_buffer(self) -> dict[int, Any]:
        """Transitions of the running episodes, as DI-engine's own tests ask for them."""
        opens = [one.open for one in (self._records.of if self._records else ()) if one]
        each = zip(*opens, strict=True)
        return {env: steps if len(steps) > 1 else steps[0] for env, steps in enumerate(each)}

    def _recorder(self, player: int) -> TrajectoryRecorder:
        """A recorder of a player's transitions; here of samples of pieces, whose length is set."""
        return TrajectoryRecorder(self._env.env_num, 1, unowned(self._samples, player))

    def _is_kept(self, player: int) -> bool:  # noqa: ARG002
        """Returns whether a player's transitions are collected, now."""
        return True

    def _checked_policy(self, policy: Any) -> Any:
        """The policy in the form of this collector.

        Raises:
            PolicyError: it is of another kind.
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

    def _begin(
        self,
        setting: Any,
        train_iter: int,
        level_seeds: Any = None,
        *,
        episodes: int | None = None,
    ) -> CollectCall:
        """Begin a call of `collect`, which marks transitions; the loop is made when first needed.

        The policies, and whose transitions are kept, are those of now: unfinished trajectories of a
        player that is kept as before go on.

        Args:
            setting: keyword arguments of the policy; in a battle maybe a list, one a player.
            train_iter: of the policy, marked as ``collect_iter``.
            level_seeds: by environment, marked as ``seed``: a mapping of some, or a sequence or a
                tensor of all.
            episodes: that begin, where a manager is foreign; None: no limit.

        Raises:
            EnvError: an environment has not one player for each policy.
        """
        policies = self._policies()
        if self._records is None or len(self._records.of) != len(policies):
            self._leave_loop()
        if self._loop is None or self._records is None:
            actor = DictActor(
                policies,
                copy.deepcopy if self._cfg.deepcopy_obs else None,
                to_tensors if self._cfg.transform_obs else None,
                is_battle=isinstance(self._policy, list),
            )
            envs = actor.bind(self._env)
            self._records = DictRecorder(actor, [None] * len(policies))
            self._loop = Loop(envs, PolicyAgent(actor), self._records)
        self._records.actor.policies = list(policies)
        self._records.of = [
            (recorder or self._recorder(player)) if self._is_kept(player) else None
            for player, recorder in enumerate(self._records.of)
        ]
        mark = {"collect_iter": train_iter}
        seeds = {} if level_seeds is None else level_seeds
        pairs = seeds.items() if isinstance(seeds, Mapping) else enumerate(seeds)
        marks = {env: {"seed": seed, **mark} for env, seed in pairs}
        self._records.mark = lambda env: marks.get(env, mark)
        self._follow_resets(self._loop)
        if isinstance(self._loop.envs, ForeignEnvs):
            self._loop.envs.begin_only(episodes)
        return CollectCall(self._env, self._loop, setting, records=self._records)

    def _leave_loop(self) -> None:
        """Leave the loop for one of another kind, and with it unfinished trajectories.

        Where steps are under way (``wait_num``) all environments begin new episodes: the other loop
        would not know what these steps began with.
        """
        loop = self._loop
        if loop is not None and loop.envs.wait_num is not None and not all_of(loop.envs.ready):
            self.reset_env()
        self._loop = self._records = None

    def _follow_resets(self, loop: Loop) -> None:
        """Drop what is unfinished where the program has reset our manager since the last call."""
        resets, before = getattr(loop.envs, "resets", None), self._resets
        self._resets = None if resets is None else resets.copy()
        if resets is None or before is None or (resets == before).all():
            return
        envs = np.flatnonzero(resets != before)
        for recorder in filter(None, self._records.of if self._records else ()):
            for env in envs.tolist():
                recorder.drop(env)
        seats = np.arange(loop.envs.seats)[:, None]
        loop.agent.forget((envs + loop.envs.env_num * seats).ravel())

    def _prepared(self, player: int, trajectory: list[Transition]) -> list[Transition]:
        """A trajectory as a player's policy takes it: of tensors, unless it acts by columns."""
        if columnar_actor(self._policies()[player]) is not None:
            return trajectory
        return to_tensor_transitions(trajectory, not self._cfg.deepcopy_obs)

    def _samples(self, player: int, trajectory: list[Transition]) -> list[Transition]:
        """Training samples that a player's policy makes of a trajectory."""
        policy = self._policies()[player]
        samples: list[Transition] = policy.get_train_sample(self._prepared(player, trajectory))
        return samples

    def _attribute(self, name: str, default: Any, player: int = 0) -> Any:
        """Returns an attribute of a player's policy; `default` if it has none."""
        return attribute_of(self._policies()[player], name, default)

    def _target(self, amount: int | None, name: str) -> int:
        """How much to collect: the argument, or the policy's attribute of that name.

        Raises:
            NoEnvError, NoPolicyError: there are no environments, or there is no policy.
            UnknownAmountError: the amount is unknown.
        """
        if self._env is None:
            raise NoEnvError("the collector has no environments; set them by reset_env(manager)")
        if self._policy is None:
            raise NoPolicyError("the collector has no policy; give it one by reset_policy(mode)")
        target = amount if amount is not None else self._attribute(name, None)
        if target is None:
            problem = "is neither given nor an attribute of the policy"
            raise UnknownAmountError([Problem(name, problem)], f"{type(self).__name__}.collect")
        return int(target)

    def _piece_length(self, player: int, target: int) -> float:
        """Transitions of which a player's policy makes samples at once: see `trajectory_length`.

        They share out the first policy's attribute ``n_sample``, however many a call collects; the
        call's `target` where there is no such attribute; without end where it is None. Policies of
        ours have it of each environment: there a larger `target` is shared out, and an n-step
        return has room.
        """
        usual, least = self._attribute("n_sample", target), 1
        if usual is None:  # the policy says itself that it has no usual number
            return INF
        policy = self._policies()[player]
        cfg = attribute_of(policy, "cfg", None)
        if isinstance(getattr(cfg, "collect", None), CollectConfig):
            usual, least = max(usual, target), cfg.nstep
        return max(trajectory_length(policy, usual, self._env.env_num), least)

    def _episode_target(self, amount: int | None) -> int:
        """How many episodes to collect; see `_target`.

        Raises:
            QuotaError: fewer than there are environments: the shortest ones would be chosen.
        """
        target = self._target(amount, "n_episode")
        if target < self._env.env_num:
            problem = f"must be at least the number of environments, {self._env.env_num}"
            raise QuotaError([Problem("n_episode", f"{problem}, not {target}")], "collect()")
        return target


class CollectCall:
    """One call of `collect`: its steps and its report.

    Args:
        env: the environment manager.
        loop: steps the environments.
        setting: keyword arguments of the policy; in a battle maybe a list, one a player.
        act: acts instead of the policy.
        records: of the players; None where columns are recorded.

    Attributes:
        recorders: of each player, see `DictRecorder`.
    """

    def __init__(
        self,
        env: Any,
        loop: Loop,
        setting: Any = None,
        act: Act | None = None,
        records: DictRecorder | None = None,
    ) -> None:
        self.loop = loop
        self.recorders: list[Any] = [] if records is None else records.of
        self._env_steps = 0
        self._env, self._setting, self._act = env, setting or {}, act
        self._began = time.perf_counter()

    def steps(self) -> Iterator[int]:
        """Step without end; yields the number of transitions of each step, of all players.

        Raises:
            EnvError: the environments have done all their episodes, but more is to be collected.
        """
        while True:
            count = self.loop.once(self._setting, self._act)
            self._env_steps += self.loop.envs.stepped
            yield count
            if not count and getattr(self._env, "done", False):
                raise EnvError("the environments are done: the manager's episode_num is too low")

    def report(
        self, report: CollectReport, samples: int, train_iter: int, *, is_shown: bool = True
    ) -> list[Episodes]:
        """Add the call to the collector's report; returns each player's episodes that ended.

        They may have ended in a call before this one, if that raised an error. Unless `is_shown`,
        only the call's total counts are added.
        """
        ended, envs = self.loop.take_episodes(), self.loop.envs
        of = [ended.of(ended.rows // envs.env_num == seat) for seat in range(envs.seats)]
        returns, steps = [one.returns for one in of], int(of[0].lengths.sum())
        recorded = [one.take_samples_of_ended() for one in self.recorders if one]
        counts = {"envstep": self._env_steps, "train_sample": samples, "episode": len(returns[0])}
        of_ended = {"envstep": steps, "train_sample": max(recorded, default=steps)}
        took_s = time.perf_counter() - self._began
        report.add(counts, took_s, returns, of_ended=of_ended, is_shown=is_shown)
        report.show(train_iter)
        return of


class CollectReport:
    """Counts of a serial collector, for TensorBoard and the log.

    Args:
        tb_logger: TensorBoard writer; None: no curves.
        instance_name: prefix of their tags.
        print_freq: train iterations between two reports.
        sums_ranks: counts of all ranks of a process group are summed; `add` is collective then.
    """

    def __init__(
        self, tb_logger: Any, instance_name: str, print_freq: int, *, sums_ranks: bool = False
    ) -> None:
        self._curves, self._print_freq = PartCurves(tb_logger, instance_name), print_freq
        self._sums_ranks = sums_ranks
        self.clear()

    def clear(self) -> None:
        """Forget all counts."""
        self.totals = {"envstep": 0, "train_sample": 0, "episode": 0}
        self._duration_s = 0.0
        self._begin_anew()
        self._shown_at: int | None = None  # train iteration of the last report

    def _begin_anew(self) -> None:
        """Forget what there was since the last report."""
        self._since: Counter[str] = Counter()
        self._of_ended: Counter[str] = Counter()
        self._since_s = 0.0
        self._returns: list[Sequence[Array]] = []  # of each call, by player

    def add(
        self,
        counts: Mapping[str, int],
        duration_s: float,
        returns: Sequence[Array],
        *,
        of_ended: Mapping[str, int],
        is_shown: bool = True,
    ) -> None:
        """Add one call of `collect`.

        Args:
            counts: ``envstep, train_sample, episode``, of this rank.
            duration_s: seconds it took.
            returns: of the episodes that ended in it, by player.
            of_ended: ``envstep, train_sample`` of the episodes that ended, from their beginning on.
            is_shown: it is part of the next curves, too.
        """
        if self._sums_ranks:
            counts, of_ended = sum_over_ranks(counts), sum_over_ranks(of_ended)
        for name, count in counts.items():
            self.totals[name] += count
        if not is_shown:
            return
        self._since.update(counts)
        self._of_ended.update(of_ended)
        self._since_s += duration_s
        self._duration_s += duration_s
        if len(returns[0]):
            self._returns.append(returns)

    def show(self, train_iter: int) -> None:
        """Write curves and a log line of all since the last report, if an episode ended.

        Args:
            train_iter: train iterations so far.
        """
        last = self._shown_at
        is_due = last is None or train_iter - last >= self._print_freq
        if not self._returns or not is_due:
            return
        self._shown_at = train_iter
        scalars = self._scalars()
        LOGGER.info("collect", extra={"train_iter": train_iter, "scalars": scalars})
        self._curves.add(scalars, train_iter, self.totals["envstep"])
        self._begin_anew()

    def close(self) -> None:
        """Flush and close the writer. Idempotent."""
        self._curves.close()

    def _scalars(self) -> dict[str, float]:
        """Values under DI-engine's names: rates are of all steps, counts of ended episodes."""
        since, seconds = self._since, max(self._since_s, 1e-9)
        of_ended = {**self._of_ended, "episode": since["episode"]}
        episodes = max(since["episode"], 1)
        returns = [np.concatenate(of_player) for of_player in zip(*self._returns, strict=True)]
        players = {"reward": returns[0]}
        if len(returns) > 1:
            players |= {f"reward{player}": one for player, one in enumerate(returns)}
        per = {
            f"avg_{name}_per_sec": since[name] / seconds
            for name in ("envstep", "train_sample", "episode")
        }
        return {
            **{f"{name}_count": float(of_ended[name]) for name in self.totals},
            **{f"total_{name}_count": float(count) for name, count in self.totals.items()},
            **per,
            "avg_envstep_per_episode": of_ended["envstep"] / episodes,
            "avg_sample_per_episode": of_ended["train_sample"] / episodes,
            "collect_time": self._since_s,
            "total_duration": self._duration_s,
            **{
                f"{name}_{figure}": float(getattr(one, figure)())
                for name, one in players.items()
                for figure in ("mean", "std", "max", "min")
            },
        }


def unowned(method: Callable[..., T], *arguments: object) -> Callable[..., T]:
    """Returns a method with its first arguments, which does not keep its object alive.

    What a collector owns calls it back by these, so that `del` closes its environments at once.
    """
    of, function = weakref.ref(method.__self__), method.__func__  # type: ignore[attr-defined]
    return lambda *more: function(of(), *arguments, *more)


def create_serial_collector(cfg: Any, **kwargs: Any) -> ISerialCollector:
    """Make the collector that ``cfg.type`` names; other arguments go to its constructor.

    Raises:
        UnknownTypeError: no serial collector has that type.
    """
    collector: ISerialCollector = get_serial_collector_cls(cfg)(cfg, **kwargs)
    return collector


def get_serial_collector_cls(cfg: Any) -> Any:
    """The class that ``cfg.type`` names."""
    return class_of(SERIAL_COLLECTOR_REGISTRY, cfg, "sample")


def to_tensor_transitions(
    data: list[Transition],
    shallow_copy_next_obs: bool = True,
) -> list[Transition]:
    """Transitions of one trajectory with torch tensors for arrays.

    Doubles become float32, other dtypes stay; a list or tuple of numbers becomes one tensor. Single
    numbers, truth values, texts and tensors stay as they are; see `to_tensors`.

    Args:
        data: consecutive transitions, each with ``obs`` and ``next_obs``, where the next
            observation of one is the observation of the next.
        shallow_copy_next_obs: let ``next_obs`` of each share the memory of the next one's ``obs``:
            an observation is held once.
    """
    as_tensors = partial(to_tensors, as_floats=False)
    if not shallow_copy_next_obs or not data or "next_obs" not in data[0]:
        return [as_tensors(item) for item in data]
    converted = [as_tensors({**item, "next_obs": None}) for item in data[:-1]]
    converted.append(as_tensors(data[-1]))
    for item, successor in itertools.pairwise(converted):
        item["next_obs"] = successor["obs"]
    return converted
