"""The collector of a parallel run: environments stepped until a task ends.

`BaseParallelCollector` has the methods that DI-engine's collectors have,
`ZerglingParallelCollector` fills them with the stepping loop of one policy or, in battles, of a
league's players.
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from hpcdi.comm.messages import CollectProgress, CollectResult, CollectSetting, Message
from hpcdi.config.compat import Configurable
from hpcdi.config.policy import PolicyConfig
from hpcdi.config.roles import ParallelCollectorConfig, ZerglingCollectorConfig
from hpcdi.config.schedule import Scheduled
from hpcdi.dataclass import dataclass
from hpcdi.env.create import create_env_manager
from hpcdi.errors import CommError, ConfigError, EnvError, PolicyError, Problem
from hpcdi.league.battle_agent import BattleAgent, Players, in_turn, live_opponents
from hpcdi.policy.base import Actor, ColumnarActor, Policy, actor_of, attribute_of
from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import RandomActor, RandomFirst
from hpcdi.policy.spaces import with_bounds
from hpcdi.roles.collector.hindsight import Hindsight
from hpcdi.roles.collector.loop import Loop, policy_loop, quotas
from hpcdi.roles.collector.recorder import Recorder
from hpcdi.roles.context import POLICY_PATIENCE_S, MakePolicy
from hpcdi.roles.fault import FAULTS, hang_environment
from hpcdi.store.policies import PolicyImage
from hpcdi.store.segment import Segment
from hpcdi.types import MAIN, Array, Columns, Episodes, Lockstep, Settings, Step
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.growth import Memory
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.timer import RoleMeter

PROGRESS_S = 0.25
"""Seconds between two progress reports to the coordinator, of up to `_MANY` collectors."""
_MANY = 1024
"""More collectors report less often: together they send rank 0 no more reports than these do."""
_SAMPLE_S = 5.0
"""Seconds between two looks at the memory of environments."""
ROLLOUT_S = 10.0
"""Seconds after which a rollout is sent even if it is not full (slow environments). An n-step
return ends with its rollout, so rollouts must not be cut short often."""
MAX_EPISODES = 1000
"""Last episodes that a collect task keeps, since it may take days; rank 0 is sent all of them."""
LOST_ROLLOUT_S = 10.0
"""On-policy: seconds without a newer policy after which the last rollout counts as lost; more where
learning takes longer, see `StalenessGate`."""
_TIMES_LAST_WAIT = 3.0
"""A rollout counts as lost only after as many times the last wait for a newer policy."""
_NAP_S = 0.002
"""Seconds between two checks whether a step may be made."""


class CollectorPort(Protocol):
    """The part of the message side that a collector calls."""

    meter: RoleMeter
    """Where the rank's time goes."""

    @property
    def is_paused(self) -> bool:
        """True while collectors must wait for learners."""
        return False

    def awaits_policy(self, path: str) -> bool:  # noqa: ARG002
        """Returns whether the answer to a request for a player's newest policy is under way."""
        return False

    @abstractmethod
    def get_policy_update_info(
        self,
        path: str,
        have_version: int = -1,
        *,
        newest: bool = False,
        as_arrays: bool = False,
    ) -> dict[str, Any] | None:
        """Returns ``{"model": state dict, "iter": version}`` newer than `have_version`, else None.

        It never waits.

        Args:
            path: name of the player whose policy it is.
            have_version: version of the caller's policy; -1: it has none.
            newest: ask for the learner's current policy; it is on its way while `awaits_policy`.
            as_arrays: the state dict has arrays of numpy; only asked by policies that want them.
        """
        ...

    @abstractmethod
    def send_stepdata(self, path: str, stepdata: Segment) -> None:
        """Queue a segment for the learners."""
        ...

    @abstractmethod
    def send_metadata(self, metadata: Message) -> None:
        """Send a message to the coordinator."""
        ...


