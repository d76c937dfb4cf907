"""The collector of battles over ranks: the learner and its opponents in the same environments."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpcdi.config.roles import MarineCollectorConfig
from hpcdi.env.spaces import read_spaces
from hpcdi.errors import ConfigError, Problem
from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import RandomPolicy
from hpcdi.roles.collector.base_parallel_collector import CollectorTask, ZerglingParallelCollector
from hpcdi.roles.collector.battle_loop import BattleLoop, Players, actor_of
from hpcdi.store.policies import PolicyImage
from hpcdi.types import Array


class MarineParallelCollector(ZerglingParallelCollector):
    """Steps battle environments by one learning policy and its opponents; see `BattleLoop`.

    The learning policy is updated between rollouts; an opponent is itself, another player that
    learns (by its newest policy), a frozen policy from its file, a function, or random. Who plays
    whom is drawn for each game, by the task's setting. In an evaluation the learner is each team
    (of one seat, where there are no teams) equally often. Where a task is for another player than
    the last one, new games begin.

    Args:
        cfg: settings, with ``env`` and ``policy`` (mappings or frozen settings), and
            ``policy_update_path``: the folder that files of frozen policies are relative to.
        port: to the message side.

    Raises:
        ConfigError: the environment has one player only.
        PolicyError: the policy wants dicts, or has a memory that leagues cannot keep.
    """

    Config = MarineCollectorConfig
    _cfg: MarineCollectorConfig

    def begin(self, task: CollectorTask) -> None:
        """Set the task that `start` runs; see `ZerglingParallelCollector.begin`."""
        is_other = task.player != self.task.player and self._version >= 0
        super().begin(task)
        if is_other:
            self._version = -1
            self._gate.change_over()
            self._policy.reset()
        if self.evaluates:
            self._loop.begin()
        elif is_other:
            self._env_manager.reset()
            self._loop = self._make_loop(self._length, self._seed)

    def _make_loop(self, length: int | None, seed: np.random.SeedSequence) -> BattleLoop:
        manager = self._env_manager
        self._opponents: dict[str, tuple[Any, Any, int]] = {}  # mode, actor, version of its policy
        if getattr(manager, "players", 1) < 2:
            said = "'marine' is for environments of several players; use 'zergling'"
            raise ConfigError([Problem("policy.collect.collector.type", said)])
        draws, random, scripts, acts = seed.spawn(4)
        explores = self._cfg.opponents_explore and not self.evaluates
        mode = "collect" if explores else "eval"

        def make(image: PolicyImage) -> Any:
            policy = create_policy(self._given["policy"], [mode], seed=acts.spawn(1)[0])
            frozen = getattr(policy, f"{mode}_mode")
            frozen.load_state_dict({"model": image.state_dict()})
            return actor_of(frozen)

        spaces = read_spaces(manager.observation_space[0], manager.action_space[0])
        players = Players(
            self._given.get("policy_update_path", "."), make,
            RandomPolicy(spaces, self._policy, random), scripts, self._cfg.opponent_bytes,
            partial(self._live, mode, acts),
        )  # fmt: skip
        target = 0 if length is None else length * manager.env_num
        rng = np.random.default_rng(draws)
        return BattleLoop(manager, actor_of(self._policy), players, rng, target)

    def _live(self, mode: str, seed: np.random.SeedSequence, name: str) -> Any:
        """Returns what acts for another player that learns; waits for its first policy."""
        if name not in self._opponents:
            policy = create_policy(self._given["policy"], [mode], seed=seed.spawn(1)[0])
            acting = getattr(policy, f"{mode}_mode")
            self._opponents[name] = (acting, actor_of(acting), -1)
        acting, actor, version = self._opponents[name]
        while self.port is not None:
            info = self.port.get_policy_update_info(name, version, newest=version < 0)
            if info is not None:
                acting.load_state_dict({"model": info["model"]})
                self._opponents[name] = (acting, actor, version := int(info["iter"]))
            if version >= 0 or self._end_flag:
                break
        return actor

    def _take_episodes(self) -> tuple[Array, Array]:
        """Returns of the learner, and lengths, of the games that ended since the last call."""
        episodes: tuple[Array, Array] = self._loop.take_episodes()
        return episodes
