"""Environments by dicts: DI-engine's managers as the stepping loop has them, ours as it has them.

DI-engine's managers have ``ready_obs``, ``{env: observation}``, and ``step({env: action})``, which
returns ``{env: timestep}``. In battles observations, actions, rewards and infos are lists with one
element a player; observation and action are None where a player is not to act.

Foreign environments may return actions as tensors, returns as arrays of one element, and one info
for all players of a battle or one for each; the functions below normalise these.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpcdi.env.base import BackendStep, Envs
from hpcdi.env.contract import Space, infos_in, numbers_in, pick
from hpcdi.env.counters import EpisodeCounter
from hpcdi.env.manager import EnvManager, ResetParam, Turns
from hpcdi.errors import EnvError, PolicyError
from hpcdi.policy.exploration import RandomActor
from hpcdi.types import Array, Columns, Episodes, Step
from hpcdi.utils.backoff import Backoff
from hpcdi.utils.nested import as_array, column_rows, is_like_tensor, take_rows
from hpcdi.worker.errors import NoReturnError, ReturnError

_ARRAYS = (np.ndarray, np.generic, int)
_PATIENCE_S = 600.0
_SETTLING_S = 1.0
_MOST_FAILURES = 200
"""Steps in a row in which environments failed and none answered; evaluations give up before."""


class BaseEnvTimestep(NamedTuple):
    """One step of one environment, in DI-engine's form.

    ``info`` holds ``terminated`` and ``truncated``, and at an episode's end
    ``eval_episode_return``; after a failure of the environment only ``abnormal``. In a battle
    ``obs``, ``reward`` and ``info`` have one element for each player.
    """

    obs: Any
    reward: Any
    done: bool
    info: Any


class View(Protocol):
    """Values of rows, as policies of dicts have them."""

    def seen(self, observation: Columns) -> list[Any]:
        """Returns the observations in some rows of columns."""
        ...

    def columns(self, actions: Mapping[int, Any]) -> Columns:
        """Returns the actions of rows as columns, in order."""
        ...

    def timesteps(self, step: Step) -> dict[int, BaseEnvTimestep]:
        """Returns those of the rows that completed a transition in the last step."""
        ...

    def info(self, row: int) -> Mapping[str, Any]:
        """Returns the environment's info of a row in the last step, in which its episode ended."""
        ...

    def restart(self, env: int) -> None:
        """Have an environment begin anew that failed in the last step, unless it has."""
        ...


def open_envs(manager: Any, players: int) -> tuple[Envs, View]:
    """Returns a manager's environments as the stepping loop has them, and their values.

    Args:
        manager: ours, or any that keeps DI-engine's contract; running.
        players: policies that play in each environment; 0: it is no battle.

    Raises:
        EnvError: an environment has not one player for each policy.
    """
    rows = ours(manager)
    if rows is None:
        foreign = ForeignEnvs(manager, players)
        return foreign, foreign
    if rows.seats != max(players, 1):
        raise _other_players(0, rows.seats, players)
    return rows, ManagerView(rows)


def ours(manager: Any) -> EnvManager | None:
    """Returns the manager of rows that a manager is or has; None: it is a foreign one."""
    manager = getattr(manager, "manager", manager)
    return manager if isinstance(manager, EnvManager) else None


def by_dicts(manager: Any) -> Any:
    """Returns a manager in DI-engine's form."""
    return DictManager(manager) if isinstance(manager, EnvManager) else manager


