"""The environment manager: steps environments together, counts episodes, retries failures.

What its environments are, and where they live, is its back-end's business (`Backend`): single ones
in this process or in child processes, or one vector environment. The life of one of them::

    created ──► reset ──► step ──► step ...
       ▲          ▲        │
       └ hung,    └ raised ┘──► retired: too many failures (`FailureRecord`)
         dead, renew
"""

from __future__ import annotations

import abc
import functools
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from hpcdi.config.env import ManagerConfig
from hpcdi.env.base import (
    Backend,
    BackendStep,
    BaseEnvTimestep,
    EnvFacts,
    EnvFailure,
    EpisodeStart,
    VectorStep,
)
from hpcdi.env.in_process import SingleEnvs
from hpcdi.env.seeds import SeedStreams
from hpcdi.env.spaces import Form
from hpcdi.errors import EnvError
from hpcdi.types import Array, Columns
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.packed import draw_discrete, fields_of, legal_of

ResetParam = Mapping[int, Mapping[str, Any] | None]
"""Environments to reset; each with None, or with its ``seed`` and ``options``."""


class Episodes:
    """Counts the episodes of several environments.

    Args:
        env_num: environments.
        quota: episodes of each environment; None: no limit.

    Attributes:
        counts: episodes that each environment has done.
        retired: bool [envs]; environments that are not used any more.
        open: bool [envs]; environments that have episodes to do.
        returns: of the running episodes, [envs], in a battle [envs, players].
        lengths: steps of the running episodes, [envs].
    """

    def __init__(self, env_num: int, quota: int | None) -> None:
        self.quota = quota
        self.retired = np.zeros(env_num, dtype=bool)
        self.restart()

    def restart(self, players: int | None = None) -> None:
        """Forget all episodes; retired environments stay retired.

        Args:
            players: of a battle; None: it is none, and a return is one number.
        """
        env_num = len(self.retired)
        self.counts = np.zeros(env_num, dtype=np.int64)
        self.returns = np.zeros(env_num if players is None else (env_num, players))
        self.lengths = np.zeros(env_num, dtype=np.int64)
        self._ended: list[tuple[Array, Array]] = []
        self._set_open()

    def retire(self, env: int) -> None:
        """Use an environment no more."""
        self.retired[env] = True
        self._set_open()

    def restart_counts(self) -> None:
        """Every environment may do its quota again; running episodes go on."""
        self.counts[:] = 0
        self._set_open()

    def add(self, reward: Array, ended: Array, live: Array) -> None:
        """Add a step: rewards [envs] or [envs, players]; `live` marks who made one."""
        made = live if reward.ndim == 1 else live[:, None]
        np.add(self.returns, reward, out=self.returns, where=made)
        self.lengths += live
        over = (ended & live).nonzero()[0]
        if over.size:
            self._ended.append((self.returns[over], self.lengths[over]))
            self.drop(over)
            self.counts[over] += 1
            if self.quota is not None:
                self._set_open()

    def drop(self, envs: Array | list[int]) -> None:
        """Forget the running episodes of environments (a mask, or numbers)."""
        self.returns[envs] = 0.0
        self.lengths[envs] = 0

    def take(self) -> tuple[Array, Array]:
        """Returns and lengths of the episodes that ended since the last call, in order."""
        taken, self._ended = self._ended, []
        if not taken:
            return np.zeros((0, *self.returns.shape[1:])), np.zeros(0, dtype=np.int64)
        returns, lengths = zip(*taken, strict=True)
        return np.concatenate(returns), np.concatenate(lengths)

    def _set_open(self) -> None:
        self.open = ~self.retired
        if self.quota is not None:
            self.open &= self.counts < self.quota


