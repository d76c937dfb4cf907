"""Collecting a number of whole episodes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hpcdi.config.fields import setting
from hpcdi.types import Settings, Transition
from hpcdi.utils.registry import SERIAL_COLLECTOR_REGISTRY
from hpcdi.worker.collector.base_serial_collector import (
    SerialCollector,
    SerialCollectorConfig,
    attribute_of,
    enough_episodes,
    marked,
)
from hpcdi.worker.collector.rollout import TransitionForm
from hpcdi.worker.collector.session import Session
from hpcdi.worker.collector.trajectory import Piece, TransitionRecorder


@SERIAL_COLLECTOR_REGISTRY.register("episode")
class EpisodeSerialCollector(SerialCollector):
    """Collects as many whole episodes as are asked for; see `SerialCollector` for the arguments.

    Episodes that are under way at the end of a call go on in the next one, so that short episodes
    are not preferred; those of a policy that learns on-policy begin anew in each call, and each
    environment gives its share.
    """

    @dataclass(frozen=True)
    class Config(SerialCollectorConfig):
        """Settings of the collector of episodes."""

        type: str = "episode"
        get_train_sample: bool = setting(
            False, "give training samples of all episodes; else each episode as a list"
        )
        reward_shaping: bool = setting(
            False, "let the environment manager's reward_shaping have its say on each episode"
        )

    def collect(
        self,
        n_episode: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Settings | None = None,
    ) -> list[Any]:
        """Whole episodes, each a list of transitions; or the training samples of all of them.

        Args:
            n_episode: how many, at least one for each environment; by default the policy's
                attribute ``n_episode``.
            train_iter: train iterations of the policy; marked on each sample as ``collect_iter``.
            policy_kwargs: for the policy's forward.

        Raises:
            ConfigError: it is not known how many episodes to collect, or there are too few.
        """
        target = enough_episodes(self._target(n_episode, "n_episode"), self._env.env_num)
        each = target  # at most so many of one environment
        if attribute_of(self._policy, "on_policy", False):
            self.reset_env()
            self.reset_policy()
            each = math.ceil(target / self._env.env_num)
        form = self._the_form()
        recorder: TransitionRecorder = form.recorder
        session = Session(self._env, form, policy_kwargs)
        episodes: list[list[Transition]] = []
        taken: Counter[int] = Counter()
        for _ in session.steps():
            for piece in recorder.take(target - len(episodes) if each == target else None):
                if taken[piece.env] < each and len(episodes) < target:
                    taken[piece.env] += 1
                    episodes.append(self._finished(piece, train_iter))
            if len(episodes) >= target:
                break
        session.report(self._report, sum(map(len, episodes)), train_iter)
        if self._cfg.get_train_sample:
            return [sample for episode in episodes for sample in episode]
        return episodes

    def _finished(self, piece: Piece, train_iter: int) -> list[Transition]:
        """What is given of an episode."""
        transitions = piece.samples
        if self._cfg.reward_shaping:
            transitions = self._env.reward_shaping(piece.env, transitions)
        if self._cfg.get_train_sample:
            transitions = self._policy.get_train_sample(transitions)
        return marked(transitions, train_iter)

    def _make_form(self) -> TransitionForm:
        return self._transition_form(self._recorder(self._policy, math.inf, list))
