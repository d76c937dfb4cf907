"""Managers and policies for serial collectors, by the contract alone; every number is known.

Environment e's episodes all have ``lengths[e]`` steps. Player p sees ``[e, episode, step, p]`` and
gets ``(p + 1) * (100 * episode + step)`` for step 1, 2, ...
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from hpcdi.policy.base import CollectMode, TrainColumns
from hpcdi.types import Array, Columns, Settings, Transition
from hpcdi.utils.nested import column_rows

Foreign = namedtuple("Foreign", "forward process_transition get_train_sample reset")


class Step(NamedTuple):
    """A foreign timestep."""

    obs: Any
    reward: Any
    done: bool
    info: Any


def reward_of(episode: int, step: int, player: int = 0) -> float:
    return (player + 1) * (100.0 * episode + step)


def return_of(episode: int, length: int, player: int = 0) -> float:
    return sum(reward_of(episode, step, player) for step in range(1, length + 1))


class Manager:
    """A foreign manager of environments with one player.

    Args:
        lengths: see above.
        together: environments that answer a step, in turn; None: all (not asynchronous).
        failing: environment -> steps of its life at which it fails.
        renews: begins a new episode by itself where an environment failed.
        in_place: write each observation over the one before.
        episode_num: episodes of each environment; None: for ever.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        together: int | None = None,
        failing: Mapping[int, Sequence[int]] | None = None,
        renews: bool = False,
        in_place: bool = False,
        episode_num: int | None = None,
    ) -> None:
        self.lengths, self.env_num = lengths, len(lengths)
        self.together, self.failing = together, failing or {}
        if renews:
            self.resets_abnormal = True
        self.in_place, self.episode_num = in_place, episode_num
        self.closed, self.launches, self.resets, self.closes = True, 0, 0, 0
        self.renewed: list[int] = []
        self.episode = [-1] * self.env_num
        self.at = [0] * self.env_num
        self.life = [0] * self.env_num
        self.waiting: dict[int, Any] = {}
        self.broken: set[int] = set()
        self.shaped: list[int] = []
        self._buffers: dict[Any, Array] = {}

    def launch(self, reset_param: Any = None) -> None:
        assert self.closed, "launched twice"
        self.closed = False
        self.launches += 1
        self._begin_all()

    def reset(self, reset_param: Mapping[int, Any] | None = None) -> None:
        assert not self.closed
        if reset_param is None:
            self.resets += 1
            self._begin_all()
            return
        for env, param in reset_param.items():
            assert param is None
            assert env in self.broken, "nobody asked for it"
            self.renewed.append(env)
            self._begin(env)

    def close(self) -> None:
        self.closes += 1
        self.closed = True

    @property
    def done(self) -> bool:
        return self.episode_num is not None and min(self.episode) >= self.episode_num

    @property
    def ready_obs(self) -> dict[int, Any]:
        assert not self.closed
        assert not self.broken, "failed environments were not reset"
        return {
            env: self.observation(env)
            for env in range(self.env_num)
            if env not in self.waiting
            and (self.episode_num is None or self.episode[env] < self.episode_num)
        }

    def step(self, actions: Mapping[int, Any]) -> dict[int, Step]:
        assert actions.keys() <= self.ready_obs.keys(), "others may rest"
        for action in actions.values():
            self.check_action(action)
        self.waiting.update(actions)
        return {env: self._step(env) for env in list(self.waiting)[: self.together]}

    def random_action(self) -> dict[int, Any]:
        return {env: np.int64(900 + env) for env in self.ready_obs}

    def reward_shaping(self, env: int, transitions: list[Transition]) -> list[Transition]:
        self.shaped.append(env)
        return [{**one, "reward": -one["reward"]} for one in transitions]

    # What differs in a battle.

    def check_action(self, action: Any) -> None:
        assert isinstance(action, np.ndarray | np.integer)

    def observation(self, env: int, player: int = 0) -> Any:
        values = [env, self.episode[env], self.at[env], player]
        if not self.in_place:
            return np.array(values, dtype=np.float64)
        buffer = self._buffers.setdefault((env, player), np.zeros(4))
        buffer[:] = values
        return buffer

    def last_observation(self, env: int) -> Any:
        return self.observation(env)

    def reward(self, env: int) -> Any:
        return reward_of(self.episode[env], self.at[env])

    def info(self, env: int, done: bool) -> Any:
        total = return_of(self.episode[env], self.lengths[env])
        return {"eval_episode_return": np.array([total])} if done else {}

    def _begin_all(self) -> None:
        self.waiting.clear()
        for env in range(self.env_num):
            self._begin(env)

    def _begin(self, env: int) -> None:
        self.episode[env] += 1
        self.at[env] = 0
        self.broken.discard(env)

    def _step(self, env: int) -> Step:
        del self.waiting[env]
        self.at[env] += 1
        self.life[env] += 1
        if self.life[env] in self.failing.get(env, ()):
            if hasattr(self, "resets_abnormal"):
                self._begin(env)
            else:
                self.broken.add(env)
            return Step(self.observation(env), 0.0, True, {"abnormal": True})
        done = self.at[env] == self.lengths[env]
        obs = self.last_observation(env) if done else self.observation(env)
        step = Step(obs, self.reward(env), done, self.info(env, done))
        if done:
            self._begin(env)
        return step


