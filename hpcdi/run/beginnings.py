"""Settings of an experiment that is named by an environment and an algorithm alone.

They are between the algorithm's own defaults, which no environment is asked for, and the tuned ones
of ``configs/``. Whoever wants others sets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.types import Interval
from hpcdi.utils.progress import USUAL_PATIENCE

_ON_POLICY = {
    "env.collector_env_num": 8,
    "policy.model.encoder_hidden_size_list": [64, 64],
    "policy.other.replay_buffer.replay_buffer_size": 100_000,
    "policy.other.commander.max_env_step": 1_000_000,
    "policy.eval.every": "20000 env_steps",
}
_DQN = {
    "env.collector_env_num": 8,
    "policy.nstep": 3,
    "policy.random_collect_size": 1000,
    "policy.collect.n_sample": 16,
    "policy.learn.batch_size": 128,
    "policy.learn.learning_rate": 6e-4,
    "policy.learn.replay_ratio": 32,
    "policy.learn.target_update_freq": 250,
    "policy.other.eps": {"type": "linear", "start": 1.0, "end": 0.05, "decay": 30_000},
    "policy.other.replay_buffer.replay_buffer_size": 100_000,
    "policy.other.replay_buffer.min_fill": 1000,
    "policy.other.commander.max_env_step": 500_000,
    "policy.eval.every": "10000 env_steps",
}
_DISCRETE_SAC = {
    **{path: value for path, value in _DQN.items() if "eps" not in path and "target" not in path},
    "policy.learn.alpha": 0.1,
    "policy.learn.target_entropy": 0.3,  # nats; the paper's leaves two actions nearly at random
}
_R2D2 = {
    "env.collector_env_num": 8,
    "policy.model.encoder_hidden_size_list": [64],
    "policy.model.memory_size": 64,
    "policy.collect.n_sample": 80,
    "policy.learn.batch_size": 32,  # this and all of replay: sequences of 40 steps
    "policy.learn.learning_rate": 1e-3,
    "policy.learn.replay_ratio": 2,
    "policy.learn.target_update_freq": 100,
    "policy.other.eps": {"type": "linear", "start": 1.0, "end": 0.05, "decay": 30_000},
    "policy.other.replay_buffer.replay_buffer_size": 10_000,
    "policy.other.replay_buffer.min_fill": 100,
    "policy.other.commander.max_env_step": 500_000,
    "policy.eval.every": "10000 env_steps",
}
_BOX = {
    "env.collector_env_num": 4,
    "policy.random_collect_size": 800,
    "policy.collect.n_sample": 8,
    "policy.learn.batch_size": 256,
    "policy.learn.learning_rate": 1e-3,
    "policy.learn.replay_ratio": 256,
    "policy.other.replay_buffer.replay_buffer_size": 200_000,
    "policy.other.replay_buffer.min_fill": 800,
    "policy.other.commander.max_env_step": 100_000,
    "policy.eval.every": "5000 env_steps",
}
_OF: Mapping[str, Mapping[str, Any]] = {
    "ppo": {
        **_ON_POLICY,
        "policy.normalize.observation": None,
        "policy.collect.n_sample": 128,
        "policy.learn.batch_size": 256,
        "policy.learn.learning_rate": 1e-3,
    },
    "impala": {
        **_ON_POLICY,
        "policy.collect.n_sample": 64,
        "policy.collect.unroll_len": 32,
        "policy.learn.batch_size": 512,
        "policy.learn.learning_rate": 1e-3,
        "policy.learn.entropy_weight": 0.01,
        "policy.learn.grad_clip_norm": 1,
    },
    "dqn": _DQN,
    "c51": _DQN,
    "qrdqn": _DQN,
    "vdn": _DQN,
    "qmix": _DQN,
    "discrete_sac": _DISCRETE_SAC,
    "r2d2": _R2D2,
    "sac": _BOX,
    "td3": _BOX,
    "tqc": {**_BOX, "policy.learn.critics": 2},
}
_MOST = "policy.other.commander.max_env_step"
_EVERY = "policy.eval.every"
_EVERY_OFFLINE = "500 iterations"
_WHILE_COLLECTING = ("policy.random_collect_size", "policy.other.replay_buffer.min_fill", _MOST)
"""What makes no sense where nothing is collected."""
_OF_ALL = {"env.evaluator_env_num": 20, "env.evaluator_episode_num": 1}


_TEAM_WITH_MEMORY = {
    **{path: value for path, value in _R2D2.items() if not path.startswith("policy.model")},
    "policy.collect.unroll_len": 16,
}
_WITH_MEMORY: Mapping[str, Mapping[str, Any]] = {
    "ppo": {**_OF["ppo"], "policy.collect.unroll_len": 16},
    "vdn": _TEAM_WITH_MEMORY,
    "qmix": _TEAM_WITH_MEMORY,
}
"""Of those that begin otherwise with ``model.memory``: they learn from sequences."""


def settings_of(
    algorithm: str, *, remembers: bool = False, is_offline: bool = False
) -> dict[str, Any]:
    """Returns settings by their paths; of an algorithm that is not known here those of all.

    Args:
        algorithm: ``policy.type``.
        remembers: whether ``policy.model.memory`` is set to one.
        is_offline: whether it learns from given data alone, and makes no steps.
    """
    own = _OF.get(algorithm, {})
    settings = {**_OF_ALL, **(_WITH_MEMORY.get(algorithm, own) if remembers else own)}
    if is_offline:
        kept = {path: value for path, value in settings.items() if path not in _WHILE_COLLECTING}
        settings = {**kept, **({_EVERY: _EVERY_OFFLINE} if _EVERY in kept else {})}
    return settings


def early_stop_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the callback that ends a run for which nobody has said when it ends.

    It waits for a quarter of the evaluations that fit into ``max_env_step``, at least three;
    `USUAL_PATIENCE` where nobody knows how many fit: without such a limit, or where evaluations
    come by seconds or iterations. And for ever where none was better than the first episodes.

    Args:
        settings: of the experiment, by their paths: those of `settings_of`, or others in their
            place.
    """
    most, every = settings.get(_MOST), Interval.of(str(settings.get(_EVERY)))
    patience = USUAL_PATIENCE
    if most is not None and every is not None and every.unit == "env_steps":
        patience = max(int(most / (4 * every.length)), 3)
    return {"type": "early_stop", "evaluations": patience, "after_rise": True}