@dataclass
class CollectorTask:
    """A task and its progress.

    Attributes:
        task_id: name of the task.
        setting: keyword arguments of the policy.
        started: when the task began, by `time.monotonic`.
        env_steps: transitions that were collected.
        samples: training samples that were made of them; of a policy of columns as many, and
            those of hindsight.
        episodes: episodes that ended.
        returns: returns of the last episodes that ended, in order, float64 [episodes].
        lengths: their lengths in steps, int64 [episodes].
        evaluated: the episodes of an evaluation, by reports.
        lockstep: the task ends with its first rollout, by the policy of this version; None: it does
            not.
        player: the player that acts, and that learns from the data.
        scheduled: what environments are played with, see ``env.schedule``.
    """

    task_id: str = ""
    setting: Settings = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    env_steps: int = 0
    samples: int = 0
    episodes: int = 0
    returns: Array = field(default_factory=lambda: np.zeros(0))
    lengths: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    evaluated: list[Episodes] = field(default_factory=list)
    lockstep: Lockstep | None = None
    player: str = MAIN
    scheduled: Scheduled = field(default_factory=dict)

    def add_episodes(self, returns: Array, lengths: Array, keep: int | None) -> None:
        """Count ended episodes; keep the last `keep` of all (None: all of them)."""
        self.episodes += len(returns)
        if len(returns):
            first = 0 if keep is None else -keep
            self.returns = np.concatenate([self.returns, returns])[first:]
            self.lengths = np.concatenate([self.lengths, lengths])[first:]


