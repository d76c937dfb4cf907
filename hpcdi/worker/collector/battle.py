"""Several policies in one environment: each player's transitions, from its own turn to its next.

An environment of n players gives, at each step, n observations: those of players that do not act
now may be None. What happens between two turns of a player belongs to its transition: the rewards
are added up. Where all players act in every step, that is the step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.env.base import BaseEnvTimestep, is_abnormal
from hpcdi.errors import PolicyError
from hpcdi.store.builder import Segment
from hpcdi.types import Array
from hpcdi.worker.collector.base_serial_collector import SerialCollector
from hpcdi.worker.collector.contract import (
    Observations,
    actions_of,
    check_seats,
    infos_of,
    joint,
    seen_by,
)
from hpcdi.worker.collector.rollout import renew, taken_from
from hpcdi.worker.collector.stats import EpisodeCounter
from hpcdi.worker.collector.trajectory import TransitionRecorder


class BattleForm:
    """Steps environments by one policy a player; see `hpcdi.worker.collector.rollout`.

    Args:
        envs: environments of as many players as there are policies.
        policies: a collect mode for each player.
        recorders: take the players' transitions; None: a player's are not kept.
        present: what policies get for an observation; None: what it is.
        deepcopy: keep copies of observations, for environments that write each over the one before.
    """

    def __init__(
        self,
        envs: Any,
        policies: Sequence[Any],
        recorders: Sequence[TransitionRecorder | None],
        present: Callable[[Any], Any] | None = None,
        *,
        deepcopy: bool = False,
    ) -> None:
        self.recorders = list(recorders)
        self._envs, self._policies = envs, list(policies)
        self._present = present or (copy.deepcopy if deepcopy else None)
        self._turns: list[list[_Turn | None]] = [[None] * envs.env_num for _ in policies]
        self._episodes = EpisodeCounter(envs.env_num)

    def observe(self) -> dict[int, list[Any]]:
        """Observations of each environment that waits.

        Raises:
            EnvError: it has not one for each policy.
        """
        ready = {env: self._shown(obs) for env, obs in self._envs.ready_obs.items()}
        check_seats(ready, len(self._policies))
        return ready

    def act(self, observation: Observations, setting: Any) -> list[dict[int, Any]]:
        """Outputs of each policy; `setting` is for all, or a list with one for each."""
        settings = setting if isinstance(setting, list) else [setting] * len(self._policies)
        outputs: list[dict[int, Any]] = []
        for player, policy in enumerate(self._policies):
            seen = seen_by(player, observation)
            outputs.append(policy.forward(seen, **settings[player]) if seen else {})
            for env, own in outputs[-1].items():
                self._turns[player][env] = _Turn(seen[env], own)
        return outputs

    def step(self, outputs: Sequence[Mapping[int, Any]]) -> dict[int, BaseEnvTimestep]:
        """Step the environments in which somebody acts."""
        envs = sorted({env for output in outputs for env in output})
        actions = joint([actions_of(output, output) for output in outputs], envs)
        steps: dict[int, BaseEnvTimestep] = self._envs.step(actions)
        return steps

    def record(self, _observation: Any, _outputs: Any, step: Mapping[int, BaseEnvTimestep]) -> int:
        """Keep what came of it; gives the number of steps."""
        count = 0
        for env, timestep in step.items():
            if is_abnormal(timestep):
                self._give_up(env)
                continue
            count += 1
            players, done = len(self._policies), bool(timestep.done)
            infos = infos_of(timestep.info, players, env, ended=done)
            shown = self._shown(timestep.obs)
            for player, info in enumerate(infos):
                self._pass(env, player, timestep._replace(obs=shown[player], info=info))
            returns = [info["eval_episode_return"] for info in infos] if done else None
            self._episodes.step(env, returns)
            if done:
                self._reset_policies(env)
        return count

    @property
    def must_cut(self) -> bool:
        """Never: whoever collects decides."""
        return False

    def cut(self, policy_version: int) -> Segment | None:  # noqa: ARG002
        """Nothing: a battle's data are lists of samples, one a player."""
        return None

    def take_episodes(self) -> tuple[Array, Array]:
        """Returns [episodes, players] and lengths of the episodes that ended, in order."""
        taken_from(self._envs)
        return self._episodes.take()

    def _pass(self, env: int, player: int, timestep: BaseEnvTimestep) -> None:
        """A step for one player: its transition ends where it acts next, or the episode ends."""
        turn = self._turns[player][env]
        if turn is None:  # it has not acted in this episode yet
            return
        turn.reward = turn.reward + np.asarray(timestep.reward)[player]
        if not timestep.done and timestep.obs is None:
            return
        self._turns[player][env] = None
        recorder = self.recorders[player]
        if recorder is not None:
            reward = turn.reward if self._present is None else self._present(turn.reward)
            recorder.record(env, turn.observation, turn.output, timestep._replace(reward=reward))

    def _give_up(self, env: int) -> None:
        """An environment has failed: its unfinished episode is worth nothing."""
        for turns, recorder in zip(self._turns, self.recorders, strict=True):
            turns[env] = None
            if recorder is not None:
                recorder.drop(env)
        self._episodes.drop(env)
        self._reset_policies(env)
        renew(self._envs, env)

    def _reset_policies(self, env: int) -> None:
        for policy in self._policies:
            policy.reset([env])

    def _shown(self, observations: Sequence[Any]) -> list[Any]:
        if self._present is None:
            return list(observations)
        return [None if obs is None else self._present(obs) for obs in observations]


class _Turn:
    """A player has acted: what it saw, what it did, and what it has got for it so far."""

    def __init__(self, observation: Any, output: Any) -> None:
        self.observation, self.output = observation, output
        self.reward: Any = np.float32(0.0)


class BattleSerialCollector(SerialCollector):
    """What serial collectors of battles share; their policy is a list with one for each player."""

    def _checked_policy(self, policy: Any) -> list[Any]:
        if not isinstance(policy, list | tuple) or len(policy) < 2 or hasattr(policy, "forward"):
            raise PolicyError(
                f"{type(self).__name__} takes a list of policies, one for each player, at least two"
            )
        return list(policy)

    def _battle_form(self, recorders: Sequence[TransitionRecorder | None]) -> BattleForm:
        return BattleForm(
            self._env, self._policy, recorders, self._present(), deepcopy=self._cfg.deepcopy_obs
        )


def by_player(returns: Array, lengths: Array, players: int) -> list[list[dict[str, Any]]]:
    """What is to be said of episodes, for each player a list of them."""
    return [
        [
            {"eval_episode_return": float(own[player]), "length": int(length)}
            for own, length in zip(returns, lengths, strict=True)
        ]
        for player in range(players)
    ]
