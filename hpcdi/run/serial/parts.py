"""The parts of a serial run, from its experiment."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from hpcdi.config.compat import component_class
from hpcdi.config.roles import ReturnEvaluatorConfig
from hpcdi.config.schema import ExperimentConfig
from hpcdi.env.create import battle_players, create_env_manager
from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import RandomActor
from hpcdi.policy.spaces import image_axes
from hpcdi.roles.context import ROLES
from hpcdi.run.serial.pipeline import (
    ColumnPath,
    DataPath,
    Feed,
    LearningAgent,
    Parts,
    SamplePath,
)
from hpcdi.run.serial.replay import LocalReplay
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.layout import RunLayout
from hpcdi.types import Spaces
from hpcdi.utils.curves import TensorBoardWriter
from hpcdi.utils.registry import (
    BUFFER_REGISTRY,
    SERIAL_COLLECTOR_REGISTRY,
    SERIAL_EVALUATOR_REGISTRY,
)
from hpcdi.worker.collector.base_serial_collector import create_serial_collector
from hpcdi.worker.collector.evaluation import create_serial_evaluator
from hpcdi.worker.coordinator.commanders import BaseSerialCommander
from hpcdi.worker.dict_form import RandomPolicy
from hpcdi.worker.dict_policy import columnar_actor
from hpcdi.worker.learner.base_learner import create_learner

_OF_BATTLE = {
    "sample": (SERIAL_COLLECTOR_REGISTRY, "sample_1v1"),
    "interaction": (SERIAL_EVALUATOR_REGISTRY, "battle_interaction"),
}


class PartsMaker:
    """Makes everything that a serial run is composed of.

    In a battle each player gets a policy of its own, and the first one is judged by how it plays
    against players that act at random.

    Args:
        config: the experiment.
        spaces: of its environment.
        curves: takes all curves.
        layout: the run folder.
        restarts: how often the run was resumed: random numbers are others each time.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        spaces: Spaces,
        curves: TensorBoardWriter | None,
        layout: RunLayout,
        restarts: int,
    ) -> None:
        self._config, self._spaces = config, spaces
        self._curves, self._layout, self._restarts = curves, layout, restarts
        self._players = battle_players(config.env)
        self._seed = np.random.SeedSequence(config.seed, spawn_key=(len(ROLES), 0, restarts))

    def make(self, patience: DiskPatience) -> Parts:
        """Returns all parts, joined.

        Args:
            patience: with a full disk.
        """
        import torch

        torch.manual_seed(int(self._seed.generate_state(1)[0]))  # some policies draw from torch
        policies = [
            create_policy(
                self._config.policy, ["learn", "collect", "eval", "command"], seed=self._next_seed()
            )
            for _ in range(self._players)
        ]
        collector = self._collector([policy.collect_mode for policy in policies])
        evaluator = self._evaluator(policies[0])
        agents = tuple(
            self._agent(policy, collector, evaluator, number)
            for number, policy in enumerate(policies)
        )
        buffers = [] if self._config.policy.on_policy else [agent.buffer for agent in agents]
        is_columnar = len(agents) == 1 and columnar_actor(collector.policy) is not None
        replay = LocalReplay(
            self._config, self._layout, buffers,
            columnar=is_columnar, restarts=self._restarts, patience=patience,
        )  # fmt: skip
        data = self._data_path(collector, agents, replay)
        return Parts(collector, evaluator, agents, data, replay)

    def _collector(self, modes: list[Any]) -> Any:
        cfg = self._config.policy.collect.serial_collector
        return create_serial_collector(
            _for_players(cfg, self._players),
            env=create_env_manager(self._config.env, evaluate=False, seed=self._next_seed()),
            policy=modes if self._players > 1 else modes[0],
            tb_logger=self._curves, exp_name=self._config.exp_name,
        )  # fmt: skip

    def _evaluator(self, policy: Any) -> Any:
        """Returns the evaluator; settings that it lacks follow from the environment's."""
        env = self._config.env
        cfg = _for_players(self._config.policy.eval.evaluator, self._players)
        n_episode, stop_value = evaluation_goal(self._config)
        others = [self._random(policy.eval_mode) for _ in range(self._players - 1)]
        return create_serial_evaluator(
            dataclasses.replace(cfg, n_episode=n_episode, stop_value=stop_value),
            env=create_env_manager(
                env, evaluate=True, is_endless=True, policy=self._config.policy,
                seed=self._next_seed(),
            ),
            policy=[policy.eval_mode, *others] if others else policy.eval_mode,
            tb_logger=self._curves, exp_name=str(self._layout.root),
        )  # fmt: skip

    def _agent(self, policy: Any, collector: Any, evaluator: Any, number: int) -> LearningAgent:
        cfg, suffix = self._config.policy, str(number) if number else ""
        learner = create_learner(
            cfg.learn.learner, policy=policy.learn_mode, tb_logger=self._curves,
            exp_name=self._config.exp_name, instance_name=f"learner{suffix}",
            ckpt_dir=self._layout.checkpoints_of(number),
        )  # fmt: skip
        buffer = component_class(BUFFER_REGISTRY, cfg.other.replay_buffer)(
            cfg.other.replay_buffer, self._curves, self._config.exp_name, f"buffer{suffix}",
            rng=np.random.default_rng(self._next_seed()), prioritized=cfg.priority,
        )  # fmt: skip
        commander = BaseSerialCommander(
            None, learner, collector, evaluator, buffer, policy.command_mode
        )
        return LearningAgent(policy.learn_mode, learner, buffer, commander)

    def _data_path(
        self, collector: Any, agents: tuple[LearningAgent, ...], replay: LocalReplay
    ) -> DataPath:
        config = self._config
        size = config.policy.collect.n_sample * config.env.collector_env_num
        feeds = [
            Feed(
                None if config.policy.on_policy else agent.buffer,
                config.policy.learn.batch_size, agent.learner, replay,
            )
            for agent in agents
        ]  # fmt: skip
        wanted = config.policy.random_collect_size
        if len(feeds) > 1 or columnar_actor(collector.policy) is None:
            modes = collector.policy if len(feeds) > 1 else [collector.policy]
            random_modes = [self._random(mode) for mode in modes] if wanted else []
            return SamplePath(collector, size, feeds, random=random_modes)
        random = RandomActor(self._spaces, self._next_seed()) if wanted else None
        length = config.policy.sequence.length
        return ColumnPath(collector, size, feeds[0], random, replay.publish, length)

    def _random(self, mode: Any) -> RandomPolicy:
        return RandomPolicy(self._spaces, mode, self._next_seed())

    def _next_seed(self) -> np.random.SeedSequence:
        return self._seed.spawn(1)[0]