class FailureRecord:
    """Counts failures of single environments; time comes as an argument.

    Args:
        env_num: environments.
        max_retry: failures of one that are tolerated within the window, and in a row.
        window_s: seconds; older failures do not count any more, so that one a day never adds up.

    Attributes:
        failures: of all environments, ever.
        dropped: episodes that a failure cut short.
    """

    def __init__(self, env_num: int, max_retry: int, window_s: float) -> None:
        self.failures, self.dropped = 0, 0
        self._max_retry, self._window_s = max_retry, window_s
        self._recent: list[deque[float]] = [deque() for _ in range(env_num)]
        self._in_a_row = np.zeros(env_num, dtype=np.int64)

    def good(self, envs: Array | list[int]) -> None:
        """Note that environments (a mask, or numbers) made a step without a failure."""
        self._in_a_row[envs] = 0

    def add(self, env: int, now: float) -> str:
        """Count a failure; returns how many there were if these are too many, else ""."""
        recent = self._recent[env]
        recent.append(now)
        while recent[0] <= now - self._window_s:
            recent.popleft()
        self.failures += 1
        self._in_a_row[env] += 1
        if self._in_a_row[env] > self._max_retry:  # slow ones leave the window, too
            return f"{self._in_a_row[env]} times in a row"
        if len(recent) > self._max_retry:
            return f"{len(recent)} times within {self._window_s:g} s"
        return ""


