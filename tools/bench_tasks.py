"""Tasks that people begin with: seconds from the command to an evaluation at the target.

Each is run as `hpcdi serial`, as `hpcdi train` (its configuration's ranks), and by
Stable-Baselines3 with the settings that rl-baselines3-zoo publishes for it, one after the other in
one run. All evaluate 20 episodes, as often as the configuration says, by environment steps.

    python tools/bench_tasks.py                          all tasks, one seed: about half an hour
    python tools/bench_tasks.py pendulum acrobot_dqn --seeds 3
    python tools/bench_tasks.py --quick                  one task, about a minute

Stable-Baselines3 is taken from this Python, or from .venv-peers, which `make bench` installs.
LunarLander needs gymnasium[box2d], Hopper gymnasium[mujoco], in both. A peer that has not reached
the target at the limit counts with the limit: the ratio is at least that.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_solve import ROOT, median, solve
from figures import Row, at_least, at_most, parser, show

EPISODES = 20
"""Of each evaluation, of all."""
IN_MEDIAN = 4.0
"""How many times as fast as the peer, in the median of tasks."""
SLOWER_S = 1.0
"""Seconds by which ranks may be slower than one process."""


@dataclass(frozen=True)
class Task:
    """What is to be learnt, and how the peer does it.

    Attributes:
        config: ours, of configs/.
        target: mean return of an evaluation.
        algorithm: the peer's.
        peer: its arguments.
        envs: its environments.
        is_normalized: whether it normalises observations and rewards.
        limit_s: of each run.
    """

    config: str
    target: float
    algorithm: str
    peer: dict[str, Any] = field(default_factory=dict)
    envs: int = 1
    is_normalized: bool = False
    limit_s: float = 400.0


_ACROBOT_PPO = {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0}
_CARTPOLE_PPO = {
    "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
    "ent_coef": 0.0, "learning_rate": 1e-3, "clip_range": 0.2,
}  # fmt: skip
_ACROBOT_DQN = {
    "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50000, "learning_starts": 0,
    "gamma": 0.99, "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1,
    "exploration_fraction": 0.12, "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}  # fmt: skip
_CAR_SAC = {
    "learning_rate": 3e-4, "buffer_size": 50000, "batch_size": 512, "ent_coef": 0.1,
    "train_freq": 32, "gradient_steps": 32, "gamma": 0.9999, "tau": 0.01, "learning_starts": 0,
    "use_sde": True, "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
}  # fmt: skip
_LUNAR_PPO = {
    "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
    "ent_coef": 0.01,
}  # fmt: skip
_HOPPER_PPO = {
    "batch_size": 32, "n_steps": 512, "gamma": 0.999, "learning_rate": 9.80828e-5,
    "ent_coef": 0.00229519, "clip_range": 0.2, "n_epochs": 5, "gae_lambda": 0.99,
    "max_grad_norm": 0.7, "vf_coef": 0.835671,
    "policy_kwargs": {"log_std_init": -2, "ortho_init": False, "net_arch": [256, 256]},
}  # fmt: skip
TASKS = {
    "cartpole_ppo": Task("cartpole_ppo", 475, "PPO", _CARTPOLE_PPO, 8),
    "pendulum": Task("pendulum_sac", -160, "SAC", {"learning_rate": 1e-3}),
    "mountaincar_continuous": Task("mountaincar_continuous_sac", 90, "SAC", _CAR_SAC),
    "acrobot_ppo": Task("acrobot_ppo", -90, "PPO", _ACROBOT_PPO, 16, True),
    "acrobot_dqn": Task("acrobot_dqn", -90, "DQN", _ACROBOT_DQN),
    "lunarlander_ppo": Task("lunarlander_ppo", 200, "PPO", _LUNAR_PPO, 16),
    "hopper_ppo": Task("hopper_ppo", 1000, "PPO", _HOPPER_PPO, 1, True),
}
QUICK = "cartpole_ppo"


def main() -> None:
    """Run, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("task", nargs="*", help=f"of {', '.join(TASKS)}; default: all")
    command_line.add_argument("--seeds", type=int, default=1, help="number of seeds")
    command_line.add_argument("--peer-python", default=_python_of_peer(), help="that has the peer")
    given = command_line.parse_args()
    if unknown := [name for name in given.task if name not in TASKS]:
        command_line.error(f"there is no task {', '.join(unknown)}; there are {', '.join(TASKS)}")
    ratios: list[float] = []
    for name in given.task or ([QUICK] if given.quick else TASKS):
        task = TASKS[name]
        seconds: dict[str, list[float]] = {"serial": [], "train": [], "peer": []}
        for seed in range(given.seeds):
            for who, taken in seconds.items():
                if who != "peer":
                    taken.append(_ours(who, task, seed))
                elif given.peer_python:
                    taken.append(_of_peer(given.peer_python, task, seed))
                if taken and not given.json:
                    print(f"  {name}, seed {seed}, {who}: {taken[-1]:.1f} s", flush=True)
        serial, ranks, peer = (median(seconds[who]) for who in ("serial", "train", "peer"))
        rows = [
            at_most(f"{name}: hpcdi train", ranks, "s", serial + SLOWER_S),
            Row(f"{name}: hpcdi serial", serial, "s"),
        ]
        if not math.isnan(peer):
            ratios.append(peer / min(serial, ranks))
            more = {"ratio": ratios[-1], "peer": "hpcdi"}
            rows.append(
                at_least(f"{name}: Stable-Baselines3", peer, "s", min(serial, ranks), **more)
            )
        show(rows, given.json)
    if ratios:
        what = f"median of {len(ratios)} ratios to Stable-Baselines3"
        show([at_least(what, median(ratios), "x", IN_MEDIAN)], given.json)


def _ours(command: str, task: Task, seed: int) -> float:
    """Seconds of a run to its exit; `inf`: it has not reached the target."""
    config = str(ROOT / "configs" / f"{task.config}.yaml")
    settings = [
        f"env.stop_value={task.target:g}", f"env.evaluator_env_num={EPISODES}",
        "env.evaluator_episode_num=1",
    ]  # fmt: skip
    run = solve([command, config], seed, settings, task.limit_s)
    return run.to_exit_s if run.is_solved else math.inf


def _of_peer(python: str, task: Task, seed: int) -> float:
    """Seconds of the peer, its start included; the limit where it has not reached the target."""
    from hpcdi.config.load import read_mapping

    config = read_mapping(ROOT / "configs" / f"{task.config}.yaml")
    count, _unit = config["policy"]["eval"]["every"].split()  # env_steps in all of these
    spec = {
        "env_id": config["env"]["env_id"], "algorithm": task.algorithm, "arguments": task.peer,
        "envs": task.envs, "is_normalized": task.is_normalized, "every": int(count),
        "target": task.target, "episodes": EPISODES, "seed": seed,
    }  # fmt: skip
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        job = subprocess.Popen(
            [python, str(Path(__file__).with_name("sb3_task.py")), json.dumps(spec)],
            stdout=said, stderr=said,
        )  # fmt: skip
        try:
            code = job.wait(task.limit_s)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
            return task.limit_s
        if code:
            said.seek(0)
            sys.exit(f"Stable-Baselines3 has failed:\n{said.read().decode()}")
    return time.perf_counter() - began


def _python_of_peer() -> str:
    """A Python that has the peer; empty: none is known."""
    if importlib.util.find_spec("stable_baselines3") is not None:
        return sys.executable
    peers = ROOT / ".venv-peers" / "bin" / "python"
    return str(peers) if peers.exists() else ""


if __name__ == "__main__":
    main()