def evaluation_goal(config: ExperimentConfig) -> tuple[int, float]:
    """Returns the episodes of an evaluation, and the mean return to reach."""
    env, cfg = config.env, config.policy.eval.evaluator
    n_episode, stop_value = env.evaluator_env_num * env.evaluator_episode_num, env.stop_value
    if not isinstance(cfg, ReturnEvaluatorConfig):
        return n_episode, stop_value
    return cfg.n_episode or n_episode, stop_value if np.isinf(cfg.stop_value) else cfg.stop_value


def set_threads(spaces: Spaces) -> None:
    """Let torch compute images by several threads; small networks are fastest by one.

    Does nothing where the user has chosen: ``OMP_NUM_THREADS``.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        is_image = any(image_axes(leaf) is not None for leaf in spaces.observation)
        torch.set_num_threads(min(len(os.sched_getaffinity(0)), 8) if is_image else 1)


def _for_players(cfg: Any, players: int) -> Any:
    """Settings of a collector or evaluator: in a battle, the battle's kind instead of the usual."""
    if players == 1 or cfg.type not in _OF_BATTLE:
        return cfg
    registry, battle_type = _OF_BATTLE[cfg.type]
    kind = registry.get(battle_type).Config
    names = {field.name for field in dataclasses.fields(kind)} - {"type"}
    given = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg) if f.name in names}
    return kind(**given)
