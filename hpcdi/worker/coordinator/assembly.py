"""The parts of a coordinator, from its experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcdi.config.load import compile_config
from hpcdi.config.schema import ExperimentConfig, check_over_ranks
from hpcdi.errors import ConfigError, Problem
from hpcdi.worker.coordinator.counters import Timeouts
from hpcdi.worker.coordinator.lockstep import LockstepScheduler, RoundPlan
from hpcdi.worker.coordinator.on_policy import OnPolicyPartition, on_policy_buffer
from hpcdi.worker.coordinator.partition import Partition
from hpcdi.worker.coordinator.replay_desk import ReplayDesk
from hpcdi.worker.coordinator.scheduler import Scheduler
from hpcdi.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer
from hpcdi.worker.replay_buffer.base_buffer import get_buffer_cls


def as_experiment(cfg: Any) -> ExperimentConfig:
    """The experiment of what the seeds' callers pass.

    Raises:
        ConfigError: with every problem of a mapping.
    """
    if isinstance(cfg, ExperimentConfig):
        return cfg
    mapping = dict(cfg)
    source = "the coordinator's configuration"
    odd = sorted(mapping.keys() - {"main", "system", "seed"})
    if odd:
        known = "unknown key; known here: main, seed, system"
        raise ConfigError([Problem(str(key), known) for key in odd], source)
    main = dict(mapping.pop("main", {}))
    config = compile_config({**main, **mapping}, source).config
    problems = check_over_ranks(config)
    if problems:
        raise ConfigError(problems, source)
    return config


_OWN_END_S = 15.0
"""A rank that hangs ends by itself; rank 0 ends the run only where that has not come."""


def make_desk(config: ExperimentConfig, curves: Any = None, workers: int = 2) -> ReplayDesk:
    """The replay buffer: one partition for each learner, seeded by the experiment.

    Args:
        config: the experiment.
        curves: takes what the buffers report of themselves.
        workers: ranks besides the coordinator.
    """
    policy = config.policy
    buffer_cfg = policy.other.replay_buffer
    if policy.on_policy:
        piece = policy.collect.n_sample * config.env.collector_env_num
        buffer_cfg = on_policy_buffer(buffer_cfg, workers, piece)
    learners = policy.learn.learner.learner_num
    share = dataclasses.replace(
        buffer_cfg,
        replay_buffer_size=buffer_cfg.replay_buffer_size // learners,
        min_fill=max(1, buffer_cfg.min_fill // learners),
        frames=(),  # this buffer holds row numbers; shards and learners' rings hold the frames
    )
    seeds = np.random.SeedSequence(config.seed, spawn_key=(0,))

    def make_buffer(name: str) -> AdvancedReplayBuffer:
        buffer: AdvancedReplayBuffer = get_buffer_cls(share)(
            share, curves, config.exp_name, name,
            rng=np.random.default_rng(seeds.spawn(1)[0]), prioritized=policy.priority,
        )  # fmt: skip
        return buffer

    kind = OnPolicyPartition if policy.on_policy else Partition
    return ReplayDesk(make_buffer, config.system.storage.block_bytes, kind)


def scheduler_of(config: ExperimentConfig, workers: int) -> Callable[..., Scheduler]:
    """What makes the scheduler, of its parts.

    Args:
        config: the experiment.
        workers: ranks besides the coordinator.
    """
    if not config.system.deterministic:
        return Scheduler
    policy = config.policy
    plan = RoundPlan(
        workers - policy.learn.learner.learner_num, policy.updates_after,
        config.system.snapshot_rounds, policy.eval.evaluator.eval_freq,
    )  # fmt: skip
    return partial(LockstepScheduler, plan=plan)


def timeouts(config: ExperimentConfig) -> Timeouts:
    """How long the scheduler waits for what."""
    own = config.system.coordinator
    return Timeouts(
        own.start_timeout_s, own.stop_timeout_s, own.collector_task_timeout,
        own.learner_task_timeout, config.system.survival.worker_timeout_s + _OWN_END_S,
        config.env.manager.retry_window_s,
    )  # fmt: skip
