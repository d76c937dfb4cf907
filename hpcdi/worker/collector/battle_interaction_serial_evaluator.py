"""Several policies play against each other; the first one is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdi.errors import PolicyError
from hpcdi.utils.metrics import evaluation_scalars
from hpcdi.utils.registry import SERIAL_EVALUATOR_REGISTRY
from hpcdi.utils.timer import EasyTimer
from hpcdi.worker.collector.base_serial_evaluator import VectorEvalMonitor
from hpcdi.worker.collector.contract import check_seats, infos_of, joint, seen_by
from hpcdi.worker.collector.evaluation import SerialEvaluator
from hpcdi.worker.collector.evaluation_loop import ended_episodes
from hpcdi.worker.collector.interaction_serial_evaluator import (
    Player,
    ReturnsConfig,
    describe,
    episodes_to_play,
)
from hpcdi.worker.collector.learners_group import on_first_rank


@SERIAL_EVALUATOR_REGISTRY.register("battle_interaction")
class BattleInteractionSerialEvaluator(SerialEvaluator):
    """Lets two or more policies play together; see `SerialEvaluator` for the arguments.

    `policy` is a list of eval modes, one a player. Environments give and take lists, one element a
    player: an observation is None where that player does not act in this step, and so is its
    action.
    """

    @dataclass(frozen=True)
    class Config(ReturnsConfig):
        """Settings of an evaluation by battle."""

        type: str = "battle_interaction"

    def reset_policy(self, _policy: Any = None) -> None:
        """See `ISerialEvaluator.reset_policy`; takes all policies, as a list.

        Raises:
            PolicyError: there are fewer than two, or none to reset.
        """
        if _policy is not None:
            # one mode is a tuple itself
            is_list = isinstance(_policy, Sequence) and not hasattr(_policy, "forward")
            policies = list(_policy) if is_list else [_policy]
            if len(policies) < 2:
                raise PolicyError(
                    f"{self._name()} needs a list of two or more policies, one a player, not "
                    f"{len(policies)}; InteractionSerialEvaluator plays alone"
                )
            self._policy = policies
        for policy in self._demand_policy():
            policy.reset()

    def eval(
        self,
        save_ckpt_fn: Callable[[str], Any] | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
    ) -> tuple[bool, list[list[dict[str, Any]]]]:
        """Play `n_episode` episodes; collective where learners form a process group.

        Args:
            save_ckpt_fn: called on rank 0 with ``"ckpt_best.pth.tar"`` where policy 0's mean return
                is the best so far.
            train_iter: train iterations so far; the run is not ended before the first.
            envstep: environment steps so far.
            n_episode: at least one for each environment; None: `Config.n_episode`.

        Returns:
            Whether the run can end, and for each policy the last info of each episode, in the
            order in which they ended; ``eval_episode_return`` in it is that policy's.

        Raises:
            EnvError: there are no environments, or they break their contract.
            PolicyError: there are no policies, or they break their contract.
            ConfigError: there are fewer episodes than environments.
        """
        return_info, duration_s = on_first_rank(lambda: self._play(n_episode))
        returns = [info["eval_episode_return"] for info in return_info[0]]
        scalars = evaluation_scalars(returns, duration_s)
        stop = self._conclude(
            scalars["reward_mean"], scalars, describe(scalars), (train_iter, envstep), save_ckpt_fn
        )
        return stop, return_info

    def _play(self, n_episode: int | None) -> tuple[list[list[dict[str, Any]]], float]:
        env, policies = self._demand_env(), self._demand_policy()
        table = Table([Player(policy, {}, self._cfg.transform_obs) for policy in policies])
        monitor = VectorEvalMonitor(
            env.env_num, episodes_to_play(n_episode, self._cfg.n_episode, env.env_num)
        )
        return_info: list[list[dict[str, Any]]] = [[] for _ in policies]
        with EasyTimer() as timer:
            for env_id, step in ended_episodes(env, table, monitor):
                infos = infos_of(step.info, len(policies), env_id, ended=True)
                for of_policy, info in zip(return_info, infos, strict=True):
                    of_policy.append(info)
                monitor.update_reward(env_id, infos[0]["eval_episode_return"])
        return return_info, timer.value


class Table:
    """Several players in all environments, each asked about those where it is to act."""

    def __init__(self, players: Sequence[Player]) -> None:
        self._players = players

    def act(self, ready: dict[int, Any]) -> dict[int, list[Any]]:
        """List of actions for each environment that waits; None for those who do not act.

        Raises:
            EnvError: an environment's observation is not one a player.
        """
        check_seats(ready, len(self._players))
        actions = []
        for seat, player in enumerate(self._players):
            seen = seen_by(seat, ready)
            actions.append(player.act(seen) if seen else {})
        return joint(actions, ready)

    def reset(self, env_ids: list[int] | None = None) -> None:
        """Forget episodes."""
        for player in self._players:
            player.reset(env_ids)
