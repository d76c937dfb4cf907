"""Stable-Baselines3 learns a task to its target, for bench_tasks.py, which gives it SPEC (JSON)."""

from __future__ import annotations

import json
import sys

import stable_baselines3
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize


def main() -> None:
    """Learn, and end at the first evaluation that reaches the target."""
    spec = json.loads(sys.argv[1])
    envs = make_vec_env(spec["env_id"], spec["envs"], seed=spec["seed"])
    judged = make_vec_env(spec["env_id"], spec["episodes"], seed=1000 + spec["seed"])
    if spec["is_normalized"]:
        envs = VecNormalize(envs)
        judged = VecNormalize(judged, training=False, norm_reward=False)
    callback = EvalCallback(
        judged,
        callback_on_new_best=StopTrainingOnRewardThreshold(spec["target"]),
        n_eval_episodes=spec["episodes"],
        eval_freq=max(spec["every"] // spec["envs"], 1),
        verbose=0,
    )
    algorithm = getattr(stable_baselines3, spec["algorithm"])
    model = algorithm("MlpPolicy", envs, seed=spec["seed"], device="cpu", **spec["arguments"])
    model.learn(10**7, callback=callback)


if __name__ == "__main__":
    main()
