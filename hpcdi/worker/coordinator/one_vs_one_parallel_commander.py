"""The commander of a league: self-play against the present policy and frozen ones of its past."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcdi.comm.messages import BlockReady, CollectResult, CollectTask
from hpcdi.config.fields import section, setting
from hpcdi.types import Settings
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY
from hpcdi.worker.coordinator.commanders import SoloCommander
from hpcdi.worker.coordinator.league import MAIN, League, LeagueConfig, frozen_file


@PARALLEL_COMMANDER_REGISTRY.register("one_vs_one")
class OneVsOneCommander(SoloCommander):
    """Trains a main player by games against itself and frozen copies of itself; see `League`.

    Rank 0 says by which probability each opponent is drawn, collectors draw. A copy is frozen by
    an evaluation, which writes its policy file; evaluations are played against `evaluate_against`.
    Results of games come with the blocks that hold their last transitions.
    """

    @dataclass(frozen=True)
    class Config(SoloCommander.Config):
        """Settings of the one-vs-one commander."""

        type: str = "one_vs_one"
        collector_task_space: int | None = setting(
            2, "collect and evaluation tasks at a time; empty: one for each collector", minimum=1
        )
        evaluate_against: str = setting(
            "random",
            "opponent of evaluations: 'random', or my_module:play, which takes an observation and "
            "random numbers",
        )
        league: LeagueConfig = section(LeagueConfig, "opponents, and frozen copies")

    league: League

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.league = League(self._cfg.league)
        self._freezing: dict[str, str] = {}  # evaluation task -> name of the copy that it writes

    def make_task(self, *, evaluate: bool) -> CollectTask:
        """Make a task; an evaluation freezes a copy where one is due."""
        task = super().make_task(evaluate=evaluate)
        if not evaluate:
            return task
        against = self._cfg.evaluate_against
        setting = {"opponents": {"against": [1.0, against]}}
        freeze = ""
        if self.league.may_freeze(MAIN):
            name = self.league.next_frozen(MAIN)
            self._freezing[task.task_id] = name
            freeze = frozen_file(name)
        task = dataclasses.replace(task, setting=setting, freeze=freeze)
        self._tasks[task.task_id] = task
        return task

    def evaluation_is_due(self, now: float) -> bool:
        """Returns whether one is due by the clock, or because a copy is to be frozen."""
        if super().evaluation_is_due(now):
            return True
        under_way = any(task.eval_flag for task in self._tasks.values())
        has_learnt = self._is_learning and self._train_iter > 0
        return has_learnt and not under_way and self.league.may_freeze(MAIN)

    def get_setting_collect(self) -> Settings:
        """The policy's settings, and by which probability each opponent is drawn."""
        drawn = self.league.opponents(MAIN)
        players = self.league.players
        opponents = {name: [share, players[name].source] for name, share in drawn.items()}
        return {**super().get_setting_collect(), "opponents": opponents}

    def finish_collector_task(self, task_id: str, finished_task: CollectResult) -> bool:
        """See `SoloCommander`; a copy that was frozen joins the league."""
        name = self._freezing.pop(task_id, None)
        if name is not None and finished_task.is_evaluation:
            self.league.freeze(MAIN, name, frozen_file(name), finished_task.policy_version)
        return super().finish_collector_task(task_id, finished_task)

    def notify_fail_collector_task(self, task: CollectTask) -> None:
        """See `SoloCommander`; another evaluation will freeze the copy."""
        self._freezing.pop(task.task_id, None)
        super().notify_fail_collector_task(task)

    def count_block(self, ready: BlockReady) -> None:
        """Count the games that ended in a published block."""
        self.league.count_games(ready.games)

    def update_progress(self, env_steps: int, train_iter: int) -> str | None:
        """See `SoloCommander`."""
        self.league.count_steps(MAIN, env_steps)
        return super().update_progress(env_steps, train_iter)

    def state_dict(self) -> dict[str, Any]:
        """Counters, the best evaluation, players and results."""
        return {**super().state_dict(), "league": self.league.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        super().load_state_dict(state_dict)
        self.league.load_state_dict(state_dict["league"])
