"""The commander of a league: games against present policies and frozen ones of the past."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdi.comm.messages import BlockReady, CollectResult, CollectTask
from hpcdi.config.league import OneVsOneCommanderConfig
from hpcdi.league.league import League, frozen_file
from hpcdi.roles.coordinator.commanders import EvaluationClock, PlayerProgress, SoloCommander
from hpcdi.types import MAIN, Settings


class OneVsOneCommander(SoloCommander):
    """Trains the players of a league by games against each other and frozen copies; see `League`.

    Rank 0 says by which probability each opponent is drawn, collectors draw. A copy is frozen by
    an evaluation, which writes its policy file; evaluations are played against `evaluate_against`,
    those of a main exploiter against main.
    Results of games come with the blocks that hold their last transitions.
    """

    Config = OneVsOneCommanderConfig
    _cfg: OneVsOneCommanderConfig

    league: League

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.league = League(self._cfg.league)
        self._learners = {
            p: PlayerProgress(EvaluationClock(self._every)) for p in self.league.learning
        }
        self._seed = int(getattr(self._main, "seed", 0))
        self._resets: list[str] = []
        self._freezing: dict[str, str] = {}  # evaluation task -> name of the copy that it writes

    def make_task(self, *, evaluate: bool, player: str = MAIN) -> CollectTask:
        """Make a task; an evaluation freezes a copy where one is due."""
        task = super().make_task(evaluate=evaluate, player=player)
        if not evaluate:
            return task
        exploits_main = self.league.players[player].role == "main_exploiter"
        against = {"against": [1.0, self._cfg.evaluate_against]}
        opponents = {MAIN: [1.0, ""]} if exploits_main else against
        setting = {"learner": player, "opponents": opponents}
        freeze = ""
        if self.league.may_freeze(player):
            name = self.league.next_frozen(player)
            self._freezing[task.task_id] = name
            freeze = frozen_file(name)
        task = dataclasses.replace(task, setting=setting, freeze=freeze)
        self._tasks[task.task_id] = task
        return task

    def _is_due(self, player: str, learner: PlayerProgress, now: float) -> bool:
        """Returns whether one is due by the clock, or because a copy is to be frozen."""
        if super()._is_due(player, learner, now):
            return True
        has_learnt = learner.is_learning and learner.train_iter > 0
        return has_learnt and not self._is_last_begun and self.league.may_freeze(player)

    def get_setting_collect(self, player: str = MAIN) -> Settings:
        """The policy's settings, who learns, and by which probability each opponent is drawn."""
        drawn = self.league.opponents(player)
        players = self.league.players
        opponents = {name: [share, players[name].source] for name, share in drawn.items()}
        return {**super().get_setting_collect(player), "learner": player, "opponents": opponents}

    def finish_collector_task(self, task_id: str, finished_task: CollectResult) -> bool:
        """See `SoloCommander`; a frozen copy joins the league, and an exploiter begins anew."""
        name, task = self._freezing.pop(task_id, None), self._tasks.get(task_id)
        if name is not None and task is not None and finished_task.is_evaluation:
            version = finished_task.policy_version
            self.league.freeze(task.player, name, frozen_file(name), version)
            drawn = np.random.default_rng([self._seed, len(self.league.players)])
            if self.league.must_reset(task.player, drawn):
                self.league.reset(task.player)
                self._learners[task.player].began_at = self.league.players[task.player].began_at
                self._resets.append(task.player)
        return super().finish_collector_task(task_id, finished_task)

    def take_resets(self) -> list[str]:
        """See `BaseCommander`."""
        resets, self._resets = self._resets, []
        return resets

    def notify_fail_collector_task(self, task: CollectTask) -> None:
        """See `SoloCommander`; another evaluation will freeze the copy."""
        self._freezing.pop(task.task_id, None)
        super().notify_fail_collector_task(task)

    def count_block(self, ready: BlockReady) -> None:
        """Count the games that ended in a published block."""
        self.league.count_games(ready.games)

    def update_progress(self, env_steps: int, train_iter: int, player: str = MAIN) -> str | None:
        """See `SoloCommander`."""
        self.league.count_steps(player, env_steps, train_iter)
        return super().update_progress(env_steps, train_iter, player)

    def state_dict(self) -> dict[str, Any]:
        """Counters, the best evaluation, players and results."""
        return {**super().state_dict(), "league": self.league.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        super().load_state_dict(state_dict)
        self.league.load_state_dict(state_dict["league"])
        for player, learner in self._learners.items():
            learner.began_at = self.league.players[player].began_at
