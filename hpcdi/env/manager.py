"""The environment manager: steps environments together, counts episodes, retries failures.

What its environments are, and where they live, is its back-end's business (`Backend`): single ones
in this process or in child processes, or one vector environment. The life of one of them::

    created ──► reset ──► step ──► step ...
       ▲          ▲        │
       └ hung,    └ raised ┘──► retired: too many failures (`FailureRecord`)
         dead, renew

A row is one player of one environment. What happens to rows in a step (`EnvManager.step`)::

    ready ──► pending: acted ──► over: its environment's step is over ──┬─► live: a transition
                 ▲                                                      │   is completed
                 └────────────── it is others' turn ◄───────────────────┘
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdi.config.env import ManagerConfig
from hpcdi.config.schedule import Scheduled
from hpcdi.env.arguments import arguments_in
from hpcdi.env.base import (
    RETURNS,
    Backend,
    BackendStep,
    EnvFacts,
    EnvFailure,
    EpisodeStart,
    RanksLost,
    envs_of,
    rows_of,
)
from hpcdi.env.contract import Space, beyond, coarse_from, numbers_in, read_spaces
from hpcdi.env.counters import EpisodeCounter, FailureRecord, Renewal
from hpcdi.env.process_state import in_their_modes
from hpcdi.env.seeds import SeedStreams
from hpcdi.errors import EnvError, EnvRanksLost, EnvValueError
from hpcdi.types import ACTION_MASK, NO_SEED, Array, Columns, Episodes, Spaces, Step
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.nested import as_array
from hpcdi.utils.processes import tree_bytes
from hpcdi.utils.truths import all_of, any_of

ResetParam = Mapping[int, Mapping[str, Any] | None]
"""Environments to reset; each with None, or with its ``seed`` and ``options``."""
_BEGINNING = "beginning an episode"
_NO_END_FROM = 10_000  # steps of an environment, after which that is said
_LOOK_EVERY = 1_000  # steps from one look at the bounds of observations to the next


class Turns:
    """Completes transitions: each lasts from a row's turn to its next one, or to an episode's end.

    Rewards in between are summed; where all players act in each step, that is the step itself.

    Args:
        rows: players of all environments.
        takes_turns: whether a player may wait for others, in the same environment.
        dtype: of rewards.

    Attributes:
        pending: bool [rows]; who has acted, and whose transition is not complete.
    """

    def __init__(
        self, rows: int, *, takes_turns: bool = False, dtype: npt.DTypeLike = np.float32
    ) -> None:
        self._takes_turns = takes_turns
        self._none = np.zeros(rows, dtype=bool)
        self._none.flags.writeable = False
        self.pending: Array = self._none
        self._reward = np.zeros(rows, dtype)  # since a row's turn

    def begin(self, rows: Array) -> None:
        """Some rows act now, bool [rows]."""
        self.pending = rows if self.pending is self._none else self.pending | rows

    def complete(
        self, over: Array, acts: Array, ended: Array, reward: Array
    ) -> tuple[Array, Array]:
        """Returns which transitions a step completes, and the rewards of those.

        Args:
            over: bool [rows]; of environments whose step is over.
            acts: bool [rows]; whose turn it is then.
            ended: bool [rows]; whose episode ended.
            reward: float32 [rows]; of the step.
        """
        pending = self.pending
        if not self._takes_turns and (over is pending or all_of(over)):
            self.pending = self._none
            return pending, reward
        live: Array = pending & over
        if self._takes_turns:
            live &= acts | ended
            reward = reward + self._reward
            self._reward[live] = 0.0
            waiting = pending & over & ~live
            self._reward[waiting] = reward[waiting]
        self.pending = pending ^ live
        return live, reward

    def drop(self, rows: Array) -> None:
        """Forget the transitions of some rows, bool [rows]."""
        self.pending, self._reward[rows] = self.pending & ~rows, 0.0


class EnvManager(Closing):
    """Several environments, stepped together; see `hpcdi.env.base.Envs`.

    With `wait_num` a step is over when so many environments have made theirs; the others are not
    live in it, and go on. Each makes its own transitions one after the other, whoever waits.

    Args:
        backend: creates and steps the environments.
        settings: of the manager.
        episode_num: episodes of each environment until it is done; None: no limit.
        seed: of the environments.
    """

    retires = False
    """Go on without a single environment that fails too often; set before `launch`. False: that is
    an error. The caller must cope with an environment that never waits for an action again."""

    hands_over = False
    """Have those that live play what a retired one had to, and its seeds; set before `launch`."""

    max_steps: int | None = None
    """Steps after which an episode is cut: it ends as truncated; None: there is no limit."""

    def __init__(
        self,
        backend: Backend,
        settings: ManagerConfig | None = None,
        *,
        episode_num: int | None = None,
        seed: np.random.SeedSequence,
    ) -> None:
        self.env_num = backend.env_num
        self.resets = np.zeros(self.env_num, np.int64)
        """Of each environment, calls of `reset` so far, which drop its episode."""
        self._backend, self._settings = backend, settings or ManagerConfig()
        self.seeds = SeedStreams(seed, self.env_num)
        self._quota: int | Sequence[int] | None = episode_num
        self._all_go_on = (self._settings.auto_reset,) * self.env_num
        # of each environment the last seed, and resets since then without one; as rows of `step`
        self._episode_seeds = np.full((self.env_num, 2), (NO_SEED, 0), np.int64)
        self._row_seeds: Array | None = None  # None: environments have no seeds of their own
        self._retired = np.zeros(self.env_num, dtype=bool)
        self._record = self._new_record()
        self._renewal = Renewal(self._settings.renewal, self.env_num, self._bytes_of)
        self._count_from_zero()
        self._is_running = False
        self._error: EnvError | None = None  # of after the last step, which is complete
        self._over = np.zeros(0, dtype=bool)  # of the last step
        self._steps = 0
        self._scheduled: Scheduled = {}
        # those for which the schedule has other arguments: they are made anew at an episode's end
        self._outdated: set[int] = set()
        # of the last step of each, whether it was told to go on into another episode
        self._told: list[bool] = [True] * self.env_num
        self._lost: set[int] = set()  # whose running episodes went as others began theirs
        self._no_end_from: int | None = _NO_END_FROM
        self._coarse: list[str] = []  # columns that lose digits, if their numbers are large
        self._bounds: dict[str, tuple[Array, Array, Array]] | None = None  # not warned of yet

    # ---- state

    @property
    def origins(self) -> Mapping[str, Sequence[float]]:
        """What is subtracted from observations, by column."""
        return self._backend.origin

    @property
    def closed(self) -> bool:
        """True if the environments are not running."""
        return not self._is_running

    @property
    def done(self) -> bool:
        """True if every environment has done its number of episodes."""
        return self._error is None and not self._episodes.left.any()

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
            "envs_retired": int(self._retired.sum()),
        }

    @property
    def child_pids(self) -> list[int]:
        """Child processes that hold environments; empty where these are in this process."""
        workers = getattr(self._backend, "workers", ())
        return [w.pid for w in workers if getattr(w, "pid", None) is not None]

    def held_bytes(self, *, own: bool) -> int:
        """Returns what the environments' processes hold, with those that they have started.

        Args:
            own: in this process there is little beside them; else 0 where they are in it.
        """
        pids = self.child_pids
        return sum(map(tree_bytes, pids or [os.getpid()])) if pids or own else 0

    @property
    def slowest(self) -> dict[str, float]:
        """The slowest of several environments, for which others wait.

        Its number ``env``, seconds of a step of it, ``step_s``, and of the median of the others,
        ``others_s``; empty: they are not known, or nobody waits (`wait_num`).
        """
        taken_s, count = self._backend.step_times
        live = np.flatnonzero(~self._retired)
        if not count[live].all() or live.size < 2 or self.wait_num is not None:
            return {}
        seconds = np.full(self.env_num, -np.inf)
        seconds[live] = taken_s[live] / count[live]
        slowest = int(seconds.argmax())
        others = float(np.median(seconds[live[live != slowest]]))
        return {"env": slowest, "step_s": float(seconds[slowest]), "others_s": others}

    @property
    def facts(self) -> EnvFacts:
        """What one environment is.

        Raises:
            EnvError: the environments are not running.
        """
        self._check_running()
        facts = self._backend.facts
        if facts is None:
            raise EnvError("no environment was created yet")
        return facts

    @property
    def spaces(self) -> Spaces:
        """The arrays of one player's observations and actions."""
        return read_spaces(self.facts.observation_space, self.facts.action_space)

    @property
    def seats(self) -> int:
        """Players of one environment."""
        return self.facts.players

    @property
    def rows(self) -> int:
        """Players of all environments."""
        return self.env_num * self.facts.players

    @property
    def wait_num(self) -> int | None:
        """Steps that a step waits for, of those under way; None: all, and none goes on after it."""
        return self._backend.wait_num

    def schedule(self, values: Scheduled) -> None:
        """Have episodes that begin from now on be played with these values; see `env.schedule`."""
        if values != self._scheduled:
            if arguments_in(values) != arguments_in(self._scheduled):
                self._outdated.update(range(self.env_num))
            self._scheduled = dict(values)
            self._backend.schedule(values)

    @property
    def is_taken(self) -> bool:
        """See `Backend.is_taken`; `reset` takes them back."""
        return self._backend.is_taken

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
        params = self._params_of(reset_param)
        if self._backend.fails_as_one and any(params.values()):
            raise EnvError(
                "reset_param is not supported by gymnasium's vector environments; "
                "set env.manager.type: subprocess"
            )
        self._record, self._retired[:], self._error = self._new_record(), False, None
        try:
            self._begin(self._starts_of_all(params, exists=False))
        except BaseException:
            self._backend.close()
            raise
        self._is_running = True
        self._count_from_zero()

    def reset(
        self, reset_param: ResetParam | None = None, quota: int | Sequence[int] | None = None
    ) -> None:
        """Reset environments, and drop their unfinished episodes. Seeds move on: episodes differ.

        Args:
            reset_param: which ones, and how; None: all, and their counters.
            quota: episodes of each from now on, one number or one for each; None: as they are.
        """
        self._check_running()
        self._check()
        params = self._params_of(reset_param)
        if quota is not None:
            self._quota = quota
        if reset_param is None:
            starts = self._starts_of_all({}, exists=True)
            self._count_from_zero()
        else:
            starts = {env: self._start(env, param) for env, param in params.items()}
            self._drop(self._rows_of(params))
        self.resets[[*starts]] += 1
        self._backend.turn_over()  # what was handed out stays as it is
        self._begin({env: start for env, start in starts.items() if not self._retired[env]})
        self.resets[[*self._lost]] += 1
        self._lost.clear()

    def restart_count(self) -> bool:
        """Count episodes from zero; those that are running go on.

        Where some environments had done their number, all begin new episodes: those had gone on
        into one that was not recorded.

        Returns:
            Whether running episodes were dropped: all have begun new ones.
        """
        self._check()
        is_reset = not (self._episodes.open(rows=False) | self._retired).all()
        if is_reset:
            self.reset()
        else:
            self._episodes.restart()
            self._hand_over()
        return bool(is_reset)

    def take_episodes(self) -> Episodes:
        """See `Envs.take_episodes`."""
        return self._episodes.take()

    def close(self) -> None:
        """Close the environments. Idempotent."""
        if self._is_running:
            self._is_running = False
            self._backend.close()

    # ---- stepping

    @property
    def observation(self) -> Columns:
        """See `Envs.observation`."""
        self._check_running()
        return self._backend.observation

    @property
    def ready(self) -> Array:
        """See `Envs.ready`."""
        self._check_running()
        acts, episodes = self._backend.acts, self._episodes
        if any_of(self._waiting):
            acts = acts & ~self._waiting
        return acts & episodes.open() if episodes.is_limited else acts

    @property
    def lives(self) -> Array:
        """Environments that are not retired, bool [envs]."""
        return ~self._retired

    def step(self, action: Columns) -> Step:
        """Step the rows that are ready; `observation` moves on.

        Discrete actions count from 0, whatever the environment's start is.

        Args:
            action: ``action`` [rows, ...], or of several parts ``action/<name>``; where a row is
                not ready, anything. Empty: no row is.

        Raises:
            EnvError: an environment failed too often; where others completed a transition in that
                step, this is raised by the next call, so that none is lost.
        """
        self._check()
        backend, turns, episodes, began = self._backend, self._turns, self._episodes, self.ready
        turns.begin(began)
        goes_on, seeds, following = self._goes_on(began), self._row_seeds, self.seeds.following()
        step = in_their_modes(backend.step, action, began, following, goes_on)
        if step.ends and self._row_seeds is not None:
            follow = (env for env in step.ends if goes_on[env])
            begun = {env: EpisodeStart(following[env], exists=True) for env in follow}
            self._note_seeds(begun, is_later=True)
        (failures, not_begun), failed = self._failures(step), None
        if failures or (not_begun and backend.fails_as_one):
            failed = self._failed_rows(failures)
            if not failures:  # what has ended is complete, and stays when all are re-created
                failed &= ~step.ended
                seen = {name: column.copy() for name, column in step.successor.items()}
                step = step._replace(successor=seen)
            ends = {env: numbers for env, numbers in step.ends.items() if not failed[env]}
            step = step._replace(over=step.over & ~failed, ended=step.ended & ~failed, ends=ends)
        self.seeds.took(env for env in step.ends if goes_on[env])
        step = self._with_legal_actions(step)
        if cut := self._too_long(step):
            step = self._cut(step, cut)
        live, reward = turns.complete(step.over, backend.acts, step.ended, step.reward)
        episodes.add(step)
        self._over = step.over
        if self._record.failures:
            self._record.good(np.flatnonzero(step.over) % self.env_num)
        try:
            if failures or not_begun:
                self._recover(failures, not_begun, failed)
            self._begin_others(step.ends, cut, goes_on)
        except EnvError as error:
            if isinstance(error, EnvValueError) or not any_of(live):
                raise
            self._error = error
        if self._lost:
            lost = self._rows_of(self._lost) & ~step.ended
            live, failed = live & ~lost, lost if failed is None else failed | lost
            self._lost.clear()
        return Step(
            step.successor, reward, step.terminated, step.truncated, step.ended, live, failed,
            seeds, step.infos,
        )  # fmt: skip

    def _note_seeds(self, starts: Mapping[int, EpisodeStart], *, is_later: bool = False) -> None:
        """Note by which seeds episodes have begun; see `Step.seeds`, `Backend.seed_taken`."""
        self._episode_seeds = self._episode_seeds.copy()  # earlier steps keep their array
        for env, start in starts.items():
            seed = self._backend.seed_taken(env, start.seed, is_later=is_later)
            if seed is None and start.exists and self._episode_seeds[env, 0] != NO_SEED:
                self._episode_seeds[env, 1] += 1
            else:
                self._episode_seeds[env] = NO_SEED if seed is None else seed, 0
        players, seeds = self._players, self._episode_seeds
        self._row_seeds = np.tile(seeds, (players, 1)) if players > 1 else seeds
        if not is_later and (self._episode_seeds[:, 0] == NO_SEED).all():
            self._row_seeds = None

    def _too_long(self, step: BackendStep) -> list[int]:
        """Returns environments whose episodes are to be cut; warns where none has ever ended."""
        episodes = self._episodes
        if step.ends:
            self._no_end_from = None
        elif self._no_end_from is not None and episodes.length(0) >= self._no_end_from:
            self._no_end_from = None
            LOGGER.warning(
                "no episode has ended in %d steps: set env.kwargs: {max_episode_steps: ...}, else "
                "returns come late or never%s", episodes.length(0),
                f"; evaluations cut episodes after {self.max_steps:,} (policy.eval.max_steps)"
                if self.max_steps else "", extra={"once": "no episode has ended"},
            )  # fmt: skip
        if self.max_steps is None:
            return []
        is_long = step.over & ~step.ended & (episodes.lengths + 1 >= self.max_steps)
        return envs_of(is_long, self.env_num)

    def _cut(self, step: BackendStep, envs: Sequence[int]) -> BackendStep:
        """Returns a step in which the episodes of some environments are truncated."""
        LOGGER.warning(
            "an episode was cut after %d steps and counts with its return so far "
            "(policy.eval.max_steps)", self.max_steps, extra={"once": "episodes were cut"},
        )  # fmt: skip
        rows = self._rows_of(envs)
        ends = {env: [numbers_in(self.call(env, RETURNS)[1])] * self.seats for env in envs}
        return step._replace(
            successor={name: column.copy() for name, column in step.successor.items()},
            truncated=step.truncated | rows, ended=step.ended | rows,
            ends={**step.ends, **ends},
        )  # fmt: skip

    def _begin_others(
        self, ended: Iterable[int], cut: Sequence[int], goes_on: Sequence[bool]
    ) -> None:
        """Have environments that the back-end has left at the end of an episode begin another."""
        if self._settings.auto_reset and not self._backend.fails_as_one:
            self._idle.update(env for env in ended if env in cut or not goes_on[env])
        if cut or any_of(self._waiting):
            self._begin_after(cut)
        if self._renewal.is_on and ended:
            self._renew([env for env in ended if env not in cut])
        self._begin_idle()

    def _begin_after(self, cut: Sequence[int]) -> None:
        """Have environments whose episodes were cut begin their next ones.

        Where they are reset together alone, those that were cut wait until no other plays.
        """
        episodes = self._episodes
        if self._backend.resets_alone:
            self._renewal.ended(cut)
            self._begin({env: self._start(env, {}) for env in cut if episodes.left[env] > 0})
            return
        self._waiting[cut] = True  # its next one would begin in the middle of this one
        if not (episodes.open(rows=False) & ~self._waiting).any():
            self._backend.turn_over()  # what was handed out stays as it is
            self._begin(self._starts_of_all({}, exists=True))
            self._waiting[:] = False

    def _begin_idle(self) -> None:
        """Have environments begin that were left at an end, and have episodes to play.

        The schedule has other arguments for them; or they play those of retired ones; or they are
        counted anew since their step began.
        """
        while idle := [env for env in sorted(self._idle) if self._episodes.left[env] > 0]:
            self._begin({env: self._start(env, {}) for env in idle})

    def _hand_over(self) -> None:
        """Have retired environments play no more, and others what they had to; see `hands_over`.

        As many as before are played, and each seed: those that have fewest left take them.
        """
        left, live = self._episodes.left, np.flatnonzero(~self._retired)
        if self.hands_over and self._quota is not None and live.size:
            for env in np.flatnonzero(self._retired & (left > 0)).tolist():
                others: list[int] = []
                for _ in range(left[env]):
                    others.append(int(live[left[live].argmin()]))
                    left[others[-1]] += 1
                self.seeds.hand_over(env, others)
        self._episodes.shut(self._retired)

    @property
    def places(self) -> Sequence[int]:
        """Of each environment the place of its running episode among those of all since `reset`."""
        return self.seeds.places.now

    @property
    def stepped(self) -> int:
        """See `Envs.stepped`."""
        return int(np.count_nonzero(self._over[: self.env_num]))

    def _goes_on(self, began: Array) -> Sequence[bool]:
        """Returns whether an episode follows the running one at once.

        Not after the last of a quota, nor where the environment is made anew before. Steps that are
        under way end as they were told when they began.

        Args:
            began: rows that begin a step, bool [rows].
        """
        goes_on: Sequence[bool] = self._all_go_on
        is_plain = self._quota is None and not self._renewal.is_on and not self._outdated
        if self._settings.auto_reset and not is_plain:
            following = (self._episodes.left > 1) & ~self._renewal.due
            following[[*self._outdated]] = False
            goes_on = following.tolist()
        if self.wait_num is None:
            return goes_on
        for env in envs_of(began, self.env_num):
            self._told[env] = goes_on[env]
        return list(self._told)

    def _renew(self, ended: Sequence[int]) -> None:
        """Make environments anew that are due, of those whose episode ended in this step."""
        due = [env for env in ended if self._renewal.due[env]]
        self._renewal.ended(ended)
        if due and self._settings.auto_reset:
            LOGGER.info("environments %s are made anew (env.manager.renew_after)", due)
            going = [env for env in due if self._episodes.left[env] > 0]
            starts = {env: self._start(env, {}, exists=False) for env in going}
            self._begin(starts)

    # ---- optional methods of environments

    @property
    def kept(self) -> Sequence[str]:
        """Names of the numbers in infos that steps return (`Step.infos`); set before `launch`."""
        return self._backend.kept

    @kept.setter
    def kept(self, names: Sequence[str]) -> None:
        self._backend.kept = names

    @property
    def keeps_infos(self) -> bool:
        """Whether the environments' infos of each step are kept; settable."""
        return self._backend.keeps_infos

    @keeps_infos.setter
    def keeps_infos(self, value: bool) -> None:
        self._backend.keeps_infos = value

    @property
    def infos(self) -> Mapping[int, Any]:
        """Infos of the last step, by environment, in a battle lists of them, if they are kept."""
        return self._backend.infos

    def pictures(self) -> list[Array]:
        """Returns a picture of each environment, uint8 [height, width, 3]; black of retired ones.

        Raises:
            EnvError: the environments draw none.
        """
        self._check_running()
        try:
            drawn = in_their_modes(self._backend.render, self.lives)
        except EnvFailure as failure:
            raise EnvError(
                f"render() of an environment failed: {_with_detail(failure)}"
            ) from failure
        pictures = [as_array(0 if picture is None else picture) for picture in drawn]
        black = np.zeros_like(pictures[int(self.lives.argmax())])
        pictures = [p if lives else black for p, lives in zip(pictures, self.lives, strict=True)]
        for env, picture in enumerate(pictures):
            if picture.ndim != 3:
                raise EnvError(
                    f"environment {env} draws no pictures; make it with env.kwargs: "
                    "{render_mode: rgb_array}"
                )
            are_whole = picture.dtype.kind in "iu"
            if not (are_whole and np.array_equal(picture, picture.astype(np.uint8, copy=False))):
                raise EnvError(
                    f"environment {env} draws pictures of {picture.dtype}, and must draw them of "
                    "uint8, 0 to 255"
                )
        return [picture.astype(np.uint8, copy=False) for picture in pictures]

    def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
        """Call an environment's method; returns whether it has one, and what that returned.

        Raises:
            EnvError: the method failed.
        """
        self._check_running()
        try:
            return in_their_modes(self._backend.call, env, name, args)
        except EnvFailure as failure:
            message = f"{name}() of environment {env} failed: {_with_detail(failure)}"
            raise EnvError(message) from failure

    # ---- beginning episodes, and failing

    def _begin(self, starts: Mapping[int, EpisodeStart]) -> None:
        """Have environments begin an episode; those that fail are tried again, or retired.

        Raises:
            EnvError: one failed too often, and may not be retired, or is the last one.
        """
        chosen = {*starts}
        while starts:
            self._idle.difference_update(starts)
            self._outdated.difference_update(starts)
            retries: dict[int, EpisodeStart] = {}
            for env, failure in self._failures_at_start(starts).items():
                if self._tolerates(env, failure, _BEGINNING):
                    self._warn(env, failure, "tried again", _BEGINNING)
                    start = starts.get(env, EpisodeStart(exists=True))
                    retries |= self._retries(env, start, failure)
            if retries:
                wait_s(self._settings.retry_waiting_time)
            if others := retries.keys() - chosen:  # all of a vector are made anew
                self._lost |= others
                self._record.dropped += sum(self._episodes.length(env) > 0 for env in others)
                self._drop(self._rows_of(others))
            starts = retries

    def _failures_at_start(self, starts: Mapping[int, EpisodeStart]) -> dict[int, EnvFailure]:
        """Have environments begin an episode; returns those that failed."""
        failed = in_their_modes(self._backend.start, starts)
        self._note_seeds(starts)  # those that failed were reset, too
        self._renewal.made(env for env, start in starts.items() if not start.exists)
        if len(failed) == len(starts):
            return failed
        begun = self._rows_of(env for env in starts if env not in failed) & self._backend.acts
        wrong = self._without_legal_action(begun)
        if not _are_finite(self._backend.observation):
            for row in np.flatnonzero(_rows_not_finite(self._backend.observation) & begun).tolist():
                failure = self._not_finite("a first observation", self._backend.observation, row)
                wrong[row % self.env_num] = failure
        self._warn_of_numbers(begun)
        return failed | self._as_one(wrong)

    def _failures(
        self, step: BackendStep
    ) -> tuple[Mapping[int, EnvFailure], Mapping[int, EnvFailure]]:
        """Returns the environments that failed in a step, and those that failed to begin after it.

        So does a step that is invalid, and a first observation.
        """
        after, seen = self._backend.observation, step.successor
        self._steps += 1
        if self._steps % _LOOK_EVERY == 1:
            self._warn_of_numbers(step.over)
        is_finite = (
            math.isfinite(step.reward.dot(step.reward))
            and _are_finite(seen)
            and (after is seen or _are_finite(after))
        )
        if is_finite and ACTION_MASK not in after:
            return step.failed, step.not_begun
        invalid, not_begun = self._invalid_steps(step, is_finite=is_finite)
        failed = {**invalid, **step.failed}
        if failed and self._backend.fails_as_one:
            return self._as_one({**step.failed, **invalid}), {}
        not_begun |= step.not_begun
        return failed, {env: each for env, each in not_begun.items() if env not in failed}

    def _invalid_steps(
        self, step: BackendStep, *, is_finite: bool
    ) -> tuple[dict[int, EnvFailure], dict[int, EnvFailure]]:
        """Returns environments whose step is invalid, and those whose episode begins so.

        That is, something is not finite, or no action is legal next.
        """
        backend, acts = self._backend, self._backend.acts
        # vectors begin, and step, also what nobody plays
        if self._episodes.is_limited or any_of(self._waiting):
            left = self._episodes.left.copy()
            left[[*step.ends]] -= 1
            acts = acts & np.tile((left > 0) & ~self._waiting, self._players)
        failed: dict[int, EnvFailure] = {}
        not_begun: dict[int, EnvFailure] = {}
        if step.not_begun:
            acts = acts & ~self._failed_rows(step.not_begun)
        begun = acts & (step.ended | ~step.over)
        for env, failure in self._without_legal_action(acts).items():
            (not_begun if begun[env :: self.env_num].any() else failed)[env] = failure
        if not is_finite:
            for what, columns, rows, of in (
                ("a first observation", backend.observation, begun, not_begun),
                ("an observation", step.successor, step.over, failed),
                ("a reward", {"": step.reward}, step.over, failed),
            ):
                for row in np.flatnonzero(_rows_not_finite(columns) & rows).tolist():
                    at = 0 if rows is begun else self._episodes.length(row) + 1
                    of[row % self.env_num] = self._not_finite(what, columns, row, at)
        return failed, self._as_one(not_begun)

    def _as_one(self, failures: dict[int, EnvFailure]) -> dict[int, EnvFailure]:
        """Returns failures as the back-end reports them: one for all, if one takes all others."""
        if failures and self._backend.fails_as_one:
            return {0: next(iter(failures.values()))}
        return failures

    def _not_finite(self, what: str, columns: Columns, row: int, step: int = 0) -> EnvFailure:
        """Returns the failure of a row that is not finite.

        Args:
            what: of `columns`, for the message: "an observation", "a reward".
            columns: with the row.
            row: number of it.
            step: of its episode; 0: it began with this.

        Raises:
            EnvValueError: it is an infinite reward: NaN comes by accident, and this is meant.
        """
        name, value, dtype = _first_not_finite(columns, row)
        number = "NaN" if math.isnan(value) else f"infinite, or beyond {dtype}"
        kind = f"{what}{f' ({name})' if name else ''} that is {number}"
        place = f" in step {step} of its episode" if step else ""
        message = f"{self._name(row)} returned {kind}{place}"
        if math.isnan(value):
            return EnvFailure(message, kind=kind)
        if what == "a reward":
            raise EnvValueError(f"{message}: give a finite number")
        return EnvFailure(f"{message}; if that is meant, clip it", kind=kind)

    def _name(self, row: int) -> str:
        """What a row is: its environment, and in a battle its player."""
        name = f"environment {row % self.env_num}"
        is_alone = len(self._backend.acts) == self.env_num
        return name if is_alone else f"player {row // self.env_num} of {name}"

    def _warn_of_numbers(self, rows: Array) -> None:
        """Warn of numbers, in some rows (bool), once for each column: coarse, or beyond bounds."""
        if self._bounds is None and self._backend.facts is not None:
            facts, origin = self._backend.facts, self._backend.origin
            space = Space.of_observations(facts.observation_space, origin=origin)
            self._bounds, self._coarse = space.bounds(), space.coarse()
        self._warn_of_coarse(rows)
        self._warn_of_bounds(rows)

    def _warn_of_coarse(self, rows: Array) -> None:
        for name in self._coarse:
            column = self._backend.observation[name]
            most = float(np.abs(column[rows].astype(np.float64)).max(initial=0.0))
            if most >= coarse_from(column.dtype) and math.isfinite(most):
                self._coarse.remove(name)
                is_float = column.dtype.kind == "f"
                LOGGER.warning(
                    "%s is %g, %s, and %s float32, in steps of %.2g: if smaller "
                    "differences matter, %sset env.origin to what lies near, by column",
                    name, most, "float64" if is_float else column.dtype,
                    "is stored as" if is_float else "networks see it as",
                    float(np.spacing(np.float32(most))),
                    "have it as int64, and " if column.dtype.kind == "u" else "",
                    extra={"once": f"{name} is stored in coarse steps"},
                )  # fmt: skip
                return

    def _warn_of_bounds(self, rows: Array) -> None:
        unwarned = self._bounds or {}
        for name, (low, high, slack) in unwarned.items():
            column = self._backend.observation[name]
            with np.errstate(over="ignore"):  # of bounds near the largest float64
                is_out = (column < low - slack) | (column > high + slack)
            outside = np.flatnonzero(is_out.reshape(len(column), -1).any(axis=1) & rows)
            if outside.size:
                del unwarned[name]
                row = int(outside[0])
                LOGGER.warning(
                    "%s: %s; numbers are taken as they are: set the space to what the environment "
                    "returns",
                    self._name(row),
                    beyond(name, column[row], column[row], (low, high, slack)),
                    extra={"once": f"{name} is beyond its space"},
                )
                return

    def _without_legal_action(self, rows: Array) -> dict[int, EnvFailure]:
        """Returns environments of rows (bool) whose mask leaves a part of an action no value."""
        mask = self._backend.observation.get(ACTION_MASK)
        if mask is None:
            return {}
        why = f"its mask of actions, of length {mask.shape[1]}, allows none"
        wrong = envs_of(self._without_value(mask).any(axis=1) & rows, self.env_num)
        return {env: EnvFailure(f"environment {env} has no legal action: {why}") for env in wrong}

    def _with_legal_actions(self, step: BackendStep) -> BackendStep:
        """Returns a step in which all is legal where an episode was cut, and nothing was any more.

        So it is of each part of an action: nobody acts there, and what is bootstrapped is the best
        of all actions.
        """
        mask = step.successor.get(ACTION_MASK)
        if mask is None or not step.ends:
            return step
        is_none = self._without_value(mask) & step.truncated[:, None]
        if not is_none.any():
            return step
        allow_all = np.repeat(is_none, self._mask_sizes, axis=1)
        return step._replace(successor={**step.successor, ACTION_MASK: mask | allow_all})

    def _without_value(self, mask: Array) -> Array:
        """Returns where masks leave a discrete part of an action no value, bool [rows, parts]."""
        first = np.cumsum([0, *self._mask_sizes[:-1]])
        return ~np.logical_or.reduceat(mask, first, axis=1)

    @cached_property
    def _mask_sizes(self) -> list[int]:
        """Entries of each discrete part of an action in a mask."""
        facts = self._backend.facts
        leaves = () if facts is None else Space.of_actions(facts.action_space).leaves
        return [count for leaf in leaves for count in leaf.counts]

    def _failed_rows(self, failures: Mapping[int, EnvFailure]) -> Array:
        """The rows of environments that failed, bool [rows]; those of all where one takes all."""
        everything = range(self.env_num)
        return self._rows_of(everything if self._backend.fails_as_one else failures)

    def _recover(
        self,
        failures: Mapping[int, EnvFailure],
        not_begun: Mapping[int, EnvFailure],
        failed: Array | None,
    ) -> None:
        """Have environments that failed begin a new episode; raises as `_begin`.

        Args:
            failures: in a step, by environment.
            not_begun: after it.
            failed: bool [rows]; whose episodes are dropped.
        """
        if failed is not None:
            self._record.dropped += len(envs_of(self._turns.pending & failed, self.env_num))
        starts: dict[int, EpisodeStart] = {}
        try:
            for activity, of in (("stepping", failures), (_BEGINNING, not_begun)):
                for env, failure in of.items():
                    if self._tolerates(env, failure, activity):
                        retries = self._retries(env, EpisodeStart(exists=True), failure)
                        done = "reset" if retries[env].exists else "re-created"
                        self._warn(env, failure, done, activity)
                        starts |= retries
        finally:
            if failed is not None:
                self._drop(failed)
        self._begin(starts)

    def _drop(self, rows: Array) -> None:
        """Forget the running episodes of some rows, bool [rows]."""
        self._episodes.drop(rows)
        self._turns.drop(rows)

    def _retries(
        self, env: int, start: EpisodeStart, failure: EnvFailure
    ) -> dict[int, EpisodeStart]:
        """Returns how to begin after a failure: a re-created environment by another seed.

        So does one that is only reset, where all its episodes begin by seeds, or where it was reset
        by one, which it may never bear. Of a set in order it is the same one, where no step was
        made, or all episodes are played whoever fails; and so is one of a `ResetParam`.
        """
        if self._backend.fails_as_one:
            return self._starts_of_all({}, exists=False)
        exists = start.exists and not failure.is_gone and self._settings.retry_type != "renew"
        had_seed = start.seed is not None
        by_seeds = env in self._outdated or self.seeds.following()[env] is not None
        if (had_seed or by_seeds or not exists) and not start.keeps_seed:
            draw = self.seeds.again if had_seed or self.hands_over else self.seeds.one
            start = start._replace(seed=draw(env))
        return {env: start._replace(exists=exists)}

    def _tolerates(self, env: int, failure: EnvFailure, activity: str) -> bool:
        """Counts a failure; returns whether to retry the environment. If not, retires it.

        Raises:
            EnvError: it failed too often, and may not be retired, or is the last one.
            EnvValueError: it returned what no retry can put right.
        """
        if failure.wrong_row is not None:
            raise EnvValueError(self._wrong_value(env, failure, activity)) from failure
        too_often = self._record.add(env, time.monotonic())
        if failure.is_final:
            too_often = "for good"
        elif not too_often:
            return True
        fails_as_one = self._backend.fails_as_one
        name = "an environment" if fails_as_one else f"environment {env}"
        timeouts = " or the time-outs of env.manager" if failure.is_gone else ""
        advice = (
            "\nrepair it; where such failures are to be tolerated, raise "
            f"env.manager.max_retry{timeouts}"
        )
        kind = EnvRanksLost if isinstance(failure, RanksLost) else EnvError
        error = kind(
            f"{name} failed {activity}, {too_often}: {_with_detail(failure)}"
            f"{'' if failure.is_final else advice}"
        )
        error.__cause__ = failure
        if not self.retires or fails_as_one or self._backend.facts is None:
            raise error
        self._retired[env] = True
        if self._is_running:  # else episodes are counted when all have begun
            self._hand_over()
        self._backend.retire(env)
        left = self.env_num - int(self._retired.sum())
        if not left:
            are = "are retired" if kind is EnvError else "are lost with their ranks"
            raise kind(f"all {self.env_num} environments {are}; the last {error}")
        LOGGER.warning(
            "environment %d failed %s, %s (%s), and is retired; %d of %d environments go on",
            env,
            activity,
            too_often,
            failure.cause,
            left,
            self.env_num,
            extra={
                "env_id": env,
                "detail": failure.detail,
                "once": f"an environment was retired ({failure.kind})",
            },
        )
        return False

    def _wrong_value(self, env: int, failure: EnvFailure, activity: str) -> str:
        """The message of a failure that no retry can help."""
        named, name = env, f"environment {env}"
        if self._backend.fails_as_one:
            named = max(0, failure.wrong_row or 0)
            name = "the vector environment" if failure.wrong_row == -1 else f"environment {named}"
        when = "at the beginning of an episode"
        if activity == "stepping":
            when = f"step {self._episodes.length(named) + 1} of its episode"
        return f"{name}, {when}: {failure.cause}"

    def _warn(self, env: int, failure: EnvFailure, done: str, activity: str) -> None:
        once = f"an environment failed ({failure.kind})"
        if self._backend.fails_as_one:
            LOGGER.warning(
                "an environment failed (%s); all %d are re-created, their unfinished episodes are "
                "dropped", failure.cause, self.env_num,
                extra={"detail": failure.detail, "once": once},
            )  # fmt: skip
            return
        LOGGER.warning(
            "environment %d failed%s (%s) and is %s%s", env,
            f" {activity}" if activity == _BEGINNING else "", failure.cause, done,
            "" if activity == _BEGINNING else "; its unfinished episode is dropped",
            extra={"env_id": env, "detail": failure.detail, "once": once},
        )  # fmt: skip

    def _new_record(self) -> FailureRecord:
        settings = self._settings
        return FailureRecord(self.env_num, settings.max_retry, settings.retry_window_s)

    def _count_from_zero(self) -> None:
        """Begin counting; what was under way is forgotten."""
        self._waiting = np.zeros(self.env_num, dtype=bool)  # cut, and not yet reset
        seats = self._players
        self._turns = Turns(self.env_num * seats, takes_turns=seats > 1)
        self._episodes = EpisodeCounter(self.env_num, seats, self._quota)
        self._idle: set[int] = set()  # whose last episode is over, and no other has begun
        self._hand_over()

    def _bytes_of(self, env: int) -> int:
        """What the process of an environment holds, with those that it has started; 0: unknown."""
        workers = getattr(self._backend, "workers", ())
        pid = getattr(workers[env], "pid", None) if workers else None
        return 0 if pid is None else tree_bytes(pid)

    @property
    def _players(self) -> int:
        """Players of one environment; 1 before any was created."""
        return 1 if self._backend.facts is None else self._backend.facts.players

    def _rows_of(self, envs: Iterable[int]) -> Array:
        """The rows of environments, bool [rows]."""
        return rows_of(envs, self.env_num, self._players)

    # ---- arguments

    def _check_running(self) -> None:
        if not self._is_running:
            raise EnvError("the environments are not running; launch() them first")

    def _check(self) -> None:
        """Raises, once, what has come after the last step."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _params_of(self, reset_param: ResetParam | None) -> dict[int, dict[str, Any]]:
        """Checks the parameters of a `reset_param`; returns those of each that it names, or all."""
        chosen = dict.fromkeys(range(self.env_num)) if reset_param is None else dict(reset_param)
        for env, param in chosen.items():
            unknown_keys = set(param or {}) - {"seed", "options"}
            if unknown_keys:
                raise EnvError(
                    f"reset_param of environment {env} has {sorted(unknown_keys)}; it may have "
                    "'seed' and 'options'"
                )
        unknown = chosen.keys() - set(range(self.env_num))
        if unknown:
            raise EnvError(f"there are no environments {sorted(unknown)}, only {self.env_num}")
        return {env: dict(param or {}) for env, param in chosen.items()}

    def _starts_of_all(
        self, params: Mapping[int, Mapping[str, Any]], *, exists: bool
    ) -> dict[int, EpisodeStart]:
        """Returns how all environments begin, with the parameters of some."""
        return {
            env: self._start(env, params.get(env, {}), seed, exists=exists)
            for env, seed in enumerate(self.seeds.all())
        }

    def _start(
        self,
        env: int,
        param: Mapping[str, Any],
        drawn: int | None = None,
        *,
        exists: bool = True,
    ) -> EpisodeStart:
        """Returns how one environment begins: by its own seed, or one that is drawn.

        Args:
            env: number of the environment.
            param: see `ResetParam`.
            drawn: the seed, where it has none of its own; None: its stream's next.
            exists: False: it is created first.
        """
        seed, is_own = param.get("seed"), param.get("seed") is not None
        if not is_own:
            seed = self.seeds.one(env) if drawn is None else drawn
        exists = exists and not self._renewal.over[env]
        return EpisodeStart(seed, param.get("options"), exists, is_own)


def _are_finite(columns: Columns) -> bool:
    """Returns False if a number is NaN or infinite, or so large that its square is infinite."""
    for column in columns.values():
        # a sum of squares finds any of them in half a microsecond
        if column.dtype.kind == "f":
            numbers = column.reshape(-1)
            is_small = column.dtype.itemsize == 2  # and float16's squares are soon infinite
            if not (
                np.isfinite(numbers).all() if is_small else math.isfinite(numbers.dot(numbers))
            ):
                return False
    return True


def _rows_not_finite(columns: Columns) -> Array:
    """Returns where a number is NaN or infinite, bool [rows]."""
    floats = [column for column in columns.values() if column.dtype.kind == "f"]
    by_column = [~np.isfinite(column).reshape(len(column), -1).all(axis=1) for column in floats]
    rows: Array = np.logical_or.reduce(by_column)
    return rows


def _first_not_finite(columns: Columns, row: int) -> tuple[str, float, str]:
    """Returns a row's first number that is NaN or infinite: its column, it, and its dtype."""
    for name, column in columns.items():
        numbers = np.ravel(column[row])
        if column.dtype.kind == "f" and not np.isfinite(numbers).all():
            number = float(numbers[~np.isfinite(numbers)][0])
            return name.partition("/")[2], number, column.dtype.name
    return "", math.nan, ""


def _with_detail(failure: EnvFailure) -> str:
    """Returns a failure's cause, and its traceback where there is one."""
    return f"{failure.cause}\n{failure.detail}" if failure.detail else failure.cause