class EnvManager(Closing, abc.ABC):
    """Several environments, stepped together: what `VectorManager` and `BattleManager` share.

    Args:
        backend: creates and steps the environments.
        settings: of the manager.
        episode_num: episodes of each environment until it is done; None: no limit.
        seed: of the environments.
    """

    resets_abnormal = True
    """An environment whose step was abnormal has begun a new episode by itself."""
    retires = False
    """Go on without a single environment that fails too often; set before `launch`. False: that is
    an error. The caller must cope with an environment that never waits for an action again."""

    def __init__(
        self,
        backend: Backend,
        settings: ManagerConfig | None = None,
        *,
        episode_num: int | None = None,
        seed: np.random.SeedSequence,
    ) -> None:
        self.env_num = backend.env_num
        self._backend, self._settings = backend, settings or ManagerConfig()
        self._streams = SeedStreams(seed, self.env_num)
        self._episodes = Episodes(self.env_num, episode_num)
        self._record = self._new_record()
        self._is_running = False
        self._follows = [self._settings.auto_reset] * self.env_num
        self._sampler: Any = None  # of random actions

    # ---- state

    @property
    def closed(self) -> bool:
        """True if the environments are not running."""
        return not self._is_running

    @property
    def done(self) -> bool:
        """True if every environment has done its number of episodes."""
        return not self._episodes.open.any()

    @property
    def failures(self) -> int:
        """Failures after which environments were reset or re-created, since `launch`."""
        return self._record.failures

    @property
    def health(self) -> dict[str, int]:
        """Failures since `launch`, unfinished episodes that were dropped, environments retired."""
        return {
            "env_failures": self._record.failures,
            "episodes_dropped": self._record.dropped,
            "envs_retired": int(self._episodes.retired.sum()),
        }

    @property
    def child_pids(self) -> list[int]:
        """Child processes that hold environments; empty where these are in this process."""
        workers = getattr(self._backend, "workers", ())
        return [w.pid for w in workers if getattr(w, "pid", None) is not None]

    @property
    def observation_space(self) -> Any:
        """Gymnasium's space of one observation; of battles a list with one for each player."""
        return self._facts().observation_space

    @property
    def action_space(self) -> Any:
        """Gymnasium's space of one action; of battles a list with one for each player."""
        return self._facts().action_space

    # ---- life

    def launch(self, reset_param: ResetParam | None = None) -> None:
        """Create the environments and reset them.

        Raises:
            EnvError: they are running already, or one cannot be created or reset; or `reset_param`
                is given, and they are a vector environment, which resets all alike.
            ConfigError: they cannot be created with these settings.
        """
        if self._is_running:
            raise EnvError("the environments are running; close() them before launch()")
        params = self._checked(reset_param)
        if self._backend.fails_as_one and any(params.values()):
            raise EnvError(
                "reset_param is not supported by gymnasium's vector environments; "
                "set env.manager.type: subprocess"
            )
        self._record = self._new_record()
        self._episodes = Episodes(self.env_num, self._episodes.quota)
        try:
            self._begin(self._starts_of_all(params, exists=False))
        except BaseException:
            self._backend.close()
            raise
        self._is_running = True
        self._count_from_zero()

    def reset(self, reset_param: ResetParam | None = None) -> None:
        """Reset environments, and drop their unfinished episodes. Seeds move on: episodes differ.

        Args:
            reset_param: which ones, and how; None: all, and their counters.
        """
        self._check_running()
        params = self._checked(reset_param)
        if reset_param is None:
            starts = self._starts_of_all({}, exists=True)
        else:
            starts = {env: self._start(env, param) for env, param in params.items()}
        retired = self._episodes.retired
        self._begin({env: start for env, start in starts.items() if not retired[env]})
        if reset_param is None:
            self._count_from_zero()
        else:
            self._episodes.drop(list(params))

    def restart_count(self) -> None:
        """Count episodes from zero; those that are running go on.

        Where some environments had done their number, all begin new episodes: those had gone on
        into one that was not recorded.
        """
        if not (self._episodes.open | self._episodes.retired).all():
            self.reset()
        self._episodes.restart_counts()

    def take_episodes(self) -> tuple[Array, Array]:
        """Returns and lengths of the episodes that ended since the last call, in order."""
        return self._episodes.take()

    def close(self) -> None:
        """Close the environments. Idempotent."""
        if self._is_running:
            self._is_running = False
            self._backend.close()

    # ---- stepping

    @property
    def ready_obs(self) -> dict[int, Any]:
        """Returns the observation of each environment that waits for an action.

        Raises:
            EnvError: the environments are not running.
        """
        observation = self._backend.observation
        return {env: observation[env] for env in self._ready()}

    def _ready(self) -> list[int]:
        """Returns the environments that wait for an action."""
        self._check_running()
        ready: list[int] = (self._backend.waiting & self._episodes.open).nonzero()[0].tolist()
        return ready

    @abc.abstractmethod
    def step(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step the environments that wait; all of them need an action.

        Raises:
            EnvError: an action is missing, or names an environment that does not exist; or one
                failed too often.
        """

    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        """Seed the environments; takes effect at the next reset.

        Args:
            seed: one number, a list with one for each environment, or a mapping of some of them.
            dynamic_seed: False: every reset of an environment takes the same seed.
        """
        self._streams.seed(seed, dynamic_seed)
        self._sampler = None

    def random_action(self) -> dict[int, Any]:
        """Returns a random action, by the manager's seed, for each environment that waits."""
        if self._sampler is None:
            self._sampler = self.action_space
            self._sampler.seed(self._streams.actions())
        return {env: self._sampler.sample() for env in self.ready_obs}

    # ---- optional methods of environments

    def ready_imgs(self, render_mode: str = "rgb_array") -> list[Array]:
        """Returns a picture of each environment, uint8 [height, width, 3].

        Raises:
            EnvError: the environments draw none.
        """
        if render_mode != "rgb_array":
            raise EnvError(f"pictures are 'rgb_array', not {render_mode!r}")
        self._check_running()
        try:
            drawn = self._backend.render()
        except EnvFailure as failure:
            raise EnvError(f"render() of an environment failed: {_text(failure)}") from failure
        pictures = [np.asarray(0 if picture is None else picture) for picture in drawn]
        for env, picture in enumerate(pictures):
            if picture.ndim != 3:
                raise EnvError(
                    f"environment {env} draws no pictures; make it with env.kwargs: "
                    "{render_mode: rgb_array}"
                )
        return [picture.astype(np.uint8, copy=False) for picture in pictures]

    def enable_save_figure(self, env_id: int, figure_path: str) -> None:
        """Have an environment save what it draws under a path.

        Raises:
            EnvError: it has no method ``enable_save_figure``.
        """
        if not self.call(env_id, "enable_save_figure", figure_path)[0]:
            raise EnvError(
                f"environment {env_id} has no enable_save_figure(path); take its pictures with "
                "ready_imgs() instead"
            )

    def reward_shaping(self, env_id: int, transitions: list[Any]) -> list[Any]:
        """Returns what the environment's ``reward_shaping`` makes of transitions, if it has one."""
        has_it, shaped = self.call(env_id, "reward_shaping", transitions)
        return shaped if has_it else transitions

    def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
        """Call an environment's method; returns whether it has one, and what that returned.

        Raises:
            EnvError: the method failed.
        """
        self._check_running()
        try:
            return self._backend.call(env, name, args)
        except EnvFailure as failure:
            message = f"{name}() of environment {env} failed: {_text(failure)}"
            raise EnvError(message) from failure

    # ---- beginning episodes, and failing

    def _begin(self, starts: Mapping[int, EpisodeStart]) -> None:
        """Have environments begin an episode; those that fail are tried again, or retired.

        Raises:
            EnvError: one failed too often, and may not be retired, or is the last one.
        """
        while starts:
            retries: dict[int, EpisodeStart] = {}
            for env, failure in self._failures_at_start(starts).items():
                if self._tolerates(env, failure, "beginning an episode"):
                    self._warn(env, failure, "tried again")
                    start = starts.get(env, EpisodeStart(exists=True))
                    retries |= self._retries(env, start, failure)
            if retries:
                wait_s(self._settings.retry_waiting_time)
            starts = retries

    def _failures_at_start(self, starts: Mapping[int, EpisodeStart]) -> dict[int, EnvFailure]:
        """Have environments begin an episode; returns those that failed."""
        return self._backend.start(starts)

    def _recover(self, failed: Mapping[int, EnvFailure], dropped: int) -> None:
        """Have environments that failed in a step begin a new episode; raises as `_begin`."""
        self._record.dropped += dropped
        starts: dict[int, EpisodeStart] = {}
        for env, failure in failed.items():
            if self._tolerates(env, failure, "stepping"):
                retries = self._retries(env, EpisodeStart(exists=True), failure)
                self._warn(env, failure, "reset" if retries[env].exists else "re-created")
                starts |= retries
        self._begin(starts)

    def _retries(
        self, env: int, start: EpisodeStart, failure: EnvFailure
    ) -> dict[int, EpisodeStart]:
        """Returns how to begin after a failure: a re-created environment takes its next seed."""
        if self._backend.fails_as_one:
            return self._starts_of_all({}, exists=False)
        if start.exists and not failure.is_gone and self._settings.retry_type != "renew":
            return {env: start}
        return {env: start._replace(exists=False, seed=self._streams.one(env))}

    def _tolerates(self, env: int, failure: EnvFailure, activity: str) -> bool:
        """Decides whether to retry a failed environment; if not, it is retired."""
        too_often = self._record.add(env, time.monotonic())
        if not too_often:
            return True
        fails_as_one = self._backend.fails_as_one
        name = "an environment" if fails_as_one else f"environment {env}"
        timeouts = " or the time-outs of env.manager" if failure.is_gone else ""
        error = EnvError(
            f"{name} failed {activity}, {too_often}: {_text(failure)}\nrepair it; where such "
            f"failures are to be tolerated, raise env.manager.max_retry{timeouts}"
        )
        error.__cause__ = failure
        if not self.retires or fails_as_one or self._backend.facts is None:
            raise error
        self._episodes.retire(env)
        self._backend.retire(env)
        left = self.env_num - int(self._episodes.retired.sum())
        if not left:
            raise EnvError(f"all {self.env_num} environments are retired; the last {error}")
        LOGGER.warning(
            "environment %d failed %s (%s, %s) and is retired; %d of %d environments go on",
            env, activity, failure.cause, too_often, left, self.env_num,
            extra={
                "env_id": env, "detail": failure.detail,
                "once": f"an environment was retired ({failure.cause})",
            },
        )  # fmt: skip
        return False

    def _warn(self, env: int, failure: EnvFailure, done: str) -> None:
        once = f"an environment failed ({failure.cause})"
        if self._backend.fails_as_one:
            LOGGER.warning(
                "an environment failed (%s); all %d are re-created, their unfinished episodes are "
                "dropped", failure.cause, self.env_num,
                extra={"detail": failure.detail, "once": once},
            )  # fmt: skip
            return
        LOGGER.warning(
            "environment %d failed (%s) and is %s; its unfinished episode is dropped",
            env, failure.cause, done,
            extra={"env_id": env, "detail": failure.detail, "once": once},
        )  # fmt: skip

    def _new_record(self) -> FailureRecord:
        settings = self._settings
        return FailureRecord(self.env_num, settings.max_retry, settings.retry_window_s)

    def _count_from_zero(self) -> None:
        self._episodes.restart()

    # ---- arguments

    def _facts(self) -> EnvFacts:
        self._check_running()
        facts = self._backend.facts
        if facts is None:
            raise EnvError("no environment was created yet")
        return facts

    def _check_running(self) -> None:
        if not self._is_running:
            raise EnvError("the environments are not running; launch() them first")

    def _check_actions(self, actions: Mapping[int, Any], ready: list[int]) -> None:
        if list(actions) == ready:
            return
        missing = set(ready) - actions.keys()
        if missing:
            raise EnvError(f"environments {sorted(missing)} wait for an action")
        self._check_numbers(actions)

    def _check_numbers(self, envs: Mapping[int, Any]) -> None:
        unknown = envs.keys() - set(range(self.env_num))
        if unknown:
            raise EnvError(f"there are no environments {sorted(unknown)}, only {self.env_num}")

    def _checked(self, reset_param: ResetParam | None) -> dict[int, dict[str, Any]]:
        """Returns the parameters of the environments that a `reset_param` names; None: of all."""
        chosen = dict.fromkeys(range(self.env_num)) if reset_param is None else dict(reset_param)
        for env, param in chosen.items():
            unknown = set(param or {}) - {"seed", "options"}
            if unknown:
                raise EnvError(
                    f"reset_param of environment {env} has {sorted(unknown)}; it may have 'seed' "
                    "and 'options'"
                )
        self._check_numbers(chosen)
        return {env: dict(param or {}) for env, param in chosen.items()}

    def _starts_of_all(
        self, params: Mapping[int, Mapping[str, Any]], *, exists: bool
    ) -> dict[int, EpisodeStart]:
        """Returns how all environments begin, with the parameters of some."""
        return {
            env: self._start(env, {"seed": seed, **params.get(env, {})}, exists=exists)
            for env, seed in enumerate(self._streams.all())
        }

    def _start(self, env: int, param: Mapping[str, Any], *, exists: bool = True) -> EpisodeStart:
        """Returns how one environment begins; without its own seed it takes its stream's next."""
        seed = param.get("seed")
        seed = self._streams.one(env) if seed is None else seed
        return EpisodeStart(seed, param.get("options"), exists)

    def _goes_on(self) -> list[bool]:
        """Returns whether an episode follows the running one: not after the last of a quota."""
        if not self._settings.auto_reset or self._episodes.quota is None:
            return self._follows
        following: list[bool] = (self._episodes.counts + 1 < self._episodes.quota).tolist()
        return following


class VectorManager(EnvManager):
    """The manager of environments whose data are arrays.

    With `wait_num` a step is over when so many environments have made theirs; the others are not
    live in it, and go on. Each makes its own transitions one after the other, whoever waits.
    """

    _given: Columns = MappingProxyType({})  # type: ignore[assignment]

    @property
    def observation(self) -> Array:
        """Observations to act on next, [envs, ...]; a step makes a new array.

        Those of several arrays are structured, see `hpcdi.utils.packed`.
        """
        observation: Array = self._backend.observation
        return observation

    @property
    def ready_obs(self) -> dict[int, Any]:
        """See `EnvManager.ready_obs`; observations are as the environment has them."""
        ready = super().ready_obs
        if self._forms[0].is_plain:
            return ready
        return {env: self._own(self.observation, env) for env in ready}

    def step_all(self, actions: Array) -> VectorStep:
        """Step all environments by actions [envs, ...]; `observation` moves on.

        Discrete actions count from 0, here and in `step`, whatever the environment's start is.
        """
        return self._advance(actions, wants_info=False)[0]

    def random_action(self) -> dict[int, Any]:
        """See `EnvManager.random_action`; legal ones where there are masks."""
        chosen, (seen, acts) = super().random_action(), self._forms
        if acts.is_own and not seen.mask:
            return chosen
        batch = self._batch_of({env: acts.from_zero(own) for env, own in chosen.items()})
        legal = legal_of(self.observation)
        if legal is not None:
            draw_discrete(batch, acts.leaves, self._sampler.np_random, legal)
        return {env: acts.unpack(batch, env, from_zero=True) for env in chosen}

    @functools.cached_property
    def _forms(self) -> tuple[Form, Form]:
        """Of observations and actions."""
        facts = self._backend.facts
        if facts is None:
            raise EnvError("no environment was created yet")
        return Form.of_observations(facts.observation_space), Form.of_actions(facts.action_space)

    def step(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step all environments; returns the timesteps of those that wait.

        Environments that are being reset in this step need no action.

        Raises:
            EnvError: an action is missing, or names an environment that does not exist; or one
                failed too often.
        """
        ready = self._ready()
        self._check_actions(actions, ready)
        batch = self._batch_of(actions)
        before = self._episodes.returns.copy()
        step, infos, made = self._advance(batch, wants_info=True)
        if made is not None:
            ready = made.nonzero()[0].tolist()
        return {
            env: self._timestep(step, env, infos.get(env, {}), float(before[env])) for env in ready
        }

    @property
    def wait_num(self) -> int | None:
        """Steps that a step waits for, of those under way; None: all, and none goes on after it."""
        return getattr(self._backend, "wait_num", None)

    @property
    def ready(self) -> Array:
        """Returns the environments that take an action in the next step, bool [envs]."""
        ready: Array = self._backend.waiting & self._episodes.open
        return ready

    def given(self, ready: Array, columns: Columns) -> Columns:
        """What each environment's step, under way or over, began with.

        Args:
            ready: bool [envs]; whose step began now.
            columns: name -> [envs, ...] of the environments that were ready.

        Raises:
            EnvError: the columns are not those of the steps that are under way.
        """
        if self._given and self._given.keys() != columns.keys() and not ready.all():
            raise EnvError(
                "the policy's outputs have changed while steps are under way: from "
                f"{sorted(self._given)} to {sorted(columns)}; set env.manager.wait_num: null"
            )
        if ready.all():
            self._given = columns
            return columns
        kept, self._given = self._given, {}
        for name, column in columns.items():
            self._given[name] = kept[name].copy() if name in kept else np.zeros_like(column)
            self._given[name][ready] = column[ready]
        return self._given

    def _advance(
        self, actions: Array, *, wants_info: bool
    ) -> tuple[VectorStep, Mapping[int, dict[str, Any]], Array | None]:
        """`step_all`, the environments' infos if these are wanted, and `BackendStep.made`."""
        self._check_running()
        backend, episodes = self._backend, self._episodes
        live = backend.waiting & episodes.open
        step = backend.step(
            actions, live, seeds=self._streams.following(), goes_on=self._goes_on(),
            wants_info=wants_info,
        )  # fmt: skip
        if step.made is not None:
            live = step.made.copy()
        wrong = self._with_nan(step, live) | self._without_choice(backend.waiting)
        if wrong:
            failed = {0: next(iter(wrong.values()))} if backend.fails_as_one else wrong
            step = step._replace(failed={**failed, **step.failed})
        abnormal = None
        if step.failed:
            abnormal = np.full(self.env_num, backend.fails_as_one)
            abnormal[list(step.failed)] = True
            dropped = int(np.count_nonzero(live & abnormal))
            live &= ~abnormal
            episodes.drop(abnormal)
        if self._record.failures:
            is_good = np.full(self.env_num, not step.failed) if backend.fails_as_one else live
            self._record.good(is_good)
        if step.failed:
            self._recover(step.failed, dropped)
        episodes.add(step.reward, step.ended, live)
        return VectorStep(*step[:5], live, abnormal), step.infos, step.made

    def _batch_of(self, actions: Mapping[int, Any]) -> Array:
        """Actions of some environments as an array [envs, ...]; 0 of the others."""
        _, acts = self._forms
        if acts.dtype.names is None:
            example = np.asarray(next(iter(actions.values()), 0))
            batch = np.zeros((self.env_num, *acts.shape), dtype=example.dtype)
            for env, action in actions.items():
                batch[env] = np.asarray(action).reshape(acts.shape)  # a discrete one may be [1]
            return batch
        batch = np.zeros(self.env_num, dtype=acts.dtype)
        for env, action in actions.items():
            acts.put(batch, env, action)
        return batch

    def _own(self, observation: Array, env: int) -> Any:
        """An environment's observation as it has it."""
        seen, _ = self._forms
        return observation[env] if seen.is_plain else seen.unpack(observation, env)

    def _failures_at_start(self, starts: Mapping[int, EpisodeStart]) -> dict[int, EnvFailure]:
        failed = self._backend.start(starts)
        begun = np.isin(np.arange(self.env_num), [env for env in starts if env not in failed])
        if not begun.any():
            return failed
        wrong = self._without_choice(begun)
        if _has_nan(self._backend.observation):
            for env in _where(_nan_rows(self._backend.observation) & begun):
                wrong[env] = _of_nan(env, "a first observation")
        if wrong and self._backend.fails_as_one:
            wrong = {0: next(iter(wrong.values()))}
        return failed | wrong

    def _with_nan(self, step: BackendStep, live: Array) -> dict[int, EnvFailure]:
        """Returns the environments whose reward or observation is not a number any more."""
        observation = self._backend.observation
        begins = observation is not step.successor  # episodes
        if not (
            _has_nan(step.reward) or _has_nan(step.successor) or (begins and _has_nan(observation))
        ):
            return {}
        failed: dict[int, EnvFailure] = {}
        for what, values in (("a reward", step.reward), ("an observation", step.successor)):
            for env in _where(_nan_rows(values) & live):
                failed[env] = _of_nan(env, what, self._episodes.lengths[env] + 1)
        if begins:
            begun = _where(_nan_rows(observation) & self._backend.waiting)
            failed |= {env: _of_nan(env, "a first observation") for env in begun}
        return failed

    def _without_choice(self, envs: Array) -> dict[int, EnvFailure]:
        """Those of some environments (bool) whose mask leaves a part of an action no value."""
        observation: Array = self._backend.observation
        if (mask := legal_of(observation)) is None:
            return {}
        _, acts = self._forms
        counts = [count for leaf in acts.leaves for count in leaf.counts]
        has_any = np.logical_or.reduceat(mask, np.cumsum([0, *counts[:-1]]), axis=1)
        why = f"its mask of actions, of length {mask.shape[1]}, allows none"
        return {
            env: EnvFailure(f"environment {env} has no legal action: {why}")
            for env in np.flatnonzero(~has_any.all(axis=1) & envs).tolist()
        }

    def _timestep(
        self, step: VectorStep, env: int, info: dict[str, Any], return_before: float
    ) -> BaseEnvTimestep:
        if step.abnormal is not None and step.abnormal[env]:
            return BaseEnvTimestep(self._own(self.observation, env), 0.0, False, {"abnormal": True})
        terminated, truncated = bool(step.terminated[env]), bool(step.truncated[env])
        reward, done = float(step.reward[env]), terminated or truncated
        info = {**info, "terminated": terminated, "truncated": truncated}
        if done:
            info.setdefault("eval_episode_return", return_before + reward)
        return BaseEnvTimestep(self._own(step.successor, env), reward, done, info)


class BattleManager(EnvManager):
    """The manager of battle environments: several players, whose data are objects.

    Observations and actions are lists with one element for each player, None where a player is not
    to act; rewards are float32 [players]; infos are lists. Battles have no columnar form.
    """

    _backend: SingleEnvs

    @property
    def players(self) -> int:
        """Players of one environment."""
        return self._facts().players

    @property
    def teams(self) -> tuple[tuple[int, ...], ...]:
        """Players of each team, by their numbers; one who plays alone is a team."""
        return self._facts().teams

    def step(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step the environments that wait, each by a list with an action or None for each player.

        Discrete actions count from 0, whatever the environment's start is.

        Raises:
            EnvError: an action is missing, or names an environment that does not exist; or one
                failed too often.
        """
        ready = self._ready()
        self._check_actions(actions, ready)
        played, failed = self._backend.play(
            {env: [*map(_from_start, self._acts, actions[env])] for env in ready},
            seeds=self._streams.following(), goes_on=self._goes_on(),
        )  # fmt: skip
        self._record.good(list(played))
        reward: Array = np.zeros((self.env_num, self.players), dtype=np.float32)
        done, live = np.zeros((2, self.env_num), dtype=bool)
        for env, step in played.items():
            reward[env], done[env], live[env] = step.reward, step.done, True
        self._episodes.add(reward, done, live)
        self._episodes.drop(list(failed))
        self._recover(failed, len(failed))
        return {
            env: self._abnormal(env) if env in failed else played[env]
            for env in ready
            if not self._episodes.retired[env]
        }

    def random_action(self) -> dict[int, Any]:
        """Returns random legal actions, by the manager's seed, of each environment that waits."""
        if self._sampler is None:
            self._sampler = np.random.default_rng(self._streams.actions())
            for space in self.action_space:
                space.seed(int(self._sampler.integers(2**31)))
        return {
            env: [*map(_legal, self.action_space, self._acts, obs)]
            for env, obs in self.ready_obs.items()
        }

    @functools.cached_property
    def _acts(self) -> list[Form | None]:
        """Form of each player's actions; None: they are no arrays, and go as they are."""
        forms: list[Form | None] = []
        for space in self.action_space or [None] * self.players:
            try:
                forms.append(Form.of_actions(space))
            except EnvError:  # of an environment of DI-engine's kind, which need not say
                forms.append(None)
        return forms

    def _abnormal(self, env: int) -> BaseEnvTimestep:
        infos = [{"abnormal": True} for _ in range(self.players)]
        nothing = np.zeros(self.players, dtype=np.float32)
        return BaseEnvTimestep(self._backend.observation[env], nothing, False, infos)

    def _count_from_zero(self) -> None:
        self._episodes.restart(self.players)


def _where(envs: Array) -> list[int]:
    """Returns the numbers of the environments of a mask."""
    numbers: list[int] = np.flatnonzero(envs).tolist()
    return numbers


def _of_nan(env: int, what: str, step: int = 0) -> EnvFailure:
    place = f" in step {step} of its episode" if step else ""
    return EnvFailure(f"environment {env} returned {what} that is NaN{place}")


def _has_nan(values: Array) -> bool:
    """True if a number is NaN, in an array or in a field of a structured one."""
    if values.dtype.names is not None:
        return any(_has_nan(values[name]) for name in values.dtype.names)
    # a sum of squares finds any of them in half a microsecond
    return values.dtype.kind == "f" and math.isnan(np.vdot(values, values))


def _nan_rows(values: Array) -> Array:
    """Returns where a number is NaN, bool [envs]."""
    rows = np.zeros(len(values), dtype=bool)
    for _, column in fields_of("", values):
        if column.dtype.kind == "f":
            rows |= np.isnan(column).reshape(len(values), -1).any(axis=1)
    return rows


def _text(failure: EnvFailure) -> str:
    """Returns a failure's cause, and its traceback where there is one."""
    return f"{failure.cause}\n{failure.detail}" if failure.detail else failure.cause


def _legal(space: Any, form: Form | None, observation: Any) -> Any:
    """Returns a random action that the observation's mask allows; None: the player waits."""
    if observation is None:
        return None
    if isinstance(observation, Mapping) and "action_mask" in observation:
        action = space.sample(mask=np.asarray(observation["action_mask"], dtype=np.int8))
    else:
        action = space.sample()
    return action if form is None else form.from_zero(action)


def _from_start(form: Form | None, action: Any) -> Any:
    """Returns a player's action as the environment has it; None: the player waits."""
    return action if form is None or action is None else form.from_start(action)