class BaseParallelCollector(Configurable, Closing, ABC):
    """Steps environments until they are done or it is stopped.

    A subclass implements the methods that `turn` calls.

    Args:
        cfg: settings; besides those of `Config` it may hold ``env``, ``policy``,
            ``collect_setting``, ``eval_flag``, ``exp_name`` and ``policy_update_path``, as the
            callers of DI-engine pass them, a ``seed`` (`numpy.random.SeedSequence`), its
            ``number`` among the collectors, and how many there are, and ``make_policy``: what makes
            policies that act by columns (default: `create_policy`); what environments are played
            with at first (``scheduled``), whether they have this process for themselves
            (``own_process``), and for how long to wait for a policy (``policy_patience_s``).
        port: to the message side.
    """

    Config = ParallelCollectorConfig
    UNUSED: ClassVar[Mapping[str, Any]] = {
        "compressor": "lz4",
        "policy_update_flag": None,
        "print_freq": 5,
    }
    _cfg: ParallelCollectorConfig

    TASK_KEYS = (
        "env",
        "policy",
        "collect_setting",
        "eval_flag",
        "exp_name",
        "policy_update_path",
        "seed",
        "number",
        "make_policy",
        "scheduled",
        "own_process",
        "policy_patience_s",
    )
    """Keys of `cfg` that are no settings of `Config`: what a task needs."""

    def __init__(self, cfg: Mapping[str, Any], port: CollectorPort | None = None) -> None:
        self._task_cfg = {key: cfg[key] for key in self.TASK_KEYS if key in cfg}
        _, collectors = self._task_cfg.get("number", (0, 1))
        self._report_every_s = PROGRESS_S * max(1.0, collectors / _MANY)
        self._cfg = self.parse_config({k: v for k, v in cfg.items() if k not in self.TASK_KEYS})
        self.task = CollectorTask(setting=self._task_cfg.get("collect_setting", {}))
        self.port = port
        self._new_settings = deque[CollectSetting]()  # that no turn has taken yet
        self._policy: Any = None
        self._env_manager: Any = None
        self._end_flag = False
        self.is_waiting = False
        """Whether the last turn made no step."""

    def start(self) -> None:
        """Step until the environments are done or `stop` is called."""
        while self.turn():
            if self.is_waiting:
                wait_s(_NAP_S)

    def turn(self) -> bool:
        """Make a step of all environments, if nothing holds it back; it never waits.

        Returns:
            Whether the task goes on.
        """
        if self._end_flag or self._env_manager.done:
            self._finish_task()
            return False
        self._take_settings()
        self.is_waiting = not self._may_step()
        if not self.is_waiting:
            outputs = self._policy_inference(self._env_manager.observation)
            self._process_timestep(self._env_step(outputs))
        self._iter_after_hook()
        return True

    def begin(self, task: CollectorTask) -> None:
        """Set the task that `start` and `turn` work on."""
        self.task = task
        self._end_flag = False

    def stop(self) -> None:
        """Let `start` return after its current step; may be called from any thread."""
        self._end_flag = True

    def tell(self, setting: CollectSetting) -> None:
        """Have the setting's task go on by it from the next turn on; from any thread."""
        self._new_settings.append(setting)

    def _take_settings(self) -> None:
        while self._new_settings:
            new = self._new_settings.popleft()
            if new.task_id == self.task.task_id:
                self.task.setting = new.setting
                self.follow_schedule(new.scheduled)

    def close(self) -> None:
        """Stop, and close the environments. Idempotent."""
        self.stop()
        if self._env_manager is not None:
            self._env_manager.close()
            self._env_manager = None

    @property
    def evaluates(self) -> bool:
        """True if it acts greedily and records nothing."""
        return bool(self._task_cfg.get("eval_flag", False))

    @property
    def policy(self) -> Any:
        """The policy's collect or eval mode."""
        return self._policy

    @policy.setter
    def policy(self, policy: object) -> None:
        self._policy = policy

    @property
    def env_manager(self) -> Any:
        """The environments."""
        return self._env_manager

    @env_manager.setter
    def env_manager(self, manager: object) -> None:
        self._env_manager = manager

    @property
    def health(self) -> dict[str, int]:
        """See `EnvManager.health`; empty if the environments have none, or are closed."""
        counts: dict[str, int] = getattr(self._env_manager, "health", {})
        return counts

    def result(self) -> CollectResult:
        """The task's result, as a message."""
        task, envs = self.task, self._env_manager
        return CollectResult(
            task.task_id,
            self.evaluates,
            self.policy_version,
            env_steps=task.env_steps,
            duration_s=time.monotonic() - task.started,
            episode_returns=task.returns,
            episode_lengths=task.lengths,
            is_complete=envs is None or envs.done or not self.evaluates,
            player=task.player,
            episode_figures=Episodes.joined(task.evaluated).figures,
        )

    @abstractmethod
    def get_finish_info(self) -> dict[str, Any]:
        """The task's result under DI-engine's keys."""

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """Train iteration of the acting policy; -1 before there is one."""

    @abstractmethod
    def _may_step(self) -> bool:
        """Returns whether the next step may be made now."""

    @abstractmethod
    def _policy_inference(self, observation: Columns) -> Columns:
        """The policy's outputs."""

    @abstractmethod
    def _env_step(self, outputs: Columns) -> Step:
        """Step the environments."""

    @abstractmethod
    def _process_timestep(self, timestep: Step) -> None:
        """Record the step."""

    @abstractmethod
    def _update_policy(self) -> None:
        """Load a newer policy if there is one."""

    def follow_schedule(self, scheduled: Scheduled) -> None:
        """Have episodes that begin from now on be played with the values of a schedule."""

    def _iter_after_hook(self) -> None:
        """Called at the end of each turn, also of one that made no step."""

    def cut(self) -> None:
        """Send the transitions recorded since the last cut."""

    def _finish_task(self) -> None:
        """Called after the last step of a task."""

    def info(self, s: str) -> None:
        """Log a line."""
        LOGGER.info(s)

    def debug(self, s: str) -> None:
        """Log a line for developers."""
        LOGGER.debug(s)

    def error(self, s: str) -> None:
        """Log an error."""
        LOGGER.error(s)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(task={self.task.task_id!r}, evaluates={self.evaluates})"