class Battle(Manager):
    """A foreign manager of environments with several players.

    Args:
        lengths: see `Manager`; `kwargs` too.
        players: how many.
        turns: they act in turn, one a step; else all at once.
        one_info: one info for all, whose ``eval_episode_return`` is a list; else one for each.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        players: int = 2,
        turns: bool = False,
        one_info: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(lengths, **kwargs)
        self.players, self.turns, self.one_info = range(players), turns, one_info
        self.actions: list[Any] = []

    def check_action(self, action: Any) -> None:
        assert len(action) == len(self.players)
        assert all(one is None or isinstance(one, np.ndarray) for one in action)
        self.actions.append([one if one is None else int(one) for one in action])

    def observation(self, env: int, player: int | None = None) -> Any:
        acts = self.at[env] % len(self.players)
        return [
            super(Battle, self).observation(env, p) if not self.turns or p == acts else None
            for p in self.players
        ]

    def last_observation(self, env: int) -> Any:
        return [super(Battle, self).observation(env, p) for p in self.players]

    def reward(self, env: int) -> Any:
        return np.array([reward_of(self.episode[env], self.at[env], p) for p in self.players])

    def info(self, env: int, done: bool) -> Any:
        totals = [return_of(self.episode[env], self.lengths[env], p) for p in self.players]
        if self.one_info:
            return {"eval_episode_return": totals} if done else {}
        return [{"eval_episode_return": total} if done else {} for total in totals]


class Actor:
    """A policy that keeps a diary; its actions are torch tensors that count its calls.

    Args:
        player: its seat.
        attributes: what `get_attribute` knows; `mode` has it, `foreign` has no such method.
    """

    def __init__(self, player: int = 0, **attributes: Any) -> None:
        self.player, self.attributes = player, attributes
        self.version = 0
        self.calls = 0
        self.seen: list[dict[int, Any]] = []
        self.settings: list[Settings] = []
        self.resets: list[list[int] | None] = []
        self.obs: list[Any] = []  # that it makes transitions of
        self.timesteps: list[Any] = []
        self.sample: Callable[[list[Transition]], list[Transition]] = list

    def forward(self, data: dict[int, Any], **setting: Any) -> dict[int, dict[str, Any]]:
        assert data, "nobody acts"
        self.calls += 1
        self.seen.append(data)
        self.settings.append(setting)
        return {env: {"action": torch.tensor(self.calls), "by": self.version} for env in data}

    def process_transition(self, obs: Any, output: Any, timestep: Any) -> Transition:
        self.obs.append(obs)
        self.timesteps.append(timestep)
        return {
            "obs": obs, "next_obs": timestep.obs, "action": int(output["action"]),
            "reward": timestep.reward, "done": timestep.done, "by": output.get("by"),
        }  # fmt: skip

    def get_train_sample(self, piece: list[Transition]) -> list[Transition]:
        return [{**one, "piece": len(piece)} for one in self.sample(piece)]

    def reset(self, data_id: list[int] | None = None) -> None:
        self.resets.append(data_id)

    def get_attribute(self, name: str) -> Any:
        if name not in self.attributes:
            raise NotImplementedError(name)
        return self.attributes[name]

    @property
    def foreign(self) -> Foreign:
        return Foreign(self.forward, self.process_transition, self.get_train_sample, self.reset)

    @property
    def mode(self) -> CollectMode:
        return CollectMode(*self.foreign, self.get_attribute, None, None, None)


class ColumnarActor(Actor):
    """Acts by columns too; n-step rewards are not its business."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.attributes["columnar"] = self

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        self.calls += 1
        self.settings.append(setting)
        return {"action": np.full(column_rows(observation), self.calls)}

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        return TrainColumns({"piece": np.repeat(item_len, item_len)})


def check(transitions: list[Transition], lengths: Sequence[int], player: int = 0) -> None:
    """Every number of transitions of environments where all players act in every step."""
    for one in transitions:
        env, episode, step, seat = map(int, one["obs"])
        assert seat == player
        assert list(map(float, one["next_obs"])) == [env, episode, step + 1, player]
        assert float(one["reward"]) == reward_of(episode, step + 1, player)
        assert one["done"] is (step + 1 == lengths[env])


def steps_of(transitions: list[Transition], env: int) -> list[tuple[int, int]]:
    """Episode and step of an environment's transitions, in order."""
    mine = [one["obs"] for one in transitions if int(one["obs"][0]) == env]
    return [(int(obs[1]), int(obs[2])) for obs in mine]


def story(count: int, length: int, episode: int = 0) -> list[tuple[int, int]]:
    """Episode and step of so many transitions one after the other, from an episode's beginning."""
    return [(episode + k // length, k % length) for k in range(count)]
