"""Collecting a number of whole episodes of a battle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hpcdi.config.fields import setting
from hpcdi.types import Settings
from hpcdi.utils.registry import SERIAL_COLLECTOR_REGISTRY
from hpcdi.worker.collector.base_serial_collector import (
    SerialCollectorConfig,
    enough_episodes,
    marked,
)
from hpcdi.worker.collector.battle import BattleForm, BattleSerialCollector, by_player
from hpcdi.worker.collector.session import Session


@SERIAL_COLLECTOR_REGISTRY.register("episode_1v1")
class BattleEpisodeSerialCollector(BattleSerialCollector):
    """Collects whole episodes of a battle of n policies; see `SerialCollector`."""

    @dataclass(frozen=True)
    class Config(SerialCollectorConfig):
        """Settings of the collector of a battle's episodes."""

        type: str = "episode_1v1"
        get_train_sample: bool = setting(
            False, "give training samples of all episodes; else each episode as a list"
        )

    def collect(
        self,
        n_episode: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Settings | list[Settings] | None = None,
    ) -> tuple[list[list[Any]], list[list[dict[str, Any]]]]:
        """Episodes of each player, and what is to be said of those that ended.

        Args:
            n_episode: how many, at least one for each environment; by default the first policy's
                attribute ``n_episode``.
            train_iter: train iterations of the policies; marked on samples as ``collect_iter``.
            policy_kwargs: for the policies' forward; a list has one for each.

        Returns:
            For each player its episodes, each a list of transitions, or training samples of all;
            and for each player a list of ``{"eval_episode_return", "length"}``, one an episode.
        """
        target = enough_episodes(self._target(n_episode, "n_episode"), self._env.env_num)
        form: BattleForm = self._the_form()
        session = Session(self._env, form, policy_kwargs)
        recorders = [recorder for recorder in form.recorders if recorder is not None]
        for _ in session.steps():
            if min(recorder.closed for recorder in recorders) >= target:
                break
        data: list[list[Any]] = [
            [marked(piece.samples, train_iter) for piece in recorder.take(target)]
            for recorder in recorders
        ]
        count = max(sum(map(len, own)) for own in data)
        returns, lengths = session.report(self._report, count, train_iter)
        if self._cfg.get_train_sample:
            data = [[sample for episode in own for sample in episode] for own in data]
        return data, by_player(returns, lengths, len(data))

    def _make_form(self) -> BattleForm:
        wants_samples = self._cfg.get_train_sample
        return self._battle_form([
            self._recorder(policy, math.inf, policy.get_train_sample if wants_samples else list)
            for policy in self._policy
        ])  # fmt: skip