class ZerglingParallelCollector(BaseParallelCollector):
    """Steps many environments by a policy, which it updates between rollouts.

    Episodes may be of different lengths; inference is one batch for all environments. The
    environments live as long as the collector, so that episodes continue in the next task.

    In battles one learning policy plays with its opponents: itself, another player that learns (by
    its newest policy), a frozen policy from its file, a function, or random. Opponents are drawn
    for each game, by the task's setting. In an evaluation the learner plays as each team (a seat,
    if there are no teams) equally often. A task for another player than the last one begins new
    games.

    Args:
        cfg: settings, with ``env`` and ``policy`` (mappings or frozen settings), and in battles
            ``policy_update_path``: the folder that files of frozen policies are relative to.
        port: to the message side.

    Raises:
        ConfigError: a collector of battles has environments of one player.
        PolicyError: the policy wants dicts.
    """

    Config = ZerglingCollectorConfig
    _cfg: ZerglingCollectorConfig

    def __init__(self, cfg: Mapping[str, Any], port: CollectorPort | None = None) -> None:
        super().__init__(cfg, port)
        seed: np.random.SeedSequence = self._task_cfg.get("seed") or np.random.SeedSequence()
        env_seed, policy_seed = seed.spawn(2)
        self._make_policy: MakePolicy = self._task_cfg.get("make_policy", create_policy)
        mode = "eval" if self.evaluates else "collect"
        policy = self._make_policy(self._task_cfg["policy"], [mode], seed=policy_seed)
        if "number" in self._task_cfg and isinstance(policy, Policy):
            policy.set_attribute("collector", self._task_cfg["number"])
        self._policy = getattr(policy, f"{mode}_mode")
        self._env_manager = create_env_manager(
            self._task_cfg["env"],
            evaluate=self.evaluates,
            policy=self._task_cfg["policy"],
            number=self._task_cfg.get("number", (0, 1))[0],
            scheduled=self._task_cfg.get("scheduled"),
            seed=env_seed,
        )
        self._env_manager.retires, self._env_manager.hands_over = True, self.evaluates
        self._env_manager.launch()
        self._env_num = self._env_manager.env_num
        if isinstance(policy, Policy):
            policy.set_attribute("collector_rows", self._env_manager.rows)
        self._quota = self._evaluation_quota()
        self._predefined_episodes = self._env_num * (self._env_manager._quota or math.inf)
        if self._quota is not None:
            self._predefined_episodes = sum(self._quota)
        settings = policy.get_attribute("cfg")
        self._agent: BattleAgent | None = None
        self._loop = self._make_loop(settings, seed)
        self._version = -1
        self._acted: tuple[Columns, Columns] = ({}, {})  # observation and outputs of a step
        self._reported_at = self._asked_at = time.monotonic()
        self._transitions = 0  # of all tasks: the environments' memory may grow with them
        self._memory, self._sampled_at = Memory(), -math.inf
        self._is_current = False  # whether the policy is new enough for the next step
        self._patience_s = self._task_cfg.get("policy_patience_s", POLICY_PATIENCE_S)
        self._gate = StalenessGate(settings, time.monotonic(), self._patience_s)

    def begin(self, task: CollectorTask) -> None:
        """Set the task that `start` runs.

        An evaluation begins with new episodes; collecting continues where the last task ended,
        unless an evaluation has had the same environments since.
        """
        is_other = task.player != self.task.player and self._version >= 0
        super().begin(task)
        self.follow_schedule(task.scheduled)
        self._reported_at = time.monotonic()
        self._ask_for_policy()
        if is_other:
            self._version = -1
            self._gate.forget()
        if self.evaluates or is_other or self._env_manager.is_taken:
            self._loop.begin(self._quota)
        elif self._env_manager.restart_count():
            self._loop.forget()

    def _evaluation_quota(self) -> list[int] | None:
        """Returns the games of each environment in an evaluation of a battle; None: it is none.

        They are rounded up together, so that the learner is each team equally often.
        """
        manager = self._env_manager
        if not self.evaluates or manager.seats < 2:
            return None
        teams, games = len(manager.facts.teams), manager.env_num * manager._quota
        return quotas(-(-games // teams) * teams, manager.env_num)

    def follow_schedule(self, scheduled: Scheduled) -> None:
        """See `BaseParallelCollector.follow_schedule`."""
        if scheduled and not self.evaluates:
            self._env_manager.schedule(scheduled)

    def _make_loop(self, settings: PolicyConfig, seed: np.random.SeedSequence) -> Loop:
        """Returns the stepping loop of the policy in the environments."""
        envs, actor = self._env_manager, actor_of(self._policy)
        if self._cfg.type == "marine" and envs.seats < 2:
            objection = "'marine' is for environments of several players; use 'zergling'"
            raise ConfigError([Problem("policy.collect.collector.type", objection)])
        length = 0 if self.evaluates else settings.collect.n_sample
        if envs.kept and hasattr(actor, "recorder"):
            objection = "must be empty: a policy of dicts makes samples, which have no infos"
            raise ConfigError([Problem("env.keep_infos", objection)])
        if length and settings.random_collect_size and not hasattr(actor, "bind"):
            actor = RandomFirst(actor, RandomActor(envs.spaces, seed.spawn(1)[0]))
        if envs.seats < 2:
            hindsight = None
            if length and hasattr(settings, "hindsight") and settings.hindsight.goals:
                rng = np.random.default_rng(seed.spawn(1)[0])
                hindsight = Hindsight(envs, settings.hindsight.goals, rng, envs.origins)
            return policy_loop(envs, actor, length, hindsight)
        if hasattr(actor, "bind"):  # an actor of a policy of dicts: for one player only
            raise PolicyError(f"the policy {self._policy!r} knows no columns: it plays no battles")
        recorder = Recorder(envs, length, actor, keeps_games=True) if length else None
        self._agent = self._battle_agent(actor, seed)
        return Loop(envs, self._agent, recorder)

    def _battle_agent(self, actor: ColumnarActor, seed: np.random.SeedSequence) -> BattleAgent:
        manager = self._env_manager
        draw_seed, random_seed, script_seed, policy_seed = seed.spawn(4)
        explores = self._cfg.opponents_explore and not self.evaluates
        mode = "collect" if explores else "eval"
        # by name, other players that learn: their policy's mode, its actor, its version here
        self._opponents: dict[str, tuple[Any, Actor, int]] = {}

        def make(image: PolicyImage) -> Actor:
            frozen = self._acting_mode(mode, policy_seed)
            frozen.load_state_dict({"model": image.state_dict(as_arrays=takes_arrays(frozen))})
            return actor_of(frozen)

        players = Players(
            self._task_cfg.get("policy_update_path", "."),
            make,
            random=RandomActor(with_bounds(manager.spaces), random_seed),
            action_space=manager.facts.action_space,
            seed=script_seed,
            limit_bytes=self._cfg.opponent_bytes,
            live=partial(self._live, mode, policy_seed),
        )
        return BattleAgent(
            manager.env_num,
            manager.facts.teams,
            actor,
            players,
            np.random.default_rng(draw_seed),
            self._seat if self.evaluates else None,
        )

    def _seat(self, game: int, teams: int) -> int:
        """Returns the learner's team in the next game of an evaluation, of an environment."""
        return in_turn(self._env_manager.places[game % self._env_num], teams)

    def _acting_mode(self, mode: str, seed: np.random.SeedSequence) -> Any:
        """Returns the mode of a new policy, with seeds of its own, by which an opponent acts."""
        policy = self._make_policy(self._task_cfg["policy"], [mode], seed=seed.spawn(1)[0])
        return getattr(policy, f"{mode}_mode")

    def _live(self, mode: str, seed: np.random.SeedSequence, name: str) -> Actor:
        """Returns what acts for another player that learns, by its newest policy here."""
        if name not in self._opponents:
            acting = self._acting_mode(mode, seed)
            self._opponents[name] = (acting, actor_of(acting), -1)
        acting, actor, version = self._opponents[name]
        if self.port is not None:
            info = newer_policy(self.port, acting, name, version, newest=version < 0)
            if info is not None:
                acting.load_state_dict({"model": info["model"]})
                self._opponents[name] = (acting, actor, int(info["iter"]))
        return actor

    def _opponents_may_act(self) -> bool:
        """Returns whether a policy has come of each learning player that may be drawn."""
        if self._agent is None or self.port is None:
            return True
        opponents = live_opponents(self.task.setting)
        for name in opponents:
            if self._opponents.get(name, (None, None, -1))[2] < 0:
                self._agent.players.live(name)
        return all(self._opponents[name][2] >= 0 for name in opponents)

    @property
    def policy_version(self) -> int:
        """Train iteration of the acting policy; -1 before there is one."""
        return self._version

    def get_finish_info(self) -> dict[str, Any]:
        """The task's result under DI-engine's keys."""
        result = self.result()
        returns, lengths = result.episode_returns, result.episode_lengths
        episodes, steps, samples = self.task.episodes, result.env_steps, self.task.samples
        setting = {} if result.eval_flag else {"collect_setting": dict(self.task.setting)}
        return {
            "eval_flag": result.eval_flag,
            "env_num": self._env_num,
            "duration": result.duration_s,
            "train_iter": result.policy_version,
            "collector_done": self._env_manager is None or self._env_manager.done,
            "predefined_episode_count": self._predefined_episodes,
            "real_episode_count": episodes,
            "step_count": steps,
            "sample_count": samples,
            "avg_time_per_episode": result.duration_s / max(episodes, 1),
            "avg_time_per_step": result.duration_s / max(steps, 1),
            "avg_time_per_train_sample": result.duration_s / max(samples, 1),
            "avg_step_per_episode": float(np.mean(lengths)) if episodes else 0.0,
            "avg_sample_per_episode": samples / max(episodes, 1),
            "reward_mean": float(np.mean(returns)) if episodes else 0.0,
            "reward_std": float(np.std(returns)) if episodes else 0.0,
            "reward_raw": returns.tolist(),
            "finish_time": time.time(),
            **setting,
        }

    def _may_step(self) -> bool:
        """Returns whether the policy is new enough, and collectors need not wait for learners."""
        if not self._is_current:
            self._update_policy()
        is_paused = self.port is not None and not self.evaluates and self.port.is_paused
        if self._is_current and not is_paused and self._opponents_may_act():
            return True
        self._mark("wait")
        return False

    def _policy_inference(self, observation: Columns) -> Columns:
        outputs = self._loop.act(observation, self.task.setting)
        self._acted = (observation, outputs)
        self._mark("policy")
        return outputs

    def _env_step(self, outputs: Columns) -> Step:
        try:
            step = self._loop.step(outputs)
        except EnvError:  # what has ended is not lost with what has not
            self._loop.forget()
            with contextlib.suppress(EnvError):  # copies of goals ask an environment: none is left
                self.cut()
            self._report(time.monotonic())
            raise
        self._mark("env")
        return step

    def _process_timestep(self, timestep: Step) -> None:
        transitions = self._loop.record(*self._acted, timestep)
        self.task.env_steps += transitions
        self._transitions += transitions
        FAULTS.advance(transitions, "collector")
        if FAULTS.requests("env_hang"):
            hang_environment(self._env_manager.child_pids)
        if self._loop.must_cut:
            self.cut()
            if self.task.lockstep is not None:
                self.stop()
        self._mark("record")

    def _iter_after_hook(self) -> None:
        now = time.monotonic()
        if now - self._reported_at >= self._report_every_s:
            self._report(now)
        if not self.is_waiting and self.task.lockstep is None and self._gate.rollout_is_old(now):
            self.cut()

    def _finish_task(self) -> None:
        self.cut()
        self._report(time.monotonic())

    def cut(self) -> None:
        """Send the rollout; the policy changes between rollouts only."""
        self._gate.cut_at = time.monotonic()
        segment = self._loop.cut(self._version)
        if segment is not None:
            self.task.samples += int(segment.items["item_len"].sum())
            if self.port is not None:
                self.port.send_stepdata(self.task.task_id, segment)
                self._gate.sent_rollout(self._version)
        if not self.evaluates and self.task.lockstep is None:
            self._ask_for_policy()

    def _report(self, now: float) -> None:
        """Count ended episodes, and report the progress of a collect task to the coordinator."""
        episodes = self._loop.take_episodes()
        returns = episodes.stated if self.evaluates else episodes.returns
        self.task.add_episodes(returns, episodes.lengths, None if self.evaluates else MAX_EPISODES)
        if self.evaluates:
            self.task.evaluated.append(episodes)
        elif self.port is not None:
            shares = self.port.meter.shares()
            if now - self._sampled_at >= _SAMPLE_S:
                # in battles a process holds copies of opponents, too, ever more of them
                is_alone = bool(self._task_cfg.get("own_process")) and self._agent is None
                held_bytes = self._env_manager.held_bytes(own=is_alone)
                self._memory.add(self._transitions, held_bytes)
                self._sampled_at = now
            task = self.task
            self.port.send_metadata(
                CollectProgress(
                    task.task_id,
                    returns,
                    episodes.lengths,
                    self._version,
                    shares,
                    task.player,
                    episodes.figures,
                    next(reversed(self._memory.n_bytes), 0),
                    self._memory.slope,
                    self.port.meter.cpu(),
                    self._env_manager.slowest,
                )
            )
        self._reported_at = now

    def _ask_for_policy(self) -> None:
        """Let the next step wait until the policy is new enough."""
        self._is_current, self._asked_at = False, time.monotonic()

    def _update_policy(self) -> None:
        """Load a newer policy if there is one.

        Raises:
            CommError: none that is new enough has come for too long.
        """
        now = time.monotonic()
        self._is_current = self.port is None or self._has_current_policy(self.port, now)
        if self._is_current:
            self._gate.began_at = now
        elif now - self._asked_at > self._patience_s:
            raise CommError(f"no policy has come from the learner within {self._patience_s:.0f} s")

    def _has_current_policy(self, port: CollectorPort, now: float) -> bool:
        """Load a newer policy if one has come; returns whether the next step may be made by it."""
        player, lockstep = self.task.player, self.task.lockstep
        newest = self.evaluates or lockstep is not None
        info = newer_policy(port, self._policy, player, self._version, newest=newest)
        if info is not None:
            self._version = int(info["iter"])
            self._policy.load_state_dict({"model": info["model"]})
        if self._version < 0 or (newest and port.awaits_policy(player)):
            return False
        is_wanted = lockstep is None or self._version == lockstep.policy_version
        return self._gate.may_act(self._version, now) and is_wanted

    def _mark(self, activity: str) -> None:
        if self.port is not None:
            self.port.meter.mark(activity)


class StalenessGate:
    """Decides how many rollouts a collector makes by one policy before it waits for a newer one.

    On-policy, with a staleness bound of S, that is S + 1 rollouts. If no newer policy comes for
    long, it makes one more, since a rollout may have been lost: after `LOST_ROLLOUT_S`, or three
    times as long as it waited for the last one, at most half the time in which a policy must come.
    Off-policy, and where an algorithm corrects for staleness, it never waits.

    Args:
        policy: the policy's settings.
        now: time of the start, seconds.
        patience_s: seconds in which a policy must come.
    """

    def __init__(self, policy: PolicyConfig, now: float, patience_s: float) -> None:
        self.cut_at = now
        """When the last rollout was cut."""
        self.began_at = now
        """When the present one began: later than `cut_at` if it waited for a newer policy."""
        self._max_rollouts = math.inf  # by one policy
        if policy.on_policy and not policy.CORRECTS_STALENESS:
            self._max_rollouts = 1 + policy.buffer.staleness_bound
        self._sent = (-1, 0)  # version of the last policy, and how many rollouts it has made
        self._waits_since = now  # when it had made as many as it may
        self._waited_s, self._longest_s = 0.0, patience_s / 2  # for the newest policy

    def rollout_is_old(self, now: float) -> bool:
        """Returns whether to send a rollout that is not full; on-policy never."""
        return math.isinf(self._max_rollouts) and now - self.began_at >= ROLLOUT_S

    def sent_rollout(self, version: int) -> None:
        """Count a rollout of a policy."""
        self._sent = (version, self._sent[1] + 1 if version == self._sent[0] else 1)
        if self._sent[1] == self._max_rollouts:
            self._waits_since = self.cut_at

    def forget(self) -> None:
        """Forget which policy has acted: the next one is another player's."""
        self._sent = (-1, 0)

    def may_act(self, version: int, now: float) -> bool:
        """Returns whether the policy of a version may act now."""
        last, count = self._sent
        if version == last and count >= self._max_rollouts:
            longer_s = min(_TIMES_LAST_WAIT * self._waited_s, self._longest_s)
            return now - self.cut_at >= max(LOST_ROLLOUT_S, longer_s)
        if count >= self._max_rollouts:  # the newer policy that it waited for has come
            self._waited_s = now - self._waits_since
        return True


def takes_arrays(mode: object) -> bool:
    """Returns whether a policy's mode wants its parameters as arrays of numpy."""
    return bool(attribute_of(mode, "takes_arrays", False))


def newer_policy(
    port: CollectorPort, mode: object, player: str, version: int, *, newest: bool
) -> dict[str, Any] | None:
    """Returns a player's policy newer than `version`, in the form that its mode takes.

    See `CollectorPort.get_policy_update_info`.
    """
    form = {"as_arrays": True} if takes_arrays(mode) else {}
    return port.get_policy_update_info(player, version, newest=newest, **form)


def of_class(cls: Any, cfg: Mapping[str, Any], port: CollectorPort | None) -> BaseParallelCollector:
    """Make a collector; DI-engine's constructors take the settings alone."""
    collector: BaseParallelCollector = cls(cfg)
    if port is not None:
        collector.port = port
    return collector