class ManagerView:
    """Values of the rows of our managers; see `View`.

    Args:
        manager: running.
    """

    def __init__(self, manager: EnvManager) -> None:
        facts = manager.facts
        self._manager = manager
        self._seen = Space.of_observations(facts.observation_space)
        self._acts = Space.of_actions(facts.action_space)
        self._returns, self._resets = np.zeros(manager.rows), manager.resets.copy()
        manager.keeps_infos = True

    def seen(self, observation: Columns) -> list[Any]:
        """See `View.seen`; they are copies."""
        return [self._seen.value(observation, row) for row in range(column_rows(observation))]

    def columns(self, actions: Mapping[int, Any]) -> Columns:
        """See `View.columns`; discrete ones count from 0, and may be arrays of one element.

        Raises:
            PolicyError: an action is of another shape, or lacks a part.
        """
        return {
            field.name: np.array([self._part(field, *action) for action in actions.items()])
            for field in self._acts.fields
        }

    def _part(self, field: Any, row: int, action: Any) -> Array:
        """A part of a row's action."""
        try:
            return _in_shape(pick(action, field.path), field.shape)
        except (ValueError, LookupError, TypeError) as error:
            raise PolicyError(
                f"the action for environment {row % self._manager.env_num} is {action!r:.100}; its "
                f"space is {self._manager.facts.action_space}, and the policy must return an "
                "action of that form"
            ) from error

    def action(self, columns: Columns, row: int) -> Any:
        """Returns a row's action in the environment's form, discrete parts counted from 0."""
        return self._acts.value(columns, row, from_zero=True)

    def timesteps(self, step: Step) -> dict[int, BaseEnvTimestep]:
        """See `View.timesteps`."""
        resets = self._manager.resets
        if (resets != self._resets).any():
            self._returns[np.tile(resets != self._resets, self._manager.seats)] = 0.0
            self._resets = resets.copy()
        self._returns += np.where(step.live, step.reward, 0)
        timesteps = {}
        for row in np.flatnonzero(step.live).tolist():
            info = {
                **self.info(row),
                "terminated": bool(step.terminated[row]),
                "truncated": bool(step.truncated[row]),
            }
            done = bool(step.ended[row])
            if done:
                info.setdefault("eval_episode_return", float(self._returns[row]))
            seen = self._seen.value(step.successor, row)
            timesteps[row] = BaseEnvTimestep(seen, float(step.reward[row]), done, info)
        self._returns[step.over] = 0.0
        return timesteps

    def info(self, row: int) -> Mapping[str, Any]:
        """See `View.info`."""
        env_num, seats = self._manager.env_num, self._manager.seats
        info = self._manager.infos.get(row % env_num) or {}
        return info if seats == 1 or not info else info[row // env_num] or {}

    def restart(self, env: int) -> None:
        """See `View.restart`: it has."""


def _in_shape(part: Any, shape: tuple[int, ...]) -> Array:
    """A part of an action in its shape: flat, or with other axes of one number.

    Raises:
        ValueError: it is of another shape, in which numbers would change places.
    """
    given = np.shape(part)
    if len(given) > 1 and given != shape:
        axes, expected = ([n for n in one if n != 1] for one in (given, shape))
        if len(axes) > 1 and axes != expected:
            raise ValueError(f"its shape is {given}, not {shape}")
    return np.reshape(part, shape)


class ForeignEnvs:
    """DI-engine's managers as the stepping loop has them: columns of Python objects [rows].

    An environment that failed (``info["abnormal"]``) begins a new episode: our managers have reset
    it already and say so by ``resets_abnormal``; others are asked to.

    Args:
        manager: any that keeps the contract; running.
        players: policies that play in each environment; 0: it is no battle.
    """

    wait_num: int | None = None

    def __init__(self, manager: Any, players: int = 0) -> None:
        self.env_num, self.seats = int(manager.env_num), max(players, 1)
        self.rows = self.env_num * self.seats
        self.stepped = 0
        self._manager, self._is_battle = manager, players > 0
        self._counter = EpisodeCounter(self.env_num, self.seats)
        self._turns = self._new_turns()
        self._timesteps: dict[int, BaseEnvTimestep] = {}
        self._infos: dict[int, Mapping[str, Any]] = {}
        self._waiting: Array | None = None  # observations; None: they are to be asked for
        self._begins: int | None = None  # episodes that may still begin; None: any number
        self._running: set[int] = set()  # environments whose episode has begun
        self._broken: list[int] = []  # environments that their manager is to reset
        self._played, self._heard = 0, time.monotonic()
        self._failures = 0  # steps in a row, see `_MOST_FAILURES`

    @property
    def observation(self) -> Columns:
        """Observations, objects [rows]; None where a player does not wait for an action.

        Raises:
            EnvError: an environment of a battle has not one player for each policy.
        """
        for env in [*self._broken]:
            self.restart(env)
        if self._waiting is None:
            self._waiting = np.empty(self.rows, dtype=object)
            for env, seen in self._manager.ready_obs.items():
                if not self._may_step(env):
                    continue
                if not self._is_battle:
                    self._waiting[env] = seen
                elif len(seen) != self.seats:
                    raise _other_players(env, len(seen), self.seats)
                else:
                    self._waiting[env :: self.env_num] = _objects(seen)
        return {"observation": self._waiting}

    def begin_only(self, episodes: int | None) -> None:
        """Begin so many episodes from here on; an environment without one rests. None: no limit."""
        self._begins, self._waiting = episodes, None
        self._running.clear()

    def settle(self) -> None:
        """Wait a moment for environments that their manager resets in the background."""
        until, backoff = time.monotonic() + _SETTLING_S, Backoff()
        while len(self._manager.ready_obs) < self.env_num and time.monotonic() < until:
            backoff.nap()

    def _may_step(self, env: int) -> bool:
        """Returns whether an environment's episode goes on, or may begin."""
        if self._begins is None or env in self._running:
            return True
        if self._begins:
            self._begins -= 1
            self._running.add(env)
        return env in self._running

    @property
    def ready(self) -> Array:
        """See `Envs.ready`."""
        return np.array([one is not None for one in self.observation["observation"].tolist()])

    @property
    def done(self) -> bool:
        """See `Envs.done`."""
        return not self._counter.left.any()

    def reset(self, *, quota: int | Sequence[int] | None = None) -> None:
        """See `Envs.reset`."""
        self._manager.reset()
        self._broken.clear()
        self._counter = EpisodeCounter(self.env_num, self.seats, quota)
        self._turns, self._waiting = self._new_turns(), None
        self._played, self._heard, self._failures = 0, time.monotonic(), 0

    def step(self, action: Columns) -> Step:
        """See `Envs.step`; a row's part of a step is in `timesteps`.

        Raises:
            EnvError: an episode ended without ``info["eval_episode_return"]``; or no environment
                has stepped for long, or they keep failing; or the manager is done, and its quota of
                episodes is not.
        """
        chosen = action.get("action", np.empty(self.rows, dtype=object)).tolist()
        ready = self.ready
        if ready.any():
            self._heard = time.monotonic()
        elif getattr(self._manager, "done", False):
            raise EnvError(
                f"the environments are done after {self._played} episodes of those that are "
                "wanted: the manager's episode_num is too low"
            )
        self._turns.begin(ready)
        envs = dict.fromkeys(row % self.env_num for row in np.flatnonzero(ready).tolist())
        if self._is_battle:
            by_env = {
                env: [chosen[row] if ready[row] else None for row in self._rows_of(env)]
                for env in envs
            }
        else:
            by_env = {env: chosen[env] for env in envs}
        timesteps, self._waiting = self._manager.step(by_env), None
        return self._step_of_rows(timesteps)

    def _step_of_rows(self, timesteps: Mapping[int, Any]) -> Step:
        """Returns the timesteps of environments as a step of the rows."""
        over, ended, acts, failed = np.zeros((4, self.rows), dtype=bool)
        reward, successor = np.zeros(self.rows), np.empty(self.rows, dtype=object)
        infos: dict[int, Any] = {}
        ends: dict[int, Sequence[Mapping[str, float]]] = {}
        for env, timestep in timesteps.items():
            rows, done = self._rows_of(env), bool(timestep.done)
            if _is_abnormal(timestep):
                failed[rows] = True
                if not getattr(self._manager, "resets_abnormal", False):
                    self._broken.append(env)
                continue
            over[rows], ended[rows] = True, done
            if self._is_battle:
                each = infos_of(timestep.info, self.seats, env, ended=done)
                reward[rows] = np.ravel(np.asarray(timestep.reward))
                successor[rows] = _objects(timestep.obs)
                acts[rows] = [one is not None for one in timestep.obs]
            else:
                each, successor[env] = [timestep.info], timestep.obs
            infos.update(zip(rows, each, strict=True))
            if done:
                ends[env] = [
                    numbers_in({**one, "eval_episode_return": as_number(episode_return(one, env))})
                    for one in each
                ]
                self._running.discard(env)
        self._infos = infos
        self.stepped = len(timesteps) - int(failed.sum()) // self.seats
        live, reward = self._turns.complete(over, acts, ended, reward)
        self._turns.drop(failed)
        self._timesteps = {}
        for row in np.flatnonzero(live).tolist():
            timestep = timesteps[row % self.env_num]
            if self._is_battle:
                player = row // self.env_num
                of_player = _like(_of_player(timestep.reward, player), float(reward[row]))
                usual = BaseEnvTimestep(successor[row], of_player, bool(timestep.done), infos[row])
                timestep = _part_of(timestep, player, usual)
            self._timesteps[row] = timestep
        self._count(over, ended, failed, ends)
        seen, no = {"observation": successor}, np.zeros(self.rows, dtype=bool)
        is_failed = failed if failed.any() else None
        return Step(seen, reward.astype(np.float32), ended, no, ended, live, is_failed)

    def _count(self, over: Array, ended: Array, failed: Array, ends: Any) -> None:
        """Count steps and episodes, but of those that have done their quota."""
        self._failures = 0 if over.any() else self._failures + int(failed.any())
        if self._failures > _MOST_FAILURES:
            env = int(np.flatnonzero(failed)[-1]) % self.env_num
            raise EnvError(
                f"environments failed {self._failures} times in a row, environment {env} last; "
                "their own log says why"
            )
        if over.any() or failed.any():
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > _PATIENCE_S:
            raise EnvError(f"no environment has stepped for {_PATIENCE_S:.0f} s; do they hang?")
        self._counter.drop(failed)
        no, counted = np.zeros(self.rows, dtype=bool), over & self._counter.open()
        nothing, ended = np.zeros(self.rows, dtype=np.float32), ended & counted
        self._counter.add(BackendStep({}, nothing, ended, no, ended, counted, ends, {}))
        self._played += int(ended.sum()) // self.seats

    def take_episodes(self) -> Episodes:
        """See `Envs.take_episodes`; those that a manager counted are taken, too: it keeps them."""
        if hasattr(self._manager, "take_episodes"):
            self._manager.take_episodes()
        ended = self._counter.take()
        return ended._replace(returns=ended.stated)

    def seen(self, observation: Columns) -> list[Any]:
        """See `View.seen`."""
        seen: list[Any] = observation["observation"].tolist()
        return seen

    def columns(self, actions: Mapping[int, Any]) -> Columns:
        """See `View.columns`."""
        return {"action": _objects(list(actions.values()))}

    def timesteps(self, _step: Step) -> dict[int, BaseEnvTimestep]:
        """See `View.timesteps`; of one player they are the environment's own."""
        return self._timesteps

    def info(self, row: int) -> Mapping[str, Any]:
        """See `View.info`."""
        return self._infos[row]

    def restart(self, env: int) -> None:
        """See `View.restart`."""
        if env in self._broken:
            self._broken.remove(env)
            self._manager.reset({env: None})

    def _rows_of(self, env: int) -> list[int]:
        return list(range(env, self.rows, self.env_num))

    def _new_turns(self) -> Turns:
        return Turns(self.rows, takes_turns=self.seats > 1, dtype=np.float64)


class DictManager:
    """One of our managers in DI-engine's form.

    Args:
        manager: ours.
    """

    resets_abnormal = True
    """An environment whose step was abnormal has begun a new episode by itself."""

    def __init__(self, manager: EnvManager) -> None:
        self.manager, self.env_num = manager, manager.env_num
        self._view: ManagerView | None = None
        self._random: RandomActor | None = None

    @property
    def closed(self) -> bool:
        """True if the environments are not running."""
        return self.manager.closed

    @property
    def done(self) -> bool:
        """True if every environment has done its number of episodes."""
        return self.manager.done

    @property
    def observation_space(self) -> Any:
        """Gymnasium's space of one observation; of battles a list with one for each player."""
        return self._of_players(self.manager.facts.observation_space)

    @property
    def action_space(self) -> Any:
        """Gymnasium's space of one action; of battles a list with one for each player."""
        return self._of_players(self.manager.facts.action_space)

    def launch(self, reset_param: ResetParam | None = None) -> None:
        """Create the environments and reset them; see `EnvManager.launch`."""
        self.manager.launch(reset_param)
        self._view = ManagerView(self.manager)

    def reset(self, reset_param: ResetParam | None = None) -> None:
        """Reset environments, and drop their unfinished episodes; see `EnvManager.reset`."""
        self.manager.reset(reset_param)

    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        """Seed the environments; takes effect at the next reset. See `SeedStreams.seed`."""
        self.manager.seeds.seed(seed, dynamic_seed)
        self._random = None

    def close(self) -> None:
        """Close the environments. Idempotent."""
        self.manager.close()

    @property
    def ready_obs(self) -> dict[int, Any]:
        """The observation of each environment that waits for an action.

        Raises:
            EnvError: the environments are not running.
        """
        manager, ready = self.manager, self.manager.ready
        return self._by_env(ready, self._values().seen(take_rows(manager.observation, ready)))

    def step(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step the environments that wait; all of them need an action.

        Discrete actions count from 0, whatever the environment's start is.

        Raises:
            EnvError: an action is missing, or names an environment that does not exist; or one
                failed too often.
        """
        manager, ready, view = self.manager, self.manager.ready, self._values()
        rows = np.flatnonzero(ready).tolist()
        envs = sorted({row % self.env_num for row in rows})
        self._check(actions, envs)
        seats, env_num = manager.seats, self.env_num
        chosen = {row: actions[row % env_num] for row in rows}
        if seats > 1:
            chosen = {row: players[row // env_num] for row, players in chosen.items()}
        columns: Columns = {}
        if rows:
            for name, column in view.columns(chosen).items():
                columns[name] = np.zeros((len(ready), *column.shape[1:]), column.dtype)
                columns[name][rows] = column
        step = manager.step(columns)
        timesteps = view.timesteps(step)
        if seats == 1:
            failed = [] if step.failed is None else np.flatnonzero(step.failed & ready).tolist()
            return {**timesteps, **{env: self._abnormal(env) for env in failed}}
        return self._joint(step, timesteps, envs)

    def _joint(
        self, step: Step, of_rows: Mapping[int, BaseEnvTimestep], envs: Sequence[int]
    ) -> dict[int, BaseEnvTimestep]:
        """The timesteps of battles: lists, one element a player."""
        manager, joint = self.manager, {}
        seats, env_num, after = manager.seats, self.env_num, self.ready_obs
        for env in envs:
            rows = [seat * env_num + env for seat in range(seats)]
            if step.failed is not None and step.failed[env]:
                if env in after:
                    nothing, info = np.zeros(seats, dtype=np.float32), {"abnormal": True}
                    joint[env] = BaseEnvTimestep(after[env], nothing, False, [info] * seats)
                continue
            done = bool(step.ended[env])
            seen = [of_rows[row].obs if row in of_rows else None for row in rows]
            view = self._values()
            infos = [dict(of_rows[r].info if r in of_rows else view.info(r)) for r in rows]
            for told in infos if done else ():  # one may have had no turn in the game
                told.setdefault("eval_episode_return", 0.0)
            joint[env] = BaseEnvTimestep(
                seen if done else after.get(env, seen),
                step.reward[rows] * step.live[rows],
                done,
                infos,
            )
        return joint

    def _abnormal(self, env: int) -> BaseEnvTimestep:
        row = {name: column[[env]] for name, column in self.manager.observation.items()}
        return BaseEnvTimestep(self._values().seen(row)[0], 0.0, False, {"abnormal": True})

    def random_action(self) -> dict[int, Any]:
        """A random legal action, by the manager's seed, for each environment that waits."""
        manager, ready, view = self.manager, self.manager.ready, self._values()
        if self._random is None:
            seed = np.random.SeedSequence(manager.seeds.actions())
            self._random = RandomActor(manager.spaces, seed)
        drawn = self._random.act(take_rows(manager.observation, ready), {})
        return self._by_env(ready, [view.action(drawn, k) for k in range(int(ready.sum()))])

    def take_episodes(self) -> Episodes:
        """The episodes that ended since the last call."""
        return self.manager.take_episodes()

    def ready_imgs(self, render_mode: str = "rgb_array") -> list[Array]:
        """A picture of each environment, uint8 [height, width, 3].

        Raises:
            EnvError: the environments draw none.
        """
        if render_mode != "rgb_array":
            raise EnvError(f"pictures are 'rgb_array', not {render_mode!r}")
        return self.manager.pictures()

    def enable_save_figure(self, env_id: int, figure_path: str) -> None:
        """Have an environment save what it draws under a path.

        Raises:
            EnvError: it has no method ``enable_save_figure``.
        """
        if not self.manager.call(env_id, "enable_save_figure", figure_path)[0]:
            raise EnvError(
                f"environment {env_id} has no enable_save_figure(path); take its pictures with "
                "ready_imgs() instead"
            )

    def reward_shaping(self, env_id: int, transitions: list[Any]) -> list[Any]:
        """What the environment's ``reward_shaping`` makes of transitions, if it has one."""
        has_it, shaped = self.manager.call(env_id, "reward_shaping", transitions)
        return shaped if has_it else transitions

    def _values(self) -> ManagerView:
        if self._view is None:
            self._view = ManagerView(self.manager)
        return self._view

    def _by_env(self, ready: Array, values: Sequence[Any]) -> dict[int, Any]:
        """Values of the rows that are ready by environment; of battles lists, None for others."""
        seats = self.manager.seats
        by_env: dict[int, Any] = {}
        for row, value in zip(np.flatnonzero(ready).tolist(), values, strict=True):
            if seats == 1:
                by_env[row] = value
            else:
                players = by_env.setdefault(row % self.env_num, [None] * seats)
                players[row // self.env_num] = value
        return dict(sorted(by_env.items()))

    def _of_players(self, space: Any) -> Any:
        return space if self.manager.seats == 1 else [space] * self.manager.seats

    def _check(self, actions: Mapping[int, Any], envs: Sequence[int]) -> None:
        missing, unknown = set(envs) - actions.keys(), actions.keys() - set(range(self.env_num))
        if missing:
            raise EnvError(f"environments {sorted(missing)} wait for an action")
        if unknown:
            raise EnvError(f"there are no environments {sorted(unknown)}, only {self.env_num}")


# ---------------------------------------------------------------------- what foreign ones may mean


def _other_players(env: int, seats: int, players: int) -> EnvError:
    return EnvError(
        f"environment {env} has observations for {seats} players, and there are {players} "
        "policies: hand over one for each player"
    )


def _is_abnormal(timestep: Any) -> bool:
    """True if the environment failed in this step: its ``obs`` is the next episode's first one."""
    info = timestep.info
    shared = [info] if isinstance(info, Mapping) else []
    return any(one.get("abnormal", False) for one in (*shared, *infos_in(info)))


def _of_player(values: Any, player: int) -> Any:
    """A player's reward or further value, of one for each player or of one for all."""
    is_one = getattr(values, "ndim", 1) == 0 or not hasattr(values, "__len__")
    return values if is_one else values[player % len(values)]


def _part_of(timestep: Any, player: int, usual: BaseEnvTimestep) -> Any:
    """A player's part of a battle's timestep, of the same class if that is a named tuple.

    Args:
        timestep: of all players; of further fields each player gets its element.
        player: number of the player.
        usual: the fields that all timesteps have, of the player.
    """
    if not hasattr(timestep, "_fields"):
        return usual
    further = [name for name in timestep._fields if name not in usual._fields]
    values = {name: _of_player(getattr(timestep, name), player) for name in further}
    return timestep._replace(**usual._asdict(), **values)


def _like(reward: Any, number: float) -> Any:
    """A number as an array, a tensor or a number of the type of an environment's reward."""
    if hasattr(reward, "new_full"):
        return reward.new_full(reward.shape, number)
    if isinstance(reward, np.ndarray):
        return np.full_like(reward, number)
    if isinstance(reward, np.generic):
        return reward.dtype.type(number)
    return int(number) if type(reward) is int and number.is_integer() else number


def _objects(values: Iterable[Any]) -> Array:
    """Values as a column of Python objects."""
    values = list(values)
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def to_arrays(tree: Any) -> Any:
    """Torch tensors of a nested mapping, list or tuple as numpy arrays; other values stay."""
    if isinstance(tree, _ARRAYS):  # at once: it is asked for every action
        return tree
    if is_like_tensor(tree):
        return as_array(tree)
    if isinstance(tree, Mapping):
        return {key: to_arrays(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        return type(tree)(to_arrays(value) for value in tree)
    return tree


def to_lists(tree: Any) -> Any:
    """Arrays and tensors of an info as nested lists of floats, plain numbers as they are."""
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if isinstance(tree, Mapping):
        return {key: to_lists(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [to_lists(value) for value in tree]
    values = np.asarray(to_arrays(tree))
    return values.astype(float).tolist() if values.dtype.kind in "biuf" else tree


def to_items(info: Mapping[str, Any]) -> dict[str, Any]:
    """An info whose arrays of one element are numbers; without arrays of more elements."""
    items: dict[str, Any] = {}
    for key, value in to_lists(info).items():
        item = to_items(value) if isinstance(value, Mapping) else value
        while isinstance(item, list) and len(item) == 1:
            (item,) = item
        if not isinstance(item, list):
            items[key] = item
    return items


def as_number(value: Any) -> float:
    """A number, or the one element of an array, a tensor or a list.

    Raises:
        ReturnError: it is not one number.
    """
    try:
        return float(value.item() if hasattr(value, "item") else np.asarray(value).item())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ReturnError(f"the return of an episode must be one number, not {value!r}") from error


def episode_return(info: Mapping[str, Any], env: int) -> Any:
    """The return that an environment reports: a number, or one for each player.

    Raises:
        EnvError: it reports none.
    """
    try:
        return info["eval_episode_return"]
    except KeyError:
        raise NoReturnError(
            f"environment {env} ended an episode without info['eval_episode_return'], the return "
            f"that it is judged by; its info has {sorted(map(str, info))}"
        ) from None


def infos_of(info: Any, players: int, env: int, *, ended: bool) -> list[dict[str, Any]]:
    """Info of each player; at an episode's end with its own ``eval_episode_return``.

    Args:
        info: one a player, in a sequence or by number; or one for all, whose
            ``eval_episode_return`` is a list.
        players: how many.
        env: the environment, for messages.
        ended: whether the episode ended.

    Raises:
        EnvError: it is something else.
    """
    each: list[dict[str, Any]] = infos_in(info)
    shared = isinstance(info, Mapping) and (players == 1 or each[0] is info)
    if shared:
        each = [dict(info)] * players
    if not ended:
        return each
    if shared:
        returns = to_arrays(episode_return(info, env))
    else:
        returns = [episode_return(one, env) for one in each]
    if getattr(returns, "shape", None) == () or not hasattr(returns, "__len__"):
        returns = [returns]
    if len(returns) != players:
        raise EnvError(
            f"environment {env} ended an episode of {players} players with {len(returns)} returns "
            "in info['eval_episode_return']; each player needs its own"
        )
    if not shared:
        return each
    return [
        {**one, "eval_episode_return": as_number(number)}
        for one, number in zip(each, returns, strict=True)
    ]
