"""Collecting a number of training samples for each player of a battle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcdi.types import Settings, Transition
from hpcdi.utils.registry import SERIAL_COLLECTOR_REGISTRY
from hpcdi.worker.collector.base_serial_collector import (
    SerialCollectorConfig,
    attribute_of,
    marked,
    piece_length,
)
from hpcdi.worker.collector.battle import BattleForm, BattleSerialCollector, by_player
from hpcdi.worker.collector.session import Session


@SERIAL_COLLECTOR_REGISTRY.register("sample_1v1")
class BattleSampleSerialCollector(BattleSerialCollector):
    """Collects training samples of a battle of n policies; see `SerialCollector`.

    A policy whose attribute ``collect_data`` is false plays, and nothing of it is kept.
    """

    @dataclass(frozen=True)
    class Config(SerialCollectorConfig):
        """Settings of the collector of a battle's samples."""

        type: str = "sample_1v1"

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool = True,
        policy_kwargs: Settings | list[Settings] | None = None,
    ) -> tuple[list[list[Transition]], list[list[dict[str, Any]]]]:
        """Training samples of each player, and what is to be said of the episodes that ended.

        Args:
            n_sample: samples of each player that is kept; by default the first policy's attribute.
            train_iter: train iterations of the policies; marked on samples as ``collect_iter``.
            drop_extra: give exactly `n_sample` of each; what there is besides is lost.
            policy_kwargs: for the policies' forward; a list has one for each.

        Returns:
            Samples of each player (empty where they are not kept), and for each player a list of
            ``{"eval_episode_return", "length"}``, one an episode.
        """
        target = self._target(n_sample, "n_sample")
        form: BattleForm = self._the_form()
        kept = [(p, recorder) for p, recorder in enumerate(form.recorders) if recorder is not None]
        for player, recorder in kept:
            recorder.length = piece_length(self._policy[player], target, self._env.env_num)
        samples: list[list[Transition]] = [[] for _ in form.recorders]
        session = Session(self._env, form, policy_kwargs)
        for _ in session.steps():
            for player, recorder in kept:
                for piece in recorder.take():
                    samples[player] += marked(piece.samples, train_iter)
            if all(len(samples[player]) >= target for player, _ in kept):
                break
        for player, recorder in kept:
            if attribute_of(self._policy[player], "on_policy", False):
                recorder.close_all()  # another policy acts from here on
                for piece in recorder.take():
                    samples[player] += marked(piece.samples, train_iter)
        returns, lengths = session.report(self._report, max(map(len, samples)), train_iter)
        last = target if drop_extra else None
        return [own[:last] for own in samples], by_player(returns, lengths, len(samples))

    def _make_form(self) -> BattleForm:
        return self._battle_form([
            self._recorder(policy, 1, policy.get_train_sample)
            if attribute_of(policy, "collect_data", True)
            else None
            for policy in self._policy
        ])  # fmt: skip
